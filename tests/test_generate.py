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
        logits = np.zeros((*ids.shape, self.vocabulary), np.float32)
        np.put_along_axis(logits, ids[..., None] + 1, 50, axis=-1)
        return self.weight * logits


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


# ---- encoder-decoders ------------------------------------------------------------------------------------------------

class Reverser(nn.Module):
    """Writes its source from the end to the beginning, then 0 for ever; keeps what it was called with."""

    def __init__(self, vocabulary=50):
        self.vocabulary, self.encoded, self.decoded = vocabulary, [], []
        self.drop = nn.Dropout(0.5)
        self.weight = nn.Parameter([1.0])

    def encode(self, ids, attention_mask=None):
        self.encoded.append((np.array(ids), attention_mask, self.drop.training))
        return mt.tensor(np.array(ids, np.float32))

    def decode(self, decoder_ids, memory, attention_mask=None):
        self.decoded.append((decoder_ids.copy(), memory, attention_mask))
        B, T = decoder_ids.shape
        backwards = np.concatenate([memory.data[:, ::-1].astype(int), np.zeros((B, T), int)], axis=1)[:, :T]
        return self.weight * np.eye(self.vocabulary, dtype=np.float32)[backwards]


def test_the_decoder_writes_one_token_after_the_other():
    model, ids, mask = Reverser(), np.array([[3, 4, 5], [7, 8, 9]]), np.ones((2, 3), int)
    out = generate.greedy_decode(model, ids, 4, start_id=1, attention_mask=mask)
    assert type(out) is np.ndarray and out.dtype == np.int64
    np.testing.assert_array_equal(out, [[5, 4, 3, 0], [9, 8, 7, 0]])
    assert len(model.encoded) == 1 and len(model.decoded) == 4              # the source is read once
    for n, (given, memory, given_mask) in enumerate(model.decoded, 1):
        np.testing.assert_array_equal(given, np.concatenate([[[1], [1]], out[:, :n - 1]], axis=1))
        assert given_mask is mask and memory is model.decoded[0][1] and not memory.requires_grad
    assert model.encoded[0][1] is mask and not model.encoded[0][2] and model.training and model.drop.training


def test_rows_end_each_at_its_end():
    model, ids = Reverser(), [[2, 8, 2, 7], [3, 4, 5, 6]]
    out = generate.greedy_decode(model, ids, 9, start_id=0, end_id=2)
    np.testing.assert_array_equal(out, [[7, 2, 2, 2, 2, 2, 2, 2, 2], [6, 5, 4, 3, 0, 0, 0, 0, 0]])
    out = generate.greedy_decode(model, ids, 9, start_id=0, end_id=4)
    np.testing.assert_array_equal(out[1], [6, 5] + 7 * [4])
    model.decoded.clear()
    both = generate.greedy_decode(model, [[1, 9, 7], [9, 5, 6]], 9, start_id=0, end_id=9)
    np.testing.assert_array_equal(both, [[7, 9, 9], [6, 5, 9]])             # all have ended: nothing more is written
    assert len(model.decoded) == 3


@pytest.mark.parametrize("end_id", [None, 4])
def test_nothing_to_write_and_nobody_to_write(end_id):
    model, ids = Reverser(), np.array([[3, 4]])
    assert generate.greedy_decode(model, ids, 0, start_id=1, end_id=end_id).shape == (1, 0)
    assert generate.greedy_decode(model, ids[:0], 3, start_id=1, end_id=end_id).shape == (0, 3)
    assert generate.greedy_decode(model, ids[:, :0], 2, start_id=1, end_id=end_id).tolist() == [[0, 0]]
    assert generate.greedy_decode(model, ids, 1, start_id=1, end_id=end_id).tolist() == [[4]]


def test_modes_come_back_after_an_error_in_an_encoder_decoder():
    model = Reverser(vocabulary=5)
    model.drop.eval()
    with pytest.raises(IndexError):
        generate.greedy_decode(model, [[9]], 2, start_id=1)
    assert model.training and not model.drop.training
    assert (mt.tensor(1.0, requires_grad=True) * 2.0).requires_grad


def translator():
    mt.manual_seed(3)
    return models.Seq2Seq(models.Seq2SeqConfig(
        src_vocab_size=11, tgt_vocab_size=13, d_model=8, num_heads=2, num_encoder_layers=1, num_decoder_layers=1,
        d_ff=16, max_len=9, dropout=0.3))


