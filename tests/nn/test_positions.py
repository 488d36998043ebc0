"""Positions: fixed waves, trained rows, and counting past padding."""
import math

import numpy as np
import pytest

import minitx as mt
from minitx import nn


@pytest.mark.parametrize("d", [1, 4, 5, 64])
def test_table_is_the_formula_to_float64(d):
    table = nn.sinusoids(50, d)
    for pos in 0, 1, 49:
        for i in range(d):
            angle = pos / 10000 ** ((i - i % 2) / d)
            assert table[pos, i] == pytest.approx(math.cos(angle) if i % 2 else math.sin(angle), abs=1e-14)


def test_far_positions_keep_their_digits():
    pe = nn.PositionalEncoding(64, max_len=100_001).pe.numpy()[0]
    assert np.abs(pe - nn.sinusoids(100_001, 64)).max() < 1e-7      # a table computed in float32 is off by 5e-3 here


def test_encoding_adds_its_table():
    layer, x = nn.PositionalEncoding(6, max_len=9, dropout=0.0), mt.randn(2, 4, 6)
    assert layer.pe.shape == (1, 9, 6) and layer.pe.dtype == np.float32
    np.testing.assert_array_equal(layer(x).data, x.data + layer.pe.data[:, :4])
    assert layer(x.data[0]).shape == (4, 6)
    assert not list(layer.parameters()) and list(layer.state_dict()) == ["pe"]


def test_encoding_drops_in_train_mode_alone():
    layer = nn.PositionalEncoding(6, dropout=0.5)
    x = mt.ones(8, 40, 6)
    assert 0.4 < (layer(x).data == 0).mean() < 0.6
    assert (layer.eval()(x).data == x.data + layer.pe.data[:, :40]).all()


def test_learned_positions_add_rows_and_learn():
    layer, x = nn.LearnedPositions(9, 6), mt.randn(2, 4, 6)
    np.testing.assert_array_equal(layer(x).data, x.data + layer.weight.data[:4])
    assert 0.01 < layer.weight.data.std() < 0.03
    dy = np.random.default_rng(0).standard_normal((2, 4, 6)).astype(np.float32)
    layer(x).backward(dy)
    np.testing.assert_allclose(layer.weight.grad[:4], dy.sum(0), rtol=1e-6)
    assert (layer.weight.grad[4:] == 0).all()


def test_learned_positions_at_places_given():
    layer, x = nn.LearnedPositions(9, 6), mt.randn(2, 3, 6)
    places = np.array([[0, 0, 1], [5, 6, 8]])
    np.testing.assert_array_equal(layer(x, places).data, x.data + layer.weight.data[places])
    np.testing.assert_array_equal(layer(x, mt.tensor(places[1])).data, x.data + layer.weight.data[places[1]])
    np.testing.assert_array_equal(layer(x[0], [5, 6, 8]).data, x.data[0] + layer.weight.data[places[1]])
    with pytest.raises(IndexError, match="9"):
        layer(x, places + 1)
    with pytest.raises(TypeError, match="integers"):
        layer(x, places / 1)


@pytest.mark.parametrize("layer", [nn.PositionalEncoding(6, max_len=4), nn.LearnedPositions(4, 6)])
def test_too_long(layer):
    layer(mt.randn(1, 4, 6))
    with pytest.raises(ValueError, match="5 .* 4"):
        layer(mt.randn(1, 5, 6))


@pytest.mark.parametrize("layer", [nn.PositionalEncoding(6, max_len=4), nn.LearnedPositions(4, 6)])
@pytest.mark.parametrize("shape", [(2, 4, 1), (2, 4, 5), (2, 4, 12), (6,)])
def test_another_width(layer, shape):
    with pytest.raises(ValueError, match=rf"{type(layer).__name__}.* 6.*{shape[-1]}"):
        layer(mt.randn(*shape))


@pytest.mark.parametrize("shape", [(), (2,), (1,), (2, 1), (3, 3), (1, 2, 3), (2, 3, 1)])
def test_positions_of_another_shape(shape):
    layer = nn.LearnedPositions(9, 6)
    for places in np.zeros(shape, int), mt.tensor(np.zeros(shape, int)), np.zeros(shape, int).tolist():
        with pytest.raises(ValueError, match=r"positions .*\(3,\) or \(2, 3\)"):
            layer(mt.randn(2, 3, 6), places)


def test_positions_count_the_tokens():
    places = nn.position_ids_from_mask(np.array([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]], bool))
    np.testing.assert_array_equal(places, [[0, 0, 0, 1, 2], [0, 1, 2, 2, 2]])
