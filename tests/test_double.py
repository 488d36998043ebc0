"""Every op on a stand-in for CuPy that is as strict as CuPy is, or stricter: what runs here does not lean on NumPy.

The double holds a NumPy array and lets it out only where CuPy copies to the host. Strict: no NumPy array or list beside
a device array, no missing function or keyword, 0-d arrays instead of numbers, no duplicate in an assignment.
"""
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import minitx as mt
from minitx import backend, generate, models, nn, ops, optim
from minitx.proof.cases import cases, edges

MISSING = """
errstate seterr geterr einsum_path vecdot matvec vecmat insert block ndenumerate nditer frompyfunc unstack
""".split()
METHODS = """
sum mean max min prod var std any all argmax argmin argsort reshape transpose swapaxes ravel flatten astype copy squeeze
take repeat cumsum cumprod round clip diagonal nonzero fill dot
""".split()
REDUCTIONS = {"sum", "mean", "max", "min", "prod", "var", "std", "any", "all", "amax", "amin"}
LACKS = {"take": {"mode"}, "einsum": {"out"}, "sort": {"stable"}, "argsort": {"stable"}, "clip": {"min", "max"}}
BINARY = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()


def inside(x):
    """The NumPy array in a device array, also within a tuple or list. A host array beside device arrays is an error."""
    if isinstance(x, Array):
        return x._array
    if isinstance(x, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    return type(x)(map(inside, x)) if type(x) in (tuple, list) else x


def outside(x):
    """A result as CuPy gives it: arrays, also where NumPy gives a scalar."""
    if type(x) in (tuple, list):
        return type(x)(map(outside, x))
    return Array(np.asarray(x)) if isinstance(x, (np.ndarray, np.generic)) else x


def operand(x):
    if isinstance(x, Array):
        return x._array
    if isinstance(x, (bool, int, float, np.generic)):
        return x
    raise TypeError(f"Unsupported type {type(x)}")


def permitted(name, keywords):
    """The keywords, without which CuPy does not have."""
    wrong = set(keywords) & LACKS.get(name, {"initial", "where"} if name in REDUCTIONS else set())
    if wrong:
        raise TypeError(f"{name}() got an unexpected keyword argument {wrong}")
    return {key: inside(value) for key, value in keywords.items()}


class Array:
    __array_ufunc__ = None
    __hash__ = None
    __contains__ = None
    __cuda_array_interface__ = {}
    device = SimpleNamespace(id=0)

    def __init__(self, array):
        self._array = array

    shape, ndim, size, dtype, itemsize, nbytes, strides = (
        property(lambda self, name=name: getattr(self._array, name))
        for name in ("shape", "ndim", "size", "dtype", "itemsize", "nbytes", "strides"))
    T = property(lambda self: Array(self._array.T))
    base = property(lambda self: self._array.base)
    flags = property(lambda self: SimpleNamespace(              # CuPy's, among which writeable is not
        **{name: getattr(self._array.flags, name) for name in ("c_contiguous", "f_contiguous", "owndata")}))

    def __array__(self, *args, **keywords):
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def __array_function__(self, function, *rest):
        raise TypeError(f"np.{function.__name__} of a device array: go through xp")

    def get(self):
        return self._array.copy()

    def item(self):
        return self._array.item()

    def tolist(self):
        return self._array.tolist()

    def __float__(self):
        return float(self._array)

    def __int__(self):
        return int(self._array)

    def __bool__(self):
        return bool(self._array)

    def __format__(self, form):
        return format(self._array, form)

    def __len__(self):
        return len(self._array)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index):
        return outside(self._array[inside(index)])

    def __setitem__(self, index, value):
        index = inside(index)
        places = np.arange(self.size).reshape(self.shape)[index]
        assert np.unique(places).size == places.size, "the same element assigned twice: which one wins is undefined"
        self._array[index] = operand(value)


def _define(name, reflected=False):
    def method(self, other):
        return outside(getattr(self._array, name)(operand(other)))

    setattr(Array, name, method)


for _name in BINARY:
    _define(f"__{_name}__")
    _define(f"__r{_name}__")
for _name in "lt le gt ge eq ne".split():
    _define(f"__{_name}__")
for _name in "neg pos abs invert".split():
    setattr(Array, f"__{_name}__", lambda self, name=f"__{_name}__": outside(getattr(self._array, name)()))
