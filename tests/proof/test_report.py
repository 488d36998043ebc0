"""python -m minitx check: the table, what a failure reads like, files of users, exit statuses."""
import json
import os
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns

import double
import numpy as np
import pytest

import minitx
from minitx import backend, ops
from minitx.proof import opcheck, report
from minitx.proof.cases import Case, cases
from minitx.proof.measure import TOLERANCE, measure
from minitx.proof.user import CannotCheck, cases_of, load, ops_in
from minitx.proof.ways import WAYS, Known


@pytest.fixture
def write(tmp_path):
    def write(text, name="mine.py"):
        path = tmp_path / name
        path.write_text("import numpy as np\nfrom minitx import Op\n" + text, encoding="utf-8")
        return str(path)
    return write


CUBE = '''
class Cube(Op):
    """x^3"""

    def forward(self, x):
        self.x = x
        return x ** 3

    def backward(self, dy):
        return 3 * self.x ** 2 * dy,
'''


# ---- ops of ours -----------------------------------------------------------------------------------------------------

def test_an_op_that_is_right(capsys):
    assert report.run(["softmax", "add"]) == 0
    text = capsys.readouterr().out
    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith(("softmax", "add"))}
    assert set(rows) == {"softmax", "add"} and "FAILED" not in text
    assert rows["add"].split()[-1] == "-" or minitx.cuda.is_available()         # no GPU: a dash
    assert rows["add"].split().count("ms") >= 2                                 # no composed twin for a primitive
    assert "2 ops" in text and "all right" in text
    assert "finite differences alone let" in text


def test_the_reasons_are_listed_on_demand(capsys):
    assert report.run(["dropout"], in_full=True) == 0
    assert "with p = 1 nothing is kept" in capsys.readouterr().out
    assert report.run(["dropout"]) == 0
    assert "with p = 1 nothing is kept" not in capsys.readouterr().out


def test_classic_faults_are_listed_on_demand(capsys):
    assert report.run(["softmax"], in_full=True) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "softmax's mask ignored" in line)
    assert "composed, stored" in line and "differences" not in line


def test_a_wrong_backward_fails(capsys, monkeypatch):
    softmax = ops.OPS["softmax"]
    right = softmax.backward
    monkeypatch.setattr(softmax, "backward", lambda self, dy: (-right(self, dy)[0],))
    assert report.run(["softmax"]) == 1
    text = capsys.readouterr().out
    assert "1 op, " in text and "FAILED: softmax" in text and "no faults were planted" in text
    for notice in ("caught by finite differences", "caught by the composed twin", "caught by the stored values"):
        assert f"softmax, case 'vector', {notice}" in text or f"softmax, case 'number of one', {notice}" in text
    assert "the gradient of x (" in text and ": finite differences " in text and ", backward " in text
    assert "planted by machine" not in text


def test_a_wrong_forward_that_backward_follows_is_caught_from_outside(monkeypatch):
    tanh = ops.OPS["tanh"]
    forward, backward = tanh.forward, tanh.backward
    monkeypatch.setattr(tanh, "forward", lambda self, x: 3 * forward(self, x))
    monkeypatch.setattr(tanh, "backward", lambda self, dy: (3 * backward(self, dy)[0],))
    row = measure(tanh, cases(["tanh"])["tanh"])
    assert {"composed", "stored"} <= {failure.way for failure in row.failures} <= {"composed", "stored", "PyTorch"}
    assert row.cells["differences"].error <= 1 < row.cells["stored"].error / TOLERANCE["stored"]
    assert "output 0 () is wrong: expected " in str(row.failures[0])


def test_json(tmp_path, capsys):
    file = tmp_path / "out.json"
    report.run(["relu"], json_file=str(file))
    found = json.loads(file.read_text(encoding="utf-8"))
    op, = found["ops"]
    assert op["op"] == "relu" and op["failures"] == [] and op["ways"]["differences"]["error"] <= 1
    faults = found["faults"][0]["faults"]
    assert {fault["half"] for fault in faults} == {"forward", "backward"}
    assert all(fault["caught"] or fault["raised"] or fault["reason"] for fault in faults)


