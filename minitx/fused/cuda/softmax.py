"""Softmax along the last axis, a block of threads a row."""
from minitx import backend
from minitx.backend import xp_of
from minitx.fused import cuda_twin
from minitx.fused.cuda import kernels
from minitx.ops.softmax import Softmax


@cuda_twin
class CudaSoftmax(Softmax):
    """One launch each way, the mask as it is, however it broadcasts. Saves the same names as the plain op."""

    @staticmethod
    def fits(x, *, axis=-1, mask=None):
        return kernels.ready(x) and 0 < x.ndim <= 5 and axis in (-1, x.ndim - 1)

    def forward(self, x, *, axis=-1, mask=None):
        xp, N = xp_of(x), x.shape[-1]
        self.axis, at = -1, kernels.view(x, x.shape)
        if mask is not None:
            mask = backend.follow(mask, x)
            at = kernels.view(mask, x.shape, "mask")
        x, self.y = xp.ascontiguousarray(x), xp.empty(x.shape, x.dtype)
        kernels.by_row("softmax", "softmax_forward", x.size // max(N, 1), N, x, mask, self.y, N, at, dtype=x.dtype)
        return self.y

    def backward(self, dy):
        xp, N = xp_of(dy), dy.shape[-1]
        dy, y, dx = xp.ascontiguousarray(dy), xp.ascontiguousarray(self.y), xp.empty(dy.shape, dy.dtype)
        kernels.by_row("softmax", "softmax_backward", dy.size // max(N, 1), N, dy, y, dx, N, dtype=dy.dtype)
        return dx,
