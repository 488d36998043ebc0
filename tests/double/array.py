"""The device array of the double: CuPy's ndarray over a NumPy array. Its operators are in ufunc.py."""
import functools
import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np

from double.counts import count
from double.runtime import DEVICE
from minitx.tensor import Tensor

METHODS = """
all any argmax argmin argsort astype clip copy cumprod cumsum diagonal dot fill flatten max mean min nonzero prod ravel
repeat reshape round searchsorted sort squeeze std sum swapaxes take trace transpose var view
""".split()
WAITS = {"nonzero", "flatnonzero", "argwhere", "unique", "bincount", "compress", "extract"}     # their size is data
EMPTY = {"mean", "var", "std"}          # NumPy warns where nothing is left to divide by
NOWHERE = {"initial", "where", "correction", "stable", "device", "like", "subok"}       # keywords of no function
LACKS = {"take": {"mode"}, "einsum": {"out"}, "clip": {"min", "max"}, "var": {"mean"}, "std": {"mean"},
         "sort": {"order"}, "argsort": {"order"}, "count_nonzero": {"keepdims"}, "unique": {"sorted"}}
silent = functools.partial(np.errstate, all="ignore")                                           # CuPy never warns


def inside(x):
    """The NumPy array in a device array, also within a tuple or list. TypeError for a host array."""
    if isinstance(x, Array):
        return x._array
    if isinstance(x, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    return type(x)(map(inside, x)) if type(x) in (tuple, list) else x


def operand(x):
    """What may stand beside a device array: another one, or a number."""
    if isinstance(x, Array):
        return x._array
    if isinstance(x, (bool, int, float, complex, np.generic)):
        return x
    raise TypeError(f"Unsupported type {type(x)}")


def outside(x, *sources):
    """A result as CuPy gives it: an array, also where NumPy gives a scalar. A source, or a view of one, stays that."""
    if type(x) in (tuple, list):
        return type(x)(outside(part, *sources) for part in x)
    if isinstance(x, np.generic):
        return Array(np.asarray(x))
    if not isinstance(x, np.ndarray):
        return x
    for source in _arrays_in(sources):
        if source._array is x:
            return source
        if _owner(source._array) is _owner(x):
            return Array(x, source if source.base is None else source.base)
    return Array(x)


def _arrays_in(x):
    if type(x) in (tuple, list):
        return [array for part in x for array in _arrays_in(part)]
    return [x] if isinstance(x, Array) else []


def _owner(x):
    while getattr(x, "base", None) is not None:
        x = x.base
    return x


def permitted(name, keywords):
    """The arrays inside keywords, none of which is one that CuPy does not have."""
    wrong = set(keywords) & (set() if name == "copyto" else NOWHERE | LACKS.get(name, set()))
    if wrong:
        raise TypeError(f"{name}() got an unexpected keyword argument {', '.join(wrong)}")
    return {key: inside(value) for key, value in keywords.items()}


def call(function, name, *args, **keywords):
    """A NumPy function on device arrays."""
    if name in WAITS:
        count("synchronisations")
    with silent(), warnings.catch_warnings() if name in EMPTY else nullcontext():
        if name in EMPTY:
            warnings.simplefilter("ignore")
        result = unwrapped(function, *inside(args), **permitted(name, keywords))
    return outside(result, args, *keywords.values())


def unwrapped(function, *args, **keywords):
    """What it gives; AssertionError where an index array is out of range: IndexError would be NumPy's help."""
    try:
        return function(*args, **keywords)
    except IndexError as error:
        if isinstance(error, np.exceptions.AxisError) or "out of bounds" not in str(error):
            raise
        raise AssertionError(f"CuPy wraps an index silently: {error}") from None


class Array:
    __array_ufunc__ = None              # operators with a NumPy array on the left come here, np.exp raises
    __hash__ = None
    __contains__ = None
    device = DEVICE

    def __init__(self, array, base=None):
        if array.dtype.kind not in "biufc" or array.dtype.itemsize > (16 if array.dtype.kind == "c" else 8):
            raise ValueError(f"Unsupported dtype {array.dtype}")
        self._array, self.base = array, base

    shape, ndim, size, dtype, itemsize, nbytes, strides = (
        property(lambda self, name=name: getattr(self._array, name))
        for name in ("shape", "ndim", "size", "dtype", "itemsize", "nbytes", "strides"))
    T = property(lambda self: outside(self._array.T, self))
    data = property(lambda self: SimpleNamespace(ptr=self._array.ctypes.data))
    flags = property(lambda self: SimpleNamespace(              # CuPy's, among which writeable is not
        c_contiguous=self._array.flags.c_contiguous, f_contiguous=self._array.flags.f_contiguous,
        owndata=self.base is None))
    __cuda_array_interface__ = property(lambda self: {
        "shape": self.shape, "typestr": self.dtype.str, "strides": self.strides, "version": 3,
        "data": (self._array.ctypes.data, False)})

    def __array__(self, *args, **keywords):
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def __array_function__(self, function, types, args, keywords):
        if function in (np.shape, np.ndim, np.size) and len(args) == 1:
            return function(self._array)                        # nothing that is on the device
        raise TypeError(f"np.{function.__name__} of a device array: go through xp")

    # ---- home: a copy to the host, which waits until the device has done what it was given ----

    def get(self):
        count("transfers_out", "synchronisations")
        return self._array.copy()

    item, tolist, __float__, __int__, __bool__, __complex__, __format__, __repr__, __str__ = (
        lambda self, *args, name=name: getattr(self.get(), name)(*args) for name in (
            "item", "tolist", "__float__", "__int__", "__bool__", "__complex__", "__format__", "__repr__", "__str__"))

    def __reduce__(self):
        return there, (self.get(),)

    def set(self, array):
        if type(array) is not np.ndarray or array.dtype != self.dtype or array.shape != self.shape:
            raise TypeError("set() takes a NumPy array of the very shape and dtype")
        count("transfers_in")
        self._array[...] = array

    # ---- a container ----

    def __len__(self):
        return len(self._array)

    def __iter__(self):
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(len(self)))

    def __copy__(self):
        return self.copy()

    def __deepcopy__(self, memo):
        return self.copy()

    def __getitem__(self, index):
        index, look = self._checked(index)
        return outside(look(self._array), self)

    def __setitem__(self, index, value):
        index, look = self._checked(index)
        if any(isinstance(part, np.ndarray) for part in index):
            places = look(np.arange(self.size).reshape(self.shape))
            assert np.unique(places).size == places.size, "one element assigned twice: which one wins is undefined"
        self._array[index] = operand(value)

    def _checked(self, index):
        """The index, with an Ellipsis, which makes a 0-d view of a number; and a function that looks up with it."""
        parts = index if type(index) is tuple else (index,)
        for part in parts:
            if isinstance(part, (np.ndarray, list)):
                raise TypeError(f"an index is a device array, a number or a slice here, not {type(part).__name__}")
        parts = inside(parts if any(part is Ellipsis for part in parts) else (*parts, Ellipsis))
        arrays = [part for part in parts if isinstance(part, np.ndarray)]
        if any(part.dtype == bool for part in arrays):
            count("synchronisations")                           # how many are True is data
        return parts, lambda array: unwrapped(array.__getitem__, parts) if arrays else array[parts]


for _name in METHODS:
    setattr(Array, _name, lambda self, *args, name=_name, **keywords: call(
        getattr(np.ndarray, name), name, self, *args, **keywords))
Array.__module__, Array.__name__, Array.__qualname__ = "cupy", "ndarray", "ndarray"


def there(x):
    """An array, or those within a tuple, on the device, without counting."""
    if type(x) is tuple:
        return tuple(map(there, x))
    return Array(x.copy()) if isinstance(x, np.ndarray) else x


def here(x):
    """A Tensor's array, or a device array (the double's or CuPy's), on the host, uncounted; anything else as it is."""
    if isinstance(x, Tensor):
        x = x.data
    if isinstance(x, Array):
        return x._array.copy()
    return x.get() if type(x).__module__.partition(".")[0] == "cupy" else x
