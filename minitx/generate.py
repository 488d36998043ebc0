"""Text from a language model, one token at a time."""
import contextlib

import numpy as np

from minitx import nn
from minitx.autograd import no_grad
from minitx.backend import check_index
from minitx.beam import beam_search
from minitx.sampling import check_options, filter_logits, penalise_repetition, sample_token, whole
from minitx.tensor import as_numpy


def generate(model, ids, max_new_tokens, *, temperature=None, top_k=None, top_p=None, repetition_penalty=1.0, num_beams=1,
             length_penalty=1.0, attention_mask=None, start_id=None, stop=None, generator=None, vocab_size=None,
             on_token=None, cache=None):
    """What a model writes after the prompts ids (B, T), or, if it is an encoder-decoder, in answer to them: the new
    tokens alone, a NumPy array (B, n) of int64, n at most max_new_tokens.

    temperature          0 takes the likeliest token, more draws: see sampling.sample_token. Left out, it is 1 where top_k
                         or top_p is given, else 0
    top_k, top_p         limit what may be drawn: see sampling.filter_logits, of vocab_size too
    repetition_penalty   see sampling.penalise_repetition; the text so far is what the decoder reads
    num_beams            more than 1: beam search, which draws nothing; length_penalty as in beam.beam_search
    attention_mask       (B, T) of 1 and 0, for prompts of unequal length: the 0s on the left, for an encoder-decoder on the
                         right (BART counts padding as positions)
    start_id             what an encoder-decoder's text begins with; left out, the config's decoder_start_token_id
    stop                 a token or several: a row that has come to one goes on repeating it, and where every row has,
                         nothing more is written. Left out, the config's eos_token_id, where it has one
    generator            a numpy.random.Generator or a seed; left out, every call draws anew. minitx's own, which
                         manual_seed sets, is for training: writing does not disturb it
    on_token             called with the new tokens, int64 (B,), as soon as they are chosen
    cache                an empty nn.Cache to be used, whose capacity is set to the text's, for who wants to look at it later

    A model has a `context`, the number of tokens that it can see (None: any); a decoder-only one `hidden` and `lm_head`,
    as models.GPT2 has, an encoder-decoder `encode` and `decode`. An nn.Cache keeps what was seen. Of a text that grows
    longer than the context a decoder-only model sees the end, without a cache, which is slow; a Module without `hidden`
    always does so, as model(ids) or model(ids, attention_mask). A config's forced_bos_token_id is the first token, its
    forced_eos_token_id the last of max_new_tokens, with stop=() too.

    The model runs without a tape and in eval mode, and has its modes back afterwards.

    ValueError for a prompt that is empty or longer than the context, an encoder-decoder's or beams' text that would
    grow longer, and numbers out of range. TypeError for ids that are no integers, and for a model without a context.
    IndexError for an id outside the vocabulary.
    """
    max_new_tokens, num_beams = whole("max_new_tokens", max_new_tokens, least=0), whole("num_beams", num_beams)
    drawing = top_k is not None or top_p is not None
    temperature = float(drawing) if temperature is None else temperature
    check_options(temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty,
                  length_penalty=length_penalty, vocab_size=vocab_size)
    if cache is not None and not isinstance(cache, nn.Cache):
        raise TypeError(f"generate: cache must be an nn.Cache, got {type(cache).__name__}")
    if cache is not None and (cache.lengths or cache.memory.held):
        raise ValueError("generate: the cache holds tokens of another text: give an empty one")
    if num_beams > 1 and (temperature or drawing or on_token):
        raise ValueError("generate: beam search draws nothing and knows its tokens at the end: leave out temperature, top_k, "
                         "top_p and on_token, or num_beams")
    if not hasattr(model, "context"):
        raise TypeError(f"generate: {type(model).__name__} must say in its attribute `context` how many tokens it can see")
    if "lm" not in getattr(model, "heads", ("lm",)):
        raise TypeError(f"generate: {type(model).__name__} reads and does not write: give a GPT2, Llama, T5, BART or Seq2Seq")
    if cache is not None and not (hasattr(model, "encode") or hasattr(model, "hidden")):
        raise TypeError(f"generate: {type(model).__name__} has no `hidden` and takes no cache")
    ids, mask = _prompt(ids, attention_mask)
    config = getattr(model, "config", None)
    stop = getattr(config, "eos_token_id", None) if stop is None else stop
    stop = [] if stop is None else np.atleast_1d(as_numpy(stop)).tolist()
    stop = [whole("a stop token", token, least=0) for token in stop]
    forced = (0, "forced_bos_token_id"), (max_new_tokens - 1, "forced_eos_token_id")            # of a single token: the end
    forced = {step: np.atleast_1d(getattr(config, name)) for step, name in forced if getattr(config, name, None) is not None}

    def scores(step):
        """Logits (B, V) of token number `step`, in which nothing but a forced one can be chosen."""
        logits = filter_logits(text.logits(), 0, vocab_size=vocab_size)
        if step in forced:
            check_index(forced[step], logits.shape[1])
            logits[:], logits[:, forced[step]] = -np.inf, 0
        return logits

    with evaluating(model):
        kind = Answer if hasattr(model, "encode") else Continuation
        text = kind(model, ids, mask, max_new_tokens, start_id, num_beams, nn.Cache() if cache is None else cache)
        if num_beams > 1:
            return beam_search(text, scores, max_new_tokens, num_beams, length_penalty, repetition_penalty, stop)
        generator, ended = np.random.default_rng(generator), np.zeros(len(ids), bool)
        for step in range(max_new_tokens):
            logits = penalise_repetition(scores(step), text.ids, repetition_penalty, text.mask)
            token = sample_token(logits, temperature, top_k=top_k, top_p=top_p, generator=generator)
            token[ended] = text.ids[ended, -1]
            text.append(token)
            ended |= np.isin(token, stop)
            if on_token is not None:
                on_token(token)
            if len(ended) and ended.all():
                break
    return text.written.copy()


