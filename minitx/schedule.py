"""Learning rates as functions of the step: plain numbers in, a float out.

Steps count from 1, as AdamW counts them for a callable rate: ``AdamW(params, lr=lambda step: warmup_cosine(step, 1e-3,
100, 2000))``. Every one rises in a straight line from 0 at step 0 to its peak at step `warmup`. ValueError for a
negative step and for numbers that make no schedule.
"""
import math


def noam_lr(step, d_model=512, warmup=4000, factor=1.0):
    """factor d_model^-0.5 min(step^-0.5, step warmup^-1.5). Vaswani et al. 2017, equation 3.

    Step 0 counts as step 1. At step warmup it peaks at factor / sqrt(d_model warmup).
    """
    _check(step, d_model=d_model, warmup=warmup)
    step = max(float(step), 1.0)
    return factor * d_model ** -0.5 * min(step ** -0.5, step * warmup ** -1.5)


def warmup_cosine(step, peak, warmup, total, floor=0.0):
    """Up to peak at step warmup, down half a cosine wave to floor at step total, then floor.

    Loshchilov and Hutter 2017. With warmup 0 it is at its peak at step 0.
    """
    way = _way_down(step, peak, warmup, total, floor)
    wave = 0.5 * (1 + math.cos(math.pi * way))                  # 1 down to 0
    return float(peak * step / warmup if step < warmup else floor + (peak - floor) * wave)


def warmup_linear(step, peak, warmup, total, floor=0.0):
    """Up to peak at step warmup, down a straight line to floor at step total, then floor. Devlin et al. 2019 (BERT).

    With warmup 0 it is at its peak at step 0.
    """
    way = _way_down(step, peak, warmup, total, floor)
    return float(peak * step / warmup if step < warmup else floor + (peak - floor) * (1 - way))


def inverse_sqrt(step, peak, warmup):
    """Up to peak at step warmup, then peak sqrt(warmup / step): noam_lr with its peak given."""
    _check(step, warmup=warmup)
    return float(peak * min(step / warmup, math.sqrt(warmup / max(step, 1))))


def _check(step, **positive):
    if step < 0:
        raise ValueError(f"a step counts from 0 or 1, got {step}")
    for name, value in positive.items():
        if not value > 0:
            raise ValueError(f"{name} must be greater than 0, got {value}")


def _way_down(step, peak, warmup, total, floor):
    """How far step is between warmup (0) and total (1)."""
    _check(step)
    if not 0 <= warmup < total:
        raise ValueError(f"warmup must lie between 0 and total: got warmup {warmup}, total {total}")
    if not 0 <= floor <= peak:
        raise ValueError(f"floor must lie between 0 and peak: got floor {floor}, peak {peak}")
    return min((max(step, warmup) - warmup) / (total - warmup), 1.0)
