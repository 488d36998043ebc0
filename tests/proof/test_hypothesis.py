"""Every op at shapes that nobody chose: (), size 0, size 1, stretched axes, memory that is not contiguous.

check_op runs each op on inputs that lie apart in memory too; options (masks, ids, an index) always do here. What every
op has really met is held at the end.
"""
import collections
import contextlib
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from minitx import ops
from minitx.proof import check_op, composed
from minitx.proof.cases import Case, Draw

SOME = settings(max_examples=40, deadline=None, derandomize=True)       # the same examples in every run
SIZES = st.sampled_from([0, 1, 2, 3, 5])
AWKWARD = st.sampled_from([(), (1,), (0,), (1, 1), (2, 0), (0, 1, 3)])
SHAPES = AWKWARD | st.lists(SIZES, max_size=3).map(tuple).filter(lambda shape: math.prod(shape) <= 30)
LEADS = st.lists(st.sampled_from([0, 1, 2, 3]), max_size=2).map(tuple)
DRAWS = st.integers(0, 99).map(lambda seed: Draw(f"hypothesis {seed}"))
POSITIVE = {"log", "sqrt"}
KINKED = {"abs", "relu"}
MET = collections.defaultdict(set)                                      # op name -> what it has been given so far


def holds(name, *inputs, **options):
    """Finite differences agree, and so does the composed twin."""
    options = {key: apart(option) for key, option in options.items()}
    for x in (*inputs, *options.values()):
        if isinstance(x, np.ndarray):
            MET[name] |= {"()"} if x.ndim == 0 else {min(x.size, 2)}
    assert check_op(ops.OPS[name], inputs, options) <= 1
    if name in composed.LAYERS and all(x is None or x.size for x in inputs):
        assert composed.against(Case(ops.OPS[name], "drawn", inputs, options)) <= composed.TOLERANCE


def apart(option):
    """An array's values with gaps between them in memory, read-only, also within a tuple; all else as it is."""
    if type(option) is tuple:
        return tuple(map(apart, option))
    if not isinstance(option, np.ndarray) or not option.ndim:
        return option
    view = np.zeros([2 * n + 1 for n in option.shape[::-1]], option.dtype)[(slice(1, None, 2),) * option.ndim].T
    view[...] = option
    view.flags.writeable = False
    return view


def each(*names):
    return pytest.mark.parametrize("name", names)


@each("neg", "exp", "log", "sqrt", "abs", "erf", "sin", "cos", "tanh", "sigmoid", "relu", "silu")
@SOME
@given(SHAPES, DRAWS)
def test_pointwise(name, shape, draw):
    array = draw.positive if name in POSITIVE else draw.away if name in KINKED else draw
    holds(name, array(*shape))


@SOME
@given(SHAPES, DRAWS, st.sampled_from(["none", "tanh"]), st.booleans())
def test_gelu(shape, draw, approximate, biased):
    holds("gelu", draw(*shape), draw(shape[-1]) if biased and shape else None, approximate=approximate)


BROADCAST = hnp.mutually_broadcastable_shapes(num_shapes=2, min_side=0, max_side=3, max_dims=3)
THREE = hnp.mutually_broadcastable_shapes(num_shapes=3, min_side=0, max_side=3, max_dims=3)


@each("add", "sub", "mul", "div", "pow", "maximum", "minimum")
@SOME
@given(BROADCAST, DRAWS)
def test_two_arrays_that_broadcast(name, shapes, draw):
    a, b = shapes.input_shapes
    if name in ("maximum", "minimum"):
        x = draw.apart(math.prod(a) + math.prod(b))
        return holds(name, x[:math.prod(a)].reshape(a), x[math.prod(a):].reshape(b))
    holds(name, (draw.positive if name == "pow" else draw)(*a), (draw.positive if name == "div" else draw)(*b))


@SOME
@given(THREE, DRAWS)
def test_where(shapes, draw):
    a, b, c = shapes.input_shapes
    holds("where", draw(*a), draw(*b), condition=draw.bools(*c))


@SOME
@given(SHAPES, DRAWS, st.data())
def test_masked_fill(shape, draw, data):
    mask = data.draw(hnp.broadcastable_shapes(shape, max_dims=len(shape), min_side=0, max_side=3))
    assume(np.broadcast_shapes(mask, shape) == shape)
    holds("masked_fill", draw(*shape), mask=draw.bools(*mask), value=0.3)


@SOME
@given(SHAPES, DRAWS, st.sampled_from([(-0.5, 0.6), (None, 0.3), (-0.2, None), (None, None)]))
def test_clip(shape, draw, bounds):
    holds("clip", draw.away(*shape, points=[b for b in bounds if b is not None]), min=bounds[0], max=bounds[1])


