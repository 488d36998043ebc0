"""reshape, transpose, swapaxes, T, getitem, to."""
import numpy as np
import pytest
from double import here

import minitx as mt
from minitx import ops


def cube(**options):
    return mt.tensor(np.arange(24.0).reshape(2, 3, 4), **options)


def test_reshape():
    x = cube()
    for y in (x.reshape(6, 4), x.reshape((6, 4)), x.reshape([6, 4]), x.reshape(-1, 4), ops.reshape(x, 6, -1)):
        assert y.shape == (6, 4)
    assert x.reshape(-1).shape == (24,) and x.reshape(24).shape == (24,) and mt.tensor([3.0]).reshape(()).shape == ()
    assert mt.zeros(0, 3).reshape(3, 0).shape == (3, 0)
    for wrong in ((5, 5), (-1, 5), (-1, -1)):
        with pytest.raises(ValueError, match=r"reshape: .*\(2, 3, 4\)"):
            x.reshape(wrong)


@pytest.mark.parametrize("axes, shape", [
    ((), (4, 3, 2)), ((0, 1), (3, 2, 4)), ((-1, -2), (2, 4, 3)), ((2, 0, 1), (4, 2, 3)), (((2, 0, 1),), (4, 2, 3)),
    (([0, 2, 1],), (2, 4, 3)), ((-1, 0, 1), (4, 2, 3))])
def test_transpose_swaps_two_axes_or_permutes_all(axes, shape):
    x = cube(requires_grad=True)
    y = x.transpose(*axes)
    assert y.shape == shape
    dy = np.random.default_rng(0).normal(size=shape)
    y.backward(dy)
    assert (here(x.grad) * x.numpy()).sum() == pytest.approx((dy * y.numpy()).sum())
    assert (here(x.grad) ** 3 * x.numpy()).sum() == pytest.approx((dy ** 3 * y.numpy()).sum())


def test_t_and_swapaxes():
    x = cube()
    assert x.T.shape == (4, 3, 2) and x.swapaxes(0, -1).shape == (4, 3, 2) and ops.swapaxes(x, 1, 1).shape == x.shape
    assert mt.tensor(2.0).T.shape == ()
    np.testing.assert_array_equal(x.swapaxes(1, 2).numpy(), x.numpy().swapaxes(1, 2))


@pytest.mark.parametrize("call", [
    lambda x: x.transpose(0, 3), lambda x: x.transpose(0, 1, 1), lambda x: x.transpose((0, 1)),
    lambda x: x.swapaxes(0, 3), lambda x: x.transpose(0, 1, 5), lambda x: x.transpose(1)])
def test_axes_that_do_not_exist(call):
    with pytest.raises(ValueError, match=r"(transpose|swapaxes): .*\(2, 3, 4\)"):
        call(cube())


KINDS = {
    "number": 1, "negative": -1, "slice": slice(1, None), "step": slice(None, None, 2),
    "backwards": slice(None, None, -1), "dots": (..., 1), "new axis": (None, 0), "two": (0, 1), "empty": slice(1, 1),
    "list": [0, 0, 1], "array": np.array([1, 1, 0]), "pairs": (np.array([0, 1, 0]), np.array([2, 2, 2])),
    "apart": (np.array([0, 1]), slice(None), np.array([3, 3])), "grid": (np.array([[0], [1]]), np.array([2, 0])),
    "after dots": (..., np.array([3, -1, 3])), "array and dots": (np.array([0, 1]), ..., 0),
    "mask": np.arange(24).reshape(2, 3, 4) % 5 == 0, "row mask": np.array([True, False]),
    "mask and slice": (np.array([True, False]), slice(0, 2)), "numpy number": np.int64(1),
    "negative array": np.array([-1, 1]), "no element": np.array([], int), "list and slice": ([0, 1], slice(None), 0),
}


@pytest.mark.parametrize("index", KINDS.values(), ids=KINDS)
def test_every_kind_of_index(index):
    x = cube(requires_grad=True)
    y = x[index]
    np.testing.assert_array_equal(y.numpy(), x.numpy()[index])
    dy, dx = np.random.default_rng(0).normal(size=y.shape), np.zeros(x.shape)
    y.backward(dy)
    np.add.at(dx, index, dy)
    np.testing.assert_allclose(x.grad, dx, rtol=1e-15)


def test_a_tensor_as_an_index():
    x = cube()
    assert x[mt.tensor([1, 0])].shape == (2, 3, 4) and x[0, mt.tensor(1)].shape == (4,)
    assert x[mt.tensor(x.numpy() > 20)].tolist() == [21, 22, 23]
    with pytest.raises((IndexError, TypeError), match="getitem"):
        x[mt.tensor([1.0])]


@pytest.mark.parametrize("index", [2, -3, (0, 3), np.array([0, 2]), (..., 4), np.ones(3, bool), (0, 0, 0, 0)], ids=str)
def test_an_index_out_of_range(index):
    with pytest.raises(IndexError, match=r"getitem: .*\(2, 3, 4\)"):
        cube()[index]


def test_to_another_dtype_and_back():
    x = mt.tensor([1.5, 2.5], requires_grad=True)
    y = x.to(dtype=np.float64)
    y.backward(np.ones(2))
    assert y.dtype == np.float64 and x.grad.dtype == np.float32
    assert x.to(x.device) is x and x.to(dtype=np.float32) is x and x.to(dtype="float64").dtype == np.float64
    assert mt.tensor([1, 2]).to(dtype=np.float32).dtype == np.float32
    assert not x.to(dtype=np.int64).requires_grad or x.to(dtype=np.int64).dtype.kind == "f"


@pytest.mark.parametrize("dtype", [np.float64, np.dtype(np.float64), "float64", float], ids=str)
def test_a_dtype_is_no_device(dtype):
    for call in (mt.ones(2).to, lambda d: ops.to(np.ones(2), d)):
        with pytest.raises((TypeError, ValueError), match="dtype="):
            call(dtype)
    assert mt.ones(2).to("cpu", dtype).dtype == mt.ones(2).to(None, dtype).dtype == np.float64


def test_an_element_picked_5000_times_in_float16():
    x = mt.ones(3, dtype=np.float16, requires_grad=True)
    x[np.zeros(5000, int)].backward(np.ones(5000, np.float16))
    assert x.grad.dtype == np.float16 and x.grad.tolist() == [5000, 0, 0]


@pytest.mark.parametrize("x", [[1.0, 2.0], "ab", None], ids=str)
@pytest.mark.parametrize("name, arguments", [
    ("reshape", (1,)), ("getitem", (0,)), ("swapaxes", (0, 1)), ("transpose", ()), ("transpose", ((0,),)), ("to", ())])
def test_what_has_no_shape(name, arguments, x):
    with pytest.raises((TypeError, ValueError), match=f"(?s)^{name}: (?!.*cuda)"):
        getattr(ops, name)(x, *arguments)


@pytest.mark.parametrize("x", [2.0, 3])
@pytest.mark.parametrize("name, arguments, error", [
    ("reshape", (2,), ValueError), ("swapaxes", (0, 1), ValueError), ("transpose", ((0, 1),), ValueError),
    ("getitem", (0,), IndexError)])
def test_a_number_has_no_axes(name, arguments, error, x):
    with pytest.raises(error, match=f"(?s)^{name}: (?!.*cuda)"):
        getattr(ops, name)(x, *arguments)
