"""LLaMA: against transformers' model, its finite differences, padding, scaled positions, and what it refuses."""
import contextlib
import math
from unittest import mock

import numpy as np
import pytest
from double import here

import minitx as mt
from minitx import generate, models, nn, ops
from minitx.models import weights
from minitx.models.llama import rope_frequencies
from minitx.proof import directional

RNG = np.random.default_rng(0)
SMALL = dict(vocab_size=65, hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=16)


def small(head="lm", **options):
    return models.Llama(models.LlamaConfig(**{**SMALL, **options}), head)


def stirred(model):
    """The model with every parameter moved away from its initial zeros, ones and small numbers."""
    for p in model.parameters():
        p.data += mt.tensor(RNG.standard_normal(p.shape).astype(p.dtype) * p.dtype.type(0.1)).data
    return model


def ids(*shape):
    return RNG.integers(0, 65, shape)


def published(model):
    """transformers' model of the same configuration, dtype and weights.

    It always computes rotary angles and norms in float32: for a float64 model its angles are computed by its own code in
    what it takes for float, and its norms are replaced.
    """
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    c = model.config
    fields = {name: value for name, value in vars(c).items() if name not in ("rope_theta", "rope_scaling")}
    rope = {"rope_type": "default", "rope_theta": c.rope_theta} | (c.rope_scaling or {})
    double = model.norm.weight.dtype == np.float64
    with mock.patch.object(torch, "float", torch.double) if double else contextlib.nullcontext():
        theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            **fields, rope_parameters=rope, attn_implementation="sdpa"))
    state = weights.to_published("llama", model.state_dict())
    if double:
        theirs.double()
        theirs.model.norm = torch.nn.RMSNorm(c.hidden_size, c.rms_norm_eps, dtype=torch.double)
        for layer in theirs.model.layers:
            layer.input_layernorm = torch.nn.RMSNorm(c.hidden_size, c.rms_norm_eps, dtype=torch.double)
            layer.post_attention_layernorm = torch.nn.RMSNorm(c.hidden_size, c.rms_norm_eps, dtype=torch.double)
        forward = theirs.model.rotary_emb.forward

        def in_double(*args, **options):
            with mock.patch.object(torch, "float", torch.double):
                return forward(*args, **options)

        theirs.model.rotary_emb.forward = in_double
    theirs.load_state_dict({name: torch.tensor(here(array)) for name, array in state.items()})
    return theirs.eval()


def close(ours, theirs, tol, name=""):
    theirs = theirs.detach().numpy()
    assert np.abs(here(ours) - theirs).max() <= tol * max(np.abs(theirs).max(), 1e-3), name


def check_parity(model, tol, mask=None):
    """Logits at the tokens, and the gradients of their loss with respect to every parameter."""
    import torch
    theirs = published(model)
    shape = (3, 9) if mask is None else mask.shape
    x, y, options = ids(*shape), ids(*shape), {}
    if mask is not None:
        y[mask == 0] = -100
        options = dict(attention_mask=torch.tensor(mask), position_ids=torch.tensor(nn.position_ids_from_mask(mask)))
    logits = model(x, mask)
    expected = theirs(torch.tensor(x), **options).logits
    close(logits.numpy()[y >= 0], expected[torch.tensor(y >= 0)], tol)
    ops.cross_entropy(logits, y).backward()
    torch.nn.functional.cross_entropy(expected.flatten(0, 1), torch.tensor(y).flatten()).backward()
    ours = weights.to_published("llama", {name: p.grad for name, p in model.named_parameters()})
    grads = {name: p.grad for name, p in theirs.named_parameters()}
    assert set(ours) == set(grads)
    for name, grad in grads.items():
        close(ours[name], grad, tol, name)


DTYPES = pytest.mark.parametrize("dtype, tol", [(np.float64, 1e-9), (np.float32, 2e-5)], ids=["float64", "float32"])
LEFT = np.array([[0, 0, 0, 1, 1, 1, 1, 1, 1], [1] * 9, [0] * 8 + [1]])
RIGHT = LEFT[:, ::-1].copy()


@DTYPES
@pytest.mark.parametrize("options", [
    {}, dict(num_key_value_heads=1, head_dim=10, attention_bias=True), dict(num_key_value_heads=None, mlp_bias=True),
    dict(num_key_value_heads=4, tie_word_embeddings=True, rope_theta=500000.0, rms_norm_eps=1e-5, hidden_act="gelu")],
    ids=["4 heads on 2", "on 1, wider, biases", "on 4, biases", "on 4, tied"])
