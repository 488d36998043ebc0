"""Cross entropy that makes its gradient while it is reading the logits, and no other array of their size."""
import math

import numpy as np

from minitx import backend
from minitx.backend import quiet
from minitx.fused import twin
from minitx.fused.cpu.threads import BLOCK, in_blocks
from minitx.memory import empty
from minitx.ops.loss import CrossEntropy


@twin
class FusedCrossEntropy(CrossEntropy):
    """Forward keeps dx for dy = 1, which backward scales in place; where no gradient is wanted, nothing of that size.

    saved         dx (..., V), with a gradient to come   ignored (...) bool, where there are such rows
    """

    @staticmethod
    def fits(logits, *, targets, ignore_index=-100, label_smoothing=0.0, reduction="mean"):
        return type(logits) is np.ndarray and logits.ndim > 0 and logits.size > 0 and not label_smoothing

    def forward(self, logits, *, targets, ignore_index=-100, label_smoothing=0.0, reduction="mean"):
        targets = backend.follow(targets, logits)
        if targets.shape != logits.shape[:-1]:
            raise ValueError(f"logits (..., V) need targets (...); targets have shape {targets.shape}")
        V = logits.shape[-1]
        self.reduction = reduction
        x, targets = logits.reshape(-1, V), targets.ravel()
        counted = targets != ignore_index
        n = int(np.count_nonzero(counted))
        ignored = n < len(targets)
        self.ignored = ~counted.reshape(logits.shape[:-1]) if ignored else None
        backend.check_index(targets[counted] if ignored else targets, V)
        targets = np.where(counted, targets, 0) if ignored else targets
        n = max(n, 1) if reduction == "mean" else 1
        chosen = targets.astype(np.intp) + np.arange(0, x.size, V)          # where each row's target stands
        loss = np.empty(len(x), x.dtype)
        self.dx = empty(logits.shape, x.dtype) if self.needs[0] else None
        dx = None if self.dx is None else self.dx.reshape(-1, V)
        ones = np.ones(V, x.dtype)

        def block(i, j):
            into = empty((j - i, V), x.dtype) if dx is None else dx[i:j]
            flat, right = into.reshape(-1), chosen[i:j] - i * V
            np.subtract(x[i:j], np.maximum.reduce(x[i:j], axis=-1, keepdims=True), out=into)
            loss_ = np.negative(flat[right], out=loss[i:j])
            np.exp(into, out=into)
            total = into @ ones
            loss_ += np.log(total)
            if not math.isfinite(np.add.reduce(loss_)):     # infinities, or finite logits too far apart for a difference
                op = CrossEntropy()
                loss_[:] = op.forward(x[i:j], targets=targets[i:j], reduction="none")
                into[:], total[:] = op.p, 1
            if dx is not None:
                total *= n
                into /= total[:, None]
                flat[right] -= 1 / n
                if ignored:
                    into[~counted[i:j]] = 0

        with quiet(x):
            in_blocks(block, len(x), max(1, BLOCK // V), products=True)
            if ignored:
                loss[~counted] = 0
            return loss.reshape(logits.shape[:-1]) if reduction == "none" else np.add.reduce(loss / n)

    def backward(self, dy):
        dx = vars(self).pop("dx")                           # given away whole: a leaf need not copy it
        with quiet(dx):
            if self.reduction == "none":
                dx *= dy[..., None]
            elif dy != 1:
                dx *= dy
        if self.ignored is not None:
            dx[self.ignored] = 0
        return dx,
