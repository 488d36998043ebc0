"""The classic faults of handwritten layers, each by name: what people really get wrong.

Every one is an op with one half or setting replaced. ``python -m minitx check --mutations`` lists who catches each.
Where forward is wrong and backward follows it, as with a wrong scale, no finite difference can tell: only a value from
outside.
"""
import math
from typing import Any, NamedTuple

import numpy as np

from minitx.backend import like
from minitx.ops.arithmetic import Add, Mul
from minitx.ops.attention import Attention
from minitx.ops.linear import Linear, Matmul
from minitx.ops.loss import CrossEntropy
from minitx.ops.norm import LayerNorm, RMSNorm
from minitx.ops.softmax import Softmax


class Classic(NamedTuple):
    """A fault with a name: the op, the half that it lies in, and the class that has it."""
    title: str
    op: str
    half: str
    cls: Any

    def __str__(self):
        return f"{self.op}: {self.title}"

    def classes(self):
        """name -> op class with the fault inside, as of a planted Fault."""
        return {self.op: self.cls}


def _fault(title, cls, **members):
    half = "forward" if "forward" in members else "backward"
    return Classic(title, cls.name, half, type(cls.__name__, (cls,), {"name": cls.name, **members}))


def _softmax_without_dot(op, dy):
    return dy * op.y,


def _softmax_with_mean(op, dy):
    return op.y * (dy - (dy * op.y).sum(axis=op.axis, keepdims=True) / max(dy.shape[op.axis], 1)),


def _softmax_without_mask(op, x, *, axis=-1, mask=None):
    return Softmax.forward(op, x, axis=axis)


def _layer_norm_backward(op, dy, mean=True, projection=True, gamma=True):
    """Layer norm's backward with one of its parts left out."""
    g = dy * (1 if op.gamma is None or not gamma else op.gamma)
    dx = g - g.mean(axis=-1, keepdims=True) if mean else g.copy()
    if projection:
        dx -= op.xhat * (g * op.xhat).mean(axis=-1, keepdims=True)
    return op.r * dx, *LayerNorm.backward(op, dy)[1:]


def _layer_norm_forward(op, x, gamma, beta, eps, deviation):
    op.gamma, op.r = gamma, 1 / deviation(x - x.mean(axis=-1, keepdims=True), eps)
    op.xhat = (x - x.mean(axis=-1, keepdims=True)) * op.r
    y = op.xhat if gamma is None else op.xhat * gamma
    return y * 1 if beta is None else y + beta


def _eps_outside(op, x, gamma, beta, *, eps=1e-5):
    return _layer_norm_forward(op, x, gamma, beta, eps, lambda c, eps: (
        (c * c).mean(axis=-1, keepdims=True) ** 0.5 + eps))


def _unbiased(op, x, gamma, beta, *, eps=1e-5):
    return _layer_norm_forward(op, x, gamma, beta, eps, lambda c, eps: (
        ((c * c).sum(axis=-1, keepdims=True) / max(c.shape[-1] - 1, 1) + eps) ** 0.5))


def _rms_with_mean(op, x, gamma, *, eps=1e-6):
    return RMSNorm.forward(op, x - x.mean(axis=-1, keepdims=True), gamma, eps=eps)


def _rms_without_projection(op, dy):
    return dy * op.r * (1 if op.gamma is None else op.gamma), RMSNorm.backward(op, dy)[1]


def _unscaled(op, q, k, v, bias=None, **options):
    return Attention.forward(op, q, k, v, bias, **{**options, "scale": 1.0})


def _scaled_by_model_width(op, q, k, v, bias=None, **options):
    heads = q.shape[-3] if q.ndim > 2 else 1
    scale = options.get("scale") or 1 / math.sqrt(heads * q.shape[-1])
    return Attention.forward(op, q, k, v, bias, **{**options, "scale": scale})


def _mask_ignored(op, q, k, v, bias=None, **options):
    return Attention.forward(op, q, k, v, bias, **{**options, "mask": None})


def _mask_inverted(op, q, k, v, bias=None, **options):
    mask = options.get("mask")
    return Attention.forward(op, q, k, v, bias, **{**options, "mask": None if mask is None else ~mask})


