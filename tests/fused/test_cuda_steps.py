"""Training steps on a GPU, or on its double: AdamW in one launch, no transfer and no waiting, the same losses."""
import importlib

import double
import numpy as np
import pytest
from fused.gpu import compiler, gpu, there  # noqa: F401  fixtures of every test here

import minitx as mt
from minitx import backend, fused, ops, optim
from minitx.fused.cuda import kernels
from minitx.recording import ran

SHAPES = [(), (1,), (7,), (40,), (41, 3), (2, 3, 5), (0, 3), (5000,)]


def trained(move, dtype, update):
    """Parameters and what is remembered of them after five steps with two groups, and a gradient that comes late."""
    draws = np.random.default_rng(0)
    params = [move(draws.normal(size=shape).astype(dtype)) for shape in SHAPES]
    states = [{"step": 0, "m": move(np.zeros(shape, dtype)), "v": move(np.zeros(shape, dtype))} for shape in SHAPES]
    groups = [dict(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.1), dict(b1=0.5, b2=0.6, eps=1e-3, weight_decay=0.0)]
    for step in range(1, 6):
        updates = []
        for i, (p, state) in enumerate(zip(params, states)):
            g = move(draws.normal(size=p.shape).astype(dtype))
            if i != 4 or step > 2:
                state["step"] += 1
                updates.append((p, g, state, {"lr": 0.1 / step, **groups[i % 2]}))
        update(updates)
    return [backend.to_numpy(x) for p, state in zip(params, states) for x in (p, state["m"], state["v"])]


def one_by_one(updates):
    for p, g, state, options in updates:
        optim.AdamW._update(None, p, g, state, **options)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("tensors, steps", [(400, 16), (3, 16), (400, 2), (2, 1)])
def test_adamw_agrees_with_adamw(monkeypatch, dtype, tensors, steps):
    adamw = importlib.import_module("minitx.fused.cuda.adamw")
    monkeypatch.setattr(adamw, "TENSORS", tensors)          # so that more than one launch is needed
    monkeypatch.setattr(adamw, "STEPS", steps)
    launches = []
    launch = adamw._launch
    monkeypatch.setattr(adamw, "_launch", lambda dtype, *part: launches.append((launch(dtype, *part), *part)))
    adamw._table.cache_clear()

    def update(updates):
        launches.clear()
        assert adamw.adamw(updates) == []
        assert sum(len(part) for _, part, *_ in launches) == len(updates)
        assert all(len(part) <= tensors and len(different) <= steps for _, part, _, different in launches)
        assert len(launches) == 1 or tensors < len(updates) or steps < 3

    ours, plain = trained(there, dtype, update), trained(np.copy, dtype, one_by_one)
    for x, y in zip(ours, plain):
        np.testing.assert_allclose(x, y, rtol=2e-5 if dtype == np.float32 else 1e-12, atol=1e-7)


def test_adamw_of_more_tensors_than_one_launch_carries():
    n, results = kernels.TENSORS + 7, []
    for move, update in ((there, fused.TWINS["cuda", "AdamW"]), (np.copy, one_by_one)):
        draws = np.random.default_rng(0)
        updates = [(move(draws.normal(size=3)), move(draws.normal(size=3)),
                    {"step": 1 + i % 20, "m": move(np.zeros(3)), "v": move(np.zeros(3))},
                    dict(lr=0.1, b1=0.9, b2=0.99, eps=1e-8, weight_decay=0.1)) for i in range(n)]
        update(updates)
        results.append([backend.to_numpy(p) for p, *_ in updates])
    np.testing.assert_allclose(*results, rtol=1e-12)


def test_adamw_sends_its_table_once_and_waits_for_nobody(monkeypatch):
    adamw = importlib.import_module("minitx.fused.cuda.adamw")
    adamw._table.cache_clear()
    launches, launch = [], kernels.launch
    monkeypatch.setattr(kernels, "launch", lambda *args, **macros: launches.append(launch(*args, **macros)))
    x, zeros = np.ones((6, 5), np.float32), np.zeros((6, 5), np.float32)
    state = {"step": 1, "m": there(zeros), "v": there(zeros)}
    options = dict(lr=0.1, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0)
    params = there(x), there(x + 1)
    states = state, {**state, "m": there(zeros), "v": there(zeros)}
    given = [[there(x * step) for _ in params] for step in (1, 2, 3)]
    with double.counting() as counts:
        for gradients in given:
            adamw.adamw([(p, g, state, options) for p, g, state in zip(params, gradients, states)])
    assert len(launches) == 3 and adamw._table.cache_info().hits == 2 and adamw._table.cache_info().misses == 1
    assert counts.synchronisations == counts.transfers_out == 0 and counts.transfers_in <= 1        # the table


def test_adamw_leaves_what_is_not_its_own():
    adamw = fused.TWINS["cuda", "AdamW"]
    x, y = np.ones((6, 5), np.float32), there(np.ones((6, 5), np.float32))
    host = x, x, {"step": 1, "m": x, "v": x}, {}
    strided = y.T, y.T, {"step": 1, "m": y.T, "v": y.T}, {}
    assert adamw([host, strided]) == [host, strided] and adamw([]) == []


def test_a_small_transformer_learns_the_same_with_twins_and_without():
    def losses():
        mt.manual_seed(1)
        config = mt.models.GPT2Config(vocab_size=30, n_positions=12, n_embd=16, n_layer=1, n_head=2)
        model = mt.models.GPT2(config).to(device="cuda")
        optimizer = optim.AdamW(optim.decay_groups(model, 0.1), lr=3e-3)
        ids = np.random.default_rng(0).integers(30, size=(3, 13))
        for _ in range(5):
            loss = ops.cross_entropy(model(ids[:, :-1]), ids[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item()

    before = ran["twins"]
    ours = list(losses())
    assert ran["twins"] >= before + 5 * 10, "the twins are not registered"
    with mt.plain_ops():
        plain = list(losses())
    np.testing.assert_allclose(ours, plain, rtol=1e-4)
