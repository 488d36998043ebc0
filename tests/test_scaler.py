"""Training in float16: masters of the weights, and losses that are scaled until their gradients fit."""
import copy
import json
import math
import sys

import double
import numpy as np
import pytest

import minitx as mt
from minitx import backend, nn, ops, optim, training
from minitx.optim import GradScaler


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    """The CPU, and a GPU, or for the length of a test the double in CuPy's place where there is none."""
    undo = (lambda: None) if request.param == "cpu" or mt.cuda.is_available() else double.install()
    yield request.param
    undo()


def parameter(values, grad=None, dtype=np.float16, device="cpu"):
    p = nn.Parameter(mt.tensor(values, dtype=dtype, device=device))
    p.grad = None if grad is None else mt.tensor(grad, dtype=dtype, device=device).data
    return p


def values(x):
    return backend.to_numpy(x.data if isinstance(x, mt.Tensor) else x)


MAKERS = {"SGD": lambda p, lr=0.1: optim.SGD(p, lr), "SGD with momentum": lambda p, lr=0.1: optim.SGD(p, lr, 0.9),
          "AdamW": lambda p, lr=0.1: optim.AdamW(p, lr, weight_decay=0.3)}


# ---- masters ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_float16_parameter_is_the_rounded_copy_of_a_float32_one(device, make):
    rng = np.random.default_rng(0)
    start = rng.normal(size=(5, 4)).astype(np.float16)
    half, whole = parameter(start, device=device), parameter(start, dtype=np.float32, device=device)
    optimisers = make([half], 1e-4), make([whole], 1e-4)
    for _ in range(20):
        g = rng.normal(size=(5, 4)).astype(np.float16)
        for p, optimiser in zip((half, whole), optimisers):
            p.grad = mt.tensor(g, dtype=p.dtype, device=device).data
            optimiser.step()
    master = optimisers[0].state[half]["master"]
    assert master.dtype == np.float32 and half.dtype == np.float16
    np.testing.assert_allclose(values(master), values(whole), rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(values(half), values(master).astype(np.float16))


def test_steps_too_small_for_float16_add_up():
    p = parameter([1.0], [1.0])
    optimiser = optim.SGD([p], 1e-4)                                # 1 - 1e-4 is 1 in float16
    for _ in range(100):
        optimiser.step()
    assert p.item() == np.float16(0.99)


def test_what_somebody_else_has_changed_begins_anew(device):
    p = parameter([1.0, 1.0], [1.0, 1.0], device=device)
    optimiser = optim.SGD([p], 1e-4)
    optimiser.step()
    p.data[1] = 2.0
    optimiser.step()
    np.testing.assert_allclose(values(optimiser.state[p]["master"]), [1 - 2e-4, 2 - 1e-4], rtol=1e-7)


def test_other_dtypes_have_no_master():
    for dtype in np.float32, np.float64:
        p = parameter([1.0], [1.0], dtype)
        optimiser = optim.SGD([p], 0.1)
        optimiser.step()
        assert optimiser.state[p] == {}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_master_goes_when_its_parameter_is_float16_no_more(make):
    layer = nn.Linear(2, 1).to(dtype=np.float16)
    optimiser = make(layer.parameters())
    for dtype in np.float16, np.float32:
        layer.to(dtype=dtype).zero_grad()
        layer(mt.ones(1, 2, dtype=dtype)).sum().backward()
        optimiser.step()
    optimiser.load_state_dict(optimiser.state_dict())
    assert not any("master" in state for state in optimiser.state.values())


def test_what_is_remembered_elsewhere_is_an_error_that_names_both(device):
    if device == "cpu":
        pytest.skip("takes two devices")
    for dtype in np.float16, np.float32:
        layer = nn.Linear(2, 1).to("cpu", dtype)
        optimiser = optim.AdamW(layer.parameters())
        for there in "cpu", device:
            layer.to(there).zero_grad()
            layer(mt.ones(1, 2, dtype=dtype, device=there)).sum().backward()
            if there == "cpu":
                optimiser.step()
        with pytest.raises(TypeError, match=r"AdamW: .*on cuda:0, .*on cpu; make the optimiser after"):
            optimiser.step()
        assert optimiser.steps == 1


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_masters_are_saved_and_gone_on_from(make):
    def run(optimiser, p, steps):
        for step in steps:
            p.grad = np.full(p.shape, 0.01 * step, np.float16)
            optimiser.step()

    p = parameter([[1.0, 2.0]])
    whole = make([p], 1e-3)
    run(whole, p, range(3))
    state, again = copy.deepcopy(whole.state_dict()), copy.deepcopy(p)
    assert state["state"][0]["master"].dtype == np.float32
    resumed = make([again], 1e-3)
    resumed.load_state_dict(state)
    assert not np.shares_memory(resumed.state[again]["master"], state["state"][0]["master"])
    run(whole, p, range(3, 9))
    run(resumed, again, range(3, 9))
    np.testing.assert_array_equal(whole.state[p]["master"], resumed.state[again]["master"])
    np.testing.assert_array_equal(p.data, again.data)
    single = parameter([[1.0, 2.0]], dtype=np.float32)
    with pytest.raises(ValueError, match="state of parameter 0 has .*master.* of float32"):
        make([single]).load_state_dict(state)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_training_resumes_bit_for_bit(make, tmp_path):
    pytest.importorskip("safetensors")

    def begin():
        mt.manual_seed(3)
        model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)).to("cpu", "float16")
        return model, make(list(model.parameters()), 1e-3), GradScaler(init_scale=2.0 ** 8, growth_interval=3)

    def run(model, optimiser, scaler, n):
        rng = mt.backend.generator()
        for _ in range(n):
            x = mt.tensor(rng.normal(size=(5, 3)), dtype=np.float16, device="cpu")
            optimiser.zero_grad()
            scaler.scale(ops.cross_entropy(model(x), rng.integers(2, size=5))).backward()
            scaler.step(optimiser)
            scaler.update()

    straight = begin()
    run(*straight, 8)
    first, path = begin(), tmp_path / "state.safetensors"
    run(*first, 4)
    training.save(path, *first[:2], scaler=first[2].state_dict())
    second = begin()
    progress = training.load(path, *second[:2])
    second[2].load_state_dict(progress["scaler"])
    run(*second, 4)
    for p, q in zip(straight[0].parameters(), second[0].parameters(), strict=True):
        np.testing.assert_array_equal(p.data, q.data)
        np.testing.assert_array_equal(straight[1].state[p]["master"], second[1].state[q]["master"])
    assert straight[2].state_dict() == second[2].state_dict()
    whole = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    with pytest.raises(ValueError, match="unexpected: optimiser.0.weight.master"):
        training.load(path, whole, make(list(whole.parameters())))


