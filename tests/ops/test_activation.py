"""tanh, sigmoid, relu, silu, gelu: at the ends of the line."""
import numpy as np
import pytest

import minitx as mt
from minitx import backend, ops

GATES = {"gelu": ops.gelu, "gelu_tanh": lambda x: ops.gelu(x, "tanh"), "silu": ops.silu, "relu": ops.relu}
BIG = [1e4, 1e19, 3e38]


def both(function, values, dtype):
    x = mt.tensor(np.array(values, dtype), requires_grad=True)
    y = function(x)
    y.backward(np.ones(len(values), dtype))
    assert y.dtype == x.grad.dtype == dtype
    return y.numpy(), x.grad


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("function", GATES.values(), ids=GATES)
def test_far_from_zero_a_gate_is_open_or_shut(function, dtype):
    y, dx = both(function, [*BIG, np.inf], dtype)
    np.testing.assert_array_equal(y, np.array([*BIG, np.inf], dtype))
    np.testing.assert_array_equal(dx, 1)
    y, dx = both(function, [-big for big in BIG] + [-np.inf], dtype)
    np.testing.assert_array_equal(y, 0)
    np.testing.assert_array_equal(dx, 0)


@pytest.mark.parametrize("function", [*GATES.values(), ops.tanh, ops.sigmoid], ids=[*GATES, "tanh", "sigmoid"])
def test_nan_stays_nan(function):
    y, _ = both(function, [np.nan, 1.0], np.float64)
    assert np.isnan(y).tolist() == [True, False]


@pytest.mark.parametrize("function, ends", [(ops.tanh, [-1, 1]), (ops.sigmoid, [0, 1])])
def test_squeezing_gates_have_flat_ends(function, ends):
    for big in (*BIG, np.inf):
        y, dx = both(function, [-big, big], np.float32)
        assert y.tolist() == ends and dx.tolist() == [0, 0]


def test_relu_at_zero():
    _, dx = both(ops.relu, [-1.0, -0.0, 0.0, 1.0], np.float64)
    assert dx.tolist() == [0, 0, 0, 1]
    assert ops.relu(np.array([-2, 3])).tolist() == [0, 3]


def test_gelu_at_one():
    assert ops.gelu(np.float64(1) * np.ones(1)).item() == pytest.approx(0.8413447, abs=5e-8)
    assert ops.gelu(np.ones(1), "tanh").item() == pytest.approx(0.8411920, abs=5e-8)
    with pytest.raises(ValueError, match="'none' or 'tanh'.*'quick'"):
        ops.gelu(mt.ones(1), "quick")


def test_gelu_keeps_the_small_tail_in_float32():
    x = np.float32([-3.0, -2.0, -1.0])
    np.testing.assert_allclose(ops.gelu(x).numpy(), ops.gelu(x.astype(float)).numpy(), atol=3e-7)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 300, 200), (0, 5)])
def test_gelu_adds_a_bias_first(shape, approximate):
    x, bias = (mt.randn(*s, requires_grad=True) for s in (shape, shape[-1:]))
    dy = mt.randn(*shape)
    y, after = ops.gelu(x, approximate, bias), ops.gelu(x.detach() + bias.data, approximate)
    np.testing.assert_allclose(y.numpy(), after.numpy(), rtol=1e-5, atol=1e-6)
    y.backward(dy)
    total = backend.to_numpy(x.grad).reshape(-1, shape[-1]).sum(axis=0, dtype=np.float64)
    np.testing.assert_allclose(backend.to_numpy(bias.grad), total, rtol=1e-4, atol=1e-4)


def test_gelu_with_a_bias_that_does_not_fit():
    for x, bias in ((mt.ones(3, 4), mt.ones(3)), (mt.ones(3, 4), mt.ones(1, 4)), (mt.ones(4), mt.ones(())),
                    (mt.ones(()), mt.ones(())), (mt.ones(300, 400), mt.ones(1))):
        with pytest.raises(ValueError, match=r"gelu: .*bias must have shape \(C,\)"):
            ops.gelu(x, bias=bias)
    for given in (mt.ones(4), np.ones(4), None):                # in the place of `approximate`
        with pytest.raises(TypeError, match="'none' or 'tanh', not a .*bias="):
            ops.gelu(mt.ones(3, 4), given)
    with pytest.raises(TypeError, match="gelu: .*float64"):
        ops.gelu(mt.ones(3, 4), bias=mt.ones(4, dtype="float64"))


def test_a_bias_alone_may_want_a_gradient():
    for shape in ((3, 5), (300, 400)):
        x, bias = mt.randn(*shape), mt.zeros(shape[-1], requires_grad=True)
        ops.gelu(x, bias=bias).sum().backward()
        x = mt.tensor(x, requires_grad=True)
        ops.gelu(x).sum().backward()
        np.testing.assert_allclose(backend.to_numpy(bias.grad), backend.to_numpy(x.grad).sum(axis=0), rtol=1e-4, atol=1e-4)
