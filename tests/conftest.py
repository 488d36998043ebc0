"""What holds in every test: seeded random numbers, and nothing global left changed. And the switch to the device."""
import sys

import device_mode
import double
import numpy as np
import pytest
from hypothesis import settings

import minitx as mt

settings.register_profile("minitx", deadline=None, derandomize=True)     # the same examples on every machine
settings.load_profile("minitx")


def pytest_addoption(parser):
    parser.addoption("--double", action="store_true",
                     help="run on 'cuda', with the strict double of tests/double in CuPy's place")


def pytest_configure(config):
    if config.getoption("--double"):
        double.install()
        mt.set_default_device("cuda")
    try:
        if device_mode.on():
            device_mode.patch()
    except (RuntimeError, ValueError) as error:             # MINITX_DEVICE says what cannot be had here
        raise pytest.UsageError(error) from None


def pytest_collection_modifyitems(items):
    if device_mode.on():
        device_mode.skip_host(items)


def pytest_terminal_summary(terminalreporter):
    if device_mode.on():
        terminalreporter.write_line(device_mode.summary(terminalreporter.stats))


@pytest.fixture
def cupy():
    """The double in CuPy's place, for the length of a test; where nothing is said, tensors go to the CPU."""
    undo = double.install()
    with mt.backend.on_device("cpu"):
        yield sys.modules["cupy"]
    undo()


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
