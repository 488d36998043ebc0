"""T5: against transformers, its published sizes and initial values, and what padding and later tokens may change."""
import math

import numpy as np
import pytest
from double import here

import minitx as mt
from minitx import generate, models, nn, ops
from minitx.models import weights
from minitx.models.published import write_config
from minitx.proof import directional

RNG = np.random.default_rng(0)
SMALL = dict(vocab_size=40, d_model=12, d_kv=5, d_ff=20, num_layers=2, num_decoder_layers=3, num_heads=3,
             relative_attention_num_buckets=8, relative_attention_max_distance=20, dropout_rate=0.0)
S, T = 9, 7
SOURCES = {"whole": None, "right": np.arange(S) < [[S], [5], [1]], "left": np.arange(S) >= [[0], [3], [S - 1]]}
TARGETS = {"whole": None, "right": np.arange(T) < [[T], [4], [1]], "left": np.arange(T) >= [[0], [3], [T - 1]]}


@pytest.fixture(autouse=True)
def seeded():
    """Every test draws the same numbers, whichever run before it."""
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


def small(head="lm", dtype=np.float64, **options):
    """None of its parameters is at its initial value, and attention is far from even."""
    model = models.T5(models.T5Config(**{**SMALL, **options}), head).to(dtype=dtype)
    for name, p in model.named_parameters():
        spread = 1.0 if "relative_bias" in name else 0.2
        p.data[...] = mt.tensor(RNG.standard_normal(p.shape) * spread + (1 if "norm" in name else 0)).data
    return model


def ids(*shape):
    return RNG.integers(2, 40, shape)


