"""GPT-2: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"."""
import functools
import math
from dataclasses import dataclass
from typing import ClassVar

from minitx import nn, ops
from minitx.models.base import DecoderOnly, activation, make_blocks, past_of, positions_of


@dataclass
class GPT2Config:
    """The fields and defaults of the published configuration (124 439 808 parameters), and `bias` of ours.

    n_inner None means 4 n_embd. activation_function is "gelu_new" (the tanh form), "gelu" (exact), "relu", "silu" or
    "tanh", or a published name for one of them. Scores are divided by the root of a head's width unless
    scale_attn_weights is False, and by the number of their layer, from 1 on, if scale_attn_by_inverse_layer_idx is True.
    bias=False leaves out every bias, those of the layer norms too. Writing stops at eos_token_id, one or several.
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
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    tie_word_embeddings: bool = True
    eos_token_id: int | list[int] | None = 50256
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


class GPT2(DecoderOnly):
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
    context = property(lambda self: self.config.n_positions)

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
        self.scale_scores()
        self.initialise()

    def scale_scores(self):
        """Give each layer's attention the factor of its scores, where the config asks for another than 1 / sqrt(K)."""
        c = self.config
        if c.scale_attn_weights and not c.scale_attn_by_inverse_layer_idx:
            return
        for i, block in enumerate(self.h, 1):
            scale = 1 / math.sqrt(block.attn.d_k) if c.scale_attn_weights else 1.0
            scale = scale / i if c.scale_attn_by_inverse_layer_idx else scale
            block.attn.attend = functools.partial(ops.scaled_dot_product_attention, scale=scale)

    def initialise(self):
        """Matrices N(0, initializer_range), smaller where they add to the residual stream, 2 n_layer times; biases 0."""
        c = self.config
        for name, p in self.named_parameters():
            if p.ndim == 2:
                adds = name.endswith(("attn.w_o.weight", "ff.net.3.weight"))
                p.data = nn.init.normal(p.shape, c.initializer_range / (math.sqrt(2 * c.n_layer) if adds else 1))

    def hidden(self, ids, attention_mask=None, cache=None, return_weights=False):
        past = past_of(cache)
        mask = self.read(ids, attention_mask, self.context, cache=cache)    # (B, 1, past + T)
        x = self.wpe(self.wte(ids), positions_of(ids, mask, past))          # (B, T, C)
        x, weights = nn.run_blocks(self.h, self.drop(x), mask, is_causal=True, cache=cache, return_weights=return_weights)
        return self.ln_f(x), weights

    def extra_repr(self):
        c = self.config
        return f"{c.n_layer} layers, {c.n_head} heads, {c.n_embd} wide, {c.vocab_size} symbols, context {c.n_positions}"
