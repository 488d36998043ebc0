"""Sums, products and powers of arrays that broadcast against each other. The engine undoes the broadcasting."""
from minitx.autograd import Op
from minitx.backend import xp_of


class Add(Op):
    r"""Add two arrays.

        a, b (...) broadcast   ->   y (...)

    forward       y = a + b
    backward      da = dy      db = dy
    saved         nothing
    """
    broadcasts, promotion, native_half = True, "mixed", True

    def forward(self, a, b):
        return a + b

    def backward(self, dy):
        return dy, dy


class Sub(Op):
    r"""Subtract the second array from the first.

        a, b (...) broadcast   ->   y (...)

    forward       y = a - b
    backward      da = dy      db = -dy
    saved         nothing
    """
    broadcasts, promotion, native_half = True, "mixed", True

    def forward(self, a, b):
        return a - b

    def backward(self, dy):
        return dy, -dy if self.needs[1] else None


class Mul(Op):
    r"""Multiply two arrays, element by element.

        a, b (...) broadcast   ->   y (...)

    forward       y = a b
    backward      da = b dy      db = a dy
    saved         a, b (...), each only if the other wants a gradient
    """
    broadcasts, promotion, native_half = True, "mixed", True

    def forward(self, a, b):
        self.a = a if self.needs[1] else None
        self.b = b if self.needs[0] else None
        return a * b

    def backward(self, dy):
        return dy * self.b if self.needs[0] else None, dy * self.a if self.needs[1] else None


class Div(Op):
    r"""Divide the first array by the second.

        a, b (...) broadcast   ->   y (...)

    forward       y = a / b
    backward      da = dy / b      db = -dy a / b^2
    saved         b (...)   a (...), only if b wants a gradient
    """
    broadcasts, promotion = True, "float"

    def forward(self, a, b):
        self.a = a if self.needs[1] else None
        self.b = b
        return a / b

    def backward(self, dy):
        da = dy / self.b
        return da, -da * (self.a / self.b) if self.needs[1] else None


class Neg(Op):
    r"""Turn the sign.

        x (...)   ->   y (...)

    forward       y = -x
    backward      dx = -dy
    saved         nothing
    """
    promotion, native_half = "mixed", True

    def forward(self, x):
        return -x

    def backward(self, dy):
        return -dy,


class Pow(Op):
    r"""Raise a to the power b.

        a, b (...) broadcast   ->   y (...)

    forward       y = a^b
    backward      da = b a^(b-1) dy       where b is 0: 0, also at a = 0
                  db = ln(a) a^b dy       where a is 0: 0, the limit for b > 0
    saved         a, b (...)   y (...), only if b wants a gradient
    """
    broadcasts, promotion = True, "mixed"

    def forward(self, a, b):
        y = a ** b
        self.a, self.b = a, b
        self.y = y if self.needs[1] else None
        return y

    def backward(self, dy):
        xp = xp_of(dy)
        a, b = xp.asarray(self.a, dy.dtype), xp.asarray(self.b, dy.dtype)       # one of them may be a number
        da = db = None
        if self.needs[0]:
            da = xp.where(b == 0, 0, dy * b * a ** xp.where(b == 0, 1, b - 1))
        if self.needs[1]:
            db = dy * self.y * xp.log(xp.where(a == 0, 1, a))
        return da, db


def add(a, b):
    """a + b, broadcasting as NumPy does."""
    return Add.apply(a, b)


def sub(a, b):
    """a - b, broadcasting as NumPy does."""
    return Sub.apply(a, b)


def mul(a, b):
    """a * b element by element, broadcasting as NumPy does."""
    return Mul.apply(a, b)


def div(a, b):
    """a / b, broadcasting as NumPy does; integers give floats of the default dtype."""
    return Div.apply(a, b)


def neg(x):
    """-x."""
    return Neg.apply(x)


def pow(a, b):
    """a ** b, broadcasting as NumPy does. A gradient towards b needs a >= 0: below it is NaN, as the logarithm."""
    return Pow.apply(a, b)
