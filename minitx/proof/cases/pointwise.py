"""Cases of the ops that work element by element: arithmetic, functions of one number, choices.

Each function takes a Draw and yields (label, inputs, options).
"""
import numpy as np

_INF = float("inf")


def _sums(draw):
    yield "numbers", (draw(), draw()), {}
    yield "same shape", (draw(2, 3), draw(2, 3)), {}
    yield "row", (draw(2, 3), draw(3)), {}
    yield "both stretched", (draw(2, 1, 4), draw(3, 1)), {}
    yield "one and many", (draw(1), draw(2, 3)), {}
    yield "number and many", (draw(2, 3), draw()), {}
    yield "with a constant", (draw(2, 3), 1.7), {}
    yield "empty", (draw(0, 3), draw(3)), {}


def _quotients(draw):
    for label, (a, b), options in _sums(draw):
        yield label, (a, b if isinstance(b, float) else np.where(b < 0, b - 0.4, b + 0.4)), options
    yield "from a constant", (2.3, draw.positive(4)), {}


def _powers(draw):
    yield "numbers", (draw.positive(), draw()), {}
    yield "same shape", (draw.positive(2, 3), draw(2, 3)), {}
    yield "both stretched", (draw.positive(2, 1, 4), draw(3, 1)), {}
    yield "square", (draw.away(5), 2), {}
    yield "cube", (draw.away(2, 3), 3), {}
    yield "inverse", (-draw.positive(4), -1), {}
    yield "root", (draw.positive(4), 0.5), {}
    yield "power zero", (draw.away(3), 0), {}
    yield "of a constant", (1.7, draw(2, 3)), {}


def _power_edges(draw):
    yield "zero to powers", (np.array([0.0, 0.0, 2.0, 0.0]), np.array([1.0, 2.0, 0.0, 0.0])), {}
    yield "zero squared", (np.array([0.0, -1.5]), 2), {}
    yield "zero to zero", (np.array([0.0, 3.0]), 0), {}
    yield "infinity to zero", (np.array([_INF, -_INF, 2.0]), 0), {}
    yield "infinity to powers", (np.array([_INF, _INF, _INF]), np.array([0.0, 2.0, -1.0])), {}


def _numbers(draw):
    yield "number", (0.5 * draw(),), {}
    yield "vector", (draw(6),), {}
    yield "array", (draw(2, 1, 3),), {}
    yield "wide", (2.5 * draw(4, 3),), {}
    yield "empty", (draw(0, 2),), {}


def _positive_numbers(draw):
    yield "number", (draw.positive(),), {}
    yield "vector", (draw.positive(6),), {}
    yield "array", (draw.positive(2, 1, 3) * 2,), {}
    yield "empty", (draw.positive(0),), {}


def _numbers_but_zero(draw):
    yield "number", (draw.away(),), {}
    yield "vector", (draw.away(6),), {}
    yield "array", (draw.away(2, 1, 3),), {}
    yield "empty", (draw.away(0, 2),), {}


def _at_zero(draw):
    yield "at zero", (np.array([-1.3, 0.0, 2.1]),), {}


def _far_out(draw):
    yield "far out", (np.array([-1000.0, -40.0, -9.5, 9.5, 40.0, 1000.0]),), {}
    yield "infinite", (np.array([-_INF, 0.7, _INF]),), {}


def _gelu(draw):
    for approximate in ("none", "tanh"):
        for label, (x,), _ in _numbers(draw):
            yield f"{label}, {approximate}", (x, None), dict(approximate=approximate)
        for shape in ((5,), (2, 3, 4), (3, 1), (0, 2)):
            yield f"bias, {shape}, {approximate}", (draw(*shape), draw(shape[-1])), dict(approximate=approximate)


def _gelu_edges(draw):
    for label, (x,), _ in _far_out(draw):
        for approximate in ("none", "tanh"):
            yield f"{label}, {approximate}", (x, None), dict(approximate=approximate)


