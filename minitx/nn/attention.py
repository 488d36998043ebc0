"""Multi-head attention: several small attentions side by side, each with its own projections."""
import numpy as np

from minitx import backend, ops
from minitx.nn.layers import Dropout, Linear
from minitx.nn.module import Module
from minitx.tensor import Tensor


class MultiHeadAttention(Module):
    """Each of num_heads heads attends in its own d_k dimensions, d_model / num_heads if left out.

        query (B, T, d_model)   key (B, S, kdim)   value (B, S, vdim)   ->   (B, T, d_model)   [weights (B, H, T, S)]

    num_kv_heads   fewer heads for keys and values, each for a group of num_heads / num_kv_heads query heads (Ainslie
                   et al. 2023); 1 is multi-query attention
    attend         what mixes the values, a function with the signature of ops.scaled_dot_product_attention; a plain
                   attribute, so that a variant may replace it. Grouped heads reach it as q (B, Hkv, G, T, K), k and v
                   (B, Hkv, 1, S, K). It gets any other option of the call: bias= for the scores (H, T, S) or
                   (B, H, T, S)
    rotate         None, or what turns queries and keys by their positions, a function (x, positions) -> x as ops.rope is;
                   an attribute too: ``attention.rotate = functools.partial(ops.rope, base=...)``. Su et al. 2021,
                   "RoFormer". It needs positions= in the call, integers (n,) or (B, n), n the larger of T and S: with
                   fewer queries than keys the queries are the last ones, and the other way round
    cache          in a call, an nn.Cache of what earlier tokens left: key and value are the new tokens alone

    mask is bool, True = may attend: (T, S), (B, T, S) or (B, H, T, S); any axis but S may be 1. Without the batch axis
    in x there is none in mask: (T, S) or (H, T, S). Weights come as before dropout. Vaswani et al. 2017, section 3.2.2.
    ValueError where the heads do not divide d_model, or the groups the heads, or a mask or positions do not fit;
    TypeError for a mask that is not bool, and for positions that nothing turns by, or are missing.
    """

    def __init__(self, d_model, num_heads, dropout=0.1, *, bias=True, num_kv_heads=None, kdim=None, vdim=None,
                 d_k=None):
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if num_heads < 1 or d_k is None and d_model % num_heads:
            raise ValueError(f"MultiHeadAttention: d_model {d_model} must be a multiple of num_heads {num_heads}")
        if num_kv_heads < 1 or num_heads % num_kv_heads:
            raise ValueError(f"MultiHeadAttention: num_heads {num_heads} must be a multiple of num_kv_heads "
                             f"{num_kv_heads}")
        self.d_model, self.num_heads, self.num_kv_heads = d_model, num_heads, num_kv_heads
        self.d_k = d_model // num_heads if d_k is None else d_k
        self.w_q = Linear(d_model, num_heads * self.d_k, bias)
        self.w_k = Linear(d_model if kdim is None else kdim, num_kv_heads * self.d_k, bias)
        self.w_v = Linear(d_model if vdim is None else vdim, num_kv_heads * self.d_k, bias)
        self.w_o = Linear(num_heads * self.d_k, d_model, bias)
        self.dropout = Dropout(dropout)
        self.attend, self.rotate = ops.scaled_dot_product_attention, None

    def forward(self, query, key, value, mask=None, *, is_causal=False, return_weights=False, positions=None, cache=None,
                **options):
        turn = self.turning(positions, query, key)
        q = turn(self.split_heads(self.w_q(query)))                 # (B, H, T, K)

        def project():
            return turn(self.split_heads(self.w_k(key))), self.split_heads(self.w_v(value))

        k, v = project() if cache is None else cache.extend(self, key, project)          # (B, Hkv, S, K)
        grouped = self.num_kv_heads < self.num_heads
        if grouped:
            mask = self.group_mask(mask, batched=q.ndim == 4)
            if options.get("bias") is not None:
                options["bias"] = self.group_bias(options["bias"])
            q, k, v = self.group(q), self.group(k), self.group(v)
        dropout_p = self.dropout.p if self.dropout.training else 0.0
        out = self.attend(q, k, v, mask, is_causal=is_causal, dropout_p=dropout_p, return_weights=return_weights, **options)
        out, weights = out if return_weights else (out, None)
        if grouped:
            out = self.ungroup(out)                                 # (B, H, T, K)
            weights = None if weights is None else self.ungroup(weights)
        out = out.swapaxes(-3, -2)                                  # (B, T, H, K)
        out = self.w_o(out.reshape(*out.shape[:-2], self.num_heads * self.d_k))
        return (out, weights) if return_weights else out

    def turning(self, positions, query, key):
        """What turns heads (..., T, K) by the last T of the positions; without `rotate` it leaves them as they are."""
        if self.rotate is None and positions is None:
            return lambda x: x
        if self.rotate is None or positions is None:
            raise TypeError("MultiHeadAttention: positions= and the attribute rotate belong together: give both, or none")
        positions = backend.follow(positions.data if isinstance(positions, Tensor) else positions, query)
        n = max(np.shape(query)[-2], np.shape(key)[-2])
        if positions.shape[-1:] != (n,):
            raise ValueError(f"MultiHeadAttention: positions {positions.shape} must be ({n},) or (B, {n}), one for every key")
        return lambda x: self.rotate(x, positions[..., n - x.shape[-2]:])

    def split_heads(self, x):
        """(B, T, heads K) -> (B, heads, T, K), a view."""
        return x.reshape(*x.shape[:-1], x.shape[-1] // self.d_k, self.d_k).swapaxes(-3, -2)

    def group(self, x):
        """(B, H, T, .) -> (B, Hkv, G, T, .): head h is member h % G of group h // G. Keys and values have G = 1."""
        return x.reshape(*x.shape[:-3], self.num_kv_heads, x.shape[-3] // self.num_kv_heads, *x.shape[-2:])

    def ungroup(self, x):
        """(B, Hkv, G, T, .) -> (B, H, T, .)"""
        return x.reshape(*x.shape[:-4], self.num_heads, *x.shape[-2:])

    def group_mask(self, mask, batched):
        """The mask beside grouped scores (B, Hkv, G, T, S)."""
        if getattr(mask, "ndim", 0) < 3:                        # none, the same for every head, or no mask at all
            return mask
        if mask.ndim == 3 and batched:
            mask = mask[:, None]                                    # (B, 1, T, S)
        if mask.shape[-3] not in (1, self.num_heads):
            raise ValueError(f"MultiHeadAttention: mask {mask.shape} must have 1 or {self.num_heads} heads before its "
                             "last two axes")
        return mask[..., None, :, :] if mask.shape[-3] == 1 else self.group(mask)

    def group_bias(self, bias):
        """The bias (..., H or 1, T, S) beside grouped scores (..., Hkv, G, T, S)."""
        if getattr(bias, "ndim", 0) < 3:                        # the same for every head, or no array at all
            return bias
        if bias.shape[-3] not in (1, self.num_heads):
            raise ValueError(f"MultiHeadAttention: bias {bias.shape} must have 1 or {self.num_heads} heads before its "
                             "last two axes")
        return bias[..., None, :, :] if bias.shape[-3] == 1 else self.group(bias)

    def extra_repr(self):
        groups = f", num_kv_heads={self.num_kv_heads}" if self.num_kv_heads < self.num_heads else ""
        return f"{self.d_model}, {self.num_heads}{groups}"
