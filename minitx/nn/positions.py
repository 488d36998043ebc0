"""Telling a model where each token stands."""
import numpy as np

from minitx import backend, ops
from minitx.nn import init
from minitx.nn.layers import Dropout, check_size
from minitx.nn.module import Module
from minitx.nn.parameter import Buffer, Parameter
from minitx.tensor import as_numpy


def sinusoids(n, d_model):
    """The table of sine and cosine waves, float64 (n, d_model). Vaswani et al. 2017, section 3.5.

        table[pos, 2i]   = sin(pos / 10000^(2i / d_model))
        table[pos, 2i+1] = cos(pos / 10000^(2i / d_model))          an odd d_model has one sine more
    """
    angles = np.arange(n)[:, None] / 10000.0 ** (np.arange(0, d_model, 2) / d_model)
    table = np.empty((n, d_model))
    table[:, 0::2] = np.sin(angles)
    table[:, 1::2] = np.cos(angles[:, :d_model // 2])
    return table


class PositionalEncoding(Module):
    """Adds the fixed waves of `sinusoids` to x (B, T, d_model), then dropout.

    The table is the buffer ``pe`` (1, max_len, d_model), computed in float64. positions (T,) or (B, T), integers, say
    where the tokens stand; left out, they count from 0. ValueError where T > max_len, or x has another width, or
    positions another shape.
    """

    def __init__(self, d_model, max_len=5000, dropout=0.1):
        check_size("PositionalEncoding", d_model=d_model, max_len=max_len)
        self.dropout = Dropout(dropout)
        table = sinusoids(max_len, d_model)[None].astype(backend.default_dtype())
        self.pe = Buffer(backend.to_device(table, backend.default_device()))

    def forward(self, x, positions=None):
        return self.dropout(x + _rows("PositionalEncoding", self.pe[0], x, positions))

    def extra_repr(self):
        return f"{self.pe.shape[2]}, max_len={self.pe.shape[1]}"


class LearnedPositions(Module):
    """Adds a trained row to x (B, T, d_model) for each position. Starts N(0, 0.02), as in GPT-2 and BERT.

    positions (T,) or (B, T), integers, say where the tokens stand; left out, they count from 0. ValueError where T >
    max_len, or x has another width, or positions another shape.
    """

    def __init__(self, max_len, d_model):
        check_size("LearnedPositions", max_len=max_len, d_model=d_model)
        self.weight = Parameter(init.normal((max_len, d_model), 0.02))

    def forward(self, x, positions=None):
        return x + _rows("LearnedPositions", self.weight, x, positions)

    def extra_repr(self):
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}"


class RelativePositionBias(Module):
    """A trained number for every distance between query and key, added to the scores. Raffel et al. 2020, section 2.1.

        n_queries T, n_keys S   ->   bias (1, H, T, S)

    Distances share num_buckets rows: half of them one row each, the further ones in steps that grow with the logarithm,
    from max_distance on all the same. bidirectional gives what lies ahead a half of its own; else it counts as 0.
    weight starts N(0, 1). ValueError for fewer than 4 buckets (2 in one direction) or a max_distance that they reach one
    by one.
    """

    def __init__(self, num_heads, num_buckets=32, max_distance=128, bidirectional=True):
        check_size("RelativePositionBias", num_heads=num_heads)
        exact = num_buckets // (4 if bidirectional else 2)
        if exact < 1 or bidirectional and num_buckets % 2:
            wanted = "even and at least 4" if bidirectional else "at least 2"
            raise ValueError(f"RelativePositionBias: num_buckets must be {wanted}, got {num_buckets}")
        if max_distance <= exact:
            raise ValueError(f"RelativePositionBias: max_distance must be greater than {exact}, as {num_buckets} buckets "
                             f"need, got {max_distance}")
        self.num_buckets, self.max_distance, self.bidirectional = num_buckets, max_distance, bidirectional
        self.weight = Parameter(init.normal((num_buckets, num_heads)))

    def forward(self, n_queries, n_keys):
        queries = np.arange(n_keys - n_queries, n_keys)[:, None]        # the last query stands at the last key
        buckets = relative_buckets(np.arange(n_keys) - queries, self.num_buckets, self.max_distance, self.bidirectional)
        return ops.embedding(buckets, self.weight).transpose(2, 0, 1)[None]

    def extra_repr(self):
        return (f"{self.weight.shape[1]}, num_buckets={self.num_buckets}, max_distance={self.max_distance}"
                + ("" if self.bidirectional else ", bidirectional=False"))


def relative_buckets(distance, num_buckets=32, max_distance=128, bidirectional=True):
    """The bucket of every distance, key minus query: integers of any shape -> the same shape, 0 .. num_buckets - 1."""
    ahead = distance > 0
    if bidirectional:
        num_buckets //= 2
        start, far = num_buckets * ahead, np.abs(distance)
    else:
        start, far = 0, np.where(ahead, 0, -distance)
    exact = num_buckets // 2
    with np.errstate(divide="ignore"):
        steps = np.log(far / exact) / np.log(max_distance / exact) * (num_buckets - exact)
    steps = np.maximum(steps + 1e-9, 0).astype(int)                     # a logarithm may fall just under a whole number
    return start + np.where(far < exact, far, np.minimum(exact + steps, num_buckets - 1))


def position_ids_from_mask(attention_mask):
    """Positions (B, S) that count the real tokens of each row alone, the first of them 0.

    attention_mask (B, S) is 1 for a token, 0 for padding, on either side; padding gets some valid position.
    """
    counted = as_numpy(attention_mask).astype(np.int64).cumsum(axis=-1)
    return np.maximum(counted - 1, 0)


def _rows(layer, table, x, positions):
    """What a table (max_len, d_model) of positions adds to x."""
    max_len, d_model = table.shape
    if x.ndim < 2 or x.shape[-1] != d_model:
        raise ValueError(f"{layer}: x must be (..., T, {d_model}), got {x.shape}")
    if x.shape[-2] > max_len:
        raise ValueError(f"{layer}: a sequence of {x.shape[-2]} is longer than max_len {max_len}; shorten it or build with "
                         "more")
    T = x.shape[-2]
    if positions is None:
        return table[:T]
    if np.shape(positions) not in ((T,), x.shape[:-1]):
        raise ValueError(f"{layer}: positions {np.shape(positions)} must be ({T},) or {x.shape[:-1]}")
    if _is_stretch(positions) and 0 <= positions[0] <= max_len - T:
        return table[int(positions[0]):int(positions[0]) + T]           # no ids that must go to the table's device
    return ops.embedding(positions, table)


def _is_stretch(positions):
    """Whether positions are an array (T,) on the host that counts n, n + 1, n + 2 ..."""
    return (isinstance(positions, np.ndarray) and positions.ndim == 1 and positions.dtype.kind in "iu" and positions.size > 0
            and bool(((positions[1:] > positions[:-1]) & (positions[1:] - positions[:-1] == 1)).all()))     # uint8 runs over
