"""All ops together: the table of operators, the cards, what is saved, and the manners that every op must have."""
import ast
import inspect
import re

import numpy as np
import pytest

import minitx as mt
from minitx import fused, ops
from minitx.autograd import unbroadcast
from minitx.ops.shape import To
from minitx.proof.cases import cases, edges

SMOOTH = [case for some in cases().values() for case in some]
CASES = SMOOTH + [case for some in edges().values() for case in some]
FLOATS = [case for case in CASES if all(x.dtype.kind == "f" for x in case.inputs if isinstance(x, np.ndarray))]
ALL = pytest.mark.parametrize("case", FLOATS, ids=[f"{case.op.name}-{case.label}" for case in FLOATS])

fused.load(TWINS := {})


def arrays_of(value):
    """The arrays in a saved attribute, also within a tuple or list."""
    if isinstance(value, (tuple, list)):
        return [array for item in value for array in arrays_of(item)]
    return [value] if isinstance(value, np.ndarray) else []


def forward(case, inputs=None):
    op = case.op()
    op.needs = [isinstance(x, np.ndarray) for x in case.inputs]
    y = op.forward(*(case.inputs if inputs is None else inputs), **case.options)
    return op, y if type(y) is tuple else (y,)


def cotangents(ys):
    return [np.asarray(np.random.default_rng(i).normal(size=y.shape)).astype(y.dtype) for i, y in enumerate(ys)]


# ---- the table and the cards -----------------------------------------------------------------------------------------