for _name in [name for name in BINARY if name != "matmul"]:
    def _in_place(self, other, name=f"__i{_name}__"):
        self._array = getattr(self._array, name)(operand(other))
        return self

    setattr(Array, f"__i{_name}__", _in_place)
for _name in METHODS:
    setattr(Array, _name, lambda self, *args, name=_name, **keywords: outside(
        getattr(self._array, name)(*inside(args), **permitted(name, keywords))))
Array.__module__ = "cupy"


class Ufunc:
    def __init__(self, ufunc):
        self.ufunc, self.__name__ = ufunc, ufunc.__name__
        if self.__name__ in ("add", "maximum", "minimum"):
            self.at = lambda a, index, b: ufunc.at(a._array, inside(index), operand(b))
        if self.__name__ in ("add", "multiply"):
            self.reduce = lambda a, axis=0, dtype=None, out=None, keepdims=False: outside(
                ufunc.reduce(a._array, axis, dtype, inside(out), keepdims))

    def __call__(self, *args, out=None, dtype=None, casting="same_kind"):
        result = self.ufunc(*map(operand, args), dtype=dtype, casting=casting)
        if out is None:
            return outside(np.asarray(result, order="C"))
        assert isinstance(out, Array) and out.shape == np.shape(result), "out= must have exactly the broadcast shape"
        np.copyto(out._array, result, casting="same_kind")
        return out


class Cupy(ModuleType):
    """NumPy's names, as far as CuPy has them, taking and giving device arrays."""
    ndarray = Array
    __version__ = "double"

    def __getattr__(self, name):
        if name in MISSING or not hasattr(np, name):
            raise AttributeError(f"module 'cupy' has no attribute {name!r}")
        found = getattr(np, name)
        if isinstance(found, np.ufunc):
            return Ufunc(found)
        if isinstance(found, type) or not callable(found):
            return found
        return lambda *args, **keywords: outside(found(*inside(args), **permitted(name, keywords)))

    def asarray(self, x, dtype=None):
        return x if isinstance(x, Array) and dtype is None else Array(np.array(getattr(x, "_array", x), dtype))

    array = asarray

    def clip(self, a, a_min, a_max, out=None):
        return outside(np.clip(inside(a), operand(a_min), operand(a_max), out=inside(out)))

    def where(self, condition, a, b):
        if not isinstance(inside(condition), np.ndarray):
            raise AttributeError(f"{type(condition).__name__!r} object has no attribute 'astype'")
        return outside(np.where(condition._array, operand(a), operand(b)))

    def asnumpy(self, x):
        return x.get()


class Device:
    def __init__(self, number):
        assert number == 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def use(self):
        pass

    def synchronize(self):
        pass


@pytest.fixture
def cupy(monkeypatch):
    """The double in CuPy's place, for the length of a test."""
    double = Cupy("cupy")
    double.cuda = SimpleNamespace(Device=Device, is_available=lambda: True,
                                  runtime=SimpleNamespace(getDeviceCount=lambda: 1))
    special = ModuleType("cupyx.scipy.special")
    special.erf = lambda x: Array(backend.erf(x._array))
    monkeypatch.setitem(sys.modules, "cupyx", ModuleType("cupyx"))
    monkeypatch.setitem(sys.modules, "cupyx.scipy", ModuleType("cupyx.scipy"))
    monkeypatch.setitem(sys.modules, "cupyx.scipy.special", special)
    monkeypatch.setattr(backend, "_probe", lambda: (double, ""))
    return double


def there(x):
    """An array, or those within a tuple, on the device."""
    if type(x) is tuple:
        return tuple(map(there, x))
    return Array(x.copy()) if isinstance(x, np.ndarray) else x


def here(x):
    return x.get() if isinstance(x, Array) else x


CASES = [case for table in (cases(), edges()) for some in table.values() for case in some]


def stay(x):
    return x


def both_ways(op, inputs, options, move, move_option):
    """Outputs and gradients of one op, through the engine, with the arrays moved first."""
    leaves = [mt.Tensor(move(x), x.dtype.kind == "f") if isinstance(x, np.ndarray) else x for x in inputs]
    y = op.apply(*leaves, **{name: move_option(value) for name, value in options.items()})
    ys, total = y if type(y) is tuple else (y,), 0.0
    for i, out in enumerate(ys):
        dy = np.asarray(np.random.default_rng(i).normal(size=out.shape)).astype(out.dtype)
        total = total + (out * (dy if out.device == "cpu" else move(dy))).sum()
    if total.requires_grad:        # whole numbers have no gradient
        total.backward()
    gradients = [x.grad for x in leaves if isinstance(x, mt.Tensor) and x.requires_grad]
    return [here(array) for array in (*(out.data for out in ys), *gradients)]


