"""What benchmarks/ measures with, without PyTorch: pairs, rows and tables, counted operations, the inputs of every op."""
import importlib
import importlib.util
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import minitx as mt
from minitx import backend
from minitx.ops.attention import Attention
from minitx.ops.linear import Linear

FOLDER = Path(__file__).parents[1] / "benchmarks"
NAMES = {path.stem for path in FOLDER.glob("*.py")} - {"__main__"}


@pytest.fixture
def bench(monkeypatch):
    """A function that imports a script of the folder by its name, as the scripts import each other; undone afterwards."""
    monkeypatch.syspath_prepend(FOLDER)
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module
    for name in NAMES:
        sys.modules.pop(name, None)


# ---- pairs -----------------------------------------------------------------------------------------------------------

def test_a_ratio_is_the_median_of_the_pairs_with_their_middle_half(bench):
    pairs = [(2, 1), (30, 10), (4, 1), (50, 10), (6, 1)]                    # ratios 2 to 6; of the medians 6
    found = bench("pairs").summary(pairs)
    assert found == dict(ours=6, theirs=1, ratio=4, low=3, high=5)
    assert bench("pairs").summary(pairs, 0.5)["ratio"] == 2


def test_both_sides_are_warmed_and_measured_in_turns(bench, monkeypatch):
    pairs, calls = bench("pairs"), []
    clock = iter(range(10 ** 6))                                            # every look at the clock is a second later
    monkeypatch.setattr(pairs.time, "perf_counter", lambda: next(clock))
    found = pairs.paired(lambda: calls.append("a"), lambda: (calls.append("b"), next(clock)), 3)
    assert "".join(calls) == "aabb" + 3 * "ab"
    assert found == dict(ours=1000, theirs=2000, ratio=0.5, low=0.5, high=0.5)


def test_a_short_call_is_repeated(bench, monkeypatch):
    pairs = bench("pairs")
    monkeypatch.setattr(pairs, "seconds", lambda call, times=1: 0.004)
    assert pairs.warm(lambda: None) == 25                                   # a tenth of a second


def test_marks_belong_to_one_thread_and_to_all(bench, monkeypatch):
    pairs = bench("pairs")
    monkeypatch.setattr(pairs, "cores", lambda: 8)
    assert [pairs.marks(n, 0.9, 1.0) for n in (1, 2, 8)] == [0.9, None, 1.0]


def test_a_row_says_whether_it_missed(bench):
    Row = bench("pairs").Row
    figures = dict(ours=1.25, theirs=1.0, ratio=1.25, low=1.2, high=1.3)
    assert not Row("x", 1, **figures).missed
    assert not Row("x", 1, **figures, mark=1.25).missed
    assert Row("x", 1, **figures, mark=1.2).missed
    assert Row("x", 1, **figures, share=0.64, limit="product", least=0.65).missed
    assert not Row("x", 1, mark=0.3, note="does not run here").missed
    line = str(Row("a step", 2, **figures, mark=1.0, share=0.64, limit="product"))
    assert line.split() == "a step 2 1.25 1 ms 1.25 1.20 to 1.30 1.00 64% of product; MISSED".split()


def test_options_refuse_what_cannot_be_measured(bench, capsys):
    parser = bench("pairs").options("", ["step"])
    assert parser.parse_args(["--threads", "1", "2"]).only == ["step"]
    for wrong in (["--pairs", "1"], ["--threads", "0"], ["--only", "stop"]):
        with pytest.raises(SystemExit):
            parser.parse_args(wrong)
    assert "1 is below 2" in capsys.readouterr().err


def test_a_report_is_printed_and_kept(bench, tmp_path, capsys):
    pairs, drawn = bench("pairs"), []
    rows = [pairs.Row("a step", 1, 1.0, 2.0, 0.5, 0.4, 0.6, mark=1.0), pairs.Row("another", 2, note="does not run here")]
    args = pairs.options("").parse_args(["--json", str(tmp_path / "it.json"), "--plot", str(tmp_path / "it.png")])
    assert pairs.report(iter(rows), args, lambda *given: drawn.append(given)) == rows
    kept = json.loads((tmp_path / "it.json").read_text(encoding="utf-8"))
    assert [pairs.Row(**row) for row in kept["rows"]] == rows
    assert kept["machine"]["numpy"] == np.__version__ and kept["machine"]["cores"] == pairs.cores()
    assert drawn == [(rows, tmp_path / "it.png")]
    assert capsys.readouterr().out == "\n".join([pairs.HEADER, *map(str, rows), ""])


