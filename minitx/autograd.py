"""The engine: the Op that makes a Tensor, and the walk that brings gradients back.

Running an op under a Tensor that requires gradients leaves the op's instance behind as a node of the graph. The node keeps
what its backward asked to keep, and for each input where the gradient is to go: the op that made that input, or the leaf.
``Tensor.backward`` visits the nodes newest first, so each has its whole gradient when its turn comes.
"""
import itertools
import re
import threading

import numpy as np

from minitx import backend
from minitx.arguments import EXPLAINED, WEAK, as_tensor, bare, explain, promote, raw
from minitx.backend import DOUBLE, HALF, SINGLE, is_array, xp_of
from minitx.recording import mode, no_grad
from minitx.tensor import Tensor


__all__ = ["Op", "Tensor", "as_tensor", "backward", "no_grad", "unbroadcast"]


class Op:
    """One layer or function: forward and backward on raw arrays. The instance is the node on the tape.

    ``forward(self, *arrays, **options)`` returns an array, or a tuple of them, and keeps what backward needs as attributes.
    ``backward(self, dy)`` gets one gradient per output (None for an output that nobody used) and returns a tuple with one
    gradient per positional input, None where ``self.needs`` says that nobody wants it. Both only read what they are given.

    broadcasts    the inputs broadcast against each other: the engine sums each gradient back to its input's shape
    promotion     None: arrays come as they are. "mixed": integers beside floats become floats. "float": all become floats.
                  "same" and "one": as these two, and two different float dtypes are a TypeError. Except with None, float16
                  on the CPU is computed in float32 and rounded once
    wide_result   a float16 op's result stays float32 (losses)
    """

    __slots__ = ("needs", "_parents", "_order", "_outputs", "_half", "__dict__", "__weakref__")
    broadcasts = False
    promotion: str | None = None
    wide_result = False
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
        arrays, wanted, dtype, uniform = [], False, None, True
        for x in inputs:
            if isinstance(x, Tensor):
                array = x.data
                wanted = wanted or x.requires_grad
            else:
                array = raw(cls.name, x, weak=cls.promotion in _MIXED and cls.broadcasts)
            arrays.append(array)
            if array.__class__ not in WEAK and array.dtype is not dtype:
                uniform = dtype is None and (array.dtype is SINGLE or array.dtype is DOUBLE)
                dtype = array.dtype
        if options:
            options = {key: bare(cls.name, value) for key, value in options.items()}

        op = cls.__new__(cls)
        op._half, op._parents, op.needs = False, None, _NOTHING
        recorded = wanted and mode.recording
        if recorded:
            op.needs, op._parents = needs, parents = [], []
            for x in inputs:
                needed = isinstance(x, Tensor) and x.requires_grad
                needs.append(needed)
                node = x.node if needed else None
                parents.append(None if not needed else (node, x.index, x.data.shape, x.data.dtype) if node is not None
                               else (x, x.version, x.data.shape, x.data.dtype))
            op._order = next(_clock)
        try:
            if cls.promotion and not (uniform and dtype):
                arrays, op._half = promote(cls, arrays)
            result = op.forward(*arrays, **options)
        except EXPLAINED as error:
            raise explain(cls.name, error, arrays) from error
        if recorded:
            for array in arrays:
                if result is array:
                    result = result.view()                              # an output may become read-only, an input not
        op._outputs = len(result) if type(result) is tuple else 1
        if type(result) is tuple:
            return tuple(op._wrap(array, i, recorded) for i, array in enumerate(result))
        return op._wrap(result, 0, recorded)

    def _wrap(self, array, index, recorded):
        """A Tensor around one output. NumPy made a scalar of a 0-d result: it becomes an array again."""
        if not isinstance(array, np.ndarray):
            array = self._as_array(array)
        if self._half and not self.wide_result:
            array = array.astype(HALF)
        tensor = Tensor.__new__(Tensor)
        tensor.data, tensor.grad, tensor.requires_grad = array, None, recorded
        tensor.node, tensor.index, tensor.version = (self if recorded else None), index, 0
        if recorded:
            for saved in self.__dict__.values():
                if saved is not None and (saved is array or saved is array.base or getattr(saved, "base", None) is array):
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
        for i, (parent, result) in enumerate(zip(self._parents, results)):
            if parent is None:
                continue
            to, index, shape, dtype = parent
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
            if g.dtype != dtype:
                g = g.astype(dtype)
            if isinstance(to, Tensor):
                yield to, g, backend.owns_data(g) and (g is not result or self._is_fresh(g, gradients, results))
            else:
                yield (to, index), g, False

    def _is_fresh(self, g, gradients, results):
        """Whether array g was made in this backward and given to one input alone, so that a leaf may keep it."""
        known = itertools.chain(gradients, *(v if type(v) in (tuple, list) else (v,) for v in self.__dict__.values()))
        return (not any(g is array for array in known)
                and sum(g is result or getattr(result, "base", None) is g for result in results) == 1)

    def _free(self):
        """Let go of everything saved, and of the graph behind."""
        self._parents = None
        self.__dict__.clear()


