"""The checker must go off: on every classic fault, and on what would blind it."""
import numpy as np
import pytest

import minitx as mt
from minitx import nn, ops
from minitx.autograd import Op, Tensor
from minitx.ops.arithmetic import Mul
from minitx.ops.norm import LayerNorm
from minitx.ops.softmax import Softmax
from minitx.proof import GradientError, check_op, directional
from minitx.proof.cases import Draw, cases

draw = Draw("gradcheck")
X, Y, W = draw(2, 3), draw(2, 3), draw(3)


def faulty(base, backward, **options):
    """A function that applies the op `base` with another backward."""
    op = type(base.__name__, (base,), {"name": base.name, "backward": backward})
    return lambda *inputs: op.apply(*inputs, **options)


# ---- faults ----------------------------------------------------------------------------------------------------------

def zero(self, dy):
    return np.zeros(dy.shape),


def doubled(self, dy):
    return 2 * Softmax.backward(self, dy)[0],


def no_mean_in_softmax(self, dy):
    return dy * self.y,


def mean_for_sum_in_softmax(self, dy):
    return self.y * (dy - (dy * self.y).mean(axis=-1, keepdims=True)),


def swapped(self, dy):
    return Mul.backward(self, dy)[::-1]


def nothing_for_b(self, dy):
    return Mul.backward(self, dy)[0], np.zeros(dy.shape)


def no_mean_in_layer_norm(self, dy):
    _, dgamma, dbeta = LayerNorm.backward(self, dy)
    g = dy * self.gamma
    return self.r * (g - self.xhat * (g * self.xhat).mean(axis=-1, keepdims=True)), dgamma, dbeta


def no_second_mean_in_layer_norm(self, dy):
    _, dgamma, dbeta = LayerNorm.backward(self, dy)
    g = dy * self.gamma
    return self.r * (g - g.mean(axis=-1, keepdims=True)), dgamma, dbeta


@pytest.mark.parametrize("base, backward, inputs", [
    (Softmax, zero, (X,)), (Softmax, doubled, (X,)), (Softmax, no_mean_in_softmax, (X,)),
    (Softmax, mean_for_sum_in_softmax, (X,)), (Mul, swapped, (X, Y)), (Mul, nothing_for_b, (X, Y)),
    (LayerNorm, no_mean_in_layer_norm, (X, W, W)), (LayerNorm, no_second_mean_in_layer_norm, (X, W, W)),
], ids=lambda thing: getattr(thing, "__name__", ""))
def test_a_wrong_backward_is_caught(base, backward, inputs):
    mt.gradcheck(base.apply, *inputs)                                   # the right one passes
    with pytest.raises(GradientError, match="the gradient of input"):
        mt.gradcheck(faulty(base, backward), *inputs)
    with pytest.raises(GradientError, match="relative error"):
        directional(faulty(base, backward), *inputs)
    assert check_op(base, inputs, {}) < 1
    assert check_op(type(base.__name__, (base,), {"backward": backward}), inputs, {}) > 1


class Row(Op):
    """x + b for a row b, with the sum over the rows forgotten."""

    def forward(self, x, b):
        return x + b

    def backward(self, dy):
        return dy, dy


class RowSpread(Row):
    """The same, brought to b's shape by taking the first row."""

    def backward(self, dy):
        return dy, dy[0]


def test_a_broadcast_that_was_not_summed_is_caught():
    with pytest.raises(ValueError, match=r"gradient 1 has shape \(2, 3\), its input \(3,\)"):
        mt.gradcheck(Row.apply, X, W)
    with pytest.raises(GradientError, match="gradient 1 has shape"):
        check_op(Row, (X, W), {})
    with pytest.raises(GradientError, match=r"input 1 \(3,\)"):
        mt.gradcheck(RowSpread.apply, X, W)


