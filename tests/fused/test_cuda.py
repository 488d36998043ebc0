"""Every twin for the GPU against its plain op.

What is compared, and how closely, is that of test_twins.py, whose cases run here too.
"""
import itertools

import double
import numpy as np
import pytest
from fused.gpu import TWINS, compiler, counted, gpu, there  # noqa: F401  fixtures of every test here
from fused.test_twins import CASES as SHARED
from fused.test_twins import FAR, ODD, agree, draw, heads, rows

import minitx as mt
from minitx import backend, nn
from minitx.fused.cuda import kernels
from minitx.ops.activation import GELU
from minitx.ops.attention import Attention
from minitx.ops.dropout import Dropout
from minitx.ops.embedding import Embedding
from minitx.ops.loss import CrossEntropy
from minitx.ops.norm import LayerNorm, RMSNorm
from minitx.ops.softmax import Softmax


def as_it_lies(x):
    """Array x on the device, in the order in which it lies in memory; a vector with gaps."""
    if x.ndim < 2:
        return there(x.repeat(2))[::2]
    order = np.argsort([-step for step in x.strides], kind="stable")
    return there(np.ascontiguousarray(x.transpose(order))).transpose(tuple(np.argsort(order)))


def smoothed():
    for x in rows(*FAR, *ODD):
        targets = np.arange(x[..., 0].size).reshape(x.shape[:-1]) * 3 % x.shape[-1]
        for reduction, a in itertools.product(("mean", "none"), (0.1, 1.0)):
            yield [x], dict(targets=np.where(targets == 1, -100, targets), label_smoothing=a, reduction=reduction)
    for reduction, a in itertools.product(("mean", "none"), (0.0, 0.1)):        # differences that no float32 can be
        yield [np.full((3, 5), 3e38) * [1, -1, 1, -1, 1]], dict(targets=np.array([1, 1, 1]), label_smoothing=a,
                                                                reduction=reduction)


def masked():
    x = draw(2, 3, 5, 7)
    drawn = np.random.default_rng(1).random(x.shape) < 0.6
    for mask in (drawn, drawn[0], drawn[:, :1], drawn[:, :, :1], drawn[..., :1], drawn[0, 0, 0], drawn & False,
                 drawn.swapaxes(0, 1).copy().swapaxes(0, 1), np.array(True)):
        yield [x], dict(mask=mask)
        yield [x * 1e30], dict(mask=mask)
    for odd in ODD:
        yield [odd], dict(mask=np.arange(8) != 5)
    yield [draw(2, 2, 2, 3, 5)], dict(mask=np.arange(5) > 1)


def grouped():
    """Queries in groups that share their keys, two axes and five; and heads as wide as they may be."""
    q, k, v, _ = heads((2, 2, 3), 9, 7)
    mask = np.random.default_rng(1).random((2, 1, 1, 9, 7)) < 0.6
    yield [q, k, v, None], dict(mask=mask, is_causal=True)
    yield [q[0, 0, 0], k[0, 0, 0], v[0, 0, 0], None], dict(mask=mask[0, 0, 0])
    for K, D in ((1, 1), (33, 7), (7, 65), (128, 128), (64, 32)):
        yield heads((2,), 35, 66, K, D), dict(is_causal=True)
    for T, S in itertools.product((1, 2, 31, 32, 33, 70), (1, 31, 32, 33, 100)):
        yield heads((1, 2), T, S), dict(is_causal=T % 2 == 0)
    keep = np.random.default_rng(2).random((1, 2, 40, 50)) < 0.6
    yield heads((1, 2), 40, 50), dict(keep=keep, dropout_p=0.4, mask=keep[..., ::-1])


