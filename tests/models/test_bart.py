"""BART: against transformers, its published sizes and initial values, what padding and later tokens may change."""
import dataclasses

import numpy as np
import pytest
from double import here

import minitx as mt
from minitx import generate, models, nn, ops
from minitx.models import weights
from minitx.proof import directional

RNG = np.random.default_rng(0)
SMALL = dict(vocab_size=40, max_position_embeddings=30, d_model=12, dropout=0.0, encoder_layers=2, decoder_layers=3,
             encoder_attention_heads=4, decoder_attention_heads=3, encoder_ffn_dim=20, decoder_ffn_dim=28)
S, T = 9, 7
SOURCES = {"whole": None, "right": np.arange(S) < [[S], [5], [1]], "left": np.arange(S) >= [[0], [3], [S - 1]]}
TARGETS = {"whole": None, "right": np.arange(T) < [[T], [4], [1]], "left": np.arange(T) >= [[0], [3], [T - 1]]}
BASE = dict(d_model=768, encoder_layers=6, decoder_layers=6, encoder_attention_heads=12, decoder_attention_heads=12,
            encoder_ffn_dim=3072, decoder_ffn_dim=3072)


@pytest.fixture(autouse=True)
def seeded():
    """Every test draws the same numbers, whichever run before it."""
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


def small(head="lm", dtype=np.float64, **options):
    """None of its parameters is at its initial value, nor is the bias of the output layer."""
    model = models.BART(models.BartConfig(**{**SMALL, **options}), head).to(dtype=dtype)
    for name, p in model.named_parameters():
        mean = 1 if "norm" in name and name.endswith("weight") else 0
        p.data[...] = mt.tensor(RNG.standard_normal(p.shape) * 0.2 + mean).data
    if head:
        model.lm_head.bias.data[...] = mt.tensor(RNG.standard_normal(40)).data
    return model


def ids(*shape):
    """Token 1, the padding's, among them: what it stands for is for the mask alone to say."""
    return RNG.integers(0, 40, shape)


