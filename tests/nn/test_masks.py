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
