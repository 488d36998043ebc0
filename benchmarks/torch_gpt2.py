"""GPT-2 in PyTorch, as small as it can be written: the other side of every comparison in this folder.

Pre-norm blocks, learned positions, tanh GELU, no biases, no dropout, the head tied to the embedding, as in nanoGPT.
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import minitx as mt
from minitx import models

SMALL = dict(n_positions=64, n_embd=128, n_layer=4, n_head=4)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (y.view(B, T, self.heads, C // self.heads).transpose(1, 2)
                   for y in self.qkv(self.norm1(x)).split(C, dim=2))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(o.transpose(1, 2).reshape(B, T, C))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class TorchGPT2(nn.Module):
    def __init__(self, vocab_size, n_positions, n_embd, n_layer, n_head):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, n_embd)
        self.positions = nn.Embedding(n_positions, n_embd)
        self.blocks = nn.ModuleList(Block(n_embd, n_head) for _ in range(n_layer))
        self.norm = nn.LayerNorm(n_embd, bias=False)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions.weight[:ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def adamw(model, lr, betas, weight_decay):
    """AdamW that decays matrices and embeddings and leaves the norms' vectors alone."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": weight_decay},
                              {"params": vectors, "weight_decay": 0.0}], lr=lr, betas=betas)


def pair_of_models(seed, vocab_size):
    """The small GPT-2 of minitx and the same in PyTorch, with the same initial weights."""
    mt.manual_seed(seed)
    ours = models.GPT2(models.GPT2Config(vocab_size=vocab_size, bias=False, embd_pdrop=0.0, attn_pdrop=0.0,
                                         resid_pdrop=0.0, **SMALL))
    theirs = TorchGPT2(vocab_size, **SMALL)
    arranged = arrange(ours.state_dict())
    theirs.load_state_dict({name: torch.from_numpy(arranged[name].copy()) for name in theirs.state_dict()})
    return ours, theirs


def arrange(named):
    """Arrays under minitx's names, weights or their gradients, as TorchGPT2 names them and lays them out."""
    out = {"tokens.weight": named["wte.weight"], "positions.weight": named["wpe.weight"],
           "norm.weight": named["ln_f.weight"]}
    for i in range(SMALL["n_layer"]):
        ours, theirs = f"h.{i}.", f"blocks.{i}."
        out[theirs + "qkv.weight"] = np.concatenate([named[f"{ours}attn.{w}.weight"] for w in ("w_q", "w_k", "w_v")])
        for there, here in (("norm1", "norm1"), ("out", "attn.w_o"), ("norm2", "norm2"), ("up", "ff.net.0"),
                            ("down", "ff.net.3")):
            out[f"{theirs}{there}.weight"] = named[f"{ours}{here}.weight"]
    return out


def disagreement(ours, theirs):
    """The largest difference between the two models' gradients, relative to the largest entry of each (or 1e-3)."""
    here = arrange({name: parameter.grad for name, parameter in ours.named_parameters()})
    there = {name: parameter.grad.numpy() for name, parameter in theirs.named_parameters()}
    return max(float(np.abs(here[name] - g).max() / max(np.abs(g).max(), 1e-3)) for name, g in there.items())
