"""Published folders: every file name that was ever usual, what does not fit, and transformers' numbers there and back."""
import json
import os
import struct
import tracemalloc
import warnings

import numpy as np
import pytest

import minitx as mt
from minitx import checkpoint, models, nn, ops, optim
from minitx.models import legacy
from minitx.models.weights import PREFIX, to_published

safetensors = pytest.importorskip("safetensors")

BERT = dict(vocab_size=13, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
            max_position_embeddings=9)
BART = dict(vocab_size=13, max_position_embeddings=9, encoder_layers=2, encoder_ffn_dim=12, encoder_attention_heads=2,
            decoder_layers=1, decoder_ffn_dim=16, decoder_attention_heads=4, d_model=8)
T5 = dict(vocab_size=13, d_model=8, d_kv=3, d_ff=12, num_layers=2, num_decoder_layers=1, num_heads=2)
VIT = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12, image_size=6, patch_size=3)


def gpt2(head="lm", **options):
    return models.GPT2(models.GPT2Config(13, 9, 8, 2, 2, **options), head)


def llama(head="lm", **options):
    return models.Llama(models.LlamaConfig(13, 8, 12, 2, 2, 1, **options), head)


def bert(head="mlm", **options):
    return models.BERT(models.BertConfig(**BERT, **options), head)


def roberta(head="mlm", **options):
    return models.BERT(models.RobertaConfig(**BERT, **options), head)


def distilbert(head="mlm", **options):
    return models.BERT(models.DistilBertConfig(13, 9, 2, 2, 8, 12, **options), head)


def t5(head="lm", **options):
    return models.T5(models.T5Config(**T5, **options), head)


def bart(head="lm", **options):
    return models.BART(models.BartConfig(**BART, **options), head)


def vit(head="image", **options):
    return models.ViT(models.ViTConfig(**VIT, **options), head)


FAMILIES = [gpt2, llama, bert, roberta, distilbert, t5, bart, vit]
every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
EVERY = [(family, head, options) for family in FAMILIES for head in family().heads for options in (
    {}, *({"tie_word_embeddings": tied} for tied in (True, False) if family is not vit and head in ("lm", "mlm")))]
every_model = pytest.mark.parametrize("family, head, options", EVERY, ids=[
    f"{family.__name__} {head} {options.get('tie_word_embeddings', '')}" for family, head, options in EVERY])


def drawn(model):
    """The model with all its numbers drawn anew, biases and norms too."""
    for i, tensor in enumerate(model.saved().values()):
        tensor.data = np.random.default_rng(i).standard_normal(tensor.shape).astype(np.float32)
    return model


def stored(folder):
    """What lies in a folder's one file."""
    return checkpoint.load(folder / "model.safetensors")


def rewritten(folder, change):
    """The folder, its tensors replaced by those that `change` makes of them."""
    checkpoint.save(folder / "model.safetensors", change(stored(folder)))
    return folder


