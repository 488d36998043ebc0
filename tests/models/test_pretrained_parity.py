"""Folders that transformers writes give transformers' numbers, and it reads what we write to the very same ones."""
import warnings

import numpy as np
import pytest
from double import here

from minitx import models

pytest.importorskip("safetensors")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::EncodingWarning")         # transformers itself opens files without

GPT2 = dict(vocab_size=31, n_positions=16, n_embd=12, n_layer=2, n_head=3, bos_token_id=1, eos_token_id=2)
LLAMA = dict(vocab_size=31, hidden_size=24, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=32)
BERT = dict(vocab_size=31, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
            max_position_embeddings=16)
DISTILBERT = dict(vocab_size=31, dim=12, n_layers=2, n_heads=3, hidden_dim=20, max_position_embeddings=16)
T5 = dict(vocab_size=31, d_model=12, d_kv=5, d_ff=20, num_layers=2, num_heads=3, decoder_start_token_id=0)
BART = dict(vocab_size=31, d_model=12, encoder_layers=2, decoder_layers=2, encoder_attention_heads=3,
            decoder_attention_heads=2, encoder_ffn_dim=20, decoder_ffn_dim=24, max_position_embeddings=16)
VIT = dict(hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20, image_size=(6, 9),
           patch_size=3)

FOLDERS = [     # the class, its config, and how it is written
    ("GPT2LMHeadModel", GPT2, "whole"), ("GPT2LMHeadModel", GPT2 | {"tie_word_embeddings": False}, "shards"),
    ("GPT2Model", GPT2 | {"scale_attn_by_inverse_layer_idx": True, "activation_function": "relu"}, "bfloat16"),
    ("LlamaForCausalLM", LLAMA, "shards"), ("LlamaForCausalLM", LLAMA | {"tie_word_embeddings": True}, "bfloat16"),
    ("LlamaModel", LLAMA | {"attention_bias": True, "mlp_bias": True, "head_dim": 8,
                            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}, "whole"),
    ("BertForMaskedLM", BERT, "shards"), ("BertForMaskedLM", BERT | {"tie_word_embeddings": False}, "whole"),
    ("BertForSequenceClassification", BERT | {"num_labels": 4}, "bfloat16"),
    ("BertForTokenClassification", BERT | {"num_labels": 5}, "whole"), ("BertModel", BERT, "shards"),
    ("BertForPreTraining", BERT, "whole"),
    ("RobertaForMaskedLM", BERT, "bfloat16"), ("RobertaForMaskedLM", BERT | {"tie_word_embeddings": False}, "shards"),
    ("RobertaForSequenceClassification", BERT | {"type_vocab_size": 1}, "whole"), ("RobertaModel", BERT, "whole"),
    ("DistilBertForMaskedLM", DISTILBERT, "whole"), ("DistilBertForSequenceClassification", DISTILBERT, "shards"),
    ("DistilBertForTokenClassification", DISTILBERT | {"num_labels": 3}, "bfloat16"),
    ("DistilBertModel", DISTILBERT, "whole"),
    ("T5ForConditionalGeneration", T5, "shards"), ("T5Model", T5 | {"num_decoder_layers": 3}, "whole"),
    ("T5ForConditionalGeneration", T5 | {"tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"}, "bfloat16"),
    ("BartForConditionalGeneration", BART, "shards"), ("BartModel", BART | {"scale_embedding": True}, "whole"),
    ("BartForConditionalGeneration", BART | {"tie_word_embeddings": False}, "bfloat16"),
    ("ViTForImageClassification", VIT | {"num_labels": 7}, "shards"), ("ViTModel", VIT, "bfloat16"),
    ("ViTForImageClassification", VIT | {"qkv_bias": False}, "whole")]
every_folder = pytest.mark.parametrize("name, options, form", FOLDERS, ids=[
    f"{name} {form}{' untied' if not options.get('tie_word_embeddings', True) else ''}" for name, options, form in FOLDERS])


def write(folder, name, options, form):
    """A folder of a model of theirs, all its numbers drawn."""
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**options))
    for parameter in model.parameters():
        parameter.data = 0.3 * torch.randn_like(parameter)
    if name == "BartForConditionalGeneration":
        model.final_logits_bias.normal_()
    if name == "T5ForConditionalGeneration" and not options.get("tie_word_embeddings", True):
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    model.to(torch.bfloat16 if form == "bfloat16" else torch.float32)
    model.save_pretrained(folder, max_shard_size="3KB" if form == "shards" else "1GB")
    assert (folder / "model.safetensors.index.json").exists() == (form == "shards")
    return kind


def read(kind, folder, dtype=torch.float32):
    """Their model of a folder, and what of it was missing or unexpected."""
    model, told = kind.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    return model.eval(), {what: names for what, names in told.items() if names}


