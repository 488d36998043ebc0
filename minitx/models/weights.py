"""The names and layouts of published tensors: one table a family, and the way between them and ours.

A row says: our path, the published path, the layout where it is another. A path stands for all that lies under it
(h.*.norm1 for its weight and bias), `*` for a layer's number. The layouts, read from ours to theirs:

    transposed      a matrix is stored (in, out), where ours is (out, in)
    1/3             the first of three that are stored as one, side by side along their outputs
    [None]          stored with an axis of length 1 in front

The published names are those of the model with its head; a file of the bare model leaves out their first part, PREFIX.
"""
import re

import numpy as np

PREFIX = {"gpt2": "transformer."}

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
}


def to_published(model_type, ours):
    """{our name: array} as {published name: array}, new arrays where the layout is another.

    ValueError for a name that the table of model_type does not have.
    """
    found = {}
    for name, array in ours.items():
        theirs, layout = _published(model_type, name)
        part = re.search(r"(\d)/(\d)", layout)
        if part:
            place, parts = map(int, part.groups())
            found.setdefault(theirs, [None] * parts)[place - 1] = array
        else:
            found[theirs] = [array]
        if part and any(array is None for array in found[theirs]):
            continue
        array = np.concatenate(found[theirs]) if part else array
        array = array.T if "transposed" in layout and array.ndim == 2 else array
        found[theirs] = array[None] if "[None]" in layout else array
    return found


def from_published(model_type, names, published):
    """Those of our names that {published name: array} has values for: {our name: array}, views where that is enough.

    Names may come with the prefix of the bare model or without. ValueError for a published tensor that none of our names
    asks for.
    """
    found, used = {}, set()
    for name in names:
        theirs, layout = _published(model_type, name)
        theirs = theirs if theirs in published else theirs.removeprefix(PREFIX[model_type])
        if theirs not in published:
            continue
        used.add(theirs)
        array = published[theirs]
        array = array[0] if "[None]" in layout else array
        array = array.T if "transposed" in layout and array.ndim == 2 else array
        part = re.search(r"(\d)/(\d)", layout)
        if part:
            place, parts = map(int, part.groups())
            array = np.split(array, parts)[place - 1]
        found[name] = array
    unexpected = [name for name in published if name not in used]
    if unexpected:
        raise ValueError(f"{model_type}: the model has no place for {', '.join(unexpected)}")
    return found


def _published(model_type, name):
    """(published name, layout) of one of our names."""
    for row in TABLES[model_type].strip().splitlines():
        ours, theirs, layout = (row.split(maxsplit=2) + [""])[:3]
        match = re.fullmatch(re.escape(ours).replace(r"\*", r"(\d+)") + r"((?:\.\w+)*)", name)
        if match:
            *numbers, rest = match.groups()
            for number in numbers:
                theirs = theirs.replace("*", number, 1)
            return theirs + rest, layout.strip()
    raise ValueError(f"{model_type}: no published name is known for {name}")