CASES = {
    GELU: SHARED[GELU],
    LayerNorm: [*SHARED[LayerNorm], ([draw(300, 70), None, None], {}), ([draw(300, 70), draw(70), draw(70)], {})],
    RMSNorm: [([x, gamma], dict(eps=eps))
              for x in rows(*FAR[:1], *ODD, np.zeros((3, 5)), draw(130, 33), draw(4, 700, scale=1e18))
              for gamma in (draw(x.shape[-1]), None) for eps in (1e-6, 1e-12)],
    Softmax: [*SHARED[Softmax], *masked()],
    CrossEntropy: [*SHARED[CrossEntropy], *smoothed()],
    Embedding: [*SHARED[Embedding],
                ([draw(7, 300)], dict(ids=np.random.default_rng(0).integers(7, size=700), padding_idx=-1)),
                ([draw(400, 2)], dict(ids=np.random.default_rng(0).integers(400, size=(3, 300))))],
    Attention: [*SHARED[Attention], *grouped()],
    Dropout: [([x, residual], dict(keep=np.random.default_rng(x.size).random(x.shape) < 0.5, p=p))
              for x in rows(*FAR[:1], *ODD, draw(40, 33)) for residual in (None, draw(*x.shape)) for p in (0.5, 1.0)],
}
CASES = {op: [(*case, None)[:3] for case in cases] for op, cases in CASES.items()}
EVERY = [pytest.param(op, *case, id=f"{op.__name__}-{i}") for op in CASES for i, case in enumerate(CASES[op])]


def test_every_twin_has_its_cases():
    assert set(TWINS) == set(CASES)
    assert all(twin.__mro__[1] is op and twin.name == op.name for op, twin in TWINS.items())


def plain(op, arrays, options, needs):
    """Both halves of the plain op on the host: y, dy and gradients."""
    op = op()
    op.needs = needs
    with np.errstate(all="ignore"):
        y = np.asarray(op.forward(*arrays, **options))
        dy = np.random.default_rng(2).normal(size=y.shape).astype(y.dtype)
        return y.copy(), dy, op.backward(dy)


def both(op, arrays, options, needs=None, move=there):
    twin, given = TWINS[op], [None if x is None else move(x) for x in arrays]
    assert twin.fits(*given, **options)
    needs = tuple(x is not None for x in arrays) if needs is None else needs
    y, dy, gradients = plain(op, arrays, options, needs)
    twin = twin()
    twin.needs = tuple(x is not None for x in arrays)
    ours = twin.forward(*given, **options)
    agree(backend.to_numpy(ours), y, "forward")
    results = twin.backward(move(dy))
    agree(backend.to_numpy(ours), y, "forward, after backward")
    assert len(results) == len(arrays)
    for i, needed in enumerate(needs):
        if needed:
            agree(backend.to_numpy(results[i]), gradients[i], f"gradient {i}", 1.0 if op is Attention else 1e-3)
    for x, y in zip(given, arrays):
        assert x is None or np.array_equal(backend.to_numpy(x), y, equal_nan=True), "a kernel wrote into its input"


def typed(arrays, dtype):
    with np.errstate(over="ignore"):
        return [None if x is None else np.asarray(x, dtype) for x in arrays]


@pytest.mark.parametrize("op, arrays, options, needs", EVERY)
def test_a_twin_agrees_with_its_plain_op(op, arrays, options, needs):
    for dtype in (np.float32, np.float64):
        both(op, typed(arrays, dtype), options, needs)


LARGE = [
    (GELU, [draw(3, 10001), None], {}), (GELU, [draw(3, 10001), draw(10001)], {}), (GELU, [draw(501, 77), draw(77)], {}),
    (Softmax, [draw(3, 10001)], {}), (Softmax, [draw(501, 77)], {}),
    (LayerNorm, [draw(3, 10001), draw(10001), draw(10001)], {}), (RMSNorm, [draw(501, 77), draw(77)], {}),
    (CrossEntropy, [draw(3, 10001)], dict(targets=np.array([0, 10000, 7]))),
    (CrossEntropy, [draw(1501, 77)], dict(targets=np.arange(1501) % 77, ignore_index=5)),
    (Embedding, [draw(5, 501)], dict(ids=np.arange(301) % 4)),
    (Attention, heads((1,), 200, 201, 33, 17), dict(is_causal=True)),
    (Attention, heads((2,), 131, 300, 20, 65), {})]


@pytest.mark.parametrize("op, arrays, options", LARGE)
def test_long_rows_and_many_of_them(op, arrays, options):
    for dtype in (np.float32, np.float64):
        both(op, typed(arrays, dtype), options)


def some(op):
    """A case of ordinary numbers, several rows and every input."""
    fit = [case for case in CASES[op] if case[0][0].size > 40 and case[0][0].ndim > 1 and len(case[0][0]) > 1
           and all(x is None or np.isfinite(x).all() for x in case[0])]
    return min(fit, key=lambda case: sum(x is None for x in case[0]))


