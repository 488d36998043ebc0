"""Masks: bool arrays on the host, True = may attend, combined with &."""
import numpy as np

from minitx.tensor import as_numpy


def causal_mask(n, n_keys=None):
    """No query sees what comes after it: (n, n_keys) bool, n_keys = n if left out.

    The last query stands at the last key (bottom right), so with fewer queries than keys the earlier keys are the past.
    """
    n_keys = n if n_keys is None else n_keys
    return np.tri(n, n_keys, n_keys - n, dtype=bool)


def padding_mask(lengths, n):
    """Every query sees the first lengths[b] of n keys: (B, 1, n) bool.

    lengths (B,) integers from 0 to n: TypeError or ValueError otherwise.
    """
    lengths = as_numpy(lengths)
    if lengths.dtype.kind not in "iu":
        raise TypeError(f"padding_mask: lengths must be integers, got {lengths.dtype}")
    if lengths.ndim != 1 or lengths.size and not 0 <= lengths.min() <= lengths.max() <= n:
        raise ValueError(f"padding_mask: lengths must be (B,), each from 0 to {n}; got {lengths.tolist()}")
    return np.arange(n) < lengths[:, None, None]


def mask_from_tokenizer(attention_mask, shape, name="attention_mask"):
    """What a tokenizer gives, (B, S) of 1 for a token and 0 for padding, as a mask (B, 1, S) of bool.

    shape is (B, S) of what it belongs to, name what errors call it. ValueError for another shape or other numbers,
    TypeError for floats.
    """
    attention_mask = as_numpy(attention_mask)
    if attention_mask.dtype.kind not in "iub":
        raise TypeError(f"{name} must be bool or integers 0 and 1, got {attention_mask.dtype}")
    if attention_mask.shape != shape:
        raise ValueError(f"{name} has shape {attention_mask.shape}, what it belongs to {shape}")
    if attention_mask.size and not 0 <= attention_mask.min() <= attention_mask.max() <= 1:
        raise ValueError(f"{name} must hold 1 for a token and 0 for padding, nothing else")
    return attention_mask.astype(bool)[:, None]
