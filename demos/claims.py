"""What is said of Transformers, put to the test: eight small experiments, each with a verdict and a picture.

    python demos/claims.py                          all of them; pictures in runs/claims/
    python demos/claims.py scale warmup --out DIR   two of them; pictures in DIR

The numbers are measured when you run it, and a claim that does not hold is reported as such.
"""
import argparse
import contextlib
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np

import minitx as mt
from minitx import backend, nn, ops, optim, rates, schedule

LOG = dict(xscale="log", yscale="log")


class Refused(Exception):
    """What was asked for cannot be done; the message says in one line what to do."""


# ---- what the experiments share --------------------------------------------------------------------------------------

class Reader(nn.Module):
    """An encoder that answers the same questions at every place: ids (B, T) -> logits (B, T, questions, V).

    positions is "sinusoidal", "learned", "rotary" or "none".
    """

    def __init__(self, V, num_layers, positions="sinusoidal", *, questions=1, norm_first=True, C=32, heads=4,
                 max_len=32):
        self.shape, self.rotary = (questions, V), positions == "rotary"
        self.embed, self.head = nn.Embedding(V, C), nn.Linear(C, questions * V)
        self.positions = {"sinusoidal": nn.PositionalEncoding(C, max_len, dropout=0.0),
                          "learned": nn.LearnedPositions(max_len, C)}.get(positions)
        self.encoder = nn.Encoder(num_layers, C, heads, 4 * C, dropout=0.0, norm_first=norm_first)
        if self.rotary:
            for block in self.encoder.layers:
                block.attn.rotate = ops.rope

    def forward(self, ids, **options):
        x = self.embed(ids) if self.positions is None else self.positions(self.embed(ids))
        if self.rotary:
            options["positions"] = np.arange(ids.shape[1])
        return self.head(self.encoder(x, **options)).reshape(*ids.shape, *self.shape)


def train(model, draw, steps, rate, warmup=None, **options):
    """The losses of so many steps of AdamW on fresh batches: draw(n) -> (ids (n, T), targets (n, T, questions))."""
    warmup = steps // 10 if warmup is None else warmup
    optimiser = optim.AdamW(optim.decay_groups(model, 0.01), betas=(0.9, 0.98),
                            lr=lambda step: schedule.warmup_cosine(step, rate, warmup, steps))
    losses = []
    for _ in progress_bar()(range(steps), unit="step", leave=False, dynamic_ncols=True):
        ids, targets = draw(32)
        loss = ops.cross_entropy(model(ids, **options), targets)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return np.array(losses)


@mt.no_grad()
def right(model, ids, targets, **options):
    """Which answers are right: bool (n, T, questions)."""
    return model(ids, **options).numpy().argmax(axis=-1) == targets


def reversal(n, T=8):
    """Shuffles of the same T symbols, to be named backwards: the bag of symbols alone tells nothing."""
    ids = backend.generator().permuted(np.tile(np.arange(T), (n, 1)), axis=1)
    return ids, ids[:, ::-1, None]


def slope(x, y):
    """The exponent b of the power law y = a x^b that fits best."""
    return np.polyfit(np.log(x), np.log(y), 1)[0]


def seconds(step):
    """The least time of five that step() takes."""
    times = []
    for _ in range(5):
        backend.synchronise()
        begun = time.perf_counter()
        step()
        backend.synchronise()
        times.append(time.perf_counter() - begun)
    return min(times)


def lines(x, curves, **looks):
    """A panel of a picture: {name: values at x}. looks are those of matplotlib's Axes.set."""
    def draw(axes):
        for name, y in curves.items():
            axes.plot(x, y, ".-", label=name)
        axes.set(**looks)
        axes.legend(fontsize=8)
    return draw


def save(file, *panels):
    """A picture of panels side by side, each a function that draws on a pair of axes."""
    from matplotlib.figure import Figure
    figure = Figure(figsize=(5.5 * len(panels), 4), layout="constrained")
    for axes, draw in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        draw(axes)
    figure.savefig(file, dpi=100)


# ---- the claims: each draws its picture and returns (whether it holds, what was measured) ----------------------------