def test_a_plot_is_drawn(bench, tmp_path):
    pytest.importorskip("matplotlib")
    pairs = bench("pairs")
    pairs.plot([pairs.Row("a step", 1, 1.0, 2.0, 0.5, 0.4, 0.6, mark=1.0), pairs.Row("none", 1)], tmp_path / "it.png")
    assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")


# ---- without PyTorch -------------------------------------------------------------------------------------------------

@pytest.fixture
def run(bench, monkeypatch):
    """A function that runs a script's main with such options, where those libraries are not installed; its exit status."""
    def run(name, *options, without):
        for library in without:
            monkeypatch.setitem(sys.modules, library, None)
        monkeypatch.setattr(sys, "argv", [name, *options])
        try:
            return (main_of_all() if name == "__main__" else bench(name)).main()
        except SystemExit as end:
            return end.code
    return run


def main_of_all():
    spec = importlib.util.spec_from_file_location("all_benchmarks", FOLDER / "__main__.py")
    main = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(main)
    return main


THEIRS = "torch", "transformers", "threadpoolctl"
SAY = {"step": "torch", "versus_torch": "torch", "memory": "torch and threadpoolctl", "tokens": " and ".join(THEIRS),
       "sentences": " and ".join(THEIRS), "shakespeare": "torch and threadpoolctl", "__main__": "torch"}


@pytest.mark.parametrize("name", SAY)
def test_without_pytorch_a_script_answers_help_and_says_what_to_install(run, capsys, name):
    assert run(name, "--help", without=THEIRS) == 0 and "usage: " in capsys.readouterr().out
    assert run(name, *["--text", "none"] * (name == "shakespeare"), without=THEIRS) == 2
    needs = f"this benchmark needs {SAY[name]}: pip install torch==2.13.0"
    said = capsys.readouterr()
    assert said.err == needs + SAY[name].removeprefix("torch").replace(" and", "") + "\n" and not said.out


def test_what_needs_no_pytorch_runs_without(run, bench, monkeypatch, capsys):
    monkeypatch.setattr(main_of_all().subprocess, "run", lambda command: SimpleNamespace(returncode=0))
    assert run("__main__", "--only", "ops", "mlp", "scaling", without=THEIRS) == 0
    assert capsys.readouterr().out.split() == "==== ops ==== mlp ==== scaling".split()
    with pytest.raises(SystemExit), bench("pairs").pinned(1):
        pass
    assert capsys.readouterr().err == "this benchmark needs threadpoolctl: pip install threadpoolctl\n"


def test_a_text_that_cannot_be_read_is_one_sentence(run, tmp_path, capsys):
    (tmp_path / "latin").write_bytes("Verlorne Liebesm\u00fch".encode("latin-1"))
    for file, why in {"none": "No such file or directory", "latin": "'utf-8' codec can't decode byte 0xfc"}.items():
        assert run("shakespeare", "--large", "--text", str(tmp_path / file), without=THEIRS) == 2
        said = f"shakespeare: --text names no text in UTF-8 that can be read: {tmp_path / file}: {why}"
        error = capsys.readouterr().err
        assert error.startswith(said) and error.count("\n") == 1


# ---- the README's table ----------------------------------------------------------------------------------------------

