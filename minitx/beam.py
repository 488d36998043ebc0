"""Beam search: the likeliest text, not the likeliest token."""
import numpy as np

from minitx import ops
from minitx.sampling import penalise_repetition
from minitx.tensor import as_numpy


def beam_search(text, scores, max_new_tokens, num_beams, length_penalty=1.0, repetition_penalty=1.0, stop=()):
    """The best text that num_beams beams find for each row of a generate.Text: new tokens, int64 (B, n).

        beams         the num_beams texts of the largest sums of log-probabilities, grown by a token at a time
        finished      a text that comes to a stop token, or to max_new_tokens, while it is among the num_beams best; it
                      counts sum / n^length_penalty, n its new tokens, the stop token too: a penalty above 0 is for longer
                      texts
        the end       of a row comes when num_beams have finished, and the best beam, as long as it is, would not count
                      more than the worst of them

    scores(step) gives logits (B, V). These rules are those of transformers (early_stopping=False), whose repetition penalty
    also falls on log-probabilities here. A row that is shorter than others repeats its stop token. Graves 2012,
    "Sequence Transduction with Recurrent Neural Networks"; Wu et al. 2016, section 7.
    """
    B, K, n = len(text.ids), num_beams, max_new_tokens
    sums = np.full((B, K), -np.inf)
    sums[:, 0] = 0                                                      # all beams begin alike: one of them counts
    counts, lengths = np.full((B, K), -np.inf), np.zeros((B, K), int)   # of the finished ones, the best first
    found, done = np.zeros((B, K, 0), int), np.zeros(B, bool)
    for step in range(n):
        logp = penalise_repetition(as_numpy(ops.log_softmax(scores(step))), text.ids, repetition_penalty, text.mask)
        if step == 0:
            every = np.repeat(np.arange(B), K)
            text.reorder(every)
            logp = logp[every]
        V = logp.shape[-1]
        total = (sums.reshape(B * K, 1) + logp).reshape(B, K * V)
        best = largest(total, min((1 + max(1, len(stop))) * K, K * V))  # so many that K go on, whatever ends
        values, beams, tokens = np.take_along_axis(total, best, 1), best // V, best % V         # (B, M)
        rows = np.arange(B)[:, None] * K + beams
        ends = np.isin(tokens, stop) | (step == n - 1)

        weight = (step + 1.0) ** length_penalty
        gained = np.where(ends[:, :K] & ~done[:, None], values[:, :K] / weight, -np.inf)
        new = np.concatenate([text.written[rows[:, :K]], tokens[:, :K, None]], axis=2)          # (B, K, step + 1)
        found = np.concatenate([found, found[..., -1:] if step else new], axis=2)               # repeats its last token
        counts, lengths, new = (np.concatenate(pair, axis=1) for pair in (
            (counts, gained), (lengths, np.full((B, K), step + 1)), (found, new)))
        kept = largest(counts, K)
        counts, lengths = np.take_along_axis(counts, kept, 1), np.take_along_axis(lengths, kept, 1)
        found = np.take_along_axis(new, kept[..., None], 1)

        on = np.argsort(ends, axis=1, kind="stable")[:, :K]             # those that go on come first, the best of them first
        sums = np.where(np.take_along_axis(ends, on, 1), -np.inf, np.take_along_axis(values, on, 1))
        text.reorder(np.take_along_axis(rows, on, 1).ravel())
        text.append(np.take_along_axis(tokens, on, 1).ravel())
        done |= sums[:, 0] / weight <= counts[:, -1]
        if B and done.all():
            break
    return found[:, 0, :lengths[:, 0].max() if B else n]


def largest(x, k):
    """Where the k largest of each row of x (B, N) are, the largest first: (B, k)."""
    some = np.argpartition(-x, k - 1, axis=1)[:, :k]
    order = np.argsort(-np.take_along_axis(x, some, 1), axis=1, kind="stable")
    return np.take_along_axis(some, order, 1)
