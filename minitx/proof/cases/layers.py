"""Cases of the ops that are a layer each: B batch, H heads, T queries, S keys, K and D widths, V classes.

Each function takes a Draw and yields (label, inputs, options).
"""
import numpy as np

B, H, T, S, K, D = 2, 4, 3, 5, 2, 3
_INF = float("inf")


def _softmax(draw):
    yield "number of one", (draw(1),), dict(axis=-1, mask=None)
    yield "vector", (draw(5),), dict(axis=0, mask=None)
    yield "rows", (draw(2, 4),), dict(axis=-1, mask=None)
    yield "middle axis", (2 * draw(2, 4, 3),), dict(axis=1, mask=None)
    yield "mask, a row with nothing", (draw(3, 4),), dict(axis=-1, mask=np.array([
        [True, False, True, True], [False, False, False, False], [True, True, True, False]]))
    yield "mask stretched", (draw(2, 3, 4),), dict(axis=-1, mask=np.array([[True, True, False, True]]))
    yield "mask, first axis", (draw(4, 2),), dict(axis=0, mask=np.array([[True, True], [False, True], [True, False],
                                                                         [True, True]]))
    yield "no rows", (draw(0, 3),), dict(axis=-1, mask=None)
    yield "no choice", (draw(3, 0),), dict(axis=-1, mask=None)
    yield "number", (draw(),), dict(axis=-1, mask=None)
    yield "number, masked", (draw(),), dict(axis=-1, mask=np.array(False))


def _softmax_edges(draw):
    yield "far apart", (np.array([[-1047.0, -981.0, 1891.0], [3e4, 3e4, -3e4]]),), dict(axis=-1, mask=None)
    yield "-inf", (np.array([[-_INF, -_INF], [0.0, 1.0], [-_INF, 0.5]]),), dict(axis=-1, mask=None)


def _log_softmax(draw):
    yield "number of one", (draw(1),), dict(axis=-1)
    yield "vector", (draw(5),), dict(axis=0)
    yield "rows", (draw(3, 4),), dict(axis=-1)
    yield "middle axis", (2 * draw(2, 4, 3),), dict(axis=-2)
    yield "number", (draw(),), dict(axis=-1)


def _log_softmax_edges(draw):
    yield "far apart", (np.array([[1000.0, 0.0, -1000.0]]),), dict(axis=-1)
    yield "no choice", (draw(3, 0),), dict(axis=-1)


def _layer_norm(draw):
    yield "vector", (draw(5), draw(5), draw(5)), dict(eps=1e-5)
    yield "batch", (draw(B, T, 4), draw(4), draw(4)), dict(eps=1e-5)
    yield "large eps", (1.5 + draw(3, 4), draw(4), draw(4)), dict(eps=0.3)
    yield "no bias", (draw(T, 4), draw(4), None), dict(eps=1e-3)
    yield "no weight", (draw(T, 4), None, draw(4)), dict(eps=1e-3)
    yield "neither", (draw(B, T, 5), None, None), dict(eps=0.1)
    yield "far from zero", (50 + 3 * draw(2, 5), draw(5), draw(5)), dict(eps=1e-5)
    yield "width one", (draw(3, 1), draw(1), draw(1)), dict(eps=0.5)
    yield "no rows", (draw(0, 3), draw(3), draw(3)), dict(eps=1e-5)


def _layer_norm_edges(draw):
    yield "a flat row", (np.array([[3.0, 3.0, 3.0, 3.0], [1.0, 2.0, 3.0, 5.0]]), draw(4), draw(4)), dict(eps=1e-5)
    yield "tiny", (1e-6 * draw(2, 4), draw(4), draw(4)), dict(eps=1e-12)


def _rms_norm(draw):
    yield "vector", (draw(5), draw(5)), dict(eps=1e-6)
    yield "batch", (draw(B, T, 4), draw(4)), dict(eps=1e-6)
    yield "large eps", (1.5 + draw(3, 4), draw(4)), dict(eps=0.3)
    yield "no weight", (draw(B, T, 5), None), dict(eps=0.1)
    yield "width one", (draw(3, 1), draw(1)), dict(eps=0.5)
    yield "no rows", (draw(0, 3), draw(3)), dict(eps=1e-6)


def _rms_norm_edges(draw):
    yield "a row of zeros", (np.array([[0.0, 0.0, 0.0], [1.0, -2.0, 0.5]]), draw(3)), dict(eps=1e-6)


_PLAIN_ATTENTION = dict(mask=None, is_causal=False, scale=None, keep=None, dropout_p=0.0, return_weights=False)


