"""Matrix products: matmul as NumPy defines it, and the linear layer as one op."""
import math

from minitx.autograd import Op
from minitx.backend import xp_of


class Matmul(Op):
    r"""Multiply matrices; axes before the last two are a batch and broadcast. A vector is a row on the left, a column
    on the right, and its axis of length 1 is taken out of the result again.

        a (..., M, K)   b (..., K, N)   ->   y (..., M, N)

    forward       y = a b
    backward      da = dy b'      db = a' dy            ' = transposed
    saved         a (..., M, K)   b (..., K, N)
    """
    broadcasts, promotion, native_half = True, "same", True

    def forward(self, a, b):
        self.row, self.column = a.ndim == 1, b.ndim == 1
        self.a, self.b = a, b
        return a @ b

    def backward(self, dy):
        a = self.a[None, :] if self.row else self.a
        b = self.b[:, None] if self.column else self.b
        if self.column:
            dy = dy[..., None]                              # (..., M, 1)
        if self.row:
            dy = dy[..., None, :]                           # (..., 1, N)
        da = db = None
        if self.needs[0]:
            da = dy @ b.swapaxes(-1, -2)                    # (..., M, K)
            da = da[..., 0, :] if self.row else da
        if self.needs[1]:
            db = a.swapaxes(-1, -2) @ dy                    # (..., K, N)
            db = db[..., 0] if self.column else db
        return da, db


class Linear(Op):
    r"""Take every row to out numbers, each its own weighted sum of the row's entries plus its own offset.

        x (..., in)   weight (out, in)   bias (out,)   ->   y (..., out)

    forward       y = x W' + b
    backward      dx = dy W
                  dW = dy' x              dy and x as matrices of all their rows
                  db = sum dy             over every axis but the last
    saved         x (N, in)   weight (out, in)

    twin          minitx/fused/cpu/linear.py
    """
    promotion, native_half = "one", True

    def forward(self, x, weight, bias):
        if x.ndim == 0 or weight.ndim != 2 or x.shape[-1] != weight.shape[1]:
            raise ValueError("x (..., in) needs weight (out, in) with the same in")
        if bias is not None and bias.shape != weight.shape[:1]:
            raise ValueError("bias must have shape (out,)")
        self.lead = x.shape[:-1]
        self.x = x.reshape(math.prod(self.lead), x.shape[-1])
        self.weight = weight
        y = self.x @ weight.T
        if bias is not None:
            y += bias
        return y.reshape(self.lead + y.shape[1:])

    def backward(self, dy):
        db = sum_of_rows(dy) if self.needs[2] else None
        dy = dy.reshape(len(self.x), len(self.weight))      # (N, out)
        dx = dw = None
        if self.needs[0]:
            dx = (dy @ self.weight).reshape(self.lead + self.weight.shape[1:])
        if self.needs[1]:
            dw = dy.T @ self.x
        return dx, dw, db


def sum_of_rows(x):
    """Raw array x summed over every axis but the last, by a product: that is faster than sum, and exacter."""
    rows = x.reshape(math.prod(x.shape[:-1]), *x.shape[-1:])
    return xp_of(x).ones(len(rows), x.dtype) @ rows


def matmul(a, b):
    """a @ b by NumPy's rules: (..., M, K) @ (..., K, N); vectors allowed on either side.

    ValueError where the shapes do not fit, TypeError where two float dtypes meet.
    """
    return Matmul.apply(a, b)


def linear(x, weight, bias=None):
    """x (..., in) times weight (out, in) transposed, plus bias (out,). PyTorch's layout of the weight.

    ValueError where the shapes do not fit, TypeError where two float dtypes meet.
    """
    return Linear.apply(x, weight, bias)
