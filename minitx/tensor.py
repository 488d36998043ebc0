"""The Tensor: an array, its gradient, and how it came to be. What it can do beyond this file it learns from the table in
ops/__init__.py; its backward is the walk in autograd.py."""
from typing import TYPE_CHECKING

import numpy as np

from minitx import backend
from minitx.backend import is_array


class Tensor:
    """An array, and how it came to be.

    data            the NumPy or CuPy array itself
    grad            None, or an array like data: what backward added up here, if this is a leaf
    requires_grad   whether gradients are wanted here, or flow through here
    node, index     the op that made it and which of its outputs it is; node is None for a leaf
    version         how often an optimiser has edited data in place
    """

    __slots__ = ("data", "grad", "requires_grad", "node", "index", "version", "__weakref__")
    __array_ufunc__ = None              # so that array + tensor asks the Tensor, not NumPy
    __hash__ = object.__hash__          # by identity, although == compares values

    def __init__(self, data, requires_grad=False):
        """Wrap an array without copying it (minitx.tensor copies). Integers that require gradients: TypeError."""
        self.data = backend.plain(data) if is_array(data) else backend.make_array(data)
        if requires_grad and self.data.dtype.kind != "f":
            raise TypeError(f"only floats can require gradients, this Tensor is {self.data.dtype}: "
                            "a gradient would be cut to whole numbers")
        self.grad, self.requires_grad = None, bool(requires_grad)
        self.node, self.index, self.version = None, 0, 0

    shape = property(lambda self: self.data.shape)
    ndim = property(lambda self: self.data.ndim)
    size = property(lambda self: self.data.size)
    dtype = property(lambda self: self.data.dtype)
    device = property(lambda self: backend.device_of(self.data))

    def numpy(self):
        """The values as a NumPy array; on the CPU the very array, not a copy."""
        return backend.to_numpy(self.data)

    def item(self):
        """The value of a Tensor of one element as a Python number."""
        if self.data.size != 1:
            raise ValueError(f"item() needs exactly one element, this Tensor has shape {self.shape}")
        return self.data.item()

    def tolist(self):
        """The values as nested Python lists."""
        return self.data.tolist()

    def detach(self):
        """The same data, without history."""
        return Tensor(self.data)

    def __len__(self):
        if not self.ndim:
            raise TypeError("a Tensor of shape () has no length")
        return self.shape[0]

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __float__(self):
        return float(self.item())

    def __int__(self):
        return int(self.item())

    def __index__(self):
        if self.data.dtype.kind not in "iu":
            raise TypeError(f"only an integer Tensor of one element can be an index, this is {self.dtype}")
        return int(self.item())

    def __bool__(self):
        if self.size != 1:
            raise ValueError(f"the truth of a Tensor of shape {self.shape} is ambiguous; use .data.any() or .data.all()")
        return bool(self.item())

    def __array__(self, dtype=None, copy=None):
        if self.device != "cpu":
            raise TypeError(f"this Tensor is on {self.device}: use .numpy() to copy it to the host")
        return np.array(self.data, dtype=dtype, copy=copy)

    def __eq__(self, other):
        return self.data == _compared(other)

    def __ne__(self, other):
        return self.data != _compared(other)

    def __lt__(self, other):
        return self.data < _compared(other)

    def __le__(self, other):
        return self.data <= _compared(other)

    def __gt__(self, other):
        return self.data > _compared(other)

    def __ge__(self, other):
        return self.data >= _compared(other)

    def __reduce_ex__(self, protocol):
        if self.node is not None:
            raise RuntimeError("only leaves can be copied or pickled; this Tensor has a history: use .detach()")
        return super().__reduce_ex__(max(protocol, 2))                  # slots need protocol 2

    def __repr__(self):
        values = np.array2string(self.numpy(), separator=", ", prefix="tensor(")
        notes = [values]
        if self.dtype not in (backend.default_dtype(), backend.LONG, backend.BOOL):
            notes.append(f"dtype={self.dtype}")
        if self.device != "cpu":
            notes.append(f"device={self.device!r}")
        if self.node is not None:
            notes.append(f"op={self.node.name}")
        elif self.requires_grad:
            notes.append("requires_grad=True")
        return f"tensor({', '.join(notes)})"

    if TYPE_CHECKING:                   # filled in by autograd.py and by the table in ops/__init__.py; a test compares them
        def backward(self, gradient=None) -> None: ...
        def __add__(self, other) -> "Tensor": ...
        def __radd__(self, other) -> "Tensor": ...
        def __sub__(self, other) -> "Tensor": ...
        def __rsub__(self, other) -> "Tensor": ...
        def __mul__(self, other) -> "Tensor": ...
        def __rmul__(self, other) -> "Tensor": ...
        def __truediv__(self, other) -> "Tensor": ...
        def __rtruediv__(self, other) -> "Tensor": ...
        def __pow__(self, other) -> "Tensor": ...
        def __rpow__(self, other) -> "Tensor": ...
        def __matmul__(self, other) -> "Tensor": ...
        def __rmatmul__(self, other) -> "Tensor": ...
        def __neg__(self) -> "Tensor": ...
        def __abs__(self) -> "Tensor": ...
        def __getitem__(self, index) -> "Tensor": ...
        def sum(self, axis=None, keepdims=False) -> "Tensor": ...
        def mean(self, axis=None, keepdims=False) -> "Tensor": ...
        def max(self, axis=None, keepdims=False) -> "Tensor": ...
        def reshape(self, *shape) -> "Tensor": ...
        def transpose(self, *axes) -> "Tensor": ...
        def swapaxes(self, axis1, axis2) -> "Tensor": ...
        def to(self, device=None, dtype=None) -> "Tensor": ...
        @property
        def T(self) -> "Tensor": ...


def as_numpy(x):
    """A Tensor, an array or Python numbers as a NumPy array on the host; one that is there already is not copied."""
    x = x.data if isinstance(x, Tensor) else x
    return backend.to_numpy(x) if is_array(x) else np.asarray(x)


def _compared(other):
    return other.data if isinstance(other, Tensor) else other
