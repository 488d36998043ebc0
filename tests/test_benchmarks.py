"""What benchmarks/ measures with, without PyTorch: pairs, rows and tables, counted operations, the inputs of every op."""
import importlib
import importlib.util
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

import minitx as mt
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


# ---- the README's table ----------------------------------------------------------------------------------------------

def test_the_table_replaces_what_stands_between_the_comments(bench):
    Row, spec = bench("pairs").Row, importlib.util.spec_from_file_location("all_benchmarks", FOLDER / "__main__.py")
    main = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(main)
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
    assert all(np.array_equal(one[name], other[name]) for name in one)


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
