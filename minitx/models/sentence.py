"""Sentences as vectors: a BERT whose tokens are pooled into one, read from a folder as sentence-transformers publishes it."""
import concurrent.futures
import contextlib
import json
import math
import operator
import warnings

import numpy as np

from minitx import backend, ops
from minitx.autograd import no_grad
from minitx.generate import evaluating
from minitx.models.bert import BERT
from minitx.models.hub import find_folder, read_json
from minitx.models.pretrained import from_pretrained

TOKENS = 512            # at a time on the CPU, padding too: what a layer makes of so many stays in the cache
POOLINGS = ("mean", "cls", "max")
PLAIN = dict(model_args={}, tokenizer_args={}, config_args={}, transformer_task="feature-extraction",
             module_output_name="token_embeddings")                     # other values would change the numbers


class SentenceEncoder:
    """Texts to vectors that lie close together where the texts mean the same. Reimers and Gurevych 2019, "Sentence-BERT".

    folder is a path, or a name on the hub that was downloaded, of a BERT, RoBERTa or DistilBERT with its tokenizer.json,
    published by sentence-transformers: modules.json, the pooling (mean, cls or max), the longest text, a default prompt
    and whether vectors are brought to length 1 are honoured. A folder without modules.json, of a bare BERT, is read as
    all-MiniLM-L6-v2: the mean, brought to length 1.

    ValueError naming the file for what is not built: other modules and poolings, several at once, arguments for other
    libraries. FileNotFoundError where a file is missing. ImportError where tokenizers is. from_pretrained's errors besides.
    """

    def __init__(self, folder):
        folder = find_folder(folder)
        place, self.pooling, self.normalised = read_modules(folder)
        self.prompt = read_prompt(folder)
        longest, self.lower = read_settings(place)
        self.tokenizer = read_tokenizer(place / "tokenizer.json")
        self.model = from_pretrained(place, head=None, dtype=np.float32)
        if not isinstance(self.model, BERT):
            raise ValueError(f"{place}: a {type(self.model).__name__}, where BERT, RoBERTa or DistilBERT is read")
        c = self.model.config
        positions = c.max_position_embeddings - (c.pad_token_id + 1 if self.model.is_roberta else 0)
        self.max_length = int(min(longest, positions))
        if self.max_length <= self.tokenizer.num_special_tokens_to_add(False):
            raise ValueError(f"{place}: texts of at most {self.max_length} tokens have room for no words")
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.max_length)

    def encode(self, texts, batch_size=32):
        """texts, a list of N strings -> their vectors (N, C) in float32, in the same order; one string -> (C,).

        A text that has more than max_length tokens counts as far as those go. The texts are sorted by length, so that
        little is padded, and computed batch_size or fewer at a time: on the CPU no more than fit the cache, side by side
        on all threads of NumPy's BLAS where threadpoolctl can be imported. TypeError for what is no string, ValueError
        for a batch_size below 1.
        """
        size = operator.index(batch_size)
        if size < 1:
            raise ValueError(f"SentenceEncoder: batch_size must be at least 1, got {size}")
        single = isinstance(texts, str)
        texts = [texts] if single else list(texts)
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"SentenceEncoder: texts must be strings, got {type(text).__name__}")
        rows, found = self.tokens(texts), np.empty((len(texts), self.model.config.hidden_size), np.float32)
        on_cpu = self.model.word_embeddings.weight.device == "cpu"
        batches = in_batches([len(row) for row in rows], size, TOKENS if on_cpu else None)
        with evaluating(self.model), side_by_side(on_cpu and len(batches) > 1) as run:
            for batch, vectors in zip(batches, run(lambda batch: self.vectors([rows[i] for i in batch]), batches)):
                found[batch] = vectors
        return found[0] if single else found

    def tokens(self, texts):
        """The ids of each text, an array of int64, cut at max_length."""
        texts = [(self.prompt + text).strip() for text in texts]
        encodings = self.tokenizer.encode_batch([text.lower() for text in texts] if self.lower else texts)
        return [np.array(encoding.ids, np.int64) for encoding in encodings]

    @no_grad()                                                          # in the thread that runs it
    def vectors(self, rows):
        """rows, lists of ids -> the vector of each (B, C), a NumPy array."""
        lengths = np.array([len(row) for row in rows])
        mask = np.arange(max(lengths.max(), 1)) < lengths[:, None]      # (B, T)
        ids = np.full(mask.shape, self.model.config.pad_token_id or 0)
        ids[mask] = np.concatenate(rows)
        x = self.pool(self.model(ids, None if mask.all() else mask), mask).numpy()
        return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) if self.normalised else x

    def pool(self, x, mask):
        """The tokens x (B, T, C) that mask (B, T) counts, as one vector each: (B, C). Of none the mean is 0."""
        if self.pooling == "cls":
            return x[:, 0]
        if self.pooling == "max":
            return ops.masked_fill(x, ~mask[..., None], -1e9).max(axis=1)
        share = mask / np.maximum(mask.sum(axis=1, keepdims=True), 1)
        return ops.matmul(backend.like(share.astype(np.float32)[:, None], x), x)[:, 0]


def in_batches(lengths, size, tokens):
    """Numbers of texts, the longest first: [numbers of at most `size` that with padding have at most `tokens`]."""
    order, batches = np.argsort(-np.array(lengths, int), kind="stable"), []
    while len(order):
        n = size if tokens is None else max(1, min(size, tokens // max(lengths[order[0]], 1)))
        batches.append(order[:n])
        order = order[n:]
    return batches


@contextlib.contextmanager
def side_by_side(wanted):
    """`map`, or one that runs in as many threads as BLAS had, and leaves each of them one of BLAS's: then all of NumPy's
    work is shared, where BLAS shares the products alone."""
    try:
        from threadpoolctl import threadpool_info, threadpool_limits
    except ImportError:
        wanted = False
    n = min([one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"], default=1) if wanted else 1
    if n == 1:
        yield map
        return
    with threadpool_limits(1, user_api="blas"), concurrent.futures.ThreadPoolExecutor(n) as pool:
        yield pool.map


# ---- the files of a folder -------------------------------------------------------------------------------------------

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
    modes = [modes] if isinstance(modes, str) else modes
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


def read_tokenizer(path):
    """The tokenizer of a tokenizer.json. ValueError for what is none, FileNotFoundError saying how to make one."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ImportError("models.SentenceEncoder needs the library tokenizers: pip install tokenizers",
                          name="tokenizers") from error
    if not path.is_file():
        raise FileNotFoundError(f"{path}: not there. Make it where transformers is: "
                                "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:                                          # tokenizers raises no class of its own
        raise ValueError(f"{path}: no tokenizer: {error}") from error