def reconfigured(folder, **settings):
    """The folder, with other fields in its config.json."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | settings), encoding="utf-8")
    return folder


def saved(model, folder):
    drawn(model).save_pretrained(folder)
    return folder


def same(found, expected):
    """Both models hold the same state under the same names."""
    found, expected = found.state_dict(), expected.state_dict()
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name, strict=True)


def run(model):
    """What a model gives for some input."""
    rng, kind = np.random.default_rng(0), model.config.model_type
    if kind == "vit":
        return model(rng.standard_normal((2, 3, 6, 6)).astype(model.classifier.weight.dtype)).data
    ids = rng.integers(2, 13, (2, 5))
    return (model(ids, ids[:, :4]) if kind in ("t5", "bart") else model(ids)).data


@every_model
def test_there_and_back(family, head, options, tmp_path):
    model = drawn(family(head, **options))
    model.save_pretrained(tmp_path / "new" / "folder")
    found = models.from_pretrained(str(tmp_path / "new" / "folder"))
    same(found, model)
    assert type(found) is type(model) and found.head_name == head and type(found.config) is type(model.config)
    assert {id(p) for p in found.parameters()}.isdisjoint(id(p) for p in model.parameters())
    assert len(list(found.parameters())) == len(list(model.parameters()))                   # tied where it is
    assert not any(module.training for module in found.modules())
    for name, tensor in found.saved().items():
        flags = tensor.data.flags
        assert flags.c_contiguous and flags.owndata and getattr(flags, "writeable", True), name
        assert tensor.requires_grad == isinstance(tensor, nn.Parameter), name
    assert checkpoint.metadata(tmp_path / "new" / "folder" / "model.safetensors") == {"format": "pt"}
    assert sorted(os.listdir(tmp_path / "new" / "folder")) == ["config.json", "model.safetensors"]


def test_what_was_read_can_be_trained(tmp_path):
    model = models.from_pretrained(saved(gpt2(), tmp_path))
    before = {name: p.data.copy() for name, p in model.named_parameters()}
    ops.cross_entropy(model(np.array([[3, 4, 5]])), np.array([[4, 5, 6]])).backward()
    optim.AdamW(model.parameters(), lr=0.1).step()
    assert model.lm_head.weight is model.wte.weight
    assert all((p.data != before[name]).any() for name, p in model.named_parameters())


def test_tied_weights_are_stored_once_in_transformers_names(tmp_path):
    names = set(stored(saved(gpt2(), tmp_path)))
    assert "transformer.wte.weight" in names and "lm_head.weight" not in names
    assert stored(tmp_path)["transformer.h.1.attn.c_attn.weight"].shape == (8, 24)
    assert set(stored(saved(gpt2(None), tmp_path))) == {name.removeprefix("transformer.") for name in names}
    assert "cls.predictions.decoder.weight" not in stored(saved(bert(), tmp_path))
    text = (tmp_path / "config.json").read_text(encoding="utf-8")
    assert json.loads(text)["architectures"] == ["BertForMaskedLM"] and text.endswith("}\n")


@pytest.mark.parametrize("dtype", [None, np.float16, "float32", np.float64])
@pytest.mark.parametrize("kind", ["F16", "BF16", "F32", "F64"])
def test_the_dtype_asked_for(kind, dtype, tmp_path):
    state = stored(saved(bart(), tmp_path))
    if kind == "BF16":
        expected = {name: checkpoint.from_bfloat16(checkpoint.to_bfloat16(array)) for name, array in state.items()}
        bfloat16(tmp_path / "model.safetensors", state)
    else:
        expected = {name: array.astype("<f" + str(int(kind[1:]) // 8)) for name, array in state.items()}
        checkpoint.save(tmp_path / "model.safetensors", expected)
    model = models.from_pretrained(tmp_path, dtype=dtype)
    assert {array.dtype for array in model.state_dict().values()} == {np.dtype(dtype or np.float32)}
    for ours, theirs in (("shared.weight", "model.shared.weight"), ("lm_head.bias", "final_logits_bias")):
        wanted = expected[theirs].astype(dtype or np.float32).reshape(model.state_dict()[ours].shape)
        np.testing.assert_array_equal(model.state_dict()[ours], wanted)


def bfloat16(path, state):
    """Write {name: float32 array} as a file of bfloat16."""
    header, start = {}, 0
    for name, array in state.items():
        header[name] = {"dtype": "BF16", "shape": array.shape, "data_offsets": [start, start + 2 * array.size]}
        start += 2 * array.size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(
        checkpoint.to_bfloat16(array).astype("<u2").tobytes() for array in state.values()))


def test_the_default_dtype_and_one_that_is_no_float(tmp_path):
    saved(bart(), tmp_path)
    mt.set_default_dtype(np.float64)
    try:
        assert {array.dtype for array in models.from_pretrained(tmp_path).state_dict().values()} == {np.dtype(np.float64)}
    finally:
        mt.set_default_dtype(np.float32)
    with pytest.raises(TypeError, match="float16, float32 or float64"):
        models.from_pretrained(tmp_path, dtype=np.int8)


DEAD = {        # what old files hold besides
    gpt2: {"h.0.attn.bias": np.ones((1, 1, 9, 9), bool), "h.1.attn.masked_bias": np.array(-1e4, np.float32)},
    llama: {"layers.1.self_attn.rotary_emb.inv_freq": np.ones(2), "model.rotary_emb.inv_freq": np.ones(2)},
    bert: {"embeddings.position_ids": np.arange(9)[None], "cls.seq_relationship.weight": np.ones((2, 8)),
           "cls.seq_relationship.bias": np.ones(2), "pooler.dense.weight": np.ones((8, 8)), "pooler.dense.bias": np.ones(8)},
    roberta: {"embeddings.position_ids": np.arange(9)[None], "pooler.dense.weight": np.ones((8, 8)),
              "pooler.dense.bias": np.ones(8)},
    distilbert: {"embeddings.position_ids": np.arange(9)[None], "classifier.weight": np.ones((2, 8))},
    t5: {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": np.ones((32, 2))},
    bart: {"encoder.version": np.ones(1), "decoder.version": np.ones(1), "classification_head.dense.weight": np.ones(2)},
    vit: {"pooler.dense.weight": np.ones((8, 8)), "pooler.dense.bias": np.ones(8),
          "embeddings.mask_token": np.ones((1, 1, 8))},
}
TIED = {gpt2: ("wte.weight", "lm_head.weight"),
        bert: ("embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
        roberta: ("embeddings.word_embeddings.weight", "lm_head.decoder.weight"),
        distilbert: ("embeddings.word_embeddings.weight", "vocab_projector.weight"),
        t5: ("shared.weight", "lm_head.weight"), bart: ("shared.weight", "lm_head.weight")}
COPIES = {bert: [("cls.predictions.bias", "cls.predictions.decoder.bias")],
          roberta: [("lm_head.bias", "lm_head.decoder.bias")],
          t5: [("shared.weight", "encoder.embed_tokens.weight"), ("shared.weight", "decoder.embed_tokens.weight")],
          bart: [("shared.weight", "encoder.embed_tokens.weight"), ("shared.weight", "decoder.embed_tokens.weight")]}


def named(name, state, prefix):
    """The name, with the bare model's prefix or without, as it stands in a state."""
    return name if name in state else prefix + name


