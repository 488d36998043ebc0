"""tensor, zeros, ones, arange, rand, randn."""
import numpy as np
import pytest

import minitx as mt
from minitx.backend import default_device


@pytest.mark.parametrize("make", [mt.zeros, mt.ones, mt.rand, mt.randn])
def test_shapes_as_numbers_or_as_a_tuple(make):
    for x in (make(2, 3), make((2, 3)), make([2, 3])):
        assert x.shape == (2, 3) and x.dtype == np.float32 and not x.requires_grad and x.device == default_device()
    assert make().shape == make(()).shape == () and make(3).shape == (3,) and make(0, 2).shape == (0, 2)
    x = make(2, dtype=np.float64, requires_grad=True, device="cpu")
    assert x.dtype == np.float64 and x.requires_grad and isinstance(x.data, np.ndarray)


def test_their_values():
    assert mt.zeros(2).tolist() == [0, 0] and mt.ones(2).tolist() == [1, 1]
    assert mt.zeros(2, dtype=np.int64).dtype == np.int64
    mt.manual_seed(0)
    normal, uniform = mt.randn(100_000).numpy(), mt.rand(100_000).numpy()
    assert abs(normal.mean()) < 0.02 and abs(normal.std() - 1) < 0.02
    assert 0 <= uniform.min() and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.01


def test_arange():
    assert mt.arange(3).tolist() == [0, 1, 2] and mt.arange(3).dtype == np.int64
    assert mt.arange(1, 7, 2).tolist() == [1, 3, 5] and mt.arange(3, 0, -1).tolist() == [3, 2, 1]
    assert mt.arange(0.0, 1.0, 0.5).dtype == np.float32 and mt.arange(3, dtype=np.float64).dtype == np.float64
    assert mt.arange(3.0, requires_grad=True).requires_grad
    with pytest.raises(TypeError, match="float"):
        mt.arange(3, requires_grad=True)


def test_tensor_copies():
    a = np.ones(2)
    x = mt.tensor(a)
    a[0] = 5
    assert x.tolist() == [1, 1] and mt.tensor(x).data is not x.data
    assert mt.tensor([1, 2], dtype=np.float32).dtype == np.float32
    assert mt.tensor(mt.tensor([1.0, 2.0]), dtype=np.float64).tolist() == [1, 2]
    assert mt.tensor([[1, 2], [3, 4]]).shape == (2, 2) and mt.tensor(()).shape == (0,)
    assert not mt.tensor(mt.ones(2, requires_grad=True)).requires_grad


def test_a_tensor_of_read_only_or_strided_data_is_writeable_and_its_own():
    a = np.arange(6.0)[::2]
    a.flags.writeable = False
    x = mt.tensor(a)
    x.data[0] = 9
    assert x.tolist() == [9, 2, 4]


def test_bad_shapes():
    for wrong in ((-1,), (2.5,), ("a",)):
        with pytest.raises((ValueError, TypeError)):
            mt.zeros(*wrong)