def test_the_message_names_input_index_both_numbers_and_how_many():
    class Late(Op):
        def forward(self, a, b):
            self.b = b
            return a * b

        def backward(self, dy):
            da = dy * self.b
            da[1, 2] += 0.25
            return da, np.zeros(dy.shape)

    with pytest.raises(GradientError) as failure:
        mt.gradcheck(lambda a: Late.apply(a, Y), X)
    text = str(failure.value)
    assert "input 0 (2, 3) is wrong at [1, 2]" in text and "1 of its 6 entries" in text and "1 of 6 in all" in text
    numeric, ours = (float(text.split(word)[1].split()[0].strip(",;")) for word in ("finite differences", "backward"))
    assert ours - numeric == pytest.approx(0.25)


class Writes(Op):
    """Doubles x, in x itself."""

    def forward(self, x):
        x *= 2
        return x

    def backward(self, dy):
        return 2 * dy,


class WritesDy(Op):
    def forward(self, x):
        return 2 * x

    def backward(self, dy):
        dy *= 2
        return dy,


class WritesOutput(Op):
    def forward(self, x):
        self.y = np.exp(x)
        return self.y

    def backward(self, dy):
        self.y *= dy
        return self.y,


class WritesOutputKeptInATuple(Op):
    def forward(self, x):
        self.kept = np.exp(x), 1
        return self.kept[0]

    def backward(self, dy):
        self.kept[0][...] *= dy
        return self.kept[0],


@pytest.mark.host("only NumPy's arrays can be read-only")
@pytest.mark.parametrize("op", [Writes, WritesDy, WritesOutput, WritesOutputKeptInATuple])
def test_writing_into_what_was_given_or_returned_is_caught(op):
    x = X.copy()
    with pytest.raises(ValueError, match="read-only"):
        mt.gradcheck(op.apply, x)
    with pytest.raises(ValueError, match="read-only"):
        check_op(op, (x,), {})
    assert (x == X).all()


def test_inputs_are_left_as_they_were():
    x, t = X.copy(), mt.tensor(Y, requires_grad=True)
    t.grad = np.ones(Y.shape)
    mt.gradcheck(ops.mul, x, t)
    x += 1
    t.data += 1
    assert (t.grad == 1).all() and t.requires_grad


def test_a_view_as_output_has_its_numeric_gradient():
    mt.gradcheck(lambda x: x.T, X)
    mt.gradcheck(lambda x: x[:, ::-1], X)
    with pytest.raises(GradientError, match="finite differences -?[1-9.]"):
        mt.gradcheck(faulty(ops.OPS["transpose"], lambda self, dy: (np.zeros(dy.shape[::-1]),), axes=(1, 0)), X)


class NoNumber(Op):
    """NaN, with a gradient of NaN."""

    def forward(self, x):
        return x * np.nan

    def backward(self, dy):
        return dy * np.nan,


def test_nan_on_both_sides_fails():
    with pytest.raises(GradientError, match="finite differences nan, backward nan"):
        mt.gradcheck(NoNumber.apply, X)
    assert check_op(NoNumber, (X,), {}) == np.inf
    with pytest.raises(GradientError):
        directional(NoNumber.apply, X)


class ReadsMemory(Op):
    """Takes it for granted that x lies row by row in memory."""

    def forward(self, x):
        return np.lib.stride_tricks.as_strided(x, x.shape, (8 * x.shape[1], 8)) * 2

    def backward(self, dy):
        return 2 * dy,


class ReadsMemoryBackwards(ReadsMemory):
    """The same of what it saved."""

    def forward(self, x):
        self.x = x
        return x * x

    def backward(self, dy):
        return ReadsMemory.forward(self, self.x) * dy,


@pytest.mark.host("memory as NumPy lays it out")
@pytest.mark.parametrize("op", [ReadsMemory, ReadsMemoryBackwards])
def test_non_contiguous_inputs_are_tried(op):
    with pytest.raises(GradientError, match="non-contiguous"):
        mt.gradcheck(op.apply, X)


