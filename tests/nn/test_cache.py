"""The cache: a text in pieces is the text, nothing of the past moves, and what does not belong there is refused."""
import numpy as np
import pytest

import minitx as mt
from minitx import generate, models, nn

IDS = np.random.default_rng(2).integers(3, 23, (3, 9))
MASK = (np.arange(9) >= np.array([0, 2, 1])[:, None]).astype(int)


def gpt2(**more):
    return models.GPT2(models.GPT2Config(**dict(vocab_size=23, n_positions=12, n_embd=16, n_layer=2, n_head=2) | more)).eval()


FAMILIES = {
    "gpt2": gpt2,
    "llama": lambda: models.Llama(models.LlamaConfig(23, 16, 24, 2, 4, 2, max_position_embeddings=12)),
    "t5": lambda: models.T5(models.T5Config(23, 16, 6, 24, 2, num_heads=2, relative_attention_max_distance=20)),
    "bart": lambda: models.BART(models.BartConfig(23, 12, 1, 24, 2, 2, 24, 4, d_model=16)),
    "seq2seq": lambda: models.Seq2Seq(models.Seq2SeqConfig(23, 23, 16, 2, 1, 2, 24, max_len=12)),
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("pieces", [(1, 1, 1, 1, 1, 1), (4, 2), (1, 3, 2), (6,)])
def test_a_text_may_come_in_pieces(name, pieces):
    model, (ids, mask) = FAMILIES[name](), (IDS[:, :6], MASK[:, :6])
    model.to(dtype=np.float64).eval()
    with mt.no_grad():
        memory = model.encode(ids) if hasattr(model, "encode") else None

        def logits(ids, mask, **cache):
            return (model(ids, mask, **cache) if memory is None else model.decode(ids, memory, None, mask, **cache)).numpy()

        for given in mask, None:
            cache, whole, end = nn.Cache(capacity=1), logits(ids, given), 0
            for n in pieces:
                begin, end = end, end + n
                part = logits(ids[:, begin:end], None if given is None else given[:, :end], cache=cache)
                real = np.s_[:] if given is None else given[:, begin:end] == 1
                np.testing.assert_allclose(part[real], whole[:, begin:end][real], rtol=0, atol=1e-12 * np.abs(whole).max())
            assert cache.length == 6


def test_the_weights_too_are_those_of_the_whole():
    model = gpt2()
    ids, cache = IDS[:2, :5], nn.Cache()
    with mt.no_grad():
        whole = model(ids, return_weights=True)[1]
        model(ids[:, :3], cache=cache)
        _, weights = model(ids[:, 3:], cache=cache, return_weights=True)
    for ours, expected in zip(weights, whole):
        np.testing.assert_allclose(ours.data, expected.data[:, :, 3:], atol=1e-6)


def test_what_it_holds_in_bytes():
    model = gpt2()
    with generate.evaluating(model):
        cache = nn.Cache()
        assert cache.nbytes == 0
        model(IDS[:, :5], cache=cache)
    assert cache.nbytes == 2 * 2 * 3 * 5 * 16 * 4                           # keys and values, layers, B, T, C, float32


def test_where_it_is_full_it_doubles_and_keeps_what_it_has():
    model = gpt2()
    with generate.evaluating(model):
        cache, ids = nn.Cache(capacity=2), IDS[:1]
        rooms = []
        for t in range(9):
            model(ids[:, t:t + 1], cache=cache)
            rooms.append(next(iter(cache.rooms.values()))[0].shape[-2])
    assert rooms == [2, 2, 4, 4, 8, 8, 8, 8, 16]


def test_a_new_token_moves_nothing_of_the_past():
    model = gpt2()
    with generate.evaluating(model):
        cache, ids = nn.Cache(capacity=9), IDS[:1]
        model(ids[:, :5], cache=cache)
        before = [room for rooms in cache.rooms.values() for room in rooms]
        model(ids[:, 5:], cache=cache)
        after = [room for rooms in cache.rooms.values() for room in rooms]
    assert all(a is b for a, b in zip(before, after))


def test_gradients_are_not_kept():
    model = gpt2()
    with pytest.raises(RuntimeError, match="no_grad"):
        model(IDS, cache=nn.Cache())


def test_what_stands_behind_the_last_position_is_refused_with_a_cache_too():
    model = gpt2(n_positions=6)
    with generate.evaluating(model):
        cache, ids = nn.Cache(), IDS[:1, :7]
        model(ids[:, :6], cache=cache)
        with pytest.raises(ValueError, match="7 tokens .* 6 positions"):
            model(ids[:, 6:], cache=cache)
        with pytest.raises(ValueError, match="attention_mask"):
            model(ids[:, :1], np.ones((1, 1), int), cache=cache_of(model, ids[:, :3]))


def cache_of(model, ids):
    cache = nn.Cache()
    model(ids, cache=cache)
    return cache


@pytest.mark.parametrize("name", FAMILIES)
def test_who_was_told_of_padding_must_be_told_again(name):
    model = FAMILIES[name]().eval()
    with mt.no_grad():
        memory = model.encode(IDS) if hasattr(model, "encode") else None

        def run(ids, mask, cache):
            return model(ids, mask, cache=cache) if memory is None else model.decode(ids, memory, None, mask, cache=cache)

        cache = nn.Cache()
        run(IDS[:, :5], MASK[:, :5], cache)
        with pytest.raises(ValueError, match=r"attention_mask: give that of all tokens, \(3, 6\)"):
            run(IDS[:, 5:6], None, cache)
        with pytest.raises(ValueError, match=r"attention_mask has shape \(3, 1\)"):
            run(IDS[:, 5:6], MASK[:, 5:6], cache)


@pytest.mark.parametrize("strange", ["fewer rows", "more rows", "another dtype", "another model"])
def test_a_cache_of_something_else_is_refused(strange):
    model, cache = gpt2(), nn.Cache()
    with mt.no_grad():
        model(IDS[:, :5], cache=cache)
        ids = {"fewer rows": IDS[:1], "more rows": np.concatenate([IDS, IDS])}.get(strange, IDS)[:, 5:6]
        model = gpt2() if strange == "another model" else model.to(dtype=np.float64) if strange == "another dtype" else model
        with pytest.raises(ValueError, match="begin with a new one"):
            model(ids, cache=cache)


def test_after_a_call_that_broke_off_it_is_refused(monkeypatch):
    model, cache = gpt2(), nn.Cache()
    with mt.no_grad():
        model(IDS[:, :5], cache=cache)
        with monkeypatch.context() as m:
            m.setattr(model.h[1].norm1, "forward", lambda x: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                model(IDS[:, 5:6], cache=cache)
        with pytest.raises(ValueError, match="broke off"):
            model(IDS[:, 5:6], cache=cache)


@pytest.mark.parametrize("rows", [[1, 0, 2], [2, 2, 2], [0, 1], [0, 0, 1, 1, 2, 2], []], ids=str)
def test_rows_change_places(rows):
    model, cache = gpt2(), nn.Cache()
    rows = np.array(rows, int)
    with mt.no_grad():
        model(IDS[:, :5], MASK[:, :5], cache=cache)
        cache.reorder(rows)
        after = model(IDS[rows, 5:], MASK[rows], cache=cache).data
        np.testing.assert_allclose(after, model(IDS[rows], MASK[rows]).data[:, 5:], atol=1e-5)


@pytest.mark.parametrize("rows, error, says", [
    ([-1, 0], IndexError, "id -1"), ([0, 3], IndexError, "id 3 .* size 3"), ([True, False, True], TypeError, "integers"),
    ([0.0, 1.0], TypeError, "integers")])
def test_rows_that_are_not_there(rows, error, says):
    model, cache = FAMILIES["t5"]().eval(), nn.Cache()
    with mt.no_grad():
        model.decode(IDS[:, :2], model.encode(IDS), cache=cache)
    for part in cache, cache.memory:
        with pytest.raises(error, match=says):
            part.reorder(np.array(rows))


def test_a_cache_beside_another_memory():
    model, cache = FAMILIES["t5"]().eval(), nn.Cache()
    with mt.no_grad():
        model.decode(IDS[:, :2], model.encode(IDS), cache=cache)
        with pytest.raises(ValueError, match=r"memory \(3, 9\), this is one of \(3, 7\)"):
            model.decode(IDS[:, 2:3], model.encode(IDS[:, :7]), cache=cache)


@pytest.mark.parametrize("capacity, error", [(0, ValueError), (-1, ValueError), (2.5, TypeError), (None, TypeError)])
def test_a_capacity_that_cannot_be(capacity, error):
    with pytest.raises(error, match="Cache: capacity"):
        nn.Cache(capacity)


def test_a_mask_that_does_not_fit_leaves_the_cache_as_it_was():
    model, cache = gpt2(), nn.Cache()
    with mt.no_grad():
        model(IDS[:, :5], cache=cache)
        with pytest.raises(ValueError, match="attention_mask"):
            model(IDS[:, 5:], np.ones((3, 4), int), cache=cache)
        np.testing.assert_allclose(model(IDS[:, 5:], cache=cache).data, model(IDS).data[:, 5:], atol=1e-5)
