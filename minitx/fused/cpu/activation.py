"""GELU: the bias, the value and the slope in one walk."""
import math

import numpy as np

from minitx import special
from minitx.backend import quiet
from minitx.fused import twin
from minitx.fused.cpu.threads import BLOCK, in_blocks
from minitx.memory import LEAST, empty
from minitx.ops.activation import _CUBIC, _ROOT_2_PI, GELU
from minitx.ops.linear import sum_of_rows


@twin
class FusedGELU(GELU):
    """Forward computes the slope dy/dx while a block is in the cache, and that is all it keeps: backward multiplies once.

    saved         slope (..., C)
    """

    @staticmethod
    def fits(x, bias, *, approximate="none"):
        return (type(x) is np.ndarray and x.nbytes >= LEAST
                and (bias is None or type(bias) is np.ndarray and bias.shape == x.shape[-1:]))

    def forward(self, x, bias, *, approximate="none"):
        block = tanh_block if approximate == "tanh" else exact_block
        y = empty(x.shape, x.dtype)
        self.slope = empty(x.shape, x.dtype) if self.needs[0] or self.needs[1] else None
        width = 1 if bias is None else len(bias)                # without a bias a row is a number
        flat, out, slope = x.reshape(-1), y.reshape(-1), None if self.slope is None else self.slope.reshape(-1)

        def piece(i, j):
            i, j = i * width, j * width
            x, into = flat[i:j], (out[i:j], None if slope is None else slope[i:j])
            if bias is not None:                                # x + bias waits where y will be
                np.add(x.reshape(-1, width), bias, out=out[i:j].reshape(-1, width))
                x = out[i:j]
            if -FAR < x.min() and x.max() < FAR:
                block(x, *into)
            else:
                plainly(approximate, x, *into)

        with quiet(x):
            in_blocks(piece, x.size // width, max(1, BLOCK // width))
        return y

    def backward(self, dy):
        dx = empty(dy.shape, dy.dtype)
        flat, slope, out = dy.reshape(-1), self.slope.reshape(-1), dx.reshape(-1)
        width, sums = dy.shape[-1] if self.needs[1] else 1, {}

        def piece(i, j):
            start, stop = i * width, j * width
            np.multiply(flat[start:stop], slope[start:stop], out=out[start:stop])
            if self.needs[1]:
                sums[i] = sum_of_rows(out[start:stop].reshape(j - i, width))

        in_blocks(piece, dy.size // width, max(1, 4 * BLOCK // width), products=self.needs[1])
        return dx, np.sum([sums[i] for i in sorted(sums)], axis=0) if self.needs[1] else None


FAR = 1000.0            # what lies beyond, infinities and NaN are the plain op's


def plainly(approximate, x, y, slope):
    """A block with extraordinary numbers."""
    op = GELU()
    y[:] = op.forward(x, None, approximate=approximate)
    if slope is not None:
        slope[:] = op.backward(np.ones_like(x))[0]


def tanh_block(x, y, slope):
    """g = 1 / (1 + exp(-2u)),  y = x g,  slope = g + y (1 - g) 2u'. x and y may be one."""
    square, g = empty(x.shape, x.dtype), empty(x.shape, x.dtype)
    np.multiply(x, x, out=square)
    np.multiply(square, -2 * _ROOT_2_PI * _CUBIC, out=g)
    g -= 2 * _ROOT_2_PI
    g *= x                                          # -2u
    np.exp(g, out=g)
    g += 1
    np.reciprocal(g, out=g)
    np.multiply(x, g, out=y)
    if slope is not None:
        square *= 6 * _ROOT_2_PI * _CUBIC
        square += 2 * _ROOT_2_PI                    # 2u'
        np.multiply(y, g, out=slope)
        np.subtract(y, slope, out=slope)
        slope *= square
        slope += g


def exact_block(x, y, slope):
    """g = P(Z < x),  y = x g,  slope = g + x exp(-x^2 / 2) / sqrt(2 pi). x and y may be one."""
    g = empty(x.shape, x.dtype)
    special.normal_cdf_of_block(x, g)
    if slope is not None:
        np.multiply(x, x, out=slope)
        slope *= -0.5
        np.exp(slope, out=slope)
        slope *= x
        slope *= 1 / math.sqrt(2 * math.pi)
        slope += g
    np.multiply(x, g, out=y)
