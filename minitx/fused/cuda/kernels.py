"""Where CUDA sources are read, compiled and launched. Everything goes through the CuPy that backend.py found.

CuPy compiles a source the first time it is asked for, for the GPU at hand, and keeps it in its own folder. What it can
be asked for is listed by `every`, so that all of it can be compiled where no GPU is.
"""
import functools
import importlib.resources

import numpy as np

from minitx import backend
from minitx.backend import require_cupy

FAMILIES = ("activation", "adamw", "attention", "dropout", "embedding", "loss", "norm", "softmax")
FILES = {"attention": ("attention", "attention_backward")}              # of a family that has more than one
FLOATS = {"float32": "float", "float64": "double"}
THREADS = 256                           # of a block that works element by element
VIEW = np.dtype([("size", np.int64, 4), ("step", np.int64, 5)])         # View of block.cu
TENSORS, STEPS, PIECE = 400, 16, 4096   # of adamw.cu: gradients and steps of a launch, numbers of a block
WIDTHS = (32, 64, 128)                  # of attention.cu: the widest head, rounded up


def ready(*arrays):
    """Whether all of them are CuPy's, of one float dtype that kernels are for, on the device where CuPy works now."""
    if not all(backend.is_array(x) and not isinstance(x, np.ndarray) for x in arrays):
        return False
    cupy, dtype = require_cupy(), arrays[0].dtype
    here = cupy.cuda.Device().id
    return dtype.name in FLOATS and all(x.dtype == dtype and x.device.id == here for x in arrays) and has_compiler(cupy)


@functools.cache
def has_compiler(cupy):
    """CuPy always does. What stands in its place may lack a compiler."""
    try:
        cupy.RawModule(code="")
    except RuntimeError:
        return False
    return True


def source(family):
    """The text of a family: what all share, then its own. In one piece, for CuPy would not notice a change in an
    included file and would go on with what it had compiled before."""
    folder = importlib.resources.files(__package__)
    return "".join(f'#line 1 "{name}.cu"\n' + (folder / f"{name}.cu").read_text(encoding="utf-8")
                   for name in ("block", *FILES.get(family, (family,))))


@functools.cache
def options(dtype, **macros):
    """What the compiler is told."""
    macros = {"REAL": FLOATS[np.dtype(dtype).name], **macros}
    return "-std=c++17", *(f"-D{name}={value}" for name, value in macros.items())


def every():
    """(family, options) of all that can be asked for."""
    for family in FAMILIES:
        for dtype in FLOATS:
            yield from ((family, options(dtype, **macros)) for macros in variants(family, dtype))


def variants(family, dtype):
    """The macros that a family is compiled with besides REAL, one dict for each of its forms."""
    if family == "adamw":
        return [{"TENSORS": TENSORS, "STEPS": STEPS, "PIECE": PIECE}]
    return [heads_of(width, dtype) for width in WIDTHS] if family == "attention" else [{}]


def heads_of(width, dtype):
    """The macros for heads so wide: tiles as large as the 48 KiB of shared memory that every GPU has allow."""
    itemsize = np.dtype(dtype).itemsize
    return {"WIDTH": width, "TILE": min(128, 8192 // width) // itemsize}


def launch(family, name, grid, block, *args, dtype, **macros):
    """Launch a kernel. Arrays are C-contiguous or come with a View; Python's ints arrive as long long, floats as
    REAL, bools as bool, None as a null pointer."""
    kernel = _kernel(require_cupy(), family, name, options(dtype, **macros))
    kernel(grid, block, tuple(_argument(x, dtype) for x in args))


@functools.cache
def _kernel(cupy, family, name, options):
    return _module(cupy, family, options).get_function(name)


@functools.cache
def _module(cupy, family, options):
    return cupy.RawModule(code=source(family), options=options)


def _argument(x, dtype):
    if x is None:
        return np.uintp(0)
    if isinstance(x, bool):
        return np.bool_(x)
    if isinstance(x, int):
        return np.int64(x)
    return dtype.type(x) if isinstance(x, float) else x


def by_element(family, name, n, *args, dtype):
    """Launch a kernel with a thread for each of n elements."""
    if n:
        launch(family, name, (-(-n // THREADS),), (THREADS,), *args, dtype=dtype)


def by_row(family, name, rows, width, *args, dtype):
    """Launch a kernel with a block for each row of that width."""
    if rows:
        threads = next((n for n in (32, 64, 128) if width <= 2 * n), THREADS)
        launch(family, name, (rows,), (threads,), *args, dtype=dtype)


def view(x, shape, name="array"):
    """Array x as it broadcasts to a shape of up to five axes, for a kernel to find its rows. ValueError where it does
    not."""
    if x.ndim > len(shape) or any(n not in (1, m) for n, m in zip(x.shape[::-1], shape[::-1])):
        raise ValueError(f"{name} {x.shape} must broadcast to {shape}")
    sizes = [1] * (5 - len(shape)) + list(shape[:-1])
    steps = [0] * (5 - x.ndim) + [0 if n == 1 else step // x.itemsize for n, step in zip(x.shape, x.strides)]
    return np.array((sizes, steps), VIEW)
