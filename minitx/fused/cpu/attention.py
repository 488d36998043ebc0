"""Attention in tiles of queries: what the causal mask hides is never computed, and of long texts no scores are kept."""
import functools
import math

import numpy as np

from minitx import backend
from minitx.backend import quiet, row_dot
from minitx.fused import twin
from minitx.fused.cpu.threads import count, share
from minitx.memory import LEAST, empty
from minitx.ops.attention import Attention, allowed
from minitx.ops.dropout import gain_of
from minitx.ops.extrema import finite_or_zero

TILE = 64               # queries of a tile under the causal mask: of its last keys a triangle is hidden
AT_ONCE = 1 << 16       # scores that are worked on at once, in as many heads as that takes
SHORT = 256             # keys: for no more of them e is kept, which is sooner done than made again
SAFE = 30.0             # exp of anything between -SAFE and SAFE, sums of it and quotients are ordinary numbers in float32


@twin
class FusedAttention(Attention):
    """Works on a few heads at a time, under the causal mask on their queries in tiles. Backward computes e again where there
    are many keys. Dao et al. 2022, "FlashAttention", section 3.1.

    forward       e = exp(s - top)      o = e v / total         total = sum e; top = max s, or 0 where no s is large
    backward      the plain op's, with p = e / total: 1 / total goes to do, which is smaller

    saved         q (..., T, K)   k (..., S, K)   v (..., S, D)   o (..., T, D)   total (..., T, 1)
                  top (..., T, 1), or None for 0   mask, keep bool (..., T, S), if there is one   e (..., T, S), for few keys
    """

    @staticmethod
    def fits(q, k, v, bias=None, *, mask=None, is_causal=False, scale=None, keep=None, dropout_p=0.0, return_weights=False):
        return (type(q) is type(k) is type(v) is np.ndarray and bias is None and not return_weights
                and q.ndim == k.ndim == v.ndim
                and 3 <= q.ndim <= 4 and q.shape[:-2] == k.shape[:-2] == v.shape[:-2] and q.shape[-1] == k.shape[-1]
                and k.shape[-2] == v.shape[-2] and min(q.shape[-2], k.shape[-2]) > 1 and q.nbytes >= LEAST)

    def forward(self, q, k, v, bias=None, *, mask=None, is_causal=False, scale=None, keep=None, dropout_p=0.0,
                return_weights=False):
        (*lead, T, K), S = q.shape, k.shape[-2]
        self.q, self.k, self.v, self.is_causal = q, k, v, is_causal
        self.scale = 1 / math.sqrt(max(K, 1)) if scale is None else float(scale)
        shape = np.broadcast_to(np.empty((), q.dtype), (*lead, T, S))           # no memory: the scores' shape
        self.keep = None if keep is None else np.broadcast_to(backend.follow(keep, q), shape.shape)
        self.gain = gain_of(dropout_p)
        mask = allowed(shape, mask, False, T, S)
        self.mask = None if mask is None else np.broadcast_to(mask, shape.shape)
        self.o, self.total = like_heads(q, v.shape[-1]), empty((*lead, T, 1), q.dtype)
        self.e, self.keeps = {}, S <= SHORT and any(self.needs)
        self.heads = list(enumerate(self.groups()))         # the same ones in backward, whatever the number of threads then
        with quiet(q):
            largest_q, largest_k, largest_v = (math.sqrt(row_dot(x, x).max(initial=0)) for x in (q, k, v))
            bound = abs(self.scale) * largest_q * largest_k + math.log(max(largest_v, 1))   # of s, and of ln |e v|
            self.top = None if bound <= SAFE else empty((*lead, T, 1), q.dtype)
            share(self.forward_heads, self.heads)
        return self.o

    def forward_heads(self, group, index):
        q, k, v, o, total = (x[index] for x in (self.q, self.k, self.v, self.o, self.total))
        k, v = np.ascontiguousarray(k), np.ascontiguousarray(v)
        ones = np.ones(k.shape[-2], q.dtype)
        for i, j, n in self.tiles():
            e = self.scores(q[..., i:j, :] * self.scale, k, index, i, j, n)
            if self.top is not None:
                top = self.top[index][..., i:j, :]
                top[:] = finite_or_zero(e.max(axis=-1, keepdims=True, initial=-math.inf))
                e -= top
            np.exp(e, out=e)
            np.matmul(e, ones[:n], out=total[..., i:j, 0])
            if self.keeps:
                self.e[group, i] = e
                e = e if self.keep is None else e.copy()
            self.drop(e, index, i, j, n)
            np.matmul(e, v[..., :n, :], out=o[..., i:j, :])
        total[total == 0] = 1                       # a query that sees nothing
        o *= self.gain / total

    def backward(self, do):
        dq, dk, dv = (like_heads(x, x.shape[-1]) for x in (self.q, self.k, self.v))
        with quiet(do):
            share(functools.partial(self.backward_heads, do, dq, dk, dv), self.heads)
        return dq, dk, dv, None

    def backward_heads(self, do, dq, dk, dv, group, index):
        q, k, v, o, total, do, dq, dk, dv = (x[index] for x in (self.q, self.k, self.v, self.o, self.total, do, dq, dk, dv))
        k, v = np.ascontiguousarray(k), np.ascontiguousarray(v)
        do = do / total
        row = row_dot(do, o)[..., None]             # <<dp, p>> = <<do, o>>
        if self.gain != 1:
            do *= self.gain
        q = q * self.scale
        for i, j, n in self.tiles():
            e = self.e.pop((group, i), None)
            if e is None:
                e = self.scores(q[..., i:j, :], k, index, i, j, n)
                if self.top is not None:
                    e -= self.top[index][..., i:j, :]
                np.exp(e, out=e)
            tile = do[..., i:j, :]
            ds = empty(e.shape, e.dtype)
            np.matmul(tile, v[..., :n, :].swapaxes(-1, -2), out=ds)
            self.drop(ds, index, i, j, n)
            ds -= row[..., i:j, :]
            ds *= e
            np.matmul(ds, k[..., :n, :], out=dq[..., i:j, :])
            self.drop(e, index, i, j, n)
            for x, y, sum_ in ((ds, q[..., i:j, :], dk), (e, tile, dv)):
                if n == k.shape[-2] and j == self.q.shape[-2]:          # the first tile, and all of the sum
                    np.matmul(x.swapaxes(-1, -2), y, out=sum_)
                else:
                    sum_[..., :n, :] += x.swapaxes(-1, -2) @ y
        dq *= self.scale

    def tiles(self):
        """(i, j, n): the queries i to j, and how many keys the last of them may see. The last tile, which sees all keys,
        comes first."""
        T, S = self.q.shape[-2], self.k.shape[-2]
        ends = range(T, 0, -TILE) if self.is_causal else (T,)
        return [(max(0, j - TILE) if self.is_causal else 0, j, max(0, S - T + j)) for j in ends]

    def groups(self):
        """Indices into the leading axes that together go through every head, a few at a time."""
        lead, T, S = self.q.shape[:-2], self.q.shape[-2], self.k.shape[-2]
        heads, scores = math.prod(lead), (min(T, TILE) if self.is_causal else T) * S
        at_once = heads if heads * scores <= 2 * AT_ONCE else max(1, min(AT_ONCE // scores, heads // (2 * count())))
        if len(lead) == 2 and at_once < lead[1]:
            return [(b, slice(h, h + at_once)) for b in range(lead[0]) for h in range(0, lead[1], at_once)]
        at_once = max(1, at_once // math.prod(lead[1:]))
        return [(slice(b, b + at_once),) for b in range(0, lead[0], at_once)]

    def scores(self, q, k, index, i, j, n):
        """Those of queries i to j, scaled already, with the first n keys; -inf where nothing may be seen."""
        s = empty(q.shape[:-1] + (n,), q.dtype)
        np.matmul(q, k[..., :n, :].swapaxes(-1, -2), out=s)
        if self.mask is not None:
            np.copyto(s, -math.inf, where=~self.mask[index + (..., slice(i, j), slice(n))])
        if self.is_causal:
            seen_by_all = max(0, n - (j - i) + 1)   # keys
            np.copyto(s[..., seen_by_all:], -math.inf, where=hidden(j - i, n - seen_by_all))
        return s

    def drop(self, x, index, i, j, n):
        """Dropout without its gain, in place."""
        if self.keep is not None:
            x *= self.keep[index + (..., slice(i, j), slice(n))]


@functools.lru_cache(maxsize=16)
def hidden(rows, columns):
    """Which of the last `columns` keys lie ahead of each of so many queries, the last of which sees the last key."""
    return np.arange(columns) > np.arange(rows)[:, None] + (columns - rows)


def like_heads(x, width):
    """Memory for an array like x (..., T, .), `width` numbers a row: in (B, T, H, width) where x came from there."""
    if x.ndim == 4 and x.swapaxes(1, 2).flags.c_contiguous:
        B, H, T = x.shape[:3]
        return empty((B, T, H, width), x.dtype).swapaxes(1, 2)
    return empty(x.shape[:-1] + (width,), x.dtype)
