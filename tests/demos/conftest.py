"""Ctrl-C as at a terminal, whatever started the tests; and what demos leave out in device mode."""
import contextlib
import signal

import device_mode
import double
import pytest

import minitx as mt
from minitx import rates


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
