"""sum, mean, var, std, prod."""
import numpy as np
import pytest
from double import here

import minitx as mt
from minitx import ops

ALL = {"sum": np.sum, "mean": np.mean, "var": np.var, "std": np.std, "prod": np.prod, "max": np.max, "min": np.min}


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (2, 0), (-1, -3), [1, 0], ()], ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_axes_are_numpys(name, axis, keepdims):
    x = mt.tensor(np.random.default_rng(0).normal(size=(2, 3, 4)), requires_grad=True)
    axes = tuple(axis) if isinstance(axis, list) else axis
    y = getattr(ops, name)(x, axis, keepdims)
    np.testing.assert_allclose(y.numpy(), ALL[name](x.numpy(), axis=axes, keepdims=keepdims), rtol=1e-13, atol=1e-15)
    y.backward(np.ones(y.shape))
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("name", [*ALL, "logsumexp"])
def test_the_whole_of_a_number_is_itself(name):
    x = mt.tensor(3.0, requires_grad=True)
    y = getattr(ops, name)(x)
    y.backward()
    assert type(y.data) is type(x.grad) is type(x.data) and y.shape == x.grad.shape == ()
    assert (y.item(), x.grad) == {"var": (0, 0), "std": (0, 0)}.get(name, (3, 1))


@pytest.mark.parametrize("name", [*ALL, "logsumexp"])
def test_an_axis_that_is_not_there(name):
    for axis in (2, -3):
        with pytest.raises(ValueError, match=rf"{name}: .*\(2, 3\)"):
            getattr(ops, name)(mt.ones(2, 3), axis)


def test_empty_arrays():
    assert ops.sum(np.zeros((0, 3)), axis=0).tolist() == [0, 0, 0] and ops.prod(np.zeros(0)).item() == 1
    for op in (ops.sum, ops.prod):
        x = mt.zeros(0, 3, requires_grad=True)
        op(x).backward()
        assert x.grad.shape == (0, 3)
    for op in (ops.max, ops.min):
        with pytest.raises(ValueError, match="max|min"):
            op(mt.zeros(0))


def test_small_integers_add_up_in_wide_ones():
    assert ops.sum(np.full(3, 100, np.int8)).item() == 300 and ops.sum(np.ones(300, bool)).item() == 300
    assert ops.mean(np.array([1, 2])).item() == 1.5 and ops.mean(np.array([1, 2])).dtype == np.float32


@pytest.mark.parametrize("row, dx", [
    ([0, 2, 3], [6, 0, 0]), ([0, 0, 3], [0, 0, 0]), ([4, 0], [0, 4]), ([1, 2, 3], [6, 3, 2]), ([5], [1])])
def test_prod_with_zeros(row, dx):
    x = mt.tensor(np.array([row], float), requires_grad=True)
    ops.prod(x, axis=1).sum().backward()
    assert x.grad.tolist() == [dx]


@pytest.mark.parametrize("name", ["std", "var"])
def test_constant_rows_have_no_spread_and_no_gradient(name):
    x = mt.tensor(np.float32([[3, 3, 3], [1, 2, 3]]), requires_grad=True)
    y = getattr(ops, name)(x, axis=-1)
    y.sum().backward()
    assert y.tolist()[0] == 0 and x.grad[0].tolist() == [0, 0, 0] and np.isfinite(here(x.grad)).all() and x.grad[1].any()


def test_variance_is_two_pass():
    x = (1e3 + 1e-2 * np.arange(8)).astype(np.float32)              # E[x^2] - E[x]^2 is pure noise here
    np.testing.assert_allclose(ops.var(x).item(), x.astype(float).var(), rtol=0.02)


def test_a_float32_mean_of_many():
    x = np.full(10 ** 6, 0.1, np.float32)
    assert ops.mean(x).item() == pytest.approx(0.1, rel=1e-6)


@pytest.mark.parametrize("name", ["mean", "var", "std"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_mean_of_nothing_is_nan_and_has_an_empty_gradient(name):
    x = mt.zeros(0, 3, requires_grad=True)
    y = getattr(ops, name)(x, axis=0)
    assert y.shape == (3,) and np.isnan(y.numpy()).all()
    y.backward(np.ones(3))
    assert x.grad.shape == (0, 3)


@pytest.mark.host("the warnings are NumPy's")
@pytest.mark.parametrize("name", ["mean", "var", "std"])
def test_the_mean_of_nothing_warns_as_numpy_does(name):
    with pytest.warns(RuntimeWarning):
        getattr(ops, name)(mt.zeros(0, 3), axis=0)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "logsumexp"])
@pytest.mark.parametrize("axis", [0, -1])
def test_the_axis_that_numpy_sees_in_a_number(name, axis):
    x = mt.tensor(3.0, requires_grad=True)
    y = getattr(ops, name)(x, axis)
    y.backward()
    assert y.shape == () and y.item() == 3 and x.grad == 1
