"""The main job, on a model and a text small enough for a test, and everything that a person may ask of it wrongly."""
import csv
import errno
import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from double import here

from minitx import checkpoint, models

DEMO = Path(__file__).parents[2] / "demos" / "char_lm.py"
TEXT = "the cat sat on the mat. the dog sat on the log.\n" * 40


def load(name):
    """A demo as a module."""
    spec = importlib.util.spec_from_file_location(name, DEMO.with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def demo(monkeypatch, tmp_path):
    """The demo as a module, with a tiny preset, in an empty folder that holds text.txt."""
    module = load("char_lm")
    monkeypatch.setitem(module.PRESETS, "small", dict(
        n_layer=1, n_head=2, n_embd=16, n_positions=16, initializer_range=0.02, dropout=0.0,
        batch=8, steps=60, rate=1e-2, threads=1))
    monkeypatch.setattr(module, "PAGE", 120)
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT, encoding="utf-8")
    return module


def read_csv(file):
    with open(file, encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def test_learns_and_keeps_everything(demo, capsys):
    assert demo.main(["--text", "text.txt", "--out", "run", "--seed", "3", "--prompt", "the "]) == 0
    printed = capsys.readouterr()
    assert "tokens/s" in printed.err and "60/60" in printed.err                 # the bar
    assert sum(line.startswith("step ") for line in printed.out.splitlines()) == 11
    rows = read_csv("run/log.csv")
    assert list(rows[0]) == ["step", "train_loss", "val_loss", "rate", "tokens_per_second", "seconds"]
    assert [int(row["step"]) for row in rows] == list(range(0, 61, 6))
    assert float(rows[0]["val_loss"]) == pytest.approx(np.log(len(set(TEXT))), abs=0.3)
    assert float(rows[-1]["val_loss"]) < 1.5
    run = json.loads(Path("run/run.json").read_text(encoding="utf-8"))
    assert run["seed"] == 3 and run["diverged"] is None and {"numpy", "minitx", "python"} <= run.keys()
    model, table = demo.load(Path("run"))
    assert list(table) == sorted(set(TEXT)) and model.config.eos_token_id is None
    assert sorted(path.name for path in Path("run").iterdir() if path.name != "curve.png") == [
        "config.json", "log.csv", "model.safetensors", "run.json", "sample.txt", "tokenizer.json", "tokenizer_config.json",
        "training.safetensors"]
    sample = Path("run/sample.txt").read_text(encoding="utf-8")
    assert sample.startswith("the ") and len(sample) == 124

    # the weights alone write the very same page again
    assert demo.main(["--sample", "run", "--seed", "3", "--prompt", "the "]) == 0
    assert capsys.readouterr().out == sample + "\n"


# ---- the folder is that of a published model -------------------------------------------------------------------------

def test_other_demos_open_the_folder(demo, capsys):
    """Without a network: learn characters, let the model write, train it further, and let that write."""
    pytest.importorskip("tokenizers")
    assert demo.main(["--text", "text.txt", "--out", "run", "--prompt", "the "]) == 0
    capsys.readouterr()
    assert load("generate").main(["run", "--prompt", "the ", "--tokens", "15"]) == 0
    model, table = demo.load(Path("run"))
    assert capsys.readouterr().out.startswith("the " + demo.write(model, table, "the ", 15, 0) + "\n\n15 tokens")
    assert load("fine_tune").main(["run", "--text", "text.txt", "--context", "8", "--steps", "3", "--out", "tuned"]) == 0
    assert "tuned" in capsys.readouterr().out
    assert load("generate").main(["tuned", "--prompt", "the ", "--tokens", "15"]) == 0
    assert demo.main(["--sample", "tuned"]) == 0


def help_texts_folder(demo, path):
    """A folder as it is written for Python's help texts, with random weights: (text, {character: id})."""
    text = demo.read_text(None)
    table = {character: i for i, character in enumerate(sorted(set(text)))}
    demo.write_tokenizer(path, table)
    models.GPT2(models.GPT2Config(len(table), 16, 16, 2, 2, eos_token_id=None, initializer_range=0.5)).save_pretrained(path)
    assert demo.load(path)[1] == table and list(demo.load(path)[1]) == list(table)
    return text, table


def test_every_character_is_a_token(demo, tmp_path):
    """Each alone and in the whole text, spaces and ends of lines too; one that is not there is passed over."""
    tokenizers = pytest.importorskip("tokenizers")
    text, table = help_texts_folder(demo, tmp_path)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab() == table and len(table) > 90 and {" ", "\n"} < table.keys()
    for some in (*table, "".join(table), "  \n\n  if", text):
        ids = tokenizer.encode(some).ids
        assert ids == demo.encode(some, table).tolist() and tokenizer.decode(ids) == some
    assert tokenizer.encode("a\N{GRINNING FACE}b\r").ids == [table["a"], table["b"]]


def test_characters_beyond_16_bits(demo, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    text = "\0\"\\ é\u0301\u2028\N{GRINNING FACE}\N{GRINNING FACE WITH SMILING EYES}"
    demo.write_tokenizer(tmp_path, {character: i for i, character in enumerate(text)})
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode(text).ids == list(range(len(text))) and tokenizer.decode(range(len(text))) == text


def test_transformers_opens_the_folder(demo, tmp_path):
    """To the same logits, tokens and text; and nothing ends what it writes."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    text, table = help_texts_folder(demo, tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    some = "it 's a\n    list . \n" + "".join(table)
    ids = demo.encode(some, table)
    assert tokenizer(some)["input_ids"] == ids.tolist() and tokenizer.decode(ids) == some and len(tokenizer) == len(table)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        wanted = theirs(torch.tensor(ids[None, :16])).logits.numpy()
    model, _ = demo.load(tmp_path)
    assert np.abs(model(ids[None, :16]).numpy() - wanted).max() <= 2e-5 * np.abs(wanted).max()
    assert theirs.config.eos_token_id is None and model.config.eos_token_id is None


def test_folders_that_are_no_runs(demo, capsys):
    """Other models' folders, and what is not of one folder."""
    demo.main(["--text", "text.txt", "--out", "run", "--steps", "1"])
    tokenizer, config = (json.loads(Path("run", f"{name}.json").read_text(encoding="utf-8"))
                         for name in ("tokenizer", "config"))
    vocab = tokenizer["model"]["vocab"]
    capsys.readouterr()

    def says(name, content):
        before = Path("run", name).read_bytes()
        Path("run", name).write_text(json.dumps(content), encoding="utf-8")
        line = refused(demo, capsys, "--sample", "run")
        Path("run", name).write_bytes(before)
        assert "run holds no run that can be read (" in line
        return line

    for other in ({"the": 0, "cat": 1}, {}, {"a": 1, "b": 0}, {"a": 0, "b": 2}, {"a": 0, "": 1}):
        assert "no characters; demos/generate.py" in says("tokenizer.json", {"model": {"vocab": other}})
    for broken in [], {}, {"model": []}, {"model": {"vocab": None}}, {"model": {"vocab": [["a", -1.5]]}}:
        says("tokenizer.json", broken)
    assert f"has {len(vocab)} symbols, tokenizer.json {len(vocab) + 1}" in says(
        "tokenizer.json", {"model": {"vocab": vocab | {"é": len(vocab)}}})
    assert "model_type must be" in says("config.json", {"model_type": "mamba"})
    assert "n_embd" in says("config.json", config | {"n_embd": 15})
    assert "missing" in says("config.json", config | {"n_layer": 2})
    assert demo.main(["--sample", "run"]) == 0


def test_no_model_is_written_over(demo, capsys):
    """Whatever the names of its files."""
    Path("other").mkdir()
    Path("other/config.json").write_text("{}", encoding="utf-8")
    assert "other holds a model already" in refused(demo, capsys, "--text", "text.txt", "--out", "other")
    assert [path.name for path in Path("other").iterdir()] == ["config.json"]


# ---- training --------------------------------------------------------------------------------------------------------

def test_seed_decides(demo):
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        demo.main(["--text", "text.txt", "--out", name, "--seed", seed, "--steps", "5"])
    a, b, c = ([row["val_loss"] for row in read_csv(f"{name}/log.csv")] for name in "abc")
    assert a == b != c


def test_evaluation_disturbs_nothing(demo, monkeypatch):
    """Fewer pauses with evaluation and samples, same training."""
    demo.main(["--text", "text.txt", "--out", "a", "--steps", "6"])
    monkeypatch.setattr(demo, "evaluate", lambda *args, **options: 1.0)
    monkeypatch.setattr(demo, "write", lambda *args, **options: "")
    demo.main(["--text", "text.txt", "--out", "b", "--steps", "6"])
    a, b = ([row["train_loss"] for row in read_csv(f"{name}/log.csv")] for name in "ab")
    assert a == b


def test_evaluate_covers_everything_once(demo):
    """The mean over all windows, however they are batched; `most` takes an even choice of them."""
    seen = []

    class Uniform:
        def __call__(self, ids):
            seen.extend(ids[:, 0].tolist())
            return np.zeros(ids.shape + (1001,), np.float32)

        def eval(self): ...
        def train(self): ...

    assert demo.evaluate(Uniform(), np.arange(1001), 10) == pytest.approx(np.log(1001))
    assert seen == list(range(0, 1000, 10))
    seen.clear()
    demo.evaluate(Uniform(), np.arange(1001), 10, most=25)
    assert seen == list(range(0, 1000, 40))


def test_dropout_is_off_when_it_writes_and_evaluates(demo, monkeypatch):
    monkeypatch.setitem(demo.PRESETS["small"], "dropout", 0.5)
    demo.main(["--text", "text.txt", "--out", "run", "--steps", "2"])
    model, table = demo.load(Path("run"))
    ids = demo.encode(TEXT, table)
    assert demo.evaluate(model, ids, 16) == demo.evaluate(model, ids, 16)
    assert model.training
    assert demo.write(model, table, "the", 50, 0) == demo.write(model, table, "the", 50, 0)


def test_ctrl_c_keeps_what_it_has(demo, monkeypatch, capsys):
    before = signal.getsignal(signal.SIGINT)
    evaluate, calls = demo.evaluate, []

    def interrupted(*args, **options):
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return evaluate(*args, **options)

    monkeypatch.setattr(demo, "evaluate", interrupted)
    assert demo.main(["--text", "text.txt", "--out", "run"]) == 0
    assert "after 12 of 60 steps" in capsys.readouterr().out
    assert [row["step"] for row in read_csv("run/log.csv")] == ["0", "6", "12"]
    assert Path("run/model.safetensors").exists() and Path("run/sample.txt").exists()
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_outside_of_training(demo, monkeypatch, capsys):
    """Before, while the page is written, and when writing again: nothing but what is kept is said."""
    write = demo.write

    def interrupted(model, table, prompt, n, seed):
        return signal.raise_signal(signal.SIGINT) if n in stop_at else write(model, table, prompt, n, seed)

    monkeypatch.setattr(demo, "write", interrupted)
    for stop_at, arguments, says in (
            ([80], ["--out", "run"], "char_lm: stopped; nothing is kept"),                  # the line before training
            ([120], ["--steps", "5"], "char_lm: stopped; nothing is kept without --out DIR"),
            ([120], ["--steps", "5", "--out", "run"],
             "char_lm: stopped; the weights of step 5 and the log are kept in run")):
        assert demo.main(["--text", "text.txt", *arguments]) == 130
        assert capsys.readouterr().err.splitlines()[-1] == says
    assert demo.main(["--sample", "run"]) == 130 and capsys.readouterr().err == ""
    assert demo.load(Path("run")) and len(demo.read_log(Path("run"))) == 6


def test_resume_takes_the_options_from_the_run(demo, monkeypatch, capsys):
    """Text, preset, steps and seed; what is given beside it must be the same."""
    cross_entropy, calls = demo.ops.cross_entropy, []

    def interrupted(*args, **options):
        calls.append(1)
        if len(calls) == 9:
            signal.raise_signal(signal.SIGINT)
        return cross_entropy(*args, **options)

    monkeypatch.setattr(demo.ops, "cross_entropy", interrupted)
    monkeypatch.setitem(demo.PRESETS, "medium", demo.PRESETS["small"] | dict(n_embd=8))
    assert demo.main(["--text", "text.txt", "--out", "run", "--seed", "3", "--steps", "20", "--preset", "medium"]) == 0
    assert "after 6 of 20 steps" in capsys.readouterr().out                     # evaluated before, and after every second
    files = {file.name: file.read_bytes() for file in Path("run").iterdir()}
    for arguments, says in ((["--steps", "30"], "whose steps is 20, not 30"), (["--seed", "0"], "whose seed is 3, not 0"),
                            (["--preset", "small"], "whose n_embd is 8, not 16"), (["--text", "more.txt"], "whose text is "),
                            (["--out", "other"], "leave out --out")):
        Path("more.txt").write_text(TEXT + TEXT, encoding="utf-8")
        assert says in refused(demo, capsys, "--resume", "run", *arguments)
    assert {file.name: file.read_bytes() for file in Path("run").iterdir()} == files
    assert demo.main(["--resume", "run", "--steps", "20"]) == 0
    printed = capsys.readouterr().out
    assert "goes on at step 6" in printed and "after 20 of 20 steps" in printed
    assert [row["step"] for row in read_csv("run/log.csv")] == [str(step) for step in range(0, 21, 2)]
    run = json.loads(Path("run/run.json").read_text(encoding="utf-8"))
    assert (run["seed"], run["steps"], run["preset"], run["text"]) == (3, 20, "medium", "text.txt")


def test_resume_goes_back_to_the_last_good_weights(demo, monkeypatch, capsys):
    """A loss that is lost before the first line of the second part: back to where that part began."""
    step, steps = demo.optim.AdamW.step, []

    def spoiling(self):
        step(self)
        steps.append(1)
        if len(steps) == 14:
            signal.raise_signal(signal.SIGINT)
        if len(steps) == 15:
            self.param_groups[0]["params"][0].data[...] = np.nan

    monkeypatch.setattr(demo.optim.AdamW, "step", spoiling)
    assert demo.main(["--text", "text.txt", "--resume", "run"]) == 0
    kept = checkpoint.load("run/model.safetensors")
    assert demo.main(["--resume", "run"]) == 1
    assert "loss is nan at step 16; back to the weights of step 14" in capsys.readouterr().err.splitlines()[-1]
    again = checkpoint.load("run/model.safetensors")
    assert all(np.array_equal(array, again[name]) for name, array in kept.items())


def test_runs_that_cannot_be_gone_on_with(demo, capsys):
    demo.main(["--text", "text.txt", "--out", "run", "--steps", "1"])
    capsys.readouterr()
    Path("run/training.safetensors").unlink()
    assert "run holds a model already, without the state of its training" in refused(demo, capsys, "--resume", "run")
    for content in "", "[]", "{}", "{\"text\": 3}":
        Path("run/run.json").write_text(content, encoding="utf-8")
        assert "give --resume another folder" in refused(demo, capsys, "--resume", "run")


def no_room(*args, **options):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_disk_full(demo, monkeypatch, capsys):
    """In the middle of a run and at its end; the log is never half written."""
    save = checkpoint.save

    def fills(path, *state):
        saved.append(path.name)
        (save if saved.count(full) < 3 else no_room)(path, *state)

    monkeypatch.setattr(checkpoint, "save", fills)
    for folder, full, says in (
            ("run", "model.safetensors",
             "run (No space left on device); the weights of step 6 and the log are kept in run"),
            ("more", "training.safetensors",
             f"{Path('more', 'training.safetensors')} (No space left on device); the state of step 6 is kept there")):
        saved = []
        assert demo.main(["--text", "text.txt", "--out", folder]) == 2
        message = capsys.readouterr().err.splitlines()[-1]
        assert message.startswith("char_lm: cannot write ") and f"{says}: make room, or give " in message, message
        assert demo.load(Path(folder))

    monkeypatch.setattr(checkpoint, "save", save)
    monkeypatch.setattr(demo, "draw", no_room)
    assert demo.main(["--text", "text.txt", "--out", "other", "--steps", "2"]) == 2
    assert "the weights of step 2 and the log" in capsys.readouterr().err.splitlines()[-1]

    before = Path("run/log.csv").read_bytes()
    monkeypatch.setattr(os, "replace", no_room)
    with pytest.raises(OSError):
        demo.write_log(Path("run/log.csv"), [])
    assert Path("run/log.csv").read_bytes() == before


def test_folder_gone(demo, monkeypatch, capsys):
    evaluate, calls = demo.evaluate, []

    def removes(*args, **options):
        calls.append(1)
        if len(calls) == 3:
            shutil.rmtree("run")
        return evaluate(*args, **options)

    monkeypatch.setattr(demo, "evaluate", removes)
    assert demo.main(["--text", "text.txt", "--out", "run"]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("char_lm: cannot write to run (") and "nothing is kept: " in message, message


@pytest.mark.parametrize("spoil_at", [10, 12])         # between two notes of the log, and just before one
def test_nan_keeps_the_last_good_weights(demo, monkeypatch, capsys, spoil_at):
    """A step whose update spoils the weights: the run says where the loss was lost, and goes back."""
    step, steps = demo.optim.AdamW.step, []

    def spoiling(self):
        step(self)
        steps.append(1)
        if len(steps) == spoil_at:
            self.param_groups[0]["params"][0].data[...] = np.nan

    monkeypatch.setattr(demo.optim.AdamW, "step", spoiling)
    assert demo.main(["--text", "text.txt", "--out", "run"]) == 1
    printed = capsys.readouterr()
    where = "loss is nan at step 11" if spoil_at == 10 else "held-out loss is nan after step 12"
    message = printed.err.splitlines()[-1]
    assert where in message and "back to the weights of step 6" in message
    model, table = demo.load(Path("run"))
    assert all(np.isfinite(here(array)).all() for array in model.state_dict().values())
    assert float(read_csv("run/log.csv")[-1]["val_loss"]) == pytest.approx(
        demo.evaluate(model, demo.encode(TEXT, table)[len(TEXT) * 9 // 10:], 16), rel=1e-6)


def refused(demo, capsys, *arguments):
    """The one line with which the demo refuses."""
    assert demo.main(list(arguments)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("char_lm: "), lines
    return lines[0]


@pytest.mark.parametrize("content, says", [
    (b"", "is empty"),
    (b"too short", "at least 170"),
    (TEXT[:160].encode(), "at least 170"),
    (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "no UTF-8 text"),
    (b"valid, but \0 binary" * 100, "no UTF-8 text"),
])
def test_text_that_cannot_be_learned(demo, capsys, content, says):
    Path("text.txt").write_bytes(content)
    assert says in refused(demo, capsys, "--text", "text.txt")


def test_shortest_text_that_can(demo):
    Path("text.txt").write_text(TEXT[:170], encoding="utf-8")
    assert demo.main(["--text", "text.txt", "--steps", "1"]) == 0


def test_byte_order_mark_is_no_character(demo):
    Path("text.txt").write_text(TEXT, encoding="utf-8-sig")
    assert demo.read_text("text.txt") == TEXT


def test_what_else_is_refused(demo, capsys):
    assert "cannot read missing.txt" in refused(demo, capsys, "--text", "missing.txt")
    assert "'é'" in refused(demo, capsys, "--text", "text.txt", "--prompt", "thé")
    assert "'cpu', 'cuda'" in refused(demo, capsys, "--text", "text.txt", "--device", "tpu")
    assert "cannot write to text.txt" in refused(demo, capsys, "--text", "text.txt", "--out", "text.txt")
    assert "give 1 or more" in refused(demo, capsys, "--text", "text.txt", "--steps", "0")
    assert "give 0 or more" in refused(demo, capsys, "--text", "text.txt", "--seed", "-1")
    assert "--out nowhere" in refused(demo, capsys, "--sample", "nowhere")
    assert "--out nowhere" in refused(demo, capsys, "--compare", "nowhere")
    demo.main(["--text", "text.txt", "--out", "run", "--steps", "1"])
    capsys.readouterr()
    assert "'é'" in refused(demo, capsys, "--sample", "run", "--prompt", "é")
    assert "run holds a model already" in refused(demo, capsys, "--text", "text.txt", "--out", "run")
    Path("run/model.safetensors").write_bytes(b"cut short")
    assert "model.safetensors" in refused(demo, capsys, "--sample", "run")


@pytest.mark.parametrize("content", [
    "", "\n", "step,train_loss,val_loss,rate,tokens_per_second,seconds\n", "step,val_loss\n0,1.5\n",
    "step,train_loss,val_loss,rate,tokens_per_second,seconds\n0,,1.5,,,0\n6,1.2",
    "step,train_loss,val_loss,rate,tokens_per_second,seconds\n0,,1.5,,,0,7\n",
    "step,train_loss,val_loss,rate,tokens_per_second,seconds\n0,,high,,,0\n", "a,b,c,d,e,f\n1,2,3,4,5,6\n",
    "\0\n", "x" * 200_000], ids=range(10))
def test_log_that_cannot_be_read(demo, capsys, content):
    Path("run").mkdir()
    Path("run/log.csv").write_text(content, encoding="utf-8")
    assert "train with --out run" in refused(demo, capsys, "--compare", "run")


def test_missing_library_is_named(demo, monkeypatch, capsys):
    demo.main(["--text", "text.txt", "--out", "run", "--steps", "1"])
    capsys.readouterr()
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    assert "pip install safetensors" in refused(demo, capsys, "--sample", "run")
    assert demo.main(["--text", "text.txt", "--out", "other"]) == 2
    assert "pip install safetensors" in capsys.readouterr().err.splitlines()[-1]
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert "pip install tqdm" in refused(demo, capsys, "--text", "text.txt")


def test_share_of_words(demo):
    assert demo.share_of_words("the cat, the cot! 12 __", TEXT) == 0.75
    assert demo.share_of_words("", TEXT) == demo.share_of_words("== _=__ a b == t", TEXT) == 0.0     # letters are no words


def test_default_text_is_whole(demo):
    from pydoc_data.topics import topics
    text = demo.read_text(None)
    assert len(text) > 400_000 and all(topic in text for topic in topics.values())


def test_pictures(demo, capsys):
    pytest.importorskip("matplotlib")
    for name in "ab":
        demo.main(["--text", "text.txt", "--out", name, "--steps", "4"])
        assert Path(name, "curve.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert demo.main(["--compare", "a", "b", "--out", "a"]) == 0
    assert Path("a/compare.png").stat().st_size > 10_000
    printed = capsys.readouterr().out
    assert "a " in printed and "b " in printed and "a/compare.png" in printed.replace("\\", "/")


def test_terminal_that_lacks_characters(demo, monkeypatch):
    Path("text.txt").write_text("déjà vu … " * 200, encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert demo.main(["--text", "text.txt", "--steps", "3"]) == 0


def test_runs_alone_as_a_script(tmp_path):
    paths = os.pathsep.join(filter(None, [str(DEMO.parents[1]), os.environ.get("PYTHONPATH")]))
    done = subprocess.run([sys.executable, "-W", "error", DEMO, "--prompt", "\x01"], capture_output=True, text=True,
                          encoding="utf-8", cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 2 and done.stderr.startswith("char_lm: the model never saw '\\x01'"), done.stderr
