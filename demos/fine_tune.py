"""Train a published GPT-2 or LLaMA further, on a text of yours, and beside it one of the same size from nothing.

    hf download gpt2 config.json model.safetensors tokenizer.json   once: pip install huggingface_hub
    python demos/fine_tune.py gpt2                                  a quarter of an hour on a CPU; on Python's help texts
    python demos/fine_tune.py gpt2 --text FILE --out DIR            on a text of yours; keep the model
    python demos/fine_tune.py gpt2 --text FILE --resume STATE       stop with Ctrl-C, and go on with the same line
    python demos/generate.py DIR                                    let it write

The model is a folder as it was published, with config.json, model.safetensors and tokenizer.json, or the name of one
that Hugging Face's tool has downloaded. Without a network, python demos/char_lm.py --out DIR makes one in two minutes.
Both trainings have the same configuration, steps and batches; the one from nothing goes at ten times the rate, for it
has the longer way. The last tenth of the text is held out: the losses are those of its tokens, in nats.
"""
import argparse
import math
import shutil
import sys
import zlib
from pathlib import Path

import numpy as np

import minitx as mt
from minitx import generate, models, ops, optim, rates, resume, schedule
from minitx.models.hub import find_folder, read_json, read_tokenizer

STEPS, BATCH, CONTEXT, RATE = 100, 4, 64, 1e-4
FASTER = 10                             # times RATE is that of the training from nothing
WINDOWS = 64                            # so many of the held-out text are looked at
PROMPT, SAMPLE = 16, 60                 # tokens of the held-out text, and of what a model makes of them
# What of a folder is copied beside the tuned weights.
COPIED = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "vocab.json",
          "merges.txt", "tokenizer.model")


class Refused(Exception):
    """What was asked for cannot be done; the message says in one line what to do."""


# ---- what it begins with ---------------------------------------------------------------------------------------------

def read_model(name):
    """(folder, model, tokenizer) of a folder, or of a name on the hub."""
    try:
        folder = find_folder(name)
        kind = read_json(folder / "config.json").get("model_type")
        if kind not in ("gpt2", "llama"):
            raise Refused(f"{folder} holds a {kind} model: give a GPT-2 or a LLaMA")
        return folder, models.from_pretrained(folder, head="lm"), read_tokenizer(folder)
    except (OSError, ValueError, ImportError) as error:
        raise Refused("; ".join(str(error).split("\n  "))) from None


def read_text(file):
    """A UTF-8 file, or without one the help texts that come with Python."""
    if file is None:
        from pydoc_data.topics import topics
        return "\n".join(topics.values())
    try:
        return Path(file).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise Refused(f"cannot read {file} ({error.strerror}): give --text a file that can be read") from None
    except UnicodeDecodeError:
        raise Refused(f"{file} is no UTF-8 text: convert it, or give --text another file") from None