def published(model):
    """transformers' model of one of ours, with the same weights."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.BartConfig(**{**dataclasses.asdict(model.config), "tie_word_embeddings": True},
                                     attn_implementation="eager")
    theirs = (transformers.BartForConditionalGeneration if model.lm_head else transformers.BartModel)(config).eval()
    if model.lm_head and not model.config.tie_word_embeddings:
        theirs.lm_head.weight = torch.nn.Parameter(theirs.lm_head.weight.detach().clone())
    prefix = "" if model.lm_head else weights.PREFIX["bart"]
    state = {name.removeprefix(prefix): torch.tensor(here(x))
             for name, x in weights.to_published("bart", model.state_dict()).items()}
    theirs.to(getattr(torch, str(model.shared.weight.dtype)))
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert not unexpected and {name.removeprefix("model.") for name in missing} == {"encoder.embed_tokens.weight",
                                                                                    "decoder.embed_tokens.weight"}
    return theirs


def close(ours, theirs, tol, name="", measure=None):
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype, name
    assert np.abs(here(ours) - theirs).max() <= tol * max(np.abs(theirs if measure is None else measure).max(), 1e-3), name


@pytest.mark.parametrize("dtype, tol", [(np.float64, 1e-9), (np.float32, 2e-5)])
@pytest.mark.parametrize("source, target", [("whole", "whole"), ("right", "left"), ("left", "right")])
@pytest.mark.parametrize("head, options", [
    ("lm", {}), ("lm", {"scale_embedding": True, "activation_function": "silu"}),
    ("lm", {"tie_word_embeddings": False, "activation_function": "gelu_new", "pad_token_id": 3}),
    (None, {"activation_function": "relu"})],
    ids=["published", "scaled embedding", "untied", "no head"])
def test_values_and_gradients_are_those_of_transformers(dtype, tol, source, target, head, options):
    torch = pytest.importorskip("torch")
    model = small(head, dtype, **options)
    theirs = published(model)
    x, y, labels = ids(3, S), ids(3, T), ids(3, T)
    masks = SOURCES[source], TARGETS[target]
    real = np.ones((3, T), bool) if masks[1] is None else masks[1]
    labels[~real] = -100
    out = model(x, y, *masks)
    masks = [None if mask is None else torch.tensor(mask.astype(int)) for mask in masks]
    expected = theirs(input_ids=torch.tensor(x), decoder_input_ids=torch.tensor(y), attention_mask=masks[0],
                      decoder_attention_mask=masks[1])[0]
    close(out.numpy()[real], expected.detach().numpy()[real], tol)
    if head:
        loss = ops.cross_entropy(out, labels)
        expected = torch.nn.functional.cross_entropy(expected.flatten(0, 1), torch.tensor(labels).flatten())
        close(loss.data, expected.detach().numpy(), tol)
        dy = np.ones((), dtype)
    else:
        loss, dy = out, (RNG.standard_normal(out.shape) * real[..., None]).astype(dtype)
    loss.backward(dy)
    expected.backward(torch.tensor(dy))
    ours = weights.to_published("bart", {name: p.grad for name, p in model.named_parameters()})
    theirs = {name if head else "model." + name: p.grad.numpy() for name, p in theirs.named_parameters()}
    assert ours.keys() == theirs.keys()
    for name in ours:                           # a key's bias moves no weight: its gradient is 0, but for rounding
        close(ours[name], theirs[name], tol, name, measure=theirs[name.replace("k_proj.bias", "q_proj.bias")])


@pytest.mark.parametrize("head", ["lm", None])
def test_names_come_back_from_the_published_ones_with_prefix_and_without(head):
    state = small(head).state_dict()
    there = weights.to_published("bart", state)
    assert head is None or there["final_logits_bias"].shape == (1, 40)
    for prefix in "", "model.":
        stored = {name.removeprefix(prefix): x for name, x in there.items()}
        back = weights.from_published("bart", list(state), stored)
        assert back.keys() == state.keys()
        for name in state:
            np.testing.assert_array_equal(back[name], state[name])


@pytest.mark.parametrize("source", SOURCES)
def test_greedy_decoding_is_that_of_transformers(source):
    torch = pytest.importorskip("torch")
    model, x, mask = small(tie_word_embeddings=False), ids(3, S), SOURCES[source]
    for p in model.lm_head.weight, model.shared.weight, model.decoder_positions.table.weight:
        p.data *= 10                                                # or it says one thing for ever
    mask = np.ones((3, S), bool) if mask is None else mask          # theirs guesses one from the padding's id
    endless = generate.generate(model, x, 12, start_id=2, stop=(), attention_mask=mask)
    end = int(endless[0, 3])
    assert len(np.unique(endless)) > 3 and (endless[0, :3] != end).any()
    found = generate.generate(model, x, 12, start_id=2, stop=end, attention_mask=mask)
    expected = published(model).generate(torch.tensor(x), attention_mask=torch.tensor(mask.astype(int)),
                                         do_sample=False, num_beams=1, max_new_tokens=12, use_cache=False,
                                         pad_token_id=1, bos_token_id=0, decoder_start_token_id=2, eos_token_id=end,
                                         forced_eos_token_id=None)
    expected = expected[:, 1:].numpy()
    ended = (expected == end).cumsum(axis=1) > 0
    assert ended.any()
    np.testing.assert_array_equal(found, np.where(ended, end, expected))


def test_directional_derivative_in_float64():
    masks = SOURCES["left"], TARGETS["right"]
    for options in {}, {"tie_word_embeddings": False, "scale_embedding": True, "activation_function": "gelu_new"}:
        x, y = (RNG.integers(2, 40, (3, n)) for n in (S, T))        # the padding's row is held still
        assert directional(small(**options), x, y, *masks).error < 1e-7


def test_what_stands_in_padding_changes_no_real_position_by_a_bit():
    model = small(dtype=np.float32)
    for source, target in ("right", "right"), ("left", "left"):
        real, written = SOURCES[source], TARGETS[target]
        x, y = ids(3, S), ids(3, T)
        memory, out = model.encode(x, real).numpy(), model(x, y, real, written).numpy()
        x[~real], y[~written] = ids((~real).sum()), ids((~written).sum())
        np.testing.assert_array_equal(model.encode(x, real).numpy()[real], memory[real])
        np.testing.assert_array_equal(model(x, y, real, written).numpy()[written], out[written])


@pytest.mark.parametrize("kind", [int, bool])
def test_padding_on_the_right_is_as_good_as_none_and_on_the_left_it_moves_the_text(kind):
    model, x, y = small(), ids(1, 6), ids(1, 4)
    alone = model(x, y).numpy()
    for pad, same in ((0, 3), True), ((2, 0), False):
        a, b = (np.pad(z, ((0, 0), pad), constant_values=1) for z in (x, y))
        masks = [np.pad(np.ones(z.shape, kind), ((0, 0), pad)) for z in (x, y)]
        out = model(a, b, *masks).numpy()[:, pad[0]:pad[0] + 4]
        assert np.isfinite(out).all() and np.allclose(out, alone, atol=1e-12) == same


def test_positions_begin_in_the_third_row_whatever_the_ids_are():
    model = small()
    model(np.full((2, S), 1), np.full((2, 3), 1), SOURCES["left"][:2]).backward(RNG.standard_normal((2, 3, 40)))
    for layer, n in (model.encoder_positions, S), (model.decoder_positions, 3):
        assert layer.table.weight.shape == (32, 12)
        np.testing.assert_array_equal(np.flatnonzero(here(layer.table.weight.grad).any(-1)), np.arange(2, n + 2))


def test_the_paddings_row_learns_as_output_alone():
    bare, tied = small(None), small()
    x, y = np.full((1, 4), 1), ids(1, 3)
    bare(x, y).backward(RNG.standard_normal((1, 3, 12)))
    assert not bare.shared.weight.grad[1].any()
    tied(x, y).backward(RNG.standard_normal((1, 3, 40)))
    assert tied.shared.weight.grad[1].any()


def test_no_target_position_sees_what_comes_after():
    model, x, y = small(), ids(2, S), ids(2, T)
    before = model(x, y).data
    y[:, 4:] = (y[:, 4:] + 1) % 40
    after = model(x, y).data
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert (before[:, 4:] != after[:, 4:]).any(-1).all()


@pytest.mark.parametrize("B, S, T", [(1, 1, 1), (1, 4, 1), (0, 4, 3), (2, 1, 5), (2, 30, 30)])
def test_sizes(B, S, T):
    model, x, y = small(), ids(B, S), ids(B, T)
    out = model(x, y, np.ones((B, S), int), np.ones((B, T), int))
    assert out.shape == (B, T, 40) and model.encode(x).shape == (B, S, 12)
    np.testing.assert_allclose(out.data, model(x, y).data, atol=1e-12)
    out.backward(np.ones(out.shape))
    assert generate.generate(model, x, 3, start_id=2).shape == (B, 3)
    assert small(None)(x, y).shape == (B, T, 12)


def test_rows_of_a_batch_do_not_meet():
    model, x, y = small(), ids(3, S), ids(3, T)
    np.testing.assert_allclose(model(x, y).data[1:2], model(x[1:2], y[1:2]).data, atol=1e-12)


def test_a_source_of_padding_alone_is_nothing_to_look_at():
    model, y = small(), ids(2, T)
    nothing = np.zeros((2, S), int)
    out = model(ids(2, S), y, nothing)
    out.backward(RNG.standard_normal(out.shape))
    assert all(np.isfinite(here(p.grad)).all() for p in model.parameters() if p.grad is not None)
    assert not any(p.grad.any() for p in model.encoder.parameters() if p.grad is not None)


def test_a_head_with_a_bias_that_is_no_parameter():
    model, bare = small(), small(None)
    bare.load_state_dict({name: x for name, x in model.state_dict().items() if "lm_head" not in name})
    x, y = ids(2, S), ids(2, T)
    logits = bare(x, y).data @ model.shared.weight.data.T + model.lm_head.bias.data
    np.testing.assert_allclose(model(x, y).data, logits, rtol=1e-12, atol=1e-12)
    assert model.lm_head.weight is model.shared.weight and isinstance(model.lm_head.bias, nn.Buffer)
    assert "lm_head.bias" in model.state_dict() and "lm_head.bias" not in dict(model.named_parameters())
    assert small(tie_word_embeddings=False).lm_head.weight is not model.shared.weight


def counted(vocab_size=50265, max_position_embeddings=1024, d_model=1024, encoder_layers=12, decoder_layers=12,
            encoder_ffn_dim=4096, decoder_ffn_dim=4096, **others):
    """The number of parameters in closed form."""
    C = d_model
    attention, norm = 4 * (C * C + C), 2 * C
    encoder = encoder_layers * (attention + 2 * C * encoder_ffn_dim + encoder_ffn_dim + C + 2 * norm)
    decoder = decoder_layers * (2 * attention + 2 * C * decoder_ffn_dim + decoder_ffn_dim + C + 3 * norm)
    return vocab_size * C + 2 * ((max_position_embeddings + 2) * C + norm) + encoder + decoder


@pytest.mark.parametrize("sizes, published", [(BASE, 139_420_416), ({}, 406_291_456)], ids=["base", "large"])
def test_published_sizes(sizes, published):
    assert counted(**sizes) == published
    for head in "lm", None:                                         # the tied head adds nothing
        with nn.init.hollow():
            model = models.BART(models.BartConfig(**sizes), head)
        assert sum(p.size for p in model.parameters()) == published


def test_models_have_the_size_of_the_closed_form():
    assert sum(p.size for p in small().parameters()) == counted(**SMALL)
    assert sum(p.size for p in small(tie_word_embeddings=False).parameters()) == counted(**SMALL) + 40 * 12


def test_initial_values():
    model = models.BART(models.BartConfig(**{**SMALL, "d_model": 48}, init_std=0.05, tie_word_embeddings=False))
    for name, p in model.named_parameters():
        if p.ndim == 2:
            assert p.numpy().std() == pytest.approx(0.05, rel=0.1) and abs(p.numpy().mean()) < 0.005, name
        else:
            assert (p.data == (1 if name.endswith("weight") else 0)).all(), name
    assert not model.shared.weight.data[1].any() and model.lm_head.weight.data[1].all()
    assert not model.lm_head.bias.data.any()
    assert models.BART(models.BartConfig(**SMALL, pad_token_id=None)).shared.weight.data.any(-1).all()


@pytest.mark.parametrize("tied", [True, False])
def test_every_matrix_is_drawn_once(tied, monkeypatch):
    drawn, normal = [], nn.init.normal

    def counting(shape, std=1.0):
        values = normal(shape, std)
        drawn.append(np.count_nonzero(here(values)))                      # none while the model is being built
        return values

    monkeypatch.setattr(nn.init, "normal", counting)
    model = models.BART(models.BartConfig(**SMALL, tie_word_embeddings=tied))
    assert sum(drawn) == sum(p.size for p in model.parameters() if p.ndim == 2)


def test_dropouts_are_where_bart_has_them():
    model = small(dropout=0.2, attention_dropout=0.3, activation_dropout=0.4, encoder_layers=1, decoder_layers=1)
    rates = {name: m.p for name, m in model.named_modules() if isinstance(m, nn.Dropout)}
    assert rates == {
        "encoder_positions.drop": 0.2, "decoder_positions.drop": 0.2,
        "encoder.layers.0.attn.dropout": 0.3, "encoder.layers.0.ff.net.2": 0.4, "encoder.layers.0.dropout": 0.2,
        "decoder.layers.0.attn.dropout": 0.3, "decoder.layers.0.cross_attn.dropout": 0.3,
        "decoder.layers.0.ff.net.2": 0.4, "decoder.layers.0.dropout": 0.2}
    x, y = ids(2, S), ids(2, T)
    assert (model(x, y).data != model(x, y).data).any()
    model.eval()
    np.testing.assert_array_equal(model(x, y).data, model(x, y).data)
    out = small(None, dropout=0.2, encoder_layers=0, decoder_layers=0).encode(ids(8, 30)).numpy()
    assert (out == 0).mean() == pytest.approx(0.2, abs=0.03)        # on what the norm gave


@pytest.mark.parametrize("published, kind, approximate", [
    ("gelu", nn.GELU, "none"), ("gelu_new", nn.GELU, "tanh"), ("relu", nn.ReLU, None), ("silu", nn.SiLU, None)])
def test_activations_by_their_published_names(published, kind, approximate):
    model = small(activation_function=published)
    for block in (*model.encoder.layers, *model.decoder.layers):
        layer = block.ff.net[1]
        assert type(layer) is kind and getattr(layer, "approximate", None) == approximate


def test_a_scaled_embedding_is_one_that_is_larger():
    scaled, model = small(scale_embedding=True, tie_word_embeddings=False), small(tie_word_embeddings=False)
    model.load_state_dict(scaled.state_dict())
    model.shared.weight.data *= 12 ** 0.5
    x, y = ids(2, S), ids(2, T)
    np.testing.assert_allclose(scaled(x, y).data, model(x, y).data, rtol=1e-12, atol=1e-12)


def test_norms_follow_what_is_added_and_the_embedding():
    model, x = small(encoder_layers=1), ids(2, S)
    block, positions = model.encoder.layers[0], model.encoder_positions
    h = model.shared.weight.numpy()[x] + positions.table.weight.numpy()[2:S + 2]
    h = ops.layer_norm(h, positions.norm.weight, positions.norm.bias, 1e-5)
    h = block.norm1(h + block.attn(h, h, h))
    h = block.norm2(h + block.ff(h))
    np.testing.assert_allclose(model.encode(x).data, h.data, rtol=1e-12, atol=1e-12)
    assert model.encoder.norm is None and model.decoder.norm is None


@pytest.mark.parametrize("call, error, says", [
    (lambda m: m(ids(1, 31), ids(1, 5)), ValueError, "BART.* 31 .* 30"),
    (lambda m: m(ids(1, 5), ids(1, 31)), ValueError, "BART.* 31 .* 30"),
    (lambda m: m(ids(5), ids(1, 5)), ValueError, r"BART.*\(B, T\), got \(5,\)"),
    (lambda m: m(ids(1, 5), ids(5)), ValueError, r"BART.*\(B, T\), got \(5,\)"),
    (lambda m: m(ids(1, 5) / 1, ids(1, 5)), TypeError, "integers"),
    (lambda m: m(ids(1, 5), ids(1, 5) / 1), TypeError, "integers"),
    (lambda m: m(np.array([[40]]), ids(1, 5)), IndexError, "40"),
    (lambda m: m(ids(1, 5), np.array([[-1]])), IndexError, "-1"),
    (lambda m: m(ids(2, 5), ids(2, 3), np.ones((2, 4), int)), ValueError, r"\(2, 4\)"),
    (lambda m: m(ids(2, 5), ids(2, 3), None, np.ones((2, 5), int)), ValueError, r"\(2, 5\)"),
    (lambda m: m(ids(2, 5), ids(2, 3), np.ones((2, 5))), TypeError, "attention_mask"),
    (lambda m: m.decode(ids(2, 3), m.encode(ids(2, 5)), np.ones((2, 3), int)), ValueError, r"\(2, 3\)")])
def test_input_that_cannot_be(call, error, says):
    with pytest.raises(error, match=says):
        call(small())


def test_configurations_that_cannot_be():
    with pytest.raises(ValueError, match="unknown activation 'mish': use one of gelu, .*relu, silu, tanh, gelu_new"):
        small(activation_function="mish")
    for config in SMALL, {}, 50265, models.T5Config():
        with pytest.raises(TypeError, match=r"BartConfig\(\*\*config\)"):
            models.BART(config)
    with pytest.raises(ValueError, match="classifier"):
        small("classifier")
    for heads in {"encoder_attention_heads": 5}, {"decoder_attention_heads": 5}:
        with pytest.raises(ValueError, match="d_model 12 .* num_heads 5"):
            small(**heads)
    with pytest.raises(ValueError, match="padding_idx 40"):
        small(pad_token_id=40)


@pytest.mark.parametrize("options", [dict(max_position_embeddings=0), dict(attention_dropout=2.0),
                                     dict(activation_dropout=-1.0), dict(decoder_layers=-1)])
def test_numbers_that_make_no_model(options):
    with pytest.raises(ValueError):
        small(**options)
