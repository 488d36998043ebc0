"""The names and layouts of published tensors: one table a family, and the way between them and ours.

A row says: our path, the published path, the layout where it is another. A path stands for all that lies under it
(h.*.norm1 for its weight and bias), `*` for a layer's number, or for encoder and decoder alike; the first row that fits a
name counts. The layouts, read from ours to theirs:

    transposed      a matrix is stored (in, out), where ours is (out, in)
    1/3             the first of three that are stored as one, side by side along their outputs
    [None]          stored with an axis of length 1 in front
    gated           the row counts only where the net has a gate, whose name is beside this one

The published names are those of the model with its head; a file of the bare model leaves out their first part, its
PREFIX.
"""
import functools
import re
from typing import NamedTuple

from minitx.backend import xp_of

PREFIX = {"gpt2": "transformer.", "llama": "model.", "bert": "bert.", "roberta": "roberta.", "distilbert": "distilbert.",
          "vit": "vit.", "t5": "", "bart": "model."}

BERT = """
        word_embeddings         bert.embeddings.word_embeddings
        position_embeddings     bert.embeddings.position_embeddings
        token_type_embeddings   bert.embeddings.token_type_embeddings
        norm                    bert.embeddings.LayerNorm
        layers.*.attn.w_q       bert.encoder.layer.*.attention.self.query
        layers.*.attn.w_k       bert.encoder.layer.*.attention.self.key
        layers.*.attn.w_v       bert.encoder.layer.*.attention.self.value
        layers.*.attn.w_o       bert.encoder.layer.*.attention.output.dense
        layers.*.norm1          bert.encoder.layer.*.attention.output.LayerNorm
        layers.*.ff.net.0       bert.encoder.layer.*.intermediate.dense
        layers.*.ff.net.3       bert.encoder.layer.*.output.dense
        layers.*.norm2          bert.encoder.layer.*.output.LayerNorm
        pooler                  bert.pooler
        """

