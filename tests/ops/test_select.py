"""where, masked_fill, clip, maximum, minimum."""
import numpy as np
import pytest

import minitx as mt
from minitx import ops


def leaf(*values):
    return mt.tensor(np.array(values, float), requires_grad=True)


def test_where():
    a, b = leaf(1.0, 2.0), mt.tensor(np.array([[3.0], [4.0]]), requires_grad=True)
    y = ops.where(np.array([True, False]), a, b)
    y.backward(np.array([[1.0, 2.0], [3.0, 4.0]]))
    assert y.tolist() == [[1, 3], [1, 4]] and a.grad.tolist() == [4, 0] and b.grad.tolist() == [[2], [4]]
    assert ops.where(mt.tensor([True, False]), 1.0, mt.zeros(2)).tolist() == [1, 0]
    assert ops.where(np.array([True, False]), mt.ones(2), 0.0).dtype == np.float32


@pytest.mark.parametrize("kind", [int, float, np.int8, np.float32])
def test_only_bool_chooses(kind):
    mask = np.ones(2, kind)
    for call in (lambda: ops.where(mask, mt.ones(2), mt.ones(2)), lambda: ops.masked_fill(mt.ones(2), mask, 0.0)):
        with pytest.raises(TypeError, match=r"(mask|condition)\.astype\(bool\)"):
            call()


def test_masked_fill_fills_where_true():
    x = mt.tensor(np.array([[1.0, 2.0], [3.0, 4.0]]), requires_grad=True)
    y = ops.masked_fill(x, np.array([True, False]), -np.inf)
    y.backward(np.ones((2, 2)))
    assert y.tolist() == [[-np.inf, 2], [-np.inf, 4]] and x.grad.tolist() == [[0, 1], [0, 1]]
    assert ops.masked_fill(mt.ones(2), mt.tensor([True, False]), np.float64(5)).dtype == np.float32
    with pytest.raises(ValueError, match=r"masked_fill: .*\(2, 2\)"):
        ops.masked_fill(x, np.ones((2, 2, 2), bool), 0.0)


def test_clip_passes_at_its_bounds():
    x = leaf(-1.0, 0.0, 3.0, 6.0, 7.0)
    ops.clip(x, 0.0, 6.0).sum().backward()
    assert x.grad.tolist() == [0, 1, 1, 1, 0]
    assert ops.clip(x, min=3.0).tolist() == [3, 3, 3, 6, 7] and ops.clip(x, max=3.0).tolist() == [-1, 0, 3, 3, 3]
    assert ops.clip(x).tolist() == x.tolist()
    assert ops.clip(mt.ones(2), np.float64(0), np.float64(0.5)).dtype == np.float32
    assert ops.clip(mt.tensor([1, 2]), 0.5).dtype == np.float32
    filled = ops.masked_fill(mt.tensor([1, 2]), np.array([True, False]), 0.5)
    assert filled.tolist() == [0.5, 2] and filled.dtype == np.float32


@pytest.mark.parametrize("op, a, b, da", [
    (ops.maximum, 2.0, 1.0, 1), (ops.maximum, 1.0, 1.0, 0.5), (ops.maximum, 0.0, 1.0, 0),
    (ops.minimum, 2.0, 1.0, 0), (ops.minimum, 1.0, 1.0, 0.5), (ops.minimum, 0.0, 1.0, 1)])
def test_ties_share(op, a, b, da):
    a, b = leaf(a), leaf(b)
    op(a, b).backward()
    assert a.grad.tolist() == [da] and b.grad.tolist() == [1 - da]


def test_maximum_with_a_number_on_either_side():
    x = leaf(-1.0, 2.0)
    assert ops.maximum(0.0, x).tolist() == ops.maximum(x, 0).tolist() == [0, 2]
    assert ops.minimum(0, x).tolist() == [-1, 0]


@pytest.mark.parametrize("condition", [[True, False], np.ones(2), np.ones(2, int)], ids=str)
def test_where_speaks_of_its_condition(condition):
    with pytest.raises(TypeError, match="(?s)^where: (?=.*condition)(?!.*mask)(?!.*bias)"):
        ops.where(condition, mt.ones(2), mt.zeros(2))


NUMBERS_WANTED = {
    "masked_fill": lambda value: ops.masked_fill(mt.ones(2), np.array([True, False]), value),
    "clip": lambda value: ops.clip(mt.ones(2), value), "clip, max": lambda value: ops.clip(mt.ones(2), max=value),
}


@pytest.mark.parametrize("value", [np.zeros(2), np.zeros(1), mt.zeros(2), [0.0, 1.0], (0.0,), "0"], ids=repr)
@pytest.mark.parametrize("name", NUMBERS_WANTED)
def test_arrays_where_numbers_are_meant(name, value):
    with pytest.raises(TypeError, match=f"^{name.partition(',')[0]}: "):
        NUMBERS_WANTED[name](value)


@pytest.mark.parametrize("value", [np.array(0.5), mt.tensor(np.array(0.5)), np.float64(0.5), mt.tensor(0.5)], ids=repr)
@pytest.mark.parametrize("name", NUMBERS_WANTED)
def test_a_number_in_an_array_is_a_weak_number(name, value):
    y = NUMBERS_WANTED[name](value)
    assert y.dtype == np.float32 and y.tolist() == NUMBERS_WANTED[name](0.5).tolist()
