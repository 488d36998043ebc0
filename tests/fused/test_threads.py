"""The pool of threads: what it computes, how it fails, and that the BLAS is left as it was."""
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import minitx as mt
from minitx import models, ops, optim
from minitx.fused.cpu import threads

pytestmark = pytest.mark.host("threads of the CPU")


@pytest.fixture
def two():
    """Two threads for the BLAS, and so for the pool; the way to ask what the BLAS has."""
    control = pytest.importorskip("threadpoolctl")
    with control.threadpool_limits(2):
        if threads.count() != 2:
            pytest.skip("this BLAS has no second thread")
        yield lambda: {library.get_num_threads() for library in threads._libraries()}


def limited(n):
    return pytest.importorskip("threadpoolctl").threadpool_limits(n)


def step(seed=0, dtype="float32", steps=2):
    """Losses, and parameters afterwards, of a GPT-2 with dropout that is large enough for every twin."""
    mt.manual_seed(seed)
    config = models.GPT2Config(vocab_size=130, n_positions=64, n_embd=64, n_layer=1, n_head=2)
    model = models.GPT2(config).to(dtype=dtype)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    ids = np.random.default_rng(seed).integers(130, size=(9, 65))
    losses = []
    for _ in range(steps):
        loss = ops.cross_entropy(model(ids[:, :-1]), ids[:, 1:])
        loss.backward()
        optim.clip_grad_norm(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.numpy())
    return losses + [p.numpy() for p in model.parameters()]


@pytest.mark.parametrize("forward, backward", [(2, 1), (1, 2)])
def test_backward_may_have_other_threads_than_forward(two, forward, backward):
    q, k, v = (mt.tensor(x, requires_grad=True) for x in np.random.default_rng(0).normal(size=(3, 5, 3, 90, 16)))
    with limited(forward):
        y = ops.scaled_dot_product_attention(q, k, v, is_causal=True)
    with limited(backward):
        y.backward(v.data)
    here = [x.grad for x in (q, k, v)]
    q.grad = k.grad = v.grad = None
    with mt.plain_ops():
        ops.scaled_dot_product_attention(q, k, v, is_causal=True).backward(v.data)
    for a, x in zip(here, (q, k, v)):
        np.testing.assert_allclose(a, x.grad, rtol=1e-9, atol=1e-11)


# ---- what comes out --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("n", [1, 2])
def test_the_same_seed_and_threads_give_the_same_bits(two, n):
    with limited(n):
        for seed in range(3):
            for one, other in zip(step(seed), step(seed)):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype, rtol", [("float32", 1e-4), ("float64", 1e-10)])
def test_one_and_two_threads_agree(two, dtype, rtol):
    pair = step(dtype=dtype)
    with limited(1):
        alone = step(dtype=dtype)
    np.testing.assert_allclose(pair[:2], alone[:2], rtol=rtol)
    if dtype == "float64":
        for ours, theirs in zip(pair, alone):
            np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-8)


def test_two_python_threads_train_at_once(two):
    results, lock = {}, threading.Lock()

    def train(seed):                        # the generator is everybody's: what is drawn is drawn one after the other
        with lock:
            mt.manual_seed(seed)
            config = models.GPT2Config(vocab_size=130, n_positions=64, n_embd=64, n_layer=1, n_head=2, resid_pdrop=0.0,
                                       embd_pdrop=0.0, attn_pdrop=0.0)
            model = models.GPT2(config).to(dtype="float64")
        ids = np.random.default_rng(seed).integers(130, size=(9, 65))
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(3):
            loss = ops.cross_entropy(model(ids[:, :-1]), ids[:, 1:])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return [loss.numpy(), *(p.numpy() for p in model.parameters())]

    expected = {seed: train(seed) for seed in (1, 2)}
    workers = [threading.Thread(target=lambda seed=seed: results.update({seed: train(seed)})) for seed in expected]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert two() == {2}
    for seed in expected:
        for ours, alone in zip(results[seed], expected[seed]):
            np.testing.assert_allclose(ours, alone, rtol=1e-8, atol=1e-8)


# ---- a job -----------------------------------------------------------------------------------------------------------

def meeting(task=lambda name: None, n=6):
    """Run a job in which both threads surely take a part: {its item: the name of the thread that did it}."""
    both, done = threading.Barrier(2, timeout=10), {}

    def work(i):
        if i < 2:
            both.wait()
        done[i] = threading.current_thread().name
        task("helper" if done[i] == "minitx" else "caller")
    threads.share(work, [(i,) for i in range(n)])
    return done


def test_every_piece_is_done_once_by_both_threads(two):
    done = meeting()
    assert sorted(done) == list(range(6)) and set(done.values()) == {"minitx", threading.current_thread().name}
    for n, block in ((0, 10), (1, 10), (10, 10), (103, 10), (5000, 1)):
        seen = []
        threads.in_blocks(lambda i, j: seen.append((i, j)), n, block)
        cuts = sorted(seen)
        assert [i for i, _ in cuts] + [n] == [0] + [j for _, j in cuts] and all(i < j for i, j in cuts)
    threads.share(seen.append, [])
    for n, operations in ((1, 10**12), (3, 10**12), (100, 10**12), (100, 0)):
        cuts = threads.parts(n, operations)
        assert [i for i, _ in cuts] + [n] == [0] + [j for _, j in cuts] and all(i < j for i, j in cuts)


