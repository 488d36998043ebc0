"""The linear layer: its products in parts, on all threads."""
import numpy as np

from minitx.fused import twin
from minitx.fused.cpu.threads import parts, share
from minitx.memory import empty
from minitx.ops.linear import Linear

FEW_ROWS = 16           # a few rows are a matter of reading the weight, which the BLAS does with all its threads
LEAST = 1 << 18         # multiplications: below, a product takes no longer than the care of a twin


@twin
class FusedLinear(Linear):
    """Rows of y and dx, and rows of dW, are shared out among the threads, all those of a backward in one go."""

    @staticmethod
    def fits(x, weight, bias):
        return (type(x) is type(weight) is np.ndarray and x.ndim > 0 and weight.ndim == 2 and x.shape[-1] == weight.shape[1]
                and (bias is None or bias.shape == weight.shape[:1])
                and x.size * len(weight) >= LEAST and x.size >= FEW_ROWS * x.shape[-1])

    def forward(self, x, weight, bias):
        n_out, n_in = weight.shape
        self.lead, self.weight = x.shape[:-1], weight
        self.x = rows = x.reshape(x.size // n_in, n_in)
        y = empty(self.lead + (n_out,), x.dtype)
        out = y.reshape(len(rows), n_out)

        def product(i, j):
            np.matmul(rows[i:j], weight.T, out=out[i:j])
            if bias is not None:
                out[i:j] += bias

        share(product, parts(len(rows), x.size * n_out))
        return y

    def backward(self, dy):
        x, weight = self.x, self.weight
        n, (n_out, n_in) = len(x), weight.shape
        dy = dy.reshape(n, n_out)
        dx = empty(self.lead + (n_in,), dy.dtype) if self.needs[0] else None
        dw = empty(weight.shape, dy.dtype) if self.needs[1] else None
        db = np.empty(n_out, dy.dtype) if self.needs[2] else None
        jobs = []
        if dx is not None:
            rows = dx.reshape(n, n_in)
            jobs += [(dy[i:j], weight, rows[i:j]) for i, j in parts(n, dy.size * n_in)]
        if dw is not None:
            jobs += [(dy.T[i:j], x, dw[i:j]) for i, j in parts(n_out, dy.size * n_in)]
        if db is not None:
            jobs.append((np.ones(n, dy.dtype), dy, db))
        share(np.matmul, jobs)
        return dx, dw, db
