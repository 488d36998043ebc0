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
    path = Path(os.path.expanduser(folder))             # os.path says False of names that no file can have
    if os.path.isdir(path):
        return path
    if os.path.exists(path):
        raise NotADirectoryError(f"{path} is a file: give the folder that holds config.json and the weights")
    name = os.fspath(folder)
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise FileNotFoundError(f"{path}: there is no such folder")
    kept = hub_cache() / f"models--{name.replace('/', '--')}"
    main = kept / "refs" / "main"
    first = [kept / "snapshots" / main.read_text(encoding="utf-8").strip()] if os.path.isfile(main) else []
    for snapshot in (*first, *(sorted(kept.glob("snapshots/*")) if os.path.isdir(kept) else ())):
        if os.path.isfile(snapshot / "config.json"):
            return snapshot
    raise FileNotFoundError(f"there is no folder {name}, and no model of that name in {hub_cache()} (HF_HUB_CACHE or "
                            f"HF_HOME say where that is). Download it: hf download {name}, or of it only what is read: "
                            f"hf download {name} config.json model.safetensors tokenizer.json "
                            "(pip install huggingface_hub)")


def hub_cache():
    """Where Hugging Face's tools keep what they download, by their own rules."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(home, "huggingface")
    path = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    return Path(os.path.expanduser(os.path.expandvars(path)))


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


def read_tokenizer(folder):
    """The tokenizer of a folder: its tokenizer.json, or the vocab.json and merges.txt that GPT-2 had before there was one.

    ImportError where the library tokenizers is missing, FileNotFoundError saying how the file is made, ValueError naming
    one that cannot be read.
    """
    try:
        from tokenizers import ByteLevelBPETokenizer, Tokenizer
    except ImportError as error:
        raise ImportError("to read and write text takes the library tokenizers: pip install tokenizers",
                          name="tokenizers") from error
    folder = Path(folder)
    file, old = folder / "tokenizer.json", (folder / "vocab.json", folder / "merges.txt")
    if not file.is_file() and not all(part.is_file() for part in old):
        raise FileNotFoundError(f"{file}: not there. Make it where transformers is: "
                                "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)")
    try:
        if file.is_file():
            return Tokenizer.from_file(str(file))
        tokenizer = ByteLevelBPETokenizer(*map(str, old))
        tokenizer.add_special_tokens(["<|endoftext|>"])
        return tokenizer
    except Exception as error:                                          # tokenizers raises no class of its own
        raise ValueError(f"{file if file.is_file() else old[0]}: no tokenizer: {error}") from error
