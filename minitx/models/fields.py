"""The fields of a config.json in the forms in which files hold them, made into those of our configs, and checked."""
import sys
import types
import typing
import warnings
from dataclasses import fields

from minitx.models.base import activation
from minitx.models.bart import BartConfig
from minitx.models.llama import checked_scaling
from minitx.models.t5 import T5Config

LARGEST = 2 ** 24                       # of whatever is counted: what is made with a model for each stays small
ACTIVATIONS = ("activation", "activation_function", "hidden_act", "feed_forward_proj")


def take_rope(found, source):
    """LLaMA's rope_theta stands beside the sizes (until 2025) or in rope_parameters; what stretches positions, in
    rope_scaling or in rope_parameters too."""
    thetas = {"rope_theta": found["rope_theta"]} if "rope_theta" in found else {}
    scalings = {}
    for name in ("rope_scaling", "rope_parameters"):
        rope = found.pop(name, None) or {}
        if not isinstance(rope, dict):
            raise ValueError(f"{source}: {name} must be an object or null, got {rope!r}")
        if "rope_theta" in rope:
            thetas[f"{name}.rope_theta"] = rope["rope_theta"]
        if rope.get("partial_rotary_factor") is not None:
            found["partial_rotary_factor"] = rope["partial_rotary_factor"]
        if rope:
            scaling = {k: v for k, v in rope.items() if k not in ("rope_theta", "partial_rotary_factor")}
            scalings[name] = checked_scaling(scaling, f"{source}: {name}")
    scaling = next(iter(scalings.values()), None)
    if any(other != scaling for other in scalings.values()):
        raise ValueError(f"{source}: {' and '.join(f'{k} {v}' for k, v in scalings.items())} contradict each other")
    found["rope_scaling"] = None if scaling == {"rope_type": "default"} else scaling
    if any(theta != next(iter(thetas.values())) for theta in thetas.values()):
        raise ValueError(f"{source}: {' and '.join(f'{k} {v!r}' for k, v in thetas.items())} contradict each other")
    for theta in thetas.values():
        if not fits(theta, float) or theta <= 0:
            raise ValueError(f"{source}: rope_theta must be a number greater than 0, got {theta!r}")
        found["rope_theta"] = theta


def take_t5(found, source):
    """feed_forward_proj says all of T5's net, and two fields say its halves. Files from 2026 on say tie_word_embeddings
    of every T5, and in scale_decoder_outputs what that used to say besides: null there is false."""
    proj = str(found.get("feed_forward_proj", T5Config.feed_forward_proj))
    gated, _, name = proj.rpartition("-")
    if gated not in ("", "gated"):
        raise ValueError(f'{source}: feed_forward_proj must be an activation, or "gated-" and one; got {proj!r}')
    name = "gelu_new" if proj == "gated-gelu" else name
    activation(f"{source}: feed_forward_proj", name)
    for half, value in (("is_gated_act", bool(gated)), ("dense_act_fn", name)):
        if found.pop(half, value) != value:
            raise ValueError(f"{source}: {half} must be {value!r} where feed_forward_proj is {proj!r}")
    if found.get("scale_decoder_outputs", False) is None:
        found["scale_decoder_outputs"] = False
    found.setdefault("scale_decoder_outputs", found.get("tie_word_embeddings", T5Config.tie_word_embeddings))


def take_bart(found, source):
    """An old field asks for the first token that forced_bos_token_id names today. That training leaves out layers at
    random is not built; elsewhere it is no matter, so it is said and passed."""
    if found.pop("force_bos_token_to_be_generated", None) and found.get("forced_bos_token_id") is None:
        found["forced_bos_token_id"] = found.get("bos_token_id", BartConfig.bos_token_id)
    if dropped := [name for name in ("encoder_layerdrop", "decoder_layerdrop") if found.pop(name, None)]:
        warnings.warn(f"{source}: no {' and no '.join(dropped)} is built: training leaves out no layers", stacklevel=4)


def count_labels(labels, num_labels, source):
    """num_labels: as many as id2label names."""
    if not isinstance(labels, dict) or num_labels not in (None, len(labels)):
        got = f"{len(labels)} entries" if isinstance(labels, dict) else type(labels).__name__
        raise ValueError(f"{source}: id2label must be an object with as many entries as num_labels, {num_labels}; "
                         f"got {got}")
    return len(labels)


def checked(f, value, source):
    """The value of a field of ours."""
    if not fits(value, f.type):
        kind = f.type.__name__ if f.type in (int, float, str, bool) else f.type
        raise ValueError(f"{source}: {f.name} must be {kind}, got {value!r}")
    if f.name in ACTIVATIONS and f.name != "feed_forward_proj":
        activation(f"{source}: {f.name}", value)
    return tuple(value) if isinstance(value, list) and "size" in f.name else value


def fits(value, kind):
    """Whether what JSON gave is of a field's kind: 1 is a float, 1.0 no int, true neither."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in typing.get_args(kind))
    if kind is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max         # a longer int is no float
    if typing.get_origin(kind) in (list, tuple):
        inner = typing.get_args(kind)
        fitting = isinstance(value, (list, tuple)) and len(inner) in (1, len(value))
        return fitting and all(type(one) is inner[0] for one in value)
    return type(value) is (type(None) if kind is None else kind)


def check_ids(name, value, source):
    """ValueError for what is no id, or None, or, where there may be several, a list of ids."""
    several = name in ("eos_token_id", "forced_eos_token_id")
    ids = value if isinstance(value, list) and several else [] if value is None else [value]
    if value == [] or any(type(id) is not int or id < 0 for id in ids):
        raise ValueError(f"{source}: {name} must be an id{' or a list of ids' if several else ''}, got {value!r}")


def check_sizes(config, divides, source):
    """ValueError for a number that no model can have, and for one that does not go with another."""
    for f in fields(config):
        value, rate = getattr(config, f.name), "drop" in f.name
        if f.name.endswith("_token_id"):
            check_ids(f.name, value, source)
            continue
        least = 0 if f.type in (float, float | None) or "layer" in f.name else 1
        for number in value if isinstance(value, tuple) else (value,):
            if not isinstance(number, (int, float)) or isinstance(number, bool):
                continue
            if number < least or rate and number > 1 or f.type not in (float, float | None) and number > LARGEST:
                wanted = "from 0 to 1" if rate else f"from {least} to {LARGEST}" if number > LARGEST else f"at least {least}"
                raise ValueError(f"{source}: {f.name} must be {wanted}, got {number}")
    for first, second in divides:
        one, other = getattr(config, first), getattr(config, second)
        if one is not None and other % one and not (second == "hidden_size" and getattr(config, "head_dim", None)):
            raise ValueError(f"{source}: {second} {other} must be a multiple of {first} {one}")
    pad = getattr(config, "pad_token_id", None)
    if pad is not None and not 0 <= pad < config.vocab_size:
        raise ValueError(f"{source}: pad_token_id {pad} is outside the vocab_size of {config.vocab_size}")
