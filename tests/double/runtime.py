"""The part of cupy.cuda that minitx uses: devices, streams, events, and modules of CUDA source."""
import time

import numpy as np

from double.counts import count


class CUDARuntimeError(RuntimeError):
    pass


class Device:
    def __init__(self, number=0):
        if number != 0:
            raise CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
        self.id = number

    compute_capability = "90"

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def use(self):
        pass

    def synchronize(self):
        count("synchronisations")


DEVICE = Device(0)


class Stream:
    def __init__(self, non_blocking=False):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def synchronize(self):
        count("synchronisations")


Stream.null = Stream()


class Event:
    def record(self, stream=None):
        self.at = time.perf_counter()

    def synchronize(self):
        count("synchronisations")


def get_elapsed_time(start, end):
    """Milliseconds between two recorded events."""
    return 1e3 * (end.at - start.at)


class RawModule:
    """A module of CUDA source, run by the emulator under tests/fused/. RuntimeError where it is not to be, or cannot."""
    runs = False

    def __init__(self, *, code, options=()):
        if not self.runs:
            raise RuntimeError("the double was installed without kernels")
        try:
            from fused.emulator import RawModule as Emulated
        except ImportError as error:
            raise RuntimeError(f"the double runs no CUDA source here: {error}") from None
        self._module = Emulated(code, options)

    def get_function(self, name):
        return Kernel(self._module.get_function(name))


class Kernel:
    """One kernel: device arrays go in as the NumPy arrays that they hold, numbers as CuPy passes them."""

    def __init__(self, function):
        self._function = function
        self.max_dynamic_shared_size_bytes = 0

    def __call__(self, grid, block, args, *, shared_mem=0):
        self._function(grid, block, tuple(map(argument, args)), shared_mem=shared_mem)


def argument(x):
    if isinstance(x, np.generic):
        return x
    if isinstance(x, np.ndarray) and x.size == 1 and x.dtype.fields:    # a structure
        return x
    if type(x) in (bool, int, float):
        return {bool: np.bool_, int: np.int64, float: np.float64}[type(x)](x)
    if type(x).__module__ != "cupy":
        raise TypeError(f"a kernel takes device arrays and numbers, not {type(x)}")
    return x._array
