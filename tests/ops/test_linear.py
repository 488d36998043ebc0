"""matmul and linear."""
import numpy as np
import pytest
from double import here

import minitx as mt
from minitx import ops
from minitx.autograd import unbroadcast
from minitx.ops.linear import Matmul


@pytest.mark.parametrize("a, b", [
    ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 3), (3, 4)), ((5, 2, 3), (3,)), ((3,), (5, 3, 2)),
    ((5, 1, 2, 3), (4, 3, 2)), ((2, 0), (0, 3)), ((0, 3), (3, 2)), ((1, 2, 3), (5, 3, 2))])
def test_matmul_has_numpys_shapes_and_gradients_of_its_inputs(a, b):
    x, y = (mt.tensor(np.random.default_rng(0).normal(size=shape), requires_grad=True) for shape in (a, b))
    out = x @ y
    np.testing.assert_allclose(out.numpy(), x.numpy() @ y.numpy(), rtol=1e-13)
    dy = np.random.default_rng(1).normal(size=out.shape)
    out.backward(dy)
    assert x.grad.shape == a and y.grad.shape == b
    for leaf, change in ((x, lambda h: (x.numpy() + h) @ y.numpy()), (y, lambda h: x.numpy() @ (y.numpy() + h))):
        h = np.random.default_rng(2).normal(size=leaf.shape)
        slope = ((change(h) - change(0 * h)) * dy).sum()            # exact, the product being linear in each
        np.testing.assert_allclose((here(leaf.grad) * h).sum(), slope, rtol=1e-9, atol=1e-12)


def test_matmul_of_numbers_is_an_error():
    with pytest.raises((TypeError, ValueError), match="matmul"):
        mt.ones(2) @ mt.tensor(2.0)


@pytest.mark.parametrize("lead", [(), (4,), (2, 3), (0,), (2, 0, 3)])
@pytest.mark.parametrize("inner", [3, 0])
def test_linear_over_any_leading_axes(lead, inner):
    draw = np.random.default_rng(0).normal
    x, w, b = (mt.tensor(draw(size=s), requires_grad=True) for s in (lead + (inner,), (2, inner), (2,)))
    y = ops.linear(x, w, b)
    np.testing.assert_allclose(y.numpy(), x.numpy() @ w.numpy().T + b.numpy(), rtol=1e-13)
    dy = draw(size=y.shape)
    y.backward(dy)
    rows = dy.reshape(-1, 2)
    np.testing.assert_allclose(x.grad, dy @ w.numpy(), rtol=1e-13)
    np.testing.assert_allclose(w.grad, rows.T @ x.numpy().reshape(len(rows), inner), rtol=1e-13)
    np.testing.assert_allclose(b.grad, rows.sum(0), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("weight, bias",
                         [((2, 4), None), ((3,), None), ((2, 3), (3,)), ((2, 3), (1,)), ((1, 2, 3), None)])
def test_linear_names_the_shapes(weight, bias):
    with pytest.raises(ValueError, match=r"(?s)linear: .*\(5, 3\)"):
        ops.linear(mt.ones(5, 3), mt.ones(weight), None if bias is None else mt.ones(bias))


@pytest.mark.parametrize("bad", [2.0, 3, [1.0, 2.0], "ab", None], ids=str)
def test_numbers_and_lists_are_no_matrices(bad):
    x = mt.ones(2)
    for call in (lambda: ops.matmul(bad, x), lambda: ops.matmul(x, bad), lambda: ops.matmul(bad, bad)):
        with pytest.raises((TypeError, ValueError), match="(?s)^matmul: (?!.*cuda)"):
            call()
    for call in (lambda: ops.linear(bad, mt.ones(2, 2)), lambda: ops.linear(x, bad),
                 lambda: ops.linear(x, mt.ones(2, 2), 1.0 if bad is None else bad)):
        with pytest.raises((TypeError, ValueError), match="(?s)^linear: (?!.*cuda)"):
            call()


@pytest.mark.parametrize("a, b", [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((5, 2, 3), (3,)), ((3,), (5, 3, 2))])
def test_a_raw_matmul_gives_a_vector_a_vector(a, b):
    draw, op = np.random.default_rng(0).normal, Matmul()
    x, y = draw(size=a), draw(size=b)
    out = np.asarray(op.forward(x, y))
    dx, dy = op.backward(np.ones(out.shape))
    if len(a) < 3 and len(b) < 3:
        assert np.shape(dx) == a and np.shape(dy) == b
    np.testing.assert_allclose((unbroadcast(dx, a) * x).sum(), out.sum(), rtol=1e-12)
    np.testing.assert_allclose((unbroadcast(dy, b) * y).sum(), out.sum(), rtol=1e-12)
