"""Initial distributions: their moments, dtype, and that a seed gives them again."""
import threading

import numpy as np
import pytest

import minitx as mt
from minitx.nn import init


@pytest.fixture
def float64():
    mt.set_default_dtype(np.float64)
    yield
    mt.set_default_dtype(np.float32)


def test_moments():
    x = init.uniform((200, 500), 0.25)
    assert -0.25 <= x.min() < -0.2499 and 0.2499 < x.max() <= 0.25
    assert abs(x.mean()) < 2e-3 and abs(x.std() - 0.25 / 3 ** 0.5) < 2e-3
    x = init.normal((200, 500), 0.02)
    assert abs(x.mean()) < 3e-4 and abs(x.std() - 0.02) < 3e-4 and abs((x ** 4).mean() / x.var() ** 2 - 3) < 0.1
    assert (init.zeros((2, 3)) == 0).all() and (init.ones((2, 3)) == 1).all()


DRAWS = [lambda: init.uniform((3, 2), 1.0), lambda: init.normal((3, 2)), lambda: init.zeros((3,)),
         lambda: init.ones((3,))]


@pytest.mark.parametrize("draw", DRAWS)
def test_default_dtype(draw, float64):
    assert draw().dtype == np.float64
    for dtype in np.float32, np.float16:
        mt.set_default_dtype(dtype)
        assert draw().dtype == dtype


@pytest.mark.parametrize("draw", DRAWS)
def test_a_seed_repeats(draw):
    mt.manual_seed(5)
    first = draw()
    mt.manual_seed(5)
    np.testing.assert_array_equal(first, draw())


def test_undrawn_gives_zeros_and_takes_no_numbers():
    mt.manual_seed(1)
    expected = init.normal((3,))
    mt.manual_seed(1)
    with init.undrawn():
        with init.undrawn():
            assert (init.uniform((2, 2), 1.0) == 0).all()
        x = init.normal((2, 2), 3.0)
    assert (x == 0).all() and x.dtype == np.float32
    np.testing.assert_array_equal(init.normal((3,)), expected)


def test_undrawn_ends_with_an_error_and_is_nobody_elses():
    with pytest.raises(KeyError):
        with init.undrawn():
            other = threading.Thread(target=lambda: seen.append(init.normal((3,))))
            seen = []
            other.start()
            other.join()
            raise KeyError
    assert (seen[0] != 0).all() and (init.normal((3,)) != 0).all()
