"""What a GPU is to be held to: the double's probe, the test suite, the loss curve of the CPU; and from which size it pays."""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import workloads

import minitx as mt
from minitx import backend, ops, rates

ROOT = Path(__file__).resolve().parents[1]
APART = 1e-3                                            # between the loss curves, float32
CURVE = dict(vocab_size=None, n_positions=64, n_embd=64, n_layer=2, n_head=4)
PRODUCT = [2 ** i for i in range(4, 12)]                # n x n times n x n
NUMBERS = [4 ** i for i in range(3, 12)]
BATCHES = [1, 4, 16, 64, 256]


def pytest(arguments, seconds, environment=None):
    """How so many seconds of pytest ended: dict(passed: True, False, or None where time was up; summary: a line)."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT,
                                   env={**os.environ, **(environment or {})})
        try:
            status = process.wait(max(seconds, 1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = None
        file.seek(0)
        lines = file.read().splitlines()
    if status is None:
        return dict(passed=None, summary=unfinished(lines, seconds, arguments, environment))
    return dict(passed=status == 0, summary=lines[-1] if lines else f"pytest ended with {status}")


def unfinished(lines, seconds, arguments, environment):
    """What a run that was stopped had shown, and how to run all of it."""
    dots = [line for line in lines if re.fullmatch(r"[.sxXFE]+( +\[ *\d+%\])?", line)]
    wrong = sum(line.partition(" ")[0].count(letter) for line in dots for letter in "FE")
    share = next((found[1] for line in reversed(dots) if (found := re.search(r"\[ *(\d+)%\]", line))), "0")
    prefix = "".join(f"{name}={value} " for name, value in (environment or {}).items())
    return (f"stopped after {seconds:.0f} s, at {share}% with {wrong} failures; the whole of it: {prefix}python -m pytest "
            f"{' '.join(arguments)}").strip()


def curve(device, steps, config=None, B=12):
    """The losses of so many training steps on a text, from one seed, with dropout drawn on the host."""
    from pydoc_data.topics import topics
    text = "\n".join(topics.values())
    table = {character: i for i, character in enumerate(sorted(set(text)))}
    ids = np.array([table[character] for character in text])
    c = {**CURVE, **(config or {}), "vocab_size": len(table)}
    rng, T = np.random.default_rng(0), c["n_positions"]
    windows = ids[rng.integers(len(ids) - T, size=(steps, B, 1)) + np.arange(T + 1)]
    batches = [((window[:, :-1],), window[:, 1:]) for window in windows]
    with backend.on_device(device):
        mt.manual_seed(0)
        drops = dict(embd_pdrop=0.1, attn_pdrop=0.1, resid_pdrop=0.1)
        model = mt.models.GPT2(mt.models.GPT2Config(bias=False, **drops, **c), head="lm")
        step = workloads.training_step(model, batches)
        return [step() for _ in range(steps)]


def curves(device, steps=200, config=None):
    """dict: both loss curves, and how far they are apart at most."""
    here, there = curve("cpu", steps, config), curve(device, steps, config)
    return dict(cpu=here, gpu=there, apart=float(np.abs(np.subtract(here, there)).max()))


def shown(found, rows=10):
    """A few points of the two curves, side by side, and the verdict."""
    n = len(found["cpu"])
    lines = [f"{'step':>6} {'CPU':>9} {'GPU':>9}"]
    for i in sorted({0, *range(n // rows - 1, n, max(1, n // rows)), n - 1}):
        lines.append(f"{i + 1:6} {found['cpu'][i]:9.5f} {found['gpu'][i]:9.5f}")
    verdict = "reached" if found["apart"] <= APART else "MISSED"
    return "\n".join([*lines, f"{verdict}: at most {found['apart']:.1e} apart (mark {APART:.0e})"])


def product(n):
    a = mt.ones(n, n)
    return lambda: a @ a


def elementwise(n):
    x = mt.ones(n)
    return lambda: ops.gelu(x)


def small_step(n):
    """A training step of the curve's model on n windows."""
    mt.manual_seed(0)
    work = workloads.gpt2("small", n, **{**CURVE, "vocab_size": 65})
    return workloads.training_step(work.build(), work.batches)


WORKS = {"product of n x n": (product, PRODUCT), "gelu of n numbers": (elementwise, NUMBERS),
         "training step of a GPT-2, 64 wide, batch n": (small_step, BATCHES)}


def overtaking(works=None):
    """{work: dict(first: the n from which CuPy is faster than NumPy, None if never; times: {n: (CPU, GPU)})}"""
    found = {}
    for name, (make, sizes) in (works or WORKS).items():
        made = {}

        def work(n):
            key = backend.default_device(), n
            if key not in made:
                made.clear()                            # of the sizes before nothing is needed any more
                made[key] = make(n)
            made[key]()
        times = rates.both(work, sizes)
        found[name] = dict(first=rates.first_win(times), times=times)
    return found


def told(found):
    """The lines that overtaking is printed as."""
    for name, entry in found.items():
        here, there = entry["times"][max(entry["times"])]
        first = f"from n = {entry['first']} on CuPy is faster" if entry["first"] is not None else "NumPy is faster throughout"
        yield f"{name:44} {first}; n = {max(entry['times'])}: NumPy {1000 * here:.3g} ms, CuPy {1000 * there:.3g} ms"
