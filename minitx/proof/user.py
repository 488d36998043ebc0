"""Ops from a user's own file: find them, and find something to try them on.

A class may say what it is to be tried on, as a list of tuples, one a call: a shape (a tuple, filled with normal
numbers), an array, a number or None for each positional input, and at the end a dict of options where there are any:

    class Scale(Op):
        cases = [((3, 4), (4,)), ((), ()), (np.array([1.0, 2.0]), (2,), {"shift": 0.5})]

Without it every positional input gets shape (3, 4).
"""
import importlib.util
import inspect
import sys
from pathlib import Path

import numpy as np

from minitx.proof.cases import Case, Draw
from minitx.proof.faults import op_classes


class CannotCheck(Exception):
    """Nothing that could be checked, and why, in one line."""


def ops_in(path):
    """dict: Op class that a file defines -> (its cases, where they come from). CannotCheck where there are none."""
    return {cls: cases_of(cls) for cls in op_classes(load(path)).values()}


def load(path):
    """The module in a Python file. CannotCheck where it cannot be imported or defines no Op."""
    path = Path(path)
    if not path.is_file():
        raise CannotCheck(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"{path.resolve().parent}.{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))          # its neighbours, as if it were run
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise CannotCheck(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    try:
        found = op_classes(module)
    except ValueError as error:
        raise CannotCheck(f"{path}: {error}") from error
    if not found:
        raise CannotCheck(f"{path} defines no Op: a class that inherits from minitx.Op and has a forward")
    return module


def cases_of(cls):
    """(list of Case, a sentence on where they come from). CannotCheck where the attribute `cases` is no such list."""
    given = getattr(cls, "cases", None)
    if given is None:
        inputs = [p for p in list(inspect.signature(cls.forward).parameters.values())[1:]
                  if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
        given = [((3, 4),) * sum(2 if p.kind is p.VAR_POSITIONAL else 1 for p in inputs)]
        source = ("every positional input is drawn with shape (3, 4); for others give the class `cases`, such as "
                  "cases = [((3, 4), (4, 2))]")
    elif isinstance(given, (list, tuple)) and given:
        source = f"{len(given)} case{'s' * (len(given) > 1)} of its own"
    else:
        raise CannotCheck(f"{cls.__name__}.cases must be a list of calls, such as [((3, 4),)], got {given!r}")
    return [_case(cls, str(i), call) for i, call in enumerate(given)], source


def _case(cls, label, call):
    if not isinstance(call, tuple):
        raise CannotCheck(f"{cls.__name__}.cases, number {label}: must be a tuple with a shape or an array for each "
                          f"positional input, got {call!r} (one input: ((3, 4),) with a comma)")
    *inputs, options = call if call and isinstance(call[-1], dict) else (*call, {})
    draw = Draw(f"{cls.name} {label}")
    return Case(cls, label, tuple(_input(cls, label, draw, x) for x in inputs), options)


def _input(cls, label, draw, x):
    if isinstance(x, tuple) and all(isinstance(n, int) and n >= 0 for n in x):
        x = draw(*x)
    elif isinstance(x, list):
        x = np.array(x)
    elif not (x is None or isinstance(x, (np.ndarray, int, float))):
        raise CannotCheck(f"{cls.__name__}.cases, number {label}: holds {x!r}, no shape, array, number or None")
    if isinstance(x, np.ndarray):
        x = x.astype(float) if x.dtype.kind == "f" else x
        x.flags.writeable = False
    return x
