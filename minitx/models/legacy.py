"""Names in files as they were published over the years, read as those of the tables in weights.py.

All names here stand without the prefix of the bare model.
"""
import os
import re

from minitx.models.weights import PREFIX

PASSED = {      # what files hold besides: buffers that once were stored, heads of other kinds. `*` is a layer's number
    "gpt2": "h.*.attn.bias  h.*.attn.masked_bias  lm_head  score  classifier  multiple_choice_head  qa_outputs",
    "llama": "rotary_emb.inv_freq  layers.*.self_attn.rotary_emb.inv_freq  lm_head  score  qa_outputs",
    "bert": "embeddings.position_ids  pooler  cls  classifier  qa_outputs",
    "roberta": "embeddings.position_ids  pooler  lm_head  classifier  qa_outputs",
    "distilbert": """embeddings.position_ids  vocab_transform  vocab_layer_norm  vocab_projector  pre_classifier
                     classifier  qa_outputs""",
    "vit": "embeddings.mask_token  pooler  classifier  decoder",
    "t5": """decoder.block.*.layer.1.EncDecAttention.relative_attention_bias  lm_head  classifier  classification_head
             qa_outputs""",
    "bart": "encoder.version  decoder.version  lm_head  final_logits_bias  classification_head  qa_outputs",
}

ALSO = {        # a name, and those that the same tensor has besides, or in its place: they are read first
    "bert": {"cls.predictions.bias": ["cls.predictions.decoder.bias"]},
    "roberta": {"lm_head.bias": ["lm_head.decoder.bias"]},
    "t5": {"shared.weight": ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]},
    "bart": {"shared.weight": ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]},
}


def ties(config):
    """Whether a config says that the output layer's matrix is the embedding's: transformers 5 says so of every T5."""
    return config.model_type == "t5" or getattr(config, "tie_word_embeddings", True)


def todays_names(model_type, names):
    """{name as it is today, without the prefix: name in the file}

    What all names have in front (`module.`) is taken off, a layer norm's gamma and beta are its weight and bias.
    ValueError for two names that come to be one.
    """
    outer, found = len(os.path.commonprefix([name.split(".")[:-1] for name in names])), {}
    for name in names:
        today = ".".join(name.split(".")[outer:]).removeprefix(PREFIX[model_type])
        today = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", today))
        if today in found:
            raise ValueError(f"{found[today]} and {name} are two tensors of one name: {today}")
        found[today] = name
    return found


def is_passed(model_type, name):
    """Whether a name of today is one that a model may leave where it is."""
    paths = (re.escape(path).replace(r"\*", r"\d+") for path in PASSED[model_type].split())
    return any(re.fullmatch(path + r"(\.\w+)*", name) for path in paths)