class Both(Op):
    """Two outputs: right when both are used, wrong when the second is used alone."""

    def forward(self, x):
        self.x = x
        return x * 2, x * x

    def backward(self, da, db):
        if da is None:
            return db * 3 * self.x,
        return da * 2 + (0 if db is None else db * 2 * self.x),


def test_several_outputs_are_checked_together_and_alone():
    mt.gradcheck(lambda x: ops.split(x, 3, axis=1), X)
    with pytest.raises(GradientError, match="output 1 alone"):
        mt.gradcheck(Both.apply, X)
    assert check_op(Both, (X,), {}) > 1


class OneAlone(Op):
    """a * b, right for both together, but with b alone it forgets itself."""

    def forward(self, a, b):
        self.a, self.b = a, b
        return a * b

    def backward(self, dy):
        return dy * self.b, dy * self.a if self.needs[0] else dy


def test_each_input_alone_is_tried():
    assert check_op(OneAlone, (X, Y), {}) > 1


# ---- what is refused -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_less_than_float64_is_refused(dtype):
    with pytest.raises(TypeError, match=f"input 0 is {np.dtype(dtype)}.*float64"):
        mt.gradcheck(ops.exp, X.astype(dtype))
    with pytest.raises(TypeError, match="weight is float32.*float64"):
        mt.gradcheck(nn.Linear(3, 2), X)
    with pytest.raises(TypeError, match="returned float32"):
        mt.gradcheck(lambda x: x.to(dtype="float32"), X)


def test_dropout_on_is_noticed():
    with pytest.raises(GradientError, match="not deterministic.*Dropout on"):
        mt.gradcheck(lambda x: ops.dropout(x, 0.5), draw(40))
    layer = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5)).to(dtype="float64")
    with pytest.raises(GradientError, match="not deterministic.*eval()"):
        mt.gradcheck(layer, X)
    mt.gradcheck(layer.eval(), X)


def test_nothing_to_check_is_said():
    with pytest.raises(TypeError, match="nothing to check"):
        mt.gradcheck(ops.add, np.arange(3), 2.0)
    with pytest.raises(TypeError, match="holds float arrays"):
        mt.gradcheck(lambda x, xs: ops.concatenate([x, *xs]), X, [X, X])
    for nested in ([[X]], ((X,),), {"a": [X]}, [{"a": mt.tensor(X)}]):
        with pytest.raises(TypeError, match=f"input 1 is a {type(nested).__name__} that holds float arrays"):
            mt.gradcheck(lambda x, xs: x, X, nested)
    mt.gradcheck(lambda x, pairs: x * pairs[0][1], X, [[1, 2]])
    with pytest.raises(TypeError, match="nothing to check.*not empty"):
        mt.gradcheck(ops.exp, np.zeros((0, 3)))
    with pytest.raises(TypeError, match="nothing to check.*not empty"):
        directional(ops.exp, np.zeros((0, 3)))
    with pytest.raises(TypeError, match="must return a Tensor"):
        mt.gradcheck(lambda x: x.data * 2, X)


# ---- what is taken ---------------------------------------------------------------------------------------------------

def test_integers_bools_and_the_rest_go_through():
    mt.gradcheck(lambda ids, w: ops.embedding(ids, w), np.array([1, 1, 0]), X)
    mt.gradcheck(lambda mask, x, axis: ops.softmax(x, axis, mask), np.array([True, False, True]), X, -1)
    report = mt.gradcheck(ops.embedding, mt.tensor([[1, 0]]), X)
    assert [row.name for row in report.checked] == ["input 1"]


def test_pytorchs_tuple_form():
    assert len(mt.gradcheck(ops.mul, (X, Y)).checked) == 2