@every_family
@pytest.mark.parametrize("outer", ["", "module.", "0.auto_model."])
@pytest.mark.parametrize("bare", [True, False])
def test_old_files(family, outer, bare, tmp_path):
    model = family()
    prefix = PREFIX[model.config.model_type]

    def old(state):
        for first, second in [*COPIES.get(family, ()), TIED.get(family, (None, None))]:
            if first:
                first = named(first, state, prefix)
                state[(prefix if "embed_tokens" in second else "") + second] = state[first]
        state |= {(prefix if not bare and name.split(".")[0] not in ("cls", "model", "classifier", "classification_head")
                   else "") + name: array for name, array in DEAD[family].items()}
        if bare:
            state = {name.removeprefix(prefix): array for name, array in state.items()}
        return {outer + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"):
                array.copy() for name, array in state.items()}

    rewritten(saved(model, tmp_path), old)
    same(models.from_pretrained(tmp_path), model)


@pytest.mark.parametrize("family", COPIES)
def test_the_names_that_stand_in_for_another(family, tmp_path):
    model = family()
    prefix = PREFIX[model.config.model_type]
    for first, second in COPIES[family]:
        def moved(state):
            whole = named(first, state, prefix)
            return {name if name != whole else whole.removesuffix(first) + second: array for name, array in state.items()}

        same(models.from_pretrained(rewritten(saved(model, tmp_path), moved)), model)


@pytest.mark.parametrize("family", TIED)
def test_of_a_tied_head_one_name_is_enough(family, tmp_path):
    model = family()
    first, second = TIED[family]

    def moved(state):
        whole = named(first, state, PREFIX[model.config.model_type])
        return {second if name == whole else name: array for name, array in state.items()}

    found = models.from_pretrained(rewritten(saved(model, tmp_path), moved))
    same(found, model)
    assert len(list(found.parameters())) == len(list(model.parameters()))