@each("sum", "mean", "var", "std", "prod", "max", "min", "logsumexp")
@SOME
@given(SHAPES, DRAWS, st.booleans(), st.data())
def test_reductions(name, shape, draw, keepdims, data):
    none = [None, ()] if name in ("mean", "var", "std") else [None, (), 0, -1]         # what NumPy takes for a number
    axes = data.draw(st.none() | hnp.valid_tuple_axes(len(shape)) if shape else st.sampled_from(none))
    if isinstance(axes, tuple) and len(axes) == 1 and data.draw(st.booleans()):
        axes = axes[0]
    x = (draw.apart if name in ("max", "min", "std") else draw)(*shape)
    with reduced_as_numpy_does(name, x, axes):
        holds(name, x, axis=axes, keepdims=keepdims)


def reduced_as_numpy_does(name, x, axes):
    """Where there is nothing to reduce: its mean is NaN, with NumPy's warning, and its largest a ValueError."""
    nothing = any(n == 0 and m == 1 for n, m in zip(x.shape, np.sum(x, axis=axes, keepdims=True).shape))
    if nothing and name in ("mean", "var", "std"):
        return numpys_warning()
    if nothing and name in ("max", "min", "logsumexp"):
        return pytest.raises(ValueError, match="zero-size")
    return contextlib.nullcontext()


@contextlib.contextmanager
def numpys_warning():
    with warnings.catch_warnings():
        for message in "Mean of empty slice", "invalid value encountered", "divide by zero encountered":
            warnings.filterwarnings("ignore", message, RuntimeWarning)
        yield


@SOME
@given(SHAPES, DRAWS, st.data())
def test_reshape_transpose_to(shape, draw, data):
    x = draw(*shape)
    holds("transpose", x, axes=tuple(data.draw(st.permutations(range(len(shape))))))
    holds("to", x, device="cpu", dtype=np.dtype(np.float64))
    holds("reshape", x, shape=tuple(data.draw(st.permutations(shape + (1,)))))
    holds("reshape", x, shape=(x.size,))


@SOME
@given(SHAPES, DRAWS, st.data())
def test_getitem(shape, draw, data):
    x = draw(*shape)
    holds("getitem", x, index=data.draw(hnp.basic_indices(shape, allow_newaxis=True)))
    holds("getitem", x, index=draw.bools(*shape))
    if shape:
        holds("getitem", x, index=data.draw(st.sampled_from([np.zeros(n, int) for n in (0, (2, 0))])))
    if shape and 0 not in shape:
        holds("getitem", x, index=data.draw(hnp.integer_array_indices(
            shape, result_shape=hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=4))))


@SOME
@given(SHAPES, DRAWS, st.lists(SIZES, min_size=1, max_size=3), st.data())
def test_join_and_split(shape, draw, sizes, data):
    new = data.draw(st.integers(-len(shape) - 1, len(shape)))
    holds("stack", *(draw(*shape) for _ in sizes), axis=new)
    if shape:
        axis = data.draw(st.integers(-len(shape), len(shape) - 1))
        pieces = [shape[:axis % len(shape)] + (n,) + shape[axis % len(shape) + 1:] for n in sizes]
        holds("concatenate", *(draw(*piece) for piece in pieces), axis=axis)
        whole = list(shape)
        whole[axis] = sum(sizes)
        holds("split", draw(*whole), sections=np.cumsum(sizes)[:-1].tolist(), axis=axis)


@SOME
@given(hnp.mutually_broadcastable_shapes(signature=np.matmul.signature, min_side=0, max_side=3, max_dims=2), DRAWS)
def test_matmul(shapes, draw):
    holds("matmul", *(draw(*shape) for shape in shapes.input_shapes))


@SOME
@given(LEADS, SIZES, SIZES, st.booleans(), DRAWS)
def test_linear(lead, width, out, bias, draw):
    holds("linear", draw(*lead, width), draw(out, width), draw(out) if bias else None)


@SOME
@given(SIZES, SIZES, SIZES, DRAWS,
       st.sampled_from(["ab,bc->ac", "ab,bc->ca", "ab,bc->b", "ab,bc", "ab,bc->", "ab,bc->abc", "...b,b...->..."]))
def test_einsum(a, b, c, draw, equation):
    holds("einsum", draw(a, b), draw(b, a if "..." in equation else c), equation=equation)
    holds("einsum", draw(), draw(a), equation=",a->a")


@SOME
@given(SHAPES, DRAWS, st.data())
def test_softmax(shape, draw, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1)) if shape else -1
    mask = data.draw(st.none() | hnp.broadcastable_shapes(shape, max_dims=len(shape), max_side=3))
    assume(mask is None or np.broadcast_shapes(mask, shape) == shape)
    holds("softmax", draw(*shape), axis=axis, mask=None if mask is None else draw.bools(*mask))
    holds("log_softmax", draw(*shape), axis=axis)


