"""The original Transformer: Vaswani et al. 2017, "Attention Is All You Need"."""
import math
from dataclasses import dataclass

from minitx import nn
from minitx.models.base import EncoderDecoder, past_of, positions_of


@dataclass
class Seq2SeqConfig:
    """The paper's base model; the fields are named as in nn.Transformer.

    tie_embeddings makes one matrix of both embeddings and the output layer (section 3.4): the vocabularies must be one.
    """

    src_vocab_size: int = 37000
    tgt_vocab_size: int = 37000
    d_model: int = 512
    num_heads: int = 8
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    d_ff: int = 2048
    dropout: float = 0.1
    max_len: int = 5000
    norm_first: bool = False
    activation: str = "relu"
    tie_embeddings: bool = False


class Seq2Seq(EncoderDecoder):
    """Reads one sequence, writes another: nn.Transformer between embeddings, sinusoidal positions and an output layer.

        ids (B, S), decoder_ids (B, T)   ->   logits (B, T, tgt_vocab_size), or with head=None (B, T, d_model)

    attention_mask (B, S) and decoder_attention_mask (B, T) have 1 for a token and 0 for padding; the decoder sees no
    later token. Positions count the tokens alone, so that padding on either side changes no result but its own.
    `encode` and `decode` are the two halves, for writing one token at a time (generate.generate). It is trained
    with decoder_ids that start with a begin token and lag one step behind the targets, schedule.noam_lr (section 5.3)
    and ops.cross_entropy with label_smoothing=0.1 (section 5.4).

    Embeddings are multiplied by sqrt(d_model) (section 3.4) and start N(0, 1 / d_model). As in nn.Transformer, a layer
    norm stands behind each stack, and dropout falls on attention weights and inside the nets too, which the paper has
    not.

    TypeError for ids that are no integers, ValueError for a sequence that is too long, IndexError for an unknown id.
    """

    configs, heads = (Seq2SeqConfig,), ("lm", None)
    context = property(lambda self: self.config.max_len)

    def __init__(self, config=None, head="lm"):
        c = self.configure(config, head)
        if c.tie_embeddings and c.src_vocab_size != c.tgt_vocab_size:
            raise ValueError(f"Seq2Seq: tie_embeddings needs one vocabulary, got src_vocab_size {c.src_vocab_size} and "
                             f"tgt_vocab_size {c.tgt_vocab_size}")
        with nn.init.undrawn():                                             # drawn below
            self.src_embed = nn.Embedding(c.src_vocab_size, c.d_model)
            self.tgt_embed = nn.Embedding(c.tgt_vocab_size, c.d_model)
        self.positions = nn.PositionalEncoding(c.d_model, c.max_len, c.dropout)
        self.transformer = nn.Transformer(c.d_model, c.num_heads, c.num_encoder_layers, c.num_decoder_layers, c.d_ff,
                                          c.dropout, c.norm_first, activation=c.activation)
        self.lm_head = nn.Linear(c.d_model, c.tgt_vocab_size) if head else None
        for embedding in (self.src_embed, self.tgt_embed):
            embedding.weight.data[...] = nn.init.normal(embedding.weight.shape, c.d_model ** -0.5)
        if c.tie_embeddings:
            self.src_embed.weight = self.tgt_embed.weight
            if head:
                self.lm_head.weight = self.tgt_embed.weight

    def encode(self, ids, attention_mask=None, *, return_weights=False):
        """ids (B, S) -> memory (B, S, d_model), or (memory, [weights (B, H, S, S), one a layer])."""
        x, mask = self.embed(self.src_embed, ids, attention_mask)
        return self.transformer.encoder(x, mask, return_weights=return_weights)

    def decode(self, decoder_ids, memory, attention_mask=None, decoder_attention_mask=None, *, cache=None,
               return_weights=False):
        """decoder_ids (B, T) and what encode made of the source, whose mask is attention_mask -> what the model gives,
        or (that, [(self, cross) weights (B, H, T, T) and (B, H, T, S), one pair a layer]).
        """
        x, mask = self.embed(self.tgt_embed, decoder_ids, decoder_attention_mask, "decoder_", cache)
        memory_mask = self.read_memory(memory, decoder_ids, attention_mask)
        x = self.transformer.decoder(x, memory, mask, memory_mask, is_causal=True, cache=cache,
                                     return_weights=return_weights)
        x, weights = x if return_weights else (x, None)
        x = x if self.lm_head is None else self.lm_head(x)
        return (x, weights) if return_weights else x

    def embed(self, embedding, ids, attention_mask, whose="", cache=None):
        """ids (B, T) -> (vectors with their positions (B, T, C), mask (B, 1, past + T) or None)."""
        mask = self.read(ids, attention_mask, self.context, whose, cache)
        x = embedding(ids) * math.sqrt(self.config.d_model)
        return self.positions(x, positions_of(ids, mask, past_of(cache))), mask

    def extra_repr(self):
        c = self.config
        return (f"{c.num_encoder_layers} + {c.num_decoder_layers} layers, {c.num_heads} heads, {c.d_model} wide, "
                f"{c.src_vocab_size} and {c.tgt_vocab_size} symbols")