def test_values_and_gradients_are_the_published_models(dtype, tol, options):
    pytest.importorskip("transformers")
    check_parity(stirred(small(**options).to(dtype=dtype)), tol)


@DTYPES
@pytest.mark.parametrize("mask", [LEFT, RIGHT], ids=["left", "right"])
def test_padding_on_either_side_is_the_published_models(dtype, tol, mask):
    pytest.importorskip("transformers")
    check_parity(stirred(small().to(dtype=dtype)), tol, mask)


def test_the_published_model_counts_padding_and_gives_the_same():
    torch, model = pytest.importorskip("torch"), stirred(small().to(dtype=np.float64))
    x = ids(3, 9)
    theirs = published(model)(torch.tensor(x), attention_mask=torch.tensor(LEFT)).logits
    close(model(x, LEFT).numpy()[LEFT == 1], theirs[torch.tensor(LEFT == 1)], 1e-9)


def test_the_default_is_the_published_one():
    transformers = pytest.importorskip("transformers")
    theirs, missing = transformers.LlamaConfig(), object()
    for name, value in vars(models.LlamaConfig()).items():
        if name not in ("rope_theta", "rope_scaling", "num_key_value_heads", "head_dim"):   # the class fills in these
            assert getattr(theirs, name, missing) == value, name
    assert models.LlamaConfig.model_type == theirs.model_type
    assert theirs.rope_parameters == {"rope_type": "default", "rope_theta": models.LlamaConfig().rope_theta}


@pytest.mark.parametrize("options", [{}, dict(num_key_value_heads=1, head_dim=10, attention_bias=True),
                                     dict(mlp_bias=True, tie_word_embeddings=True, rope_theta=100.0)])
@pytest.mark.parametrize("mask", [None, LEFT, RIGHT], ids=["whole", "left", "right"])
def test_slopes_are_those_of_finite_differences(mask, options):
    model, x = stirred(small(**options).to(dtype=np.float64)), ids(3, 9)
    directional(lambda model: model(x, mask), model)


def test_initial_values():
    model = small(hidden_size=64, initializer_range=0.05, attention_bias=True, mlp_bias=True)
    for name, p in model.named_parameters():
        if p.ndim == 2:
            assert p.numpy().std() == pytest.approx(0.05, rel=0.1) and abs(p.numpy().mean()) < 0.005, name
        else:
            assert (p.data == (1 if name.endswith("weight") else 0)).all(), name
    loss = ops.cross_entropy(small()(ids(8, 16)), ids(8, 16)).item()
    assert loss == pytest.approx(math.log(65), abs=0.05)            # before training it knows nothing


def test_names_ties_and_heads():
    model, x = small(tie_word_embeddings=True), ids(2, 5)
    assert model.lm_head.weight is model.embed_tokens.weight and small().lm_head.weight is not model.embed_tokens.weight
    assert {name.partition(".")[0] for name in model.state_dict()} == {"embed_tokens", "layers", "norm", "lm_head"}
    bare = small(None)
    bare.load_state_dict({name: value for name, value in model.state_dict().items() if name != "lm_head.weight"})
    assert bare.lm_head is None and bare(x).shape == (2, 5, 24) and model(x).shape == (2, 5, 65)
    np.testing.assert_array_equal(model(x).data, model.lm_head(bare(x)).data)
    np.testing.assert_array_equal(model(x.tolist()).data, model(mt.tensor(x)).data)
    assert "num_kv_heads=2" in repr(model) and "3 layers, 4 heads, 24 wide, 65 symbols, context 16" in repr(model)


@pytest.mark.parametrize("options", [{}, dict(num_key_value_heads=1), dict(num_key_value_heads=4)])
def test_a_later_token_changes_no_earlier_output_by_one_bit(options):
    model, x = stirred(small(**options)), ids(2, 8)
    before = model(x).data
    x[:, 5:] = (x[:, 5:] + 1) % 65
    after = model(x).data
    np.testing.assert_array_equal(before[:, :5], after[:, :5])
    assert (before[:, 5:] != after[:, 5:]).any(-1).all()


@pytest.mark.parametrize("mask", [LEFT, RIGHT, LEFT.astype(bool)], ids=["left", "right", "bool"])
def test_what_stands_in_padding_changes_no_token_by_one_bit(mask):
    model, x, tokens = stirred(small()), ids(3, 9), mask == 1

    def outcome(x):
        model.zero_grad()
        logits = model(x, mask)
        ops.cross_entropy(logits, np.where(tokens, 1, -100)).backward()
        assert np.isfinite(logits.numpy()).all()
        return [logits.numpy()[tokens]] + [p.grad for name, p in model.named_parameters() if name.endswith("w_q.weight")]

    for before, after in zip(outcome(x), outcome(np.where(tokens, x, 64 - x)), strict=True):
        np.testing.assert_array_equal(before, after)


