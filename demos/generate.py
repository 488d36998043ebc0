"""Let a published model write: GPT-2 and LLaMA go on with a text, T5 and BART answer it.

    hf download gpt2 config.json model.safetensors tokenizer.json           once: pip install huggingface_hub
    python demos/generate.py gpt2 --prompt "Once upon a time"
    python demos/generate.py gpt2 --prompt "Once upon a time" "In the end"  both at once, in a batch
    python demos/generate.py t5-small --prompt "translate English to German: The house is small." --beams 4

The model is a folder as it was published, with config.json, model.safetensors and tokenizer.json, or the name of one
that Hugging Face's tool has downloaded. Without a network, python demos/char_lm.py --out DIR makes one in two minutes, and
demos/fine_tune.py writes another from it. A single text is printed while it is written. The last lines say how fast that
was, how many ops ran as faster twins, and what the cache takes: the keys and values that attention keeps of every token, so
that none is computed twice. Of a text that outgrows the model's context it has the beginning alone, and the rest is slow.
"""
import argparse
import sys
import time

import numpy as np

import minitx as mt
from minitx import generate, models, nn, rates
from minitx.models.hub import find_folder, read_json, read_tokenizer

READERS = "bert", "roberta", "distilbert", "vit"
CONTINUE, ANSWER = "Once upon a time", "translate English to German: The house is wonderful."       # without --prompt


class Refused(Exception):
    """What was asked for cannot be done; the message says in one line what to do."""


# ---- text and tokens -------------------------------------------------------------------------------------------------

def encode(tokenizer, prompts, model):
    """The prompts as ids (B, T), padded on the side that the model wants, and where they are none: a mask, bool (B, T)."""
    tokenizer.no_truncation()                               # what is too long is refused, not cut
    tokenizer.enable_padding(direction="right" if hasattr(model, "encode") else "left")
    try:
        encoded = tokenizer.encode_batch(prompts)
    except (TypeError, UnicodeError):
        raise Refused("--prompt has bytes that are no UTF-8 text: convert it") from None
    ids, mask = np.array([row.ids for row in encoded], int), np.array([row.attention_mask for row in encoded], bool)
    if not mask.any(axis=1).all():
        raise Refused("an empty --prompt gives this model nothing to go on with: write at least a word")
    if ids.max() >= model.config.vocab_size:
        raise Refused(f"the tokenizer gives id {ids.max()}, the model has {model.config.vocab_size}: they are not of one "
                      "folder")
    return ids, mask


def text_of(tokenizer, before, written):
    """What the ids `written` say behind those before them, where a first word has its space."""
    return tokenizer.decode([*before, *written])[len(tokenizer.decode(before)):]


class Writing:
    """on_token for generate: it keeps the time, and of a single text prints what is new and whole."""

    def __init__(self, tokenizer, prompt, before):
        self.tokenizer, self.prompt, self.before = tokenizer, prompt, before
        self.ids, self.times, self.shown = [], [], 0

    def __call__(self, token):
        self.times.append(time.perf_counter())
        self.ids.append(int(token[0]))
        if len(token) == 1 and not self.text.endswith("\N{REPLACEMENT CHARACTER}"):     # a character without all its bytes
            self.print()

    @property
    def text(self):
        return self.prompt + text_of(self.tokenizer, self.before, self.ids)

    def print(self):
        """Print what has not been printed yet."""
        text = self.text
        print(text[self.shown:], end="", flush=True)
        self.shown = len(text)


def describe(cache):
    """A line on what an nn.Cache holds."""
    read, (room, _) = cache.memory.nbytes, next(iter(cache.rooms.values()))
    written, rows = cache.nbytes - read, len(room)
    return (f"the cache of {f'{rows} rows of ' if rows > 1 else ''}{cache.length} tokens is {written:,} bytes, "
            f"{written // (rows * cache.length):,} a token" + (f", and {read:,} of what was read" if read else ""))


# ---- the command line ------------------------------------------------------------------------------------------------

def read(name, dtype):
    """(model, tokenizer) of a folder or of a name on the hub."""
    try:
        folder = find_folder(name)
        kind = read_json(folder / "config.json").get("model_type")
        if kind in READERS:
            raise Refused(f"{folder} holds a {kind} model, which does not write: give one of GPT-2, LLaMA, T5 or BART")
        tokenizer = read_tokenizer(folder)
        return models.from_pretrained(folder, head="lm", dtype=dtype), tokenizer
    except (OSError, ValueError, ImportError) as error:
        raise Refused("; ".join(str(error).split("\n  "))) from None