def test_unknown_names():
    with pytest.raises(CannotCheck, match="no op 'sofmax'; did you mean softmax"):
        report.run(["sofmax"])
    with pytest.raises(CannotCheck, match="no op 'zzzz'; the ops are abs, add"):
        report.run(["zzzz"])


# ---- what is measured ------------------------------------------------------------------------------------------------

def faulty(**members):
    """What is said of a cube with these members instead of its own."""
    class Cube(minitx.Op):
        def forward(self, x):
            self.x = x
            return x ** 3

        def backward(self, dy):
            return 3 * self.x ** 2 * dy,

    for name, member in members.items():
        setattr(Cube, name, member)
    x = np.array([[0.5, -1.5, 2.0]])
    return [str(failure) for failure in measure(Cube, [Case(Cube, "one", (x,), {})]).failures]


def test_a_right_op_has_no_failures():
    assert faulty() == []


def test_a_wrong_entry_is_named_with_both_numbers():
    def backward(self, dy):
        dx = 3 * self.x ** 2 * dy
        dx[0, 1] *= 2
        return dx,

    failure, = faulty(backward=backward)
    numbers = failure.split("finite differences ")[1]
    numeric, ours = float(numbers.split(",")[0]), float(numbers.split("backward ")[1].split(";")[0])
    assert "cube, case 'one', caught by finite differences:\n    the gradient of x (1, 3) is wrong at [0, 1]" in failure
    assert ours == pytest.approx(2 * numeric, rel=1e-6) and "1 of 3 entries are wrong" in failure


def test_an_exception_is_a_failure():
    def forward(self, x):
        raise ValueError("not today")

    assert faulty(forward=forward) == ["cube, case 'one', run as it stands:\n    ValueError: not today"]


def test_an_exit_is_a_failure():
    def forward(self, x):
        sys.exit(0)

    assert faulty(forward=forward) == ["cube, case 'one', run as it stands:\n    SystemExit: 0"]


def test_what_only_apply_shows_is_a_failure():
    def init(self):
        super(type(self), self).__init__()
        self.power = 3

    failure, *_ = faulty(__init__=init, forward=lambda self, x: setattr(self, "x", x) or x ** self.power)
    assert "run through apply (as a model runs it, without __init__)" in failure and "no attribute 'power'" in failure


def test_a_name_that_the_engine_needs_is_a_failure():
    def forward(self, x):
        self._half = x
        return x ** 3

    failure, *_ = faulty(forward=forward, backward=lambda self, dy: (3 * self._half ** 2 * dy,))
    assert failure.startswith("cube, case 'one', run through apply")


def test_other_numbers_in_apply_are_a_failure():
    def apply(cls, *inputs, **options):
        return 2 * minitx.Op.__dict__["apply"].__func__(cls, *inputs, **options)

    failure, *_ = faulty(apply=classmethod(apply))
    assert "by itself the op gives something else: output 0 (1, 3) is wrong at [0, 2]: expected 16, got 8" in failure


@pytest.mark.parametrize("inputs", [(), (np.ones((0, 3)),), (np.arange(3),)])
def test_where_nothing_was_checked_that_is_a_failure(inputs):
    class Same(minitx.Op):
        def forward(self, *xs):
            self.n = len(xs)
            return xs[0] * 1 if xs else np.ones(2)

        def backward(self, dy):
            return (dy,) * self.n

    case = Case(Same, "one", inputs, {})
    failure, = measure(Same, [case]).failures
    assert str(failure).startswith("same, run as it stands:\n    no entry was checked")
    assert not measure(Same, [case, Case(Same, "two", (np.ones(2),), {})]).failures


def test_a_number_goes_through_apply_as_it_is():
    class Times(minitx.Op):
        def forward(self, x, k):
            self.k = k
            return x * k

        def backward(self, dy):
            return dy * self.k, None

    assert not measure(Times, [Case(Times, "one", (np.array([0.5, 2.0]), 1.7), {})]).failures


@pytest.mark.host("only NumPy's arrays can be read-only")
def test_writing_into_the_input_is_a_failure():
    def forward(self, x):
        self.x = x
        x *= 1
        return x ** 3

    assert "read-only" in faulty(forward=forward)[0]


