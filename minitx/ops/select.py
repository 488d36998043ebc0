"""Choosing between numbers: where, masked_fill, clip, maximum, minimum."""
import numpy as np

from minitx import backend
from minitx.autograd import Op, Tensor
from minitx.backend import xp_of


class Where(Op):
    r"""Take each element from a where the condition holds, else from b.

        condition bool, a, b (...) broadcast   ->   y (...)

    forward       y = a where condition, else b
    backward      da = dy where condition, else 0      db = dy where not, else 0
    saved         condition (...)
    """
    broadcasts, promotion = True, "mixed"

    def forward(self, a, b, *, condition):
        self.condition = backend.follow(condition, b if isinstance(a, (int, float)) else a)
        return xp_of(self.condition).where(self.condition, a, b)

    def backward(self, dy):
        xp = xp_of(dy)
        return xp.where(self.condition, dy, 0), xp.where(self.condition, 0, dy)


class MaskedFill(Op):
    r"""Put one number wherever the mask is True.

        x (...)   mask bool, broadcasts to x   ->   y (...)

    forward       y = value where mask, else x
    backward      dx = 0 where mask, else dy
    saved         mask (...)
    """
    promotion = "mixed"

    def forward(self, x, *, mask, value):
        xp, x = xp_of(x), beside(x, value)
        self.mask = xp.broadcast_to(backend.follow(mask, x), x.shape)
        return xp.where(self.mask, value, x)

    def backward(self, dy):
        return xp_of(dy).where(self.mask, 0, dy),


class Clip(Op):
    r"""Cut what lies below min or above max; None leaves that side open.

        x (...)   ->   y (...)

    forward       y = x, but min where it is below and max where it is above
    backward      dx = dy where min <= x <= max, else 0
    saved         inside (...) bool
    """
    promotion = "mixed"

    def forward(self, x, *, min, max):
        xp, x = xp_of(x), beside(x, min, max)
        self.inside = xp.ones(x.shape, bool)
        y = x.copy() if min is None and max is None else x
        if min is not None:
            self.inside &= x >= min
            y = xp.maximum(y, min)
        if max is not None:
            self.inside &= x <= max
            y = xp.minimum(y, max)
        return y

    def backward(self, dy):
        return xp_of(dy).where(self.inside, dy, 0),


class Maximum(Op):
    r"""The larger of two arrays, element by element. Equal elements share the gradient.

        a, b (...) broadcast   ->   y (...)

    forward       y = max(a, b)
    backward      da = dy w      db = dy (1 - w)        w = 1 where a > b, 1/2 where a = b, else 0
    saved         a, b (...)
    """
    broadcasts, promotion = True, "mixed"

    def forward(self, a, b):
        self.a, self.b = a, b
        return xp_of(b if isinstance(a, (int, float)) else a).maximum(a, b)

    def backward(self, dy):
        da = dy * share(self.a, self.b, dy)
        return da, dy - da


class Minimum(Op):
    r"""The smaller of two arrays, element by element. Equal elements share the gradient.

        a, b (...) broadcast   ->   y (...)

    forward       y = min(a, b)
    backward      da = dy w      db = dy (1 - w)        w = 1 where a < b, 1/2 where a = b, else 0
    saved         a, b (...)
    """
    broadcasts, promotion = True, "mixed"

    def forward(self, a, b):
        self.a, self.b = a, b
        return xp_of(b if isinstance(a, (int, float)) else a).minimum(a, b)

    def backward(self, dy):
        da = dy * share(self.b, self.a, dy)
        return da, dy - da


def share(larger, smaller, dy):
    """1 where larger > smaller, 1/2 where they are equal, else 0, in dy's dtype."""
    return xp_of(dy).where(larger == smaller, 0.5, larger > smaller).astype(dy.dtype)


def beside(x, *numbers):
    """x; of integers floats of the default dtype, if one of the numbers that it meets is a float."""
    return x.astype(backend.default_dtype()) if x.dtype.kind != "f" and any(isinstance(n, float) for n in numbers) else x


def number(name, value):
    """value as a Python number, which widens no array. TypeError for what is more than one number."""
    value = value.data if isinstance(value, Tensor) else value
    if backend.is_array(value) and value.ndim == 0 or isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, (int, float)):
        raise TypeError(f"{name}: expected a number, got {type(value).__name__}; for arrays use where, maximum, minimum")
    return value


def check_bool(name, mask, what="mask", cure=""):
    """mask, if it is a bool array, Tensor or scalar (or None), else TypeError: a float mask could mean several things."""
    if mask is not None and getattr(mask, "dtype", None) != bool:
        kind = getattr(mask, "dtype", type(mask).__name__)
        raise TypeError(f"{name}: {what} must be a bool array, got {kind}; use {what}.astype(bool){cure}")
    return mask


def where(condition, a, b):
    """a where condition (a bool array) holds, else b; all three broadcast. TypeError for a condition that is not bool."""
    return Where.apply(a, b, condition=check_bool("where", condition, "condition"))


def masked_fill(x, mask, value):
    """x with `value` (a number) wherever mask (bool, broadcasts to x) is True. PyTorch's sense of the mask.

    TypeError for a mask that is not bool and a value that is no number, ValueError where the mask does not broadcast to x.
    """
    return MaskedFill.apply(x, mask=check_bool("masked_fill", mask), value=number("masked_fill", value))


def clip(x, min=None, max=None):
    """x cut to min .. max (numbers; None leaves a side open). The gradient passes at the bounds themselves.

    TypeError for a bound that is no number.
    """
    return Clip.apply(x, min=None if min is None else number("clip", min), max=None if max is None else number("clip", max))


def maximum(a, b):
    """The larger of a and b, element by element; ties share the gradient equally."""
    return Maximum.apply(a, b)


def minimum(a, b):
    """The smaller of a and b, element by element; ties share the gradient equally."""
    return Minimum.apply(a, b)
