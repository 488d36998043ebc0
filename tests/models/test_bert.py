"""BERT, RoBERTa and DistilBERT: against transformers, slopes, padding, dropouts, names, and input that cannot be."""
import dataclasses
import math

import numpy as np
import pytest
from double import here

import minitx as mt
from minitx import models, nn, ops
from minitx.models.weights import from_published, to_published

RNG = np.random.default_rng(0)
V, C = 31, 16
SIZES = dict(vocab_size=V, hidden_size=C, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
             max_position_embeddings=14, num_labels=3)
DISTIL = dict(vocab_size=V, dim=C, n_layers=2, n_heads=4, hidden_dim=24, max_position_embeddings=14, num_labels=3)
KINDS = {"bert": (models.BertConfig, SIZES), "roberta": (models.RobertaConfig, SIZES),
         "distilbert": (models.DistilBertConfig, DISTIL)}
HEADS = {"mlm": "ForMaskedLM", "sequence": "ForSequenceClassification", "token": "ForTokenClassification", None: "Model"}

every_kind = pytest.mark.parametrize("kind", KINDS)
every_head = pytest.mark.parametrize("head", HEADS)
beside_transformers = pytest.mark.filterwarnings("ignore::EncodingWarning")        # which itself opens files without


def config(kind, **options):
    """A small one without dropout."""
    cls, sizes = KINDS[kind]
    off = [f.name for f in dataclasses.fields(cls) if "dropout" in f.name]
    return cls(**{**sizes, **dict.fromkeys(off, 0.0), **options})


def small(kind="bert", head="mlm", **options):
    return models.BERT(config(kind, **options), head)


def shaken(model, dtype=np.float64):
    """Away from the zeros and ones of the start, the rows of padding too."""
    model.to(dtype=dtype)
    for p in model.parameters():
        p.data += mt.tensor((RNG.standard_normal(p.shape) * 0.2).astype(dtype)).data
    return model


def ids(*shape):
    return RNG.integers(2, V, shape)                                        # no padding: neither BERT's 0 nor RoBERTa's 1


def padded(side, *shape):
    """Ids and a mask whose rows hold T, T-1, T-2 ... tokens, padding on that side: (None: no mask)."""
    B, T = shape
    mask = np.arange(T) < T - np.arange(B)[:, None] % T
    return ids(*shape), None if side is None else mask[:, ::-1 if side == "left" else 1].astype(int)


def types(kind, shape):
    return {} if kind == "distilbert" else {"token_type_ids": RNG.integers(0, 2, shape)}


def outputs(model, *inputs, **options):
    """What the model gives, and its pooler besides where that is not used by a head."""
    out = model(*inputs, **options)
    return [out, model.pooler(out)] if model.head is None and model.pooler is not None else [out]


def close(ours, theirs, tol, name=""):
    theirs = theirs.detach().numpy()
    assert ours.shape == theirs.shape, name
    assert np.abs(here(ours) - theirs).max() <= tol * max(np.abs(theirs).max(), 1e-3), name


# ---- against transformers --------------------------------------------------------------------------------------------

