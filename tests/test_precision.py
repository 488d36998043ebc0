"""Precision on a GPU, or on the double: float32 products in TF32 by one switch, and float16 as NumPy's."""
import double
import numpy as np
import pytest

import minitx as mt
from minitx import backend, models, ops
from minitx.op import Op
from minitx.proof.cases import cases

HALF, SINGLE = np.float16, np.float32


@pytest.fixture
def cupy():
    """CuPy, or for the length of a test the double in its place where no GPU is."""
    undo = (lambda: None) if mt.cuda.is_available() else double.install()
    yield backend.require_cupy()
    undo()


@pytest.fixture
def highest():
    """The switch back where it was."""
    yield
    mt.set_float32_matmul_precision("highest")


# ---- TF32 ------------------------------------------------------------------------------------------------------------

def test_the_switch_is_off_until_it_is_told(cupy, highest):
    def tf32():
        return cupy._core.get_compute_type(SINGLE) == cupy._core._routines_linalg.COMPUTE_TYPE_TF32

    assert mt.get_float32_matmul_precision() == "highest" and not tf32()
    mt.set_float32_matmul_precision("high")
    assert mt.get_float32_matmul_precision() == "high" and tf32()
    with pytest.raises(ValueError, match="'highest'.*'high'.*not 'medium'"):
        mt.set_float32_matmul_precision("medium")
    assert mt.get_float32_matmul_precision() == "high" and tf32()
    mt.set_float32_matmul_precision("highest")
    assert mt.get_float32_matmul_precision() == "highest" and not tf32()


def test_on_the_cpu_the_switch_changes_nothing(highest):
    a = mt.randn(20, 30, device="cpu")
    before = (a @ a.T).numpy()
    mt.set_float32_matmul_precision("high")
    np.testing.assert_array_equal((a @ a.T).numpy(), before)


# ---- float16 ---------------------------------------------------------------------------------------------------------

CASES = [case for some in cases().values() for case in some if case.op.promotion]


def in_half(case, move):
    """Outputs and gradients of one op on float16."""
    halves = [x.astype(HALF) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x for x in case.inputs]
    leaves = [mt.Tensor(move(x), x.dtype.kind == "f") if isinstance(x, np.ndarray) else x for x in halves]
    y = case.op.apply(*leaves, **case.options)
    ys, dys = y if type(y) is tuple else (y,), np.random.default_rng(0)
    for i, out in enumerate(ys):
        if out.requires_grad:
            again = y if type(y) is not tuple else case.op.apply(*leaves, **case.options)[i]
            again.backward(move(np.asarray(dys.normal(size=out.shape)).astype(out.dtype)))
    return [backend.to_numpy(x) for x in (*(out.data for out in ys), *(x.grad for x in leaves if isinstance(x, mt.Tensor)))]


@pytest.mark.parametrize("case", CASES, ids=[f"{case.op.name}-{case.label}" for case in CASES])
def test_float16_on_the_device_is_numpys(cupy, case):
    """Both round the same numbers but for float32's last bits; native ops may round once more on the way."""
    with np.errstate(all="ignore"):
        expected, ours = in_half(case, lambda x: x.copy()), in_half(case, lambda x: backend.to_device(x, "cuda"))
    for theirs, array in zip(expected, ours, strict=True):
        if theirs is None:
            assert array is None
            continue
        assert array.dtype == theirs.dtype
        scale = np.abs(theirs.astype(SINGLE)).max(initial=2.0 ** -14)
        rtol, atol = (0, 2.0 ** -10) if case.op.native_half else (2.0 ** -10, 1e-6)         # of the largest
        np.testing.assert_allclose(array, theirs, rtol=rtol, atol=max(atol * scale, 2.0 ** -24))


def test_what_is_native_is_not_widened(cupy):
    """Native ops see float16, all others float32; a number beside an array makes even a native op compute in float32."""
    seen = []

    class Native(Op):
        promotion, native_half, broadcasts = "mixed", True, True

        def forward(self, a, b):
            seen.append((a.dtype, getattr(b, "dtype", None)))
            return a * b

    class Other(Native):
        native_half = False

    x, f32 = mt.ones(3, dtype=HALF, device="cuda"), mt.ones(3, dtype=SINGLE, device="cuda")
    ids = mt.tensor([70_000, 1, 2], device="cuda")
    assert Native.apply(x, x).dtype == Other.apply(x, x).dtype == HALF and Native.apply(x, f32).dtype == SINGLE
    assert seen == [(HALF, HALF), (SINGLE, SINGLE), (SINGLE, SINGLE)]
    assert ((x * 2.0 ** -10) * 2.0 ** 20 * 2.0 ** -5).tolist() == [32] * 3                  # 2^20 is no float16
    assert (x * 2.0 ** -5 * ids).tolist() == [2188, 2.0 ** -5, 2.0 ** -4]                   # nor is 70 000
    y = mt.ones(3, dtype=HALF, device="cpu")
    seen.clear()
    Native.apply(y, y)
    assert seen == [(SINGLE, SINGLE)]                               # on the CPU float16 is computed in float32


@pytest.mark.parametrize("device, dtype", [("cuda", HALF), ("cpu", SINGLE)])
def test_a_linear_layer_multiplies_float16_on_the_device(cupy, device, dtype):
    x, weight = (mt.ones(2, 2, dtype=HALF, device=device, requires_grad=True) for _ in range(2))
    assert {ops.linear(x, weight).node.x.dtype, (x @ weight).node.b.dtype, (x * weight).node.a.dtype} == {np.dtype(dtype)}
    assert ops.layer_norm(x).node.xhat.dtype == SINGLE


def test_gradients_of_what_was_broadcast_are_added_up_in_float32(cupy):
    bias = mt.tensor(np.zeros(2), requires_grad=True, dtype=HALF, device="cuda")
    x = mt.ones(4099, 2, dtype=HALF, device="cuda")
    (x + bias).backward(mt.ones(4099, 2, dtype=HALF, device="cuda"))
    assert backend.to_numpy(bias.grad).tolist() == [4100, 4100]     # float16 for 4099; one by one it stops at 2048
    table = mt.tensor(np.zeros((3, 2)), requires_grad=True, dtype=HALF, device="cuda")
    ops.embedding(np.ones(4099, int), table).backward(mt.ones(4099, 2, dtype=HALF, device="cuda"))
    assert backend.to_numpy(table.grad).tolist() == [[0, 0], [4100, 4100], [0, 0]]


def test_a_float16_model_there_is_the_one_here(cupy):
    ids, targets = np.array([[0, 4, 1], [2, 2, 3]]), np.array([[4, 1, -100], [2, 3, 0]])

    def run(device):
        mt.manual_seed(1)
        model = models.GPT2(models.GPT2Config(vocab_size=5, n_positions=4, n_embd=8, n_layer=2, n_head=2)).eval()
        model.to(device, HALF)
        loss = ops.cross_entropy(model(ids, [[1, 1, 1], [0, 1, 1]]), targets)
        loss.backward()
        assert loss.dtype == SINGLE and all(p.grad.dtype == HALF for p in model.parameters())
        return [loss.item()] + [backend.to_numpy(p.grad).astype(SINGLE) for p in model.parameters()]

    for there_, here_ in zip(run("cuda"), run("cpu"), strict=True):
        np.testing.assert_allclose(there_, here_, rtol=0, atol=5e-3 * np.abs(here_).max())
