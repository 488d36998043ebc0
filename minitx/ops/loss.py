"""Cross entropy, one op."""
from minitx import backend
from minitx.autograd import Op
from minitx.backend import quiet, xp_of


class CrossEntropy(Op):
    r"""How surprised the model is by the right answer.

        logits (..., V)   targets (...) integers   ->   y () or, with reduction "none", (...)

    forward       p = softmax(x)
                  loss = -(1 - a) ln p[target] - a <ln p>       a = label_smoothing, <.> = mean over V
                  y = sum of losses / n                         n = how many targets are not ignore_index
    backward      dx = (p - (1 - a) onehot(target) - a / V) dy / n      0 for an ignored row
    saved         p (N, V)   targets (N,)   counted (N,) bool
    """
    name = "cross_entropy"
    promotion, wide_result = "float", True

    def forward(self, logits, *, targets, ignore_index=-100, label_smoothing=0.0, reduction="mean"):
        xp = xp_of(logits)
        targets = backend.follow(targets, logits)
        if logits.ndim == 0 or targets.shape != logits.shape[:-1]:
            raise ValueError(f"logits (..., V) need targets (...); targets have shape {targets.shape}")
        V = logits.shape[-1]
        self.shape, self.smoothing, self.reduction = logits.shape, label_smoothing, reduction
        x, targets = logits.reshape(targets.size, V), targets.ravel()
        self.counted = targets != ignore_index
        backend.check_index(targets[self.counted], V)
        self.targets = xp.where(self.counted, targets, 0)
        if not x.size:
            self.p = x.copy()
            return xp.zeros(self.shape[:-1] if reduction == "none" else (), x.dtype)
        with quiet(x):
            self.p = x - x.max(axis=-1, keepdims=True)                  # (N, V)  centred, becoming p
            mean = self.p.mean(axis=-1) if label_smoothing else 0
        rows = xp.arange(len(x)), self.targets
        lowest = xp.where(x[rows] == -float("inf"), -float("inf"), xp.finfo(x.dtype).min)
        right = xp.maximum(self.p[rows], lowest)                        # finite logits, finite loss
        xp.exp(self.p, out=self.p)
        total = self.p.sum(axis=-1)
        self.p /= total[:, None]
        loss = xp.log(total) - (1 - label_smoothing) * right - label_smoothing * mean
        loss = xp.where(self.counted, loss, 0)
        if reduction == "none":
            return loss.reshape(self.shape[:-1])
        with quiet(x):
            return (loss / self.divisor()).sum()                        # divided first: a mean of finite losses is finite

    def backward(self, dy):
        dx, a, xp = self.p, self.smoothing, xp_of(dy)
        rows = xp.arange(len(dx))
        if a:
            dx -= a / dx.shape[-1]
        dx[rows, self.targets] -= 1 - a
        dy = dy.reshape(-1) if self.reduction == "none" else dy
        dx *= xp.broadcast_to(dy / self.divisor(), rows.shape)[:, None]
        dx[~self.counted] = 0
        return dx.reshape(self.shape),

    def divisor(self):
        return max(int(self.counted.sum()), 1) if self.reduction == "mean" else 1


def cross_entropy(logits, targets, ignore_index=-100, label_smoothing=0.0, reduction="mean"):
    """-ln softmax(logits)[target], the mean over the targets. logits (..., V): the class axis is last; targets (...).

    ignore_index      rows with this target count in nothing: value, gradient, smoothing, divisor; with none left, 0
    label_smoothing   this share of the target goes to all V classes equally (Szegedy et al. 2016, section 7)
    reduction         "mean", "sum", or "none" for one loss a target

    IndexError for a target outside 0 .. V-1, TypeError for one that is no integer, ValueError where shapes do not fit or
    an option is unknown. float16 logits give a float32 loss.
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"cross_entropy: reduction is 'mean', 'sum' or 'none', not {reduction!r}")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"cross_entropy: label_smoothing lies between 0 and 1, got {label_smoothing}")
    return CrossEntropy.apply(logits, targets=targets, ignore_index=ignore_index, label_smoothing=label_smoothing,
                              reduction=reduction)
