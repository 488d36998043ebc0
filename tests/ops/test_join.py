"""concatenate, stack, split."""
import numpy as np
import pytest
from double import here

import minitx as mt
from minitx import ops


def leaves(*shapes):
    return [mt.tensor(np.random.default_rng(len(shape)).normal(size=shape), requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concatenate(axis):
    shapes = [[3, 4], [3, 4], [3, 4]]
    for n, shape in zip((2, 0, 5), shapes):
        shape[axis] = n
    xs = leaves(*map(tuple, shapes))
    y = ops.concatenate(xs, axis)
    np.testing.assert_array_equal(y.numpy(), np.concatenate([x.numpy() for x in xs], axis))
    dy = np.random.default_rng(9).normal(size=y.shape)
    y.backward(dy)
    np.testing.assert_array_equal(np.concatenate([here(x.grad) for x in xs], axis), dy)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_stack(axis):
    xs = leaves((2, 3), (2, 3))
    y = ops.stack(xs, axis)
    np.testing.assert_array_equal(y.numpy(), np.stack([x.numpy() for x in xs], axis))
    dy = np.random.default_rng(9).normal(size=y.shape)
    y.backward(dy)
    np.testing.assert_array_equal(np.stack([here(x.grad) for x in xs], axis), dy)


@pytest.mark.parametrize("sections", [3, [2], [2, 5], (1, 1), [], np.array([4])], ids=str)
@pytest.mark.parametrize("axis", [0, -1])
def test_split_is_numpys(sections, axis):
    x, = leaves((6, 6))
    pieces = ops.split(x, sections, axis)
    assert type(pieces) is tuple
    for piece, expected in zip(pieces, np.split(x.numpy(), sections, axis), strict=True):
        np.testing.assert_array_equal(piece.numpy(), expected)
    ops.concatenate(pieces, axis).backward(x.numpy())
    np.testing.assert_array_equal(x.grad, x.numpy())


def test_a_split_that_does_not_come_out_even():
    with pytest.raises(ValueError, match=r"split: .*\(5,\)"):
        ops.split(mt.ones(5), 3)


def test_pieces_that_nobody_used_are_zero():
    x, = leaves((6,))
    ops.split(x, [1, 3])[1].sum().backward()
    assert x.grad.tolist() == [0, 1, 1, 0, 0, 0]


@pytest.mark.parametrize("op", [ops.concatenate, ops.stack])
def test_what_cannot_be_joined(op):
    with pytest.raises(ValueError, match=op.__name__):
        op([])
    with pytest.raises(ValueError, match=rf"{op.__name__}: .*\(2, 3\).*\(2, 4, 1\)"):
        op([mt.ones(2, 3), mt.ones(2, 4, 1)])
    with pytest.raises(ValueError, match=op.__name__):
        op([mt.ones(2, 3), mt.ones(2, 3)], axis=5)


def test_joining_arrays_and_tensors_of_two_dtypes():
    assert ops.concatenate([np.ones(2, np.float32), mt.ones(2), np.arange(2)]).dtype == np.float32
    assert ops.stack((x for x in (mt.ones(2), mt.ones(2)))).shape == (2, 2)


def test_pieces_that_are_none_or_fewer():
    for sections in (0, -1):
        with pytest.raises(ValueError, match="split: "):
            ops.split(mt.ones(4), sections)


@pytest.mark.parametrize("axis", [1, -2, 5])
def test_a_split_along_an_axis_that_is_not_there(axis):
    for sections in (2, [1]):
        with pytest.raises(ValueError, match=r"split: .*\(4,\)"):
            ops.split(mt.ones(4), sections, axis)


@pytest.mark.parametrize("bad", [2.0, 3, "ab", None, [1.0, 2.0]], ids=str)
def test_numbers_and_lists_are_no_pieces(bad):
    with pytest.raises((TypeError, ValueError), match="(?s)^split: (?!.*cuda)"):
        ops.split(bad, 1)
    for op in (ops.concatenate, ops.stack):
        for call in (lambda: op([mt.ones(2), bad]), lambda: op([bad, mt.ones(2)])):
            with pytest.raises((TypeError, ValueError), match=f"(?s)^{op.__name__}: (?!.*cuda)"):
                call()
        if not isinstance(bad, (str, list)):
            with pytest.raises((TypeError, ValueError), match=f"(?s)^{op.__name__}: (?!.*cuda)"):
                op(bad)