@pytest.mark.parametrize("case", CASES, ids=[f"{case.op.name}-{case.label}" for case in CASES])
@pytest.mark.parametrize("move_option", [there, stay], ids=["on the device", "options on the host"])
def test_every_op_forward_and_backward(cupy, case, move_option):
    with np.errstate(all="ignore"):                                 # CuPy never warns
        expected = both_ways(case.op, case.inputs, case.options, stay, stay)
        ours = both_ways(case.op, case.inputs, case.options, there, move_option)
    for array, numpys in zip(ours, expected, strict=True):
        np.testing.assert_allclose(array, numpys, rtol=1e-12, atol=1e-14)


NUMBERS = {
    "x ** 2": lambda x: x ** 2, "x ** 3.0": lambda x: x ** 3.0, "x ** 0": lambda x: x ** 0,
    "x ** -1": lambda x: x ** -1, "2 ** x": lambda x: 2 ** x, "0.5 ** x": lambda x: 0.5 ** x,
    "x ** np.float64": lambda x: x ** np.float64(0.5),
    "2 - x": lambda x: 2 - x, "2 / x": lambda x: 2 / x, "maximum": lambda x: ops.maximum(2.0, x),
    "minimum": lambda x: ops.minimum(x, 2), "clip": lambda x: ops.clip(x, 1.5, 2.5),
    "clip below": lambda x: ops.clip(x, 1.5),
    "masked_fill": lambda x: ops.masked_fill(x, np.array([True, False, False]), 7.0),
    "where, a number": lambda x: ops.where(np.array([True, False, False]), x, 7.0),
    "a number, where": lambda x: ops.where(np.array([True, False, False]), 7.0, x),
}


@pytest.mark.parametrize("function", NUMBERS.values(), ids=NUMBERS)
def test_a_number_beside_a_device_array(cupy, function):
    x, y = (mt.tensor([1.0, 2.0, 3.0], True, device=device) for device in ("cpu", "cuda"))
    expected, ours = function(x), function(y)
    expected.backward(np.float32([1, 2, 4]))
    ours.backward(cupy.asarray(np.float32([1, 2, 4])))
    assert ours.dtype == y.grad.dtype == np.float32 and ours.device == "cuda:0"
    np.testing.assert_allclose(here(ours.data), expected.numpy(), rtol=1e-6)
    np.testing.assert_allclose(here(y.grad), x.grad, rtol=1e-6)


