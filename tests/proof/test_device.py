"""``check --device cuda``, on the double: the same questions, with the arrays there."""
import json

import double
import numpy as np
import pytest

import minitx as mt
from minitx import backend, ops
from minitx.__main__ import main
from minitx.proof import composed, opcheck, report
from minitx.proof.cases import Case, cases
from minitx.proof.differences import GradientError
from minitx.proof.measure import measure
from minitx.proof.ways import Known


Tanh = ops.OPS["tanh"]


@pytest.fixture
def device(cupy):
    """The double's, as the default one."""
    with backend.on_device("cuda"):
        yield "cuda:0"


def test_the_report_says_where_it_ran_and_finds_the_faults(cupy, tmp_path, capsys):
    names, file = ["softmax", "embedding", "maximum"], tmp_path / "it.json"
    before = backend.default_device()
    with double.counting() as counts:
        assert report.run(names, device="cuda", json_file=file) == 0
    text, found = capsys.readouterr().out, json.loads(file.read_text(encoding="utf-8"))
    assert text.startswith("every op runs on cuda:0\n") and "cases on cuda:0: all right" in text
    assert found["device"] == "cuda:0" and counts.transfers_in > 1000 < counts.transfers_out
    for row in found["ops"]:
        assert not row["failures"] and row["ways"]["differences"] and row["ways"]["stored"] and row["ways"]["CuPy"]
        assert row["ways"]["composed"], row
    assert not found["faults"][0]["faults"] == [] and backend.default_device() == before
    missed = [one["fault"] for one in found["faults"][0]["faults"] if one["changed"] and not (one["raised"] or one["caught"])]
    assert not missed


@pytest.mark.parametrize("name", [name for name in ops.OPS if name in composed.COMPOSED])
def test_the_composed_twin_runs_there(device, name):
    for case in cases([name])[name]:
        known = Known(case)
        with double.counting() as counts:
            assert opcheck.compare(known.ours, known.expected("composed")) <= composed.TOLERANCE, case.label
        assert counts.transfers_in


@pytest.mark.parametrize("half", ["forward", "backward"])
def test_what_is_wrong_there_alone_is_found(monkeypatch, cupy, half, capsys):
    right = getattr(Tanh, half)

    def wrong(self, x):
        y = right(self, x)
        return y if isinstance(x, np.ndarray) else (y[0] * 1.001,) if half == "backward" else y * 1.001
    monkeypatch.setattr(Tanh, half, wrong)
    with backend.on_device("cpu"):
        on_the_host = measure(Tanh, cases(["tanh"])["tanh"])
    assert {failure.way for failure in on_the_host.failures} == {"CuPy"}
    assert report.run(["tanh"], device="cuda") == 1
    text = capsys.readouterr().out
    assert "tanh, case 'number', caught by finite differences" in text and "caught by NumPy beside CuPy" in text
    assert "FAILED: tanh" in text


def test_writing_into_what_was_given_is_found_there(device):
    class Greedy(mt.Op):
        def forward(self, x):
            x *= 2.0
            return x * 1.0

        def backward(self, dy):
            return 2.0 * dy,

    class Late(Greedy):
        def forward(self, x):
            return 2.0 * x

        def backward(self, dy):
            dy *= 2.0
            return dy,

    for cls, half in (Greedy, "forward"), (Late, "backward"):
        with pytest.raises(GradientError, match=f"{half} wrote into input 0"):
            opcheck.run_op(cls, (np.ones(3),), {})
        assert measure(cls, [Case(cls, "three", (np.ones(3),), {})]).failures


def test_an_op_of_ones_own(cupy, tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text("""import numpy as np
import minitx
class Chosen(minitx.Op):
    cases = [((3, 4), {"rows": np.array([2, 0])})]
    def forward(self, x, *, rows):
        self.rows, self.x = rows, x
        return x[rows] * 3.0
    def backward(self, dy):
        dx = self.x * 0.0
        dx[self.rows] = 3.0 * dy
        return dx,
""", encoding="utf-8")
    assert report.run([str(file)], device="cuda") == 0
    assert "1 op, 1 cases on cuda:0: all right" in capsys.readouterr().out


def test_a_device_that_cannot_be_had_is_one_line_and_2(monkeypatch, capsys):
    monkeypatch.setattr(backend, "_probe", lambda: (None, "nothing to be had"))
    assert main(["check", "neg", "--device", "cuda"]) == 2
    assert capsys.readouterr().err == "minitx check: device 'cuda' is not available: nothing to be had\n"
    assert main(["check", "neg", "--device", "gpu"]) == 2
    assert "unknown device 'gpu'" in capsys.readouterr().err
