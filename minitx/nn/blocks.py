"""The Transformer's blocks: attention carries between positions, the feed-forward net works on each alone."""
import numpy as np

from minitx.nn.attention import MultiHeadAttention
from minitx.nn.containers import Sequential
from minitx.nn.layers import Dropout, LayerNorm, Linear, activation_named
from minitx.nn.module import Module


class FeedForward(Module):
    """Two linear layers with an activation between, the same at every position. Vaswani et al. 2017, section 3.3.

        net           W2 act(W1 x)                      x (..., d_model), inside (..., d_ff)
        with gated    W2 (act(Wg x) * W1 x)             Shazeer 2020, "GLU Variants": "silu" makes it SwiGLU

    Dropout falls on what W2 gets. activation is "gelu" (exact), "gelu_tanh", "relu", "silu" or "tanh": else ValueError.
    """

    def __init__(self, d_model, d_ff, dropout=0.1, *, activation="gelu", bias=True, gated=False):
        self.net = Sequential(Linear(d_model, d_ff, bias), activation_named(activation), Dropout(dropout),
                              Linear(d_ff, d_model, bias))
        self.gate = Linear(d_model, d_ff, bias) if gated else None

    def forward(self, x):
        if self.gate is None:
            return self.net(x)
        up, activation, dropout, down = self.net
        return down(dropout(activation(self.gate(x)) * up(x)))


class EncoderBlock(Module):
    """Self-attention, then a feed-forward net, each with a residual connection, dropout and layer norm.

        norm_first    x = x + attn(norm1(x))        x = x + ff(norm2(x))            GPT-2 and most since
        else          x = norm1(x + attn(x))        x = norm2(x + ff(x))            Vaswani et al. 2017

    x (B, T, d_model) -> the same shape, or (x, weights (B, H, T, T)) with return_weights. mask as in
    MultiHeadAttention, which also gets any other option of a call: bias= for its scores, for one. One dropout for all:
    on the attention weights, inside the net, and on what either adds to x, as dropout(added, x). A family with other
    norms or another net makes a subclass that builds the same attributes.
    """

    def __init__(self, d_model, num_heads, d_ff, dropout=0.1, norm_first=True, *, activation="gelu", eps=1e-5,
                 bias=True):
        self.norm_first = norm_first
        self.attn = MultiHeadAttention(d_model, num_heads, dropout, bias=bias)
        self.ff = FeedForward(d_model, d_ff, dropout, activation=activation, bias=bias)
        self.norm1 = LayerNorm(d_model, eps, bias)
        self.norm2 = LayerNorm(d_model, eps, bias)
        self.dropout = Dropout(dropout)

    def forward(self, x, mask=None, *, is_causal=False, return_weights=False, **options):
        a = self.norm1(x) if self.norm_first else x
        a = self.attn(a, a, a, mask, is_causal=is_causal, return_weights=return_weights, **options)
        a, weights = a if return_weights else (a, None)
        x = self.dropout(a, x)
        x = x if self.norm_first else self.norm1(x)

        f = self.norm2(x) if self.norm_first else x
        x = self.dropout(self.ff(f), x)
        x = x if self.norm_first else self.norm2(x)
        return (x, weights) if return_weights else x

    def extra_repr(self):
        return "" if self.norm_first else "norm_first=False"


class DecoderBlock(Module):
    """Self-attention, then attention over what the encoder made of the source (memory), then a feed-forward net.

        norm_first    x = x + attn(norm1(x))    x = x + cross_attn(norm2(x), memory)    x = x + ff(norm3(x))
        else          x = norm1(x + attn(x))    x = norm2(x + cross_attn(x, memory))    x = norm3(x + ff(x))

    x (B, T, d_model), memory (B, S, d_model) -> x's shape, or (x, (weights (B, H, T, T), (B, H, T, S))) with
    return_weights. mask is for the self-attention, and so are is_causal and any other option of a call; memory_mask
    says which part of memory may be seen: both as in MultiHeadAttention. cache is for both: of memory it keeps what the
    first call made of it. Dropout as in EncoderBlock. ValueError for a memory of another batch. Vaswani et al. 2017,
    section 3.1.
    """

    def __init__(self, d_model, num_heads, d_ff, dropout=0.1, norm_first=True, *, activation="gelu", eps=1e-5,
                 bias=True):
        self.norm_first = norm_first
        self.attn = MultiHeadAttention(d_model, num_heads, dropout, bias=bias)
        self.cross_attn = MultiHeadAttention(d_model, num_heads, dropout, bias=bias)
        self.ff = FeedForward(d_model, d_ff, dropout, activation=activation, bias=bias)
        self.norm1 = LayerNorm(d_model, eps, bias)
        self.norm2 = LayerNorm(d_model, eps, bias)
        self.norm3 = LayerNorm(d_model, eps, bias)
        self.dropout = Dropout(dropout)

    def forward(self, x, memory, mask=None, memory_mask=None, *, is_causal=False, return_weights=False, cache=None,
                **options):
        if np.shape(memory)[:-2] != np.shape(x)[:-2]:
            raise ValueError(f"DecoderBlock: memory {np.shape(memory)} must have the batch of x {np.shape(x)}")
        a = self.norm1(x) if self.norm_first else x
        a = self.attn(a, a, a, mask, is_causal=is_causal, return_weights=return_weights, cache=cache, **options)
        a, weights = a if return_weights else (a, None)
        x = self.dropout(a, x)
        x = x if self.norm_first else self.norm1(x)

        c = self.norm2(x) if self.norm_first else x
        c = self.cross_attn(c, memory, memory, memory_mask, return_weights=return_weights,
                            cache=None if cache is None else cache.memory)
        c, cross_weights = c if return_weights else (c, None)
        x = self.dropout(c, x)
        x = x if self.norm_first else self.norm2(x)

        f = self.norm3(x) if self.norm_first else x
        x = self.dropout(self.ff(f), x)
        x = x if self.norm_first else self.norm3(x)
        return (x, (weights, cross_weights)) if return_weights else x

    def extra_repr(self):
        return "" if self.norm_first else "norm_first=False"