def test_a_training_step_of_a_block(cupy):
    def step(device):
        mt.manual_seed(1)
        model = nn.EncoderBlock(8, 2, 16, dropout=0.1)
        table = mt.tensor(mt.randn(5, 8), True, np.float64, device)
        model.to(device, np.float64)
        x = ops.embedding(np.array([[0, 4, 1], [2, 2, 3]]), table)          # ids, masks and targets stay on the host
        y = model(x, nn.padding_mask(np.array([3, 2]), 3) & nn.causal_mask(3))
        loss = ops.cross_entropy(ops.linear(y, table), np.array([[1, 2, -100], [3, 0, 1]]), label_smoothing=0.1)
        loss.backward()
        parameters = [table, *model.parameters()]
        optimiser = optim.AdamW(parameters, lr=0.1)
        optim.clip_grad_norm(parameters, 1.0)
        optimiser.step()
        return [loss.item()] + [here(p.data) for p in parameters]

    for ours, numpys in zip(step("cuda"), step("cpu"), strict=True):
        np.testing.assert_allclose(ours, numpys, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", [np.array, mt.tensor, list])
def test_models_move_ids_masks_and_targets_from_the_host(cupy, kind):
    ids, seen, targets = [[0, 4, 1], [2, 2, 3]], [[1, 1, 1], [0, 1, 1]], [[4, 1, -100], [-100, 3, 0]]

    def step(device):
        mt.manual_seed(1)
        model = models.GPT2(models.GPT2Config(vocab_size=5, n_positions=4, n_embd=8, n_layer=1, n_head=2)).eval()
        model.to(device, np.float64)
        logits = model(kind(ids), attention_mask=kind(seen))
        ops.cross_entropy(logits, kind(targets)).backward()
        return [here(logits.data)] + [here(p.grad) for p in model.parameters()]

    for ours, numpys in zip(step("cuda"), step("cpu"), strict=True):
        np.testing.assert_allclose(ours, numpys, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", [{}, dict(temperature=1.0, top_k=3, generator=0), dict(num_beams=3)], ids=str)
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_text_is_written_there_as_here(cupy, name, options):
    def write(device):
        mt.manual_seed(1)
        model = models.Llama(models.LlamaConfig(11, 8, 12, 2, 4, 2, max_position_embeddings=12)) if name == "llama" else (
            models.T5(models.T5Config(11, 8, 4, 12, 2, num_heads=2)))
        model.to(device, np.float64)
        mask = [[1, 1, 1, 1], [0, 0, 1, 1]]
        return generate.generate(model, [[4, 2, 5, 3], [0, 0, 7, 8]], 7, attention_mask=mask, stop=9, **options)

    np.testing.assert_array_equal(write("cuda"), write("cpu"))


def test_grouped_heads_and_positions_from_the_host(cupy):
    def run(device):
        mt.manual_seed(1)
        layer, positions = nn.MultiHeadAttention(8, 4, 0.0, num_kv_heads=2), nn.LearnedPositions(6, 8)
        for module in (layer, positions):
            module.to(device, np.float64)
        x = positions(mt.tensor(mt.randn(2, 3, 8), True, np.float64, device), np.array([[0, 1, 2], [3, 4, 5]]))
        y = layer(x, x, x, nn.padding_mask([2, 3], 3)) + layer(x, x, x, np.tri(3, dtype=bool)[None, None])
        y.sum().backward()
        return [here(y.data)] + [here(p.grad) for p in (*layer.parameters(), *positions.parameters())]

    for ours, numpys in zip(run("cuda"), run("cpu"), strict=True):
        np.testing.assert_allclose(ours, numpys, rtol=1e-9, atol=1e-12)


def test_two_devices_are_an_error_that_names_both(cupy):
    x = mt.ones(2, device="cuda")
    assert x.device == "cuda:0" and "cuda:0" in repr(x) and x.to("cpu").device == "cpu"
    for call in (lambda: np.ones(2, np.float32) * x, lambda: x + mt.ones(2), lambda: x @ mt.ones(2)):
        with pytest.raises(TypeError, match="(?=.*cpu)(?=.*cuda:0).*to\\(device\\)"):
            call()
    with pytest.raises(TypeError, match="host"):
        np.asarray(x)
    y = (np.float64(2) * x + 1) / np.float32(2)
    assert y.dtype == np.float32 and y.tolist() == [1.5, 1.5] and float(y.sum()) == 3
    with pytest.raises(RuntimeError, match="1 GPU"):
        mt.ones(2, device="cuda:1")


BOTH = "(?=.*cpu)(?=.*cuda:0)"
SOME, ONES = there(np.array([True, True])), np.ones((2, 2), np.float32)


@pytest.mark.parametrize("call", [
    lambda: ops.embedding(there(np.array([1])), mt.ones(2, 3)),
    lambda: ops.embedding(mt.tensor([1], device="cuda"), ONES),
    lambda: nn.Embedding(2, 3)(there(np.array([1]))), lambda: ops.cross_entropy(ONES, there(np.array([0, 1]))),
    lambda: ops.softmax(ONES, mask=SOME), lambda: ops.masked_fill(ONES, SOME, 0.0), lambda: ops.where(SOME, ONES, 0.0),
    lambda: ops.scaled_dot_product_attention(ONES, ONES, ONES, SOME),
    lambda: ops.scaled_dot_product_attention(ONES, ONES, ONES, SOME, is_causal=True),
    lambda: ops.rope(ONES, there(np.arange(2))), lambda: mt.Tensor(ONES)[there(np.array([0]))],
    lambda: mt.Tensor(ONES)[0, mt.tensor([0], device="cuda")],
], ids=["ids", "ids in a Tensor", "ids for a layer", "targets", "softmax", "masked_fill", "where", "attention",
        "causal attention", "rope", "index", "index in a tuple"])
def test_options_on_the_device_beside_arrays_on_the_host(cupy, call):
    """The other way round than what is moved: nothing is copied back to the host without a word."""
    with pytest.raises(TypeError, match=BOTH):
        call()


def test_a_gradient_from_another_device(cupy):
    x, y = (mt.ones(2, device=device, requires_grad=True) for device in ("cpu", "cuda"))
    for tensor, gradient in ((x, there(np.ones(2))), (y, np.ones(2)), (x * 2, mt.ones(2, device="cuda")),
                             (y * 2, mt.ones(2))):
        with pytest.raises(TypeError, match=f"backward: {BOTH}"):
            tensor.backward(gradient)
    (y * 2).backward([1.0, 2.0])                                    # Python numbers are on no device
    assert here(y.grad).tolist() == [2, 4] and x.grad is None


@pytest.mark.parametrize("index", [
    np.array([0, 2]), (slice(None), np.array([-4])), np.array([[0, 5]]), (..., np.array([3])), (None, np.array([2])),
    (np.array([0]), ..., np.array([3])), (np.array([True, False]), np.array([3]))], ids=str)
def test_an_index_out_of_range_does_not_wrap(cupy, index):
    """CuPy would wrap: the error shows that minitx looked, not the NumPy in the double ("out of bounds")."""
    with pytest.raises(IndexError, match="getitem: (?!.*out of bounds)"):
        mt.ones(2, 3, device="cuda")[there(index)]
    with pytest.raises(IndexError, match="embedding: (?!.*out of bounds)"):
        ops.embedding(np.array([5]), mt.ones(2, 3, device="cuda"))


@pytest.mark.parametrize("index", [
    (np.array([1, 0]), ..., 0), (..., np.array([2, -3])), (None, np.array([1]), slice(1)), np.array([True, False]),
    (np.array([0, 1]), np.array([2, 2])), ([0, 1], ...)], ids=str)
def test_kinds_of_index(cupy, index):
    x, y = mt.ones(2, 3, requires_grad=True), mt.tensor(np.ones((2, 3), np.float32), True, device="cuda")
    expected, ours = x[index], y[there(index)]
    expected.sum().backward()
    ours.sum().backward()
    assert ours.shape == expected.shape and here(y.grad).tolist() == x.grad.tolist()


@pytest.mark.parametrize("trespass, error", [
    (lambda xp, a: np.exp(a), TypeError), (lambda xp, a: np.sum(a), TypeError),
    (lambda xp, a: np.asarray(a), TypeError),
    (lambda xp, a: a + np.ones(3), TypeError), (lambda xp, a: np.ones(3) + a, TypeError),
    (lambda xp, a: a + [1, 2, 3], TypeError),
    (lambda xp, a: xp.vecdot(a, a), AttributeError), (lambda xp, a: a.sum(where=a > 0), TypeError),
    (lambda xp, a: hash(a), TypeError),
    (lambda xp, a: xp.clip(a, min=0), TypeError), (lambda xp, a: xp.maximum.reduce(a), AttributeError),
    (lambda xp, a: 1 in a, TypeError),
    (lambda xp, a: xp.exp(a, where=a > 0), TypeError), (lambda xp, a: [1, 2, 3][a[0]], TypeError),
    (lambda xp, a: a.__setitem__(xp.asarray([0, 0]), 1.0), AssertionError),
    (lambda xp, a: xp.where(True, a, 0.0), AttributeError), (lambda xp, a: xp.where(a > 0, a, np.ones(3)), TypeError),
    (lambda xp, a: xp.where(np.ones(3, bool), a, 0.0), TypeError),
    (lambda xp, a: xp.where(a > 0, [1, 2, 3], a), TypeError),
    (lambda xp, a: np.arange(3)[a], (TypeError, IndexError)),
    (lambda xp, a: a.setflags(write=False), AttributeError), (lambda xp, a: a.flags.writeable, AttributeError),
    (lambda xp, a: xp.einsum("i->", a, out=a), TypeError)])
def test_the_double_is_strict(cupy, trespass, error):
    with pytest.raises(error):
        trespass(cupy, cupy.asarray([1.0, 2.0, 3.0]))


def test_the_double_gives_arrays_where_numpy_gives_numbers(cupy):
    a = cupy.asarray([1.0, 2.0])
    assert all(isinstance(x, Array) and x.shape == () for x in (a.sum(), a[0], cupy.max(a), cupy.exp(a.sum())))
