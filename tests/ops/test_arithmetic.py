"""add, sub, mul, div, neg, pow."""
import numpy as np
import pytest

import minitx as mt
from minitx import ops

BINARY = [ops.add, ops.sub, ops.mul, ops.div, ops.pow, ops.maximum, ops.minimum]


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("left, right",
                         [((), (2, 3)), ((3,), (2, 1)), ((1, 1), ()), ((2, 1, 3), (4, 1)), ((0, 3), (1, 3))])
def test_broadcasting_is_undone(op, left, right):
    a, b = (mt.tensor(np.full(shape, v), requires_grad=True) for shape, v in ((left, 2.0), (right, 3.0)))
    y = op(a, b)
    y.backward(np.ones(y.shape))
    assert y.shape == np.broadcast_shapes(left, right)
    for x in (a, b):
        assert type(x.grad) is type(x.data) and x.grad.shape == x.shape
        copies = y.size / x.size if x.size else 0
        one = mt.tensor(2.0, True, np.float64), mt.tensor(3.0, True, np.float64)
        op(*one).backward()
        np.testing.assert_allclose(x.grad, copies * one[x is b].grad)


def test_integers_stay_integers_until_they_are_divided():
    assert (mt.tensor([3]) - mt.tensor([5])).dtype == np.int64 and (-mt.tensor([3])).tolist() == [-3]
    assert (mt.tensor([1]) / 2).tolist() == [0.5] and (mt.tensor([2]) ** 3).tolist() == [8]


def test_numbers_alone():
    y = ops.add(1, 2.5)
    assert isinstance(y, mt.Tensor) and y.item() == 3.5 and y.dtype == np.float32


def test_pow_of_a_negative_base_and_a_whole_exponent():
    x = mt.tensor([-2.0, -1.0], requires_grad=True)
    (x ** 3).sum().backward()
    assert x.grad.tolist() == [12, 3]


@pytest.mark.host("the warnings are NumPy's")
def test_numpys_own_warning_passes_through():
    with pytest.warns(RuntimeWarning, match="divide"):
        assert (mt.tensor([1.0]) / mt.tensor([0.0])).item() == np.inf


def test_strings_and_lists_are_refused_by_name():
    for bad in ("2", [1.0], object()):
        with pytest.raises(TypeError, match="mul"):
            mt.ones(1) * bad
