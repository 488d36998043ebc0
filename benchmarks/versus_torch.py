"""Single ops, forward and backward together, and AdamW: minitx against PyTorch eager, in pairs.

    python benchmarks/versus_torch.py [--only cross_entropy gelu_tanh attention ...] [--threads 1 2] [--pairs 20] [--compile]
                                      [--json FILE] [--plot FILE]

First both sides must agree on the result and on every gradient. Beside each ratio stands the share of the machine's limit:
the bytes that must move, each array once in and once out, over the rate of a large copy; for attention its operations over
the rate of a large product (limits.py). "passes" is our time in copies of x: what a library cannot keep in the processor's
cache costs at least one. Arrays that the cache holds may be faster than memory. --compile adds the training steps of step.py
beside torch.compile, where that runs: it needs a C++ compiler, and some minutes.
"""
import sys
from collections.abc import Callable
from typing import NamedTuple

import limits
import numpy as np
from pairs import Row, absent, marks, need, options, paired, pinned, report
from workloads import ADAMW, DECAY, WORKLOADS, step_of

import minitx as mt
from minitx import ops, optim

if not absent("torch"):                                 # main says so, after --help
    import torch
    import torch.nn.functional as F
    from torch_models import arrange, twin
    from torch_steps import Disagreement, adamw, check, training_step

B, C, T, H, K = 16, 512, 512, 8, 64


class Case(NamedTuple):
    """An op: the arrays that get gradients, both sides as functions of them, and what must move or be computed."""
    title: str
    arrays: tuple
    ours: Callable
    theirs: Callable
    moved: int                              # numbers of float32
    operations: int = 0
    marks: tuple = (None, None)


def cross_entropy(rng, N=512, V=50257):
    targets = rng.integers(V, size=N)
    there = torch.from_numpy(targets)
    return Case("cross entropy, 512 x 50257", (normal(rng, N, V),), lambda x: ops.cross_entropy(x, targets),
                lambda x: F.cross_entropy(x, there), moved=2 * N * V, marks=(0.6, 0.6))


def gelu_tanh(rng):
    return Case("GELU, tanh form, 16 x 256 x 2048", (normal(rng, B, 256, 4 * C),), lambda x: ops.gelu(x, "tanh"),
                lambda x: F.gelu(x, approximate="tanh"), moved=5 * B * 256 * 4 * C, marks=(1.0, 1.0))


def gelu(rng):
    return Case("GELU, exact, 16 x 256 x 512", (normal(rng, B, 256, C),), ops.gelu, F.gelu, moved=5 * B * 256 * C)


def attention(rng):
    q, k, v = (normal(rng, 8, H, T, K) for _ in range(3))
    return Case("causal attention, 8 x 8 x 512 x 64", (q, k, v),
                lambda q, k, v: ops.scaled_dot_product_attention(q, k, v, is_causal=True),
                lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), moved=10 * q.size,
                operations=limits.training(limits.attention(8 * limits.causal(T), H * K)), marks=(1.2, 1.2))


def embedding(rng, n=4096, rows=8192):
    ids = rng.integers(rows, size=n)
    there = torch.from_numpy(ids)
    return Case("embedding, 4096 of 8192 rows of 512", (normal(rng, rows, C),), lambda weight: ops.embedding(ids, weight),
                lambda weight: F.embedding(there, weight), moved=3 * n * C + rows * C, marks=(1.2, 1.2))


def layer_norm(rng):
    arrays = normal(rng, B, 256, C), normal(rng, C), normal(rng, C)
    return Case("layer norm, 16 x 256 x 512", arrays, ops.layer_norm,
                lambda x, weight, bias: F.layer_norm(x, (C,), weight, bias), moved=5 * B * 256 * C)


def softmax(rng):
    return Case("softmax, 16 x 256 x 512", (normal(rng, B, 256, C),), ops.softmax, lambda x: F.softmax(x, dim=-1),
                moved=5 * B * 256 * C)


CASES = {case.__name__: case for case in (cross_entropy, gelu_tanh, attention, embedding, layer_norm, softmax, gelu)}


def normal(rng, *shape):
    return rng.standard_normal(shape, dtype=np.float32)


def once(function, tensors, dy):
    """A function that runs forward and backward from fresh gradients: (the result, the gradients)."""
    def run():
        for x in tensors:
            x.grad = None
        y = function(*tensors)
        y.backward(dy)
        return y, [x.grad for x in tensors]
    return run


