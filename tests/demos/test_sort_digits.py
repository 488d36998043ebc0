"""Sequences short enough that a test learns to sort them, and what the sorting model is given and asked."""
import importlib.util
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

DEMO = Path(__file__).parents[2] / "demos" / "sort_digits.py"


@pytest.fixture
def demo():
    """The demo as a module."""
    spec = importlib.util.spec_from_file_location("sort_digits", DEMO)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def small(demo, monkeypatch):
    """The same for three digits and a small model."""
    for name, value in dict(LENGTH=3, STEPS=150, RATE=1e-2).items():
        monkeypatch.setattr(demo, name, value)
    monkeypatch.setattr(demo, "MODEL", demo.MODEL | dict(n_layer=1, n_embd=12, n_positions=5, initializer_range=0.3))
    return demo


def test_all_inputs(demo):
    known, held_out = demo.all_inputs(np.random.default_rng(0))
    assert known.shape == (557, 6) and held_out.shape == (172, 6)
    assert set(map(tuple, np.sort(held_out))) <= set(map(tuple, np.sort(known)))    # every output was practised
    assert len({tuple(row) for row in (*known, *held_out)}) == 3 ** 6       # every one once: nothing is in both parts
    assert (known != demo.all_inputs(np.random.default_rng(1))[0]).any()


def test_right(demo):
    inputs = np.array([[2, 0, 1, 1, 0, 2], [0, 0, 0, 0, 0, 1]])
    assert demo.right(inputs, np.array([[0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 1, 0]])).tolist() == [True, False]


def test_loss_on_the_sorted_part_alone(demo, monkeypatch):
    """The last digit of the input foretells the first one of the output; what stands before foretells nothing."""
    given = []

    def stops(logits, targets, ignore_index):
        given.append((targets, ignore_index))
        raise KeyboardInterrupt

    monkeypatch.setattr(demo.ops, "cross_entropy", stops)
    monkeypatch.setattr(demo, "STEPS", 21)
    model = demo.models.GPT2(demo.models.GPT2Config(**demo.MODEL))
    with pytest.raises(KeyboardInterrupt):
        demo.train(model, np.array([[2, 0, 1, 1, 0, 2]]), np.random.default_rng(0), demo.progress_bar())
    targets, ignore_index = given[0]
    assert (targets == [ignore_index] * 5 + [0, 0, 1, 1, 2, 2]).all() and targets.shape == (demo.BATCH, 11)


def test_run(small, capsys):
    assert small.main(["--seed", "2"]) == 0
    printed = capsys.readouterr()
    assert "150/150" in printed.err and "right" in printed.out and "26 inputs to learn from, 1 held out" in printed.out
    known = re.search(r"of all 27 inputs (\d+) are sorted right", printed.out)
    assert int(known[1]) >= 20, printed.out
    assert re.fullmatch(r"sorted \d+ of 5000 draws of those never shown", printed.out.splitlines()[-2])


def test_ctrl_c(small, monkeypatch, capsys):
    """The first lets a step end and then the training, the second ends the run."""
    cross_entropy, steps = small.ops.cross_entropy, []

    def presses(*args, **options):
        steps.append(1)
        signal.raise_signal(signal.SIGINT)
        return cross_entropy(*args, **options)

    def stops(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(small.ops, "cross_entropy", presses)
    assert small.main([]) == 0 and len(steps) == 1
    printed = capsys.readouterr()
    assert "stopped early" in printed.err and " of 5000 " in printed.out
    monkeypatch.setattr(small, "sort", stops)
    assert small.main([]) == 130


@pytest.mark.parametrize("arguments, says", [
    (["--seed", "-1"], "give 0 or more"), (["--device", "tpu"], "'cpu', 'cuda'"), ([], "pip install tqdm")])
def test_refused(demo, monkeypatch, capsys, arguments, says):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert demo.main(arguments) == 2
    message = capsys.readouterr().err
    assert message.startswith("sort_digits: ") and says in message and message.count("\n") == 1
