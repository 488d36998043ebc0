"""Published folders, in and out: `from_pretrained` and what `Model.save_pretrained` does."""
import dataclasses
import json
from pathlib import Path

from minitx import backend, checkpoint
from minitx.models.fields import check_ids
from minitx.models.filling import filled
from minitx.models.hub import find_folder, read_json, weights_file
from minitx.models.legacy import ALSO, ties
from minitx.models.published import FAMILIES, read_config, write_config
from minitx.models.weights import PREFIX, to_published
from minitx.tensor import as_numpy
from minitx.writing import put_text

# the ids that generation_config.json says for a model
WRITTEN_IDS = ("eos_token_id", "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id")


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
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} holds no config.json: it is no published model")
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
    tied = ties(config)
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
    files, generation = {"config.json": settings}, folder / "generation_config.json"
    if generation.is_file():                                                # whose ids would count, not those of config.json
        ids = {f.name for f in dataclasses.fields(config) if f.name.endswith("_token_id")}.union(WRITTEN_IDS)
        files[generation.name] = read_json(generation) | {name: getattr(config, name, None) for name in ids}
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint.save(folder / "model.safetensors", published, {"format": "pt"})
    for name, settings in files.items():
        put_text(folder / name, json.dumps(settings, indent=2, sort_keys=True) + "\n")


def read_generation(config, path):
    """Put the ids that begin, end and stand in a text into a config, where a generation_config.json says them.

    As in transformers, that file alone counts where it is: an id that it leaves out is none. But a text must begin.
    """
    if not path.is_file():
        return
    settings, known = read_json(path), {field.name for field in dataclasses.fields(config)}
    for name in known.intersection(WRITTEN_IDS):
        value = settings.get(name)
        if value is None and name == "decoder_start_token_id":
            continue
        check_ids(name, value, path)
        setattr(config, name, value)
