"""BART: Lewis et al. 2020, "BART: Denoising Sequence-to-Sequence Pre-training"."""
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from minitx import nn
from minitx.models.base import EncoderDecoder, activation, past_of, set_rates
from minitx.nn.layers import check_size


@dataclass
class BartConfig:
    """The fields and defaults of the published configuration, which is that of BART large.

    BART base, 139 420 416 parameters, is 768 wide, with 6 layers, 12 heads and 3072 in the nets on both sides.
    activation_function is "gelu" (exact), "gelu_new" (the tanh form), "relu", "silu" or "tanh". A target starts with
    decoder_start_token_id and ends with eos_token_id, one or several; what is written begins with forced_bos_token_id and
    has forced_eos_token_id in its last place, where they are not None. tie_word_embeddings=False gives the output layer a
    matrix of its own.
    """
    model_type: ClassVar[str] = "bart"

    vocab_size: int = 50265
    max_position_embeddings: int = 1024
    encoder_layers: int = 12
    encoder_ffn_dim: int = 4096
    encoder_attention_heads: int = 16
    decoder_layers: int = 12
    decoder_ffn_dim: int = 4096
    decoder_attention_heads: int = 16
    activation_function: str = "gelu"
    d_model: int = 1024
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    init_std: float = 0.02
    scale_embedding: bool = False
    tie_word_embeddings: bool = True
    pad_token_id: int | None = 1
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int = 2
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | list[int] | None = 2


class BartPositions(nn.Module):
    """What comes between the embedding and the first block: a trained row for each position, layer norm, dropout.

    x (B, T, d_model) -> the same shape.
    """

    offset = 2      # fairseq's positions begin after the padding id, which was 1: the first two rows are never used

    def __init__(self, config):
        self.table = nn.LearnedPositions(config.max_position_embeddings + self.offset, config.d_model)
        self.norm = nn.LayerNorm(config.d_model)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x, past=0):
        first = past + self.offset
        return self.drop(self.norm(self.table(x, np.arange(first, first + x.shape[1]))))


class BART(EncoderDecoder):
    """Reads one text, writes another: the original Transformer with learned positions and a norm on the embeddings.

        ids (B, S), decoder_ids (B, T)   ->   logits (B, T, vocab_size), or with head=None (B, T, d_model)

    S and T are at most max_position_embeddings. attention_mask (B, S) and decoder_attention_mask (B, T) have 1 for a
    token and 0 for padding; the decoder sees no later token. Positions count padding too, as in the published model:
    pad on the right, where it changes no result but its own. `encode` and `decode` are the two halves, for writing
    one token at a time (generate.generate). The output layer's bias is not trained.

    TypeError for ids that are no integers, ValueError for a sequence that is too long, IndexError for an unknown id.
    TypeError for a config that is no BartConfig, ValueError for one that makes no model.
    """

    configs, heads = (BartConfig,), ("lm", None)
    context = property(lambda self: self.config.max_position_embeddings)
    decoder_embed: nn.Embedding | None = None                               # where an untied file has another than `shared`

    def __init__(self, config=None, head="lm"):
        c = self.configure(config, head)
        check_size("BART", max_position_embeddings=c.max_position_embeddings)
        options = dict(dropout=c.dropout, norm_first=False, activation=activation("BART", c.activation_function))
        with nn.init.undrawn():                                             # initialise draws, for the whole model
            self.shared = nn.Embedding(c.vocab_size, c.d_model, c.pad_token_id)
            self.encoder_positions, self.decoder_positions = BartPositions(c), BartPositions(c)
            self.encoder = nn.Encoder(c.encoder_layers, c.d_model, c.encoder_attention_heads, c.encoder_ffn_dim,
                                      **options)
            self.decoder = nn.Decoder(c.decoder_layers, c.d_model, c.decoder_attention_heads, c.decoder_ffn_dim,
                                      **options)
            self.lm_head = nn.Linear(c.d_model, c.vocab_size, bias=False) if head else None
        if head:
            self.lm_head.bias = nn.Buffer(nn.init.zeros((c.vocab_size,)))
        if head and c.tie_word_embeddings:
            self.lm_head.weight = self.shared.weight
        set_rates(self, c.attention_dropout, c.activation_dropout)
        self.initialise()

    def initialise(self):
        """Matrices N(0, init_std), the padding's embedding 0. Biases are 0."""
        for p in self.parameters():
            if p.ndim == 2:
                p.data = nn.init.normal(p.shape, self.config.init_std)
        if self.config.pad_token_id is not None:
            self.shared.weight.data[self.config.pad_token_id] = 0

    def encode(self, ids, attention_mask=None, *, return_weights=False):
        """ids (B, S) -> memory (B, S, d_model), or (memory, weights)."""
        x, mask = self.embed(ids, attention_mask)
        return self.encoder(self.encoder_positions(x), mask, return_weights=return_weights)

    def decode(self, decoder_ids, memory, attention_mask=None, decoder_attention_mask=None, *, cache=None,
               return_weights=False):
        """decoder_ids (B, T), what encode made of the source, and the source's mask -> what the model gives,
        or (that, weights).
        """
        x, mask = self.embed(decoder_ids, decoder_attention_mask, "decoder_", cache)
        memory_mask = self.read_memory(memory, decoder_ids, attention_mask)
        x = self.decoder(self.decoder_positions(x, past_of(cache)), memory, mask, memory_mask, is_causal=True, cache=cache,
                         return_weights=return_weights)
        x, weights = x if return_weights else (x, None)
        x = x if self.lm_head is None else self.lm_head(x)
        return (x, weights) if return_weights else x

    def embed(self, ids, attention_mask, whose="", cache=None):
        """ids (B, T) -> (vectors (B, T, C), mask (B, 1, past + T) or None)."""
        mask = self.read(ids, attention_mask, self.context, whose, cache)
        x = (self.decoder_embed if whose and self.decoder_embed else self.shared)(ids)
        return x * math.sqrt(self.config.d_model) if self.config.scale_embedding else x, mask

    def extra_repr(self):
        c = self.config
        return (f"{c.encoder_layers} + {c.decoder_layers} layers, {c.d_model} wide, {c.vocab_size} symbols, "
                f"context {c.max_position_embeddings}")
