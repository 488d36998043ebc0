"""GELU, one launch each way."""
from minitx.backend import xp_of
from minitx.fused import cuda_twin
from minitx.fused.cuda import kernels
from minitx.ops.activation import GELU


@cuda_twin
class CudaGELU(GELU):
    """Backward makes g again from x: one array less to keep, to write and to read.

    saved         x (...)
    """

    @staticmethod
    def fits(x, *, approximate="none"):
        return kernels.ready(x)

    def forward(self, x, *, approximate="none"):
        xp = xp_of(x)
        self.x, self.closed = xp.ascontiguousarray(x), approximate == "tanh"
        y = xp.empty(x.shape, x.dtype)
        kernels.by_element("activation", "gelu_forward", x.size, self.x, y, x.size, self.closed, dtype=x.dtype)
        return y

    def backward(self, dy):
        xp = xp_of(dy)
        dy, dx = xp.ascontiguousarray(dy), xp.empty(dy.shape, dy.dtype)
        kernels.by_element("activation", "gelu_backward", dy.size, self.x, dy, dx, dy.size, self.closed,
                           dtype=dy.dtype)
        return dx,