class Text:
    """Rows of text that grow, and a cache of what the model made of them."""

    def __init__(self, model, ids, mask, max_new_tokens, cache):
        if getattr(model, "lm_head", model) is None:
            raise ValueError(f'generate: {type(model).__name__} has no head and gives no logits: build it with head="lm"')
        self.model, self.start, self.length = model, ids.shape[1], ids.shape[1]
        shape = len(ids), self.start + max_new_tokens
        self.room, self.prompt_mask, self.cache = np.empty(shape, np.int64), mask, cache
        self.room[:, :self.start] = ids                             # a uint8 prompt may go on with tokens above 255
        if cache is not None:
            cache.capacity = min(shape[1], 1024 if model.context is None else model.context)    # it grows where it must

    @property
    def ids(self):
        """All tokens so far, (B, T)."""
        return self.room[:, :self.length]

    @property
    def mask(self):
        """Which of them are no padding, bool (B, T); None for all."""
        if self.prompt_mask is None:
            return None
        return np.pad(self.prompt_mask, ((0, 0), (0, self.length - self.start)), constant_values=True)

    @property
    def written(self):
        """The new ones alone, (B, n)."""
        return self.room[:, self.start:self.length]

    def append(self, token):
        """Go on with token (B,)."""
        self.room[:, self.length] = token
        self.length += 1

    def reorder(self, rows):
        """Row i becomes what row rows[i] was."""
        self.room, old = np.empty((len(rows), self.room.shape[1]), np.int64), self.ids
        self.ids[:], self.prompt_mask = old[rows], None if self.prompt_mask is None else self.prompt_mask[rows]
        if self.cache is not None:
            self.cache.reorder(rows)


