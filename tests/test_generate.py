"""Writing text: what is written, when it ends, what it rests on, and that nothing else is disturbed."""
import numpy as np
import pytest
from double import here

import minitx as mt
from minitx import generate, models, nn, sampling


class Counter(nn.Module):
    """A Module of one's own: always sure that the next id is one higher; keeps what it was shown."""

    def __init__(self, context=4, vocabulary=50):
        self.context, self.vocabulary, self.shown = context, vocabulary, []
        self.drop = nn.Dropout(0.5)
        self.weight = nn.Parameter([1.0])

    def forward(self, ids, attention_mask=None):
        self.shown.append((ids.copy(), self.drop.training, attention_mask))
        logits = np.zeros((*ids.shape, self.vocabulary), np.float32)
        np.put_along_axis(logits, ids[..., None] + 1, 50, axis=-1)
        return self.weight * logits


SMALL = dict(vocab_size=23, n_positions=90, n_embd=16, n_layer=2, n_head=2, initializer_range=0.3)
LLAMA = dict(vocab_size=23, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=90, initializer_range=0.5)
T5 = dict(vocab_size=23, d_model=16, d_kv=6, d_ff=24, num_layers=2, num_heads=2, relative_attention_max_distance=20,
          tie_word_embeddings=False, initializer_factor=1.5)
BART = dict(vocab_size=23, d_model=16, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
            decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=90, init_std=0.4)
SEQ2SEQ = dict(src_vocab_size=23, tgt_vocab_size=23, d_model=16, num_heads=2, num_encoder_layers=1, num_decoder_layers=2,
               d_ff=24, max_len=90)
FAMILIES = {
    "gpt2": lambda **more: models.GPT2(models.GPT2Config(**SMALL | more)),
    "llama": lambda **more: models.Llama(models.LlamaConfig(**LLAMA | more)),
    "t5": lambda **more: models.T5(models.T5Config(**T5 | more)),
    "bart": lambda **more: models.BART(models.BartConfig(**BART | more)),
    "seq2seq": lambda **more: models.Seq2Seq(models.Seq2SeqConfig(**SEQ2SEQ | more)),
}


def family(name, **more):
    """A model of the family whose dropout would show, and what else `generate` must be told."""
    mt.manual_seed(4)
    model = FAMILIES[name](**more)
    if name == "seq2seq":                                               # larger weights write a text that is not all alike
        model.tgt_embed.weight.data *= 4
        model.lm_head.weight.data *= 4
    return model, {"start_id": 1} if name == "seq2seq" else {}


def prompts(B=4, T=9):
    """ids (B, T) and a mask that pads the rows on the left, each by another length."""
    ids = np.random.default_rng(2).integers(3, 23, (B, T))
    return ids, (np.arange(T) >= np.arange(B)[:, None] * 2).astype(int)


def without_cache(model, ids, mask, written, start_id):
    """The logits (B, n, V) of what was written, all of it run at once; the model is in eval mode."""
    n = written.shape[1]
    with mt.no_grad():
        if hasattr(model, "encode"):
            start_id = model.config.decoder_start_token_id if start_id is None else start_id
            return model(ids, np.insert(written[:, :-1], 0, start_id, axis=1), mask).numpy()
        more = np.pad(mask, ((0, 0), (0, n)), constant_values=1)
        return model(np.concatenate([ids, written], 1), more).numpy()[:, -n - 1:-1]


