"""Every demo that trains: Ctrl-C in the middle, then the same line again, is the run that was never stopped, bit for bit."""
import json
import re
import signal
from pathlib import Path

import numpy as np
import pytest

import minitx as mt
from minitx import checkpoint, training

pytest.importorskip("safetensors")
LAYERS = dict(num_encoder_layers=1, num_decoder_layers=1)
DROPOUT = dict(embd_pdrop=0.1, attn_pdrop=0.1, resid_pdrop=0.1)

# demo: (arguments, what is made small, where it stops)
CASES = {
    "copy_task": ([], dict(OWN=dict(model=dict(d_model=8, num_heads=2, d_ff=16, dropout=0.1), batch=4, batches=3)), 17),
    "sort_digits": ([], dict(MODEL=dict(n_embd=12, n_layer=1), STEPS=40, BATCH=8), 23),
    "addition": ([], dict(MODEL=dict(n_embd=16, n_layer=1, **DROPOUT), STEPS=30, BATCH=8), 13),
    "dates": (["--accumulate", "2"], dict(MODEL=dict(d_model=16, d_ff=16, **LAYERS), STEPS=20, BATCH=8, SHOWN=2), 11),
    "masked_lm": (["--text", "text.txt"], dict(
        MODEL=dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, max_position_embeddings=12),
        STEPS=30, BATCH=4), 14),
    "vit_digits": (["--split", "3"], dict(MODEL=dict(hidden_size=16, num_hidden_layers=1), STEPS=20, BATCH=8), 9),
    "char_lm": (["--text", "text.txt"], dict(PRESETS=dict(small=dict(
        n_layer=1, n_head=2, n_embd=16, n_positions=16, initializer_range=0.02, dropout=0.1, batch=4, steps=40, rate=1e-2,
        threads=1)), PAGE=100, draw=lambda *args: None), 22),
}


@pytest.fixture
def run(load, monkeypatch, tmp_path, capsys):
    """run(name, file, stop_at): what the demo printed, its exit status; Ctrl-C in the middle of that call of a loss."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("The cat sat on the mat. The dog sat on the log.\n" * 40, encoding="utf-8")

    def run(name, folder_or_file, stop_at=None, *more):
        arguments, small, _ = CASES[name]
        demo, calls = load(name, small), []
        training_loss = demo.ops.cross_entropy

        def interrupted(logits, *args, **options):
            calls.append(1)
            if len(calls) == stop_at:
                signal.raise_signal(signal.SIGINT)
            return training_loss(logits, *args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(demo.ops, "cross_entropy", interrupted)
            status = demo.main([*arguments, *more, "--resume", folder_or_file])
        return status, capsys.readouterr()

    return run


def contents(file):
    """All that a state holds, times aside."""
    def timeless(value):
        if isinstance(value, dict):
            return {key: timeless(entry) for key, entry in value.items() if "second" not in key}
        return [timeless(entry) for entry in value] if isinstance(value, list) else value

    about = json.loads(checkpoint.metadata(file)["training"])
    return {name: array.tobytes() for name, array in checkpoint.load(file).items()}, timeless(about)


def state_file(name, resume):
    return {"vit_digits": Path(f"{resume}-3"), "char_lm": Path(resume, "training.safetensors")}.get(name, Path(resume))


def results(printed, name):
    """What was printed after the training, without times, the names of files and the count of ops."""
    mark = {"vit_digits": "split 3 ", "char_lm": "the last evaluation"}.get(name, "\n\n")
    return re.sub(r"\d+ s\b|: (whole|parts)$|^ops: .*", "", printed.out[printed.out.index(mark):], flags=re.M)


def epochs(printed):
    """The losses that are printed on the way."""
    return re.findall(r"^(epoch .*|step .* held-out .*)$", printed.out, re.M)


@pytest.mark.parametrize("name", CASES)
def test_stopped_and_gone_on_with(name, run):
    if name == "dates":
        pytest.importorskip("babel")
    stop_at = CASES[name][2]
    calls = 2 * stop_at if name == "dates" else stop_at                         # two pieces a batch
    if name == "copy_task":
        calls += (stop_at - 1) // 3                                             # the evaluation of each epoch
    if name == "char_lm":
        calls += (stop_at - 1) // 4 + 1
    status, whole = run(name, "whole")
    assert status == 0 and f"the state is kept in {state_file(name, 'whole')}" in whole.out

    status, first = run(name, "parts", calls)
    assert status == (130 if name == "vit_digits" else 0)
    assert training.progress(state_file(name, "parts"))["step"] == stop_at
    status, second = run(name, "parts")
    assert status == 0 and f"goes on at step {stop_at} of {state_file(name, 'parts')}" in second.out
    assert contents(state_file(name, "parts")) == contents(state_file(name, "whole"))
    assert results(second, name) == results(whole, name)
    told = epochs(first)[:-1] if name == "char_lm" else epochs(first)           # the line of where it stopped
    assert told + epochs(second) == epochs(whole)

    before = state_file(name, "parts").read_bytes()
    status, again = run(name, "parts")                                          # nothing is left to train
    assert status == 0 and results(again, name) == results(whole, name) and not epochs(again)
    assert state_file(name, "parts").read_bytes() == before
    if name == "char_lm":
        logs = [np.genfromtxt(f"{folder}/log.csv", delimiter=",", encoding="utf-8")[:, :4] for folder in ("parts", "whole")]
        assert np.array_equal(*logs, equal_nan=True)
        weights = [checkpoint.load(f"{folder}/model.safetensors") for folder in ("parts", "whole")]
        assert all(np.array_equal(array, weights[1][key]) for key, array in weights[0].items())


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_gone_on_from(name, run):
    """Other settings, another demo's state, weights alone, a place that cannot be written: one line, and nothing changed."""
    if name == "dates":
        pytest.importorskip("babel")
    file, model = state_file(name, "state"), mt.nn.Linear(2, 3)
    file.parent.mkdir(exist_ok=True)

    def refused(says, *arguments):
        before, held = sorted(Path().rglob("*")), file.read_bytes()
        status, printed = run(name, "state", None, *arguments)
        line = printed.err.splitlines()[-1]
        assert status == 2 and line.startswith(f"{name}: ") and says in line, printed
        assert sorted(Path().rglob("*")) == before and file.read_bytes() == held

    training.save(file, model, mt.optim.SGD(model.parameters(), lr=0.1), step=1, seconds=1.0, progress={},
                  settings=dict(demo="another"))
    refused("holds another training, whose demo is another")
    checkpoint.save(file, model.state_dict())
    refused("holds no state of a training")
    file.unlink()
    assert run(name, "state", 3)[0] in (0, 130)
    refused("whose seed is 0, not 7; give another file", "--seed", "7")
    status, printed = run(name, "text.txt/state")
    assert status == 2 and "nothing is kept" in printed.err.splitlines()[-1]