# ---- the scaler ------------------------------------------------------------------------------------------------------

def test_gradients_are_those_of_the_loss_itself(device):
    p = parameter([3.0, 1e-3], device=device)
    scaler, optimiser = GradScaler(), optim.SGD([p], 0.5)
    loss = (p * p).sum().to(dtype="float32") * 1e-5
    scaler.scale(loss).backward()
    assert p.grad.dtype == np.float16 and values(p.grad)[1] != 0 == np.float16(2e-8)      # without: nothing is left
    scaler.unscale_(optimiser)
    assert p.grad.dtype == np.float32
    np.testing.assert_allclose(values(p.grad), 2e-5 * values(p).astype(np.float32), rtol=2e-3)
    before = values(p).astype(np.float32)
    norm = optim.clip_grad_norm([p], 1e-5)
    assert float(norm) == pytest.approx(6e-5, rel=1e-3)
    scaler.step(optimiser)
    np.testing.assert_allclose(before - values(optimiser.state[p]["master"]), [5e-6, 0], rtol=0.1, atol=1e-8)


def snapshot(optimiser, params):
    return copy.deepcopy([[values(p) for p in params], optimiser.steps, [p.version for p in params],
                          [{key: values(x) if hasattr(x, "dtype") else x for key, x in optimiser.state.get(p, {}).items()}
                           for p in params]])


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_an_overflow_skips_the_step_and_halves_the_scale(device, make, bad):
    params = [parameter([1.0, 2.0], device=device), parameter([[3.0]], device=device)]
    scaler, optimiser = GradScaler(init_scale=8.0), make(params)

    def step(*gradients):
        for p, g in zip(params, gradients):
            p.grad = mt.tensor(np.array(g, np.float16), device=device).data
        scaler.step(optimiser)
        scaler.update()

    step([1.0, 1.0], [[1.0]])
    before = snapshot(optimiser, params)
    step([1.0, bad], [[1.0]])
    np.testing.assert_equal(snapshot(optimiser, params), before)
    assert scaler.get_scale() == 4 and optimiser.steps == 1
    step([1.0, 1.0], [[bad]])
    np.testing.assert_equal(snapshot(optimiser, params), before)
    assert scaler.get_scale() == 2
    step([1.0, 1.0], [[1.0]])
    assert optimiser.steps == 2 and values(params[1]) < before[0][1] and scaler.get_scale() == 2


