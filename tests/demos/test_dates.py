"""What the dates demo learns from and is measured by, and a run small enough for a test."""
import calendar
import datetime
import importlib.util
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

import minitx as mt

pytest.importorskip("babel")
DEMO = Path(__file__).parents[2] / "demos" / "dates.py"
DAYS = [datetime.date(year, month, 1 + (5 * month + year) % 28) for year in range(1900, 2100, 7) for month in range(1, 13)]


@pytest.fixture
def demo(monkeypatch):
    """The demo as a module, with a tiny model."""
    spec = importlib.util.spec_from_file_location("dates", DEMO)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "MODEL", module.MODEL | dict(d_model=16, d_ff=16, num_encoder_layers=1, num_decoder_layers=1))
    for name, value in dict(STEPS=10, BATCH=8, SHOWN=3).items():
        monkeypatch.setattr(module, name, value)
    return module


def tiny(demo, table, **options):
    config = demo.models.Seq2SeqConfig(len(table) + 1, len(demo.ISO) + 2, **demo.MODEL | options)
    return demo.models.Seq2Seq(config)


def test_every_text_means_one_date(demo):
    """In all languages and forms together: no calendar but ours, nothing ambiguous, no unknown character."""
    means, table = {}, demo.alphabet()
    for pair in demo.PAIRS:
        for day in DAYS:
            text = demo.written(day, pair)
            assert means.setdefault(text, day) == day, (text, pair)
            assert set(text) <= table.keys() and len(text) <= demo.MODEL["max_len"]
            assert str(day.year) in text
    assert len(demo.LANGUAGES) >= 12 and set(demo.UNTRAINED) < set(demo.PAIRS)


def test_split_dates(demo):
    known, held_out = demo.split_dates(np.random.default_rng(0))
    years = range(1900, 2100)
    assert len(known) + len(held_out) == len({*known, *held_out}) == sum(365 + calendar.isleap(year) for year in years)
    assert {day.year for day in held_out} == set(years) and len(held_out) == 7305


def test_batches_hold_nothing_back_but_the_untrained_pairs(demo, monkeypatch):
    """Each answer is its text's date, and batches of like length make little padding."""
    written, drawn = demo.written, {}

    def spied(date, pair):
        text = written(date, pair)
        drawn.setdefault(pair, {})[text] = date
        return text

    table, symbols = demo.alphabet(), [*demo.ISO]
    monkeypatch.setattr(demo, "written", spied)
    rng = np.random.default_rng(0)
    padding, characters = 0, [None, *table]
    for texts, answers in (batch for _ in range(6) for batch in demo.batches(DAYS, rng)):
        ids, answers = demo.encode(texts, table), np.array(answers)
        assert ids.shape[0] == 8 and answers.shape == (8, 11) and (answers[:, -1] == demo.END).all()
        for row, answer in zip(ids, answers):
            text = "".join(characters[i] for i in row if i)
            date = datetime.date.fromisoformat("".join(symbols[i] for i in answer[:-1]))
            assert any(texts.get(text) == date for texts in drawn.values())
        padding += (ids == 0).sum() / ids.size
    assert set(drawn) == set(demo.PAIRS) - set(demo.UNTRAINED)
    assert 0 < padding / 48 < 0.15


@pytest.mark.parametrize("pieces", [2, 3, 5])
def test_accumulated_gradients_are_those_of_the_whole_batch(demo, pieces):
    """Pieces of unequal size too, which a mean of means would weigh wrongly."""
    table = demo.alphabet()
    model = tiny(demo, table, dropout=0.0).to(dtype=np.float64)
    ids, answers = demo.encode([demo.written(day, ("en", "full")) for day in DAYS[:5]], table), demo.targets(DAYS[:5])
    loss = demo.add_gradients(model, ids, answers)
    whole = [p.grad.copy() for p in model.parameters()]
    model.zero_grad()
    assert demo.add_gradients(model, ids, answers, pieces) == pytest.approx(loss, rel=1e-12)
    for p, g in zip(model.parameters(), whole):
        np.testing.assert_allclose(p.grad, g, rtol=0, atol=1e-12 * max(1, abs(g).max()))


