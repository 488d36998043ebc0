"""cross_entropy."""
import math

import numpy as np
import pytest
from double import here

import minitx as mt
from minitx import ops


@pytest.fixture(autouse=True, params=["as it runs", "plain"])
def form(request):
    """Its twin takes arrays of any size: the plain op has its turn too."""
    if request.param == "plain":
        with mt.plain_ops():
            yield
    else:
        yield


def both(logits, targets, dtype=np.float64, **options):
    logits = mt.tensor(np.array(logits, dtype), requires_grad=True)
    loss = ops.cross_entropy(logits, targets, **options)
    loss.backward(np.ones(loss.shape, loss.dtype))
    return loss.numpy(), here(logits.grad)


def plainly(logits, targets, smoothing, ignore):
    """Row by row in float64."""
    losses, grads = np.zeros(targets.shape), np.zeros(logits.shape)
    for i in np.ndindex(targets.shape):
        if targets[i] == ignore:
            continue
        p = np.exp(logits[i]) / np.exp(logits[i]).sum()
        q = np.full(len(p), smoothing / len(p))
        q[targets[i]] += 1 - smoothing
        losses[i], grads[i] = -(q * np.log(p)).sum(), p - q
    return losses, grads


@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("ignore", [-100, 2])
def test_against_the_plain_formula(shape, smoothing, ignore):
    logits = np.random.default_rng(0).normal(size=shape + (4,))
    targets = np.random.default_rng(1).integers(0, 4, shape)
    losses, grads = plainly(logits, targets, smoothing, ignore)
    n = max((targets != ignore).sum(), 1)
    for reduction, value, divisor in (("none", losses, 1), ("sum", losses.sum(), 1), ("mean", losses.sum() / n, n)):
        loss, dx = both(logits, targets, label_smoothing=smoothing, ignore_index=ignore, reduction=reduction)
        np.testing.assert_allclose(loss, value, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(dx, grads / divisor, rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_with_nothing_left_it_is_zero(reduction, smoothing):
    loss, dx = both(np.ones((3, 4)), np.full(3, -100), reduction=reduction, label_smoothing=smoothing)
    assert not loss.any() and not dx.any()
    loss, dx = both(np.ones((0, 4)), np.zeros(0, int), reduction=reduction, label_smoothing=smoothing)
    assert loss.shape == ((0,) if reduction == "none" else ()) and not loss.any() and dx.shape == (0, 4)


@pytest.mark.parametrize("dtype, big", [(np.float32, 3e38), (np.float64, 1.7e308), (np.float16, 60000)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_any_finite_logits(dtype, big, smoothing, reduction):
    rows = np.array([[big, -big, 0], [-big, -big, -big], [big, big, big], [-big, 0, 1]])
    for targets in ([0, 0, 0, 2], [0, -100, -100, 2], [-100, 0, 1, -100]):      # the right answer is never the worst
        loss, dx = both(rows, np.array(targets), dtype, label_smoothing=smoothing, reduction=reduction)
        assert not np.isnan(loss).any() and np.isfinite(dx).all()
        if not smoothing:
            assert np.isfinite(loss).all() and loss.max() < 10
    for targets in ([1, 0, 0, 0], [1, -100, -100, -100]):   # or the worst: as large as can be written
        loss, dx = both(rows, np.array(targets), dtype, label_smoothing=smoothing, reduction=reduction)
        assert not np.isnan(loss).any() and (loss >= 0).all() and np.isfinite(dx).all()


def test_the_value_of_an_ignored_row_may_be_anything():
    logits = np.array([[np.nan, np.inf, 0.0], [1.0, 2.0, 3.0]])
    with np.errstate(invalid="ignore"):
        loss = ops.cross_entropy(logits, np.array([-100, 0]), label_smoothing=0.1)
    assert loss.item() == pytest.approx(both(logits[1:], np.array([0]), label_smoothing=0.1)[0])


def test_the_gradient_of_a_confident_mistake():
    loss, dx = both([[-431.0, 279.0, 427.0]], np.array([0]))
    assert loss == 858 and dx[0, 0] == -1 and dx[0, 2] == 1 and 0 < dx[0, 1] < 1e-60


@pytest.mark.parametrize("bad", [4, -1, -4, 10 ** 9])
def test_targets_out_of_range_name_the_target_and_the_size(bad):
    with pytest.raises(IndexError, match=rf"cross_entropy: .*{bad}.* 4 "):
        ops.cross_entropy(mt.ones(2, 4), np.array([0, bad]))


@pytest.mark.parametrize("targets", [np.array([0.0, 1.0]), np.array([True, False])])
def test_targets_that_are_no_integers(targets):
    with pytest.raises(TypeError, match="cross_entropy: .*integers"):
        ops.cross_entropy(mt.ones(2, 4), targets)


@pytest.mark.parametrize("logits, targets",
                         [((2, 4), (3,)), ((2, 4), (2, 1)), ((2, 3, 4), (2,)), ((2, 4), ()), ((), ())])
def test_shapes_that_do_not_fit(logits, targets):
    with pytest.raises(ValueError, match="cross_entropy: "):
        ops.cross_entropy(mt.ones(logits), np.zeros(targets, int))


def test_options_that_do_not_exist():
    for options in ({"reduction": "avg"}, {"label_smoothing": 1.5}, {"label_smoothing": -0.1}):
        with pytest.raises(ValueError, match="cross_entropy: "):
            ops.cross_entropy(mt.ones(2, 4), np.array([0, 1]), **options)
    for wrong in None, 1.5, "0":
        with pytest.raises(TypeError, match="cross_entropy: ignore_index"):
            ops.cross_entropy(mt.ones(2, 4), np.array([0, 1]), ignore_index=wrong)


def test_targets_as_list_or_tensor_and_weak_smoothing():
    logits = mt.zeros(2, 4)
    for targets in ([0, 1], mt.tensor([0, 1]), np.array([0, 1], np.uint8)):
        assert ops.cross_entropy(logits, targets).item() == pytest.approx(math.log(4))
    assert ops.cross_entropy(logits, [0, 1], label_smoothing=np.float64(0.1)).dtype == np.float32


def test_before_training_the_loss_is_ln_v():
    assert ops.cross_entropy(mt.zeros(3, 65), [0, 1, 2]).item() == pytest.approx(4.174, abs=5e-4)


@pytest.mark.parametrize("target, least", [(0, 1e37), (1, 1e38)])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_smoothing_of_logits_that_lie_as_far_apart_as_can_be(target, least, reduction):
    loss, dx = both([[3e38, -3e38]], np.array([target]), np.float32, label_smoothing=0.1, reduction=reduction)
    assert np.isfinite(loss).all() and loss > least and loss.dtype == np.float32
    np.testing.assert_allclose(dx, [[1 - 0.95, -0.05]] if target == 0 else [[1 - 0.05, -0.95]], rtol=1e-5)


def test_smoothing_wants_some_of_what_cannot_be():
    loss, dx = both([[0.0, -math.inf]], np.array([0]), label_smoothing=0.1)
    assert loss == math.inf
    np.testing.assert_allclose(dx, [[0.05, -0.05]])
    assert both([[0.0, -math.inf]], np.array([0]))[0] == 0


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_without_classes_every_row_is_ignored(reduction, smoothing):
    loss, dx = both(np.ones((2, 0)), np.full(2, -100), reduction=reduction, label_smoothing=smoothing)
    assert loss.shape == ((2,) if reduction == "none" else ()) and not loss.any() and dx.shape == (2, 0)
