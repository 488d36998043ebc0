"""GPT-2: against PyTorch, its published sizes, its initial values, and the dtypes of a training step."""
import math

import numpy as np
import pytest
from double import here

import minitx as mt
from minitx import models, nn, ops, optim
from minitx.autograd import Op
from minitx.backend import is_array
from minitx.models import weights

RNG = np.random.default_rng(0)
SMALL = dict(vocab_size=65, n_positions=16, n_embd=24, n_layer=3, n_head=4,
             resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)


def small(head="lm", **options):
    return models.GPT2(models.GPT2Config(**{**SMALL, **options}), head)


def ids(*shape):
    return RNG.integers(0, 65, shape)


def leaves_of(model, torch):
    return {name: torch.tensor(here(p), requires_grad=True) for name, p in model.named_parameters()}


def torch_gpt2(torch, c, w, x):
    """The same function in PyTorch's parts: c the configuration, w the parameters by name, x ids. Gives the logits."""
    from torch.nn import functional as F
    T = x.shape[1]

    def linear(name, x):
        return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    def norm(name, x):
        return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w.get(f"{name}.bias"), c.layer_norm_epsilon)

    def heads(x):
        return x.view(*x.shape[:2], c.n_head, -1).transpose(1, 2)

    h = w["wte.weight"][x] + w["wpe.weight"][:T]
    for i in range(c.n_layer):
        a = norm(f"h.{i}.norm1", h)
        q, k, v = (heads(linear(f"h.{i}.attn.w_{name}", a)) for name in "qkv")
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(h.shape)
        h = h + linear(f"h.{i}.attn.w_o", o)
        f = F.gelu(linear(f"h.{i}.ff.net.0", norm(f"h.{i}.norm2", h)), approximate="tanh")
        h = h + linear(f"h.{i}.ff.net.3", f)
    return F.linear(norm("ln_f", h), w.get("lm_head.weight", w["wte.weight"]))


def close(ours, theirs, tol, name=""):
    theirs = theirs.detach().numpy()
    assert np.abs(here(ours) - theirs).max() <= tol * max(np.abs(theirs).max(), 1e-3), name


@pytest.mark.parametrize("dtype, tol", [(np.float64, 1e-10), (np.float32, 1e-5)])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"tie_word_embeddings": False, "n_inner": 40}],
                         ids=["published", "no biases", "untied"])
def test_values_and_gradients_are_pytorchs(dtype, tol, options):
    torch = pytest.importorskip("torch")
    model = small(**options).to(dtype=dtype)
    for p in model.parameters():
        p.data += mt.tensor(RNG.standard_normal(p.shape).astype(dtype) * dtype(0.1)).data       # away from the zeros and ones
    x, y = ids(2, 11), ids(2, 11)
    logits = model(x)
    loss = ops.cross_entropy(logits, y)
    w = leaves_of(model, torch)
    expected = torch_gpt2(torch, model.config, w, torch.tensor(x))
    expected_loss = torch.nn.functional.cross_entropy(expected.reshape(-1, 65), torch.tensor(y).reshape(-1))
    close(logits.data, expected, tol)
    close(loss.data, expected_loss, tol)
    loss.backward()
    expected_loss.backward()
    for name, p in model.named_parameters():
        close(p.grad, w[name].grad, tol, name)


LEFT = np.array([[0, 0, 0, 1, 1, 1, 1, 1, 1], [1] * 9, [0] * 8 + [1]])


@pytest.mark.parametrize("dtype, tol", [(np.float64, 1e-9), (np.float32, 2e-5)], ids=["float64", "float32"])
@pytest.mark.parametrize("mask", [None, LEFT, LEFT[:, ::-1].copy()], ids=["whole", "left", "right"])
@pytest.mark.parametrize("options", [{}, dict(tie_word_embeddings=False, n_inner=40, activation_function="relu")],
                         ids=["published", "untied"])
