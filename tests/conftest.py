"""What holds in every test: seeded random numbers, and nothing global left changed."""
import numpy as np
import pytest
from hypothesis import settings

import minitx as mt

settings.register_profile("minitx", deadline=None, derandomize=True)     # the same examples on every machine
settings.load_profile("minitx")


def global_state():
    recording = (mt.tensor(1.0, requires_grad=True) + 1.0).requires_grad
    return np.geterr(), mt.backend.default_dtype(), mt.backend.default_device(), recording


@pytest.fixture(autouse=True)
def tidy():
    """Every test starts from seed 0, and leaves NumPy's error handling, the defaults and the recording as they were."""
    mt.manual_seed(0)
    before = global_state()
    yield
    assert global_state() == before, "this test changed global state and did not put it back"
