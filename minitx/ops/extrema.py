"""The largest, the smallest, and the smooth largest along axes."""
from minitx.autograd import Op
from minitx.backend import quiet, xp_of
from minitx.ops.reduce import axes_of, as_tuple, spread


class Max(Op):
    r"""The largest along axes. Equal ones share the gradient.

        x (...)   ->   y (... without the axes, or with length 1)

    forward       y = max x
    backward      dx = dy / (how many are largest) where x is largest, else 0
    saved         x (...)   y (..., 1 along the axes)
    """
    promotion = "mixed"

    def forward(self, x, *, axis=None, keepdims=False):
        self.x, self.axis = x, axis
        y = x.max(axis=axis, keepdims=keepdims)
        self.y = spread(xp_of(x).asarray(y), x.shape, axis)
        return y

    def backward(self, dy):
        return shared(self.x == self.y, dy, self.axis),


class Min(Op):
    r"""The smallest along axes. Equal ones share the gradient.

        x (...)   ->   y (... without the axes, or with length 1)

    forward       y = min x
    backward      dx = dy / (how many are smallest) where x is smallest, else 0
    saved         x (...)   y (..., 1 along the axes)
    """
    promotion = "mixed"

    def forward(self, x, *, axis=None, keepdims=False):
        self.x, self.axis = x, axis
        y = x.min(axis=axis, keepdims=keepdims)
        self.y = spread(xp_of(x).asarray(y), x.shape, axis)
        return y

    def backward(self, dy):
        return shared(self.x == self.y, dy, self.axis),


class Logsumexp(Op):
    r"""The logarithm of a sum of exponentials: the largest, rounded off where others come near.

        x (...)   ->   y (... without the axes, or with length 1)

    forward       m = max x         e = exp(x - m)         y = m + ln sum e         a row of -inf: -inf
    backward      dx = dy e / sum e                                                 a row of -inf: 0
    saved         p = e / sum e (...)
    """
    promotion = "float"

    def forward(self, x, *, axis=None, keepdims=False):
        xp = xp_of(x)
        self.axis = axis
        m = finite_or_zero(x.max(axis=axis, keepdims=True))
        with quiet(x):
            e = xp.exp(x - m)
            total = e.sum(axis=axis, keepdims=True)
            y = m + xp.log(total)
            self.p = e / xp.where(total == 0, 1, total)
        return y if keepdims else xp.squeeze(y, axis=axes_of(x.ndim, axis))

    def backward(self, dy):
        return self.p * spread(dy, self.p.shape, self.axis),


def finite_or_zero(m):
    """m, with 0 for what is not finite: -inf - -inf would be NaN, where exp(-inf - 0) is the 0 that is meant."""
    return xp_of(m).where(xp_of(m).isfinite(m), m, 0).astype(m.dtype)


def shared(chosen, dy, axis):
    """dy along the axes, divided equally among the chosen elements."""
    return chosen * (spread(dy, chosen.shape, axis) / chosen.sum(axis=axis, keepdims=True).astype(dy.dtype))


def max(x, axis=None, keepdims=False):
    """The largest values of x along axis (values only). Ties share the gradient. ValueError where there is nothing."""
    return Max.apply(x, axis=as_tuple(axis), keepdims=keepdims)


def min(x, axis=None, keepdims=False):
    """The smallest values of x along axis (values only). Ties share the gradient. ValueError where there is nothing."""
    return Min.apply(x, axis=as_tuple(axis), keepdims=keepdims)


def logsumexp(x, axis=None, keepdims=False):
    """ln sum exp x along axis, without overflow; a row of -inf gives -inf with zero gradient."""
    return Logsumexp.apply(x, axis=as_tuple(axis), keepdims=keepdims)
