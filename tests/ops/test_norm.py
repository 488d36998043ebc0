"""layer_norm and rms_norm."""
import numpy as np
import pytest
from double import here

import minitx as mt
from minitx import ops

NORMS = [ops.layer_norm, ops.rms_norm]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("big", [1e18, 1e-18, 1e-30, 0.0])
def test_large_and_small_rows_in_float32(norm, big):
    row = np.array([[1.0, -2, 3, 0.5]])
    x = mt.tensor((row * big).astype(np.float32), requires_grad=True)
    y = norm(x)
    y.backward(np.float32([[1, 2, 3, 4]]))
    wide = norm((row * big).astype(np.float32).astype(float)).numpy()
    np.testing.assert_allclose(y.numpy(), wide, rtol=1e-5, atol=1e-6)
    assert np.isfinite(here(x.grad)).all() and y.dtype == x.grad.dtype == np.float32
    assert (big > 1e17) <= (np.abs(y.numpy()).max() > 1)


def test_layer_norm_is_two_pass():
    x = (1e3 + 1e-2 * np.arange(8)).astype(np.float32)[None]        # E[x^2] - E[x]^2 is pure noise here
    wide = ops.layer_norm(x.astype(float), eps=1e-12).numpy()
    np.testing.assert_allclose(ops.layer_norm(x, eps=1e-12).numpy(), wide, atol=0.01)


def test_constant_rows_become_the_bias():
    x = mt.tensor(np.full((2, 3), 7.0), requires_grad=True)
    y = ops.layer_norm(x, np.ones(3), np.array([1.0, 2.0, 3.0]))
    y.backward(np.array([[1.0, 0, 0], [1, 1, 1]]))
    assert y.tolist() == [[1, 2, 3]] * 2
    np.testing.assert_allclose(x.grad, np.array([[2, -1, -1], [0, 0, 0]]) / 3 / np.sqrt(1e-5), atol=1e-12)


def test_the_variance_is_biased_and_eps_lies_inside_the_root():
    np.testing.assert_allclose(ops.layer_norm(np.array([[1.0, 0, 0, 0]])).numpy(),
                               [[1.7320, -0.5773, -0.5773, -0.5773]], atol=5e-5)
    np.testing.assert_allclose(ops.rms_norm(np.array([[3.0, 4.0]]), eps=12.5).numpy(), [[0.6, 0.8]])


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (4,), (2, 3, 4), (2, 1), (2, 0, 4)])
@pytest.mark.parametrize("norm", NORMS)
def test_shapes(norm, shape):
    x = mt.tensor(np.random.default_rng(0).normal(size=shape), requires_grad=True)
    weight, bias = (mt.tensor(np.ones(shape[-1]), requires_grad=True) for _ in "wb")
    parameters = [weight, bias] if norm is ops.layer_norm else [weight]
    y = norm(x, *parameters)
    y.backward(np.ones(shape))
    assert y.shape == x.grad.shape == shape
    for p in parameters:
        assert p.grad.shape == p.shape
        if not x.size:
            assert not p.grad.any()
    np.testing.assert_array_equal(norm(x).shape, shape)


def test_weight_or_bias_alone():
    x, b = np.random.default_rng(0).normal(size=(2, 3)), mt.tensor(np.ones(3), requires_grad=True)
    y = ops.layer_norm(x, None, b)
    y.sum().backward()
    np.testing.assert_allclose(y.numpy(), ops.layer_norm(x).numpy() + 1)
    assert b.grad.tolist() == [2, 2, 2]
    np.testing.assert_allclose(ops.layer_norm(x, 2 * np.ones(3)).numpy(), 2 * ops.layer_norm(x).numpy())


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("weight", [(3,), (1,), (2, 4), ()])
def test_a_weight_of_another_width(norm, weight):
    with pytest.raises(ValueError, match=rf"{norm.__name__}: .*\(2, 4\)"):
        norm(mt.ones(2, 4), mt.ones(weight))


@pytest.mark.parametrize("norm", NORMS)
def test_a_number_has_no_row(norm):
    with pytest.raises(ValueError, match=norm.__name__):
        norm(mt.tensor(1.0))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("bad", [2.0, 3, [1.0, 2.0], "ab"], ids=str)
def test_numbers_and_lists_have_no_rows(norm, bad):
    for call in (lambda: norm(bad), lambda: norm(bad, mt.ones(2)), lambda: norm(mt.ones(3, 2), bad)):
        with pytest.raises((TypeError, ValueError), match=f"(?s)^{norm.__name__}: (?!.*cuda)"):
            call()
