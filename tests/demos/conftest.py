"""Ctrl-C as at a terminal, whatever started the tests; and what demos leave out in device mode."""
import contextlib
import importlib.util
import signal
from pathlib import Path

import device_mode
import double
import pytest

import minitx as mt
from minitx import rates

DEMOS = Path(__file__).parents[2] / "demos"


@pytest.fixture(autouse=True)
def ctrl_c():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler, "the handler was not put back"


@pytest.fixture(autouse=True)
def device(request):
    """Where the whole suite runs on the device a demo ends without measuring the CPU beside it, and on the double it keeps
    to plain ops: kernels that the processor plays take long."""
    with contextlib.ExitStack() as stack:
        if device_mode.on() and "cupy" not in request.fixturenames:         # a test that puts a GPU there by itself
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setattr(rates, "compare", lambda *args, **options: None)
            if isinstance(mt.backend.require_cupy(), double.Cupy):
                stack.enter_context(mt.plain_ops())
        yield


@pytest.fixture
def load():
    """load(name, small): a demo as a module, with other values for its constants; of a dict only those entries."""
    def load(name, small):
        spec = importlib.util.spec_from_file_location(name, DEMOS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for key, value in small.items():
            setattr(module, key, getattr(module, key) | value if isinstance(value, dict) else value)
        return module
    return load
