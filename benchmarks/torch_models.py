"""The other side: the same models in PyTorch eager, as small as they can be written and as fast as that makes them.

Queries, keys and values come from one product, and attention is F.scaled_dot_product_attention. No dropout. `twin` gives
the twin of a model of minitx, with the same weights.
"""
import re

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from minitx import backend

ACTIVATIONS = {"gelu_new": nn.GELU("tanh"), "gelu": nn.GELU(), "relu": nn.ReLU()}


def heads_of(x, H):
    """(B, T, C) -> (B, H, T, K)"""
    return x.view(*x.shape[:2], H, -1).transpose(1, 2)


def attend(q, k, v, is_causal):
    o = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    return o.transpose(1, 2).flatten(2)


class SelfAttention(nn.Module):
    def __init__(self, C, H, bias):
        super().__init__()
        self.H, self.qkv, self.w_o = H, nn.Linear(C, 3 * C, bias), nn.Linear(C, C, bias)

    def forward(self, x, is_causal):
        q, k, v = (heads_of(y, self.H) for y in self.qkv(x).chunk(3, dim=-1))
        return self.w_o(attend(q, k, v, is_causal))


class CrossAttention(nn.Module):
    def __init__(self, C, H):
        super().__init__()
        self.H, self.w_q, self.kv, self.w_o = H, nn.Linear(C, C), nn.Linear(C, 2 * C), nn.Linear(C, C)

    def forward(self, x, memory):
        k, v = (heads_of(y, self.H) for y in self.kv(memory).chunk(2, dim=-1))
        return self.w_o(attend(heads_of(self.w_q(x), self.H), k, v, False))


class Block(nn.Module):
    """One layer; with cross-attention where a memory is read."""

    def __init__(self, C, H, ff, activation, norm_first=True, eps=1e-5, bias=True, crossing=False):
        super().__init__()
        self.norm_first = norm_first
        self.attn = SelfAttention(C, H, bias)
        self.cross_attn = CrossAttention(C, H) if crossing else None
        self.up, self.activation, self.down = nn.Linear(C, ff, bias), ACTIVATIONS[activation], nn.Linear(ff, C, bias)
        self.norm1, self.norm2 = (nn.LayerNorm(C, eps, bias=bias) for _ in range(2))
        if crossing:
            self.norm3 = nn.LayerNorm(C, eps, bias=bias)

    def net(self, x):
        return self.down(self.activation(self.up(x)))

    def forward(self, x, memory=None, is_causal=False):
        if not self.norm_first:
            x = self.norm1(x + self.attn(x, is_causal))
            return self.norm2(x + self.net(x))
        x = x + self.attn(self.norm1(x), is_causal)
        if self.cross_attn is None:
            return x + self.net(self.norm2(x))
        x = x + self.cross_attn(self.norm2(x), memory)
        return x + self.net(self.norm3(x))


class GPT2(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(c.vocab_size, c.n_embd), nn.Embedding(c.n_positions, c.n_embd)
        self.h = nn.ModuleList(Block(c.n_embd, c.n_head, 4 * c.n_embd, c.activation_function, eps=c.layer_norm_epsilon,
                                     bias=c.bias) for _ in range(c.n_layer))
        self.ln_f = nn.LayerNorm(c.n_embd, c.layer_norm_epsilon, bias=c.bias)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight[:ids.shape[1]]
        for block in self.h:
            x = block(x, is_causal=True)
        return F.linear(self.ln_f(x), self.wte.weight)


class ViT(nn.Module):
    def __init__(self, c):
        super().__init__()
        C, n = c.hidden_size, (c.image_size // c.patch_size) ** 2
        self.patches = nn.Conv2d(c.num_channels, C, c.patch_size, stride=c.patch_size)
        self.class_token, self.positions = nn.Parameter(torch.zeros(1, C)), nn.Parameter(torch.zeros(1 + n, C))
        self.layers = nn.ModuleList(Block(C, c.num_attention_heads, c.intermediate_size, c.hidden_act,
                                          eps=c.layer_norm_eps) for _ in range(c.num_hidden_layers))
        self.norm, self.classifier = nn.LayerNorm(C, c.layer_norm_eps), nn.Linear(C, c.num_labels)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), 1, -1), x], dim=1) + self.positions
        for block in self.layers:
            x = block(x)
        return self.classifier(self.norm(x)[:, 0])


