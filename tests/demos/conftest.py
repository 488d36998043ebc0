"""Ctrl-C as at a terminal, whatever started the tests."""
import signal

import pytest


@pytest.fixture(autouse=True)
def ctrl_c():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler, "the handler was not put back"
