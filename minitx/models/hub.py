"""Folders of published models on this machine: their own path, or their name in the cache of Hugging Face's tools."""
import json
import os
import re
from pathlib import Path

from minitx import checkpoint


def find_folder(folder):
    """The Path of a folder that holds a model; where there is none of that path, it is looked up as a name on the hub
    ("gpt2", "org/name") among what was downloaded to this machine. Nothing is downloaded.

    NotADirectoryError for a file, FileNotFoundError saying where was looked and how to download it.
    """
    path = Path(folder).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise NotADirectoryError(f"{path} is a file: give the folder that holds config.json and the weights")
    name = os.fspath(folder)
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise FileNotFoundError(f"{path}: there is no such folder")
    kept = cache() / f"models--{name.replace('/', '--')}"
    main = kept / "refs" / "main"
    first = [kept / "snapshots" / main.read_text(encoding="utf-8").strip()] if main.is_file() else []
    for snapshot in (*first, *sorted(kept.glob("snapshots/*"))):
        if (snapshot / "config.json").is_file():
            return snapshot
    raise FileNotFoundError(f"there is no folder {name}, and no model of that name in {cache()} (HF_HUB_CACHE or "
                            f"HF_HOME say where that is). Download it: hf download {name}")


def cache():
    """Where Hugging Face's tools keep what they download, by their own rules."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(home, "huggingface")
    path = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    return Path(os.path.expandvars(path)).expanduser()


def read_json(path):
    """The object in a JSON file. FileNotFoundError where there is no file, ValueError where it holds no object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: must be a JSON object, not a {type(found).__name__}")
    return found


def weights_file(folder):
    """The file of a folder's weights, or the index of its shards. ValueError where they lie there as a pickle alone,
    saying how to convert it; FileNotFoundError where there are none.
    """
    for name in "model.safetensors", "model.safetensors.index.json":
        if (folder / name).is_file():
            return folder / name
    if any(folder.glob("pytorch_model*.bin")):
        raise ValueError(f"{folder}: its weights are a pickle, which can run any code when opened, so it is not read. "
                         f"Convert it once, where PyTorch is, in that folder: {checkpoint.CONVERT}")
    raise FileNotFoundError(f"{folder}: there is neither model.safetensors nor model.safetensors.index.json")
