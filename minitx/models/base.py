"""What all families share: how a model checks what it is built of and what it reads."""
import numpy as np

from minitx import nn
from minitx.nn.layers import ACTIVATIONS

PUBLISHED = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
             "gelu_python_tanh": "gelu_tanh", "gelu_accurate": "gelu_tanh", "gelu_python": "gelu", "swish": "silu"}


class Model(nn.Module):
    """A family: `configs` are the config classes that it takes, the first its default, `heads` the names of its heads."""

    configs: tuple[type, ...]
    heads: tuple[str | None, ...]

    def configure(self, config, head):
        """The config to build from. TypeError for one of another kind, ValueError for a head that there is not."""
        name = type(self).__name__
        if head not in self.heads:
            raise ValueError(f"{name}: head must be one of {', '.join(map(repr, self.heads))}; got {head!r}")
        config = self.configs[0]() if config is None else config
        if not isinstance(config, self.configs):
            wanted = " or ".join(kind.__name__ for kind in self.configs)
            raise TypeError(f"{name}: config must be a {wanted}, got {type(config).__name__}; of a dict make "
                            f"{self.configs[0].__name__}(**config)")
        self.config, self.head_name = config, head
        return config

    def save_pretrained(self, folder):
        """Write config.json and model.safetensors into a folder, as transformers' from_pretrained and ours read them.

        A new file takes the place of an old one when it is whole. ValueError for a model without a published form.
        """
        from minitx.models.pretrained import save_pretrained
        save_pretrained(self, folder)

    def read(self, ids, attention_mask, longest=None, whose="", cache=None):
        """What the attention_mask of ids (B, T) says to a layer: (B, 1, T), or None.

        Behind the tokens that a cache has seen it is that of all, (B, past + T). ValueError for ids of another shape, or
        more of them than `longest`, and for a mask that is left out where earlier tokens had one; `whose` is "decoder_"
        for the decoder's.
        """
        name, shape = type(self).__name__, np.shape(ids)
        if len(shape) != 2:
            raise ValueError(f"{name}: {whose}ids must be (B, T), got {shape}")
        shape = shape[0], past_of(cache) + shape[1]
        if longest is not None and shape[1] > longest:
            raise ValueError(f"{name}: a sequence of {shape[1]} tokens is longer than the {longest} positions: shorten "
                             "it, or configure more")
        if attention_mask is None and cache is not None and cache.masked:
            raise ValueError(f"{name}: the cache's tokens had an {whose}attention_mask: give that of all tokens, {shape}")
        if attention_mask is None:
            return None
        mask = nn.mask_from_tokenizer(attention_mask, shape, f"{name}: {whose}attention_mask")
        if cache is not None:
            cache.masked = True
        return mask


class DecoderOnly(Model):
    """A family that goes on with a text. `context` is the number of tokens that it can see."""

    context: int
    lm_head: nn.Linear | None

    def forward(self, ids, attention_mask=None, *, cache=None, return_weights=False):
        x, weights = self.hidden(ids, attention_mask, cache, return_weights)
        x = x if self.lm_head is None else self.lm_head(x)
        return (x, weights) if return_weights else x

    def hidden(self, ids, attention_mask=None, cache=None, return_weights=False):
        """(the last hidden states (B, T, C), the weights of each layer in a list, which without return_weights is empty)"""
        raise NotImplementedError(f"{type(self).__name__} has no hidden")


class EncoderDecoder(Model):
    """A family that reads one text and writes another, in two halves: `encode` and `decode`.

    `context` is the number of tokens that it can write, None without a limit.
    """

    context: int | None

    def forward(self, ids, decoder_ids, attention_mask=None, decoder_attention_mask=None, *, return_weights=False):
        """The result, or with return_weights (result, (encoder's, decoder's weights))."""
        memory = self.encode(ids, attention_mask, return_weights=return_weights)
        memory, weights = memory if return_weights else (memory, None)
        y = self.decode(decoder_ids, memory, attention_mask, decoder_attention_mask, return_weights=return_weights)
        return (y[0], (weights, y[1])) if return_weights else y

    def read_memory(self, memory, decoder_ids, attention_mask):
        """What the source's attention_mask says to cross-attention: (B, 1, S), or None.

        ValueError for a memory that is not (B, S, C) with the batch of decoder_ids.
        """
        if np.ndim(memory) != 3 or len(memory) != len(decoder_ids):
            raise ValueError(f"{type(self).__name__}: memory {np.shape(memory)} must be (B, S, C) with the batch of the "
                             f"decoder's ids {np.shape(decoder_ids)}")
        if attention_mask is None:
            return None
        return nn.mask_from_tokenizer(attention_mask, memory.shape[:2], f"{type(self).__name__}: attention_mask")


def past_of(cache):
    """How many tokens a cache has seen; without one 0."""
    return 0 if cache is None else cache.length


def positions_of(ids, mask, past=0):
    """Where the tokens of ids (B, T) stand, counting those alone that mask (B, 1, past + T) lets be seen: (B, T).

    Without a mask (T,), from `past` on, and None for what needs no telling: from 0 on, as also where all padding stands on
    the right, whose own positions do not matter.
    """
    if mask is not None and (past or (mask[..., 1:] > mask[..., :-1]).any()):
        return nn.position_ids_from_mask(mask[:, 0])[:, past:]
    return np.arange(past, past + np.shape(ids)[1]) if past else None


def make_blocks(model, block, config, n):
    """n blocks of a config, made one by one. ValueError naming the model for a negative number."""
    if n < 0:
        raise ValueError(f"{model}: a model of {n} layers cannot be built")
    return nn.ModuleList(block(config) for _ in range(n))


def set_rates(model, attention, activation):
    """Give every attention and every feed-forward net of a model its own dropout: blocks are built with one for all."""
    for module in model.modules():
        if isinstance(module, nn.MultiHeadAttention):
            module.dropout = nn.Dropout(attention)
        elif isinstance(module, nn.FeedForward):
            setattr(module.net, "2", nn.Dropout(activation))


def activation(model, name):
    """The name that nn.FeedForward knows for a config's. ValueError listing the known names for another."""
    ours = PUBLISHED.get(name, name)
    if ours not in ACTIVATIONS:
        raise ValueError(f"{model}: unknown activation {name!r}: use one of {', '.join((*ACTIVATIONS, *PUBLISHED))}")
    return ours