def _where(draw):
    yield "numbers", (draw(), draw()), dict(condition=np.array(True))
    yield "same shape", (draw(2, 3), draw(2, 3)), dict(condition=np.array([[True, False, True], [False, False, True]]))
    yield "all stretched", (draw(4), draw(3, 1)), dict(condition=np.array([[[True]], [[False]]]))
    yield "with a constant", (draw(2, 3), 0.7), dict(condition=draw.bools(3))


def _masked_fill(draw):
    yield "number", (draw(),), dict(mask=np.array(False), value=0.6)
    yield "same shape", (draw(2, 3),), dict(mask=np.array([[True, False, True], [False, False, True]]), value=-1.7)
    yield "mask stretched", (draw(2, 3, 4),), dict(mask=np.array([[True], [False], [False]]), value=2.5)
    yield "of length one", (draw(3, 1),), dict(mask=np.array([[True], [False], [True]]), value=0.4)


def _masked_fill_edges(draw):
    yield "minus infinity", (draw(2, 3),), dict(mask=np.array([True, False, False]), value=-_INF)
    yield "integers", (np.arange(6).reshape(2, 3),), dict(mask=np.array([True, False, False]), value=9)
    yield "integers, a float", (np.arange(4),), dict(mask=np.array([True, False, True, False]), value=0.5)


def _clip(draw):
    yield "number", (draw.away(points=(-0.7, 0.9)),), dict(min=-0.7, max=0.9)
    yield "both", (draw.away(3, 5, points=(-0.7, 0.9)),), dict(min=-0.7, max=0.9)
    yield "below", (draw.away(2, 4, points=(-0.3,)),), dict(min=-0.3, max=None)
    yield "above", (draw.away(2, 4, points=(0.2,)),), dict(min=None, max=0.2)
    yield "neither", (draw(4),), dict(min=None, max=None)
    yield "of length one", (draw.away(3, 1, points=(0.3,)),), dict(min=0.3, max=None)


def _clip_edges(draw):
    yield "at the bounds", (np.array([-1.0, -0.5, 0.3, 1.5, 2.0]),), dict(min=-0.5, max=1.5)
    yield "integers", (np.arange(6).reshape(2, 3),), dict(min=1, max=4)
    yield "integers, a float", (np.arange(4),), dict(min=None, max=1.5)


def _larger(draw):
    x = draw.apart(25)
    yield "numbers", (x[6:7].reshape(()), x[18:19].reshape(())), {}
    yield "same shape", (x[:6].reshape(2, 3), x[6:12].reshape(2, 3)), {}
    yield "both stretched", (x[:8].reshape(2, 1, 4), x[8:11].reshape(3, 1)), {}
    yield "with a constant", (draw.away(2, 3, points=(0.2,)), 0.2), {}


def _larger_edges(draw):
    yield "ties", (np.array([1.0, 2.0, -0.5]), np.array([1.0, 1.5, -0.5])), {}


CASES = {
    "add": _sums, "sub": _sums, "mul": _sums, "div": _quotients, "neg": _numbers, "pow": _powers, "exp": _numbers,
    "log": _positive_numbers, "sqrt": _positive_numbers, "abs": _numbers_but_zero, "erf": _numbers, "sin": _numbers,
    "cos": _numbers, "tanh": _numbers, "sigmoid": _numbers, "relu": _numbers_but_zero, "silu": _numbers, "gelu": _gelu,
    "where": _where, "masked_fill": _masked_fill, "clip": _clip, "maximum": _larger, "minimum": _larger,
}
EDGES = {
    "pow": _power_edges, "abs": _at_zero, "relu": _at_zero, "tanh": _far_out, "sigmoid": _far_out, "silu": _far_out,
    "erf": _far_out, "gelu": _gelu_edges, "masked_fill": _masked_fill_edges, "clip": _clip_edges,
    "maximum": _larger_edges, "minimum": _larger_edges,
}
