"""Memory that arrays leave behind, for arrays to come.

What the system has just given must be cleared page by page when it is first touched, and a training step that frees its
arrays and asks for them again pays that anew every time: a tenth of it and more. ``empty`` keeps the memory. Its arrays lie
in buffers that this file holds; a buffer that nobody else holds any more (its count of references says so) is given out
again. Nothing has to be returned, and such an array may be used like any other. ``release`` gives back what nobody uses.
"""
import math
import sys

import numpy as np

LEAST = 1 << 16         # bytes: below, the allocator has its own stores
SPARE = 1 << 30         # bytes: where more lie unused, a new size lets go of them


class _Buffer(np.ndarray):
    """A piece of memory; the array that it was given out as has it as its base."""


_buffers: dict[int, list[_Buffer]] = {}                             # {its bytes: the buffers of that size}
_count = getattr(sys, "getrefcount", None)
_KEEPS = _count is not None and getattr(sys, "_is_gil_enabled", lambda: True)()     # else counts say nothing


def _holders(kept):
    """How many hold a buffer that nobody uses, as the loops below see it: its list, the loop, in most Pythons _count too."""
    for buffer in kept:
        return _count(buffer)


_UNUSED = _holders([_Buffer(0)]) if _KEEPS else 0


def empty(shape, dtype):
    """np.empty(shape, dtype), in memory that an earlier array of this size has left, if there is any."""
    n = math.prod(shape) * dtype.itemsize
    if n < LEAST or not _KEEPS:
        return np.empty(shape, dtype)
    kept = _buffers.get(n) or _buffers.setdefault(n, [])
    for buffer in kept:
        if _count(buffer) == _UNUSED:
            return np.ndarray(shape, dtype, buffer)
    if unused() > SPARE:
        release()
    buffer = _Buffer(n, np.uint8)
    kept.append(buffer)
    return np.ndarray(shape, dtype, buffer)


def is_whole(x):
    """Whether x is all of a buffer: as good as an array that owns its data."""
    return type(x.base) is _Buffer


def unused():
    """How many bytes are kept that nobody uses."""
    n = 0
    for kept in list(_buffers.values()):
        for buffer in kept:
            if _count(buffer) == _UNUSED:
                n += buffer.nbytes
    return n


def release():
    """Give what nobody uses back to the system."""
    for kept in list(_buffers.values()):
        used = []
        for buffer in kept:
            if _count(buffer) != _UNUSED:
                used.append(buffer)
        kept[:] = used
