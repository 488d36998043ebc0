"""A stand-in for CuPy where no GPU is, as strict as CuPy or stricter: what runs on it does not lean on NumPy.

Its arrays hold a NumPy array and let it out only where CuPy copies to the host. Beside a device array no NumPy array
and no list; no function or keyword that CuPy lacks; 0-d arrays instead of numbers; an AssertionError where CuPy would
silently do something else (an index out of range wraps, one element assigned twice has no defined winner). All that it
claims of CuPy is listed in claims.py.

    undo = double.install()                         # until undo(), the double is in CuPy's place; kernels=True: it runs
                                                    # CUDA sources too, thread by thread, which takes its time
    with double.counting() as counts: ...           # counts.transfers_in, .transfers_out, .synchronisations
"""
import sys

from double import runtime
from double.array import Array, here, there
from double.counts import counting
from double.module import CUPY, CUPYX, Cupy
from minitx import backend
from minitx.fused.cuda.kernels import has_compiler

__all__ = ["CUPY", "Array", "Cupy", "counting", "here", "install", "there"]
_PARTS = {"cupy": CUPY, "cupy.cuda": CUPY.cuda, "cupy.cuda.runtime": CUPY.cuda.runtime,
          "cupy.random": CUPY.random, "cupyx": CUPYX, "cupyx.scipy": CUPYX.scipy,
          "cupyx.scipy.special": CUPYX.scipy.special}


def install(kernels=False):
    """Put the double in CuPy's place, for `import cupy` and so for minitx. Returns the function that undoes it."""
    runs_kernels = runtime.RawModule.runs
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in ("cupy", "cupyx")}

    def place(modules, kernels):
        for name in [name for name in sys.modules if name.partition(".")[0] in ("cupy", "cupyx")]:
            del sys.modules[name]
        sys.modules.update(modules)
        runtime.RawModule.runs = kernels
        backend._probe.cache_clear()
        has_compiler.cache_clear()

    place(_PARTS, kernels)
    return lambda: place(before, runs_kernels)