def test_padding_changes_nothing_else():
    model, x = stirred(small().to(dtype=np.float64)), ids(1, 6)
    alone = model(x).data[0]
    for pad in (2, 0), (0, 3), (1, 1):
        out = model(np.pad(x, ((0, 0), pad)), np.pad(np.ones((1, 6), int), ((0, 0), pad))).data
        np.testing.assert_allclose(out[0, pad[0]:pad[0] + 6], alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", [(1, 7), (2, 1), (1, 1), (0, 5), (2, 0)])
def test_batches_of_one_of_none_and_short_ones(shape):
    model = stirred(small())
    out = model(ids(*shape), np.ones(shape, int))
    assert out.shape == (*shape, 65) and np.isfinite(out.numpy()).all()
    out.sum().backward()
    assert all(p.grad is not None and np.isfinite(here(p.grad)).all() for p in model.parameters())


def test_a_row_of_a_batch_is_the_row_alone():
    model, x = stirred(small().to(dtype=np.float64)), ids(3, 7)
    np.testing.assert_allclose(model(x).data[1:2], model(x[1:2]).data, rtol=1e-10, atol=1e-12)


def test_a_row_of_padding_alone_is_finite_and_disturbs_nobody():
    model, x = stirred(small().to(dtype=np.float64)), ids(2, 5)
    out = model(x, np.array([[1] * 5, [0] * 5]))
    assert np.isfinite(out.numpy()).all()
    np.testing.assert_allclose(out.data[0], model(x[:1]).data[0], rtol=1e-10, atol=1e-12)
    out.backward(np.ones(out.shape))
    assert all(np.isfinite(here(p.grad)).all() for p in model.parameters())


def test_dropout_is_in_the_attention_weights_alone():
    model, x = small(attention_dropout=0.4), ids(2, 8)
    rates = {name: m.p for name, m in model.named_modules() if isinstance(m, nn.Dropout)}
    assert rates == {f"layers.{i}.{name}": p for i in range(3)
                     for name, p in (("attn.dropout", 0.4), ("ff.net.2", 0.0), ("dropout", 0.0))}
    assert (model(x).data != model(x).data).any()
    model.eval()
    np.testing.assert_array_equal(model(x).data, model(x).data)


def test_it_writes_past_its_longest_sequence():
    model = small()
    assert generate.generate(model, ids(1, 14), 6).shape == (1, 6)


@pytest.mark.parametrize("call, error, says", [
    (lambda m: m(ids(1, 17)), ValueError, "17 tokens is longer than the 16 positions"),
    (lambda m: m(ids(5)), ValueError, r"\(B, T\), got \(5,\)"),
    (lambda m: m(ids(1, 5) / 1), TypeError, "integers"), (lambda m: m(np.array([[65]])), IndexError, "65"),
    (lambda m: m(np.array([[-1]])), IndexError, "-1"),
    (lambda m: m(ids(2, 5), np.ones((2, 4), int)), ValueError, r"\(2, 4\)"),
    (lambda m: m(ids(2, 5), np.ones((2, 5))), TypeError, "attention_mask")])
def test_input_that_cannot_be(call, error, says):
    with pytest.raises(error, match=says):
        call(small())


# ---- scaled positions ------------------------------------------------------------------------------------------------

LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
SCALED = pytest.mark.parametrize("scaling", [LINEAR, LLAMA3], ids=["linear", "llama3"])


def far(scaling, **options):
    """A model whose pairs are of all three kinds of llama3, and which reads far beyond the 16 of its first context."""
    return stirred(small(**dict(max_position_embeddings=64, head_dim=16, rope_theta=100.0, rope_scaling=scaling) | options))


@DTYPES
@SCALED
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_scaled_positions_are_the_published_models(dtype, tol, scaling, padded):
    pytest.importorskip("transformers")
    mask = (np.arange(40) >= np.array([[0], [3], [31]])).astype(int) if padded else np.ones((2, 40), int)
    check_parity(far(scaling).to(dtype=dtype), tol, mask)


@SCALED
@pytest.mark.parametrize("head_dim, theta, context", [(128, 500000.0, 8192), (64, 1e4, 64), (6, 10.0, 7), (2, 1e4, 9)])
def test_scaled_frequencies_are_the_published_ones(scaling, head_dim, theta, context):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    rope = scaling | {"original_max_position_embeddings": context} if scaling is LLAMA3 else scaling
    config = transformers.LlamaConfig(head_dim=head_dim, max_position_embeddings=10**6,
                                      rope_parameters=rope | {"rope_theta": theta})
    with mock.patch.object(torch, "float", torch.double):
        theirs, gain = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config)
    assert gain == 1 and theirs.dtype == torch.double
    np.testing.assert_allclose(rope_frequencies(head_dim, theta, rope), theirs.numpy(), rtol=1e-14)


