"""The verdict on a class that claims to be an op: who finds that it is not?"""
import warnings
from typing import NamedTuple

from minitx.proof import opcheck
from minitx.proof.differences import GradientError
from minitx.proof.ways import WAYS

SAME = 1e-12                    # a change smaller than this is rounding


class Verdict(NamedTuple):
    """raised    it gave itself away by an exception, or by a warning where the op gives none
    changed      some result differs from the op's
    caught       who found it: "differences" (finite differences of the class itself), "composed", "stored", "float32"
                 (a dtype that changed)
    """
    raised: bool
    changed: bool
    caught: frozenset


def judge(classes, known):
    """Verdict on faulty classes (name -> class), over all known cases (name -> list of Known) of these names."""
    changed, caught = False, set()
    pairs = [(cls, case) for name, cls in classes.items() for case in known[name]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            for cls, case in pairs:
                result = case.run(cls)
                if opcheck.compare(result, case.ours) > SAME:
                    changed = True
                    caught |= {way for way in ("composed", "stored") if _disagrees(result, case, way)}
            if any(case.smooth and _is_no_derivative(cls, case) for cls, case in pairs):
                caught.add("differences")
            if not caught and any(case.single(cls) != case.dtypes for cls, case in pairs):
                caught.add("float32")
        except Exception:
            return Verdict(True, True, frozenset(caught))
    return Verdict(False, changed, frozenset(caught))


def _disagrees(result, case, way):
    expected = case.expected(way)
    return expected is not None and opcheck.compare(result, expected) > WAYS[way].tolerance


def _is_no_derivative(cls, case):
    """Whether finite differences catch the class. The op's own serve, where the class gives the same outputs."""
    inputs, options = case.case.inputs, case.options
    outputs = opcheck.forward(cls, inputs, options)[1]
    same = opcheck.compare(opcheck.Result(outputs, ()), opcheck.Result(case.ours.outputs, ())) <= SAME
    try:
        return opcheck.check_op(cls, inputs, options, case.slopes if same else None) > 1
    except GradientError:
        return True
