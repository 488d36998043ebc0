"""Device mode: the whole test suite with "cuda" as the default device, on a GPU or, with --double, on the double.

    pytest --double                     everywhere: the double stands in CuPy's place (tests/double)
    MINITX_DEVICE=cuda pytest           with CuPy and a GPU

The tests are written for arrays on the host. What makes them run on the device as they stand is here, at the borders
between a test and minitx, and acts only while the default device is a GPU:

    in      a host array that a test itself hands to an op, a Module, Tensor() or backward() goes to the device first.
            What minitx hands to its own ops is left as it is: there a host array is a fault, and shows
    out     the assertions of numpy.testing bring device arrays home before they compare; np.shares_memory knows them
    skipped tests marked ``host("why")``, whose very subject is an array on the host; the summary counts them by reason
"""
import functools
import sys
from collections import Counter
from pathlib import Path

import double
import numpy as np
import pytest

import minitx as mt
from minitx import arguments, backend, op
from minitx.nn.module import Module

TESTS, ENGINE = str(Path(__file__).parent), Path(op.__file__).parent
# Between an op and the test that called it stand only these.
BETWEEN = (__file__, *(str(ENGINE / name) for name in ("ops", "op.py", "arguments.py", "tensor.py", "autograd.py")))


def on():
    return backend.default_device() != "cpu"


def from_a_test():
    """Whether it was a test that called, through ops alone: neither a layer nor the rest of minitx."""
    frame = sys._getframe(2)
    while frame.f_code.co_filename.startswith(BETWEEN):
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(TESTS)


def moved(x):
    return backend.to_device(backend.plain(x), backend.default_device()) if isinstance(x, np.ndarray) else x


def floats(x):
    return isinstance(x, np.ndarray) and x.dtype.kind == "f"        # ids, targets and masks are minitx's to move


def going_in(function, place=None):
    """The function, given a device array where a test gave a host one: at that place, or wherever there are floats."""
    @functools.wraps(function)
    def call(*args, **keywords):
        if on() and any(isinstance(x, np.ndarray) for x in (*args, *keywords.values())) and from_a_test():
            args = [moved(x) if place == i or place is None and floats(x) else x for i, x in enumerate(args)]
            keywords = {name: moved(x) if floats(x) else x for name, x in keywords.items()}
        return function(*args, **keywords)
    return call


def coming_out(function):
    @functools.wraps(function)
    def call(*args, **keywords):
        return function(*home(args), **home(keywords))
    return call


def home(x):
    """x with every device array within it on the host."""
    if isinstance(x, dict):
        return {key: home(value) for key, value in x.items()}
    return type(x)(map(home, x)) if type(x) in (tuple, list) else double.here(x)


def shares_memory(a, b, numpys=np.shares_memory):
    """np.shares_memory, of device arrays too."""
    if isinstance(a, np.ndarray) is not isinstance(b, np.ndarray):
        return False
    return numpys(a, b) if isinstance(a, np.ndarray) else backend.xp_of(a).shares_memory(a, b)


def patch():
    """Set the borders up, for the session."""
    for name in dir(np.testing):
        if name.startswith("assert_") and "warn" not in name and "raises" not in name:
            setattr(np.testing, name, coming_out(getattr(np.testing, name)))
    np.shares_memory = shares_memory
    arguments.raw = op.raw = going_in(arguments.raw, 1)
    mt.Tensor.__init__ = going_in(mt.Tensor.__init__, 1)
    mt.Tensor.backward = going_in(mt.Tensor.backward, 1)
    Module.__call__ = going_in(Module.__call__)


def skip_host(items):
    for item in items:
        mark = item.get_closest_marker("host")
        if mark:
            item.add_marker(pytest.mark.skip(reason=f"host: {mark.args[0]}"))


def summary(stats):
    """What ran on the device, and what is of the host, by reason."""
    ran = sum(len(stats.get(outcome, ())) for outcome in ("passed", "failed"))
    skipped = [report.longrepr[2] for report in stats.get("skipped", ()) if "host: " in report.longrepr[2]]
    listed = "".join(f"; {n}: {why}" for why, n in Counter(x.partition("host: ")[2] for x in skipped).most_common())
    return f"{ran} tests ran on {backend.default_device()}, {len(skipped)} are of the host{listed}"
