"""config.json: known checkpoints, every published field, what is refused, and the numbers of what is honoured."""
import dataclasses
import json
import math
import warnings
from unittest import mock

import numpy as np
import pytest

from minitx import models
from minitx.models import weights
from minitx.models.base import PUBLISHED, activation
from minitx.models.published import FAMILIES, read_config, write_config
from minitx.nn.layers import ACTIVATIONS, activation_named

NAMES = dict(gpt2="GPT2", llama="Llama", bert="Bert", roberta="Roberta", distilbert="DistilBert", vit="ViT", t5="T5",
             bart="Bart")
SMALL = dict(
    gpt2=dict(vocab_size=19, n_positions=12, n_embd=8, n_layer=3, n_head=2),
    llama=dict(vocab_size=19, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
               max_position_embeddings=12),
    bert=dict(vocab_size=19, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
              max_position_embeddings=12),
    distilbert=dict(vocab_size=19, dim=8, hidden_dim=12, n_layers=2, n_heads=2, max_position_embeddings=12),
    vit=dict(hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, image_size=8, patch_size=4),
    t5=dict(vocab_size=19, d_model=8, d_kv=4, d_ff=12, num_layers=2, num_heads=2, decoder_start_token_id=0),
    bart=dict(vocab_size=19, d_model=8, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
              decoder_attention_heads=2, encoder_ffn_dim=12, decoder_ffn_dim=12, max_position_embeddings=12))
SMALL["roberta"] = SMALL["bert"]
beside_transformers = pytest.mark.filterwarnings("ignore::EncodingWarning")        # which itself opens files without

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}
NEAR = LLAMA3 | {"original_max_position_embeddings": 16}                           # of which 7 tokens see something


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*known to minitx|.*is built")
        yield


def read(kind, head="published", **fields):
    return read_config({"model_type": kind, **SMALL[kind], **fields}, "here/config.json", head)


# ---- known checkpoints -----------------------------------------------------------------------------------------------

BERT_SIZES = dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072, hidden_act="gelu",
                  hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, initializer_range=0.02)
T5_PARTS = dict(architectures=["T5ForConditionalGeneration"], d_model=512, d_kv=64, num_heads=8, dropout_rate=0.1,
                decoder_start_token_id=0, eos_token_id=1, pad_token_id=0, initializer_factor=1.0, is_encoder_decoder=True,
                layer_norm_epsilon=1e-6, model_type="t5", relative_attention_num_buckets=32, vocab_size=32128,
                n_positions=512, output_past=True, use_cache=True, task_specific_params={"summarization": {"num_beams": 4}})
