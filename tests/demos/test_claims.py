"""The experiments' own tools, every claim once on something small, and what the command line says."""
import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

import minitx as mt

DEMO = Path(__file__).parents[2] / "demos" / "claims.py"


@pytest.fixture
def demo(monkeypatch, tmp_path):
    """The demo as a module, in an empty folder."""
    spec = importlib.util.spec_from_file_location("claims", DEMO)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.chdir(tmp_path)
    mt.manual_seed(0)
    return module


SMALL = {
    "scale": dict(widths=np.array([4, 1024])), "warmup": dict(steps=4, num_layers=1), "order": dict(steps=2),
    "shift": dict(n=1100), "reach": dict(lengths=np.array([4, 64])), "length": dict(steps=2, T=8),
    "heads": dict(steps=2), "cost": dict(lengths=np.array([32, 64, 128])),
}


@pytest.mark.parametrize("name", SMALL)
def test_claim_runs(demo, name):
    pytest.importorskip("matplotlib")
    holds, measured = demo.CLAIMS[name](Path("it.png"), **SMALL[name])
    assert holds in (True, False) and len(measured) > 50
    assert Path("it.png").read_bytes().startswith(b"\x89PNG")
    if name in ("scale", "shift", "reach"):                         # what needs no training holds on small sizes, too
        assert holds, measured
    if name == "reach":                                             # from 4 tokens to 64, evenly looked at
        assert 4 < float(re.search(r"shrinks (\d+) times in attention", measured)[1]) < 64, measured
    if name in ("warmup", "order"):
        assert not holds, measured                                  # a verdict is not always yes


def test_all_are_listed(demo):
    assert set(SMALL) == set(demo.CLAIMS)


def test_verdicts_are_printed(demo, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setitem(demo.CLAIMS, "order", Stub("One is two.\n\n    More.", (False, "1 is not 2")))
    monkeypatch.setitem(demo.CLAIMS, "shift", Stub("One is one.", (True, "1 is 1")))
    assert demo.main(["order", "shift", "--out", "here"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "order: One is two." and lines[1].startswith("  claim: does not hold: 1 is not 2. ")
    assert lines[3] == "shift: One is one." and lines[4].startswith("  claim: holds: 1 is 1. ")
    assert lines[-2] == "1 of 2 claims hold; the pictures: here" and Path("here").is_dir()


class Stub:
    """A claim that is settled already."""

    def __init__(self, doc, result):
        self.__doc__, self.result = doc, result

    def __call__(self, file):
        return self.result


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "none"])
def test_reader_knows_order(demo, positions):
    """Turned round, the input gives the same answers turned round only where there are no positions."""
    model = demo.Reader(6, 2, positions, questions=3, C=16, heads=2)
    ids, _ = demo.reversal(5, T=6)
    answers, turned = model(ids).data, model(ids[:, ::-1]).data[:, ::-1]
    assert answers.shape == (5, 6, 3, 6)
    gap = abs(answers - turned).max()
    assert gap < 1e-5 if positions == "none" else gap > 1e-3, gap


def test_reader_learns(demo):
    model = demo.Reader(6, 1, C=16, heads=2)
    losses = demo.train(model, lambda n: demo.reversal(n, T=6), 200, 2e-2)
    assert len(losses) == 200 and losses[0] > 1.5 and losses[-1] < 0.5
    assert demo.right(model, *demo.reversal(200, T=6)).mean() > 0.8


def test_gru(demo):
    """Against the three equations, written out in NumPy."""
    net, x = demo.GRU(3), mt.randn(2, 4, 3)
    W, b, U, c = (p.numpy() for p in net.parameters())
    h = np.zeros((2, 3))
    for t in range(4):
        (rx, zx, nx), (rh, zh, nh) = np.split(x.numpy()[:, t] @ W.T + b, 3, axis=1), np.split(h @ U.T + c, 3, axis=1)
        r, z = 1 / (1 + np.exp(-rx - rh)), 1 / (1 + np.exp(-zx - zh))
        h = (1 - z) * np.tanh(nx + r * nh) + z * h
    np.testing.assert_allclose(net(x).data, h, atol=1e-6)


def test_reversal(demo):
    ids, targets = demo.reversal(50)
    assert (np.sort(ids, axis=1) == np.arange(8)).all() and (targets[:, :, 0] == ids[:, ::-1]).all()
    assert len({tuple(row) for row in ids.tolist()}) > 40


def test_slope(demo):
    n = np.array([10, 20, 40])
    assert demo.slope(n, 3 * n ** 2.0) == pytest.approx(2)


def test_seed_decides(demo, monkeypatch):
    """Every claim begins with the generator as the seed left it, whatever ran before."""
    pytest.importorskip("matplotlib")
    drawn = []

    class Drawing(Stub):
        def __call__(self, file):
            drawn.append(mt.rand(1).item())
            return self.result

    for name in "order", "shift":
        monkeypatch.setitem(demo.CLAIMS, name, Drawing("One is one.", (True, "1 is 1")))
    assert demo.main(["order", "shift"]) == demo.main(["shift"]) == demo.main(["shift", "--seed", "1"]) == 0
    assert drawn[0] == drawn[1] == drawn[2] != drawn[3]


def test_what_is_refused(demo, capsys):
    Path("file").touch()
    for arguments, says in ((["scale", "speed"], "no claim 'speed': choose among scale, warmup"),
                            (["--seed", "-1"], "give 0 or more"), (["--device", "tpu"], "'cpu', 'cuda'"),
                            (["--out", "file"], "cannot write to file")):
        assert demo.main(arguments) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1 and lines[0].startswith("claims: ") and says in lines[0], lines