TABLES = {
    "gpt2": """
        wte                 transformer.wte
        wpe                 transformer.wpe
        h.*.norm1           transformer.h.*.ln_1
        h.*.attn.w_q        transformer.h.*.attn.c_attn         1/3 transposed
        h.*.attn.w_k        transformer.h.*.attn.c_attn         2/3 transposed
        h.*.attn.w_v        transformer.h.*.attn.c_attn         3/3 transposed
        h.*.attn.w_o        transformer.h.*.attn.c_proj         transposed
        h.*.norm2           transformer.h.*.ln_2
        h.*.ff.net.0        transformer.h.*.mlp.c_fc            transposed
        h.*.ff.net.3        transformer.h.*.mlp.c_proj          transposed
        ln_f                transformer.ln_f
        lm_head             lm_head
        """,
    "llama": """
        embed_tokens        model.embed_tokens
        layers.*.norm1      model.layers.*.input_layernorm
        layers.*.attn.w_q   model.layers.*.self_attn.q_proj
        layers.*.attn.w_k   model.layers.*.self_attn.k_proj
        layers.*.attn.w_v   model.layers.*.self_attn.v_proj
        layers.*.attn.w_o   model.layers.*.self_attn.o_proj
        layers.*.norm2      model.layers.*.post_attention_layernorm
        layers.*.ff.gate    model.layers.*.mlp.gate_proj
        layers.*.ff.net.0   model.layers.*.mlp.up_proj
        layers.*.ff.net.3   model.layers.*.mlp.down_proj
        norm                model.norm
        lm_head             lm_head
        """,
    "bert": BERT + """
        head.dense              cls.predictions.transform.dense
        head.norm               cls.predictions.transform.LayerNorm
        head.decoder.weight     cls.predictions.decoder.weight
        head.decoder.bias       cls.predictions.bias
        head.1                  classifier
        """,
    "roberta": BERT.replace(" bert.", " roberta.") + """
        head.dense              lm_head.dense
        head.norm               lm_head.layer_norm
        head.decoder.weight     lm_head.decoder.weight
        head.decoder.bias       lm_head.bias
        head.0.dense            classifier.dense
        head.2                  classifier.out_proj
        head.1                  classifier
        """,
    "distilbert": """
        word_embeddings         distilbert.embeddings.word_embeddings
        position_embeddings     distilbert.embeddings.position_embeddings
        norm                    distilbert.embeddings.LayerNorm
        layers.*.attn.w_q       distilbert.transformer.layer.*.attention.q_lin
        layers.*.attn.w_k       distilbert.transformer.layer.*.attention.k_lin
        layers.*.attn.w_v       distilbert.transformer.layer.*.attention.v_lin
        layers.*.attn.w_o       distilbert.transformer.layer.*.attention.out_lin
        layers.*.norm1          distilbert.transformer.layer.*.sa_layer_norm
        layers.*.ff.net.0       distilbert.transformer.layer.*.ffn.lin1
        layers.*.ff.net.3       distilbert.transformer.layer.*.ffn.lin2
        layers.*.norm2          distilbert.transformer.layer.*.output_layer_norm
        head.dense              vocab_transform
        head.norm               vocab_layer_norm
        head.decoder            vocab_projector
        head.0.dense            pre_classifier
        head.2                  classifier
        head.1                  classifier
        """,
    "vit": """
        class_token.weight          vit.embeddings.cls_token                [None]
        positions.weight            vit.embeddings.position_embeddings      [None]
        patches.proj                vit.embeddings.patch_embeddings.projection
        encoder.layers.*.norm1      vit.encoder.layer.*.layernorm_before
        encoder.layers.*.attn.w_q   vit.encoder.layer.*.attention.attention.query
        encoder.layers.*.attn.w_k   vit.encoder.layer.*.attention.attention.key
        encoder.layers.*.attn.w_v   vit.encoder.layer.*.attention.attention.value
        encoder.layers.*.attn.w_o   vit.encoder.layer.*.attention.output.dense
        encoder.layers.*.norm2      vit.encoder.layer.*.layernorm_after
        encoder.layers.*.ff.net.0   vit.encoder.layer.*.intermediate.dense
        encoder.layers.*.ff.net.3   vit.encoder.layer.*.output.dense
        encoder.norm                vit.layernorm
        classifier                  classifier
        """,
    "t5": """
        shared                             shared
        *.relative_bias                    *.block.0.layer.0.SelfAttention.relative_attention_bias
        *.layers.*.attn.w_q                *.block.*.layer.0.SelfAttention.q
        *.layers.*.attn.w_k                *.block.*.layer.0.SelfAttention.k
        *.layers.*.attn.w_v                *.block.*.layer.0.SelfAttention.v
        *.layers.*.attn.w_o                *.block.*.layer.0.SelfAttention.o
        *.layers.*.norm1                   *.block.*.layer.0.layer_norm
        encoder.layers.*.ff.gate           encoder.block.*.layer.1.DenseReluDense.wi_0
        encoder.layers.*.ff.net.0          encoder.block.*.layer.1.DenseReluDense.wi_1    gated
        encoder.layers.*.ff.net.0          encoder.block.*.layer.1.DenseReluDense.wi
        encoder.layers.*.ff.net.3          encoder.block.*.layer.1.DenseReluDense.wo
        encoder.layers.*.norm2             encoder.block.*.layer.1.layer_norm
        decoder.layers.*.cross_attn.w_q    decoder.block.*.layer.1.EncDecAttention.q
        decoder.layers.*.cross_attn.w_k    decoder.block.*.layer.1.EncDecAttention.k
        decoder.layers.*.cross_attn.w_v    decoder.block.*.layer.1.EncDecAttention.v
        decoder.layers.*.cross_attn.w_o    decoder.block.*.layer.1.EncDecAttention.o
        decoder.layers.*.norm2             decoder.block.*.layer.1.layer_norm
        decoder.layers.*.ff.gate           decoder.block.*.layer.2.DenseReluDense.wi_0
        decoder.layers.*.ff.net.0          decoder.block.*.layer.2.DenseReluDense.wi_1    gated
        decoder.layers.*.ff.net.0          decoder.block.*.layer.2.DenseReluDense.wi
        decoder.layers.*.ff.net.3          decoder.block.*.layer.2.DenseReluDense.wo
        decoder.layers.*.norm3             decoder.block.*.layer.2.layer_norm
        *.norm                             *.final_layer_norm
        lm_head                            lm_head
        """,
    "bart": """
        shared                       model.shared
        *_positions.table            model.*.embed_positions
        *_positions.norm             model.*.layernorm_embedding
        *.layers.*.attn.w_q          model.*.layers.*.self_attn.q_proj
        *.layers.*.attn.w_k          model.*.layers.*.self_attn.k_proj
        *.layers.*.attn.w_v          model.*.layers.*.self_attn.v_proj
        *.layers.*.attn.w_o          model.*.layers.*.self_attn.out_proj
        *.layers.*.norm1             model.*.layers.*.self_attn_layer_norm
        *.layers.*.cross_attn.w_q    model.*.layers.*.encoder_attn.q_proj
        *.layers.*.cross_attn.w_k    model.*.layers.*.encoder_attn.k_proj
        *.layers.*.cross_attn.w_v    model.*.layers.*.encoder_attn.v_proj
        *.layers.*.cross_attn.w_o    model.*.layers.*.encoder_attn.out_proj
        *.layers.*.ff.net.0          model.*.layers.*.fc1
        *.layers.*.ff.net.3          model.*.layers.*.fc2
        encoder.layers.*.norm2       model.encoder.layers.*.final_layer_norm
        decoder.layers.*.norm2       model.decoder.layers.*.encoder_attn_layer_norm
        decoder.layers.*.norm3       model.decoder.layers.*.final_layer_norm
        decoder_embed                model.decoder.embed_tokens
        lm_head.bias                 final_logits_bias    [None]
        lm_head                      lm_head
        """,
}