def test_greedy_decoding_takes_the_likeliest_token_of_the_whole_model():
    model, ids = translator(), np.random.default_rng(0).integers(0, 11, (5, 6))
    mask = nn.padding_mask([6, 4, 1, 3, 6], 6)[:, 0].astype(int)
    out = generate.greedy_decode(model, ids, 9, start_id=1, attention_mask=mask)
    assert len({tuple(row) for row in out.tolist()}) > 1                    # the source matters
    decoder_ids = np.concatenate([np.ones((5, 1), int), out[:, :-1]], axis=1)
    logits = model.eval()(ids, decoder_ids, mask)
    np.testing.assert_array_equal(out, logits.data.argmax(-1))


def test_padding_of_the_source_changes_nothing_that_is_written():
    model, rng = translator(), np.random.default_rng(0)
    ids = rng.integers(0, 11, (4, 3))
    alone = generate.greedy_decode(model, ids, 9, start_id=1)
    for left in 0, 2, 3:
        mask = np.zeros((4, 6), int)
        mask[:, left:left + 3] = 1
        for _ in range(3):
            padded = rng.integers(0, 11, (4, 6))
            padded[mask == 1] = ids.ravel()
            out = generate.greedy_decode(model, padded, 9, start_id=1, attention_mask=mask)
            np.testing.assert_array_equal(out, alone)


def test_training_draws_are_not_disturbed_by_decoding():
    model = translator()
    mt.manual_seed(3)
    expected = mt.rand(5).data
    mt.manual_seed(3)
    generate.greedy_decode(model, [[1, 2]], 3, start_id=1)
    np.testing.assert_array_equal(mt.rand(5).data, expected)


@pytest.mark.parametrize("change, error, says", [
    ({"max_new_tokens": -1}, ValueError, "max_new_tokens"), ({"max_new_tokens": 1.0}, TypeError, "max_new_tokens"),
    ({"start_id": 1.5}, TypeError, "start_id"), ({"start_id": None}, TypeError, "start_id"),
    ({"start_id": -1}, ValueError, "start_id"), ({"start_id": 13}, IndexError, "13"),
    ({"end_id": 1.5}, TypeError, "end_id"), ({"end_id": -1}, ValueError, "end_id"),
    ({"max_new_tokens": 10}, ValueError, "10 .* 9"), ({"ids": [1, 2]}, ValueError, r"\(B, T\)"),
    ({"ids": [[1.0]]}, TypeError, "integers"), ({"ids": [[11]]}, IndexError, "11"),
    ({"ids": [[1] * 10]}, ValueError, "10 .* 9"), ({"attention_mask": [[1, 1]]}, ValueError, "attention_mask"),
    ({"attention_mask": [[1.0]]}, TypeError, "attention_mask"),
    ({"model": tiny()}, TypeError, "GPT2"), ({"model": nn.Linear(2, 3)}, TypeError, "Linear")])
def test_what_cannot_be_decoded(change, error, says):
    with pytest.raises(error, match=says):
        generate.greedy_decode(**{"model": translator(), "ids": [[1]], "max_new_tokens": 2, "start_id": 1, **change})
    model = translator()
    generate.greedy_decode(model, mt.tensor([[1]]), np.int64(2), start_id=np.int64(1), end_id=mt.tensor(2))


@pytest.mark.parametrize("write", [
    lambda: generate.sample(small_gpt2(head=None), np.zeros((1, 2), int), 1),
    lambda: generate.greedy_decode(small_seq2seq(head=None), np.zeros((1, 2), int), 1, start_id=1)])
def test_without_a_head_there_are_no_logits(write):
    with pytest.raises(ValueError, match='has no head .* head="lm"'):
        write()


def small_gpt2(head="lm"):
    return models.GPT2(models.GPT2Config(7, 5, 8, 1, 2), head)


def small_seq2seq(head="lm"):
    return models.Seq2Seq(models.Seq2SeqConfig(7, 7, 8, 2, 1, 1, 16), head)


def test_each_kind_of_model_has_its_function():
    with pytest.raises(TypeError, match="Seq2Seq is an encoder-decoder; use greedy_decode"):
        generate.sample(small_seq2seq(), np.zeros((1, 2), int), 1)
    with pytest.raises(TypeError, match="no encoder-decoder; use sample"):
        generate.greedy_decode(small_gpt2(), np.zeros((1, 2), int), 1, start_id=1)
    with pytest.raises(TypeError, match="no decoder_start_token_id: give start_id"):
        generate.greedy_decode(small_seq2seq(), np.zeros((1, 2), int), 1)


