"""Sampling: who may be drawn, how often, and that nothing else is disturbed."""
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import minitx as mt
from minitx import generate, models, nn

RECORDS = json.loads((Path(__file__).parent / "data" / "values.json").read_text(encoding="utf-8"))["records"]


def stored(op):
    return [pytest.param(r, id=r["id"]) for r in RECORDS if r["op"] == op]


@pytest.mark.parametrize("record", stored("sample"))
def test_stored_samples(record):
    logits = np.array(record["inputs"]["logits"])
    if record["kind"] == "error":
        with pytest.raises(ValueError, match="temperature"):
            generate.sample_token(logits, **record["kwargs"])
    else:
        assert generate.sample_token(logits, **record["kwargs"]).tolist() == record["expected"]


@pytest.mark.parametrize("record", stored("top_k_filter"))
def test_stored_filters(record):
    logits = np.array(record["inputs"]["logits"])
    if record["kind"] == "error":
        with pytest.raises(ValueError, match="top_k"):
            generate.top_k_filter(logits, **record["kwargs"])
        return
    kept, expected = generate.top_k_filter(logits, **record["kwargs"]), record["expected"]
    if isinstance(expected, dict):
        assert np.isfinite(kept).sum() == expected["kept_count"]
        np.testing.assert_array_equal(np.isfinite(kept), [[False, True, True, False]])       # of equals the first
    else:
        np.testing.assert_array_equal(kept, np.array(expected, float))


@pytest.mark.parametrize("record", stored("vocab_padding"))
def test_stored_padding(record):
    logits = generate.mask_padding(record["inputs"]["logits"], record["inputs"]["real_vocab"])
    assert logits.argmax() == record["expected"]["argmax"]
    p = np.exp(logits - logits.max())
    np.testing.assert_allclose((p / p.sum())[0, :2], record["expected"]["probs_over_real"], rtol=1e-9)
    many = np.repeat(record["inputs"]["logits"], 100, axis=0)
    assert set(generate.sample_token(many, generator=0, vocab_size=2)) == {0, 1}


@pytest.mark.parametrize("options, p", [
    ({}, [0.1, 0.2, 0.3, 0.4]), ({"temperature": 0.5}, np.array([1, 4, 9, 16]) / 30),
    ({"top_k": 2}, [0, 0, 3 / 7, 4 / 7]), ({"vocab_size": 3, "top_k": 2}, [0, 0.4, 0.6, 0]),
    ({"temperature": 1e-300}, [0, 0, 0, 1])])
def test_tokens_are_drawn_as_often_as_they_should(options, p):
    logits = np.tile(np.log([0.1, 0.2, 0.3, 0.4]).astype(np.float32), (20_000, 1))
    tokens = generate.sample_token(logits, generator=0, **options)
    assert tokens.dtype.kind == "i" and tokens.shape == (20_000,)
    np.testing.assert_allclose(np.bincount(tokens, minlength=4) / 20_000, p, atol=0.015)


def test_the_greedy_token_needs_no_draw():
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    assert generate.sample_token([[1.0, 3.0, 3.0]], temperature=0, generator=rng) == [1]
    assert rng.bit_generator.state == before


def test_of_many_equals_the_first_are_kept():
    kept = np.isfinite(generate.top_k_filter(np.arange(1000) % 2, 10))
    np.testing.assert_array_equal(np.flatnonzero(kept), np.arange(1, 20, 2))


def test_logits_stay_as_they_were():
    logits = np.arange(6.0).reshape(1, 6)
    generate.sample_token(logits, top_k=2, vocab_size=4)
    np.testing.assert_array_equal(logits, np.arange(6.0).reshape(1, 6))
    assert np.isfinite(generate.top_k_filter(mt.tensor([[2, 1, 3]]), 2)).sum() == 2


@pytest.mark.parametrize("logits", [[[np.nan, 1.0]], [[-np.inf, -np.inf]], [[np.inf, 1.0]], [[3.0, np.nan]]])
@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("top_k", [None, 1])
def test_logits_that_allow_no_token(logits, temperature, top_k):
    with pytest.raises(ValueError, match="NaN"):
        generate.sample_token(logits, temperature, top_k)


@pytest.mark.parametrize("temperature", [1e30, 1e308, np.finfo(float).max])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_heat_draws_what_is_allowed_and_nothing_else(temperature, dtype):
    far = np.finfo(dtype).max                                       # the way from -far to far overflows in dtype
    logits = np.tile(np.array([0, far, 1, -far], dtype), (200, 1))
    assert set(generate.sample_token(logits, temperature, top_k=3, generator=0)) <= {0, 1, 2}
    assert set(generate.sample_token(logits[:, :3], temperature, generator=0, vocab_size=1)) == {0}
    if dtype == np.float32:                                         # at such heat all that is allowed is alike
        assert set(generate.sample_token(logits, 1e300, generator=0)) == {0, 1, 2, 3}


