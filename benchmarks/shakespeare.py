"""Characters of tiny Shakespeare: minitx and PyTorch from the same initial weights on the same batches, side by side.

    python benchmarks/shakespeare.py --text FILE [--steps 2000]

The small model of nanoGPT's README: 4 layers, 4 heads, 128 wide, context 64, batch 12, no biases, no dropout; AdamW,
betas 0.9 and 0.99, decay 0.1 on matrices, clipping to norm 1, 100 steps of warmup to 1e-3, then a cosine to 1e-4. Two
seeds. The loss is the mean over the whole last tenth of the text, in windows of 64 that do not overlap; at every
milestone both sides must be within 0.01 of each other, and at step 2000 the mean of the seeds at most 1.93.

Each seed is a process of its own with one thread for either library: in one process the waiting threads of the one would
take the processor from the other.
"""
import argparse
import functools
import math
import multiprocessing
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch_steps
import workloads
from threadpoolctl import threadpool_limits
from torch_models import twin
from workloads import SMALL

import minitx as mt
from minitx import optim, schedule

T, BATCH, SEEDS, MILESTONES = SMALL["n_positions"], 12, (0, 1), (250, 500, 1000, 1500, 2000)


def rate(step):
    """The learning rate of a step, counted from 1, for both sides."""
    return schedule.warmup_cosine(step, 1e-3, 100, 2000, 1e-4)


def mean_loss(loss_of, ids):
    """Mean of loss_of over ids in windows that do not overlap."""
    windows = ids[np.arange(0, len(ids) - T, T)[:, None] + np.arange(T + 1)]
    parts = np.array_split(windows, math.ceil(len(windows) / 64))
    return sum(len(part) * loss_of(part) for part in parts) / len(windows)


def train(seed, train_ids, val_ids, vocab_size, steps):
    """Train both sides. A row (step, loss of minitx, loss of PyTorch) for step 0 and every milestone."""
    threadpool_limits(1)
    torch.set_num_threads(1)
    ours = workloads.gpt2("small", BATCH, vocab_size, seed, **SMALL).build()
    theirs = twin(ours)
    our_optimiser = optim.AdamW(optim.decay_groups(ours, 0.1), lr=rate, betas=(0.9, 0.99))
    their_optimiser = torch_steps.adamw(theirs, lr=1.0, betas=(0.9, 0.99), weight_decay=0.1)
    rng = np.random.default_rng(seed)

    def our_loss(window):
        return workloads.loss_of(ours, ((window[:, :-1],), window[:, 1:]))

    def their_loss(window):
        return torch_steps.loss_of(theirs, torch_steps.tensors(((window[:, :-1],), window[:, 1:])))

    @mt.no_grad()
    @torch.no_grad()
    def measure(step):
        here, there = (mean_loss(lambda window: side(window).item(), val_ids) for side in (our_loss, their_loss))
        print(f"seed {seed}  step {step:4d}  minitx {here:.4f}  PyTorch {there:.4f}  difference {here - there:+.4f}",
              flush=True)
        return step, here, there

    rows = [measure(0)]
    for step in range(1, steps + 1):
        window = train_ids[rng.integers(len(train_ids) - T, size=BATCH)[:, None] + np.arange(T + 1)]

        loss = our_loss(window)
        our_optimiser.zero_grad()
        loss.backward()
        optim.clip_grad_norm(ours.parameters(), 1.0)
        our_optimiser.step()

        for group in their_optimiser.param_groups:
            group["lr"] = rate(step)
        loss = their_loss(window)
        their_optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        their_optimiser.step()

        if step in MILESTONES:
            rows.append(measure(step))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="tiny Shakespeare")
    parser.add_argument("--steps", type=int, default=2000, help="stop earlier; then only the difference is judged")
    args = parser.parse_args()
    text = args.text.read_text(encoding="utf-8")
    table = {character: i for i, character in enumerate(sorted(set(text)))}
    ids = np.array([table[character] for character in text])
    n = len(ids) * 9 // 10

    begun = time.perf_counter()
    one = functools.partial(train, train_ids=ids[:n], val_ids=ids[n:], vocab_size=len(table), steps=args.steps)
    with multiprocessing.get_context("spawn").Pool(len(SEEDS)) as pool:
        runs = pool.map(one, SEEDS)
    print(f"\n{'step':>6} {'minitx':>8} {'PyTorch':>8} {'largest difference':>20}      means of seeds {SEEDS}")
    for rows in zip(*runs):
        ours, theirs = np.mean([row[1:] for row in rows], axis=0)
        print(f"{rows[0][0]:6d} {ours:8.4f} {theirs:8.4f} {max(abs(a - b) for _, a, b in rows):20.4f}")
    apart = max(abs(a - b) for rows in runs for _, a, b in rows)
    final = float(np.mean([rows[-1][1] for rows in runs]))
    fine = apart <= 0.01 and (args.steps < 2000 or final <= 1.93)
    print(f"{'reached' if fine else 'MISSED'}: at most {apart:.4f} apart (mark 0.01), last mean {final:.4f} "
          f"(mark 1.93 at step 2000); {time.perf_counter() - begun:.0f} s")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