def test_the_frequencies_of_llama_31():
    """Each pair by how long a turn takes, and those at the borders as literal numbers."""
    found = rope_frequencies(128, 500000.0, LLAMA3 | {"original_max_position_embeddings": 8192})
    assert found.dtype == np.float64 and found.shape == (64,)
    kinds = {"kept": [], "between": [], "divided": []}
    for i in range(64):
        turn = 2 * math.pi * math.exp(i / 64 * math.log(500000))            # positions in one turn
        if turn < 2048:
            kind, expected = "kept", 2 * math.pi / turn
        elif turn > 8192:
            kind, expected = "divided", 2 * math.pi / (8 * turn)
        else:                                                               # 1/8 at one end, 1 at the other
            kind, expected = "between", 2 * math.pi / turn * (1 + 7 * (8192 / turn - 1) / 3) / 8
        kinds[kind].append(i)
        assert found[i] == pytest.approx(expected, rel=1e-12)
    assert {kind: (i[0], i[-1]) for kind, i in kinds.items()} == {
        "kept": (0, 28), "between": (29, 34), "divided": (35, 63)}
    np.testing.assert_allclose(found[[0, 1, 28, 29, 34, 35, 63]], [
        1, 0.814617234, 0.00321144599, 0.00216657076, 0.000178507813, 9.55621235e-05, 3.06892599e-07], rtol=1e-8)


def test_where_the_mixture_begins_and_ends():
    """A first context of 2 pi, so that n is f itself: 1, 0.1, 0.01 and 0.001."""
    L = 2 * math.pi
    rope = {"rope_type": "llama3", "factor": 5, "original_max_position_embeddings": L, "low_freq_factor": 1e-2}
    f = 10.0 ** -np.arange(4)
    np.testing.assert_allclose(rope_frequencies(8, 1e4, rope | {"high_freq_factor": 1}), [
        1, 0.1 * (1 / 5 + 4 / 5 * 0.09 / 0.99), 0.01 / 5, 0.001 / 5], rtol=1e-12)
    np.testing.assert_allclose(rope_frequencies(8, 1e4, rope | {"low_freq_factor": 2, "high_freq_factor": 3}), f / 5)
    np.testing.assert_allclose(rope_frequencies(8, 1e4, rope | {"low_freq_factor": 1e-9, "high_freq_factor": 1e-4}), f)


