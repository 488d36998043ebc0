"""The one counted generator, and the masks that are drawn where they are used."""
import math

import double
import numpy as np
import pytest

import minitx as mt
from minitx import backend, ops


def test_the_seed_restarts_one_sequence():
    mt.manual_seed(7)
    first = mt.randn(3).tolist(), mt.rand(3).tolist(), backend.generator().random()
    mt.manual_seed(7)
    assert (mt.randn(3).tolist(), mt.rand(3).tolist(), backend.generator().random()) == first
    mt.manual_seed(8)
    assert mt.randn(3).tolist() != first[0]
    mt.manual_seed(7)
    np.testing.assert_array_equal(backend.generator().random(4), np.random.Generator(np.random.Philox(7)).random(4))


def test_numpys_own_random_state_is_left_alone():
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    mt.manual_seed(3)
    mt.randn(5)
    np.testing.assert_array_equal(np.random.get_state()[1], before)


def test_keep_mask_keeps_the_right_share():
    mt.manual_seed(0)
    keep = backend.keep_mask((100_000,), 0.3, np.ones(1))
    assert keep.dtype == bool and abs(keep.mean() - 0.7) < 5 * math.sqrt(0.21 / 100_000)


def test_masks_drawn_on_the_device_are_their_seeds(cupy):
    def draws(seed, rng, device="cuda"):
        mt.manual_seed(seed, rng=rng)
        x = mt.ones(50, 40, device=device)
        first, second = (double.here(ops.dropout(x, 0.3).data) for _ in range(2))
        assert not np.array_equal(first, second)
        return first, mt.rand(3, device="cpu").tolist()

    (a, after), (again, _), (other, _) = draws(5, "device"), draws(5, "device"), draws(6, "device")
    np.testing.assert_array_equal(a, again)
    assert not np.array_equal(a, other)
    assert abs((a == 0).mean() - 0.3) < 5 * (0.21 / a.size) ** 0.5 and a.max() == np.float32(1 / 0.7)
    host, without = draws(5, "host")
    assert not np.array_equal(a, host)
    mt.manual_seed(5)
    assert after == mt.rand(3, device="cpu").tolist() != without    # nothing was drawn from the host's generator


def test_on_the_cpu_every_mask_comes_from_the_one_generator():
    def draw(**options):
        mt.manual_seed(5, **options)
        return ops.dropout(mt.ones(50, 40, device="cpu"), 0.3).tolist()

    assert draw(rng="device") == draw(rng="host") == draw()
    with pytest.raises(ValueError, match="'host' or 'device', not 'gpu'"):
        mt.manual_seed(0, rng="gpu")
