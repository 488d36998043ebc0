"""Dropout: the draw is made by the function, the op is plain."""
from minitx import backend
from minitx.autograd import Op, as_tensor


class Dropout(Op):
    r"""Drop some elements and make up for them with the rest; then add the residual, if there is one.

        x (...)   residual (...) or none   keep (...) bool   ->   y (...)

    forward       y = x keep / (1 - p) + residual
    backward      dx = dy keep / (1 - p)      dresidual = dy
    saved         keep (...)

    twin          minitx/fused/cuda/dropout.py and .cu
    """
    promotion = "float"

    def forward(self, x, residual, *, keep, p):
        self.keep, self.gain = backend.follow(keep, x), gain_of(p)
        y = x * self.keep * self.gain
        if residual is not None:
            y += residual
        return y

    def backward(self, dy):
        return dy * self.keep * self.gain if self.needs[0] else None, dy


def check_probability(name, p):
    """ValueError unless 0 <= p <= 1."""
    if not 0 <= p <= 1:
        raise ValueError(f"{name}: a probability lies between 0 and 1, got {p}")


def gain_of(p):
    """What makes up for dropping with probability p: 1 / (1 - p); with p = 1 nothing is left to be made up for."""
    return 1 / (1 - p) if p < 1 else 0.0


def dropout(x, p, training=True, residual=None):
    """Each element of x is 0 with probability p, else divided by 1 - p; unless training, or with p = 0, x stays as it is.

    residual, of x's shape, is added to that in the same op, as each sublayer of a Transformer ends; dtypes promote as in
    x + residual. Srivastava et al. 2014. Draws from minitx's one generator, on the host (manual_seed's rng= says more).
    ValueError unless 0 <= p <= 1, and for a residual of another shape.
    """
    x = as_tensor("dropout", x)
    p = float(p)
    check_probability("dropout", p)
    if residual is not None:
        residual = as_tensor("dropout", residual)
        if residual.shape != x.shape:
            raise ValueError(f"dropout: residual {residual.shape} must have the shape of x {x.shape}")
    if not training or p == 0:
        return x if residual is None else x + residual
    return Dropout.apply(x, residual, keep=backend.keep_mask(x.shape, p, x), p=p)