CHECKPOINTS = {
    "gpt2": (
        dict(architectures=["GPT2LMHeadModel"], model_type="gpt2", vocab_size=50257, n_positions=1024, n_ctx=1024, n_embd=768,
             n_layer=12, n_head=12, activation_function="gelu_new", attn_pdrop=0.1, embd_pdrop=0.1, resid_pdrop=0.1,
             layer_norm_epsilon=1e-5, initializer_range=0.02, bos_token_id=50256, eos_token_id=50256,
             summary_activation=None, summary_first_dropout=0.1, summary_proj_to_labels=True, summary_type="cls_index",
             summary_use_proj=True, task_specific_params={"text-generation": {"do_sample": True, "max_length": 50}}),
        models.GPT2Config(), "lm"),
    "bert-base-uncased": (
        dict(architectures=["BertForMaskedLM"], model_type="bert", vocab_size=30522, type_vocab_size=2, pad_token_id=0,
             max_position_embeddings=512, layer_norm_eps=1e-12, gradient_checkpointing=False, use_cache=True,
             position_embedding_type="absolute", transformers_version="4.6.0.dev0", **BERT_SIZES),
        models.BertConfig(), "mlm"),
    "roberta-base": (
        dict(architectures=["RobertaForMaskedLM"], model_type="roberta", vocab_size=50265, type_vocab_size=1, pad_token_id=1,
             bos_token_id=0, eos_token_id=2, max_position_embeddings=514, layer_norm_eps=1e-5, **BERT_SIZES),
        models.RobertaConfig(type_vocab_size=1, max_position_embeddings=514, layer_norm_eps=1e-5), "mlm"),
    "distilbert-base-uncased": (
        dict(architectures=["DistilBertForMaskedLM"], model_type="distilbert", vocab_size=30522, dim=768, hidden_dim=3072,
             n_layers=6, n_heads=12, activation="gelu", dropout=0.1, attention_dropout=0.1, qa_dropout=0.1,
             seq_classif_dropout=0.2, initializer_range=0.02, max_position_embeddings=512, pad_token_id=0,
             sinusoidal_pos_embds=False, tie_weights_=True),
        models.DistilBertConfig(), "mlm"),
    "t5-small": (
        dict(T5_PARTS, d_ff=2048, num_layers=6),
        models.T5Config(scale_decoder_outputs=True), "lm"),
    "flan-t5-small": (
        dict(T5_PARTS, d_ff=1024, num_heads=6, num_layers=8, num_decoder_layers=8, feed_forward_proj="gated-gelu",
             dense_act_fn="gelu_new", is_gated_act=True, relative_attention_max_distance=128, tie_word_embeddings=False,
             torch_dtype="float32"),
        models.T5Config(d_ff=1024, num_heads=6, num_layers=8, num_decoder_layers=8, feed_forward_proj="gated-gelu",
                        tie_word_embeddings=False, scale_decoder_outputs=False), "lm"),
    "bart-base": (
        dict(architectures=["BartModel"], model_type="bart", vocab_size=50265, d_model=768, encoder_layers=6,
             decoder_layers=6, num_hidden_layers=6, encoder_attention_heads=12, decoder_attention_heads=12,
             encoder_ffn_dim=3072, decoder_ffn_dim=3072, activation_function="gelu", activation_dropout=0.1,
             attention_dropout=0.1, dropout=0.1, classif_dropout=0.1, classifier_dropout=0.0, encoder_layerdrop=0.0,
             decoder_layerdrop=0.0, init_std=0.02, max_position_embeddings=1024, bos_token_id=0, eos_token_id=2,
             pad_token_id=1, decoder_start_token_id=2, forced_eos_token_id=2, add_bias_logits=False,
             add_final_layer_norm=False, normalize_before=False, normalize_embedding=True, scale_embedding=False,
             is_encoder_decoder=True, early_stopping=True, no_repeat_ngram_size=3, num_beams=4,
             gradient_checkpointing=False, use_cache=True, id2label={"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"},
             label2id={"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}, task_specific_params={"summarization": {"min_length": 56}}),
        models.BartConfig(d_model=768, encoder_layers=6, decoder_layers=6, encoder_attention_heads=12,
                          decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072, activation_dropout=0.1,
                          attention_dropout=0.1), None),
    "Llama-2-7b": (
        dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=32000, hidden_size=4096,
             intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32,
             hidden_act="silu", max_position_embeddings=4096, initializer_range=0.02, rms_norm_eps=1e-5, bos_token_id=1,
             eos_token_id=2, pretraining_tp=1, rope_scaling=None, tie_word_embeddings=False, torch_dtype="float16",
             use_cache=True, _name_or_path="meta-llama/Llama-2-7b-hf"),
        models.LlamaConfig(max_position_embeddings=4096, rms_norm_eps=1e-5, num_key_value_heads=32), "lm"),
    "Llama-3.1-8B": (
        dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=128256, hidden_size=4096,
             intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
             hidden_act="silu", max_position_embeddings=131072, initializer_range=0.02, rms_norm_eps=1e-5, mlp_bias=False,
             attention_bias=False, attention_dropout=0.0, bos_token_id=128000, eos_token_id=128001, pretraining_tp=1,
             rope_scaling=LLAMA3, rope_theta=500000.0, tie_word_embeddings=False, torch_dtype="bfloat16", use_cache=True,
             transformers_version="4.43.0.dev0"),
        models.LlamaConfig(
            vocab_size=128256, intermediate_size=14336, num_key_value_heads=8, max_position_embeddings=131072,
            rms_norm_eps=1e-5, rope_theta=500000.0, rope_scaling=LLAMA3, eos_token_id=128001), "lm"),
    "Llama-3.2-1B": (
        dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=128256, hidden_size=2048, head_dim=64,
             intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
             hidden_act="silu", max_position_embeddings=131072, initializer_range=0.02, rms_norm_eps=1e-5, mlp_bias=False,
             attention_bias=False, attention_dropout=0.0, bos_token_id=128000, eos_token_id=[128001, 128008, 128009],
             rope_scaling=LLAMA3 | {"factor": 32.0}, rope_theta=500000.0, tie_word_embeddings=True, use_cache=True),
        models.LlamaConfig(
            vocab_size=128256, hidden_size=2048, head_dim=64, intermediate_size=8192, num_hidden_layers=16,
            num_key_value_heads=8, max_position_embeddings=131072, rms_norm_eps=1e-5, rope_theta=500000.0,
            rope_scaling=LLAMA3 | {"factor": 32.0}, tie_word_embeddings=True, eos_token_id=[128001, 128008, 128009]),
        "lm"),
    "vit-base-patch16-224": (
        dict(BERT_SIZES, architectures=["ViTForImageClassification"], model_type="vit", hidden_dropout_prob=0.0,
             attention_probs_dropout_prob=0.0, image_size=224, patch_size=16, num_channels=3, qkv_bias=True,
             layer_norm_eps=1e-12, id2label={str(i): f"class {i}" for i in range(1000)}),
        models.ViTConfig(num_labels=1000), "image"),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_known_checkpoints(name):
    settings, config, head = CHECKPOINTS[name]
    before = json.dumps(settings)
    assert read_config(settings, name) == (config, head)
    assert json.dumps(settings) == before
    assert read_config(json.loads(json.dumps(write_config(config, head))), name) == (config, head)


@pytest.mark.parametrize("kind", FAMILIES)
def test_an_empty_config_is_the_default(kind):
    config, head = read_config({"model_type": kind}, "x")
    assert head == FAMILIES[kind].model.heads[0]
    expected = FAMILIES[kind].config()
    assert config == (dataclasses.replace(expected, scale_decoder_outputs=True) if kind == "t5" else expected)


# ---- heads -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("kind", FAMILIES)
def test_every_head_is_read_as_it_was_written(kind):
    for head in set(FAMILIES[kind].architectures.values()):
        settings = write_config(FAMILIES[kind].config(), head)
        assert settings["model_type"] == kind and len(settings["architectures"]) == 1
        assert read_config(settings, "x")[1] == head


@pytest.mark.parametrize("kind, architecture, head", [
    ("gpt2", "GPT2LMHeadModel", "lm"), ("gpt2", "GPT2Model", None), ("llama", "LlamaForCausalLM", "lm"),
    ("llama", "LlamaModel", None), ("bert", "BertForMaskedLM", "mlm"), ("bert", "BertForPreTraining", "mlm"),
    ("bert", "BertModel", None), ("roberta", "RobertaForSequenceClassification", "sequence"),
    ("distilbert", "DistilBertForTokenClassification", "token"), ("vit", "ViTModel", None), ("t5", "T5Model", None),
    ("t5", "T5WithLMHeadModel", "lm"), ("bart", "BartForConditionalGeneration", "lm")])