def test_the_table_replaces_what_stands_between_the_comments(bench):
    Row, main = bench("pairs").Row, main_of_all()
    machine = dict(cores=2, system="Linux", python="3.11", numpy="2.4", torch="2.13")
    table = main.markdown([Row("a step", 1, 1.0, 2.0, 0.5, 0.4, 0.6, mark=1.0)], machine)
    assert table.splitlines()[-1] == "| a step | 1 | 1 ms | 2 ms | 0.50 (0.40 to 0.60) | at most 1.00 |  |"
    readme = f"above\n{main.BEGIN}\nold\n{main.END}\nbelow\n"
    once = main.written(readme, table)
    assert once == f"above\n{main.BEGIN}\n{table}\n{main.END}\nbelow\n" and main.written(once, table) == once
    for wrong in ("above", readme + readme):
        with pytest.raises(ValueError, match="must have one line"):
            main.written(wrong, table)
    main.written(main.README.read_text(encoding="utf-8"), table)            # the real one has its comments


# ---- counting, and what is counted -----------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["small", "medium", "vit", "seq2seq", "bert"])
def test_operations_are_those_of_the_products_that_run(bench, monkeypatch, name):
    """2 M N K for every product of the forward, and where a step trains one each for what wants a gradient."""
    workloads, counted = bench("workloads"), []
    work = workloads.WORKLOADS[name]()
    linear, attention = Linear.apply, Attention.apply

    def products(inputs):
        return 1 + work.is_trained * sum(isinstance(x, mt.Tensor) and x.requires_grad for x in inputs)

    def count_linear(x, weight, bias):
        counted.append(products((x, weight)) * 2 * math.prod(np.shape(x)) * len(weight))
        return linear(x, weight, bias)

    def count_attention(q, k, v, bias, **options):
        (*lead, T, K), S = q.shape, k.shape[-2]
        pairs = sum(s <= t for t in range(T) for s in range(S)) if options["is_causal"] else T * S
        scores, mixture = products((q, k)), products((v, v))                # the weights want a gradient, too
        counted.append(math.prod(lead) * pairs * 2 * (scores * K + mixture * v.shape[-1]))
        return attention(q, k, v, bias, **options)

    monkeypatch.setattr(Linear, "apply", count_linear)
    monkeypatch.setattr(Attention, "apply", count_attention)
    work.build()(*work.batches[0][0])
    assert sum(counted) == work.operations


def test_a_workload_always_has_the_same_weights(bench):
    work = bench("workloads").vit(2)
    one, other = (work.build().state_dict() for _ in range(2))
    assert all(np.array_equal(*map(backend.to_numpy, (one[name], other[name]))) for name in one)


def test_the_machine_has_limits(bench, monkeypatch):
    limits = bench("limits")
    monkeypatch.setattr(limits, "MEGABYTES", 1)
    assert limits.peak(64, 1) > 0 and limits.bandwidth(2, 1) > 0


def test_sizes_are_doubled(bench):
    scaling = bench("scaling")
    for axis in scaling.AXES:
        (first, n), (other, m) = scaling.sized(axis, 1), scaling.sized(axis, 2)
        assert m == 2 * n and other.operations > 1.9 * first.operations


def test_every_op_has_inputs(bench):
    ops = bench("ops")
    assert ops.INPUTS.keys() == mt.ops.OPS.keys()
    assert ops.SIZES[0] == 4 and 4 * ops.SIZES[-1] == 100 * 2 ** 20
    for name in ops.INPUTS:
        for n in ops.SIZES[:3]:
            run = ops.Run(name, n)
            assert run.tensors[0].size == n, name
            run.seconds(1)
            assert all(x.grad is not None for x in run.tensors), name


def test_by_hand_and_minitx_take_the_same_steps(bench):
    mlp = bench("mlp")
    weights, batches = mlp.weights_and_batches(64, 32, 10, 32)
    for rate, said in (mlp.RATE, ""), (2 * mlp.RATE, "does not compute the same"):
        ours, theirs = ([w.copy() for w in weights] for _ in range(2))
        steps = mlp.minitx_step(ours, mlp.RATE), mlp.STEPS["by_hand"](theirs, rate)
        assert mlp.agree(*steps, batches, ours, theirs)[:len(said) or None] == said


