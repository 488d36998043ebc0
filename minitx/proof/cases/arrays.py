"""Cases of the ops that sum, move, join and multiply arrays.

Each function takes a Draw and yields (label, inputs, options).
"""
import numpy as np

_INF = float("inf")


def _reductions(draw, array=None):
    array = draw if array is None else array
    yield "number", (array(),), dict(axis=None, keepdims=False)
    yield "all", (array(2, 3),), dict(axis=None, keepdims=False)
    yield "all kept", (array(2, 3),), dict(axis=None, keepdims=True)
    yield "last", (array(2, 3, 4),), dict(axis=-1, keepdims=False)
    yield "middle", (array(2, 3, 4),), dict(axis=1, keepdims=False)
    yield "middle kept", (array(2, 3, 4),), dict(axis=-2, keepdims=True)
    yield "two", (array(2, 3, 4),), dict(axis=(0, -1), keepdims=False)
    yield "two backwards", (array(4, 2, 3),), dict(axis=(1, 0), keepdims=False)
    yield "of length one", (array(3, 1, 2),), dict(axis=(1, 2), keepdims=False)
    yield "none of the axes", (array(2, 3),), dict(axis=(), keepdims=False)


def _folds(draw, array=None):
    """For those ops that take a number for a row of one, as NumPy does: it has an axis 0, or -1."""
    yield from _reductions(draw, array)
    yield "number, along -1", ((array or draw)(),), dict(axis=-1, keepdims=False)


def _sum(draw):
    yield from _folds(draw)
    yield "nothing", (draw(3, 0),), dict(axis=1, keepdims=False)
    yield "for nobody", (draw(0, 3),), dict(axis=1, keepdims=True)


def _mean_edges(draw):
    yield "integers", (np.array([[1, 2, 6], [0, 3, 3]]),), dict(axis=1, keepdims=False)


def _std(draw):
    for label, (x,), options in _reductions(draw):
        if label not in ("number", "none of the axes"):     # one element has no spread: a kink
            yield label, (x,), options


def _std_edges(draw):
    yield "no spread", (np.array([[1.5, 1.5, 1.5], [1.0, 2.0, 4.0]]),), dict(axis=1, keepdims=False)
    yield "number", (draw(),), dict(axis=None, keepdims=False)


def _extrema(draw):
    yield from _folds(draw, draw.apart)


def _extrema_edges(draw):
    yield "ties", (np.array([[2.0, 2.0, 1.0], [0.5, 3.0, 3.0], [1.0, 1.0, 1.0]]),), dict(axis=1, keepdims=False)
    yield "ties of all", (np.array([[2.0, -1.0, 2.0], [2.0, -1.0, 1.0]]),), dict(axis=None, keepdims=True)


def _logsumexp_edges(draw):
    yield "nothing but -inf", (np.array([[-_INF, -_INF], [0.5, -_INF]]),), dict(axis=-1, keepdims=False)
    yield "far out", (np.array([[1000.0, 998.5, -1000.0], [-1e4, -1e4, -1e4 - 1]]),), dict(axis=1, keepdims=True)
    yield "inf", (np.array([[_INF, 1.0], [-_INF, _INF], [0.5, 1.0]]),), dict(axis=-1, keepdims=False)


def _prod_edges(draw):
    yield "zeros", (np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 3.0], [1.5, 2.0, -1.0]]),), dict(axis=1, keepdims=False)
    yield "nothing", (draw(3, 0),), dict(axis=1, keepdims=False)
    yield "for nobody", (draw(0, 3),), dict(axis=1, keepdims=True)


def _reshape(draw):
    yield "number", (draw(),), dict(shape=(1, 1))
    yield "to a number", (draw(1, 1),), dict(shape=())
    yield "flat", (draw(2, 3),), dict(shape=(-1,))
    yield "regroup", (draw(2, 3, 4),), dict(shape=(4, 1, 6))
    yield "empty", (draw(0, 3),), dict(shape=(3, 0, 2))


def _transpose(draw):
    yield "number", (draw(),), dict(axes=())
    yield "two", (draw(2, 3),), dict(axes=(1, 0))
    yield "cycle", (draw(2, 3, 4),), dict(axes=(1, 2, 0))
    yield "other cycle", (draw(2, 3, 4),), dict(axes=(2, 0, 1))
    yield "four", (draw(2, 3, 1, 4),), dict(axes=(0, 2, 3, 1))


def _getitem(draw):
    yield "number", (draw(),), dict(index=())
    yield "new axes", (draw(2, 3),), dict(index=(None, ..., None, 1))
    yield "steps", (draw(5, 4),), dict(index=(slice(1, None, 2), slice(None, None, -1)))
    yield "negative steps", (draw(6, 2),), dict(index=slice(-1, 0, -2))
    yield "an integer", (draw(3, 4),), dict(index=-2)
    yield "repeats", (draw(4, 3),), dict(index=np.array([[2, 0, 2], [-1, 2, 2]]))
    yield "pairs", (draw(3, 4),), dict(index=(np.array([0, 2, 0, 0]), np.array([1, 3, 1, -1])))
    yield "mixed", (draw(2, 3, 4),), dict(index=(slice(None), np.array([2, 2, 0]), 1))
    yield "far apart", (draw(2, 3, 4),), dict(index=(np.array([1, 1, 0]), slice(None), np.array([3, 3, 0])))
    yield "bools", (draw(3, 4),), dict(index=draw.bools(3, 4))
    yield "bool rows", (draw(4, 3),), dict(index=np.array([True, False, True, True]))
    yield "nothing", (draw(3, 4),), dict(index=slice(2, 2))
    yield "of length one", (draw(3, 1),), dict(index=(slice(None), np.array([0, -1, 0])))


