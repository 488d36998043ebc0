"""The bends between linear layers, element by element."""
import math

from minitx import backend
from minitx.autograd import Op
from minitx.backend import xp_of
from minitx.ops.linear import sum_of_rows


class Tanh(Op):
    r"""Hyperbolic tangent: squeeze every number into -1 .. 1.

        x (...)   ->   y (...)

    forward       y = tanh x
    backward      dx = (1 - y^2) dy
    saved         y (...)
    """
    promotion = "float"

    def forward(self, x):
        self.y = xp_of(x).tanh(x)
        return self.y

    def backward(self, dy):
        return (1 - self.y * self.y) * dy,


class Sigmoid(Op):
    r"""The logistic function: squeeze every number into 0 .. 1.

        x (...)   ->   y (...)

    forward       y = 1 / (1 + exp(-x))
    backward      dx = y (1 - y) dy
    saved         y (...)
    """
    promotion = "float"

    def forward(self, x):
        self.y = sigmoid_of(x)
        return self.y

    def backward(self, dy):
        return self.y * (1 - self.y) * dy,


class ReLU(Op):
    r"""Keep what is positive.

        x (...)   ->   y (...)

    forward       y = max(x, 0)
    backward      dx = dy where x > 0, else 0
    saved         positive (...) bool
    """
    promotion, native_half = "mixed", True

    def forward(self, x):
        self.positive = x > 0
        return xp_of(x).maximum(x, 0)

    def backward(self, dy):
        return dy * self.positive,


class SiLU(Op):
    r"""Let x through to the degree that it is positive (Elfwing et al. 2018; also called swish).

        x (...)   ->   y (...)

    forward       y = x g            g = sigmoid(x)             x cut at -1000, where g is 0, or -inf * 0 would be NaN
    backward      dx = g (1 + x (1 - g)) dy                     x cut at 1000, where 1 - g is 0
    saved         x (...)   g (...)
    """
    promotion = "float"

    def forward(self, x):
        self.x, self.g = bounded_below(x), sigmoid_of(x)
        return self.x * self.g

    def backward(self, dy):
        x, g = bounded_above(self.x), self.g
        return g * (1 + x * (1 - g)) * dy,


class GELU(Op):
    r"""Let x through with the probability that a normal variable lies below it (Hendrycks and Gimpel 2016). A bias, the
    offset of the linear layer before, is added to x first.

        x (..., C)   bias (C,) or none   ->   y (..., C)              without a bias x may have any shape

    forward       y = x g                                               from here on x stands for x + bias
                  g = P(Z < x) = (1 + erf(x / sqrt 2)) / 2              approximate="none"
                  g = (1 + tanh u) / 2 = sigmoid(2 u)                   approximate="tanh"
                  u = sqrt(2/pi) (x + 0.044715 x^3)
                  x is cut at -1000, where g is 0, or -inf * 0 would be NaN; backward cuts it at 1000, where g' is 0

    backward      dx = (g + x g') dy
                  g' = exp(-x^2 / 2) / sqrt(2 pi)                       approximate="none"
                  g' = 2 g (1 - g) u'                                   approximate="tanh"
                  u' = sqrt(2/pi) (1 + 3 * 0.044715 x^2)
                  dbias = sum dx                                        over every axis but the last

    saved         x (..., C)   g (..., C)

    twin          minitx/fused/cpu/activation.py   minitx/fused/cuda/activation.py and .cu
    """
    promotion = "one"

    def forward(self, x, bias, *, approximate="none"):
        if bias is not None:
            if x.ndim == 0 or bias.shape != x.shape[-1:]:
                raise ValueError("bias must have shape (C,), where x is (..., C)")
            x = x + bias
        self.approximate = approximate
        self.x = x = bounded_below(x)
        if approximate == "tanh":
            with backend.quiet(x):
                self.g = sigmoid_of(2 * _ROOT_2_PI * x * (1 + _CUBIC * x * x))
        else:
            self.g = backend.normal_cdf(x)
        return x * self.g

    def backward(self, dy):
        x, g = bounded_above(self.x), self.g
        if self.approximate == "tanh":
            slope = 2 * _ROOT_2_PI * g * (1 - g) * (1 + 3 * _CUBIC * x * x)
        else:
            slope = xp_of(dy).exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
        dx = (g + x * slope) * dy
        return dx, sum_of_rows(dx) if self.needs[1] else None


_ROOT_2_PI = math.sqrt(2 / math.pi)
_CUBIC = 0.044715
_BEYOND = 1000.0        # here every gate is 0 or 1 to the last bit, and 0 * 1000 is 0 where 0 * inf would be NaN


def bounded_below(x):
    """x where it is above -1000: the gate there is 0, and so shall x g be, for -inf too."""
    return xp_of(x).clip(x, -_BEYOND, math.inf)


def bounded_above(x):
    """x where it is below 1000: the gate's slope there is 0, and so shall x g' be, for inf too."""
    return xp_of(x).clip(x, -math.inf, _BEYOND)


def sigmoid_of(x):
    """1 / (1 + exp(-x)) of a raw array. Where exp runs over to infinity the quotient is the 0 that is meant."""
    with backend.quiet(x):
        e = xp_of(x).exp(-x)
        e += 1
        return 1 / e


def tanh(x):
    """Hyperbolic tangent of x, element by element."""
    return Tanh.apply(x)


def sigmoid(x):
    """1 / (1 + exp(-x)), element by element, without overflow."""
    return Sigmoid.apply(x)


def relu(x):
    """max(x, 0), element by element; at 0 the gradient is 0."""
    return ReLU.apply(x)


def silu(x):
    """x * sigmoid(x), element by element. Elfwing, Uchibe and Doya 2018."""
    return SiLU.apply(x)


def gelu(x, approximate="none", bias=None):
    """x times the normal distribution function of x; approximate="tanh" is GPT-2's closed form of it.

    With a bias (C,), gelu(x + bias) in one op; x (..., C) is then what a linear layer gives without its bias. Hendrycks
    and Gimpel 2016, section 2. The two forms differ by up to 4.73e-4 (at |x| = 2.699). ValueError for another name, and for
    a bias of another shape; TypeError where two float dtypes meet.
    """
    if not isinstance(approximate, str):
        raise TypeError(f"gelu: approximate is 'none' or 'tanh', not a {type(approximate).__name__}; a bias goes in as bias=")
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate is 'none' or 'tanh', not {approximate!r}")
    return GELU.apply(x, bias, approximate=approximate)
