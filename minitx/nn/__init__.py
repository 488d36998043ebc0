"""Layers and blocks: Modules that hold parameters and call ops."""
from minitx.nn import init
from minitx.nn.attention import MultiHeadAttention
from minitx.nn.blocks import EncoderBlock, FeedForward
from minitx.nn.containers import ModuleList, Sequential
from minitx.nn.layers import GELU, Dropout, Embedding, LayerNorm, Linear, ReLU, RMSNorm, SiLU, Tanh
from minitx.nn.masks import causal_mask, mask_from_tokenizer, padding_mask
from minitx.nn.module import Module
from minitx.nn.parameter import Buffer, Parameter
from minitx.nn.positions import LearnedPositions, PositionalEncoding, position_ids_from_mask, sinusoids

__all__ = [
    "Buffer", "Dropout", "Embedding", "EncoderBlock", "FeedForward", "GELU", "LayerNorm", "LearnedPositions", "Linear",
    "Module", "ModuleList", "MultiHeadAttention", "Parameter", "PositionalEncoding", "RMSNorm", "ReLU", "Sequential",
    "SiLU", "Tanh", "causal_mask", "init", "mask_from_tokenizer", "padding_mask", "position_ids_from_mask", "sinusoids",
]