@pytest.mark.parametrize("family", TIED)
def test_a_head_of_its_own_is_believed_against_the_config(family, tmp_path):
    """As transformers does since version 5, which warns too, but for T5, whose config always ties."""
    second, head = TIED[family][1], np.random.default_rng(1).standard_normal((13, 8)).astype(np.float32)
    rewritten(saved(family(), tmp_path), lambda state: state | {second: head})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = models.from_pretrained(tmp_path)
    assert [str(w.message) for w in caught if second not in str(w.message) or "differ" not in str(w.message)] == []
    assert len(caught) == (family is not t5) and all(w.filename == __file__ for w in caught)
    output = model.lm_head if hasattr(model, "lm_head") else model.head.decoder
    np.testing.assert_array_equal(output.weight.data, head)
    assert not model.config.tie_word_embeddings
    found = run(model)
    assert (found != run(family().eval())).any()
    model.save_pretrained(tmp_path)
    np.testing.assert_array_equal(run(models.from_pretrained(tmp_path)), found)             # now without a warning
    np.testing.assert_array_equal(stored(tmp_path)[second], head)


def test_a_t5_of_today_says_that_it_ties_and_does_not_scale(tmp_path):
    reconfigured(saved(t5(tie_word_embeddings=False), tmp_path), tie_word_embeddings=True, scale_decoder_outputs=False)
    expected = run(models.from_pretrained(reconfigured(tmp_path, tie_word_embeddings=False)))
    np.testing.assert_array_equal(run(models.from_pretrained(tmp_path)), expected)
    rewritten(tmp_path, lambda state: {name: array for name, array in state.items() if name != "lm_head.weight"})
    model = models.from_pretrained(tmp_path)
    assert model.lm_head.weight is model.shared.weight and not model.config.scale_decoder_outputs


def test_bart_untied_has_two_embeddings(tmp_path):
    theirs = {half: np.random.default_rng(ord(half[0])).standard_normal((13, 8)).astype(np.float32)
              for half in ("encoder", "decoder")}
    rewritten(saved(bart(tie_word_embeddings=False), tmp_path), lambda state: state | {
        f"model.{half}.embed_tokens.weight": array for half, array in theirs.items()})
    model = models.from_pretrained(tmp_path)
    np.testing.assert_array_equal(model.shared.weight.data, theirs["encoder"])
    np.testing.assert_array_equal(model.decoder_embed.weight.data, theirs["decoder"])
    ids, found = np.array([[3, 4, 5]]), run(model)
    memory = model.encode(ids).data
    model.shared.weight.data[...] = 0
    assert (model.encode(ids).data != memory).any()
    np.testing.assert_array_equal(model.decode(ids, memory).data, models.from_pretrained(tmp_path).decode(ids, memory).data)
    same(models.from_pretrained(saved(model, tmp_path / "again")), model)
    assert found.shape == (2, 4, 13)


def test_what_is_tied_by_hand_is_stored_under_each_name_where_the_config_does_not_tie(tmp_path):
    model = gpt2(tie_word_embeddings=False)
    model.lm_head.weight = model.wte.weight
    with safetensors.safe_open(saved(model, tmp_path) / "model.safetensors", framework="numpy") as file:
        assert {"transformer.wte.weight", "lm_head.weight"} <= set(file.keys())
    same(models.from_pretrained(tmp_path), model)


def test_a_tensor_that_is_two_in_the_file(tmp_path):
    rewritten(saved(t5(), tmp_path), lambda state: state | {"encoder.embed_tokens.weight": np.zeros((13, 8), np.float32)})
    with pytest.raises(ValueError, match="encoder.embed_tokens.weight and shared.weight are one tensor in the model"):
        models.from_pretrained(tmp_path)
    rewritten(saved(bert(), tmp_path), lambda state: state | {"cls.predictions.decoder.bias": np.zeros(13, np.float32)})
    assert models.from_pretrained(tmp_path, head=None).head is None         # which no one asks for
    with pytest.raises(ValueError, match="cls.predictions.decoder.bias and cls.predictions.bias are one"):
        models.from_pretrained(tmp_path)
    rewritten(saved(bert(), tmp_path), lambda state: state | {"embeddings.LayerNorm.gamma": np.zeros(8, np.float32)})
    with pytest.raises(ValueError, match="model.safetensors: bert.embeddings.LayerNorm.weight and embeddings.LayerNorm.gamma"
                                         "|model.safetensors: embeddings.LayerNorm.gamma and bert.embeddings"):
        models.from_pretrained(tmp_path)


