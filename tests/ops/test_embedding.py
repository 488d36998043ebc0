"""embedding."""
import numpy as np
import pytest

import minitx as mt
from minitx import ops
from minitx.ops.embedding import Embedding


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (2, 0, 3)])
def test_any_shape_of_ids(shape):
    weight = mt.tensor(np.random.default_rng(0).normal(size=(4, 3)), requires_grad=True)
    ids = np.random.default_rng(1).integers(0, 4, shape)
    y = ops.embedding(ids, weight)
    np.testing.assert_array_equal(y.numpy(), weight.numpy()[ids])
    dy, dw = np.random.default_rng(2).normal(size=y.shape), np.zeros((4, 3))
    y.backward(dy)
    np.add.at(dw, ids, dy)
    np.testing.assert_allclose(weight.grad, dw, rtol=1e-14)


def test_ids_as_list_tensor_or_number():
    weight = mt.ones(4, 3)
    for ids in ([0, 3], mt.tensor([0, 3]), np.array([0, 3], np.uint8)):
        assert ops.embedding(ids, weight).shape == (2, 3)
    assert ops.embedding(2, weight).shape == (3,)


@pytest.mark.parametrize("bad", [4, -1, 10 ** 9])
def test_ids_out_of_range_name_the_id_and_the_size(bad):
    with pytest.raises(IndexError, match=rf"embedding: .*{bad}.* 4 "):
        ops.embedding(np.array([[0, bad]]), mt.ones(4, 3))


@pytest.mark.parametrize("ids", [np.array([0.0]), np.array([True]), [0.5]], ids=str)
def test_ids_that_are_no_integers(ids):
    with pytest.raises(TypeError, match="embedding: .*integers"):
        ops.embedding(ids, mt.ones(4, 3))


def test_a_table_that_is_no_table():
    with pytest.raises(ValueError, match=r"embedding: .*\(4,\)"):
        ops.embedding([0], mt.ones(4))


def test_the_padding_row_gets_no_gradient():
    weight = mt.ones(3, 2, requires_grad=True)
    Embedding.apply(weight, ids=np.array([0, 1, 1]), padding_idx=1).sum().backward()
    assert weight.grad.tolist() == [[1, 1], [0, 0], [0, 0]]
