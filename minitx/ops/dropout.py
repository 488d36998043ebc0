"""Dropout: the draw is made by the function, the op is plain."""
from minitx import backend
from minitx.autograd import Op, as_tensor


class Dropout(Op):
    r"""Drop some elements and make up for them with the rest.

        x (...)   keep (...) bool   ->   y (...)

    forward       y = x keep / (1 - p)
    backward      dx = dy keep / (1 - p)
    saved         keep (...)

    twin          minitx/fused/cuda/dropout.py and .cu
    """
    promotion = "float"

    def forward(self, x, *, keep, p):
        self.keep, self.gain = backend.follow(keep, x), gain_of(p)
        return x * self.keep * self.gain

    def backward(self, dy):
        return dy * self.keep * self.gain,


def check_probability(name, p):
    """ValueError unless 0 <= p <= 1."""
    if not 0 <= p <= 1:
        raise ValueError(f"{name}: a probability lies between 0 and 1, got {p}")


def gain_of(p):
    """What makes up for dropping with probability p: 1 / (1 - p); with p = 1 nothing is left to be made up for."""
    return 1 / (1 - p) if p < 1 else 0.0


def dropout(x, p, training=True):
    """Each element of x is 0 with probability p, else divided by 1 - p; x itself unless training, or with p = 0.

    Srivastava et al. 2014. Draws from minitx's one generator, on the host (manual_seed's rng= says
    more). ValueError unless 0 <= p <= 1.
    """
    x = as_tensor("dropout", x)
    p = float(p)
    check_probability("dropout", p)
    if not training or p == 0:
        return x
    return Dropout.apply(x, keep=backend.keep_mask(x.shape, p, x), p=p)
