"""Twins of the ops that sum, move, join and multiply arrays. Called as the op's forward is, with Tensors."""
import functools
import math
import string

import numpy as np

from minitx import ops
from minitx.backend import like


# ---- reductions ------------------------------------------------------------------------------------------------------

def _rows(x, axis, keepdims):
    """(x as a matrix with the reduced axes along its rows, the shape of the result)."""
    axes = axis if isinstance(axis, tuple) else (axis,)
    axes = range(x.ndim) if axis is None or not x.ndim else [i % x.ndim for i in axes]
    kept = [i for i in range(x.ndim) if i not in axes]
    lead, width = tuple(x.shape[i] for i in kept), math.prod(x.shape[i] for i in axes)
    rows = ops.getitem(ops.reshape(x, -1) if x.ndim else x[None], np.arange(x.size).reshape(x.shape).transpose(
        *kept, *axes).reshape(math.prod(lead), width))
    return rows, tuple(1 if i in axes else n for i, n in enumerate(x.shape)) if keepdims else lead


def _sum(x, *, axis, keepdims):
    rows, shape = _rows(x, axis, keepdims)
    return ops.reshape(ops.matmul(rows, like(np.ones((rows.shape[1], 1)), x)), shape)


def _mean(x, *, axis, keepdims):
    rows, shape = _rows(x, axis, keepdims)
    return ops.reshape(ops.sum(rows, axis=1) * (1 / rows.shape[1]), shape)


def _var(x, *, axis, keepdims):
    """Half the mean squared distance between any two elements: nothing is centred."""
    rows, shape = _rows(x, axis, keepdims)
    n, width = rows.shape
    apart = ops.reshape(rows, n, width, 1) - ops.reshape(rows, n, 1, width)
    return ops.reshape(ops.sum(apart * apart, axis=(1, 2)) * (0.5 / width ** 2), shape)


def _std(x, *, axis, keepdims):
    return ops.sqrt(_var(x, axis=axis, keepdims=keepdims))


def _prod(x, *, axis, keepdims):
    rows, shape = _rows(x, axis, keepdims)
    return ops.reshape(functools.reduce(ops.mul, [rows[:, i] for i in range(rows.shape[1])]), shape)


def _max(x, *, axis, keepdims):
    rows, shape = _rows(x, axis, keepdims)
    return ops.reshape(functools.reduce(ops.maximum, [rows[:, i] for i in range(rows.shape[1])]), shape)


def _min(x, *, axis, keepdims):
    return -_max(-x, axis=axis, keepdims=keepdims)


def _logsumexp(x, *, axis, keepdims):
    rows, shape = _rows(x, axis, keepdims)
    return ops.reshape(ops.log(ops.sum(ops.exp(rows), axis=1)), shape)


# ---- moving numbers --------------------------------------------------------------------------------------------------

def _picked(x, numbers):
    """x read as one column, and from it the elements with these numbers: a product with a matrix of zeros and ones."""
    column = ops.reshape(x, x.size, 1)
    return ops.reshape(ops.matmul(like(np.eye(x.size)[numbers.ravel()], x), column), numbers.shape)


def _numbered(x):
    return np.arange(x.size).reshape(x.shape)


def _reshape(x, *, shape):
    """Every element looked up by its place."""
    numbers = _numbered(x).reshape(shape)
    if not x.ndim:
        return x[(None,) * numbers.ndim]
    return x[np.unravel_index(numbers, x.shape) if x.size else (numbers,) * x.ndim]


def _transpose(x, *, axes):
    return _picked(x, _numbered(x).transpose(axes))


def _getitem(x, *, index):
    return _picked(x, np.asarray(_numbered(x)[index]))


def _concatenate(*xs, axis):
    """Each array brought to its place along the axis by a matrix of zeros and ones, and all added up."""
    ends = np.cumsum([x.shape[axis] for x in xs])
    letters = string.ascii_lowercase[:xs[0].ndim]
    moved = letters.replace(letters[axis], "z")
    return functools.reduce(ops.add, [
        ops.einsum(f"z{letters[axis]},{letters}->{moved}", like(np.eye(ends[-1])[:, end - x.shape[axis]:end], x), x)
        for x, end in zip(xs, ends)])


def _stack(*xs, axis):
    axis = axis % (xs[0].ndim + 1)
    return ops.concatenate([ops.reshape(x, x.shape[:axis] + (1,) + x.shape[axis:]) for x in xs], axis=axis)


def _split(x, *, sections, axis):
    ends = np.cumsum([len(places) for places in np.split(np.arange(x.shape[axis]), sections)]).tolist()
    before = (slice(None),) * (axis % x.ndim)
    return tuple(x[before + (slice(start, end),)] for start, end in zip([0] + ends, ends))


# ---- products --------------------------------------------------------------------------------------------------------

def _matmul(a, b):
    """Every product written out, then added up along K."""
    row, column = a.ndim == 1, b.ndim == 1
    a = a[None] if row else a
    b = b[:, None] if column else b
    y = ops.sum(a[..., None] * b[..., None, :, :], axis=-2)
    y = y[..., 0] if column else y
    return (y[..., 0] if column else y[..., 0, :]) if row else y


def _linear(x, weight, bias):
    y = ops.matmul(x, weight.T)
    return y if bias is None else y + bias


def _einsum(*operands, equation):
    """Every operand spread out over all the letters, multiplied, and the letters that the result lacks summed away."""
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    widths = [x.ndim - len(term.replace("...", "")) for term, x in zip(terms, operands)]
    dots = string.ascii_uppercase[:max(widths)]             # the cases use small letters
    if not arrow:
        right = "".join(c for c in sorted(left.replace(",", "")) if left.count(c) == 1)
    right = right.replace("...", dots)
    terms = [term.replace("...", dots[len(dots) - n:]) for term, n in zip(terms, widths)]
    letters = right + "".join(sorted(set("".join(terms)) - set(right)))
    product = 1.0
    for term, x in zip(terms, operands):
        for c in [c for c in dict.fromkeys(term) if term.count(c) == 2]:
            i, j = term.index(c), term.rindex(c)
            rest = [k for k in range(x.ndim) if k not in (i, j)]
            x = ops.transpose(x, (i, j, *rest))[(np.arange(x.shape[i]),) * 2]           # the diagonal
            term = c + "".join(term[k] for k in rest)
        there = [c for c in letters if c in term]
        x = ops.transpose(x, tuple(map(term.index, there)))
        size = dict(zip(there, x.shape))
        product = product * ops.reshape(x, tuple(size.get(c, 1) for c in letters))
    return ops.sum(product, axis=tuple(range(len(right), len(letters))))


ARRAYS = {
    "sum": _sum, "mean": _mean, "var": _var, "std": _std, "prod": _prod, "max": _max, "min": _min,
    "logsumexp": _logsumexp, "reshape": _reshape, "transpose": _transpose, "getitem": _getitem,
    "concatenate": _concatenate, "stack": _stack, "split": _split, "matmul": _matmul, "linear": _linear,
    "einsum": _einsum,
}
