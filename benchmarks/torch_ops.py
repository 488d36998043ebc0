"""Every op in PyTorch, as it is fastest there, on the inputs of ops.py."""
import numpy as np
import torch
import torch.nn.functional as F


def _named(names, module):
    return {name: (lambda function: lambda o: function)(getattr(module, name)) for name in names.split()}


def _rows(names):
    """Reductions of rows."""
    return {name: (lambda function: lambda o: lambda x: function(x, -1))(getattr(torch, name)) for name in names.split()}


def _rope(o):
    def turn(x):
        K = x.shape[-1]
        angle = o["positions"][:, None] * 10000.0 ** (-2 * torch.arange(K // 2, device=x.device) / K)
        cos, sin = torch.cos(angle).to(x.dtype), torch.sin(angle).to(x.dtype)
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    return turn


def _to(o):
    return lambda x: x.to(getattr(torch, o["dtype"].name))


# The name of an op -> its options, arrays among them as tensors -> a function of tensors.
TORCH = {
    **_named("abs cos erf exp neg relu sigmoid sin tanh log sqrt add div maximum minimum mul sub matmul", torch),
    **_named("silu linear", F),
    **_rows("mean prod sum amax amin logsumexp softmax log_softmax"),
    "var": lambda o: lambda x: torch.var(x, -1, correction=0), "std": lambda o: lambda x: torch.std(x, -1, correction=0),
    "pow": lambda o: torch.pow,
    "where": lambda o: lambda a, b: torch.where(o["condition"], a, b),
    "masked_fill": lambda o: lambda x: x.masked_fill(o["mask"], o["value"]),
    "clip": lambda o: lambda x: x.clamp(o["min"], o["max"]),
    "gelu": lambda o: lambda x, _: F.gelu(x),
    "dropout": lambda o: lambda x, _: x * o["keep"] * (1 / (1 - o["p"])),
    "reshape": lambda o: lambda x: x.reshape(o["shape"]),
    "transpose": lambda o: lambda x: x.permute(o["axes"]),
    "getitem": lambda o: lambda x: x[o["index"]],
    "to": _to,
    "concatenate": lambda o: lambda *xs: torch.cat(xs, o["axis"]), "stack": lambda o: lambda *xs: torch.stack(xs, o["axis"]),
    "split": lambda o: lambda x: torch.tensor_split(x, o["sections"], o["axis"])[0],
    "einsum": lambda o: lambda *xs: torch.einsum(o["equation"], *xs),
    "embedding": lambda o: lambda weight: F.embedding(o["ids"], weight),
    "layer_norm": lambda o: lambda x, weight, bias: F.layer_norm(x, x.shape[-1:], weight, bias),
    "rms_norm": lambda o: lambda x, weight: F.rms_norm(x, x.shape[-1:], weight, 1e-6),
    "cross_entropy": lambda o: lambda x: F.cross_entropy(x.float(), o["targets"]),
    "scaled_dot_product_attention": lambda o: lambda q, k, v, _: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "rope": _rope,
    "patchify": lambda o: lambda x: F.unfold(x, o["patch"], stride=o["patch"]).transpose(1, 2),
}
TORCH |= {"max": TORCH.pop("amax"), "min": TORCH.pop("amin")}


def once(run, device):
    """A function that does in PyTorch what the Run of ops.py does: the result, and the gradients."""
    inputs = [torch.from_numpy(x).to(device).requires_grad_() if isinstance(x, np.ndarray) else x for x in run.arrays]
    options = {key: torch.from_numpy(x).to(device) if isinstance(x, np.ndarray) else x for key, x in run.given.items()}
    function, tensors = TORCH[run.op.name](options), [x for x in inputs if isinstance(x, torch.Tensor)]
    dy = torch.from_numpy(run.host_dy).to(device)

    def step():
        for x in tensors:
            x.grad = None
        y = function(*inputs)
        y.backward(dy.to(y.dtype).reshape(y.shape))
        return y, [x.grad for x in tensors]
    return step
