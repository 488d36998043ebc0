"""A token of GPT-2: minitx against transformers on PyTorch eager, the same weights, in pairs.

    python benchmarks/tokens.py [--threads 1 2] [--pairs 5] [--max-ratio 1.0] [--long] [--json FILE]

124 million weights drawn at random, batch 1, 128 tokens after a prompt of 128, the likeliest token every time, keys and
values kept on both sides. First both must agree on the logits. Then a pair is one such text of the one and one of the
other; the figure is the median of the pairs' ratios of time, beside it the middle half of them. A token reads every
matrix once: beside its time stands the share of it that a matrix-vector product over as many bytes takes. --long also times
the 64th and the 1000th token of a text, and what attention itself takes for them.
"""
import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from pairs import absent, need

import minitx as mt
from minitx import generate, models, nn, ops
from minitx.models.weights import to_published

NEEDED = "torch", "transformers", "threadpoolctl"
if not absent(*NEEDED):                                 # main says so, after --help
    import torch
    import transformers
    from threadpoolctl import threadpool_limits

PROMPT, TOKENS, LONG = 128, 128, 1000


def both_models():
    """(ours, theirs) in eval mode, of the same random weights."""
    mt.manual_seed(0)
    ours = models.GPT2(models.GPT2Config()).eval()
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(eos_token_id=None, bos_token_id=None)).eval()
    theirs.load_state_dict({name: torch.from_numpy(np.array(array))
                            for name, array in to_published("gpt2", ours.state_dict()).items()})
    return ours, theirs


def our_text(model, ids):
    return generate.generate(model, ids, TOKENS, stop=())


def their_text(model, ids):
    ids = torch.from_numpy(ids)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
    return out[:, PROMPT:].numpy()


def seconds(write, *arguments):
    """How long it takes."""
    begun = time.perf_counter()
    write(*arguments)
    return time.perf_counter() - begun


def disagreement(ours, theirs, ids):
    """The largest difference of the logits, relative to the largest of them."""
    with mt.no_grad(), torch.no_grad():
        expected = theirs(torch.from_numpy(ids)).logits.numpy()
        return np.abs(ours(ids).data - expected).max() / np.abs(expected).max()


def reading(n_bytes, width=768):
    """Seconds that a matrix-vector product over so many bytes takes, the best of ten."""
    matrix, vector = np.ones((n_bytes // 4 // width, width), np.float32), np.ones(width, np.float32)
    return min(seconds(np.matmul, matrix, vector) for _ in range(10))


def compare(ours, theirs, ids, pairs, threads):
    """Print and return the figures for so many threads."""
    torch.set_num_threads(threads)
    with threadpool_limits(threads):
        our_text(ours, ids), their_text(theirs, ids)
        timed = [(seconds(our_text, ours, ids), seconds(their_text, theirs, ids)) for _ in range(pairs)]
        n_bytes = sum(p.data.nbytes for p in ours.parameters() if p.ndim == 2) - ours.wpe.weight.data.nbytes
        read = reading(n_bytes)
    low, ratio, high = statistics.quantiles([a / b for a, b in timed], n=4)
    here, there = (TOKENS / statistics.median(side) for side in zip(*timed))
    share = read * here
    print(f"{threads} thread{'s' * (threads > 1)}: minitx {here:.1f} tokens/s, transformers {there:.1f}, {pairs} pairs; "
          f"ratio of time {ratio:.2f} (middle half {low:.2f} to {high:.2f})")
    print(f"  a token reads {n_bytes / 1e6:.0f} MB of weights: alone {1000 * read:.1f} ms, {n_bytes / read / 1e9:.1f} GB/s; "
          f"that is {share:.0%} of a token's time")
    return dict(threads=threads, ratio=ratio, low=low, high=high, tokens_per_second=here, transformers=there, pairs=pairs,
                bandwidth_share=share)


def attention_time(config, n_keys):
    """Seconds that attention alone takes for one query in every layer, whose keys and values no processor cache holds."""
    shape = 1, config.n_head, n_keys, config.n_embd // config.n_head
    layers = [(mt.randn(*shape), mt.randn(*shape)) for _ in range(config.n_layer)]
    q, others = mt.randn(1, config.n_head, 1, shape[3]), np.ones(1 << 25, np.float32)

    def every_layer():
        for k, v in layers:
            ops.scaled_dot_product_attention(q, k, v, is_causal=True)
    return statistics.median((others.sum(), seconds(every_layer))[1] for _ in range(15))


def later_tokens(model, turns=24):
    """Print and return how long the 64th and the 1000th token take, in turns, and attention alone beside as many keys."""
    token, caches, times = np.array([[1]]), {}, {64: [], LONG: []}
    with threadpool_limits(1), generate.evaluating(model):
        for n in times:
            caches[n] = nn.Cache(capacity=n + turns)
            model(np.ones((1, n - turns // 2), int), cache=caches[n])
        for _ in range(turns):
            for n, taken in times.items():
                taken.append(seconds(lambda: model(token, cache=caches[n])))
        early, late = (statistics.median(taken) for taken in times.values())
        added = attention_time(model.config, LONG) - attention_time(model.config, 64)
    print(f"1 thread: the 64th token takes {1000 * early:.1f} ms, the {LONG}th {1000 * late:.1f}, which is "
          f"{1000 * (late - early):.1f} more; attention alone adds {1000 * added:.1f}")
    return dict(early=early, late=late, attention_adds=added)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--max-ratio", type=float, help="exit 1 if a median is above it, or with --long if a later "
                        "token takes twice what attention adds and a tenth of a token more")
    parser.add_argument("--long", action="store_true", help="also time the 64th and the 1000th token")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    args = parser.parse_args()
    need(*NEEDED)

    ours, theirs = both_models()
    ids = np.random.default_rng(0).integers(ours.config.vocab_size, size=(1, PROMPT))
    gap = disagreement(ours, theirs, ids)
    print(f"minitx beside transformers {transformers.__version__} on PyTorch {torch.__version__}; logits within {gap:.1e}")
    if not gap <= 2e-5:
        print("the two sides do not compute the same: nothing to compare")
        return 1
    figures = dict(gap=float(gap), compared=[compare(ours, theirs, ids, args.pairs, n) for n in args.threads])
    cache = nn.Cache()
    with generate.evaluating(ours):
        ours(np.ones((1, ours.context), int), cache=cache)
    print(f"the cache of {cache.length} tokens holds {cache.nbytes:,} bytes")
    if args.long:
        figures["later"] = later_tokens(ours)
    if args.json:
        args.json.write_text(json.dumps(figures), encoding="utf-8")
    ratio, later = max(row["ratio"] for row in figures["compared"]), figures.get("later")
    if args.max_ratio and later and later["late"] - later["early"] > 2 * later["attention_adds"] + 0.1 * later["early"]:
        return 1
    return 1 if args.max_ratio and ratio > args.max_ratio else 0


if __name__ == "__main__":
    sys.exit(main())
