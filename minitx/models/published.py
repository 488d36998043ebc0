"""The config.json of published models: what each of its fields is to us, and the way between them and our configs.

A field is one of four kinds. One by the name of a field of ours is taken as it is. One that changes numbers, and of
which we build a single value, is refused with any other: REFUSED, and `refused` of its family. One that changes nothing
that our models give is passed over: HARMLESS, and `harmless` of its family. Any other is named in a warning. A field
left out has its published default, which is ours too.
"""
import typing
import warnings
from dataclasses import dataclass, field, fields

from minitx.models.base import Model
from minitx.models.bart import BART, BartConfig
from minitx.models.bert import BERT, BertConfig, DistilBertConfig, RobertaConfig
from minitx.models.fields import ACTIVATIONS, check_sizes, checked, count_labels, take_bart, take_rope, take_t5
from minitx.models.gpt2 import GPT2, GPT2Config
from minitx.models.llama import Llama, LlamaConfig, checked_scaling
from minitx.models.t5 import T5, T5Config
from minitx.models.vit import ViT, ViTConfig

REFUSED: dict[str, object] = {"add_cross_attention": False, "is_encoder_decoder": False, "per_layer_config": None,
                              "pruned_heads": {}, "quantization_config": None, "tie_encoder_decoder": False}

HARMLESS = {
    "where it comes from": """_name_or_path name_or_path _commit_hash architectures model_type transformers_version dtype
        torch_dtype finetuning_task task_specific_params tokenizer_class""",
    "how it is run": """attn_implementation _attn_implementation _attn_implementation_autoset
        experts_implementation chunk_size_feed_forward gradient_checkpointing output_attentions output_hidden_states
        output_past return_dict tie_last_hidden_states torchscript use_bfloat16 use_cache xla_device""",
    "labels": "id2label label2id num_labels _num_labels problem_type",
    "generation": """bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id forced_bos_token_id
        forced_eos_token_id prefix bad_words_ids suppress_tokens begin_suppress_tokens do_sample early_stopping
        num_beams num_beam_groups num_return_sequences max_length min_length max_new_tokens min_new_tokens temperature
        top_k top_p typical_p repetition_penalty length_penalty diversity_penalty no_repeat_ngram_size
        encoder_no_repeat_ngram_size
        exponential_decay_length_penalty remove_invalid_values output_scores return_dict_in_generate epsilon_cutoff
        eta_cutoff encoder_repetition_penalty num_assistant_tokens num_assistant_tokens_schedule
        assistant_confidence_threshold assistant_lookbehind target_lookbehind""",
    "no part of our models": "cross_attention_hidden_size is_decoder tf_legacy_loss",
}


@dataclass
class Family:
    """What there is to know of a family's config.json.

    architectures   {the published class: our head}, for each head the first is the one that we write
    divides         pairs of fields: the second must be a multiple of the first
    also            {another name: the field that it stands for}
    take            what turns fields that are ours in another form into ours, in place
    """
    model: type[Model]
    config: type
    architectures: dict[str, str | None]
    divides: tuple[tuple[str, str], ...] = ()
    also: dict[str, str] = field(default_factory=dict)
    refused: dict[str, object] = field(default_factory=dict)
    harmless: str = ""
    take: typing.Callable | None = None


def bert(config, prefix, divides=("num_attention_heads", "hidden_size"), **options):
    """A family of BERT's kind."""
    return Family(BERT, config, {
        f"{prefix}ForMaskedLM": "mlm", f"{prefix}ForPreTraining": "mlm",
        f"{prefix}ForSequenceClassification": "sequence", f"{prefix}ForTokenClassification": "token",
        f"{prefix}Model": None}, (divides,), **options)


