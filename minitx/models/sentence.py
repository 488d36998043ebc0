"""Sentences as vectors: a BERT whose tokens are pooled into one, from a folder as sentence-transformers publishes it."""
import contextlib

import numpy as np

from minitx import backend, ops
from minitx.autograd import no_grad
from minitx.generate import evaluating
from minitx.models.bert import BERT
from minitx.models.hub import find_folder, read_tokenizer
from minitx.models.pretrained import from_pretrained
from minitx.models.sentence_folder import read_modules, read_prompt, read_settings
from minitx.nn.layers import check_size

TOKENS = 512            # at a time on the CPU, padding too: what a layer makes of so many stays in the cache


class SentenceEncoder:
    """Texts to vectors that lie close together where the texts mean the same: Reimers and Gurevych 2019.

    folder is a path, or a name on the hub that was downloaded, of a BERT, RoBERTa or DistilBERT with its tokenizer.json.
    What sentence-transformers writes beside them is honoured: the pooling (mean, cls or max), whether the vectors are
    brought to length 1, the longest text, small letters, a default prompt. A bare model, without modules.json, is read
    as all-MiniLM-L6-v2 is: the mean, brought to length 1.

    ValueError naming the file for what is not built: other modules and poolings, several at once, arguments for other
    libraries. FileNotFoundError where a file is missing, ImportError where tokenizers is; from_pretrained's errors.
    """

    def __init__(self, folder):
        folder = find_folder(folder)
        place, self.pooling, self.normalised = read_modules(folder)
        self.prompt = read_prompt(folder)
        longest, self.lower = read_settings(place)
        self.tokenizer = read_tokenizer(place)
        self.model = from_pretrained(place, head=None, dtype=np.float32)
        if not isinstance(self.model, BERT):
            raise ValueError(f"{place}: a {type(self.model).__name__}, where BERT, RoBERTa or DistilBERT is read")
        self.max_length = int(min(longest, self.model.context))
        if self.max_length <= self.tokenizer.num_special_tokens_to_add(False):
            raise ValueError(f"{place}: texts of at most {self.max_length} tokens have room for no words")
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.max_length)

    def encode(self, texts, batch_size=32):
        """texts, a list of N strings -> their vectors (N, C) in float32, in the same order; one string -> (C,).

        A text that has more than max_length tokens counts as far as those go. The texts are sorted by length, so that
        little is padded, and computed batch_size or fewer at a time: on the CPU no more than fit the cache, and where
        threadpoolctl can be imported side by side in as many threads as NumPy's BLAS has. TypeError for what is no
        string, ValueError for a batch_size below 1.
        """
        check_size("SentenceEncoder", batch_size=batch_size)
        single = isinstance(texts, str)
        texts = [texts] if single else list(texts)
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"SentenceEncoder: texts must be strings, got {type(text).__name__}")
        rows, found = self.tokens(texts), np.empty((len(texts), self.model.config.hidden_size), np.float32)
        on_cpu = self.model.word_embeddings.weight.device == "cpu"
        batches = in_batches([len(row) for row in rows], batch_size, TOKENS if on_cpu else None)
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
    work is shared, where BLAS shares the products alone. One encode at a time: BLAS's threads are the process's."""
    import concurrent.futures                               # here: it would slow the import of models
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
