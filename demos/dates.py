"""Read dates as people write them in eighteen languages, write ISO dates: an encoder-decoder, character by character.

    python demos/dates.py                                       train, then read dates it never saw
    python demos/dates.py --read "1 April 2031" "2 mai 1950"    dates of yours, read after training
    python demos/dates.py --accumulate 4                        every batch in four pieces: less memory, the same steps
    python demos/dates.py --resume FILE                         stop with Ctrl-C, and go on with the same line

Babel (Unicode's CLDR) writes the dates. Its "short" form is left out: nobody can tell 03/05 from 05/03.
"""
import argparse
import contextlib
import datetime
import sys
from pathlib import Path

import numpy as np

import minitx as mt
from minitx import generate, models, ops, optim, rates, resume, schedule

LANGUAGES = {"en": "English", "de": "German", "nl": "Dutch", "sv": "Swedish", "fr": "French", "es": "Spanish",
             "it": "Italian", "pt": "Portuguese", "pl": "Polish", "ru": "Russian", "el": "Greek", "tr": "Turkish",
             "ar": "Arabic", "he": "Hebrew", "hi": "Hindi", "ja": "Japanese", "ko": "Korean", "zh": "Chinese"}
FORMS = "medium", "long", "full"
PAIRS = [(language, form) for language in LANGUAGES for form in FORMS]
UNTRAINED = [("de", "full"), ("es", "long"), ("ru", "full"), ("ar", "full"), ("ja", "full")]    # never seen in training
ISO = {symbol: i for i, symbol in enumerate("0123456789-")}
BEGIN, END = len(ISO), len(ISO) + 1
MODEL = dict(d_model=128, num_heads=4, num_encoder_layers=2, num_decoder_layers=2, d_ff=256, dropout=0.05,
             norm_first=True, max_len=64)
BATCH, STEPS, WARMUP, FACTOR = 32, 3000, 300, 0.4
SHOWN = 200                     # unseen dates a pair of language and form in the test
SHADES = " .:-=+*#%@"


class Refused(Exception):
    """What was asked for cannot be done; the message says in one line what to do."""


# ---- dates -----------------------------------------------------------------------------------------------------------

def written(date, pair):
    """The date in a language and form. In the Gregorian calendar and the digits 0 to 9, whatever the language."""
    from babel.dates import format_date
    language, form = pair
    return format_date(date, form, language)


def split_dates(rng):
    """All days of two centuries in a random order: nine tenths to train on, one to test."""
    first, last = (datetime.date(year, 1, 1).toordinal() for year in (1900, 2100))
    days = [datetime.date.fromordinal(int(day)) for day in rng.permutation(np.arange(first, last))]
    n = len(days) * 9 // 10
    return days[:n], days[n:]


def alphabet():
    """{character: id} of everything that dates are written with; id 0 is padding."""
    days = [datetime.date(2000, month, day) for month in range(1, 13) for day in range(1, 8)]   # every month and weekday
    symbols = set("0123456789").union(*(written(day, pair) for day in days for pair in PAIRS))
    return {symbol: i for i, symbol in enumerate(sorted(symbols), start=1)}


def encode(texts, table):
    """Texts -> ids (B, S), padded with 0 on the right."""
    ids = np.zeros((len(texts), max(map(len, texts), default=0)), np.int64)
    for row, text in zip(ids, texts):
        unknown = [symbol for symbol in text if symbol not in table]
        if unknown or not 0 < len(text) <= MODEL["max_len"]:
            raise Refused(f"{text!r} is no date: {f'none here has {unknown[0]!r}' if unknown else 'mind its length'}")
        row[:len(text)] = [table[symbol] for symbol in text]
    return ids


def targets(dates):
    """Dates -> ids (B, 11) of their ISO form and the end."""
    return np.array([[*(ISO[symbol] for symbol in date.isoformat()), END] for date in dates])


# ---- training --------------------------------------------------------------------------------------------------------

