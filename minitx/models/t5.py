"""T5: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer"."""
import functools
from dataclasses import dataclass
from typing import ClassVar

from minitx import nn, ops
from minitx.models.base import EncoderDecoder, activation, make_blocks, past_of


@dataclass
class T5Config:
    """The fields and defaults of the published configuration, which is that of T5 small: 60 506 624 parameters.

    num_decoder_layers None means num_layers. feed_forward_proj is "relu", "gelu", "gelu_new", "silu" or "tanh"; with
    "gated-" in front the net has a gate (Shazeer 2020), and "gated-gelu" is the tanh form, as its weights were trained.
    T5 1.1 is "gated-gelu" with tie_word_embeddings=False. scale_decoder_outputs says whether the head's input is
    multiplied by d_model^-0.5, None: if the head is tied. A target starts with decoder_start_token_id and ends with
    eos_token_id, one or several.
    """
    model_type: ClassVar[str] = "t5"

    vocab_size: int = 32128
    d_model: int = 512
    d_kv: int = 64
    d_ff: int = 2048
    num_layers: int = 6
    num_decoder_layers: int | None = None
    num_heads: int = 8
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-6
    initializer_factor: float = 1.0
    feed_forward_proj: str = "relu"
    tie_word_embeddings: bool = True
    scale_decoder_outputs: bool | None = None
    pad_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 1
    decoder_start_token_id: int = 0


class T5EncoderBlock(nn.EncoderBlock):
    """An EncoderBlock of T5's parts: RMS norm, no biases, scores that are not scaled."""

    def __init__(self, config):
        self.norm_first = True
        self.attn, self.ff = attention(config), feed_forward(config)
        self.norm1, self.norm2 = norm(config), norm(config)
        self.dropout = nn.Dropout(config.dropout_rate)


class T5DecoderBlock(nn.DecoderBlock):
    """A DecoderBlock of T5's parts."""

    def __init__(self, config):
        self.norm_first = True
        self.attn, self.cross_attn, self.ff = attention(config), attention(config), feed_forward(config)
        self.norm1, self.norm2, self.norm3 = norm(config), norm(config), norm(config)
        self.dropout = nn.Dropout(config.dropout_rate)


def norm(config):
    return nn.RMSNorm(config.d_model, config.layer_norm_epsilon)


def attention(config):
    """Heads of width d_kv, whatever d_model is. Their scores are q k', not scaled: w_q starts smaller instead."""
    layer = nn.MultiHeadAttention(config.d_model, config.num_heads, config.dropout_rate, bias=False, d_k=config.d_kv)
    layer.attend = functools.partial(ops.scaled_dot_product_attention, scale=1.0)
    return layer


def feed_forward(config):
    gated, _, name = config.feed_forward_proj.rpartition("-")
    if gated not in ("", "gated"):
        raise ValueError(f'T5: feed_forward_proj must be an activation, or "gated-" and one; got '
                         f"{config.feed_forward_proj!r}")
    name = "gelu_new" if gated and name == "gelu" else name
    return nn.FeedForward(config.d_model, config.d_ff, config.dropout_rate, activation=activation("T5", name),
                          bias=False, gated=bool(gated))


class T5Stack(nn.Module):
    """Blocks that share one relative position bias, with a last norm behind them and dropout at both ends.

    x (B, T, d_model) -> the same shape, or (x, [weights, one a layer]) with return_weights. inputs are the block's: the
    mask, or memory and both masks.
    """

    def __init__(self, block, num_layers, config, bidirectional):
        self.relative_bias = nn.RelativePositionBias(config.num_heads, config.relative_attention_num_buckets,
                                                     config.relative_attention_max_distance, bidirectional)
        self.layers = make_blocks("T5", block, config, num_layers)
        self.norm = norm(config)
        self.drop = nn.Dropout(config.dropout_rate)

    def forward(self, x, *inputs, is_causal=False, return_weights=False, cache=None):
        T = x.shape[1]
        bias = self.relative_bias(T, past_of(cache) + T)                    # (1, H, T, past + T)
        x, weights = nn.run_blocks(self.layers, self.drop(x), *inputs, is_causal=is_causal, bias=bias, cache=cache,
                                   return_weights=return_weights)
        x = self.drop(self.norm(x))
        return (x, weights) if return_weights else x


