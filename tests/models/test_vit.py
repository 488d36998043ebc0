"""ViT: against transformers, slopes, where the class token looks, dropouts, names, and input that cannot be."""
import dataclasses
import math

import numpy as np
import pytest
from double import here

import minitx as mt
from minitx import models, nn, tensor
from minitx.models.weights import from_published, to_published

RNG = np.random.default_rng(0)
C = 16
SIZES = dict(hidden_size=C, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24, image_size=(8, 12),
             patch_size=4, num_channels=2, num_labels=3)
SHAPE = 2, 8, 12
# transformers' names in memory, for those in the files
IN_MEMORY = {"vit.encoder.layer.": "vit.layers.", "attention.attention.query": "attention.q_proj",
             "attention.attention.key": "attention.k_proj", "attention.attention.value": "attention.v_proj",
             "attention.output.dense": "attention.o_proj", "intermediate.dense": "mlp.fc1", "output.dense": "mlp.fc2"}


def small(head="image", **options):
    return models.ViT(models.ViTConfig(**{**SIZES, **options}), head)


def shaken(model, dtype=np.float64):
    """Away from the zeros and ones of the start."""
    model.to(dtype=dtype)
    for p in model.parameters():
        p.data += mt.tensor((RNG.standard_normal(p.shape) * 0.2).astype(dtype)).data
    return model


def images(n, *shape, dtype=np.float64):
    return RNG.standard_normal((n, *(shape or SHAPE))).astype(dtype)


def close(ours, theirs, tol, name="", measure=None):
    theirs, measure = theirs.detach().numpy(), (theirs if measure is None else measure).detach().numpy()
    assert ours.shape == theirs.shape, name
    assert np.abs(here(ours) - theirs).max() <= tol * max(np.abs(measure).max(), 1e-3), name


def in_memory(published, head):
    """{name in a file: array} by the names that transformers uses once it is loaded."""
    renamed = {}
    for name, array in published.items():
        for old, new in IN_MEMORY.items():
            name = name.replace(old, new)
        renamed[name if head else name.removeprefix("vit.")] = array
    return renamed


