"""ModuleList and Sequential."""
import numpy as np
import pytest

import minitx as mt
from minitx import backend, nn


def test_sequential_runs_in_order():
    first, second = nn.Linear(2, 3), nn.Linear(3, 4)
    x = mt.randn(5, 2)
    np.testing.assert_array_equal(nn.Sequential(first, nn.ReLU(), second)(x).data,
                                  second(mt.ops.relu(first(x))).data)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("places", ["LG", "LGLG", "GL", "LGG", "LRG"])
def test_a_linear_leaves_its_bias_to_a_gelu(places, bias):
    make = {"L": lambda: nn.Linear(3, 3, bias), "G": lambda: nn.GELU("tanh"), "R": nn.ReLU}
    net, x = nn.Sequential(*(make[place]() for place in places)), mt.randn(2, 3)
    y = x
    for layer in net:
        y = layer(y)
    np.testing.assert_allclose(net(x).numpy(), y.numpy(), rtol=1e-5, atol=1e-6)
    net(x).sum().backward()
    ours = [backend.to_numpy(p.grad).copy() for p in net.parameters()]
    net.zero_grad()
    y.sum().backward()
    for grad, p in zip(ours, net.parameters()):
        np.testing.assert_allclose(grad, backend.to_numpy(p.grad), rtol=1e-4, atol=1e-5)


def test_layers_of_ones_own_are_called():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    class Halved(nn.GELU):
        def forward(self, x):
            return super().forward(x) / 2

    first, x = Doubled(3, 3), mt.randn(2, 3)
    np.testing.assert_array_equal(nn.Sequential(first, nn.GELU())(x).numpy(), mt.ops.gelu(first(x)).numpy())
    first = nn.Linear(3, 3)
    np.testing.assert_array_equal(nn.Sequential(first, Halved())(x).numpy(), (mt.ops.gelu(first(x)) / 2).numpy())
    first.forward = lambda x: 3 * x
    np.testing.assert_array_equal(nn.Sequential(first, nn.GELU())(x).numpy(), mt.ops.gelu(3 * x).numpy())


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
