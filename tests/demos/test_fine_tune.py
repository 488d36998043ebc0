"""What the fine-tuning demo trains on, keeps and prints, with tiny checkpoints that know a part of the text."""
import importlib.util
import json
import math
import re
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

import minitx as mt
from minitx import checkpoint, models, ops, optim

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("tqdm")
DEMOS = Path(__file__).parents[2] / "demos"
V, CONTEXT = 300, 16
ARGUMENTS = ["--text", "text.txt", "--context", str(CONTEXT), "--batch", "4", "--steps", "40", "--rate", "1e-3"]


def demo_module(name):
    spec = importlib.util.spec_from_file_location(f"{name}_demo", DEMOS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def help_text():
    from pydoc_data.topics import topics
    return "\n".join(topics[name] for name in ("if", "while", "for", "try", "with", "function", "class", "del", "import"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A GPT-2 that was trained on the first third of the text for a while, a LLaMA of random weights, and a BERT."""
    root, text, tokenizer = tmp_path_factory.mktemp("published"), help_text(), tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([text], vocab_size=V, show_progress=False, special_tokens=["<|endoftext|>"])
    ids = np.array(tokenizer.encode(text[:len(text) // 3]).ids)
    mt.manual_seed(1)
    gpt2 = models.GPT2(models.GPT2Config(V, 2 * CONTEXT, 32, 1, 2, eos_token_id=0, initializer_range=0.1))
    optimiser, rng = optim.AdamW(gpt2.parameters(), lr=1e-2), np.random.default_rng(0)
    for _ in range(150):
        window = ids[rng.integers(len(ids) - CONTEXT, size=(8, 1)) + np.arange(CONTEXT + 1)]
        loss = ops.cross_entropy(gpt2(window[:, :-1]), window[:, 1:])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for model in (gpt2,
                  models.Llama(models.LlamaConfig(V, 16, 24, 1, 2, 1, max_position_embeddings=2 * CONTEXT)),
                  models.BERT(models.BertConfig(V, 8, 1, 1, 8))):
        folder = root / model.config.model_type
        model.save_pretrained(folder)
        tokenizer.save(str(folder / "tokenizer.json"))
        tokenizer.enable_truncation(3)                                      # which must not cut the text: of LLaMA's, BERT's
    return root


@pytest.fixture
def demo(monkeypatch, tmp_path):
    """The demo as a module, in an empty folder that holds text.txt."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(help_text(), encoding="utf-8")
    return demo_module("fine_tune")


def table(printed):
    """{name: (loss, steps)} of the table at the end."""
    rows = re.findall(r"^(as published|tuned|from nothing) +([\d.]+) +(\d+) +[\d.]+$", printed.out, re.M)
    return {name: (float(loss), int(steps)) for name, loss, steps in rows}


def held_out(demo, folder):
    model = models.from_pretrained(folder)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return model, demo.encode(tokenizer, help_text(), model, CONTEXT)[1]


def test_gpt2_from_end_to_end(demo, folders, capsys):
    """Tuning helps, what was known before helps more than the budget can, and the table says the model's own loss; the
    folder that was written is the tuned model, and the writing demo opens it.
    """
    (folders / "gpt2" / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    assert demo.main([str(folders / "gpt2"), *ARGUMENTS, "--out", "new/tuned"]) == 0
    printed = capsys.readouterr()
    losses = {name: loss for name, (loss, _) in table(printed).items()}
    assert list(losses) == ["as published", "tuned", "from nothing"] and table(printed)["tuned"][1] == 40
    assert losses["tuned"] < losses["as published"] - 0.1 and losses["tuned"] < losses["from nothing"] - 0.3
    assert losses["from nothing"] < math.log(V) - 0.3                                       # it was trained, too
    assert all(f"--- {name} ---" in printed.out for name in losses) and printed.err.count("40/40") >= 2

    assert sorted(path.name for path in Path("new/tuned").iterdir()) == [
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    for name, folder in ("as published", folders / "gpt2"), ("tuned", Path("new/tuned")):
        model, ids = held_out(demo, folder)
        assert demo.evaluate(model, ids, CONTEXT, 4) == pytest.approx(losses[name], abs=6e-4)
    assert demo_module("generate").main(["new/tuned", "--tokens", "5", "--prompt", "The while"]) == 0
    assert capsys.readouterr().out.startswith("The while")


def test_transformers_opens_what_it_wrote(demo, folders, capsys):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    assert demo.main([str(folders / "gpt2"), *ARGUMENTS, "--steps", "2", "--out", "tuned"]) == 0
    model = models.from_pretrained("tuned")
    theirs = transformers.AutoModelForCausalLM.from_pretrained("tuned").eval()
    text = transformers.PreTrainedTokenizerFast(tokenizer_file="tuned/tokenizer.json")("The while statement")
    ids = np.array([text["input_ids"]])
    with torch.no_grad():
        expected = theirs(torch.tensor(ids)).logits.numpy()
    np.testing.assert_allclose(model(ids).numpy(), expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_llama(demo, folders, capsys):
    """On the default text, all of it, whatever its tokenizer.json says."""
    assert demo.main([str(folders / "llama"), "--context", "8", "--batch", "1", "--steps", "3"]) == 0
    printed = capsys.readouterr()
    assert list(table(printed)) == ["as published", "tuned", "from nothing"]
    numbers = re.match(r"([\d,]+) tokens to train on, ([\d,]+) held out; ", printed.out)
    train, held = (int(number.replace(",", "")) for number in numbers.groups())
    assert held == pytest.approx(train / 9, rel=1e-3) and train > 1e5


def test_what_is_trained_on(demo, folders, monkeypatch, capsys):
    """Both trainings have the same batches, at their rates, with dropout; the held-out tenth is in none, and looked at
    evenly.
    """
    seen, modes, rates = [], set(), []
    cross_entropy, cosine, forward = ops.cross_entropy, demo.schedule.warmup_cosine, models.GPT2.forward

    def noted(logits, targets, **options):
        seen.append((logits.requires_grad, targets.copy()))
        return cross_entropy(logits, targets, **options)

    def asked(model, *args, **options):
        y = forward(model, *args, **options)
        modes.add((model.training, y.requires_grad))
        return y

    monkeypatch.setattr(demo.ops, "cross_entropy", noted)
    monkeypatch.setattr(models.GPT2, "forward", asked)
    monkeypatch.setattr(demo.schedule, "warmup_cosine", lambda *args: rates.append(args[1]) or cosine(*args))
    monkeypatch.setattr(demo, "encode", lambda *args: (np.arange(200), np.arange(200, 300)))
    monkeypatch.setattr(demo, "WINDOWS", 3)
    assert demo.main([str(folders / "gpt2"), *ARGUMENTS, "--steps", "30"]) == 0
    assert rates == sorted(rates) and set(rates) == {1e-3, 1e-2} and modes == {(True, True), (False, False)}
    trained = [targets for training, targets in seen if training]
    assert len(trained) == 60 and all((a == b).all() for a, b in zip(trained[:30], trained[30:]))
    assert trained[0].shape == (4, CONTEXT) and (np.diff(trained[0]) == 1).all()
    together = np.unique(trained)
    assert together.min() < 20 and 180 < together.max() <= 199 and not (trained[0] == trained[1]).all()
    looked = [targets for training, targets in seen if not training]
    assert [rows[:, 0].tolist() for rows in looked] == [[201, 201 + 2 * CONTEXT, 201 + 4 * CONTEXT]] * 3


def test_the_mean_over_windows(demo, folders, monkeypatch):
    """However they are cut into batches, and without dropout."""
    model, ids = held_out(demo, folders / "gpt2")
    monkeypatch.setattr(demo, "WINDOWS", 7)
    losses = [demo.evaluate(model.train(), ids, CONTEXT, B) for B in (1, 3, 7, 100)]
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-5) and model.training


@pytest.mark.parametrize("stop_at, ended, done", [(13, ["as published"], 13), (55, ["as published", "tuned"], 15)])
def test_stopped_and_gone_on_with(demo, folders, monkeypatch, capsys, stop_at, ended, done):
    """Ctrl-C in the one training or the other, then the same line again: the run that was never stopped."""
    monkeypatch.setattr(demo, "WINDOWS", 8)
    cross_entropy, calls = ops.cross_entropy, []

    def interrupted(logits, *args):
        calls.extend([1] * logits.requires_grad)
        if len(calls) == stop_at and logits.requires_grad:
            signal.raise_signal(signal.SIGINT)
        return cross_entropy(logits, *args)

    def run(file):
        assert demo.main([str(folders / "gpt2"), *ARGUMENTS, "--resume", f"{file}.state", "--out", file]) == 0
        return capsys.readouterr()

    whole = run("whole")
    with monkeypatch.context() as patch:
        patch.setattr(demo.ops, "cross_entropy", interrupted)
        first = run("parts")
    *before, (_, (_, steps)) = table(first).items()
    assert dict(before) == {name: table(whole)[name] for name in ended}
    assert steps == done and "stopped early" in first.err
    second = run("parts")
    assert table(second) == table(whole)
    assert f"goes on at step {done} of" in second.out
    for name in "tuned", "from-nothing":
        parts, uncut = (checkpoint.load(f"{file}-{name}.state") for file in ("parts", "whole"))
        assert all(np.array_equal(array, uncut[key]) for key, array in parts.items())
    assert Path("parts/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()
    assert table(run("parts")) == table(whole)                                              # nothing is left to train


def test_stopped_without_a_state(demo, folders, monkeypatch, capsys):
    """It says and keeps what was learned so far."""
    train = demo.optim.clip_grad_norm
    monkeypatch.setattr(demo.optim, "clip_grad_norm", lambda *args: (signal.raise_signal(signal.SIGINT), train(*args))[1])
    assert demo.main([str(folders / "gpt2"), *ARGUMENTS, "--out", "tuned"]) == 0
    printed = capsys.readouterr()
    assert list(table(printed)) == ["as published", "tuned"] and table(printed)["tuned"][1] == 1
    assert "stopped early" in printed.err and Path("tuned/model.safetensors").exists()
    monkeypatch.setattr(demo, "read_text", lambda file: signal.raise_signal(signal.SIGINT))
    assert demo.main([str(folders / "gpt2")]) == 130


@pytest.mark.parametrize("family, arguments, says", [
    ("missing", [], "there is no such folder"),
    ("bert", [], "holds a bert model"),
    ("gpt2", ["--steps", "0"], "give 1 or more"),
    ("gpt2", ["--batch", "0"], "give 1 or more"),
    ("gpt2", ["--context", "0"], "give 1 or more"),
    ("gpt2", ["--context", "33"], "--context 33 is more than the 32 tokens"),
    ("gpt2", ["--rate", "0"], "a number above 0"),
    ("gpt2", ["--rate", "nan"], "a number above 0"),
    ("gpt2", ["--rate", "1e30"], "give a smaller --rate"),
    ("gpt2", ["--seed", "-1"], "give 0 or more"),
    ("gpt2", ["--device", "tpu"], "'cpu', 'cuda'"),
    ("gpt2", ["--text", "missing.txt"], "cannot read missing.txt"),
    ("gpt2", ["--text", "picture.png"], "no UTF-8 text"),
    ("gpt2", ["--text", "short.txt", "--context", "9"], "at least 100,"),
    ("gpt2", ["--text", "empty.txt"], "has 0 tokens"),
    ("gpt2", ["--out", "full"], "full holds a model already"),
    ("gpt2", ["--out", "full", "--resume", "new.state"], "full holds a model already"),
    ("gpt2", ["--resume", "."], "--resume . is a folder: give it the name of a file"),
    ("gpt2", ["--out", "text.txt/new"], "cannot write to"),
    ("gpt2", ["--resume", "text.txt/new"], "nothing is kept"),
])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")                                       # of what a rate of 1e30 makes
def test_refused_in_one_line(demo, folders, capsys, family, arguments, says):
    Path("short.txt").write_text("xyz " * 10, encoding="utf-8")
    Path("empty.txt").touch()
    Path("picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    shutil.copytree(folders / "gpt2", "full")
    assert demo.main([str(folders / family), *ARGUMENTS, *arguments]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("fine_tune: ") and says in line


def test_the_published_folder_is_not_written_over(demo, folders, capsys):
    shutil.copytree(folders / "gpt2", "mine")
    before = Path("mine/model.safetensors").read_bytes()
    assert demo.main(["mine", *ARGUMENTS, "--out", "mine", "--resume", "state"]) == 2
    assert "holds a model already" in capsys.readouterr().err and Path("mine/model.safetensors").read_bytes() == before


@pytest.mark.parametrize("name, content, says", [
    ("tokenizer.json", None, "tokenizer.json: not there"),
    ("tokenizer.json", "{}", "tokenizer.json: no tokenizer"),
    ("config.json", None, "config.json"),
    ("model.safetensors", None, "neither model.safetensors nor"),
])
def test_a_folder_that_lacks_something(demo, folders, capsys, name, content, says):
    shutil.copytree(folders / "gpt2", "folder")
    file = Path("folder", name)
    file.unlink() if content is None else file.write_text(content, encoding="utf-8")
    assert demo.main(["folder", *ARGUMENTS]) == 2
    line, = capsys.readouterr().err.splitlines()
    assert says in line


def test_a_tokenizer_of_another_model(demo, folders, capsys):
    shutil.copytree(folders / "gpt2", "folder")
    written = json.loads(Path("folder/tokenizer.json").read_text(encoding="utf-8"))
    written["model"]["vocab"]["w"] = V
    Path("folder/tokenizer.json").write_text(json.dumps(written), encoding="utf-8")
    assert demo.main(["folder", *ARGUMENTS]) == 2
    assert f"gives id {V}, the model has {V}" in capsys.readouterr().err


@pytest.mark.parametrize("library", ["tokenizers", "tqdm", "safetensors"])
def test_missing_library_is_named(demo, folders, monkeypatch, capsys, library):
    monkeypatch.setitem(sys.modules, library, None)
    assert demo.main([str(folders / "gpt2"), *ARGUMENTS]) == 2
    assert f"pip install {library}" in capsys.readouterr().err