def _to(draw):
    yield "number", (draw(),), dict(device="cpu", dtype=np.dtype(np.float64))
    yield "array", (draw(2, 3),), dict(device="cpu", dtype=np.dtype(np.float64))
    yield "of length one", (draw(1, 2, 1),), dict(device="cpu", dtype=np.dtype(np.float64))


def _to_edges(draw):
    yield "float32", (draw(2, 3) / 3,), dict(device="cpu", dtype=np.dtype(np.float32))


def _concatenate(draw):
    yield "two", (draw(2, 3), draw(4, 3)), dict(axis=0)
    yield "three, last", (draw(2, 3, 1), draw(2, 3, 2), draw(2, 3, 4)), dict(axis=-1)
    yield "middle", (draw(2, 1, 3), draw(2, 4, 3)), dict(axis=1)
    yield "one", (draw(3),), dict(axis=0)
    yield "with an empty one", (draw(0, 2), draw(3, 2)), dict(axis=0)


def _stack(draw):
    yield "numbers", (draw(), draw(), draw()), dict(axis=0)
    yield "first", (draw(2, 3), draw(2, 3), draw(2, 3), draw(2, 3)), dict(axis=0)
    yield "middle", (draw(2, 3), draw(2, 3)), dict(axis=1)
    yield "last", (draw(3, 2), draw(3, 2), draw(3, 2)), dict(axis=-1)
    yield "one", (draw(2, 3),), dict(axis=1)
    yield "of length one", (draw(1, 3), draw(1, 3)), dict(axis=1)


def _split(draw):
    yield "equal", (draw(2, 6),), dict(sections=3, axis=-1)
    yield "places", (draw(7, 2),), dict(sections=[2, 5], axis=0)
    yield "middle", (draw(2, 4, 3),), dict(sections=[1], axis=1)
    yield "one", (draw(3),), dict(sections=1, axis=0)
    yield "of length one", (draw(1, 4, 1),), dict(sections=[1, 1], axis=1)


def _matmul(draw):
    yield "matrices", (draw(2, 3), draw(3, 4)), {}
    yield "vectors", (draw(3), draw(3)), {}
    yield "row", (draw(3), draw(3, 4)), {}
    yield "column", (draw(2, 3), draw(3)), {}
    yield "row and batch", (draw(3), draw(2, 3, 4)), {}
    yield "batch and column", (draw(2, 4, 3), draw(3)), {}
    yield "batch and matrix", (draw(2, 3, 4), draw(4, 5)), {}
    yield "both stretched", (draw(2, 1, 3, 2), draw(4, 2, 1)), {}
    yield "empty inside", (draw(2, 0), draw(0, 3)), {}


def _linear(draw):
    yield "matrix", (draw(4, 3), draw(2, 3), draw(2)), {}
    yield "row", (draw(3), draw(4, 3), draw(4)), {}
    yield "batch", (draw(2, 3, 4), draw(5, 4), draw(5)), {}
    yield "no bias", (draw(2, 3, 4), draw(5, 4), None), {}
    yield "one by one", (draw(3, 1), draw(1, 1), draw(1)), {}
    yield "no rows", (draw(0, 3), draw(2, 3), draw(2)), {}
    yield "no width", (draw(2, 3, 0), draw(4, 0), draw(4)), {}


def _einsum(draw):
    yield "batch of products", (draw(2, 3, 4), draw(2, 4, 5)), dict(equation="bij,bjk->bik")
    yield "implicit", (draw(3, 2), draw(2, 4)), dict(equation="ba,ac")
    yield "implicit order", (draw(3, 2),), dict(equation="ba")
    yield "only in one", (draw(2, 3, 4), draw(2)), dict(equation="abc,a->c")
    yield "diagonal", (draw(3, 3, 2),), dict(equation="iij->ij")
    yield "trace", (draw(3, 3), draw(2)), dict(equation="ii,j->j")
    yield "twice and once", (draw(3, 3, 2), draw(2, 3)), dict(equation="iij,ji->j")
    yield "ellipsis", (draw(2, 1, 3, 4), draw(5, 4)), dict(equation="...ij,kj->...ik")
    yield "ellipses that differ", (draw(2, 3, 4), draw(4, 3)), dict(equation="...i,i...->...")
    yield "ellipsis stretched", (draw(3, 1, 2), draw(4, 2)), dict(equation="...i,...i->...i")
    yield "three", (draw(2, 3), draw(3, 4), draw(4, 2)), dict(equation="ij,jk,kl->il")
    yield "outer", (draw(2), draw(3)), dict(equation="i,j->ji")
    yield "numbers", (draw(), draw(2)), dict(equation=",i->i")
    yield "one beside many", (draw(1, 3), draw(4, 3)), dict(equation="ij,ij->j")
    yield "one beside many, both kept", (draw(1, 3), draw(4, 1)), dict(equation="ij,ij->ij")
    yield "one beside many, summed", (draw(2, 1), draw(3, 4)), dict(equation="ij,jk->ik")


CASES = {
    "sum": _sum, "mean": _reductions, "var": _reductions, "std": _std, "prod": _folds, "max": _extrema,
    "min": _extrema, "logsumexp": _folds, "reshape": _reshape, "transpose": _transpose, "getitem": _getitem,
    "to": _to, "concatenate": _concatenate, "stack": _stack, "split": _split, "matmul": _matmul, "linear": _linear,
    "einsum": _einsum,
}
EDGES = {
    "mean": _mean_edges, "std": _std_edges, "max": _extrema_edges, "min": _extrema_edges, "logsumexp": _logsumexp_edges,
    "prod": _prod_edges, "to": _to_edges,
}