def twin(model, head):
    """The published model with the same weights, and {published name: its parameter}."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    c = model.config
    family = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert"}[c.model_type]
    theirs = getattr(transformers, family + HEADS[head])(
        getattr(transformers, family + "Config")(**dataclasses.asdict(c)))
    theirs.to(torch.float64 if model.norm.weight.dtype == np.float64 else torch.float32).eval()
    published = {bare(name, c, head): torch.tensor(here(value))
                 for name, value in to_published(c.model_type, model.state_dict()).items()}
    missing, unexpected = theirs.load_state_dict(published, strict=False)
    assert not unexpected and set(missing) <= {"cls.predictions.decoder.bias", "lm_head.decoder.bias"}   # tied there
    return theirs, dict(theirs.named_parameters())


def bare(name, c, head):
    return name if head else name.removeprefix(c.model_type + ".")


def same(model, head, x, mask, token_types, tol):
    """Values, and the gradients of a loss with respect to every parameter."""
    theirs, parameters = twin(model, head)
    torch = pytest.importorskip("torch")
    ours = outputs(model, x, mask, **token_types)
    inputs = dict(token_types, input_ids=x) if mask is None else dict(token_types, input_ids=x, attention_mask=mask)
    found = theirs(**{name: torch.tensor(value) for name, value in inputs.items()})
    found = [found.logits] if head else [found.last_hidden_state, found.get("pooler_output")]
    dys = [RNG.standard_normal(y.shape) / y.size for y in ours]
    for y, expected in zip(ours, found):
        close(y.data, expected, tol)
    sum((y * dy.astype(y.dtype)).sum() for y, dy in zip(ours, dys)).backward()
    sum((y * torch.tensor(dy, dtype=y.dtype)).sum() for y, dy in zip(found, dys)).backward()
    gradients = to_published(model.config.model_type, {name: p.grad for name, p in model.named_parameters()})
    gradients = {bare(name, model.config, head): gradient for name, gradient in gradients.items()}
    assert set(gradients) == set(parameters)
    for name, gradient in gradients.items():
        close(gradient, parameters[name].grad, tol, name)


@beside_transformers
@every_kind
@every_head
@pytest.mark.parametrize("dtype, tol", [(np.float64, 1e-9), (np.float32, 2e-5)])
def test_values_and_gradients_are_the_published_models(kind, head, dtype, tol):
    for side in None, "left", "right":
        x, mask = padded(side, 3, 7)
        x[1, 3] = 1 if kind == "roberta" else 0                             # padding may stand anywhere
        if kind == "roberta" and side:
            x[mask == 0] = 1
        same(shaken(small(kind, head), dtype), head, x, mask, types(kind, x.shape), tol)
        same(shaken(small(kind, head), dtype), head, x, mask, {}, tol)


@beside_transformers
@pytest.mark.parametrize("kind, options", [
    ("bert", {"hidden_act": "relu", "layer_norm_eps": 1e-3}), ("roberta", {"hidden_act": "gelu_new", "pad_token_id": 4}),
    ("distilbert", {"activation": "gelu_new"}), ("distilbert", {"tie_word_embeddings": False}),
    ("bert", {"pad_token_id": None}), ("bert", {"type_vocab_size": 1})])
def test_options_are_the_published_ones(kind, options):
    x, mask = padded("right", 2, 5)
    x[mask == 0] = options.get("pad_token_id") or 0
    model = shaken(small(kind, "mlm", **options))
    assert (model.head.decoder.weight is model.word_embeddings.weight) == model.config.tie_word_embeddings
    same(model, "mlm", x, mask, {}, 1e-9)


@every_kind
def test_initial_values_are_spread_as_the_published_ones(kind):
    model = small(kind, "sequence", initializer_range=0.05, **{"dim" if kind == "distilbert" else "hidden_size": 64})
    for name, p in model.named_parameters():
        if p.ndim == 2:
            assert p.numpy().std() == pytest.approx(0.05, rel=0.15) or "classifier" in name, name
        else:
            assert (p.data == (1 if name.endswith("weight") else 0)).all(), name
    for table in (model.word_embeddings, model.position_embeddings):
        if table.padding_idx is not None:
            assert not table.weight.data[table.padding_idx].any()
    assert (model.position_embeddings.padding_idx is not None) == (kind == "roberta")


# ---- without PyTorch -------------------------------------------------------------------------------------------------

def scalar(model, inputs, dys, seen):
    """A smooth number that the results at real positions make."""
    return sum((ops.masked_fill(y, ~seen[..., None], 0.0) * dy if y.ndim == 3 else y * dy).sum()
               for y, dy in zip(outputs(model, **inputs), dys))


@every_kind
@every_head
def test_directional_derivative_in_float64(kind, head):
    model = shaken(small(kind, head))
    x, mask = padded("right", 3, 7)
    inputs = dict(ids=x, attention_mask=mask, **types(kind, x.shape))
    dys = [RNG.standard_normal(y.shape) / math.sqrt(y.size) for y in outputs(model, **inputs)]
    scalar(model, inputs, dys, mask == 1).backward()
    parameters = list(model.parameters())
    n = sum(p.size for p in parameters)
    direction = [RNG.standard_normal(p.shape) / math.sqrt(n) for p in parameters]      # of length 1
    slope = sum((here(p.grad) * d).sum() for p, d in zip(parameters, direction))

    def at(h):
        for p, d in zip(parameters, direction):
            p.data += mt.tensor(h * d).data
        value = scalar(model, inputs, dys, mask == 1).item()
        for p, d in zip(parameters, direction):
            p.data -= mt.tensor(h * d).data
        return value

    h = 1e-3                                                        # and an error of order h^4
    numeric = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)
    assert numeric == pytest.approx(slope, rel=1e-7)


@every_kind
@pytest.mark.parametrize("head, side", [(head, side) for head in HEADS for side in ("left", "right")
                                        if (head, side) != ("sequence", "left")])     # there the first token is padding
def test_what_padding_holds_changes_no_bit_of_a_real_position(kind, head, side):
    model = shaken(small(kind, head), np.float32)
    x, mask = padded(side, 3, 7)
    real = mask == 1
    token_types, results = types(kind, x.shape), []
    for _ in range(2):
        x = np.where(real, x, RNG.integers(0, V, x.shape))
        token_types = {name: np.where(real, t, RNG.integers(0, 2, x.shape)) for name, t in token_types.items()}
        model.zero_grad()
        out = model(x, mask, **token_types)
        dy = np.random.default_rng(1).standard_normal(out.shape).astype(np.float32)
        if out.ndim == 3:
            dy[~real] = 0
        out.backward(dy)
        results.append([out.numpy()[real] if out.ndim == 3 else out.data]
                       + [p.grad for p in model.parameters() if p.grad is not None])
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("side, positions", [
    ("right", [[2, 3, 4, 5, 6], [2, 3, 4, 5, 1], [2, 3, 4, 1, 1]]),
    ("left", [[2, 3, 4, 5, 6], [1, 2, 3, 4, 5], [1, 1, 2, 3, 4]])])
def test_roberta_counts_its_tokens_from_behind_the_padding(side, positions):
    model = small("roberta")
    x, mask = padded(side, 3, 5)
    by_mask = model.roberta_positions(x, nn.mask_from_tokenizer(mask, x.shape))
    np.testing.assert_array_equal(by_mask, positions)
    np.testing.assert_array_equal(model.roberta_positions(np.where(mask == 1, x, 1), None), positions)


@every_kind
def test_padding_on_the_right_changes_nothing_but_its_own(kind):
    model = shaken(small(kind), np.float64)
    x, mask = padded("right", 3, 7)
    out = model(x, mask).data
    for row, n in zip(range(3), mask.sum(1)):
        np.testing.assert_allclose(out[row, :n], model(x[row:row + 1, :n]).data[0], rtol=0, atol=1e-12)
    np.testing.assert_array_equal(model(x, np.ones_like(mask)).data, model(x).data)


@every_kind
def test_a_row_of_nothing_but_padding_stays_finite_and_alone(kind):
    model = shaken(small(kind), np.float64)
    x, mask = padded("right", 3, 7)
    before = model(x, mask).numpy()
    mask[1] = 0
    out = model(x, mask)
    out.backward(np.ones(out.shape))
    np.testing.assert_array_equal(out.numpy()[[0, 2]], before[[0, 2]])
    assert np.isfinite(out.numpy()).all() and all(np.isfinite(here(p.grad)).all() for p in model.parameters())


@every_kind
@every_head
@pytest.mark.parametrize("shape", [(1, 7), (3, 1), (1, 1), (0, 4), (2, 12)])
def test_small_shapes(kind, head, shape):
    model = small(kind, head)
    x = ids(*shape)
    out = model(x, np.ones(shape, bool), **types(kind, shape))
    B = shape[0]
    assert out.shape == {"mlm": (*shape, V), "token": (*shape, 3), "sequence": (B, 3), None: (*shape, C)}[head]
    assert out.dtype == np.float32
    out.backward(np.ones(out.shape, np.float32))
    assert all(p.grad.shape == p.shape and (B or not p.grad.any()) for name, p in model.named_parameters()
               if head == "sequence" or "pooler" not in name)


@every_kind
def test_lists_arrays_and_tensors_of_ids(kind):
    from minitx import tensor
    model, x = small(kind), ids(2, 5)
    for same_ids in x.tolist(), tensor(x), x.astype(np.int32):
        np.testing.assert_array_equal(model(same_ids).data, model(x).data)


def test_token_types_are_told_apart_and_0_if_left_out():
    model, x = shaken(small("bert", None)), ids(2, 5)
    zeros = np.zeros((2, 5), int)
    np.testing.assert_allclose(model(x, token_type_ids=zeros).data, model(x).data, rtol=0, atol=1e-12)
    assert np.abs(model(x, token_type_ids=zeros + 1).numpy() - model(x).numpy()).max() > 0.01


@pytest.mark.parametrize("kind, option, in_the_head", [
    ("bert", {"hidden_act": "relu"}, nn.ReLU), ("roberta", {"hidden_act": "relu"}, nn.GELU),
    ("distilbert", {"activation": "relu"}, nn.ReLU), ("bert", {"hidden_act": "gelu"}, nn.GELU)])
def test_the_parts_are_built_as_the_config_says(kind, option, in_the_head):
    model = small(kind, **option, **({} if kind == "distilbert" else {"layer_norm_eps": 1e-3}))
    assert {m.eps for m in model.modules() if isinstance(m, nn.LayerNorm)} == {model.config.layer_norm_eps}
    for block in model.layers:
        assert not block.norm_first and type(block.ff.net[1]).__name__.lower() == model.config.hidden_act
    assert type(model.head.activation) is in_the_head and model.head.decoder.weight is model.word_embeddings.weight
    first = {"bert": nn.Dropout, "roberta": nn.Tanh, "distilbert": nn.ReLU}[kind]
    assert type(getattr(small(kind, "sequence").head[0], "activation", nn.Dropout(0))) is first


def test_which_models_have_a_pooler():
    poolers = {(kind, head) for kind in KINDS for head in HEADS if small(kind, head).pooler is not None}
    assert poolers == {("bert", None), ("bert", "sequence"), ("roberta", None)}
    model = shaken(small("bert", None))
    x = model(ids(2, 5))
    expected = np.tanh(x.numpy()[:, 0] @ model.pooler.dense.weight.numpy().T + model.pooler.dense.bias.numpy())
    np.testing.assert_allclose(model.pooler(x).data, expected, rtol=1e-12)


@every_kind
@every_head
def test_names_load_strictly_also_by_way_of_the_published_ones(kind, head):
    model, other = shaken(small(kind, head)), shaken(small(kind, head))
    published = to_published(kind, model.state_dict())
    other.load_state_dict(from_published(kind, other.state_dict(), published))
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(other.state_dict()[name], value)
    x = ids(2, 5)
    np.testing.assert_array_equal(other(x).data, model(x).data)
    if head:
        headless = {name: value for name, value in model.state_dict().items() if not name.startswith(("head", "pooler"))}
        with pytest.raises(ValueError, match=r"missing: head\."):
            other.load_state_dict(headless)


def test_defaults_are_the_published_ones():
    b, r, d = models.BertConfig(), models.RobertaConfig(), models.DistilBertConfig()
    assert (b.vocab_size, b.hidden_size, b.num_hidden_layers, b.num_attention_heads, b.intermediate_size) == (
        30522, 768, 12, 12, 3072)
    assert (b.hidden_act, b.layer_norm_eps, b.max_position_embeddings, b.type_vocab_size, b.pad_token_id) == (
        "gelu", 1e-12, 512, 2, 0)
    assert dataclasses.asdict(r) == dataclasses.asdict(b) | dict(vocab_size=50265, pad_token_id=1)
    for name in ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size", "hidden_act", "layer_norm_eps",
                 "hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings", "initializer_range"):
        assert getattr(d, name) == getattr(b, name), name
    assert (d.num_hidden_layers, d.type_vocab_size, d.seq_classif_dropout) == (6, 0, 0.2)
    assert [c.model_type for c in (b, r, d)] == ["bert", "roberta", "distilbert"]


# ---- dropout and bad input -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("kind, head, options, others", [
    ("bert", "sequence", {"classifier_dropout": 0.3}, {"pooler.dropout": 0.0, "head.0": 0.3}),
    ("bert", "token", {}, {"head.0": 0.1}),
    ("roberta", "sequence", {"classifier_dropout": 0.3}, {"head.0.dropout": 0.3, "head.1": 0.3}),
    ("distilbert", "sequence", {"seq_classif_dropout": 0.3}, {"head.0.dropout": 0.0, "head.1": 0.3}),
    ("distilbert", "token", {}, {"head.0": 0.1})])
def test_dropouts_are_where_the_published_models_have_them(kind, head, options, others):
    everywhere, weights = (("dropout", "attention_dropout") if kind == "distilbert" else
                           ("hidden_dropout_prob", "attention_probs_dropout_prob"))
    options = {"classifier_dropout": None, **options} if kind != "distilbert" else options
    model = small(kind, head, **{everywhere: 0.1, weights: 0.2, **options})
    rates = {name: m.p for name, m in model.named_modules() if isinstance(m, nn.Dropout)}
    block = {"attn.dropout": 0.2, "ff.net.2": 0.0, "dropout": 0.1}
    if kind == "distilbert":
        block |= {"dropout": 0.0, "ff.net.4": 0.1}
    assert rates == {"drop": 0.1} | others | {f"layers.{i}.{name}": p for i in range(2) for name, p in block.items()}
    x = ids(2, 8)
    assert (model(x).data != model(x).data).any()
    model.eval()
    np.testing.assert_array_equal(model(x).data, model(x).data)


@every_kind
def test_the_embeddings_are_dropped_behind_their_norm(kind):
    option = {"distilbert": {"n_layers": 0, "dropout": 1.0}}.get(kind, {"num_hidden_layers": 0, "hidden_dropout_prob": 1.0})
    model = shaken(small(kind, None, **option))
    assert not model(ids(2, 5)).data.any() and model.eval()(ids(2, 5)).data.all()


@pytest.mark.parametrize("call, error, says", [
    (lambda m: m(ids(1, 15)), ValueError, "15 .* 14"), (lambda m: m(ids(5)), ValueError, r"\(B, T\), got \(5,\)"),
    (lambda m: m(ids(1, 5) / 1), TypeError, "integers"), (lambda m: m(np.array([[V]])), IndexError, str(V)),
    (lambda m: m(np.array([[-1]])), IndexError, "-1"),
    (lambda m: m(ids(2, 5), np.ones((2, 4), int)), ValueError, r"\(2, 4\)"),
    (lambda m: m(ids(2, 5), np.ones((2, 5))), TypeError, "attention_mask"),
    (lambda m: m(ids(2, 5), np.full((2, 5), 2)), ValueError, "attention_mask"),
    (lambda m: m(ids(2, 5), None, np.zeros((2, 4), int)), ValueError, r"token_type_ids .*\(2, 4\).* \(2, 5\)"),
    (lambda m: m(ids(2, 5), None, np.zeros((1, 5), int)), ValueError, r"token_type_ids .*\(1, 5\)"),
    (lambda m: m(ids(2, 5), None, np.full((2, 5), 2)), IndexError, "2"),
    (lambda m: m(ids(2, 5), None, np.zeros((2, 5))), TypeError, "integers")])
def test_input_that_cannot_be(call, error, says):
    with pytest.raises(error, match=says):
        call(small())


def test_roberta_is_shorter_by_its_padding_and_distilbert_knows_no_token_types():
    assert small("roberta")(ids(1, 12)).shape == (1, 12, V)
    with pytest.raises(ValueError, match="13 .* 12"):
        small("roberta")(ids(1, 13))
    with pytest.raises(ValueError, match="no token types"):
        small("distilbert")(ids(1, 3), None, np.zeros((1, 3), int))


def test_configurations_that_cannot_be():
    with pytest.raises(ValueError, match="d_model 16 .* num_heads 5"):
        small(num_attention_heads=5)
    for kind, option in (("bert", "hidden_act"), ("distilbert", "activation")):
        with pytest.raises(ValueError, match="unknown activation 'mish': use one of gelu, .*relu, silu, tanh, gelu_new"):
            small(kind, **{option: "mish"})
    for wrong in SIZES, {}, models.GPT2Config():
        with pytest.raises(TypeError, match=r"BertConfig\(\*\*config\)"):
            models.BERT(wrong)
    for head in "lm", "classifier", "MLM":
        with pytest.raises(ValueError, match=f"'mlm', 'sequence', 'token', None; got '{head}'"):
            small("bert", head)
    with pytest.raises(ValueError, match="padding_idx"):
        small(pad_token_id=V)
