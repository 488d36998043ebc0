"""Positions: fixed waves, trained rows, rotation, and counting past padding."""
import functools
import math

import numpy as np
import pytest

import minitx as mt
from minitx import nn, ops


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
    x, weight = x.numpy(), layer.weight.numpy()
    np.testing.assert_array_equal(layer(x, places).data, x + weight[places])
    np.testing.assert_array_equal(layer(x, mt.tensor(places[1])).data, x + weight[places[1]])
    np.testing.assert_array_equal(layer(x[0], [5, 6, 8]).data, x[0] + weight[places[1]])
    with pytest.raises(IndexError, match="9"):
        layer(x, places + 1)
    with pytest.raises(TypeError, match="integers"):
        layer(x, places / 1)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int64, np.uint64])
def test_positions_that_run_over_are_no_stretch(dtype):
    layer, x, last = nn.LearnedPositions(300, 6), mt.zeros(3, 6), min(np.iinfo(dtype).max, 299)
    for places in np.array([last - 1, last, 0], dtype), np.array([last - 2, last - 1, last], dtype):
        np.testing.assert_array_equal(layer(x, places).data, layer.weight.numpy()[places.astype(int)])


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


def test_padding_on_either_side_of_any_length():
    for mask in np.array([[0, 0, 0]]), np.zeros((2, 0), int), np.array([[1, 0, 1, 1]]):
        places = nn.position_ids_from_mask(mask)
        assert places.shape == mask.shape and (places >= 0).all()
        np.testing.assert_array_equal(places[mask == 1], np.arange(mask.sum()))


@pytest.mark.parametrize("build, says", [
    (lambda: nn.PositionalEncoding(0), "d_model .*0"), (lambda: nn.PositionalEncoding(4, max_len=0), "max_len .*0"),
    (lambda: nn.LearnedPositions(0, 4), "max_len .*0"), (lambda: nn.PositionalEncoding(4, dropout=2), "2")])
def test_tables_that_cannot_be(build, says):
    with pytest.raises(ValueError, match=says):
        build()


@pytest.mark.parametrize("layer", [nn.PositionalEncoding(6, 4, 0.0), nn.LearnedPositions(4, 6)])
def test_positions_against_finite_differences(layer):
    layer, places = layer.to(dtype=np.float64), np.array([[0, 0, 3], [1, 2, 3]])
    x = np.random.default_rng(0).standard_normal((2, 3, 6))
    mt.gradcheck(layer, x)
    mt.gradcheck(lambda layer, x: layer(x, places), layer, x)


@pytest.mark.parametrize("layer", [nn.PositionalEncoding(6, 4, 0.0), nn.LearnedPositions(4, 6)])
def test_no_sequence_and_no_batch(layer):
    assert layer(mt.zeros(0, 3, 6)).shape == (0, 3, 6) and layer(mt.zeros(2, 0, 6)).shape == (2, 0, 6)


# ---- rotation --------------------------------------------------------------------------------------------------------

B, H, T, S, K = 2, 3, 4, 6, 4
RNG = np.random.default_rng(1)


def heads(*shape):
    return mt.tensor(RNG.standard_normal(shape), requires_grad=True)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("places", [np.arange(S), RNG.integers(0, 30, (B, S))], ids=["(T,)", "(B, T)"])