def test_the_head_is_that_of_the_architecture(kind, architecture, head):
    assert read(kind, architectures=[architecture])[1] == head
    assert read(kind, architectures=architecture)[1] == head
    assert write_config(read(kind)[0], head)["architectures"] == [architecture] or architecture in (
        "BertForPreTraining", "T5WithLMHeadModel")


def test_two_architectures_of_one_head_are_one_and_none_is_the_familys_first():
    assert read("bert", architectures=["BertForMaskedLM", "BertForPreTraining"])[1] == "mlm"
    for none in [], None:
        assert read("gpt2", architectures=none)[1] == "lm" and read("vit", architectures=none)[1] == "image"


@pytest.mark.parametrize("kind, architectures, heads", [
    ("gpt2", ["GPT2DoubleHeadsModel"], "'lm', None"),
    ("bert", ["BertForQuestionAnswering"], "'mlm', 'sequence', 'token', None"),
    ("bert", ["RobertaForMaskedLM"], "'mlm'"), ("t5", ["T5EncoderModel"], "'lm', None"), ("bart", [3], "'lm'"),
    ("bert", ["BertModel", "BertForMaskedLM"], "'mlm'")])
def test_what_is_not_built_is_refused_unless_a_head_is_asked_for(kind, architectures, heads):
    with pytest.raises(ValueError, match=rf"here/config.json: of architectures {architectures[0]}.*head= one of {heads}"):
        read(kind, architectures=architectures)
    assert read(kind, None, architectures=architectures)[1] is None


@pytest.mark.parametrize("settings", [{}, {"model_type": "mistral"}, {"model_type": None}, {"model_type": ["bert"]}, [1]])
def test_an_unknown_model_type_lists_the_known_ones(settings):
    with pytest.raises(ValueError, match="here: model_type must be one of gpt2, llama, bert, roberta, distilbert, vit, t5, "
                                         "bart; got"):
        read_config(settings, "here")


def test_what_has_no_published_form_is_not_written():
    for config, head in (models.Seq2SeqConfig(), "lm"), (models.BertConfig(), "lm"):
        with pytest.raises(ValueError, match=f"{type(config).__name__} with head 'lm' has no published form"):
            write_config(config, head)


def test_what_is_written():
    config = models.LlamaConfig(**SMALL["llama"], rope_theta=5e5, hidden_act="gelu_tanh", eos_token_id=[1, 2])
    assert write_config(config, None) == dict(
        SMALL["llama"], model_type="llama", architectures=["LlamaModel"], hidden_act="gelu_new", initializer_range=0.02,
        rms_norm_eps=1e-6, tie_word_embeddings=False, rope_theta=5e5, attention_bias=False, attention_dropout=0.0,
        mlp_bias=False, eos_token_id=[1, 2], rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    for old, scaling in ({"type": "linear", "factor": 2.0}, {"rope_type": "linear", "factor": 2.0}), (LLAMA3, LLAMA3):
        settings = write_config(dataclasses.replace(config, rope_scaling=old), "lm")
        assert settings["rope_scaling"] == old and settings["rope_theta"] == 5e5
        assert settings["rope_parameters"] == scaling | {"rope_theta": 5e5}
        assert read_config(settings, "x")[0].rope_scaling == scaling
    gpt2, t5 = models.GPT2Config(eos_token_id=None), models.T5Config(feed_forward_proj="gated-gelu_tanh")
    assert write_config(gpt2, "lm")["eos_token_id"] is None and "bias" not in write_config(gpt2, "lm")
    assert write_config(dataclasses.replace(gpt2, bias=False), "lm")["bias"] is False
    assert write_config(t5, "lm")["feed_forward_proj"] == "gated-gelu_new"
    assert write_config(t5, "lm")["scale_decoder_outputs"] is True
    assert write_config(dataclasses.replace(t5, tie_word_embeddings=False), "lm")["scale_decoder_outputs"] is False
    assert write_config(models.ViTConfig(image_size=(8, 12)), "image")["image_size"] == [8, 12]


# ---- refused ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("kind, field, value, built", [
    ("gpt2", "add_cross_attention", True, "False"), ("gpt2", "pruned_heads", {"0": [1]}, "{}"),
    ("gpt2", "is_encoder_decoder", True, "False"), ("llama", "sliding_window", 4096, "None"),
    ("llama", "partial_rotary_factor", 0.5, "1.0"), ("llama", "quantization_config", {"bits": 4}, "None"),
    ("llama", "per_layer_config", {"0": {}}, "None"), ("bert", "position_embedding_type", "relative_key", "'absolute'"),
    ("bert", "is_decoder", True, "False"), ("roberta", "position_embedding_type", "relative_key_query", "'absolute'"),
    ("roberta", "is_decoder", True, "False"), ("vit", "head_dim", 6, "None"), ("t5", "tie_encoder_decoder", True, "False"),
    ("t5", "is_encoder_decoder", False, "True"), ("bart", "normalize_before", True, "False"),
    ("bart", "add_final_layer_norm", True, "False"), ("bart", "normalize_embedding", False, "True"),
    ("bart", "add_bias_logits", True, "False"), ("bart", "static_position_embeddings", True, "False"),
    ("bart", "extra_pos_embeddings", 0, "2"), ("bart", "is_encoder_decoder", False, "True")])
