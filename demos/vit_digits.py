"""Teach a Vision Transformer to read handwritten digits, and see where it looks.

    python demos/vit_digits.py                          five splits
    python demos/vit_digits.py --split 0 --out it.png   one of them, with its mistakes in a picture
    python demos/vit_digits.py --resume FILE            stop with Ctrl-C, and go on with the same line

1797 images of 8 x 8 pixels: "Optical Recognition of Handwritten Digits", E. Alpaydin and C. Kaynak 1998, UCI Machine
Learning Repository, CC BY 4.0. One permutation of them, always the same, is cut into five parts; a split trains on
four and is tested on the fifth, so that every image is tested once. Beside each score stands that of the nearest
neighbour: the digit of the training image at the least distance. Training images are moved by up to a pixel down and
across, anew each time they are seen.
"""
import argparse
import contextlib
import sys
from pathlib import Path

import numpy as np

import minitx as mt
from minitx import models, ops, optim, rates, resume, schedule

DATA = Path(__file__).parent / "data" / "digits.csv.gz"
SHADES = " .:-=+*#%@"
MODEL = dict(image_size=8, patch_size=4, num_channels=1, num_labels=10, hidden_size=96, num_hidden_layers=3,
             num_attention_heads=4, intermediate_size=192, initializer_range=0.1, layer_norm_eps=1e-5)
BATCH, STEPS, RATE, DECAY = 64, 2000, 2e-3, 0.5


class Refused(Exception):
    """What was asked for cannot be done; the message says in one line what to do."""


# ---- data ------------------------------------------------------------------------------------------------------------

def read_digits():
    """images (1797, 1, 8, 8), from 0 (paper) to 1 (ink), and their digits (1797,)."""
    try:
        table = np.loadtxt(DATA, delimiter=",", dtype=np.float32, encoding="utf-8")
    except OSError as error:
        raise Refused(f"cannot read {DATA} ({error.strerror or error}): it belongs beside the demo") from None
    return table[:, :-1].reshape(-1, 1, 8, 8) / 16, table[:, -1].astype(int)


def split_of(n, number):
    """Which of n images split 0 .. 4 trains on, and which it is tested on."""
    parts = np.array_split(np.random.default_rng(0).permutation(n), 5)
    test = parts.pop(number)
    return np.concatenate(parts), test


def moved(images, rng):
    """Each image moved by -1, 0 or 1 pixel down and across; paper comes in, what leaves is lost."""
    B, _, height, width = images.shape
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    down, across = rng.integers(3, size=(2, B, 1))
    rows, columns = down + np.arange(height), across + np.arange(width)
    return padded[np.arange(B)[:, None, None], 0, rows[:, :, None], columns[:, None, :]][:, None]


def nearest_neighbour(images, digits, others):
    """The digit of the image nearest to each of the others."""
    x, y = (some.reshape(len(some), -1) for some in (images, others))
    return digits[((x * x).sum(axis=1) - 2 * y @ x.T).argmin(axis=1)]


# ---- training and looking --------------------------------------------------------------------------------------------

def loss_of(model, images, digits, rng):
    """The loss on images, each moved at random."""
    return ops.cross_entropy(model(mt.tensor(moved(images, rng))), digits, label_smoothing=0.1)


