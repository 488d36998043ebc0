"""Schedules: the exact values at their corners, and their shapes between."""
import math
from functools import partial

import numpy as np
import pytest

import minitx as mt
from minitx import optim
from minitx.nn import Parameter
from minitx.schedule import inverse_sqrt, noam_lr, warmup_cosine, warmup_linear

CORNERS = dict(peak=1e-3, warmup=100, total=2000, floor=1e-4)


def test_noam_is_the_tutorials():
    assert [round(noam_lr(step, 64), 5) for step in (1, 100, 4000, 8000)] == [0.0, 5e-05, 0.00198, 0.0014]
    assert noam_lr(4000) == pytest.approx(6.98771e-4, abs=1e-9) and noam_lr(4000) == max(map(noam_lr, range(1, 9000)))
    assert noam_lr(0) == noam_lr(1) == pytest.approx(512 ** -0.5 * 4000 ** -1.5)
    assert noam_lr(7, 16, 3, factor=2.0) == pytest.approx(2 * 0.25 * 7 ** -0.5)


@pytest.mark.parametrize("schedule", [warmup_cosine, warmup_linear])
def test_corners(schedule):
    lr = partial(schedule, **CORNERS)
    assert lr(0) == 0 and lr(50) == pytest.approx(5e-4) and lr(100) == 1e-3
    assert lr(1050) == pytest.approx((1e-3 + 1e-4) / 2)             # half the way down, half the height
    assert lr(2000) == pytest.approx(1e-4) == lr(10_000)
    way = [lr(step) for step in range(100, 2001)]
    assert way == sorted(way, reverse=True)


def test_cosine_and_line_between():
    assert warmup_cosine(575, **CORNERS) == pytest.approx(1e-4 + 9e-4 * (1 + math.cos(math.pi / 4)) / 2)
    assert warmup_linear(575, **CORNERS) == pytest.approx(1e-4 + 9e-4 * 0.75)


@pytest.mark.parametrize("schedule", [warmup_cosine, warmup_linear])
def test_without_warmup_it_begins_at_its_peak(schedule):
    assert schedule(0, 1.0, 0, 10) == 1.0 and schedule(10, 1.0, 0, 10) == pytest.approx(0)


def test_inverse_sqrt():
    assert [inverse_sqrt(step, 2.0, 4) for step in (0, 1, 4, 16, 64)] == pytest.approx([0, 0.5, 2, 1, 0.5])
    for step in 1, 17, 4000, 9000:
        assert inverse_sqrt(step, noam_lr(4000), 4000) == pytest.approx(noam_lr(step), rel=1e-12)


@pytest.mark.parametrize("schedule", [noam_lr, partial(warmup_cosine, **CORNERS), partial(warmup_linear, **CORNERS),
                                      partial(inverse_sqrt, peak=1, warmup=3)])
def test_plain_floats_and_no_negative_step(schedule):
    for step in 0, 1, 5, np.int64(5), 200, 99_999:
        assert type(schedule(step)) is float
    with pytest.raises(ValueError, match="-1"):
        schedule(-1)


@pytest.mark.parametrize("schedule, arguments, says", [
    (noam_lr, dict(d_model=0), "d_model"), (noam_lr, dict(warmup=0), "warmup"),
    (inverse_sqrt, dict(peak=1, warmup=0), "warmup"),
    (warmup_cosine, dict(CORNERS, warmup=2000), "warmup 2000, total 2000"),
    (warmup_linear, dict(CORNERS, warmup=-1), "-1"), (warmup_cosine, dict(CORNERS, floor=2e-3), "floor 0.002"),
    (warmup_linear, dict(CORNERS, peak=-1, floor=0), "peak -1")])
def test_numbers_that_make_no_schedule(schedule, arguments, says):
    with pytest.raises(ValueError, match=says):
        schedule(5, **arguments)


def test_an_optimiser_asks_for_the_step_it_is_about_to_take():
    p = Parameter([0.0])
    p.grad = mt.ones(1).data
    optimiser = optim.SGD([p], lr=partial(warmup_linear, **dict(CORNERS, peak=1.0, floor=0.0)))
    optimiser.step()
    assert p.item() == pytest.approx(-0.01)
    optimiser.step()
    assert p.item() == pytest.approx(-0.03)