# ---- the cache -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", FAMILIES)
def test_with_the_cache_every_step_is_the_one_without(name, monkeypatch):
    """64 tokens, greedy, four prompts of unequal length: the same logits at every step, and the same tokens."""
    (model, options), (ids, mask), seen = family(name), prompts(), []

    def choose(logits, *rest, **more):
        seen.append(here(logits))
        return sampling.sample_token(logits, *rest, **more)

    monkeypatch.setattr(generate, "sample_token", choose)
    out = generate.generate(model, ids, 64, attention_mask=mask, stop=(), **options)
    expected = without_cache(model.eval(), ids, mask, out, options.get("start_id"))
    if name == "bart":
        expected, seen = expected[:, :-1], seen[:-1]                    # the last one is forced
    np.testing.assert_allclose(np.stack(seen, 1), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    np.testing.assert_array_equal(out[:, :len(seen)], expected.argmax(-1))
    assert len(np.unique(out)) > 2


@pytest.mark.parametrize("options", [{}, dict(num_beams=3)], ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_who_writes_may_look_at_the_cache(name, options):
    (model, more), (ids, mask), cache = family(name), prompts(), nn.Cache(capacity=1)
    out = generate.generate(model, ids, 6, attention_mask=mask, stop=(), cache=cache, **more, **options)
    np.testing.assert_array_equal(out, generate.generate(model, ids, 6, attention_mask=mask, stop=(), **more, **options))
    assert cache.length == (6 if hasattr(model, "encode") else 9 + 5)           # the last token is not looked at
    assert bool(cache.memory.nbytes) is hasattr(model, "encode")
    with pytest.raises(ValueError, match="tokens of another text"):
        generate.generate(model, ids, 6, cache=cache, **more)


# ---- what is written -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("ids", [[[3, 4], [7, 8]], np.array([[3, 4], [7, 8]], np.int32), mt.tensor([[3, 4], [7, 8]])])
def test_a_text_goes_on_and_a_model_of_ones_own_sees_its_end(ids):
    model = Counter()
    out = generate.generate(model, ids, 5)
    assert type(out) is np.ndarray and out.dtype == np.int64
    np.testing.assert_array_equal(out, [[5, 6, 7, 8, 9], [9, 10, 11, 12, 13]])
    assert [shown.shape[1] for shown, *_ in model.shown] == [2, 3, 4, 4, 4]
    np.testing.assert_array_equal(model.shown[-1][0], np.stack([np.arange(5, 9), np.arange(9, 13)]))
    model.shown.clear()
    generate.generate(model, ids, 3, attention_mask=[[0, 1], [1, 1]])
    assert [mask.astype(int).tolist() for *_, mask in model.shown] == [
        [[0, 1], [1, 1]], [[0, 1, 1], [1, 1, 1]], [[0, 1, 1, 1], [1, 1, 1, 1]]]


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_of_a_text_longer_than_the_context_the_end_is_seen(name):
    model, _ = family(name, **{"n_positions" if name == "gpt2" else "max_position_embeddings": 7})
    ids, mask = prompts(3, 5)
    for given in None, mask:
        out = generate.generate(model, ids, 12, attention_mask=given, stop=())
        text, real = np.concatenate([ids, out], 1), np.pad(mask, ((0, 0), (0, 12)), constant_values=1)
        model.eval()
        for n in range(5, 17):
            window = np.s_[:, max(0, n - 7):n]
            logits = model(text[window], None if given is None else real[window]).data[:, -1]
            np.testing.assert_array_equal(logits.argmax(-1), text[:, n])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint64])
def test_a_small_integer_dtype_does_not_wrap_what_is_written(dtype):
    model = Counter(vocabulary=40_000)
    start = min(np.iinfo(dtype).max, 39_990) - 1
    out = generate.generate(model, np.array([[start]], dtype), 4)
    assert out.dtype == np.int64
    np.testing.assert_array_equal(out, [np.arange(start + 1, start + 5)])


@pytest.mark.parametrize("penalty", [1.0, 1.7])
@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - {"bart"}))         # BART's positions count padding on the left too
def test_padding_of_the_prompt_changes_nothing_that_is_written(name, penalty):
    model, options = family(name)
    ids, mask = prompts(4, 9)
    options |= dict(stop=(), repetition_penalty=penalty)
    both = generate.generate(model, ids, 9, attention_mask=mask, **options)
    for row, real, written in zip(ids, mask, both):
        alone = generate.generate(model, row[None, real == 1], 9, **options)[0]
        np.testing.assert_array_equal(written, alone)


def test_an_encoder_decoder_reads_its_source_once(monkeypatch):
    model, options = family("t5")
    calls, encode = [], model.encode
    model.encode = lambda *a: calls.append(not model.training) or encode(*a)
    projected = []
    for layer in model.decoder.layers:
        w_k = layer.cross_attn.w_k
        monkeypatch.setattr(w_k, "forward", lambda x, real=w_k.forward: projected.append(x.shape) or real(x))
    generate.generate(model, prompts()[0], 6, stop=())
    assert calls == [True] and projected == 2 * [(4, 9, 16)]


def test_rows_stop_and_are_filled_up():
    seen = []
    out = generate.generate(Counter(9), [[1], [3]], 6, stop=[5, 4], on_token=lambda t: seen.append(t.tolist()))
    assert out.tolist() == [[2, 3, 4], [4, 4, 4]] and seen == [[2, 4], [3, 4], [4, 4]]
    assert generate.generate(Counter(), [[1]], 3, stop=2).tolist() == [[2]]
    assert generate.generate(Counter(), [[1]], 3).tolist() == [[2, 3, 4]]


