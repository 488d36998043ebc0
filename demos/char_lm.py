"""Train a small GPT-2 on the characters of a text and read what it writes.

    python demos/char_lm.py                                     on a text that every Python has
    python demos/char_lm.py --text FILE --out runs/mine         on a text of yours; keep weights, log and curve
    python demos/char_lm.py --resume runs/mine                  go on after Ctrl-C, as if nothing had happened
    python demos/char_lm.py --sample runs/mine --prompt "The "  write again, without training
    python demos/char_lm.py --compare runs/a runs/b             several runs in one picture

The folder is that of a published model, made without a network: python demos/generate.py runs/mine --prompt "The " lets it
write, python demos/fine_tune.py runs/mine --text FILE trains it further, and transformers opens it, too.
"""
import argparse
import contextlib
import csv
import io
import json
import math
import platform
import re
import sys
import zlib
from pathlib import Path

import numpy as np

import minitx as mt
from minitx import generate, models, ops, optim, rates, resume, schedule
from minitx.models.hub import read_json
from minitx.writing import put_text

# The model, in GPT-2's names, and how it is trained. "medium" wants a GPU, or an evening. The initial weights are about
# 1/sqrt(n_embd): with GPT-2's own 0.02, meant for 768 and more, so narrow a model learns at half the speed.
PRESETS = {
    "small": dict(n_layer=4, n_head=4, n_embd=128, n_positions=64, initializer_range=0.06, dropout=0.0,
                  batch=12, steps=1000, rate=3e-3, threads=1),
    "medium": dict(n_layer=6, n_head=6, n_embd=384, n_positions=256, initializer_range=0.05, dropout=0.2,
                   batch=32, steps=2000, rate=1e-3, threads=None),
}
MODEL = ("n_layer", "n_head", "n_embd", "n_positions", "initializer_range")
PAGE = 2000                     # characters of the sample at the end
HELP_TEXTS = "pydoc_data.topics"
LOG = ("step", "train_loss", "val_loss", "rate", "tokens_per_second", "seconds")


class Refused(Exception):
    """What was asked for cannot be done; the message says in one line what to do."""


class Diverged(Exception):
    """The loss is no number any more."""


# ---- training --------------------------------------------------------------------------------------------------------

def train(model, optimiser, steps, train_ids, val_ids, preset, note):
    """Take the steps; ten times on the way note(**row of the log), and when Ctrl-C ends them. Diverged if it fails."""
    T, B, rate = preset["n_positions"], preset["batch"], cosine(preset)
    rng = mt.backend.generator()                    # the one that drew the initial weights and draws dropout's masks
    losses = steps.progress.setdefault("losses", [])                            # since the last note
    pace, before = rates.Rate(), steps.done

    def write_down(step):
        note(step=step, train_loss=sum(losses) / len(losses), val_loss=evaluate(model, val_ids, T, most=64),
             rate=rate(step), tokens_per_second=speed, seconds=steps.seconds)

    with steps, progress()(total=steps.n, initial=steps.done, unit="step", dynamic_ncols=True) as bar:
        for step in steps:
            loss = loss_of(model, train_ids, T, B, rng)
            losses.append(loss.item())
            if not math.isfinite(losses[-1]):
                raise Diverged(f"the loss is {losses[-1]} at step {step}")
            optimiser.zero_grad()
            loss.backward()
            optim.clip_grad_norm(model.parameters(), 1.0)
            optimiser.step()

            pace.step()
            speed = pace.per_second and B * T * pace.per_second
            told = f"{speed:,.0f} tokens/s" if speed else "kernels compile"
            bar.set_postfix_str(f"loss {losses[-1]:.3f}, rate {rate(step):.1e}, {told}", refresh=False)
            bar.update()
            rates.warm(bar)
            if step % steps.every == 0 or step == steps.n:
                write_down(step)
                losses.clear()
                pace.restart()
                before = step
        if before < steps.done:                     # stopped between two notes: one more, which the state knows nothing of
            write_down(steps.done)


