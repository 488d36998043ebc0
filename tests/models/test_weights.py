"""The way between our names and layouts and the published ones, there and back, and what is said where it is barred."""
import re

import numpy as np
import pytest

from minitx import models, nn
from minitx.models import weights
from minitx.models.weights import from_published, to_published

RNG = np.random.default_rng(0)
BERT = dict(vocab_size=13, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
            max_position_embeddings=6)
T5 = dict(vocab_size=13, d_model=8, d_kv=3, d_ff=12, num_layers=2, num_decoder_layers=3, num_heads=2)


def families():
    """(model_type, model): every family with every head, and every option that changes the names or the layouts."""
    for head in "lm", None:
        yield models.GPT2(models.GPT2Config(13, 6, 8, 12, 2), head)         # layers of one digit and of two
        yield models.GPT2(models.GPT2Config(13, 6, 8, 2, 2, bias=False, tie_word_embeddings=False), head)
        yield models.Llama(models.LlamaConfig(13, 8, 12, 2, 2, 1, attention_bias=True, mlp_bias=True), head)
        yield models.T5(models.T5Config(**T5), head)
        yield models.T5(models.T5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False), head)
        yield models.BART(models.BartConfig(13, 6, 2, 12, 2, 3, 12, 2, d_model=8), head)
        untied = models.BART(models.BartConfig(13, 6, 1, 12, 2, 1, 12, 2, d_model=8, tie_word_embeddings=False), head)
        untied.decoder_embed = nn.Embedding(13, 8)
        yield untied
    for head in "mlm", "sequence", "token", None:
        yield models.BERT(models.BertConfig(**BERT), head)
        yield models.BERT(models.RobertaConfig(**BERT, type_vocab_size=1), head)
        yield models.BERT(models.DistilBertConfig(13, 6, 2, 2, 8, 12), head)
    for head in "image", None:
        yield models.ViT(models.ViTConfig(8, 2, 2, 12, image_size=6, patch_size=3), head)


FAMILIES = list(families())
NAMES = [f"{model.config.model_type}-{i}" for i, model in enumerate(FAMILIES)]
every_family = pytest.mark.parametrize("model", FAMILIES, ids=NAMES)


def drawn(model):
    """A state of that model's names and shapes, of random numbers."""
    return {name: RNG.standard_normal(array.shape).astype(np.float32) for name, array in model.state_dict().items()}


def same(found, expected):
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        np.testing.assert_array_equal(found[name], array, err_msg=name, strict=True)


@every_family
def test_there_and_back_is_the_same_bit_for_bit(model):
    state, model_type = drawn(model), model.config.model_type
    published = to_published(model_type, state)
    assert sum(array.size for array in published.values()) == sum(array.size for array in state.values())
    same(from_published(model_type, list(state), published), state)
    same(to_published(model_type, from_published(model_type, state, published)), published)


@every_family
def test_a_file_without_the_prefix_is_read_as_one_with_it(model):
    state, model_type = drawn(model), model.config.model_type
    bare = {name.removeprefix(weights.PREFIX[model_type]): array
            for name, array in to_published(model_type, state).items()}
    same(from_published(model_type, state, bare), state)
    model.load_state_dict(from_published(model_type, state, to_published(model_type, model.state_dict())))


def test_every_family_has_a_prefix_and_every_row_of_its_table_is_somebodys():
    assert set(weights.PREFIX) == set(weights.TABLES) == {model.config.model_type for model in FAMILIES}
    for model_type, table in weights.TABLES.items():
        names = [name for model in FAMILIES if model.config.model_type == model_type
                 for name in to_published(model_type, model.state_dict())]
        for row in filter(None, map(str.split, table.splitlines())):
            path = re.escape(row[1]).replace(r"\*", r"\w+") + r"(\.\w+)*"
            assert any(re.fullmatch(path, name) for name in names), row


def test_gpt2_stores_three_matrices_as_one_and_all_of_them_transposed():
    state = {"h.7.attn.w_q.weight": np.array([[1, 2], [3, 4]]), "h.7.attn.w_v.weight": np.array([[9, 10], [11, 12]]),
             "h.7.attn.w_k.weight": np.array([[5, 6], [7, 8]]), "h.7.attn.w_k.bias": np.array([3, 4]),
             "h.7.attn.w_q.bias": np.array([1, 2]), "h.7.attn.w_v.bias": np.array([5, 6]),
             "h.7.ff.net.0.weight": np.array([[1, 2], [3, 4], [5, 6]]), "wte.weight": np.array([[1, 2], [3, 4]])}
    same(to_published("gpt2", state), {
        "transformer.h.7.attn.c_attn.weight": np.array([[1, 3, 5, 7, 9, 11], [2, 4, 6, 8, 10, 12]]),
        "transformer.h.7.attn.c_attn.bias": np.array([1, 2, 3, 4, 5, 6]),
        "transformer.h.7.mlp.c_fc.weight": np.array([[1, 3, 5], [2, 4, 6]]),
        "transformer.wte.weight": np.array([[1, 2], [3, 4]])})


