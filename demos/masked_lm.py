"""Train a small BERT to guess the hidden words of a text, then fill the blanks in sentences.

    python demos/masked_lm.py                                           on a text that every Python has
    python demos/masked_lm.py --fill "the ____ statement is used to"    sentences of yours, after training
    python demos/masked_lm.py --text FILE                               a text of yours
    python demos/masked_lm.py --resume FILE                             stop with Ctrl-C, and go on with the same line

One word in seven is hidden, as in BERT's own pre-training (Devlin et al. 2019, section 3.1), and guessed from what stands
on both its sides. The last tenth of the text is never shown; how well the model guesses there is compared with guessing
from how often each word occurs. (Help texts repeat themselves: a tenth of that tenth's paragraphs, by length, stand in the
rest as well.)
"""
import argparse
import contextlib
import itertools
import re
import sys
import zlib
from collections import Counter
from pathlib import Path

import numpy as np

import minitx as mt
from minitx import generate, models, nn, ops, optim, rates, resume, schedule

UNKNOWN, MASK = "[UNK]", "[MASK]"       # ids 0 and 1: a word that is too rare to learn, a word that is hidden
LEAST = 3                               # a word is known that the training text has so many times
MODEL = dict(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512, initializer_range=0.05,
             max_position_embeddings=32, type_vocab_size=1, pad_token_id=None, hidden_dropout_prob=0.1,
             attention_probs_dropout_prob=0.1)
BATCH, STEPS, RATE = 16, 3000, 2e-3
BLANKS = ["the ____ statement is used to", "if the file does not exist, a ____ is raised",
          "x ____ y is true if x is less than y", "a ____ is a sequence of characters"]


class Refused(Exception):
    """What was asked for cannot be done; the message says in one line what to do."""


class Guesser(nn.Module):
    """BERT whose head is asked about the hidden words alone, for scores of a whole vocabulary cost most.

    ids (B, T), hidden (B, T) bool with N True -> logits (N, V)
    """

    def __init__(self, config):
        self.bert = models.BERT(config, head="mlm")
        self.head, self.bert.head = self.bert.head, None            # BERT without a head gives its last hidden states

    def forward(self, ids, hidden):
        return self.head(self.bert(ids)[np.nonzero(hidden)])                    # (B, T, C) -> (N, C) -> (N, V)


# ---- text ------------------------------------------------------------------------------------------------------------

def read_text(file):
    """A UTF-8 file, or without one the help texts that come with Python, one topic after the other."""
    if file is None:
        from pydoc_data.topics import topics
        return "\n\n".join(topics.values())
    try:
        return Path(file).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise Refused(f"cannot read {file} ({error.strerror}): give --text a file that can be read") from None
    except UnicodeDecodeError:
        raise Refused(f"{file} is no UTF-8 text: convert it, or give --text another file") from None


def split_words(text):
    """Words and punctuation marks, in small letters; four underscores are a blank."""
    return [MASK if word == "____" else word for word in re.findall(r"\b____\b|\w+|[^\w\s]", text.lower())]


def vocabulary(words):
    """{word: id} of those that are frequent enough."""
    frequent = sorted(word for word, n in Counter(words).items() if n >= LEAST and word != MASK)
    return {word: i for i, word in enumerate([UNKNOWN, MASK, *frequent])}


def encode(words, table):
    return np.array([table.get(word, 0) for word in words])


# ---- training --------------------------------------------------------------------------------------------------------

def hide(ids, V, rng):
    """(what the model sees, which words it must guess), both like ids (B, T): 15 % of the known words.

    Of those 80 % are masked, 10 % replaced by any word and 10 % left as they are: it must not rely on seeing what is true.
    """
    hidden = (rng.random(ids.shape) < 0.15) & (ids > 1)
    lot = rng.random(ids.shape)
    seen = np.where(hidden & (lot < 0.8), 1, ids)
    return np.where(hidden & (lot > 0.9), rng.integers(2, V, size=ids.shape), seen), hidden


def loss_of(model, words, V, rng, n):
    """The loss on n windows of the words."""
    T = MODEL["max_position_embeddings"]
    starts = rng.integers(len(words) - T + 1, size=n)
    ids = words[starts[:, None] + np.arange(T)]                                 # (B, T)
    seen, hidden = hide(ids, V, rng)
    return ops.cross_entropy(model(seen, hidden), ids[hidden])


