"""Text from a language model, one token at a time."""
import numpy as np

from minitx import backend
from minitx.autograd import Tensor, no_grad


def sample(model, ids, max_new_tokens, temperature=1.0, top_k=None, generator=None, vocab_size=None):
    """Continue ids (B, T) by max_new_tokens tokens: a NumPy array (B, T + max_new_tokens).

    The model turns ids into logits (B, T, V); of a text longer than its config.n_positions it sees the end. It runs
    without a tape and in eval mode, and has its modes back afterwards. The other arguments are sample_token's.
    ValueError where T is 0, or ids are not (B, T), or max_new_tokens is negative.
    """
    ids = ids.data if isinstance(ids, Tensor) else ids
    ids = np.array(backend.to_numpy(ids) if backend.is_array(ids) else ids)
    if ids.ndim != 2 or not ids.shape[1]:
        raise ValueError(f"sample: ids must be (B, T) with T at least 1, got {ids.shape}")
    if max_new_tokens < 0:
        raise ValueError(f"sample: max_new_tokens must be at least 0, got {max_new_tokens}")
    generator = np.random.default_rng(generator)
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with no_grad():
            for _ in range(max_new_tokens):
                logits = model(ids[:, -model.config.n_positions:])[:, -1]
                token = sample_token(logits, temperature, top_k, generator, vocab_size)
                ids = np.concatenate([ids, token[:, None].astype(ids.dtype)], axis=1)
    finally:
        for module, training in modes:
            module.training = training
    return ids


def sample_token(logits, temperature=1.0, top_k=None, generator=None, vocab_size=None):
    """One token for each row of logits (..., V), drawn from softmax(logits / temperature): integers (...).

    temperature   0 takes the largest, the first of equals, and draws nothing; ValueError below 0
    top_k         only the k largest may be drawn: see top_k_filter
    generator     a numpy.random.Generator or a seed; left out, the operating system seeds a new one. Never minitx's own
                  generator: evaluation must not disturb what a training run will draw
    vocab_size    ids from here on are padding of the table: they are never drawn

    ValueError where logits are NaN or allow no token.
    """
    if not temperature >= 0:
        raise ValueError(f"sample: temperature must be at least 0, got {temperature}")
    logits = mask_padding(logits, vocab_size)
    logits = logits if top_k is None else top_k_filter(logits, top_k)
    largest = logits.max(axis=-1, keepdims=True)
    if not np.isfinite(largest).all():
        raise ValueError("sample: logits must not be NaN or +inf, and one in each row must be larger than -inf")
    if temperature == 0:
        return logits.argmax(axis=-1)
    with np.errstate(over="ignore"):                            # a tiny temperature sends all but the largest to -inf
        logits = (logits - largest).astype(np.float64) / temperature
    # The largest of logit + Gumbel noise falls on each token with its softmax probability (Gumbel 1954).
    return (logits + np.random.default_rng(generator).gumbel(size=logits.shape)).argmax(axis=-1)


def top_k_filter(logits, k):
    """Logits (..., V) with all but the k largest set to -inf: exactly k are kept, of equals the first. ValueError for
    k < 1.

    k of V or more keeps them all.
    """
    if k < 1:
        raise ValueError(f"top_k must be at least 1, got {k}")
    logits = _host(logits)
    others = np.argsort(-logits, axis=-1, kind="stable")[..., k:]
    np.put_along_axis(logits, others, -np.inf, axis=-1)
    return logits


def mask_padding(logits, vocab_size):
    """Logits (..., V) with -inf from vocab_size on: ids that only round the table's size up. None masks nothing.

    ValueError for a vocab_size below 1.
    """
    logits = _host(logits)
    if vocab_size is not None:
        if vocab_size < 1:
            raise ValueError(f"vocab_size must be at least 1, got {vocab_size}")
        logits[..., vocab_size:] = -np.inf
    return logits


def _host(logits):
    """A copy of the logits as a NumPy array of floats, at least float32."""
    logits = logits.data if isinstance(logits, Tensor) else logits
    logits = backend.to_numpy(logits) if backend.is_array(logits) else np.asarray(logits)
    return logits.astype(np.promote_types(logits.dtype, np.float32))
