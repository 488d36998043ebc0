"""NumPy's ufuncs as CuPy has them, and with them the operators of a device array."""
import numpy as np

from double.array import Array, call, inside, operand, outside, silent, unwrapped

BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide, "floordiv": np.floor_divide,
          "mod": np.remainder, "pow": np.power, "matmul": np.matmul, "and": np.bitwise_and, "or": np.bitwise_or,
          "xor": np.bitwise_xor, "lshift": np.left_shift, "rshift": np.right_shift}
COMPARISONS = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal,
               "ne": np.not_equal}
UNARY = {"neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert}
ADDABLE = {np.dtype(kind) for kind in "int32 int64 uint32 uint64 float16 float32 float64".split()}


class Ufunc:
    """Numbers and device arrays in, C-contiguous device arrays out. Of the methods `at` and `reduce`, for a few."""

    def __init__(self, ufunc):
        self.ufunc, self.__name__, self.nin, self.nout = ufunc, ufunc.__name__, ufunc.nin, ufunc.nout

    def __call__(self, *args, out=None, dtype=None, casting="same_kind"):
        args = [operand(x) for x in args]
        with silent():
            result = self.ufunc(*args, dtype=dtype, casting=casting)
        if out is None:
            return outside(tuple(np.asarray(part, order="C") for part in result) if type(result) is tuple else
                           np.asarray(result, order="C"))
        if not isinstance(out, Array):
            raise TypeError(f"return arrays must be of ArrayType, not {type(out)}")
        if out.shape != np.shape(result):
            raise ValueError(f"out= has shape {out.shape}, the result {np.shape(result)}: it must be exactly that")
        with silent():
            np.copyto(out._array, result, casting=casting)
        return out

    def at(self, a, index, b):
        self._has("at", "add maximum minimum")
        if a.dtype not in ADDABLE:
            raise TypeError(f"{self.__name__}.at: no atomic operation for {a.dtype}")
        if isinstance(index, (np.ndarray, list)):
            raise TypeError(f"an index is a device array, not {type(index).__name__}")
        with silent():
            unwrapped(self.ufunc.at, a._array, inside(index), operand(b))

    def reduce(self, a, axis=0, dtype=None, out=None, keepdims=False):
        self._has("reduce", "add multiply")
        return call(self.ufunc.reduce, self.__name__, a, axis, dtype, out, keepdims)

    def _has(self, method, names):
        if self.__name__ not in names.split():
            raise NotImplementedError(f"`cupy_{self.__name__}.{method}` is not supported yet")


def operator(ufunc, swap=False, in_place=False):
    def method(self, other):
        if not isinstance(other, (Array, np.ndarray)) and getattr(other, "__array_ufunc__", ...) is None:
            return NotImplemented                                       # a Tensor: it knows better
        return ufunc(other, self) if swap else ufunc(self, other, out=self) if in_place else ufunc(self, other)
    return method


for _name, _ufunc in (BINARY | COMPARISONS).items():
    setattr(Array, f"__{_name}__", operator(Ufunc(_ufunc)))
for _name, _ufunc in BINARY.items():
    setattr(Array, f"__r{_name}__", operator(Ufunc(_ufunc), swap=True))
    if _name != "matmul":                                               # a @= b rebinds
        setattr(Array, f"__i{_name}__", operator(Ufunc(_ufunc), in_place=True))
for _name, _ufunc in UNARY.items():
    setattr(Array, f"__{_name}__", lambda self, ufunc=Ufunc(_ufunc): ufunc(self))
