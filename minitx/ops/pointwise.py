"""Functions of one number, element by element."""
import math

from minitx import backend
from minitx.autograd import Op
from minitx.backend import xp_of


class Exp(Op):
    r"""e to the power x.

        x (...)   ->   y (...)

    forward       y = exp x
    backward      dx = y dy
    saved         y (...)
    """
    promotion = "float"

    def forward(self, x):
        self.y = xp_of(x).exp(x)
        return self.y

    def backward(self, dy):
        return self.y * dy,


class Log(Op):
    r"""Natural logarithm.

        x (...)   ->   y (...)

    forward       y = ln x
    backward      dx = dy / x
    saved         x (...)
    """
    promotion = "float"

    def forward(self, x):
        self.x = x
        return xp_of(x).log(x)

    def backward(self, dy):
        return dy / self.x,


class Sqrt(Op):
    r"""Square root.

        x (...)   ->   y (...)

    forward       y = sqrt x
    backward      dx = dy / (2 y)
    saved         y (...)
    """
    promotion = "float"

    def forward(self, x):
        self.y = xp_of(x).sqrt(x)
        return self.y

    def backward(self, dy):
        return dy / (2 * self.y),


class Abs(Op):
    r"""Distance from zero.

        x (...)   ->   y (...)

    forward       y = |x|
    backward      dx = sign(x) dy         0 at 0
    saved         x (...)
    """
    promotion = "mixed"

    def forward(self, x):
        self.x = x
        return xp_of(x).abs(x)

    def backward(self, dy):
        return xp_of(dy).sign(self.x) * dy,


class Erf(Op):
    r"""The error function.

        x (...)   ->   y (...)

    forward       y = 2/sqrt(pi) * integral of exp(-t^2) from 0 to x
    backward      dx = 2/sqrt(pi) exp(-x^2) dy
    saved         x (...)
    """
    promotion = "float"

    def forward(self, x):
        self.x = x
        return backend.erf(x)

    def backward(self, dy):
        return dy * (2 / math.sqrt(math.pi)) * xp_of(dy).exp(-self.x * self.x),


class Sin(Op):
    r"""Sine of an angle in radians.

        x (...)   ->   y (...)

    forward       y = sin x
    backward      dx = cos(x) dy
    saved         x (...)
    """
    promotion = "float"

    def forward(self, x):
        self.x = x
        return xp_of(x).sin(x)

    def backward(self, dy):
        return xp_of(dy).cos(self.x) * dy,


class Cos(Op):
    r"""Cosine of an angle in radians.

        x (...)   ->   y (...)

    forward       y = cos x
    backward      dx = -sin(x) dy
    saved         x (...)
    """
    promotion = "float"

    def forward(self, x):
        self.x = x
        return xp_of(x).cos(x)

    def backward(self, dy):
        return -xp_of(dy).sin(self.x) * dy,


def exp(x):
    """e to the power x, element by element. Integers become floats of the default dtype, here and below."""
    return Exp.apply(x)


def log(x):
    """Natural logarithm of x, element by element."""
    return Log.apply(x)


def sqrt(x):
    """Square root of x, element by element; at 0 the gradient is infinite."""
    return Sqrt.apply(x)


def abs(x):
    """Absolute value of x, element by element; at 0 the gradient is 0."""
    return Abs.apply(x)


def erf(x):
    """Error function of x, element by element."""
    return Erf.apply(x)


def sin(x):
    """Sine of x in radians, element by element."""
    return Sin.apply(x)


def cos(x):
    """Cosine of x in radians, element by element."""
    return Cos.apply(x)
