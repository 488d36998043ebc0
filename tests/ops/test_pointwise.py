"""exp, log, sqrt, abs, erf, sin, cos."""
import math

import numpy as np
import pytest

import minitx as mt
from minitx import ops

CLOSED = {
    "exp": (math.exp, math.exp), "log": (math.log, lambda x: 1 / x),
    "sqrt": (math.sqrt, lambda x: 0.5 / math.sqrt(x)), "abs": (abs, lambda x: math.copysign(1, x)),
    "sin": (math.sin, math.cos), "cos": (math.cos, lambda x: -math.sin(x)),
    "erf": (math.erf, lambda x: 2 / math.sqrt(math.pi) * math.exp(-x * x)),
}


@pytest.mark.parametrize("name", CLOSED)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_value_and_slope(name, shape):
    x = mt.tensor(np.random.default_rng(0).uniform(0.2, 2.0, shape), requires_grad=True)
    value, slope = (np.vectorize(f, otypes=[float])(x.numpy()) for f in CLOSED[name])
    y = getattr(ops, name)(x)
    y.backward(np.full(shape, 3.0))
    np.testing.assert_allclose(y.numpy(), value, rtol=1e-14)
    np.testing.assert_allclose(x.grad, 3 * slope, rtol=1e-14)


def test_the_slope_of_abs_at_zero_is_zero():
    x = mt.tensor([-2.0, 0.0, 2.0], requires_grad=True)
    abs(x).sum().backward()
    assert x.grad.tolist() == [-1, 0, 1]


def test_integers_become_floats():
    assert ops.exp(np.array([0, 1])).dtype == np.float32 and ops.abs(np.array([-3])).dtype == np.int64
