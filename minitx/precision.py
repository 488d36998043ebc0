"""How float32 matrices are multiplied on a GPU: one switch, with PyTorch's name and words."""
import numpy as np

from minitx import backend

_precision = "highest"


def set_float32_matmul_precision(precision):
    """Multiply float32 matrices on a GPU in float32 ("highest", as from the start), or faster, in TF32 ("high").

    TF32 keeps 10 bits of each factor's mantissa instead of 23, an error of up to 5e-4 of each, and adds up in float32.
    NVIDIA's GPUs have it from Ampere on; on an older one CuPy warns and stays with float32. It concerns products of two
    matrices, so every linear layer; batches of products, as in attention, CuPy computes in float32 all the same. On the
    CPU nothing changes. Until the first call CuPy's own variable CUPY_TF32 says how it is. ValueError for another word.
    """
    global _precision
    if precision not in ("highest", "high"):
        raise ValueError(f"set_float32_matmul_precision: 'highest' (float32) or 'high' (TF32), not {precision!r}")
    _precision = precision
    if backend.cuda.is_available():
        core = backend.require_cupy()._core
        types = core._routines_linalg
        core.set_compute_type(np.float32, types.COMPUTE_TYPE_TF32 if precision == "high" else types.COMPUTE_TYPE_DEFAULT)


def get_float32_matmul_precision():
    """"highest" or "high": what set_float32_matmul_precision was told."""
    return _precision