def test_the_scale_grows_after_good_steps_in_a_row():
    p = parameter([1.0])
    scaler, optimiser, scales = GradScaler(8.0, 4.0, 0.25, growth_interval=3), optim.SGD([p], 0.1), []
    for bad in (0, 0, 0, 0, 0, 1, 0, 0, 0, 1):
        p.grad = np.array([math.inf if bad else 1.0], np.float16)
        scaler.step(optimiser)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [8, 8, 32, 32, 32, 8, 8, 8, 32, 8] and optimiser.steps == 8


def test_the_scale_stays_a_float32():
    p, scaler = parameter([1.0], [0.0]), GradScaler(2.0 ** 125, growth_interval=1)
    optimiser = optim.SGD([p], 0.1)
    for _ in range(4):
        p.grad = np.zeros(1, np.float16)
        scaler.step(optimiser)
        scaler.update()
    assert scaler.get_scale() == 2.0 ** 126
    for _ in range(300):
        p.grad = np.full(1, np.inf, np.float16)
        scaler.step(optimiser)
        scaler.update()
    assert scaler.get_scale() == 2.0 ** -126
    GradScaler().load_state_dict(scaler.state_dict())


def test_one_scaler_for_two_optimisers():
    p, q = parameter([1.0], [1.0]), parameter([1.0], [math.inf])
    a, b, scaler = optim.SGD([p], 0.1), optim.SGD([q], 0.1), GradScaler(8.0)
    scaler.step(a)
    scaler.step(b)
    scaler.update()
    assert a.steps == 1 and b.steps == 0 and scaler.get_scale() == 4
    assert p.item() == np.float16(1 - 0.1 / 8) and q.item() == 1


def test_parameters_without_gradients_and_gradients_that_are_shared():
    p, q, idle = parameter([1.0], [8.0], np.float32), parameter([1.0], dtype=np.float32), parameter([1.0])
    q.grad = p.grad
    scaler, optimiser = GradScaler(8.0), optim.SGD([p, q, idle], 0.5)
    scaler.step(optimiser)
    assert p.item() == q.item() == 0.5 and idle.item() == 1
    scaler.update()
    optimiser.zero_grad()
    scaler.step(optimiser)
    scaler.update()
    assert optimiser.steps == 2 and scaler.get_scale() == 8


def test_the_order_of_its_methods():
    p, scaler = parameter([1.0], [1.0]), GradScaler()
    optimiser = optim.SGD([p], 0.1)
    with pytest.raises(RuntimeError, match=r"no step since.*call step\(optimiser\)"):
        scaler.update()
    scaler.unscale_(optimiser)
    with pytest.raises(RuntimeError, match=r"unscaled already; call update\(\)"):
        scaler.unscale_(optimiser)
    scaler.step(optimiser)
    with pytest.raises(RuntimeError, match=r"taken already; call update\(\)"):
        scaler.step(optimiser)
    with pytest.raises(RuntimeError, match=r"unscaled already; call update\(\)"):
        scaler.unscale_(optimiser)
    scaler.update()
    scaler.step(optimiser)
    with pytest.raises(TypeError, match="an optimiser, got list"):
        scaler.unscale_([p])
    with pytest.raises(TypeError, match="SGD: .*list"):
        p.grad = [1.0]
        GradScaler().step(optimiser)


