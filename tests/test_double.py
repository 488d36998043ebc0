"""Every op on a stand-in for CuPy that is as strict as CuPy is, or stricter: what runs here does not lean on NumPy.
"""
import copy
import pickle
import sys
from types import SimpleNamespace

import device_mode
import double
import numpy as np
import pytest
from double import Array, here, there
from double.claims import ITEMS, arrays

import minitx as mt
from minitx import backend, generate, models, nn, ops, optim
from minitx.proof.cases import cases, edges

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
    """As they stand: kernels have tests of their own."""
    with np.errstate(all="ignore"), mt.plain_ops():                 # CuPy never warns
        expected = both_ways(case.op, case.inputs, case.options, stay, stay)
        ours = both_ways(case.op, case.inputs, case.options, there, move_option)
    for array, numpys in zip(ours, expected, strict=True):
        np.testing.assert_allclose(array, numpys, rtol=1e-12, atol=1e-13)


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


# ---- the double itself: claim by claim in test_probe.py, here what no single statement shows -------------------------

def test_every_item_of_the_list_has_its_claims():
    assert [int(item.split()[0]) for item in ITEMS] == list(range(1, 11)) and all(ITEMS.values())


COUNTED = {                                                         # transfers in, out, synchronisations
    "xp.asarray(h)": (1, 0, 0), "xp.array([1, 2])": (1, 0, 0), "xp.asarray(2.0)": (1, 0, 0), "a.set(h)": (1, 0, 0),
    "xp.asarray(a)": (0, 0, 0), "a + 2.0": (0, 0, 0), "xp.zeros(3), xp.arange(3), xp.full(3, 2.0)": (0, 0, 0),
    "xp.exp(a).sum() * a[0]": (0, 0, 0), "a[i]": (0, 0, 0), "a.__setitem__(0, 1.0)": (0, 0, 0),
    "xp.where(b, a, 0.0)": (0, 0, 0), "m.reshape(-1).T.astype(float)": (0, 0, 0), "a.shape, np.shape(a)": (0, 0, 0),
    "a.get()": (0, 1, 1), "xp.asnumpy(a)": (0, 1, 1), "a[0].item()": (0, 1, 1), "a.tolist()": (0, 1, 1),
    "float(a[0])": (0, 1, 1), "int(i[0])": (0, 1, 1), "bool(b[0])": (0, 1, 1), "f'{a[0]:.2f}'": (0, 1, 1),
    "repr(a)": (0, 1, 1), "a[b]": (0, 0, 1), "a.__setitem__(b, 0.0)": (0, 0, 1), "b.nonzero()": (0, 0, 1),
    "xp.nonzero(a)": (0, 0, 1), "xp.where(b)": (0, 0, 1), "xp.unique(i)": (0, 0, 1), "xp.bincount(i)": (0, 0, 1),
    "xp.cuda.Device(0).synchronize()": (0, 0, 1), "xp.cuda.Stream.null.synchronize()": (0, 0, 1),
    "xp.cuda.Event().synchronize()": (0, 0, 1), "xp.random.default_rng(0).random(3)": (0, 0, 0),
}


@pytest.mark.parametrize("statement", COUNTED)
def test_what_is_counted(cupy, statement):
    names = arrays(cupy)
    with double.counting() as counts, double.counting() as inner:
        eval(statement, names)
    eval(statement, names)                                          # and no longer
    assert (counts.transfers_in, counts.transfers_out, counts.synchronisations) == COUNTED[statement]
    assert inner == counts and inner is not counts


def test_minitx_cannot_tell_it_from_cupy(cupy):
    x = cupy.asarray(np.ones(2))
    assert mt.cuda.is_available() and mt.cuda.device_count() == 1 and backend.require_cupy() is cupy
    assert backend.is_array(x) and backend.device_of(x) == "cuda:0" and backend.xp_of(x) is cupy
    assert type(backend.to_device(x, "cpu")) is np.ndarray and backend.to_device(x, "cuda") is x
    assert backend.owns_data(x) and not backend.owns_data(x[:1])
    backend.synchronise("cuda")


def test_it_leaves_when_it_is_told_to():
    before = {name: module for name, module in sys.modules.items() if name.startswith("cupy")}, mt.cuda.is_available()
    undo = double.install()
    import cupyx.scipy.special as special
    assert mt.cuda.is_available() and float(special.erf(there(np.zeros(1)))[0]) == 0
    undo()
    assert before == ({name: module for name, module in sys.modules.items() if name.startswith("cupy")},
                      mt.cuda.is_available())


