"""Which op runs its twin, and that nobody can tell but by the time it takes."""
import itertools
import pickle

import numpy as np
import pytest

import minitx as mt
from minitx import fused, models, ops, optim
from minitx.autograd import Op
from minitx.fused.cuda import kernels
from minitx.ops.activation import GELU
from minitx.ops.attention import Attention
from minitx.recording import mode, ran

fused.load({})
TWINS = {op: twin for op, twin in fused.TWINS.items() if isinstance(op, type)}
N = 300                                                                 # N x N numbers are enough for every twin


def array(*shape, dtype=np.float32):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(dtype)


def large(dtype=np.float32):
    """{op: its function on arrays that its twin takes}"""
    x, w, b, ids = array(N, N, dtype=dtype), array(N, N, dtype=dtype), array(N, dtype=dtype), np.arange(N) % 7
    heads = array(4, 2, 64, 64, dtype=dtype)
    return {"gelu": (ops.gelu, x), "linear": (lambda a: ops.linear(a, w, b), x),
            "layer_norm": (lambda a: ops.layer_norm(a, b, b), x), "softmax": (ops.softmax, x),
            "cross_entropy": (lambda a: ops.cross_entropy(a, ids), x),
            "embedding": (lambda a: ops.embedding(ids, a), x),
            "scaled_dot_product_attention": (lambda a: ops.scaled_dot_product_attention(a, a, a), heads)}


def counted(function):
    """What it returns, and how many twins and plain ops ran for it."""
    before = dict(ran)
    result = function()
    return result, ran["twins"] - before["twins"], ran["plain"] - before["plain"]


def test_every_twin_is_a_subclass_that_answers_fits_and_keeps_the_name():
    assert set(TWINS) == {mode.twins.get(op) and op for op in TWINS}
    assert {op.name for op in TWINS} == set(large())
    for op, twin in TWINS.items():
        assert issubclass(op, Op) and twin.__bases__ == (op,) and mode.twins.get(op) is twin
        assert twin.name == op.name and twin.broadcasts == op.broadcasts and twin.promotion == op.promotion
        assert isinstance(vars(twin)["fits"], staticmethod) and twin.__doc__ != op.__doc__


@pytest.mark.host("twins of the CPU")
@pytest.mark.parametrize("name", large())
def test_large_arrays_run_the_twin_and_plain_ops_do_not(name):
    function, x = large()[name]
    assert counted(lambda: function(mt.tensor(x)))[1:] == (1, 0)
    assert counted(lambda: function(mt.tensor(x, requires_grad=True)))[1:] == (1, 0)
    function64, x64 = large(np.float64)[name]
    assert counted(lambda: function64(mt.tensor(x64)))[1:] == (1, 0)
    half, x16 = large(np.float16)[name]
    assert counted(lambda: half(mt.tensor(x16)))[1:] == (1, 0)       # computed in float32
    with mt.plain_ops():
        assert counted(lambda: function(mt.tensor(x)))[1:] == (0, 1)
    if name in ("linear", "layer_norm"):
        with pytest.raises(TypeError, match="float32, float64"):
            function(mt.tensor(x64))


