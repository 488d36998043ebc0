"""What the adding model is given and asked, and a run small enough for a test."""
import importlib.util
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

DEMO = Path(__file__).parents[2] / "demos" / "addition.py"


@pytest.fixture
def demo(monkeypatch):
    """The demo as a module, with a small model and few steps."""
    spec = importlib.util.spec_from_file_location("addition", DEMO)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "MODEL", module.MODEL | dict(n_layer=1, n_embd=8))
    monkeypatch.setattr(module, "STEPS", 25)
    return module


def test_all_sums(demo):
    """Every pair in one of the two parts; what is held out is held out in both orders."""
    known, held_out = ({tuple(pair) for pair in part.tolist()} for part in demo.all_sums(np.random.default_rng(0)))
    assert len(known) == 9000 and len(held_out) == 1000 and len(known | held_out) == 10_000
    assert {(b, a) for a, b in held_out} == held_out


def test_digits(demo):
    assert demo.digits(np.array([[85, 17], [3, 4]])).tolist() == [[8, 5, 1, 7, 2, 0, 1], [0, 3, 0, 4, 7, 0, 0]]


def test_add_reads_what_was_written(demo, monkeypatch):
    pairs = np.concatenate(demo.all_sums(np.random.default_rng(0)))

    def adds(model, questions, n):
        assert (questions.shape[1], n) == (4, 3)
        return demo.digits(questions @ [[10, 0], [1, 0], [0, 10], [0, 1]])[:, 4:]

    monkeypatch.setattr(demo.generate, "generate", adds)
    assert (demo.add(None, pairs) == pairs.sum(axis=1)).all()


def test_loss_on_the_sum_alone(demo, monkeypatch):
    given = []

    def stops(logits, targets, ignore_index):
        given.append((targets, ignore_index))
        raise KeyboardInterrupt

    monkeypatch.setattr(demo.ops, "cross_entropy", stops)
    model = demo.models.GPT2(demo.models.GPT2Config(**demo.MODEL))
    with pytest.raises(KeyboardInterrupt):
        demo.train(model, np.array([[85, 17]]), np.random.default_rng(0), demo.progress_bar())
    targets, ignore_index = given[0]
    assert (targets == [ignore_index] * 3 + [2, 0, 1]).all() and targets.shape == (demo.BATCH, 6)


def test_show(demo, capsys):
    demo.show(np.array([[85, 17], [3, 4]]), np.array([102, 8]))
    assert capsys.readouterr().out == "85 + 17 = 102  right\n 3 +  4 =   8  WRONG, it is 7\n"


def test_run(demo, capsys):
    assert demo.main(["--seed", "1"]) == 0
    printed = capsys.readouterr()
    assert "25/25" in printed.err and "9000 sums to learn from, 1000 held out" in printed.out
    added = re.fullmatch(r"added (\d+) of 1000 pairs never shown", printed.out.splitlines()[-2])
    wrong = re.search(r"^wrong: (\d+)$", printed.out, re.M)
    assert int(added[1]) + int(wrong[1]) == 1000
    assert len(re.findall("WRONG, it is", printed.out.partition("wrong: ")[2])) == 20


def test_ctrl_c(demo, monkeypatch, capsys):
    """The first lets a step end and then the training, the second ends the run."""
    cross_entropy, steps = demo.ops.cross_entropy, []

    def presses(*args, **options):
        steps.append(1)
        signal.raise_signal(signal.SIGINT)
        return cross_entropy(*args, **options)

    def stops(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo.ops, "cross_entropy", presses)
    assert demo.main([]) == 0 and len(steps) == 1
    printed = capsys.readouterr()
    assert "stopped early" in printed.err and " of 1000 pairs" in printed.out
    monkeypatch.setattr(demo, "add", stops)
    assert demo.main([]) == 130


@pytest.mark.parametrize("arguments, says", [
    (["--seed", "-1"], "give 0 or more"), (["--device", "tpu"], "'cpu', 'cuda'"), ([], "pip install tqdm")])
def test_refused(demo, monkeypatch, capsys, arguments, says):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert demo.main(arguments) == 2
    message = capsys.readouterr().err
    assert message.startswith("addition: ") and says in message and message.count("\n") == 1
