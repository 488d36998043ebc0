"""Putting arrays together and taking them apart."""
import itertools
from collections.abc import Iterable

from minitx.autograd import Op
from minitx.backend import is_array, xp_of


class Concatenate(Op):
    r"""Lay arrays end to end along an axis that they have.

        xs (..., N_i, ...)   ->   y (..., sum of N_i, ...)

    forward       y = x_1 | x_2 | ...
    backward      dx_i = its own stretch of dy
    saved         nothing
    """
    promotion, native_half = "mixed", True

    def forward(self, *xs, axis=0):
        y = xp_of(xs[0]).concatenate(xs, axis=axis)
        self.axis, self.ends = axis, list(itertools.accumulate(x.shape[axis] for x in xs))
        return y

    def backward(self, dy):
        return tuple(xp_of(dy).split(dy, self.ends[:-1], axis=self.axis))


class Stack(Op):
    r"""Lay arrays of one shape side by side along a new axis.

        n xs (...)   ->   y (..., n, ...)

    forward       y[i] = x_i, along the new axis
    backward      dx_i = dy[i]
    saved         nothing
    """
    promotion, native_half = "mixed", True

    def forward(self, *xs, axis=0):
        self.axis = axis
        return xp_of(xs[0]).stack(xs, axis=axis)

    def backward(self, dy):
        return tuple(xp_of(dy).moveaxis(dy, self.axis, 0))


class Split(Op):
    r"""Cut an array into pieces along an axis.

        x (..., N, ...)   ->   ys (..., N_i, ...)

    forward       y_1 | y_2 | ... = x           views of x
    backward      dx = dy_1 | dy_2 | ...        0 for a piece that nobody used
    saved         nothing
    """

    def forward(self, x, *, sections, axis=0):
        if not -x.ndim <= axis < x.ndim:
            raise ValueError(f"axis {axis} does not exist")
        ys = tuple(xp_of(x).split(x, sections, axis=axis))
        self.axis, self.shapes = axis, [y.shape for y in ys]
        return ys

    def backward(self, *dys):
        used = next(dy for dy in dys if dy is not None)
        xp = xp_of(used)
        pieces = [xp.zeros(shape, used.dtype) if dy is None else dy for dy, shape in zip(dys, self.shapes)]
        return xp.concatenate(pieces, axis=self.axis),


def concatenate(xs, axis=0):
    """The Tensors or arrays of a list, end to end along an axis. ValueError where the other axes differ."""
    return Concatenate.apply(*_several("concatenate", xs), axis=axis)


def stack(xs, axis=0):
    """The Tensors or arrays of a list along a new axis. ValueError where the shapes differ."""
    return Stack.apply(*_several("stack", xs), axis=axis)


def split(x, indices_or_sections, axis=0):
    """NumPy's split: 3 makes three equal pieces, [2, 5] cuts before 2 and before 5. A tuple of Tensors.

    ValueError where equal pieces do not come out even.
    """
    if isinstance(indices_or_sections, int) and indices_or_sections < 1:
        raise ValueError(f"split: at least one piece must come out, got {indices_or_sections}")
    if is_array(indices_or_sections):
        indices_or_sections = indices_or_sections.tolist()              # where to cut is known to the host
    return Split.apply(x, sections=indices_or_sections, axis=axis)


def _several(name, xs):
    if not isinstance(xs, Iterable):
        raise TypeError(f"{name}: expected a list of arrays, got {type(xs).__name__}")
    xs = tuple(xs)
    if not xs:
        raise ValueError(f"{name}: needs at least one array")
    return xs