def add_gradients(model, ids, answers, pieces=1):
    """Backward of the mean loss over all tokens of the batch, one piece of it after the other; the loss.

    Each piece's sum is divided by the tokens of the whole batch, so that (dropout aside) the pieces change nothing: a
    mean of the pieces' means would weigh the tokens of a smaller piece more.
    """
    total = 0.0
    for ids, answer in zip(np.array_split(ids, pieces), np.array_split(answers, pieces)):
        begun = np.insert(answer[:, :-1], 0, BEGIN, axis=1)                     # (B, T): one step behind the answer
        logits = model(ids, begun, attention_mask=ids > 0)                      # (B, T, V)
        loss = ops.cross_entropy(logits, answer, label_smoothing=0.1, reduction="sum") / answers.size
        loss.backward()
        total += loss.item()
    return total


def batches(dates, rng):
    """Eight batches, each a list of texts and one of answers, BATCH rows of T ids.

    As in the paper (section 5.1) those of one batch are about equally long, and padded little: eight batches are drawn at
    once, sorted by length, and come in a random order.
    """
    trained = [pair for pair in PAIRS if pair not in UNTRAINED]
    some = [dates[i] for i in rng.integers(len(dates), size=8 * BATCH)]
    texts = [written(date, trained[rng.integers(len(trained))]) for date in some]
    by_length = sorted(range(len(some)), key=lambda i: len(texts[i]))
    return [[[texts[i] for i in rows], targets([some[i] for i in rows]).tolist()]
            for rows in rng.permutation(np.reshape(by_length, (8, BATCH)))]


def train(model, dates, table, rng, pieces, seed=0, file=None):
    """The paper's recipe (sections 5.3 and 5.4): warm-up, dropout, label smoothing. Ctrl-C ends it early. The seconds."""
    from tqdm import tqdm
    optimiser = optim.AdamW(optim.decay_groups(model, 0.01), betas=(0.9, 0.98), eps=1e-9,
                            lr=lambda step: schedule.noam_lr(step, MODEL["d_model"], WARMUP, FACTOR))
    settings = dict(demo="dates", seed=seed, batch=BATCH, accumulate=pieces, warmup=WARMUP, factor=FACTOR, **MODEL)
    steps = resume.Steps(STEPS, model, optimiser, file, settings)
    drawn = steps.progress.setdefault("drawn", [])          # batches that are still to come
    if file:
        print(steps)
    with steps, tqdm(steps, total=STEPS, initial=steps.done, unit="step", dynamic_ncols=True) as bar:
        for _ in bar:
            if not drawn:
                drawn += batches(dates, rng)
            texts, answers = drawn.pop(0)
            optimiser.zero_grad()
            loss = add_gradients(model, encode(texts, table), np.array(answers), pieces)
            optim.clip_grad_norm(model.parameters(), 1.0)                       # a rare large update does little harm
            optimiser.step()
            bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
            rates.warm(bar)
    if steps.stopped:
        print("stopped early; what has it learned so far?", file=sys.stderr)
    return steps.seconds


# ---- the result ------------------------------------------------------------------------------------------------------

def read(model, texts, table):
    """What the model makes of texts: a list of strings."""
    ids = encode(texts, table)
    found = generate.generate(model, ids, 11, start_id=BEGIN, stop=END, attention_mask=ids > 0)
    symbols = [*ISO, "?", ""]                       # BEGIN, which no answer has, and END
    return ["".join(symbols[i] for i in row) for row in found]


def scores(model, dates, table):
    """{pair: which share of the dates, written so, the model reads exactly}, and the mistakes: (text, found) pairs."""
    shares, mistakes = {}, []
    for pair in PAIRS:
        texts = [written(date, pair) for date in dates]
        wrong = [(text, found) for text, found, date in zip(texts, read(model, texts, table), dates)
                 if found != date.isoformat()]
        shares[pair] = 1 - len(wrong) / len(dates)
        mistakes += wrong
    return shares, mistakes


def attention_map(model, text, table):
    """A row a written character, a column a read one: where the last layer looks, the mean of its heads."""
    answer = read(model, [text], table)[0]
    begun = np.array([[BEGIN, *(ISO.get(symbol, BEGIN) for symbol in answer[:-1])]])
    with generate.evaluating(model):
        _, weights = model.decode(begun, model.encode(encode([text], table)), return_weights=True)
    looks = weights[-1][1].numpy()[0].mean(axis=0)                              # (T, S)
    rows = ["".join(SHADES[min(int(w * len(SHADES)), len(SHADES) - 1)] for w in row) for row in looks]
    return "\n".join([f"    {text}", *(f"  {symbol} {row}" for symbol, row in zip(answer, rows))])


