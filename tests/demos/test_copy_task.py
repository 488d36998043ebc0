"""What the copying model is given, that what it is asked was never shown, and a run small enough for a test."""
import importlib.util
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

import minitx as mt

DEMO = Path(__file__).parents[2] / "demos" / "copy_task.py"


@pytest.fixture
def demo(monkeypatch):
    """The demo as a module, with two small tasks."""
    spec = importlib.util.spec_from_file_location("copy_task", DEMO)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    small = dict(model=dict(d_model=8, num_heads=2, d_ff=16, dropout=0.1), batch=4, batches=2)
    monkeypatch.setattr(module, "OWN", module.OWN | small)
    monkeypatch.setattr(module, "PUBLISHED", module.PUBLISHED | small)
    return module


def test_draw(demo):
    ids, mask, decoder_ids, targets = demo.draw(np.random.default_rng(0), 200, demo.OWN)
    lengths = mask.sum(axis=1) - 1                                              # without END
    assert set(lengths) == set(range(4, 13)) and ids.shape == (200, 13)
    for row, n in zip(ids, lengths):
        assert all(1 <= symbol <= 10 for symbol in row[:n]) and row[n] == demo.END and not row[n + 1:].any()
    assert (targets == ids).all()
    assert (decoder_ids[:, 0] == demo.BEGIN).all() and (decoder_ids[:, 1:] == ids[:, :-1]).all()


def test_draw_published(demo):
    ids, mask, decoder_ids, targets = demo.draw(np.random.default_rng(0), 200, demo.PUBLISHED)
    assert ids.shape == (200, 10) and mask.all() and (ids[:, 0] == 1).all() and set(ids.flat) == set(range(1, 11))
    assert (decoder_ids == ids[:, :-1]).all() and (targets == ids[:, 1:]).all()


def test_text(demo):
    assert demo.text(np.array([1, 2, 10, demo.END, 3])) == "abj"
    assert demo.text(np.array([1, demo.PAD, demo.BEGIN])) == "a.>"


def test_only_what_was_never_shown(demo):
    task = demo.OWN | dict(shortest=1, longest=1)
    model = mt.models.Seq2Seq(mt.models.Seq2SeqConfig(13, 13, 8, 2, 1, 1, 16))
    pairs = demo.test(model, task, set("abdefghij"), 100, 0)
    assert len(pairs) == 100 and {read for read, _ in pairs} == {"c"}


@pytest.mark.parametrize("arguments, shown", [([], 80), (["--published"], 80)])
def test_run(demo, capsys, arguments, shown):
    assert demo.main([*arguments, "--seed", "1"]) == 0
    printed = capsys.readouterr()
    assert "20/20" in printed.err                                               # the bar
    lines = printed.out.splitlines()
    losses = [float(re.search(r"loss (\d+\.\d+)", line)[1]) for line in lines if line.startswith("epoch")]
    assert len(losses) == 10 and losses[0] == pytest.approx(np.log(12), abs=0.6)
    assert ("published 1.96" in printed.out) == ("--published" in arguments)
    assert re.fullmatch(rf"trained on {shown} sequences in \d+ s; copied \d+ of 1000 others exactly", lines[-2])


def test_ctrl_c(demo, monkeypatch, capsys):
    """The first lets a step end and then the training, the second ends the run."""
    cross_entropy, calls = demo.ops.cross_entropy, []

    def interrupted(*args, **options):
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return cross_entropy(*args, **options)

    def stops(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo.ops, "cross_entropy", interrupted)
    assert demo.main([]) == 0
    printed = capsys.readouterr()
    assert "stopped early" in printed.err and "trained on 8 sequences" in printed.out
    monkeypatch.setattr(demo, "test", stops)
    assert demo.main([]) == 130


@pytest.mark.parametrize("arguments, says", [
    (["--seed", "-1"], "give 0 or more"), (["--device", "tpu"], "'cpu', 'cuda'"), ([], "pip install tqdm")])
def test_refused(demo, monkeypatch, capsys, arguments, says):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert demo.main(arguments) == 2
    message = capsys.readouterr().err
    assert message.startswith("copy_task: ") and says in message and message.count("\n") == 1
