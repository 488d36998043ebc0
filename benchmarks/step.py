"""Whole training steps, and BERT reading: minitx against PyTorch eager, the same models and batches, in pairs.

    python benchmarks/step.py [--only small medium vit seq2seq bert] [--threads 1 2] [--pairs 20] [--max-ratio 1.5]
                              [--json FILE] [--plot FILE]

    small     GPT-2, 4 layers, 4 heads, 128 wide, T 64, batch 12, 65 symbols
    medium    GPT-2, 6 layers, 6 heads, 384 wide, T 256, batch 8
    vit       digits of 8 x 8 in 16 patches, 3 layers, 4 heads, 96 wide, batch 64
    seq2seq   2 + 2 layers, 4 heads, 256 wide, S 32, T 32, batch 32
    bert      6 layers, 6 heads, 384 wide, S 128, batch 8: inference

A training step is forward, backward, clipping to norm 1 and AdamW. First both must agree on the loss and on every gradient,
or on what BERT makes of a batch. Beside the ratio stands which share of the machine's products our side reaches: the
operations it cannot do without (limits.py), over its time, over the rate of one large product, taken before and after.
"""
import sys

import limits
from pairs import Row, absent, marks, need, options, paired, pinned, report
from workloads import WORKLOADS

if not absent("torch"):                                 # main says so, after --help
    import torch  # noqa: F401  (before the threads are pinned, which then holds for it too)
    from torch_steps import Disagreement, both_steps

MARKS = {"small": (0.9, 1.0), "medium": (1.0, 1.0), "vit": (1.0, 1.0), "seq2seq": (1.0, 1.0), "bert": (1.0, 1.0)}
LEAST = {"medium": (0.65, 0.60)}                        # of the product's peak


def measure(name, threads, pairs):
    """The Row of a workload."""
    work = WORKLOADS[name]()
    with pinned(threads):
        ours, theirs = both_steps(work)
        before = limits.peak()
        figures = paired(ours, theirs, pairs, threads)
        peak = max(before, limits.peak())
    return Row(work.title, threads, **figures, mark=marks(threads, *MARKS[name]), limit="product",
               share=work.operations / (figures["ours"] / 1000) / peak, least=marks(threads, *LEAST.get(name, (None, None))))


def main():
    parser = options(__doc__, WORKLOADS)
    parser.add_argument("--max-ratio", type=float, metavar="X", help="exit 1 if a median is above it")
    args = parser.parse_args()
    need("torch")
    try:
        rows = report((measure(name, threads, args.pairs) for threads in args.threads for name in args.only), args)
    except Disagreement as error:
        print(error, file=sys.stderr)
        return 1
    return 1 if args.max_ratio and max(row.ratio for row in rows) > args.max_ratio else 0


if __name__ == "__main__":
    sys.exit(main())
