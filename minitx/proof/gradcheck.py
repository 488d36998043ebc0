"""gradcheck holds a backward against finite differences, entry by entry; directional does so for whole models."""
from typing import NamedTuple

import numpy as np

from minitx.proof.differences import GradientError, differences, frozen, random_like, relative_error, scattered
from minitx.proof.subject import Subject


class Checked(NamedTuple):
    """One input or parameter that agreed: its worst entry, as a multiple of the tolerance."""
    name: str
    shape: tuple
    worst: float


class Report(NamedTuple):
    """What gradcheck returns when everything agrees: prints as a small table."""
    name: str
    checked: tuple

    @property
    def worst(self):
        """The largest error of all, as a multiple of the tolerance (0: exact, 1: just allowed)."""
        return max(row.worst for row in self.checked)

    def __str__(self):
        entries = sum(int(np.prod(row.shape)) for row in self.checked)
        width = max(len(row.name) for row in self.checked)
        return "\n".join([
            f"gradcheck {self.name}: {entries} entries agree with finite differences",
            *(f"  {row.name:{width}}  worst error {row.worst:.1e} of the tolerance  {row.shape}"
              for row in self.checked)])


class Directional(NamedTuple):
    """What directional returns: the two slopes along the random direction, and their relative difference."""
    name: str
    numeric: float
    ours: float
    error: float

    def __str__(self):
        return (f"directional {self.name}: finite differences {self.numeric:.12g}, backward {self.ours:.12g}, "
                f"relative error {self.error:.1e}")


def gradcheck(fn, *inputs, seed=0):
    """Compare fn's backward with central differences at every entry of every float input; return a Report.

    fn      a function of Tensors that returns a Tensor or a tuple of them, or a Module: then its parameters are
            checked too, by name; so are those of a Module among the inputs
    inputs  float64 arrays and Tensors are checked (close over one to leave it out: ``lambda x: fn(x, w)``); bools,
            integers and all else go through as they are. One tuple of inputs is taken apart, as in PyTorch
    seed    of the random output gradient dy ~ N(0, 1)

    Inputs and dy are read-only for fn. It also runs with non-contiguous inputs, and with each of several outputs alone.
    Under no_grad it records all the same.
    Choose inputs of order 1, at least 0.1 away from kinks (relu at 0) and ties (max).

    GradientError (an AssertionError), naming the input, the index and both numbers, where
    |numeric - ours| > 1e-6 max(|numeric|, |ours|) + 1e-8, and where two calls of fn differ. TypeError for floats other
    than float64, and where there is nothing to check.
    """
    with Subject("gradcheck", fn, inputs) as subject:
        arrays, outputs = subject.arrays, subject.outputs_twice()
        dys = random_like(outputs, seed)
        numeric = differences(subject.values, arrays, dys)
        total = [slopes.sum(axis=0) for slopes in numeric]
        worst = subject.compare(total, subject.gradients(arrays, dys))
        for i in range(len(dys) if len(dys) > 1 else 0):
            alone = [dy if i == j else None for j, dy in enumerate(dys)]
            subject.compare([slopes[i] for slopes in numeric], subject.gradients(arrays, alone), f", output {i} alone")
        apart = [scattered(x) for x in arrays]
        if any(relative_error(y, y0) > 1e-9 for y, y0 in zip(subject.values(apart), outputs)):
            raise GradientError(f"{subject.name}: non-contiguous inputs change the result; does it go by strides?")
        subject.compare(total, subject.gradients(apart, [scattered(dy) for dy in dys]), ", inputs non-contiguous")
        return Report(subject.name, tuple(map(Checked, subject.names, (x.shape for x in arrays), worst)))


def directional(fn, *inputs, seed=0, step=1e-3, tolerance=1e-7):
    """Compare the slope of fn along one random direction through all its parameters and float inputs.

    That takes four forward passes whatever the size, so it does for whole models what gradcheck does for small ones,
    and takes the same arguments. The direction has length 1; [f(-2h) - 8 f(-h) + 8 f(h) - f(2h)] / 12h is exact up to
    h^4. Returns a Directional.

    GradientError where the slopes differ by more than `tolerance`, relative to the larger; it says which input or
    parameter differs most.
    """
    with Subject("directional", fn, inputs) as subject:
        arrays, names = subject.arrays, subject.names
        dys = random_like(subject.outputs_twice(), seed)
        directions = random_like(arrays, seed + 1)
        gradients = subject.gradients(arrays, dys)

        def slopes(directions):
            length = np.sqrt(sum(np.vdot(d, d) for d in directions)) or 1.0
            a, b, c, d = (subject.values([frozen(x + k * step / length * v) for x, v in zip(arrays, directions)])
                          for k in (-2, -1, 1, 2))
            rise = sum(np.vdot(dy, y[0] - y[3] + 8 * (y[2] - y[1])) for dy, *y in zip(dys, a, b, c, d))
            ours = sum(np.vdot(g, v) for g, v in zip(gradients, directions)) / length
            return float(rise / (12 * step)), float(ours)

        numeric, ours = slopes(directions)
        error = _gap(numeric, ours)
        if error > tolerance:
            alone = [slopes([v if i == j else 0 * v for j, v in enumerate(directions)]) for i in range(len(names))]
            i = max(range(len(names)), key=lambda i: _gap(*alone[i]))
            raise GradientError(
                f"{subject.name}: along a random direction finite differences give {numeric:.10g}, backward "
                f"{ours:.10g} (relative error {error:.1e}, allowed {tolerance:.0e}); most in {names[i]} "
                f"{arrays[i].shape}: {alone[i][0]:.10g} and {alone[i][1]:.10g}")
        return Directional(subject.name, numeric, ours, error)


def _gap(numeric, ours):
    """The difference, relative to the larger; inf for NaN."""
    gap = abs(numeric - ours) / max(abs(numeric), abs(ours), np.finfo(float).tiny)
    return float("inf") if np.isnan(gap) else gap