def in_double(model):
    """Their model in float64. What it computes in float32 whatever its dtype is replaced."""
    model.double()
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child).__name__ in ("T5LayerNorm", "LlamaRMSNorm"):
                norm = torch.nn.RMSNorm(len(child.weight), child.variance_epsilon)
                norm.weight = child.weight
                setattr(module, name, norm)
        if type(module).__name__ == "LlamaRotaryEmbedding":
            module.forward = angles(module.config)
    return model


def angles(config):
    K = config.head_dim or config.hidden_size // config.num_attention_heads

    def forward(x, position_ids):
        angle = position_ids[..., None] * config.rope_parameters["rope_theta"] ** (
            -torch.arange(0, K, 2, dtype=torch.float64) / K)
        return angle.cos().repeat(1, 1, 2), angle.sin().repeat(1, 1, 2)

    return forward


def inputs(config, dtype):
    """(what they are given, what we are given, which of the results are a token's)"""
    rng, kind = np.random.default_rng(0), config.model_type
    if kind == "vit":
        images = rng.standard_normal((2, 3, 6, 9)).astype(dtype)
        return {"pixel_values": torch.tensor(images)}, [images], ...
    left = kind in ("gpt2", "llama", "bert", "distilbert")
    mask, ids = np.ones((3, 7), int), rng.integers(3, 31, (3, 7))
    mask[1, 5:], mask[2, :3 if left else 0] = 0, 0
    ids[mask == 0] = getattr(config, "pad_token_id", 0)
    theirs, ours = {"input_ids": ids, "attention_mask": mask}, [ids, mask]
    if kind == "gpt2":
        theirs["position_ids"] = np.maximum(mask.cumsum(1) - 1, 0)
    if kind in ("t5", "bart"):
        targets, target_mask = rng.integers(3, 31, (3, 5)), np.ones((3, 5), int)
        target_mask[2, 3:] = 0
        theirs |= {"decoder_input_ids": targets, "decoder_attention_mask": target_mask}
        ours, mask = [ids, targets, mask, target_mask], target_mask
    return {name: torch.tensor(array) for name, array in theirs.items()}, ours, mask == 1


def close(ours, theirs, tokens, tol):
    ours, theirs = here(ours), theirs.detach().numpy()
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    if ours.ndim == 3:                                                      # else one row a sequence: padding is not seen
        ours, theirs = ours[tokens], theirs[tokens]
    assert np.abs(ours - theirs).max() <= tol * max(np.abs(theirs).max(), 1e-3)


@every_folder
def test_their_folder_gives_their_numbers(name, options, form, tmp_path):
    kind = write(tmp_path, name, options, form)
    for theirs, head in ((kind, "published"), (transformers.AutoModel, None)):
        theirs, _ = read(theirs, tmp_path)
        for dtype, tol in (("float32", 2e-5), ("float64", 1e-9)):
            theirs = theirs if dtype == "float32" else in_double(theirs)
            model = models.from_pretrained(tmp_path, head=head, dtype=dtype)
            given, ours, tokens = inputs(model.config, dtype)
            close(model(*ours).data, theirs(**given)[0], tokens, tol)
        if name.endswith("Model") and not name.endswith("HeadModel"):
            break                                                           # it has no head


@every_folder
def test_they_read_our_folder_to_the_same_numbers(name, options, form, tmp_path):
    kind = write(tmp_path / "theirs", name, options, form)
    model = models.from_pretrained(tmp_path / "theirs")
    model.save_pretrained(tmp_path / "ours")
    given, ours, tokens = inputs(model.config, "float32")
    if name == "BertForPreTraining":                                        # its other head is no part of ours
        kind = transformers.BertForMaskedLM
    before, after = read(kind, tmp_path / "theirs"), read(kind, tmp_path / "ours")
    allowed = {"missing_keys": {"pooler.dense.weight", "pooler.dense.bias"}} if name == "ViTModel" else {}
    assert after[1] == allowed
    close(before[0](**given)[0].detach().numpy(), after[0](**given)[0], tokens, 0)
    close(model(*ours).data, after[0](**given)[0], tokens, 2e-5)
    again = models.from_pretrained(tmp_path / "ours")
    assert again.config == model.config
    np.testing.assert_array_equal(again(*ours).data, model(*ours).data)


def test_what_we_draw_is_read_by_them(tmp_path):
    """A model that was never theirs, in float16 too."""
    model = models.GPT2(models.GPT2Config(31, 16, 12, 2, 3, activation_function="silu", eos_token_id=[1, 2])).eval()
    for dtype in np.float32, np.float16:
        model.to(dtype=dtype).save_pretrained(tmp_path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs, told = read(transformers.AutoModelForCausalLM, tmp_path, "auto")
        assert not told and str(theirs.dtype) == f"torch.{np.dtype(dtype)}"
        ids = np.arange(12).reshape(2, 6)
        close(model(ids).data, theirs(torch.tensor(ids))[0], ..., 2e-5 if dtype == np.float32 else 2e-2)