def test_copies_and_pickles(cupy):
    x = cupy.asarray(np.arange(3.0))
    for twin in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert type(twin) is Array and twin.tolist() == [0, 1, 2] and not cupy.shares_memory(twin, x)


def test_events_tell_how_long_something_took(cupy):
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    end.record()
    assert 0 <= cupy.cuda.get_elapsed_time(start, end) < 1e4


def test_kernels_get_numpys_arrays_and_cupys_numbers(cupy, monkeypatch):
    """The emulator's part is played here: what a launch hands to it."""
    seen = []

    class Emulated:
        def __init__(self, code, options):
            seen.append((code, options))

        def get_function(self, name):
            return lambda *launch, shared_mem: seen.append((name, *launch, shared_mem))

    monkeypatch.setitem(sys.modules, "fused.emulator", SimpleNamespace(RawModule=Emulated))
    monkeypatch.setattr(cupy.RawModule, "runs", True)
    x = cupy.asarray(np.ones(2, np.float32))
    kernel = cupy.RawModule(code="code", options=("-DN=1",)).get_function("add")
    kernel((1,), (32,), (x, 2, 0.5, True, np.float32(3)), shared_mem=64)
    (code, options), (name, grid, block, args, shared) = seen
    assert (code, options, name, grid, block, shared) == ("code", ("-DN=1",), "add", (1,), (32,), 64)
    assert args[0] is x._array and [type(arg) for arg in args[1:]] == [np.int64, np.float64, np.bool_, np.float32]
    with pytest.raises(TypeError, match="device arrays and numbers"):
        kernel((1,), (32,), (np.ones(2),))
    monkeypatch.setitem(sys.modules, "fused.emulator", None)
    with pytest.raises(RuntimeError, match="no CUDA source"):
        cupy.RawModule(code="code")


# ---- device mode ------------------------------------------------------------------------------------------------------

def test_what_a_test_hands_over_goes_to_the_device_and_what_minitx_hands_does_not(cupy):
    def made(file):
        """A function that calls what it is given, as if it stood in that file of minitx."""
        exec(compile("def call(function, *args): return function(*args)", str(device_mode.ENGINE / file), "exec"),
             names := {})
        return names["call"]

    hand = device_mode.going_in(lambda name, x: x, 1)
    with backend.on_device("cuda"):
        assert type(hand("exp", np.ones(2))) is type(made("ops/softmax.py")(hand, "exp", np.ones(2))) is Array
        assert type(made("nn/layers.py")(hand, "exp", np.ones(2))) is np.ndarray
        assert type(made("ops/linear.py")(made("nn/layers.py"), hand, "exp", np.ones(2))) is np.ndarray
        assert hand("exp", 2.0) == 2.0
        call = device_mode.going_in(lambda *args, **options: (args, options))
        (x, ids), options = call(np.ones(2), np.array([1]), mask=np.array([True]), bias=np.ones(2))
        assert type(x) is type(options["bias"]) is Array and type(ids) is type(options["mask"]) is np.ndarray
    assert type(hand("exp", np.ones(2))) is np.ndarray              # on the CPU nothing is moved


def test_what_is_compared_comes_home(cupy):
    x = there(np.arange(3.0))
    assert device_mode.home({"a": [x, (x, 1)]}) == {"a": [pytest.approx([0, 1, 2]), (pytest.approx([0, 1, 2]), 1)]}
    equal = device_mode.coming_out(np.testing.assert_array_equal)
    equal(x, [0, 1, 2])
    equal(mt.Tensor(x), x)
    with pytest.raises(AssertionError):
        equal(x, [0, 1, 3])
    assert device_mode.shares_memory(x, x[1:]) and not device_mode.shares_memory(x, np.ones(1))
    on_host = np.ones(2)
    assert device_mode.shares_memory(on_host, on_host[1:])


def test_the_summary_counts_what_ran_and_says_why_the_rest_did_not():
    def skipped(reason):
        return SimpleNamespace(longrepr=("file", 1, f"Skipped: {reason}"))

    stats = {"passed": [1, 2], "failed": [3], "skipped": [
        skipped("host: threads"), skipped("needs CuPy"), skipped("host: threads"), skipped("host: files")]}
    assert device_mode.summary(stats).endswith("3 are of the host; 2: threads; 1: files")
    assert device_mode.summary(stats).startswith("3 tests ran on ")
