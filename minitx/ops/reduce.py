"""Sums, means and spreads along axes."""
import math

from minitx.autograd import Op
from minitx.backend import default_dtype, xp_of


class Sum(Op):
    r"""Add up along axes.

        x (...)   ->   y (... without the axes, or with length 1)

    forward       y = sum x
    backward      dx = dy, repeated along the axes
    saved         nothing
    """
    promotion = "mixed"

    def forward(self, x, *, axis=None, keepdims=False):
        self.shape, self.axis = x.shape, axis
        return x.sum(axis=axis, keepdims=keepdims)

    def backward(self, dy):
        return xp_of(dy).broadcast_to(spread(dy, self.shape, self.axis), self.shape),


class Mean(Op):
    r"""Average along axes.

        x (...)   ->   y (... without the axes, or with length 1)

    forward       y = sum x / n                 n = how many are averaged
    backward      dx = dy / n, repeated along the axes
    saved         nothing
    """
    promotion = "mixed"

    def forward(self, x, *, axis=None, keepdims=False):
        self.shape, self.axis = x.shape, axis
        y = x.mean(axis=axis, keepdims=keepdims)
        return y if x.dtype.kind == "f" else y.astype(default_dtype())     # of integers: exact, then rounded once

    def backward(self, dy):
        n = count(self.shape, self.axis)
        return xp_of(dy).broadcast_to(spread(dy, self.shape, self.axis) / n, self.shape),


class Var(Op):
    r"""The mean squared distance from the mean, along axes (biased: divided by n).

        x (...)   ->   y (... without the axes, or with length 1)

    forward       c = x - mean x        y = sum c^2 / n
    backward      dx = 2 c dy / n       the mean's own gradient is 0, as the c sum to 0
    saved         c (...)
    """
    promotion = "float"

    def forward(self, x, *, axis=None, keepdims=False):
        self.axis = axis
        self.c = x - x.mean(axis=axis, keepdims=True)
        return (self.c * self.c).mean(axis=axis, keepdims=keepdims)

    def backward(self, dy):
        n = count(self.c.shape, self.axis)
        return self.c * (2 * spread(dy, self.c.shape, self.axis) / n),


class Std(Op):
    r"""The root of the mean squared distance from the mean, along axes (biased: divided by n).

        x (...)   ->   y (... without the axes, or with length 1)

    forward       c = x - mean x        y = sqrt(sum c^2 / n)
    backward      dx = c dy / (n y)     0 where y is 0
    saved         c (...)   y (...)
    """
    promotion = "float"

    def forward(self, x, *, axis=None, keepdims=False):
        self.axis = axis
        self.c = x - x.mean(axis=axis, keepdims=True)
        self.y = xp_of(x).sqrt((self.c * self.c).mean(axis=axis, keepdims=keepdims))
        return self.y

    def backward(self, dy):
        n = count(self.c.shape, self.axis)
        y = xp_of(dy).where(self.y == 0, 1, self.y)         # there every c is 0 too
        return self.c * spread(dy / (n * y), self.c.shape, self.axis),


class Prod(Op):
    r"""Multiply along axes.

        x (...)   ->   y (... without the axes, or with length 1)

    forward       y = product of x
    backward      dx_i = dy * (product of those before i) * (product of those after i)      right for zeros too
    saved         x (...)
    """
    promotion = "mixed"

    def forward(self, x, *, axis=None, keepdims=False):
        self.x, self.axis = x, axis
        return x.prod(axis=axis, keepdims=keepdims)

    def backward(self, dy):
        xp, x = xp_of(dy), self.x
        axes = axes_of(x.ndim, self.axis)
        kept = tuple(i for i in range(x.ndim) if i not in axes)
        rows = x.transpose(kept + axes)                     # the multiplied axes last, and as one
        flat = rows.reshape(tuple(x.shape[i] for i in kept) + (math.prod(x.shape[i] for i in axes),))
        one = xp.ones(flat.shape[:-1] + (1,), x.dtype)
        before = xp.cumprod(xp.concatenate((one, flat[..., :-1]), axis=-1), axis=-1)
        after = xp.cumprod(xp.concatenate((one, flat[..., :0:-1]), axis=-1), axis=-1)[..., ::-1]
        others = (before * after if flat.shape[-1] else flat).reshape(rows.shape)
        back = sorted(range(x.ndim), key=(kept + axes).__getitem__)
        return others.transpose(back) * spread(dy, x.shape, self.axis),


def axes_of(ndim, axis):
    """The axes that a reduction runs over, as a tuple of non-negative numbers."""
    if axis is None or not ndim:                        # NumPy lets a number be reduced along axis 0 or -1
        return tuple(range(ndim))
    return tuple(i % ndim for i in (axis if isinstance(axis, (tuple, list)) else (axis,)))


def spread(dy, shape, axis):
    """dy with the reduced axes back in as length 1, so that it broadcasts against the input of that shape."""
    axes = axes_of(len(shape), axis)
    return dy.reshape(tuple(1 if i in axes else n for i, n in enumerate(shape)))


def count(shape, axis):
    """How many elements each result of the reduction was made from."""
    return math.prod(shape[i] for i in axes_of(len(shape), axis))


def as_tuple(axis):
    """A list of axes as the tuple that NumPy asks for."""
    return tuple(axis) if isinstance(axis, list) else axis


def sum(x, axis=None, keepdims=False):
    """Sum of x along axis (an int, a tuple, or None for all), as NumPy: small integers add up in int64."""
    return Sum.apply(x, axis=as_tuple(axis), keepdims=keepdims)


def mean(x, axis=None, keepdims=False):
    """Mean of x along axis; of integers a float of the default dtype."""
    return Mean.apply(x, axis=as_tuple(axis), keepdims=keepdims)


def var(x, axis=None, keepdims=False):
    """Biased variance of x along axis (divided by n, NumPy's default, not PyTorch's), in two passes."""
    return Var.apply(x, axis=as_tuple(axis), keepdims=keepdims)


def std(x, axis=None, keepdims=False):
    """Biased standard deviation of x along axis; where it is 0 the gradient is 0."""
    return Std.apply(x, axis=as_tuple(axis), keepdims=keepdims)


def prod(x, axis=None, keepdims=False):
    """Product of x along axis; the gradient is right for zeros too."""
    return Prod.apply(x, axis=as_tuple(axis), keepdims=keepdims)
