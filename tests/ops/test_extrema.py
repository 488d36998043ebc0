"""max, min, logsumexp."""
import numpy as np
import pytest

import minitx as mt
from minitx import ops


@pytest.mark.parametrize("op", [ops.max, ops.min])
def test_ties_share_equally(op):
    x = mt.tensor(np.array([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]), requires_grad=True)
    op(x, axis=1).backward(np.array([3.0, 6.0]))
    assert x.grad.tolist() == [[1, 1, 1], [2, 2, 2]]
    x.grad = None
    op(x).backward()
    assert x.grad.sum() == 1 and sorted(x.grad.ravel())[-3:] == [1 / 3] * 3


def test_max_is_a_method_and_gives_values():
    x = mt.tensor([[1.0, 4.0], [3.0, 2.0]])
    assert x.max().item() == 4 and x.max(axis=0).tolist() == [3, 4] and x.max(axis=0, keepdims=True).shape == (1, 2)


def test_what_max_saved_of_its_output_cannot_be_edited():
    for op in (ops.max, ops.min, ops.logsumexp):
        x = mt.tensor([[1.0, 4.0], [3.0, 2.0]], requires_grad=True)
        y = op(x, axis=0)
        saved = [v for v in vars(y.node).values() if isinstance(v, np.ndarray)]
        if any(np.shares_memory(v, y.data) for v in saved):
            with pytest.raises(ValueError, match="read-only"):
                y.data[0] = 7


@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1)])
def test_logsumexp_of_large_numbers(axis):
    x = mt.tensor(np.array([[1000.0, 1000.0], [-1000.0, 1000.0]]), requires_grad=True)
    y = ops.logsumexp(x, axis)
    y.backward(np.ones(y.shape))
    shift = np.log(np.exp(x.numpy() - 1000).sum(axis=axis)) + 1000
    np.testing.assert_allclose(y.numpy(), shift, rtol=1e-14)
    np.testing.assert_allclose(x.grad, np.exp(x.numpy() - (shift if axis != 1 else shift[:, None])), atol=1e-12)


def test_logsumexp_of_a_row_of_minus_infinity():
    x = mt.tensor(np.array([[-np.inf, -np.inf], [0.0, -np.inf]]), requires_grad=True)
    y = ops.logsumexp(x, axis=-1)
    y.backward(np.ones(2))
    assert y.tolist() == [-np.inf, 0] and x.grad.tolist() == [[0, 0], [1, 0]]


@pytest.mark.parametrize("dtype, big", [(np.float32, 3e38), (np.float64, 1.7e308)])
def test_logsumexp_of_any_finite_numbers(dtype, big):
    x = mt.tensor(np.array([[big, -big, 0], [-big, -big, -big]], dtype), requires_grad=True)
    y = ops.logsumexp(x, axis=-1)
    y.backward(np.ones(2, dtype))
    np.testing.assert_allclose(y.numpy(), np.array([big, -big], dtype), rtol=1e-6)
    np.testing.assert_allclose(x.grad, [[1, 0, 0], [1 / 3] * 3], rtol=1e-6)
