"""Twins of the ops that are a layer each, spelled out in sums, products and exponentials.

Called as the op's forward is. What the ops subtract against overflow (the largest score) is left out: it cancels.
"""
import math

import numpy as np

from minitx import ops
from minitx.backend import like


def _softmax(x, *, axis, mask):
    axis = axis if x.ndim else None                         # a single number is a row by itself
    seen = np.broadcast_to(True if mask is None else mask, x.shape)
    e = ops.exp(x) * like(seen, x)
    total = ops.sum(e, axis=axis, keepdims=True)
    return e / (total + (total.data == 0) * 1.0)            # a row that sees nothing is 0 / 1


def _log_softmax(x, *, axis):
    axis = axis if x.ndim else None
    return x - ops.log(ops.sum(ops.exp(x), axis=axis, keepdims=True))


def _layer_norm(x, weight, bias, *, eps):
    centred = x - ops.mean(x, axis=-1, keepdims=True)
    y = centred / ops.sqrt(ops.mean(centred * centred, axis=-1, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _rms_norm(x, weight, *, eps):
    y = x / ops.sqrt(ops.mean(x * x, axis=-1, keepdims=True) + eps)
    return y if weight is None else y * weight


def _attention(q, k, v, bias, *, mask, is_causal, scale, keep, dropout_p, return_weights):
    T, S, K = q.shape[-2], k.shape[-2], q.shape[-1]
    scores = ops.matmul(q, ops.swapaxes(k, -1, -2)) * (1 / math.sqrt(K) if scale is None else scale)
    scores = scores if bias is None else scores + bias
    seen = np.ones((T, S), bool)
    if is_causal:                                           # the last query sees all keys, the one before one less
        seen = np.array([[s < S - (T - 1 - t) for s in range(S)] for t in range(T)])
    if mask is not None:
        mask = np.expand_dims(mask, 1) if mask.ndim == 3 and len(scores.shape) == 4 else mask
        seen = np.logical_and(seen, mask)
    weights = _softmax(scores, axis=-1, mask=seen)
    used = weights if keep is None else weights * like(keep, q) / (1 - dropout_p)
    out = ops.matmul(used, v)
    return (out, weights) if return_weights else out


def _rope(x, *, positions, base, interleaved, frequencies=None):
    """Pairs as a new axis of two, times the 2 x 2 matrix that turns them."""
    K = x.shape[-1]
    positions = positions if positions.ndim < 2 else np.expand_dims(positions, tuple(range(1, x.ndim - 2)))
    angle = positions[..., None] * (1 / base ** (2 * np.arange(K // 2) / K) if frequencies is None else frequencies)
    turn = np.stack([np.stack([np.cos(angle), -np.sin(angle)], axis=-1),
                     np.stack([np.sin(angle), np.cos(angle)], axis=-1)], axis=-2)               # (..., T, K/2, 2, 2)
    pairs = ops.reshape(x, x.shape[:-1] + ((K // 2, 2) if interleaved else (2, K // 2)))
    pairs = pairs if interleaved else ops.swapaxes(pairs, -1, -2)                               # (..., T, K/2, 2)
    turned = ops.matmul(like(turn, x), pairs[..., None])[..., 0]
    return ops.reshape(turned if interleaved else ops.swapaxes(turned, -1, -2), x.shape)


def _dropout(x, residual, *, keep, p):
    y = x * like(keep / (1 - p) if p < 1 else keep * 0.0, x)
    return y if residual is None else y + residual


def _embedding(weight, *, ids, padding_idx=None):
    """Every id as a row of zeros with a single one, times the table."""
    rows = like(np.eye(len(weight))[ids.ravel()], weight)
    if padding_idx is not None:
        kept = like(np.arange(len(weight))[:, None] != padding_idx, weight)
        weight = weight * kept + weight.data * ~kept        # the padding row as a constant
    return ops.reshape(ops.matmul(rows, weight), ids.shape + weight.shape[1:])


def _cross_entropy(logits, *, targets, ignore_index, label_smoothing, reduction):
    """The cross entropy of two distributions: the smoothed targets, with no mass in ignored rows, and the softmax."""
    V = logits.shape[-1]
    counted = targets != ignore_index
    onehot = np.eye(V)[np.where(counted, targets, 0)]
    wanted = ((1 - label_smoothing) * onehot + label_smoothing / max(V, 1)) * counted[..., None]
    losses = -ops.sum(like(wanted, logits) * _log_softmax(logits, axis=-1), axis=-1)
    if reduction == "none":
        return losses
    return ops.sum(losses) / (max(float(counted.sum()), 1.0) if reduction == "mean" else 1.0)


def _patchify(images, *, patch):
    """Patch after patch cut out, flattened, and stacked."""
    height, width = patch
    rows, columns = range(0, images.shape[2], height), range(0, images.shape[3], width)
    patches = [images[:, :, i:i + height, j:j + width] for i in rows for j in columns]
    return ops.stack([ops.reshape(p, len(images), -1) for p in patches], axis=1)


LAYERS = {
    "softmax": _softmax, "log_softmax": _log_softmax, "layer_norm": _layer_norm, "rms_norm": _rms_norm,
    "scaled_dot_product_attention": _attention, "rope": _rope, "dropout": _dropout, "embedding": _embedding,
    "cross_entropy": _cross_entropy, "patchify": _patchify,
}
