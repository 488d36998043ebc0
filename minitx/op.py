"""The Op: one layer or function, and the node that it leaves on the tape."""
import itertools
import re

import numpy as np
from numpy import ndarray

from minitx import backend
from minitx.arguments import EXPLAINED, WEAK, bare, explain, promote, raw
from minitx.backend import DOUBLE, HALF, SINGLE, is_array
from minitx.recording import mode, ran
from minitx.tensor import Tensor


class Op:
    """One layer or function: forward and backward on raw arrays. The instance is the node on the tape.

    ``forward(self, *arrays, **options)`` returns an array, or a tuple of them, and keeps what backward needs as attributes.
    ``backward(self, dy)`` gets one gradient per output (None for an output that nobody used) and returns a tuple with one
    gradient per positional input, None where ``self.needs`` says that nobody wants it. Both only read what they are given.

    broadcasts    the inputs broadcast against each other: the engine sums each gradient back to its input's shape
    promotion     None: arrays come as they are. "mixed": integers beside floats become floats. "float": all become floats.
                  "same" and "one": as these two, and two different float dtypes are a TypeError. Except with None, float16
                  is computed in float32 and rounded once
    native_half   but on a GPU as it is, where all inputs are float16: an op that adds, multiplies or copies each number
                  once, or a product of matrices, which adds up in float32 there
    wide_result   a float16 op's result stays float32 (losses)
    """

    __slots__ = ("needs", "_parents", "_order", "_outputs", "_half", "__dict__", "__weakref__")
    broadcasts = False
    promotion: str | None = None
    native_half = wide_result = False
    name = "op"

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        if "name" not in vars(cls):                                     # LayerNorm -> layer_norm, ReLU -> relu
            cls.name = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__).lower()

    def __init__(self):
        self.needs = _EVERYTHING        # an op that runs without a tape keeps all that backward could ask for

    def forward(self, *arrays, **options):
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def backward(self, *gradients):
        raise NotImplementedError(f"{type(self).__name__} has no backward")

    @classmethod
    def apply(cls, *inputs, **options):
        """Run the op on Tensors, arrays and numbers, record it if a gradient may be asked for, and return Tensors."""
        arrays, recorded, dtype, uniform, kind = [], False, None, True, None
        for x in inputs:
            if isinstance(x, Tensor):
                array = x.data
                recorded = recorded or x.requires_grad
            else:
                array = raw(cls.name, x, weak=cls.promotion in _MIXED and cls.broadcasts)
            arrays.append(array)
            if array.__class__ not in WEAK and (its := array.dtype) is not dtype:
                uniform = uniform and (its in _UNIFORM if dtype is None else its == dtype)     # pickle makes new dtypes
                dtype, kind = its, array.__class__
        if options:
            for key, value in options.items():
                if value.__class__ not in _BARE:
                    options[key] = bare(cls.name, value)

        if recorded:
            recorded = mode.recording
        uniform, half = uniform and dtype is not None, False
        if not uniform and cls.promotion:
            try:
                arrays, half = promote(cls, arrays)
            except EXPLAINED as error:
                raise explain(cls.name, error, arrays) from error
            uniform = half                                              # now all that were floats are float32
        twin = mode.twins.get(cls if kind is ndarray else ("cuda", cls)) if uniform else None
        if twin is not None and twin.fits(*arrays, **options):
            cls = twin
            ran["twins"] += 1
        else:
            ran["plain"] += 1
        op = cls.__new__(cls)
        op._half, op._parents, op.needs = half, None, _NOTHING
        if recorded:
            needs, parents = op.needs, op._parents = [], []
            op._order = next(_clock)
            for x in inputs:
                if isinstance(x, Tensor) and x.requires_grad:
                    array, node = x.data, x.node
                    parents.append((x, x.version, array.shape, array.dtype) if node is None else
                                   (node, x.index, array.shape, array.dtype))
                    needs.append(True)
                else:
                    parents.append(None)
                    needs.append(False)
        try:
            result = op.forward(*arrays, **options)
        except EXPLAINED as error:
            raise explain(cls.name, error, arrays) from error
        if type(result) is tuple:
            op._outputs = len(result)
            return tuple(op._wrap(array, i, recorded) for i, array in enumerate(result))
        if recorded:
            for array in arrays:
                if result is array:
                    result = result.view()                              # an output may become read-only, an input not
        op._outputs = 1
        return op._wrap(result, 0, recorded)

    def _wrap(self, array, index, recorded):
        """A Tensor around one output. NumPy made a scalar of a 0-d result: it becomes an array again."""
        if array.__class__ is not ndarray:
            array = self._as_array(array)
        if self._half and not self.wide_result:
            array = array.astype(HALF)
        tensor = Tensor.__new__(Tensor)
        tensor.data, tensor.grad, tensor.requires_grad = array, None, recorded
        tensor.node, tensor.index, tensor.version = (self if recorded else None), index, 0
        if recorded:
            base = array.base
            for saved in self.__dict__.values():
                if isinstance(saved, np.ndarray) and (saved is array or saved is base or saved.base is array):
                    backend.read_only(array)        # backward will read it again: nobody may edit it meanwhile
        return tensor

    def _as_array(self, result):
        if isinstance(result, np.generic):
            return np.asarray(result)
        if not is_array(result):
            raise TypeError(f"{self.name}: forward must return an array or a tuple of arrays, got {type(result).__name__}")
        return result

    def _pull(self, gradients):
        """Run backward; yield, for every input that wants one: where it goes, the gradient, whether a leaf may keep it."""
        if self._half:
            gradients = [None if g is None else g.astype(SINGLE, copy=False) for g in gradients]
        try:
            results = self.backward(*gradients)
        except EXPLAINED as error:
            raise explain(f"{self.name}, backward", error, [g for g in gradients if g is not None]) from error
        if type(results) is not tuple or len(results) != len(self._parents):
            got = f"{len(results)} entries" if type(results) is tuple else f"a {type(results).__name__}"
            raise TypeError(f"{self.name}, backward: must return a tuple of {len(self._parents)} entries, one for each "
                            f"positional input (`return dx,` with the comma for one); got {got}")
        for i, parent in enumerate(self._parents):
            if parent is None:
                continue
            g, (to, index, shape, dtype) = results[i], parent
            if g.__class__ is not np.ndarray or g.dtype is not dtype or g.shape != shape:
                g = self._fitted(i, g, shape, dtype)
            if isinstance(to, Tensor):
                yield to, g, backend.owns_data(g) and (g is not results[i] or self._is_fresh(g, gradients, results))
            else:
                yield (to, index), g, False

    def _fitted(self, i, result, shape, dtype):
        """The gradient of input i in the input's shape and dtype; an error where that cannot be."""
        if result is None:
            raise RuntimeError(f"{self.name}, backward: input {i} wants a gradient and got None")
        g = np.asarray(result) if isinstance(result, np.generic) else result
        if not is_array(g) or g.dtype.kind != "f":
            raise TypeError(f"{self.name}, backward: gradient {i} must be a float array, got "
                            f"{g.dtype if is_array(g) else type(g).__name__}")
        if g.shape != shape and self.broadcasts:
            g = unbroadcast(g, shape)
        if g.shape != shape:
            raise ValueError(f"{self.name}, backward: gradient {i} has shape {g.shape}, its input {shape}")
        return g.astype(dtype, copy=False)

    def _is_fresh(self, g, gradients, results):
        """Whether array g was made in this backward and given to one input alone, so that a leaf may keep it."""
        for known in (gradients, self.__dict__.values(), *(v for v in self.__dict__.values() if type(v) in (tuple, list))):
            for array in known:
                if array is g:
                    return False
        takers = 0
        for result in results:
            takers += result is g or result is not None and result.base is g
        return takers == 1

    def _free(self):
        """Let go of everything saved, and of the graph behind."""
        self._parents = None
        self.__dict__.clear()


_EVERYTHING, _NOTHING = (True,) * 64, (False,) * 64
_MIXED = ("mixed", "float")
_UNIFORM = (SINGLE, DOUBLE)
_BARE = {bool, int, float, str, type(None), np.ndarray}                 # options that are passed on as they are
_clock = itertools.count()


def unbroadcast(g, shape):
    """Sum g over the axes that broadcasting added to `shape` or stretched from 1: what reaches the smaller input."""
    added = g.ndim - len(shape)
    if added < 0 or any(n not in (1, m) for n, m in zip(shape, g.shape[added:])):
        return g                                    # nothing that broadcasting could have made
    stretched = tuple(i + added for i, n in enumerate(shape) if n == 1)
    wide = SINGLE if g.dtype == HALF else None      # many float16 are added up in float32
    return g.sum(axis=tuple(range(added)) + stretched, dtype=wide, keepdims=True).reshape(shape)