def test_where_the_text_ends_and_begins_stands_in_the_config():
    (model, _), ids = family("t5"), prompts()[0]
    free = generate.generate(model, ids, 8, stop=())
    model.config.eos_token_id = int(free[0, 2])
    told = generate.generate(model, ids, 8)
    assert (told[0, 2:] == free[0, 2]).all() and (told[:, :3] == free[:, :3]).all()
    model.config.eos_token_id = [int(free[0, 2]), int(free[1, 0])]
    told = generate.generate(model, ids, 8)
    assert (told[1] == free[1, 0]).all() and (told[0, 2:] == free[0, 2]).all()
    model.config.decoder_start_token_id = 5
    np.testing.assert_array_equal(generate.generate(model, ids, 8, stop=()),
                                  generate.generate(model, ids, 8, stop=(), start_id=5))


def test_tokens_that_a_config_forces():
    model, ids = family("bart")[0], prompts()[0]
    model.config.forced_bos_token_id, model.config.forced_eos_token_id = 7, 9
    for options in {}, dict(num_beams=3), dict(temperature=1.0, generator=0):
        out = generate.generate(model, ids, 5, stop=(), **options)
        assert (out[:, 0] == 7).all() and (out[:, -1] == 9).all() and not (out[:, 1:-1] == 7).all()
        assert (generate.generate(model, ids, 1, stop=(), **options) == 9).all()
    model.config.forced_eos_token_id = [8, 9]
    assert set(generate.generate(model, ids, 5, stop=())[:, -1]) <= {8, 9}
    model.config.forced_eos_token_id = None
    assert (generate.generate(model, ids, 1, stop=()) == 7).all()
    model.config.forced_bos_token_id = 23
    with pytest.raises(IndexError, match="id 23 .* size 23"):
        generate.generate(model, ids, 1)


def test_the_same_seed_writes_the_same():
    (model, _), ids = family("gpt2", n_positions=8), np.array([[1, 2, 3]])
    options = dict(temperature=1.0, stop=())
    first = generate.generate(model, ids, 20, generator=1, **options)
    assert first.shape == (1, 20) and first.max() < 23
    np.testing.assert_array_equal(first, generate.generate(model, ids, 20, generator=np.random.default_rng(1), **options))
    assert (first != generate.generate(model, ids, 20, generator=2, **options)).any()
    assert (generate.generate(model, ids, 20, **options) != generate.generate(model, ids, 20, **options)).any()


def test_what_is_drawn_is_drawn_as_often_as_it_should():
    model, ids = family("gpt2")[0], np.tile(prompts(1, 4)[0], (4000, 1))
    options = dict(temperature=0.7, top_k=6, top_p=0.9, repetition_penalty=1.4)
    out = generate.generate(model, ids, 1, generator=0, **options)
    with generate.evaluating(model):
        logits = model(ids[:1]).data[:, -1]
    p = sampling.filter_logits(sampling.penalise_repetition(logits, ids[:1], 1.4), 0.7, top_k=6, top_p=0.9)[0]
    p = np.exp(p) / np.exp(p).sum()
    np.testing.assert_allclose(np.bincount(out[:, 0], minlength=23) / 4000, p, atol=0.03)
    assert (out[:, 0] < 23).all() and set(out[:, 0]) <= set(np.flatnonzero(p))


def test_without_a_temperature_it_draws_where_it_is_told_what_may_be_drawn():
    (model, _), ids = family("gpt2"), prompts()[0]
    greedy = generate.generate(model, ids, 9)
    np.testing.assert_array_equal(greedy, generate.generate(model, ids, 9, temperature=0))
    np.testing.assert_array_equal(greedy, generate.generate(model, ids, 9, temperature=0, top_k=5))
    np.testing.assert_array_equal(greedy, generate.generate(model, ids, 9, top_k=1))
    np.testing.assert_array_equal(generate.generate(model, ids, 9, top_p=0.9, generator=0),
                                  generate.generate(model, ids, 9, top_p=0.9, temperature=1.0, generator=0))
    assert (generate.generate(model, ids, 9, top_k=500, generator=0) != greedy).any()
    assert (generate.generate(model, ids, 9, vocab_size=5) < 5).all()


