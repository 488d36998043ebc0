"""Ops and training steps on a GPU, minitx beside PyTorch, in three precisions, timed by CUDA events."""
import contextlib
import statistics
import time
from typing import NamedTuple

import numpy as np
import ops
import workloads
from pairs import Row, paired, warm

import minitx as mt
from minitx import backend

# What both sides compute in: float32 with products in TF32, or float16 with weights in float32 and the loss scaled.
KINDS = ("float32", "TF32", "float16")
PRODUCTS = ("matmul", "linear", "einsum", "scaled_dot_product_attention")
ALLOWED = {"float32": 1e-3, "TF32": 2e-2, "float16": 5e-2}          # between the two sides, of the largest entry
SIZE = 4 * 2 ** 20                                                  # numbers in the first input of an op
LEAST = 0.03                                                        # seconds that a measurement takes at least
STEPS = {**workloads.WORKLOADS,
         "medium64": lambda: workloads.gpt2("GPT-2 medium, batch 64, step", 64, **workloads.MEDIUM)}
MARKS = {("medium64", "TF32"): 1.0}


class Sides(NamedTuple):
    """What is measured with: the clock of CuPy's side; PyTorch (None: not there), its clock and its device."""
    clock: object
    torch: object = None
    their_clock: object = None
    their_device: str = "cuda"


def events(library):
    """A clock as pairs.seconds, which has the GPU itself take the time: CUDA events of cupy or torch."""
    cuda, is_torch = library.cuda, library.__name__ == "torch"

    def seconds(call, times=1):
        begun, ended = (cuda.Event(enable_timing=True) if is_torch else cuda.Event() for _ in range(2))
        begun.record()
        for _ in range(times):
            call()
        ended.record()
        ended.synchronize()
        elapsed = begun.elapsed_time(ended) if is_torch else cuda.get_elapsed_time(begun, ended)
        return elapsed / 1000 / times
    return seconds


@contextlib.contextmanager
def precision(kind, torch=None):
    """Inside it both sides multiply float32 as that kind says."""
    settings = [mt, *([torch] if torch else [])]
    before = [side.get_float32_matmul_precision() for side in settings]
    try:
        for side in settings:
            side.set_float32_matmul_precision("high" if kind == "TF32" else "highest")
        yield
    finally:
        for side, word in zip(settings, before):
            side.set_float32_matmul_precision(word)


def kinds_of(name):
    """The precisions in which an op differs."""
    return KINDS if name in PRODUCTS else ("float32",) if name == "to" else ("float32", "float16")


def dtype_of(kind):
    return np.float16 if kind == "float16" else np.float32


def peak(kind, clock, n=4096):
    """Operations a second of a large product."""
    xp = backend.require_cupy()
    a, b = (xp.ones((n, n), dtype_of(kind)) for _ in range(2))
    with precision(kind):
        xp.matmul(a, b)
        return 2 * n ** 3 / min(clock(lambda: xp.matmul(a, b)) for _ in range(5))


def bandwidth(clock, megabytes=256):
    """Bytes read and written a second by a large copy."""
    xp = backend.require_cupy()
    source = xp.ones(megabytes * 250_000, np.float32)
    target = xp.empty_like(source)
    xp.copyto(target, source)
    return 2 * source.nbytes / min(clock(lambda: xp.copyto(target, source)) for _ in range(5))


def first_call(call):
    """(what it gave, its seconds on the host's clock): in the first call kernels compile."""
    begun = time.perf_counter()
    result = call()
    backend.synchronise()
    return result, time.perf_counter() - begun


def figures(ours, theirs, sides, pairs, seconds):
    """Of the two calls, or of ours alone: what a Row has. seconds: of our first call."""
    note = f"first call {seconds:.2f} s"
    if theirs is None:
        return dict(ours=1000 * sides.clock(ours, warm(ours, sides.clock, LEAST)), note=note)
    return dict(paired(ours, theirs, pairs, clocks=(sides.clock, sides.their_clock), least=LEAST), note=note)