@SOME
@given(LEADS, SIZES, st.booleans(), st.booleans(), st.sampled_from([1e-3, 0.2]), DRAWS)
def test_norms(lead, width, weight, bias, eps, draw):
    x, weight = 1.0 + draw(*lead, width), draw(width) if weight else None
    holds("layer_norm", draw.apart(*lead, width), weight, draw(width) if bias else None, eps=eps)
    holds("rms_norm", x, weight, eps=eps)


@SOME
@given(LEADS, st.sampled_from([0, 1, 3]), st.sampled_from([0, 1, 4]), st.sampled_from([0, 1, 2]),
       st.sampled_from([0, 1, 3]), st.booleans(), st.booleans(), st.booleans(), st.booleans(), DRAWS)
def test_attention(lead, T, S, K, D, masked, causal, biased, dropped, draw):
    scores = (*lead, T, S)
    holds("scaled_dot_product_attention", draw(*lead, T, K), draw(*lead, S, K), draw(*lead, S, D),
          draw(T, S) if biased else None, mask=draw.bools(*scores) if masked else None, is_causal=causal, scale=None,
          keep=draw.bools(*scores) if dropped else None, dropout_p=0.3 if dropped else 0.0, return_weights=masked)


@SOME
@given(st.lists(st.sampled_from([0, 1, 2]), max_size=3), st.sampled_from([0, 1, 3]), st.sampled_from([0, 2, 4]),
       st.booleans(), st.booleans(), DRAWS)
def test_rope(lead, T, K, interleaved, each, draw):
    positions = draw.ids(9, lead[0], T) if lead and each else draw.ids(9, T)    # (B, T) beside 3, 4 or 5 axes, or (T,)
    holds("rope", draw(*lead, T, K), positions=positions, base=100.0, interleaved=interleaved)


@SOME
@given(SHAPES, DRAWS, st.booleans())
def test_dropout(shape, draw, added):
    holds("dropout", draw(*shape), draw(*shape) if added else None, keep=draw.bools(*shape), p=0.3)


@SOME
@given(SHAPES, st.sampled_from([0, 1, 2, 4]), SIZES, DRAWS)
def test_embedding(shape, rows, width, draw):
    shape = shape if rows else (0, *shape)                              # an empty table can only be asked for nothing
    holds("embedding", draw(rows, width), ids=draw.ids(rows, *shape), padding_idx=None)


@SOME
@given(LEADS, st.sampled_from([0, 1, 2, 4]), st.sampled_from(["mean", "sum", "none"]), st.sampled_from([0.0, 0.2]),
       DRAWS)
def test_cross_entropy(lead, V, reduction, smoothing, draw):
    targets = np.where(draw.bools(*lead) & (V > 0), draw.ids(max(V, 1), *lead), -100)   # no class: all rows ignored
    holds("cross_entropy", draw(*lead, V), targets=targets, ignore_index=-100, label_smoothing=smoothing,
          reduction=reduction)


@SOME
@given(st.sampled_from([1, 0, 2]), st.sampled_from([1, 0, 2]), st.sampled_from([1, 0, 2]), st.sampled_from([1, 2, 3]),
       st.sampled_from([1, 2]), st.sampled_from([1, 3]), DRAWS)
def test_patchify(B, C, H, W, height, width, draw):
    holds("patchify", draw(B, C, H * height, W * width), patch=(height, width))


ONE = np.ones(())
NEED_AXES = {
    "matmul": lambda: ops.matmul(ONE, np.ones(2)), "linear": lambda: ops.linear(ONE, np.ones((2, 1))),
    "layer_norm": lambda: ops.layer_norm(ONE), "rms_norm": lambda: ops.rms_norm(ONE),
    "scaled_dot_product_attention": lambda: ops.scaled_dot_product_attention(ONE, ONE, ONE),
    "rope": lambda: ops.rope(ONE, np.zeros(1, int)), "concatenate": lambda: ops.concatenate([ONE]),
    "split": lambda: ops.split(ONE, 1), "patchify": lambda: ops.patchify(ONE, 1),
}


@pytest.mark.parametrize("name", NEED_AXES)
def test_an_op_that_works_along_axes_refuses_a_number(name):
    with pytest.raises(ValueError, match=f"{name}: "):
        NEED_AXES[name]()


def test_no_op_was_left_out():
    text = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in ops.OPS if f'"{name}"' not in text] == []


def test_every_op_met_what_is_awkward():
    """(), no element, one, and several (which check_op also lays apart): really drawn, not only allowed."""
    if MET.keys() != ops.OPS.keys():
        pytest.skip("the tests above did not all run")
    for name, met in MET.items():
        assert {"()", 0, 1, 2} - met == ({"()"} if name in NEED_AXES else set()), name