def test_an_axis_in_front():
    assert to_published("vit", {"class_token.weight": np.ones((1, 4))})["vit.embeddings.cls_token"].shape == (1, 1, 4)
    published = {"embeddings.position_embeddings": np.ones((1, 5, 4))}
    assert from_published("vit", ["positions.weight"], published)["positions.weight"].shape == (5, 4)


def test_what_only_lies_in_another_order_is_not_copied():
    state = drawn(FAMILIES[0])
    published = to_published("gpt2", state)
    for ours, theirs in (("wte.weight", "wte.weight"), ("h.1.ff.net.3.weight", "h.1.mlp.c_proj.weight")):
        assert np.shares_memory(state[ours], published["transformer." + theirs])
    for name, array in from_published("gpt2", state, published).items():
        assert any(np.shares_memory(array, theirs) for theirs in published.values()), name


def test_what_the_file_lacks_is_left_out():
    state = drawn(FAMILIES[0])
    published = to_published("gpt2", state)
    del published["lm_head.weight"], published["transformer.h.3.attn.c_attn.bias"]
    lacking = {"lm_head.weight"} | {f"h.3.attn.w_{part}.bias" for part in "qkv"}
    same(from_published("gpt2", state, published), {n: a for n, a in state.items() if n not in lacking})
    found = from_published("gpt2", ["h.0.attn.w_k.bias"], {"h.0.attn.c_attn.bias": np.arange(6)})     # one part asked for
    same(found, {"h.0.attn.w_k.bias": np.array([2, 3])})


@pytest.mark.parametrize("call, says", [
    (lambda: to_published("gpt3", {}), "'gpt3', only for gpt2, llama, .*bart"),
    (lambda: from_published("gpt3", [], {}), "'gpt3', only for gpt2, llama, .*bart"),
    (lambda: to_published("gpt2", {"wte.weight": 0, "h.x.norm1.weight": 0, "head": 0}),
     "gpt2: no published name is known for h.x.norm1.weight, head$"),
    (lambda: from_published("llama", ["h.0.norm1.weight"], {}), "llama: no .* known for h.0.norm1.weight$"),
    (lambda: to_published("gpt2", {"h.0.attn.w_v.bias": np.ones(2), "h.0.attn.w_q.bias": np.ones(2)}),
     r"gpt2: transformer.h.0.attn.c_attn.bias .* 3 parts, .* only h.0.attn.w_v.bias, h.0.attn.w_q.bias$"),
    (lambda: from_published("gpt2", ["wte.weight"], {"wte.weight": np.ones(1), "h.0.attn.masked_bias": 0, "x": 0}),
     "gpt2: .* no place for h.0.attn.masked_bias, x$"),
    (lambda: from_published("gpt2", ["h.0.attn.w_q.weight"], {"h.0.attn.c_attn.weight": np.ones((2, 7))}),
     r"gpt2: h.0.attn.c_attn.weight \(2, 7\) cannot be cut into 3 parts")])
def test_what_does_not_fit(call, says):
    with pytest.raises(ValueError, match=says):
        call()


@every_family
def test_the_shapes_that_are_stored_are_known_without_an_array(model):
    state, model_type = model.state_dict(), model.config.model_type
    groups = weights.grouped(model_type, state)
    for name, array in to_published(model_type, state).items():
        assert weights.stored_shape(state[groups[name][0].ours].shape, groups[name]) == array.shape, name


def test_an_axis_that_is_not_of_length_one():
    with pytest.raises(ValueError, match=r"vit.embeddings.cls_token \(2, 1, 8\) must begin with an axis of length 1"):
        weights.from_published("vit", ["class_token.weight"], {"vit.embeddings.cls_token": np.zeros((2, 1, 8))})
    with pytest.raises(ValueError, match="cannot be cut"):
        weights.from_published("gpt2", ["h.0.attn.w_q.bias"], {"transformer.h.0.attn.c_attn.bias": np.zeros(())})
