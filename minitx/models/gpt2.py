"""GPT-2: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"."""
import math
from dataclasses import dataclass
from typing import ClassVar

from minitx import nn
from minitx.models.base import Model, activation, make_blocks


@dataclass
class GPT2Config:
    """The fields and defaults of the published configuration (124 439 808 parameters), and `bias` of ours.

    n_inner None means 4 n_embd. activation_function is "gelu_new" (the tanh form), "gelu" (exact), "relu", "silu" or
    "tanh", or a published name for one of them. bias=False leaves out every bias, those of the layer norms too.
    """
    model_type: ClassVar[str] = "gpt2"

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    resid_pdrop: float = 0.1
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    bias: bool = True


class Block(nn.EncoderBlock):
    """One layer: GPT-2 has no dropout inside the feed-forward net."""

    def __init__(self, c):
        self.norm_first = True
        self.attn = nn.MultiHeadAttention(c.n_embd, c.n_head, c.attn_pdrop, bias=c.bias)
        self.ff = nn.FeedForward(c.n_embd, 4 * c.n_embd if c.n_inner is None else c.n_inner, 0.0, bias=c.bias,
                                 activation=activation("GPT2", c.activation_function))
        self.norm1 = nn.LayerNorm(c.n_embd, c.layer_norm_epsilon, c.bias)
        self.norm2 = nn.LayerNorm(c.n_embd, c.layer_norm_epsilon, c.bias)
        self.dropout = nn.Dropout(c.resid_pdrop)


class GPT2(Model):
    """A stack of pre-norm blocks in which no position sees what comes after it.

        ids (B, T)   ->   logits (B, T, vocab_size), or with head=None the last hidden states (B, T, n_embd)

    ids are integers below vocab_size, T at most n_positions. attention_mask (B, T) has 1 for a token and 0 for
    padding, on either side; positions count the tokens alone, so that padding changes no result but its own. (The
    published class counts padding too unless it is given position_ids, which its generate does.) With return_weights:
    (result, [weights (B, H, T, T), one a layer]).

    TypeError for ids that are no integers, ValueError for a sequence that is too long, IndexError for an unknown id.
    TypeError for a config that is no GPT2Config, ValueError for one that makes no model.
    """

    configs, heads = (GPT2Config,), ("lm", None)

    def __init__(self, config=None, head="lm"):
        c = self.configure(config, head)
        with nn.init.undrawn():                                             # initialise draws, for the whole model
            self.wte = nn.Embedding(c.vocab_size, c.n_embd)
            self.wpe = nn.LearnedPositions(c.n_positions, c.n_embd)
            self.drop = nn.Dropout(c.embd_pdrop)
            self.h = make_blocks("GPT2", Block, c, c.n_layer)
            self.ln_f = nn.LayerNorm(c.n_embd, c.layer_norm_epsilon, c.bias)
            self.lm_head = nn.Linear(c.n_embd, c.vocab_size, bias=False) if head else None
        if head and c.tie_word_embeddings:
            self.lm_head.weight = self.wte.weight
        self.initialise()

    def initialise(self):
        """Matrices N(0, initializer_range), smaller where they add to the residual stream, 2 n_layer times; biases 0."""
        c = self.config
        for name, p in self.named_parameters():
            if p.ndim == 2:
                adds = name.endswith(("attn.w_o.weight", "ff.net.3.weight"))
                p.data = nn.init.normal(p.shape, c.initializer_range / (math.sqrt(2 * c.n_layer) if adds else 1))

    def forward(self, ids, attention_mask=None, *, return_weights=False):
        mask = self.read(ids, attention_mask, self.config.n_positions)      # (B, 1, T)
        positions = None if mask is None else nn.position_ids_from_mask(mask[:, 0])
        x = self.drop(self.wpe(self.wte(ids), positions))                   # (B, T, C)
        x, weights = nn.run_blocks(self.h, x, mask, is_causal=True, return_weights=return_weights)
        x = self.ln_f(x)
        x = x if self.lm_head is None else self.lm_head(x)
        return (x, weights) if return_weights else x

    def extra_repr(self):
        c = self.config
        return f"{c.n_layer} layers, {c.n_head} heads, {c.n_embd} wide, {c.vocab_size} symbols, context {c.n_positions}"
