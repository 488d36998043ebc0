"""What every op is tried on: small arrays of uneven shapes, the same on every machine and with every NumPy.

``cases()`` lie inside the smooth domain of their op, 0.1 away from kinks, ties and poles: there finite differences and
composed twins hold. ``edges()`` lie where they do not: at kinks, ties and infinities, where a convention decides, or
where the gradient is meant to be no derivative (padding_idx, float32). Stored values and PyTorch are asked at both.
"""
import zlib
from typing import NamedTuple

import numpy as np

from minitx import ops
from minitx.proof.cases import arrays, layers, pointwise
from minitx.proof.differences import normal


class Case(NamedTuple):
    """One call of an op. inputs: arrays (those of float64 are checked), None, or Python numbers. Arrays are read-only."""
    op: type
    label: str
    inputs: tuple
    options: dict


def cases(names=None):
    """dict: op name -> list of Case, for every op in ops.OPS or for these names; finite differences hold at them."""
    return _collect(pointwise.CASES | arrays.CASES | layers.CASES, ops.OPS if names is None else names)


def edges(names=None):
    """dict: op name -> list of Case (often none) at kinks, ties and infinities, for all but finite differences."""
    return _collect(pointwise.EDGES | arrays.EDGES | layers.EDGES, ops.OPS if names is None else names)


def _collect(families, names):
    found = {}
    for name in names:
        family = families.get(name, _nothing)
        draw = Draw(f"{name} {family.__name__}")
        found[name] = [Case(ops.OPS[name], label, _fixed(inputs), {key: _fixed(x) for key, x in options.items()})
                       for label, inputs, options in family(draw)]
    return found


def _nothing(draw):
    return ()


def _fixed(x):
    if type(x) is tuple:
        return tuple(map(_fixed, x))
    if isinstance(x, (np.ndarray, np.float64)):             # NumPy makes a scalar of what it computes from a 0-d array
        x = np.asarray(x)
        x.flags.writeable = False
    return x


class Draw:
    """Random arrays of order 1, to three decimals, the same on every machine; a stream of its own for every name."""

    def __init__(self, name):
        self.bits = np.random.Philox(key=zlib.crc32(name.encode()))

    def __call__(self, *shape):
        """N(0, 1)."""
        return normal(self.bits, shape)

    def positive(self, *shape):
        """From 0.4 upwards."""
        return np.asarray(np.round(0.4 + np.abs(self(*shape)), 3))

    def away(self, *shape, points=(0.0,)):
        """At least 0.1 away from the points, which are 0.5 or more apart."""
        x = self(*shape)
        for point in points:
            x = np.where(np.abs(x - point) < 0.12, x + 0.25, x)
        return np.asarray(np.round(x, 3))

    def apart(self, *shape):
        """Any two entries more than 0.1 apart."""
        x = self(*shape)
        ladder = x.ravel().argsort().argsort().reshape(shape) - x.size / 3
        return np.asarray(np.round(0.23 * ladder + 0.02 * np.clip(x, -2, 2), 3))

    def bools(self, *shape):
        """True two times in three."""
        return np.asarray(self(*shape) > -0.43)

    def ids(self, n, *shape):
        """Integers from 0 to n - 1."""
        return np.asarray(self.bits.random_raw((1,) + shape)[0] % np.uint64(n)).astype(np.int64)
