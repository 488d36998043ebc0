"""Rates, and the line that sets a GPU beside the CPU. The demos on the double are in demos/test_on_a_gpu.py."""
from types import SimpleNamespace

import pytest

from minitx import backend, nn, rates


@pytest.fixture
def device(cupy):
    with backend.on_device("cuda"):
        yield "cuda:0"


@pytest.fixture
def clock(monkeypatch):
    """A clock that tells whatever its .now is."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(rates, "time", SimpleNamespace(perf_counter=lambda: clock.now, time=lambda: clock.now))
    return clock


def taken(rate, clock, seconds):
    for n in seconds:
        clock.now += n
        rate.step()
    return rate.per_second


def test_a_rate_counts_every_step_on_the_cpu(clock):
    with backend.on_device("cpu"):
        rate = rates.Rate()
        assert rate.per_second is None
        assert taken(rate, clock, [10, 1, 1]) == 3 / 12
        rate.restart()
        assert taken(rate, clock, [2, 2]) == 1 / 2 and rates.left_out() == 0


def test_a_rate_leaves_out_the_steps_in_which_kernels_compile(clock, device):
    rate = rates.Rate()
    assert taken(rate, clock, [10, 10, 10]) is None and rates.left_out() == 3
    assert taken(rate, clock, [1, 1]) == 1
    rate.restart()
    assert taken(rate, clock, [2]) == 1 / 2


def test_a_bar_forgets_how_long_kernels_compiled(clock, device):
    bar = SimpleNamespace(n=5, initial=5, start_t=0.0)              # a training that goes on at step 5
    for _ in range(8):
        clock.now += 10
        bar.n += 1
        rates.warm(bar)
    assert bar.initial == 8 and bar.start_t == 30
    with backend.on_device("cpu"):
        rates.warm(None)


@pytest.mark.parametrize("on_the_gpu, says", [
    ({1: 0.1, 4: 0.1, 16: 0.1, 64: 0.1}, "the GPU wins from batch 16 on, so here: --device cuda"),
    ({1: 0.0, 4: 0.3, 16: 0.3, 64: 0.3}, "the GPU wins from batch 64 on: give more"),         # once is no win
    ({1: 0.0, 4: 0.0, 16: 0.0, 64: 0.0}, "the GPU wins from batch 1 on, so here: --device cuda"),
    ({1: 9.0, 4: 9.0, 16: 9.0, 64: 9.0}, "the CPU wins up to batch 64, the largest tried: leave out --device"),
], ids=["from 16", "from 64", "always", "never"])
def test_the_size_from_which_the_gpu_wins(device, monkeypatch, capsys, on_the_gpu, says):
    times = {"cpu": {1: 0.01, 4: 0.05, 16: 0.2, 64: 0.8}, device: on_the_gpu}
    model, asked = nn.Linear(2, 3), []

    def seconds(work, sizes):
        side = backend.default_device()
        asked.append((side, sizes, {p.device for p in model.parameters()}))
        return times[side]
    monkeypatch.setattr(rates, "_seconds", seconds)
    rates.compare(model, None, 20, flag="give more")
    first, second = capsys.readouterr().out.splitlines()
    assert second == says
    assert first == (f"with batch 16 a step takes {1000 * on_the_gpu[16]:.3g} ms on cuda:0, 200 ms on the CPU; rates leave "
                     "out the first 3 steps, in which kernels compile")
    assert asked == [("cpu", [1, 4, 16, 20, 64, 256, 1024], {"cpu"}), (device, [1, 4, 16, 64], {device})]
    assert model.weight.device == backend.default_device() == device


def test_the_cpu_is_not_tried_for_long(clock):
    def work(n):
        clock.now += n / 10
    with backend.on_device("cpu"):
        assert rates._seconds(work, [1, 4, 16, 64]) == pytest.approx({1: 0.1, 4: 0.4, 16: 1.6})


def test_on_the_cpu_there_is_nothing_to_compare(capsys):
    with backend.on_device("cpu"):
        rates.compare(None, None, 1)
    assert capsys.readouterr().out == ""
