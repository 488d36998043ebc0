"""What is missing for CUDA and how to get it, in one sentence, which errors and ``python -m minitx info`` say."""
import contextlib
import os
from textwrap import shorten

EXTRAS = {12: "minitx[cuda12]", 13: "minitx[cuda]"}


def without_cupy(error):
    """The sentence where `import cupy` raised that error."""
    if isinstance(error, ModuleNotFoundError) and error.name == "cupy" and not cupys():
        return f"CuPy is not installed: {_install(driver())}"
    return f"CuPy cannot be imported ({_told(error)}): {_install(driver(), instead=True)}"


def beside(cupy):
    """The sentence for a CuPy that is there and cannot compute; an empty string where it can. Never raises."""
    try:
        return _lacks(cupy)
    except Exception as error:                              # a driver in trouble, or half of a CuPy
        return (f"CuPy is there and fails when it is asked for a GPU ({_told(error)}): see that nvidia-smi shows one, or "
                f"{_install(driver(), instead=True)}")


def _lacks(cupy):
    name, runtime = f"CuPy {cupy.__version__}", cupy.cuda.runtime
    if not cupy.cuda.is_available():
        known = wanted = 0
        with contextlib.suppress(Exception):
            known, wanted = runtime.driverGetVersion(), runtime.runtimeGetVersion()
        if not known:
            return (f"{name} is installed but finds no NVIDIA driver: install one, until nvidia-smi shows the GPU, or stay "
                    "with device 'cpu'")
        if known // 1000 < wanted // 1000:
            return (f"{name} is built for CUDA {wanted // 1000} and the driver knows CUDA {version(known)} at most: update "
                    f"the driver, or {_install(known, instead=True)}")
        return (f"{name} finds a driver but no NVIDIA GPU: see that nvidia-smi shows one, and CUDA_VISIBLE_DEVICES does not "
                "hide it")
    try:
        cupy.cuda.nvrtc.getVersion()                        # compiles kernels
        cupy.cuda.cublas                                    # computes products
    except Exception as error:
        return f"{name} finds a GPU but not CUDA's libraries ({_told(error)}): {_install(runtime.runtimeGetVersion())}"
    return ""


def cupys():
    """The names of the installed packages that are CuPy. More than one write over each other's files."""
    from importlib.metadata import distributions
    names = {(package.metadata["Name"] or "").lower() for package in distributions()}
    return sorted(name for name in names if name == "cupy" or name.startswith(("cupy-cuda", "cupy-rocm")))


def too_many():
    """The sentence where several CuPys are installed; an empty string where there is one or none."""
    there = cupys()
    return f"{len(there)} CuPys write over each other's files: {_install(driver())}" if len(there) > 1 else ""


def driver():
    """The newest CUDA that the driver knows, 12040 being 12.4; 0 where there is no driver."""
    import ctypes
    number = ctypes.c_int()
    try:
        library = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
        library.cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        pass
    return number.value


def version(number):
    """12040 as "12.4"."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _install(known, instead=False):
    """The command for a driver that knows that CUDA, or for any where it is 0; `instead` of what is there."""
    major, there = 12 if 12000 <= known < 13000 else 13, cupys()
    hint = "" if known else '; "cupy-cuda12x[ctk]" where nvidia-smi shows CUDA 12'
    before = f"pip uninstall -y {' '.join(there)}, then " if len(there) > 1 or instead and there else ""
    return f'{before}pip install "cupy-cuda{major}x[ctk]" (extra: {EXTRAS[major]}{hint})'


def _told(error):
    """The first line of an error, or of the one that it was made from."""
    error = error.__cause__ or error
    return shorten(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}", 110, placeholder=" ...")
