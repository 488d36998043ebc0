"""Initial values: arrays in the default dtype on the default device, drawn from minitx's one generator on the host.

They are drawn in float64 and rounded, so that every dtype gets the same numbers from the same seed.
"""
import contextlib
import threading

import numpy as np

from minitx import backend


class _Mode(threading.local):
    drawing = True
    hollow = None                       # inside hollow(): the arrays that it gave out


_mode = _Mode()


@contextlib.contextmanager
def undrawn():
    """Inside it `uniform` and `normal` draw nothing and give zeros: for a model that sets its values itself afterwards."""
    outer, _mode.drawing = _mode.drawing, False
    try:
        yield
    finally:
        _mode.drawing = outer


@contextlib.contextmanager
def hollow():
    """Inside it Parameters are made that take no memory, however large: all elements of one are the same number.

    For counting what a configuration has, and for a model that is then given its arrays: parameter.data = array.
    Inside, writing into them is allowed and means nothing; afterwards they are read-only. They are on the host,
    whatever the default device is. Buffers are made as ever.
    """
    outer, _mode.hollow = _mode.hollow, []
    try:
        with undrawn():
            yield
    finally:
        for array in _mode.hollow:
            backend.read_only(array)
        _mode.hollow = outer


def is_hollow():
    """Whether this runs inside hollow()."""
    return _mode.hollow is not None


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


def zeros(shape):
    """All 0."""
    return _hollow(shape) if is_hollow() else _placed(np.zeros(shape, backend.default_dtype()))


def ones(shape):
    """All 1."""
    return _hollow(shape) if is_hollow() else _placed(np.ones(shape, backend.default_dtype()))


def _hollow(shape):
    """An array whose elements all lie in one place."""
    dtype = backend.default_dtype()
    array = np.ndarray(shape, dtype, np.zeros((), dtype), strides=(0,) * len(shape))
    _mode.hollow.append(array)
    return array


def _placed(x):
    return backend.to_device(x.astype(backend.default_dtype(), copy=False), backend.default_device())
