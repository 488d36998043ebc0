"""Telling a model where each token stands."""
import numpy as np

from minitx import backend, ops
from minitx.nn import init
from minitx.nn.layers import Dropout
from minitx.nn.module import Module
from minitx.nn.parameter import Buffer, Parameter


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

    The table is the buffer ``pe`` (1, max_len, d_model), computed in float64. ValueError where T > max_len or x has
    another width.
    """

    def __init__(self, d_model, max_len=5000, dropout=0.1):
        self.dropout = Dropout(dropout)
        table = sinusoids(max_len, d_model)[None].astype(backend.default_dtype())
        self.pe = Buffer(backend.to_device(table, backend.default_device()))

    def forward(self, x):
        _check("PositionalEncoding", x, *self.pe.shape[1:])
        return self.dropout(x + self.pe[0, :x.shape[-2]])

    def extra_repr(self):
        return f"{self.pe.shape[2]}, max_len={self.pe.shape[1]}"


class LearnedPositions(Module):
    """Adds a trained row to x (B, T, d_model) for each position. Starts N(0, 0.02), as in GPT-2 and BERT.

    positions (T,) or (B, T), integers, say where the tokens stand; left out, they count from 0. ValueError where T >
    max_len, or x has another width, or positions another shape.
    """

    def __init__(self, max_len, d_model):
        self.weight = Parameter(init.normal((max_len, d_model), 0.02))

    def forward(self, x, positions=None):
        _check("LearnedPositions", x, *self.weight.shape)
        T = x.shape[-2]
        if positions is None:
            return x + self.weight[:T]
        if np.shape(positions) not in ((T,), x.shape[:-1]):
            raise ValueError(f"LearnedPositions: positions {np.shape(positions)} must be ({T},) or {x.shape[:-1]}")
        return x + ops.embedding(positions, self.weight)

    def extra_repr(self):
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}"


def position_ids_from_mask(attention_mask):
    """Positions (B, S) that count the real tokens of each row alone, the first of them 0.

    attention_mask (B, S) is 1 for a token, 0 for padding, on either side; padding gets some valid position.
    """
    return (attention_mask.cumsum(axis=-1) - 1).clip(0, None)


def _check(layer, x, max_len, d_model):
    if x.ndim < 2 or x.shape[-1] != d_model:
        raise ValueError(f"{layer}: x must be (..., T, {d_model}), got {x.shape}")
    if x.shape[-2] > max_len:
        raise ValueError(f"{layer}: a sequence of {x.shape[-2]} is longer than max_len {max_len}; shorten it or build with "
                         "more")
