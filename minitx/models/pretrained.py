"""Published folders, in and out: `from_pretrained` and what `Model.save_pretrained` does."""
import dataclasses
import json
from pathlib import Path

from minitx import backend, checkpoint
from minitx.models.filling import filled
from minitx.models.hub import find_folder, read_json, weights_file
from minitx.models.legacy import ALSO
from minitx.models.published import FAMILIES, read_config, write_config
from minitx.models.weights import PREFIX, to_published
from minitx.tensor import as_numpy


def from_pretrained(folder, *, head="published", dtype=None):
    """The model that a published folder holds, with its weights, in eval mode.

    folder is a path, or the name of a model on the hub ("gpt2", "org/name") that Hugging Face's tools have downloaded;
    there lie config.json and model.safetensors, or its shards and their index. head is the one that config.json names in
    `architectures`, another that the file has, or None for the last hidden states. dtype is float16, float32 or float64,
    None the default dtype; what is stored otherwise becomes it, tensor by tensor.

    Nothing is made up: a head that the file lacks, and whatever else is missing, unexpected or of a wrong shape, is a
    ValueError that lists it all; so is a configuration that is not built. BERT and RoBERTa without a head have a pooler
    (else None) where the file has one. FileNotFoundError where there is no folder, no config.json or no weights,
    TypeError for another dtype.
    """
    folder = find_folder(folder)
    config, head = read_config(read_json(folder / "config.json"), str(folder / "config.json"), head)
    read_generation(config, folder / "generation_config.json")
    path = weights_file(folder)
    stored = checkpoint.Stored(path, backend.default_dtype() if dtype is None else dtype)
    model = filled(FAMILIES[config.model_type].model, config, head, stored, path)
    return model.to(backend.default_device(), stored.dtype).eval()


def save_pretrained(model, folder):
    """Model.save_pretrained, where it is told what it does."""
    config, folder = model.config, Path(folder)
    if not hasattr(config, "model_type"):
        raise ValueError(f"{type(model).__name__}: no published class reads it; keep its weights with "
                         "minitx.checkpoint.save(path, model.state_dict()) and its config beside them")
    settings, prefix, first, state = write_config(config, model.head_name), PREFIX[config.model_type], {}, {}
    tied = config.model_type == "t5" or getattr(config, "tie_word_embeddings", True)    # by the published class
    for name, array in model.state_dict().items():
        if first.setdefault(id(array), name) == name:
            state[name] = as_numpy(array)
        elif not tied:
            state[name] = as_numpy(array).copy()
    published = to_published(config.model_type, state)
    for name, others in ({} if tied else ALSO.get(config.model_type, {})).items():
        for whole in published.keys() & {name, prefix + name}:
            for other in others:
                published.setdefault(whole.removesuffix(name) + other, published[whole].copy())
    if model.head_name is None:
        published = {name.removeprefix(prefix): array for name, array in published.items()}
    text = json.dumps(settings, indent=2, sort_keys=True) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint.save(folder / "model.safetensors", published, {"format": "pt"})
    checkpoint.write(folder / "config.json", text.encode())


def read_generation(config, path):
    """Put the ids that end and start a text into a config, where a generation_config.json says others."""
    known = {field.name for field in dataclasses.fields(config)}
    for name, value in (read_json(path) if path.is_file() else {}).items():
        if name not in known & {"eos_token_id", "decoder_start_token_id"} or value is None:
            continue
        ids = value if isinstance(value, list) and name == "eos_token_id" else [value]
        if not ids or any(type(id) is not int or id < 0 for id in ids):
            raise ValueError(f"{path}: {name} must be an id{' or a list of ids' if name == 'eos_token_id' else ''}, "
                             f"got {value!r}")
        setattr(config, name, value)
