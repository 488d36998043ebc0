"""Text from a language model, one token at a time."""
import contextlib
import operator

import numpy as np

from minitx import nn
from minitx.autograd import no_grad
from minitx.tensor import as_numpy


def sample(model, ids, max_new_tokens, temperature=1.0, top_k=None, generator=None, vocab_size=None, *, top_p=None,
           repetition_penalty=1.0, attention_mask=None, stop=(), on_token=None):
    """Continue ids (B, T) by max_new_tokens tokens: a NumPy array (B, T + max_new_tokens) of int64.

    The model turns ids into logits (B, T, V); of a text longer than its config.n_positions it sees the end. It runs
    without a tape and in eval mode, and has its modes back afterwards.

    attention_mask       (B, T) of 1 and 0, for prompts of unequal length, padded on the left
    stop                 a token or several: a row that has come to one goes on with the first of them, and where every
                         row has, the rest is not written
    on_token             called with the new tokens, int64 (B,), as soon as they are drawn
    repetition_penalty   penalise_repetition's; the other arguments are sample_token's

    ValueError where T is 0, or ids are not (B, T), or max_new_tokens is negative, or padding stands on the right.
    TypeError for ids that are no integers and a model that has no config.n_positions.
    """
    ids = as_numpy(ids)
    if ids.ndim != 2 or not ids.shape[1]:
        raise ValueError(f"sample: ids must be (B, T) with T at least 1, got {ids.shape}")
    if ids.dtype.kind not in "iu":
        raise TypeError(f"sample: ids must be integers, got {ids.dtype}")
    if hasattr(model, "encode"):
        raise TypeError(f"sample: {type(model).__name__} is an encoder-decoder; use greedy_decode")
    _check_head("sample", model)
    n_positions = getattr(getattr(model, "config", None), "n_positions", None)
    if n_positions is None:
        raise TypeError(f"sample: {type(model).__name__} must say in config.n_positions how many tokens it can see")
    max_new_tokens = _whole("max_new_tokens", max_new_tokens, least=0)
    stop = [_whole("a stop token", token, least=0) for token in np.atleast_1d(as_numpy(stop)).tolist()]
    mask = None
    if attention_mask is not None:
        mask = nn.mask_from_tokenizer(attention_mask, ids.shape, "sample: attention_mask")[:, 0]
        if not mask[:, -1].all():
            raise ValueError("sample: a prompt must end in a token, which is continued: pad on the left")
    ids = ids.astype(np.int64)                                  # a uint8 prompt may go on with tokens above 255
    ended = np.zeros(len(ids), bool)
    generator = np.random.default_rng(generator)
    with evaluating(model):
        for _ in range(max_new_tokens):
            seen = (ids[:, -n_positions:],) if mask is None else (ids[:, -n_positions:], mask[:, -n_positions:])
            logits = penalise_repetition(model(*seen)[:, -1], ids, repetition_penalty, mask)
            token = sample_token(logits, temperature, top_k, generator, vocab_size, top_p)
            token[ended] = stop[0] if stop else 0
            ids = np.concatenate([ids, token[:, None]], axis=1)
            mask = None if mask is None else np.pad(mask, ((0, 0), (0, 1)), constant_values=True)
            if on_token is not None:
                on_token(token)
            ended |= np.isin(token, stop)
            if len(ended) and ended.all():
                break
    return ids


def greedy_decode(model, ids, max_new_tokens, *, start_id=None, end_id=None, attention_mask=None):
    """What an encoder-decoder makes of ids (B, S), taking the likeliest token at every step: int64 (B, n).

    The source is encoded once. Every row begins after start_id, which is not returned; one that has come to end_id goes
    on with end_id, and n is max_new_tokens or less, where all rows have ended. Left out, they are the config's
    decoder_start_token_id and eos_token_id, where it has them. attention_mask (B, S) is the source's. Without a tape
    and in eval mode, as in `sample`.

    TypeError for a model that is no encoder-decoder, without a start_id, and for numbers that are not whole. ValueError
    for a negative max_new_tokens, and where the text grows longer than the model's positions.
    """
    if not hasattr(model, "encode"):
        raise TypeError(f"greedy_decode: {type(model).__name__} is no encoder-decoder; use sample")
    _check_head("greedy_decode", model)
    config = getattr(model, "config", None)
    start_id = getattr(config, "decoder_start_token_id", None) if start_id is None else start_id
    end_id = getattr(config, "eos_token_id", None) if end_id is None else end_id
    if start_id is None:
        raise TypeError(f"greedy_decode: {type(model).__name__}'s config has no decoder_start_token_id: give start_id")
    max_new_tokens, start_id = _whole("max_new_tokens", max_new_tokens, least=0), _whole("start_id", start_id, least=0)
    end_id = None if end_id is None else _whole("end_id", end_id, least=0)
    with evaluating(model):
        memory = model.encode(ids, attention_mask)
        found = np.full((len(ids), 1), start_id, np.int64)
        ended = np.zeros(len(ids), bool)
        while found.shape[1] <= max_new_tokens and not (ended.all() and len(ended)):
            logits = model.decode(found, memory, attention_mask)[:, -1]
            token = sample_token(logits, temperature=0)
            if end_id is not None:
                token[ended] = end_id
                ended |= token == end_id
            found = np.concatenate([found, token[:, None]], axis=1)
    return found[:, 1:]


