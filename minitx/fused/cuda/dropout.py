"""Dropout, one launch each way."""
from minitx import backend
from minitx.backend import xp_of
from minitx.fused import cuda_twin
from minitx.fused.cuda import kernels
from minitx.ops.dropout import Dropout, gain_of


@cuda_twin
class CudaDropout(Dropout):
    """The mask and its gain in one go, without an array between. Saves the same names as the plain op."""

    @staticmethod
    def fits(x, *, keep, p):
        return kernels.ready(x) and getattr(keep, "shape", None) == x.shape and keep.dtype == bool

    def forward(self, x, *, keep, p):
        self.keep, self.gain = backend.follow(keep, x), gain_of(p)
        return self.dropped(x)

    def backward(self, dy):
        return self.dropped(dy),

    def dropped(self, x):
        xp = xp_of(x)
        x, keep, y = xp.ascontiguousarray(x), xp.ascontiguousarray(self.keep), xp.empty(x.shape, x.dtype)
        kernels.by_element("dropout", "dropout", x.size, x, keep, y, x.size, float(self.gain), dtype=x.dtype)
        return y
