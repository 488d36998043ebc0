"""Initial values: arrays in the default dtype on the default device, drawn from minitx's one generator on the host."""
import numpy as np

from minitx import backend


def uniform(shape, bound):
    """Uniform in [-bound, bound)."""
    x = backend.generator().random(shape, dtype=_drawn())
    x *= 2 * bound
    x -= bound
    return _placed(x)


def normal(shape, std=1.0):
    """Gaussian with mean 0 and standard deviation std."""
    x = backend.generator().standard_normal(shape, dtype=_drawn())
    x *= std
    return _placed(x)


def zeros(shape):
    """All 0."""
    return _placed(np.zeros(shape, backend.default_dtype()))


def ones(shape):
    """All 1."""
    return _placed(np.ones(shape, backend.default_dtype()))


def _drawn():
    """The dtype to draw in: the generator knows float32 and float64."""
    return np.promote_types(backend.default_dtype(), np.float32)


def _placed(x):
    return backend.to_device(x.astype(backend.default_dtype(), copy=False), backend.default_device())
