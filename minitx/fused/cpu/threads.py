"""A few threads for the rows of one array: ufuncs and products let go of Python's lock while they compute.

As many threads work as the BLAS had before: ``threadpoolctl.threadpool_limits`` and OPENBLAS_NUM_THREADS govern both. While
they work the BLAS itself is held to one thread, or the two would fight for the processors; afterwards it has what it had
before, after an exception too. Without threadpoolctl, or with a BLAS that it cannot steer, everything runs on the caller's
thread and products use whatever threads the BLAS has.
"""
import contextlib
import contextvars
import functools
import os
import queue
import threading

BLOCK = 1 << 16                 # elements of a block: few enough for the cache, and enough that a call of NumPy costs little
LARGE = 4                       # times: how much larger blocks are for several threads
FEW = 4                         # blocks, below which one thread is done before another has woken
OPERATIONS = 1 << 22            # the least part of a product that is worth a piece of its own


def in_blocks(task, n, block, products=False):
    """Call task(i, j) for all of 0 .. n in blocks of rows i to j, on all threads. `products`: the task calls the BLAS.

    One thread takes `block` rows at a time. Several take larger pieces: they wait for each other at every call of NumPy,
    and a call must be long beside such a wait.
    """
    threads = count()
    if threads > 1 and n >= FEW * block:
        block = min(LARGE * block, -(-n // (2 * threads)))
        share(task, [(i, min(i + block, n)) for i in range(0, n, block)])
    else:
        with alone() if products else contextlib.nullcontext():
            for i in range(0, n, block):
                task(i, min(i + block, n))


def parts(n, operations):
    """0 .. n as equal parts (i, j), one for each thread, or fewer for few operations: products like large pieces."""
    several = max(1, min(count(), n, operations // OPERATIONS))
    cuts = [n * i // several for i in range(several + 1)]
    return list(zip(cuts, cuts[1:]))


def share(task, items):
    """Call task(*item) for every item: whichever thread is free takes the next one."""
    threads = min(count(), len(items))
    with alone():
        if threads < 2 or not _helping.acquire(blocking=False):
            for item in items:
                task(*item)
            return
        try:
            _together(_taking_turns(task, items[::-1]), threads - 1)
        finally:
            _helping.release()


def _taking_turns(task, items):
    """What each thread does: the next item, until none is left."""
    def work():
        while items:
            try:
                item = items.pop()
            except IndexError:          # another thread took the last one
                return
            task(*item)
    return work


# ---- the BLAS --------------------------------------------------------------------------------------------------------

_before: tuple[int, ...] = ()           # how many threads each library had, while it is held to one


@functools.cache
def _libraries():
    """The BLAS libraries of this process that threadpoolctl can steer, NumPy's first."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return ()
    found = [library for library in ThreadpoolController().lib_controllers if library.user_api == "blas"]
    return tuple(sorted(found, key=lambda library: "numpy" not in library.filepath))


def count():
    """How many threads may work: as many as the BLAS would use."""
    libraries, before = _libraries(), _before
    return before[0] if before else libraries[0].get_num_threads() if libraries else 1


@contextlib.contextmanager
def alone():
    """Inside it the BLAS uses one thread: its others would go on spinning for a while, and take processors from ours.

    Only the main thread steers it: OpenBLAS does not listen to others.
    """
    global _before
    if _before or count() == 1 or threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        _before = tuple(library.get_num_threads() for library in _libraries())
        for library in _libraries():
            library.set_num_threads(1)
        yield
    finally:
        _give_back()


def _give_back():
    """Let the BLAS have the threads that it had."""
    global _before
    for library, n in zip(_libraries(), _before):
        library.set_num_threads(n)
    _before = ()


# ---- the threads -----------------------------------------------------------------------------------------------------

_helping = threading.Lock()             # the helpers have one job at a time: a second caller works without them
_helpers: list["_Helper"] = []


def _together(work, helpers):
    """Run work() here and on that many helpers; when all are done, raise what one of them raised."""
    while len(_helpers) < helpers:
        _helpers.append(_Helper())
    done: queue.SimpleQueue = queue.SimpleQueue()                       # of this job alone: Ctrl-C may end the wait for it
    for helper in _helpers[:helpers]:
        helper.inbox.put((contextvars.copy_context(), work, done))      # NumPy's errstate is part of the context
    try:
        work()
    finally:
        errors = [done.get() for _ in range(helpers)]
    for error in errors:
        if error is not None:
            raise error


class _Helper(threading.Thread):
    """A thread that waits for work, and says when it is done and what it raised."""

    def __init__(self):
        super().__init__(name="minitx", daemon=True)
        self.inbox: queue.SimpleQueue = queue.SimpleQueue()
        self.start()

    def run(self):
        while True:
            context, work, done = self.inbox.get()
            error = None
            try:
                context.run(work)
            except BaseException as caught:
                error = caught
            done.put(error)
            del context, work, done, error          # nothing of a job outlives it here: not its arrays


def _forget():
    """In a forked child the helpers are gone, and the lock may be held by nobody."""
    global _helping
    _helping = threading.Lock()
    _helpers.clear()
    _give_back()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
