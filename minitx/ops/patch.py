"""Images as sequences."""
import numpy as np

from minitx.autograd import Op


class Patchify(Op):
    r"""Cut images into patches, read row by row, each flattened in the order (C, height, width).

        images (B, C, H ph, W pw)   patch (ph, pw)   ->   y (B, H W, C ph pw)

    forward       y[b, h W + w] = images[b, :, h ph : (h + 1) ph, w pw : (w + 1) pw]
    backward      dx = every patch's gradient put back in its place
    saved         nothing
    """

    def forward(self, images, *, patch):
        ph, pw = patch
        if images.ndim != 4 or images.shape[2] % ph or images.shape[3] % pw:
            raise ValueError(f"images must be (B, C, height, width) with a height and width that patches of {ph} x {pw} "
                             "divide; pad or crop them first")
        B, C, height, width = images.shape
        self.grid = (B, C, height // ph, ph, width // pw, pw)
        y = images.reshape(self.grid).transpose(0, 2, 4, 1, 3, 5)       # (B, H, W, C, ph, pw)
        return y.reshape(B, (height // ph) * (width // pw), C * ph * pw)

    def backward(self, dy):
        B, C, H, ph, W, pw = self.grid
        dx = dy.reshape(B, H, W, C, ph, pw).transpose(0, 3, 1, 4, 2, 5)  # (B, C, H, ph, W, pw)
        return dx.reshape(B, C, H * ph, W * pw),


def pair_of(size):
    """(height, width) of a positive whole number or a pair of them; None for anything else."""
    pair = size if isinstance(size, (tuple, list)) else (size, size)
    if len(pair) != 2 or not all(isinstance(n, (int, np.integer)) and n is not True and n > 0 for n in pair):
        return None
    return tuple(map(int, pair))


def patchify(images, patch):
    """images (B, C, height, width) -> (B, patches, C * ph * pw); patch is a number or (ph, pw).

    A linear layer on top is a convolution whose kernel and stride are the patch (Dosovitskiy et al. 2021, section 3.1).
    ValueError, with the numbers, where the patch does not divide the image.
    """
    pair = pair_of(patch)
    if pair is None:
        raise ValueError(f"patchify: a patch is a positive whole number or a pair of them, not {patch!r}")
    return Patchify.apply(images, patch=pair)