def apart(found, expected):
    """How far two results are from each other, of the largest entry; inf where one is NaN."""
    found, expected = (np.asarray(x, float) for x in (found, expected))
    gap = np.abs(found - expected).max(initial=0) / max(np.abs(expected).max(initial=0), 1e-3)
    return gap if np.isfinite(gap) else np.inf


def op_row(name, kind, sides, pairs, copied, size=SIZE):
    """The Row of an op, forward and backward; copied is the GPU's bandwidth."""
    with precision(kind, sides.torch):
        run = ops.Run(name, size, dtype_of(kind))
        (y, gradients), seconds = first_call(run.once)
        theirs = None
        if sides.torch:
            import torch_ops
            theirs = torch_ops.once(run, sides.their_device)
            expected, others = theirs()
            pairs_of = [(y, expected.detach()), *zip(gradients, others)]
            gap = max(apart(backend.to_numpy(a), b.float().cpu().numpy().reshape(a.shape)) for a, b in pairs_of)
            if not gap <= ALLOWED[kind]:
                return Row(name, kind, note=f"DIFFERS from PyTorch by {gap:.1e} of the largest entry")
        row = Row(name, kind, **figures(run.once, theirs, sides, pairs, seconds), limit="memory")
        row.share = run.nbytes / (row.ours / 1000) / copied
        return row


def step_row(name, kind, sides, pairs, product, workload=None):
    """The Row of a training step or a reading; product is the GPU's rate of products."""
    work, half = (workload or STEPS[name])(), kind == "float16"
    with precision(kind, sides.torch):
        model, theirs = work.build(), None
        if sides.torch:
            import torch_models
            import torch_steps
            theirs = torch_steps.step_of(work, torch_models.twin(model).to(sides.their_device), half)
        ours = workloads.step_of(work, model, half)
        result, seconds = first_call(ours)
        if theirs and not apart(result, theirs()) <= ALLOWED[kind]:
            return Row(work.title, kind, note="DIFFERS from PyTorch in the first step")
        row = Row(work.title, kind, **figures(ours, theirs, sides, pairs, seconds), mark=MARKS.get((name, kind)),
                  limit="product")
        row.share = work.operations / (row.ours / 1000) / product
        return row


def tried(measure, name, kind, *args):
    """measure's Row; where it raises, a Row that says so, and the rest goes on."""
    try:
        return measure(name, kind, *args)
    except Exception as error:                          # a library that lacks something, or too little memory
        return Row(name, kind, note=f"FAILED: {type(error).__name__}: {str(error).partition(chr(10))[0]}")


def rows(sides, pairs, names, steps):
    """A Row for every op and step in every precision."""
    copied = bandwidth(sides.clock)
    product = {kind: peak(kind, sides.clock) for kind in KINDS}
    for name in steps:
        for kind in KINDS:
            yield tried(step_row, name, kind, sides, pairs, product[kind])
            backend.require_cupy().get_default_memory_pool().free_all_blocks()     # so that the next finds room
            if sides.torch:
                sides.torch.cuda.empty_cache()
    for name in names:
        for kind in kinds_of(name):
            yield tried(op_row, name, kind, sides, pairs, copied)


def their_rows(torch, pairs):
    """A Row for every step in every precision, of PyTorch alone: "other" is its median of so many measurements."""
    import torch_models
    import torch_steps
    clock = events(torch)
    with backend.on_device("cpu"):
        for name, workload in STEPS.items():
            work = workload()
            for kind in KINDS:
                with precision(kind, torch):
                    call = torch_steps.step_of(work, torch_models.twin(work.build()).to("cuda"), kind == "float16")
                    times = warm(call, clock, LEAST)
                    yield Row(work.title, kind, theirs=1000 * statistics.median(clock(call, times) for _ in range(pairs)))
