"""ViT: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale"."""
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from minitx import nn
from minitx.models.base import Model, activation, set_rates


@dataclass
class ViTConfig:
    """The fields and defaults of the published configuration: ViT-B/16 (86 567 656 parameters with num_labels=1000).

    image_size and patch_size are a number or (height, width). hidden_act is a name as in GPT2Config. qkv_bias=False
    leaves out the biases of queries, keys and values.
    """
    model_type: ClassVar[str] = "vit"

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    image_size: int | tuple[int, int] = 224
    patch_size: int | tuple[int, int] = 16
    num_channels: int = 3
    qkv_bias: bool = True
    num_labels: int = 2


class ViT(Model):
    """An encoder of pre-norm blocks reads an image as a sequence of patches, behind a token that stands for the whole.

        images (B, num_channels, height, width)   ->   logits (B, num_labels), made of the class token,
                                                       or with head=None the last hidden states (B, 1 + patches, C)

    With return_weights: (result, [weights (B, H, 1 + patches, 1 + patches), one a layer]); weights[-1][:, :, 0, 1:] is
    where the class token looks last, patch by patch, row after row of the image. Section 3.1; the classifier is one
    linear layer, as in fine-tuning. The published bare model has a pooler besides, which no head uses: left out here.

    ValueError for images of another size or number of channels. TypeError for a config that is no ViTConfig, ValueError
    for one that makes no model.
    """

    configs, heads = (ViTConfig,), ("image", None)

    def __init__(self, config=None, head="image"):
        c = self.configure(config, head)
        with nn.init.undrawn():                                             # initialise draws, for the whole model
            self.patches = nn.PatchEmbed(c.image_size, c.patch_size, c.num_channels, c.hidden_size)
            self.class_token = nn.ClassToken(c.hidden_size)
            self.positions = nn.LearnedPositions(1 + self.patches.n_patches, c.hidden_size)
            self.drop = nn.Dropout(c.hidden_dropout_prob)
            self.encoder = nn.Encoder(c.num_hidden_layers, c.hidden_size, c.num_attention_heads, c.intermediate_size,
                                      c.hidden_dropout_prob, activation=activation("ViT", c.hidden_act),
                                      eps=c.layer_norm_eps)
            self.classifier = nn.Linear(c.hidden_size, c.num_labels) if head else None
        set_rates(self, c.attention_probs_dropout_prob, 0.0)                # none inside the net in the published model
        if not c.qkv_bias:
            for block in self.encoder.layers:
                block.attn.w_q.bias = block.attn.w_k.bias = block.attn.w_v.bias = None
        self.initialise()

    def initialise(self):
        """Matrices, kernels, positions and class token N(0, initializer_range), biases 0."""
        for p in self.parameters():
            if p.ndim > 1:
                p.data = nn.init.normal(p.shape, self.config.initializer_range)

    def forward(self, images, *, return_weights=False):
        _, channels, ph, pw = self.patches.proj.weight.shape
        rows, columns = self.patches.grid
        if np.ndim(images) != 4 or np.shape(images)[1:] != (channels, rows * ph, columns * pw):
            raise ValueError(f"ViT: images must be (B, {channels}, {rows * ph}, {columns * pw}), got {np.shape(images)}")
        x = self.drop(self.positions(self.class_token(self.patches(images))))           # (B, 1 + patches, C)
        x = self.encoder(x, return_weights=return_weights)
        x, weights = x if return_weights else (x, None)
        x = x if self.classifier is None else self.classifier(x[:, 0])
        return (x, weights) if return_weights else x

    def extra_repr(self):
        c, (rows, columns) = self.config, self.patches.grid
        return (f"{c.num_hidden_layers} layers, {c.num_attention_heads} heads, {c.hidden_size} wide, "
                f"{rows} x {columns} patches")
