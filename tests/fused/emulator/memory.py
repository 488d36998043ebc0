"""The memory of a device, as far as one launch sees it."""
import ctypes

import numpy as np

GUARD = 1 << 13                         # bytes on both sides, a multiple of what any number is aligned to
# what stands there: -1, or a NaN that arithmetic does not leave as it is, so that a NaN written over it shows
POISON = {"float32": np.uint32(0xFFBFFFFF), "float64": np.uint64(0xFFF7FFFFFFFFFFFF)}


class Memory:
    """Copies of arrays, each range with poisoned bytes on both sides; arrays that overlap stay together."""

    def __init__(self, arrays):
        self.ranges = []                # (start, stop, the copy with its guards, a guard as it was)
        ranges = ((*np.lib.array_utils.byte_bounds(x), x.dtype.name) for x in arrays if x.size)
        for start, stop, dtype in merged(sorted(ranges)):
            poison = POISON.get(dtype, np.uint8(0xFF))
            guard = np.full(GUARD // poison.itemsize, poison).view(np.uint8)
            copy = np.empty(stop - start + 2 * GUARD + 64, np.uint8)
            copy = copy[(start - copy.ctypes.data) % 64:][:stop - start + 2 * GUARD]    # aligned as the original is
            copy[:GUARD] = copy[-GUARD:] = guard
            copy[GUARD:-GUARD] = seen(start, stop)
            self.ranges.append((start, stop, copy, guard))

    def place(self, x):
        """Where array x lies in the copies."""
        at = x.ctypes.data
        for start, stop, copy, _ in self.ranges:
            if start <= at < stop:
                return at - start + GUARD + copy.ctypes.data
        return at                       # nothing in it

    def bring_back(self, name):
        """What a kernel has written, where the arrays are. RuntimeError where it wrote beside them."""
        for start, stop, copy, guard in self.ranges:
            if (copy[:GUARD] != guard).any() or (copy[-GUARD:] != guard).any():
                raise RuntimeError(f"{name}: wrote outside of an array of {stop - start} bytes")
            original = seen(start, stop)
            if not np.array_equal(original, copy[GUARD:-GUARD]):
                original[:] = copy[GUARD:-GUARD]


def merged(ranges):
    """Ranges (start, stop, dtype) that overlap, as one."""
    whole = []
    for start, stop, dtype in ranges:
        if whole and start < whole[-1][1]:
            whole[-1][1] = max(stop, whole[-1][1])
        else:
            whole.append([start, stop, dtype])
    return whole


def seen(start, stop):
    """The bytes of memory from start to stop, as an array over them."""
    return np.frombuffer((ctypes.c_ubyte * (stop - start)).from_address(start), np.uint8)