def scale(file, widths=4 ** np.arange(1, 7)):
    """Large d_k pushes the softmax into regions of tiny gradients, unless scores are divided by sqrt(d_k).

    512 queries, each with 64 keys, entries N(0, 1): the norm of each query's gradient at its scores, for a random dy.
    """
    rng = backend.generator()
    medians, means, entropies = ({"scaled": [], "not scaled": []} for _ in range(3))
    for d_k in widths:
        q, k = rng.standard_normal((2, 8, 64, d_k))
        for name, factor in zip(medians, (d_k ** -0.5, 1)):
            s = mt.tensor(q @ k.swapaxes(-1, -2) * factor, requires_grad=True)
            p = ops.softmax(s)
            p.backward(mt.tensor(rng.standard_normal(p.shape)).data)
            norms = np.linalg.norm(backend.to_numpy(s.grad), axis=-1)
            medians[name].append(np.median(norms))
            means[name].append(norms.mean())
            entropies[name].append(-(p.numpy() * np.log(p.numpy() + 1e-300)).sum(axis=-1).mean())
    save(file, lines(widths, medians, title="gradient at the scores, median of queries", xlabel="d_k", **LOG),
         lines(widths, entropies, title="entropy of the weights, nats", xlabel="d_k", xscale="log"))
    (first, *_, last), steady = medians["not scaled"], medians["scaled"][-1]
    return last < first / 100 and steady > first / 3, (
        f"without the scale the median gradient falls from {first:.3f} at d_k {widths[0]} to {last:.1e} at "
        f"{widths[-1]} (the mean, held up by undecided queries, to {means['not scaled'][-1]:.3f}), the entropy to "
        f"{entropies['not scaled'][-1]:.2f} nats; with it {steady:.3f} and {entropies['scaled'][-1]:.2f} remain")