def test_values_and_gradients_are_the_published_models(dtype, tol, mask, options):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = small(**options).to(dtype=dtype)
    for p in model.parameters():
        p.data += mt.tensor(RNG.standard_normal(p.shape).astype(dtype) * dtype(0.1)).data       # away from the zeros and ones
    fields = {name: value for name, value in vars(model.config).items() if name != "bias"}
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**fields, attn_implementation="sdpa"))
    theirs.to(getattr(torch, np.dtype(dtype).name)).eval()
    state = weights.to_published("gpt2", model.state_dict())
    theirs.load_state_dict({name: torch.tensor(here(array)) for name, array in state.items()})
    x, y, padded = ids(3, 9), ids(3, 9), {}
    if mask is not None:
        y[mask == 0] = -100
        padded = dict(attention_mask=torch.tensor(mask), position_ids=torch.tensor(nn.position_ids_from_mask(mask)))
    logits = model(x, mask)
    expected = theirs(torch.tensor(x), **padded).logits
    close(logits.numpy()[y >= 0], expected[torch.tensor(y >= 0)], tol)
    ops.cross_entropy(logits, y).backward()
    torch.nn.functional.cross_entropy(expected.flatten(0, 1), torch.tensor(y).flatten()).backward()
    ours = weights.to_published("gpt2", {name: p.grad for name, p in model.named_parameters()})
    grads = {name: p.grad for name, p in theirs.named_parameters()}
    assert set(ours) == set(grads)
    for name, grad in grads.items():
        close(ours[name], grad, tol, name)


@pytest.mark.parametrize("mask", [LEFT, LEFT[:, ::-1]], ids=["left", "right"])
def test_what_stands_in_padding_changes_no_token_by_one_bit(mask):
    model, x, tokens = small(), ids(3, 9), mask == 1
    before, after = model(x, mask).numpy(), model(np.where(tokens, x, 64 - x), mask).numpy()
    np.testing.assert_array_equal(before[tokens], after[tokens])
    assert np.isfinite(after).all()


@pytest.mark.parametrize("shape", [(1, 7), (2, 1), (1, 1), (0, 5), (2, 0)])
def test_batches_of_one_of_none_and_short_ones(shape):
    model = small()
    out = model(ids(*shape), np.ones(shape, int))
    assert out.shape == (*shape, 65) and np.isfinite(out.numpy()).all()
    out.sum().backward()
    assert all(p.grad is not None and np.isfinite(here(p.grad)).all() for p in model.parameters())


def test_ten_training_steps_are_pytorchs():
    torch = pytest.importorskip("torch")
    model = small().to(dtype=np.float64)
    x, y = ids(4, 8), ids(4, 8)
    w = leaves_of(model, torch)
    options = dict(lr=1e-2, betas=(0.9, 0.99))
    ours = optim.AdamW(optim.decay_groups(model, 0.1), **options)
    theirs = torch.optim.AdamW([{"params": [p for p in w.values() if p.ndim >= 2], "weight_decay": 0.1},
                                {"params": [p for p in w.values() if p.ndim < 2], "weight_decay": 0.0}], **options)
    losses = []
    for _ in range(10):
        ours.zero_grad()
        theirs.zero_grad()
        loss = ops.cross_entropy(model(x), y)
        loss.backward()
        optim.clip_grad_norm(model.parameters(), 1.0)
        ours.step()
        logits = torch_gpt2(torch, model.config, w, torch.tensor(x))
        torch.nn.functional.cross_entropy(logits.reshape(-1, 65), torch.tensor(y).reshape(-1)).backward()
        torch.nn.utils.clip_grad_norm_(w.values(), 1.0)
        theirs.step()
        losses.append(loss.item())
    for name, p in model.named_parameters():
        close(p.data, w[name], 1e-8, name)
    assert losses[-1] < losses[0] - 0.5                             # and it learned


def counted(vocab_size=50257, n_positions=1024, n_embd=768, n_layer=12):
    """The number of parameters in closed form."""
    C = n_embd
    block = 4 * (C * C + C) + (4 * C * C + 4 * C) + (4 * C * C + C) + 4 * C
    return vocab_size * C + n_positions * C + n_layer * block + 2 * C


@pytest.mark.parametrize("sizes", [dict(vocab_size=65, n_positions=16, n_embd=24, n_layer=3),
                                   dict(vocab_size=7, n_positions=5, n_embd=8, n_layer=1)])
def test_models_have_the_size_of_the_closed_form(sizes):
    for head in "lm", None:                                         # the tied head adds nothing
        assert sum(p.size for p in small(head, **sizes).parameters()) == counted(**sizes)
    untied = sum(p.size for p in small(**sizes, tie_word_embeddings=False).parameters())
    assert untied == counted(**sizes) + sizes["vocab_size"] * sizes["n_embd"]


def test_the_default_is_the_published_small_one():
    c = models.GPT2Config()
    assert counted(c.vocab_size, c.n_positions, c.n_embd, c.n_layer) == 124_439_808
    assert (c.n_head, c.activation_function, c.layer_norm_epsilon, c.initializer_range) == (12, "gelu_new", 1e-5, 0.02)
    assert (c.resid_pdrop, c.embd_pdrop, c.attn_pdrop, c.n_inner, c.tie_word_embeddings) == (0.1, 0.1, 0.1, None, True)


