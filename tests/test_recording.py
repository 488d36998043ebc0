"""plain_ops, beside no_grad, whose own tests are in test_autograd.py."""
import contextlib
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import minitx as mt
from minitx import ops
from minitx.recording import mode, ran

pytestmark = pytest.mark.host("twins of the CPU")
X = np.ones((300, 300), np.float32)                                     # large enough for a twin


def plain():
    """Whether ops run as they stand."""
    before = ran["twins"]
    ops.gelu(X)
    return ran["twins"] == before


def recorded():
    return (mt.tensor(1.0, requires_grad=True) + 1.0).requires_grad


def test_a_context_also_nested_and_undone_by_an_exception():
    assert not plain()
    with mt.plain_ops():
        with mt.plain_ops():
            assert plain()
        assert plain()
    assert not plain()
    with pytest.raises(KeyError), mt.plain_ops():
        {}[1]
    one = mt.plain_ops()
    for _ in range(2):
        with one:
            with one:
                assert plain()
            assert plain()
        assert not plain()


def test_a_decorator():
    @mt.plain_ops()
    def function(deeper):
        assert plain()
        return function(deeper - 1) if deeper else "done"

    @mt.plain_ops()
    def fails():
        raise KeyError
    assert function(2) == "done" and not plain()
    with pytest.raises(KeyError):
        fails()
    assert not plain() and function.__name__ == "function"


def test_a_generator_is_plain_inside_and_its_caller_is_not():
    @mt.plain_ops()
    def generator():
        for i in range(3):
            assert plain()
            yield i
    for i in generator():
        assert not plain()
        if i == 1:
            break
    assert list(generator()) == [0, 1, 2] and not plain()


def test_it_and_no_grad_hold_independently():
    with mt.plain_ops():
        assert recorded()
        with mt.no_grad():
            assert plain() and not recorded()
        assert plain() and recorded()
    with mt.no_grad(), mt.plain_ops():
        assert plain() and not recorded()
    assert not plain() and recorded()


@pytest.mark.parametrize("first, second", [(mt.plain_ops, mt.no_grad), (mt.no_grad, mt.plain_ops)])
def test_left_in_another_order_than_entered_each_undoes_its_own(first, second):
    """As when a generator that is inside one is closed, or goes on, in the other."""
    one, two = contextlib.ExitStack(), contextlib.ExitStack()
    one.enter_context(first())
    two.enter_context(second())
    try:
        one.close()
        assert plain() is (second is mt.plain_ops) and recorded() is (second is mt.plain_ops)
    finally:
        two.close()
        leaked = mode.__dict__.copy()
        mode.__dict__.clear()                                           # or every later test would fail too
    assert leaked.get("recording", True) is True and leaked.get("twins", mode.twins) is mode.twins


def test_it_is_per_thread():
    inside, checked, seen = threading.Event(), threading.Event(), {}

    def other():
        with mt.plain_ops():
            seen["there"] = plain()
            inside.set()
            checked.wait(10)
    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(10)
    try:
        assert not plain()
    finally:
        checked.set()
        thread.join()
    assert seen["there"]
    with mt.plain_ops():
        thread = threading.Thread(target=lambda: seen.update(new=plain()))
        thread.start()
        thread.join()
        assert not seen["new"] and plain()


def test_it_holds_where_forward_ran_not_backward():
    """A twin made in forward does its own backward, and a plain op its own."""
    for outside in (False, True):
        x = mt.tensor(X, requires_grad=True)
        with mt.plain_ops() if outside else contextlib.nullcontext():
            y = ops.gelu(x)
        name = type(y.node).__name__
        with contextlib.nullcontext() if outside else mt.plain_ops():
            y.backward(X)
        assert name == ("GELU" if outside else "FusedGELU")
        np.testing.assert_allclose(x.grad, 1.0833155, rtol=1e-5)


def test_ran_counts_ops():
    before = dict(ran)
    ops.gelu(X)
    ops.gelu(X[:2])
    with mt.plain_ops():
        ops.gelu(X)
    assert ran == {"plain": before["plain"] + 2, "twins": before["twins"] + 1}


def test_ran_as_says_what_ran(monkeypatch):
    monkeypatch.setitem(ran, "twins", 18_240)
    monkeypatch.setitem(ran, "plain", 2_760)
    monkeypatch.delenv("MINITX_PLAIN", raising=False)
    assert mt.ran_as() == ("ops: 18,240 of 21,000 ran as faster twins (minitx/fused); "
                           "with MINITX_PLAIN=1 all run as they stand in minitx/ops")
    monkeypatch.setenv("MINITX_PLAIN", "1")
    assert mt.ran_as() == "ops: 21,000, all as they stand in minitx/ops (MINITX_PLAIN is set)"


@pytest.mark.parametrize("value, twins", [("1", 0), ("yes", 0), ("0", 1), ("", 1), (None, 1)])
def test_the_variable_does_it_for_a_process(value, twins):
    program = ("import numpy as np, sys, minitx as mt; from minitx.recording import ran; from minitx import ops\n"
               "assert not any(name.startswith('minitx.fused') for name in sys.modules)\n"
               "x = mt.tensor(np.ones((300, 300), np.float32), requires_grad=True); ops.gelu(x).sum().backward()\n"
               "mt.optim.AdamW([x]).step()\n"
               "print(ran['twins'], 'minitx.fused' in sys.modules)")
    environ = {name: text for name, text in os.environ.items() if name != "MINITX_PLAIN"}
    if value is not None:
        environ["MINITX_PLAIN"] = value
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", env=environ, timeout=60)
    assert result.stdout.split() == [str(twins), str(bool(twins))], result.stderr
