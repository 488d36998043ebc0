"""PyTorch's functions that work element by element."""


def twins():
    """Name of an op -> the same in PyTorch."""
    import torch
    from torch.nn import functional as F

    def gelu(x, bias, *, approximate):
        x = x if bias is None else x + bias
        far = x.detach().isinf()  # there PyTorch's gradient is NaN; the limits are 0 and 1
        near = F.gelu(x.masked_fill(far, 0.0), approximate=approximate)
        return torch.where(far, torch.relu(x), near)

    def silu(x):
        far = x.detach().isinf()
        return torch.where(far, torch.relu(x), F.silu(x.masked_fill(far, 0.0)))

    def where(a, b, *, condition):
        return torch.where(torch.tensor(condition), a, b)

    def masked_fill(x, *, mask, value):
        return x.to(torch.result_type(x, value)).masked_fill(torch.tensor(mask), value)

    def clip(x, *, min, max):
        return x.clone() if min is None and max is None else x.clamp(min, max)

    def other(b, a):
        return b if isinstance(b, torch.Tensor) else torch.tensor(b, dtype=a.dtype)

    def maximum(a, b):
        return torch.maximum(a, other(b, a))

    def minimum(a, b):
        return torch.minimum(a, other(b, a))

    return {
        "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "neg": torch.neg, "pow": torch.pow,
        "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt, "abs": torch.abs, "erf": torch.erf, "sin": torch.sin,
        "cos": torch.cos, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": torch.relu, "silu": silu, "gelu": gelu,
        "where": where, "masked_fill": masked_fill, "clip": clip, "maximum": maximum, "minimum": minimum,
    }
