"""THE seam: everything in which NumPy and CuPy differ, and the process-wide defaults and random numbers.

An op finds its library with ``xp = xp_of(x)`` and then writes the same code for both. What one of the two lacks, or does
slowly or wrongly, is a function of this file. Nothing else in minitx (but ``fused/cuda``) imports CuPy.
"""
import contextlib
import functools
import math
import os

import numpy as np

from minitx import memory, random, special
from minitx.random import generator

HALF, SINGLE, DOUBLE = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
LONG, BOOL = np.dtype(np.int64), np.dtype(np.bool_)


# ---- devices ---------------------------------------------------------------------------------------------------------

@functools.cache
def _probe():
    """(cupy, "") where CuPy can compute on a GPU, else (None, what is missing and how to get it). Never raises."""
    from minitx import missing
    try:
        import cupy
    except Exception as error:          # a broken install raises more than ImportError
        return None, missing.without_cupy(error)
    lacks = missing.beside(cupy)
    return (None, lacks) if lacks else (cupy, "")


def require_cupy():
    """The cupy module. RuntimeError saying what is missing where it cannot be had."""
    cupy, missing = _probe()
    if cupy is None:
        raise RuntimeError(f"device 'cuda' is not available: {missing}")
    return cupy


class cuda:
    """What PyTorch users look for first: ``mt.cuda.is_available()``."""

    @staticmethod
    def is_available():
        """True where CuPy, its libraries and a GPU are there. Never raises."""
        return _probe()[0] is not None

    @staticmethod
    def device_count():
        """How many GPUs there are; 0 without CuPy."""
        cupy = _probe()[0]
        return 0 if cupy is None else cupy.cuda.runtime.getDeviceCount()


def xp_of(x):
    """numpy or cupy, whichever owns array x."""
    if isinstance(x, (np.ndarray, np.generic)):
        return np
    if not is_array(x):
        raise TypeError(f"expected an array, got {type(x).__name__}")
    return require_cupy()


def check_dtype(dtype):
    """The NumPy dtype of that name. TypeError for one that is no float, integer or bool."""
    dtype = np.dtype(dtype)
    if dtype.kind not in "fiub" or dtype.kind == "f" and dtype.itemsize > 8:
        raise TypeError(f"a Tensor holds floats up to float64, integers or bools, not {dtype}")
    return dtype


def plain(x):
    """Array x as a plain one, in this machine's byte order: np.matrix and np.memmap would go their own ways.

    TypeError for a masked array, whose mask would be lost, and for what check_dtype refuses.
    """
    check_dtype(x.dtype)
    if not isinstance(x, np.ndarray) or type(x) is np.ndarray and x.dtype.isnative:
        return x
    if hasattr(x, "mask"):
        raise TypeError("a masked array would lose its mask: fill it first, x.filled(0)")
    return np.asarray(x, x.dtype.newbyteorder("="))


def is_array(x):
    """True for a NumPy or a CuPy array."""
    if isinstance(x, np.ndarray):
        return True
    return type(x).__module__.partition(".")[0] == "cupy" and hasattr(x, "__cuda_array_interface__")


def device_of(x):
    """The name of the device that holds array or Tensor x: "cpu" or "cuda:0"."""
    device = "cpu" if isinstance(x, np.generic) else x.device       # NumPy's arrays say "cpu", its scalars only since 2.1
    return device if isinstance(device, str) else f"cuda:{device.id}"


def check_device(device):
    """The device's canonical name ("cpu", "cuda:1"); None: the default. ValueError: no such name; RuntimeError: not here."""
    if device is None:
        return default_device()
    name, colon, number = str(device).partition(":")
    if name == "cpu" and not colon:
        return "cpu"
    if name != "cuda" or (colon and not number.isdecimal()):
        hint = "; a dtype goes in as dtype=" if getattr(device, "__name__", str(device)) in np.sctypeDict else ""
        raise ValueError(f"unknown device {device!r}: use 'cpu', 'cuda' or 'cuda:1'{hint}")
    require_cupy()
    index, count = int(number or 0), cuda.device_count()
    if index >= count:
        raise RuntimeError(f"device {device!r} is not available: this machine has {count} GPU(s), counted from 0")
    return f"cuda:{index}"


def gpu(device):
    """CuPy's own Device of that canonical name."""
    return require_cupy().cuda.Device(int(device[5:]))


def to_device(x, device):
    """Array x on the device: x itself where it is there already, else a copy."""
    if device == device_of(x) or (device := check_device(device)) == device_of(x):
        return x
    if device == "cpu":
        return x.get()
    with gpu(device):
        return require_cupy().asarray(x)


