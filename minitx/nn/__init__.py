"""Layers and blocks: Modules that hold parameters and call ops."""
from minitx.nn import init
from minitx.nn.attention import MultiHeadAttention
from minitx.nn.blocks import DecoderBlock, EncoderBlock, FeedForward
from minitx.nn.cache import Cache
from minitx.nn.containers import ModuleList, Sequential
from minitx.nn.layers import GELU, Dropout, Embedding, LayerNorm, Linear, ReLU, RMSNorm, SiLU, Tanh
from minitx.nn.masks import causal_mask, mask_from_tokenizer, padding_mask
from minitx.nn.module import Module
from minitx.nn.parameter import Buffer, Parameter
from minitx.nn.positions import (LearnedPositions, PositionalEncoding, RelativePositionBias, position_ids_from_mask,
                                 sinusoids)
from minitx.nn.transformer import Decoder, Encoder, Transformer, run_blocks
from minitx.nn.vision import ClassToken, PatchEmbed, PatchProjection

__all__ = [
    "Buffer", "Cache", "ClassToken", "Decoder", "DecoderBlock", "Dropout", "Embedding", "Encoder", "EncoderBlock",
    "FeedForward", "GELU", "LayerNorm", "LearnedPositions", "Linear", "Module", "ModuleList", "MultiHeadAttention",
    "Parameter", "PatchEmbed", "PatchProjection", "PositionalEncoding", "RMSNorm", "ReLU", "RelativePositionBias",
    "Sequential", "SiLU", "Tanh", "Transformer", "causal_mask", "init", "mask_from_tokenizer", "padding_mask",
    "position_ids_from_mask", "run_blocks", "sinusoids",
]