@pytest.mark.parametrize("numbers", [
    dict(init_scale=0.0), dict(init_scale=-1), dict(init_scale=math.inf), dict(init_scale=math.nan), dict(init_scale="8"),
    dict(growth_factor=1.0), dict(growth_factor=math.inf), dict(backoff_factor=0.0), dict(backoff_factor=1.0),
    dict(growth_interval=0), dict(growth_interval=2.5), dict(growth_interval=None)], ids=str)
def test_numbers_that_cannot_be(numbers):
    with pytest.raises(ValueError, match="GradScaler: "):
        GradScaler(**numbers)


def test_its_state_is_numbers_that_json_can_say():
    scaler, other = GradScaler(8.0, 3.0, 0.25, 7), GradScaler()
    p = parameter([1.0], [1.0])
    scaler.step(optim.SGD([p], 0.1))
    scaler.update()
    state = json.loads(json.dumps(scaler.state_dict()))
    assert state == {"scale": 8.0, "growth_factor": 3.0, "backoff_factor": 0.25, "growth_interval": 7, "good_steps": 1}
    other.load_state_dict(state)
    assert other.state_dict() == state and other.get_scale() == 8
    for wrong in ({}, None, {**state, "scale": 0}, {**state, "more": 1}, {**state, "good_steps": 7}):
        with pytest.raises(ValueError, match="GradScaler: "):
            other.load_state_dict(wrong)
        assert other.state_dict() == state


def test_a_step_waits_once_for_the_device():
    undo = double.install()
    try:
        model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)).to("cuda", "float16")
        optimiser, scaler = optim.AdamW(model.parameters()), GradScaler(64.0)
        x = mt.ones(5, 3, dtype="float16", device="cuda")
        for _ in range(2):                                          # the first may copy what lies there from then on
            with double.counting() as counts:
                optimiser.zero_grad()
                scaler.scale(ops.cross_entropy(model(x), np.array([0, 1, 0, 1, 1]))).backward()
                scaler.unscale_(optimiser)
                optim.clip_grad_norm(model.parameters(), 1.0)
                scaler.step(optimiser)
                scaler.update()
        assert (counts.transfers_in, counts.transfers_out, counts.synchronisations) == (1, 1, 1)
        assert "cupy" in sys.modules and optimiser.steps == 2
    finally:
        undo()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")             # NumPy tells of each overflow
def test_float16_learns_as_float32_does(device):
    """A small GPT on sequences that count on: the loss in float16, scaled too high at first, ends where float32's does."""
    from minitx import models

    def train(dtype):
        mt.manual_seed(0)
        model = models.GPT2(models.GPT2Config(vocab_size=8, n_positions=8, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0,
                                              embd_pdrop=0.0, attn_pdrop=0.0)).to(device, dtype)
        optimiser, scaler = optim.AdamW(model.parameters(), lr=1e-2), GradScaler(2.0 ** 22, growth_interval=20)
        rng, losses = np.random.default_rng(0), []
        for _ in range(60):
            ids = (rng.integers(8, size=(16, 1)) + np.arange(9)) % 8
            loss = ops.cross_entropy(model(ids[:, :-1]), ids[:, 1:])
            optimiser.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimiser)
            optim.clip_grad_norm(model.parameters(), 1.0)
            scaler.step(optimiser)
            scaler.update()
            losses.append(loss.item())
        return losses, optimiser.steps

    (half, taken), (single, all_taken) = train("float16"), train("float32")
    assert all_taken == 60 and 40 <= taken < 60                     # the first ones were skipped
    assert single[-1] < 0.1 and half[-1] < 0.15 and half[0] == pytest.approx(single[0], rel=1e-3)
