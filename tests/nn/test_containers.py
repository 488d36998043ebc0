"""ModuleList and Sequential."""
import numpy as np
import pytest

import minitx as mt
from minitx import nn


def test_sequential_runs_in_order():
    first, second = nn.Linear(2, 3), nn.Linear(3, 4)
    x = mt.randn(5, 2)
    np.testing.assert_array_equal(nn.Sequential(first, nn.ReLU(), second)(x).data,
                                  second(mt.ops.relu(first(x))).data)


def test_a_list_has_length_order_and_places():
    layers = [nn.ReLU() for _ in range(12)]
    listed = nn.ModuleList(layers)
    assert len(listed) == 12 and all(a is b for a, b in zip(listed, layers))
    assert listed[-1] is layers[-1] and listed[2:4] == layers[2:4]
    listed.append(nn.Tanh())
    assert len(listed) == 13 and vars(listed)["12"] is listed[12]
    with pytest.raises(IndexError):
        listed[13]


def test_names_are_the_places():
    listed = nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(3))
    assert list(listed.state_dict()) == ["0.weight", "1.weight", "2.weight"]


def test_train_does_not_disturb_the_list():
    net = nn.Sequential(nn.Dropout(0.5), nn.ReLU()).eval()
    assert len(net) == 2 and not net[0].training


@pytest.mark.parametrize("wrong", [[nn.ReLU()], len, None])
def test_only_modules_are_held(wrong):
    with pytest.raises(TypeError, match="Sequential holds Modules"):
        nn.Sequential(nn.ReLU(), wrong)
