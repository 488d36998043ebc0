"""A training step of a small GPT-2: minitx against PyTorch eager, the same model, one thread each, in pairs.

    python benchmarks/step.py [--pairs 40] [--max-ratio 1.5] [--json FILE]

4 layers, 4 heads, 128 wide, 64 characters of 65 kinds, batch 12; forward, backward, clipping to norm 1, AdamW. First
both must agree on the loss and on every gradient. Then a pair is a few steps of the one and as many of the other; the
figure is the median of the pairs' ratios, beside it the middle half of them.
"""
import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch_gpt2 import SMALL, adamw, disagreement, pair_of_models

from minitx import ops, optim

VOCABULARY, BATCH, STEPS = 65, 12, 5                    # STEPS training steps are one measurement


def our_step(model):
    """ids (B, T + 1) -> the loss, after one training step of minitx."""
    optimiser = optim.AdamW(optim.decay_groups(model, 0.1), lr=1e-3, betas=(0.9, 0.99))

    def step(ids):
        loss = ops.cross_entropy(model(ids[:, :-1]), ids[:, 1:])
        optimiser.zero_grad()
        loss.backward()
        optim.clip_grad_norm(model.parameters(), 1.0)
        optimiser.step()
        return loss.item()
    return step


def their_step(model):
    """The same in PyTorch."""
    optimiser = adamw(model, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)

    def step(ids):
        ids = torch.from_numpy(ids)
        loss = model(ids[:, :-1], ids[:, 1:])
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        return loss.item()
    return step


def seconds(step, batches):
    """How long one measurement takes."""
    begun = time.perf_counter()
    for ids in batches:
        step(ids)
    return (time.perf_counter() - begun) / len(batches)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--max-ratio", type=float, help="exit 1 if the median is above it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    args = parser.parse_args()

    ours, theirs = pair_of_models(seed=0, vocab_size=VOCABULARY)
    here, there = our_step(ours), their_step(theirs)
    batches = np.random.default_rng(0).integers(VOCABULARY, size=(STEPS, BATCH, SMALL["n_positions"] + 1))
    torch.set_num_threads(1)
    with threadpool_limits(1):
        gap = abs(here(batches[0]) - there(batches[0]))
        gradient_gap = disagreement(ours, theirs)
        print(f"the same step: losses within {gap:.1e}, gradients within {gradient_gap:.1e} of their largest entry")
        if not (gap <= 1e-5 and gradient_gap <= 1e-4):
            print("the two sides do not compute the same: nothing to compare")
            return 1
        seconds(here, batches), seconds(there, batches)
        pairs = [(seconds(here, batches), seconds(there, batches)) for _ in range(args.pairs)]

    ratios = [a / b for a, b in pairs]
    low, ratio, high = statistics.quantiles(ratios, n=4)
    ms, torch_ms = (1000 * statistics.median(side) for side in zip(*pairs))
    print(f"a step: minitx {ms:.1f} ms, PyTorch {torch.__version__} {torch_ms:.1f} ms, {args.pairs} pairs")
    print(f"ratio {ratio:.2f} (middle half {low:.2f} to {high:.2f})")
    if args.json:
        figures = dict(ratio=ratio, low=low, high=high, ms=ms, torch_ms=torch_ms, pairs=args.pairs,
                       numpy=np.__version__, torch=torch.__version__)
        args.json.write_text(json.dumps(figures), encoding="utf-8")
    return 1 if args.max_ratio and ratio > args.max_ratio else 0


if __name__ == "__main__":
    sys.exit(main())