def twin(model, head):
    """The published model with the same weights. Its pooler, which is no part of ours, stays as it was drawn."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    cls = transformers.ViTForImageClassification if head else transformers.ViTModel
    options = {} if head else {"add_pooling_layer": False}
    theirs = cls(transformers.ViTConfig(**dataclasses.asdict(model.config), attn_implementation="eager"), **options)
    theirs.to(torch.float64 if model.positions.weight.dtype == np.float64 else torch.float32).eval()
    published = in_memory(to_published("vit", model.state_dict()), head)
    theirs.load_state_dict({name: torch.tensor(here(value)) for name, value in published.items()})
    return theirs


@pytest.mark.filterwarnings("ignore::EncodingWarning")                  # transformers itself opens files without
@pytest.mark.parametrize("dtype, tol", [(np.float64, 1e-9), (np.float32, 2e-5)])
@pytest.mark.parametrize("head, options", [
    ("image", {}), (None, {}), ("image", dict(image_size=6, patch_size=(3, 2), num_channels=1)),
    (None, dict(qkv_bias=False, layer_norm_eps=1e-3)), ("image", dict(hidden_act="gelu_new", num_labels=1))],
    ids=["published", "no head", "patches not square", "no qkv_bias", "tanh form of gelu"])
def test_values_and_gradients_are_the_published_models(head, options, dtype, tol, monkeypatch):
    torch = pytest.importorskip("torch")
    model = shaken(small(head, **options), dtype)
    theirs = twin(model, head)
    if dtype == np.float64:                                             # theirs computes softmax in float32 throughout
        softmax = torch.nn.functional.softmax
        monkeypatch.setattr(torch.nn.functional, "softmax", lambda x, dim, dtype=None: softmax(x, dim))
    x = images(3, *((1, 6, 6) if "image_size" in options else SHAPE), dtype=dtype)
    ours, weights = model(x, return_weights=True)
    found = theirs(torch.tensor(x), output_attentions=True)
    expected = found.logits if head else found.last_hidden_state
    close(ours.data, expected, tol)
    for w, attention in zip(weights, found.attentions, strict=True):
        close(w.data, attention, tol)
    dy = (RNG.standard_normal(ours.shape) / ours.size).astype(dtype)
    ours.backward(dy)
    expected.backward(torch.tensor(dy))
    gradients = in_memory(to_published("vit", {name: p.grad for name, p in model.named_parameters()}), head)
    parameters = dict(theirs.named_parameters())
    assert set(gradients) == set(parameters)
    for name, gradient in gradients.items():                        # a key's bias moves no weight: 0, but for rounding
        close(gradient, parameters[name].grad, tol, name, parameters[name.replace("k_proj.bias", "q_proj.bias")].grad)


def test_defaults_are_the_published_ones():
    c = models.ViTConfig()
    assert (c.hidden_size, c.num_hidden_layers, c.num_attention_heads, c.intermediate_size) == (768, 12, 12, 3072)
    assert (c.image_size, c.patch_size, c.num_channels, c.num_labels) == (224, 16, 3, 2)
    assert (c.hidden_act, c.layer_norm_eps, c.initializer_range, c.qkv_bias) == ("gelu", 1e-12, 0.02, True)
    assert (c.hidden_dropout_prob, c.attention_probs_dropout_prob, c.model_type) == (0.0, 0.0, "vit")


@pytest.mark.parametrize("head", ["image", None])
def test_directional_derivative_in_float64(head):
    model, x = shaken(small(head)), images(2)
    dy = RNG.standard_normal(model(x).shape)
    model(x).backward(dy)
    parameters = list(model.parameters())
    n = sum(p.size for p in parameters)
    direction = [RNG.standard_normal(p.shape) / math.sqrt(n) for p in parameters]      # of length 1
    slope = sum((here(p.grad) * d).sum() for p, d in zip(parameters, direction))

    def at(h):
        for p, d in zip(parameters, direction):
            p.data += mt.tensor(h * d).data
        value = (model(x).numpy() * dy).sum()
        for p, d in zip(parameters, direction):
            p.data -= mt.tensor(h * d).data
        return value

    h = 1e-3                                                            # and an error of order h^4
    numeric = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)
    assert numeric == pytest.approx(slope, rel=1e-7)


@pytest.mark.parametrize("head", ["image", None])
def test_weights_are_given_one_a_layer_and_change_nothing(head):
    model, x = shaken(small(head)), images(2)
    out, weights = model(x, return_weights=True)
    np.testing.assert_array_equal(out.data, model(x).data)
    assert [w.shape for w in weights] == [(2, 4, 7, 7)] * 2
    for w in weights:
        np.testing.assert_allclose(w.data.sum(-1), 1, rtol=1e-12)


def test_the_class_token_looks_where_its_query_says():
    """One layer whose keys tell the number in a patch, and a class token that asks for large ones."""
    model = small(num_hidden_layers=1, num_attention_heads=1, num_channels=1, image_size=8)
    for p in model.parameters():
        p.data[...] = 0
    block = model.encoder.layers[0]
    model.patches.proj.weight.data[0] = 1 / 16                          # channel 0: the mean of the patch
    block.norm1.weight.data[...] = 1
    block.attn.w_k.weight.data[0, 0] = 1
    block.attn.w_q.bias.data[0] = 20
    x = np.zeros((4, 1, 8, 8), np.float32)
    for i, (row, column) in enumerate([(0, 0), (0, 4), (4, 0), (4, 4)]):
        x[i, 0, row:row + 4, column:column + 4] = 1
    _, weights = model(x, return_weights=True)
    assert weights[0].data[:, 0, 0, 1:].argmax(-1).tolist() == [0, 1, 2, 3]         # row after row


def test_the_head_reads_the_class_token_alone():
    model = shaken(small())
    bare = small(None).to(dtype=np.float64)
    bare.load_state_dict({name: value for name, value in model.state_dict().items() if "classifier" not in name})
    x = images(2)
    hidden = bare(x)
    assert hidden.shape == (2, 1 + 2 * 3, C)
    np.testing.assert_array_equal(model(x).data, model.classifier(hidden[:, 0]).data)
    np.testing.assert_allclose(model(x[:1]).data, model(x).data[:1], rtol=0, atol=1e-12)    # each image by itself
    np.testing.assert_array_equal(model(tensor(x)).data, model(x).data)


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("head", ["image", None])
@pytest.mark.parametrize("size", [(8, 12), (4, 4)])                     # and an image of one patch
def test_small_batches_and_images(n, head, size):
    model = small(head, image_size=size)
    out = model(images(n, 2, *size, dtype=np.float32))
    assert out.shape == ((n, 3) if head else (n, 1 + size[0] * size[1] // 16, C)) and out.dtype == np.float32
    out.backward(np.ones(out.shape, np.float32))
    assert all(p.grad.shape == p.shape and p.grad.dtype == np.float32 for p in model.parameters())
    assert n or not any(p.grad.any() for p in model.parameters())


def test_initial_values():
    model = small(hidden_size=64, initializer_range=0.05)
    for name, p in model.named_parameters():
        if p.ndim > 1 and p.size > 500:
            assert p.numpy().std() == pytest.approx(0.05, rel=0.15), name
        elif p.ndim > 1:
            assert 0.02 < p.numpy().std() < 0.1, name
        else:
            assert (p.data == (1 if name.endswith("weight") else 0)).all(), name


def test_the_parts_are_built_as_the_config_says():
    model = small(hidden_act="relu", layer_norm_eps=1e-3, image_size=(6, 4), patch_size=(3, 2))
    assert model(images(2, 2, 6, 4, dtype=np.float32)).shape == (2, 3) and model.patches.grid == (2, 2)
    assert {m.eps for m in model.modules() if isinstance(m, nn.LayerNorm)} == {1e-3}
    assert all(block.norm_first and type(block.ff.net[1]) is nn.ReLU for block in model.encoder.layers)


@pytest.mark.parametrize("head", ["image", None])
@pytest.mark.parametrize("qkv_bias", [True, False])
def test_names_load_strictly_also_by_way_of_the_published_ones(head, qkv_bias):
    model, other = (shaken(small(head, qkv_bias=qkv_bias)) for _ in range(2))
    assert ("encoder.layers.0.attn.w_q.bias" in model.state_dict()) == qkv_bias
    published = to_published("vit", model.state_dict())
    assert published["vit.embeddings.cls_token"].shape == (1, 1, C)
    assert published["vit.embeddings.position_embeddings"].shape == (1, 7, C)
    other.load_state_dict(from_published("vit", other.state_dict(), published))
    x = images(2)
    np.testing.assert_array_equal(other(x).data, model(x).data)
    with pytest.raises(ValueError, match="missing: class_token.weight"):
        other.load_state_dict({name: value for name, value in model.state_dict().items() if "class_token" not in name})


def test_dropouts_are_where_the_published_model_has_them():
    model = small(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.2)
    rates = {name: m.p for name, m in model.named_modules() if isinstance(m, nn.Dropout)}
    assert rates == {"drop": 0.1} | {f"encoder.layers.{i}.{name}": p for i in range(2) for name, p in
                                     (("attn.dropout", 0.2), ("ff.net.2", 0.0), ("dropout", 0.1))}
    x = images(2, dtype=np.float32)
    assert (model(x).data != model(x).data).any()
    model.eval()
    np.testing.assert_array_equal(model(x).data, model(x).data)
    model = shaken(small(None, num_hidden_layers=0, hidden_dropout_prob=1.0))
    np.testing.assert_array_equal(model(images(1)).data - model.encoder.norm.bias.data, 0)      # nothing came through


@pytest.mark.parametrize("shape", [(1, 3, 8, 12), (1, 2, 12, 8), (1, 2, 8, 16), (1, 8, 12), (8, 12), (1, 8, 12, 2)])
def test_images_that_cannot_be(shape):
    says = rf"images must be \(B, 2, 8, 12\), got \({', '.join(map(str, shape))}\)"
    for x in np.ones(shape, np.float32), np.ones(shape, np.float32).tolist():
        with pytest.raises(ValueError, match=says):
            small()(x)


def test_images_of_another_dtype():
    with pytest.raises(TypeError, match="float32, float64; bring them to one"):
        small()(images(1))
    pixels = RNG.integers(0, 256, (1, *SHAPE)).astype(np.uint8)
    model = small()
    assert model(mt.tensor(pixels)).dtype == np.float32
    np.testing.assert_array_equal(model(mt.tensor(pixels)).data, model(pixels.astype(np.float32)).data)


def test_configurations_that_cannot_be():
    with pytest.raises(ValueError, match="4 x 5 .* 8 x 12"):
        small(patch_size=(4, 5))
    with pytest.raises(ValueError, match="img_size .* 8.5"):
        small(image_size=8.5)
    with pytest.raises(ValueError, match="d_model 16 .* num_heads 5"):
        small(num_attention_heads=5)
    with pytest.raises(ValueError, match="unknown activation 'mish': use one of gelu, .*relu, silu, tanh, gelu_new"):
        small(hidden_act="mish")
    for wrong in SIZES, {}, 224, models.BertConfig():
        with pytest.raises(TypeError, match=r"ViTConfig\(\*\*config\)"):
            models.ViT(wrong)
    for head in "mlm", "classifier", "":
        with pytest.raises(ValueError, match=f"'image', None; got '{head}'"):
            small(head)
