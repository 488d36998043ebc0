"""The same ops in PyTorch, where it is installed: another engine, another author.

Each twin is called as the op's forward is, with torch tensors. Where PyTorch has another convention (it leaves NaN in a
row that may see nothing, in a mean of no losses, in some gradients at infinity), ours is put in that one place only.

TORCH (dict: name -> twin) is made when first asked for: torch takes seconds to import. Without PyTorch it is empty.
"""
import functools

import numpy as np

from minitx.proof import opcheck
from minitx.proof.differences import is_float
from minitx.proof.opcheck import Result
from minitx.proof.torch_twins import arrays, layers, pointwise

TOLERANCE = 1e-10


def __getattr__(name):
    if name == "TORCH":
        return _twins()
    raise AttributeError(f"module 'minitx.proof.torch_twins' has no attribute {name!r}")


@functools.cache
def _twins():
    try:
        import torch    # noqa: F401
    except ImportError:
        return {}
    return pointwise.twins() | arrays.twins() | layers.twins()


def against(case):
    """The worst relative error, in values and gradients, between a case's op and PyTorch's; None without PyTorch."""
    twin = _twins().get(case.op.name)
    return None if twin is None else opcheck.against(case, functools.partial(through_torch, twin))


def through_torch(twin, inputs, options, dys):
    """Result of twin(*tensors, **options) and its backward in PyTorch."""
    import torch
    tensors = [torch.tensor(x, requires_grad=is_float(x)) if isinstance(x, np.ndarray) else x for x in inputs]
    outputs = twin(*tensors, **options)
    outputs = outputs if type(outputs) is tuple else (outputs,)
    leaves = [x for x, ours in zip(tensors, inputs) if is_float(ours)]
    given = [torch.tensor(dy, dtype=y.dtype) for y, dy in zip(outputs, dys)]
    found = iter(torch.autograd.grad(outputs, leaves, given, allow_unused=True) if leaves else ())
    gradients = [next(found) if is_float(x) else None for x in inputs]
    return Result(tuple(y.detach().numpy() for y in outputs),
                  tuple(np.zeros(x.shape) if g is None and is_float(x) else g if g is None else g.numpy()
                        for x, g in zip(inputs, gradients)))
