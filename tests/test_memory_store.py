"""memory.empty: what is given out again, and to nobody twice."""
import random
import sys
import threading

import numpy as np
import pytest

import minitx as mt
from minitx import memory, ops, optim
from minitx.backend import owns_data

pytestmark = pytest.mark.host("kept memory is the host's")
SHAPE, DTYPE = (300, 301), np.dtype(np.float32)                         # a size that nothing else asks for


@pytest.fixture(autouse=True)
def store(monkeypatch):
    """A store of this test's own."""
    monkeypatch.setattr(memory, "_buffers", {})


counts = pytest.mark.skipif(not hasattr(sys, "getrefcount"), reason="this Python counts no references")


def address(x):
    return x.__array_interface__["data"][0]


def test_an_array_like_any_other():
    x = memory.empty(SHAPE, DTYPE)
    assert type(x) is np.ndarray and x.shape == SHAPE and x.dtype == DTYPE
    assert x.flags.writeable and x.flags.c_contiguous and x.flags.aligned
    assert memory.empty((), np.dtype(np.float64)).shape == () and memory.empty((0, 3), DTYPE).shape == (0, 3)
    assert memory.empty((2, 3), DTYPE).base is None                     # little is the allocator's


@counts
@pytest.mark.parametrize("shape, dtype", [(SHAPE, DTYPE), (SHAPE[::-1], DTYPE), ((300 * 301 // 2,), np.dtype(np.float64)),
                                          ((SHAPE[0], SHAPE[1] * 4), np.dtype(bool))])
def test_what_nobody_holds_is_given_out_again(shape, dtype):
    x = memory.empty(SHAPE, DTYPE)
    before = address(x)
    del x
    assert memory.unused() == 300 * 301 * 4
    again = memory.empty(shape, dtype)
    assert address(again) == before and again.shape == shape and again.dtype == dtype and memory.unused() == 0


HOLDERS = {"itself": lambda x: x, "a view": lambda x: x[5:, ::2], "a view of a view": lambda x: x.T[3][2:],
           "a reshape": lambda x: x.reshape(-1)[:1], "another dtype": lambda x: x.view(np.uint8),
           "its buffer": memoryview, "a row of a list": lambda x: list(x[:2]), "an iterator": lambda x: x.flat,
           "a broadcast": lambda x: np.broadcast_to(x, (2,) + SHAPE), "asarray": lambda x: np.asarray(memoryview(x)),
           "dlpack": np.from_dlpack, "a Tensor": mt.Tensor, "detached": lambda x: mt.Tensor(x).detach(),
           "its base": lambda x: x.base}


@counts
@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
def test_what_somebody_holds_is_not(holder):
    x = memory.empty(SHAPE, DTYPE)
    before = address(x)
    held = holder(x)
    del x
    assert memory.unused() == 0
    others = [memory.empty(SHAPE, DTYPE) for _ in range(3)]
    assert len({before, *map(address, others)}) == 4
    memory.release()
    assert memory.unused() == 0
    del held
    assert address(memory.empty(SHAPE, DTYPE)) == before


def test_two_that_are_held_at_once_share_nothing():
    """Whatever this Python's counts mean."""
    held = [memory.empty(SHAPE, DTYPE) for _ in range(5)]
    for i, x in enumerate(held):
        x.fill(i)
    del held[1]
    held.append(memory.empty(SHAPE, DTYPE))
    held[-1].fill(9)
    assert [x.min() for x in held] == [x.max() for x in held] == [0, 2, 3, 4, 9]


def test_whole_arrays_and_views():
    x = memory.empty(SHAPE, DTYPE)
    assert memory.is_whole(x) and owns_data(x)
    for view in (x[:], x[1:], x.T, x.reshape(-1), x.view(), x.view(np.uint8), np.broadcast_to(x, (2,) + SHAPE),
                 x[:, None], x.copy(), np.empty(3), memory.empty((2,), DTYPE)):
        assert not memory.is_whole(view)
    assert not owns_data(x[:]) and not owns_data(x.T)
    x.flags.writeable = False
    assert not owns_data(x)


@counts
def test_release_lets_go_of_what_is_unused_and_of_nothing_else():
    held, spare = memory.empty(SHAPE, DTYPE), memory.empty(SHAPE, DTYPE)
    held.fill(7)
    del spare
    assert memory.unused() == held.nbytes
    memory.release()
    assert memory.unused() == 0
    assert not np.shares_memory(memory.empty(SHAPE, DTYPE), held) and (held == 7).all()


@counts
def test_beyond_the_spare_bytes_a_new_size_lets_go(monkeypatch):
    monkeypatch.setattr(memory, "SPARE", 10 * memory.LEAST)
    for size in range(memory.LEAST, 2 * memory.LEAST, memory.LEAST // 40):
        memory.empty((size,), np.dtype(np.uint8))
        assert memory.unused() <= 13 * memory.LEAST
    for _ in range(3):                                                  # what fits is not let go
        memory.empty((size,), np.dtype(np.uint8))
    assert memory.unused() >= size


def hammer(work, seconds=0.6):
    """work(draw, stop) on four threads that Python switches between all the time; what they raised."""
    errors, stop, before = [], threading.Event(), sys.getswitchinterval()

    def guarded(seed):
        try:
            work(random.Random(seed), stop)
        except BaseException as error:
            errors.append(error)
            stop.set()
    threads = [threading.Thread(target=guarded, args=(seed,)) for seed in range(4)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        stop.wait(seconds)
        stop.set()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    return errors


def test_threads_never_get_the_same_memory(monkeypatch):
    monkeypatch.setattr(memory, "LEAST", 8)

    def work(draw, stop):
        held = []
        while not stop.is_set():
            mark = draw.random()
            x = memory.empty((draw.choice((10, 11, 12)),), np.dtype(np.float64))
            x.fill(mark)
            held.append((x[::2] if draw.random() < 0.3 else x, mark))
            del x
            if len(held) > 6:
                y, mark = held.pop(draw.randrange(len(held)))
                assert (y == mark).all(), "somebody else wrote here"
                del y
            if draw.random() < 0.01:
                memory.release()
    assert not hammer(work)


def test_threads_may_ask_for_new_sizes_at_once(monkeypatch):
    monkeypatch.setattr(memory, "LEAST", 8)

    def work(draw, stop):
        while not stop.is_set():
            memory.empty((draw.randrange(2, 3000),), np.dtype(np.float64))
            if draw.random() < 0.01:
                memory.release()
    assert not hammer(work)


# ---- what leaves keep ------------------------------------------------------------------------------------------------

def network(x, w, b):
    """Everything that has a twin; x, w, b (300, 300), (300, 300), (300,)"""
    h = ops.layer_norm(ops.linear(x, w, b), b, b)
    h = ops.gelu(h + x)
    h = ops.softmax(h) + ops.embedding(np.arange(300)[::-1].copy(), w)
    heads = h.reshape(1, 300, 3, 100).transpose(0, 2, 1, 3)
    h = ops.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(0, 2, 1, 3).reshape(300, 300)
    return ops.cross_entropy(h + h, np.arange(300))


def leaves():
    draws = np.random.default_rng(0)
    return [mt.tensor(draws.normal(size=shape), requires_grad=True) for shape in ((300, 300), (300, 300), (300,))]


SINGLE_OPS = {"sum of two leaves": lambda x, w, b: x + w + b, "a leaf twice": lambda x, w, b: x + x + (w + w + w) + b,
              "linear": lambda x, w, b: ops.linear(x, w, b), "layer norm": lambda x, w, b: ops.layer_norm(x, b, b) + w,
              "gelu": lambda x, w, b: ops.gelu(x) + ops.gelu(w) + b, "softmax": lambda x, w, b: ops.softmax(x) + w + b,
              "attention": lambda x, w, b: ops.scaled_dot_product_attention(
                  *(a.reshape(3, 100, 300) for a in (x, w, x))).reshape(300, 300) + b,
              "cross entropy": lambda x, w, b: sum(ops.cross_entropy(a, np.arange(300)) for a in (x, w + b)),
              "everything": network}


@pytest.mark.parametrize("function", SINGLE_OPS.values(), ids=SINGLE_OPS)
def test_gradients_are_their_own_memory_and_right_step_after_step(function):
    params = leaves()
    optimizer = optim.SGD(params, lr=0.1)
    expected = []
    with mt.plain_ops():
        others = leaves()
        for _ in range(3):
            y = function(*others)
            y.backward(np.ones(y.shape))
            expected.append([p.grad.copy() for p in others])
            optim.SGD(others, lr=0.1).step()
            for p in others:
                p.grad = None
    kept = []
    for step in range(3):
        y = function(*params)
        dy = np.ones(y.shape)
        y.backward(dy)
        for p, right in zip(params, expected[step]):
            assert p.grad.flags.writeable and p.grad.shape == p.shape
            np.testing.assert_allclose(p.grad, right, rtol=1e-8, atol=1e-9)
        arrays = [y.numpy(), dy, *(p.numpy() for p in params), *(p.grad for p in params), *kept]
        optimizer.step()
        before = [a.copy() for a in arrays]
        for i, p in enumerate(params):                                  # edit one gradient: nothing else changes
            p.grad.fill(1e9)
            for j, (array, old) in enumerate(zip(arrays, before)):
                if array is not p.grad:
                    np.testing.assert_array_equal(array, old, f"step {step}: gradient {i} lies in array {j}")
            p.grad[...] = before[2 + len(params) + i]
        kept = [p.grad for p in params]                                 # somebody may keep a gradient
        marks = [g.copy() for g in kept]
        optimizer.zero_grad()
        function(*params)
        for g, mark in zip(kept, marks):
            np.testing.assert_array_equal(g, mark, "a kept gradient was given out again")
