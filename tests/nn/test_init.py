"""Initial distributions: their moments, dtype, and that a seed gives them again."""
import threading

import numpy as np
import pytest

import minitx as mt
from minitx.nn import Linear, init


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


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 2), (10 ** 6, 10 ** 6)])
@pytest.mark.parametrize("draw", [lambda shape: init.uniform(shape, 1.0), init.normal, init.zeros, init.ones])
def test_hollow_takes_no_memory_and_no_numbers(draw, shape, float64):
    mt.manual_seed(1)
    expected = init.normal((3,))
    mt.manual_seed(1)
    with init.hollow():
        x = draw(shape)
        assert init.is_hollow()
        x[:3] = 7                                                   # a model may write into its parameters
    assert x.shape == shape and x.dtype == np.float64 and not any(x.strides) and not init.is_hollow()
    assert not x.flags.writeable                                    # all its elements would change
    np.testing.assert_array_equal(init.normal((3,)), expected)


def test_hollow_inside_hollow_and_undrawn_inside_both():
    with init.hollow():
        outer = init.zeros((2,))
        with init.hollow():
            with init.undrawn():
                inner = init.normal((2,))
        assert init.is_hollow() and outer.flags.writeable and not inner.flags.writeable
        assert not any(init.normal((2,)).strides)
    with init.undrawn():
        with init.hollow():
            pass
        assert (init.normal((2,)) == 0).all() and any(init.normal((2,)).strides)
    assert (init.normal((2,)) != 0).all()


def test_hollow_ends_with_an_error_and_is_nobody_elses():
    seen = []
    with pytest.raises(KeyError):
        with init.hollow():
            x = init.ones((2,))
            other = threading.Thread(target=lambda: seen.append((init.is_hollow(), init.normal((2,)))))
            other.start()
            other.join()
            raise KeyError
    assert not x.flags.writeable and not init.is_hollow()
    assert not seen[0][0] and (seen[0][1] != 0).all()


def test_undrawn_ends_with_an_error_and_is_nobody_elses():
    with pytest.raises(KeyError):
        with init.undrawn():
            other = threading.Thread(target=lambda: seen.append(init.normal((3,))))
            seen = []
            other.start()
            other.join()
            raise KeyError
    assert (seen[0] != 0).all() and (init.normal((3,)) != 0).all()


def test_nothing_is_loaded_into_a_hollow_module():
    state = Linear(2, 2).state_dict()
    with init.hollow(), pytest.raises(ValueError, match="inside init.hollow"):
        Linear(2, 2).load_state_dict(state)