@pytest.fixture
def published(monkeypatch):
    """Makes transformers' model of one of ours, with the same weights."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from transformers.models.t5 import modeling_t5

    def rms_norm(layer, x):                                         # theirs squares in float32 whatever it is given
        return torch.nn.functional.rms_norm(x, x.shape[-1:], layer.weight, layer.variance_epsilon)

    monkeypatch.setattr(modeling_t5.T5LayerNorm, "forward", rms_norm)

    def make(model):
        config = transformers.T5Config(**write_config(model.config, "lm"), attn_implementation="eager")
        theirs = (transformers.T5ForConditionalGeneration if model.lm_head else transformers.T5Model)(config).eval()
        if model.lm_head and not model.config.tie_word_embeddings:          # theirs ties them in any case
            theirs.lm_head.weight = torch.nn.Parameter(theirs.lm_head.weight.detach().clone())
        state = weights.to_published("t5", model.state_dict())
        theirs.to(getattr(torch, str(model.shared.weight.dtype)))
        state = {name: torch.tensor(here(x)) for name, x in state.items()}
        missing, unexpected = theirs.load_state_dict(state, strict=False)
        assert not unexpected and set(missing) == {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}
        return theirs
    return make


def close(ours, theirs, tol, name=""):
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype, name
    assert np.abs(here(ours) - theirs).max() <= tol * max(np.abs(theirs).max(), 1e-3), name


@pytest.mark.parametrize("dtype, tol", [(np.float64, 1e-9), (np.float32, 2e-5)])
@pytest.mark.parametrize("source, target", [("whole", "whole"), ("right", "left"), ("left", "right")])
@pytest.mark.parametrize("head, options", [
    ("lm", {}), ("lm", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    ("lm", {"feed_forward_proj": "gated-silu"}), (None, {"feed_forward_proj": "gelu", "layer_norm_epsilon": 1e-2})],
    ids=["relu, tied", "gated gelu, untied", "gated silu, tied", "gelu, no head"])
def test_values_and_gradients_are_those_of_transformers(published, dtype, tol, source, target, head, options):
    import torch
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
    ours = weights.to_published("t5", {name: p.grad for name, p in model.named_parameters()})
    theirs = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
    assert ours.keys() == theirs.keys()
    for name in ours:
        close(ours[name], theirs[name], tol, name)


@pytest.mark.parametrize("proj", ["relu", "gated-gelu"])
def test_names_come_back_from_the_published_ones(proj):
    state = small(feed_forward_proj=proj).state_dict()
    back = weights.from_published("t5", list(state), weights.to_published("t5", state))
    assert back.keys() == state.keys() and all(back[name] is state[name] for name in state)
    nets = {name.split(".")[-2] for name in weights.to_published("t5", state) if "DenseReluDense" in name}
    assert nets == ({"wi", "wo"} if proj == "relu" else {"wi_0", "wi_1", "wo"})


@pytest.mark.parametrize("source", SOURCES)
def test_greedy_decoding_is_that_of_transformers(published, source):
    import torch
    model, x, mask = small(tie_word_embeddings=False), ids(3, S), SOURCES[source]
    endless = generate.generate(model, x, 12, start_id=0, stop=(), attention_mask=mask)
    end = int(endless[0, 3])
    assert len(np.unique(endless)) > 3 and (endless[0, :3] != end).any()
    found = generate.generate(model, x, 12, start_id=0, stop=end, attention_mask=mask)
    options = {} if mask is None else {"attention_mask": torch.tensor(mask.astype(int))}
    expected = published(model).generate(torch.tensor(x), do_sample=False, num_beams=1, max_new_tokens=12,
                                         pad_token_id=0, decoder_start_token_id=0, eos_token_id=end, use_cache=False,
                                         **options)
    expected = expected[:, 1:].numpy()
    ended = (expected == end).cumsum(axis=1) > 0
    assert ended.any()
    np.testing.assert_array_equal(found, np.where(ended, end, expected))


def test_directional_derivative_in_float64():
    masks = SOURCES["left"], TARGETS["right"]
    smooth = small(feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    assert directional(smooth, ids(3, S), ids(3, T), *masks).error < 1e-7
    assert directional(small(), ids(3, S), ids(3, T), *masks, step=1e-5).error < 1e-7       # short of relu's kinks


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
def test_padding_on_either_side_is_as_good_as_none(kind):
    model, x, y = small(), ids(1, 6), ids(1, 4)
    alone = model(x, y).data
    for pad in (2, 0), (0, 3), (1, 1):
        a, b = (np.pad(z, ((0, 0), pad), constant_values=1) for z in (x, y))
        masks = [np.pad(np.ones(z.shape, kind), ((0, 0), pad)) for z in (x, y)]
        np.testing.assert_allclose(model(a, b, *masks).data[:, pad[0]:pad[0] + 4], alone, atol=1e-12)


def test_a_source_of_padding_alone_is_nothing_to_look_at():
    model, y = small(), ids(2, T)
    nothing = np.zeros((2, S), int)
    out = model(ids(2, S), y, nothing)
    np.testing.assert_array_equal(out.data, model(ids(2, S), y, nothing).data)
    out.backward(RNG.standard_normal(out.shape))
    assert all(np.isfinite(here(p.grad)).all() for p in model.parameters() if p.grad is not None)
    assert not any(p.grad.any() for p in model.encoder.parameters() if p.grad is not None)


def test_no_target_position_sees_what_comes_after():
    model, x, y = small(), ids(2, S), ids(2, T)
    before = model(x, y).data
    y[:, 4:] = (y[:, 4:] + 1) % 40
    after = model(x, y).data
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert (before[:, 4:] != after[:, 4:]).any(-1).all()


@pytest.mark.parametrize("B, S, T", [(1, 1, 1), (1, 4, 1), (0, 4, 3), (2, 1, 5), (2, 30, 25)])
def test_sizes(B, S, T):
    model, x, y = small(), ids(B, S), ids(B, T)
    out = model(x, y, np.ones((B, S), int), np.ones((B, T), int))
    assert out.shape == (B, T, 40) and model.encode(x).shape == (B, S, 12)
    np.testing.assert_allclose(out.data, model(x, y).data, atol=1e-12)
    out.backward(np.ones(out.shape))
    assert generate.generate(model, x, 3, start_id=0).shape == (B, 3)
    assert small(None)(x, y).shape == (B, T, 12)


def test_rows_of_a_batch_do_not_meet():
    model, x, y = small(), ids(3, S), ids(3, T)
    np.testing.assert_allclose(model(x, y).data[1:2], model(x[1:2], y[1:2]).data, atol=1e-12)


def test_distance_is_all_that_positions_are():
    model, x = small(num_layers=1, num_decoder_layers=1), ids(1, 5)
    twice = np.tile(x, 2)
    model.encoder.relative_bias.weight.data[...] = 0
    out = model.encode(twice).numpy()
    np.testing.assert_allclose(out[:, :5], out[:, 5:], atol=1e-12)  # without it the encoder cannot tell the two apart
    model.encoder.relative_bias.weight.data[...] = mt.tensor(RNG.standard_normal((8, 3))).data
    out = model.encode(twice).numpy()
    assert (np.abs(out[:, :5] - out[:, 5:]) > 1e-6).any(-1).all()


def test_encoder_looks_both_ways_and_decoder_back_and_cross_attention_has_no_bias():
    model = small()
    assert model.encoder.relative_bias.bidirectional and not model.decoder.relative_bias.bidirectional
    model(ids(1, S), ids(1, T)).backward(RNG.standard_normal((1, T, 40)))
    biases = model.encoder.relative_bias, model.decoder.relative_bias
    used = [np.flatnonzero(here(bias.weight.grad).any(-1)).tolist() for bias in biases]
    assert used == [[0, 1, 2, 3, 5, 6, 7], [0, 1, 2, 3, 4, 5]]      # the encoder's 4 would be 0 ahead
    assert [bias.weight.shape for bias in biases] == [(8, 3), (8, 3)]
    for name, p in model.named_parameters():
        assert "bias" not in name or "relative_bias" in name


def test_a_tied_head_gets_less_than_an_untied_one():
    tied, untied = small(), small(tie_word_embeddings=False)
    assert tied.lm_head.weight is tied.shared.weight and untied.lm_head.weight is not untied.shared.weight
    for model, factor in (tied, 12 ** -0.5), (untied, 1.0):
        bare = small(None)
        bare.load_state_dict({name: x for name, x in model.state_dict().items() if name != "lm_head.weight"})
        x, y = ids(2, S), ids(2, T)
        logits = bare(x, y).data @ model.lm_head.weight.data.T * factor
        np.testing.assert_allclose(model(x, y).data, logits, rtol=1e-12, atol=1e-12)


def counted(vocab_size=32128, d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8, gated=False, untied=False,
            num_decoder_layers=None, num_buckets=32):
    """The number of parameters in closed form."""
    attention, net = 4 * d_model * num_heads * d_kv, (3 if gated else 2) * d_model * d_ff
    encoder = num_layers * (attention + net + 2 * d_model)
    decoder = (num_decoder_layers or num_layers) * (2 * attention + net + 3 * d_model)
    return (1 + untied) * vocab_size * d_model + encoder + decoder + 2 * (num_buckets * num_heads + d_model)


@pytest.mark.parametrize("sizes, published", [
    ({}, 60_506_624), (dict(d_model=768, d_ff=3072, num_layers=12, num_heads=12), 222_903_552)],
    ids=["small", "base"])
def test_published_sizes(sizes, published):
    assert counted(**sizes) == published
    for head in "lm", None:                                         # the tied head adds nothing
        with nn.init.hollow():
            model = models.T5(models.T5Config(**sizes), head)
        assert sum(p.size for p in model.parameters()) == published


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("untied", [False, True])
def test_models_have_the_size_of_the_closed_form(gated, untied):
    model = small(feed_forward_proj="gated-gelu" if gated else "relu", tie_word_embeddings=not untied)
    assert sum(p.size for p in model.parameters()) == counted(40, 12, 5, 20, 2, 3, gated, untied, 3, 8)


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_initial_values(factor):
    sizes = {**SMALL, "d_model": 64, "d_kv": 40, "d_ff": 300}
    model = models.T5(models.T5Config(**sizes, tie_word_embeddings=False, initializer_factor=factor))
    stds = {"w_q": 1 / math.sqrt(64 * 40), "w_k": 1 / 8, "w_v": 1 / 8, "w_o": 1 / math.sqrt(3 * 40),
            "ff.net.0": 1 / 8, "ff.net.3": 1 / math.sqrt(300), "relative_bias": 1 / 8, "shared": 1, "lm_head": 1}
    for name, p in model.named_parameters():
        if "norm" in name:
            assert (p.data == factor).all(), name
        else:
            key = next(key for key in stds if key in name)
            assert p.numpy().std() == pytest.approx(factor * stds[key], rel=0.35 if p.size < 100 else 0.1), name


@pytest.mark.parametrize("tied", [True, False])
def test_every_matrix_is_drawn_once(tied, monkeypatch):
    drawn, normal = [], nn.init.normal

    def counting(shape, std=1.0):
        values = normal(shape, std)
        drawn.append(np.count_nonzero(here(values)))                      # none while the model is being built
        return values

    monkeypatch.setattr(nn.init, "normal", counting)
    model = models.T5(models.T5Config(**SMALL, tie_word_embeddings=tied))
    assert sum(drawn) == sum(p.size for p in model.parameters() if p.ndim == 2)


def test_dropouts_are_where_t5_has_them():
    model = small(dropout_rate=0.25, num_layers=1, num_decoder_layers=1, feed_forward_proj="gated-gelu")
    rates = {name: m.p for name, m in model.named_modules() if isinstance(m, nn.Dropout)}
    parts = {"encoder": ("attn.dropout", "ff.net.2", "dropout"),
             "decoder": ("attn.dropout", "cross_attn.dropout", "ff.net.2", "dropout")}
    assert rates == {f"{side}.{name}": 0.25 for side, inner in parts.items()
                     for name in ("drop", *(f"layers.0.{name}" for name in inner))}
    x, y = ids(2, S), ids(2, T)
    assert (model(x, y).data != model(x, y).data).any()
    model.eval()
    np.testing.assert_array_equal(model(x, y).data, model(x, y).data)
    bare = small(None, num_layers=0, num_decoder_layers=0, dropout_rate=0.25)
    out = bare(ids(8, S), ids(8, 20)).numpy()                        # only the stack's own two: 1 - 0.75^2 are zeros
    assert (out == 0).mean() == pytest.approx(0.4375, abs=0.05)


@pytest.mark.parametrize("proj, kind, approximate", [
    ("relu", nn.ReLU, None), ("gelu", nn.GELU, "none"), ("gelu_new", nn.GELU, "tanh"),
    ("gated-gelu", nn.GELU, "tanh"), ("gated-gelu_new", nn.GELU, "tanh"), ("gated-silu", nn.SiLU, None),
    ("gated-relu", nn.ReLU, None)])
def test_nets_by_their_published_names(proj, kind, approximate):
    model = small(feed_forward_proj=proj)
    for block in (*model.encoder.layers, *model.decoder.layers):
        layer = block.ff.net[1]
        assert type(layer) is kind and getattr(layer, "approximate", None) == approximate
        assert (block.ff.gate is not None) == proj.startswith("gated")


@pytest.mark.parametrize("call, error, says", [
    (lambda m: m(ids(5), ids(1, 5)), ValueError, r"T5.*\(B, T\), got \(5,\)"),
    (lambda m: m(ids(1, 5), ids(5)), ValueError, r"T5.*\(B, T\), got \(5,\)"),
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
    for proj in "mish", "gated-mish", "", "gated-":
        with pytest.raises(ValueError, match="unknown activation '(mish)?': use one of gelu, .*relu, silu, tanh, gelu_new"):
            small(feed_forward_proj=proj)
    for proj in "doubled-gelu", "gated-gated-gelu":
        with pytest.raises(ValueError, match=f'feed_forward_proj.*"gated-".*{proj}'):
            small(feed_forward_proj=proj)
    for config in SMALL, {}, 32128, models.GPT2Config():
        with pytest.raises(TypeError, match=r"T5Config\(\*\*config\)"):
            models.T5(config)
    with pytest.raises(ValueError, match="classifier"):
        small("classifier")
    with pytest.raises(ValueError, match="num_heads .* 0"):
        small(num_heads=0)


def test_the_decoder_has_as_many_layers_as_the_encoder_unless_told():
    assert len(small(num_decoder_layers=None).decoder.layers) == 2 and len(small().decoder.layers) == 3