def _attention(draw):
    def qkv(*lead):
        return draw(*lead, T, K), draw(*lead, S, K), draw(*lead, S, D)

    def options(**chosen):
        return _PLAIN_ATTENTION | chosen

    nothing_for_the_second = np.array([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 0, 0, 1]], bool)
    every_row = np.array([[[1, 1, 0, 1, 0], [0, 1, 1, 1, 1], [1, 0, 1, 0, 1]],
                          [[1, 0, 0, 1, 1], [1, 1, 1, 0, 1], [0, 1, 1, 1, 0]]], bool)
    lengths = np.arange(S) < np.array([[[2]], [[4]]])                                               # (B, 1, S)
    yield "one query", (draw(T, K), draw(S, K), draw(S, D), None), options()
    yield "batch, weights", (*qkv(B), None), options(return_weights=True)
    yield "width one", (draw(T, 1), draw(S, 1), draw(S, 1), None), options()
    yield "no keys", (draw(B, T, K), draw(B, 0, K), draw(B, 0, D), None), options()
    yield "one of each", (draw(1, 1), draw(1, 1), draw(1, 1), None), options()
    yield "mask (T, S), a row with nothing, weights", (*qkv(B), None), options(
        mask=nothing_for_the_second, return_weights=True)
    yield "mask (B, T, S)", (*qkv(B), None), options(mask=every_row)
    yield "heads, mask (B, T, S)", (*qkv(B, H), None), options(mask=every_row)
    yield "heads, mask (B, 1, S), bias (H, T, S)", (*qkv(B, H), draw(H, T, S)), options(mask=lengths)
    yield "heads, mask (B, H, T, S), causal", (*qkv(B, H), None), options(mask=draw.bools(B, H, T, S), is_causal=True)
    yield "causal, T < S", (*qkv(), None), options(is_causal=True)
    yield "causal, T > S", (draw(5, K), draw(3, K), draw(3, D), None), options(is_causal=True, return_weights=True)
    yield "causal, T = S", (draw(B, 4, K), draw(B, 4, K), draw(B, 4, D), None), options(is_causal=True)
    yield "scale, bias (T, S)", (*qkv(B), draw(T, S)), options(scale=0.9)
    yield "bias (S,)", (*qkv(), draw(S)), options()
    yield "dropout", (*qkv(B), None), options(keep=draw.bools(B, T, S), dropout_p=0.3)
    yield "everything", (*qkv(B), draw(B, T, S)), options(
        mask=every_row, is_causal=True, scale=-0.6, keep=draw.bools(B, T, S), dropout_p=0.4, return_weights=True)
    yield "one key head for all", (draw(B, H, T, K), draw(B, 1, S, K), draw(B, 1, S, D), None), options(
        mask=every_row[:, None], return_weights=True)
    yield "bias (B, 1, S)", (*qkv(B), draw(B, 1, S)), options(mask=every_row)


def _attention_edges(draw):
    q, k = np.array([[200.0, -200.0], [1e4, 1e4]]), np.array([[200.0, 200.0], [100.0, 100.0], [-1e4, 3.0]])
    yield "far apart", (q, k, draw(3, 2), None), _PLAIN_ATTENTION


def _rope(draw):
    yield "halves (T,)", (draw(3, 4),), dict(positions=np.array([0, 1, 5]), base=10000.0, interleaved=False)
    yield "neighbours (T,)", (draw(B, 3, 6),), dict(positions=np.array([2, 0, 7]), base=100.0, interleaved=True)
    rows = np.array([[0, 1, 2], [4, 9, 3]])
    yield "halves (B, T)", (draw(B, T, 6),), dict(positions=rows, base=10.0, interleaved=False)
    yield "heads (B, T)", (draw(B, H, T, 4),), dict(positions=rows, base=50.0, interleaved=False)
    yield "heads (B, T), neighbours", (draw(2, 1, 3, 2),), dict(positions=np.array([[3, 1, 2], [6, 0, 5]]), base=50.0,
                                                                interleaved=True)
    yield "one", (draw(1, 2),), dict(positions=np.array([3]), base=10000.0, interleaved=False)
    yield "five axes (B, T)", (draw(B, 2, 3, T, 4),), dict(positions=rows, base=100.0, interleaved=False)
    yield "five axes (T,), neighbours", (draw(1, 2, 2, T, 2),), dict(positions=rows[1], base=10.0, interleaved=True)
    given = dict(base=10.0, frequencies=np.array([0.9, 0.35, 0.02]))
    yield "frequencies", (draw(B, H, T, 6),), dict(positions=rows, interleaved=False, **given)
    yield "frequencies, neighbours", (draw(T, 6),), dict(positions=rows[1], interleaved=True, **given)


def _dropout(draw):
    yield "number", (draw(), None), dict(keep=np.array(True), p=0.2)
    yield "vector", (draw(5), None), dict(keep=np.array([True, False, True, True, False]), p=0.4)
    yield "array", (draw(2, 3, 4), None), dict(keep=draw.bools(2, 3, 4), p=0.3)
    yield "all dropped", (draw(3), None), dict(keep=np.array([False, False, False]), p=1.0)
    yield "of length one", (draw(3, 1), None), dict(keep=np.array([[True], [False], [True]]), p=0.5)
    yield "residual, number", (draw(), draw()), dict(keep=np.array(True), p=0.2)
    yield "residual", (draw(2, 3, 4), draw(2, 3, 4)), dict(keep=draw.bools(2, 3, 4), p=0.3)
    yield "residual, all dropped", (draw(3), draw(3)), dict(keep=np.array([False, False, False]), p=1.0)