class T5(EncoderDecoder):
    """Reads one text, writes another; positions are known by the distance between query and key alone.

        ids (B, S), decoder_ids (B, T)   ->   logits (B, T, vocab_size), or with head=None (B, T, d_model)

    attention_mask (B, S) and decoder_attention_mask (B, T) have 1 for a token and 0 for padding, on either side; the
    decoder sees no later token. `encode` and `decode` are the two halves, for writing one token at a time
    (generate.generate). Cross-attention has no position bias. A tied head gets its input times d_model^-0.5, an
    untied one as it is, unless scale_decoder_outputs says otherwise.

    TypeError for ids that are no integers, ValueError for ids that are not (B, T), IndexError for an unknown id.
    TypeError for a config that is no T5Config, ValueError for one that makes no model.
    """

    configs, heads = (T5Config,), ("lm", None)
    context = None

    def __init__(self, config=None, head="lm"):
        c = self.configure(config, head)
        num_decoder_layers = c.num_layers if c.num_decoder_layers is None else c.num_decoder_layers
        with nn.init.undrawn():                                             # initialise draws, for the whole model
            self.shared = nn.Embedding(c.vocab_size, c.d_model)
            self.encoder = T5Stack(T5EncoderBlock, c.num_layers, c, bidirectional=True)
            self.decoder = T5Stack(T5DecoderBlock, num_decoder_layers, c, bidirectional=False)
            self.lm_head = nn.Linear(c.d_model, c.vocab_size, bias=False) if head else None
        if head and c.tie_word_embeddings:
            self.lm_head.weight = self.shared.weight
        self.scales_head = c.tie_word_embeddings if c.scale_decoder_outputs is None else c.scale_decoder_outputs
        self.initialise()

    def initialise(self):
        """Matrices (out, in) N(0, 1 / in), but w_q N(0, 1 / (in d_kv)), which keeps the scores small; embeddings and
        an untied head N(0, 1); position biases N(0, 1 / d_model); norms 1. Then all times initializer_factor.

        As in the published class.
        """
        c = self.config
        for name, p in self.named_parameters():
            if p.ndim == 1:
                p.data[...] = c.initializer_factor
                continue
            variance = 1 / p.shape[1]
            if name in ("shared.weight", "lm_head.weight"):
                variance = 1
            elif name.endswith("relative_bias.weight"):
                variance = 1 / c.d_model
            elif name.endswith("w_q.weight"):
                variance /= c.d_kv
            p.data = nn.init.normal(p.shape, c.initializer_factor * variance ** 0.5)

    def encode(self, ids, attention_mask=None, *, return_weights=False):
        """ids (B, S) -> memory (B, S, d_model), or (memory, weights)."""
        return self.encoder(*self.embed(ids, attention_mask), return_weights=return_weights)

    def decode(self, decoder_ids, memory, attention_mask=None, decoder_attention_mask=None, *, cache=None,
               return_weights=False):
        """decoder_ids (B, T), what encode made of the source, and the source's mask -> what the model gives,
        or (that, weights).
        """
        x, mask = self.embed(decoder_ids, decoder_attention_mask, "decoder_", cache)
        memory_mask = self.read_memory(memory, decoder_ids, attention_mask)
        x = self.decoder(x, memory, mask, memory_mask, is_causal=True, cache=cache, return_weights=return_weights)
        x, weights = x if return_weights else (x, None)
        if self.lm_head is not None:
            x = self.lm_head(x * self.config.d_model ** -0.5 if self.scales_head else x)
        return (x, weights) if return_weights else x

    def embed(self, ids, attention_mask, whose="", cache=None):
        """ids (B, T) -> (vectors (B, T, C), mask (B, 1, past + T) or None)."""
        mask = self.read(ids, attention_mask, whose=whose, cache=cache)
        return self.shared(ids), mask

    def extra_repr(self):
        c = self.config
        return (f"{len(self.encoder.layers)} + {len(self.decoder.layers)} layers, {c.num_heads} heads, "
                f"{c.d_model} wide, {c.vocab_size} symbols")
