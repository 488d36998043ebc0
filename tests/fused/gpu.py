"""For tests of twins on a GPU: CuPy where a GPU is, else the double, where kernels run in the emulator."""
import importlib

import double
import numpy as np
import pytest

import minitx as mt
from minitx import backend, fused
from minitx.fused.cuda import kernels

for _name in kernels.FAMILIES:
    importlib.import_module(f"minitx.fused.cuda.{_name}")
TWINS = {key[1]: twin for key, twin in fused.TWINS.items() if type(key) is tuple and isinstance(key[1], type)}


@pytest.fixture(scope="module", autouse=True)
def gpu():
    """CuPy on a GPU, or the double in its place, for the length of a file."""
    real = mt.cuda.is_available() and backend.require_cupy() is not double.CUPY
    undo = (lambda: None) if real else double.install(kernels=True)
    yield
    undo()


@pytest.fixture(autouse=True)
def compiler(gpu):
    """Something that compiles kernels."""
    if not kernels.ready(there(np.ones(1))):
        pytest.skip("neither a GPU nor a C++ compiler: nothing here runs CUDA sources")


def there(x):
    return x if x is None else backend.to_device(x, "cuda:0")


def counted():
    """Whether transfers and synchronisations are counted: the double does."""
    return isinstance(there(np.ones(1)), double.Array)