@pytest.mark.parametrize("op", CASES)
def test_arrays_may_lie_in_memory_as_they_like(op):
    arrays, options, _ = some(op)
    both(op, typed([x if x is None else np.asfortranarray(x) for x in arrays], np.float32), options, move=as_it_lies)
    if op is Attention:                                     # heads as a layer cuts them: the results lie so too
        q, k, v, _ = typed(heads((2, 3), 9, 7), np.float32)
        apart = [x.swapaxes(1, 2).copy().swapaxes(1, 2) for x in (q, k, v)]
        both(op, [*apart, None], options, move=as_it_lies)
        twin = TWINS[op]()
        o = twin.forward(*map(as_it_lies, apart))
        assert o.swapaxes(1, 2).flags.c_contiguous and twin.backward(o)[1].swapaxes(1, 2).flags.c_contiguous


@pytest.mark.parametrize("op", [op for op in CASES if "Saves the same names" in TWINS[op].__doc__])
def test_a_twin_that_saves_the_same_mixes_with_the_plain_halves(op):
    arrays, options, _ = some(op)
    arrays = typed(arrays, np.float64)
    needs = tuple(x is not None for x in arrays)
    _, dy, expected = plain(op, arrays, options, needs)
    for first, second in ((op, TWINS[op]), (TWINS[op], op)):
        one, two = first(), second()
        one.forward(*map(there, arrays), **options)
        vars(two).update(vars(one))
        for i, ours in enumerate(two.backward(there(dy))):
            if needs[i]:
                agree(backend.to_numpy(ours), expected[i], f"gradient {i}")


NOTHING = {
    "no rows": (LayerNorm, [draw(0, 5), draw(5), draw(5)], {}), "no columns": (LayerNorm, [draw(3, 0), draw(0), None], {}),
    "no rows to scale": (RMSNorm, [draw(0, 5), draw(5)], {}), "nothing to choose": (Softmax, [draw(0, 5)], {}),
    "rows of nothing": (Softmax, [draw(3, 0)], {}), "no number": (GELU, [draw(0, 5), draw(5)], {}),
    "no column": (GELU, [draw(5, 0), draw(0)], {}),
    "nothing to drop": (Dropout, [draw(0, 5), draw(0, 5)], dict(keep=np.ones((0, 5), bool), p=0.5)),
    "no id": (Embedding, [draw(4, 5)], dict(ids=np.zeros((2, 0), int))),
    "no query": (Attention, heads((2, 2), 0, 5), {}), "no key": (Attention, heads((2, 2), 5, 0), {}),
    "no head": (Attention, heads((0, 2), 5, 5), {}), "no width": (Attention, heads((2,), 5, 5, 0, 3), {}),
    "no value": (Attention, heads((2,), 5, 5, 3, 0), {}),
}


@pytest.mark.parametrize("op, arrays, options", NOTHING.values(), ids=NOTHING)
def test_of_nothing_comes_nothing(op, arrays, options):
    both(op, typed(arrays, np.float32), options)


def test_what_does_not_fit_is_left_to_the_plain_op():
    x, half = there(np.ones((3, 4), np.float32)), there(np.ones((3, 4), np.float16))
    host, wide = np.ones((3, 4), np.float32), there(np.ones((3, 129), np.float32))
    for wrong in (host, half, None, 2.0):
        assert not TWINS[GELU].fits(wrong, None) and not TWINS[Softmax].fits(wrong)
        assert not TWINS[LayerNorm].fits(wrong, None, None) and not TWINS[RMSNorm].fits(wrong, None)
        assert not TWINS[Attention].fits(wrong, x, x) and not TWINS[Attention].fits(x, wrong, x)
        assert not TWINS[Embedding].fits(wrong, ids=[1]) and not TWINS[CrossEntropy].fits(wrong, targets=[1, 2, 3])
        assert not TWINS[Dropout].fits(wrong, None, keep=np.ones((3, 4), bool), p=0.5)
    for wrong in (host, half, host[0], half[0], there(np.ones(3, np.float32)), there(np.ones((), np.float32))):
        assert not TWINS[GELU].fits(x, wrong) and not TWINS[GELU].fits(there(np.ones((), np.float32)), wrong)
        assert not TWINS[Dropout].fits(x, wrong, keep=np.ones((3, 4), bool), p=0.5)
    assert not TWINS[Softmax].fits(x, axis=0) and not TWINS[LayerNorm].fits(x, there(np.ones(3, np.float32)), None)
    for attention in ((x, x, x, there(np.ones((3, 3), np.float32))), (wide, wide, wide), (x[0], x, x)):
        assert not TWINS[Attention].fits(*attention)
    assert not TWINS[Attention].fits(x, x, x, return_weights=True)
    for keep in (None, np.ones((3, 4)), np.ones(4, bool), [True]):
        assert not TWINS[Dropout].fits(x, None, keep=keep, p=0.5)


