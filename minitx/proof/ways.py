"""The independent ways to know what an op should give on a case.

    composed      the twin made of smaller ops
    stored        values and gradients that PyTorch computed once, in the repository's tests/reference/
    PyTorch       the same op in PyTorch, where it is installed
    CuPy          NumPy against CuPy: the same op on a GPU, where there is one; where ops run there, on the host

Finite differences are the way that is missing here: they ask nothing but that backward be the derivative of forward.
"""
import functools
import inspect
import warnings
from importlib.util import find_spec
from typing import Callable, NamedTuple

import numpy as np

from minitx import backend, ops
from minitx.autograd import Tensor
from minitx.proof import composed, opcheck, reference, torch_twins
from minitx.proof.differences import is_float, random_like
from minitx.proof.tape import through_tensors


class Known:
    """A case, and what its op gives there. smooth: finite differences and the composed twin hold there.

    Options that have their default value are left out when the op runs, so that its defaults are tried too. `warned` is
    what NumPy warned of, if it did: from then on it is kept quiet.
    """

    def __init__(self, case, smooth=True):
        self.case, self.smooth, self.cls = case, smooth, case.op
        self.options = unless_default(case.op, case.options)
        self.warned = ""
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            try:
                self.ours = self.run(self.cls)
            except RuntimeWarning as warning:
                self.warned = str(warning)
                self.ours = self.run(self.cls)
        self.dys, self.answers = random_like(self.ours.outputs), {}

    def quiet(self):
        """The context that the op runs in on this case."""
        return np.errstate(all="ignore") if self.warned else np.errstate()

    def run(self, cls):
        """Result of a class on this case."""
        with self.quiet():
            return opcheck.run_op(cls, self.case.inputs, self.options)

    def single(self, cls):
        """The dtypes of all that a class gives for float32 inputs."""
        inputs = tuple(x.astype(np.float32) if is_float(x) else x for x in self.case.inputs)
        dys = tuple(dy.astype(np.float32) for dy in self.dys)
        with self.quiet():
            outputs, gradients = opcheck.run_op(cls, inputs, self.options, dys)
        return [None if x is None else x.dtype for x in outputs + gradients]

    @functools.cached_property
    def dtypes(self):
        """The dtypes of all that the op gives for float32 inputs."""
        return self.single(self.cls)

    @functools.cached_property
    def slopes(self):
        """The op's own finite differences, good for every class with the same forward."""
        return opcheck.numeric(self.cls, self.case.inputs, self.options, self.dys)

    def expected(self, way):
        """The Result that a way gives for this case, asked once; None where it has nothing to say."""
        if way not in self.answers:
            with np.errstate(all="ignore"):                 # what a twin warns of on its way is not the op's fault
                self.answers[way] = WAYS[way].result(self)
        return self.answers[way]


def unless_default(cls, options):
    """The options without those that have their default value."""
    parameters = inspect.signature(cls.forward).parameters
    defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    return {name: value for name, value in options.items()
            if name not in defaults or type(value) is not type(defaults[name]) or value != defaults[name]}


def through_apply(known):
    """What the engine makes of the op, as a model runs it, on the default device."""
    inputs = [Tensor(opcheck.there(np.asarray(x))) if type(x) is float else x for x in known.case.inputs]   # in float64
    options = {name: opcheck.there(value) for name, value in known.options.items()}
    return through_tensors(known.cls.apply, inputs, options, known.dys)


class Way(NamedTuple):
    """result: a function of a Known that gives a Result or None; tolerance: the largest relative error allowed."""
    result: Callable
    tolerance: float


def _composed(known):
    twin = _twin(known, composed.COMPOSED) if known.smooth else None
    return None if twin is None else through_tensors(twin, known.case.inputs, known.case.options, known.dys)


def _stored(known):
    return reference.stored(known.case) if ops.OPS.get(known.case.op.name) is known.case.op else None


def _torch(known):
    twin = _twin(known, torch_twins.TORCH) if find_spec("torch") else None
    return None if twin is None else torch_twins.through_torch(twin, known.case.inputs, known.case.options, known.dys)


def _twin(known, twins):
    """The twin of an op of ours; a user's op has none, though it may have the name of one of ours."""
    name = known.case.op.name
    return twins.get(name) if ops.OPS.get(name) is known.case.op else None


def _other_library(known):
    if not backend.cuda.is_available():
        return None
    with backend.on_device("cuda" if backend.default_device() == "cpu" else "cpu"):
        return through_apply(known)


WAYS = {"composed": Way(_composed, composed.TOLERANCE), "stored": Way(_stored, reference.TOLERANCE),
        "PyTorch": Way(_torch, torch_twins.TOLERANCE), "CuPy": Way(_other_library, 1e-10)}