def _embedding(draw):
    yield "one id", (draw(4, 3),), dict(ids=np.array(2))
    yield "repeats", (draw(5, 3),), dict(ids=np.array([[1, 1, 3, 4], [1, 0, 1, 3]]))
    yield "few rows, many ids", (draw(2, 3),), dict(ids=np.array([1, 0, 1, 1, 1, 0, 1]))
    yield "width one", (draw(4, 1),), dict(ids=np.array([3, 0]))
    yield "padding row unused", (draw(4, 3),), dict(ids=np.array([[3, 0], [0, 1]]), padding_idx=2)
    yield "no ids", (draw(4, 3),), dict(ids=np.zeros((2, 0), np.int64))


def _embedding_edges(draw):
    yield "padding row", (draw(4, 3),), dict(ids=np.array([[3, 0, 1], [1, 1, 0]]), padding_idx=1)
    yield "padding row 0", (draw(4, 3),), dict(ids=np.array([[3, 0, 1], [1, 1, 0]]), padding_idx=0)


def _cross_entropy(draw):
    V, targets, ignored = 5, np.array([[1, 4, 1], [0, 3, 2]]), np.array([[1, -100, 1], [-100, 3, 2]])

    def options(targets, **chosen):
        return dict(dict(targets=targets, ignore_index=-100, label_smoothing=0.0, reduction="mean"), **chosen)

    yield "one row", (draw(V),), options(np.array(3))
    for reduction in ("mean", "sum", "none"):
        yield f"{reduction}", (draw(B, T, V),), options(targets, reduction=reduction)
        yield f"{reduction}, some ignored", (draw(B, T, V),), options(ignored, reduction=reduction)
        yield f"{reduction}, smoothed, class 1 ignored", (draw(B, T, V),), options(
            targets, ignore_index=1, label_smoothing=0.3, reduction=reduction)
    yield "none, one row", (draw(V),), options(np.array(2), reduction="none")
    yield "mean, nothing left", (draw(2, V),), options(np.array([-100, -100]), label_smoothing=0.1)
    yield "smoothed", (2 * draw(4, V),), options(np.array([0, 2, 2, 4]), label_smoothing=0.1)
    yield "one class", (draw(3, 1),), options(np.array([0, 0, 0]), reduction="none")
    yield "one class, some ignored", (draw(3, 1),), options(np.array([0, -100, 0]), label_smoothing=0.2)
    yield "no rows", (draw(0, V),), options(np.zeros(0, np.int64), reduction="sum")
    yield "no rows, none", (draw(2, 0, V),), options(np.zeros((2, 0), np.int64), reduction="none")
    yield "no rows, no classes", (draw(0, 0),), options(np.zeros(0, np.int64))


def _cross_entropy_edges(draw):
    far = np.array([[-431.0, 279.0, 427.0], [900.0, 0.0, -900.0], [1.0, 2.0, 3.0]])
    for reduction in ("mean", "none"):
        yield f"far apart, {reduction}", (far,), dict(
            targets=np.array([0, 0, 255]), ignore_index=255, label_smoothing=0.2, reduction=reduction)
    yield "-inf", (np.array([[0.5, -_INF, 1.0], [-_INF, 2.0, 0.3], [-_INF, 1.0, 0.5]]),), dict(
        targets=np.array([0, 0, -100]), ignore_index=-100, label_smoothing=0.0, reduction="none")
    yield "no classes, all ignored", (draw(2, 0),), dict(
        targets=np.array([-100, -100]), ignore_index=-100, label_smoothing=0.1, reduction="mean")


def _patchify(draw):
    yield "square", (draw(2, 3, 4, 2),), dict(patch=(2, 2))
    yield "oblong", (draw(1, 2, 4, 9),), dict(patch=(2, 3))
    yield "tall", (draw(2, 1, 6, 4),), dict(patch=(3, 1))
    yield "one pixel", (draw(1, 2, 2, 3),), dict(patch=(1, 1))


CASES = {
    "softmax": _softmax, "log_softmax": _log_softmax, "layer_norm": _layer_norm, "rms_norm": _rms_norm,
    "scaled_dot_product_attention": _attention, "rope": _rope, "dropout": _dropout, "embedding": _embedding,
    "cross_entropy": _cross_entropy, "patchify": _patchify,
}
EDGES = {
    "softmax": _softmax_edges, "log_softmax": _log_softmax_edges, "layer_norm": _layer_norm_edges,
    "rms_norm": _rms_norm_edges, "scaled_dot_product_attention": _attention_edges, "embedding": _embedding_edges,
    "cross_entropy": _cross_entropy_edges,
}
