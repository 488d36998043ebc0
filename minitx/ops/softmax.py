"""Scores to probabilities, and to their logarithms."""
from minitx import backend
from minitx.autograd import Op
from minitx.backend import quiet, xp_of
from minitx.ops.extrema import finite_or_zero
from minitx.ops.select import check_bool


class Softmax(Op):
    r"""Turn each row of scores into a probability.

        x (..., N)   mask bool, broadcasts to x, True = may be chosen   ->   y (..., N)         N along any axis

    forward       y = exp(x - max x) / sum exp(x - max x)       masked entries get exactly 0, and so does a row
                                                                in which everything is masked or -inf
    backward      dx = y (dy - <<dy, y>>)                       <<.,.>> = dot product along N
    saved         y (..., N)

    twin          minitx/fused/cpu/softmax.py   minitx/fused/cuda/softmax.py and .cu
    """
    promotion = "float"

    def forward(self, x, *, axis=-1, mask=None):
        self.axis = axis
        self.y = probabilities(x.copy(), axis, mask)
        return self.y

    def backward(self, dy):
        dx = dy * self.y
        dx -= self.y * dx.sum(axis=self.axis, keepdims=True)
        return dx,


class LogSoftmax(Op):
    r"""The logarithms of the probabilities that softmax makes, without the detour that loses the small ones.

        x (..., N)   ->   y (..., N)                            N along any axis

    forward       c = x - max x        y = c - ln sum exp c
    backward      dx = dy - exp(y) sum dy                       sum along N
    saved         y (..., N)
    """
    promotion = "float"

    def forward(self, x, *, axis=-1):
        xp = xp_of(x)
        self.axis = axis
        with quiet(x):
            c = x - finite_or_zero(x.max(axis=axis, keepdims=True)) if x.size else x.copy()
            self.y = c - xp.log(xp.exp(c).sum(axis=axis, keepdims=True))
        return self.y

    def backward(self, dy):
        return dy - xp_of(dy).exp(self.y) * dy.sum(axis=self.axis, keepdims=True),


def probabilities(scores, axis, mask):
    """Softmax along an axis, in place. A row that may choose nothing becomes 0."""
    xp = xp_of(scores)
    if mask is not None:
        xp.copyto(scores, -float("inf"), where=~backend.follow(mask, scores))
    if not scores.size:
        return scores
    with quiet(scores):
        scores -= finite_or_zero(scores.max(axis=axis, keepdims=True))
        xp.exp(scores, out=scores)
        total = scores.sum(axis=axis, keepdims=True)
        scores /= xp.where(total == 0, 1, total)
    return scores


def softmax(x, axis=-1, mask=None):
    """exp x / sum exp x along axis; mask (bool, broadcasts to x): True = may be chosen, the rest gets exactly 0.

    No finite x overflows or gives NaN. TypeError for a mask that is not bool.
    """
    check_bool("softmax", mask, cure=" (True = may be chosen), or add a float mask to x: in attention that is bias=")
    return Softmax.apply(x, axis=axis, mask=mask)


def log_softmax(x, axis=-1):
    """ln softmax(x) along axis, exact also where the probability itself would be 0."""
    return LogSoftmax.apply(x, axis=axis)
