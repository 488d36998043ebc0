"""Every twin against its plain op: forward, every gradient, and what is said where they do not apply.

CASES has a list for each plain op: (arrays, options), and needs where not every gradient can be compared. A new twin needs
an entry there. What is compared is relative to the largest entry, or 1e-3 if that is larger.
"""
import importlib
import itertools

import numpy as np
import pytest

import minitx as mt
from minitx import fused, memory, optim
from minitx.fused.cpu import threads
from minitx.ops.activation import GELU
from minitx.ops.attention import Attention
from minitx.ops.embedding import Embedding
from minitx.ops.linear import Linear
from minitx.ops.loss import CrossEntropy
from minitx.ops.norm import LayerNorm
from minitx.ops.softmax import Softmax

pytestmark = pytest.mark.host("twins of the CPU")
fused.load({})
SMALL = {"LEAST": 1, "BLOCK": 40, "TILE": 4, "AT_ONCE": 30, "FEW_ROWS": 1, "FEW": 1, "OPERATIONS": 1}
INF, NAN = np.inf, np.nan


def draw(*shape, scale=1.0, at=None):
    """Normal numbers, with {position: another number}."""
    x = np.random.default_rng(sum(shape)).normal(size=shape) * scale
    for where, value in (at or {}).items():
        x[where] = value
    return x


def strided(x):
    """The same numbers, each row and column with a gap behind it."""
    wide = np.full([2 * n for n in x.shape], NAN, x.dtype)
    view = wide[tuple(slice(None, None, 2) for _ in x.shape) + (...,)]
    view[...] = x
    return view


def rows(*more):
    """Whole arrays (..., C) of awkward sizes: one row, blocks that do not come out even, many axes; then what else."""
    return [draw(1, 7), draw(1, 130), draw(37, 3), draw(5, 40), draw(41, 1), draw(2, 3, 5, 7), draw(9), *more]


FAR = [draw(9, 8, scale=scale) for scale in (1e18, 1e30)] + [np.full((9, 8), 3e38)]
ODD = [draw(9, 8, at=at) for at in ({(2, 3): NAN}, {(2, 3): INF}, {(2, 3): -INF}, {(2, 3): 1e30}, {3: -INF},
                                    {(3, 1): INF, (3, 2): INF})]


def heads(lead, T, S, K=3, D=5, scale=1.0, at=None):
    shapes = [(*lead, T, K), (*lead, S, K), (*lead, S, D)]
    q, k, v = (np.random.default_rng(i).normal(size=shape) for i, shape in enumerate(shapes))
    for (name, where), value in (at or {}).items():
        dict(q=q, k=k, v=v)[name][where] = value
    return [q * scale, k * scale, v, None]


def attention():
    sizes = [((1,), 4, 4), ((3,), 5, 7), ((3,), 13, 6), ((5,), 9, 2), ((2, 3), 9, 9), ((1, 7), 6, 11),
             ((4, 2), 2, 2), ((2, 1), 13, 17)]
    for (lead, T, S), causal, scale in itertools.product(sizes, (False, True), (1.0, 6.0)):
        yield heads(lead, T, S, scale=scale), dict(is_causal=causal)
    q, k, v, _ = heads((2, 3), 9, 7)
    drawn = np.random.default_rng(1).random((2, 3, 9, 7)) < 0.6
    masks = [drawn, drawn[0, 0], drawn[0, 0, :1], drawn[0, 0, 0], drawn[:, 0], drawn[:, 0, :1], drawn[:, :1],
             drawn[:, :1, :1], drawn[:1], drawn[:1, :, :1], drawn[0, 0, :, :] & False, drawn & (np.arange(9) > 5)[:, None]]
    for mask, causal, loud in itertools.product(masks, (False, True), (1, 6)):
        yield [q * loud, k * loud, v, None], dict(mask=mask, is_causal=causal)
    for causal, keep in itertools.product((False, True), (drawn, drawn[0, 0], drawn & False)):
        yield [q, k, v, None], dict(keep=keep, dropout_p=0.4, is_causal=causal, mask=drawn[0, 0])
    yield [q, k, v, None], dict(keep=drawn, dropout_p=1.0)
    for scale in (0.0, -2.0, 100.0):
        yield [q, k, v, None], dict(scale=scale)
    apart = lambda x: x.swapaxes(1, 2).copy().swapaxes(1, 2)          # as a layer cuts its heads  # noqa: E731
    yield [apart(q), apart(k), apart(v), None], dict(is_causal=True)
    for huge in (1e8, 1e15):                                          # dq and dk are 0 but for the rounding of dp
        yield heads((2, 3), 9, 9, scale=huge), dict(is_causal=True), (False, False, True, False)
    for sign in (1, -1):                                              # scores near 25 or -25, values huge
        yield [5 + draw(2, 5, 4), sign * (2.5 + draw(2, 6, 4) / 10), draw(2, 6, 5, scale=1e28), None], {}
    for number in (NAN, INF, -INF):
        yield heads((2, 3), 9, 9, at={("q", (1, 1, 4, 0)): number}), {}
        yield heads((2, 3), 9, 9, at={("k", (1, 1, 4, 0)): number}), dict(mask=np.arange(9) < 9)
        yield heads((2, 3), 9, 9, at={("v", (1, 1, 8, 0)): number}), {}
    yield [np.full((2, 5, 4), -INF), np.ones((2, 6, 4)), draw(2, 6, 4), None], {}      # every score is -inf


