"""PyTorch's modules as ours, ours as PyTorch's, and PyTorch's masks as ours. PyTorch loads when it is first needed.

    torch.nn                                                minitx.nn
    Linear  Embedding  LayerNorm  RMSNorm  Dropout          the same names
    GELU  ReLU  SiLU  Tanh  Sequential  ModuleList          the same names
    MultiheadAttention                                      MultiHeadAttention
    TransformerEncoderLayer     TransformerDecoderLayer     EncoderBlock    DecoderBlock
    TransformerEncoder          TransformerDecoder          Encoder         Decoder
    Transformer                                             Transformer
    Conv2d whose stride is its kernel                       vision.PatchProjection; PatchEmbed becomes one too

The two compute the same numbers and are called like this:

    layout          ours is always (B, T, C); PyTorch's is (T, B, C) with batch_first=False. to_torch sets batch_first
    patches         ours (B, patches, C) are PyTorch's (B, C, rows, columns).flatten(2).transpose(1, 2)
    weights         PyTorch's attention returns (out, weights averaged over heads); ours returns out, and with
                    return_weights=True (out, weights of every head)
    masks           True means blocked in PyTorch, may attend here: mask_from_torch
    memory_mask     left out, it is nothing in PyTorch's Transformer; in ours it is src_mask, where that is (B, 1, S)
    fast path       in eval mode without gradients PyTorch's encoder may give 0 at padded positions, take every
                    number but 0 in a float mask for a block, and any GELU for the exact one; ours computes as ever
"""
from minitx.interop.incoming import FromTorch
from minitx.interop.masks import mask_from_torch
from minitx.interop.outgoing import ToTorch

__all__ = ["from_torch", "mask_from_torch", "to_torch"]


def from_torch(module):
    """The minitx module that computes what a PyTorch module computes, with copies of its values, on the CPU.

    dtype, train flags, dropout rates, frozen parameters and ties are kept, gradients are not. RMSNorm with eps=None
    gets the eps that PyTorch takes for its dtype. No random number is drawn.

    ValueError naming what cannot be kept: a class that is not in the list above (a subclass may compute something
    else), hooks, add_bias_kv, add_zero_attn, max_norm, scale_grad_by_freq, sparse, a norm over several axes, a
    convolution that does not cut patches, an unknown activation, different rates for what a block adds, batch_first
    that differs inside, bfloat16. TypeError for what is no PyTorch module, ImportError where PyTorch is missing.
    """
    return FromTorch(_torch()).whole(module)


def to_torch(module):
    """The PyTorch module that computes what a minitx module computes, with copies of its values, on the CPU.

    It has batch_first=True. dtype, train flags, dropout rates, frozen parameters and ties are kept, gradients are
    not. No random number is drawn.

    ValueError naming what PyTorch lacks: a class that is not in the list above, grouped heads, another d_k,
    another `attend`, a gated net, another norm than LayerNorm in a block, biases in some parts of a block only.
    TypeError for what is no minitx module, ImportError where PyTorch is missing.
    """
    return ToTorch(_torch()).whole(module)


def _torch():
    try:
        import torch
    except ImportError as error:
        raise ImportError("minitx.interop needs PyTorch: pip install torch") from error
    return torch