def test_the_penalty_falls_on_what_was_written():
    (model, _), ids = family("gpt2"), prompts()[0]
    free, out = (generate.generate(model, ids, 12, stop=(), repetition_penalty=x) for x in (1.0, 1.7))
    assert (free != out).any()
    text = np.concatenate([ids, out], 1)
    for n in range(9, 21):
        logits = model.eval()(text[:, :n]).data[:, -1]
        np.testing.assert_array_equal(sampling.penalise_repetition(logits, text[:, :n], 1.7).argmax(-1), text[:, n])


@pytest.mark.parametrize("name", FAMILIES)
def test_nothing_to_write_and_nobody_to_write(name):
    model, options = family(name)
    ids, mask = prompts()
    for more in {}, {"num_beams": 3}:
        assert generate.generate(model, ids, 0, attention_mask=mask, **options, **more).shape == (4, 0)
        assert generate.generate(model, ids[:0], 3, stop=2, **options, **more).shape == (0, 3)


# ---- nothing else is disturbed ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", FAMILIES)
def test_modes_come_back_also_after_an_error(name):
    model, options = family(name)
    drop = next(module for module in model.modules() if isinstance(module, nn.Dropout))
    drop.eval()
    generate.generate(model, [[3]], 1, **options)
    assert model.training and not drop.training
    drop.train()
    with pytest.raises(IndexError, match="23 .*23"):
        generate.generate(model, [[23]], 1, **options)
    with pytest.raises(IndexError, match="-1"):
        generate.generate(model, [[-1]], 1, **options)
    assert model.training and drop.training
    assert (mt.tensor(1.0, requires_grad=True) * 2.0).requires_grad


@pytest.mark.parametrize("name", FAMILIES)
def test_training_draws_are_not_disturbed(name):
    model, options = family(name)
    mt.manual_seed(3)
    expected = mt.rand(5).data
    mt.manual_seed(3)
    generate.generate(model, [[1, 2]], 3, temperature=1.0, **options)
    np.testing.assert_array_equal(mt.rand(5).data, expected)


# ---- what cannot be --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["gpt2", "t5"])
@pytest.mark.parametrize("change, error, says", [
    (dict(ids=[1, 2]), ValueError, r"\(B, T\)"), (dict(ids=[[1, 2], [3]]), ValueError, "pad rows of unequal length"),
    (dict(ids="The "), ValueError, r"such as \[tokenizer.encode\(text\).ids\]"),
    (dict(ids=np.zeros((1, 0), int)), ValueError, "T at least 1"),
    (dict(ids=[[1.0]]), TypeError, "ids must be integers"), (dict(ids=[[True]]), TypeError, "ids must be integers"),
    (dict(ids=[["a"]]), TypeError, "ids must be integers"),
    (dict(max_new_tokens=-1), ValueError, "max_new_tokens"), (dict(max_new_tokens=1.0), TypeError, "max_new_tokens"),
    (dict(temperature=-1), ValueError, "temperature"), (dict(temperature=np.nan), ValueError, "temperature"),
    (dict(temperature=np.inf), ValueError, "temperature .*finite"),
    (dict(top_k=0), ValueError, "top_k"), (dict(top_k=1.5), TypeError, "top_k"), (dict(top_k="2"), TypeError, "top_k"),
    (dict(top_p=0.0), ValueError, "top_p"), (dict(top_p=1.5), ValueError, "top_p"),
    (dict(top_p=np.nan), ValueError, "top_p"),
    (dict(vocab_size=0), ValueError, "vocab_size"), (dict(vocab_size=4.0), TypeError, "vocab_size"),
    (dict(repetition_penalty=0.0), ValueError, "repetition_penalty"),
    (dict(repetition_penalty=None), TypeError, "repetition_penalty must be a number"),
    (dict(temperature="1"), TypeError, "temperature must be a number"),
    (dict(top_p="x"), TypeError, "top_p must be a number"),
    (dict(num_beams=2, length_penalty="1"), TypeError, "length_penalty must be a number"),
    (dict(num_beams=0), ValueError, "num_beams"), (dict(num_beams=1.5), TypeError, "num_beams"),
    (dict(num_beams=2, temperature=1.0), ValueError, "beam search draws nothing"),
    (dict(num_beams=2, top_k=3), ValueError, "beam search draws nothing"),
    (dict(num_beams=2, on_token=print), ValueError, "on_token"),
    (dict(num_beams=2, length_penalty=np.nan), ValueError, "length_penalty"),
    (dict(stop=-1), ValueError, "stop"), (dict(stop=1.5), TypeError, "stop"),
    (dict(attention_mask=[[1, 1]]), ValueError, "attention_mask"),
    (dict(attention_mask=[[1.0]]), TypeError, "attention_mask")])