def test_what_is_not_built_is_refused_by_name(kind, field, value, built):
    with pytest.raises(ValueError) as error:
        read(kind, **{field: value})
    assert str(error.value) == f"here/config.json: {field} {value!r} is not built, only {built}"
    assert read(kind, **{field: None}) == read(kind)
    assert read(kind, **{field: json.loads(built.replace("'", '"').replace("None", "null").lower())}) == read(kind)


@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("rope, says", [
    ({"type": "dynamic", "factor": 2.0}, "rope_type 'dynamic' is not built, only 'default', 'linear', 'llama3'"),
    *[({"rope_type": kind, "factor": 4.0}, f"rope_type '{kind}' is not built, only 'default', 'linear', 'llama3'")
      for kind in ("yarn", "longrope", "su", "proportional")],
    ({"rope_type": "linear", "factor": None}, "rope_type 'linear' needs factor"),
    ({"rope_type": "linear", "rope_theta": 5.0}, "rope_type 'linear' needs factor"),
    ({name: value for name, value in LLAMA3.items() if name != "low_freq_factor"},
     "rope_type 'llama3' needs low_freq_factor"),
    ({"factor": 2.0}, "rope_type 'default' takes no factor"),
    (LLAMA3 | {"short_factor": [1.0]}, "rope_type 'llama3' takes no short_factor"),
    ({"type": "linear", "factor": 2.0, "low_freq_factor": 1.0}, "rope_type 'linear' takes no low_freq_factor"),
    ({"type": "linear", "factor": "2"}, "factor must be a finite number greater than 0, got '2'"),
    ({"type": "linear", "factor": -2}, "factor must be a finite number greater than 0, got -2"),
    (LLAMA3 | {"high_freq_factor": 0.5}, "low_freq_factor 1.0 must be less than high_freq_factor 0.5"),
    (LLAMA3 | {"type": "linear"}, "rope_type 'llama3' and type 'linear' contradict each other")])
def test_scaled_positions_that_are_not_built_or_cannot_be_are_refused_by_name(field, rope, says):
    with pytest.raises(ValueError) as error:
        read("llama", **{field: rope})
    assert str(error.value) == f"here/config.json: {field}: {says}"


@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
def test_heads_that_are_turned_in_part_are_refused_wherever_that_is_said(field):
    with pytest.raises(ValueError, match="^here/config.json: partial_rotary_factor 0.5 is not built, only 1.0"):
        read("llama", **{field: {"rope_type": "default", "partial_rotary_factor": 0.5}}, partial_rotary_factor=1.0)
    assert read("llama", **{field: {"rope_type": "default", "partial_rotary_factor": 1.0}}) == read("llama")


@pytest.mark.parametrize("kind, field, value", [
    ("gpt2", "activation_function", "quick_gelu"), ("llama", "hidden_act", "relu2"), ("bert", "hidden_act", "gelu_10"),
    ("distilbert", "activation", "linear"), ("vit", "hidden_act", "mish"), ("bart", "activation_function", "hardswish"),
    ("t5", "feed_forward_proj", "gated-quick_gelu"), ("t5", "feed_forward_proj", "leaky_relu")])
def test_an_activation_that_is_not_built_is_refused_by_name(kind, field, value):
    name = value.removeprefix("gated-")
    with pytest.raises(ValueError, match=f"here/config.json: {field}: unknown activation '{name}': use one of gelu, "):
        read(kind, **{field: value})


def test_unknown_fields_are_named_once_in_a_warning():
    with pytest.warns(UserWarning) as caught:
        config = read("gpt2", unheard_of=1, auto_map={"AutoModel": "x.Y"}, n_ctx=12)
    assert [str(w.message) for w in caught] == [
        "here/config.json: not known to minitx: unheard_of, auto_map; if they change what the published model computes, the "
        "numbers will differ"]
    assert config == read("gpt2")


def test_layers_left_out_in_training_are_said_and_passed():
    with pytest.warns(UserWarning, match="^here/config.json: no decoder_layerdrop is built: training leaves out no"):
        config = read("bart", encoder_layerdrop=0.0, decoder_layerdrop=0.1)
    assert config == read("bart", encoder_layerdrop=0.0, decoder_layerdrop=None)


# ---- wrong kinds, sizes and contradictions ---------------------------------------------------------------------------

