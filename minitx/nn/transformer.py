"""Stacks of blocks, and the encoder-decoder made of two of them."""
import math

import numpy as np

from minitx import backend
from minitx.nn import init
from minitx.nn.blocks import DecoderBlock, EncoderBlock
from minitx.nn.containers import ModuleList
from minitx.nn.layers import LayerNorm
from minitx.nn.module import Module


def run_blocks(blocks, x, *inputs, return_weights=False, **options):
    """x through every block, all of which get the same inputs and options: (x, the weights of each in a list).

    Without return_weights the list is empty. Masks and positions on the host follow x here, once for all blocks.
    """
    inputs = [_following(value, x) for value in inputs]
    options = {name: _following(value, x) for name, value in options.items()}
    weights = []
    for block in blocks:
        x = block(x, *inputs, return_weights=return_weights, **options)
        if return_weights:
            x, w = x
            weights.append(w)
    return x, weights


def _following(value, x):
    """value, if it is an array of bools or integers on the host, on the device of x."""
    return backend.like(value, x) if isinstance(value, np.ndarray) and value.dtype.kind in "biu" else value


class Stack(Module):
    """num_layers blocks, each built anew, and a last layer norm where final_norm says so: what both stacks are."""
    block: type[Module]

    def __init__(self, num_layers, d_model, num_heads, d_ff, dropout=0.1, norm_first=True, *, activation="gelu",
                 eps=1e-5, bias=True, final_norm=None):
        if num_layers < 0:
            raise ValueError(f"{type(self).__name__}: num_layers must be at least 0, got {num_layers}")
        self.layers = ModuleList(self.block(d_model, num_heads, d_ff, dropout, norm_first, activation=activation,
                                            eps=eps, bias=bias) for _ in range(num_layers))
        final_norm = norm_first if final_norm is None else final_norm
        self.norm = LayerNorm(d_model, eps, bias) if final_norm else None

    def run(self, x, *inputs, return_weights, **options):
        """x through every block and the last norm."""
        x, weights = run_blocks(self.layers, x, *inputs, return_weights=return_weights, **options)
        x = x if self.norm is None else self.norm(x)
        return (x, weights) if return_weights else x


class Encoder(Stack):
    """num_layers EncoderBlocks and, where final_norm says so, a last layer norm (left out: if norm_first).

    x (B, T, d_model) -> the same shape, or (x, [weights (B, H, T, T), one a layer]) with return_weights. mask,
    is_causal and other options go to every block.
    """
    block = EncoderBlock

    def forward(self, x, mask=None, *, is_causal=False, return_weights=False, **options):
        return self.run(x, mask, is_causal=is_causal, return_weights=return_weights, **options)


class Decoder(Stack):
    """num_layers DecoderBlocks and, where final_norm says so, a last layer norm (left out: if norm_first).

    x (B, T, d_model), memory (B, S, d_model) -> x's shape, or (x, [(self, cross) weights, one pair a layer]) with
    return_weights. Masks, is_causal and other options go to every block.
    """
    block = DecoderBlock

    def forward(self, x, memory, mask=None, memory_mask=None, *, is_causal=False, return_weights=False, **options):
        return self.run(x, memory, mask, memory_mask, is_causal=is_causal, return_weights=return_weights, **options)


class Transformer(Module):
    """An encoder reads src, a decoder turns tgt into what should follow it. Vaswani et al. 2017, figure 1.

        src (B, S, d_model)   tgt (B, T, d_model)   ->   (B, T, d_model)

    Vectors in and vectors out: embeddings, positions and the output layer are models.Seq2Seq's. Defaults, initial
    values and the layer norm behind each stack are those of PyTorch's nn.Transformer: 44 140 544 parameters.

    src_mask, tgt_mask, memory_mask as in MultiHeadAttention. Left out, memory_mask is src_mask where that says one thing
    for every query, (S,) or (B, 1, S). is_causal is for tgt. With return_weights: (y, (encoder's, decoder's weights)).
    """

    def __init__(self, d_model=512, num_heads=8, num_encoder_layers=6, num_decoder_layers=6, d_ff=2048, dropout=0.1,
                 norm_first=False, *, activation="relu", eps=1e-5, bias=True):
        options = dict(activation=activation, eps=eps, bias=bias, final_norm=True)
        self.encoder = Encoder(num_encoder_layers, d_model, num_heads, d_ff, dropout, norm_first, **options)
        self.decoder = Decoder(num_decoder_layers, d_model, num_heads, d_ff, dropout, norm_first, **options)
        self.initialise()

    def initialise(self):
        """Matrices by Xavier's rule (Glorot and Bengio 2010, equation 16), in which queries, keys and values count as one
        matrix, as they are in PyTorch; attention's biases 0."""
        for name, p in self.named_parameters():
            if p.ndim == 2:
                rows = 3 * len(p) if name.endswith(("w_q.weight", "w_k.weight", "w_v.weight")) else len(p)
                p.data[...] = init.uniform(p.shape, math.sqrt(6 / (rows + p.shape[1])))
            elif "attn.w_" in name:
                p.data[...] = 0

    def forward(self, src, tgt, src_mask=None, tgt_mask=None, memory_mask=None, *, is_causal=False,
                return_weights=False):
        if memory_mask is None and src_mask is not None and np.shape(src_mask)[-2:-1] in ((), (1,)):
            memory_mask = src_mask
        memory = self.encoder(src, src_mask, return_weights=return_weights)
        memory, encoder_weights = memory if return_weights else (memory, None)
        y = self.decoder(tgt, memory, tgt_mask, memory_mask, is_causal=is_causal, return_weights=return_weights)
        y, decoder_weights = y if return_weights else (y, None)
        return (y, (encoder_weights, decoder_weights)) if return_weights else y