def to_numpy(x):
    """Array x on the host: x itself where it is there already."""
    return x if isinstance(x, np.ndarray) else x.get()


def like(x, other):
    """Array x on the device of array or Tensor `other`: ids, targets and masks follow the tensors that they are used with."""
    return to_device(x, device_of(other))


def synchronise(device=None):
    """Wait until the device has done what it was given. Nothing to wait for on the CPU."""
    device = check_device(device)
    if device != "cpu":
        gpu(device).synchronize()


# ---- defaults --------------------------------------------------------------------------------------------------------

_defaults = {"dtype": SINGLE, "device": None}


def default_dtype():
    """The dtype of Python floats and of new parameters: float32 until set_default_dtype."""
    return _defaults["dtype"]


def set_default_dtype(dtype):
    """Set the dtype of Python floats and of new parameters. TypeError unless it is float16, float32 or float64."""
    dtype = np.dtype(dtype)
    if dtype not in (HALF, SINGLE, DOUBLE):
        raise TypeError(f"set_default_dtype: a model computes in float16, float32 or float64, not in {dtype}")
    _defaults["dtype"] = dtype


def default_device():
    """Where new tensors are made: what set_default_device said, else the variable MINITX_DEVICE, else "cpu"."""
    if _defaults["device"] is None:
        wanted = os.environ.get("MINITX_DEVICE") or "cpu"
        try:
            set_default_device(wanted)
        except (ValueError, RuntimeError) as error:
            raise type(error)(f"the environment variable MINITX_DEVICE: {error}") from None
    return _defaults["device"]


def set_default_device(device):
    """Set where new tensors are made: "cpu", "cuda" or "cuda:1". RuntimeError where that device cannot be had.

    A GPU becomes CuPy's current one too, for ops work there: a model lives on the default device.
    """
    device = check_device("cpu" if device is None else device)
    if device != "cpu":
        gpu(device).use()
    _defaults["device"] = device


@contextlib.contextmanager
def on_device(device):
    """Inside it the device is the default one."""
    before = default_device()
    set_default_device(device)
    try:
        yield
    finally:
        set_default_device(before)


def owns_data(x):
    """Whether x is writeable and no view of another array: nobody else sees what is written there."""
    return (x.base is None or memory.is_whole(x)) and (not isinstance(x, np.ndarray) or x.flags.writeable)


def read_only(x):
    """Forbid writing into x, where the library can (CuPy cannot)."""
    if isinstance(x, np.ndarray):
        x.flags.writeable = False


# ---- arrays from outside ---------------------------------------------------------------------------------------------

def make_array(data, dtype=None, device=None):
    """A fresh array from Python data or an array, by minitx's rules of dtype, in C order.

    Python floats, and lists of them, become the default dtype, ints int64, bools bool; arrays keep theirs. NumPy scalars
    count as Python numbers. With no device named, host data goes to the default one; what is on a GPU stays there.
    TypeError for what is neither a number nor a bool (strings, objects, complex numbers).
    """
    dtype = None if dtype is None else np.dtype(dtype)
    if is_array(data):
        data = plain(data)
        array = data.astype(dtype or data.dtype, order="C", copy=True)
    else:
        array = np.array(data)
        if dtype is None:
            dtype = {"f": default_dtype(), "i": LONG, "u": LONG}.get(array.dtype.kind, array.dtype)
        if array.dtype.kind in "iu":
            array = np.array(data, dtype)                           # OverflowError for what does not fit, where astype wraps
        elif array.dtype.kind in "fb":
            array = array.astype(dtype, copy=False)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"a Tensor holds floats, integers or bools; this data is {array.dtype} "
                        "(ragged lists, strings and complex numbers have no place in one)")
    return array if device is None and not isinstance(array, np.ndarray) else to_device(array, device)


def filled(shape, value, dtype, device):
    """An array of that shape, every element `value`, made on the device."""
    device = check_device(device)
    if device == "cpu":
        return np.full(shape, value, dtype)
    with gpu(device):
        return require_cupy().full(shape, value, dtype)


def host_arange(start, stop, step, dtype=None):
    """np.arange on the host: int64 for ints, else the default dtype."""
    whole = all(isinstance(x, (int, np.integer)) for x in (start, stop, step))
    return np.arange(start, stop, step, dtype=dtype or (LONG if whole else default_dtype()))


# ---- what one library lacks, or does slowly --------------------------------------------------------------------------

broadcast_shapes = np.broadcast_shapes      # shapes are tuples on every device


def keep_mask(shape, p, beside):
    """A bool array, False with probability p, on the device of array `beside`: what dropout lets through."""
    device = device_of(beside)
    if device == "cpu" or not random.draws_on_devices():
        return to_device(np.asarray(generator().random(shape, dtype=SINGLE) >= p), device)
    with gpu(device):
        return random.on_device(device, require_cupy()).random(shape, dtype=SINGLE) >= p


