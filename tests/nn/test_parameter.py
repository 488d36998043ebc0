"""Parameters and buffers own their data."""
import copy
import pickle

import numpy as np
import pytest

import minitx as mt
from minitx import nn


@pytest.mark.parametrize("kind", [nn.Parameter, nn.Buffer])
@pytest.mark.parametrize("wrap", [lambda array: array, mt.Tensor], ids=["array", "Tensor"])
def test_data_is_copied(kind, wrap):
    array = np.ones((2, 3))
    ours = kind(wrap(array))
    array[:] = 7
    assert (ours == 1).all() and ours.dtype == np.float64


@pytest.mark.parametrize("array", [np.ones((3, 4)).T, np.ones((6, 8))[::2, ::2], np.array(2.0)],
                         ids=["T", "step", "0-d"])
def test_the_copy_is_contiguous_and_has_the_same_shape(array):
    ours = nn.Parameter(array)
    assert ours.data.flags.c_contiguous and ours.shape == array.shape


def test_inside_hollow_only_the_shape_counts():
    with nn.init.hollow():
        array = nn.init.normal((10 ** 6, 10 ** 6))
        parameters = [nn.Parameter(data) for data in (array, array.T, np.ones((2, 3)), mt.ones(2, 3), [[1.0, 2.0]])]
        buffer, layer = nn.Buffer(np.ones((2, 3))), nn.Embedding(10 ** 9, 10 ** 3, padding_idx=0)
    assert [p.shape for p in parameters] == [(10 ** 6, 10 ** 6)] * 2 + [(2, 3)] * 2 + [(1, 2)]
    for parameter in (*parameters, layer.weight):
        assert not any(parameter.data.strides) and not parameter.data.flags.writeable and parameter.requires_grad
        assert parameter.dtype == np.float32
    assert (buffer.data == 1).all() and getattr(buffer.data.flags, "writeable", True)
    with pytest.raises(ValueError, match="read-only: weight"):
        nn.Sequential(layer)[0].load_state_dict({"weight": np.broadcast_to(np.float32(1), layer.weight.shape)})
    parameters[2].data = np.ones((2, 3), np.float32)                # the array that it was waiting for
    (parameters[2] * 2).sum().backward()
    assert (parameters[2].grad == 2).all()


def test_lists_become_the_default_dtype():
    assert nn.Parameter([1.0, 2.0]).dtype == np.float32


def test_only_parameters_require_gradients():
    assert nn.Parameter([1.0]).requires_grad and not nn.Buffer([1.0]).requires_grad
    assert not nn.Parameter([1.0], requires_grad=False).requires_grad


def test_integers_cannot_be_trained():
    with pytest.raises(TypeError, match="float"):
        nn.Parameter(np.arange(3))
    assert nn.Buffer(np.arange(3)).dtype == np.int64


@pytest.mark.parametrize("again", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_copies_are_of_the_same_kind(again):
    assert type(again(nn.Parameter([1.0]))) is nn.Parameter
    buffer = again(nn.Buffer([1.0], persistent=False))
    assert type(buffer) is nn.Buffer and not buffer.persistent
