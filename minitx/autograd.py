"""The engine: the walk that brings gradients back. The Op, which leaves the nodes that it walks, is in op.py.

Running an op under a Tensor that requires gradients leaves the op's instance behind as a node of the graph. The node keeps
what its backward asked to keep, and for each input where the gradient is to go: the op that made that input, or the leaf.
``Tensor.backward`` visits the nodes newest first, so each has its whole gradient when its turn comes.
"""
import threading

from minitx import backend
from minitx.arguments import as_tensor
from minitx.backend import is_array, xp_of
from minitx.op import Op, unbroadcast
from minitx.recording import no_grad
from minitx.tensor import Tensor

__all__ = ["Op", "Tensor", "as_tensor", "backward", "no_grad", "unbroadcast"]

_depositing = threading.Lock()


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
                entry[:] = backend.total(entry[0], g), True
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
