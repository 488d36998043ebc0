"""Initial values: arrays in the default dtype on the default device, drawn from minitx's one generator on the host.

They are drawn in float64 and rounded, so that every dtype gets the same numbers from the same seed.
"""
import contextlib
import math
import threading

import numpy as np

from minitx import backend


class _Mode(threading.local):
    drawing = True


_mode = _Mode()


@contextlib.contextmanager
def undrawn():
    """Inside it `uniform` and `normal` draw nothing and give zeros: for a model that sets its values itself afterwards."""
    outer, _mode.drawing = _mode.drawing, False
    try:
        yield
    finally:
        _mode.drawing = outer


def uniform(shape, bound):
    """Uniform in [-bound, bound)."""
    if not _mode.drawing:
        return zeros(shape)
    x = backend.generator().random(shape)
    x *= 2 * bound
    x -= bound
    return _placed(x)


def normal(shape, std=1.0):
    """Gaussian with mean 0 and standard deviation std."""
    if not _mode.drawing:
        return zeros(shape)
    x = backend.generator().standard_normal(shape)
    x *= std
    return _placed(x)


def xavier_uniform(shape):
    """Uniform in +-sqrt(6 / (fan_in + fan_out)) for a matrix (fan_out, fan_in). Glorot and Bengio 2010, equation 16."""
    return uniform(shape, math.sqrt(6 / sum(shape)))


def zeros(shape):
    """All 0."""
    return _placed(np.zeros(shape, backend.default_dtype()))


def ones(shape):
    """All 1."""
    return _placed(np.ones(shape, backend.default_dtype()))


def _placed(x):
    return backend.to_device(x.astype(backend.default_dtype(), copy=False), backend.default_device())
