"""Sampling: who may be drawn, how often, and that nothing else is disturbed."""
import json
from pathlib import Path

import numpy as np
import pytest

import minitx as mt
from minitx import sampling

RECORDS = json.loads((Path(__file__).parent / "data" / "values.json").read_text(encoding="utf-8"))["records"]


def stored(op):
    return [pytest.param(r, id=r["id"]) for r in RECORDS if r["op"] == op]


@pytest.mark.parametrize("record", stored("sample"))
def test_stored_samples(record):
    logits = np.array(record["inputs"]["logits"])
    if record["kind"] == "error":
        with pytest.raises(ValueError, match="temperature"):
            sampling.sample_token(logits, **record["kwargs"])
    else:
        assert sampling.sample_token(logits, **record["kwargs"]).tolist() == record["expected"]


@pytest.mark.parametrize("record", stored("top_k_filter"))
def test_stored_filters(record):
    logits = np.array(record["inputs"]["logits"])
    if record["kind"] == "error":
        with pytest.raises(ValueError, match="top_k"):
            sampling.top_k_filter(logits, **record["kwargs"])
        return
    kept, expected = sampling.top_k_filter(logits, **record["kwargs"]), record["expected"]
    if isinstance(expected, dict):
        assert np.isfinite(kept).sum() == expected["kept_count"]
        np.testing.assert_array_equal(np.isfinite(kept), [[False, True, True, False]])       # of equals the first
    else:
        np.testing.assert_array_equal(kept, np.array(expected, float))


@pytest.mark.parametrize("record", stored("vocab_padding"))
def test_stored_padding(record):
    logits = sampling.mask_padding(record["inputs"]["logits"], record["inputs"]["real_vocab"])
    assert logits.argmax() == record["expected"]["argmax"]
    p = np.exp(logits - logits.max())
    np.testing.assert_allclose((p / p.sum())[0, :2], record["expected"]["probs_over_real"], rtol=1e-9)
    many = np.repeat(record["inputs"]["logits"], 100, axis=0)
    assert set(sampling.sample_token(many, generator=0, vocab_size=2)) == {0, 1}


@pytest.mark.parametrize("options, p", [
    ({}, [0.1, 0.2, 0.3, 0.4]), ({"temperature": 0.5}, np.array([1, 4, 9, 16]) / 30),
    ({"top_k": 2}, [0, 0, 3 / 7, 4 / 7]), ({"vocab_size": 3, "top_k": 2}, [0, 0.4, 0.6, 0]),
    ({"temperature": 1e-300}, [0, 0, 0, 1])])
def test_tokens_are_drawn_as_often_as_they_should(options, p):
    logits = np.tile(np.log([0.1, 0.2, 0.3, 0.4]).astype(np.float32), (20_000, 1))
    tokens = sampling.sample_token(logits, generator=0, **options)
    assert tokens.dtype.kind == "i" and tokens.shape == (20_000,)
    np.testing.assert_allclose(np.bincount(tokens, minlength=4) / 20_000, p, atol=0.015)


def test_the_greedy_token_needs_no_draw():
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    assert sampling.sample_token([[1.0, 3.0, 3.0]], temperature=0, generator=rng) == [1]
    assert rng.bit_generator.state == before


def test_of_many_equals_the_first_are_kept():
    kept = np.isfinite(sampling.top_k_filter(np.arange(1000) % 2, 10))
    np.testing.assert_array_equal(np.flatnonzero(kept), np.arange(1, 20, 2))


def test_logits_stay_as_they_were():
    logits = np.arange(6.0).reshape(1, 6)
    sampling.sample_token(logits, top_k=2, vocab_size=4)
    np.testing.assert_array_equal(logits, np.arange(6.0).reshape(1, 6))
    assert np.isfinite(sampling.top_k_filter(mt.tensor([[2, 1, 3]]), 2)).sum() == 2


