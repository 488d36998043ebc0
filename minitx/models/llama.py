"""LLaMA: Touvron et al. 2023, "LLaMA: Open and Efficient Foundation Language Models", and later ones of its make."""
import sys
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from minitx import backend, nn, ops
from minitx.backend import xp_of
from minitx.models.base import DecoderOnly, activation, make_blocks, past_of, positions_of
from minitx.nn.layers import check_size


@dataclass
class LlamaConfig:
    """The fields and defaults of the published configuration, LLaMA 7B's (6 738 415 616 parameters).

    num_key_value_heads None means num_attention_heads, head_dim None hidden_size / num_attention_heads. hidden_act is
    a name as in GPT2Config. rope_scaling, where a model was made to read further than it was first trained to, is a dict
    as `rope_frequencies` takes it. Writing stops at eos_token_id, one or several.
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
    eos_token_id: int | list[int] | None = 2


SCALINGS: dict[str, tuple[str, ...]] = {
    "default": (), "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")}


def rope_frequencies(head_dim, base=10000.0, scaling=None):
    """The angle by which each pair of a head turns from one position to the next: float64 (head_dim / 2,).

        default   f_i = base^(-2i / head_dim)           Su et al. 2021, "RoFormer"
        linear    f / factor                            Chen et al. 2023, "Extending Context Window of Large Language
                                                        Models via Position Interpolation"
        llama3    s f + (1 - s) f / factor              Llama 3.1's; Grattafiori et al. 2024, "The Llama 3 Herd of Models"
                  n = original_max_position_embeddings f / 2 pi         how often a pair turns within the first context
                  s = (n - low_freq_factor) / (high_freq_factor - low_freq_factor), from 0 to 1

    scaling is None or a dict of rope_type, one of these, and the numbers that it takes, such as {"rope_type": "linear",
    "factor": 4.0}. ValueError for another rope_type, and for a number that is missing, that cannot be or is not taken.
    """
    f = base ** (np.arange(head_dim // 2) * (-2 / head_dim))
    scaling = checked_scaling(scaling, "rope_frequencies: scaling")
    if scaling["rope_type"] == "default":
        return f
    if scaling["rope_type"] == "linear":
        return f / scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    n = scaling["original_max_position_embeddings"] * f / (2 * np.pi)
    s = np.clip((n - low) / (high - low), 0, 1)
    return s * f + (1 - s) * f / scaling["factor"]


def checked_scaling(scaling, source):
    """The dict of a scaling in today's form: rope_type, which files used to call type, and its numbers; no nulls.

    `source` is what errors call it; they are those of `rope_frequencies`.
    """
    if scaling is not None and not isinstance(scaling, dict):
        raise ValueError(f"{source} must be a dict or None, got {scaling!r}")
    numbers = {name: value for name, value in (scaling or {}).items() if value is not None}
    kinds = [numbers.pop(name) for name in ("rope_type", "type") if name in numbers] or ["default"]
    kind, wanted = kinds[0], SCALINGS.get(str(kinds[0]))
    if wanted is None:
        raise ValueError(f"{source}: rope_type {kind!r} is not built, only {', '.join(map(repr, SCALINGS))}")
    if kind != kinds[-1]:
        raise ValueError(f"{source}: rope_type {kind!r} and type {kinds[-1]!r} contradict each other")
    if missing := [name for name in wanted if name not in numbers]:
        raise ValueError(f"{source}: rope_type {kind!r} needs {', '.join(missing)}")
    if foreign := [name for name in numbers if name not in wanted]:
        raise ValueError(f"{source}: rope_type {kind!r} takes no {', '.join(foreign)}")
    for name, value in numbers.items():
        if type(value) not in (int, float) or not 0 < value <= sys.float_info.max:
            raise ValueError(f"{source}: {name} must be a finite number greater than 0, got {value!r}")
    if kind == "llama3" and not numbers["low_freq_factor"] < numbers["high_freq_factor"]:
        raise ValueError(f"{source}: low_freq_factor {numbers['low_freq_factor']} must be less than high_freq_factor "
                         f"{numbers['high_freq_factor']}")
    return {"rope_type": kind} | {name: numbers[name] for name in wanted}


class Turn:
    """ops.rope with frequencies (K/2,), which lie on every device that has asked for them."""

    def __init__(self, frequencies):
        self.frequencies = {"cpu": frequencies}

    def __call__(self, x, positions):
        if x.device not in self.frequencies:
            self.frequencies[x.device] = backend.like(self.frequencies["cpu"], x)
        return ops.rope(x, positions, frequencies=self.frequencies[x.device])


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
        self.attn.rotate = Turn(rope_frequencies(self.attn.d_k, c.rope_theta, c.rope_scaling))
        self.ff = nn.FeedForward(c.hidden_size, c.intermediate_size, 0.0, gated=True, bias=c.mlp_bias,
                                 activation=activation("Llama", c.hidden_act))
        self.norm1 = nn.RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.norm2 = nn.RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.dropout = nn.Dropout(0.0)


class Llama(DecoderOnly):
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
    context = property(lambda self: self.config.max_position_embeddings)

    def __init__(self, config=None, head="lm"):
        c = self.configure(config, head)
        check_size("Llama", max_position_embeddings=c.max_position_embeddings)
        if not c.rope_theta > 0:
            raise ValueError(f"Llama: rope_theta must be greater than 0, got {c.rope_theta}")
        checked_scaling(c.rope_scaling, "Llama: rope_scaling")
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

    def hidden(self, ids, attention_mask=None, cache=None, return_weights=False):
        past = past_of(cache)
        mask = self.read(ids, attention_mask, self.context, cache=cache)    # (B, 1, past + T)
        positions = positions_of(ids, mask, past)
        x = self.embed_tokens(ids)
        positions = xp_of(x.data).arange(x.shape[1]) if positions is None else positions
        x, weights = nn.run_blocks(self.layers, x, mask, is_causal=True, positions=positions, cache=cache,
                                   return_weights=return_weights)
        return self.norm(x), weights                                        # (B, T, C)

    def extra_repr(self):
        c = self.config
        return (f"{c.num_hidden_layers} layers, {c.num_attention_heads} heads, {c.hidden_size} wide, {c.vocab_size} "
                f"symbols, context {c.max_position_embeddings}")
