"""Every op: the functions, the classes behind them by name (OPS), and what a Tensor learns from them (OPERATORS)."""
from minitx.autograd import Op, Tensor
from minitx.ops.activation import gelu, relu, sigmoid, silu, tanh
from minitx.ops.arithmetic import add, div, mul, neg, pow, sub
from minitx.ops.attention import scaled_dot_product_attention
from minitx.ops.dropout import dropout
from minitx.ops.einsum import einsum
from minitx.ops.embedding import embedding
from minitx.ops.extrema import logsumexp, max, min
from minitx.ops.join import concatenate, split, stack
from minitx.ops.linear import linear, matmul
from minitx.ops.loss import cross_entropy
from minitx.ops.norm import layer_norm, rms_norm
from minitx.ops.patch import patchify
from minitx.ops.pointwise import abs, cos, erf, exp, log, sin, sqrt
from minitx.ops.reduce import mean, prod, std, sum, var
from minitx.ops.rotary import rope
from minitx.ops.select import clip, masked_fill, maximum, minimum, where
from minitx.ops.shape import getitem, reshape, swapaxes, to, transpose
from minitx.ops.softmax import log_softmax, softmax

__all__ = [
    "OPERATORS", "OPS", "abs", "add", "clip", "concatenate", "cos", "cross_entropy", "div", "dropout", "einsum",
    "embedding", "erf", "exp", "gelu", "getitem", "layer_norm", "linear", "log", "log_softmax", "logsumexp",
    "masked_fill", "matmul", "max", "maximum", "mean", "min", "minimum", "mul", "neg", "patchify", "pow", "prod", "relu",
    "reshape", "rms_norm", "rope", "scaled_dot_product_attention", "sigmoid", "silu", "sin", "softmax", "split", "sqrt",
    "stack", "std", "sub", "sum", "swapaxes", "tanh", "to", "transpose", "var", "where",
]

OPS = {op.name: op for op in sorted(Op.__subclasses__(), key=lambda op: op.name)}


def _reflected(function):
    """The operator for a Tensor on the right: other + tensor."""
    return lambda self, other: function(other, self)


OPERATORS = {
    "__add__": add, "__radd__": _reflected(add),
    "__sub__": sub, "__rsub__": _reflected(sub),
    "__mul__": mul, "__rmul__": _reflected(mul),
    "__truediv__": div, "__rtruediv__": _reflected(div),
    "__pow__": pow, "__rpow__": _reflected(pow),
    "__matmul__": matmul, "__rmatmul__": _reflected(matmul),
    "__neg__": neg, "__abs__": abs, "__getitem__": getitem,
    "sum": sum, "mean": mean, "max": max, "reshape": reshape, "transpose": transpose, "swapaxes": swapaxes, "to": to,
    "T": property(transpose),
}
for _name, _function in OPERATORS.items():
    setattr(Tensor, _name, _function)
