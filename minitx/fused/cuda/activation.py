"""GELU, with its bias, one launch each way."""
from minitx.backend import xp_of
from minitx.fused import cuda_twin
from minitx.fused.cuda import kernels
from minitx.ops.activation import GELU
from minitx.ops.linear import sum_of_rows


@cuda_twin
class CudaGELU(GELU):
    """Backward makes x + bias and g again: two arrays less to keep, to write and to read. Only the bias's gradient is a
    product more.

    saved         x (..., C)   bias (C,)
    """

    @staticmethod
    def fits(x, bias, *, approximate="none"):
        return kernels.ready(x) and (bias is None or kernels.ready(x, bias) and x.ndim > 0 and bias.shape == x.shape[-1:])

    def forward(self, x, bias, *, approximate="none"):
        xp = xp_of(x)
        self.x, self.bias = xp.ascontiguousarray(x), None if bias is None else xp.ascontiguousarray(bias)
        self.closed = approximate == "tanh"
        y = xp.empty(x.shape, x.dtype)
        self.launch("gelu_forward", y)
        return y

    def backward(self, dy):
        xp = xp_of(dy)
        dx = xp.empty(dy.shape, dy.dtype)
        self.launch("gelu_backward", xp.ascontiguousarray(dy), dx)
        return dx, sum_of_rows(dx) if self.needs[1] else None

    def launch(self, name, *arrays):
        n, width = self.x.size, kernels.THREADS if self.bias is None else max(self.bias.size, 1)
        kernels.by_row("activation", name, -(-n // width), width, self.x, self.bias, *arrays, n, width, self.closed,
                       dtype=self.x.dtype)