def run(args):
    """Write after the prompts, and say how fast."""
    beams = args.beams > 1
    if beams and (args.temperature or args.top_k is not None or args.top_p is not None):
        raise Refused("--beams searches, it draws nothing: leave out --temperature, --top-k and --top-p")
    model, tokenizer = read(args.folder, args.dtype)
    answers = hasattr(model, "encode")
    prompts = args.prompt or [ANSWER if answers else CONTINUE]
    ids, mask = encode(tokenizer, prompts, model)
    starts = [("", []) if answers else (prompt, row) for prompt, row in zip(prompts, ids)]
    writing, cache, begun = Writing(tokenizer, *starts[0]), nn.Cache(), time.perf_counter()
    drawing = not answers or args.top_k is not None or args.top_p is not None
    temperature = (0.8 if drawing and not beams else 0) if args.temperature is None else args.temperature
    try:
        written = generate.generate(
            model, ids, args.tokens, temperature=temperature, top_k=args.top_k, top_p=args.top_p,
            repetition_penalty=args.repetition_penalty, num_beams=args.beams, length_penalty=args.length_penalty,
            attention_mask=None if mask.all() else mask, generator=args.seed, on_token=None if beams else writing,
            vocab_size=max(tokenizer.get_vocab().values()) + 1, cache=cache)    # tables are larger where that is faster
    except (ValueError, IndexError) as error:
        raise Refused(str(error).removeprefix("generate: ")) from None
    seconds = time.perf_counter() - begun
    if len(prompts) > 1 or beams:
        print(*(prompt + text_of(tokenizer, before, row) for (prompt, before), row in zip(starts, written)), sep="\n\n")
    else:
        writing.print()
        print()
    (B, n), times, first = written.shape, writing.times, rates.left_out()
    speed = f"{seconds:.2f} s, with the prompt"
    if len(times) > first + 1:
        speed = f"{B * (len(times) - 1 - first) / (times[-1] - times[first]):.1f} a second, the prompt apart" + (
            f" and the first {first} tokens, in which kernels compile" if first else "")
    print(f"\n{f'{B} x ' if B > 1 else ''}{n} tokens, {speed}")
    print(describe(cache))
    print(mt.ran_as())
    few = min(4, args.tokens)
    rates.compare(model, lambda rows: generate.generate(model, np.repeat(ids[:1], rows, axis=0), few, stop=()), len(ids),
                  what="texts", flag="give more of them to --prompt")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="gpt2", metavar="FOLDER", help="a published model; else gpt2")
    parser.add_argument("--prompt", nargs="+", metavar="TEXT", help="what to go on with or to answer, one or more")
    parser.add_argument("--tokens", type=int, default=100, metavar="N", help="write at most so many; else 100")
    parser.add_argument("--temperature", type=float, metavar="X",
                        help="0 takes the likeliest token, more draws; else 0.8, and 0 for an answer")
    parser.add_argument("--top-k", type=int, metavar="N", help="draw from the N likeliest tokens")
    parser.add_argument("--top-p", type=float, metavar="X", help="draw from the likeliest that have X of the probability")
    parser.add_argument("--repetition-penalty", type=float, default=1.0, metavar="X", help="above 1: less of the same")
    parser.add_argument("--beams", type=int, default=1, metavar="N", help="search with N beams, which draws nothing")
    parser.add_argument("--length-penalty", type=float, default=1.0, metavar="X", help="with beams: above 0, longer")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn")
    parser.add_argument("--device", help="cpu, cuda or cuda:1; left out: what MINITX_DEVICE says, or cpu")
    parser.add_argument("--dtype", choices=["float16", "float32", "float64"], default="float32",
                        help="of weights and cache; on a CPU float16 saves memory, not time")
    args = parser.parse_args(argv)
    sys.stdout.reconfigure(errors="replace")                # a terminal that lacks a character shows ? for it
    try:
        if args.tokens < 1:
            raise Refused(f"--tokens {args.tokens} writes nothing: give 1 or more")
        if args.seed < 0:
            raise Refused(f"--seed {args.seed} is no seed: give 0 or more")
        try:
            mt.set_default_device(args.device or mt.backend.default_device())
        except (ValueError, RuntimeError) as error:
            raise Refused(error) from None
        run(args)
    except Refused as error:
        print(f"generate: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print()
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
