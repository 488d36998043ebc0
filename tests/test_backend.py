"""The seam: devices, defaults, and the functions that one of the libraries lacks."""
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import minitx as mt
from minitx import backend


def test_probing_for_cuda_never_raises():
    assert mt.cuda.is_available() in (True, False)
    assert (mt.cuda.device_count() > 0) == mt.cuda.is_available()


def run(code, **environment):
    return subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True,
                          text=True, encoding="utf-8")


def test_a_cupy_that_breaks_on_import_is_no_cupy():
    done = run("import sys, importlib.abc\n"
               "class Breaks(importlib.abc.MetaPathFinder):\n"
               "    def find_spec(self, name, path, target=None):\n"
               "        if name == 'cupy': raise OSError('libnothing.so: cannot open')\n"
               "sys.meta_path.insert(0, Breaks())\n"
               "import minitx as mt\n"
               "print(mt.cuda.is_available())\n"
               "try: mt.zeros(2, device='cuda')\n"
               "except RuntimeError as error: print(error)")
    assert done.stdout.startswith("False") and "libnothing.so" in done.stdout and "pip install" in done.stdout, done


@pytest.mark.skipif(mt.cuda.is_available(), reason="there is a GPU here")
def test_the_variable_for_the_device_is_read_when_it_is_needed():
    done = run("import minitx as mt\nprint('imported')\nmt.zeros(2)", MINITX_DEVICE="cuda")
    assert done.stdout.strip() == "imported" and "not available" in done.stderr
    done = run("import minitx as mt\nmt.zeros(2)", MINITX_DEVICE="abacus")
    assert "unknown device 'abacus'" in done.stderr


def test_the_default_dtype():
    try:
        mt.set_default_dtype("float64")
        assert mt.tensor(1.5).dtype == mt.zeros(2).dtype == mt.randn(2).dtype == np.float64
    finally:
        mt.set_default_dtype(np.float32)
    for wrong in (int, "complex64", bool):
        with pytest.raises(TypeError, match="float16, float32 or float64"):
            mt.set_default_dtype(wrong)
    assert backend.default_dtype() == np.float32


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_erf(dtype):
    x = np.concatenate([np.linspace(-7, 7, 40_001), [0.46875, -0.46875, 1e-30, 1e30, -0.0]]).astype(dtype)
    ours = backend.erf(x)
    assert ours.dtype == dtype
    exact = np.array([math.erf(v) for v in x.tolist()])
    np.testing.assert_allclose(ours, exact, rtol=3 * np.finfo(dtype).eps)
    assert backend.erf(np.array([np.inf, -np.inf])).tolist() == [1, -1]
    assert np.isnan(backend.erf(np.array(np.nan))) and backend.erf(np.array(0.5)).shape == ()
    assert np.signbit(backend.erf(np.array([-0.0])))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_normal_cdf(dtype):
    x = np.concatenate([np.linspace(-9, 9, 40_001), [1e-30, 1e30, -1e30, -0.0]]).astype(dtype)
    ours = backend.normal_cdf(x)
    assert ours.dtype == dtype and ours.min() >= 0 and ours.max() <= 1
    exact = np.array([math.erfc(-v / math.sqrt(2)) / 2 for v in x.tolist()])
    np.testing.assert_allclose(ours, exact, rtol=0, atol=3e-16 if dtype == np.float64 else 3e-7)
    assert backend.normal_cdf(np.array([np.inf, -np.inf])).tolist() == [1, 0]
    assert np.isnan(backend.normal_cdf(np.array(np.nan))) and backend.normal_cdf(np.array(0.0)) == 0.5


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(0, 40), st.integers(0, 3), st.integers(0, 2 ** 32))
def test_scatter_add_is_add_at(n, many, width, seed):
    draw = np.random.default_rng(seed)
    index, values = draw.integers(0, n, many), draw.normal(size=(many, width))
    expected = np.zeros((n, width))
    np.add.at(expected, index, values)
    np.testing.assert_allclose(backend.scatter_add(index, values, n), expected, atol=1e-13)


def test_scatter_add_of_one_dimension_and_of_float32():
    out = backend.scatter_add(np.array([1, 1, 3]), np.float32([1, 2, 4]), 4)
    assert out.dtype == np.float32 and out.tolist() == [0, 3, 0, 4]


def test_row_dot():
    a, b = np.arange(12.0).reshape(2, 2, 3), np.ones((2, 2, 3))
    np.testing.assert_allclose(backend.row_dot(a, b), a.sum(-1))


@pytest.mark.parametrize("index", [[0, 4], [-1, 0]])
def test_an_index_out_of_range_is_named(index):
    bad = next(i for i in index if i)
    with pytest.raises(IndexError, match=f"id {bad} .*size 4"):
        backend.check_index(np.array(index), 4)
    with pytest.raises(TypeError, match="integers, got float64"):
        backend.check_index(np.ones(2), 4)


def test_only_what_is_counted_is_looked_at():
    backend.check_index(np.array([0, -100, 3]), 4, np.array([True, False, True]))
    backend.check_index(np.array([], int), 0)
    with pytest.raises(IndexError, match="id 7 .*size 4"):
        backend.check_index(np.array([-100, 7, 8]), 4, np.array([False, True, True]))


def test_float16_is_added_up_in_float32():
    rows = np.ones((4096, 2), np.float16)
    assert backend.scatter_add(np.zeros(4096, int), rows, 2).tolist() == [[4096, 4096], [0, 0]]


def test_arrays_from_outside_are_copied():
    a = np.ones(3)
    assert not np.shares_memory(backend.make_array(a), a)
    assert type(backend.make_array(a.view(type("Mine", (np.ndarray,), {})), device="cpu")) is np.ndarray
    with pytest.raises(TypeError, match="mask"):
        backend.make_array(np.ma.masked_array([1.0, 2.0], [False, True]))
    assert backend.make_array(np.array([1.0], ">f8")).tolist() == [1]


def test_synchronise_has_nothing_to_wait_for_on_the_cpu():
    assert backend.synchronise() is None and backend.synchronise("cpu") is None
    with pytest.raises(ValueError, match="unknown device"):
        backend.synchronise("tpu")


@pytest.mark.parametrize("name", ["float16", np.float16, np.dtype(np.float16), float])
def test_a_dtype_in_the_place_of_a_device_is_told_where_it_goes(name):
    with pytest.raises(ValueError, match="unknown device .*; a dtype goes in as dtype=$"):
        backend.check_device(name)


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "CPU", "cpu:0", 0])
def test_a_wrong_device_is_told_the_right_ones(name):
    with pytest.raises(ValueError, match="unknown device .*: use 'cpu', 'cuda' or 'cuda:1'$"):
        backend.check_device(name)


@pytest.mark.parametrize("name", ["gpu", "cuda:x"])
def test_the_error_of_a_wrong_variable_names_it(name):
    done = run("import minitx as mt\nmt.zeros(2)", MINITX_DEVICE=name)
    assert "MINITX_DEVICE" in done.stderr.splitlines()[-1] and name in done.stderr.splitlines()[-1], done.stderr