def test_peak_memory_is_seen_and_set_back(bench):
    memory = bench("memory")
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("this system keeps one peak for the whole process")
    memory.set_back()
    before = memory.peak()
    np.ones(100_000_000 // 8)
    assert 95e6 < memory.peak() - before < 110e6
    memory.set_back()
    assert memory.peak() - before < 20e6


@pytest.mark.parametrize("name", ["small", "vit", "seq2seq", "bert"])
def test_pytorch_computes_the_same_or_nothing_is_compared(bench, name):
    pytest.importorskip("torch")
    steps, work = bench("torch_steps"), bench("workloads").WORKLOADS[name]()
    ours = work.build()
    theirs = steps.twin(ours)
    agree = steps.agree_in_training if work.is_trained else steps.agree_in_reading
    agree(ours, theirs, work.batches[0])
    for p in ours.parameters():
        p.grad = None
    theirs.zero_grad()
    largest = max(ours.parameters(), key=lambda p: p.size)
    largest.data *= 1.001
    with pytest.raises(steps.Disagreement, match="do not compute the same"):
        agree(ours, theirs, work.batches[0])


# ---- on a GPU, here on the double ------------------------------------------------------------------------------------

@pytest.fixture
def device(cupy):
    with backend.on_device("cuda"):
        yield cupy


def tiny(workloads):
    return workloads.gpt2("tiny", 2, n_positions=8, n_embd=16, n_layer=1, n_head=2)


def sides(bench, cupy, torch=None):
    """CuPy's clock, and PyTorch on the CPU."""
    speed = bench("gpu_speed")
    speed.LEAST = 1e-4
    return speed.Sides(speed.events(cupy), torch, bench("pairs").seconds, "cpu")


def test_loss_curves_of_both_devices(bench, device):
    checks = bench("gpu_checks")
    found = checks.curves("cuda:0", 12, dict(n_positions=16, n_embd=16, n_layer=1, n_head=2))
    assert len(found["cpu"]) == len(found["gpu"]) == 12 and found["apart"] <= checks.APART
    assert found["cpu"][-1] < found["cpu"][0]
    lines = checks.shown(found).splitlines()
    assert lines[1].split() == ["1", f"{found['cpu'][0]:.5f}", f"{found['gpu'][0]:.5f}"] and lines[-2].split()[0] == "12"
    assert lines[-1].startswith("reached")
    assert checks.shown(dict(found, apart=0.002)).splitlines()[-1] == "MISSED: at most 2.0e-03 apart (mark 1e-03)"


def test_events_take_the_time_of_so_many_calls(bench, device, monkeypatch):
    clock, calls = iter([5.0, 8.0]), []
    monkeypatch.setattr("double.runtime.time.perf_counter", lambda: next(clock))
    assert bench("gpu_speed").events(device)(lambda: calls.append(1), 6) == pytest.approx(0.5) and len(calls) == 6


@pytest.mark.parametrize("kind", ["float32", "TF32", "float16"])
@pytest.mark.parametrize("name", ["softmax", "linear", "embedding", "scaled_dot_product_attention"])
def test_an_op_beside_pytorch_on_a_gpu(bench, device, name, kind):
    torch, speed = pytest.importorskip("torch"), bench("gpu_speed")
    row = speed.op_row(name, kind, sides(bench, device, torch), 2, 1e9, size=64)
    assert row.threads == kind and row.ours > 0 < row.theirs and row.low <= row.ratio <= row.high
    assert row.share > 0 and row.note.startswith("first call ")
    assert mt.get_float32_matmul_precision() == torch.get_float32_matmul_precision() == "highest"


def test_an_op_that_differs_from_pytorchs_is_not_timed(bench, device, monkeypatch):
    torch, torch_ops = pytest.importorskip("torch"), bench("torch_ops")
    monkeypatch.setitem(torch_ops.TORCH, "exp", lambda o: lambda x: torch.exp(x) * 1.01)
    row = bench("gpu_speed").op_row("exp", "float32", sides(bench, device, torch), 2, 1e9, size=64)
    assert row.note.startswith("DIFFERS from PyTorch by ") and row.ours is None


def test_pytorch_has_every_op(bench):
    pytest.importorskip("torch")
    assert bench("torch_ops").TORCH.keys() == bench("ops").INPUTS.keys()


@pytest.mark.parametrize("kind", ["float32", "TF32", "float16"])
def test_a_training_step_beside_pytorch_on_a_gpu(bench, device, kind):
    torch, speed, workloads = pytest.importorskip("torch"), bench("gpu_speed"), bench("workloads")
    row = speed.step_row("medium64", kind, sides(bench, device, torch), 2, 1e9, lambda: tiny(workloads))
    assert row.name == "tiny" and row.ratio and row.mark == (1.0 if kind == "TF32" else None)
    alone = speed.step_row("medium64", kind, sides(bench, device), 2, 1e9, lambda: tiny(workloads))
    assert alone.ours > 0 and alone.ratio is alone.theirs is None


def test_images_go_to_the_gpu_too(bench, device):
    workloads = bench("workloads")
    assert bench("gpu_speed").step_row("vit", "float16", sides(bench, device), 2, 1e9, lambda: workloads.vit(2)).ours > 0


def test_what_raises_is_a_row_and_the_rest_goes_on(bench, device, monkeypatch):
    speed, workloads = bench("gpu_speed"), bench("workloads")

    def lost():
        raise MemoryError("out of memory\nand so on")
    monkeypatch.setattr(speed, "STEPS", dict(lost=lost, tiny=lambda: tiny(workloads)))
    monkeypatch.setattr(speed, "peak", lambda kind, clock: 1e9)
    monkeypatch.setattr(speed, "bandwidth", lambda clock: 1e9)
    monkeypatch.setattr(speed.op_row, "__defaults__", (64,))
    pool = SimpleNamespace(free_all_blocks=lambda: None)
    monkeypatch.setattr(device, "get_default_memory_pool", lambda: pool, raising=False)
    rows = list(speed.rows(sides(bench, device), 2, ["exp", "matmul"], ["lost", "tiny"]))
    assert [(row.name, row.threads) for row in rows] == [
        *(("lost", kind) for kind in speed.KINDS), *(("tiny", kind) for kind in speed.KINDS), ("exp", "float32"),
        ("exp", "float16"), *(("matmul", kind) for kind in speed.KINDS)]
    assert [row.note for row in rows[:3]] == ["FAILED: MemoryError: out of memory"] * 3
    assert all(row.ours for row in rows[3:])


def test_the_size_from_which_cupy_is_faster(bench, device, monkeypatch):
    checks, made = bench("gpu_checks"), []

    def work(n):
        made.append((backend.default_device(), n))
        return lambda: None
    monkeypatch.setattr(checks.rates, "_seconds", lambda work, sizes: {
        n: (work(n), n if backend.default_device() == "cpu" else 5)[1] for n in sizes})
    found = checks.overtaking({"work": (work, [1, 4, 16])})
    assert found == {"work": dict(first=16, times={1: (1, 5), 4: (4, 5), 16: (16, 5)})}
    assert made == [(side, n) for side in ("cpu", "cuda:0") for n in (1, 4, 16)]
    line, = checks.told(found)
    assert "from n = 16 on CuPy is faster; n = 16: NumPy 1.6e+04 ms, CuPy 5e+03 ms" in line
    for make, _ in checks.WORKS.values():
        make(2)()


def test_a_part_of_the_suite(bench, tmp_path):
    checks = bench("gpu_checks")
    (tmp_path / "test_it.py").write_text("import os, time\ndef test_one(): assert os.environ['HERE'] == '1'\n"
                                         "def test_two(): time.sleep(float(os.environ['SLEEP']))\n", encoding="utf-8")
    alone = [str(tmp_path), "-c", str(tmp_path / "none.ini"), "--rootdir", str(tmp_path)]
    (tmp_path / "none.ini").write_text("", encoding="utf-8")
    assert checks.pytest(alone, 60, dict(HERE="1", SLEEP="0"))["passed"] is True
    wrong = checks.pytest(alone, 60, dict(HERE="0", SLEEP="0"))
    assert wrong["passed"] is False and "1 failed, 1 passed" in wrong["summary"]
    late = checks.pytest(alone, 4, dict(HERE="1", SLEEP="60"))
    assert late["passed"] is None and late["summary"].startswith("stopped after 4 s, at ")
    assert "HERE=1 SLEEP=60 python -m pytest" in late["summary"]


def test_how_far_a_stopped_suite_came(bench):
    lines = ["....F..s [ 12%]", "......E. [ 25%]", "and a word", "..."]
    said = bench("gpu_checks").unfinished(lines, 90, [], dict(MINITX_DEVICE="cuda"))
    assert said == "stopped after 90 s, at 25% with 2 failures; the whole of it: MINITX_DEVICE=cuda python -m pytest"


def test_the_command_for_a_gpu(bench, device, monkeypatch, tmp_path, capsys):
    gpu, checks, speed, pairs = (bench(name) for name in ("gpu", "gpu_checks", "gpu_speed", "pairs"))
    monkeypatch.setattr(gpu, "pytorch", lambda: (None, "PyTorch is not there"))
    monkeypatch.setattr(checks, "pytest", lambda *given: dict(passed=True, summary=f"ran {given[0]}"))
    monkeypatch.setattr(checks, "curves", lambda device: dict(cpu=[3.0, 2.0], gpu=[3.0, 2.0], apart=0.0))
    monkeypatch.setattr(checks, "WORKS", {"work": (lambda n: lambda: None, [1, 2])})
    monkeypatch.setattr(speed, "rows", lambda *given: iter([pairs.Row("a step", "TF32", 1.0, 2.0, 0.5, 0.4, 0.6, mark=0.4)]))
    monkeypatch.setattr(pairs, "plot", lambda rows, file: file.write_text("drawn", encoding="utf-8"))
    file = tmp_path / "it.json"
    assert gpu.main(["--json", str(file), "--plot", str(tmp_path / "it.png")]) == 0
    text, kept = capsys.readouterr().out, json.loads(file.read_text(encoding="utf-8"))
    assert "PyTorch is not there" in text and "reached" in text and "all is well; marks missed: a step, TF32" in text
    assert [line.split(",")[0] for line in text.splitlines() if line.startswith("====")] == [
        "==== probe", "==== curves", "==== sizes", "==== steps and ops", "==== suite"]
    assert kept["rows"][0]["threads"] == "TF32" and kept["suite"]["passed"] and kept["curves"]["apart"] == 0
    assert kept["info"]["NumPy"] == np.__version__ and (tmp_path / "it.png").exists()
    monkeypatch.setattr(checks, "curves", lambda device: dict(cpu=[3.0], gpu=[3.1], apart=0.1))
    assert gpu.main(["--only", "curves"]) == 1 and "SOMETHING FAILED" in capsys.readouterr().out


def test_without_a_gpu_the_command_is_2(bench, monkeypatch, capsys):
    gpu = bench("gpu")
    monkeypatch.setattr(backend, "_probe", lambda: (None, "nothing to be had"))
    monkeypatch.setattr(gpu, "pytorch", lambda: (None, ""))
    assert gpu.main([]) == 2
    assert capsys.readouterr().err == "gpu: device 'cuda' is not available: nothing to be had\n"


def test_tiny_shakespeare_for_a_gpu(bench, device, capsys):
    pytest.importorskip("threadpoolctl")
    shakespeare, ids = bench("shakespeare"), np.random.default_rng(0).integers(5, size=400)
    config = dict(shakespeare.LARGE, n_positions=8, n_embd=16, n_layer=1, n_head=2)
    assert config["attn_pdrop"] == 0.2 and shakespeare.LARGE["n_layer"] == 6
    try:
        rows = shakespeare.train_large(ids[:300], ids[300:], 5, 5, config, B=4, every=2)
    finally:
        mt.manual_seed(0)
        mt.set_float32_matmul_precision("highest")
    assert [step for step, _ in rows] == [0, 2, 4, 5] and all(1 < loss < 3 for _, loss in rows)
    assert shakespeare.judge_large([(250, 1.47), (5000, 1.6)]) == 0 and shakespeare.judge_large([(5000, 1.49)]) == 1
    assert "lowest held-out loss 1.4700 at step 250" in capsys.readouterr().out