def loss_of(model, ids, T, B, rng):
    """The loss on B windows of the ids."""
    starts = rng.integers(len(ids) - T, size=B)
    window = ids[starts[:, None] + np.arange(T + 1)]                            # (B, T + 1)
    logits = model(window[:, :-1])                                              # (B, T, V)
    return ops.cross_entropy(logits, window[:, 1:])                             # every character foretells the next one


@mt.no_grad()
def evaluate(model, ids, T, most=None):
    """Mean loss over ids, in windows of T that do not overlap: all of them, or `most` of them spread evenly."""
    model.eval()
    starts = np.arange(0, len(ids) - T, T)
    starts = starts[::math.ceil(len(starts) / (most or len(starts)))]
    total = 0.0
    for some in np.array_split(starts, math.ceil(len(starts) / 64)):
        window = ids[some[:, None] + np.arange(T + 1)]                          # (B, T + 1)
        total += len(some) * ops.cross_entropy(model(window[:, :-1]), window[:, 1:]).item()
    model.train()
    return total / len(starts)


def cosine(preset):
    """step -> learning rate: up during a twentieth of the steps, then down a cosine to a twentieth of the peak."""
    peak, steps = preset["rate"], preset["steps"]
    return lambda step: schedule.warmup_cosine(step, peak, steps // 20, steps, peak / 20)


def threads(limit):
    """A context in which NumPy's products use at most so many threads (None: all), where threadpoolctl is.

    In products as small as these a second thread waits more than it works, and while it waits it takes the processor from
    whatever else runs: one thread is as fast on a quiet machine and several times as fast on a busy one.
    """
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return contextlib.nullcontext()
    return threadpool_limits(limit)


def progress():
    """tqdm's progress bar, which also knows the time left."""
    try:
        from tqdm import tqdm
    except ImportError:
        raise Refused("the progress bar needs tqdm: pip install tqdm") from None
    return tqdm


# ---- text ------------------------------------------------------------------------------------------------------------

def read_text(file):
    """The text to learn: a UTF-8 file, or without one the help texts that come with Python."""
    if file is None:
        from pydoc_data.topics import topics
        return "\n".join(topics.values())
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise Refused(f"cannot read {file} ({error.strerror}): give --text a file that can be read") from None
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise Refused(f"{file} is no UTF-8 text: convert it, or give --text another file")
    if not text:
        raise Refused(f"{file} is empty: give --text a file with text in it")
    return text


def encode(text, table):
    """The ids of the text's characters. table is {character: id}."""
    unknown = [character for character in text if character not in table]
    if unknown:
        raise Refused(f"the model never saw {unknown[0]!r}: use its {len(table)} characters, {''.join(table)!r}")
    return np.array([table[character] for character in text])


def write(model, table, prompt, n, seed):
    """What the model writes after the prompt: n characters at temperature 0.8, from random numbers of their own."""
    ids = encode(prompt or ("\n" if "\n" in table else next(iter(table))), table)
    written = generate.generate(model, ids[None, -model.context:], n, temperature=0.8, generator=seed)[0]
    symbols = list(table)
    return "".join(symbols[i] for i in written)


def share_of_words(sample, text):
    """Which share of the sample's words, runs of three letters and more, also stands in the text."""
    words, known = (re.findall(r"[^\W\d_]{3,}", some) for some in (sample, text))
    known = set(known)
    return sum(word in known for word in words) / max(1, len(words))


# ---- what a run leaves behind ----------------------------------------------------------------------------------------

class Run:
    """What a run knows beside its model: characters, log, last good weights. All of it in a folder, if it has one."""

    def __init__(self, model, table, folder, about, steps):
        self.model, self.table, self.folder, self.about = model, table, folder, about
        self.rows, self.good, self.saved = steps.progress.setdefault("rows", []), {}, None
        if self.rows:                               # it goes on
            self.keep(steps.done)
            self.saved = steps.done                 # the step of the weights in the folder
        if folder:
            with self.writing():
                folder.mkdir(parents=True, exist_ok=True)
                write_tokenizer(folder, table)
                write_json(folder / "run.json", about)

    def note(self, **row):
        """Print a row of the log and a line that the model writes by now; keep the weights unless they are spoilt."""
        if not math.isfinite(row["val_loss"]):
            raise Diverged(f"the held-out loss is {row['val_loss']} after step {row['step']}")
        line = write(self.model, self.table, "", 80, seed=row["step"])
        progress().write(f"step {row['step']:5d}  held-out loss {row['val_loss']:.3f}  | {' '.join(line.split())}")
        self.rows.append(row)
        self.keep(row["step"])
        if self.folder:
            with self.writing():
                write_log(self.folder / "log.csv", self.rows)
                self.model.save_pretrained(self.folder)
            self.saved = row["step"]

    def keep(self, step):
        """Remember the weights, which are those of that step, as the last good ones."""
        self.step, self.good = step, {name: array.copy() for name, array in self.model.state_dict().items()}

    def finish(self, sample, **results):
        """Add how it ended, the sample, and the curve where matplotlib is."""
        if not self.folder:
            return
        with self.writing():
            write_json(self.folder / "run.json", self.about | results)
            put_text(self.folder / "sample.txt", sample)
            try:
                draw({self.folder.name: self.rows}, self.folder / "curve.png", sample)
            except ImportError:
                print("no picture of the curve: pip install matplotlib")
        print(f"weights, log and all the rest: {self.folder}")

    @contextlib.contextmanager
    def writing(self):
        """Around all that writes into the folder: what fails there ends the run, in one line that says what is kept."""
        try:
            yield
        except ImportError as error:
            raise Refused(error) from None
        except OSError as error:
            raise Refused(f"cannot write to {self.folder} ({error.strerror or error}); {self.kept()}: "
                          "make room, or give --out another folder") from None

    def kept(self):
        """What of the run is on the disk, in words."""
        if self.saved is not None and (self.folder / "model.safetensors").exists():
            return f"the weights of step {self.saved} and the log are kept in {self.folder}"
        return "nothing is kept" if self.folder else "nothing is kept without --out DIR"


def write_json(file, content):
    put_text(file, json.dumps(content, indent=1))


def write_tokenizer(folder, table):
    """The table as the tokenizers library reads it: each character is a token, and one that is not there is passed over."""
    write_json(folder / "tokenizer.json", dict(
        version="1.0", truncation=None, padding=None, added_tokens=[], normalizer=None, pre_tokenizer=None,
        post_processor=None, decoder=dict(type="Fuse"), model=dict(type="BPE", vocab=table, merges=[])))
    write_json(folder / "tokenizer_config.json", dict(          # or transformers takes it for GPT-2's own, which is of bytes
        tokenizer_class="PreTrainedTokenizerFast", clean_up_tokenization_spaces=False))


def write_log(file, rows):
    text = io.StringIO()
    log = csv.DictWriter(text, LOG)
    log.writeheader()
    log.writerows(rows)
    put_text(file, text.getvalue())


def load(folder):
    """(model, {character: id}) of a run's folder."""
    try:
        table = read_json(folder / "tokenizer.json")["model"]["vocab"]
        if list(table.values()) != list(range(len(table))) or set(map(len, table)) != {1}:
            raise ValueError("its tokens are no characters; demos/generate.py may read it")
        model = models.from_pretrained(folder, head="lm")
        if model.config.vocab_size != len(table):
            raise ValueError(f"the model has {model.config.vocab_size} symbols, tokenizer.json {len(table)}")
    except ImportError as error:
        raise Refused(error) from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = "; ".join(str(error).split("\n  "))
        raise Refused(f"{folder} holds no run that can be read ({reason}): train one with --out {folder}") from None
    return model, table


def read_log(folder):
    """The rows of a run's log, as numbers; an empty field is nan."""
    try:
        with open(folder / "log.csv", encoding="utf-8", newline="") as file:
            header, *rows = [row for row in csv.reader(file) if row] or [[]]
        if header != list(LOG) or not rows or any(len(row) != len(LOG) for row in rows):
            raise ValueError(f"log.csv wants rows of {', '.join(LOG)}")
        return [{name: float(value or "nan") for name, value in zip(LOG, row)} for row in rows]
    except (OSError, ValueError, csv.Error) as error:
        raise Refused(f"{folder} holds no log that can be read ({error}): train with --out {folder}") from None


def draw(runs, file, sample=""):
    """The losses of runs, {name: rows of the log}, in one picture; beside them a sample, if there is one."""
    from matplotlib.figure import Figure
    picture = Figure(figsize=(11 if sample else 7, 4.5), layout="constrained")
    curves, *page = picture.subplots(1, 2 if sample else 1, squeeze=False)[0]
    for name, rows in runs.items():
        steps = [row["step"] for row in rows]
        line, = curves.plot(steps, [row["val_loss"] for row in rows], label=f"{name}, held out")
        curves.plot(steps[1:], [row["train_loss"] for row in rows[1:]], "--", color=line.get_color(),
                    label=f"{name}, training")
    curves.set(xlabel="step", ylabel="loss, nats a character")
    curves.grid(alpha=0.3)
    curves.legend()
    for axes in page:
        lines = [line[:64] for line in sample.splitlines()[:26]]
        axes.text(0, 1, "\n".join(lines), va="top", family="monospace", size=7.5, parse_math=False)
        axes.set_axis_off()
    picture.savefig(file, dpi=100)


# ---- the command line ------------------------------------------------------------------------------------------------

def learn(args):
    """Train on the text, then write a page."""
    folder, preset = args.resume or args.out, PRESETS[args.preset] | ({"steps": args.steps} if args.steps else {})
    state = folder and folder / "training.safetensors"
    if folder and (folder / "config.json").exists() and not (args.resume and state.exists()):
        raise Refused(f"{folder} holds a model already{', without the state of its training' if args.resume else ''}: "
                      f"give {'--resume' if args.resume else '--out'} another folder, or delete this one")
    text, T = read_text(args.text), preset["n_positions"]
    table = {character: i for i, character in enumerate(sorted(set(text)))}
    ids = encode(text, table)
    encode(args.prompt, table)                      # a prompt that cannot be read is better refused now than at the end
    n = len(ids) * 9 // 10
    train_ids, val_ids = ids[:n], ids[n:]
    if len(val_ids) <= T:
        raise Refused(f"the text has {len(ids)} characters, too few for a context of {T}: "
                      f"give --text a file of at least {10 * (T + 1)}")

    mt.manual_seed(args.seed)
    model = models.GPT2(models.GPT2Config(
        vocab_size=len(table), eos_token_id=None, **{name: preset[name] for name in MODEL},
        **dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), preset["dropout"])))
    optimiser = optim.AdamW(optim.decay_groups(model, 0.1), lr=cosine(preset), betas=(0.9, 0.99))
    settings = dict(demo="char_lm", text=zlib.crc32(text.encode("utf-8", "surrogatepass")), seed=args.seed, **preset)
    steps = resume.Steps(preset["steps"], model, optimiser, state, settings, every=max(1, preset["steps"] // 10))
    run = Run(model, table, folder, dict(
        text=str(args.text or HELP_TEXTS), characters=len(ids), seed=args.seed, device=mt.backend.default_device(),
        preset=args.preset, **preset, minitx=mt.__version__, numpy=np.__version__, python=platform.python_version(),
        machine=platform.platform()), steps)
    print(f"{len(ids):,} characters, {len(table)} different ones; GPT-2 with "
          f"{sum(p.size for p in model.parameters()):,} parameters; before training ln {len(table)} = "
          f"{math.log(len(table)):.3f} is a fair loss")
    if folder:
        print(steps)
    try:
        return train_and_write(run, optimiser, steps, train_ids, val_ids, preset, text, args)
    except KeyboardInterrupt:                       # outside the training loop, or for the second time
        print(f"\nchar_lm: stopped; {run.kept()}", file=sys.stderr)
        return 130


def train_and_write(run, optimiser, steps, train_ids, val_ids, preset, text, args):
    """Train, then print the last loss and a page. The exit status: 1 if the loss was lost on the way."""
    model, T, diverged = run.model, preset["n_positions"], None
    if not run.rows:
        run.note(step=0, val_loss=evaluate(model, val_ids, T, most=64), seconds=0.0)
    try:
        train(model, optimiser, steps, train_ids, val_ids, preset, run.note)
    except Diverged as error:
        diverged = f"{error}; back to the weights of step {run.step}"
        model.load_state_dict(run.good)
    seconds, step = steps.seconds, run.step

    print("the last evaluation, and a page; Ctrl-C skips them")
    loss, sample = evaluate(model, val_ids, T), write(model, run.table, args.prompt, PAGE, args.seed)
    words = share_of_words(sample, text)
    print(f"\n{args.prompt}{sample}\n")
    print(f"held-out loss {loss:.3f} over the last tenth of the text, after {step} of {preset['steps']} steps "
          f"in {seconds:.0f} s")
    print(f"words {words:.1%} of the sample's occur in the text")
    run.finish(args.prompt + sample, val_loss=loss, words=words, seconds=seconds, diverged=diverged)
    print(mt.ran_as())
    rng = mt.backend.generator()
    rates.compare(model, lambda n: loss_of(model, train_ids, T, n, rng).backward(), preset["batch"],
                  flag="take --preset medium" if args.preset == "small" else "leave out --device")
    if diverged:
        print(f"char_lm: {diverged}", file=sys.stderr)
    return 1 if diverged else 0


def begun_with(folder):
    """The options with which the run in a folder was begun, if there is one."""
    try:
        about = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        text = None if about["text"] == HELP_TEXTS else about["text"]
        return dict(text=text, preset=about["preset"], steps=about["steps"], seed=about["seed"])
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Refused(f"{folder} holds no run that can be read ({error!r}): give --resume another folder") from None


def compare(args):
    """Draw the curves of several runs in one picture."""
    runs = {str(folder): read_log(folder) for folder in args.compare}
    file = (args.out or Path()) / "compare.png"
    try:
        draw(runs, file)
    except ImportError:
        raise Refused("drawing needs matplotlib: pip install matplotlib") from None
    except OSError as error:
        raise Refused(f"cannot write {file} ({error.strerror}): give --out another folder") from None
    for name, rows in runs.items():
        print(f"{name:20s} held-out loss {rows[-1]['val_loss']:.3f} at step {rows[-1]['step']:.0f}")
    print(f"the curves: {file}")
    return 0


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", metavar="FILE", type=Path, help="what to learn, in UTF-8; else Python's help texts")
    parser.add_argument("--device", help="cpu, cuda or cuda:1; left out: what MINITX_DEVICE says, or cpu")
    parser.add_argument("--preset", choices=PRESETS, default="small", help="how large a model")
    parser.add_argument("--steps", type=int, metavar="N", help="how long to train; each preset has its own number")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--prompt", default="", metavar="TEXT", help="what the samples continue")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep weights, log, curve and sample there")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="go on with the run of an earlier --out; begin one there "
                        "if there is none. The text and other options are those it was begun with")
    parser.add_argument("--sample", type=Path, metavar="DIR", help="write again with the weights of an earlier --out")
    parser.add_argument("--compare", type=Path, nargs="+", metavar="DIR", help="draw the logs of several --out")
    args = parser.parse_args(argv)
    sys.stdout.reconfigure(errors="replace")        # a terminal that lacks a character of the text shows ? for it
    try:
        if args.resume and args.out:
            raise Refused("--resume keeps everything in its folder: leave out --out")
        if args.resume:
            parser.set_defaults(**begun_with(args.resume))
            args = parser.parse_args(argv)
        if args.steps is not None and args.steps < 1:
            raise Refused(f"--steps {args.steps} trains nothing: give 1 or more")
        if args.seed < 0:
            raise Refused(f"--seed {args.seed} is no seed: give 0 or more")
        if args.compare:
            return compare(args)
        try:
            mt.set_default_device(args.device or mt.backend.default_device())
        except (ValueError, RuntimeError) as error:
            raise Refused(error) from None
        if args.sample:
            model, table = load(args.sample)
            with threads(1):
                print(args.prompt + write(model, table, args.prompt, PAGE, args.seed))
            return 0
        with threads(PRESETS[args.preset]["threads"]):
            return learn(args)
    except (Refused, resume.StateError) as error:
        print(f"char_lm: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:                       # a run that has begun says first what it keeps
        return 130


if __name__ == "__main__":
    sys.exit(main())
