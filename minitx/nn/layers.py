"""The small layers: each holds its parameters and calls one op."""
import functools
import math

import numpy as np

from minitx import ops
from minitx.nn import init
from minitx.nn.module import Module
from minitx.nn.parameter import Parameter
from minitx.ops.dropout import check_probability
from minitx.ops.embedding import Embedding as EmbeddingOp


class Linear(Module):
    """y = x weight' + bias: x (..., in_features) -> y (..., out_features), weight (out_features, in_features).

    Weight and bias start uniform in +-1/sqrt(in_features), as PyTorch's do.
    """

    def __init__(self, in_features, out_features, bias=True):
        check_size("Linear", in_features=in_features, out_features=out_features)
        bound = 1 / math.sqrt(in_features)
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(init.uniform((out_features, in_features), bound))
        self.bias = Parameter(init.uniform((out_features,), bound)) if bias else None

    def forward(self, x):
        return ops.linear(x, self.weight, self.bias)

    def extra_repr(self):
        return f"{self.in_features}, {self.out_features}" + (", bias=False" if self.bias is None else "")


class Embedding(Module):
    """A row of dim numbers for each of n ids: ids (...) -> (..., dim). Starts N(0, 1), as PyTorch's does.

    The row padding_idx starts at zero and gets no gradient. IndexError for an id outside 0 .. n-1, TypeError for ids
    that are no integers.
    """

    def __init__(self, n, dim, padding_idx=None):
        check_size("Embedding", n=n, dim=dim)
        if padding_idx is not None and not -n <= padding_idx < n:
            raise ValueError(f"Embedding: padding_idx {padding_idx} is outside the {n} rows")
        weight = init.normal((n, dim))
        self.n, self.dim, self.padding_idx = n, dim, padding_idx
        if padding_idx is not None:
            weight[padding_idx] = 0
        self.weight = Parameter(weight)

    def forward(self, ids):
        return EmbeddingOp.apply(self.weight, ids=ids, padding_idx=self.padding_idx)

    def extra_repr(self):
        return f"{self.n}, {self.dim}" + ("" if self.padding_idx is None else f", padding_idx={self.padding_idx}")


class LayerNorm(Module):
    """Mean 0 and variance 1 over the last axis, then a scale and a shift. Ba et al. 2016.

        x (..., dim)   weight (dim,), starts at 1   bias (dim,), at 0, or None   ->   y (..., dim)

    ValueError for another width, or an eps below 0.
    """

    def __init__(self, dim, eps=1e-5, bias=True):
        check_size("LayerNorm", dim=dim)
        _check_eps("LayerNorm", eps)
        self.dim, self.eps = dim, eps
        self.weight = Parameter(init.ones((dim,)))
        self.bias = Parameter(init.zeros((dim,))) if bias else None

    def forward(self, x):
        return ops.layer_norm(x, self.weight, self.bias, self.eps)

    def extra_repr(self):
        return f"{self.dim}, eps={self.eps}" + (", bias=False" if self.bias is None else "")


class RMSNorm(Module):
    """Root mean square 1 over the last axis, then a scale. Zhang and Sennrich 2019.

        x (..., dim)   weight (dim,), starts at 1   ->   y (..., dim)

    ValueError for another width, or an eps below 0.
    """

    def __init__(self, dim, eps=1e-6):
        check_size("RMSNorm", dim=dim)
        _check_eps("RMSNorm", eps)
        self.dim, self.eps = dim, eps
        self.weight = Parameter(init.ones((dim,)))

    def forward(self, x):
        return ops.rms_norm(x, self.weight, self.eps)

    def extra_repr(self):
        return f"{self.dim}, eps={self.eps}"


class Dropout(Module):
    """In train mode each element becomes 0 with probability p and the others are divided by 1 - p.

    layer(x, residual) is layer(x) + residual, in one op. Srivastava et al. 2014. ValueError unless 0 <= p <= 1, and for a
    residual of another shape.
    """

    def __init__(self, p):
        check_probability("Dropout", p)
        self.p = p

    def forward(self, x, residual=None):
        return ops.dropout(x, self.p, self.training, residual)

    def extra_repr(self):
        return f"{self.p}"


class GELU(Module):
    """x times the Gaussian's distribution function at x, exact ("none") or its approximation ("tanh").

    layer(x, bias) is layer(x + bias), in one op. Hendrycks and Gimpel 2016. ValueError for another name, and for a bias that
    is not as long as the last axis of x.
    """

    def __init__(self, approximate="none"):
        if approximate not in ("none", "tanh"):
            raise ValueError(f'GELU: approximate must be "none" or "tanh", got {approximate!r}')
        self.approximate = approximate

    def forward(self, x, bias=None):
        return ops.gelu(x, self.approximate, bias)

    def extra_repr(self):
        return "" if self.approximate == "none" else f'"{self.approximate}"'


class ReLU(Module):
    """max(x, 0)"""

    def forward(self, x):
        return ops.relu(x)


class SiLU(Module):
    """x sigmoid(x), also called swish."""

    def forward(self, x):
        return ops.silu(x)


class Tanh(Module):
    """tanh(x)"""

    def forward(self, x):
        return ops.tanh(x)


ACTIVATIONS = {"gelu": GELU, "gelu_tanh": functools.partial(GELU, "tanh"), "relu": ReLU, "silu": SiLU, "tanh": Tanh}


def activation_named(name):
    """A fresh activation layer. ValueError listing the known names for an unknown one."""
    if name not in ACTIVATIONS:
        raise ValueError(f"unknown activation {name!r}: use one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]()


def check_size(layer, **sizes):
    """ValueError naming the layer and the first size below 1, TypeError for one that is no whole number."""
    for name, size in sizes.items():
        if not isinstance(size, (int, np.integer)):
            raise TypeError(f"{layer}: {name} must be a whole number, got {size!r}")
        if size < 1:
            raise ValueError(f"{layer}: {name} must be at least 1, got {size}")


def _check_eps(layer, eps):
    if not 0 <= eps < math.inf:
        raise ValueError(f"{layer}: eps must be a finite number, at least 0; got {eps}")