_EVERYTHING, _NOTHING = (True,) * 64, (False,) * 64
_MIXED = ("mixed", "float")
_depositing = threading.Lock()
_clock = itertools.count()


def unbroadcast(g, shape):
    """Sum g over the axes that broadcasting added to `shape` or stretched from 1: what reaches the smaller input."""
    added = g.ndim - len(shape)
    if added < 0 or any(n not in (1, m) for n, m in zip(shape, g.shape[added:])):
        return g                                    # nothing that broadcasting could have made
    stretched = tuple(i + added for i, n in enumerate(shape) if n == 1)
    return g.sum(axis=tuple(range(added)) + stretched, keepdims=True).reshape(shape)


def backward(tensor, gradient=None):
    """Add d tensor / d leaf, times gradient, to .grad of every leaf this Tensor was computed from.

    gradient has exactly this Tensor's shape (ValueError); one element may leave it out (else RuntimeError). The graph
    is freed as the walk passes: a second call, or a Tensor without history, is a RuntimeError.
    """
    if not tensor.requires_grad:
        raise RuntimeError("backward: this Tensor has no history; nothing it was computed from requires gradients, "
                           "or it was computed under no_grad")
    if gradient is None:
        if tensor.size != 1:
            raise RuntimeError(f"backward: a Tensor of shape {tensor.shape} needs backward(gradient) of that shape; "
                               "only one element may leave it out")
        gradient = xp_of(tensor.data).ones_like(tensor.data)
    gradient = gradient.data if isinstance(gradient, Tensor) else gradient
    if not is_array(gradient):
        gradient = backend.like(backend.make_array(gradient, tensor.dtype), tensor.data)
    if backend.device_of(gradient) != tensor.device:
        raise TypeError(f"backward: the gradient is on {backend.device_of(gradient)}, the Tensor on {tensor.device}; "
                        "move one with .to(device)")
    backend.check_dtype(gradient.dtype)
    if gradient.shape != tensor.shape:
        raise ValueError(f"backward: the gradient has shape {gradient.shape}, the Tensor {tensor.shape}")
    _walk(tensor, gradient.astype(tensor.dtype, copy=False))


setattr(Tensor, "backward", backward)


def _reachable(root):
    """Every op behind root, oldest first. RuntimeError if one was freed, or a leaf was edited since it was used."""
    found, stack = {root}, [root]
    while stack:
        op = stack.pop()
        if op._parents is None:
            raise RuntimeError("backward: this graph was freed by an earlier backward; run the forward again")
        for parent in op._parents:
            if parent is None:
                continue
            source, number = parent[:2]
            if isinstance(source, Tensor):
                if source.version != number:
                    raise RuntimeError(f"backward: an optimiser changed a leaf of shape {source.shape} after {op.name} "
                                       "had used it; run the forward again")
            elif source not in found:
                found.add(source)
                stack.append(source)
    return sorted(found, key=lambda op: op._order)


def _walk(root, gradient):
    """Bring gradient from root back to the leaves.

    `waiting` maps (op, output) or a leaf to [its gradient so far, whether that array may be written to]: the first gradient
    is taken as it comes, the second makes a fresh array, the third is added in place.
    """
    if root.node is None:
        return _deposit(root, gradient, False)
    waiting = {(root.node, root.index): [gradient, False]}
    ops = _reachable(root.node)
    while ops:
        op = ops.pop()                              # popped, so that what it saved is gone before the next one runs
        gradients = [waiting.pop((op, i), (None,))[0] for i in range(op._outputs)]
        for key, g, mine in op._pull(gradients):
            entry = waiting.get(key)
            if entry is None:
                waiting[key] = [g, mine]
            elif entry[1]:
                entry[0] += g
            else:
                entry[:] = xp_of(g).asarray(entry[0] + g), True
        op._free()
    for leaf, (g, mine) in waiting.items():
        _deposit(leaf, g, mine)


def _deposit(leaf, g, mine):
    """Add g to leaf.grad. A leaf's gradient is its own memory: somebody may clip it in place."""
    if leaf.data.dtype.kind != "f":
        raise TypeError(f"backward: a leaf of {leaf.dtype} cannot hold gradients")
    with _depositing:                   # two threads may reach one leaf
        if leaf.grad is None:
            leaf.grad = g if mine else g.copy()
        else:
            leaf.grad += g