def test_initial_values():
    model = small(n_embd=64, initializer_range=0.05)
    for name, p in model.named_parameters():
        if p.ndim == 2:
            adds = "w_o" in name or "net.3" in name
            assert p.numpy().std() == pytest.approx(0.05 / math.sqrt(6) if adds else 0.05, rel=0.1), name
            assert abs(p.numpy().mean()) < 0.005
        else:
            assert (p.data == (1 if name.endswith("weight") else 0)).all(), name
    loss = ops.cross_entropy(small()(ids(8, 16)), ids(8, 16)).item()
    assert loss == pytest.approx(math.log(65), abs=0.05)            # before training it knows nothing


@pytest.mark.parametrize("tied", [True, False])
def test_every_matrix_is_drawn_once(tied, monkeypatch):
    drawn = []
    monkeypatch.setattr(mt.backend, "generator", lambda: Counted(drawn))
    model = small(tie_word_embeddings=tied)
    assert sum(drawn) == sum(p.size for p in model.parameters() if p.ndim == 2)
    monkeypatch.undo()
    assert (nn.Linear(3, 3).weight.data != 0).all()                 # and everybody else draws as before


class Counted:
    """A generator that writes down how many numbers it was asked for."""

    def __init__(self, drawn):
        self.drawn = drawn

    def standard_normal(self, shape):
        self.drawn.append(math.prod(shape))
        return RNG.standard_normal(shape)

    random = standard_normal


def test_names_and_tie():
    model = small()
    assert list(dict(model.named_parameters()))[:2] == ["wte.weight", "wpe.weight"]
    assert model.lm_head.weight is model.wte.weight and "lm_head.weight" in model.state_dict()
    assert {name.partition(".")[0] for name in model.state_dict()} == {"wte", "wpe", "h", "ln_f", "lm_head"}
    assert small(tie_word_embeddings=False).lm_head.weight is not model.wte.weight
    assert small(None).lm_head is None


def test_shapes_with_and_without_a_head():
    x, model = ids(2, 5), small()
    bare = small(None)
    bare.load_state_dict({name: value for name, value in model.state_dict().items() if name != "lm_head.weight"})
    assert model(x).shape == (2, 5, 65) and bare(x).shape == (2, 5, 24)
    np.testing.assert_array_equal(model(x).data, model.lm_head(bare(x)).data)
    np.testing.assert_array_equal(model(x.tolist()).data, model(mt.tensor(x)).data)


def test_no_position_sees_what_comes_after():
    model, x = small(), ids(1, 8)
    before = model(x).data
    x[0, 5:] = (x[0, 5:] + 1) % 65
    after = model(x).data
    np.testing.assert_array_equal(before[0, :5], after[0, :5])
    assert (before[0, 5:] != after[0, 5:]).any(-1).all()


@pytest.mark.parametrize("kind", [int, bool])
def test_padding_on_either_side_changes_nothing(kind):
    model, x = small(), ids(1, 6)
    alone = model(x).data[0]
    for pad in (2, 0), (0, 3), (1, 1):
        padded = np.pad(x, ((0, 0), pad), constant_values=64)
        mask = np.pad(np.ones((1, 6), kind), ((0, 0), pad))
        out = model(padded, mask)
        np.testing.assert_allclose(out.data[0, pad[0]:pad[0] + 6], alone, atol=1e-6)
        assert np.isfinite(out.numpy()).all()


def test_dropouts_are_where_gpt2_has_them():
    model = small(resid_pdrop=0.2, embd_pdrop=0.3, attn_pdrop=0.4)
    rates = {name: m.p for name, m in model.named_modules() if isinstance(m, nn.Dropout)}
    assert rates == {"drop": 0.3} | {f"h.{i}.{name}": p for i in range(3) for name, p in
                                     (("attn.dropout", 0.4), ("ff.net.2", 0.0), ("dropout", 0.2))}
    x = ids(2, 8)
    assert (model(x).data != model(x).data).any()
    model.eval()
    np.testing.assert_array_equal(model(x).data, model(x).data)


@pytest.mark.parametrize("published, kind, approximate", [
    ("gelu_new", nn.GELU, "tanh"), ("gelu", nn.GELU, "none"), ("gelu_pytorch_tanh", nn.GELU, "tanh"),
    ("relu", nn.ReLU, None)])
def test_activations_by_their_published_names(published, kind, approximate):
    layer = small(activation_function=published).h[0].ff.net[1]
    assert type(layer) is kind and getattr(layer, "approximate", None) == approximate