def test_linear_scaling_is_positions_divided_and_none_and_default_are_the_base():
    x, positions = np.random.default_rng(0).standard_normal((5, 8)), np.array([0, 4, 8, 12, 400])
    scaled = ops.rope(x, positions, frequencies=rope_frequencies(8, 50.0, LINEAR))
    np.testing.assert_allclose(scaled, ops.rope(x, positions // 4, base=50.0), rtol=1e-10, atol=1e-12)
    for none in None, {}, {"rope_type": "default"}, {"type": "default", "factor": None}, LINEAR | {"factor": 1}:
        np.testing.assert_allclose(rope_frequencies(8, 50.0, none), 50.0 ** (np.arange(4) / -4), rtol=1e-14)
    np.testing.assert_array_equal(rope_frequencies(8, 50.0, {"type": "linear", "factor": 4}),
                                  rope_frequencies(8, 50.0, LINEAR))
    assert rope_frequencies(8).tolist() == [1, 0.1, 0.01, 0.001]


@SCALED
@pytest.mark.parametrize("mask", [None, LEFT, RIGHT], ids=["whole", "left", "right"])
def test_slopes_with_scaled_positions(scaling, mask):
    model, x = far(scaling, rope_scaling=scaling | {"factor": 2.5}).to(dtype=np.float64), ids(3, 9)
    directional(lambda model: model(x, mask), model)


@SCALED
def test_scaled_positions_change_what_a_model_gives(scaling):
    model, plain, x = far(scaling), far(None), ids(2, 40)
    plain.load_state_dict(model.state_dict())
    assert (np.abs(model(x).numpy() - plain(x).numpy())[:, 1:].max(-1) > 1e-3).all()


@SCALED
def test_scaled_positions_with_a_cache_are_those_without(scaling):
    """40 tokens behind prompts of unequal length: what is written is the likeliest of one run over the whole."""
    model, x = far(scaling, initializer_range=0.3).to(dtype=np.float64).eval(), ids(3, 9)
    out = generate.generate(model, x, 40, attention_mask=LEFT, stop=())
    whole, mask = np.concatenate([x, out], 1), np.pad(LEFT, ((0, 0), (0, 40)), constant_values=1)
    np.testing.assert_array_equal(model(whole, mask).data[:, 8:-1].argmax(-1), out)
    assert len(np.unique(out)) > 5
    cache = nn.Cache()
    with mt.no_grad():
        steps = [model(whole[:, :9], mask[:, :9], cache=cache).numpy()[:, -1:]]
        steps += [model(whole[:, t:t + 1], mask[:, :t + 1], cache=cache).numpy() for t in range(9, 48)]
    np.testing.assert_allclose(np.concatenate(steps, 1), model(whole, mask).data[:, 8:-1], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("scaling, says", [
    ({"rope_type": "yarn", "factor": 4.0}, "rope_type 'yarn' is not built, only 'default', 'linear', 'llama3'"),
    ({"type": "dynamic", "factor": 4.0}, "rope_type 'dynamic' is not built"), ({"rope_type": ["linear"]}, ".* is not built"),
    ({"rope_type": "linear"}, "rope_type 'linear' needs factor"), ({"factor": 2.0}, "rope_type 'default' takes no factor"),
    ({"rope_type": "llama3", "factor": 8.0},
     "rope_type 'llama3' needs low_freq_factor, high_freq_factor, original_max_position_embeddings$"),
    (LLAMA3 | {"beta_fast": 32, "beta_slow": 1}, "rope_type 'llama3' takes no beta_fast, beta_slow$"),
    (LINEAR | {"type": "llama3"}, "rope_type 'linear' and type 'llama3' contradict each other"),
    (LINEAR | {"factor": 0}, "factor must be a finite number greater than 0, got 0"),
    (LINEAR | {"factor": "8"}, "factor must be .* got '8'"), (LINEAR | {"factor": math.nan}, "factor must be .* got nan"),
    (LINEAR | {"factor": math.inf}, "factor must be .* got inf"), (LINEAR | {"factor": True}, "factor must be .* got True"),
    (LLAMA3 | {"factor": -8.0}, "factor must be .* got -8.0"),
    (LLAMA3 | {"low_freq_factor": 0.0}, "low_freq_factor must be .* got 0.0"),
    (LLAMA3 | {"high_freq_factor": [4]}, r"high_freq_factor must be .* got \[4\]"),
    (LLAMA3 | {"original_max_position_embeddings": 0}, "original_max_position_embeddings must be .* got 0"),
    (LLAMA3 | {"low_freq_factor": 4.0}, "low_freq_factor 4.0 must be less than high_freq_factor 4.0"),
    (LLAMA3 | {"high_freq_factor": None}, "rope_type 'llama3' needs high_freq_factor"),
    (2.0, "must be a dict or None, got 2.0"), ([], r"must be a dict or None, got \[\]")])
def test_scalings_that_cannot_be(scaling, says):
    with pytest.raises(ValueError, match=f"^Llama: rope_scaling:? {says}"):
        small(rope_scaling=scaling)
    with pytest.raises(ValueError, match=f"^rope_frequencies: scaling:? {says}"):
        rope_frequencies(8, scaling=scaling)


# ---- what cannot be --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("options, says", [
    (dict(num_attention_heads=5), "d_model 24 .* num_heads 5"),
    (dict(num_key_value_heads=3), "num_heads 4 .* num_kv_heads 3"),
    (dict(head_dim=5), "width 5 .* even head_dim"), (dict(hidden_size=12), "width 3 .* even head_dim"),
    (dict(hidden_act="mish"), "unknown activation 'mish': use one of .*gelu, .*silu"),
    (dict(attention_dropout=1.5), "probability"), (dict(vocab_size=0), "at least 1")])
def test_configurations_that_cannot_be(options, says):
    with pytest.raises(ValueError, match=says):
        small(**options)


def test_a_head_and_a_config_that_are_none():
    with pytest.raises(ValueError, match="Llama: head must be one of 'lm', None; got 'classifier'"):
        small("classifier")
    for config in SMALL, models.GPT2Config(), 32000:
        with pytest.raises(TypeError, match=r"LlamaConfig\(\*\*config\)"):
            models.Llama(config)