def test_rotated_attention_is_its_formula(places, interleaved):
    """A pair of entries is a complex number, turned by position * base^(-2i / K); fewer queries are the last ones."""
    layer, mask = nn.MultiHeadAttention(H * K, H).to(dtype=np.float64).eval(), RNG.random((B, 1, S)) < 0.7
    layer.rotate = functools.partial(ops.rope, base=50.0, interleaved=interleaved)
    x, memory, options = heads(B, T, H * K), heads(B, S, H * K), dict(is_causal=True, return_weights=True)
    y, weights = layer(x, memory, memory, mask, positions=places, **options)

    def turned(x, places):
        a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :K // 2], x[..., K // 2:])
        angle = places.reshape(-1, 1, places.shape[-1], 1) * 50.0 ** (-2 * np.arange(K // 2) / K)
        z = (a + 1j * b) * np.exp(1j * angle)
        z = np.stack([z.real, z.imag], -1 if interleaved else -2)
        return z.reshape(x.shape)

    q, k, v = (layer.split_heads(w(z)).numpy() for w, z in [(layer.w_q, x), (layer.w_k, memory), (layer.w_v, memory)])
    q, k = turned(q, places[..., S - T:]), turned(k, places)
    out, expected = ops.scaled_dot_product_attention(q, k, v, mask, **options)
    np.testing.assert_allclose(weights.data, expected.data, rtol=1e-12, atol=1e-12)
    expected = layer.w_o(out.swapaxes(1, 2).reshape(B, T, H * K))
    np.testing.assert_allclose(y.data, expected.data, rtol=1e-12, atol=1e-12)


def test_positions_and_what_turns_by_them_belong_together():
    layer, x = nn.MultiHeadAttention(8, 2), heads(B, T, 8)
    with pytest.raises(TypeError, match="positions= and the attribute rotate"):
        layer(x, x, x, positions=np.arange(T))
    layer.rotate = ops.rope
    with pytest.raises(TypeError, match="positions= and the attribute rotate"):
        layer(x, x, x)


def test_rotated_attention_sees_distances_alone():
    layer, x = rotary_layer(8, 2), heads(B, T, 8)
    first = layer(x, x, x, positions=np.arange(T)).numpy()
    np.testing.assert_allclose(layer(x, x, x, positions=np.arange(T) + 1000).data, first, rtol=1e-9, atol=1e-9)
    assert np.abs(layer(x, x, x, positions=2 * np.arange(T)).numpy() - first).max() > 1e-2


def rotary_layer(*arguments, **options):
    layer = nn.MultiHeadAttention(*arguments, **options).to(dtype=np.float64).eval()
    layer.rotate = functools.partial(ops.rope, base=100.0)
    return layer


@pytest.mark.parametrize("places", [np.arange(S), RNG.integers(0, 30, (B, S))], ids=["(T,)", "(B, T)"])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_rotated_attention_of_fewer_queries_is_the_end_of_the_whole(places, kv_heads):
    layer, x, mask = rotary_layer(8, 4, num_kv_heads=kv_heads), heads(B, S, 8), RNG.random((B, 1, S)) < 0.7
    whole = layer(x, x, x, mask, positions=places, is_causal=True).data
    for n in 0, 1, 3, S:
        end = layer(x[:, S - n:], x, x, mask, positions=places, is_causal=True)
        assert end.shape == (B, n, 8)
        np.testing.assert_allclose(end.data, whole[:, S - n:], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [list, np.array, mt.tensor])
def test_rotary_positions_of_every_kind(kind):
    layer, x = rotary_layer(8, 2), heads(B, 3, 8)
    for places in [0, 1, 5], [[0, 1, 5], [2, 2, 3]]:
        np.testing.assert_array_equal(layer(x, x, x, positions=kind(places)).data,
                                      layer(x, x, x, positions=np.array(places)).data)


def test_rotated_attention_of_one_sequence_without_a_batch():
    for kv_heads in 2, 1:
        layer, x = rotary_layer(8, 2, num_kv_heads=kv_heads), heads(1, 3, 8)
        alone = layer(x[0], x[0], x[0], positions=np.arange(3), is_causal=True)
        whole = layer(x, x, x, positions=np.arange(3), is_causal=True)
        np.testing.assert_allclose(alone.data, whole.data[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(2,), (4,), (5,), (1, 3), (3, 3), (2, 2), (2, 4), (1, 2, 3), ()], ids=str)
def test_rotary_positions_of_another_shape(shape):
    layer, x = rotary_layer(8, 2), heads(B, 3, 8)
    with pytest.raises(ValueError, match=r"positions .*\(3,\)|positions .*\(T,\)"):
        layer(x, x, x, positions=np.zeros(shape, int))


def test_rotation_needs_pairs():
    layer, x = rotary_layer(6, 2), heads(B, 3, 6)
    with pytest.raises(ValueError, match=r"rope: .*even.*\(2, 2, 3, 3\)"):
        layer(x, x, x, positions=np.arange(3))


def test_padding_does_not_move_what_is_turned():
    layer, x = rotary_layer(8, 4, num_kv_heads=2), heads(1, 3, 8)
    alone = layer(x, x, x, positions=np.arange(3), is_causal=True).data[0]
    for left in 0, 2:
        real = np.zeros((1, 5), bool)
        real[:, left:left + 3] = True
        padded = np.full((1, 5, 8), 9.0)
        padded[real] = x.numpy()[0]
        padded = mt.tensor(padded)
        y = layer(padded, padded, padded, real[:, None], positions=nn.position_ids_from_mask(real), is_causal=True)
        np.testing.assert_allclose(y.numpy()[real], alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("make", [lambda x: x.astype(np.uint8), lambda x: x.astype(bool), lambda x: x.tolist(), mt.tensor])
def test_position_ids_of_any_kind_of_mask(make):
    mask = np.array([[0, 0, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0]])
    assert nn.position_ids_from_mask(make(mask)).tolist() == [[0, 0, 0, 1], [0, 1, 2, 2], [0, 0, 0, 0]]