class Continuation(Text):
    """The text of a decoder-only model: it begins with the prompt."""

    def __init__(self, model, ids, mask, max_new_tokens, start_id, num_beams, cache):
        name = type(model).__name__
        if start_id is not None:
            raise TypeError(f"generate: start_id is for encoder-decoders; {name} goes on with its prompt")
        if mask is not None and not mask[:, -1].all():
            raise ValueError("generate: a prompt must end in a token, which is continued: pad on the left")
        longest = ids.shape[1] + (max(max_new_tokens - 1, 0) if num_beams > 1 else 0)   # the last token is not looked at
        if model.context is not None and longest > model.context:
            what = "prompt and beams of" if num_beams > 1 else "a prompt of"
            raise ValueError(f"generate: {what} {longest} tokens, but {name} sees {model.context}: shorten it, or write "
                             "fewer")
        super().__init__(model, ids, mask, max_new_tokens, cache if hasattr(model, "hidden") else None)

    def logits(self):
        """What comes next: (B, V)."""
        context, ids, mask = self.model.context, self.ids, self.mask
        if context is not None and self.length > context:
            self.cache = None                                       # its positions are those of a text that begins earlier
        if self.cache is None and context is not None:
            ids, mask = ids[:, -context:], None if mask is None else mask[:, -context:]
        if not hasattr(self.model, "hidden"):
            return self.model(*(x for x in (ids, mask) if x is not None))[:, -1]
        ids = ids if self.cache is None else ids[:, self.cache.length:]
        x, _ = self.model.hidden(ids, mask, self.cache)
        return self.model.lm_head(x[:, -1])


class Answer(Text):
    """The text of an encoder-decoder: it begins with start_id, beside a source that is read once."""

    def __init__(self, model, ids, mask, max_new_tokens, start_id, num_beams, cache):
        name = type(model).__name__
        if start_id is None:
            start_id = getattr(getattr(model, "config", None), "decoder_start_token_id", None)
        if start_id is None:
            raise TypeError(f"generate: {name}'s config has no decoder_start_token_id: give start_id")
        if model.context is not None and max_new_tokens > model.context:
            raise ValueError(f"generate: a text of {max_new_tokens} tokens, but {name} writes {model.context}: give fewer")
        start = np.full((len(ids), 1), whole("start_id", start_id, least=0))
        super().__init__(model, start, None, max_new_tokens, cache)
        self.memory, self.source_mask = model.encode(ids, mask), mask

    def logits(self):
        """What comes next: (B, V)."""
        new = self.ids[:, self.cache.length:]
        return self.model.decode(new, self.memory, self.source_mask, cache=self.cache)[:, -1]

    def reorder(self, rows):
        if len(rows) != len(self.room):                             # else the rows of one source change places
            self.memory = self.memory[rows]
            self.source_mask = None if self.source_mask is None else self.source_mask[rows]
            self.cache.memory.reorder(rows)
        super().reorder(rows)


@contextlib.contextmanager
def evaluating(model):
    """Inside it no tape is recorded and the model is in eval mode; afterwards every part has its own mode back.

    The mode is the model's, not the thread's: threads that share a model put it in eval mode first.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def _prompt(ids, attention_mask):
    """ids (B, T) and attention_mask, checked: arrays of integers and of bool, the mask None where there is none."""
    try:
        ids = as_numpy(ids)
    except ValueError as error:                                         # NumPy's, of rows that are not alike
        raise ValueError("generate: ids must be (B, T): pad rows of unequal length, and give attention_mask=") from error
    if ids.ndim != 2 or not ids.shape[1]:
        raise ValueError(f"generate: ids must be (B, T) with T at least 1, such as [tokenizer.encode(text).ids]; got "
                         f"{ids.shape}")
    if ids.dtype.kind not in "iu":
        raise TypeError(f"generate: ids must be integers, got {ids.dtype}")
    if attention_mask is None:
        return ids, None
    return ids, nn.mask_from_tokenizer(attention_mask, ids.shape, "generate: attention_mask")[:, 0]