def to_published(model_type, ours):
    """{our name: array} as {published name: array}: views, but new arrays where several are stored as one.

    ValueError for a model_type without a table, for names that its table does not have, and where of several that are
    stored as one only some are there.
    """
    found = {}
    for theirs, group in grouped(model_type, ours).items():
        parts = group[0].parts
        if len(group) < parts:
            raise ValueError(f"{model_type}: {theirs} is made of {parts} parts, there is only "
                             f"{', '.join(place.ours for place in group)}")
        arrays = [ours[place.ours] for place in sorted(group, key=lambda place: place.part)]
        array = arrays[0] if parts == 1 else xp_of(arrays[0]).concatenate(arrays)
        array = array.T if "transposed" in group[0].layout else array       # a vector stays as it is
        found[theirs] = array[None] if "[None]" in group[0].layout else array
    return found


def from_published(model_type, names, published):
    """Those of our names that {published name: array} has values for: {our name: array}, views all of them.

    The published names may come with the bare model's prefix or without. ValueError for a model_type without a table,
    for names that its table does not have, for published tensors that none of our names asks for (buffers and heads that
    the model lacks too: leave them out first), and for one that cannot be cut into its parts.
    """
    found, unexpected = {}, dict(published)
    for theirs, group in grouped(model_type, names).items():
        theirs = theirs if theirs in published else theirs.removeprefix(PREFIX[model_type])
        if theirs in published:
            found.update(cut(f"{model_type}: {theirs}", unexpected.pop(theirs), group))
    if unexpected:
        raise ValueError(f"{model_type}: the model has no place for {', '.join(unexpected)}")
    return found


class Place(NamedTuple):
    """Where one of our tensors is stored: as which of how many parts, and in which layout."""
    ours: str
    part: int
    parts: int
    layout: list


def cut(name, array, group):
    """{our name: view} of the Places of one published tensor. ValueError, saying its name, where it cannot be cut so."""
    shape, (_, _, parts, layout) = array.shape, group[0]
    if "[None]" in layout:
        if shape[:1] != (1,):
            raise ValueError(f"{name} {shape} must begin with an axis of length 1")
        array = array[0]
    array = array.T if "transposed" in layout else array
    if parts > 1 and (not array.ndim or len(array) % parts):
        raise ValueError(f"{name} {shape} cannot be cut into {parts} parts")
    return {place.ours: array if parts == 1 else xp_of(array).split(array, parts)[place.part - 1] for place in group}


def stored_shape(shape, group):
    """The shape of the published tensor that all Places of a group make, each of this shape."""
    _, _, parts, layout = group[0]
    shape = (shape[0] * parts, *shape[1:])
    shape = shape[::-1] if "transposed" in layout else shape
    return (1, *shape) if "[None]" in layout else shape


def grouped(model_type, names):
    """{published name: the Places of those of our names that it holds}"""
    if model_type not in TABLES:
        raise ValueError(f"no published names are known for model_type {model_type!r}, only for {', '.join(TABLES)}")
    names, groups, unknown = dict.fromkeys(names), {}, []
    for name in names:
        for path, theirs, *layout in filter(None, map(str.split, TABLES[model_type].splitlines())):
            if "gated" in layout and name.replace(".net.0.", ".gate.") not in names:
                continue
            if match := _pattern(path).fullmatch(name):
                *numbers, rest = match.groups()
                for number in numbers:
                    theirs = theirs.replace("*", number, 1)
                part, parts = next((map(int, word.split("/")) for word in layout if "/" in word), (1, 1))
                groups.setdefault(theirs + rest, []).append(Place(name, part, parts, layout))
                break
        else:
            unknown.append(name)
    if unknown:
        raise ValueError(f"{model_type}: no published name is known for {', '.join(unknown)}")
    return groups


@functools.cache
def _pattern(path):
    """What finds the names under a path of ours: groups for what `*` stands for, and for the rest of the name."""
    return re.compile(re.escape(path).replace(r"\*", r"(\d+|encoder|decoder)") + r"((?:\.\w+)*)")
