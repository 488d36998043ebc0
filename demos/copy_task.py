"""Teach an encoder-decoder to copy what it reads: the first thing to try on a Transformer.

    python demos/copy_task.py                   4 to 12 letters of ten, and where to stop
    python demos/copy_task.py --published       the Annotated Transformer's first example (2018), beside its own losses
    python demos/copy_task.py --resume FILE     stop with Ctrl-C, and go on with the same line

The encoder reads the whole sequence. The decoder writes it again, one symbol at a time: it sees what it has written
so far and, through cross-attention, all that was read, and has to find out by itself where in it it stands.
"""
import argparse
import contextlib
import sys
from pathlib import Path

import numpy as np

import minitx as mt
from minitx import generate, models, ops, optim, rates, resume, schedule

PAD, END, BEGIN = 0, 11, 12                     # beside the letters 1 .. 10
NAMES = ".abcdefghij|>"
OWN = dict(
    symbols=13, begin=BEGIN, shortest=4, longest=12,
    model=dict(d_model=64, num_heads=4, d_ff=256, dropout=0.0),
    batch=64, batches=150, warmup=300, factor=0.5, smoothing=0.1)
PUBLISHED = dict(                               # nine letters after an a, which is where the decoder begins
    symbols=11, begin=1,
    model=dict(d_model=512, num_heads=8, d_ff=2048, dropout=0.1),
    batch=30, batches=20, warmup=400, factor=1.0, smoothing=0.0)
EPOCHS = 10
PUBLISHED_LOSSES = (1.96, 1.60, 1.40, 1.36, 1.26, 0.72, 0.63, 0.33, 0.28, 0.30)


class Refused(Exception):
    """What was asked for cannot be done; the message says in one line what to do."""


def draw(rng, n, task):
    """n random sequences: (ids (n, S), attention_mask (n, S), decoder_ids (n, T), targets (n, T)), padded by PAD."""
    if task is PUBLISHED:
        ids = rng.integers(1, 11, (n, 10))
        ids[:, 0] = 1
        return ids, np.ones_like(ids), ids[:, :-1], ids[:, 1:]
    lengths = rng.integers(task["shortest"], task["longest"] + 1, (n, 1))
    place = np.arange(lengths.max() + 1)                                        # (S,)
    ids = rng.integers(1, 11, (n, len(place)))
    ids = np.where(place < lengths, ids, np.where(place == lengths, END, PAD))
    return ids, ids != PAD, np.insert(ids[:, :-1], 0, BEGIN, axis=1), ids       # the decoder lags one step behind


def loss_of(model, task, drawn):
    """The loss on random sequences. Section 5.4: smoothing gives all symbols a share of each target: none is ever certain."""
    ids, mask, decoder_ids, targets = drawn
    return ops.cross_entropy(model(ids, decoder_ids, mask), targets, ignore_index=PAD, label_smoothing=task["smoothing"])


def train(model, task, progress, seed=0, file=None):
    """Train the model, printing the losses of every epoch; Ctrl-C ends it early. The texts it was shown, the seconds."""
    rng = mt.backend.generator()                # the one that drew the initial weights and draws dropout's masks
    d_model, warmup, factor = model.config.d_model, task["warmup"], task["factor"]
    # The paper's section 5.3: the rate climbs, then falls with the root of the step; betas and eps are its Adam's.
    optimiser = optim.AdamW(model.parameters(), lr=lambda step: schedule.noam_lr(step, d_model, warmup, factor),
                            betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0)
    steps = resume.Steps(EPOCHS * task["batches"], model, optimiser, file, dict(demo="copy_task", seed=seed, **task))
    kept = steps.progress = dict(seen=[], total=0.0, symbols=0) | steps.progress
    if file:
        print(steps)
    with steps, progress(total=steps.n, initial=steps.done, unit="step", dynamic_ncols=True) as bar:
        for step in steps:
            *_, targets = drawn = draw(rng, task["batch"], task)
            kept["seen"] += map(text, targets)
            loss = loss_of(model, task, drawn)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            n = (targets != PAD).sum()
            kept.update(total=kept["total"] + n * loss.item(), symbols=kept["symbols"] + n)
            bar.set_postfix_str(f"loss {kept['total'] / kept['symbols']:.3f}", refresh=False)
            bar.update()
            rates.warm(bar)
            epoch, batch = divmod(step, task["batches"])
            if batch == 0:
                beside = f"   published {PUBLISHED_LOSSES[epoch - 1]:.2f}" if task is PUBLISHED else ""
                bar.write(f"epoch {epoch:2d}   loss {kept['total'] / kept['symbols']:.3f}   "
                          f"held out {evaluate(model, task):.3f}{beside}")
                kept.update(total=0.0, symbols=0)
    if steps.stopped:
        print("stopped early; what has it learned so far?", file=sys.stderr)
    return set(kept["seen"]), steps.seconds


def evaluate(model, task):
    """The mean loss a symbol of five new batches, without dropout and smoothing: the one that was published."""
    ids, mask, decoder_ids, targets = draw(np.random.default_rng(0), 5 * task["batch"], task)
    with generate.evaluating(model):
        return ops.cross_entropy(model(ids, decoder_ids, mask), targets, ignore_index=PAD).item()


def text(row):
    """The letters of a row of symbols, up to its END."""
    row = row.tolist()
    return "".join(NAMES[symbol] for symbol in row[:row.index(END) if END in row else None])


def test(model, task, seen, n, seed):
    """Copy n sequences that were never shown, always taking the likeliest symbol. [(text, copy)]"""
    rng, pairs = np.random.default_rng(seed), []
    while len(pairs) < n:
        ids, mask, _, targets = draw(rng, 500, task)
        copies = generate.generate(model, ids, targets.shape[1], start_id=task["begin"], stop=END, attention_mask=mask)
        pairs += [pair for pair in zip(map(text, targets), map(text, copies)) if pair[0] not in seen]
    return pairs[:n]


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


def run(task, seed, file):
    """Train, show some copies, print how many are exact."""
    progress = progress_bar()
    mt.manual_seed(seed)
    # Pre-norm: it would train without the climb of the rate as well.
    model = models.Seq2Seq(models.Seq2SeqConfig(task["symbols"], task["symbols"], num_encoder_layers=2,
                                                num_decoder_layers=2, norm_first=True, **task["model"]))
    print(f"{sum(p.size for p in model.parameters()):,} parameters")
    seen, seconds = train(model, task, progress, seed, file)
    pairs = test(model, task, seen, 1000, seed)
    exact = sum(read == copy for read, copy in pairs)
    print("\nread            written       five, and up to ten more that are wrong")
    for read, copy in pairs[:5] + [(read, copy) for read, copy in pairs[5:] if read != copy][:10]:
        print(f"{read:14s}  {copy:14s}{'right' if read == copy else 'WRONG'}")
    print(f"\ntrained on {len(seen):,} sequences in {seconds:.0f} s; copied {exact} of {len(pairs)} others "
          "exactly")
    print(mt.ran_as())
    rng = np.random.default_rng(seed)
    rates.compare(model, lambda n: loss_of(model, task, draw(rng, n, task)).backward(), task["batch"])


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published", action="store_true", help="the published configuration, which stops too early")
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
            run(PUBLISHED if args.published else OWN, args.seed, args.resume)
    except (Refused, resume.StateError) as error:
        print(f"copy_task: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:                   # outside of the training, or for the second time
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