def cross_entropy():
    for x in rows(*FAR, *ODD):
        V, shape = x.shape[-1], x.shape[:-1]
        targets = np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape) * 3 % V)
        ignored = np.where(np.arange(targets.size).reshape(shape) % 3 == 1, -100, targets)
        for reduction, t in itertools.product(("mean", "sum", "none"), (targets, ignored, np.full_like(targets, -100))):
            yield [x], dict(targets=t, reduction=reduction)
    for x in ODD:                                                      # what is not counted may be anything
        bad = ~np.isfinite(x).all(axis=-1)
        yield [x], dict(targets=np.where(bad, 7, np.arange(9) % 7), ignore_index=7)
    yield [draw(6, 5)], dict(targets=np.array([0, 4, 4, 3, 1, 2], np.uint8), ignore_index=4)
    yield [draw(2, 3, 5)], dict(targets=np.array([[0, 4, 4], [3, 1, 2]]).T.copy().T)
    yield [draw(3, 5)], dict(targets=[0, 4, 2])
    yield [draw(3, 5)], dict(targets=np.array([0, 4, 2], np.uint64))
    yield [np.full((3, 5), 3e38) * [1, -1, 1, -1, 1]], dict(targets=np.array([1, 1, 1]), reduction="sum")


def linear():
    for lead, n_in, n_out in itertools.product(((1,), (2,), (7,), (3, 5), (2, 3, 4)), (1, 5, 8), (1, 3, 16)):
        yield [draw(*lead, n_in), draw(n_out, n_in), draw(n_out)], {}
    yield [draw(7, 5), draw(3, 5), None], {}
    yield [draw(5, 7).T, draw(5, 3).T, draw(3)], {}
    yield [draw(4, 5, scale=1e18), draw(3, 5, scale=1e15), draw(3)], {}
    for number in (NAN, INF):
        yield [draw(7, 5, at={(2, 2): number}), draw(3, 5), draw(3)], {}


def embedding():
    for ids in (np.array([[0, 3, 3], [5, 0, 3]]), np.arange(6), np.array(4), np.zeros(50, np.uint8),
                np.array([1, 5], np.uint64), np.array([[1, 2], [3, 4]]).T, np.array([2, 1], np.int16)):
        for padding in (None, 3):
            yield [draw(9, 5)], dict(ids=ids, padding_idx=padding)
    yield [draw(9, 5, at={(1, 2): NAN})], dict(ids=np.array([1, 1, 0]))
    yield [draw(5, 6).T], dict(ids=np.arange(6))


CASES = {
    GELU: [([x, bias], dict(approximate=name))
           for x in rows(*FAR, *ODD, draw(3, 30, scale=300), draw(3, 200), np.array([0.0, -0.0, -1e3, 1e3]))
           for bias in (None, draw(x.shape[-1])) for name in ("none", "tanh")],
    Attention: [*attention()],
    Embedding: [*embedding()],
    Linear: [*linear()],
    CrossEntropy: [*cross_entropy()],
    LayerNorm: [([x, draw(x.shape[-1]), beta], dict(eps=eps))
                for x in rows(*FAR[:1], *ODD, draw(20, 33) + 30, np.zeros((3, 5)), np.full((5, 384), 1000.0),
                              draw(4, 700, scale=1e18), draw(3, 7, scale=1e-22))
                for beta in (draw(x.shape[-1]), None) for eps in (1e-5, 1e-12)],
    Softmax: [([x], dict(axis=axis)) for x in rows(*FAR, *ODD) for axis in (-1, x.ndim - 1)],
}
CASES = {op: [(*case, None)[:3] for case in cases] for op, cases in CASES.items()}
OTHERS = {"AdamW"}                                                     # below: twins of what is no op
EVERY = [pytest.param(op, *case, id=f"{op.__name__}-{i}") for op in CASES for i, case in enumerate(CASES[op])]


def test_every_twin_has_its_cases():
    assert {op for op in fused.TWINS if type(op) is not tuple} == set(CASES) | OTHERS     # those of the GPU are pairs
    assert all(twin.__mro__[1] is op and twin.name == op.name for op, twin in fused.TWINS.items() if op in CASES)