def test_start_and_end_come_from_the_config_where_it_has_them():
    model = models.T5(models.T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2))
    ids = np.array([[3, 4, 5]])
    told = generate.greedy_decode(model, ids, 4, start_id=0, end_id=1)
    np.testing.assert_array_equal(generate.greedy_decode(model, ids, 4), told)


# ---- what may be drawn, and when to stop -----------------------------------------------------------------------------

LOGITS = np.array([[2.0, 1.0, 0.0, -1.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0]])


@pytest.mark.parametrize("p", [1e-9, 0.3, 0.6, 0.9, 0.99, 1.0])
def test_top_p_keeps_the_fewest_that_make_up_p(p):
    kept = np.isfinite(generate.top_p_filter(LOGITS, p))
    probabilities = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    for row, keep in zip(probabilities, kept):
        assert row[keep].sum() >= p - 1e-12 and keep.any()
        assert row[keep].sum() - row[keep].min() < p                            # without the last of them it is less
        assert row[keep].min() >= row[~keep].max(initial=0)
    np.testing.assert_array_equal(generate.top_p_filter(LOGITS, p)[kept], LOGITS[kept])


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
    ours = generate.penalise_repetition(logits, ids, penalty)
    ours = ours if k is None else generate.top_k_filter(ours, k)
    ours = generate.top_p_filter(ours / temperature, p)
    ours = np.exp(ours) / np.exp(ours).sum(-1, keepdims=True)
    np.testing.assert_allclose(ours, torch.softmax(theirs, -1).numpy(), atol=1e-12)


def test_only_what_top_p_keeps_is_drawn():
    drawn = {generate.sample_token(LOGITS[0], generator=seed, top_p=0.6).item() for seed in range(50)}
    assert drawn == {0, 1} or drawn == {0, 4} or drawn == {0}
    assert drawn == set(np.flatnonzero(np.isfinite(generate.top_p_filter(LOGITS[0], 0.6))))


def test_repetition_is_penalised_where_a_token_stands_and_not_where_padding_does():
    ids, mask = np.array([[4, 0], [1, 1]]), np.array([[False, True], [True, True]])
    expected = LOGITS.copy()
    expected[0, 0] /= 2
    np.testing.assert_array_equal(generate.penalise_repetition(LOGITS, ids, 2.0, mask), expected)
    expected[0, 4] /= 2
    np.testing.assert_array_equal(generate.penalise_repetition(LOGITS, ids, 2.0), expected)
    assert generate.penalise_repetition(LOGITS - 3, ids, 2.0)[0, 0] == -2                          # a negative one grows


def test_rows_stop_and_are_filled_up():
    seen = []
    out = generate.sample(Counter(), [[1], [3]], 6, temperature=0, stop=[5, 4], on_token=lambda t: seen.append(t.tolist()))
    assert out.tolist() == [[1, 2, 3, 4], [3, 4, 5, 5]] and seen == [[2, 4], [3, 5], [4, 5]]
    assert generate.sample(Counter(), [[1]], 3, temperature=0, stop=2).tolist() == [[1, 2]]


def test_prompts_of_unequal_length():
    model = small_gpt2().eval()
    ids, mask = np.array([[0, 0, 3], [1, 2, 3]]), np.array([[0, 0, 1], [1, 1, 1]])
    both = generate.sample(model, ids, 2, temperature=0, attention_mask=mask)
    for row, start in zip(both, (2, 0)):
        np.testing.assert_array_equal(row[start:], generate.sample(model, row[None, start:3], 2, temperature=0)[0])
    with pytest.raises(ValueError, match="pad on the left"):
        generate.sample(model, ids, 2, attention_mask=mask[:, ::-1])


@pytest.mark.parametrize("options, says", [
    (dict(top_p=0.0), "top_p"), (dict(top_p=1.5), "top_p"), (dict(top_p=np.nan), "top_p"),
    (dict(repetition_penalty=0.0), "repetition_penalty"), (dict(stop=-1), "stop"),
    (dict(attention_mask=[[1, 1]]), "attention_mask")])
def test_what_cannot_be_asked_for(options, says):
    with pytest.raises(ValueError, match=says):
        generate.sample(small_gpt2(), [[1]], 1, **options)