def test_learns_what_it_is_given(demo, monkeypatch):
    """A handful of dates by heart: texts, answers, masks and decoding fit together."""
    monkeypatch.setattr(demo, "STEPS", 150)
    monkeypatch.setattr(demo, "WARMUP", 20)
    monkeypatch.setattr(demo, "UNTRAINED", [pair for pair in demo.PAIRS if pair[0] != "de"])
    table = demo.alphabet()
    model = tiny(demo, table, d_model=32, d_ff=32, dropout=0.0)
    demo.train(model, DAYS[:4], table, mt.backend.generator(), 2)
    texts = [demo.written(day, ("de", form)) for day in DAYS[:4] for form in demo.FORMS]
    assert demo.read(model, texts, table) == [day.isoformat() for day in DAYS[:4] for _ in demo.FORMS]
    text = demo.written(DAYS[0], ("de", "full"))
    first, *rows = demo.attention_map(model, text, table).splitlines()
    assert first == f"    {text}" and [row[:4] for row in rows] == [f"  {symbol} " for symbol in DAYS[0].isoformat()]
    assert all(len(row) == 4 + len(text) and set(row[4:]) <= set(demo.SHADES) for row in rows)


def test_scores(demo, monkeypatch):
    """Shares and mistakes of a reader that knows German alone."""
    def read(model, texts, table):
        return [day.isoformat() if text == demo.written(day, ("de", "full")) else "?" for text, day in zip(texts, DAYS)]

    monkeypatch.setattr(demo, "read", read)
    shares, mistakes = demo.scores(None, DAYS[:7], None)
    assert {pair for pair, share in shares.items() if share == 1} == {("de", "full")}
    assert sum(shares.values()) == 1 and len(mistakes) == 7 * (len(demo.PAIRS) - 1)


def test_run(demo, capsys):
    assert demo.main(["--seed", "3", "--accumulate", "3", "--read", "3. Mai 1998", "1998年5月3日"]) == 0
    printed = capsys.readouterr()
    assert "10/10" in printed.err
    lines = printed.out.splitlines()
    assert all(any(line.startswith(name) for line in lines) for name in demo.LANGUAGES.values())
    assert any(line.endswith("  3. Mai 1998") for line in lines)
    assert re.match(r"exact [\d.]+% of unseen dates, in the 49", lines[-2])


def test_ctrl_c_ends_the_training_only(demo, monkeypatch, capsys):
    gradients, steps = demo.add_gradients, []

    def interrupted(*args):
        steps.append(1)
        if len(steps) == 2:
            signal.raise_signal(signal.SIGINT)
        return gradients(*args)

    monkeypatch.setattr(demo, "add_gradients", interrupted)
    assert demo.main([]) == 0 and len(steps) == 2
    printed = capsys.readouterr()
    assert "stopped early" in printed.err and "exact" in printed.out.splitlines()[-2]
    del steps[1:]
    monkeypatch.setattr(demo, "split_dates", interrupted)               # before training
    assert demo.main([]) == 130


@pytest.mark.parametrize("arguments, says", [
    (["--device", "tpu"], "'cpu', 'cuda'"),
    (["--seed", "-1"], "--seed 0 or more"),
    (["--accumulate", "0"], "--accumulate 1 to 8"),
    (["--accumulate", "9"], "--accumulate 1 to 8"),
    (["--read", "3 mõi 1998"], "'õ'"),
    (["--read", ""], "length"),
    (["--read", "1" * 65], "length"),
])
def test_refused_in_one_line(demo, capsys, arguments, says):
    assert demo.main(arguments) == 2
    line, = capsys.readouterr().err.splitlines()
    assert line.startswith("dates: ") and says in line


@pytest.mark.parametrize("module, name", [("babel.dates", "babel"), ("tqdm", "tqdm")])
def test_missing_library_is_named(demo, monkeypatch, capsys, module, name):
    monkeypatch.setitem(sys.modules, module, None)
    assert demo.main([]) == 2
    line, = capsys.readouterr().err.splitlines()
    assert f"needs {name}" in line and "pip install babel tqdm" in line