class Counter(nn.Module):
    """Always sure that the next id is one higher; keeps what it was shown."""

    def __init__(self, n_positions=4, vocabulary=50):
        self.config, self.vocabulary, self.shown = SimpleNamespace(n_positions=n_positions), vocabulary, []
        self.drop = nn.Dropout(0.5)
        self.weight = nn.Parameter([1.0])

    def forward(self, ids):
        self.shown.append((ids.copy(), self.drop.training))
        return self.weight * (np.eye(self.vocabulary, dtype=np.float32)[ids + 1] * 50)


@pytest.mark.parametrize("ids", [[[3, 4], [7, 8]], np.array([[3, 4], [7, 8]], np.int32), mt.tensor([[3, 4], [7, 8]])])
def test_a_text_goes_on_and_the_model_sees_its_end(ids):
    model = Counter()
    out = generate.sample(model, ids, 5)
    np.testing.assert_array_equal(out, [[3, 4, 5, 6, 7, 8, 9], [7, 8, 9, 10, 11, 12, 13]])
    assert [shown.shape[1] for shown, _ in model.shown] == [2, 3, 4, 4, 4]
    np.testing.assert_array_equal(model.shown[-1][0], out[:, 2:6])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint64])
def test_a_small_integer_dtype_does_not_wrap_what_is_written(dtype):
    model = Counter(vocabulary=40_000)
    start = min(np.iinfo(dtype).max, 39_990) - 1
    out = generate.sample(model, np.array([[start]], dtype), 4)
    assert out.dtype == np.int64
    np.testing.assert_array_equal(out, [np.arange(start, start + 5)])
    assert generate.sample(model, np.array([[start]], dtype), 0).dtype == np.int64


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("ids", [[[1.0, 2.0]], np.ones((1, 2), np.float32), [[True, False]], [["a", "b"]]])
def test_ids_that_are_no_integers(ids, n):
    with pytest.raises(TypeError, match="sample: ids must be integers"):
        generate.sample(Counter(), ids, n)


@pytest.mark.parametrize("config", [None, SimpleNamespace(), SimpleNamespace(n_positions=None)])
def test_a_model_that_does_not_say_how_much_it_sees(config):
    model = Counter()
    model.config = config
    with pytest.raises(TypeError, match=r"Counter .*config\.n_positions"):
        generate.sample(model, [[1]], 1)
    with pytest.raises(TypeError, match=r"Linear .*config\.n_positions"):
        generate.sample(nn.Linear(2, 3), [[1]], 1)


@pytest.mark.parametrize("options", [{"top_k": 1.5}, {"top_k": 2.0}, {"top_k": "2"}, {"vocab_size": 4.0},
                                     {"vocab_size": [4]}, {"max_new_tokens": 1.0}])
def test_numbers_that_are_no_whole_ones(options):
    with pytest.raises(TypeError, match=f"{next(iter(options))} must be a whole number"):
        generate.sample(Counter(), [[1]], **{"max_new_tokens": 1, **options})
    generate.sample(Counter(), [[1]], np.int64(1), top_k=np.int64(2), vocab_size=mt.tensor(5))


def test_modes_come_back_also_after_an_error():
    model = Counter()
    model.drop.eval()
    generate.sample(model, [[1]], 1)
    assert model.training and not model.drop.training and not model.shown[0][1]
    model.drop.train()
    with pytest.raises(IndexError):
        generate.sample(model, [[49]], 1)
    assert model.training and model.drop.training
    assert (mt.tensor(1.0, requires_grad=True) * 2.0).requires_grad


def tiny():
    return models.GPT2(models.GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=2, n_head=2))


def test_a_gpt2_continues_the_same_way_from_the_same_seed():
    model, ids = tiny(), np.array([[1, 2, 3]])
    first = generate.sample(model, ids, 20, generator=1)
    assert first.shape == (1, 23) and first.max() < 11 and (first[:, :3] == ids).all()
    np.testing.assert_array_equal(first, generate.sample(model, ids, 20, generator=np.random.default_rng(1)))
    assert (first != generate.sample(model, ids, 20, generator=2)).any()
    assert (generate.sample(model, ids, 20) != generate.sample(model, ids, 20)).any()


def test_training_draws_are_not_disturbed():
    model = tiny()
    mt.manual_seed(3)
    expected = mt.rand(5).data
    mt.manual_seed(3)
    generate.sample(model, [[1, 2]], 3)
    np.testing.assert_array_equal(mt.rand(5).data, expected)


@pytest.mark.parametrize("ids, n, options, says", [
    ([1, 2], 1, {}, r"\(B, T\)"), (np.zeros((1, 0), int), 1, {}, "at least 1"), ([[1]], -1, {}, "max_new_tokens"),
    ([[1]], 1, {"temperature": -1}, "temperature"), ([[1]], 1, {"temperature": float("nan")}, "temperature"),
    ([[1]], 1, {"temperature": float("inf")}, "temperature .*finite"),
    ([[1]], 1, {"top_k": 0}, "top_k"), ([[1]], 1, {"vocab_size": 0}, "vocab_size"),
    ([[1]], 1, {"vocab_size": -1}, "vocab_size")])
def test_arguments_that_cannot_be(ids, n, options, says):
    with pytest.raises(ValueError, match=says):
        generate.sample(tiny(), ids, n, **options)
