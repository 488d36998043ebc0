"""The second derivation: every op once more, put together from smaller ones, whose backwards then give its gradient.

A layer is spelled out in sums and products; an op that moves numbers about (transpose, getitem, concatenate) becomes a
product with a matrix of zeros and ones, or a look-up by number; a pointwise function becomes another that equals it. No
twin calls the op that it is the twin of, so a mistake would have to be made twice, in two ways. They are meant for
``cases()``; at ``edges()``, where a convention decides, they have no say.

Without a twin are add, mul, exp and log, which all else rests on, and to, which computes nothing.
"""
import functools

from minitx.proof import opcheck
from minitx.proof.composed.arrays import ARRAYS
from minitx.proof.composed.layers import LAYERS
from minitx.proof.composed.pointwise import POINTWISE
from minitx.proof.tape import through_tensors

COMPOSED = POINTWISE | ARRAYS | LAYERS
TOLERANCE = 1e-12


def against(case):
    """The worst relative error, in values and gradients, between a case's op and its twin; None without one."""
    twin = COMPOSED.get(case.op.name)
    return None if twin is None else opcheck.against(case, functools.partial(through_tensors, twin))