def declared():
    """The methods that Tensor declares under TYPE_CHECKING, with the names of their arguments."""
    source = ast.parse(inspect.getsource(inspect.getmodule(mt.Tensor)))
    cls = next(node for node in source.body if isinstance(node, ast.ClassDef) and node.name == "Tensor")
    block = next(node for node in cls.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    return {node.name: node for node in block.body}


def test_the_operators_are_those_that_tensor_declares():
    assert {*ops.OPERATORS, "backward"} == set(declared())          # backward comes from the engine
    for name, function in ops.OPERATORS.items():
        assert inspect.getattr_static(mt.Tensor, name) is function, name


def test_the_declared_methods_take_what_the_functions_take():
    for name, function in ops.OPERATORS.items():
        node = declared()[name]
        if name.startswith("__") or isinstance(function, property):
            continue
        ours = [p for p in inspect.signature(function).parameters.values()][1:]
        said = node.args
        names = [a.arg for a in said.args[1:]] + ([said.vararg.arg] if said.vararg else [])
        assert [p.name for p in ours] == names, name
        defaults = [ast.literal_eval(d) for d in said.defaults]
        assert [p.default for p in ours if p.default is not p.empty] == defaults, name


FUNCTIONS = """
add sub mul div neg pow matmul exp log sqrt abs erf tanh sigmoid relu silu gelu sin cos where masked_fill clip
maximum minimum sum mean var std prod max min logsumexp einsum reshape transpose swapaxes getitem concatenate stack
split linear embedding softmax log_softmax layer_norm rms_norm scaled_dot_product_attention rope dropout patchify
cross_entropy
""".split()


def test_every_public_function_is_there():
    for name in FUNCTIONS:
        function = getattr(ops, name)
        assert inspect.isfunction(function) and function.__doc__ and name in ops.__all__, name
    assert set(ops.OPS) == set(FUNCTIONS) - {"swapaxes"} | {"to"}
    for name, op in ops.OPS.items():
        assert op.name == name and inspect.isfunction(getattr(ops, name))


def test_every_op_has_a_case():
    assert {case.op.name for case in CASES} == set(ops.OPS)


def card(op):
    """The parts of a card: its head (sentence and shapes), and what stands under forward, backward, saved and twin."""
    text = inspect.cleandoc(op.__doc__)
    parts = re.split(r"^(forward|backward|saved|twin) {2,}", text, flags=re.M)
    return {"head": parts[0], **dict(zip(parts[1::2], parts[2::2]))}


@pytest.mark.parametrize("op", ops.OPS.values(), ids=ops.OPS)
def test_every_op_has_its_card(op):
    parts = card(op)
    twin = parts.pop("twin", None)
    assert list(parts) == ["head", "forward", "backward", "saved"], "forward, backward and saved, in this order"
    files = [f"{TWINS[key].__module__.replace('.', '/')}.py{more}" for key, more in ((op, ""), (("cuda", op), " and .cu"))
             if key in TWINS]
    assert twin == ("   ".join(files) or None), "the files of its twins"
    sentence, shapes = re.split(r"\n\s*\n", parts["head"].strip(), maxsplit=1)
    assert sentence.rstrip().endswith((".", ")")) and "->" in shapes and op.__doc__.isascii()
    assert max(map(len, op.__doc__.splitlines())) <= 120
    for half in ("forward", "backward"):
        assert inspect.getdoc(getattr(op, half)) is None or getattr(op, half).__doc__ is None


def said_to_be_saved(op):
    """The names on a card's saved line: each is the word before a bracket of shapes, or one in a list of such words."""
    text = re.sub(r",? only if .*|,? each .*", "", card(op)["saved"].split("\n\n")[0].strip())
    if text == "nothing":
        return set()
    text = re.sub(r"=[^(]*|\([^)]*\)|\bbool\b|,? with dropout", " ", text)     # "p = e / sum e (...)" names p
    return set(re.findall(r"[A-Za-z_]\w*", text))


@pytest.mark.parametrize("op", ops.OPS.values(), ids=ops.OPS)
def test_the_saved_line_lists_what_is_saved(op):
    kept = set()
    for case in CASES:
        if case.op is op:
            node, _ = forward(case)
            kept |= {name for name, value in vars(node).items() if arrays_of(value) and name not in case.options}
    given = {name for case in CASES if case.op is op for name, v in case.options.items() if isinstance(v, np.ndarray)}
    said = said_to_be_saved(op)
    assert kept <= said <= kept | given


# ---- the manners of every op -----------------------------------------------------------------------------------------

@pytest.fixture(autouse=True)
def edges_may_warn(request):
    """At infinities and poles NumPy's own warnings pass through; on the smooth cases none may come."""
    case = getattr(request.node, "callspec", None) and request.node.callspec.params.get("case")
    smooth = any(case is other for other in SMOOTH)
    with np.errstate() if smooth else np.errstate(all="ignore"):
        yield


@ALL
def test_nothing_handed_over_is_written_to(case):
    """Inputs and dy are read-only, and what forward returned keeps its values through backward."""
    op, ys = forward(case)
    before = [np.copy(y) for y in ys]
    dys = cotangents(ys)
    for array in dys:
        array.flags.writeable = False
    grads = op.backward(*dys)
    assert type(grads) is tuple and len(grads) == len(case.inputs)
    for y, kept in zip(ys, before):
        np.testing.assert_array_equal(y, kept)


@ALL
def test_strided_and_read_only_inputs_give_the_same(case):
    def strided(x):
        if not isinstance(x, np.ndarray) or not x.ndim:
            return x
        wide = np.zeros(x.shape[:-1] + (2 * x.shape[-1],), x.dtype)
        wide[..., ::2] = x
        out = np.asfortranarray(wide)[..., ::2]
        out.flags.writeable = False
        return out

    (op, ys), (other, others) = forward(case), forward(case, [strided(x) for x in case.inputs])
    for y, same in zip(ys, others, strict=True):
        np.testing.assert_allclose(same, y, rtol=1e-12, atol=1e-14)
    dys = cotangents(ys)
    for g, same in zip(op.backward(*dys), other.backward(*map(strided, dys)), strict=True):
        if g is not None:
            np.testing.assert_allclose(same, g, rtol=1e-12, atol=1e-14)


@ALL
def test_a_float32_op_saves_and_returns_nothing_wider(case):
    if case.op is To:
        pytest.skip("its purpose is another dtype")
    inputs = [x.astype(np.float32) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x for x in case.inputs]
    op, ys = forward(case, inputs)
    wide = [name for name, value in vars(op).items() for a in arrays_of(value) if a.dtype == np.float64]
    grads = op.backward(*cotangents(ys))
    assert not wide and all(y.dtype == np.float32 for y in ys)
    assert all(g is None or g.dtype == np.float32 for g in grads)


@ALL
def test_float16_goes_in_and_comes_out(case):
    if case.op is To:
        pytest.skip("its purpose is another dtype")
    tensors = [mt.tensor(x.astype(np.float16), True) if isinstance(x, np.ndarray) else x for x in case.inputs]
    with np.errstate(all="ignore"):
        y = case.op.apply(*tensors, **case.options)
        ys = y if type(y) is tuple else (y,)
        want = np.float32 if case.op.wide_result else np.float16
        assert all(y.dtype == want for y in ys)
        sum((y * 1).sum() for y in ys).backward()
    assert all(t.grad.dtype == np.float16 for t in tensors if isinstance(t, mt.Tensor))


@ALL
def test_what_is_saved_of_an_output_is_read_only(case):
    tensors = [mt.tensor(x, requires_grad=True) if isinstance(x, np.ndarray) else x for x in case.inputs]
    y = case.op.apply(*tensors, **case.options)
    for out in y if type(y) is tuple else (y,):
        if any(np.shares_memory(out.data, a) and not any(a is getattr(t, "data", None) for t in tensors)
               for value in vars(out.node).values() for a in arrays_of(value)):
            assert not out.data.flags.writeable


@ALL
def test_gradients_have_the_shapes_of_their_inputs(case):
    op, ys = forward(case)
    for x, g in zip(case.inputs, op.backward(*cotangents(ys))):
        if isinstance(x, np.ndarray):
            g = unbroadcast(np.asarray(g), x.shape) if op.broadcasts else g
            assert np.shape(g) == x.shape


@pytest.mark.parametrize("case", SMOOTH, ids=[f"{case.op.name}-{case.label}" for case in SMOOTH])
def test_one_gradient_alone_is_the_same_as_among_all(case):
    """Each input in turn is the only one that wants a gradient: `needs` decides what is saved and computed."""
    def gradients(wanted):
        tensors = [mt.tensor(x, requires_grad=i in wanted) if isinstance(x, np.ndarray) else x
                   for i, x in enumerate(case.inputs)]
        y = case.op.apply(*tensors, **case.options)
        total = 0
        for out in y if type(y) is tuple else (y,):
            total = total + (out * mt.tensor(cotangents([out])[0], device=out.device)).sum()
        total.backward()
        return [getattr(t, "grad", None) for t in tensors]

    places = [i for i, x in enumerate(case.inputs) if isinstance(x, np.ndarray)]
    together = gradients(places)
    for i in places:
        alone = gradients([i])
        np.testing.assert_allclose(alone[i], together[i], rtol=1e-12, atol=1e-14)
        assert all(alone[j] is None for j in places if j != i)
