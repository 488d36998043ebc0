"""softmax and log_softmax."""
import numpy as np
import pytest
from double import here

import minitx as mt
from minitx import ops


def both(function, x, dy=None):
    x = mt.tensor(x, requires_grad=True)
    y = function(x)
    y.backward(np.arange(1.0, y.size + 1).reshape(y.shape).astype(y.dtype) if dy is None else dy)
    return y.numpy(), here(x.grad)


@pytest.mark.parametrize("dtype, big", [(np.float32, 3e38), (np.float64, 1.7e308), (np.float16, 30000)])
@pytest.mark.parametrize("function", [ops.softmax, ops.log_softmax])
def test_any_finite_scores(function, dtype, big):
    rows = np.array([[big, -big, 0], [-big, -big, -big], [big, big, big], [-big, 0, 1], [1e-30, 0, -0.0]], dtype)
    y, dx = both(function, rows, np.eye(5, 3, dtype=dtype))
    assert not np.isnan(y).any() and np.isfinite(dx).all()
    p = y if function is ops.softmax else np.exp(y.astype(float))
    np.testing.assert_allclose(p.sum(-1), 1, rtol=2e-3 if dtype == np.float16 else 1e-6)
    np.testing.assert_allclose(p[0], [1, 0, 0], atol=1e-6)
    np.testing.assert_allclose(p[1:3], 1 / 3, rtol=1e-3)


def test_a_row_of_minus_infinity_alone_is_zero():
    y, dx = both(ops.softmax, np.array([[-np.inf, -np.inf], [0.0, -np.inf]]))
    assert y.tolist() == [[0, 0], [1, 0]] and dx.tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_along_any_axis_with_a_mask(axis):
    x, mask = np.random.default_rng(0).normal(size=(3, 4)), np.random.default_rng(1).random((3, 4)) < 0.6
    mask[:, 1] = mask[2] = False
    y, dx = both(lambda x: ops.softmax(x, axis, mask), x)
    e = np.exp(x) * mask
    total = e.sum(axis=axis, keepdims=True)
    np.testing.assert_allclose(y, e / np.where(total == 0, 1, total), rtol=1e-13)
    assert (y[~mask] == 0).all() and (dx[~mask] == 0).all() and dx[mask].any()


@pytest.mark.parametrize("shape", [(4,), (1, 4), (3, 1), (1,), (3, 4)])
def test_a_mask_broadcasts(shape):
    mask = np.ones(shape, bool)
    mask[..., -1] = False
    y = ops.softmax(mt.ones(3, 4), mask=mask).numpy()
    assert (y[~np.broadcast_to(mask, y.shape)] == 0).all() and y.shape == (3, 4)
    with pytest.raises(ValueError, match=r"softmax: .*\(3, 4\)"):
        ops.softmax(mt.ones(3, 4), mask=np.ones((2, 3, 4), bool))
    for empty in (0, 4), (4, 0):
        with pytest.raises(ValueError, match=r"softmax: .*"):
            ops.softmax(mt.ones(*empty), mask=np.ones((3, *empty), bool))


@pytest.mark.parametrize("kind", [int, float, np.uint8])
def test_a_mask_that_is_not_bool(kind):
    with pytest.raises(TypeError, match=r"(?s)softmax: .*mask\.astype\(bool\).*bias="):
        ops.softmax(mt.ones(3, 4), mask=np.ones((3, 4), kind))


def test_masked_scores_may_hold_anything():
    x = np.array([[1.0, np.nan, np.inf, -np.inf]])
    y, dx = both(lambda x: ops.softmax(x, mask=np.array([True, False, False, False])), x)
    assert y.tolist() == [[1, 0, 0, 0]] and dx.tolist() == [[0, 0, 0, 0]]


@pytest.mark.parametrize("function", [ops.softmax, ops.log_softmax])
@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (0,), (3, 1), (2, 1, 0)])
def test_empty_and_single(function, shape):
    y, dx = both(function, np.zeros(shape))
    assert y.shape == dx.shape == shape and (dx == 0).all()


@pytest.mark.parametrize("function", [ops.softmax, ops.log_softmax])
def test_an_axis_that_is_not_there(function):
    for x in (mt.ones(3), mt.tensor(1.0)):
        with pytest.raises(ValueError, match=function.__name__):
            function(x, axis=1)


def test_log_softmax_keeps_what_softmax_loses():
    y, dx = both(ops.log_softmax, np.array([[1000.0, 0.0]]), np.array([[0.0, 1.0]]))
    assert y.tolist() == [[0, -1000]] and dx.tolist() == [[-1, 1]]


@pytest.mark.parametrize("function, value", [(ops.softmax, 1), (ops.log_softmax, 0)])
def test_a_number_is_its_own_only_choice(function, value):
    y, dx = both(function, np.array(3.0), np.array(2.0))
    assert y == value and dx == 0 and y.shape == dx.shape == ()


def test_a_number_that_may_not_be_chosen():
    y, dx = both(lambda x: ops.softmax(x, mask=np.array(False)), np.array(3.0), np.array(2.0))
    assert y == 0 and dx == 0
