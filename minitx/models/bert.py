"""BERT: Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding"; and its
kin RoBERTa (Liu et al. 2019) and DistilBERT (Sanh et al. 2019), of the same build."""
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from minitx import nn
from minitx.models.base import Model, activation, make_blocks
from minitx.nn.layers import activation_named
from minitx.tensor import as_numpy


@dataclass
class BertConfig:
    """The fields and defaults of the published configuration: BERT base, uncased (109 482 240 parameters without head).

    hidden_act is a name as in GPT2Config. num_labels counts the classes of the heads "sequence" and "token", before which
    stands a dropout of classifier_dropout, or hidden_dropout_prob where that is None.
    """
    model_type: ClassVar[str] = "bert"

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    classifier_dropout: float | None = None
    tie_word_embeddings: bool = True
    num_labels: int = 2


@dataclass
class RobertaConfig(BertConfig):
    """RoBERTa: BERT's fields. The file of RoBERTa base (124 645 632 parameters) says besides max_position_embeddings=514,
    type_vocab_size=1 and layer_norm_eps=1e-5."""
    model_type: ClassVar[str] = "roberta"

    vocab_size: int = 50265
    pad_token_id: int = 1


@dataclass
class DistilBertConfig:
    """DistilBERT base (66 362 880 parameters without head): its own names for the fields, and what the model reads by
    BERT's names. seq_classif_dropout is the head "sequence"'s."""
    model_type: ClassVar[str] = "distilbert"

    vocab_size: int = 30522
    max_position_embeddings: int = 512
    n_layers: int = 6
    n_heads: int = 12
    dim: int = 768
    hidden_dim: int = 3072
    dropout: float = 0.1
    attention_dropout: float = 0.1
    activation: str = "gelu"
    initializer_range: float = 0.02
    seq_classif_dropout: float = 0.2
    pad_token_id: int | None = 0
    tie_word_embeddings: bool = True
    num_labels: int = 2

    type_vocab_size: ClassVar[int] = 0                                      # it has no token types
    layer_norm_eps: ClassVar[float] = 1e-12
    num_hidden_layers = property(lambda self: self.n_layers)
    num_attention_heads = property(lambda self: self.n_heads)
    hidden_size = property(lambda self: self.dim)
    intermediate_size = property(lambda self: self.hidden_dim)
    hidden_act = property(lambda self: self.activation)
    hidden_dropout_prob = property(lambda self: self.dropout)
    attention_probs_dropout_prob = property(lambda self: self.attention_dropout)
    classifier_dropout = property(lambda self: self.dropout)


class Block(nn.EncoderBlock):
    """One layer. DistilBERT has no dropout on what attention adds; none has one inside the feed-forward net."""

    def __init__(self, c):
        self.norm_first = False
        self.attn = nn.MultiHeadAttention(c.hidden_size, c.num_attention_heads, c.attention_probs_dropout_prob)
        self.ff = nn.FeedForward(c.hidden_size, c.intermediate_size, 0.0, activation=activation("BERT", c.hidden_act))
        self.norm1 = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.norm2 = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.dropout = nn.Dropout(c.hidden_dropout_prob)
        if c.model_type == "distilbert":
            self.ff.net.append(self.dropout)
            self.dropout = nn.Dropout(0.0)


class Pooler(nn.Module):
    """One vector for a sequence, made of its first token: x (B, T, d_model) -> act(W x[:, 0] + b) (B, d_model)."""

    def __init__(self, d_model, activation="tanh", dropout=0.0):
        self.dropout = nn.Dropout(dropout)
        self.dense = nn.Linear(d_model, d_model)
        self.activation = activation_named(activation)

    def forward(self, x):
        return self.activation(self.dense(self.dropout(x[:, 0])))


class MaskedLMHead(nn.Module):
    """A score for every word at every position: x (B, T, d_model) -> decoder(norm(act(dense(x)))) (B, T, vocab_size)."""

    def __init__(self, d_model, vocab_size, activation, eps):
        self.dense = nn.Linear(d_model, d_model)
        self.activation = activation_named(activation)
        self.norm = nn.LayerNorm(d_model, eps)
        self.decoder = nn.Linear(d_model, vocab_size)

    def forward(self, x):
        return self.decoder(self.norm(self.activation(self.dense(x))))