class Seq2Seq(nn.Module):
    def __init__(self, c):
        super().__init__()
        C = c.d_model
        self.src_embed, self.tgt_embed = nn.Embedding(c.src_vocab_size, C), nn.Embedding(c.tgt_vocab_size, C)
        self.register_buffer("pe", torch.zeros(1, c.max_len, C))
        kind = dict(ff=c.d_ff, activation=c.activation, norm_first=c.norm_first)
        self.encoder = nn.ModuleList(Block(C, c.num_heads, **kind) for _ in range(c.num_encoder_layers))
        self.decoder = nn.ModuleList(Block(C, c.num_heads, **kind, crossing=True) for _ in range(c.num_decoder_layers))
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(C), nn.LayerNorm(C)
        self.lm_head = nn.Linear(C, c.tgt_vocab_size)

    def embed(self, table, ids):
        return table(ids) * table.embedding_dim ** 0.5 + self.pe[:, :ids.shape[1]]

    def forward(self, ids, decoder_ids):
        memory = self.embed(self.src_embed, ids)
        for block in self.encoder:
            memory = block(memory)
        memory = self.encoder_norm(memory)
        x = self.embed(self.tgt_embed, decoder_ids)
        for block in self.decoder:
            x = block(x, memory, is_causal=True)
        return self.lm_head(self.decoder_norm(x))


class BERT(nn.Module):
    def __init__(self, c):
        super().__init__()
        C = c.hidden_size
        self.word_embeddings = nn.Embedding(c.vocab_size, C)
        self.position_embeddings = nn.Embedding(c.max_position_embeddings, C)
        self.token_type_embeddings = nn.Embedding(c.type_vocab_size, C)
        self.norm = nn.LayerNorm(C, c.layer_norm_eps)
        self.layers = nn.ModuleList(Block(C, c.num_attention_heads, c.intermediate_size, c.hidden_act, norm_first=False,
                                          eps=c.layer_norm_eps) for _ in range(c.num_hidden_layers))

    def forward(self, ids):
        places = self.position_embeddings.weight[:ids.shape[1]]
        x = self.norm(self.word_embeddings(ids) + places + self.token_type_embeddings.weight[0])
        for block in self.layers:
            x = block(x)
        return x


# The names of minitx's parameters, and what the twins call them where that differs.
RENAMED = [(r"ff\.net\.0", "up"), (r"ff\.net\.3", "down"), (r"^patches\.proj", "patches"),
           (r"^class_token\.weight", "class_token"), (r"^positions\.weight", "positions"), (r"^positions\.pe", "pe"),
           (r"^transformer\.(\w+)\.layers", r"\1"), (r"^transformer\.(\w+)\.norm", r"\1_norm"),
           (r"^encoder\.(layers|norm)", r"\1")]
TWINS = {twin.__name__: twin for twin in (GPT2, ViT, Seq2Seq, BERT)}


def arrange(named, wanted):
    """Arrays under minitx's names, weights or their gradients, under the names in `wanted` and laid out as there."""
    found = {}
    for name, array in named.items():
        for ours, theirs in RENAMED:
            name = re.sub(ours, theirs, name)
        found[name] = array

    def laid_out(name):
        if name in found:
            return found[name]
        layer, letters, kind = name.rsplit(".", 2)                          # ...attn, qkv, weight
        return np.concatenate([found[f"{layer}.w_{letter}.{kind}"] for letter in letters])
    return {name: laid_out(name) for name in wanted}


def twin(model):
    """The twin of a model of minitx, with copies of its weights."""
    theirs = TWINS[type(model).__name__](model.config)
    arranged = arrange({name: backend.to_numpy(array) for name, array in model.state_dict().items()}, theirs.state_dict())
    theirs.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in arranged.items()})
    return theirs