@contextlib.contextmanager
def evaluating(model):
    """Inside it no tape is recorded and the model is in eval mode; afterwards every part has its own mode back.

    The mode is the model's, not the thread's: threads that share a model put it in eval mode first.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def sample_token(logits, temperature=1.0, top_k=None, generator=None, vocab_size=None, top_p=None):
    """One token for each row of logits (..., V), drawn from softmax(logits / temperature): integers (...).

    temperature   0 takes the largest, the first of equals, and draws nothing
    top_k         only the k largest may be drawn: see top_k_filter
    top_p         of those, at this temperature, only the likeliest that make up p together: see top_p_filter
    generator     a numpy.random.Generator or a seed; left out, the operating system seeds a new one. Never minitx's own
                  generator: evaluation must not disturb what a training run will draw
    vocab_size    ids from here on are padding of the table: they are never drawn

    ValueError where logits are NaN or +inf or allow no token, and for a temperature that is negative or not finite.
    """
    if not 0 <= temperature < np.inf:
        raise ValueError(f"sample: temperature must be a finite number, at least 0; got {temperature}")
    logits = mask_padding(logits, vocab_size)
    largest = logits.max(axis=-1, keepdims=True)                # NaN if one is: found before top_k_filter drops it
    if not np.isfinite(largest).all():
        raise ValueError("sample: logits must not be NaN or +inf, and one in each row must be larger than -inf")
    logits = logits if top_k is None else top_k_filter(logits, top_k)
    if temperature == 0:
        return logits.argmax(axis=-1)
    with np.errstate(over="ignore"):                            # a tiny temperature sends all but the largest to -inf
        logits = (logits.astype(np.float64) - largest) / temperature
    logits = logits if top_p is None else top_p_filter(logits, top_p)
    # The largest of logit + Gumbel noise falls on each token with its softmax probability (Gumbel 1954).
    return (logits + np.random.default_rng(generator).gumbel(size=logits.shape)).argmax(axis=-1)


def top_k_filter(logits, k):
    """Logits (..., V) with all but the k largest set to -inf: exactly k are kept, of equals the first.

    k of V or more keeps them all. ValueError for k below 1, TypeError for one that is no whole number.
    """
    k, logits = _whole("top_k", k), _floats(logits)
    others = np.argsort(-logits, axis=-1, kind="stable")[..., k:]
    np.put_along_axis(logits, others, -np.inf, axis=-1)
    return logits


def top_p_filter(logits, p):
    """Logits (..., V) with all but the likeliest set to -inf: the fewest whose probabilities sum to p or more.

    Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration". ValueError unless 0 < p <= 1.
    """
    if not 0 < p <= 1:
        raise ValueError(f"generate: top_p must lie above 0 and be at most 1, got {p}")
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
    if not 0 < penalty < np.inf:
        raise ValueError(f"generate: repetition_penalty must be a finite number above 0, got {penalty}")
    if penalty == 1:
        return logits
    logits = _floats(logits)
    mask, held = np.ones(ids.shape, bool) if mask is None else mask, np.zeros(logits.shape, bool)
    held[np.nonzero(mask)[0], ids[mask]] = True
    return np.where(held, np.where(logits > 0, logits / penalty, logits * penalty), logits)


def mask_padding(logits, vocab_size):
    """Logits (..., V) with -inf from vocab_size on: ids that only round the table's size up. None masks nothing.

    ValueError for a vocab_size below 1, TypeError for one that is no whole number.
    """
    logits = _floats(logits)
    if vocab_size is not None:
        logits[..., _whole("vocab_size", vocab_size):] = -np.inf
    return logits


def _check_head(function, model):
    """ValueError for a model that was built without the head that gives logits."""
    if getattr(model, "lm_head", model) is None:
        raise ValueError(f'{function}: {type(model).__name__} has no head and gives no logits: build it with head="lm"')


def _floats(logits):
    """A copy of the logits as a NumPy array of floats, at least float32."""
    logits = as_numpy(logits)
    return logits.astype(np.promote_types(logits.dtype, np.float32))


def _whole(name, value, least=1):
    """value as an int. TypeError for what is no whole number, ValueError below `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"generate: {name} must be a whole number, got {value!r}") from None
    if number < least:
        raise ValueError(f"generate: {name} must be at least {least}, got {number}")
    return number