@pytest.fixture
def small(monkeypatch):
    """Blocks, tiles and limits so small that a few numbers go through all there is."""
    files = [memory, threads, *(importlib.import_module(f"minitx.fused.cpu.{name}") for name in fused.CPU)]
    for file, (name, value) in itertools.product(files, SMALL.items()):
        if hasattr(file, name):
            monkeypatch.setattr(file, name, value)


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def pinned(request):
    """On one thread and on two; without somebody who can steer the BLAS, as it comes."""
    control = pytest.importorskip("threadpoolctl")
    with control.threadpool_limits(request.param):
        if threads.count() != request.param:
            pytest.skip("this BLAS has no second thread")
        yield


def run(op, arrays, options, needs, dy=None, change=None):
    """Both halves on arrays that may only be read: (y, dy, gradients). Ordinary numbers may cause no warning."""
    op = op()
    op.needs = needs
    calm = all(x is None or np.abs(x).max() <= 1e19 for x in arrays)
    with np.errstate(all="warn" if calm else "ignore", under="ignore"):
        y = np.asarray(op.forward(*arrays, **options))
        if dy is None:
            dy = (change or np.asarray)(np.random.default_rng(2).normal(size=y.shape).astype(y.dtype))
        y.flags.writeable = dy.flags.writeable = False
        kept = y.copy()
        gradients = op.backward(dy)
    np.testing.assert_array_equal(y, kept, "backward changed what forward returned")
    return kept, dy, gradients


def agree(ours, plain, what, least=1e-3):
    assert ours.shape == plain.shape and ours.dtype == plain.dtype, what
    finite = np.isfinite(plain)
    np.testing.assert_array_equal(ours[~finite], plain[~finite], what)
    ours, plain = ours[finite], plain[finite]
    largest, off = np.abs(plain).max(initial=least), np.abs(ours - plain).max(initial=0)
    assert off <= (2e-5 if plain.dtype == np.float32 else 1e-12) * largest, f"{what}: off by {off}, largest {largest}"


def as_given(arrays, dtype, change=np.ascontiguousarray):
    """The arrays of a case in that dtype, laid out by `change`, for reading only."""
    with np.errstate(over="ignore"):
        arrays = [None if x is None else change(np.asarray(x, dtype)) for x in arrays]
    for x in arrays:
        if x is not None:
            x.flags.writeable = False
    return arrays


def both(op, arrays, options, needs=None, change=None):
    twin = fused.TWINS[op]
    assert twin.fits(*arrays, **options)
    needs = tuple(x is not None for x in arrays) if needs is None else needs
    # where a query sees one key, or as good as one, dp - <<dp, p>> is nothing but the rounding of dp, which is of order 1
    least = 1.0 if op is Attention else 1e-3
    y, dy, gradients = run(op, arrays, options, needs, change=change)
    ours, _, our_gradients = run(twin, arrays, options, needs, dy)
    agree(ours, y, "forward")
    assert len(gradients) == len(our_gradients) == len(arrays)
    for i, needed in enumerate(needs):
        if needed:
            agree(our_gradients[i], gradients[i], f"gradient {i}", least)


@pytest.mark.parametrize("op, arrays, options, needs", EVERY)
def test_a_twin_agrees_with_its_plain_op(small, pinned, op, arrays, options, needs):
    for dtype in (np.float32, np.float64):
        both(op, as_given(arrays, dtype), options, needs)


def test_an_ignored_row_stays_zero_whatever_reaches_the_loss(small):
    x, targets = draw(4, 5), np.array([1, -100, 2, -100])
    dy = np.array([1.0, np.inf, 2.0, np.nan])
    for op in (CrossEntropy, fused.TWINS[CrossEntropy]):
        op = op()
        op.forward(x, targets=targets, reduction="none")
        with np.errstate(invalid="ignore"):
            dx, = op.backward(dy)
        assert not dx[1::2].any() and np.isfinite(dx).all()


IN_EARNEST = [
    (GELU, [draw(3, 40001), None], {}), (GELU, [draw(3, 40001), draw(40001)], {}), (GELU, [draw(401, 300), draw(300)], {}),
    (Softmax, [draw(3, 40001)], {}),
    (Softmax, [draw(1001, 77)], {}), (LayerNorm, [draw(1001, 77), draw(77), draw(77)], {}),
    (LayerNorm, [draw(3, 40001), draw(40001), draw(40001)], {}),
    (CrossEntropy, [draw(3, 40001)], dict(targets=np.array([0, 40000, 7]))),
    (CrossEntropy, [draw(1001, 77)], dict(targets=np.arange(1001) % 77, ignore_index=5)),
    (Linear, [draw(517, 131), draw(259, 131), draw(259)], {}), (Linear, [draw(16, 130), draw(131, 130), None], {}),
    (Embedding, [draw(5, 501)], dict(ids=np.arange(301) % 4)),
    *((Attention, heads(lead, T, S, 33, 17), dict(is_causal=causal)) for causal in (False, True) for lead, T, S in
      (((2, 3), 131, 131), ((2, 3), 131, 300), ((7,), 200, 99), ((1, 1), 600, 601)))]


