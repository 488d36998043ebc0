"""Attention in tiles that stay in a multiprocessor: no array of T x S numbers, and no copy of strided heads."""
import math

import numpy as np

from minitx import backend
from minitx.backend import xp_of
from minitx.fused import cuda_twin
from minitx.fused.cuda import kernels
from minitx.fused.cuda.kernels import VIEW
from minitx.ops.attention import Attention, allowed
from minitx.ops.dropout import gain_of

WIDEST = kernels.WIDTHS[-1]
VIEWS = "q k v o grad_o dq dk dv mask keep".split()
HEADS = np.dtype([(name, VIEW) for name in VIEWS] + [(name, np.int64) for name in "T S K D causal".split()]
                 + [(name, np.float64) for name in ("scale", "gain")])          # Heads of attention.cu


@cuda_twin
class CudaAttention(Attention):
    """Never has more of p than a tile: backward makes it again from two numbers a row. Dao et al. 2022,
    "FlashAttention", sections 3.1 and 3.2.

    forward       e = exp(s - top)      o = e v / total         total = sum e; top = max s
    backward      the plain op's, with p = e / total

    saved         q (..., T, K)   k (..., S, K)   v (..., S, D)   o (..., T, D)   total (..., T)   top (..., T)
                  mask, keep bool (..., T, S), if there is one
    """

    @staticmethod
    def fits(q, k, v, bias=None, *, mask=None, is_causal=False, scale=None, keep=None, dropout_p=0.0,
             return_weights=False):
        return (bias is None and not return_weights and kernels.ready(q, k, v)
                and 2 <= min(q.ndim, k.ndim, v.ndim) and max(q.ndim, k.ndim, v.ndim) <= 5
                and q.shape[-1] == k.shape[-1] and k.shape[-2] == v.shape[-2]
                and max(q.shape[-1], v.shape[-1]) <= WIDEST)

    def forward(self, q, k, v, bias=None, *, mask=None, is_causal=False, scale=None, keep=None, dropout_p=0.0,
                return_weights=False):
        xp, (T, K), (S, D) = xp_of(q), q.shape[-2:], v.shape[-2:]
        self.lead = backend.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
        self.q, self.k, self.v, self.o = q, k, v, like_heads(q, self.lead, D)
        self.mask = allowed(xp.broadcast_to(q, self.lead + (T, K)), mask, False, T, S)
        self.keep = None if keep is None else backend.follow(keep, q)
        self.top, self.total = xp.empty(self.lead + (T,), q.dtype), xp.empty(self.lead + (T,), q.dtype)
        self.heads = np.zeros((), HEADS)
        for name, value in dict(T=T, S=S, K=K, D=D, causal=is_causal, gain=gain_of(dropout_p),
                                scale=1 / math.sqrt(max(K, 1)) if scale is None else scale).items():
            self.heads[name] = value
        self.see(q=q, k=k, v=v, o=self.o)
        for name, x in (("mask", self.mask), ("keep", self.keep)):
            if x is not None:
                self.heads[name] = kernels.view(x, self.lead + (T, S), name)
        self.launch("attention_forward", T, self.o, self.top, self.total)
        return self.o

    def backward(self, do):
        dq, dk, dv = (like_heads(x, self.lead, x.shape[-1]) for x in (self.q, self.k, self.v))
        along = xp_of(do).empty(self.top.shape, do.dtype)
        self.see(grad_o=do, dq=dq, dk=dk, dv=dv)
        self.launch("attention_backward_q", self.q.shape[-2], self.o, self.top, self.total, do, along, dq)
        self.launch("attention_backward_kv", self.k.shape[-2], self.top, self.total, do, along, dk, dv)
        return dq, dk, dv, None

    def see(self, **arrays):
        """Tell the kernels where arrays (..., rows, width) lie."""
        for name, x in arrays.items():
            self.heads[name] = kernels.view(x, self.lead + x.shape[-2:])

    def launch(self, name, rows, *args):
        """Launch a kernel with a block for so many rows of each head as a tile has."""
        width = max(self.q.shape[-1], self.v.shape[-1])
        macros = kernels.heads_of(next(n for n in kernels.WIDTHS if width <= n), self.q.dtype)
        grid = math.prod(self.lead), math.ceil(rows / macros["TILE"])
        if min(grid) > 0:
            kernels.launch("attention", name, grid, (8, 8), self.q, self.k, self.v, self.mask, self.keep, *args,
                           self.heads, dtype=self.q.dtype, **macros)


def like_heads(x, lead, width):
    """Memory for an array (*lead, rows of x, width): in (B, T, H, width) where x came from there."""
    xp, rows = xp_of(x), x.shape[-2]
    if len(lead) == x.ndim - 2 == 2 and x.swapaxes(1, 2).flags.c_contiguous:
        return xp.empty((lead[0], rows, lead[1], width), x.dtype).swapaxes(1, 2)
    return xp.empty((*lead, rows, width), x.dtype)
