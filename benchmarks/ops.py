"""Every op, forward and backward, on arrays from 4 numbers to 100 MB, and beside it the plain op where it has a faster twin.

    python benchmarks/ops.py [--only softmax gelu ...] [--threads 1] [--pairs 5] [--json FILE] [--plot FILE]

The size is that of the first input, in rows of up to 512 float32; weights are 512 x 512 at most, heads up to 64 wide and 256
long. "minitx" is what runs, "other" the plain op, in pairs. Then: nanoseconds an element, forward and backward; and the bytes
in and out, of both, over the rate of a large copy (limits.py). The tape is part of it: on small arrays it is nearly all. The
plot shows nanoseconds an element against the size.
"""
import math
import statistics
import sys
import time

import limits
import numpy as np
from pairs import LEAST, Row, options, pinned, report, summary

import minitx as mt
from minitx import backend
from minitx.ops import OPS

SIZES = [4 * 16 ** i for i in range(6)] + [100 * 2 ** 18]               # the last are 100 MiB
RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


def positive(*shape):
    return RNG.uniform(0.5, 1.5, shape).astype(np.float32)


def table(n):
    """The shape of n numbers as rows: (N, C)."""
    C = min(512, math.isqrt(n))
    return n // C, C


def heads(n):
    """The shape of n numbers as heads: (H, T, K)."""
    K = min(64, math.isqrt(n))
    T = min(256, n // K)
    return n // (T * K), T, K


def pictures(n):
    """The shape of n numbers as images: (B, 1, height, width)."""
    side = min(32, math.isqrt(n))
    return n // side ** 2, 1, side, side


def bools(*shape):
    return RNG.random(shape) < 0.8


def square(n):
    C = table(n)[1]
    return normal(C, C) / np.float32(C ** 0.5)


def vector(n):
    return normal(table(n)[1])


def ids(n):
    """A row of a table of n numbers for each of its rows."""
    return RNG.integers(table(n)[0], size=table(n)[0])


# For each op: the size of its first input -> (its inputs, its options).
INPUTS = {
    **{name: lambda n: ((normal(*table(n)),), {}) for name in
       "abs cos erf exp log_softmax neg relu sigmoid silu sin softmax tanh".split()},
    **{name: lambda n: ((positive(*table(n)),), {}) for name in ("log", "sqrt")},
    **{name: lambda n: ((normal(*table(n)), positive(*table(n))), {}) for name in
       "add div maximum minimum mul sub".split()},
    **{name: lambda n: ((positive(*table(n)),), dict(axis=-1)) for name in
       "logsumexp max mean min prod std sum var".split()},
    "pow": lambda n: ((positive(*table(n)), 3.0), {}),
    "where": lambda n: ((normal(*table(n)), normal(*table(n))), dict(condition=bools(*table(n)))),
    "masked_fill": lambda n: ((normal(*table(n)),), dict(mask=bools(*table(n)), value=0.0)),
    "clip": lambda n: ((normal(*table(n)),), dict(min=-1.0, max=1.0)),
    "gelu": lambda n: ((normal(*table(n)), None), {}),
    "dropout": lambda n: ((normal(*table(n)), None), dict(keep=bools(*table(n)), p=0.2)),
    "reshape": lambda n: ((normal(*table(n)),), dict(shape=(-1,))),
    "transpose": lambda n: ((normal(*table(n)),), dict(axes=(1, 0))),
    "getitem": lambda n: ((normal(*table(n)),), dict(index=(slice(None), slice(1, None)))),
    "to": lambda n: ((normal(*table(n)),), dict(device=backend.default_device(), dtype=backend.DOUBLE)),
    "concatenate": lambda n: ((normal(*table(n)), normal(*table(n))), dict(axis=0)),
    "stack": lambda n: ((normal(*table(n)), normal(*table(n))), dict(axis=0)),
    "split": lambda n: ((normal(*table(n)),), dict(sections=2, axis=-1)),
    "matmul": lambda n: ((normal(*table(n)), square(n)), {}),
    "einsum": lambda n: ((normal(*table(n)), square(n)), dict(equation="ni,io->no")),
    "linear": lambda n: ((normal(*table(n)), square(n), vector(n)), {}),
    "embedding": lambda n: ((normal(*table(n)),), dict(ids=ids(n))),
    "layer_norm": lambda n: ((normal(*table(n)), vector(n), vector(n)), {}),
    "rms_norm": lambda n: ((normal(*table(n)), vector(n)), {}),
    "cross_entropy": lambda n: ((normal(*table(n)),), dict(targets=RNG.integers(table(n)[1], size=table(n)[0]))),
    "scaled_dot_product_attention": lambda n: ((*(normal(*heads(n)) for _ in range(3)), None), dict(is_causal=True)),
    "rope": lambda n: ((normal(*heads(n)),), dict(positions=np.arange(heads(n)[1]))),
    "patchify": lambda n: ((normal(*pictures(n)),), dict(patch=(2, 2))),
}


class Run:
    """An op on its inputs, on the default device. arrays, given, host_dy: what goes in, on the host."""

    def __init__(self, name, n, dtype=np.float32):
        inputs, self.given = INPUTS[name](n)
        self.arrays = [x.astype(dtype) if isinstance(x, np.ndarray) else x for x in inputs]
        self.op, device = OPS[name], backend.default_device()
        self.options = {key: backend.to_device(x, device) if isinstance(x, np.ndarray) else x
                        for key, x in self.given.items()}
        self.inputs = [mt.tensor(x, requires_grad=True, device=device) if isinstance(x, np.ndarray) else x
                       for x in self.arrays]
        self.tensors = [x for x in self.inputs if isinstance(x, mt.Tensor)]
        y = self.forward()
        self.has_twin = type(y.node) is not self.op
        self.host_dy = RNG.standard_normal(y.shape).astype(y.dtype)
        self.dy = backend.to_device(self.host_dy, device)
        self.nbytes = 2 * (y.data.nbytes + sum(x.data.nbytes for x in self.tensors))

    def forward(self):
        """The result, of several the first."""
        y = self.op.apply(*self.inputs, **self.options)
        return y[0] if isinstance(y, tuple) else y

    def once(self):
        """The result and the gradients of one forward and backward."""
        for x in self.tensors:
            x.grad = None
        y = self.forward()
        y.backward(self.dy)
        return y.data, [x.grad for x in self.tensors]

    def seconds(self, times):
        """(forward, backward), the means of so many."""
        forward = backward = 0.0
        for _ in range(times):
            for x in self.tensors:
                x.grad = None
            begun = time.perf_counter()
            y = self.forward()
            between = time.perf_counter()
            y.backward(self.dy)
            backward += time.perf_counter() - between
            forward += between - begun
            del y
        return forward / times, backward / times


def measure(name, n, threads, pairs, copied):
    """The Row of an op at a size, and its nanoseconds an element, forward and backward."""
    run = Run(name, n)
    run.seconds(1)
    times = max(1, int(LEAST / sum(run.seconds(1))))
    timed, plain = [], []
    for _ in range(pairs):
        timed.append(run.seconds(times))
        if run.has_twin:
            with mt.plain_ops():
                plain.append(run.seconds(times))
    forward, backward = (1e9 * statistics.median(some) / n for some in zip(*timed))
    took = [1000 * sum(some) for some in timed]
    figures = summary(zip(took, (1000 * sum(some) for some in plain))) if plain else dict(ours=statistics.median(took))
    return Row(f"{name}, {n:,}", threads, **figures, share=run.nbytes / (figures["ours"] / 1000) / copied, limit="memory",
               note=f"{forward:.3g} and {backward:.3g} ns an element"), forward + backward


def plot(curves, file):
    """Nanoseconds an element against the size, a line for each op."""
    import matplotlib.figure
    figure = matplotlib.figure.Figure(figsize=(9, 9), layout="constrained")
    axes = figure.subplots()
    for i, (name, points) in enumerate(curves.items()):
        axes.loglog(*zip(*points), color=f"C{i % 10}", linestyle=("-", "--", ":", "-.", (0, (1, 3)))[i // 10 % 5], label=name)
    axes.set_xlabel("numbers in the first input")
    axes.set_ylabel("nanoseconds an element, forward and backward")
    figure.legend(loc="outside right upper", fontsize="small")
    figure.savefig(file, dpi=120)


def main():
    args = options(__doc__, INPUTS, pairs=5, threads=[1]).parse_args()
    curves = {}

    def measured():
        for threads in args.threads:
            with pinned(threads):
                copied = limits.bandwidth(threads)
                for name in args.only:
                    for n in SIZES:
                        row, ns = measure(name, n, threads, args.pairs, copied)
                        curves.setdefault(f"{name}, {threads}", []).append((n, ns))
                        yield row
    report(measured(), args, lambda rows, file: plot(curves, file))
    return 0


if __name__ == "__main__":
    sys.exit(main())
