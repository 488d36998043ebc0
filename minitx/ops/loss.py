"""Cross entropy, one op."""
from minitx import backend
from minitx.autograd import Op
from minitx.backend import quiet, xp_of
from minitx.ops.extrema import finite_or_zero


class CrossEntropy(Op):
    r"""How surprised the model is by the right answer.

        logits (..., V)   targets (...) integers   ->   y () or, with reduction "none", (...)

    forward       p = softmax(x)
                  loss = -(1 - a) ln p[target] - a <ln p>       a = label_smoothing, <.> = mean over V
                                                                finite for finite logits, however far apart
                  y = sum of losses / n                         n = how many targets are not ignore_index
    backward      dx = (p - (1 - a) onehot(target) - a / V) dy / n      0 for an ignored row
    saved         p (N, V)   targets (N,)   counted (N,) bool

    twin          minitx/fused/cpu/loss.py   minitx/fused/cuda/loss.py and .cu
    """
    name = "cross_entropy"
    promotion, wide_result = "float", True

    def forward(self, logits, *, targets, ignore_index=-100, label_smoothing=0.0, reduction="mean"):
        xp = xp_of(logits)
        targets = backend.beside(targets, logits)
        if logits.ndim == 0 or targets.shape != logits.shape[:-1]:
            raise ValueError(f"logits (..., V) need targets (...); targets have shape {targets.shape}")
        V = logits.shape[-1]
        self.shape, self.smoothing, self.reduction = logits.shape, label_smoothing, reduction
        x, targets = logits.reshape(targets.size, V), targets.ravel()
        counted = targets != ignore_index                               # on the host, if the targets come from there
        backend.check_index(targets, V, counted)
        self.n = xp_of(counted).maximum(counted.sum(), 1).astype(x.dtype) if reduction == "mean" else 1
        targets = backend.like(targets, x)
        self.counted = targets != ignore_index
        self.targets = xp.where(self.counted, targets, 0)
        if not x.size:
            self.p = x.copy()
            return xp.zeros(self.shape[:-1] if reduction == "none" else (), x.dtype)
        with quiet(x):
            self.p = x - finite_or_zero(x.max(axis=-1, keepdims=True))  # (N, V)  centred, becoming p
        rows = xp.arange(len(x)), self.targets
        right = representable(self.p[rows], x[rows])
        mean = (representable(self.p, x) / V).sum(axis=-1) if label_smoothing else 0
        with quiet(x):
            xp.exp(self.p, out=self.p)
        total = self.p.sum(axis=-1)
        self.p /= total[:, None]
        loss = xp.log(total) - (1 - label_smoothing) * right - label_smoothing * mean
        loss = xp.where(self.counted, loss, 0)
        if reduction == "none":
            return loss.reshape(self.shape[:-1])
        with quiet(x):
            return (loss / self.n).sum()                                # divided first: a mean of finite losses is finite

    def backward(self, dy):
        dx, a, xp = self.p, self.smoothing, xp_of(dy)
        if not dx.size:
            return dx.reshape(self.shape),
        rows = xp.arange(len(dx))
        if a:
            dx -= a / dx.shape[-1]
        dx[rows, self.targets] -= 1 - a
        dy = dy.reshape(-1) if self.reduction == "none" else dy
        dx *= xp.broadcast_to(dy / self.n, rows.shape)[:, None]
        xp.copyto(dx, 0, where=~self.counted[:, None])
        return dx.reshape(self.shape),


def representable(c, x):
    """c = x - max x, but where a finite x ran over to -inf the lowest finite number: finite logits, finite loss."""
    xp, inf = xp_of(x), float("inf")
    return xp.maximum(c, xp.where(x == -inf, -inf, xp.finfo(x.dtype).min).astype(x.dtype))


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
    if not hasattr(ignore_index, "__index__"):
        raise TypeError(f"cross_entropy: ignore_index is a whole number, got {ignore_index!r}")
    label_smoothing = float(label_smoothing)
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"cross_entropy: label_smoothing lies between 0 and 1, got {label_smoothing}")
    return CrossEntropy.apply(logits, targets=targets, ignore_index=ignore_index, label_smoothing=label_smoothing,
                              reduction=reduction)