def test_an_ignored_row_stays_zero_whatever_reaches_the_loss():
    op = TWINS[CrossEntropy]()
    op.forward(there(draw(4, 5)), targets=np.array([1, -100, 2, -100]), reduction="none")
    dx, = op.backward(there(np.array([1.0, np.inf, 2.0, np.nan])))
    dx = backend.to_numpy(dx)
    assert not dx[1::2].any() and np.isfinite(dx).all() and dx[::2].all()


def test_ids_and_targets_out_of_range_are_an_error():
    x = there(draw(4, 5))
    for move in (np.asarray, there):
        with pytest.raises(IndexError, match="id 5"):
            TWINS[CrossEntropy]().forward(x, targets=move(np.array([0, 5, 2, 1])))
        with pytest.raises(IndexError, match="id 4"):
            TWINS[Embedding]().forward(x, ids=move(np.array([0, 4])))
    with pytest.raises(ValueError, match="targets have shape"):
        TWINS[CrossEntropy]().forward(x, targets=np.zeros(3, int))


def test_a_mask_that_does_not_broadcast_is_an_error_that_names_it():
    x, (q, k, v) = there(draw(4, 5)), map(there, heads((2, 3), 4, 5)[:3])
    for mask in (np.ones((3, 5), bool), np.ones((2, 4, 5), bool), np.ones((4, 3), bool)):
        with pytest.raises(ValueError, match=r"mask \(.*must broadcast to \(4, 5\)"):
            TWINS[Softmax]().forward(x, mask=mask)
    for shape in ((3, 5), (3, 3, 4, 5), (1, 2, 3, 4, 5), (4, 3)):
        with pytest.raises(ValueError, match="mask .*must"):
            mask = np.ones(shape, bool)
            TWINS[Attention]().forward(q, k, v, mask=mask)


def test_a_block_launches_one_kernel_for_bias_and_gelu_and_one_for_dropout_and_residual(monkeypatch):
    launched, launch = [], kernels.launch

    def noted(family, name, grid, block, x, added, *args, **macros):
        launched.append((name, added is not None))
        launch(family, name, grid, block, x, added, *args, **macros)

    monkeypatch.setattr(kernels, "launch", noted)
    block = nn.EncoderBlock(8, 2, 32, dropout=0.5).to("cuda")
    y = block(mt.randn(2, 3, 8, device="cuda"))
    assert launched == [("norm_forward", True), ("attention_forward", True), ("dropout", True), ("norm_forward", True),
                        ("gelu_forward", True), ("dropout", False), ("dropout", True)]
    launched.clear()
    y.sum().backward()
    assert [name for name, _ in launched] == ["dropout", "dropout", "gelu_backward", "norm_backward", "norm_parameters",
                                              "dropout", "attention_backward_q", "attention_backward_kv",
                                              "norm_backward", "norm_parameters"]


def test_forward_and_backward_move_nothing_and_wait_for_nobody():
    if not counted():
        pytest.skip("only the double counts")
    for op in CASES:
        arrays, options, _ = some(op)
        given = [None if x is None else there(x.astype(np.float32)) for x in arrays]
        options = {name: there(x) if isinstance(x, np.ndarray) and x.dtype == bool else x for name, x in options.items()}
        moved = sum(isinstance(x, np.ndarray) for x in options.values())        # ids and targets, checked on the host
        dy = there(np.ones(plain(op, *some(op)[:2], [True] * 4)[0].shape, np.float32))
        with double.counting() as counts:
            twin = TWINS[op]()
            twin.forward(*given, **options)
            twin.backward(dy)
        assert (counts.transfers_in, counts.transfers_out, counts.synchronisations) == (moved, 0, 0), op
