"""What an op is given: dtypes and their promotion, and errors that name the op and the shapes."""
import numpy as np
import pytest

import minitx as mt
from minitx import ops


def leaf(*values, dtype=np.float64):
    return mt.tensor(list(values), dtype=dtype, requires_grad=True)


# ---- dtypes ----------------------------------------------------------------------------------------------------------

F16, F32, F64, I64 = np.float16, np.float32, np.float64, np.int64


@pytest.mark.parametrize("data, dtype", [
    (1.5, F32), ([1.5], F32), ([1, 2.5], F32), (3, I64), ([3], I64), (True, bool), ([True], bool), ([], F32),
    (np.float64(1), F32), (np.ones(2), F64), (np.ones(2, F16), F16), (np.ones(2, np.int8), np.int8)])
def test_the_dtype_of_new_tensors(data, dtype):
    assert mt.tensor(data).dtype == dtype


@pytest.mark.parametrize("scalar", [2, 2.0, True, np.float64(2), np.float32(2), np.int64(2), np.bool_(True)], ids=repr)
@pytest.mark.parametrize("dtype", [F16, F32, F64])
def test_scalars_are_weak(scalar, dtype):
    x = mt.ones(3, dtype=dtype, requires_grad=True)
    for y in (x * scalar, scalar * x, x + scalar, scalar - x, x / scalar, x ** scalar, ops.maximum(x, scalar)):
        assert isinstance(y, mt.Tensor) and y.dtype == dtype
        y.sum().backward()
        assert x.grad.dtype == dtype


def test_the_float_wins_beside_integers_and_bools():
    x = mt.ones(2, dtype=F32)
    for other in (np.arange(2), np.array([True, False]), np.arange(2, dtype=np.int8)):
        assert (x * other).dtype == (other + x).dtype == F32
    assert (mt.tensor([1, 2]) * mt.tensor([3, 4])).dtype == I64
    assert (mt.tensor([1, 2]) * 1.5).tolist() == [1.5, 3] and (mt.tensor([1, 2]) * 1.5).dtype == F32
    assert (mt.tensor([1, 2]) / mt.tensor([2, 2])).dtype == F32
    assert ops.exp(mt.tensor([0])).dtype == F32 and ops.mean(mt.tensor([1, 2])).dtype == F32


def test_two_floats_promote_as_numpy_does_in_elementwise_ops():
    a, b = (mt.ones(2, dtype=d, requires_grad=True) for d in (F32, F64))
    y = a * b
    y.sum().backward()
    assert (y.dtype, a.grad.dtype, b.grad.dtype) == (F64, F32, F64)
    assert (mt.ones(2, dtype=F16) + a).dtype == F32


@pytest.mark.parametrize("function", [
    lambda a, b: a @ b, lambda a, b: ops.linear(a, b), lambda a, b: ops.linear(a, a, b[0]),
    lambda a, b: ops.layer_norm(a, b[0]), lambda a, b: ops.rms_norm(a, b[0]),
    lambda a, b: ops.scaled_dot_product_attention(a, a, b),
    lambda a, b: ops.scaled_dot_product_attention(a, a, a, bias=b)])
def test_two_floats_in_a_layer_are_an_error(function):
    a, b = mt.ones(2, 2, dtype=F32), mt.ones(2, 2, dtype=F64)
    with pytest.raises(TypeError, match=r"float32.*float64.*\.to\("):
        function(a, b)


def test_float16_is_computed_in_float32_and_rounded_once():
    x = np.full(4096, 1.0, F16)
    x[0] = 2048                                                     # 2048 + 1 is 2048 in float16
    assert ops.sum(mt.tensor(x)).item() == F16(6143) and ops.sum(mt.tensor(x)).dtype == F16
    assert ops.mean(np.ones(70000, F16)).item() == 1
    third = mt.tensor(np.array([1 / 3], F16), requires_grad=True)
    y = third * third * 3
    y.backward()
    assert y.dtype == third.grad.dtype == F16
    np.testing.assert_array_equal((third * 0.1).numpy(), F16(F32(third.numpy()) * F32(0.1)))


def test_losses_of_float16_stay_float32():
    logits = mt.tensor(np.zeros((2, 3), F16), requires_grad=True)
    loss = ops.cross_entropy(logits, np.array([0, 1]))
    loss.backward()
    assert loss.dtype == F32 and logits.grad.dtype == F16
    assert loss.item() == F32(np.log(3))


@pytest.mark.parametrize("dtype", [np.int64, np.int8, bool])
def test_integers_cannot_require_gradients(dtype):
    with pytest.raises(TypeError, match="float"):
        mt.tensor(np.ones(2, dtype), requires_grad=True)
    with pytest.raises(TypeError, match="float"):
        mt.Tensor(np.ones(2, dtype), requires_grad=True)


@pytest.mark.parametrize("data", [["a"], [1j], [object()], np.array(["a"]), np.array([1j]), [[1], [1, 2]]], ids=repr)
def test_what_is_no_number_makes_no_tensor(data):
    with pytest.raises((TypeError, ValueError)):
        mt.tensor(data)


# ---- errors ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("function, words", [
    (lambda x: x + mt.zeros(3), r"add: .*\(2,\).*\(3,\)"),
    (lambda x: x * np.zeros((3, 1, 3)), r"mul: .*\(2,\).*\(3, 1, 3\)"),
    (lambda x: x @ mt.zeros(3), r"matmul: .*\(2,\).*\(3,\)"),
    (lambda x: ops.linear(x, mt.zeros(4, 3)), r"linear: .*\(2,\).*\(4, 3\)"),
    (lambda x: ops.layer_norm(x, mt.zeros(3)), r"layer_norm: .*\(2,\).*\(3,\)"),
    (lambda x: ops.rms_norm(x, mt.zeros(3)), r"rms_norm: .*\(2,\).*\(3,\)"),
    (lambda x: x.reshape(3), r"reshape: .*\(2,\)"),
    (lambda x: x.sum(axis=1), r"sum: .*\(2,\)"),
    (lambda x: ops.concatenate([x, mt.zeros(2, 2)]), r"concatenate: .*\(2,\).*\(2, 2\)"),
    (lambda x: ops.stack([x, mt.zeros(3)]), r"stack: .*\(2,\).*\(3,\)"),
])
def test_shapes_that_do_not_fit(function, words):
    with pytest.raises(ValueError, match=f"(?s){words}"):
        function(mt.zeros(2))


def test_an_index_out_of_range_names_getitem_and_the_shape():
    with pytest.raises(IndexError, match=r"(?s)getitem: .*\(2,\)"):
        mt.zeros(2)[2]


def test_unknown_devices():
    for device in ("gpu", "cuda:x", "cpu:1", "CUDA"):
        with pytest.raises(ValueError, match="unknown device"):
            mt.zeros(2, device=device)


@pytest.mark.skipif(mt.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("ask", [lambda: mt.zeros(2, device="cuda"), lambda: mt.zeros(2).to("cuda:1"),
                                 lambda: mt.set_default_device("cuda")])
def test_asking_for_cuda_where_there_is_none(ask):
    with pytest.raises(RuntimeError, match="(?s)cuda.*not available.*(pip install|nvidia-smi)"):
        ask()
    assert mt.zeros(2).device == "cpu"
