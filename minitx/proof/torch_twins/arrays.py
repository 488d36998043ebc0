"""PyTorch's functions that sum, move, join and multiply arrays."""
import math

import numpy as np


def twins():
    """Name of an op -> the same in PyTorch."""
    import torch
    from torch.nn import functional as F

    def axes_of(x, axis):
        return tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)

    def reduction(reduce):
        """reduce(x, axes, keepdims); over no axes at all, which torch takes for all of them, each element is alone;
        and so is a number."""
        def twin(x, *, axis, keepdims):
            if axes_of(x, axis) == () or not x.ndim:
                return reduce(x[..., None], (-1,), False)
            return reduce(x, axes_of(x, axis), keepdims)

        return twin

    def mean(x, axes, keepdims):
        return torch.mean(x.to(torch.result_type(x, 1.0)), axes, keepdim=keepdims)          # of integers too

    def std(x, axes, keepdims):
        var = torch.var(x, axes, correction=0, keepdim=keepdims)
        flat = var.detach() == 0                                # the root has no slope at 0; ours is 0 by convention
        return torch.where(flat, var * 0, torch.sqrt(torch.where(flat, 1.0, var)))

    def prod(x, axes, keepdims):
        for axis in sorted((axis % x.ndim for axis in axes), reverse=True):
            x = x.prod(axis, keepdim=keepdims)
        return x

    def logsumexp(x, axes, keepdims):
        y = torch.logsumexp(x, axes, keepdim=keepdims)
        nothing = torch.logsumexp(x.detach(), axes, keepdim=True) == -math.inf
        full = torch.logsumexp(x.masked_fill(nothing, 0.0), axes, keepdim=keepdims)
        return torch.where(y.detach() == -math.inf, -math.inf, full)

    def reshape(x, *, shape):
        return x.reshape(shape)

    def transpose(x, *, axes):
        return x.permute(axes)

    def getitem(x, *, index):
        """torch has no negative steps: those axes are flipped first."""
        parts, flipped, axis = list(index) if type(index) is tuple else [index], [], 0
        for i, part in enumerate(parts):
            if isinstance(part, slice) and (part.step or 1) < 0:
                n = x.shape[axis]
                picked = range(*part.indices(n))
                flipped.append(axis)
                parts[i] = slice(n - 1 - picked[0], n - picked[-1], -part.step)
            axis += part is not None and part is not Ellipsis
        parts = [torch.tensor(part) if isinstance(part, np.ndarray) else part for part in parts]
        return x.flip(flipped)[tuple(parts)]

    def to(x, *, device, dtype):
        return x.to(device, getattr(torch, dtype.name))

    def concatenate(*xs, axis):
        return torch.cat(xs, axis)

    def stack(*xs, axis):
        return torch.stack(xs, axis)

    def split(x, *, sections, axis):
        return torch.tensor_split(x, sections, axis)

    def einsum(*operands, equation):
        return torch.einsum(equation, *operands)

    return {
        "sum": reduction(lambda x, axes, keepdims: torch.sum(x, axes, keepdim=keepdims)),
        "var": reduction(lambda x, axes, keepdims: torch.var(x, axes, correction=0, keepdim=keepdims)),
        "max": reduction(lambda x, axes, keepdims: torch.amax(x, axes, keepdim=keepdims)),
        "min": reduction(lambda x, axes, keepdims: torch.amin(x, axes, keepdim=keepdims)),
        "mean": reduction(mean), "std": reduction(std), "prod": reduction(prod), "logsumexp": reduction(logsumexp),
        "reshape": reshape, "transpose": transpose, "getitem": getitem, "to": to, "concatenate": concatenate,
        "stack": stack, "split": split, "matmul": torch.matmul, "linear": F.linear, "einsum": einsum,
    }
