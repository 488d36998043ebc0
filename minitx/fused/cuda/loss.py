"""Cross entropy: one launch for a loss a row, one for their mean, one for the gradient."""
from minitx import backend
from minitx.backend import LONG, xp_of
from minitx.fused import cuda_twin
from minitx.fused.cuda import kernels
from minitx.ops.loss import CrossEntropy


@cuda_twin
class CudaCrossEntropy(CrossEntropy):
    """Keeps two numbers a row, from which backward makes p again, and no array of the logits' size. How many targets
    are counted is known on the GPU alone.

    saved         x (..., V)   targets (...)   top (N,)   total (N,)   n (), but with reduction "none"
    """

    @staticmethod
    def fits(logits, *, targets, ignore_index=-100, label_smoothing=0.0, reduction="mean"):
        return kernels.ready(logits) and logits.ndim > 0 and logits.size > 0

    def forward(self, logits, *, targets, ignore_index=-100, label_smoothing=0.0, reduction="mean"):
        xp, V, dtype = xp_of(logits), logits.shape[-1], logits.dtype
        targets = backend.beside(targets, logits)
        if targets.shape != logits.shape[:-1]:
            raise ValueError(f"logits (..., V) need targets (...); targets have shape {targets.shape}")
        backend.check_index(targets, V, targets != ignore_index)            # on the host, if they come from there
        targets = backend.like(targets.astype(LONG, copy=False), logits)
        self.x, self.targets = xp.ascontiguousarray(logits), xp.ascontiguousarray(targets)
        self.ignored, self.smoothing, N = int(ignore_index), float(label_smoothing), targets.size
        loss, self.top, self.total = (xp.empty(N, dtype) for _ in range(3))
        kernels.by_row("loss", "loss_forward", N, V, self.x, self.targets, loss, self.top, self.total, V,
                       self.ignored, self.smoothing, dtype=dtype)
        self.n = None
        if reduction == "none":
            return loss.reshape(targets.shape)
        y, self.n = xp.empty((), dtype), xp.empty((), dtype)
        kernels.launch("loss", "loss_sum", (1,), (1024,), loss, self.targets, y, self.n, N, self.ignored,
                       reduction == "mean", dtype=dtype)
        return y

    def backward(self, dy):
        xp, V, dtype = xp_of(dy), self.x.shape[-1], self.x.dtype
        dy, dx = xp.ascontiguousarray(dy), xp.empty(self.x.shape, dtype)
        kernels.by_row("loss", "loss_backward", self.targets.size, V, self.x, self.targets, self.top, self.total, dy,
                       self.n, dx, V, self.ignored, int(self.n is None), self.smoothing, dtype=dtype)
        return dx,