@pytest.mark.parametrize("call, error, says", [
    (lambda m: m(ids(1, 17)), ValueError, "17 .* 16"), (lambda m: m(ids(5)), ValueError, r"\(B, T\), got \(5,\)"),
    (lambda m: m(ids(1, 5) / 1), TypeError, "integers"), (lambda m: m(np.array([[65]])), IndexError, "65"),
    (lambda m: m(np.array([[-1]])), IndexError, "-1"),
    (lambda m: m(ids(2, 5), np.ones((2, 4), int)), ValueError, r"\(2, 4\)"),
    (lambda m: m(ids(2, 5), np.ones((2, 5))), TypeError, "attention_mask"),
    (lambda m: m(ids(2, 5), np.full((2, 5), 2)), ValueError, "attention_mask")])
def test_input_that_cannot_be(call, error, says):
    with pytest.raises(error, match=says):
        call(small())


def test_configurations_that_cannot_be():
    with pytest.raises(ValueError, match="n_embd|d_model 24 .* num_heads 5"):
        small(n_head=5)
    with pytest.raises(ValueError, match="unknown activation 'mish': use one of gelu, .*relu, silu, tanh, gelu_new"):
        small(activation_function="mish")
    for config in SMALL, {}, 50257:
        with pytest.raises(TypeError, match=r"GPT2Config\(\*\*config\)"):
            models.GPT2(config)
    with pytest.raises(ValueError, match="classifier"):
        small("classifier")


def test_directional_derivative_in_float64():
    model = small(n_layer=2).to(dtype=np.float64)
    x, y = ids(2, 7), ids(2, 7)
    ops.cross_entropy(model(x), y).backward()
    parameters = list(model.parameters())
    direction = [RNG.standard_normal(p.shape) / math.sqrt(counted(65, 16, 24, 2)) for p in parameters]    # of length 1
    slope = sum((here(p.grad) * d).sum() for p, d in zip(parameters, direction))

    def loss_at(h):
        for p, d in zip(parameters, direction):
            p.data += mt.tensor(h * d).data
        value = ops.cross_entropy(model(x), y).item()
        for p, d in zip(parameters, direction):
            p.data -= mt.tensor(h * d).data
        return value

    h = 1e-4
    assert (loss_at(h) - loss_at(-h)) / (2 * h) == pytest.approx(slope, rel=1e-7)


class Watch:
    """Every array that passes while it is in force: what ops get, return, save and give back, by op."""

    def __init__(self, monkeypatch):
        self.dtypes, apply, pull = {}, Op.apply.__func__, Op._pull

        def watched_apply(cls, *inputs, **options):
            forward = cls.forward
            if not getattr(forward, "watched", False):
                monkeypatch.setattr(cls, "forward", self.around(cls.name, forward))
                monkeypatch.setattr(cls, "backward", self.around(f"{cls.name}, backward", cls.backward))
            return apply(cls, *inputs, **options)

        def watched_pull(op, gradients):
            for item in pull(op, gradients):
                self.see(f"{op.name}, gradient", item)
                yield item

        monkeypatch.setattr(Op, "apply", classmethod(watched_apply))
        monkeypatch.setattr(Op, "_pull", watched_pull)

    def around(self, name, function):
        def watched(op, *arrays, **options):
            result = function(op, *arrays, **options)
            self.see(name, (arrays, options, result, vars(op)))
            return result
        watched.watched = True
        return watched

    def see(self, name, value):
        if isinstance(value, np.generic) or is_array(value):
            self.dtypes.setdefault(value.dtype, set()).add(name)
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ():
            self.see(name, inner)


def test_a_float32_model_has_no_float64_anywhere_in_a_training_step(monkeypatch):
    model = small(resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1)
    optimiser = optim.AdamW(optim.decay_groups(model, 0.1), lr=lambda step: np.float64(1e-3))
    watch = Watch(monkeypatch)
    for _ in range(2):
        loss = ops.cross_entropy(model(ids(2, 6), np.ones((2, 6), int)), ids(2, 6), label_smoothing=0.1)
        loss.backward()
        watch.see("gradients", [p.grad for p in model.parameters()])
        watch.see("norm", optim.clip_grad_norm(model.parameters(), 0.1))
        optimiser.step()
        watch.see("optimiser", optimiser.state)
        watch.see("parameters", list(model.state_dict().values()))
    others = {dtype: seen for dtype, seen in watch.dtypes.items() if dtype not in (np.float32, np.bool_, np.int64)}
    assert not others
    seen = watch.dtypes[np.dtype(np.float32)]
    assert {"linear", "linear, backward", "layer_norm, gradient", "scaled_dot_product_attention", "dropout",
            "embedding", "cross_entropy, backward", "gradients", "norm", "optimiser", "parameters"} <= seen
