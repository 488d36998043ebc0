"""The machine that plants faults, the judge, and the score."""
import ast
import importlib.util
import sys
import time

import numpy as np
import pytest

from minitx import Op, ops
from minitx.backend import xp_of
from minitx.proof import mutations
from minitx.proof.cases import Case, cases, edges
from minitx.proof.classic import CLASSIC
from minitx.proof.deadline import TooLong, within
from minitx.proof.faults import op_classes, plant, unharmed
from minitx.proof.judge import judge
from minitx.proof.survivors import SURVIVORS
from minitx.proof.ways import Known, unless_default

SOURCE = '''
from minitx import Op

_GAIN = 0.5


class Scaled(Op):
    """y = x / 2, or more of it."""
    broadcasts = False
    anything = 3

    def forward(self, x, *, axis=-1, twice=False):
        if x.ndim == 0:
            raise ValueError("no number")
        check_something(x)
        self.gain = double(_GAIN) if twice else _GAIN
        return x * self.gain

    def backward(self, dy):
        return undone(dy, self.gain),


def check_something(x):
    if x.size < 0:
        raise ValueError


def double(number):
    return number + number


def undone(dy, gain):
    return gain * dy


def not_of_an_op(x):
    return x + 1
'''


@pytest.fixture
def load(tmp_path, monkeypatch):
    def load(source):
        path = tmp_path / "scaled.py"
        path.write_text(source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location("tried.scaled", path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module
    return load


def planted(module):
    return {(fault.owner, fault.half, fault.kind, spelled(fault.before), spelled(fault.after))
            for fault in plant(module)}


def spelled(statement):
    """The statement as this Python spells it: they do not agree on brackets."""
    if statement == "(dropped)":
        return statement
    return ast.unparse(ast.parse(statement + " pass" if statement.endswith(":") else statement)).partition("\n")[0]


def test_every_slip_and_no_other(load):
    head = "def forward(self, x, *, axis=-1, twice=False):"
    gain, back = "self.gain = double(_GAIN) if twice else _GAIN", "return undone(dy, self.gain),"
    assert planted(load(SOURCE)) == {(*rest, spelled(before), spelled(after)) for *rest, before, after in (
        ("_GAIN", "forward", "constant", "_GAIN = 0.5", "_GAIN = 0.55"),
        ("Scaled.settings", "backward", "flag", "broadcasts = False", "broadcasts = True"),
        ("Scaled.forward", "forward", "constant", head, head.replace("-1", "0")),
        ("Scaled.forward", "forward", "sign", head, head.replace("-1", "1")),
        ("Scaled.forward", "forward", "flag", head, head.replace("False", "True")),
        ("Scaled.forward", "forward", "dropped", gain, "(dropped)"),
        ("Scaled.forward", "forward", "condition", gain, gain.replace("if twice", "if not twice")),
        ("Scaled.forward", "forward", "sign", "return x * self.gain", "return -(x * self.gain)"),
        ("Scaled.forward", "forward", "operator", "return x * self.gain", "return x / self.gain"),
        ("Scaled.backward", "backward", "sign", back, "return -undone(dy, self.gain),"),
        ("Scaled.backward", "backward", "doubled", back, "return undone(dy, self.gain) * 2,"),
        ("Scaled.backward", "backward", "zero", back, "return undone(dy, self.gain) * 0,"),
        ("double", "forward", "operator", "return number + number", "return number - number"),
        ("undone", "backward", "operator", "return gain * dy", "return gain / dy"),
    )}


def slips_of(load, line):
    """What becomes of one line in a backward."""
    source = f"from minitx import Op\nclass A(Op):\n    def forward(self, x):\n        return x\n" \
             f"    def backward(self, dy):\n        xp = self.xp\n        {line}\n        return dy,\n"
    return {fault.after for fault in plant(load(source)) if fault.owner == "A.backward" and fault.line == 7}


@pytest.mark.parametrize("line, after", [
    ("y = a @ b", {"y = b @ a"}),
    ("y = a ** 3", {"y = a * 3", "y = a ** 4"}),
    ("y -= 0", {"y += 0", "y -= 1"}),
    ("y = a < b", {"y = a <= b", "y = a > b"}),
    ("y = a == b", {"y = a != b"}),
    ("y = a and (not b)", {"y = a or (not b)", "y = a and b"}),
    ("y = ~a & b", {"y = a & b", "y = ~a | b"}),
    ("y = -a", {"y = a"}),
    ("y = x.sum(axis=1, keepdims=True)",
     {"y = x.mean(axis=1, keepdims=True)", "y = x.sum(axis=2, keepdims=True)", "y = x.sum(axis=1, keepdims=False)"}),
    ("y = x.swapaxes(0, 1)", {"y = x", "y = x.swapaxes(1, 1)", "y = x.swapaxes(0, 2)"}),
    ("y = xp.maximum(a, b)", {"y = xp.minimum(a, b)"}),
    ("y = xp.sin(a)", {"y = xp.cos(a)"}),
    ("y = xp.exp(a)", {"y = a"}),
    ("y = a.astype(b)", {"y = a"}),
    ("y = a.T", {"y = a"}),
    ("y = xp.where(c, a, b)", {"y = xp.where(c, b, a)"}),
    ("y = f'{a + 1}'", set()),
    ("y = x[1:]", {"y = x[2:]"}),
    ("y: kind[3] = x[1:]", {"y: kind[3] = x[2:]"}),
    ("while a > 1: b()", {"while a >= 1:", "while a < 1:", "while a > 2:"}),
])
def test_slips_of_a_statement(load, line, after):
    found = {statement for statement in slips_of(load, line) if statement != "pass"}
    assert found == {spelled(statement) for statement in after} | {"(dropped)"}


@pytest.mark.parametrize("line", ["check_index(dy, 3)", "'a text'", "pass"])
def test_what_computes_nothing_is_left_alone(load, line):
    assert slips_of(load, line) == set()


def test_returned_gradients_are_exchanged(load):
    module = load("from minitx import Op\nclass A(Op):\n    def forward(self, x, y):\n        return x, y\n"
                  "    def backward(self, dy, dx):\n        return dx if self.needs[0] else None, dy, None\n")
    returned = {fault.after for fault in plant(module) if fault.kind in ("sign", "doubled", "swapped")}
    assert {"return (-dx if self.needs[0] else None, dy, None)", "return (dx if self.needs[0] else None, dy * 2, None)",
            "return (dy, dx if self.needs[0] else None, None)", "return (-x, y)"} <= set(map(spelled, returned))
    assert not any("None *" in after or "-None" in after for after in returned)


def test_constants_of_every_form_and_classes_in_blocks(load):
    module = load("from __future__ import annotations\nfrom minitx import Op\nK: float = 3.0\nA, B = 1, 2\n"
                  "if True:\n    C = 4\n    class Times(Op):\n        broadcasts: Unknown = True\n"
                  "        def forward(self, x):\n            return K * A * x + C\n"
                  "        def backward(self, dy):\n            return B * dy,\n")
    found = {(fault.owner, fault.half, spelled(fault.after)): fault for fault in plant(module)}
    assert {("K", "forward", "K: float = 3.3"), ("A, B", "forward", spelled("A, B = 2, 2")), ("C", "forward", "C = 5"),
            ("A, B", "forward", spelled("A, B = 1, 3")), ("Times.forward", "forward", "return K * A * x - C"),
            ("Times.settings", "backward", "broadcasts: Unknown = False")} <= set(found)
    results = {fault.after: fault.classes()["times"]().forward(1.0) for fault in found.values()
               if fault.owner in ("K", "A, B", "C")}
    assert sorted(results.values()) == pytest.approx([7.0, 7.3, 8.0, 10.0])


def test_a_name_bound_twice_keeps_its_value(load):
    module = load("from minitx import Op\ntry:\n    from math import nothing as K\nexcept ImportError:\n    K = 3.0\n"
                  "N = 1\nN += 1\n"
                  "class Times(Op):\n    def forward(self, x):\n        return K * N * x\n"
                  "    def backward(self, dy):\n        return K * N * dy,\n")
    assert {fault.owner for fault in plant(module)} == {"Times.forward", "Times.backward"}
    assert unharmed(module).classes()["times"]().forward(1.0) == 6.0


def test_a_class_that_cannot_be_made_twice_gets_no_faults(load):
    module = load(SOURCE + "\n_GAIN = _GAIN\ncounted = [0]\n")
    x = np.array([0.5, -1.5])
    assert mutations.score({"scaled": [Case(module.Scaled, "one", (x,), {})]}, classics=()).judged
    module = load("from minitx import Op\nimport minitx\n\n\ndef once(cls):\n    if hasattr(Op, 'once'):\n"
                  "        raise ValueError\n    Op.once = True\n    return cls\n\n\n@once\nclass Scaled(Op):\n"
                  "    def forward(self, x):\n        return 2 * x\n"
                  "    def backward(self, dy):\n        return 2 * dy,\n")
    try:
        score = mutations.score({"scaled": [Case(module.Scaled, "one", (x,), {})]}, classics=())
    finally:
        del Op.once
    assert score.judged == []
    assert mutations.user_text("scaled", score).startswith("no faults were planted in scaled")


def test_a_class_under_another_name_is_found(load):
    module = load("from minitx import Op\ndef make():\n    class Inner(Op):\n        def forward(self, x):\n"
                  "            return x * 3\n        def backward(self, dy):\n            return dy * 3,\n"
                  "    return Inner\nOuter = make()\n")
    fault = next(fault for fault in plant(module) if fault.after == "return x * 4")
    assert fault.classes()["inner"]().forward(2.0) == 8.0


def test_a_change_that_changes_no_letter_is_none(load):
    module = load("from minitx import Op\nclass A(Op):\n    def forward(self, x, y):\n        return x + y\n"
                  "    def backward(self, dy):\n        return dy, dy\n")
    assert "swapped" not in {fault.kind for fault in plant(module)}


def test_a_fault_lies_in_a_copy(load):
    module = load(SOURCE)
    x = np.array([2.0, 4.0])
    results = {fault.after: fault.classes()["scaled"]().forward(x).tolist() for fault in plant(module)
               if fault.after in ("return x / self.gain", "_GAIN = 0.55")}
    assert results == {"return x / self.gain": [4.0, 8.0], "_GAIN = 0.55": [1.1, 2.2]}
    assert module.Scaled().forward(x).tolist() == [1.0, 2.0]
    assert planted(module) == planted(module)


def test_a_fault_says_where_it_is(load):
    fault = next(fault for fault in plant(load(SOURCE)) if fault.owner == "undone")
    assert str(fault) == "scaled.py:33 undone, operator: `return gain * dy` became `return gain / dy`"


def test_only_the_named_ops_get_faults():
    from minitx.ops.pointwise import Sin
    module = sys.modules[Sin.__module__]
    assert set(op_classes(module)) >= {"sin", "cos", "exp"}
    assert {fault.ops for fault in plant(module, ["sin"])} == {("sin",)}


def test_a_shared_helper_is_tried_on_every_op_that_uses_it():
    from minitx.ops.norm import LayerNorm
    reached = {fault.owner: fault.ops for fault in plant(sys.modules[LayerNorm.__module__])}
    assert reached["unit_rows"] == ("layer_norm", "rms_norm")


# ---- the judge -------------------------------------------------------------------------------------------------------

class Square(Op):
    def forward(self, x):
        self.x = x
        return x * x

    def backward(self, dy):
        return 2 * self.x * dy,


def verdict(**members):
    known = {"square": [Known(Case(Square, "one", (np.array([0.5, -1.5, 2.0]),), {}))]}
    return judge(lambda: {"square": type("Square", (Square,), members)}, known, 1.0)


def test_judge_lets_the_op_itself_pass():
    assert verdict() == (False, False, frozenset())


def test_judge_by_finite_differences():
    assert verdict(backward=lambda op, dy: (op.x * dy,)) == (False, True, {"differences"})


def test_finite_differences_do_not_see_what_both_halves_agree_on():
    found = verdict(forward=lambda op, x: 3 * Square.forward(op, x), backward=lambda op, dy: (6 * op.x * dy,))
    assert found == (False, True, frozenset())


def test_judge_by_errors_and_warnings():
    def warns(op, x):
        np.log(np.zeros(1))
        return Square.forward(op, x)

    def writes(op, dy):
        dy *= 2
        return dy * op.x,

    assert verdict(forward=warns).raised
    assert verdict(backward=writes).raised
    assert verdict(backward=lambda op, dy: (dy[:2],)).raised


def test_judge_by_an_exit():
    def leaves(op, x):
        sys.exit(0)

    assert verdict(forward=leaves).raised
    assert verdict(backward=leaves).raised
    assert judge(lambda: 1 / 0, {}).raised                                  # the classes cannot even be made


def endless(op, x):
    n = 1
    while n > 0:
        n = n + 1
    return Square.forward(op, x)


def endless_and_stubborn(op, x):
    try:
        for _ in range(10 ** 12):
            pass
    except BaseException:
        endless(op, x)


@pytest.mark.parametrize("forward", [endless, endless_and_stubborn])
def test_judge_by_a_deadline(forward):
    start = time.perf_counter()
    assert verdict(forward=forward).raised
    assert time.perf_counter() - start < 20


def test_the_deadline_stops_the_work_and_nothing_else():
    steps = []

    def work():
        while True:
            steps.append(time.sleep(0.001))

    def stubborn():
        try:
            work()
        except BaseException:
            work()

    with pytest.raises(TooLong, match="0.1 seconds"):
        within(0.1, stubborn)
    done = len(steps)
    time.sleep(0.05)
    assert len(steps) == done                                               # it is not running any more
    assert within(None, lambda: 3) == 3
    with np.errstate(over="raise"):
        assert within(5, np.geterr)["over"] == "raise"                      # the context goes along
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 / 0)
    with pytest.raises(SystemExit):
        within(5, sys.exit)


def test_the_deadline_on_the_last_moment():
    ends = []
    for _ in range(200):                                                    # the end and the deadline race each other
        try:
            ends.append(within(0.001, lambda: time.sleep(0.001)))
        except TooLong:
            ends.append(TooLong)
    assert set(ends) <= {None, TooLong}


def test_an_endless_loop_by_a_fault_is_caught(load):
    module = load("from minitx import Op\nSTEP = 1\n\n\nclass Doubled(Op):\n    def forward(self, x):\n"
                  "        y, n = 0.0 * x, 2\n        while n > 0:\n            n -= STEP\n            y = y + x\n"
                  "        return y\n    def backward(self, dy):\n        return 2.0 * dy,\n")
    score = mutations.score({"doubled": [Case(module.Doubled, "one", (np.array([0.5, -1.5]),), {})]}, classics=())
    found = {fault.after: verdict for fault, verdict in score.judged}
    assert found["n += STEP"].raised and found["STEP = 2"].caught == {"differences"}


def test_judge_by_float32():
    assert verdict(backward=lambda op, dy: ((2 * op.x * dy).astype(float),)) == (False, False, {"float32"})


def test_judge_by_twin_and_stored_value():
    softmax = ops.OPS["softmax"]
    known = {"softmax": [Known(case) for case in cases(["softmax"])["softmax"]]}

    def hotter(op, x, *, axis=-1, mask=None):
        return softmax.forward(op, xp_of(x).asarray(1.01 * x), axis=axis, mask=mask)

    def hotter_too(op, dy):
        return 1.01 * softmax.backward(op, dy)[0],

    faulty = type("Softmax", (softmax,), {"name": "softmax", "forward": hotter, "backward": hotter_too})
    found = judge(lambda: {"softmax": faulty}, known)
    assert found == (False, True, {"composed", "stored"})


def test_options_at_their_default_are_left_out():
    softmax = ops.OPS["softmax"]
    assert unless_default(softmax, dict(axis=-1, mask=None)) == {}
    mask = np.array([True])
    assert unless_default(softmax, dict(axis=0, mask=mask)) == dict(axis=0, mask=mask)
    assert unless_default(ops.OPS["sum"], dict(axis=0, keepdims=0)) == dict(axis=0, keepdims=0)


# ---- the score -------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def classics():
    names = list(dict.fromkeys(classic.op for classic in CLASSIC))
    known = {name: [Known(case) for case in cases(names)[name]] for name in names}
    return {classic.title: judge(classic.classes, known) for classic in CLASSIC}


@pytest.mark.parametrize("classic", CLASSIC, ids=str)
def test_classic_faults_are_caught(classic, classics):
    found = classics[classic.title]
    assert found.raised or found.caught & {"differences", "composed", "stored"}
    if classic.half == "backward" and not found.raised:
        assert "differences" in found.caught


@pytest.mark.parametrize("title", ["1/sqrt(K) missing", "sqrt(d_model) in place of sqrt(d_k)",
                                   "attention's mask ignored", "softmax's mask ignored"])
def test_some_classic_faults_fall_to_a_value_from_outside_alone(title, classics):
    assert classics[title].caught == {"composed", "stored"}


FILES = {module.__name__.rpartition(".")[2]: sorted(op_classes(module)) for module in
         dict.fromkeys(sys.modules[op.__module__] for op in ops.OPS.values())}


@pytest.mark.parametrize("file", FILES)
def test_every_planted_fault_is_caught_or_explained(file):
    score = mutations.score(cases(FILES[file]), edges(FILES[file]), classics=())
    assert len(score.judged) >= 5 * len(FILES[file])
    assert not score.holes
    assert not score.unexplained
    assert not score.stale


def test_reasons_belong_to_files_that_exist():
    assert set(SURVIVORS) <= set(FILES)
    for reasons in SURVIVORS.values():
        for slip, why in reasons.items():
            assert "\n" not in slip and "\n" not in why and len(why) < 120


def test_a_reason_without_its_survivor_is_stale(monkeypatch):
    monkeypatch.setitem(SURVIVORS, "dropout", {**SURVIVORS.get("dropout", {}), "return x": "never so"})
    score = mutations.score(cases(["dropout"]), classics=())
    assert score.stale == ["dropout.py: `return x`"]
    assert "STALE" in mutations.text(score, in_full=True)


def test_a_survivor_without_a_reason_is_named(monkeypatch):
    monkeypatch.setitem(SURVIVORS, "dropout", {})
    score = mutations.score(cases(["dropout"]), classics=())
    assert score.unexplained and not score.holes
    assert "NO REASON" in mutations.text(score, in_full=True)


def test_a_fault_that_no_check_finds_is_a_hole(load):
    module = load(SOURCE)
    x = np.array([0.5, -1.5])
    score = mutations.score({"scaled": [Case(module.Scaled, "plain", (x,), {}), Case(module.Scaled, "twice", (x,), dict(
        twice=True))]})
    assert "_GAIN = 0.55" in [fault.after for fault in score.holes]         # both halves agree, no twin knows better
    assert "MISSED" in mutations.text(score)


def test_the_spelling_of_a_reason_does_not_matter():
    assert mutations.meaning("(a, b) = (1, 2)") == mutations.meaning("a, b = 1, 2")
    assert mutations.meaning("if all((x for x in y)):") == mutations.meaning("if all(x for x in y):")
    assert mutations.meaning("dropped: a = 1") != mutations.meaning("a = 1")