@every_family
def test_nothing_that_a_model_needs_is_passed_over(family):
    model = family(None)
    if getattr(model, "pooler", None):
        model.pooler = None
    kind = model.config.model_type
    for name in to_published(kind, model.state_dict()):
        assert not legacy.is_passed(kind, name.removeprefix(PREFIX[kind])), name
    assert legacy.is_passed(kind, "lm_head.weight") == (family in (gpt2, llama, roberta, t5, bart))
    assert not legacy.is_passed(kind, "lm_head_of_mine") and not legacy.is_passed(kind, "my.lm_head")


def test_names_of_today():
    names = ["module.bert.embeddings.LayerNorm.gamma", "module.cls.predictions.bias", "module.pooler.gammas.beta"]
    assert legacy.todays_names("bert", names) == {
        "embeddings.LayerNorm.weight": names[0], "cls.predictions.bias": names[1], "pooler.gammas.bias": names[2]}
    assert legacy.todays_names("gpt2", ["transformer.wte.weight"]) == {"weight": "transformer.wte.weight"}
    assert legacy.todays_names("llama", ["model.norm.weight", "lm_head.weight"]) == {
        "norm.weight": "model.norm.weight", "lm_head.weight": "lm_head.weight"}


def test_a_head_that_is_not_asked_for_is_passed_over(tmp_path):
    for family in FAMILIES:
        model = saved(family(), tmp_path) and family(None)
        found = models.from_pretrained(tmp_path, head=None)
        assert found.head_name is None and not any("head" in name for name in found.state_dict())
        assert found.state_dict().keys() == {name for name in model.state_dict() if "pooler" not in name}
    assert models.from_pretrained(saved(bert("sequence"), tmp_path), head=None).pooler is not None
    assert models.from_pretrained(saved(roberta(), tmp_path), head=None).pooler is None


def test_the_heads_that_a_file_has(tmp_path):
    saved(gpt2(None), tmp_path)
    assert models.from_pretrained(tmp_path).head_name is None
    model = models.from_pretrained(tmp_path, head="lm")                     # all there is to a tied head
    assert model.lm_head.weight is model.wte.weight
    with pytest.raises(ValueError, match="'lm', None; got 'mlm'"):
        models.from_pretrained(tmp_path, head="mlm")
    saved(bert("token"), tmp_path)
    for head in "mlm", "sequence":
        with pytest.raises(ValueError, match=f"no head '{head}' in it, but head= may be 'token' or None\n  missing: "):
            models.from_pretrained(tmp_path, head=head)
    saved(bert("sequence"), tmp_path)
    assert models.from_pretrained(tmp_path, head="token").head_name == "token"              # both are one linear layer
    saved(llama(None), tmp_path)
    with pytest.raises(ValueError, match="no head 'lm' in it, but head= may be None\n  missing: lm_head.weight$"):
        models.from_pretrained(tmp_path, head="lm")
    bias = models.from_pretrained(saved(bart(None), tmp_path), head="lm", dtype=np.float64).lm_head.bias.data
    assert bias.dtype == np.float64 and not bias.any()                      # not trained: zeros


