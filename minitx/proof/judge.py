"""The verdict on a class that claims to be an op: who finds that it is not?"""
import functools
import warnings
from typing import NamedTuple

from minitx.proof import opcheck
from minitx.proof.deadline import within
from minitx.proof.differences import GradientError
from minitx.proof.ways import WAYS

SAME = 1e-12                    # a change smaller than this is rounding


class Verdict(NamedTuple):
    """raised    it gave itself away by an exception, by a warning where the op gives none, or by not coming to an end
    changed      some result differs from the op's
    caught       who found it: "differences" (finite differences of the class itself), "composed", "stored", "float32"
                 (a dtype that changed)
    """
    raised: bool
    changed: bool
    caught: frozenset


def judge(make, known, seconds=None):
    """Verdict on faulty classes, over all known cases (name -> list of Known) of their names.

    make()     gives the classes, name -> class
    seconds    the time that all of it may take; None: any
    """
    caught = set()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            changed = within(seconds, functools.partial(_examine, make, known, caught))
        except (Exception, SystemExit):
            return Verdict(True, True, frozenset(caught))
    return Verdict(False, changed, frozenset(caught))


def _examine(make, known, caught):
    """Whether some result differs from the op's; puts into `caught` who noticed."""
    changed, pairs = False, [(cls, case) for name, cls in make().items() for case in known[name]]
    for cls, case in pairs:
        result = case.run(cls)
        if opcheck.compare(result, case.ours) > SAME:
            changed = True
            caught |= {way for way in ("composed", "stored") if _disagrees(result, case, way)}
    if any(case.smooth and _is_no_derivative(cls, case) for cls, case in pairs):
        caught.add("differences")
    if not caught and any(case.single(cls) != case.dtypes for cls, case in pairs):
        caught.add("float32")
    return changed


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