FAMILIES = {
    "gpt2": Family(
        GPT2, GPT2Config, {"GPT2LMHeadModel": "lm", "GPT2Model": None}, (("n_head", "n_embd"),),
        also=dict(hidden_size="n_embd", num_attention_heads="n_head", num_hidden_layers="n_layer",
                  max_position_embeddings="n_positions"),
        harmless="""n_ctx reorder_and_upcast_attn predict_special_tokens summary_type summary_use_proj
            summary_activation summary_proj_to_labels summary_first_dropout"""),
    "llama": Family(
        Llama, LlamaConfig, {"LlamaForCausalLM": "lm", "LLaMAForCausalLM": "lm", "LlamaModel": None},
        (("num_attention_heads", "hidden_size"), ("num_key_value_heads", "num_attention_heads")),
        refused=dict(partial_rotary_factor=1.0, sliding_window=None), take=take_rope,
        harmless="pretraining_tp max_sequence_length"),
    "bert": bert(
        BertConfig, "Bert", refused=dict(is_decoder=False, position_embedding_type="absolute"),
        harmless="""directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head
            pooler_type"""),
    "roberta": bert(RobertaConfig, "Roberta", refused=dict(is_decoder=False, position_embedding_type="absolute")),
    "distilbert": bert(
        DistilBertConfig, "DistilBert", ("n_heads", "dim"),
        also=dict(hidden_size="dim", num_attention_heads="n_heads", num_hidden_layers="n_layers"),
        harmless="qa_dropout sinusoidal_pos_embds tie_weights_"),           # the waves stand in the file like others
    "vit": Family(
        ViT, ViTConfig, {"ViTForImageClassification": "image", "ViTModel": None},
        (("num_attention_heads", "hidden_size"),), refused=dict(head_dim=None),
        harmless="encoder_stride pooler_act pooler_output_size tie_word_embeddings"),
    "t5": Family(
        T5, T5Config, {"T5ForConditionalGeneration": "lm", "T5WithLMHeadModel": "lm", "T5Model": None},
        also=dict(hidden_size="d_model", num_attention_heads="num_heads", num_hidden_layers="num_layers",
                  head_dim="d_kv"),
        refused=dict(is_encoder_decoder=True), harmless="classifier_dropout n_positions", take=take_t5),
    "bart": Family(
        BART, BartConfig, {"BartForConditionalGeneration": "lm", "BartModel": None},
        (("encoder_attention_heads", "d_model"), ("decoder_attention_heads", "d_model")),
        also=dict(hidden_size="d_model", num_attention_heads="encoder_attention_heads",
                  num_hidden_layers="encoder_layers"),
        refused=dict(is_encoder_decoder=True, normalize_before=False, add_final_layer_norm=False,
                     normalize_embedding=True, add_bias_logits=False, static_position_embeddings=False,
                     extra_pos_embeddings=2),
        harmless="classif_dropout classifier_dropout", take=take_bart),
}


def read_config(settings, source, head="published"):
    """(config, head) of settings, the object in a config.json; `source` is what errors call it.

    The head is the one that `architectures` names, the family's first where it names none; or the one asked for.
    ValueError for a model_type or a head that is not built, and for a field that is, but not with this value, or whose
    value is of the wrong kind, or contradicts another; each named. UserWarning for fields that are not known.
    """
    kind = settings.get("model_type") if isinstance(settings, dict) else None
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ValueError(f"{source}: model_type must be one of {', '.join(FAMILIES)}; got {kind!r}")
    family = FAMILIES[kind]
    found = {name: value for name, value in settings.items() if name not in family.also}
    for name, ours in family.also.items():
        if name in settings and found.setdefault(ours, settings[name]) != settings[name]:
            raise ValueError(f"{source}: {name} {settings[name]!r} and {ours} {found[ours]!r} contradict each other")
    if family.take:
        family.take(found, source)
    if found.get("id2label") is not None and hasattr(family.config, "num_labels"):
        found["num_labels"] = count_labels(found["id2label"], found.get("num_labels"), source)
    values = {f.name: checked(f, found.pop(f.name), source) for f in fields(family.config) if f.name in found}
    for name, built in (REFUSED | family.refused).items():
        value = found.pop(name, None)
        if value is not None and value != built:
            raise ValueError(f"{source}: {name} {value!r} is not built, only {built!r}")
    if unknown := [name for name in found if name not in " ".join((family.harmless, *HARMLESS.values())).split()]:
        warnings.warn(f"{source}: not known to minitx: {', '.join(unknown)}; if they change what the published model "
                      "computes, the numbers will differ", stacklevel=3)
    config = family.config(**values)
    check_sizes(config, family.divides, source)
    return config, read_head(settings.get("architectures"), family, source) if head == "published" else head


def write_config(config, head):
    """The config.json of a config and a head: what read_config and the published class read as the same model.

    ValueError for a config or a head that has no published form.
    """
    kind = getattr(config, "model_type", None)
    if kind not in FAMILIES or head not in FAMILIES[kind].architectures.values():
        raise ValueError(f"{type(config).__name__} with head {head!r} has no published form")
    architectures = FAMILIES[kind].architectures
    name = next(name for name in architectures if architectures[name] == head)
    settings = {"model_type": kind, "architectures": [name]}
    for f in fields(config):
        value = getattr(config, f.name)
        if value is None and f.default is None or f.name == "bias" and value:
            continue                                                        # what the published class says too
        if f.name in ACTIVATIONS:
            value = value.replace("gelu_tanh", "gelu_new")
        settings[f.name] = list(value) if isinstance(value, tuple) else value
    if kind == "llama":
        scaling = checked_scaling(config.rope_scaling, "LlamaConfig: rope_scaling")
        settings["rope_parameters"] = scaling | {"rope_theta": config.rope_theta}     # rope_scaling is for older readers
    if kind == "t5":
        settings.setdefault("scale_decoder_outputs", config.tie_word_embeddings)
    return settings


def read_head(architectures, family, source):
    """The head that a file's architectures say."""
    if not architectures:
        return family.model.heads[0]
    names = architectures if isinstance(architectures, list) else [architectures]
    heads = [family.architectures.get(name, "unbuilt") for name in map(str, names)]
    if "unbuilt" in heads or len(set(heads)) > 1:
        raise ValueError(f"{source}: of architectures {', '.join(map(str, names))} no one model is built; ask for a head: "
                         f"head= one of {', '.join(map(repr, family.model.heads))}")
    return heads[0]
