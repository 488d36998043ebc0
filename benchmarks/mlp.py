"""A training step of a small net, where the tape counts: minitx against other libraries on NumPy, and against none.

    python benchmarks/mlp.py [--only autograd mygrad mygrad_unguarded by_hand] [--threads 1] [--pairs 20]
                             [--json FILE] [--plot FILE]

64-32-10 at batch 32 against HIPS autograd and MyGrad (pip install autograd scipy mygrad), 784-128-10 at batch 128 against the
same step written by hand (by_hand.py): tanh, cross entropy, plain gradient descent, all in float32. First both sides take
three steps, and must have the same losses and weights. MyGrad is measured as it comes, and once more without its guard
against writing to arrays in use, which costs time and changes no number.
"""
import itertools
import sys

import by_hand
import limits
import numpy as np
from pairs import Row, marks, options, paired, pinned, report

import minitx as mt
from minitx import nn, ops, optim

RATE, BATCHES = 0.1, 16
DIFFERENT = "does not compute the same"
SMALL, LARGE = (64, 32, 10, 32), (784, 128, 10, 128)    # widths, and the batch
SIDES = {"autograd": (SMALL, 0.3), "mygrad": (SMALL, 0.3), "mygrad_unguarded": (SMALL, None),
         "by_hand": (LARGE, 1.15)}


def minitx_step(weights, lr):
    """A function (x, targets) -> the loss, as all below: a step of gradient descent on the weights, in place."""
    n, width, classes = weights[0].shape[1], *weights[2].shape[::-1]
    model = nn.Sequential(nn.Linear(n, width), nn.Tanh(), nn.Linear(width, classes))
    for p, w in zip(model.parameters(), weights):
        p.data = w
    optimiser = optim.SGD(model.parameters(), lr)

    def step(x, targets):
        loss = ops.cross_entropy(model(x), targets)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        return loss.item()
    return step


def autograd_step(weights, lr):
    import autograd
    import autograd.numpy as anp
    from autograd.scipy.special import logsumexp
    kinds = np.eye(len(weights[3]), dtype=np.float32)

    def loss_of(weights, x, right):
        w1, b1, w2, b2 = weights
        z = anp.dot(anp.tanh(anp.dot(x, w1.T) + b1), w2.T) + b2
        return anp.mean(logsumexp(z, axis=1) - anp.sum(z * right, axis=1))
    loss_and_gradients = autograd.value_and_grad(loss_of)

    def step(x, targets):
        loss, gradients = loss_and_gradients(weights, x, kinds[targets])    # a product is faster there than an index
        for w, dw in zip(weights, gradients):
            w -= lr * dw
        return loss
    return step


def mygrad_step(weights, lr):
    import mygrad
    from mygrad.nnet.losses import softmax_crossentropy
    w1, b1, w2, b2 = tensors = [mygrad.tensor(w, copy=False) for w in weights]

    def step(x, targets):
        loss = softmax_crossentropy(mygrad.matmul(mygrad.tanh(mygrad.matmul(x, w1.T) + b1), w2.T) + b2, targets)
        loss.backward()
        for tensor, w in zip(tensors, weights):
            w -= lr * tensor.grad
            tensor.null_grad()
        return loss.item()
    return step


def mygrad_unguarded_step(weights, lr):
    import mygrad
    return mygrad.mem_guard_off(mygrad_step(weights, lr))


STEPS = {"autograd": autograd_step, "mygrad": mygrad_step, "mygrad_unguarded": mygrad_unguarded_step,
         "by_hand": by_hand.training_step}


def weights_and_batches(n, width, classes, B):
    """(W1, b1, W2, b2) and a list of batches (x, targets), random."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(shape, dtype=np.float32) / np.float32(shape[-1] ** 0.5)
               for shape in ((width, n), (width,), (classes, width), (classes,))]
    return weights, [(rng.standard_normal((B, n), dtype=np.float32), rng.integers(classes, size=B)) for _ in range(BATCHES)]


def agree(ours, theirs, batches, our_weights, their_weights):
    """What differs after three steps of both; an empty string where nothing does."""
    for batch in batches[:3]:
        here, there = ours(*batch), theirs(*batch)
        if not abs(here - there) <= 1e-5 * max(1, abs(here)):
            return f"{DIFFERENT}: losses {here} and {there}"
    wide = [w.dtype for w in their_weights if w.dtype != np.float32]
    gap = max(np.abs(a - b).max() for a, b in zip(our_weights, their_weights))
    return f"weights of {wide[0]}" if wide else "" if gap <= 1e-5 else f"{DIFFERENT}: weights differ by {gap}"


def measure(name, threads, pairs):
    """The Row of a net against that side; with a note instead of figures where it cannot be measured."""
    (n, width, classes, B), mark = SIDES[name]
    row = Row(f"MLP {n}-{width}-{classes}, batch {B}, against {name.replace('_', ' ')}", threads,
              mark=marks(threads, mark, None))
    mt.manual_seed(0)
    weights, batches = weights_and_batches(n, width, classes, B)
    copies = [w.copy() for w in weights]
    ours = minitx_step(weights, RATE)
    try:
        theirs = STEPS[name](copies, RATE)
        row.note = agree(ours, theirs, batches, weights, copies)
    except Exception as error:                          # another library, with this NumPy: whatever it raises is the result
        row.note = f"does not run here: {type(error).__name__}: {error}"
    if row.note:
        return row
    operations = limits.training(limits.linear(B, n, width) + limits.linear(B, width, classes), limits.linear(B, n, width))
    here, there = (itertools.cycle(batches) for _ in range(2))
    with pinned(threads):
        figures = paired(lambda: ours(*next(here)), lambda: theirs(*next(there)), pairs, threads)
        share = operations / (figures["ours"] / 1000) / limits.peak()
    return Row(row.name, threads, **figures, mark=row.mark, share=share, limit="product")


def main():
    args = options(__doc__, SIDES, threads=[1]).parse_args()
    rows = report((measure(name, threads, args.pairs) for threads in args.threads for name in args.only), args)
    return 1 if any(row.note.startswith(DIFFERENT) for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
