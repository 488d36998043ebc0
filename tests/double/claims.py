"""What the double says of CuPy, statement by statement. test_probe.py holds the double to it, and CuPy where a GPU is.

A statement speaks of these arrays on the device, made anew for each, and of h, an array on the host:

    a [1, 2, 3] float64    f [1, 2, 3] float32    m [[0, 1, 2], [3, 4, 5]] float32    i [2, 0, 1] int64
    b [True, False, True]

Its outcome is an array (dtype, nested list), a Python value, or the error that it raises. Where CuPy takes what the
double refuses, the claim is strict: CuPy is not held to it, and it says what CuPy does.
"""
from typing import NamedTuple

import numpy as np


class Claim(NamedTuple):
    item: str
    statement: str
    outcome: object
    strict: str = ""        # what CuPy does instead


def arrays(xp):
    m = np.arange(6, dtype=np.float32).reshape(2, 3)
    return {"xp": xp, "np": np, "h": np.ones(3), "a": xp.asarray([1.0, 2.0, 3.0]),
            "f": xp.asarray(np.float32([1, 2, 3])), "m": xp.asarray(m),
            "i": xp.asarray(np.array([2, 0, 1])), "b": xp.asarray(np.array([True, False, True])),
            "after": lambda x, change: (change(x), x)[1]}


