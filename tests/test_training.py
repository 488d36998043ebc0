"""50 steps, a stop and 50 more are 100, bit for bit; a file that does not fit changes nothing; a kill loses nothing kept."""
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from double import here

import minitx as mt
from minitx import checkpoint, models, nn, ops, optim, schedule, training

safetensors = pytest.importorskip("safetensors")
V, T, B = 11, 6, 4


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state.safetensors"


def gpt2(dtype=np.float32, seed=0, **options):
    """A tiny model with dropout, its head tied to the embedding."""
    mt.manual_seed(seed)
    config = dict(vocab_size=V, n_positions=T, n_embd=8, n_layer=1, n_head=2, initializer_range=0.3,
                  embd_pdrop=0.2, attn_pdrop=0.2, resid_pdrop=0.2)
    return models.GPT2(models.GPT2Config(**config | options)).to(dtype=dtype)


def adamw(model):
    """Two groups that differ in decay, and a schedule."""
    return optim.AdamW(optim.decay_groups(model, 0.1), lr=lambda step: schedule.warmup_cosine(step, 1e-2, 10, 100))


def two_rates(model):
    """Two groups that differ in every option."""
    first, *others = model.parameters()
    return optim.AdamW([{"params": [first], "lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-6}, {"params": others}], lr=1e-3)


def sgd(model):
    return optim.SGD(model.parameters(), lr=0.03, momentum=0.9)


def without_memory(model):
    return optim.SGD(model.parameters(), lr=0.03)


def take(n, model, optimiser, generator=None):
    """n steps on data from the generator; their losses."""
    rng, losses = generator or mt.backend.generator(), []
    for _ in range(n):
        ids = rng.integers(V, size=(B, T), dtype=np.int32)
        loss = ops.cross_entropy(model(ids), (ids + np.roll(ids, 1, axis=1)) % V)
        optimiser.zero_grad()
        loss.backward()
        optim.clip_grad_norm(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
    return losses


def everything(model, optimiser, generator=None):
    """All that a training knows, as bytes and numbers that can be compared with ==."""
    def plain(value):
        value = here(value)
        if isinstance(value, np.ndarray):
            return str(value.dtype), value.shape, value.tobytes()
        if isinstance(value, dict):
            return {key: plain(entry) for key, entry in value.items()}
        return [plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value

    generator = generator or mt.backend.generator()
    return plain([model.state_dict(), optimiser.state_dict(), generator.bit_generator.state])


@pytest.mark.parametrize("made, dtype", [
    (adamw, np.float32), (adamw, np.float64), (two_rates, np.float16), (sgd, np.float32), (without_memory, np.float32)],
    ids=lambda option: option.__name__)
def test_fifty_and_fifty_are_a_hundred(made, dtype, path):
    model = gpt2(dtype)
    optimiser = made(model)
    losses = take(100, model, optimiser)
    whole = everything(model, optimiser)

    model = gpt2(dtype)
    optimiser = made(model)
    first = take(50, model, optimiser)
    training.save(path, model, optimiser, step=50, losses=first)
    take(3, model, optimiser)                                           # which nobody kept

    model = gpt2(dtype, seed=5)
    optimiser = made(model)
    take(2, model, optimiser)
    assert training.load(path, model, optimiser) == {"step": 50, "losses": first}
    assert first + take(50, model, optimiser) == losses and len(set(losses)) > 50
    assert everything(model, optimiser) == whole
    assert all(p.dtype == dtype for p in model.parameters())


def test_what_lies_in_the_file(path):
    """A tied array once; the optimiser's memory under the model's names; none for what never had a gradient."""
    model = gpt2()
    optimiser = optim.AdamW(model.parameters())
    next(model.parameters()).grad = None
    take(1, model, optimiser)
    frozen = nn.Linear(2, 3)
    both = nn.ModuleList([model, frozen])
    optimiser.param_groups.append({**optimiser.param_groups[0], "params": list(frozen.parameters())})
    training.save(path, both, optimiser)
    with safetensors.safe_open(path, framework="numpy") as file:
        stored = file.keys()
    names = {name for name, _ in both.named_parameters()}
    assert {name for name in stored if name.startswith("model.")} == {f"model.{name}" for name in names}
    assert {name for name in stored if name.startswith("optimiser.")} == {
        f"optimiser.{name}.{key}" for name in names if name.startswith("0.") for key in ("step", "m", "v")}
    assert json.loads(checkpoint.metadata(path)["training"]).keys() == {
        "optimiser", "steps", "groups", "generator", "progress"}
    other = nn.ModuleList([gpt2(seed=1), nn.Linear(2, 3)])
    again = optim.AdamW([{"params": list(other[0].parameters())}, {"params": list(other[1].parameters())}])
    training.load(path, other, again)
    assert everything(other, again) == everything(both, optimiser)


def test_options_come_back_but_a_schedule_stays(path):
    model = gpt2()
    optimiser = two_rates(model)
    optimiser.param_groups[0].update(lr=np.float32(0.1), betas=(0.7, 0.9))
    training.save(path, model, optimiser)
    again = two_rates(model)
    training.load(path, model, again)
    assert again.param_groups[0]["lr"] == float(np.float32(0.1)) and again.param_groups[0]["betas"] == (0.7, 0.9)
    other, rate = optim.AdamW(model.parameters(), lr=0.5), lambda step: 1 / step
    training.save(path, model, other)
    scheduled = optim.AdamW(model.parameters(), lr=rate)
    training.load(path, model, scheduled)
    assert scheduled.param_groups[0]["lr"] is rate


def test_progress_comes_back(path):
    model = gpt2()
    optimiser = adamw(model)
    told = dict(losses=[0.1 + 0.2, 5e-324, 1.7976931348623157e308, np.inf, -0.0], big=2 ** 80, none=None, yes=True,
                place={"epoch": 3, "rest": [[1, "é\0"], []]})
    training.save(path, model, optimiser, **told, numbers=np.arange(3), number=np.float32(0.1), pair=(1, 2))
    expected = told | dict(numbers=[0, 1, 2], number=float(np.float32(0.1)), pair=[1, 2])
    assert training.progress(path) == training.load(path, model, optimiser) == expected
    training.save(path, model, optimiser, nan=np.nan)
    assert np.isnan(training.load(path, model, optimiser)["nan"])
    before = path.read_bytes()
    with pytest.raises(TypeError, match="training.save: JSON cannot say a set; progress is numbers"):
        training.save(path, model, optimiser, seen={1, 2})
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(TypeError, match="training.save: progress is nested too deep"):
        training.save(path, model, optimiser, deep=deep)
    while deep:                                                     # which else is freed by as deep a recursion
        deep = deep[0]
    assert path.read_bytes() == before and [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("bits", [
    np.random.Philox, np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.SFC64])
def test_a_generator_of_ones_own(bits, path):
    """It is set in place: whoever holds it goes on with the very sequence."""
    def draw(rng):
        return [rng.random(), *rng.integers(9, size=5, dtype=np.int32).tolist(), float(rng.random(dtype=np.float32)),
                *rng.standard_normal(7).tolist(), *rng.permutation(5).tolist()]

    model, rng = gpt2(), np.random.Generator(bits(3))
    draw(rng)
    while not rng.bit_generator.state.get("has_uint32", 1):             # half of a drawn word stays for later
        rng.integers(9, dtype=np.int32)
    training.save(path, model, adamw(model), rng)
    told, ours, held = draw(rng), mt.backend.generator().bit_generator.state, np.random.Generator(bits(4))
    draw(held)
    training.load(path, model, adamw(model), held)
    assert draw(held) == told
    np.testing.assert_equal(mt.backend.generator().bit_generator.state, ours)
    with pytest.raises(TypeError, match="expected a numpy.random.Generator, got int"):
        training.save(path, model, adamw(model), 3)


# ---- what does not fit -----------------------------------------------------------------------------------------------

def refused(path, model, optimiser, *says, error=ValueError, generator=None):
    """load raises, says so, and has changed nothing."""
    before = everything(model, optimiser, generator)
    with pytest.raises(error) as caught:
        training.load(path, model, optimiser, generator)
    message = str(caught.value)
    assert error is not ValueError or message.startswith(f"{path}: ")
    for part in says:
        assert part in message, message
    assert everything(model, optimiser, generator) == before
    return message


@pytest.fixture
def saved(path):
    model = gpt2()
    optimiser = adamw(model)
    take(2, model, optimiser)
    training.save(path, model, optimiser, step=2)
    return path


def test_another_model(saved):
    wider, deeper, double = gpt2(n_embd=16), gpt2(n_layer=2), gpt2(np.float64)
    message = refused(saved, wider, adamw(wider), "the state does not fit; nothing was loaded",
                      "wrong shape or dtype: model.wte.weight is float32 (11, 16), the file's float32 (11, 8)",
                      "wrong shape or dtype: optimiser.wte.weight.m is float32 (11, 16)")
    assert "missing" not in message and message.count("model.wte.weight is ") == 1
    refused(saved, deeper, adamw(deeper), "missing: model.h.1.attn.w_q.weight",
            "wrong parameters: group 0 of the optimiser has h.1.")
    refused(saved, double, adamw(double), "model.wte.weight is float64 (11, 8), the file's float32 (11, 8)",
            "optimiser.wte.weight.v is float64")
    training.save(saved, deeper, adamw(deeper))
    small = gpt2()
    refused(saved, small, adamw(small), "unexpected: model.h.1.attn.w_q.weight", "where the file has h.1.")


def test_another_optimiser(saved):
    model = gpt2()
    refused(saved, model, sgd(model), "wrong kind: the optimiser is SGD, the file's AdamW",
            "wrong groups: the optimiser has 1, the file 2", "unexpected: optimiser.wte.weight.m")
    refused(saved, model, optim.AdamW(reversed(optim.decay_groups(model, 0.1))),
            "wrong parameters: group 0 of the optimiser has", "where the file has wte.weight")
    few = optim.decay_groups(model, 0.1)
    few[1]["params"] = few[1]["params"][:-1]
    refused(saved, model, optim.AdamW(few), "group 1 of the optimiser has no more where the file has",
            "unexpected: optimiser.")

    strangers = optim.AdamW(nn.Linear(2, 3).parameters())
    says = r"AdamW trains parameters that the GPT2 does not have, of shape \(3, 2\), \(3,\)"
    for act in training.save, training.load:
        with pytest.raises(ValueError, match=says):
            act(saved, model, strangers)
    assert training.progress(saved) == {"step": 2}


def test_another_generator(saved):
    model = gpt2()
    refused(saved, model, adamw(model), "wrong kind: the generator is PCG64, the file's Philox",
            generator=np.random.default_rng(0))


@pytest.mark.parametrize("bits, place", [
    (np.random.Philox, -1), (np.random.Philox, 5), (np.random.MT19937, -1), (np.random.MT19937, 625)])
def test_a_generator_that_would_read_past_its_end(bits, place, path):
    model, rng = gpt2(), np.random.Generator(bits(0))
    training.save(path, model, adamw(model), rng)
    arrays, about = checkpoint.load(path), json.loads(checkpoint.metadata(path)["training"])
    state = about["generator"]
    state.update(buffer_pos=place) if "buffer_pos" in state else state["state"].update(pos=place)
    checkpoint.save(path, arrays, {"training": json.dumps(about)})
    refused(path, model, adamw(model), f"the generator's place is {place}, outside", generator=rng)


@pytest.mark.host("only NumPy's arrays can be read-only")
def test_read_only_parameters(saved):
    """The model refuses last; the optimiser is put back."""
    model = gpt2(seed=1)
    optimiser = adamw(model)
    take(1, model, optimiser)
    list(model.parameters())[-1].data.flags.writeable = False
    refused(saved, model, optimiser, "read-only: ")


def test_files_that_hold_no_training(tmp_path, path):
    model = gpt2()
    refused(tmp_path / "none", model, adamw(model), "none", error=FileNotFoundError)
    with pytest.raises(FileNotFoundError, match="none"):
        training.progress(tmp_path / "none")
    checkpoint.save(path, model.state_dict())
    refused(path, model, adamw(model), "holds no state of a training; weights alone are read with checkpoint.load")
    for content in b"", b"no safetensors", bytes(8), b"\xff" * 100:
        path.write_bytes(content)
        refused(path, model, adamw(model), "cannot be read as safetensors")


def test_a_file_that_is_replaced_while_it_is_loaded(saved, monkeypatch):
    """Arrays and metadata are of one file."""
    read, other = checkpoint._read_header, gpt2(seed=4)
    training.save(saved.with_name("other"), other, adamw(other), step=7)

    def replaced(path):
        header = read(path)
        if saved.with_name("other").exists():
            os.replace(saved.with_name("other"), saved)
        return header

    monkeypatch.setattr(checkpoint, "_read_header", replaced)
    model = gpt2(seed=3)
    refused(saved, model, adamw(model), "was replaced while it was read; read it again")


def test_a_file_cut_short(saved):
    whole, model = saved.read_bytes(), gpt2()
    for n in (len(whole) - 1, len(whole) // 2, 100):
        saved.write_bytes(whole[:n])
        refused(saved, model, adamw(model))


LYING = {
    "no JSON": "{", "a list": "[]", "null": "null", "nothing": "{}", "too deep": "[" * 100_000,
    "progress": {"progress": [1]}, "groups": {"groups": 3}, "groups of what": {"groups": [3, 4]},
    "params": {"groups": [{}, {}]},
    "steps": {"steps": -1}, "steps of what": {"steps": "many"}, "true steps": {"steps": True},
    "optimiser": {"optimiser": None},
    "generator": {"generator": None}, "generator of what": {"generator": {"bit_generator": "Philox"}},
    "generator's numbers": {"generator": {"bit_generator": "Philox", "state": {"counter": [2 ** 64] * 4, "key": [0, 0]},
                                          "buffer": [0] * 4, "buffer_pos": 4, "has_uint32": 0, "uinteger": 0}},
    **{f"generator's {name}": {"generator": {
        "bit_generator": "Philox", "state": {"counter": counter, "key": [0, 0]}, "buffer": [0] * 4, "buffer_pos": 4,
        "has_uint32": 0, "uinteger": 0}}
       for name, counter in (("halves", [0.5] * 4), ("three", [0] * 3), ("five", [0] * 5))},
}


@pytest.mark.parametrize("lie", LYING.values(), ids=LYING)
def test_a_file_that_lies(lie, saved):
    arrays, about = checkpoint.load(saved), json.loads(checkpoint.metadata(saved)["training"])
    checkpoint.save(saved, arrays, {"training": lie if isinstance(lie, str) else json.dumps(about | lie)})
    model = gpt2(seed=3)
    optimiser = adamw(model)
    take(1, model, optimiser)
    refused(saved, model, optimiser)


@pytest.mark.parametrize("option, says", [({"weight_decay": -1.0}, "weight_decay"), ({"speed": 1.0}, "unknown option speed"),
                                          ({"betas": 3}, "betas must be two numbers"),
                                          ({"eps": True}, "wrong kind: eps of group 1 is True"),
                                          ({"betas": [0.9, False]}, "wrong kind: betas of group 1 is [0.9, False]")])
def test_options_out_of_range(option, says, saved):
    arrays, about = checkpoint.load(saved), json.loads(checkpoint.metadata(saved)["training"])
    about["groups"][1].update(option)
    checkpoint.save(saved, arrays, {"training": json.dumps(about)})
    model = gpt2(seed=3)
    refused(saved, model, adamw(model), says)


def test_arrays_that_lie(saved):
    arrays, about = checkpoint.load(saved), checkpoint.metadata(saved)
    for name, array, says in (
            ("optimiser.wte.weight.step", np.array(-1), "step must be a whole number"),
            ("optimiser.wte.weight.step", np.array(1.5), "wrong shape or dtype: optimiser.wte.weight.step is int64 (), the"),
            ("optimiser.wte.weight.v", np.full((V, 8), -1e-9, np.float32), "wrong values: optimiser.wte.weight.v is"),
            ("optimiser.wte.weight.m", np.zeros(3, np.float32), "wrong shape or dtype: optimiser.wte.weight.m"),
            ("more", np.zeros(3), "unexpected: more")):
        checkpoint.save(saved, arrays | {name: array}, about)
        model = gpt2(seed=3)
        refused(saved, model, adamw(model), says)
    del arrays["optimiser.wte.weight.v"]
    checkpoint.save(saved, arrays, about)
    refused(saved, model, adamw(model), "missing: optimiser.wte.weight.v")


# ---- killed while it saves -------------------------------------------------------------------------------------------

KILLED = """
import os, random, signal, sys, time
import numpy as np
from minitx import nn, optim, training

path, kills = sys.argv[1], int(sys.argv[2])
model = nn.Linear(300, 300)
optimiser = optim.AdamW(model.parameters())

def fill(step):
    optimiser.steps = step
    for p in model.parameters():
        p.data[...] = step
        optimiser.state[p] = dict(step=step, m=np.full_like(p.data, step), v=np.full_like(p.data, step))

def loaded():
    step, = {training.load(path, model, optimiser)["step"], optimiser.steps,
             *(entry["step"] for entry in optimiser.state.values()), *(float(x) for p in model.parameters() for array in
               (p.data, optimiser.state[p]["m"], optimiser.state[p]["v"]) for x in np.unique(array))}
    return step

fill(0)
training.save(path, model, optimiser, step=0)
rng, steps = random.Random(0), [0]
for _ in range(kills):
    child = os.fork()
    if not child:
        for step in range(steps[-1] + 1, 100_000):
            fill(step)
            training.save(path, model, optimiser, step=step)
        os._exit(1)
    time.sleep(rng.uniform(0.001, 0.06))
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    steps.append(loaded())
assert steps == sorted(steps), steps
print(steps[-1], len(os.listdir(os.path.dirname(path))) - 1)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_killed_at_fifty_moments(path):
    """After every kill the file holds one whole state, never an older one than before."""
    paths = os.pathsep.join(filter(None, [str(Path(mt.__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    done = subprocess.run([sys.executable, "-c", KILLED, str(path), "50"], capture_output=True, text=True, encoding="utf-8",
                          env={**os.environ, "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1"}, timeout=300)
    assert done.returncode == 0, done.stderr
    saves, unfinished = map(int, done.stdout.split())
    assert saves > 10 and unfinished > 5, done.stdout                       # it was the saves that were hit
