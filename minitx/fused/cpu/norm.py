"""Layer norm in blocks of rows; sums along rows and columns are products with ones."""
import numpy as np

from minitx.fused import twin
from minitx.fused.cpu.threads import BLOCK, in_blocks
from minitx.memory import LEAST, empty
from minitx.ops.norm import LayerNorm


@twin
class FusedLayerNorm(LayerNorm):
    """All passes over a block of rows while it is in the cache. Saves the same names as the plain op."""

    @staticmethod
    def fits(x, gamma, beta, *, eps=1e-5):
        return (type(x) is np.ndarray and x.ndim > 0 and x.nbytes >= LEAST and gamma is not None
                and gamma.shape == x.shape[-1:] and (beta is None or beta.shape == gamma.shape))

    def forward(self, x, gamma, beta, *, eps=1e-5):
        C = x.shape[-1]
        y, self.xhat, self.r = (empty(shape, x.dtype) for shape in (x.shape, x.shape, x.shape[:-1] + (1,)))
        self.gamma = gamma
        x, out, xhat, r = (a.reshape(-1, a.shape[-1]) for a in (x, y, self.xhat, self.r))
        ones = np.ones(C, x.dtype)

        def block(i, j):
            c, r_ = xhat[i:j], r[i:j]
            np.subtract(x[i:j], (x[i:j] @ ones)[:, None] / C, out=c)
            square = np.vecdot(c, c)
            if np.isfinite(square).all():
                np.divide(1, np.sqrt(square / C + eps), out=r_[:, 0])
                c *= r_
            else:                                   # a sum of squares ran over: the plain op scales first
                op = LayerNorm()
                op.forward(x[i:j], None, None, eps=eps)
                c[:], r_[:] = op.xhat, op.r
            np.multiply(c, gamma, out=out[i:j])
            if beta is not None:
                out[i:j] += beta

        with np.errstate(over="ignore"):
            in_blocks(block, len(x), max(1, BLOCK // C), products=True)
        return y

    def backward(self, dy):
        C = dy.shape[-1]
        dx = empty(dy.shape, dy.dtype)
        gamma, step = self.gamma, max(1, BLOCK // C)
        dy, xhat, r, out = (a.reshape(-1, a.shape[-1]) for a in (dy, self.xhat, self.r, dx))
        sums = {}                                                   # of xhat dy and of dy, for the block that starts at i

        def block(i, j):
            dy_, xhat_, g = dy[i:j], xhat[i:j], out[i:j]
            ones = np.ones(j - i, dy.dtype)
            t = empty(g.shape, dy.dtype)
            np.multiply(dy_, xhat_, out=t)
            sums[i] = ones @ t, ones @ dy_
            np.multiply(xhat_, (t @ gamma)[:, None] / C, out=t)     # xhat <g xhat>
            t += (dy_ @ gamma)[:, None] / C                         # <g>
            np.multiply(dy_, gamma, out=g)
            g -= t
            g *= r[i:j]

        in_blocks(block, len(dy), step, products=True)
        dgamma, dbeta = np.sum([sums[i] for i in sorted(sums)], axis=0)
        return dx, dgamma, dbeta
