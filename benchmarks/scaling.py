"""Time against size: a training step of a GPT-2, with the batch, the width, the length or the layers doubled four times.

    python benchmarks/scaling.py [--only batch width length layers] [--threads 1] [--pairs 3] [--json FILE] [--plot FILE]

Each begins with 2 layers, 128 wide in heads of 32, T 64, batch 8, except that width begins with 64 and T 128, batch 16; that
is doubled until a step takes over 50 ms, and from there four times more. The time of a step over its counted operations
(limits.py) should not grow: the ratio is that of the largest over the smallest, the "other" is the smallest. A pair is one
step of every size.
"""
import sys

import limits
from pairs import Row, marks, options, pinned, report, seconds, summary
from workloads import gpt2, step_of

SMALLEST, DOUBLINGS = 0.050, 4
BASE = dict(B=8, n_positions=64, n_embd=128, n_layer=2)
AXES = {"batch": ("B", {}), "width": ("n_embd", dict(n_embd=64, n_positions=128, B=16)), "length": ("n_positions", {}),
        "layers": ("n_layer", {})}


def sized(axis, times):
    """The workload whose axis is so many times as large as at first, and its size."""
    key, other = AXES[axis]
    sizes = BASE | other
    sizes[key] *= times
    return gpt2(axis, **sizes, n_head=sizes["n_embd"] // 32), sizes[key]


def step_and_time(work):
    """A warm step of the workload, and its seconds."""
    step = step_of(work, work.build())
    step()
    return step, min(seconds(step) for _ in range(2))


def first_over(axis):
    """How often the axis is to be doubled until a step takes over SMALLEST seconds."""
    times = 1
    while step_and_time(sized(axis, times)[0])[1] <= SMALLEST:
        times *= 2
    return times


def measure(axis, threads, pairs):
    """A Row for each doubling; the last has the mark."""
    with pinned(threads):
        first = first_over(axis)
        works = [sized(axis, first * 2 ** i) for i in range(DOUBLINGS + 1)]
        steps = [step_and_time(work)[0] for work, _ in works]
        turns = [[seconds(step, 3 if i == 0 else 1) * 1000 for i, step in enumerate(steps)] for _ in range(pairs)]
        peak = limits.peak()
    smallest, begun = works[0]
    for i, (work, size) in enumerate(works[1:], 1):
        figures = summary([(turn[i], turn[0]) for turn in turns], smallest.operations / work.operations)
        yield Row(f"time over operations, {axis} {begun} to {size}", threads, **figures, limit="product",
                  share=work.operations / (figures["ours"] / 1000) / peak,
                  mark=marks(threads, 1.25, None) if i == DOUBLINGS else None)


def main():
    args = options(__doc__, AXES, pairs=3, threads=[1]).parse_args()
    report((row for threads in args.threads for axis in args.only for row in measure(axis, threads, args.pairs)), args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