def test_a_module_and_a_module_among_the_inputs():
    layer = nn.LayerNorm(3).to(dtype="float64")
    before = layer.weight.data
    names = {row.name for row in mt.gradcheck(layer, X).checked}
    assert names == {"weight", "bias", "input 0"}
    assert layer.weight.data is before and getattr(before.flags, "writeable", True) and layer.weight.grad is None
    assert "input 0: weight" in str(mt.gradcheck(lambda model, x: model(x) * x, layer, X))
    wrong = faulty(LayerNorm, lambda self, dy: (LayerNorm.backward(self, dy)[0], dy.sum(0), dy.sum(0)), eps=1e-5)
    layer.forward = lambda x: wrong(x, layer.weight, layer.bias)
    with pytest.raises(GradientError, match=r"the gradient of weight \(3,\)"):
        mt.gradcheck(layer, X)
    with pytest.raises(GradientError, match=r"most in weight \(3,\)"):
        directional(layer, X)
    assert layer.weight.data is before and layer.weight.grad is None    # also after a failure


def test_an_unused_input_has_gradient_zero_and_one_without_entries_passes():
    assert mt.gradcheck(lambda x, y: x * 2.0, X, Y).worst < 1
    assert mt.gradcheck(lambda x: mt.tensor(np.ones(3)), X).worst == 0
    assert mt.gradcheck(lambda x, y: ops.concatenate([x, y]), np.zeros((0, 3)), X).worst < 1
    mt.gradcheck(lambda x: x, np.array(0.5))


def test_the_report_prints():
    report = mt.gradcheck(ops.linear, X, draw(4, 3), draw(4))
    assert str(report).startswith("gradcheck linear: 22 entries agree") and "(4, 3)" in str(report)
    assert 0 <= report.worst < 1 and report
    assert "relative error" in str(directional(ops.linear, X, draw(4, 3)))


def test_the_checker_leaves_no_trace():
    with mt.no_grad():
        mt.manual_seed(7)
        expected = mt.randn(3).data
        mt.manual_seed(7)
    mt.gradcheck(ops.exp, X)
    assert (mt.randn(3).data == expected).all()                         # the common generator was not asked


def test_under_no_grad_it_records_all_the_same():
    with mt.no_grad():
        assert mt.gradcheck(ops.exp, X).worst < 1
        assert directional(ops.exp, X).error < 1e-7
        with pytest.raises(GradientError):
            mt.gradcheck(faulty(Softmax, doubled), X)
        assert not (mt.tensor(X, requires_grad=True) * 2.0).requires_grad


def test_a_tensor_from_outside_is_not_frozen():
    w, v = mt.tensor(Y), mt.tensor(Y, requires_grad=True)
    mt.gradcheck(lambda x: (x * 2.0, w, v), X)
    w.data += 1
    v.data += 1


# ---- whole models ----------------------------------------------------------------------------------------------------

def test_directional_holds_gpt2_to_1e_7():
    mt.manual_seed(0)
    config = mt.models.GPT2Config(vocab_size=31, n_positions=8, n_embd=24, n_layer=2, n_head=3)
    model = mt.models.GPT2(config).to(dtype="float64").eval()
    ids = draw.ids(31, 2, 8)
    assert directional(model, ids).error < 1e-7
    assert directional(lambda model: ops.cross_entropy(model(ids[:, :-1]), ids[:, 1:]), model).error < 1e-7
    right, norm = nn.LayerNorm.forward, model.h[1].norm2
    norm.forward = lambda x: right(norm, x) + Tensor((right(norm, x) * 1e-3).data)      # a thousandth has no gradient
    with pytest.raises(GradientError, match=r"h\.1\.norm2|finite differences"):
        directional(model, ids)


def test_cases_are_the_same_every_time():
    first, second = cases(["softmax", "getitem"]), cases(["softmax", "getitem"])
    for name, several in first.items():
        for a, b in zip(several, second[name], strict=True):
            assert a.label == b.label and all(np.array_equal(x, y) for x, y in zip(a.inputs, b.inputs))
            assert not any(x.flags.writeable for x in a.inputs)
