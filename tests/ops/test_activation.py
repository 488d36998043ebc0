"""tanh, sigmoid, relu, silu, gelu: at the ends of the line."""
import numpy as np
import pytest

import minitx as mt
from minitx import ops

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