@pytest.mark.parametrize("kind, fields, message", [
    ("gpt2", dict(n_embd="768"), "n_embd must be int, got '768'"), ("gpt2", dict(n_embd=8.0), "n_embd must be int, got 8.0"),
    ("gpt2", dict(n_layer=True), "n_layer must be int, got True"),
    ("gpt2", dict(vocab_size=None), "vocab_size must be int, got None"),
    ("gpt2", dict(n_inner=1.5), r"n_inner must be int \| None, got 1.5"), ("gpt2", dict(bias=0), "bias must be bool, got 0"),
    ("gpt2", dict(activation_function=None), "activation_function must be str, got None"),
    ("gpt2", dict(layer_norm_epsilon=math.nan), "layer_norm_epsilon must be float, got nan"),
    ("gpt2", dict(layer_norm_epsilon=True), "layer_norm_epsilon must be float, got True"),
    ("gpt2", dict(eos_token_id=["a"]), r"eos_token_id must be int \| list\[int\] \| None, got \['a'\]"),
    ("gpt2", dict(layer_norm_epsilon=10 ** 400), "layer_norm_epsilon must be float, got 1000"),
    ("gpt2", dict(vocab_size=10 ** 40), "vocab_size must be from 1 to 16777216, got 1000"),
    ("gpt2", dict(n_layer=10 ** 400), "n_layer must be from 0 to 16777216, got 1000"),
    ("gpt2", dict(eos_token_id=[]), r"eos_token_id must be an id or a list of ids, got \[\]"),
    ("gpt2", dict(eos_token_id=-1), "eos_token_id must be an id or a list of ids, got -1"),
    ("bart", dict(forced_bos_token_id=-1), "forced_bos_token_id must be an id, got -1"),
    ("bart", dict(forced_eos_token_id=[2, -1]), r"forced_eos_token_id must be an id or a list of ids, got \[2, -1\]"),
    ("llama", dict(rope_theta=10 ** 400), "rope_theta must be a number greater than 0, got 1000"),
    ("gpt2", dict(scale_attn_weights="no"), "scale_attn_weights must be bool"),
    ("gpt2", dict(n_head=0), "n_head must be at least 1, got 0"),
    ("gpt2", dict(n_embd=-8), "n_embd must be at least 1, got -8"),
    ("gpt2", dict(n_layer=-1), "n_layer must be at least 0, got -1"),
    ("gpt2", dict(resid_pdrop=1.5), "resid_pdrop must be from 0 to 1, got 1.5"),
    ("gpt2", dict(attn_pdrop=-0.1), "attn_pdrop must be from 0 to 1, got -0.1"),
    ("gpt2", dict(layer_norm_epsilon=-1e-5), "layer_norm_epsilon must be at least 0, got -1e-05"),
    ("gpt2", dict(n_head=3), "n_embd 8 must be a multiple of n_head 3"),
    ("gpt2", dict(hidden_size=16), "hidden_size 16 and n_embd 8 contradict each other"),
    ("llama", dict(num_attention_heads=3), "hidden_size 8 must be a multiple of num_attention_heads 3"),
    ("llama", dict(num_attention_heads=4, num_key_value_heads=3),
     "num_attention_heads 4 must be a multiple of num_key_value_heads 3"),
    ("llama", dict(num_key_value_heads=0), "num_key_value_heads must be at least 1, got 0"),
    ("llama", dict(rope_theta=0), "rope_theta must be a number greater than 0, got 0"),
    ("llama", dict(rope_theta=None), "rope_theta must be a number greater than 0, got None"),
    ("llama", dict(rope_parameters={"rope_type": "default", "rope_theta": "1e4"}),
     "rope_theta must be a number greater than 0, got '1e4'"),
    ("llama", dict(rope_theta=1e4, rope_parameters={"rope_type": "default", "rope_theta": 5e5}),
     "rope_theta 10000.0 and rope_parameters.rope_theta 500000.0 contradict each other"),
    ("llama", dict(rope_scaling=2.0), "rope_scaling must be an object or null, got 2.0"),
    ("llama", dict(rope_scaling={"type": "linear", "factor": 2}, rope_parameters={"rope_type": "linear", "factor": 4}),
     "rope_scaling {'rope_type': 'linear', 'factor': 2} and rope_parameters {.*4} contradict each other"),
    ("llama", dict(rope_scaling=LLAMA3, rope_parameters={"rope_theta": 5.0}),
     "rope_scaling {.*'llama3'.*} and rope_parameters {'rope_type': 'default'} contradict each other"),
    ("bert", dict(hidden_size=9), "hidden_size 9 must be a multiple of num_attention_heads 2"),
    ("bert", dict(pad_token_id=19), "pad_token_id 19 is outside the vocab_size of 19"),
    ("bert", dict(classifier_dropout=2), "classifier_dropout must be from 0 to 1, got 2"),
    ("bert", dict(num_labels=3, id2label={"0": "a"}),
     "id2label must be an object with as many entries as num_labels, 3; got 1 entries"),
    ("bert", dict(id2label=["a", "b"]), "id2label must be an object with as many entries as num_labels, None; got list"),
    ("bert", dict(num_labels=0), "num_labels must be at least 1, got 0"),
    ("roberta", dict(pad_token_id=None), "pad_token_id must be int, got None"),
    ("distilbert", dict(n_heads=3), "dim 8 must be a multiple of n_heads 3"),
    ("distilbert", dict(num_hidden_layers=3), "num_hidden_layers 3 and n_layers 2 contradict each other"),
    ("vit", dict(image_size=[8, 8, 8]), r"image_size must be int \| tuple\[int, int\], got \[8, 8, 8\]"),
    ("vit", dict(patch_size=[4, 0]), "patch_size must be at least 1, got 0"),
    ("vit", dict(num_attention_heads=3), "hidden_size 8 must be a multiple of num_attention_heads 3"),
    ("t5", dict(feed_forward_proj="relu", is_gated_act=True), "is_gated_act must be False where feed_forward_proj is 'relu'"),
    ("t5", dict(feed_forward_proj="gated-gelu", dense_act_fn="gelu"),
     "dense_act_fn must be 'gelu_new' where feed_forward_proj is 'gated-gelu'"),
    ("t5", dict(feed_forward_proj="doubly-gelu"), 'feed_forward_proj must be an activation, or "gated-" and one; got'),
    ("t5", dict(head_dim=5), "head_dim 5 and d_kv 4 contradict each other"),
    ("t5", dict(tie_word_embeddings=None), "tie_word_embeddings must be bool, got None"),
    ("bart", dict(decoder_attention_heads=3), "d_model 8 must be a multiple of decoder_attention_heads 3"),
    ("bart", dict(num_hidden_layers=4), "num_hidden_layers 4 and encoder_layers 2 contradict each other"),
    ("bart", dict(encoder_layers=None), "encoder_layers must be int, got None"),
    ("bart", dict(decoder_start_token_id=None), "decoder_start_token_id must be int, got None")])
def test_wrong_kinds_sizes_and_contradictions_are_named(kind, fields, message):
    with pytest.raises(ValueError, match=f"^here/config.json: {message}"):
        read(kind, **fields)


