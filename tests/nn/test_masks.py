"""Masks say True where a query may attend."""
import numpy as np
import pytest

import minitx as mt
from minitx import nn


@pytest.mark.parametrize("n, n_keys", [(4, 4), (2, 5), (1, 4), (5, 2), (0, 3), (3, 0)])
def test_causal_mask_is_aligned_bottom_right(n, n_keys):
    mask = nn.causal_mask(n, n_keys)
    assert mask.dtype == bool and mask.shape == (n, n_keys)
    for t in range(n):
        for s in range(n_keys):
            assert mask[t, s] == (s - n_keys <= t - n)


def test_causal_mask_of_one_number_is_square():
    np.testing.assert_array_equal(nn.causal_mask(3), [[1, 0, 0], [1, 1, 0], [1, 1, 1]])


@pytest.mark.parametrize("lengths", [[0, 2, 3], np.array([0, 2, 3], np.int32), mt.tensor([0, 2, 3])])
def test_padding_mask(lengths):
    mask = nn.padding_mask(lengths, 3)
    assert mask.dtype == bool and mask.shape == (3, 1, 3)
    np.testing.assert_array_equal(mask[:, 0], [[0, 0, 0], [1, 1, 0], [1, 1, 1]])


def test_masks_combine_with_and():
    both = nn.padding_mask([1, 3], 3) & nn.causal_mask(3)
    np.testing.assert_array_equal(both, [[[1, 0, 0], [1, 0, 0], [1, 0, 0]], [[1, 0, 0], [1, 1, 0], [1, 1, 1]]])


@pytest.mark.parametrize("lengths, error", [([4], ValueError), ([-1], ValueError), ([[1]], ValueError), (2, ValueError),
                                            ([1.0], TypeError), ([True], TypeError)])
def test_lengths_that_cannot_be(lengths, error):
    with pytest.raises(error, match="padding_mask: lengths"):
        nn.padding_mask(lengths, 3)


@pytest.mark.parametrize("given", [[[1, 1, 0], [0, 1, 1]], np.array([[True, True, False], [False, True, True]]),
                                   mt.tensor([[1, 1, 0], [0, 1, 1]])])
def test_what_a_tokenizer_gives_becomes_a_mask(given):
    mask = nn.mask_from_tokenizer(given, (2, 3))
    assert mask.dtype == bool and mask.shape == (2, 1, 3)
    np.testing.assert_array_equal(mask[:, 0], [[1, 1, 0], [0, 1, 1]])


@pytest.mark.parametrize("given, error", [([[1.0, 0.0]], TypeError), ([[2, 1]], ValueError), ([[-1, 1]], ValueError),
                                          ([1, 0], ValueError), ([[1, 0, 0]], ValueError)])
def test_what_no_tokenizer_gives(given, error):
    with pytest.raises(error, match="attention_mask"):
        nn.mask_from_tokenizer(given, (1, 2))


# ---- in attention ----------------------------------------------------------------------------------------------------

B, H, T, S = 2, 4, 3, 5


@pytest.fixture(params=[4, 2, 1], ids="kv_heads={}".format)
def attention(request):
    """(layer, queries, memory): heads for each query head, groups, and one for all."""
    layer = nn.MultiHeadAttention(8, H, num_kv_heads=request.param).to(dtype=np.float64).eval()
    return layer, *(mt.tensor(np.random.default_rng(0).standard_normal((B, n, 8))) for n in (T, S))


def seen(attention, mask, **options):
    layer, q, m = attention
    out, weights = layer(q, m, m, mask, return_weights=True, **options)
    return out.numpy(), weights.numpy()


@pytest.mark.parametrize("shape", [(S,), (1, S), (T, S), (B, 1, S), (1, T, S), (B, T, S), (B, 1, 1, S), (1, H, 1, S),
                                   (B, H, 1, S), (B, 1, T, S), (1, H, T, S), (B, H, T, S)], ids=str)
def test_a_mask_of_every_shape(attention, shape):
    mask = np.random.default_rng(1).random(shape) < 0.6
    whole = np.broadcast_to(mask[:, None] if len(shape) == 3 else mask, (B, H, T, S))
    out, weights = seen(attention, mask)
    assert ((weights > 0) == whole).all()
    for other in whole, mt.tensor(mask):
        for ours, theirs in zip(seen(attention, other), (out, weights)):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("padding", [nn.padding_mask([2, 5], S), nn.padding_mask([2, 5], S)[..., ::-1],
                                     nn.mask_from_tokenizer([[0, 1, 1, 0, 1], [1, 1, 1, 1, 0]], (B, S)),
                                     nn.padding_mask([0, 3], S)], ids=["right", "left", "holes", "nothing"])
def test_causal_and_padding(attention, padding):
    both = padding & nn.causal_mask(T, S)
    assert both.shape == (B, T, S)
    out, weights = seen(attention, both)
    assert ((weights > 0) == both[:, None]).all()
    np.testing.assert_allclose(weights.sum(-1), np.broadcast_to(both.any(-1)[:, None], (B, H, T)), rtol=1e-12, atol=0)
    for ours, theirs in zip(seen(attention, padding, is_causal=True), (out, weights)):
        np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(seen(attention, both, is_causal=True), (out, weights)):
        np.testing.assert_array_equal(ours, theirs)


def test_a_mask_that_allows_everything_is_none(attention):
    for ours, theirs in zip(seen(attention, np.ones((1, S), bool)), seen(attention, None)):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("shape", [(), (T,), (T, T), (S, S), (T, 1), (T + 1, S), (B + 1, 1, S), (B, T + 1, S),
                                   (B, H - 1, T, S), (B, 2 * H, T, S), (B + 1, H, T, S), (1, B, H, T, S)], ids=str)
def test_a_mask_that_does_not_fit(attention, shape):
    with pytest.raises(ValueError, match="mask"):
        seen(attention, np.ones(shape, bool))


def test_one_query_does_not_become_many(attention):
    layer, q, m = attention
    for shape in (T, S), (B, T, S), (B, H, T, S):
        with pytest.raises(ValueError, match="mask"):
            layer(q[:, :1], m, m, np.ones(shape, bool))
    with pytest.raises(ValueError, match="mask"):
        layer(q[:1], m[:1], m[:1], np.ones((B, 1, S), bool))


@pytest.mark.parametrize("dtype", [float, np.float32, int, np.uint8])
def test_a_mask_of_numbers(attention, dtype):
    for shape in (T, S), (B, 1, S), (B, H, T, S):
        with pytest.raises(TypeError, match=r"astype\(bool\).*bias="):
            seen(attention, np.ones(shape, dtype))
        with pytest.raises(TypeError, match="bool"):
            seen(attention, mt.tensor(np.ones(shape, dtype)))