def both_sides(case, rng):
    """(ours, theirs) of a case. Disagreement where they do not compute the same."""
    tensors = [mt.tensor(x, requires_grad=True) for x in case.arrays]
    dy = normal(rng, *case.ours(*tensors).shape)
    ours = once(case.ours, tensors, dy)
    theirs = once(case.theirs, [torch.from_numpy(x).requires_grad_() for x in case.arrays], torch.from_numpy(dy))
    (y, gradients), (expected, others) = ours(), theirs()
    check(f"results of {case.title}", y.numpy(), expected.detach().numpy(), 1e-5)
    for g, other in zip(gradients, others):
        check(f"gradients of {case.title}", g, other.numpy(), 1e-4)
    return ours, theirs


def measure(name, threads, pairs):
    """The Row of an op."""
    rng = np.random.default_rng(0)
    case = CASES[name](rng)
    with pinned(threads):
        ours, theirs = both_sides(case, rng)
        copied, product = limits.bandwidth(threads), limits.peak() if case.operations else None
        figures = paired(ours, theirs, pairs, threads)
        copied = max(copied, limits.bandwidth(threads))
    time = figures["ours"] / 1000
    limit = (dict(share=case.operations / time / product, limit="product") if product else
             memory(time, case.moved, case.arrays[0].size, copied))
    return Row(case.title, threads, **figures, mark=marks(threads, *case.marks), **limit)


def memory(time, moved, size, copied):
    """The share of the memory's rate that moving so many numbers is, and the time in copies of an array of that size."""
    return dict(share=4 * moved / time / copied, limit="memory", note=f"{time * copied / (2 * 4 * size):.1f} passes")


def measure_adamw(threads, pairs):
    """The Row of a step of AdamW on the parameters of the medium model, with the same gradients every time."""
    ours = WORKLOADS["medium"]().build()
    theirs, rng = twin(ours), np.random.default_rng(0)
    named, others = dict(ours.named_parameters()), dict(theirs.named_parameters())
    for p in named.values():
        p.grad = normal(rng, *p.shape)
    for name, g in arrange({name: p.grad for name, p in named.items()}, others).items():
        others[name].grad = torch.from_numpy(g.copy())
    here, there = optim.AdamW(optim.decay_groups(ours, DECAY), **ADAMW), adamw(theirs, **ADAMW, weight_decay=DECAY)
    here.step()
    there.step()
    for name, w in arrange({name: p.data for name, p in named.items()}, others).items():
        check(f"AdamW's {name}", w, others[name].detach().numpy(), 1e-5)
    n = sum(p.size for p in named.values())
    with pinned(threads):
        copied = limits.bandwidth(threads)
        figures = paired(here.step, there.step, pairs, threads)
        copied = max(copied, limits.bandwidth(threads))
    return Row(f"AdamW, {n / 1e6:.1f} million parameters", threads, **figures,
               **memory(figures["ours"] / 1000, 7 * n, n, copied))


def measure_compiled(name, threads, pairs):
    """The Row of a training step beside torch.compile's; with a note where that does not run."""
    work = WORKLOADS[name]()
    torch.compiler.reset()
    with pinned(threads):
        model = work.build()
        ours, theirs = step_of(work, model), training_step(torch.compile(twin(model)), work.batches)
        try:
            there = theirs()
        except Exception as error:                      # no compiler, or one that it cannot use: whatever it raises
            said = str(error).strip().splitlines()[0]
            return Row(f"{work.title}, torch.compile", threads, note=f"does not run here: {type(error).__name__}: {said}")
        check("losses of torch.compile", ours(), there, 1e-5)
        figures, peak = paired(ours, theirs, pairs, threads), limits.peak()
    return Row(f"{work.title}, torch.compile", threads, **figures, limit="product",
               share=work.operations / (figures["ours"] / 1000) / peak)


def main():
    parser = options(__doc__, [*CASES, "adamw"])
    parser.add_argument("--compile", action="store_true", help="also beside torch.compile")
    args = parser.parse_args()
    need("torch")

    def measured():
        for threads in args.threads:
            for name in args.only:
                yield measure_adamw(threads, args.pairs) if name == "adamw" else measure(name, threads, args.pairs)
            for name in ("small", "medium") if args.compile else ():
                yield measure_compiled(name, threads, args.pairs)
    try:
        report(measured(), args)
    except Disagreement as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