F16, F32, F64, I64, BOOL = "float16", "float32", "float64", "int64", "bool"
ITEMS = {
    "1 no NumPy array, no buffer": [
        ("isinstance(a, np.ndarray)", False), ("isinstance(a, xp.ndarray)", True), ("type(a).__module__", "cupy"),
        ("np.asarray(a)", TypeError), ("np.array(a)", TypeError), ("memoryview(a)", TypeError),
        ("np.save(__import__('io').BytesIO(), a)", TypeError), ("h[a]", (TypeError, IndexError)),
        ("[1, 2, 3][i[0]]", TypeError), ("hash(a)", TypeError), ("1 in a", TypeError, "compares one by one"),
        ("hasattr(a, '__cuda_array_interface__')", True), ("a.device.id", 0),
        ("a.setflags(write=False)", AttributeError), ("a.flags.writeable", AttributeError),
        ("m.flags.c_contiguous, m.T.flags.c_contiguous, m.T.flags.f_contiguous", (True, False, True))],
    "2 in and out": [
        ("type(a.get()) is np.ndarray", True), ("type(xp.asnumpy(a)) is np.ndarray", True), ("a[0].item()", 1.0),
        ("a.tolist()", [1.0, 2.0, 3.0]), ("float(a[1])", 2.0), ("int(i[0])", 2), ("bool(b[1])", False),
        ("bool(a)", ValueError), ("f'{a[1]:.1f}'", "2.0"), ("xp.asarray(h)", (F64, [1, 1, 1])),
        ("xp.array([1, 2])", (I64, [1, 2])), ("xp.asarray(a) is a", True), ("xp.array(a) is a", False),
        ("xp.asarray(2.0)", (F64, 2)), ("xp.asarray(a, dtype=np.float32)", (F32, [1, 2, 3])),
        ("len(a), a.shape, a.ndim, a.size", (3, (3,), 1, 3)), ("np.shape(a), np.ndim(m), np.size(m)", ((3,), 2, 6)),
        ("after(a, lambda x: x.set(h))", (F64, [1, 1, 1])),
        ("xp.ascontiguousarray(h)", TypeError, "copies it to the device")],
    "3 operands": [
        ("a + h", TypeError), ("h + a", TypeError), ("a + [1, 2, 3]", TypeError), ("[1, 2, 3] * a", TypeError),
        ("a * (1, 2, 3)", TypeError), ("a == h", TypeError), ("a + 1", (F64, [2, 3, 4])),
        ("f + 1.5", (F32, [2.5, 3.5, 4.5])), ("f * np.float32(2)", (F32, [2, 4, 6])),
        ("np.float32(2) * f", (F32, [2, 4, 6])), ("2 - f", (F32, [1, 0, -1])), ("xp.add(a, h)", TypeError),
        ("xp.maximum(a, [1, 2, 3])", TypeError), ("xp.dot(a, h)", (TypeError, AttributeError)),
        ("xp.where(b, a, h)", TypeError), ("xp.where(b, [1, 2, 3], a)", TypeError),
        ("xp.where(h > 0, a, 0.0)", TypeError), ("xp.where(True, a, 0.0)", AttributeError),
        ("xp.where(b, f, 0.0)", (F32, [1, 0, 3])), ("xp.sum(h)", TypeError, "leaves it to NumPy"),
        ("xp.sum([1, 2])", (TypeError, AttributeError)), ("xp.concatenate([a, h])", TypeError),
        ("xp.concatenate([a, f])", (F64, [1, 2, 3, 1, 2, 3])),
        ("xp.take(a, [0, 1])", TypeError, "copies the list to the device"),
        ("xp.einsum('i,i->', a, h)", TypeError, "copies it to the device")],
    "4 NumPy's functions": [
        (f"np.{call}", TypeError, "dispatches to its own")
        for call in ("exp(a)", "sum(a)", "concatenate([a, a])", "zeros_like(a)", "where(b, a, 0)", "isfinite(a)",
                     "max(a)")],
    "5 assignment": [
        ("after(a, lambda x: x.__setitem__(0, 5))", (F64, [5, 2, 3])),
        ("after(a, lambda x: x.__setitem__(b, 0.0))", (F64, [0, 2, 0])),
        ("after(a, lambda x: x.__setitem__(i[:2], 7.0))", (F64, [7, 2, 7])),
        ("after(a, lambda x: x.__setitem__(slice(2), f[1:]))", (F64, [2, 3, 3])),
        ("a.__setitem__(slice(None), h)", TypeError, "copies some to the device"),
        ("a.__setitem__([0, 1], 0.0)", TypeError, "copies the list to the device"),
        ("a.__setitem__(np.array([0, 1]), 0.0)", TypeError, "copies the index to the device"),
        ("a[np.array([0, 1])]", TypeError, "copies the index to the device"),
        ("a[[0, 1]]", TypeError, "copies it too"),
        ("after(a, lambda x: xp.copyto(x, 0.0, where=b))", (F64, [0, 2, 0])),
        ("xp.copyto(a, h)", (TypeError, ValueError))],
    "6 0-d arrays and promotion": [
        ("a.sum()", (F64, 6)), ("a[0]", (F64, 1)), ("xp.max(f)", (F32, 3)), ("xp.exp(f.sum() * 0)", (F32, 1)),
        ("m[1, 2]", (F32, 5)), ("a.argmax()", (I64, 2)), ("b.all()", (BOOL, False)), ("b.sum()", (I64, 2)),
        ("i.mean()", (F64, 1)), ("after(a, lambda x: x[0].__setitem__((), 9))", (F64, [9, 2, 3])),
        ("xp.array_equal(a, f)", (BOOL, True)), ("f + np.float64(1)", (F64, [2, 3, 4])),
        ("f + a.sum()", (F64, [7, 8, 9])), ("f + f.sum()", (F32, [7, 8, 9])), ("f + i", (F64, [3, 2, 4])),
        ("f.astype(np.float16) + 1", (F16, [2, 3, 4])), ("f.astype(np.float16) + f", (F32, [2, 4, 6])),
        ("i / 2", (F64, [1, 0, 0.5])), ("b * f", (F32, [1, 0, 3])), ("f.mean(), f.var()", [(F32, 2), (F32, 2 / 3)]),
        ("[x.shape for x in a]", [(), (), ()]), ("iter(a.sum())", TypeError), ("len(a.sum())", TypeError)],
    "7 indices": [
        ("a[i]", (F64, [3, 1, 2])), ("a[b]", (F64, [1, 3])), ("m[:, i]", (F32, [[2, 0, 1], [5, 3, 4]])),
        ("a[3]", IndexError), ("a[None, 1:]", (F64, [[2, 3]])), ("a[i + 1]", AssertionError, "wraps"),
        ("xp.take(a, i + 5)", AssertionError, "wraps"), ("xp.add.at(a, i + 1, 1.0)", AssertionError, "wraps"),
        ("a.__setitem__(i + 1, 0.0)", AssertionError, "wraps"),
        ("a.__setitem__(i * 0, a)", AssertionError, "takes any of them"),
        ("xp.take_along_axis(m, m.argmax(1)[:, None], 1)", (F32, [[2], [5]])),
        ("xp.take_along_axis(a, i)", TypeError)],
    "8 memory": [
        ("(m.T + m.T).flags.c_contiguous, xp.exp(m.T).flags.c_contiguous", (True, True)),
        ("xp.where(m.T > 1, m.T, 0).flags.c_contiguous", True), ("m.T.copy().flags.c_contiguous", True),
        ("xp.add(a, a, out=a) is a", True), ("xp.add(a, a, out=h)", TypeError), ("xp.add(a, a, out=m)", ValueError),
        ("xp.multiply(f, 2.0, out=f)", (F32, [2, 4, 6])), ("xp.add(a, a, out=i)", TypeError),
        ("hasattr(a, '__imatmul__')", False),
        ("m.reshape(-1).base is m, m[0].base is m, (m + 1).base is None", (True, True, True)),
        ("m[0][1:].base is m, m.T.flags.owndata, m.flags.owndata", (True, False, True)),
        ("a.astype(np.float64, copy=False) is a", True), ("after(a, lambda x: x.__iadd__(f))", (F64, [2, 4, 6])),
        ("f.__iadd__(a) is f", True), ("i.__iadd__(a)", TypeError),
        ("xp.shares_memory(m, m.T), xp.shares_memory(a, f)", (True, False))],
    "9 what is missing": [
        *((f"xp.{name}", AttributeError) for name in (
            "errstate", "einsum_path", "vecdot", "matvec", "insert", "block", "ndenumerate", "nditer", "frompyfunc",
            "unstack")),
        ("hasattr(a, '__index__')", False), ("a.sum(where=b)", TypeError), ("xp.max(a, initial=0.0)", TypeError),
        ("xp.exp(a, where=b)", TypeError), ("xp.take(a, i, mode='clip')", TypeError),
        ("xp.clip(a, min=0)", TypeError), ("xp.clip(a, 2.0, None)", (F64, [2, 2, 3])),
        ("xp.clip(f, 1.5, 2.5)", (F32, [1.5, 2, 2.5])), ("xp.sort(a, stable=True)", TypeError),
        ("xp.einsum('i->', a, out=a)", TypeError), ("xp.einsum('ij->ji', m)", (F32, [[0, 3], [1, 4], [2, 5]])),
        ("after(a, lambda x: xp.add.at(x, i * 0, 1.0))", (F64, [4, 2, 3])), ("xp.add.at(b, i, True)", TypeError),
        ("xp.add.at(f.astype(np.int16), i, 1)", TypeError),
        ("after(f, lambda x: xp.maximum.at(x, i, 2.0))", (F32, [2, 2, 3])), ("xp.add.reduce(a)", (F64, 6)),
        ("xp.multiply.at(a, i, 2.0)", NotImplementedError), ("xp.maximum.reduce(a)", NotImplementedError),
        ("xp.argpartition(-f, 1)", (I64, [2, 1, 0])),
        *((f"xp.random.default_rng(0).{name}", AttributeError) for name in (
            "normal", "choice", "permutation", "shuffle")),
        ("xp.random.default_rng(0).random((2, 3), dtype=np.float32).dtype", np.dtype(F32)),
        ("xp.random.Generator(xp.random.Philox4x3210(1)).random(4).shape", (4,)),
        ("__import__('cupyx.scipy.special').scipy.special.erf(f * 0)", (F32, [0, 0, 0])),
        ("after(a, lambda x: __import__('cupyx').scatter_add(x, i, f))", (F64, [3, 5, 4]))],
    "10 writing and dtypes": [
        ("xp.broadcast_to(a, (2, 3)).__setitem__(0, 1.0)", ValueError, "writes into them all"),
        ("xp.asarray(np.array(['x']))", (ValueError, TypeError)),
        ("xp.asarray(np.array([None]))", (ValueError, TypeError)),
        ("xp.zeros(2, np.longdouble)", (ValueError, TypeError)), ("xp.zeros((2, 1), np.float16)", (F16, [[0], [0]])),
        ("xp.ones_like(i), xp.zeros_like(m, dtype=bool)[0]", [(I64, [1, 1, 1]), (BOOL, [False] * 3)]),
        ("xp.full(2, 3.0, np.float32)", (F32, [3, 3])), ("xp.arange(3)", (I64, [0, 1, 2])),
        ("xp.eye(2, dtype=bool)", (BOOL, [[True, False], [False, True]])),
        ("xp.zeros(a)", TypeError, "asks the device for the shape"), ("xp.finfo(f.dtype).dtype", np.dtype(F32)),
        ("f ** 2, f ** -1", [(F32, [1, 4, 9]), (F32, [1, 0.5, 1 / 3])]),
        ("xp.log(f - 1)", (F32, [-np.inf, 0, np.log(2)])), ("f[1] / (f[0] - 1)", (F32, np.inf)),
        ("m @ m.T", (F32, [[5, 14], [14, 50]])), ("f @ f", (F32, 14)),
        ("xp.zeros((0, 3)).mean(0)", (F64, [np.nan] * 3)),
        ("xp.promote_types(np.float16, np.float32)", np.dtype(F32))],
}
CLAIMS = [Claim(item, *claim) for item, claims in ITEMS.items() for claim in claims]