class BERT(Model):
    """A stack of post-norm blocks in which every position sees every other.

        ids (B, T)   ->   head "mlm"        scores of the words (B, T, vocab_size)
                          head "token"      scores of the classes of each token (B, T, num_labels)
                          head "sequence"   scores of the classes of the whole (B, num_labels)
                          head None         the last hidden states (B, T, C)

    The config's class says which of the three models it is; they differ in positions, token types and heads. With
    head=None BERT and RoBERTa have a pooler: `model.pooler(model(ids))` is (B, C). It and the head "sequence" read the
    first token, whatever that is: for them, pad on the right.

    attention_mask (B, T) has 1 for a token and 0 for padding, on either side. BERT's and DistilBERT's positions are
    0 .. T-1 whatever the mask; RoBERTa's count from pad_token_id + 1 the ids that are neither pad_token_id nor masked,
    and all others stand at pad_token_id, a row that is not trained (the published class goes by the ids alone, so mask
    what is padding, and pad with pad_token_id). With return_weights: (result, [weights (B, H, T, T), one a layer]).
    token_type_ids (B, T), integers below
    type_vocab_size, tell the sentences of a pair apart; left out, all are 0.

    TypeError for ids that are no integers, ValueError for a sequence that is too long and for token types where there
    are none, IndexError for an unknown id. TypeError for a config of another kind, ValueError for one that makes no model.
    """

    configs, heads = (BertConfig, RobertaConfig, DistilBertConfig), ("mlm", "sequence", "token", None)

    def __init__(self, config=None, head="mlm"):
        c = self.configure(config, head)
        if self.is_roberta and c.pad_token_id is None:
            raise ValueError("BERT: RoBERTa's positions begin behind pad_token_id: it must be a number")
        C, untrained = c.hidden_size, c.pad_token_id if self.is_roberta else None
        with nn.init.undrawn():                                             # initialise draws, for the whole model
            self.word_embeddings = nn.Embedding(c.vocab_size, C, c.pad_token_id)
            self.position_embeddings = nn.Embedding(c.max_position_embeddings, C, untrained)
            self.token_type_embeddings = nn.Embedding(c.type_vocab_size, C) if c.type_vocab_size else None
            self.norm = nn.LayerNorm(C, c.layer_norm_eps)
            self.drop = nn.Dropout(c.hidden_dropout_prob)
            self.layers = make_blocks("BERT", Block, c, c.num_hidden_layers)
            pooled = {"bert": (None, "sequence"), "roberta": (None,), "distilbert": ()}[c.model_type]
            self.pooler = Pooler(C) if head in pooled else None
            self.head = self.build(head)
        if head == "mlm" and c.tie_word_embeddings:
            self.head.decoder.weight = self.word_embeddings.weight
        self.initialise()

    @property
    def is_roberta(self):
        return self.config.model_type == "roberta"

    def build(self, head):
        """The head of that name, each family's its own."""
        c, C = self.config, self.config.hidden_size
        if head is None:
            return None
        if head == "mlm":
            act = "gelu" if self.is_roberta else activation("BERT", c.hidden_act)
            return MaskedLMHead(C, c.vocab_size, act, c.layer_norm_eps)
        p = c.hidden_dropout_prob if c.classifier_dropout is None else c.classifier_dropout
        first = []
        if head == "sequence" and self.is_roberta:
            first = [Pooler(C, dropout=p)]
        elif head == "sequence" and c.model_type == "distilbert":
            first, p = [Pooler(C, "relu")], c.seq_classif_dropout
        return nn.Sequential(*first, nn.Dropout(p), nn.Linear(C, c.num_labels))

    def initialise(self):
        """Matrices N(0, initializer_range), their rows for padding 0; biases 0."""
        for p in self.parameters():
            if p.ndim == 2:
                p.data = nn.init.normal(p.shape, self.config.initializer_range)
        for table in (self.word_embeddings, self.position_embeddings):
            if table.padding_idx is not None:
                table.weight.data[table.padding_idx] = 0

    @property
    def context(self):
        """How many tokens it can see: RoBERTa's positions begin behind pad_token_id."""
        return self.config.max_position_embeddings - (self.config.pad_token_id + 1 if self.is_roberta else 0)

    def forward(self, ids, attention_mask=None, token_type_ids=None, *, return_weights=False):
        mask = self.read(ids, attention_mask, self.context)                 # (B, 1, T)
        x = self.drop(self.norm(self.embed(ids, mask, token_type_ids)))     # (B, T, C)
        x, weights = nn.run_blocks(self.layers, x, mask, return_weights=return_weights)
        if self.head is not None:
            x = self.head(x if self.pooler is None else self.pooler(x))
        return (x, weights) if return_weights else x

    def embed(self, ids, mask, token_type_ids):
        """Word, position and token type of each token: (B, T) -> (B, T, C)."""
        shape = np.shape(ids)
        x = self.word_embeddings(ids)
        x = x + (self.position_embeddings(self.roberta_positions(ids, mask)) if self.is_roberta else
                 self.position_embeddings.weight[:shape[1]])
        if token_type_ids is None:
            return x if self.token_type_embeddings is None else x + self.token_type_embeddings.weight[:1]
        if self.token_type_embeddings is None:
            raise ValueError("BERT: this model has no token types; leave out token_type_ids")
        if np.shape(token_type_ids) != shape:
            raise ValueError(f"BERT: token_type_ids has shape {np.shape(token_type_ids)}, the ids {shape}")
        return x + self.token_type_embeddings(token_type_ids)

    def roberta_positions(self, ids, mask):
        """Where RoBERTa's tokens stand: (B, T)."""
        pad = self.config.pad_token_id
        counted = as_numpy(ids) != pad
        counted = counted if mask is None else counted & mask[:, 0]
        return counted.cumsum(axis=1) * counted + pad

    def extra_repr(self):
        c = self.config
        return (f"{c.num_hidden_layers} layers, {c.num_attention_heads} heads, {c.hidden_size} wide, "
                f"{c.vocab_size} symbols, {c.max_position_embeddings} positions")
