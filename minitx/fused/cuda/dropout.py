"""Dropout, one launch each way."""
from minitx import backend
from minitx.backend import xp_of
from minitx.fused import cuda_twin
from minitx.fused.cuda import kernels
from minitx.ops.dropout import Dropout, gain_of


@cuda_twin
class CudaDropout(Dropout):
    """The mask, its gain and the residual in one go, without an array between. Saves the same names as the plain op."""

    @staticmethod
    def fits(x, residual, *, keep, p):
        return (kernels.ready(x) and (residual is None or kernels.ready(x, residual) and residual.shape == x.shape)
                and getattr(keep, "shape", None) == x.shape and keep.dtype == bool)

    def forward(self, x, residual, *, keep, p):
        self.keep, self.gain = backend.follow(keep, x), gain_of(p)
        return self.dropped(x, residual)

    def backward(self, dy):
        return self.dropped(dy) if self.needs[0] else None, dy

    def dropped(self, x, residual=None):
        xp = xp_of(x)
        x, keep, y = xp.ascontiguousarray(x), xp.ascontiguousarray(self.keep), xp.empty(x.shape, x.dtype)
        residual = None if residual is None else xp.ascontiguousarray(residual)
        kernels.by_element("dropout", "dropout", x.size, x, residual, keep, y, x.size, float(self.gain), dtype=x.dtype)
        return y
