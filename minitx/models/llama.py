"""LLaMA: Touvron et al. 2023, "LLaMA: Open and Efficient Foundation Language Models", and later ones of its make."""
import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from minitx import nn
from minitx.models.base import Model, activation, make_blocks
from minitx.nn.layers import check_size


@dataclass
class LlamaConfig:
    """The fields and defaults of the published configuration, LLaMA 7B's (6 738 415 616 parameters).

    num_key_value_heads None means num_attention_heads, head_dim None hidden_size / num_attention_heads. hidden_act is
    a name as in GPT2Config. rope_scaling must be None: later models' stretched positions are not built.
    """
    model_type: ClassVar[str] = "llama"

    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    rope_theta: float = 10000.0
    rope_scaling: dict | None = None
    attention_bias: bool = False
    attention_dropout: float = 0.0
    mlp_bias: bool = False

    @property
    def n_positions(self):
        """max_position_embeddings, under the name that generate.sample asks for."""
        return self.max_position_embeddings


class Block(nn.EncoderBlock):
    """One layer: RMSNorm, queries and keys that are turned by their positions, a gated feed-forward net.

    Dropout falls on the attention weights alone.
    """

    def __init__(self, c):
        self.norm_first = True
        self.attn = nn.MultiHeadAttention(c.hidden_size, c.num_attention_heads, c.attention_dropout, d_k=c.head_dim,
                                          num_kv_heads=c.num_key_value_heads, bias=c.attention_bias)
        if self.attn.d_k % 2:
            raise ValueError(f"Llama: heads of width {self.attn.d_k} cannot be turned in pairs; set an even head_dim")
        self.attn.attend = functools.partial(nn.rotary_attention, base=c.rope_theta)
        self.ff = nn.FeedForward(c.hidden_size, c.intermediate_size, 0.0, gated=True, bias=c.mlp_bias,
                                 activation=activation("Llama", c.hidden_act))
        self.norm1 = nn.RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.norm2 = nn.RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.dropout = nn.Dropout(0.0)


class Llama(Model):
    """A stack of pre-norm blocks in which no position sees what comes after it.

        ids (B, T)   ->   logits (B, T, vocab_size), or with head=None the last hidden states (B, T, hidden_size)

    ids are integers below vocab_size, T at most max_position_embeddings. attention_mask (B, T) has 1 for a token and
    0 for padding, on either side; positions count the tokens alone, so that padding changes no result but its own.
    The published model, not told otherwise, counts padding too; as attention knows distances only, it gives the same.
    With return_weights: (result, [weights (B, H, T, T), one a layer]).

    TypeError for ids that are no integers, ValueError for a sequence that is too long, IndexError for an unknown id.
    TypeError for a config that is no LlamaConfig, ValueError for one that makes no model.
    """

    configs, heads = (LlamaConfig,), ("lm", None)

    def __init__(self, config=None, head="lm"):
        c = self.configure(config, head)
        check_size("Llama", max_position_embeddings=c.max_position_embeddings)
        if not c.rope_theta > 0:
            raise ValueError(f"Llama: rope_theta must be greater than 0, got {c.rope_theta}")
        if c.rope_scaling is not None:
            raise ValueError(f"Llama: rope_scaling {c.rope_scaling} is not built, only None")
        with nn.init.undrawn():                                             # initialise draws, for the whole model
            self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
            self.layers = make_blocks("Llama", Block, c, c.num_hidden_layers)
            self.norm = nn.RMSNorm(c.hidden_size, c.rms_norm_eps)
            self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, bias=False) if head else None
        if head and c.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        self.initialise()

    def initialise(self):
        """Matrices N(0, initializer_range), biases 0."""
        for p in self.parameters():
            if p.ndim == 2:
                p.data = nn.init.normal(p.shape, self.config.initializer_range)

    def forward(self, ids, attention_mask=None, *, return_weights=False):
        mask = self.read(ids, attention_mask, self.config.max_position_embeddings)          # (B, 1, T)
        positions = np.arange(np.shape(ids)[1]) if mask is None else nn.position_ids_from_mask(mask[:, 0])
        x = self.embed_tokens(ids)                                          # (B, T, C)
        x, weights = nn.run_blocks(self.layers, x, mask, is_causal=True, positions=positions, return_weights=return_weights)
        x = self.norm(x)
        x = x if self.lm_head is None else self.lm_head(x)
        return (x, weights) if return_weights else x

    def extra_repr(self):
        c = self.config
        return (f"{c.num_hidden_layers} layers, {c.num_attention_heads} heads, {c.hidden_size} wide, {c.vocab_size} "
                f"symbols, context {c.max_position_embeddings}")