def test_integers_mixed_floats_and_foreign_byte_orders_stay_with_the_plain_op():
    ints, x, y = np.ones((N, N), np.int64), array(N, N), array(N, N, dtype=np.float64)
    for a, b in ((ints, ints), (x, y), (y, x), (x, ints), (x, x.astype(np.float16)), (x, 1.0), (2, x)):
        a, b = (mt.Tensor(value) if isinstance(value, np.ndarray) else value for value in (a, b))
        result, twins, _ = counted(lambda a=a, b=b: a + b)
        assert twins == 0
        with mt.plain_ops():
            np.testing.assert_array_equal(result.numpy(), (a + b).numpy())
    for swapped in (ops.gelu, ops.softmax):
        with mt.plain_ops():
            expected = swapped(x).numpy()
        np.testing.assert_allclose(swapped(x.astype(">f4")).numpy(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("op", TWINS, ids=lambda op: op.__name__)
def test_fits_never_raises(op):
    """It sees the inputs before any check."""
    other = {"targets": [None, 3, [[1], [1, 2]], array(2), array(N, N)], "ids": [None, 3, [[1], [1, 2]], array(N, N)],
             "axis": [None, 0, (0, 1), 7, -3], "mask": [None, 3, array(1), [[True], [True, False]]], "keep": [None, array(1)]}
    fits = TWINS[op].fits
    code, defaults = fits.__code__, fits.__kwdefaults__ or {}
    names = code.co_varnames[code.co_argcount:code.co_argcount + code.co_kwonlyargcount]
    given = {name: np.zeros(N, int) for name in names if name not in defaults}
    odd = [None, array(), array(0, 5), array(N), array(N, N), array(2, 3, 0), array(2, 0, N, N), array(2, 2, N, 64)]
    for arrays in itertools.product(odd + [2.0] * op.broadcasts, repeat=code.co_argcount):
        fits(*arrays, **given)
    for name in names:
        for value in other.get(name, [None]):
            fits(*[array(N, N)] * code.co_argcount, **{**given, name: value})


x, heads = array(N, N), array(2, 2, 64, 128)
WRONG = {
    "ids too large": lambda: ops.embedding(np.arange(N) + 1, x), "ids below 0": lambda: ops.embedding(np.arange(N) - 1, x),
    "ids are floats": lambda: ops.embedding(np.ones(N), x), "ids are ragged": lambda: ops.embedding([[1], [1, 2]], x),
    "target too large": lambda: ops.cross_entropy(x, np.arange(N) + 1),
    "targets are floats": lambda: ops.cross_entropy(x, np.ones(N)),
    "targets too many": lambda: ops.cross_entropy(x, np.arange(N + 1)),
    "no targets": lambda: ops.cross_entropy(x, None), "mask short": lambda: ops.scaled_dot_product_attention(
        heads, heads, heads, np.ones((64, 63), bool)),
    "mask long": lambda: ops.scaled_dot_product_attention(heads, heads, heads, np.ones((3, 1, 64, 64), bool)),
    "no keys given": lambda: ops.scaled_dot_product_attention(heads, None, heads),
    "no values given": lambda: ops.scaled_dot_product_attention(heads, heads, None),
    "key width": lambda: ops.scaled_dot_product_attention(heads, heads[..., :7], heads),
    "no weight": lambda: ops.linear(x, None), "weight of one axis": lambda: ops.linear(x, x[0]),
    "weight too wide": lambda: ops.linear(x, array(N, N + 1)), "bias too long": lambda: ops.linear(x, x, array(N + 1)),
    "gamma too long": lambda: ops.layer_norm(x, array(N + 1)), "beta too long": lambda: ops.layer_norm(x, x[0], array(N + 1)),
    "gamma is a number": lambda: ops.layer_norm(x, 2.0), "axis": lambda: ops.softmax(x, axis=5),
    "not to be added": lambda: mt.tensor(x) + array(N, N + 1), "nothing to add": lambda: mt.tensor(x) + None,
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_errors_are_the_plain_ops(wrong):
    with mt.plain_ops(), pytest.raises(Exception) as plain:
        wrong()
    with pytest.raises(plain.type) as ours:
        wrong()
    assert str(ours.value).split(":")[0] == str(plain.value).split(":")[0]      # the op


NOTHING = {"no key": (array(2, 2, 300, 64), array(2, 2, 0, 64)), "no query": (array(2, 2, 0, 64), array(2, 2, 300, 64)),
           "no batch": (array(0, 2, 300, 64), array(0, 2, 300, 64)), "one key": (array(2, 2, 300, 64), array(2, 2, 1, 64)),
           "one query": (array(99, 9, 1, 64), array(99, 9, 3, 64)), "no width": (array(2, 2, 300, 0), array(2, 2, 300, 0))}


@pytest.mark.parametrize("q, k", NOTHING.values(), ids=NOTHING)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_little_or_nothing(q, k, causal):
    def run():
        tensors = [mt.tensor(x, requires_grad=True) for x in (q, k, k + 1)]
        y = ops.scaled_dot_product_attention(*tensors, is_causal=causal)
        y.backward(np.ones(y.shape, np.float32))
        return [y.numpy(), *(x.grad for x in tensors)]
    with mt.plain_ops():
        expected = run()
    for plain, ours in zip(expected, run()):
        np.testing.assert_allclose(ours, plain, rtol=2e-5, atol=1e-4)


@pytest.mark.host("twins of the CPU")
@pytest.mark.parametrize("function, x", [(lambda x: ops.layer_norm(x, array(7), array(7)), array(0, 7)),
                                         (ops.softmax, array(0, 7)), (ops.gelu, array(0, 7)),
                                         (lambda x: ops.linear(x, array(N, 7)), array(0, 7)), (lambda x: x + x, array(0, 7)),
                                         (lambda x: ops.cross_entropy(x, np.zeros(0, int)), array(0, 7)),
                                         (lambda x: ops.embedding(np.zeros(0, int), x), array(9, 7))])
def test_an_empty_batch_is_the_plain_ops(function, x):
    assert counted(lambda: function(mt.tensor(x, requires_grad=True)))[1] == 0


def test_the_subclass_of_a_user_never_gets_a_twin():
    class Mine(GELU):
        def forward(self, x, bias, *, approximate="none"):
            return super().forward(x, bias, approximate=approximate) + 1
    y, twins, plain = counted(lambda: Mine.apply(mt.tensor(array(N, N)), None))
    assert (twins, plain) == (0, 1) and type(Mine.apply(mt.tensor(array(2, 2), requires_grad=True), None).node) is Mine
    np.testing.assert_allclose(y.numpy(), ops.gelu(array(N, N)).numpy() + 1, rtol=1e-5, atol=1e-5)


@pytest.mark.host("twins of the CPU")
def test_arrays_from_pickle_run_the_twin():
    """Their dtype equals NumPy's own, and is another object."""
    x = pickle.loads(pickle.dumps(array(N, N)))
    assert x.dtype is not np.dtype(x.dtype.char)
    assert type(ops.gelu(mt.tensor(x, requires_grad=True)).node) is TWINS[GELU]
    assert type(ops.linear(mt.Tensor(x, requires_grad=True), array(N, N)).node) is TWINS[mt.ops.OPS["linear"]]


@pytest.mark.host("twins of the CPU")
def test_wide_heads_run_the_twin():
    drawn = mt.tensor(array(2, 2, 64, 128), requires_grad=True)
    assert type(ops.scaled_dot_product_attention(drawn, drawn, drawn).node) is TWINS[Attention]


# ---- training --------------------------------------------------------------------------------------------------------

def train(dtype, steps):
    mt.manual_seed(1)
    config = models.GPT2Config(vocab_size=130, n_positions=48, n_embd=48, n_layer=1, n_head=2)
    model = models.GPT2(config).to(dtype=dtype)
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)
    ids = np.random.default_rng(0).integers(130, size=(11, 49))
    for _ in range(steps):
        loss = ops.cross_entropy(model(ids[:, :-1]), ids[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optim.clip_grad_norm(model.parameters(), 1.0)
        optimizer.step()
        yield float(loss.numpy())


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-4), ("float64", 1e-9)])
def test_thirty_steps_with_twins_and_without_give_the_same_losses(dtype, tolerance):
    if mt.backend.default_device() != "cpu" and not kernels.ready(mt.ones(1).data):
        pytest.skip("no kernels run here")
    ours, twins, _ = counted(lambda: list(train(dtype, 30)))
    assert twins >= 30 * 10
    with mt.plain_ops():
        plain, twins, _ = counted(lambda: list(train(dtype, 30)))
    assert twins == 0 and plain[-1] < 0.95 * plain[0]
    np.testing.assert_allclose(ours, plain, rtol=tolerance)


def test_a_subclass_of_an_optimiser_keeps_its_own_update():
    class Down(optim.AdamW):
        def _update(self, p, g, state, **options):
            p -= 1

    p = mt.tensor([3.0, 5.0], requires_grad=True)
    p.grad = mt.ones(2).data
    Down([p]).step()
    assert p.tolist() == [2, 4]