@pytest.mark.parametrize("logits", [[[np.nan, 1.0]], [[-np.inf, -np.inf]], [[np.inf, 1.0]], [[3.0, np.nan]]])
@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("top_k", [None, 1])
def test_logits_that_allow_no_token(logits, temperature, top_k):
    with pytest.raises(ValueError, match="NaN"):
        sampling.sample_token(logits, temperature, top_k=top_k)


@pytest.mark.parametrize("temperature", [1e30, 1e308, np.finfo(float).max])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_heat_draws_what_is_allowed_and_nothing_else(temperature, dtype):
    far = np.finfo(dtype).max                                       # the way from -far to far overflows in dtype
    logits = np.tile(np.array([0, far, 1, -far], dtype), (200, 1))
    assert set(sampling.sample_token(logits, temperature, top_k=3, generator=0)) <= {0, 1, 2}
    assert set(sampling.sample_token(logits[:, :3], temperature, generator=0, vocab_size=1)) == {0}
    if dtype == np.float32:                                         # at such heat all that is allowed is alike
        assert set(sampling.sample_token(logits, 1e300, generator=0)) == {0, 1, 2, 3}


# ---- what may be drawn, and when to stop -----------------------------------------------------------------------------

LOGITS = np.array([[2.0, 1.0, 0.0, -1.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0]])


@pytest.mark.parametrize("p", [1e-9, 0.3, 0.6, 0.9, 0.99, 1.0])
def test_top_p_keeps_the_fewest_that_make_up_p(p):
    kept = np.isfinite(sampling.top_p_filter(LOGITS, p))
    probabilities = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    for row, keep in zip(probabilities, kept):
        assert row[keep].sum() >= p - 1e-12 and keep.any()
        assert row[keep].sum() - row[keep].min() < p                            # without the last of them it is less
        assert row[keep].min() >= row[~keep].max(initial=0)
    np.testing.assert_array_equal(sampling.top_p_filter(LOGITS, p)[kept], LOGITS[kept])


@pytest.mark.parametrize("p", [0.2, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("temperature, k, penalty", [(1.0, None, 1.0), (0.7, 5, 1.3), (1.5, 3, 0.8)])
def test_filters_are_those_of_transformers(p, temperature, k, penalty):
    torch, process = pytest.importorskip("torch"), pytest.importorskip("transformers.generation.logits_process")
    rng = np.random.default_rng(0)
    logits, ids = 2 * rng.standard_normal((4, 9)), rng.integers(9, size=(4, 6))
    theirs = torch.tensor(logits)
    chain = [process.RepetitionPenaltyLogitsProcessor(penalty), process.TemperatureLogitsWarper(temperature)]
    chain += [] if k is None else [process.TopKLogitsWarper(k)]
    for step in [*chain, process.TopPLogitsWarper(p)]:
        theirs = step(torch.tensor(ids), theirs)
    ours = sampling.filter_logits(sampling.penalise_repetition(logits, ids, penalty), temperature, top_k=k, top_p=p)
    ours = np.exp(ours) / np.exp(ours).sum(-1, keepdims=True)
    np.testing.assert_allclose(ours, torch.softmax(theirs, -1).numpy(), atol=1e-12)


def test_only_what_top_p_keeps_is_drawn():
    drawn = {sampling.sample_token(LOGITS[0], generator=seed, top_p=0.6).item() for seed in range(50)}
    assert drawn == {0, 1} or drawn == {0, 4} or drawn == {0}
    assert drawn == set(np.flatnonzero(np.isfinite(sampling.top_p_filter(LOGITS[0], 0.6))))


def test_repetition_is_penalised_where_a_token_stands_and_not_where_padding_does():
    ids, mask = np.array([[4, 0], [1, 1]]), np.array([[False, True], [True, True]])
    expected = LOGITS.copy()
    expected[0, 0] /= 2
    np.testing.assert_array_equal(sampling.penalise_repetition(LOGITS, ids, 2.0, mask), expected)
    expected[0, 4] /= 2
    np.testing.assert_array_equal(sampling.penalise_repetition(LOGITS, ids, 2.0), expected)
    assert sampling.penalise_repetition(LOGITS - 3, ids, 2.0)[0, 0] == -2                          # a negative one grows
