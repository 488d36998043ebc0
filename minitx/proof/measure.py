"""One op, measured on its cases by every way there is; and what to read when one of them disagrees."""
import contextlib
import inspect
import time
import warnings
from typing import NamedTuple

import numpy as np

from minitx.proof import opcheck
from minitx.proof.differences import excess, is_float, relative_error
from minitx.proof.judge import SAME
from minitx.proof.ways import WAYS, Known, through_apply
from minitx.recording import plain_ops

TOLERANCE = {"differences": 1.0, **{name: way.tolerance for name, way in WAYS.items()}}


class Cell(NamedTuple):
    """One way, over all cases that it speaks about: the worst error, and the seconds it took."""
    error: float
    seconds: float


class Failure(NamedTuple):
    """What went wrong on one case (None: on all together), to be read; `way` is who noticed."""
    op: str
    case: str | None
    way: str
    text: str

    def __str__(self):
        where = self.op if self.case is None else f"{self.op}, case {self.case!r}"
        return f"{where}, {_NOTICED.get(self.way, self.way)}:\n    {self.text}"


_NOTICED = {"differences": "caught by finite differences", "composed": "caught by the composed twin",
            "stored": "caught by the stored values", "PyTorch": "caught by PyTorch", "CuPy": "caught by NumPy beside CuPy",
            "run": "run as it stands", "apply": "run through apply (as a model runs it, without __init__)"}


class Row(NamedTuple):
    """One op: how many cases it was tried on, way -> Cell or None, and what failed."""
    op: str
    cases: int
    cells: dict
    failures: list


def measure(cls, smooth, sharp=()):
    """Row of an op class on its cases; the sharp ones lie at kinks, ties and infinities, where no slope is."""
    failures, known = [], []
    for case, is_smooth in [(case, True) for case in smooth] + [(case, False) for case in sharp]:
        with _reporting(failures, case, "run"):
            known.append(Known(case, is_smooth))
            if is_smooth and known[-1].warned:
                _fail(failures, case, "run", f"NumPy warns: {known[-1].warned}")
            if (text := _leaves_float32(known[-1])) is not None:
                _fail(failures, case, "run", text)
    for one in known:
        with _reporting(failures, one.case, "apply"):
            if (text := _differs_in_apply(one)) is not None:
                _fail(failures, one.case, "apply", text)
    if not failures and not any(map(_has_entries, smooth)):
        failures.append(Failure(cls.name, None, "run", "no entry was checked: no case has a float array that is not empty"))
    cells = {way: _cell(way, known, failures) for way in TOLERANCE}
    return Row(cls.name, len(smooth) + len(sharp), cells, failures)


def _fail(failures, case, way, text):
    failures.append(Failure(case.op.name, case.label, way, text))


@contextlib.contextmanager
def _reporting(failures, case, way):
    """Turn what is raised inside into a failure to read."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        try:
            yield
        except (Exception, SystemExit) as error:
            _fail(failures, case, way, f"{type(error).__name__}: {error}")


def _cell(way, known, failures):
    start, errors = time.perf_counter(), []
    for case in known:
        error = np.inf
        with _reporting(failures, case.case, way):
            error, text = _differences(case) if way == "differences" else _against(way, case)
            if text:
                _fail(failures, case.case, way, text)
        if error is not None:
            errors.append(error)
    return Cell(max(errors), time.perf_counter() - start) if errors else None


def _leaves_float32(known):
    """A float32 model stays float32: which output or gradient is float64, unless an option asks for a dtype."""
    if not any(map(is_float, known.case.inputs)):
        return None
    n = len(known.ours.outputs)
    for i, dtype in enumerate(known.dtypes):
        if dtype == np.float64 and "dtype" not in known.case.options:
            what = f"output {i}" if i < n else f"the gradient of {_parameter(known, i - n)}"
            return f"float32 inputs give {what} in float64"
    return None


def _differs_in_apply(known):
    """What the engine makes of the op, where that is anything but what the op gives by itself."""
    with known.quiet(), plain_ops():
        theirs = through_apply(known)
    if len(theirs.outputs) != len(known.ours.outputs):
        return f"it returns {len(known.ours.outputs)} outputs, but {len(theirs.outputs)} Tensors come out"
    if opcheck.compare(known.ours, theirs) <= SAME:
        return None
    return f"by itself the op gives something else: {_worst(known, theirs)}"


def _has_entries(case):
    return any(is_float(x) and x.size for x in case.inputs)


def _differences(known):
    """(the worst gradient error as a multiple of the tolerance, what is wrong); (None, None) at a kink."""
    if not known.smooth:
        return None, None
    error = opcheck.check_op(known.cls, known.case.inputs, known.options, known.slopes)
    if error <= 1:
        return error, None
    total = [None if slopes is None else slopes.sum(axis=0) for slopes in known.slopes]
    found = [(excess(a, b), i) for i, (a, b) in enumerate(zip(total, known.ours.gradients)) if a is not None and a.size]
    off, i = max(found, key=lambda pair: pair[0].max())
    at = np.unravel_index(int(off.argmax()), off.shape)
    if off[at] <= 1:
        return error, ("the gradients are right when all are asked for together, but not when one input alone wants a "
                       "gradient, when one output alone was used, or when arrays are not contiguous")
    return error, (f"{_gradient(known, i)} is wrong{_at(at)}: finite differences {total[i][at]:.10g}, backward "
                   f"{known.ours.gradients[i][at]:.10g}; {int((off > 1).sum())} of {off.size} entries are wrong")


def _against(way, known):
    """(the worst relative error against what a way expects, what is wrong); (None, None) where it is silent."""
    expected = known.expected(way)
    if expected is None:
        return None, None
    error = opcheck.compare(known.ours, expected)
    return error, None if error <= TOLERANCE[way] else _worst(known, expected)


def _worst(known, expected):
    """Where the op is furthest from the Result that was expected, and both numbers."""
    pairs = [(f"output {i} {y.shape}", y, theirs)
             for i, (y, theirs) in enumerate(zip(known.ours.outputs, expected.outputs))]
    pairs += [(_gradient(known, i), g, theirs)
              for i, (g, theirs) in enumerate(zip(known.ours.gradients, expected.gradients)) if g is not None]
    what, ours, theirs = max(pairs, key=lambda pair: relative_error(*pair[1:]))
    if ours.shape != theirs.shape:
        return f"{what} should have shape {theirs.shape}"
    gap = np.abs(np.nan_to_num(ours) - np.nan_to_num(theirs)) + (np.isfinite(ours) != np.isfinite(theirs))
    at = np.unravel_index(int(gap.argmax()), gap.shape)
    return f"{what} is wrong{_at(at)}: expected {theirs[at]:.10g}, got {ours[at]:.10g}"


def _at(index):
    return f" at [{', '.join(map(str, index))}]" if index else ""


def _gradient(known, i):
    return f"the gradient of {_parameter(known, i)} {known.case.inputs[i].shape}"


def _parameter(known, i):
    """What forward calls its input i."""
    names = list(inspect.signature(known.cls.forward).parameters.values())[1:]
    if i < len(names) and names[i].kind is not inspect.Parameter.VAR_POSITIONAL:
        return names[i].name
    return f"input {i}"
