"""A training step of a small net as one writes it by hand for that one net: NumPy alone, no tape, no classes.

    h = tanh(x W1' + b1)      z = h W2' + b2      the mean of cross entropy, then plain gradient descent
"""
import numpy as np


def training_step(weights, lr):
    """A function (x (B, n), targets (B,)) -> the loss; it changes the weights W1, b1, W2, b2 in place."""
    w1, b1, w2, b2 = weights

    def step(x, targets):
        rows = np.arange(len(x))
        h = x @ w1.T
        h += b1
        np.tanh(h, out=h)
        z = h @ w2.T
        z += b2

        z -= z.max(axis=1, keepdims=True)
        right = z[rows, targets]
        np.exp(z, out=z)
        total = z.sum(axis=1, keepdims=True)
        loss = (np.log(total[:, 0]) - right).mean()

        z /= total                                      # the probabilities, becoming the gradient of the logits
        z[rows, targets] -= 1
        z /= len(x)
        dh = z @ w2
        dw2, db2 = z.T @ h, z.sum(axis=0)
        np.multiply(h, h, out=h)
        np.subtract(1, h, out=h)
        dh *= h
        dw1, db1 = dh.T @ x, dh.sum(axis=0)

        for w, dw in (w1, dw1), (b1, db1), (w2, dw2), (b2, db2):
            dw *= lr
            w -= dw
        return loss
    return step
