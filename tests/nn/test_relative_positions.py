"""Relative position biases: which distances share a row, and what the layer makes of the rows."""
import numpy as np
import pytest

import minitx as mt
from minitx import nn
from minitx.nn.positions import relative_buckets

FAR = np.arange(-2000, 2001)
SETTINGS = [(32, 128), (32, 256), (32, 1000), (8, 20), (8, 128), (16, 64), (64, 128), (64, 512), (4, 10), (20, 50),
            (128, 1024)]


@pytest.mark.parametrize("num_buckets, max_distance", SETTINGS)
@pytest.mark.parametrize("bidirectional", [True, False])
def test_every_distance_has_the_bucket_of_transformers(num_buckets, max_distance, bidirectional):
    torch = pytest.importorskip("torch")
    published = pytest.importorskip("transformers.models.t5.modeling_t5").T5Attention._relative_position_bucket
    expected = published(torch.tensor(FAR), bidirectional, num_buckets, max_distance).numpy()
    np.testing.assert_array_equal(relative_buckets(FAR, num_buckets, max_distance, bidirectional), expected)


@pytest.mark.parametrize("num_buckets, max_distance", SETTINGS)
@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_are_what_the_paper_says(num_buckets, max_distance, bidirectional):
    buckets = relative_buckets(FAR, num_buckets, max_distance, bidirectional)
    assert buckets.dtype.kind == "i" and 0 <= buckets.min() and buckets.max() < num_buckets
    behind, ahead = buckets[FAR <= 0][::-1], buckets[FAR > 0]
    half = num_buckets // 2 if bidirectional else num_buckets
    np.testing.assert_array_equal(behind[:half // 2], np.arange(half // 2))         # near: a bucket each
    assert (np.diff(behind) >= 0).all() and (behind[max_distance:] == half - 1).all()
    if bidirectional:
        np.testing.assert_array_equal(ahead, behind[1:] + half)
    else:
        assert not ahead.any()
    for far in range(half // 2, max_distance):                      # then floor of the logarithm, in exact numbers
        k = behind[far] - half // 2                                 # max >= (far / exact)^n > (max / exact)^k ...
        ratio, n, top = far / (half // 2), half - half // 2, max_distance / (half // 2)
        assert top ** k <= ratio ** n * (1 + 1e-9) and (ratio ** n < top ** (k + 1) * (1 + 1e-9) or k == n - 1)


def test_powers_of_two_begin_a_bucket():
    """With T5's own 32 and 128 the steps are half octaves: 8, 11.3, 16, 22.6, 32, 45.3, 64, 90.5."""
    begins = np.flatnonzero(np.diff(relative_buckets(-np.arange(200), bidirectional=True))) + 1
    np.testing.assert_array_equal(begins, [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91])


def test_shapes_of_distances():
    assert relative_buckets(np.zeros((2, 0, 3), int)).shape == (2, 0, 3)
    assert relative_buckets(np.array(-5)) == 5


def test_bias_is_the_row_of_the_distance():
    layer = nn.RelativePositionBias(3, 8, 20)
    bias = layer(4, 4).numpy()
    assert bias.shape == (1, 3, 4, 4)
    for i in range(4):
        for j in range(4):
            row = layer.weight.data[relative_buckets(np.array(j - i), 8, 20)]
            np.testing.assert_array_equal(bias[0, :, i, j], row)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_the_last_query_stands_at_the_last_key(bidirectional):
    layer = nn.RelativePositionBias(2, 8, 20, bidirectional)
    whole = layer(7, 7).numpy()
    np.testing.assert_array_equal(layer(3, 7).numpy(), whole[:, :, 4:])
    assert layer(0, 7).shape == (1, 2, 0, 7) and layer(1, 1).shape == (1, 2, 1, 1)


def test_gradients():
    layer = nn.RelativePositionBias(2, 8, 20).to(dtype=np.float64)
    mt.gradcheck(lambda weights: layer(5, 9), layer)
    layer(3, 3).backward(np.ones((1, 2, 3, 3)))
    np.testing.assert_array_equal(layer.weight.grad[:, 0], [3, 2, 1, 0, 0, 2, 1, 0])    # how often each is there


def test_it_biases_attention():
    attention, layer, x = nn.MultiHeadAttention(12, 3, 0.0), nn.RelativePositionBias(3), mt.randn(2, 6, 12)
    out, weights = attention(x, x, x, bias=layer(6, 6), return_weights=True)
    _, plain = attention(x, x, x, return_weights=True)
    expected = plain.numpy() * np.exp(layer(6, 6).numpy())
    np.testing.assert_allclose(weights.data, expected / expected.sum(-1, keepdims=True), rtol=1e-5)
    out.backward(np.ones(out.shape, np.float32))
    assert layer.weight.grad[:6].any(-1).all() and layer.weight.grad.dtype == np.float32


@pytest.mark.parametrize("num_buckets, max_distance, bidirectional, says", [
    (2, 128, True, "num_buckets .* 2"), (9, 128, True, "num_buckets .* 9"), (1, 128, False, "num_buckets .* 1"),
    (32, 8, True, "max_distance .* 8"), (32, 16, False, "max_distance .* 16")])
def test_buckets_that_cannot_be(num_buckets, max_distance, bidirectional, says):
    with pytest.raises(ValueError, match=f"RelativePositionBias: {says}"):
        nn.RelativePositionBias(2, num_buckets, max_distance, bidirectional)