@pytest.mark.host("the warnings are NumPy's")
def test_a_warning_is_a_failure():
    def forward(self, x):
        self.x = x
        return x ** 3 + 0 * np.log(x * 0 + 1e-400)

    assert any("NumPy warns: divide by zero" in failure for failure in faulty(forward=forward))


def test_a_gradient_that_is_wrong_only_alone():
    class Times(minitx.Op):
        def forward(self, a, b):
            self.a, self.b = a, b
            return a * b

        def backward(self, dy):
            return self.b * dy, self.a * dy * (1 if self.needs[0] else 2)

    case = Case(Times, "one", (np.array([0.5, 2.0]), np.array([-1.5, 1.0])), {})
    failure, = measure(Times, [case]).failures
    assert "not when one input alone wants a gradient" in str(failure)


def test_float64_in_a_float32_model_is_a_failure():
    failure, = faulty(backward=lambda self, dy: ((3 * self.x ** 2 * dy).astype(float),))
    assert failure.endswith("float32 inputs give the gradient of x in float64")


def test_every_way_speaks_where_it_can():
    case = cases(["softmax"])["softmax"][1]
    known = Known(case)
    assert known.expected("composed") and known.expected("stored")
    assert Known(case, smooth=False).expected("composed") is None
    assert (known.expected("CuPy") is None) == (not minitx.cuda.is_available())
    assert set(WAYS) < set(TOLERANCE)


@pytest.mark.parametrize("name", ops.OPS)
def test_numpy_against_cupy(name, cupy):
    for case in cases([name])[name]:
        with backend.on_device("cpu"), double.counting() as counts:
            known = Known(case)
            assert opcheck.compare(known.ours, known.expected("CuPy")) <= 1e-12, case.label
        assert counts.transfers_in and counts.transfers_out


def test_a_users_op_with_the_name_of_ours_has_no_twin():
    class Softmax(minitx.Op):
        def forward(self, x):
            return x

        def backward(self, dy):
            return dy,

    known = Known(Case(Softmax, "one", (np.ones(3),), {}))
    assert not any(known.expected(way) for way in ("composed", "stored", "PyTorch"))


# ---- files of users --------------------------------------------------------------------------------------------------

def test_a_file(write, capsys):
    assert report.run([write(CUBE)]) == 0
    text = capsys.readouterr().out
    assert "Cube: every positional input is drawn with shape (3, 4); for others give the class `cases`" in text
    assert "faults planted in cube: 1" in text and "not caught" not in text


def test_a_file_with_a_fault(write, capsys):
    assert report.run([write(CUBE.replace("return 3 *", "return 2 *"))]) == 1
    assert "cube, case '0', caught by finite differences" in capsys.readouterr().out


def test_faults_that_no_difference_can_tell_are_shown(write, capsys):
    source = CUBE.replace("x ** 3", "GAIN * x ** 3").replace("3 *", "3 * GAIN *") + "\nGAIN = 2.0\n"
    assert report.run([write(source)]) == 0
    text = capsys.readouterr().out
    assert "not caught:" in text and "`GAIN = 2.0` became `GAIN = 2.2`" in text


def test_cases_of_a_class(write):
    path = write('''
class Shifted(Op):
    broadcasts = True
    cases = [((2, 3), (3,)), ((), [1.0, 2.0], {"gain": 3.0}), (np.ones(2), None), ((0,), 2.0)]

    def forward(self, x, b, *, gain=1.0):
        return x if b is None else x + gain * b

    def backward(self, dy):
        return dy, dy
''')
    (cls, (found, source)), = ops_in(path).items()
    assert source == "4 cases of its own"
    assert [[getattr(x, "shape", x) for x in case.inputs] for case in found] == [
        [(2, 3), (3,)], [(), (2,)], [(2,), None], [(0,), 2.0]]
    assert found[1].options == {"gain": 3.0} and found[0].options == {}
    assert not any(x.flags.writeable for case in found for x in case.inputs if isinstance(x, np.ndarray))
    assert cls.cases[2][0].flags.writeable
    assert all(a.inputs[0].tolist() == b.inputs[0].tolist() for a, b in zip(found, cases_of(cls)[0]))


