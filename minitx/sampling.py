"""Which token comes next: logits to choices."""
import operator

import numpy as np

from minitx.tensor import as_numpy


def sample_token(logits, temperature=1.0, *, top_k=None, top_p=None, vocab_size=None, generator=None):
    """One token for each row of logits (..., V), drawn from what filter_logits leaves: integers (...).

    temperature   0 takes the largest, the first of equals, and draws nothing
    generator     a numpy.random.Generator or a seed; left out, the operating system seeds a new one. Never minitx's own
                  generator: evaluation must not disturb what a training run will draw

    The rest, and errors, as in filter_logits.
    """
    logits = filter_logits(logits, temperature, top_k=top_k, top_p=top_p, vocab_size=vocab_size)
    if temperature == 0:
        return logits.argmax(axis=-1)
    # The largest of logit + Gumbel noise falls on each token with its softmax probability (Gumbel 1954).
    return (logits + np.random.default_rng(generator).gumbel(size=logits.shape)).argmax(axis=-1)


def filter_logits(logits, temperature=1.0, *, top_k=None, top_p=None, vocab_size=None):
    """The logits (..., V) whose softmax is the probability of each token to be drawn: -inf for those that may not be.

    In this order, as in transformers: vocab_size (see mask_padding), top_k (see top_k_filter), division by the temperature,
    unless it is 0, and top_p (see top_p_filter). ValueError where logits are NaN or +inf or allow no token, and for a
    temperature that is negative or not finite.
    """
    check_options(temperature=temperature, top_k=top_k, top_p=top_p, vocab_size=vocab_size)
    logits = mask_padding(logits, vocab_size)
    largest = logits.max(axis=-1, keepdims=True)                # NaN if one is: found before top_k_filter drops it
    if not np.isfinite(largest).all():
        raise ValueError("generate: logits must not be NaN or +inf, and one in each row must be larger than -inf")
    logits = logits if top_k is None else top_k_filter(logits, top_k)
    if temperature == 0:
        return logits
    with np.errstate(over="ignore"):                            # a tiny temperature sends all but the largest to -inf
        logits = (logits.astype(np.float64) - largest) / temperature
    return logits if top_p is None else top_p_filter(logits, top_p)


def top_k_filter(logits, k):
    """Logits (..., V) with all but the k largest set to -inf: exactly k are kept, of equals the first.

    k of V or more keeps them all. ValueError for k below 1, TypeError for one that is no whole number.
    """
    k, logits = whole("top_k", k), _floats(logits)
    V = logits.shape[-1]
    if k >= V:
        return logits
    last = np.partition(logits, V - k, axis=-1)[..., V - k, None]               # the smallest that is kept
    larger, equal = logits > last, logits == last
    kept = larger | equal & (equal.cumsum(axis=-1) <= k - larger.sum(axis=-1, keepdims=True))
    return np.where(kept, logits, logits.dtype.type(-np.inf))


def top_p_filter(logits, p):
    """Logits (..., V) with all but the likeliest set to -inf: the fewest whose probabilities sum to p or more.

    Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration". ValueError unless 0 < p <= 1.
    """
    check_options(top_p=p)
    logits = _floats(logits)
    order = np.argsort(-logits, axis=-1, kind="stable")
    likely = np.exp(np.take_along_axis(logits, order, -1) - logits.max(axis=-1, keepdims=True))
    before = likely.cumsum(axis=-1) - likely                                    # what the likelier ones have together
    dropped = before >= p * likely.sum(axis=-1, keepdims=True)
    np.put_along_axis(logits, order, np.where(dropped, -np.inf, np.take_along_axis(logits, order, -1)), axis=-1)
    return logits


def penalise_repetition(logits, ids, penalty, mask=None):
    """Logits (B, V) made smaller for the tokens that ids (B, T) hold: divided by the penalty, or multiplied if negative.

    Keskar et al. 2019, "CTRL", section 4.1. mask (B, T) is False where ids are padding. ValueError unless penalty > 0.
    """
    check_options(repetition_penalty=penalty)
    if penalty == 1:
        return logits
    logits = _floats(logits)
    mask, held = np.ones(ids.shape, bool) if mask is None else mask, np.zeros(logits.shape, bool)
    held[np.nonzero(mask)[0], ids[mask]] = True
    with np.errstate(all="ignore"):                             # huge ones go to infinity: -inf is never drawn
        return np.where(held, np.where(logits > 0, logits / penalty, logits * penalty), logits)


def mask_padding(logits, vocab_size):
    """Logits (..., V) with -inf from vocab_size on: ids that only round the table's size up. None masks nothing.

    ValueError for a vocab_size below 1, TypeError for one that is no whole number.
    """
    logits = _floats(logits)
    if vocab_size is not None:
        logits[..., whole("vocab_size", vocab_size):] = -np.inf
    return logits


def check_options(*, temperature=1.0, top_k=None, top_p=None, repetition_penalty=1.0, length_penalty=1.0, vocab_size=None):
    """TypeError for what is no number, or no whole one where it must be; ValueError for what is out of its range."""
    for name, value in dict(temperature=temperature, top_p=1.0 if top_p is None else top_p,
                            repetition_penalty=repetition_penalty, length_penalty=length_penalty).items():
        if not isinstance(value, (int, float, np.number)):
            raise TypeError(f"generate: {name} must be a number, got {value!r}")
    if not 0 <= temperature < np.inf:
        raise ValueError(f"generate: temperature must be a finite number, at least 0; got {temperature}")
    if not 0 < repetition_penalty < np.inf:
        raise ValueError(f"generate: repetition_penalty must be a finite number above 0, got {repetition_penalty}")
    if not -50 <= length_penalty <= 50:
        raise ValueError(f"generate: length_penalty must lie between -50 and 50, got {length_penalty}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"generate: top_p must lie above 0 and be at most 1, got {top_p}")
    for name, value in ("top_k", top_k), ("vocab_size", vocab_size):
        if value is not None:
            whole(name, value)


def whole(name, value, least=1):
    """value as an int. TypeError for what is no whole number, ValueError below `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"generate: {name} must be a whole number, got {value!r}") from None
    if number < least:
        raise ValueError(f"generate: {name} must be at least {least}, got {number}")
    return number


def _floats(logits):
    """A copy of the logits as a NumPy array of floats, at least float32."""
    logits = as_numpy(logits)
    return logits.astype(np.promote_types(logits.dtype, np.float32))
