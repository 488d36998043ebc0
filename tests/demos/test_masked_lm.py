"""What the masked-word demo hides, scores and fills, and a run small enough for a test."""
import importlib.util
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

import minitx as mt

DEMO = Path(__file__).parents[2] / "demos" / "masked_lm.py"
TEXT = "The cat sat on the mat. The dog sat on the log.\n" * 40


@pytest.fixture
def demo(monkeypatch, tmp_path):
    """The demo as a module, with a tiny model, in an empty folder that holds text.txt."""
    spec = importlib.util.spec_from_file_location("masked_lm", DEMO)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "MODEL", module.MODEL | dict(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, max_position_embeddings=12, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, initializer_range=0.2))
    for name, value in dict(STEPS=200, BATCH=8, RATE=1e-2).items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT, encoding="utf-8")
    return module


def tiny(demo, V):
    return demo.Guesser(demo.models.BertConfig(vocab_size=V, **demo.MODEL))


def test_run(demo, capsys):
    assert demo.main(["--text", "text.txt", "--seed", "1", "--fill", "the cat ____ on ____ mat."]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert "200/200" in printed.err and "560 words" in lines[0] and "8 known ones" in lines[0]
    at = lines.index("the cat ____ on ____ mat.")
    assert lines[at + 1].split()[0] == "sat" and lines[at + 2].split()[0] == "the" and not lines[at + 3]
    assert all(len(re.findall(r"\S+ \d+%", line)) == 5 for line in lines[at + 1:at + 3])
    assert float(re.match(r"better than the unigram guess by ([\d.]+)$", lines[-2])[1]) > 3


def test_words(demo):
    assert demo.split_words("The __init__ of x_1 == ____, or ____.") == [
        "the", "__init__", "of", "x_1", "=", "=", "[MASK]", ",", "or", "[MASK]", "."]
    table = demo.vocabulary(demo.split_words("a a a b b c c c ____ ____ ____"))
    assert table == {"[UNK]": 0, "[MASK]": 1, "a": 2, "c": 3}
    assert demo.encode(["c", "b", "[MASK]", "new"], table).tolist() == [3, 0, 1, 0]


def test_default_text(demo):
    from pydoc_data.topics import topics
    assert all(topic in demo.read_text(None) for topic in topics.values())


def test_hide(demo):
    """15 % of the known words; of those 80 % masked, 10 % any word, 10 % as they were. What is unknown is never hidden."""
    ids = np.random.default_rng(1).integers(0, 1000, size=(200, 500))
    ids[ids == 1] = 2
    seen, hidden = demo.hide(ids, 1000, np.random.default_rng(0))
    assert hidden.sum() / (ids != 0).sum() == pytest.approx(0.15, abs=0.005)
    assert not hidden[ids == 0].any() and (seen[~hidden] == ids[~hidden]).all()
    masked, same = (seen == 1)[hidden].mean(), (seen == ids)[hidden].mean()
    assert masked == pytest.approx(0.8, abs=0.02) and same == pytest.approx(0.1, abs=0.02)
    others = seen[hidden & (seen != 1) & (seen != ids)]
    assert len(others) / hidden.sum() == pytest.approx(0.1, abs=0.02) and others.min() < 10 and others.max() > 990


def test_guesser_is_bert_at_the_hidden_words(demo):
    """The same logits as the whole model's there, in the same order; its embeddings stay tied."""
    mt.manual_seed(5)
    ours = tiny(demo, 20)
    mt.manual_seed(5)
    bert = demo.models.BERT(demo.models.BertConfig(vocab_size=20, **demo.MODEL))
    rng = np.random.default_rng(0)
    ids, hidden = rng.integers(20, size=(3, 12)), rng.random((3, 12)) < 0.3
    np.testing.assert_allclose(ours(ids, hidden).numpy(), bert(ids).numpy()[hidden], rtol=0, atol=2e-5)
    assert sum(p.size for p in ours.parameters()) == sum(p.size for p in bert.parameters())


def test_perplexities(demo, monkeypatch):
    """Every known word of a whole window is masked once, always with the same others; unknown ones are seen, not scored."""
    words = np.random.default_rng(0).integers(2, 9, size=100)
    words[::10] = 0
    counts, asked = np.array([50, 0, *range(1, 8)]), []

    class Uniform(demo.nn.Module):
        def forward(self, ids, hidden):
            assert (ids[hidden] == 1).all() and (hidden == (ids == 1)).all()
            asked.append(hidden)
            return np.zeros((hidden.sum(), 9), np.float32)

    ours, unigram = demo.perplexities(Uniform(), words, counts)
    scored = words[:96][words[:96] > 0]
    assert sum(asked).max() == 1 and (sum(asked) == (words[:96] > 0).reshape(8, 12)).all() and len(asked) == 7
    assert ours == pytest.approx(9, rel=1e-6)
    assert unigram == pytest.approx(np.exp(-np.log(counts[scored] / 28).mean()))
    first, asked[:] = list(asked), []
    demo.perplexities(Uniform(), words, counts)
    assert all((a == b).all() for a, b in zip(first, asked))


def test_dropout_is_off_when_it_guesses(demo, monkeypatch):
    monkeypatch.setitem(demo.MODEL, "hidden_dropout_prob", 0.5)
    model, words, table = tiny(demo, 9), np.arange(48) % 7 + 2, {"[UNK]": 0, "[MASK]": 1, **dict(zip("abcdefg", range(2, 9)))}
    assert demo.perplexities(model, words, np.ones(9)) == demo.perplexities(model, words, np.ones(9))
    assert demo.fill(model, "a ____ c", table) == demo.fill(model, "a ____ c", table) and model.training


def test_ctrl_c_ends_the_training_only(demo, monkeypatch, capsys):
    hide, calls = demo.hide, []

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return hide(*args)

    monkeypatch.setattr(demo, "hide", interrupted)
    assert demo.main(["--text", "text.txt"]) == 0 and len(calls) == 3
    printed = capsys.readouterr()
    assert "stopped early" in printed.err and "better than" in printed.out.splitlines()[-2]
    calls[:] = [1, 1]
    monkeypatch.setattr(demo, "read_text", interrupted)                 # before training
    assert demo.main(["--text", "text.txt"]) == 130


@pytest.mark.parametrize("arguments, says", [
    (["--device", "tpu"], "'cpu', 'cuda'"),
    (["--seed", "-1"], "give 0 or more"),
    (["--text", "missing.txt"], "cannot read missing.txt"),
    (["--text", "short.txt"], "at least 120"),
    (["--text", "picture.png"], "no UTF-8 text"),
    (["--fill", "no blank here"], "with a blank, ____"),
    (["--fill", "____ ok", "____" + " so long" * 9], "at most 12 words"),
])
def test_refused_in_one_line(demo, capsys, arguments, says):
    Path("short.txt").write_text(TEXT[:330], encoding="utf-8")
    Path("picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    assert demo.main(arguments) == 2
    line, = capsys.readouterr().err.splitlines()
    assert line.startswith("masked_lm: ") and says in line


def test_missing_library_is_named(demo, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert demo.main(["--text", "text.txt"]) == 2
    assert "pip install tqdm" in capsys.readouterr().err