def test_the_blas_works_on_one_thread_meanwhile_and_on_as_many_as_before_afterwards(two):
    meanwhile = []
    meeting(lambda name: meanwhile.append(two()))
    assert all(n == {1} for n in meanwhile) and two() == {2}
    step(steps=1)
    assert two() == {2}


@pytest.mark.parametrize("run", [lambda task: threads.in_blocks(lambda i, j: task(), 3, 10),
                                 lambda task: threads.share(task, [()]), lambda task: threads.share(task, [()] * 9)],
                         ids=["a block", "a piece", "pieces"])
def test_jobs_of_two_python_threads_that_overlap_leave_the_blas_as_it_was(two, run):
    first_in, second_in, first_out = threading.Event(), threading.Event(), threading.Event()

    def second():
        first_in.wait(10)
        run(lambda: (second_in.set(), first_out.wait(10)))
    thread = threading.Thread(target=second)
    thread.start()
    run(lambda: (first_in.set(), second_in.wait(10)))
    first_out.set()
    thread.join()
    assert two() == {2}


@pytest.mark.parametrize("where", ["caller", "helper"])
def test_an_error_reaches_the_caller_and_leaves_all_in_order(two, where):
    def task(name):
        if name == where:
            raise KeyError(name)
    for _ in range(3):
        with pytest.raises(KeyError, match=where):
            meeting(task)
        assert two() == {2}
        assert sorted(meeting()) == list(range(6))


def test_nothing_of_a_job_lives_on_in_a_helper(two):
    class Thing:
        pass
    for fails in (False, True):
        thing = Thing()
        ref = weakref.ref(thing)

        def task(name, thing=thing, fails=fails):
            if fails and name == "helper":
                raise KeyError
        try:
            meeting(task)
        except KeyError:
            pass
        del thing, task
        gc.collect()
        assert ref() is None, "after an error" if fails else "after a job"


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals between threads here")
def test_an_interrupted_job_does_not_confuse_the_next(two):
    started, go_on = threading.Event(), threading.Event()

    def slow(name):
        if name == "helper" and not started.is_set():
            started.set()
            go_on.wait(10)

    def press_the_keys():
        started.wait(10)
        time.sleep(0.05)                                                # the caller waits for its helper now
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    keyboard = threading.Thread(target=press_the_keys)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        keyboard.start()
        with pytest.raises(KeyboardInterrupt):
            meeting(slow)
    finally:
        signal.signal(signal.SIGINT, handler)
        go_on.set()
        keyboard.join()
    assert two() == {2}
    for _ in range(3):
        finished = []
        meeting(lambda name: (time.sleep(0.03 if name == "helper" else 0), finished.append(name)))
        assert len(finished) == 6, "share came back before all was done"
    with pytest.raises(KeyError):
        meeting(lambda name: {}[name])


def test_numpys_error_handling_is_the_callers(two):
    seen = []
    with np.errstate(divide="raise", over="ignore"):
        meeting(lambda name: seen.append((np.geterr()["divide"], np.geterr()["over"])))
        with pytest.raises(FloatingPointError):
            meeting(lambda name: np.ones(3) / np.zeros(3) if name == "helper" else None)
    assert set(seen) == {("raise", "ignore")}
    big = mt.tensor(np.full((300, 300), 3e38, np.float32))
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        big + big
    with np.errstate(over="ignore"):
        assert np.isinf((big + big).numpy()).all()


def test_a_job_within_a_job_is_done_by_its_own_thread(two):
    inner = []
    meeting(lambda name: threads.share(lambda i: inner.append(i), [(i,) for i in range(8)]))
    assert sorted(inner) == sorted(list(range(8)) * 6) and two() == {2}


# ---- without helpers -------------------------------------------------------------------------------------------------

def test_without_threadpoolctl_everything_runs_on_the_callers_thread(monkeypatch):
    expected = step(dtype="float64")
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    threads._libraries.cache_clear()
    try:
        assert threads.count() == 1
        names = set()
        threads.share(lambda i: names.add(threading.current_thread()), [(i,) for i in range(20)])
        assert names == {threading.current_thread()}
        for ours, theirs in zip(step(dtype="float64"), expected):
            np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-8)
    finally:
        threads._libraries.cache_clear()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_helpers_of_its_own():
    pytest.importorskip("threadpoolctl")
    program = """if True:
        import os, warnings
        import numpy as np, threadpoolctl
        import minitx as mt
        from minitx.fused.cpu import threads
        warnings.simplefilter("ignore", DeprecationWarning)             # fork beside threads
        x = mt.tensor(np.ones((512, 512), np.float32))
        with threadpoolctl.threadpool_limits(2):
            (x + x)
            threads._helping.acquire()                                     # as if another thread were at work
            child = os.fork()
            if child == 0:
                done = []
                threads.share(lambda i: done.append(i), [(i,) for i in range(50)])
                os._exit(0 if sorted(done) == list(range(50)) and ((x + x).numpy() == 2).all()
                         and not threads._helping.locked() else 1)
            threads._helping.release()
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert ((x + x).numpy() == 2).all()
        raise SystemExit(code)
    """
    result = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True, encoding="utf-8")
    assert result.returncode == 0, result.stderr
