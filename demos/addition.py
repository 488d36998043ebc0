"""Teach a GPT-2 to add two numbers of two digits: minGPT's second task.

    python demos/addition.py                    sums of two digits
    python demos/addition.py --resume FILE      stop with Ctrl-C, and go on with the same line

For 85 + 17 = 102 the model reads 8517 and goes on writing 201: the sum backwards. So every digit it writes follows
from two digits it was given and the carry of the digit before; forwards, the first would already need every carry.
Of the 10 000 sums it never sees 1000, nor the same two numbers the other way round.
"""
import argparse
import contextlib
import sys
from pathlib import Path

import numpy as np

import minitx as mt
from minitx import generate, models, ops, optim, rates, resume, schedule

# Initial weights of about 1/sqrt(n_embd): GPT-2's own 0.02 is meant for 768 and more, and slow in so narrow a model.
MODEL = dict(vocab_size=10, n_positions=6, n_layer=2, n_head=4, n_embd=128, initializer_range=0.08,
             embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0)
STEPS, BATCH, RATE = 1000, 128, 3e-3
UNKNOWN = -100                                  # targets that count in no loss: the question's digits follow no rule


class Refused(Exception):
    """What was asked for cannot be done; the message says in one line what to do."""


def all_sums(rng):
    """Every pair of numbers (a, b), in two parts: (to train on (9000, 2), held out (1000, 2))."""
    a, b = np.divmod(np.arange(10_000), 100)
    less = rng.permutation(np.flatnonzero(a < b))[:500]
    held_out = np.isin(100 * np.minimum(a, b) + np.maximum(a, b), less)         # a + b and b + a
    pairs = np.stack([a, b], axis=1)
    return pairs[~held_out], pairs[held_out]


def digits(pairs):
    """Pairs (N, 2) as the model is to read and write them, (N, 7): two digits, two, the sum's three backwards."""
    a, b = pairs.T
    c = a + b
    return np.stack([a // 10, a % 10, b // 10, b % 10, c % 10, c // 10 % 10, c // 100], axis=1)


def loss_of(model, texts):
    """The loss on texts (B, 7), of the sum's digits alone."""
    targets = texts[:, 1:].copy()                                               # every digit foretells the next one
    targets[:, :3] = UNKNOWN
    return ops.cross_entropy(model(texts[:, :-1]), targets, ignore_index=UNKNOWN)


def train(model, pairs, rng, progress, seed=0, file=None):
    """Train the model on draws from the pairs (N, 2); Ctrl-C ends it early. The seconds it took."""
    # AdamW pulls matrices and embeddings towards 0, not biases and norms; the rate climbs, then falls along a cosine.
    optimiser = optim.AdamW(optim.decay_groups(model, 0.1), betas=(0.9, 0.95),
                            lr=lambda step: schedule.warmup_cosine(step, RATE, STEPS // 20, STEPS))
    texts = digits(pairs)
    settings = dict(demo="addition", seed=seed, batch=BATCH, rate=RATE, **MODEL)
    steps = resume.Steps(STEPS, model, optimiser, file, settings)
    if file:
        print(steps)
    with steps, progress(total=STEPS, initial=steps.done, unit="step", dynamic_ncols=True) as bar:
        for _ in steps:
            loss = loss_of(model, texts[rng.integers(len(texts), size=BATCH)])
            optimiser.zero_grad()
            loss.backward()
            optim.clip_grad_norm(model.parameters(), 1.0)                       # a rare large update does little harm
            optimiser.step()
            bar.set_postfix_str(f"loss {loss.item():.4f}", refresh=False)
            bar.update()
            rates.warm(bar)
    if steps.stopped:
        print("stopped early; what has it learned so far?", file=sys.stderr)
    return steps.seconds


def add(model, pairs):
    """The sums (N,) that the model writes for pairs (N, 2), taking the likeliest digit at each step."""
    written = generate.generate(model, digits(pairs)[:, :4], 3)
    return written @ [1, 10, 100]


def show(pairs, sums):
    """A table of sums as the model wrote them, with a mark."""
    for (a, b), c in zip(pairs.tolist(), sums.tolist()):
        print(f"{a:2d} + {b:2d} = {c:3d}  " + ("right" if a + b == c else f"WRONG, it is {a + b}"))


def run(seed, file):
    """Train, show some sums and all wrong ones, print how many are right."""
    progress = progress_bar()
    mt.manual_seed(seed)
    rng = mt.backend.generator()                # the one that draws the initial weights
    pairs, held_out = all_sums(rng)
    model = models.GPT2(models.GPT2Config(**MODEL))
    print(f"{sum(p.size for p in model.parameters()):,} parameters; {len(pairs)} sums to learn from, "
          f"{len(held_out)} held out")
    seconds = train(model, pairs, rng, progress, seed, file)

    sums = add(model, held_out)
    wrong = sums != held_out.sum(axis=1)
    some = np.random.default_rng(seed).choice(len(held_out), 8, replace=False)
    print("\nsums never shown, as the model writes them")
    show(held_out[some], sums[some])
    print(f"\nwrong: {wrong.sum() or 'none'}")
    show(held_out[wrong][:20], sums[wrong][:20])
    known = (add(model, pairs) == pairs.sum(axis=1)).sum()
    print(f"\nin {seconds:.0f} s; of the {len(pairs)} sums it learned from {known} are right")
    print(f"added {(~wrong).sum()} of {len(held_out)} pairs never shown")
    print(mt.ran_as())
    texts = digits(pairs)
    rates.compare(model, lambda n: loss_of(model, texts[rng.integers(len(texts), size=n)]).backward(), BATCH)


def threads(limit):
    """A context in which NumPy's products use at most so many threads (None: all), where threadpoolctl is."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return contextlib.nullcontext()
    return threadpool_limits(limit)


def progress_bar():
    """tqdm's, which also knows the time left."""
    try:
        from tqdm import tqdm
    except ImportError:
        raise Refused("the progress bar needs tqdm: pip install tqdm") from None
    return tqdm


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="cpu, cuda or cuda:1; left out: what MINITX_DEVICE says, or cpu")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--resume", type=Path, metavar="FILE",
                        help="keep the state of the training in FILE, and go on from it where it is")
    args = parser.parse_args(argv)
    try:
        if args.seed < 0:
            raise Refused(f"--seed {args.seed} is no seed: give 0 or more")
        try:
            mt.set_default_device(args.device or mt.backend.default_device())
        except (ValueError, RuntimeError) as error:
            raise Refused(error) from None
        with threads(1):
            run(args.seed, args.resume)
    except (Refused, resume.StateError) as error:
        print(f"addition: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:                   # outside of the training, or for the second time
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