def encode(tokenizer, text, model, T):
    """(ids to train on, ids held out) of a text: the last tenth is never trained on."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    ids = np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.int64)
    n = len(ids) * 9 // 10
    if len(ids) - n <= T:
        raise Refused(f"the text has {len(ids):,} tokens, too few for a context of {T}: give --text a file of at least "
                      f"{10 * (T + 1):,}, or a smaller --context")
    if ids.max() >= model.config.vocab_size:
        raise Refused(f"the tokenizer gives id {ids.max()}, the model has {model.config.vocab_size}: they are not of one "
                      "folder")
    return ids[:n], ids[n:]


# ---- training and looking --------------------------------------------------------------------------------------------

def loss_of(model, ids, T, B, rng):
    """The loss on B windows of the ids (n,)."""
    window = ids[rng.integers(len(ids) - T, size=(B, 1)) + np.arange(T + 1)]                    # (B, T + 1)
    return ops.cross_entropy(model(window[:, :-1]), window[:, 1:])


def train(model, ids, args, rate, name, progress):
    """Train on windows of the ids (n,); Ctrl-C ends it early. The resume.Steps, and the seconds it took."""
    T, B, n = args.context, args.batch, args.steps
    optimiser = optim.AdamW(optim.decay_groups(model, 0.1), betas=(0.9, 0.95),
                            lr=lambda step: schedule.warmup_cosine(step, rate, n // 10, n, rate / 10))
    settings = dict(demo="fine_tune", model=args.folder, text=zlib.crc32(ids), seed=args.seed, batch=B, context=T,
                    rate=rate)
    file = args.resume and state_file(args.resume, name)
    steps = resume.Steps(n, model, optimiser, file, settings)
    if file:
        print(steps)
    model.train()
    with steps, progress(total=n, desc=name, initial=steps.done, unit="step", dynamic_ncols=True) as bar:
        for step in steps:
            rng = np.random.default_rng((args.seed, step))          # both get the same batches, whatever dropout draws
            loss = loss_of(model, ids, T, B, rng)
            if not math.isfinite(loss.item()):
                raise Refused(f"{name}: the loss is {loss.item()} at step {step}: give a smaller --rate")
            optimiser.zero_grad()
            loss.backward()
            optim.clip_grad_norm(model.parameters(), 1.0)
            optimiser.step()
            bar.set_postfix_str(f"loss {loss.item():.3f}", refresh=False)
            bar.update()
            rates.warm(bar)
    return steps, steps.seconds


def state_file(file, name):
    """Where --resume FILE keeps the state of one of the two trainings."""
    if not file.name:
        raise Refused(f"--resume {file} is a folder: give it the name of a file")
    return file.with_name(f"{file.stem}-{name}{file.suffix}")


def evaluate(model, ids, T, B):
    """Mean loss over ids, in windows of T that do not overlap, WINDOWS of them spread evenly, B at a time."""
    starts = np.arange(0, len(ids) - T, T)
    starts = starts[::math.ceil(len(starts) / WINDOWS)]
    windows, total = ids[starts[:, None] + np.arange(T + 1)], 0.0               # (windows, T + 1)
    with generate.evaluating(model):
        for some in np.split(windows, range(B, len(windows), B)):
            total += len(some) * ops.cross_entropy(model(some[:, :-1]), some[:, 1:]).item()
    return total / len(windows)


def write(model, tokenizer, ids, seed):
    """What the model makes of a beginning, ids (n,), at temperature 0.8."""
    written = generate.generate(model, ids[None], SAMPLE, temperature=0.8, generator=seed,
                                vocab_size=max(tokenizer.get_vocab().values()) + 1)[0]
    return tokenizer.decode([*ids, *written])[len(tokenizer.decode(ids)):]


def save(model, folder, out):
    """The model as a published folder, with what else the one has that it began with."""
    try:
        model.save_pretrained(out)
        for name in COPIED:
            if (folder / name).is_file():
                shutil.copyfile(folder / name, out / name)
    except OSError as error:
        raise Refused(f"cannot write to {out} ({error.strerror or error}): make room, or give --out another folder"
                      ) from None
    print(f"\nthe model is in {out}: python demos/generate.py {out}")


# ---- the command line ------------------------------------------------------------------------------------------------

def run(args):
    """Look at the model as it was published, tuned, and from nothing; then the table."""
    progress, text = progress_bar(), read_text(args.text)
    folder, model, tokenizer = read_model(args.folder)
    args.context = min(CONTEXT, model.context) if args.context is None else args.context
    if args.context > model.context:
        raise Refused(f"--context {args.context} is more than the {model.context} tokens that the model sees")
    if args.out:
        prepare(args.out, folder, args.resume and state_file(args.resume, "tuned").exists())
    train_ids, held_out = encode(tokenizer, text, model, args.context)
    prompt, rows = held_out[:min(PROMPT, args.context)], []
    print(f"{len(train_ids):,} tokens to train on, {len(held_out):,} held out; "
          f"{sum(p.size for p in model.parameters()):,} parameters; {args.steps} steps of {args.batch} x {args.context}")
    print(f"\nthe held-out text begins: {tokenizer.decode(prompt)}")

    def look(name, steps=0, seconds=0.0):
        rows.append((name, evaluate(model, held_out, args.context, args.batch), steps, seconds))
        print(f"\n--- {name.replace('-', ' ')} ---\n{write(model, tokenizer, prompt, args.seed)}\n", flush=True)

    look("as published")
    for name, rate in ("tuned", args.rate), ("from-nothing", FASTER * args.rate):
        mt.manual_seed(args.seed)                                       # for dropout, and the weights from nothing
        if name == "from-nothing":
            model = type(model)(model.config)
        steps, seconds = train(model, train_ids, args, rate, name, progress)
        look(name, steps.done, seconds)
        if name == "tuned" and args.out:
            save(model, folder, args.out)
        if steps.stopped:
            print("stopped early", file=sys.stderr)
            break
    print(f"\n{'':14}{'held-out loss':>15}{'steps':>8}{'seconds':>10}")
    for name, loss, done, seconds in rows:
        print(f"{name.replace('-', ' '):14}{loss:15.3f}{done:8}{seconds:10.1f}")
    print(mt.ran_as())
    rng = np.random.default_rng(args.seed)
    rates.compare(model, lambda n: loss_of(model, train_ids, args.context, n, rng).backward(), args.batch,
                  flag="give a larger --batch")


def prepare(out, folder, going_on):
    """A folder for the tuned model; no other model is written over."""
    try:
        if (out / "config.json").exists() and (not going_on or out.samefile(folder)):
            raise Refused(f"{out} holds a model already: give --out another folder")
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"cannot write to {out} ({error.strerror or error}): give --out another folder") from None


def progress_bar():
    """tqdm's, which also knows the time left."""
    try:
        from tqdm import tqdm
    except ImportError:
        raise Refused("the progress bar needs tqdm: pip install tqdm") from None
    return tqdm


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="gpt2", metavar="FOLDER", help="a published model; else gpt2")
    parser.add_argument("--text", metavar="FILE", type=Path, help="what to learn, in UTF-8; else Python's help texts")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help=f"of each training; else {STEPS}")
    parser.add_argument("--batch", type=int, default=BATCH, metavar="N", help=f"windows a step; else {BATCH}")
    parser.add_argument("--context", type=int, metavar="N", help=f"tokens a window; else {CONTEXT}")
    parser.add_argument("--rate", type=float, default=RATE, metavar="X", help=f"the highest learning rate; else {RATE}")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of batches, dropout, samples and new weights")
    parser.add_argument("--device", help="cpu, cuda or cuda:1; left out: what MINITX_DEVICE says, or cpu")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write the tuned model there, as a published folder")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep the states of the trainings in FILE-tuned and "
                        "FILE-from-nothing, and go on from them where they are")
    args = parser.parse_args(argv)
    sys.stdout.reconfigure(errors="replace")                # a terminal that lacks a character shows ? for it
    try:
        for name, least in dict(steps=1, batch=1, context=1, seed=0).items():
            value = getattr(args, name)
            if value is not None and value < least:
                raise Refused(f"--{name} {value} is too small: give {least} or more")
        if not 0 < args.rate < math.inf:
            raise Refused(f"--rate {args.rate} trains nothing: give a number above 0")
        try:
            mt.set_default_device(args.device or mt.backend.default_device())
        except (ValueError, RuntimeError) as error:
            raise Refused(error) from None
        run(args)
    except (Refused, resume.StateError) as error:
        print(f"fine_tune: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:                               # outside of the training, or for the second time
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