# ---- honoured, by itself ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("kind, fields, expected", [
    ("gpt2", dict(eos_token_id=[1, 2]), dict(eos_token_id=[1, 2])),
    ("gpt2", dict(eos_token_id=None), dict(eos_token_id=None)),
    ("gpt2", dict(hidden_size=8, num_attention_heads=2, num_hidden_layers=3, max_position_embeddings=12), {}),
    ("gpt2", dict(is_decoder=True, reorder_and_upcast_attn=True, n_ctx=4), {}),
    ("llama", dict(rope_parameters={"rope_type": "default", "rope_theta": 500000.0}), dict(rope_theta=500000.0)),
    ("llama", dict(rope_theta=500000.0), dict(rope_theta=500000.0)),
    ("llama", dict(rope_theta=5.0, rope_parameters={"rope_type": "default", "rope_theta": 5.0}), dict(rope_theta=5.0)),
    ("llama", dict(rope_scaling={"type": "default", "rope_theta": 7, "factor": None}), dict(rope_theta=7)),
    ("llama", dict(rope_scaling={}, rope_parameters=None, partial_rotary_factor=1.0), {}),
    ("llama", dict(rope_scaling={"type": "linear", "factor": 2}), dict(rope_scaling={"rope_type": "linear", "factor": 2})),
    ("llama", dict(rope_theta=5e5, rope_scaling=LLAMA3), dict(rope_theta=5e5, rope_scaling=LLAMA3)),
    ("llama", dict(rope_parameters={"rope_theta": 5e5, "type": "llama3", "partial_rotary_factor": 1.0} | LLAMA3),
     dict(rope_theta=5e5, rope_scaling=LLAMA3)),
    ("llama", dict(rope_theta=7, rope_parameters={"rope_type": "linear", "factor": 4.0, "attention_factor": None},
                   rope_scaling={"type": "linear", "factor": 4}),
     dict(rope_theta=7, rope_scaling={"rope_type": "linear", "factor": 4.0})),
    ("llama", dict(hidden_size=9, head_dim=4), dict(hidden_size=9, head_dim=4)),
    ("llama", dict(pretraining_tp=2), {}),
    ("bert", dict(id2label={"0": "a", "1": "b", "2": "c"}), dict(num_labels=3)),
    ("bert", dict(num_labels=5), dict(num_labels=5)),
    ("bert", dict(id2label=None, label2id=None, num_labels=4), dict(num_labels=4)),
    ("distilbert", dict(hidden_size=8, sinusoidal_pos_embds=True), {}),
    ("vit", dict(image_size=[8, 12], patch_size=[4, 2]), dict(image_size=(8, 12), patch_size=(4, 2))),
    ("t5", dict(scale_decoder_outputs=False), dict(scale_decoder_outputs=False, tie_word_embeddings=True)),
    ("t5", dict(scale_decoder_outputs=None), dict(scale_decoder_outputs=False)),
    ("t5", dict(tie_word_embeddings=False), dict(scale_decoder_outputs=False, tie_word_embeddings=False)),
    ("t5", dict(feed_forward_proj="gated-silu", is_gated_act=True, dense_act_fn="silu"),
     dict(feed_forward_proj="gated-silu")),
    ("bart", dict(force_bos_token_to_be_generated=True), dict(forced_bos_token_id=0)),
    ("bart", dict(force_bos_token_to_be_generated=True, bos_token_id=5), dict(forced_bos_token_id=5, bos_token_id=5)),
    ("bart", dict(force_bos_token_to_be_generated=False), {}),
    ("bart", dict(forced_bos_token_id=0, forced_eos_token_id=None), dict(forced_bos_token_id=0, forced_eos_token_id=None))])
def test_what_fields_become(kind, fields, expected):
    assert read(kind, **fields)[0] == dataclasses.replace(read(kind)[0], **expected)


