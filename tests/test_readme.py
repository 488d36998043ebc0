"""What the README says is so: its Python blocks, the rows of its table, its fault, its names of files."""
import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import double
import numpy as np
import pytest

import minitx as mt

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def blocks(language):
    return [text for kind, text in BLOCKS if kind == language]


@pytest.mark.parametrize("code", [
    pytest.param(code, id=code.strip().splitlines()[-1][:40],
                 marks=pytest.mark.host("twins of the CPU") if "# Fused" in code else ()) for code in blocks("python")])
def test_python_blocks(code, tmp_path, monkeypatch, capsys):
    """Each block runs by itself, and prints what its comments say."""
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out.splitlines() == re.findall(r"^ *print\(.*\) +# (.*)$", code, re.MULTILINE)


def section(title):
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows():
    """(where from, there, here): the cells of the table, of those that hold code the code."""
    for line in section("Coming from elsewhere").splitlines():
        cells = [re.match(r"`([^`]+)`|(.*)", cell.strip()) for cell in line.split("|")[1:-1]]
        if len(cells) == 3 and cells[2][1]:
            yield cells[0][0], cells[1][1], cells[2][1]


def arrays():
    """What the code in the table speaks of."""
    rng = np.random.default_rng(0)
    shapes = dict(x=(2, 5, 12), q=(2, 4, 5, 3), k=(2, 4, 5, 3), v=(2, 4, 5, 3), weight=(7, 12), scores=(5, 5))
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()} | dict(
        ids=rng.integers(7, size=(2, 5)), targets=rng.integers(12, size=(2, 5)),
        blocked=np.triu(np.ones((5, 5), dtype=bool), 1), attention_mask=np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]))


def namespace(library):
    """Those arrays as the library's tensors; x and weight have a gradient, params is [weight]."""
    made = arrays()
    if library is not np:
        for name, array in made.items():
            if array.dtype == np.float32:
                made[name] = library.tensor(array, requires_grad=True)
            elif library is not mt:
                made[name] = library.tensor(array)
        (made["x"] * made["x"]).sum().backward()
        made["weight"].grad = made["weight"].data * 2
        made["params"] = [made["weight"]]
    if library is mt:
        config = mt.models.GPT2Config(vocab_size=7, n_positions=5, n_embd=8, n_layer=1, n_head=2)
        return made | dict(mt=mt, np=np, nn=mt.nn, ops=mt.ops, optim=mt.optim, models=mt.models, config=config,
                           generate=mt.generate, gpt2=mt.models.GPT2(config), attention=mt.nn.MultiHeadAttention(12, 4))
    return made | dict(np=np) if library is np else made | dict(torch=library, F=library.nn.functional)


def outcome(code, names):
    """What an expression gives, as nested lists of arrays; of an optimiser, what three steps make of the weight."""
    result = eval(code, names)
    if hasattr(result, "step"):
        for _ in range(3):
            getattr(result, "optimizer", result).step()
            if hasattr(result, "optimizer"):
                result.step()                       # a scheduler is stepped after its optimiser
        result = names["weight"]
    if isinstance(result, (tuple, list)):
        return [plain(part) for part in result]
    return plain(result)


def plain(result):
    return np.asarray(double.here(result.detach() if hasattr(result, "detach") else result))


def test_the_table_has_its_rows():
    assert {"PyTorch", "NumPy", "Hugging Face", "the tutorial"} == {row[0] for row in rows()}
    assert len(list(rows())) >= 24


@pytest.mark.parametrize("origin, there, here", [
    pytest.param(*row, marks=pytest.mark.host("NumPy's functions on a Tensor's own array") if "np." in row[2] else ())
    for row in rows()], ids=lambda cell: cell)
def test_row(origin, there, here):
    """The code on the right runs, and gives what the code in the middle gives."""
    ours = outcome(here, namespace(mt))
    if there is None:
        return
    theirs = outcome(there, namespace(np if origin == "NumPy" else pytest.importorskip("torch")))
    if isinstance(ours, list):
        assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs) if isinstance(ours, list) else [(ours, theirs)]:
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_break_it(tmp_path):
    """The sign that the README flips is there, and `check` says what the README says."""
    file, before, after, command = re.findall(r"`([^`]+)`", section("Break it"))[:4]
    shutil.copytree(ROOT / "minitx", tmp_path / "minitx")
    shutil.copytree(ROOT / "tests" / "reference", tmp_path / "tests" / "reference")
    text = (tmp_path / file).read_text(encoding="utf-8")
    assert text.count(before) == 1
    (tmp_path / file).write_text(text.replace(before, after), encoding="utf-8")
    done = subprocess.run([sys.executable, *command.split()[1:]], cwd=tmp_path, capture_output=True, text=True,
                          encoding="utf-8", env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1
    said, = blocks("text")
    assert said.splitlines() and set(without_numbers(said)) <= set(without_numbers(done.stdout)), done.stdout


def without_numbers(text):
    """The lines of a text, # for each number: the last digits differ between machines."""
    return [re.sub(r"-?\d[\d.e+-]*", "#", line.strip()) for line in text.splitlines()]


def test_bash_blocks():
    """The first two are what a newcomer runs: set-up and main job, set-up and tests."""
    first, second = blocks("bash")[:2]
    assert first.splitlines() == ['python -m pip install -e ".[demos]"', "python demos/char_lm.py"]
    assert second.splitlines() == ['python -m pip install -e ".[test]"', "python -m pytest -q"]


def test_files_and_extras_named_exist():
    for path in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / path).exists(), path
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    for extras in re.findall(r"\.\[([\w,]+)\]", README):
        assert set(extras.split(",")) <= set(config["options.extras_require"]), extras


def test_reading_order():
    order = re.findall(r"^\d\. \[`minitx/([\w/.]+)`\]", section("Read it"), re.MULTILINE)
    assert order == ["autograd.py", "ops/softmax.py", "ops/norm.py", "ops/attention.py", "nn/blocks.py",
                     "models/gpt2.py", "optim.py"]


def test_nothing_is_left_to_be_filled_in():
    assert "PLACE_" not in README