def train(model, words, V, rng, seed=0, file=None):
    """Train on windows of the words (n,). Ctrl-C ends it early. The seconds it took."""
    from tqdm import tqdm
    optimiser = optim.AdamW(optim.decay_groups(model, 0.1), betas=(0.9, 0.98),
                            lr=lambda step: schedule.warmup_linear(step, RATE, STEPS // 10, STEPS))
    settings = dict(demo="masked_lm", seed=seed, batch=BATCH, rate=RATE, text=zlib.crc32(words), **MODEL)
    steps = resume.Steps(STEPS, model, optimiser, file, settings)
    if file:
        print(steps)
    with steps, tqdm(steps, total=STEPS, initial=steps.done, unit="step", dynamic_ncols=True) as bar:
        for _ in bar:
            loss = loss_of(model, words, V, rng, BATCH)
            optimiser.zero_grad()
            loss.backward()
            optim.clip_grad_norm(model.parameters(), 1.0)                       # a rare large update does little harm
            optimiser.step()
            bar.set_postfix_str(f"loss {loss.item():.3f}", refresh=False)
            rates.warm(bar)
    if steps.stopped:
        print("stopped early; what has it learned so far?", file=sys.stderr)
    return steps.seconds


# ---- the result ------------------------------------------------------------------------------------------------------

def perplexities(model, words, counts):
    """(the model's, the unigram guess's) on every known one of the words (n,) that stands in a whole window.

    Always the same masks: each word is masked once, with a seventh of its window at a time. The unigram guess is how often
    a word occurs in the training text: counts (V,).
    """
    T = MODEL["max_position_embeddings"]
    ids = words[:len(words) // T * T].reshape(-1, T)                            # (windows, T)
    turns = np.random.default_rng(0).permuted(np.broadcast_to(np.arange(T) % 7, ids.shape), axis=1)
    losses = []
    with generate.evaluating(model):
        for turn, start in itertools.product(range(7), range(0, len(ids), 32)):
            some = ids[start:start + 32]
            hidden = (turns[start:start + 32] == turn) & (some > 1)
            logits = model(np.where(hidden, 1, some), hidden)
            losses.append(ops.cross_entropy(logits, some[hidden], reduction="none").numpy())
    probability = counts[ids[ids > 1]] / counts[2:].sum()
    return np.exp(np.concatenate(losses).mean()), np.exp(-np.log(probability).mean())


def fill(model, sentence, table):
    """[the five likeliest (word, probability) for each blank of the sentence]"""
    ids = encode(split_words(sentence), table)[None]
    with generate.evaluating(model):
        p = ops.softmax(model(ids, ids == 1)).numpy()                           # (blanks, V)
    words = list(table)[2:]                                                     # no [UNK], no [MASK]
    return [[(words[i], row[i]) for i in np.argsort(-row)[:5]] for row in p[:, 2:]]


def check_sentence(sentence):
    """Refused where there is nothing to fill, or more than the model can read."""
    words, most = split_words(sentence), MODEL["max_position_embeddings"]
    if MASK not in words or len(words) > most:
        raise Refused(f"--fill {sentence!r}: give a sentence with a blank, ____, and at most {most} words")


# ---- the command line ------------------------------------------------------------------------------------------------

def run(args):
    """Train, fill the blanks, print how well the held-out words are guessed."""
    for sentence in args.fill:
        check_sentence(sentence)
    words = split_words(read_text(args.text))
    n, T = len(words) * 9 // 10, MODEL["max_position_embeddings"]
    if len(words) - n < T:
        raise Refused(f"the text has {len(words)} words, too few: give --text a file of at least {10 * T}")
    table = vocabulary(words[:n])
    ids, V = encode(words, table), len(table)
    counts = np.bincount(ids[:n], minlength=V)

    mt.manual_seed(args.seed)
    model = Guesser(models.BertConfig(vocab_size=V, **MODEL))
    print(f"{len(words):,} words and marks, {V - 2:,} known ones; {sum(p.size for p in model.parameters()):,} parameters")
    generator = mt.backend.generator()                      # the one that drew the initial weights
    seconds = train(model, ids[:n], V, generator, args.seed, args.resume)

    for sentence in args.fill:
        print(f"\n{sentence}")
        for candidates in fill(model, sentence, table):
            print("   ", *(f"{word} {p:.0%}  " for word, p in candidates))
    ours, unigram = perplexities(model, ids[n:], counts)
    print(f"\nafter {seconds:.0f} s; perplexity on the held-out tenth {ours:.2f}, of the unigram guess {unigram:.2f}")
    print(f"better than the unigram guess by {unigram / ours:.2f}")
    print(mt.ran_as())
    rates.compare(model, lambda size: loss_of(model, ids[:n], V, generator, size).backward(), BATCH)


def threads(limit):
    """A context with at most so many threads for NumPy's products, where threadpoolctl is: these are too small to share."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return contextlib.nullcontext()
    return threadpool_limits(limit)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", metavar="FILE", type=Path, help="what to learn, in UTF-8; else Python's help texts")
    parser.add_argument("--fill", nargs="+", default=BLANKS, metavar="SENTENCE", help="sentences with ____ for a word")
    parser.add_argument("--device", help="cpu, cuda or cuda:1; left out: what MINITX_DEVICE says, or cpu")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of weights, batches and masks")
    parser.add_argument("--resume", type=Path, metavar="FILE",
                        help="keep the state of the training in FILE, and go on from it where it is")
    args = parser.parse_args(argv)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")            # a terminal that lacks a character shows ? for it
    try:
        if args.seed < 0:
            raise Refused(f"--seed {args.seed} is no seed: give 0 or more")
        try:
            mt.set_default_device(args.device or mt.backend.default_device())
        except (ValueError, RuntimeError) as error:
            raise Refused(error) from None
        with threads(1):
            run(args)
    except ImportError as error:
        print(f"masked_lm: needs {error.name}: pip install tqdm", file=sys.stderr)
        return 2
    except (Refused, resume.StateError) as error:
        print(f"masked_lm: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:                               # outside of the training, or for the second time
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
