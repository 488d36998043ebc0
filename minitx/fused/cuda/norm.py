"""Layer norm and RMS norm: a block of threads a row, one launch forward, two backward."""
import math

from minitx.backend import xp_of
from minitx.fused import cuda_twin
from minitx.fused.cuda import kernels
from minitx.ops.norm import LayerNorm, RMSNorm

PARTS = 64              # of the rows, at most, that are summed apart for dgamma and dbeta


@cuda_twin
class CudaLayerNorm(LayerNorm):
    """Saves the same names as the plain op."""

    @staticmethod
    def fits(x, gamma, beta, *, eps=1e-5):
        return fits(x, gamma, beta)

    def forward(self, x, gamma, beta, *, eps=1e-5):
        self.gamma = gamma
        y, self.xhat, self.r = forward(x, gamma, beta, eps, centred=True)
        return y

    def backward(self, dy):
        dx, parameters = backward(dy, self, centred=True)
        return dx, *parameters


@cuda_twin
class CudaRMSNorm(RMSNorm):
    """Saves the same names as the plain op."""

    @staticmethod
    def fits(x, gamma, *, eps=1e-6):
        return fits(x, gamma, None)

    def forward(self, x, gamma, *, eps=1e-6):
        self.gamma = gamma
        y, self.xhat, self.r = forward(x, gamma, None, eps, centred=False)
        return y

    def backward(self, dy):
        dx, parameters = backward(dy, self, centred=False)
        return dx, parameters[0]


def fits(x, *vectors):
    vectors = [vector for vector in vectors if vector is not None]
    return kernels.ready(x, *vectors) and x.ndim > 0 and all(vector.shape == x.shape[-1:] for vector in vectors)


def forward(x, gamma, beta, eps, *, centred):
    """y, xhat and r."""
    xp, C = xp_of(x), x.shape[-1]
    x, gamma, beta = (None if a is None else xp.ascontiguousarray(a) for a in (x, gamma, beta))
    y, xhat, r = xp.empty(x.shape, x.dtype), xp.empty(x.shape, x.dtype), xp.empty(x.shape[:-1] + (1,), x.dtype)
    kernels.by_row("norm", "norm_forward", r.size, C, x, gamma, beta, y, xhat, r, C, float(eps), centred,
                   dtype=x.dtype)
    return y, xhat, r


def backward(dy, op, *, centred):
    """dx, and (dgamma, dbeta), or Nones where nobody wants them."""
    xp, C, N = xp_of(dy), dy.shape[-1], op.r.size
    dy, xhat, r, gamma = (None if a is None else xp.ascontiguousarray(a) for a in (dy, op.xhat, op.r, op.gamma))
    dx = xp.empty(dy.shape, dy.dtype)
    kernels.by_row("norm", "norm_backward", N, C, dy, xhat, r, gamma, dx, C, centred, dtype=dy.dtype)
    if not any(op.needs[1:]):
        return dx, (None, None)
    if not dy.size:
        return dx, xp.zeros((2, C), dy.dtype)
    rows = max(32, math.ceil(N / PARTS))
    parts = math.ceil(N / rows)
    sums = xp.empty((2, parts, C), dy.dtype)
    kernels.launch("norm", "norm_parameters", (math.ceil(C / 32), parts), (32, 8), dy, xhat, sums[0], sums[1], N, C,
                   rows, dtype=dy.dtype)
    return dx, sums.sum(axis=1)
