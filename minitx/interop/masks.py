"""PyTorch's masks as ours."""
import numpy as np

from minitx.interop.conversion import array_of


def mask_from_torch(attn_mask=None, key_padding_mask=None, num_heads=None):
    """PyTorch's masks as ours, where True means may attend: a dict, to be handed on as block(x, **masks).

        attn_mask (T, S) or (B num_heads, T, S)   key_padding_mask (B, S)   ->   {"mask": bool, "bias": float}

    A bool mask is inverted. In a float mask -inf blocks, and what is left is the bias, which is added to the scores;
    so a float mask of 0 and -inf alone becomes a bool mask. Of two masks both hold, and biases add up.

    mask        (T, S), (B, 1, S), (B, T, S) or (B, H, T, S); in the dict where a mask was bool or blocks something
    bias        (T, S), (B, 1, 1, S), (B, 1, T, S) or (B, H, T, S); in the dict where it is not 0 throughout
    num_heads   needed for an attn_mask of three axes

    is_causal differs: in PyTorch it is a hint that attn_mask is the causal mask, and may be taken instead of it; here
    it is a rule of its own, beside the mask. So is_causal=True and what this makes of the causal attn_mask say the
    same, alone or together. A query that may see nothing gets NaN or 0 in PyTorch, 0 here. A DecoderBlock's attention
    over memory takes no bias, but memory_mask=masks["mask"].

    ValueError for three axes without num_heads, or num_heads that do not divide the first; TypeError for integers.
    """
    parts = []
    if attn_mask is not None:
        attn_mask = array_of(attn_mask)
        if attn_mask.ndim == 3:
            if not num_heads or len(attn_mask) % num_heads:
                raise ValueError(f"mask_from_torch: attn_mask {attn_mask.shape} is (B num_heads, T, S): num_heads "
                                 f"must divide {len(attn_mask)}, got {num_heads}")
            attn_mask = attn_mask.reshape(len(attn_mask) // num_heads, num_heads, *attn_mask.shape[1:])
        parts.append(attn_mask)
    if key_padding_mask is not None:
        parts.append(array_of(key_padding_mask)[..., None, None, :])                        # (B, 1, 1, S)

    masks, biases = [], []
    for part in parts:
        if part.dtype.kind not in "bf":
            raise TypeError(f"mask_from_torch: masks are bool or float, got {part.dtype}")
        blocked = part if part.dtype == bool else part == -np.inf
        if part.dtype == bool or blocked.any():
            masks.append(~blocked)
        if part.dtype != bool and part[~blocked].any():
            biases.append(np.where(blocked, part.dtype.type(0), part))

    found = {}
    if masks:
        mask = masks[0] & masks[-1]
        found["mask"] = mask[:, 0] if mask.ndim == 4 and mask.shape[1] == 1 else mask
    if biases:
        found["bias"] = sum(biases)
    return found
