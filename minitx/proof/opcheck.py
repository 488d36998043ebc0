"""One Op on raw arrays, without the tape: its values, its gradients, and whether the two agree.

``check_op`` is what has to go off when a fault is planted. Its pieces are here one by one, so that what a fault did not
touch need not be computed again: ``numeric`` of the plain class serves every fault in its backward.

Ops run on the default device. What is given and compared are arrays on the host: they go there and come back.
"""
from typing import NamedTuple

import numpy as np

from minitx.autograd import unbroadcast
from minitx.backend import default_device, is_array, to_device, to_numpy
from minitx.proof.differences import (GradientError, differences, excess, frozen, is_float, random_like, relative_error,
                                      scattered)


class Result(NamedTuple):
    """What one op gave: a tuple of outputs, and one gradient per input (None for what is no float array)."""
    outputs: tuple
    gradients: tuple


def there(x):
    """x with its arrays, also those within a tuple, on the default device."""
    if type(x) is tuple:
        return tuple(map(there, x))
    return to_device(x, default_device()) if isinstance(x, np.ndarray) else x


def here(x):
    """A result as an array on the host."""
    return to_numpy(x) if is_array(x) else np.asarray(x)


def forward(cls, inputs, options, needs=None):
    """(op, outputs): an instance after its forward, and the arrays that it returned, always a tuple."""
    op = cls()
    op.needs = [is_float(x) for x in inputs] if needs is None else needs
    given = tuple(map(there, inputs))
    result = op.forward(*given, **{name: there(value) for name, value in options.items()})
    _only_read(op, "forward", given, inputs)
    return op, tuple(map(here, result if type(result) is tuple else (result,)))


def backward(op, inputs, outputs, dys):
    """One gradient per input, of its input's shape; zeros where the op gives None for an input that needs one."""
    for y in outputs:
        y.flags.writeable = False                           # returned to the caller: backward may only read it
    given = tuple(map(there, dys))
    results = op.backward(*given)
    _only_read(op, "backward", given, dys)
    if type(results) is not tuple or len(results) != len(inputs):
        raise GradientError(f"{op.name}: backward must return a tuple of {len(inputs)} entries, one for each "
                            "positional input (`return dx,` with the comma for one)")
    gradients = []
    for i, (x, g, needed) in enumerate(zip(inputs, results, op.needs)):
        if needed and g is not None:
            g = here(g)
            g = unbroadcast(g, x.shape) if op.broadcasts and g.shape != x.shape else g
            if g.shape != x.shape:
                raise GradientError(f"{op.name}: gradient {i} has shape {g.shape}, its input {x.shape}")
        gradients.append(None if not needed else np.zeros(x.shape) if g is None else g)
    return tuple(gradients)


def _only_read(op, half, given, before):
    """GradientError where an op wrote into what it was given: what is on a GPU cannot be made read-only."""
    for i, (x, y) in enumerate(zip(given, before)):
        if x is not y and isinstance(y, np.ndarray) and not np.array_equal(here(x), y, equal_nan=y.dtype.kind == "f"):
            raise GradientError(f"{op.name}: {half} wrote into input {i}, which it may only read")


def run_op(cls, inputs, options, dys=None):
    """Result of forward and backward. dys: one gradient per output, None for one left out; else random_like."""
    op, outputs = forward(cls, inputs, options)
    dys = random_like(outputs) if dys is None else dys
    dys = [dy if dy is None else frozen(dy.astype(y.dtype)) for y, dy in zip(outputs, dys)]
    return Result(outputs, backward(op, inputs, outputs, dys))


def numeric(cls, inputs, options, dys=None):
    """Central differences of every float input, for each output apart: (outputs, *shape), see differences."""
    def values(arrays):
        return forward(cls, arrays, options)[1]

    return differences(values, list(inputs), random_like(values(inputs)) if dys is None else dys)


def check_op(cls, inputs, options, slopes=None):
    """The worst gradient error of an op as a multiple of the tolerance: right up to 1, inf where something is NaN.

    inputs   float64 arrays (checked), None or Python numbers (not);  options  a dict
    slopes   what ``numeric`` gave, where that is known

    Everything is handed over read-only. Backward runs with all inputs wanting a gradient, with each one alone, with
    each of several outputs alone (None for the others), and with inputs and dy non-contiguous. What the op raises comes
    through; GradientError where a gradient has the wrong shape, or the values change under such circumstances.
    """
    inputs, options = frozen(tuple(inputs)), {name: frozen(value) for name, value in options.items()}
    for i, x in enumerate(inputs):
        if is_float(x) and x.dtype != np.float64:
            raise TypeError(f"{cls.name}: input {i} is {x.dtype}; finite differences need float64")
    outputs = forward(cls, inputs, options)[1]
    dys = random_like(outputs)
    slopes = numeric(cls, inputs, options, dys) if slopes is None else slopes
    wanted = [slope is not None for slope in slopes]
    apart = tuple(map(scattered, inputs))

    runs = [(inputs, dys, wanted), (apart, tuple(map(scattered, dys)), wanted)]
    if sum(wanted) > 1:
        runs += [(inputs, dys, [i == j for j in range(len(inputs))]) for i in np.flatnonzero(wanted)]
    if len(dys) > 1:
        runs += [(inputs, tuple(dy if i == j else None for j, dy in enumerate(dys)), wanted) for i in range(len(dys))]

    worst = 0.0
    for arrays, given, needs in runs:
        op, values = forward(cls, arrays, options, needs)
        if max(map(relative_error, values, outputs), default=0) > 1e-9:
            raise GradientError(f"{cls.name}: the values change when the inputs are not contiguous, or not all of them "
                                "want a gradient")
        used = [dy is not None for dy in given]
        for slope, g in zip(slopes, backward(op, arrays, values, given)):
            if g is not None:
                worst = max(worst, float(excess(slope[used].sum(axis=0), g).max(initial=0)))
    return worst


def against(case, twin):
    """The worst relative error, in values and gradients, between a case's op and twin(inputs, options, dys)."""
    ours = run_op(case.op, case.inputs, case.options)
    return compare(ours, twin(case.inputs, case.options, random_like(ours.outputs)))


def compare(ours, theirs):
    """The worst relative error between two Results; inf where they differ in number or shape."""
    if len(ours.outputs) != len(theirs.outputs) or len(ours.gradients) != len(theirs.gradients):
        return float("inf")
    pairs = zip(ours.outputs + ours.gradients, theirs.outputs + theirs.gradients)
    return max((relative_error(a, b) for a, b in pairs if a is not None), default=0.0)
