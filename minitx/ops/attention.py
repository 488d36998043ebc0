"""Scaled dot-product attention, one op."""
import math

from minitx import backend
from minitx.autograd import Op, as_tensor
from minitx.backend import row_dot, xp_of
from minitx.ops.dropout import check_probability, gain_of
from minitx.ops.select import check_bool
from minitx.ops.softmax import probabilities


class Attention(Op):
    r"""Each query looks at every key and brings home a mixture of values.

        q (..., T, K)   k (..., S, K)   v (..., S, D)   bias, mask (..., T, S)   ->   o (..., T, D)   [p (..., T, S)]

    forward       s = scale q k' + bias         scale = 1 / sqrt(K)             ' = last two axes swapped
                  p = softmax(s)                0 where mask is False or, if is_causal, the key lies ahead
                  w = p keep / (1 - dropout_p)
                  o = w v

    backward      dv = w' do
                  dw = do v'
                  dp = dw keep / (1 - dropout_p)        + what reaches p itself, where it was asked for
                  ds = p (dp - <<dp, p>>)               <<.,.>> = dot product along S
                  dq = scale ds k       dk = scale ds' q        dbias = ds

    saved         q (..., T, K)   k (..., S, K)   v (..., S, D)   p (..., T, S)   keep (..., T, S) bool, with dropout

    twin          minitx/fused/cpu/attention.py   minitx/fused/cuda/attention.py and .cu
    """
    name = "scaled_dot_product_attention"
    broadcasts, promotion = True, "one"

    def forward(self, q, k, v, bias=None, *, mask=None, is_causal=False, scale=None, keep=None, dropout_p=0.0,
                return_weights=False):
        check_shapes(q, k, v)
        T, S = q.shape[-2], k.shape[-2]
        self.q, self.k, self.v = q, k, v
        self.scale = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else float(scale)
        self.keep, self.gain = None if keep is None else backend.follow(keep, q), gain_of(dropout_p)
        s = (q * self.scale) @ k.swapaxes(-1, -2)                       # (..., T, S)  q is smaller to scale than s
        if bias is not None:
            check_bias(s, bias)
            s = s + bias
        self.p = probabilities(s, -1, allowed(s, mask, is_causal, T, S))
        o = self.dropped() @ v                                          # (..., T, D)
        return (o, self.p) if return_weights else o

    def backward(self, do, dp=None):
        q, k, v, p = self.q, self.k, self.v, self.p
        dq = dk = dv = ds = None
        if do is None:
            do = xp_of(p).zeros(p.shape[:-1] + v.shape[-1:], p.dtype)
        if self.needs[2]:
            dv = self.dropped().swapaxes(-1, -2) @ do                   # (..., S, D)
        if self.needs[0] or self.needs[1] or self.needs[3]:
            ds = do @ v.swapaxes(-1, -2)                                # (..., T, S)  dw, becoming ds
            if self.keep is not None:
                ds *= self.keep
                ds *= self.gain
            if dp is not None:
                ds += dp
            ds -= row_dot(ds, p)[..., None]
            ds *= p
            dq = ds @ k * self.scale if self.needs[0] else None         # (..., T, K)
            dk = ds.swapaxes(-1, -2) @ q * self.scale if self.needs[1] else None
        return dq, dk, dv, ds

    def dropped(self):
        return self.p if self.keep is None else self.p * self.keep * self.gain


def check_shapes(q, k, v):
    """ValueError unless q (..., T, K), k (..., S, K) and v (..., S, D) fit."""
    if min(q.ndim, k.ndim, v.ndim) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(f"{Attention.name}: needs q (..., T, K), k (..., S, K) and v (..., S, D), got {q.shape}, {k.shape} "
                         f"and {v.shape}")


def check_bias(s, bias):
    """ValueError for a bias that would stretch the scores, or fits them not at all."""
    if bias.ndim > s.ndim or any(n not in (1, m) for n, m in zip(bias.shape[::-1], s.shape[::-1])):
        raise ValueError(f"bias {bias.shape} must broadcast to the scores {s.shape}")


def allowed(s, mask, is_causal, T, S):
    """Which keys each query may see: mask and the causal rule together, as bool that broadcasts to s; None for all."""
    if mask is not None:
        mask = backend.follow(mask, s)
        if mask.ndim == 3 and s.ndim == 4:
            mask = mask[:, None]                                        # (B, T, S): the same for every head
        if mask.ndim == 0 or mask.shape[-1] != S:
            raise ValueError(f"mask {mask.shape} must end in the number of keys, {S}")
    if is_causal:
        xp = xp_of(s)
        causal = xp.arange(S) <= xp.arange(T)[:, None] + (S - T)        # the last query sees the last key
        mask = causal if mask is None else mask & causal
    return mask


def scaled_dot_product_attention(q, k, v, mask=None, *, bias=None, is_causal=False, scale=None, dropout_p=0.0,
                                 return_weights=False):
    """softmax(q k' / sqrt K) v. Vaswani et al. 2017, "Attention Is All You Need", equation 1.

    q (..., T, K), k (..., S, K), v (..., S, D) -> out (..., T, D), or (out, weights (..., T, S)) with return_weights, the
    weights as before dropout. Leading axes broadcast.

    mask        bool, True = may attend: (T, S), (B, T, S) also beside four axes, or (B, H, T, S); any axis but S may be 1.
                A query that may see nothing gets exactly 0, in the gradients too
    bias        floats added to the scores; may receive a gradient
    is_causal   query t sees keys up to t, counted so that the last query sees the last key; together with mask, both hold
    scale       instead of 1 / sqrt(K)
    dropout_p   probability of dropping a weight, drawn anew each call

    TypeError for a mask that is not bool, a bias that is no floats, or two float dtypes; ValueError where shapes do not
    fit.
    """
    check_bool(Attention.name, mask, cure=" (True = may attend), or add a float mask to the scores with bias=")
    if getattr(getattr(bias, "dtype", None), "kind", "f") != "f":
        raise TypeError(f"{Attention.name}: bias must be floats, which are added to the scores, got {bias.dtype}; give a "
                        "bool array as mask=")
    keep = None
    if dropout_p:
        check_probability(Attention.name, dropout_p)
        q, k, v = (as_tensor(Attention.name, x) for x in (q, k, v))
        check_shapes(q, k, v)
        shape = backend.broadcast_shapes(q.shape[:-2], k.shape[:-2]) + (q.shape[-2], k.shape[-2])
        keep = backend.keep_mask(shape, dropout_p, q)
    return Attention.apply(q, k, v, bias, mask=mask, is_causal=is_causal, scale=scale, keep=keep, dropout_p=dropout_p,
                           return_weights=return_weights)
