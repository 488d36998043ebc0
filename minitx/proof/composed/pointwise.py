"""Twins of the ops that work element by element, from others that say the same. Called as the op's forward is."""
import functools
import math

from minitx import ops
from minitx.autograd import Tensor
from minitx.backend import like, xp_of


# ---- pointwise -------------------------------------------------------------------------------------------------------

def _sub(a, b):
    return a + -1.0 * b


def _div(a, b):
    return a * b ** -1.0


def _neg(x):
    return x * -1.0


def _pow(a, b):
    if isinstance(b, int):                                  # repeated multiplication: a may be negative
        product = functools.reduce(ops.mul, [a] * abs(b), a * 0.0 + 1.0)
        return 1.0 / product if b < 0 else product
    return ops.exp(b * (math.log(a) if isinstance(a, float) else ops.log(a)))


def _sqrt(x):
    return ops.exp(0.5 * ops.log(x))


def _abs(x):
    return x * xp_of(x.data).sign(x.data)


def _erf(x):
    """2/sqrt(pi) exp(-x^2) * sum of 2^n x^(2n+1) / (1 3 5 ... (2n+1)): all terms have one sign, nothing cancels."""
    term = total = x
    for n in range(1, 150):
        term = term * x * x * (2 / (2 * n + 1))
        total = total + term
    return total * ops.exp(-1.0 * x * x) * (2 / math.sqrt(math.pi))


def _sin(x):
    return ops.cos(x + -math.pi / 2)


def _cos(x):
    return ops.sin(x + math.pi / 2)


def _tanh(x):
    return 1.0 - 2.0 / (ops.exp(2.0 * x) + 1.0)


def _sigmoid(x):
    return 1.0 / (1.0 + ops.exp(-x))


def _relu(x):
    return x * (x.data > 0)


def _silu(x):
    return x / (1.0 + ops.exp(-x))


def _gelu(x, bias, *, approximate):
    x = x if bias is None else x + bias
    if approximate == "tanh":
        return 0.5 * x * (1.0 + ops.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1.0 + ops.erf(x * math.sqrt(0.5)))


# ---- choosing --------------------------------------------------------------------------------------------------------

def _where(a, b, *, condition):
    array = next(x for x in (a, b) if isinstance(x, Tensor))            # beside it the other may be a number
    return a * like(condition, array) + b * like(~condition, array)


def _masked_fill(x, *, mask, value):
    return x * like(~mask, x) + value * like(mask, x)


def _clip(x, *, min, max):
    y = x if min is None else ops.maximum(x, min)
    return y if max is None else ops.minimum(y, max)


def _maximum(a, b):
    return 0.5 * (a + b + ops.abs(a - b))


def _minimum(a, b):
    return 0.5 * (a + b - ops.abs(a - b))


POINTWISE = {
    "sub": _sub, "div": _div, "neg": _neg, "pow": _pow, "sqrt": _sqrt, "abs": _abs, "erf": _erf, "sin": _sin,
    "cos": _cos, "tanh": _tanh, "sigmoid": _sigmoid, "relu": _relu, "silu": _silu, "gelu": _gelu, "where": _where,
    "masked_fill": _masked_fill, "clip": _clip, "maximum": _maximum, "minimum": _minimum,
}