def warmup(file, steps=300, num_layers=12):
    """Post-norm fails without warm-up, because early gradients are large; pre-norm trains reliably.

    Twelve layers learn to name eight shuffled symbols backwards, at a learning rate of 6e-3 that falls to 0. A run
    fails that is hardly better than a guess in the end.
    """
    curves, seed = {}, int(backend.generator().integers(2 ** 31))
    for norm_first in (False, True):
        for climb in (0, steps // 3):
            mt.manual_seed(seed)
            name = f"{'pre' if norm_first else 'post'}-norm {'with' if climb else 'without'} warm-up"
            curves[name] = train(Reader(8, num_layers, norm_first=norm_first), reversal, steps, 6e-3, climb)
    save(file, lines(np.arange(steps), curves, title=f"{num_layers} layers", xlabel="step", ylabel="loss"))
    ends = {name: losses[-10:].mean() for name, losses in curves.items()}
    failed = [name for name, end in ends.items() if end > 0.9 * np.log(7)]
    return failed == ["post-norm without warm-up"], (
        "last loss " + ", ".join(f"{end:.3f} {name}" for name, end in ends.items())
        + f"; a guess costs {np.log(7):.3f}")


def order(file, steps=400):
    """Without positions the encoder cannot tell order: shuffling what it reads only shuffles what it answers."""
    gaps, scores, curves = {}, {}, {"a guess": np.full(steps, np.log(7))}
    for positions in ("none", "sinusoidal"):
        model, (ids, _) = Reader(8, 2, positions), reversal(64)
        shuffle = backend.generator().permutation(8)
        with mt.no_grad():
            gaps[positions] = np.abs(model(ids[:, shuffle]).numpy() - model(ids).numpy()[:, shuffle]).max()
        curves[f"positions: {positions}"] = train(model, reversal, steps, 3e-3)
        scores[positions] = right(model, *reversal(1000)).mean()
    save(file, lines(np.arange(steps), curves, title="8 symbols named backwards", xlabel="step", ylabel="loss"))
    return gaps["none"] < 1e-5 and scores["none"] < 0.2 < 0.9 < scores["sinusoidal"], (
        f"the answers are the shuffled ones to {gaps['none']:.0e} (with positions {gaps['sinusoidal']:.1f}); trained "
        f"to name symbols backwards, it is right in {scores['none']:.1%}, at a chance of {1 / 7:.1%} (with positions "
        f"{scores['sinusoidal']:.1%})")


def shift(file, d_model=64, n=2000):
    """For any fixed offset k, PE(pos + k) is a linear function of PE(pos).

    The matrix M turns each pair (sin, cos) by k / 10000^(2i / d_model). Another is fitted on every second position
    and tried on the others, and for comparison one on random numbers.
    """
    table, noise = nn.sinusoids(n, d_model), backend.generator().standard_normal((n, d_model))
    offsets, matrices, errors = 2 ** np.arange(10), [], []
    for k in offsets:
        i, M = np.arange(0, d_model, 2), np.zeros((d_model, d_model))
        angle = k / 10000 ** (i / d_model)
        M[i, i] = M[i + 1, i + 1] = np.cos(angle)               # sin(a + b) = cos b sin a + sin b cos a
        M[i, i + 1], M[i + 1, i] = np.sin(angle), -np.sin(angle)
        fits = [np.linalg.lstsq(t[:-k:2], t[k::2])[0] for t in (table, noise)]
        matrices.append(M)
        errors.append([np.abs(table[k:] - table[:-k] @ M.T).max()] + [
            np.abs(t[k + 1::2] - t[1:-k:2] @ fit).max() for t, fit in zip((table, noise), fits)])
    names = "M from the angles", "M fitted", "fitted to random numbers"
    save(file, lambda axes: axes.imshow(matrices[3][:32, :32], cmap="RdBu", vmin=-1, vmax=1),      # k = 8, a corner
         lines(offsets, dict(zip(names, np.transpose(errors))), title="largest error", xlabel="k", **LOG))
    built, fitted, hopeless = np.max(errors, axis=0)
    return built < 1e-10 and fitted < 1e-6, (
        f"for k from 1 to {offsets[-1]} the matrix made of the angles errs by at most {built:.0e}, the fitted one by "
        f"{fitted:.0e} where it was not fitted (on random numbers by {hopeless:.1f})")


class GRU(nn.Module):
    """A gated recurrent net: x (B, T, C) -> its last state h (B, C). Cho et al. 2014, in PyTorch's form.

        r, z = sigmoid(Wx x + Wh h)     n = tanh(Wx x + r Wh h)     h = (1 - z) n + z h
    """

    def __init__(self, C):
        self.w_x, self.w_h = nn.Linear(C, 3 * C), nn.Linear(C, 3 * C)

    def forward(self, x):
        h = mt.zeros(x.shape[0], x.shape[2], dtype=x.dtype)
        for token in ops.split(self.w_x(x), x.shape[1], axis=1):                    # (B, 1, 3 C)
            rx, zx, nx = ops.split(token[:, 0], 3, axis=-1)
            rh, zh, nh = ops.split(self.w_h(h), 3, axis=-1)
            z, n = ops.sigmoid(zx + zh), ops.tanh(nx + ops.sigmoid(rx + rh) * nh)
            h = (1 - z) * n + z * h
        return h


def reach(file, C=64, lengths=2 ** np.arange(3, 10)):
    """Any two tokens are one step apart in attention; a recurrent net must remember through every step between.

    Untrained, in float64: the norm of the gradient of the last of n outputs, for a random dy, at token 1.
    """
    gru, attention = GRU(C).to(dtype=np.float64), nn.MultiHeadAttention(C, 4, dropout=0.0).to(dtype=np.float64)
    nets = {"GRU": gru, "attention": lambda x: attention(x, x, x, is_causal=True)[:, -1]}
    gradients, times = {name: [] for name in nets}, {name: [] for name in nets}
    for n in lengths:
        x, dy = mt.randn(8, int(n), C, dtype=np.float64, requires_grad=True), mt.randn(8, C, dtype=np.float64).data
        for name, net in nets.items():
            x.grad = None
            net(x).backward(dy)
            gradients[name].append(np.linalg.norm(backend.to_numpy(x.grad[:, 0])))
            times[name].append(seconds(lambda: net(x).backward(dy)))
    save(file, lines(lengths, gradients, title="gradient at token 1", xlabel="n", **LOG),
         lines(lengths, times, title="seconds a step, forward and backward", xlabel="n", **LOG))
    falls = {name: values[0] / values[-1] for name, values in gradients.items()}
    return falls["attention"] < 1000 < 1e6 < falls["GRU"], (
        f"from n = {lengths[0]} to {lengths[-1]} the gradient at token 1 shrinks {falls['attention']:.0f} times "
        f"in attention (n^{slope(lengths, gradients['attention']):.1f}) and {falls['GRU']:.0e} in the GRU (to "
        f"{falls['GRU'] ** (-1 / (lengths[-1] - lengths[0])):.2f} a token); a step at {lengths[0]} and {lengths[-1]} "
        "takes " + ", ".join(f"{1e3 * t[0]:.1f} and {1e3 * t[-1]:.0f} ms ({name})" for name, t in times.items()))


def length(file, steps=600, T=16, back=3):
    """Sinusoidal positions extrapolate to sequence lengths not seen in training.

    A causal model of two layers names the symbol three places back, trained on sequences of 16 and asked about 32.
    """
    def draw(n, T=T):
        ids = backend.generator().integers(8, size=(n, T))
        return ids, np.where(np.arange(T) < back, -100, np.roll(ids, back, axis=1))[..., None]

    curves = {}
    for positions in ("sinusoidal", "learned", "rotary"):
        model = Reader(8, 2, positions, max_len=2 * T)
        train(model, draw, steps, 5e-3, is_causal=True)
        curves[positions] = right(model, *draw(500, 2 * T), is_causal=True).mean(axis=(0, 2))[back:]
    save(file, lines(np.arange(back, 2 * T), curves, title=f"right answers, trained to {T - 1}", xlabel="place"))
    scores = {name: (curve[:T - back].mean(), curve[T - back:].mean()) for name, curve in curves.items()}
    near, far = scores["sinusoidal"]
    return far > 0.95 * near, (
        f"right at trained positions and beyond them, at a chance of {1 / 8:.1%}: "
        + ", ".join(f"{name} {near:.1%} and {far:.1%}" for name, (near, far) in scores.items()))


def heads(file, steps=500, H=4, offsets=(-2, -1, 1, 2)):
    """Different heads attend to different relationships.

    One layer of four heads names at every place its neighbours, around the end. Then each head is taken out: its
    columns of w_o are zeroed.
    """
    def draw(n):
        ids = backend.generator().integers(8, size=(n, 16))
        return ids, np.stack([np.roll(ids, -offset, axis=1) for offset in offsets], axis=-1)

    model = Reader(8, 1, questions=len(offsets), heads=H)
    train(model, draw, steps, 1e-2)
    test, attn = draw(500), model.encoder.layers[0].attn
    w_o, K = attn.w_o.weight.data, attn.d_k                                         # (C, H K)
    whole, scores = w_o.copy(), {"all heads": right(model, *test).mean(axis=(0, 1))}
    for h in range(H):
        w_o[:, h * K:(h + 1) * K] = 0
        scores[f"without head {h}"] = right(model, *test).mean(axis=(0, 1))
        w_o[...] = whole
    save(file, lines([f"{offset:+d}" for offset in offsets], scores, title="right answers", xlabel="which neighbour"))
    print(" " * 18 + "".join(f"{offset:+8d}" for offset in offsets))
    for name, row in scores.items():
        print(f"  {name:16s}" + "".join(f"{score:8.1%}" for score in row))
    complete, *without = scores.values()
    spread = np.ptp(without, axis=0)
    return spread.max() > 0.1, (
        f"{complete.mean():.1%} right with all heads, " + ", ".join(f"{row.mean():.1%}" for row in without)
        + " without one of them; which one is missing changes a neighbour's score by up to " + ", ".join(
            f"{100 * points:.0f}" for points in spread) + " points")


@mt.plain_ops()
def cost(file, C=128, H=4, lengths=2 ** np.arange(8, 12)):
    """Attention costs O(n^2) time and memory in the sequence length n.

    As it is written down: its faster twin keeps no scores of a long text, and its memory grows as n alone. Forward and
    backward of a layer, of its T x S part alone (scores, softmax, mixing), and of its projections. The exponent exceeds 2
    where the scores outgrow the processor's cache on the way, or the machine is busy.
    """
    layer, memory = nn.MultiHeadAttention(C, H, dropout=0.0), []
    times = {"the layer": [], "T x S part": [], "projections": []}
    for n in lengths:
        x, q = mt.randn(1, int(n), C), mt.randn(1, H, int(n), C // H, requires_grad=True)
        steps = (lambda: layer(x, x, x).sum().backward(),
                 lambda: ops.scaled_dot_product_attention(q, q, q).sum().backward(),
                 lambda: (layer.w_q(x) + layer.w_k(x) + layer.w_o(layer.w_v(x))).sum().backward())
        for values, step in zip(times.values(), steps):
            values.append(seconds(step))
        tracemalloc.start()
        steps[0]()
        memory.append(tracemalloc.get_traced_memory()[1] / 2 ** 20)
        tracemalloc.stop()
    save(file, lines(lengths, times, title="seconds a step, forward and backward", xlabel="n", **LOG),
         lines(lengths, {"the layer": memory}, title="peak memory of the host, MiB", xlabel="n", **LOG))
    exponents = {name: slope(lengths[-3:], values[-3:]) for name, values in times.items()}
    growth = slope(lengths[-3:], memory[-3:])
    return 1.7 < exponents["T x S part"] < 2.8 and 1.7 < growth < 2.1, (
        f"from n = {lengths[-3]} to {lengths[-1]} time grows as "
        + ", ".join(f"n^{b:.2f} ({name})" for name, b in exponents.items())
        + f"; the layer's memory as n^{growth:.2f}, to {memory[-1]:.0f} MiB on the host")


CLAIMS = {claim.__name__: claim for claim in (scale, warmup, order, shift, reach, length, heads, cost)}


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


def run(names, out, seed):
    """Each claim in turn, from the same seed, so that its numbers do not depend on which others run."""
    held = 0
    for name in names:
        mt.manual_seed(seed)
        begun = time.perf_counter()
        print(f"{name}: {CLAIMS[name].__doc__.splitlines()[0]}", flush=True)
        holds, measured = CLAIMS[name](out / f"{name}.png")
        print(f"  claim: {'holds' if holds else 'does not hold'}: {measured}. {time.perf_counter() - begun:.0f} s\n")
        held += holds
    print(f"{held} of {len(names)} claims hold; the pictures: {out}")
    print(mt.ran_as())
    model = Reader(8, 2)

    def step(n):
        ids, targets = reversal(n)
        ops.cross_entropy(model(ids), targets).backward()
    rates.compare(model, step, 32)


def main(argv=None):
    table = "\n".join(f"  {name:8s} {claim.__doc__.splitlines()[0]}" for name, claim in CLAIMS.items())
    parser = argparse.ArgumentParser(description=f"{__doc__}\n{table}",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("claims", nargs="*", metavar="CLAIM", help="which of them; all if left out")
    parser.add_argument("--out", type=Path, default=Path("runs/claims"), metavar="DIR", help="where the pictures go")
    parser.add_argument("--device", help="cpu, cuda or cuda:1; left out: what MINITX_DEVICE says, or cpu")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    args = parser.parse_args(argv)
    try:
        for name in args.claims:
            if name not in CLAIMS:
                raise Refused(f"there is no claim {name!r}: choose among {', '.join(CLAIMS)}")
        if args.seed < 0:
            raise Refused(f"--seed {args.seed} is no seed: give 0 or more")
        try:
            mt.set_default_device(args.device or mt.backend.default_device())
        except (ValueError, RuntimeError) as error:
            raise Refused(error) from None
        try:
            args.out.mkdir(parents=True, exist_ok=True)
            import matplotlib.figure  # noqa: F401      better known before the training than after it
        except ImportError:
            raise Refused("drawing needs matplotlib: pip install matplotlib") from None
        except OSError as error:
            raise Refused(f"cannot write to {args.out} ({error.strerror}): give --out another folder") from None
        with threads(1):
            run(args.claims or list(CLAIMS), args.out, args.seed)
    except Refused as error:
        print(f"claims: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