def test_variable_inputs_get_two(write):
    path = write("class Total(Op):\n    def forward(self, *xs):\n        return sum(xs)\n"
                 "    def backward(self, dy):\n        return dy, dy\n")
    (found, _), = ops_in(path).values()
    assert [x.shape for x in found[0].inputs] == [(3, 4), (3, 4)]
    assert report.run([path]) == 0


def test_neighbours_of_the_file_can_be_imported(write):
    write("BASE = 2", "helper_beside.py")
    assert load(write("from helper_beside import BASE\n" + CUBE)).BASE == 2
    sys.modules.pop("helper_beside")


@pytest.mark.parametrize("text, message", [
    ("import no_such_module\n", r"mine.py cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
    ("def f(:\n", "mine.py cannot be imported: SyntaxError"),
    ("raise SystemExit(3)\n", "mine.py cannot be imported: SystemExit: 3"),
    ("x = 1\n", "mine.py defines no Op"),
    ("class A(Op):\n    cases = [(3, 4)]\n    def forward(self, x): pass\n", None),
    ("class A(Op):\n    cases = [[(3, 4)]]\n    def forward(self, x): pass\n", r"A.cases, number 0: must be a tuple"),
    ("class A(Op):\n    cases = []\n    def forward(self, x): pass\n", r"A.cases must be a list of calls.*got \[\]"),
    ("class A(Op):\n    cases = 5\n    def forward(self, x): pass\n", "A.cases must be a list of calls.*got 5"),
    ("class A(Op):\n    name = 'c'\n    def forward(self, x): pass\nclass B(A):\n    name = 'c'\n",
     "mine.py: A and B are both named 'c'"),
    ("class A(Op):\n    cases = [('x',)]\n    def forward(self, x): pass\n", r"A.cases, number 0: holds 'x'"),
])
def test_files_that_cannot_be_checked(write, text, message):
    path = write(text)
    if message is None:
        assert ops_in(path)                     # numbers: the run will say what is wrong
        return
    with pytest.raises(CannotCheck, match=message) as error:
        report.run([path])
    assert "\n" not in str(error.value)


def test_an_exit_in_a_file_is_no_success(write, capsys):
    assert report.run([write(CUBE.replace("return x ** 3", "raise SystemExit(0)"))]) == 1
    assert "FAILED: cube" in capsys.readouterr().out


def test_two_files_of_one_name_and_one_class(write, tmp_path, capsys):
    (tmp_path / "other").mkdir()
    paths = [write(CUBE), write(CUBE.replace("3 *", "1.5 * 2 *"), "other/mine.py")]
    assert report.run(paths) == 0
    text = capsys.readouterr().out
    first, second = (int(part.split()[0].rstrip(",")) for part in text.split("faults planted in cube: ")[1:])
    assert first < second


def test_a_class_inside_a_block_gets_faults(write, capsys):
    block = "try:\n" + "".join(f"    {line}\n" for line in CUBE.splitlines()) + "finally:\n    pass\n"
    assert report.run([write(block)]) == 0
    assert "faults planted in cube: 1" in capsys.readouterr().out


def test_a_file_that_is_not_there():
    with pytest.raises(CannotCheck, match="there is no file nowhere.py"):
        report.run(["nowhere.py"])


# ---- break it: what the README tells people to do --------------------------------------------------------------------

@pytest.mark.parametrize("file, right, wrong, op", [
    ("softmax.py", "dx -= self.y * dx.sum", "dx += self.y * dx.sum", "softmax"),
    ("norm.py", "dx -= xhat * scale", "dx += xhat * scale", "layer_norm"),
])
def test_break_it(tmp_path, file, right, wrong, op):
    package = Path(minitx.__file__).parent
    copytree(package, tmp_path / "minitx", ignore=ignore_patterns("__pycache__"))
    path = tmp_path / "minitx" / "ops" / file
    source = path.read_text(encoding="utf-8")
    assert source.count(right) == 1
    path.write_text(source.replace(right, wrong), encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "minitx", "check", op], cwd=tmp_path, encoding="utf-8", timeout=300,
                          env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True)
    assert done.returncode == 1, done.stderr
    assert f"{op}, case '" in done.stdout and "caught by finite differences:\n    the gradient of x (" in done.stdout
    assert f"FAILED: {op}" in done.stdout
