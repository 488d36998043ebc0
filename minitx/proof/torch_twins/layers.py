"""The layers in PyTorch: its own function where it has one, else written in its primitives."""
import math


def twins():
    """Name of an op -> the same in PyTorch."""
    import torch
    from torch.nn import functional as F

    def softmax(x, *, axis, mask):
        seen = x.detach() > -math.inf
        seen = seen if mask is None else seen & torch.tensor(mask)
        some = seen.any(axis, keepdim=True)                     # rows with nothing: softmax of zeros, then wiped out
        return torch.softmax(x.masked_fill(~seen & some, -math.inf).masked_fill(~some, 0.0), axis) * some

    def log_softmax(x, *, axis):
        return torch.log_softmax(x, axis)

    def layer_norm(x, weight, bias, *, eps):
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps)

    def rms_norm(x, weight, *, eps):
        return F.rms_norm(x, x.shape[-1:], weight, eps)

    def attention(q, k, v, bias, *, mask, is_causal, scale, keep, dropout_p, return_weights):
        T, S = q.shape[-2], k.shape[-2]
        scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
        scores = scores if bias is None else scores + bias
        seen = torch.ones(T, S, dtype=torch.bool)
        if is_causal:
            seen = seen.tril(S - T)
        if mask is not None:
            seen = seen & torch.tensor(mask[:, None] if mask.ndim == 3 and scores.ndim == 4 else mask)
        some = seen.any(-1, keepdim=True)                       # rows with nothing: softmax of zeros, then wiped out
        weights = torch.softmax(scores.masked_fill(~seen & some, -math.inf), -1) * some
        used = weights if keep is None else weights * torch.tensor(keep) / (1 - dropout_p)
        return (used @ v, weights) if return_weights else used @ v

    def rope(x, *, positions, base, interleaved, frequencies=None):
        """Pairs as complex numbers, multiplied by e^(i angle)."""
        K = x.shape[-1]
        positions = torch.tensor(positions)
        positions = positions.reshape(*positions.shape[:-1], *(1,) * (x.ndim - 3), -1) if positions.ndim == 2 else positions
        steps = [base ** (-2 * i / K) for i in range(K // 2)] if frequencies is None else frequencies
        angle = positions[..., None] * torch.tensor(steps, dtype=x.dtype)
        real, imaginary = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
        turned = torch.complex(real, imaginary) * torch.polar(torch.ones_like(angle), angle)
        pair = (turned.real, turned.imag)
        return torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)

    def dropout(x, residual, *, keep, p):
        y = x * torch.tensor(keep) * (1 / (1 - p) if p < 1 else 0.0)
        return y if residual is None else y + residual

    def embedding(weight, *, ids, padding_idx=None):
        return F.embedding(torch.tensor(ids), weight, padding_idx)

    def cross_entropy(logits, *, targets, ignore_index, label_smoothing, reduction):
        """PyTorch smooths an ignored row's divisor as we do; its mean of no rows is NaN, ours 0."""
        targets = torch.tensor(targets)
        if reduction == "mean" and not (targets != ignore_index).any():
            return (logits * 0).sum()
        losses = F.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), ignore_index=ignore_index,
            label_smoothing=label_smoothing, reduction=reduction)
        return losses.reshape(targets.shape) if reduction == "none" else losses

    def patchify(images, *, patch):
        return F.unfold(images, patch, stride=patch).transpose(1, 2)

    return {
        "softmax": softmax, "log_softmax": log_softmax, "layer_norm": layer_norm, "rms_norm": rms_norm,
        "scaled_dot_product_attention": attention, "rope": rope, "dropout": dropout, "embedding": embedding,
        "cross_entropy": cross_entropy, "patchify": patchify,
    }
