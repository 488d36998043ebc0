"""minitx: the Transformer in plain NumPy, both directions. These are the public names; models, proof and interop load when
they are first used."""
import importlib

from minitx import backend, nn, ops, optim, schedule
from minitx.autograd import Op, Tensor, no_grad
from minitx.backend import cuda, set_default_device, set_default_dtype
from minitx.creation import arange, ones, rand, randn, tensor, zeros
from minitx.precision import get_float32_matmul_precision, set_float32_matmul_precision
from minitx.random import manual_seed
from minitx.recording import plain_ops, ran_as

__version__ = "0.1.0"
__all__ = ["Op", "Tensor", "arange", "backend", "checkpoint", "cuda", "generate", "get_float32_matmul_precision",
           "gradcheck", "interop", "manual_seed", "models", "nn", "no_grad", "ones", "ops", "optim", "plain_ops",
           "proof", "ran_as", "rand", "randn", "rates", "resume", "sampling", "schedule", "set_default_device",
           "set_default_dtype", "set_float32_matmul_precision", "tensor", "training", "zeros"]
_LATER = ("checkpoint", "generate", "interop", "models", "proof", "rates", "resume", "sampling", "training")


def __dir__():
    return sorted(__all__) + ["__version__"]


def __getattr__(name):
    if name == "gradcheck":
        from minitx.proof.gradcheck import gradcheck
        return gradcheck
    if name in _LATER:
        return importlib.import_module(f"minitx.{name}")
    raise AttributeError(f"module 'minitx' has no attribute {name!r}")
