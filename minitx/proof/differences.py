"""Central differences and the tolerance they are held to: the arithmetic that every gradient check here shares.

    d <<dy, y>> / dx_n  =  <<dy, y(x_n + h) - y(x_n - h)>> / 2h  +  O(h^2)          dy ~ N(0, 1), fixed

A random dy weighs every output differently; a plain sum would hide a softmax whose gradient is all zeros. The step is
near the cube root of float64's precision, where the truncation h^2 and the rounding 1e-16 / h are equally small.
"""
import numpy as np

STEP = 6e-6
RELATIVE, ABSOLUTE = 1e-6, 1e-8         # |numeric - ours| <= RELATIVE max(|numeric|, |ours|) + ABSOLUTE
FLOOR = 1e-3                            # other errors are relative to the largest entry, or to this


class GradientError(AssertionError):
    """A backward that is not the derivative of its forward."""


def is_float(x):
    """Whether x is an array that can have a gradient."""
    return isinstance(x, np.ndarray) and x.dtype.kind == "f"


def frozen(x):
    """A read-only copy of array x (x itself if it is read-only already), also inside a tuple; all else as it is."""
    if type(x) is tuple:
        return tuple(map(frozen, x))
    if isinstance(x, np.ndarray) and x.flags.writeable:
        x = x.copy()
        x.flags.writeable = False
    return x


def scattered(x):
    """Array x with the same values and no two of them neighbours in memory: axes reversed, every second element, NaN
    between. Read-only. What is no float array comes back as it is."""
    if not is_float(x) or not x.ndim:
        return x
    view = np.full([2 * n + 1 for n in reversed(x.shape)], np.nan)[(slice(1, None, 2),) * x.ndim].transpose()
    view[...] = x
    view.flags.writeable = False
    return view


def normal(bits, shape):
    """N(0, 1) to three decimals from a Philox, the same on every machine and with every NumPy.

    Its raw bits are promised never to change (its normal numbers are not), and the rounding swallows what one
    mathematics library does unlike another. Box and Muller 1958.
    """
    radius, angle = ((bits.random_raw((2,) + shape) >> np.uint64(11)) + 0.5) / 2 ** 53
    return np.asarray(np.round(np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * angle), 3))


def random_like(outputs, seed=0):
    """One read-only array ~ N(0, 1) per output, the same for the same seed."""
    bits = np.random.Philox(key=seed)
    return tuple(frozen(normal(bits, y.shape)) for y in outputs)


def differences(forward, arrays, dys):
    """The gradient of <<dy, y>> in every float array, entry by entry, for each output y apart.

    forward takes a list like `arrays` and returns a tuple of arrays. Returns a list beside `arrays`: (outputs, *shape),
    or None beside what is no float array.
    """
    found = []
    for i, x in enumerate(arrays):
        slopes = None
        if is_float(x):
            slopes = np.zeros((len(dys), x.size))
            for n, value in enumerate(x.ravel().tolist()):
                h = STEP * max(1.0, abs(value))
                up, above = _moved(forward, arrays, i, n, value + h)
                down, below = _moved(forward, arrays, i, n, value - h)
                with np.errstate(invalid="ignore", over="ignore"):      # inf - inf: NaN, which fails below
                    slopes[:, n] = [np.vdot(dy, y1 - y0) / (above - below) for dy, y1, y0 in zip(dys, up, down)]
            slopes = slopes.reshape((len(dys),) + x.shape)
        found.append(slopes)
    return found


def _moved(forward, arrays, i, n, value):
    """The outputs, copied in case they are views, with entry n of array i at `value`; and that value."""
    probe = np.array(arrays[i])
    probe.flat[n] = value
    probe.flags.writeable = False
    return [np.array(y) for y in forward([*arrays[:i], probe, *arrays[i + 1:]])], value


def excess(numeric, ours):
    """|numeric - ours| as a multiple of the tolerance, entry by entry: agreed up to 1; inf where either is NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        bound = RELATIVE * np.maximum(np.abs(numeric), np.abs(ours)) + ABSOLUTE
        ratio = np.abs(numeric - ours) / bound
    return np.where(np.isnan(ratio), np.inf, ratio)


def relative_error(ours, theirs):
    """The largest |ours - theirs|, relative to the largest finite |theirs| or to 1e-3 if that is larger.

    inf where the shapes differ, or where one is inf or NaN and the other is not the same.
    """
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if ours.shape != theirs.shape:
        return np.inf
    known = np.isfinite(theirs)
    if not np.array_equal(ours[~known], theirs[~known], equal_nan=True) or not np.isfinite(ours[known]).all():
        return np.inf
    if not known.any():
        return 0.0
    ours, theirs = ours[known].astype(float), theirs[known].astype(float)
    return float(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), FLOOR))