def test_all_that_does_not_fit_is_told_at_once(tmp_path):
    def spoil(state):
        del state["transformer.h.1.ln_2.bias"], state["transformer.h.0.attn.c_attn.weight"]
        state["transformer.wpe.weight"] = np.ones((8, 8), np.float32)
        state["transformer.ln_f.bias"] = np.ones(8, np.int64)
        state["transformer.h.0.mlp.c_fc.weight"] = np.ones((32, 8), np.float32)
        return state | {"transformer.h.2.ln_1.bias": np.ones(8), "adapter": np.ones(1)}

    with pytest.raises(ValueError) as caught:
        models.from_pretrained(rewritten(saved(gpt2(), tmp_path), spoil))
    lines = str(caught.value).split("\n  ")
    assert lines[0].endswith("model.safetensors: does not fit what config.json describes")
    assert lines[1:3] == ["missing: h.0.attn.c_attn.weight, h.1.ln_2.bias",
                          "unexpected: adapter, transformer.h.2.ln_1.bias"]
    assert sorted(lines[3:]) == [
        f"wrong shape or kind: transformer.{name}, the model has {shape} of floats" for name, shape in [
            ("h.0.mlp.c_fc.weight is (32, 8) of float32", (8, 32)), ("ln_f.bias is (8,) of int64", (8,)),
            ("wpe.weight is (8, 8) of float32", (9, 8))]]


def test_a_config_of_another_size(tmp_path):
    with pytest.raises(ValueError, match=r"wte.weight is \(13, 8\) of float32, the model has \(14, 8\)"):
        models.from_pretrained(reconfigured(saved(gpt2(), tmp_path), vocab_size=14))
    with pytest.raises(ValueError, match=r"unexpected: transformer.h.1.attn.c_attn.bias, "):
        models.from_pretrained(reconfigured(tmp_path, vocab_size=13, n_layer=1))
    with pytest.raises(ValueError, match=r"cls_token is \(1, 1, 8\)"):
        models.from_pretrained(reconfigured(saved(vit(), tmp_path), hidden_size=12, num_attention_heads=2))


def sharded(folder, n):
    """The folder with its tensors in n files and an index."""
    state, index = stored(folder), {}
    for i in range(n):
        file = f"model-{i + 1:05d}-of-{n:05d}.safetensors"
        part = dict(list(state.items())[i::n])
        checkpoint.save(folder / file, part)
        index |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}), encoding="utf-8")
    (folder / "model.safetensors").unlink()
    return folder


def test_shards(tmp_path):
    model = bert()
    sharded(saved(model, tmp_path), 3)
    same(models.from_pretrained(tmp_path), model)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ValueError, match="index.json: names files that are not beside it: model-00002-of-00003"):
        models.from_pretrained(tmp_path)


@pytest.mark.parametrize("text, says", [
    (None, None), ("", "config.json: no JSON"), ("{", "config.json: no JSON"), ("[1]", "must be a JSON object, not a list"),
    ("{}", "model_type must be one of gpt2, .*vit.* got None"), ('{"model_type": "mamba"}', "one of gpt2, .*; got 'mamba'"),
    (b"\xff", "config.json: no JSON"), ("[" * 100000, "config.json: ")])
def test_a_config_that_is_none(text, says, tmp_path):
    (saved(gpt2(), tmp_path) / "config.json").unlink()
    if text is not None:
        (tmp_path / "config.json").write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ValueError if says else FileNotFoundError, match=says or "config.json"):
        models.from_pretrained(tmp_path)


def test_weights_in_another_form(tmp_path):
    (saved(gpt2(), tmp_path) / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="neither model.safetensors nor model.safetensors.index.json"):
        models.from_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"anything")
    with pytest.raises(ValueError, match="pickle.*Convert it once.*save_file"):
        models.from_pretrained(tmp_path)


def test_the_way_to_convert_a_pickle(tmp_path, monkeypatch):
    """What the error says to type makes a file of tied weights, which share their memory."""
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    x = torch.arange(6.0).reshape(2, 3)
    torch.save({"a": x, "b": x}, tmp_path / "pytorch_model-00001-of-00002.bin")
    torch.save({"t": x.T}, tmp_path / "pytorch_model-00002-of-00002.bin")
    exec(checkpoint.CONVERT.removeprefix('python -c "').removesuffix('"'), {})
    assert {name: array.tolist() for name, array in stored(tmp_path).items()} == {
        "a": x.tolist(), "b": x.tolist(), "t": x.T.tolist()}


