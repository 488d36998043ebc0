"""Teach a GPT-2 to sort six digits, each 0, 1 or 2: minGPT's first task.

    python demos/sort_digits.py                     six digits, each 0, 1 or 2
    python demos/sort_digits.py --resume FILE       stop with Ctrl-C, and go on with the same line

The model reads the digits and goes on writing: "021102" is to be continued by "001122". Nobody tells it what sorting
is; it only ever learns which digit comes next. A quarter of the inputs is never shown to it.
"""
import argparse
import contextlib
import itertools
import sys
from pathlib import Path

import numpy as np

import minitx as mt
from minitx import generate, models, ops, optim, rates, resume, schedule

LENGTH, DIGITS = 6, 3
# Initial weights of about 1/sqrt(n_embd): GPT-2's own 0.02 is meant for 768 and more, and slow in so narrow a model.
# Dropout is what makes it sort and not remember.
MODEL = dict(vocab_size=DIGITS, n_positions=2 * LENGTH - 1, n_layer=3, n_head=3, n_embd=48, initializer_range=0.1,
             embd_pdrop=0.1, attn_pdrop=0.1, resid_pdrop=0.1)
STEPS, BATCH, RATE = 2000, 32, 3e-3
UNKNOWN = -100                                  # targets that count in no loss: the input's digits follow no rule


class Refused(Exception):
    """What was asked for cannot be done; the message says in one line what to do."""


def all_inputs(rng):
    """Every sequence of six digits, in two parts: (to train on (557, 6), held out (172, 6)).

    Held out is a quarter of the inputs of every output; 000000, the only one with its output, is not. With an output
    never practised more than sorting is asked for: that after five zeros, against all experience, a sixth may follow.
    """
    by_output = {}
    for digits in rng.permutation(list(itertools.product(range(DIGITS), repeat=LENGTH))):
        by_output.setdefault(tuple(np.sort(digits)), []).append(digits)
    parts = [(same[len(same) // 4:], same[:len(same) // 4]) for same in by_output.values()]
    return tuple(np.array(list(itertools.chain(*part))) for part in zip(*parts))


def loss_of(model, drawn):
    """The loss on inputs (B, 6), of the sorted digits alone."""
    text = np.concatenate([drawn, np.sort(drawn)], axis=1)                      # (B, 12)
    targets = text[:, 1:].copy()                                                # every digit foretells the next one
    targets[:, :LENGTH - 1] = UNKNOWN
    return ops.cross_entropy(model(text[:, :-1]), targets, ignore_index=UNKNOWN)


def train(model, inputs, rng, progress, seed=0, file=None):
    """Train the model on draws from the inputs (N, 6); Ctrl-C ends it early. The seconds it took."""
    # AdamW pulls matrices and embeddings towards 0, not biases and norms; the rate climbs, then falls along a cosine.
    optimiser = optim.AdamW(optim.decay_groups(model, 0.1), betas=(0.9, 0.95),
                            lr=lambda step: schedule.warmup_cosine(step, RATE, STEPS // 20, STEPS))
    settings = dict(demo="sort_digits", seed=seed, batch=BATCH, rate=RATE, **MODEL)
    steps = resume.Steps(STEPS, model, optimiser, file, settings)
    if file:
        print(steps)
    with steps, progress(total=STEPS, initial=steps.done, unit="step", dynamic_ncols=True) as bar:
        for _ in steps:
            loss = loss_of(model, inputs[rng.integers(len(inputs), size=BATCH)])
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


def sort(model, inputs):
    """What the model writes after the inputs (N, 6), taking the likeliest digit at each step: (N, 6)."""
    return generate.generate(model, inputs, LENGTH)


def right(inputs, written):
    """Which rows of digits were sorted right: bool (N,)."""
    return (written == np.sort(inputs)).all(axis=1)


def show(inputs, written):
    """A table of inputs and of what was written, with a mark."""
    print("\ninput   sorted")
    for given, sorted_, ok in zip(inputs, written, right(inputs, written)):
        print(*("".join(map(str, digits)) for digits in (given, sorted_)), "right" if ok else "WRONG", sep="  ")


def run(seed, file):
    """Train, show some outputs, print how many are right."""
    progress = progress_bar()
    mt.manual_seed(seed)
    rng = mt.backend.generator()                # the one that draws the initial weights
    inputs, held_out = all_inputs(rng)
    model = models.GPT2(models.GPT2Config(**MODEL))
    print(f"{sum(p.size for p in model.parameters()):,} parameters; {len(inputs)} inputs to learn from, "
          f"{len(held_out)} held out")
    seconds = train(model, inputs, rng, progress, seed, file)

    written = sort(model, held_out)
    good = right(held_out, written)
    order = np.argsort(good, kind="stable")                                     # the wrong ones first
    show(held_out[order[:10]], written[order[:10]])
    known = right(inputs, sort(model, inputs)).sum()
    draws = held_out[np.random.default_rng(seed).integers(len(held_out), size=5000)]
    print(f"\nin {seconds:.0f} s; of all {len(inputs) + len(held_out)} inputs {known + good.sum()} are sorted right, "
          f"of the {len(held_out)} never shown {good.sum()}")
    print(f"sorted {right(draws, sort(model, draws)).sum()} of {len(draws)} draws of those never shown")
    print(mt.ran_as())
    rates.compare(model, lambda n: loss_of(model, inputs[rng.integers(len(inputs), size=n)]).backward(), BATCH)


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
        print(f"sort_digits: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:                   # outside of the training, or for the second time
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
