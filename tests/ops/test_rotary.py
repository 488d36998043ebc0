"""rope."""
import numpy as np
import pytest

import minitx as mt
from minitx import ops


def turned(x, positions, base, interleaved):
    """As complex numbers: each pair times exp(i angle)."""
    K = x.shape[-1]
    angle = np.asarray(positions, float)[..., None] * base ** (-2 * np.arange(K // 2) / K)
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :K // 2], x[..., K // 2:])
    z = (a + 1j * b) * np.exp(1j * angle)
    y = np.empty_like(x)
    if interleaved:
        y[..., 0::2], y[..., 1::2] = z.real, z.imag
    else:
        y[..., :K // 2], y[..., K // 2:] = z.real, z.imag
    return y


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 6), (2, 5, 3, 2), (0, 4), (2, 3, 0)])
def test_as_complex_numbers(shape, interleaved):
    x = mt.tensor(np.random.default_rng(0).normal(size=shape), requires_grad=True)
    positions = np.arange(shape[-2]) * 7
    y = ops.rope(x, positions, base=500.0, interleaved=interleaved)
    np.testing.assert_allclose(y.numpy(), turned(x.numpy(), positions, 500.0, interleaved), atol=1e-12)
    dy = np.random.default_rng(1).normal(size=shape)
    y.backward(dy)
    np.testing.assert_allclose(x.grad, turned(dy, -positions, 500.0, interleaved), atol=1e-12)      # turned back


def test_positions_of_each_sequence():
    x = np.random.default_rng(0).normal(size=(2, 5, 3, 4))
    positions = np.array([[0, 1, 2], [7, 8, 9]])
    y = ops.rope(x, positions).numpy()
    for b in range(2):
        np.testing.assert_allclose(y[b], ops.rope(x[b], positions[b]).numpy(), rtol=1e-14)
    np.testing.assert_allclose(ops.rope(x[:, 0], positions).numpy(), y[:, 0], rtol=1e-14)
    assert ops.rope(mt.ones(3, 4), mt.arange(3)).shape == (3, 4)


def test_position_zero_is_the_identity_and_lengths_stay():
    x = np.random.default_rng(0).normal(size=(3, 8))
    np.testing.assert_array_equal(ops.rope(x, np.zeros(3, int)).numpy(), x)
    np.testing.assert_allclose((ops.rope(x, np.arange(3) + 100).numpy() ** 2).sum(-1), (x ** 2).sum(-1))


def test_far_positions_keep_their_angle_in_float32():
    x = np.ones((1, 4), np.float32)
    y = ops.rope(x, np.array([100_003]))
    assert y.dtype == np.float32
    np.testing.assert_allclose(y.numpy(), turned(x.astype(float), [100_003], 10000.0, False), atol=1e-6)
    assert ops.rope(x, np.array([1]), base=np.float64(100)).dtype == np.float32


def test_an_odd_width():
    with pytest.raises(ValueError, match="rope: .*even.*5"):
        ops.rope(mt.ones(2, 5), np.arange(2))


def test_positions_that_do_not_fit():
    for positions in (np.arange(4), np.zeros((3, 2), int)):
        with pytest.raises(ValueError, match=r"rope: .*\(2, 5, 3, 4\)"):
            ops.rope(mt.ones(2, 5, 3, 4), positions)


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 5, 3, 4), (2, 4, 2, 3, 4)])
def test_a_row_of_positions_for_each_sequence_beside_any_axes(shape):
    x, positions = mt.tensor(np.random.default_rng(0).normal(size=shape), True), np.array([[0, 1, 2], [7, 8, 9]])
    y = ops.rope(x, positions)
    dy = np.random.default_rng(1).normal(size=shape)
    y.backward(dy)
    for b in range(2):
        np.testing.assert_allclose(y.numpy()[b], turned(x.numpy()[b], positions[b], 10000.0, False), atol=1e-12)
        np.testing.assert_allclose(x.grad[b], turned(dy[b], -positions[b], 10000.0, False), atol=1e-12)


@pytest.mark.parametrize("shape, positions", [
    ((3, 4), (1,)), ((3, 4), (2,)), ((3, 4), ()), ((3, 4), (3, 3)), ((2, 3, 4), (2, 1)), ((2, 3, 4), (1, 2)),
    ((1, 3, 4), (2, 3)), ((2, 3, 4), (2, 3, 1)), ((2, 4, 2, 3, 4), (2, 2)), ((2, 4, 2, 3, 4), (4, 3)), ((0, 4), (1,))])
def test_positions_of_another_length(shape, positions):
    with pytest.raises(ValueError, match="rope: "):
        ops.rope(mt.ones(shape), np.zeros(positions, int))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shape, positions", [
    ((3, 6), [0, 4, 900]), ((2, 4, 3, 6), [[0, 1, 2], [7, 8, 900]]), ((2, 2, 0), [0, 1]), ((0, 4), [])])
def test_frequencies_in_place_of_a_base(shape, positions, interleaved):
    x, f = mt.tensor(np.random.default_rng(0).normal(size=shape), True), np.array([0.7, 0.02, 1.3])[:shape[-1] // 2]
    y = ops.rope(x, np.array(positions, int), interleaved=interleaved, frequencies=f)
    dy = np.random.default_rng(1).normal(size=shape)
    y.backward(dy)

    def expected(x, sign):                                              # each pair times a 2 x 2 matrix, one by one
        out = np.empty_like(x)
        for *lead, t in np.ndindex(x.shape[:-1]):
            position = np.array(positions)[(lead[0], t) if np.ndim(positions) == 2 else t]
            for i, angle in enumerate(sign * position * f):
                pair = [2 * i, 2 * i + 1] if interleaved else [i, i + len(f)]
                turn = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
                out[(*lead, t, pair)] = turn @ x[(*lead, t, pair)]
        return out

    np.testing.assert_allclose(y.numpy(), expected(x.numpy(), 1), atol=1e-12)
    np.testing.assert_allclose(x.grad, expected(dy, -1), atol=1e-12)


def test_the_frequencies_of_a_base_are_the_base_and_any_array_of_numbers_will_do():
    x, positions, f = np.random.default_rng(0).normal(size=(3, 8)), np.array([0, 3, 70_001]), 500.0 ** (-np.arange(4) / 4)
    expected = ops.rope(x, positions, base=500.0).numpy()
    for given in f, f.tolist(), mt.tensor(f):
        np.testing.assert_allclose(ops.rope(x, positions, frequencies=given).numpy(), expected, rtol=1e-12, atol=1e-12)
    y = ops.rope(x.astype(np.float32), positions, frequencies=f)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y.numpy(), expected, atol=1e-6)         # the angle itself was computed in float64
    np.testing.assert_array_equal(ops.rope(x, positions, 7.0, frequencies=f), ops.rope(x, positions, frequencies=f))


def test_finite_differences_of_given_frequencies():
    f, x = np.array([0.9, 0.01]), mt.tensor(np.random.default_rng(0).normal(size=(2, 3, 4)), True)
    for interleaved in False, True:
        assert mt.gradcheck(lambda x: ops.rope(x, [[0, 1, 5], [40, 2, 3]], interleaved=interleaved, frequencies=f), x)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (4,), (1, 2), (2, 1), (0,)])
def test_frequencies_that_do_not_fit(shape):
    with pytest.raises(ValueError, match=r"rope: frequencies .* must be \(K/2,\), here \(2,\)"):
        ops.rope(mt.ones(3, 4), np.arange(3), frequencies=np.ones(shape))
