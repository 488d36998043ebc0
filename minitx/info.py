"""What runs here: versions, BLAS and threads, faster twins, CUDA and what it lacks, devices, optional libraries."""
import contextlib
import os
import platform
import sys
from importlib.util import find_spec
from textwrap import wrap

import numpy as np

# Optional libraries, and the extra of minitx that brings them; "" where none does.
EXTRAS = {"cupy": "cuda", "safetensors": "weights", "tokenizers": "text", "tqdm": "demos", "matplotlib": "demos",
          "babel": "demos", "threadpoolctl": "fast", "torch": ""}


def rows():
    """{what: a line on it}"""
    import minitx
    there = {name: bool(sys.modules.get(name) or find_spec(name)) for name in EXTRAS}
    blas = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    absent = [f"{name} ({extra})" if extra else name for name, extra in EXTRAS.items() if not there[name]]
    return {
        "minitx": f"{minitx.__version__} in {os.path.dirname(minitx.__file__)}",
        "Python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "NumPy": np.__version__,
        "BLAS": f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip(),
        "threads": _threads(there["threadpoolctl"]),
        "twins": _twins(there["threadpoolctl"]),
        **_cuda(),
        "devices": ", ".join(["cpu", *_gpus()]),
        "default": _default(),
        "installed": ", ".join(name for name in EXTRAS if there[name]) or "none",
        "missing": f"{', '.join(absent)}; in brackets the extra that brings it" if absent else "none",
    }


def text():
    """The rows as a table, the long list of twins in lines of up to 100 columns."""
    table = rows()
    table["twins"] = f"\n{'':10}".join(wrap(table["twins"], 90))
    return "\n".join(f"{name:10}{value}" for name, value in table.items())


def _threads(with_threadpoolctl):
    """How many processors there are, and how many threads the BLAS uses, as far as that can be known."""
    line = f"{os.cpu_count()} processors"
    if with_threadpoolctl:
        from threadpoolctl import threadpool_info
        for pool in threadpool_info():
            if pool["user_api"] == "blas":
                line += f", {pool['internal_api']} {pool['version']} uses {pool['num_threads']}"
        return line
    names = [name for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS") if name in os.environ]
    set_here = "".join(f", {name}={os.environ[name]}" for name in names)
    return f"{line}{set_here} (pip install threadpoolctl to see those of the BLAS)"


def _twins(with_threadpoolctl):
    """Which ops a faster twin may stand in for: on the CPU, with how many threads, and on a GPU."""
    from minitx import fused, recording
    if recording.all_plain():
        return "none: MINITX_PLAIN is set"
    from minitx.fused.cpu import threads
    fused.load(found := {})
    names = {"cpu": [], "cuda": []}
    for key in found:
        kind, op = key if isinstance(key, tuple) else ("cpu", key)
        names[kind].append(getattr(op, "name", op))
    n = threads.count()
    listed = {kind: ", ".join(sorted(some, key=str.lower)) for kind, some in names.items()}
    line = f"{listed['cpu']}; on {n} thread{'s' if n > 1 else ''}"
    line += "" if with_threadpoolctl else " (pip install threadpoolctl for as many as the BLAS uses)"
    return f"{line}; on cuda: {listed['cuda']}" if listed["cuda"] else line


def _cuda():
    """The rows on CuPy and CUDA: versions, two CuPys beside each other, and what is missing and how to get it."""
    from minitx import backend, missing
    _, lacks = backend._probe()
    cupy, names, many = sys.modules.get("cupy"), missing.cupys(), missing.too_many()
    said = [cupy.__version__ if hasattr(cupy, "__version__") else "none", f"({', '.join(names)})" if names else ""]
    versions = []
    with contextlib.suppress(Exception):                # a broken CuPy raises anything
        runtime, driver = cupy.cuda.runtime.runtimeGetVersion(), cupy.cuda.runtime.driverGetVersion()
        versions += [f"runtime {missing.version(runtime)}", f"driver {missing.version(driver)}" if driver else "no driver"]
    return {"CuPy": " ".join(filter(None, said)) + (f"; {many}" if many else ""),
            "CUDA": "; ".join(filter(None, [", ".join(versions), lacks]))}


def _default():
    """Where new tensors are made, or why nowhere."""
    from minitx import backend
    try:
        return backend.default_device()
    except (ValueError, RuntimeError) as error:
        return str(error)


def _gpus():
    """What each GPU is called, and its memory."""
    from minitx import backend
    for i in range(backend.cuda.device_count()):
        about = ""
        with contextlib.suppress(Exception):            # an old driver, or a stand-in for one
            found = backend.require_cupy().cuda.runtime.getDeviceProperties(i)
            about = (f" {found['name'].decode()} ({found['totalGlobalMem'] / 2 ** 30:.0f} GiB, "
                     f"compute {found['major']}.{found['minor']})")
        yield f"cuda:{i}{about}"
