"""The same numbers in another arrangement: reshape, transpose, index, move."""
import math

from minitx import backend
from minitx.autograd import Op, as_tensor
from minitx.backend import xp_of


class Reshape(Op):
    r"""Read the same numbers, in the same order, as another shape.

        x (...)   ->   y shape

    forward       y = x in its new shape
    backward      dx = dy in the old one
    saved         nothing
    """

    def forward(self, x, *, shape):
        self.shape = x.shape
        return x.reshape(shape)

    def backward(self, dy):
        return dy.reshape(self.shape),


class Transpose(Op):
    r"""Put the axes in another order.

        x (...)   ->   y: its axis i is axis axes[i] of x

    forward       y = x with its axes in the order `axes`
    backward      dx = dy with its axes put back
    saved         nothing
    """

    def forward(self, x, *, axes):
        self.axes = axes
        return x.transpose(axes)

    def backward(self, dy):
        back = [0] * dy.ndim
        for i, axis in enumerate(self.axes):
            back[axis] = i
        return dy.transpose(back),


class Getitem(Op):
    r"""Pick elements out, by any index that NumPy knows.

        x (...)   ->   y x[index]

    forward       y = x[index]
    backward      dx = zeros; dx[index] += dy           an element picked twice gets both gradients
    saved         index
    """

    def forward(self, x, *, index):
        self.shape, self.index = x.shape, backend.checked_index(index, x)
        return x[self.index]

    def backward(self, dy):
        xp = xp_of(dy)
        if all(part is None or part is Ellipsis or isinstance(part, (slice, int)) for part in self.index):
            dx = xp.zeros(self.shape, dy.dtype)
            dx[self.index] = dy                             # slices and numbers pick nothing twice
            return dx,
        size = math.prod(self.shape)
        picked = xp.arange(size).reshape(self.shape)[self.index]
        return backend.scatter_add(picked.ravel(), dy.ravel(), size).reshape(self.shape),


class To(Op):
    r"""Take the numbers to another device or dtype.

        x (...)   ->   y (...)

    forward       y = x there
    backward      dx = dy back here
    saved         nothing
    """

    def forward(self, x, *, device, dtype):
        self.device, self.dtype = backend.device_of(x), x.dtype
        return backend.to_device(x, device).astype(dtype, copy=False)

    def backward(self, dy):
        return backend.to_device(dy, self.device).astype(self.dtype, copy=False),


def reshape(x, *shape):
    """x with another shape, given as numbers or as one tuple; one entry may be -1. A view where NumPy can make one."""
    return Reshape.apply(x, shape=shape[0] if len(shape) == 1 else shape)


def transpose(x, *axes):
    """Without axes: all of them reversed. Two numbers: those two swapped, as in PyTorch. All of them (numbers or one
    tuple): the permutation, as in NumPy."""
    if len(axes) == 1 and not isinstance(axes[0], int):
        axes = axes[0]
    elif len(axes) == 2:
        return swapaxes(x, *axes)
    x = as_tensor("transpose", x)
    ndim = x.ndim
    order = tuple(range(ndim))[::-1] if not axes else tuple(axes)
    if not all(-ndim <= i < ndim for i in order) or sorted(i % ndim for i in order) != list(range(ndim)):
        raise ValueError(f"transpose: axes {order} are no permutation of the {ndim} axes of shape {x.shape}")
    return Transpose.apply(x, axes=tuple(i % ndim for i in order))


def swapaxes(x, axis1, axis2):
    """x with two axes exchanged."""
    x = as_tensor("swapaxes", x)
    ndim = x.ndim
    if not all(-ndim <= i < ndim for i in (axis1, axis2)):
        raise ValueError(f"swapaxes: axes {axis1} and {axis2} do not both exist in shape {x.shape}")
    order = list(range(ndim))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return Transpose.apply(x, axes=tuple(order))


def getitem(x, index):
    """x[index]: slices, numbers, None, ..., integer arrays (repeats allowed), bool masks, and tuples of these."""
    return Getitem.apply(x, index=index)


def to(x, device=None, dtype=None):
    """x on another device ("cpu", "cuda:0") or in another dtype; x itself where nothing changes. Gradients flow back."""
    x = as_tensor("to", x)
    device = backend.device_of(x) if device is None else backend.check_device(device)
    dtype = x.dtype if dtype is None else backend.check_dtype(dtype)
    if (device, dtype) == (x.device, x.dtype):
        return x
    if dtype.kind != "f":
        x = x.detach()                                      # nothing flows back through whole numbers
    return To.apply(x, device=device, dtype=dtype)