@pytest.mark.parametrize("op, arrays, options", IN_EARNEST)
def test_twins_in_earnest_just_beyond_what_fits_one_block_or_tile(pinned, op, arrays, options):
    for dtype in (np.float32, np.float64):
        both(op, as_given(arrays, dtype), options)


def some(op):
    """A case of ordinary numbers, several rows and every input."""
    fit = [case for case in CASES[op] if case[0][0].size > 40 and case[0][0].ndim > 1 and len(case[0][0]) > 1
           and all(x is None or np.isfinite(x).all() for x in case[0])]
    return min(fit, key=lambda case: sum(x is None for x in case[0]))


@pytest.mark.parametrize("op", CASES)
@pytest.mark.parametrize("change", [strided, np.asfortranarray, lambda x: np.asarray(np.flip(np.flip(x).copy()))],
                         ids=["strided", "columns first", "backwards"])
def test_arrays_may_lie_in_memory_as_they_like(small, op, change):
    arrays, options, _ = some(op)
    for dtype in (np.float32, np.float64):
        given = as_given(arrays, dtype, change)
        if fused.TWINS[op].fits(*given, **options):                    # a twin may leave such to the plain op
            both(op, given, options, change=change)
        both(op, as_given(arrays, dtype), options, change=change)      # dy alone


@pytest.mark.parametrize("op, which", [(op, which) for op in CASES for which in
                                       itertools.product((True, False), repeat=len(CASES[op][0][0]))])
def test_some_inputs_want_no_gradient(small, op, which):
    arrays, options, _ = some(op)
    which = [needed and x is not None for needed, x in zip(which, arrays)]
    if any(which):
        both(op, as_given(arrays, np.float64), options, which)
        return
    forward = op().forward(*as_given(arrays, np.float64), **options)   # nothing is recorded
    twin = fused.TWINS[op]()
    twin.needs = which
    agree(np.asarray(twin.forward(*as_given(arrays, np.float64), **options)), np.asarray(forward), "forward")


@pytest.mark.parametrize("op", [op for op in CASES if "Saves the same names" in fused.TWINS[op].__doc__
                                or "forward" not in vars(fused.TWINS[op]) or "backward" not in vars(fused.TWINS[op])])
def test_a_twin_that_saves_the_same_mixes_with_the_plain_halves(small, op):
    arrays, options, _ = some(op)
    arrays = as_given(arrays, np.float64)
    y, dy, expected = run(op, arrays, options, (True,) * len(arrays))
    for first, second in ((op, fused.TWINS[op]), (fused.TWINS[op], op)):
        one = first()
        one.forward(*arrays, **options)
        two = second()
        vars(two).update(vars(one))
        for ours, plain in zip(two.backward(dy), expected):
            agree(ours, plain, "gradient")


# ---- what is no op ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_adamw_in_one_walk_agrees_with_adamw(small, pinned, dtype):
    shapes = [(), (1,), (7,), (40,), (41, 3), (2, 3, 5), (0, 3)]
    results = []
    for plain in (True, False):
        draws = np.random.default_rng(0)
        params = [mt.tensor(draws.normal(size=shape).astype(dtype), requires_grad=True) for shape in shapes]
        params.append(mt.Tensor(strided(draws.normal(size=(6, 5)).astype(dtype)), requires_grad=True))
        unused = mt.tensor(np.ones(3, dtype), requires_grad=True)
        groups = [{"params": params[::2], "weight_decay": 0.1}, {"params": params[1::2] + [unused], "weight_decay": 0.0,
                                                                 "betas": (0.5, 0.6), "eps": 1e-3}]
        optimizer = optim.AdamW(groups, lr=lambda step: 0.1 / step)
        for _ in range(5):
            for p in params:
                p.grad = draws.normal(size=p.shape).astype(dtype)
            params[4].grad = np.asfortranarray(params[4].grad)
            with mt.plain_ops() if plain else mt.no_grad():
                optimizer.step()
        assert unused.numpy().tolist() == [1, 1, 1] and not optimizer.state.get(unused)
        results.append([p.numpy() for p in params] + [optimizer.state[p][name] for p in params for name in "mv"])
    for ours, plain in zip(*results[::-1]):
        np.testing.assert_allclose(ours, plain, rtol={2: 2e-3, 4: 2e-5, 8: 1e-12}[np.dtype(dtype).itemsize], atol=1e-6)