def test_a_file_in_place_of_a_folder(tmp_path):
    with pytest.raises(NotADirectoryError, match="model.safetensors is a file: give the folder"):
        models.from_pretrained(saved(gpt2(), tmp_path) / "model.safetensors")
    with pytest.raises(FileNotFoundError, match="nowhere: there is no such folder"):
        models.from_pretrained(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["~no-such-user/x", "n" * 300, "a/" + "n" * 300, "n" * 5000, "a\0b"])
def test_names_that_no_folder_has(name, cache):
    with pytest.raises(FileNotFoundError, match="there is no"):
        models.from_pretrained(name)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of downloaded models."""
    for name in "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME":
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub"


def test_a_name_is_looked_up_among_what_was_downloaded(cache):
    model = gpt2()
    folder = cache / "models--org--tiny.gpt2"
    with pytest.raises(FileNotFoundError) as caught:
        models.from_pretrained("org/tiny.gpt2")
    assert "hf download org/tiny.gpt2" in str(caught.value) and str(cache) in str(caught.value)
    saved(model, folder / "snapshots" / "abc")
    same(models.from_pretrained("org/tiny.gpt2"), model)                    # any snapshot, where none is the main one
    other = bert()
    saved(other, folder / "snapshots" / "def")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("def", encoding="utf-8")
    same(models.from_pretrained("org/tiny.gpt2"), other)
    (folder / "snapshots" / "def" / "config.json").unlink()                 # a download that was not finished
    same(models.from_pretrained("org/tiny.gpt2"), model)
    saved(other, cache / "models--gpt2" / "snapshots" / "1")
    same(models.from_pretrained("gpt2"), other)
    saved(model, cache.parent / "gpt2")                                     # a folder of that name comes first
    same(models.from_pretrained("gpt2"), model)


@pytest.mark.parametrize("name, below", [("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub"),
                                         ("XDG_CACHE_HOME", "huggingface/hub"), ("HOME", ".cache/huggingface/hub")])
def test_where_downloads_lie(name, below, cache, tmp_path, monkeypatch):
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv(name, str(tmp_path / "there"))
    if name == "HOME":
        monkeypatch.setenv("USERPROFILE", str(tmp_path / "there"))          # Windows' word for it
    saved(gpt2(), tmp_path / "there" / below / "models--a--b" / "snapshots" / "1")
    assert models.from_pretrained("a/b").config.n_embd == 8


def test_the_ids_of_generation_config(tmp_path):
    def read(family, text):
        (saved(family(), tmp_path) / "generation_config.json").write_text(text, encoding="utf-8")
        return models.from_pretrained(tmp_path).config

    assert read(gpt2, '{"eos_token_id": [3, 5], "decoder_start_token_id": 4, "top_k": 7}').eos_token_id == [3, 5]
    config = read(t5, '{"decoder_start_token_id": 4, "eos_token_id": null}')
    assert (config.decoder_start_token_id, config.eos_token_id) == (4, None)        # that file alone counts
    config = read(bart, '{"forced_bos_token_id": 7}')
    assert (config.forced_bos_token_id, config.forced_eos_token_id, config.decoder_start_token_id) == (7, None, 2)
    assert read(bert, '{"eos_token_id": 5}').pad_token_id == 0
    for text in '{"eos_token_id": "2"}', '{"eos_token_id": []}', '{"decoder_start_token_id": [1]}', '{"eos_token_id": -1}':
        with pytest.raises(ValueError, match="generation_config.json: (eos|decoder_start)_token_id must be an id"):
            read(bart, text)
    with pytest.raises(ValueError, match="generation_config.json: no JSON"):
        read(gpt2, "")


def test_old_ids_of_generation_do_not_count_for_what_is_saved(tmp_path):
    old = {"eos_token_id": [3, 5], "decoder_start_token_id": 4, "forced_bos_token_id": 6, "bos_token_id": 9, "top_k": 7}
    (tmp_path / "generation_config.json").write_text(json.dumps(old), encoding="utf-8")
    for model in gpt2(eos_token_id=8), t5(eos_token_id=None, decoder_start_token_id=2), bart(forced_eos_token_id=[1, 2]):
        model.save_pretrained(tmp_path)
        config = models.from_pretrained(tmp_path).config
        told = json.loads((tmp_path / "generation_config.json").read_text(encoding="utf-8"))
        for name in ("eos_token_id", "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id"):
            assert told[name] == getattr(config, name, None) == getattr(model.config, name, None), name
        assert told["top_k"] == 7 and told["bos_token_id"] == getattr(model.config, "bos_token_id", 9)


@pytest.mark.filterwarnings("ignore")
def test_old_ids_of_generation_do_not_count_for_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 5, "forced_bos_token_id": 6, "bos_token_id": 9}',
                                                     encoding="utf-8")
    saved(gpt2(eos_token_id=8), tmp_path)
    found = transformers.GPT2LMHeadModel.from_pretrained(tmp_path).generation_config
    assert (found.eos_token_id, found.forced_bos_token_id, found.bos_token_id) == (8, None, 9)


def test_more_layers_than_the_file_can_have(tmp_path):
    for family, name in (gpt2, "n_layer"), (bert, "num_hidden_layers"), (distilbert, "n_layers"), (t5, "num_decoder_layers"):
        reconfigured(saved(family(), tmp_path), **{name: 300_000})
        with pytest.raises(ValueError, match=f"model.safetensors: holds .* tensors, too few for config.json's {name} 300000"):
            models.from_pretrained(tmp_path)


def test_sizes_that_no_array_can_have(tmp_path):
    reconfigured(saved(t5(), tmp_path), num_heads=2 ** 24, d_kv=2 ** 24, d_model=2 ** 24)
    with pytest.raises(ValueError, match="model.safetensors: .*too big"):
        models.from_pretrained(tmp_path)


def test_numbers_too_large_for_the_dtype_asked_for(tmp_path):
    rewritten(saved(gpt2(), tmp_path), lambda state: state | {"transformer.ln_f.bias": np.full(8, 7e4, np.float32)})
    with pytest.raises(ValueError, match="model.safetensors: transformer.ln_f.bias holds a number that is too large"):
        models.from_pretrained(tmp_path, dtype=np.float16)


def test_what_has_no_published_form(tmp_path):
    with pytest.raises(ValueError, match="Seq2Seq: .*minitx.checkpoint.save"):
        models.Seq2Seq(models.Seq2SeqConfig(9, 9, 8, 2, 1, 1, 16)).save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_save_that_fails_leaves_the_old_folder(failing, tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError("disk full")

    saved(gpt2(), tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(os, failing, fail)
        with pytest.raises(OSError, match="disk full"):
            bert().save_pretrained(tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


WIDE = {"gpt2": lambda: models.GPT2(models.GPT2Config(vocab_size=50, n_positions=9, n_embd=640, n_layer=1, n_head=8)),
        "t5": lambda: models.T5(models.T5Config(vocab_size=20000, d_model=256, num_layers=1))}


@pytest.mark.host("memory is counted on the host")
@pytest.mark.parametrize("kind, dtype", [("F32", np.float32), ("BF16", np.float32), ("F32", np.float16), ("F16", np.float32)])
@pytest.mark.parametrize("family", WIDE)
def test_peak_memory_is_little_more_than_the_weights(family, kind, dtype, tmp_path):
    with nn.init.undrawn():
        model = WIDE[family]()
    if kind == "F16":
        model.to(dtype=np.float16)
    model.save_pretrained(tmp_path)
    if kind == "BF16":
        bfloat16(tmp_path / "model.safetensors", stored(tmp_path))
    size = sum(p.size for p in model.parameters()) * np.dtype(dtype).itemsize
    del model
    tracemalloc.start()
    try:
        model = models.from_pretrained(tmp_path, dtype=dtype)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(p.data.nbytes for p in model.parameters()) == size > 9e6
    assert size < peak <= 1.3 * size