def test_what_cannot_be_asked_for(name, change, error, says):
    model, _ = family(name)
    model.wte = model.shared = None                                     # it must be refused before any work
    with pytest.raises(error, match=says):
        generate.generate(**{"model": model, "ids": [[1]], "max_new_tokens": 2, **change})


@pytest.mark.parametrize("name, change, error, says", [
    ("gpt2", dict(ids=[[1] * 91]), ValueError, "prompt of 91 tokens, but GPT2 sees 90"),
    ("llama", dict(ids=[[1] * 91]), ValueError, "prompt of 91 tokens, but Llama sees 90"),
    ("gpt2", dict(max_new_tokens=91, num_beams=2), ValueError, "91 tokens, but GPT2 sees 90"),
    ("gpt2", dict(ids=[[1, 2]], attention_mask=[[1, 0]]), ValueError, "pad on the left"),
    ("gpt2", dict(start_id=1), TypeError, "start_id is for encoder-decoders"),
    ("bart", dict(max_new_tokens=91), ValueError, "text of 91 tokens, but BART writes 90"),
    ("seq2seq", dict(max_new_tokens=91, start_id=1), ValueError, "91 tokens, but Seq2Seq writes 90"),
    ("bart", dict(ids=[[1] * 91]), ValueError, "91 tokens .* 90"),
    ("seq2seq", {}, TypeError, "no decoder_start_token_id: give start_id"),
    ("seq2seq", dict(start_id=1.5), TypeError, "start_id"), ("seq2seq", dict(start_id=-1), ValueError, "start_id"),
    ("seq2seq", dict(start_id=23), IndexError, "23")])
def test_what_a_family_cannot_do(name, change, error, says):
    with pytest.raises(error, match=says):
        generate.generate(**{"model": family(name)[0], "ids": [[1]], "max_new_tokens": 2, **change})


@pytest.mark.parametrize("num_beams", [1, 3])
def test_what_may_be_written_takes_no_memory_before_it_is(num_beams):
    (model, _), cache = family("t5"), nn.Cache()
    model.config.eos_token_id = int(generate.generate(model, [[5, 6]], 3, stop=(), num_beams=num_beams)[0, 2])
    out = generate.generate(model, [[5, 6]], 100_000, cache=cache, num_beams=num_beams)
    assert out.shape[1] < 100_000 and next(iter(cache.rooms.values()))[0].shape[-2] <= 4096


def test_beams_may_fill_the_context():
    model, _ = family("gpt2", n_positions=7)
    assert generate.generate(model, [[3, 4, 5]], 5, num_beams=3, stop=()).shape == (1, 5)


@pytest.mark.parametrize("used", [{}, 3, "cache"])
def test_what_is_no_cache(used):
    with pytest.raises(TypeError, match="cache must be an nn.Cache"):
        generate.generate(family("gpt2")[0], [[1]], 1, cache=used)


def test_a_model_without_hidden_takes_no_cache():
    with pytest.raises(TypeError, match="Counter has no `hidden` and takes no cache"):
        generate.generate(Counter(), [[1]], 1, cache=nn.Cache())


@pytest.mark.parametrize("head", ["mlm", "token", "sequence", None])
def test_who_reads_does_not_write(head):
    config = models.BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    with pytest.raises(TypeError, match="BERT reads and does not write"):
        generate.generate(models.BERT(config, head), [[1, 2]], 4)


def test_a_model_that_does_not_say_how_much_it_sees():
    with pytest.raises(TypeError, match="Linear must say in its attribute `context`"):
        generate.generate(nn.Linear(2, 3), [[1]], 1)


@pytest.mark.parametrize("model", [models.GPT2(models.GPT2Config(**SMALL), None),
                                   models.BART(models.BartConfig(**BART), None)], ids=["gpt2", "bart"])
def test_without_a_head_there_are_no_logits(model):
    with pytest.raises(ValueError, match='has no head .* head="lm"'):
        generate.generate(model, [[1]], 1)


def test_numbers_of_other_kinds():
    model, ids = family("gpt2")[0], mt.tensor([[1]])
    generate.generate(model, ids, np.int64(2), top_k=np.int64(2), vocab_size=mt.tensor(5), stop=mt.tensor(2),
                      num_beams=np.int8(1))
