"""Choosing between numbers: where, masked_fill, clip, maximum, minimum."""
from minitx import backend
from minitx.autograd import Op
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
        return xp.where(mask, value, x)

    def backward(self, dy):
        return xp_of(dy).where(self.mask, 0, dy),


class Clip(Op):
    r"""Cut what lies below min or above max; None leaves that side open.

        x (...)   ->   y (...)

    forward       y = min(max(x, lower), upper)
    backward      dx = dy where lower <= x <= upper, else 0
    saved         inside (...) bool
    """
    promotion = "mixed"

    def forward(self, x, *, min, max):
        xp, x = xp_of(x), beside(x, min, max)
        self.inside = xp.ones(x.shape, bool)
        y = x
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


def check_bool(name, mask):
    """mask, if it is bool (or None), else TypeError: a float mask could mean three different things."""
    if mask is not None and getattr(mask, "dtype", type(mask)) != bool:
        raise TypeError(f"{name}: mask must be bool, True = may attend or is chosen, got "
                        f"{getattr(mask, 'dtype', type(mask).__name__)}; use mask.astype(bool), "
                        "or add a float mask to the scores with bias=")
    return mask


def where(condition, a, b):
    """a where condition (a bool array) holds, else b; all three broadcast. TypeError for a condition that is not bool."""
    return Where.apply(a, b, condition=check_bool("where", condition))


def masked_fill(x, mask, value):
    """x with `value` (a number) wherever mask (bool, broadcasts to x) is True. PyTorch's sense of the mask."""
    return MaskedFill.apply(x, mask=check_bool("masked_fill", mask), value=value)


def clip(x, min=None, max=None):
    """x cut to min .. max (numbers; None leaves a side open). The gradient passes at the bounds themselves."""
    return Clip.apply(x, min=min, max=max)


def maximum(a, b):
    """The larger of a and b, element by element; ties share the gradient equally."""
    return Maximum.apply(a, b)


def minimum(a, b):
    """The smaller of a and b, element by element; ties share the gradient equally."""
    return Minimum.apply(a, b)
