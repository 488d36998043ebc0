"""Giving a model the tensors of a published file, one by one. What it needs and what the file holds must agree."""
import dataclasses
import functools
import math
import warnings

import numpy as np

from minitx import backend, nn
from minitx.models.legacy import ALSO, is_passed, ties, todays_names
from minitx.models.weights import PREFIX, cut, grouped, stored_shape


def filled(kind, config, head, stored, path):
    """A model of that kind, config and head, with its arrays from `stored`, a checkpoint.Stored; errors call it `path`.

    No parameter takes memory before its tensor is read, and only one tensor at a time lies in memory twice.
    ValueError listing all that is missing, unexpected, of a wrong shape or kind, and what heads there are instead.
    """
    try:
        names = todays_names(config.model_type, stored)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if config.model_type == "t5" and head and "lm_head.weight" not in names:
        config.tie_word_embeddings = True                       # whatever config.json says: today's ties every T5
    for field in dataclasses.fields(config):
        if field.name.endswith(("layer", "layers")) and (getattr(config, field.name) or 0) > len(names):
            raise ValueError(f"{path}: holds {len(names)} tensors, too few for config.json's {field.name} "
                             f"{getattr(config, field.name)}")
    try:
        model = hollow(kind, config, head, names)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    complaints = merge(model, names, stored)
    untie(model, names, stored, path)
    places, tensors = places_of(model)
    if missing := lacking(model, names):
        others = (other for other in kind.heads if other != head)
        heads = [repr(other) for other in others if not lacking(hollow(kind, config, other, names), names)]
        if heads:
            complaints.insert(0, f"there is no head {head!r} in it, but head= may be {' or '.join(heads)}")
        complaints.append(f"missing: {', '.join(missing)}")
    unexpected = [name for today, name in names.items()
                  if today not in places and not is_passed(config.model_type, today)]
    if unexpected:
        complaints.append(f"unexpected: {', '.join(unexpected)}")
    found = {name: places[today] for today, name in names.items() if today in places}
    for name, group in found.items():
        (shape, dtype), ours = stored.describe(name), stored_shape(tensors[group[0].ours].shape, group)
        if shape != ours or dtype.kind != "f":
            complaints.append(f"wrong shape or kind: {name} is {shape} of {dtype}, the model has {ours} of floats")
    if complaints:
        raise ValueError("\n  ".join([f"{path}: does not fit what config.json describes", *complaints]))
    for name in sorted(found, key=lambda name: -math.prod(stored.describe(name)[0])):
        fill(tensors, found[name], stored[name])                # the largest first, while there is most room
    return model


def fill(tensors, group, array):
    """Give a published array to our Tensors that it is made of, each an array of its own in C order."""
    for ours, part in cut(group[0].ours, array, group).items():
        part = part if part is array else np.array(part, order="C")
        tensors[ours].data = backend.to_device(part, backend.default_device())


def hollow(kind, config, head, names):
    """A model without memory. BERT's pooler, which no result of a model without a head needs, is there if the file
    has it."""
    with nn.init.hollow():
        model = kind(config, head)
    if head is None and getattr(model, "pooler", None) is not None and "pooler.dense.weight" not in names:
        model.pooler = None
    return model


def places_of(model):
    """{published name without the prefix: its Places}, {our name: Tensor}, of all that a model saves."""
    tensors, kind = model.saved(), model.config.model_type
    return {theirs.removeprefix(PREFIX[kind]): group for theirs, group in grouped(kind, tensors).items()}, tensors


def lacking(model, names):
    """The published names of a model's parameters that names lacks, and all names that are tied to them too."""
    places, tensors = places_of(model)
    given = {id(tensors[place.ours]) for today, group in places.items() if today in names for place in group}
    return [today for today, (place, *_) in places.items() if today not in names
            and isinstance(tensors[place.ours], nn.Parameter) and id(tensors[place.ours]) not in given]


def merge(model, names, stored):
    """Leave in names one name for each tensor that has several. Returns a complaint for each name whose tensor differs,
    although the model has one for all.

    In an untied file of transformers 5 they need not be one, and those in ALSO's lists are what its models read: a
    bias of BERT's decoder, and two embeddings of BART.
    """
    config, complaints, (places, _) = model.config, [], places_of(model)
    untied = not ties(config)
    for name, others in ALSO.get(config.model_type, {}).items():
        there = {other: names.pop(other) for other in (*others, name) if other in names and name in places}
        if not there:
            continue
        names[name] = first = next(iter(there.values()))
        unlike = [other for other in there if not stored.same(first, there[other])]
        if not untied:
            complaints += [f"{first} and {there[other]} are one tensor in the model, and differ here"
                           for other in unlike]
        elif "decoder.embed_tokens.weight" in unlike:
            names["decoder.embed_tokens.weight"] = there["decoder.embed_tokens.weight"]
            with nn.init.hollow():
                model.decoder_embed = nn.Embedding(*model.shared.weight.shape)
    return complaints


def untie(model, names, stored, path):
    """Where a file holds two matrices for what config.json ties, the model gets two, as transformers' does; where it
    holds one twice, one of its names is left. T5's config.json ties today whatever the file holds.
    """
    places, tensors = places_of(model)
    firsts, config = {}, model.config
    for today, (place, *_) in places.items():
        first = firsts.setdefault(id(tensors[place.ours]), today) if today in names else today
        if first == today:
            continue
        if stored.same(names[first], names[today]):
            del names[today]
            continue
        if config.model_type != "t5":
            warnings.warn(f"{path}: {names[first]} and {names[today]} differ, although config.json ties them: the "
                          "model has both", stacklevel=4)
        *owner, last = place.ours.split(".")
        with nn.init.hollow():
            own = nn.Parameter(tensors[place.ours].data)
        setattr(functools.reduce(getattr, owner, model), last, own)
        config.tie_word_embeddings = False