@pytest.mark.parametrize("name", [*ACTIVATIONS, *PUBLISHED])
def test_every_published_name_of_an_activation_is_the_function_it_names(name):
    x = np.linspace(-4, 4, 33)
    expected = {
        "relu": np.maximum(x, 0), "tanh": np.tanh(x), "silu": x / (1 + np.exp(-x)), "swish": x / (1 + np.exp(-x)),
        **dict.fromkeys(("gelu", "gelu_python"), x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))))
    }.get(name, x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))))
    np.testing.assert_allclose(activation_named(activation("it", name))(x).data, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("scaled, by_layer", [(True, False), (False, False), (True, True), (False, True)])
def test_gpt2s_scores_are_scaled_as_its_config_says(scaled, by_layer):
    config, _ = read("gpt2", scale_attn_weights=scaled, scale_attn_by_inverse_layer_idx=by_layer)
    model = models.GPT2(config).to(dtype=np.float64).eval()
    for p in model.parameters():
        p.data = np.random.default_rng(0).standard_normal(p.shape)
    x, mask = model.wpe(model.wte(np.array([[3, 1, 4, 1, 5]]))), np.tril(np.ones((5, 5), bool))
    for i, block in enumerate(model.h):
        a = block.norm1(x)
        q, k = (w(a).reshape(1, 5, 2, 4).swapaxes(1, 2).data for w in (block.attn.w_q, block.attn.w_k))
        scores = np.where(mask, q @ k.swapaxes(2, 3) * (0.5 if scaled else 1) / (i + 1 if by_layer else 1), -np.inf)
        expected = np.exp(scores - scores.max(-1, keepdims=True))
        x, found = block(x, is_causal=True, return_weights=True)
        np.testing.assert_allclose(found.data, expected / expected.sum(-1, keepdims=True), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("scaled", [True, False, None])
def test_t5s_head_is_scaled_as_its_config_says(tied, scaled):
    config = dataclasses.replace(read("t5")[0], tie_word_embeddings=tied, scale_decoder_outputs=scaled)
    model = models.T5(config).to(dtype=np.float64).eval()
    hidden = models.T5(config, None).to(dtype=np.float64).eval()
    hidden.load_state_dict(model.state_dict(), strict=False)
    ids = np.array([[3, 1, 4, 1, 5]])
    factor = 8 ** -0.5 if scaled or scaled is None and tied else 1
    expected = hidden(ids, ids[:, :3]).data @ model.lm_head.weight.data.T * factor
    np.testing.assert_allclose(model(ids, ids[:, :3]).data, expected, rtol=1e-12)


# ---- beside transformers ---------------------------------------------------------------------------------------------

def published_class(kind):
    return getattr(pytest.importorskip("transformers"), NAMES[kind] + "Config")


@beside_transformers
@pytest.mark.parametrize("kind", FAMILIES)
def test_every_field_of_the_published_class_is_known(kind):
    cls = published_class(kind)
    whole = {f.name: f.default for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING}
    for settings in cls().to_dict(), json.loads(cls().to_json_string()), cls().to_dict() | whole:
        config, _ = read_config(settings, kind)
        filled = dict(llama=dict(num_key_value_heads=32, head_dim=128),
                      t5=dict(num_decoder_layers=6, scale_decoder_outputs=True))
        expected = dataclasses.replace(FAMILIES[kind].config(), **filled.get(kind, {}))
        for f in dataclasses.fields(config):
            assert getattr(config, f.name) in (getattr(expected, f.name), f.default), f.name


@beside_transformers
def test_every_field_of_generation_is_known():
    pytest.importorskip("transformers")
    from transformers.generation import GenerationConfig
    for kind in FAMILIES:
        read_config({"model_type": kind, **GenerationConfig._get_default_generation_params()}, kind)


@beside_transformers
@pytest.mark.parametrize("kind", FAMILIES)
def test_every_default_is_the_published_one(kind):
    theirs = published_class(kind)()
    for f in dataclasses.fields(FAMILIES[kind].config):
        ours = "rope_theta rope_scaling num_key_value_heads head_dim num_decoder_layers bias scale_decoder_outputs"
        if f.name not in (*ours.split(), "forced_bos_token_id", "decoder_start_token_id" if kind == "t5" else ""):
            assert getattr(theirs, f.name) == f.default, f.name


@pytest.mark.parametrize("name", [*ACTIVATIONS, *PUBLISHED])
def test_activations_are_those_of_transformers(name):
    torch = pytest.importorskip("torch")
    functions = pytest.importorskip("transformers.activations").ACT2FN
    x = np.linspace(-4, 4, 33)
    if name != "gelu_tanh":                                                 # ours alone
        expected = functions[name](torch.tensor(x)).numpy()
        np.testing.assert_allclose(activation_named(activation("it", name))(x).data, expected, rtol=1e-9, atol=1e-11)


@pytest.fixture
def precise(monkeypatch):
    """transformers without the float32 that it computes norms and angles in whatever it is given."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers.models.llama import modeling_llama
    from transformers.models.t5 import modeling_t5

    def rms_norm(layer, x):
        return torch.nn.functional.rms_norm(x, x.shape[-1:], layer.weight, layer.variance_epsilon)

    def in_double(function):
        def run(*args, **options):
            with mock.patch.object(torch, "float", torch.double):
                return function(*args, **options)
        return run

    monkeypatch.setattr(modeling_t5.T5LayerNorm, "forward", rms_norm)
    monkeypatch.setattr(modeling_llama.LlamaRMSNorm, "forward", rms_norm)
    for cls, name in ((modeling_llama.LlamaRotaryEmbedding, "__init__"), (modeling_llama.LlamaRotaryEmbedding, "forward"),
                      (modeling_llama.LlamaPreTrainedModel, "_init_weights")):           # which computes them once more
        monkeypatch.setattr(cls, name, in_double(getattr(cls, name)))


def compare(folder, config, architecture, tol=1e-9, dtype="double"):
    """Save transformers' model of its config, away from its first weights; read it, and compare what both give.

    Gives what we read of the folder's config.json.
    """
    import torch
    import transformers
    from safetensors.numpy import load_file
    theirs = getattr(transformers, architecture)(config).to(getattr(torch, dtype)).eval()
    with torch.no_grad():
        for p in theirs.parameters():
            p += 0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()), dtype=p.dtype)
    theirs.save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config, head = read_config(settings, "config.json")
    kind = config.model_type
    ours = FAMILIES[kind].model(config, head).to(dtype=np.float64).eval()
    wanted = weights.to_published(kind, ours.state_dict())
    wanted |= {name.removeprefix(weights.PREFIX[kind]): x for name, x in wanted.items()}
    stored = {name: x for name, x in load_file(folder / "model.safetensors").items() if name in wanted}
    missing, _ = ours.load_state_dict(weights.from_published(kind, ours.state_dict(), stored), strict=False)
    assert not missing
    rng = np.random.default_rng(0)
    ids, more = rng.integers(3, 19, (2, 7)), rng.integers(3, 19, (2, 5))
    if kind == "vit":
        images = rng.standard_normal((2, *ours.patches.proj.weight.shape[1:2], 8, 12 if config.image_size != 8 else 8))
        found, expected = ours(images), theirs(torch.tensor(images))
    elif kind in ("t5", "bart"):
        found, expected = ours(ids, more), theirs(torch.tensor(ids), decoder_input_ids=torch.tensor(more))
    else:
        found, expected = ours(ids), theirs(torch.tensor(ids))
    expected = expected[0].detach().numpy()
    assert found.shape == expected.shape
    assert np.abs(found.numpy() - expected).max() <= tol * max(np.abs(expected).max(), 1e-3)
    return config, head


HONOURED = [
    ("gpt2", "GPT2LMHeadModel", dict(scale_attn_weights=False)),
    ("gpt2", "GPT2LMHeadModel", dict(scale_attn_by_inverse_layer_idx=True)),
    ("gpt2", "GPT2Model", dict(scale_attn_weights=False, scale_attn_by_inverse_layer_idx=True, layer_norm_epsilon=0.1)),
    ("gpt2", "GPT2LMHeadModel", dict(activation_function="gelu_fast", n_inner=10, tie_word_embeddings=False)),
    ("gpt2", "GPT2LMHeadModel", dict(activation_function="gelu_python")),
    ("llama", "LlamaForCausalLM", dict(rope_parameters={"rope_type": "default", "rope_theta": 50.0}, rms_norm_eps=0.1)),
    ("llama", "LlamaForCausalLM", dict(rope_parameters=NEAR | {"rope_theta": 50.0}, head_dim=12)),
    ("llama", "LlamaForCausalLM", dict(rope_theta=50.0, rope_scaling=NEAR | {"factor": 3.0})),
    ("llama", "LlamaModel", dict(rope_parameters={"rope_type": "linear", "factor": 2.5, "rope_theta": 30.0})),
    ("llama", "LlamaForCausalLM", dict(rope_scaling={"type": "linear", "factor": 2.5})),
    ("llama", "LlamaForCausalLM", dict(attention_bias=True, mlp_bias=True, num_key_value_heads=1, head_dim=6)),
    ("llama", "LlamaModel", dict(hidden_act="gelu_new", tie_word_embeddings=True)),
    ("bert", "BertForMaskedLM", dict(hidden_act="gelu_new", layer_norm_eps=0.1, type_vocab_size=3)),
    ("bert", "BertForSequenceClassification", dict(hidden_act="relu", num_labels=5)),
    ("roberta", "RobertaForMaskedLM", dict(hidden_act="silu", pad_token_id=2, layer_norm_eps=0.1)),
    ("roberta", "RobertaForTokenClassification", dict(num_labels=3)),
    ("distilbert", "DistilBertForMaskedLM", dict(activation="relu", sinusoidal_pos_embds=True)),
    ("distilbert", "DistilBertForSequenceClassification", dict(activation="gelu", num_labels=4)),
    ("vit", "ViTForImageClassification", dict(qkv_bias=False, layer_norm_eps=0.1, hidden_act="gelu_pytorch_tanh",
                                              num_labels=3)),
    ("vit", "ViTForImageClassification", dict(image_size=[8, 12], patch_size=4, num_channels=1, num_labels=7)),
    ("t5", "T5ForConditionalGeneration", dict(feed_forward_proj="gated-gelu", layer_norm_epsilon=0.1)),
    ("t5", "T5ForConditionalGeneration", dict(feed_forward_proj="gelu", scale_decoder_outputs=False, num_decoder_layers=1)),
    ("t5", "T5ForConditionalGeneration", dict(scale_decoder_outputs=None)),
    ("t5", "T5ForConditionalGeneration", dict(feed_forward_proj="gated-silu", relative_attention_num_buckets=8,
                                              relative_attention_max_distance=5)),
    ("bart", "BartForConditionalGeneration", dict(scale_embedding=True, activation_function="relu")),
    ("bart", "BartModel", dict(activation_function="gelu_new", encoder_ffn_dim=10, decoder_layers=1)),
]


@beside_transformers
@pytest.mark.parametrize("kind, architecture, fields", HONOURED, ids=[f"{a} {' '.join(f)}" for _, a, f in HONOURED])
def test_what_is_honoured_gives_the_published_numbers(precise, tmp_path, kind, architecture, fields):
    compare(tmp_path, published_class(kind)(**SMALL[kind] | fields, attn_implementation="sdpa"), architecture)


@beside_transformers
@pytest.mark.parametrize("kind, architecture, fields", [
    ("gpt2", "GPT2LMHeadModel", dict(reorder_and_upcast_attn=True, attn_implementation="eager")),
    ("llama", "LlamaForCausalLM", dict(pretraining_tp=2)),
    ("bert", "BertForMaskedLM", dict(chunk_size_feed_forward=1, use_cache=False)),
    ("bart", "BartForConditionalGeneration", dict(classifier_dropout=0.3))])
def test_what_is_passed_over_changes_no_numbers(precise, tmp_path, kind, architecture, fields):
    config = published_class(kind)(**SMALL[kind] | fields)
    compare(tmp_path, config, architecture, 2e-6, "float" if "reorder_and_upcast_attn" in fields else "double")


@beside_transformers
@pytest.mark.parametrize("kind, architecture, fields", HONOURED, ids=[f"{a} {' '.join(f)}" for _, a, f in HONOURED])
def test_what_is_written_is_read_by_the_published_class(precise, tmp_path, kind, architecture, fields):
    config, head = read(kind, architectures=[architecture], **fields)
    settings = json.loads(json.dumps(write_config(config, head)))
    theirs = published_class(kind).from_dict({**settings, "attn_implementation": "sdpa"})
    again, same_head = compare(tmp_path, theirs, architecture)
    filled = {f.name: getattr(again, f.name) for f in dataclasses.fields(config) if getattr(config, f.name) is None}
    assert again == dataclasses.replace(config, **filled) and same_head == head