def total(a, b):
    """a + b of two arrays of one shape, as a fresh array."""
    if isinstance(a, np.ndarray):
        return np.add(a, b, out=memory.empty(a.shape, a.dtype))
    return xp_of(a).asarray(a + b)


def row_dot(a, b):
    """<<a, b>>: the dot product of each pair of rows, along the last axis. (..., C), (..., C) -> (...,)"""
    return np.vecdot(a, b) if isinstance(a, np.ndarray) else (a * b).sum(axis=-1)


def quiet(x):
    """A context without NumPy's warnings, for x - max x, which may run over to -inf, its exp, which may run under to 0, and
    ln 0: all of it is meant, and inf - inf shows as NaN. CuPy never warns."""
    return np.errstate(all="ignore") if xp_of(x) is np else contextlib.nullcontext()


def follow(ids, other):
    """Ids, targets, a mask (an array, a list, a number) as an array on the device of array `other`."""
    return like(beside(ids, other), other)


def follow_index(ids, n, other):
    """Ids as an array on the device of array `other`, checked as check_index does it, and on the host if they come from
    there: then nobody waits for a GPU."""
    ids = beside(ids, other)
    check_index(ids, n)
    return like(ids, other)


def beside(ids, other):
    """Ids, targets, a mask as an array, on the host or on the device of array `other`: elsewhere, TypeError."""
    if not is_array(ids):
        ids = np.asarray(ids)
        ids = ids if ids.size else ids.astype(LONG)                 # an empty list has no dtype to speak of
    elif device_of(ids) not in ("cpu", device_of(other)):
        raise TypeError(f"ids, targets or a mask are on {device_of(ids)}, the tensor on {device_of(other)}; move one with "
                        ".to(device)")
    return ids


def check_index(ids, n, counted=True):
    """TypeError unless ids are integers; IndexError naming the first outside 0 .. n-1, of those that are counted.

    CuPy would wrap it silently. For ids on a GPU the host waits once, until the device has looked: leave them on the host.
    """
    if ids.dtype.kind not in "iu":
        raise TypeError(f"ids must be integers, got {ids.dtype}")
    outside = ((ids < 0) | (ids >= n)) & counted
    if outside.any():
        raise IndexError(f"id {int(ids[outside][0])} is out of range for size {n} (0 to {n - 1})")


def checked_index(index, x):
    """An index for x[index], its arrays where x is. NumPy checks bounds by itself, CuPy would wrap silently: host arrays
    are looked at before they move, and for each on a GPU the host waits once."""
    parts = [beside(part, x) if isinstance(part, list) or is_array(part) else part
             for part in (index if isinstance(index, tuple) else (index,))]
    if isinstance(x, np.ndarray):
        return tuple(parts)
    axis, taken = 0, sum(_axes_taken(part) for part in parts)
    for part in parts:
        if part is Ellipsis:
            axis += x.ndim - taken
        elif is_array(part) and part.dtype != BOOL and part.size:
            n = x.shape[axis]
            if ((part < -n) | (part >= n)).any():
                raise IndexError(f"an index between {int(part.min())} and {int(part.max())} leaves axis {axis} of size {n}")
        axis += _axes_taken(part)
    return tuple(like(part, x) if is_array(part) else part for part in parts)


def _axes_taken(part):
    """How many axes of the array one part of an index uses up."""
    if part is None or part is Ellipsis:
        return 0
    return part.ndim if is_array(part) and part.dtype == BOOL else 1


def scatter_add(index, values, n):
    """Add up the rows of `values` that share an index. index (N,), values (N, C) or (N,) -> (n, C) or (n,)

    float16 is added up in float32, and stays that: many would round each time.
    """
    xp, values = xp_of(values), values.astype(np.promote_types(values.dtype, SINGLE), copy=False)
    if xp is np and values.ndim > 1:
        return special.scatter_add(index, values, n)
    out = xp.zeros((n,) + values.shape[1:], values.dtype)
    xp.add.at(out, index, values)                                   # for one number a row NumPy has a fast road itself
    return out


def erf(x):
    """The error function of array x, which NumPy lacks."""
    if xp_of(x) is np:
        return special.erf(x)
    from cupyx.scipy.special import erf as cupy_erf
    return cupy_erf(x)


def normal_cdf(x):
    """P(Z < x) = (1 + erf(x / sqrt 2)) / 2 of array x, Z a normal variable."""
    return special.normal_cdf(x) if xp_of(x) is np else 0.5 * (1 + erf(math.sqrt(0.5) * x))
