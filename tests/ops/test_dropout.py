"""dropout."""
import numpy as np
import pytest

import minitx as mt
from minitx import backend, ops
from minitx.ops.dropout import Dropout


def test_its_statistics():
    mt.manual_seed(1)
    x = mt.ones(200_000, requires_grad=True)
    y = ops.dropout(x, 0.2)
    values, counts = np.unique(y.numpy(), return_counts=True)
    np.testing.assert_allclose(values, [0, 1.25], rtol=1e-6)
    assert abs(counts[0] / 200_000 - 0.2) < 5 * np.sqrt(0.16 / 200_000)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad, y.numpy())                # the same elements on the way back


@pytest.mark.parametrize("p, training", [(0.0, True), (0.5, False), (1.0, False)])
def test_nothing_happens_and_nothing_is_drawn(p, training):
    mt.manual_seed(2)
    x = mt.ones(3, requires_grad=True)
    y = ops.dropout(x, p, training)
    y.sum().backward()
    assert y.tolist() == [1, 1, 1] and x.grad.tolist() == [1, 1, 1]
    after = backend.generator().random()
    mt.manual_seed(2)
    assert backend.generator().random() == after


def test_an_array_becomes_a_tensor():
    for p in (0.0, 0.5):
        assert isinstance(ops.dropout(np.ones(3), p), mt.Tensor)


def test_everything_dropped():
    x = mt.tensor([1.0, 2.0], requires_grad=True)
    y = ops.dropout(x, 1.0)
    y.sum().backward()
    assert y.tolist() == [0, 0] and x.grad.tolist() == [0, 0]


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_p_is_a_probability(p):
    for training in (True, False):
        with pytest.raises(ValueError, match="dropout: .*0.*1"):
            ops.dropout(mt.ones(2), p, training)


def test_the_seed_decides():
    draws = []
    for seed in (3, 3, 4):
        mt.manual_seed(seed)
        draws.append(ops.dropout(mt.ones(50), 0.5).tolist())
    assert draws[0] == draws[1] != draws[2]


def test_the_class_takes_the_draw():
    y = Dropout.apply(mt.ones(2), None, keep=np.array([True, False]), p=0.75)
    assert y.tolist() == [4, 0] and ops.dropout(mt.ones(2), np.float64(0.5)).dtype == np.float32


@pytest.mark.parametrize("bad", [[1.0, 2.0], "ab", None], ids=str)
@pytest.mark.parametrize("p, training", [(0.5, True), (0.0, True), (0.5, False)])
def test_what_is_no_array(bad, p, training):
    with pytest.raises((TypeError, ValueError), match="(?s)^dropout: (?!.*cuda)"):
        ops.dropout(bad, p, training)


def test_a_number_is_dropped_or_kept():
    assert ops.dropout(2.0, 1.0).item() == 0 and ops.dropout(2.0, 0.0).item() == 2
    assert ops.dropout(2, 0.5).item() in (0, 4)


@pytest.mark.parametrize("p, training", [(0.5, True), (1.0, True), (0.0, True), (0.5, False)])
def test_a_residual_is_added_to_what_is_left(p, training):
    x, residual = mt.randn(3, 4, requires_grad=True), mt.randn(3, 4, requires_grad=True)
    mt.manual_seed(5)
    dropped = ops.dropout(x.detach(), p, training).numpy()
    mt.manual_seed(5)
    y = ops.dropout(x, p, training, residual)
    np.testing.assert_allclose(y.numpy(), dropped + residual.numpy(), rtol=1e-6)
    y.backward(mt.ones(3, 4))
    assert (residual.grad == 1).all()
    np.testing.assert_allclose(x.grad * x.data, dropped, rtol=1e-6)
    assert not np.shares_memory(backend.to_numpy(x.grad), backend.to_numpy(residual.grad))


def test_a_residual_alone_may_want_a_gradient():
    residual = mt.ones(2, requires_grad=True)
    (ops.dropout(mt.ones(2), 0.5, residual=residual) * 3).sum().backward()
    assert residual.grad.tolist() == [3, 3]


@pytest.mark.parametrize("p, training", [(0.5, True), (0.0, True), (0.5, False)])
def test_a_residual_of_another_shape(p, training):
    for wrong in (mt.ones(4), mt.ones(1, 3, 4), 1.0):
        with pytest.raises(ValueError, match=r"dropout: residual .* must have the shape of x \(3, 4\)"):
            ops.dropout(mt.ones(3, 4), p, training, wrong)