def _causal(op, q, k, v, bias, options, last):
    """Attention whose causal rule is: query t sees keys up to t + last."""
    if options.get("is_causal"):
        T, S = q.shape[-2], k.shape[-2]
        rule = like(np.arange(S) <= np.arange(T)[:, None] + last(T, S), q)
        mask = options.get("mask")
        if mask is not None and mask.ndim == 3 and q.ndim == 4:
            mask = mask[:, None]
        options = {**options, "is_causal": False, "mask": rule if mask is None else rule & mask}
    return Attention.forward(op, q, k, v, bias, **options)


def _sees_next_key(op, q, k, v, bias=None, **options):
    return _causal(op, q, k, v, bias, options, lambda T, S: S - T + 1)


def _aligned_top_left(op, q, k, v, bias=None, **options):
    return _causal(op, q, k, v, bias, options, lambda T, S: 0)


def _smoothing_ignored(op, logits, **options):
    return CrossEntropy.forward(op, logits, **{**options, "label_smoothing": 0.0})


def _divided_by_all(op, dy):
    counted = op.counted.sum()
    return CrossEntropy.backward(op, dy * max(counted, 1) / max(op.counted.size, 1) if op.reduction == "mean" else dy)


def _doubled(cls):
    return lambda op, *dy: tuple(g if g is None else 2 * g for g in cls.backward(op, *dy))


def _zero(cls):
    return lambda op, *dy: tuple(g if g is None else 0 * g for g in cls.backward(op, *dy))


def _swapped(cls):
    return lambda op, *dy: cls.backward(op, *dy)[::-1]


CLASSIC = [
    _fault("the dot product dropped from softmax's backward", Softmax, backward=_softmax_without_dot),
    _fault("a mean in place of softmax's dot product", Softmax, backward=_softmax_with_mean),
    _fault("softmax's gradient all zero", Softmax, backward=_zero(Softmax)),
    _fault("softmax's gradient doubled", Softmax, backward=_doubled(Softmax)),
    _fault("softmax's mask ignored", Softmax, forward=_softmax_without_mask),
    _fault("the mean term dropped from layer norm's backward", LayerNorm,
           backward=lambda op, dy: _layer_norm_backward(op, dy, mean=False)),
    _fault("the projection term dropped from layer norm's backward", LayerNorm,
           backward=lambda op, dy: _layer_norm_backward(op, dy, projection=False)),
    _fault("gamma forgotten in layer norm's backward", LayerNorm,
           backward=lambda op, dy: _layer_norm_backward(op, dy, gamma=False)),
    _fault("layer norm's eps outside the root", LayerNorm, forward=_eps_outside),
    _fault("layer norm's variance unbiased", LayerNorm, forward=_unbiased),
    _fault("RMS norm subtracts the mean", RMSNorm, forward=_rms_with_mean),
    _fault("the projection term dropped from RMS norm's backward", RMSNorm, backward=_rms_without_projection),
    _fault("1/sqrt(K) missing", Attention, forward=_unscaled),
    _fault("sqrt(d_model) in place of sqrt(d_k)", Attention, forward=_scaled_by_model_width),
    _fault("attention's mask ignored", Attention, forward=_mask_ignored),
    _fault("attention's mask inverted", Attention, forward=_mask_inverted),
    _fault("the causal mask off by one: a query sees the next key", Attention, forward=_sees_next_key),
    _fault("the causal mask aligned top-left", Attention, forward=_aligned_top_left),
    _fault("label smoothing ignored", CrossEntropy, forward=_smoothing_ignored),
    _fault("cross entropy's gradient divided by ignored rows too", CrossEntropy, backward=_divided_by_all),
    _fault("an unsummed broadcast in add", Add, broadcasts=False),
    _fault("an unsummed broadcast in mul", Mul, broadcasts=False),
    _fault("the gradients of mul swapped", Mul, backward=_swapped(Mul)),
    _fault("the gradients of matmul swapped", Matmul, backward=_swapped(Matmul)),
    _fault("linear's gradients doubled", Linear, backward=_doubled(Linear)),
    _fault("linear's gradients zero", Linear, backward=_zero(Linear)),
]