def show(model, dates, table):
    """Print a table, examples, mistakes and an attention map; the mean shares of trained and untrained pairs."""
    shares, mistakes = scores(model, dates, table)
    print(f"\nexact, of {len(dates)} dates each that were not in training; (in brackets) where no date at all was shown")
    print(f"{'':12}" + "".join(f"{form:>10}" for form in FORMS))
    for language, name in LANGUAGES.items():
        cells = [f"({shares[pair]:.1%})" if pair in UNTRAINED else f"{shares[pair]:.1%} "
                 for pair in PAIRS if pair[0] == language]
        print(f"{name:12}" + "".join(f"{cell:>10}" for cell in cells))
    print("\nread")
    texts = [written(date, PAIRS[(7 * i) % len(PAIRS)]) for i, date in enumerate(dates[:9])]
    for text, found in [*zip(texts, read(model, texts, table)), *mistakes[::max(1, len(mistakes) // 5)][:5]]:
        print(f"  {found}  {text}" + ("  WRONG" if (text, found) in mistakes else ""))
    print("\nwhere it looks while it writes")
    print(attention_map(model, written(dates[0], ("fr", "full")), table))
    return tuple(np.mean([shares[pair] for pair in PAIRS if (pair in UNTRAINED) == untrained])
                 for untrained in (False, True))


# ---- the command line ------------------------------------------------------------------------------------------------

def run(args):
    """Train, show what came of it, read the dates of the command line."""
    mt.manual_seed(args.seed)
    rng, table = mt.backend.generator(), alphabet()     # the generator that also draws the initial weights
    encode(args.read, table)                            # what cannot be read is better refused now than at the end
    train_dates, test_dates = split_dates(rng)
    model = models.Seq2Seq(models.Seq2SeqConfig(len(table) + 1, len(ISO) + 2, **MODEL))
    print(f"{len(LANGUAGES)} languages, {len(table)} characters; {len(train_dates):,} dates to learn from, "
          f"{len(test_dates):,} held out; {sum(p.size for p in model.parameters()):,} parameters")
    seconds = train(model, train_dates, table, rng, args.accumulate, args.seed, args.resume)

    trained, untrained = show(model, test_dates[:SHOWN], table)
    if args.read:
        print("\nyours")
        for text, found in zip(args.read, read(model, args.read, table)):
            print(f"  {found}  {text}")
    print(f"\nafter {seconds:.0f} s; in the {len(UNTRAINED)} languages and forms never shown {untrained:.1%} are exact")
    print(f"exact {trained:.2%} of unseen dates, in the {len(PAIRS) - len(UNTRAINED)} languages and forms that were")
    print(mt.ran_as())
    days = train_dates[:max(BATCH, *rates.SIZES)]
    ids, answers = encode([written(day, PAIRS[0]) for day in days], table), targets(days)
    rates.compare(model, lambda n: add_gradients(model, ids[:n], answers[:n], args.accumulate), BATCH)


def threads(limit):
    """A context with at most so many threads for NumPy's products, where threadpoolctl is: these are too small to share."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return contextlib.nullcontext()
    return threadpool_limits(limit)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="cpu, cuda or cuda:1; left out: what MINITX_DEVICE says, or cpu")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of weights, batches and the split")
    parser.add_argument("--accumulate", type=int, default=1, metavar="N", help="pieces that every batch is cut into")
    parser.add_argument("--read", nargs="+", default=[], metavar="DATE", help="dates to read after training")
    parser.add_argument("--resume", type=Path, metavar="FILE",
                        help="keep the state of the training in FILE, and go on from it where it is")
    args = parser.parse_args(argv)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")            # a terminal that lacks a character shows ? for it
    try:
        if args.seed < 0 or not 1 <= args.accumulate <= BATCH:
            raise Refused(f"give --seed 0 or more, and --accumulate 1 to {BATCH}")
        try:
            mt.set_default_device(args.device or mt.backend.default_device())
        except (ValueError, RuntimeError) as error:
            raise Refused(error) from None
        with threads(1):
            run(args)
    except ImportError as error:
        print(f"dates: needs {error.name}: pip install babel tqdm", file=sys.stderr)
        return 2
    except (Refused, resume.StateError) as error:
        print(f"dates: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:                           # outside of the training, or for the second time
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
