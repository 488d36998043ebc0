"""Images as sequences of vectors. Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words"."""
import math

import numpy as np

from minitx import backend, ops
from minitx.nn import init
from minitx.nn.layers import check_size
from minitx.nn.module import Module
from minitx.nn.parameter import Parameter
from minitx.ops.patch import pair_of


class PatchProjection(Module):
    """Every patch of an image through the same linear map: a convolution whose kernel and stride are the patch.

        images (B, in_ch, height, width)   ->   (B, patches, d_model)

    weight (d_model, in_ch, ph, pw) and bias (d_model,) have the layout and the initial values of PyTorch's Conv2d.
    """

    def __init__(self, in_ch, d_model, patch):
        check_size("PatchProjection", in_ch=in_ch, d_model=d_model)
        bound = 1 / math.sqrt(in_ch * math.prod(patch))
        self.weight = Parameter(init.uniform((d_model, in_ch, *patch), bound))
        self.bias = Parameter(init.uniform((d_model,), bound))

    def forward(self, images):
        d_model, in_ch, *patch = self.weight.shape
        if np.ndim(images) != 4 or np.shape(images)[1] != in_ch:
            raise ValueError(f"PatchProjection: images must be (B, {in_ch}, height, width), got {np.shape(images)}")
        return ops.linear(ops.patchify(images, patch), self.weight.reshape(d_model, -1), self.bias)

    def extra_repr(self):
        d_model, in_ch, ph, pw = self.weight.shape
        return f"{in_ch}, {d_model}, patch={ph}x{pw}"


class PatchEmbed(Module):
    """One vector for each patch of an image, row by row: images (B, in_ch, height, width) -> (B, patches, d_model).

    img_size and patch are a number or (height, width); n_patches counts the patches of an image of img_size, and
    images of other sizes are cut as well. ValueError, with both numbers, where the patch does not divide the size; for
    another number of channels.
    """

    def __init__(self, img_size=224, patch=16, in_ch=3, d_model=768):
        (height, width), (ph, pw) = _pair("img_size", img_size), _pair("patch", patch)
        if height % ph or width % pw:
            raise ValueError(f"PatchEmbed: patches of {ph} x {pw} do not divide an image of {height} x {width}; pad or "
                             "crop it first")
        self.grid = height // ph, width // pw
        self.n_patches = math.prod(self.grid)
        self.proj = PatchProjection(in_ch, d_model, (ph, pw))

    def forward(self, images):
        return self.proj(images)


class ClassToken(Module):
    """A trained vector put before every sequence, which comes to stand for the whole: (B, T, C) -> (B, 1 + T, C).

    Starts N(0, 0.02). ValueError where x is not (B, T, d_model).
    """

    def __init__(self, d_model):
        check_size("ClassToken", d_model=d_model)
        self.weight = Parameter(init.normal((1, d_model), 0.02))

    def forward(self, x):
        d_model = self.weight.shape[1]
        if x.ndim != 3 or x.shape[2] != d_model:
            raise ValueError(f"ClassToken: x must be (B, T, {d_model}), got {x.shape}")
        token = self.weight + backend.filled((len(x), 1, d_model), 0, self.weight.dtype, self.weight.device)    # (B, 1, C)
        return ops.concatenate([token, x], axis=1)


def _pair(name, size):
    pair = pair_of(size)
    if pair is None:
        raise ValueError(f"PatchEmbed: {name} must be a positive whole number or (height, width), got {size!r}")
    return pair
