"""Optimisers: against PyTorch, against the equations, and what they refuse."""
import copy
import math

import numpy as np
import pytest

import minitx as mt
from minitx import nn, optim

RNG = np.random.default_rng(0)


def parameter(values, grad=None, dtype=np.float64):
    p = nn.Parameter(np.array(values, dtype))
    p.grad = None if grad is None else array(grad, dtype)
    return p


def home(x):
    """A Tensor's or a device's array on the host."""
    return mt.backend.to_numpy(x.data if isinstance(x, mt.Tensor) else x)


def array(values, dtype=np.float64):
    """An array where new tensors are made: gradients lie where their parameters do."""
    return mt.tensor(values, dtype=dtype).data


MAKERS = {
    "SGD": (lambda o, p: o.SGD(p, lr=0.1)), "SGD with momentum": (lambda o, p: o.SGD(p, lr=0.1, momentum=0.9)),
    "AdamW": (lambda o, p: o.AdamW(p, lr=0.1)),
    "AdamW with all": (lambda o, p: o.AdamW(p, lr=0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3)),
    "AdamW groups": (lambda o, p: o.AdamW([{"params": p[:1], "lr": 0.01},
                                           {"params": p[1:], "weight_decay": 0.5}], lr=0.1)),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("dtype, tol", [(np.float64, 1e-12), (np.float32, 1e-5)])
def test_steps_are_pytorchs(make, dtype, tol, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(optim, "BLOCK", 8)                          # so that small arrays come in several blocks
    shapes = [(5, 4), (40,), (), (3, 2, 2), (2, 0)]
    ours = [parameter(RNG.standard_normal(shape), dtype=dtype) for shape in shapes]
    theirs = [torch.tensor(home(p), requires_grad=True) for p in ours]
    a, b = make(optim, ours), make(torch.optim, theirs)
    for step in range(6):
        for i, (p, q) in enumerate(zip(ours, theirs)):
            missing = step == 2 and i == 1                          # no gradient: that one is skipped, its count too
            g = RNG.standard_normal(p.shape).astype(dtype)
            p.grad = None if missing else array(g, dtype)
            q.grad = None if missing else torch.tensor(g)
        a.step()
        b.step()
        for p, q in zip(ours, theirs):
            assert p.dtype == dtype and mt.backend.is_array(p.data)
            np.testing.assert_allclose(p.data, q.detach().numpy(), rtol=tol, atol=tol)


def test_adamw_is_its_equations():
    w, m, v, lr, b1, b2, eps, decay = 2.0, 0.0, 0.0, 0.1, 0.9, 0.99, 1e-2, 0.1
    p = parameter([w])
    optimiser = optim.AdamW([p], lr, (b1, b2), eps, decay)
    for t, g in enumerate((0.5, -0.25, 0.0), start=1):
        p.grad = array([g])
        optimiser.step()
        w -= lr * decay * w
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        w -= lr * m / (1 - b1 ** t) / (math.sqrt(v / (1 - b2 ** t)) + eps)
        assert p.item() == pytest.approx(w, rel=1e-12)


def test_sgd_is_its_equations():
    p = parameter([1.0], [2.0])
    optimiser = optim.SGD([p], 0.1, momentum=0.5)
    optimiser.step()
    assert p.item() == pytest.approx(0.8)
    optimiser.step()
    assert p.item() == pytest.approx(0.8 - 0.1 * 3)
    plain = optim.SGD([p], 0.1)
    plain.step()
    assert p.item() == pytest.approx(0.3) and plain.state_dict()["state"] == [{}]


def test_steps_are_in_place_and_counted():
    p, idle = parameter([1.0], [1.0]), parameter([1.0])
    data = p.data
    optim.AdamW([p, idle], 0.1).step()
    assert p.data is data and p.version == 1 and idle.version == 0 and idle.item() == 1
    loss = (p * p).sum()
    optim.SGD([p], 0.1).step()
    with pytest.raises(RuntimeError, match="optimiser"):
        loss.backward()


@pytest.mark.parametrize("shape, view", [((4, 6), lambda x: x.T), ((8, 6), lambda x: x[::2])],
                         ids=["transposed", "every other row"])
def test_arrays_that_are_no_block_of_memory(shape, view, monkeypatch):
    monkeypatch.setattr(optim, "BLOCK", 5)
    data = view(array(np.ones(shape)))
    p = mt.Tensor(data, requires_grad=True)
    p.grad = array(np.ones(p.shape))
    optim.AdamW([p], 0.1, weight_decay=0.0).step()
    np.testing.assert_allclose(data, 0.9, rtol=1e-6)


def test_zero_grad_sets_none():
    p = parameter([1.0], [1.0])
    optim.SGD([p], 0.1).zero_grad()
    assert p.grad is None


@pytest.mark.parametrize("make", [lambda p, lr: optim.SGD(p, lr, 0.9), optim.AdamW], ids=["SGD", "AdamW"])
def test_a_callable_rate_gets_the_number_of_the_step(make):
    asked = []

    def rate(step):
        asked.append(step)
        return np.float64(0.1)                                      # no weak number: it must not widen anything

    p = parameter([1.0, 2.0], [1.0, 1.0], np.float32)
    optimiser = make([p], rate)
    for _ in range(3):
        optimiser.step()
    assert asked == [1, 2, 3] and p.dtype == np.float32
    assert all(a.dtype == np.float32 for a in optimiser.state[p].values() if isinstance(a, np.ndarray))


def test_a_bad_rate_stops_before_anything_changes():
    p, q = parameter([1.0], [1.0]), parameter([1.0], [1.0])
    optimiser = optim.AdamW([{"params": [p]}, {"params": [q], "lr": lambda step: math.nan}])
    with pytest.raises(ValueError, match="lr .* nan"):
        optimiser.step()
    assert p.item() == 1 and optimiser.steps == 0


def test_options_may_be_changed_by_hand():
    p = parameter([1.0], [1.0])
    optimiser = optim.SGD([p], 0.1)
    optimiser.param_groups[0]["lr"] = 0.5
    optimiser.step()
    assert p.item() == 0.5


def test_float16_keeps_its_memory_in_float32():
    p = parameter(np.ones(3), np.full(3, 1e-4), np.float16)
    optimiser = optim.AdamW([p], 0.1, weight_decay=0.0)
    optimiser.step()
    assert p.dtype == np.float16 and optimiser.state[p]["v"].dtype == np.float32
    np.testing.assert_allclose(p.data, 0.9, rtol=1e-3)              # 1e-4 squared is nothing in float16


LEAF = nn.Parameter([1.0])


@pytest.mark.parametrize("make, error, says", [
    (lambda: optim.SGD([], 0.1), ValueError, "no parameters"),
    (lambda: optim.AdamW(iter(())), ValueError, "no parameters"),
    (lambda: optim.AdamW([{"params": []}]), ValueError, "no parameters"),
    (lambda: optim.AdamW([LEAF, LEAF]), ValueError, "twice"),
    (lambda: optim.AdamW([{"params": [LEAF]}, {"params": [LEAF]}]), ValueError, "twice"),
    (lambda: optim.AdamW([np.ones(3)]), TypeError, "Tensor, got ndarray"),
    (lambda: optim.AdamW([("weight", LEAF)]), TypeError, "Tensor, got tuple"),
    (lambda: optim.AdamW([{"params": [LEAF]}, LEAF]), TypeError, "not both"),
    (lambda: optim.AdamW([{"lr": 0.1}]), TypeError, "'params'"),
    (lambda: optim.AdamW([LEAF * 2.0]), ValueError, "mul.*leaves"),
    (lambda: optim.AdamW([mt.ones(3)]), ValueError, "require gradients"),
    (lambda: optim.AdamW([{"params": [LEAF], "wd": 0.1}]), ValueError, "wd.*weight_decay"),
    (lambda: optim.SGD([{"params": [LEAF], "weight_decay": 0.1}], 0.1), ValueError, "weight_decay.*momentum"),
    (lambda: optim.AdamW([LEAF], lr=-0.1), ValueError, "lr .*-0.1"),
    (lambda: optim.SGD([LEAF], math.inf), ValueError, "lr"), (lambda: optim.SGD([LEAF], math.nan), ValueError, "lr"),
    (lambda: optim.SGD([LEAF], 0.1, -1), ValueError, "momentum"),
    (lambda: optim.AdamW([LEAF], betas=(1.0, 0.9)), ValueError, "betas .*1.0"),
    (lambda: optim.AdamW([LEAF], betas=(0.9, -0.1)), ValueError, "betas .*-0.1"),
    (lambda: optim.AdamW([LEAF], eps=-1e-8), ValueError, "eps"),
    (lambda: optim.AdamW([LEAF], weight_decay=-0.1), ValueError, "weight_decay"),
    (lambda: optim.AdamW([{"params": [LEAF], "weight_decay": -0.1}]), ValueError, "weight_decay"),
    (lambda: optim.AdamW(nn.Linear(2, 3)), TypeError, r"Linear.*\.parameters\(\)"),
    (lambda: optim.SGD(nn.Sequential(nn.Linear(2, 3)), 0.1), TypeError, r"Sequential.*\.parameters\(\)"),
    (lambda: optim.AdamW([{"params": nn.Linear(2, 3)}]), TypeError, r"\.parameters\(\)"),
    (lambda: optim.AdamW([LEAF], lr=None), TypeError, "lr .*None"), (lambda: optim.SGD([LEAF], "0.1"), TypeError, "lr"),
    (lambda: optim.AdamW([LEAF], lr=[0.1, 0.2]), TypeError, "lr"),
    (lambda: optim.AdamW([LEAF], lr=np.array([0.1, 0.2])), TypeError, "lr"),
    (lambda: optim.AdamW([LEAF], betas=0.9), ValueError, "betas .*0.9"),
    (lambda: optim.AdamW([LEAF], betas=(0.9,)), ValueError, "betas .*0.9"),
    (lambda: optim.AdamW([LEAF], betas=(0.9, 0.99, 0.999)), ValueError, "betas"),
    (lambda: optim.AdamW([LEAF], betas=(0.9, None)), TypeError, "betas .*None"),
    (lambda: optim.AdamW([LEAF], eps=None), TypeError, "eps"),
    (lambda: optim.AdamW([LEAF], weight_decay="much"), TypeError, "weight_decay")])
def test_what_cannot_be_trained(make, error, says):
    with pytest.raises(error, match=says):
        make()


def read_only(array):
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("make", [lambda p: optim.SGD(p, 0.1, 0.9), optim.AdamW], ids=["SGD", "AdamW"])
@pytest.mark.parametrize("spoil, error, says", [
    (lambda q: setattr(q, "grad", np.ones(1)), ValueError, r"\(2, 3\).*\(1,\)"),
    (lambda q: setattr(q, "grad", np.ones((1, 3))), ValueError, r"\(2, 3\).*\(1, 3\)"),
    (lambda q: setattr(q, "grad", np.ones((2, 3), int)), TypeError, r"\(2, 3\).*int64 of shape \(2, 3\)"),
    (lambda q: setattr(q, "grad", [1.0, 2.0]), TypeError, r"\(2, 3\).*list of shape \(2,\)"),
    (lambda q: setattr(q, "grad", mt.ones(2, 3)), TypeError, r"\(2, 3\).*Tensor of shape \(2, 3\)"),
    pytest.param(lambda q: setattr(q, "data", read_only(q.data.copy())), ValueError, r"\(2, 3\).*read-only",
                 marks=pytest.mark.host("only NumPy's arrays can be read-only"))])
def test_a_step_that_fails_changes_nothing(make, spoil, error, says):
    p, q = parameter([1.0], [1.0]), parameter(np.ones((2, 3)), np.ones((2, 3)))
    optimiser = make([p, q])
    optimiser.step()
    spoil(q)
    before = copy.deepcopy([optimiser.state_dict(), p.data, q.data, p.version])
    with pytest.raises(error, match=says):
        optimiser.step()
    for a, b in zip(flat(before), flat([optimiser.state_dict(), p.data, q.data, p.version]), strict=True):
        np.testing.assert_array_equal(a, b)


def flat(value):
    """Every array and number inside, in order."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else None
    return [value] if inner is None else [leaf for part in inner for leaf in flat(part)]


@pytest.mark.parametrize("make", [lambda p: optim.SGD(p, 0.1, 0.9), optim.AdamW], ids=["SGD", "AdamW"])
def test_what_is_remembered_belongs_to_the_parameter(make):
    p, q, r = parameter([1.0], [1.0]), parameter([1.0, 1.0], [4.0, 4.0]), parameter([1.0], [2.0])
    optimiser = make([p, q])
    optimiser.step()
    name = optimiser.memory[-1]
    remembered = {one: optimiser.state[one][name].copy() for one in (p, q)}
    optimiser.param_groups[0]["params"] = [q, r, p]                 # another order, and one more
    state = optimiser.state_dict()["state"]
    np.testing.assert_array_equal(state[0][name], remembered[q])
    np.testing.assert_array_equal(state[2][name], remembered[p])
    assert state[1] == {}
    optimiser.step()
    assert optimiser.state[r][name].shape == (1,) and r.item() < 1 and r.version == 1
    optimiser.param_groups[0]["params"].append(r)
    with pytest.raises(ValueError, match="twice"):
        optimiser.step()


@pytest.mark.parametrize("make", [lambda p: optim.SGD(p, 0.1, 0.9), lambda p: optim.AdamW(p, 0.1)],
                         ids=["SGD", "AdamW"])
def test_a_loaded_state_continues_the_very_sequence(make):
    def run(optimiser, params, steps):
        for step in steps:
            for i, p in enumerate(params):
                p.grad = array(np.full(p.shape, step + i), np.float32)
            optimiser.step()

    params = [parameter(np.ones((2, 3)), dtype=np.float32), parameter(np.ones(4), dtype=np.float32)]
    whole = make(params)
    run(whole, params, range(3))
    state, again = copy.deepcopy(whole.state_dict()), copy.deepcopy(params)
    resumed = make(again)
    resumed.load_state_dict(state)
    name = whole.memory[-1]
    assert resumed.steps == 3
    assert not np.shares_memory(state["state"][0][name], resumed.state[again[0]][name])
    run(whole, params, range(3, 6))
    run(resumed, again, range(3, 6))
    for p, q in zip(params, again):
        np.testing.assert_array_equal(p.data, q.data)


def test_a_state_carries_options_but_no_function():
    p = parameter([1.0], [1.0])
    optimiser = optim.AdamW([p], lr=lambda step: 0.1, weight_decay=0.25)
    state = optimiser.state_dict()
    assert state == {"steps": 0, "state": [{}], "param_groups": [
        {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.25, "params": [0]}]}
    other = optim.AdamW([p], lr=0.5)
    other.load_state_dict(state)
    assert other.param_groups[0]["lr"] == 0.5 and other.param_groups[0]["weight_decay"] == 0.25
    optimiser.load_state_dict(other.state_dict())
    assert callable(optimiser.param_groups[0]["lr"])


def change(state, **entries):
    state["state"][0].update(entries)
    return state


@pytest.mark.parametrize("spoil, says", [
    (lambda s: {**s, "param_groups": s["param_groups"] * 2}, "groups"), (lambda s: {**s, "state": []}, "groups"),
    (lambda s: change(s, m=np.ones(3)), r"\(2,\), its m float64 \(3,\)"),
    (lambda s: change(s, b=np.ones(2)), "remembers step, m, v"),
    (lambda s: {**s, "param_groups": [{**s["param_groups"][0], "lr": -1}]}, "lr"),
    (lambda s: {**s, "param_groups": [{**s["param_groups"][0], "lr": None}]}, "lr"),
    (lambda s: {**s, "param_groups": [{"lr": 0.1}]}, "params"), (lambda s: {**s, "param_groups": None}, "state_dict"),
    (lambda s: {}, "state_dict.*param_groups"), (lambda s: None, "state_dict"), (lambda s: [s], "state_dict"),
    (lambda s: {"step": 1, "state": s["state"], "param_groups": s["param_groups"]}, "state_dict.*steps"),
    (lambda s: {**s, "steps": -1}, "steps .*-1"), (lambda s: {**s, "steps": 1.5}, "steps .*1.5"),
    (lambda s: {**s, "steps": "3"}, "steps"), (lambda s: change(s, step=-2), "step .*-2"),
    (lambda s: change(s, step=np.ones(2)), "step"), (lambda s: change(s, v=[1.0, 2.0]), "its v list"),
    (lambda s: change(s, v=np.array(["a", "b"])), "its v <U1"), (lambda s: {**s, "state": [None]}, "state_dict"),
    (lambda s: {**s, "state": ["m"]}, "state_dict"), (lambda s: {**s, "state": [[]]}, "state_dict"),
    (lambda s: {**s, "param_groups": [{**s["param_groups"][0], "momentum": 1}]}, "momentum")])
def test_a_state_that_does_not_fit_changes_nothing(spoil, says):
    p = parameter([1.0, 2.0], [1.0, 1.0])
    optimiser = optim.AdamW([p])
    optimiser.step()
    before = copy.deepcopy(optimiser.state_dict())
    with pytest.raises(ValueError, match=says):
        optimiser.load_state_dict(spoil(copy.deepcopy(before)))
    for a, b in zip(flat(before), flat(optimiser.state_dict()), strict=True):
        np.testing.assert_array_equal(a, b)


def test_decay_groups():
    model = nn.EncoderBlock(4, 2, 8)
    model.tied = model.attn.w_q.weight
    model.norm1.weight.requires_grad = False
    decayed, kept = optim.decay_groups(model, 0.1)
    assert decayed["weight_decay"] == 0.1 and kept["weight_decay"] == 0.0
    assert [p.ndim for p in decayed["params"]] == [2] * 6 and [p.ndim for p in kept["params"]] == [1] * 9
    optim.AdamW([decayed, kept])


# ---- clipping --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("max_norm", [0.0, 0.5, 3.0, 1e9, math.inf])
def test_clipping_is_pytorchs(max_norm):
    torch = pytest.importorskip("torch")
    ours = [parameter(np.zeros(shape), RNG.standard_normal(shape)) for shape in ((3, 4), (5,), (), (0,))]
    ours.append(parameter([1.0]))
    theirs = [torch.zeros(p.shape, dtype=torch.float64, requires_grad=True) for p in ours]
    for p, q in zip(ours, theirs):
        q.grad = None if p.grad is None else torch.tensor(home(p.grad))
    norm = optim.clip_grad_norm(ours, max_norm)
    assert mt.backend.is_array(norm) and norm.shape == ()
    np.testing.assert_allclose(home(norm), torch.nn.utils.clip_grad_norm_(theirs, max_norm), rtol=1e-12)
    for p, q in zip(ours[:-1], theirs):
        np.testing.assert_allclose(p.grad, q.grad, rtol=1e-12)


def test_clipping_scales_all_together_in_place():
    p, q = parameter([0.0, 0.0], [3.0, 0.0]), parameter([0.0], [4.0])
    gradient = p.grad
    assert optim.clip_grad_norm(iter([p, q, p]), 1.0) == 5          # given twice, counted once
    np.testing.assert_allclose(gradient, [0.6, 0], rtol=1e-6)
    np.testing.assert_allclose(q.grad, [0.8], rtol=1e-6)
    assert p.grad is gradient
    assert float(optim.clip_grad_norm(q, 0.4)) == pytest.approx(0.8, rel=1e-6)
    assert float(q.grad[0]) == pytest.approx(0.4, rel=1e-5)


def test_one_array_that_is_two_gradients_is_scaled_once():
    p, q = parameter([0.0], [3.0]), parameter([0.0])
    q.grad = p.grad
    assert float(optim.clip_grad_norm([p, q], 1.0)) == pytest.approx(math.sqrt(18))
    assert p.grad is q.grad and float(p.grad[0]) == pytest.approx(math.sqrt(0.5))          # both together have the norm 1


def test_clipping_a_module_names_its_parameters():
    with pytest.raises(TypeError, match=r"clip_grad_norm: .*Linear.*\.parameters\(\)"):
        optim.clip_grad_norm(nn.Linear(2, 3), 1.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_norm_that_is_not_finite_leaves_the_gradients(bad):
    p, q = parameter([0.0, 0.0], [3.0, bad]), parameter([0.0], [4.0])
    norm = optim.clip_grad_norm([p, q], 1.0)
    assert not math.isfinite(norm) and norm.shape == ()
    np.testing.assert_array_equal(p.grad, [3.0, bad])
    np.testing.assert_array_equal(q.grad, [4.0])


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_clipping_keeps_the_dtype(dtype):
    p = parameter([0.0] * 4, [300.0] * 4, dtype)
    norm = optim.clip_grad_norm([p], np.float64(1.0))
    assert norm == 600 and norm.dtype == np.float32 and p.grad.dtype == dtype
    np.testing.assert_allclose(p.grad, 0.5, rtol=1e-3)


def test_clipping_nothing():
    assert optim.clip_grad_norm([parameter([1.0])], 1.0) == 0 and optim.clip_grad_norm([], 1.0).shape == ()
    for bad in -1.0, math.nan:
        with pytest.raises(ValueError, match="max_norm"):
            optim.clip_grad_norm([], bad)


@pytest.mark.parametrize("max_norm", [0.0, 1.0, math.inf])
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_no_norm_at_all_warns_of_nothing(max_norm, bad):
    p = parameter([0.0, 0.0], [3.0, bad], np.float32)
    norm = optim.clip_grad_norm([p], max_norm)
    assert not math.isfinite(norm)
    np.testing.assert_array_equal(p.grad, np.float32([3.0, bad]))


@pytest.mark.parametrize("state", [{}, {"steps": 1}, {"state": [], "param_groups": []}])
def test_a_state_that_is_none(state):
    optimiser = optim.AdamW([parameter([1.0])])
    with pytest.raises(ValueError, match="AdamW: "):
        optimiser.load_state_dict(state)
    assert optimiser.steps == 0