def train(images, digits, number, progress, seed=0, file=None):
    """A ViT trained on the images of that split, and the seconds it took. Its state is kept in FILE-number."""
    rng = mt.backend.generator()                    # it draws the weights, too
    model = models.ViT(models.ViTConfig(**MODEL))
    optimiser = optim.AdamW(optim.decay_groups(model, DECAY), betas=(0.9, 0.99),
                            lr=lambda step: schedule.warmup_cosine(step, RATE, STEPS // 10, STEPS))
    settings = dict(demo="vit_digits", split=number, seed=seed, batch=BATCH, rate=RATE, decay=DECAY, **MODEL)
    if file is not None and not file.name:
        raise Refused(f"--resume {file} is a folder: give it the name of a file")
    file = file and file.with_name(f"{file.stem}-{number}{file.suffix}")
    steps = resume.Steps(STEPS, model, optimiser, file, settings)
    if file:
        print(steps)
    with steps, progress(steps, desc=f"split {number}", total=STEPS, initial=steps.done, unit="step", dynamic_ncols=True,
                         leave=False) as bar:
        for _ in bar:
            batch = rng.choice(len(images), BATCH, replace=False)
            loss = loss_of(model, images[batch], digits[batch], rng)
            optimiser.zero_grad()
            loss.backward()
            optim.clip_grad_norm(model.parameters(), 1.0)
            optimiser.step()
            bar.set_postfix_str(f"loss {loss.item():.3f}", refresh=False)
            rates.warm(bar)
    if steps.stopped:
        raise KeyboardInterrupt
    return model.eval(), steps.seconds


@mt.no_grad()
def look(model, images):
    """The digits (B,) that the model reads, and the class token's attention to each patch (B, rows, columns).

    The attention is the last layer's, the mean of its heads.
    """
    logits, weights = model(mt.tensor(images), return_weights=True)
    gaze = weights[-1].numpy()[:, :, 0, 1:].mean(axis=1)                        # (B, patches)
    return logits.numpy().argmax(axis=1), gaze.reshape(-1, *model.patches.grid)


def enlarged(gaze, like):
    """A number for each pixel from one for each patch, the largest 1."""
    factors = np.array(like.shape) // gaze.shape
    return np.kron(gaze / gaze.max(), np.ones(factors))


def text(*squares):
    """Squares of numbers from 0 to 1 side by side, as shades of two characters a pixel."""
    return "\n".join("   |   ".join("".join(2 * SHADES[int(value * 9.99)] for value in row) for row in rows)
                     for rows in zip(*squares))


def draw(found, file):
    """A picture of [(title, image, gaze)], each image beside where the class token looked."""
    from matplotlib.figure import Figure
    figure = Figure(figsize=(2.6 * len(found), 5.4), layout="constrained")
    for (title, image, gaze), (above, below) in zip(found, figure.subplots(2, len(found), squeeze=False).T):
        above.imshow(image, cmap="gray_r", vmin=0, vmax=1)
        above.set_title(title, size=9)
        below.imshow(image, cmap="gray_r", vmin=0, vmax=1)
        below.imshow(enlarged(gaze, image), cmap="viridis", alpha=0.6, vmin=0, vmax=1)
        for axes in (above, below):
            axes.set_axis_off()
    figure.savefig(file, dpi=100)


# ---- the command line ------------------------------------------------------------------------------------------------

def threads(limit):
    """A context in which NumPy's products, too small to share here, use so many threads, where threadpoolctl is."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return contextlib.nullcontext()
    return threadpool_limits(limit)


def progress_bar():
    try:
        from tqdm import tqdm
    except ImportError:
        raise Refused("the progress bar needs tqdm: pip install tqdm") from None
    return tqdm


def run(numbers, seed, out, file):
    """Train on every split, print the scores, and show mistakes and what the last model looks at."""
    (images, digits), progress = read_digits(), progress_bar()
    scores, neighbours, found = [], [], []
    for number in numbers:
        train_on, test_on = split_of(len(images), number)
        mt.manual_seed(seed)
        model, seconds = train(images[train_on], digits[train_on], number, progress, seed, file)
        answers, gaze = look(model, images[test_on])
        neighbour = nearest_neighbour(images[train_on], digits[train_on], images[test_on])
        wrong = np.flatnonzero(answers != digits[test_on])
        scores.append(np.mean(answers == digits[test_on]))
        neighbours.append(np.mean(neighbour == digits[test_on]))
        print(f"split {number}   ViT {scores[-1]:.2%}   nearest neighbour {neighbours[-1]:.2%}   "
              f"{len(wrong)} mistakes in {len(test_on)}   {seconds:.0f} s", flush=True)
        found += [(f"{digits[test_on[i]]}, read as {answers[i]}", images[test_on[i], 0], gaze[i]) for i in wrong]
    found = found[:6] + [(f"{digits[test_on[i]]}, read right", images[test_on[i], 0], gaze[i])
                         for i in np.flatnonzero(answers == digits[test_on])[:2]]
    print("\nmistakes, and at the end two right answers; beside each, where the class token looks")
    for title, image, gaze in found:
        print(f"\n{title}\n{text(image, enlarged(gaze, image))}")
    if out:
        draw(found, out)
        print(f"\nthe same as a picture: {out}")
    print(f"\nmean of {len(scores)}: ViT {np.mean(scores):.2%}, nearest neighbour {np.mean(neighbours):.2%}")
    print(mt.ran_as())
    rng = mt.backend.generator()
    rates.compare(model, lambda n: loss_of(model, images[:n], digits[:n], rng).backward(), BATCH)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", type=int, choices=range(5), metavar="N", help="one of the splits 0 .. 4 alone")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also draw the mistakes, into a png")
    parser.add_argument("--device", help="cpu, cuda or cuda:1; left out: what MINITX_DEVICE says, or cpu")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep the state of each training in FILE-0, FILE-1 ..., "
                        "and go on from them where they are")
    args = parser.parse_args(argv)
    try:
        if args.seed < 0:
            raise Refused(f"--seed {args.seed} is no seed: give 0 or more")
        try:
            mt.set_default_device(args.device or mt.backend.default_device())
        except (ValueError, RuntimeError) as error:
            raise Refused(error) from None
        try:
            if args.out:                            # better known before the training than after it
                args.out.touch()
                import matplotlib.figure  # noqa: F401
        except ImportError:
            raise Refused("the picture needs matplotlib: pip install matplotlib, or leave out --out") from None
        except OSError as error:
            raise Refused(f"cannot write {args.out} ({error.strerror or error}): give --out another file") from None
        with threads(1):
            run(range(5) if args.split is None else [args.split], args.seed, args.out, args.resume)
    except (Refused, resume.StateError) as error:
        print(f"vit_digits: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
