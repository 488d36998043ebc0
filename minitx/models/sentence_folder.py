"""What the files of a folder as sentence-transformers publishes it say; what they say and is not built is refused by name."""
import json
import math
import warnings

from minitx.models.hub import read_json

POOLINGS = ("mean", "cls", "max")
PLAIN = dict(model_args={}, tokenizer_args={}, config_args={}, transformer_task="feature-extraction",
             module_output_name="token_embeddings")                     # other values would change the numbers


def read_modules(folder):
    """(the transformer's folder, its pooling, whether vectors are brought to length 1), as modules.json says."""
    path = folder / "modules.json"
    if not path.is_file():
        return folder, "mean", True
    try:
        parts = [(part["type"].rpartition(".")[2], folder / part["path"])
                 for part in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: no list of modules: {error!r}") from error
    kinds = [kind for kind, _ in parts]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ValueError(f"{path}: made of {', '.join(kinds) or 'nothing'}; what is built is Transformer, Pooling and, if "
                         "it is there, Normalize")
    return parts[0][1], read_pooling(parts[1][1] / "config.json"), len(kinds) == 3


def read_pooling(path):
    """How the tokens become one vector: a name of POOLINGS. Files say it in a name, or in one switch for each way."""
    settings = read_json(path)
    modes = settings.get("pooling_mode")
    if modes is None:
        switches = {"pooling_mode_mean_tokens": True} | settings
        modes = [name[13:].removesuffix("_tokens").removesuffix("_token") for name, value in switches.items()
                 if name.startswith("pooling_mode_") and value]
    modes = modes if isinstance(modes, list) else [modes]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise ValueError(f"{path}: pooling by {' and '.join(map(str, modes)) or 'nothing'} is not built, only by one of "
                         f"{', '.join(POOLINGS)}")
    if settings.get("include_prompt") is False and read_prompt(path.parent.parent):
        raise ValueError(f"{path}: include_prompt false is not built where there is a default prompt")
    return modes[0]


def read_prompt(folder):
    """What is put before every text: the prompt that config_sentence_transformers.json names as the default, else ""."""
    path = folder / "config_sentence_transformers.json"
    settings = read_json(path) if path.is_file() else {}
    name, prompts = settings.get("default_prompt_name"), settings.get("prompts") or {}
    if name is not None and not isinstance(prompts.get(name), str):
        raise ValueError(f"{path}: the default_prompt_name {name!r} is none of its prompts: {', '.join(prompts) or 'none'}")
    return "" if name is None else prompts[name]


def read_settings(folder):
    """(how many tokens a text may have, inf where the files do not say; whether it is read in small letters)"""
    names = [folder / f"sentence_{family}_config.json" for family in ("bert", "roberta", "distilbert")]
    path = next(filter(lambda path: path.is_file(), names), None)
    settings = {} if path is None else read_json(path)
    for name, value in settings.items():
        if name in PLAIN and value not in (None, PLAIN[name]):
            raise ValueError(f"{path}: {name} {value!r} is not built")
    if unknown := settings.keys() - PLAIN.keys() - {"max_seq_length", "do_lower_case", "modality_config"}:
        warnings.warn(f"{path}: passed over what is not known: {', '.join(sorted(unknown))}", stacklevel=3)
    longest, tokenizer = settings.get("max_seq_length"), folder / "tokenizer_config.json"
    if longest is None and tokenizer.is_file():
        path, longest = tokenizer, read_json(tokenizer).get("model_max_length")
    longest = math.inf if longest is None else longest
    if not isinstance(longest, (int, float)) or not longest >= 1:
        raise ValueError(f"{path}: a text cannot have {longest!r} tokens at most")
    return longest, bool(settings.get("do_lower_case"))
