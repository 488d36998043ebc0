"""A Tensor among arrays, numbers, copies and errors."""
import copy
import pickle

import numpy as np
import pytest

import minitx as mt


def leaf(*values, dtype=np.float64):
    return mt.tensor(list(values), dtype=dtype, requires_grad=True)


# ---- a Tensor among others -------------------------------------------------------------------------------------------

def test_numpy_on_the_left_gives_a_tensor():
    x, a = leaf(1.0, 2.0), np.array([3.0, 4.0])
    for y, value in ((a + x, [4, 6]), (a - x, [2, 2]), (a * x, [3, 8]), (a / x, [3, 2]), (a ** x, [3, 16]),
                     (a @ x, 11), (np.float64(2) * x, [2, 4]), (np.array(2.0) - x, [1, 0])):
        assert isinstance(y, mt.Tensor) and y.requires_grad and y.tolist() == value
    with pytest.raises(TypeError):
        np.exp(x)


def test_the_list_on_the_left_is_an_error_that_says_what_to_do():
    with pytest.raises(TypeError, match=r"minitx\.tensor"):
        leaf(1.0, 2.0) + [1.0, 2.0]


def test_repr():
    assert repr(mt.tensor([1.0, 2.0], device="cpu")) == "tensor([1., 2.])"
    assert repr(mt.tensor(3, device="cpu")) == "tensor(3)"
    text = repr(leaf(1.0))
    assert "float64" in text and "requires_grad=True" in text
    assert "op=mul" in repr(leaf(1.0) * 2)
    assert len(repr(mt.zeros(1000, 1000))) < 2000


def test_copies_of_leaves():
    x = leaf(1.0, 2.0)
    (x * 3).sum().backward()
    for y in (copy.deepcopy(x), copy.copy(x), pickle.loads(pickle.dumps(x)), *copy.deepcopy([x])):
        assert y is not x and y.requires_grad and y.tolist() == [1, 2] and y.grad.tolist() == [3, 3]
    twin = copy.deepcopy(x)
    assert not np.shares_memory(twin.data, x.data) and not np.shares_memory(twin.grad, x.grad)
    pair = copy.deepcopy([x, x])
    assert pair[0] is pair[1]


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_tensor_with_a_history_is_not_copied(copier):
    with pytest.raises(RuntimeError, match="detach"):
        copier(leaf(1.0) * 2)


def test_tensors_hash_by_identity_and_compare_by_value():
    x, y = mt.tensor([1.0, 2.0]), mt.tensor([1.0, 3.0])
    assert len({x, y, x}) == 2 and hash(x) != hash(y)
    for values, answer in ((x == y, [True, False]), (x != y, [False, True]), (x < y, [False, True]),
                           (x <= 1, [True, False]), (x > mt.ones(2).data, [False, True]), (x >= 2.0, [False, True])):
        assert type(values) is type(x.data) and values.tolist() == answer


def test_iteration_and_length():
    x = leaf(1.0, 2.0, 3.0)
    assert len(x) == 3 and [row.item() for row in x] == [1, 2, 3]
    first, *_ = x
    first.backward()
    assert x.grad.tolist() == [1, 0, 0]
    with pytest.raises(TypeError):
        len(mt.tensor(1.0))
    with pytest.raises(TypeError):
        list(mt.tensor(1.0))


def test_one_element_as_a_python_number():
    assert float(mt.tensor([[2.5]])) == 2.5 and int(mt.tensor(2.5)) == 2 and bool(mt.tensor(0.0)) is False
    assert type(mt.tensor(1.5).item()) is float and type(mt.tensor(1).item()) is int
    assert [10, 20, 30][mt.tensor(1)] == 20
    with pytest.raises(TypeError, match="float32"):
        [10, 20][mt.tensor(1.0)]
    for convert in (float, int, bool, mt.Tensor.item):
        with pytest.raises(ValueError, match=r"\(2,\)"):
            convert(mt.tensor([1.0, 2.0]))
    with pytest.raises(ValueError):
        bool(mt.zeros(0))


@pytest.mark.host("NumPy reads the Tensor's own memory")
def test_as_a_numpy_array():
    x = leaf(1.0, 2.0)
    array = np.asarray(x)
    assert type(array) is np.ndarray and np.shares_memory(array, x.data) and x.numpy() is x.data
    assert np.asarray(x, dtype=np.float32).dtype == np.float32
    assert not np.shares_memory(np.array(x), x.data)
    assert (x * 2).detach().requires_grad is False and x.tolist() == [1, 2]


def test_a_tensor_has_no_attributes_but_its_own():
    with pytest.raises(AttributeError):
        leaf(1.0).required_grad = True
    with pytest.raises(AttributeError):
        leaf(1.0).grads


@pytest.mark.parametrize("array", [
    np.array(["a"]), np.array([1j]), np.array([None]), np.array(["2020-01-01"], "datetime64[D]"), np.array([b"a"])],
    ids=str)
def test_arrays_of_what_is_no_number(array):
    for make in (mt.Tensor, mt.tensor, lambda a: mt.ones(1) + a):
        with pytest.raises(TypeError):
            make(array)
