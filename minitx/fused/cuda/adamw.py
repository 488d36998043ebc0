"""AdamW over all parameters in one launch."""
import functools
import math

import numpy as np

from minitx.backend import LONG, require_cupy
from minitx.fused import TWINS
from minitx.fused.cuda import kernels
from minitx.fused.cuda.kernels import PIECE, STEPS, TENSORS, THREADS

STEP = "shrink b1 b2 eps rate root".split()
# Launch of adamw.cu
LAUNCH = np.dtype([("g", np.uintp, TENSORS), ("steps", [(name, np.float64) for name in STEP], STEPS)])


def adamw(updates):
    """Change every p of (p, g, state, options) as optim.AdamW does; return those that are left to it.

    No launch carries more than TENSORS gradients and STEPS different steps: then there is another one.
    """
    mine, left = {}, []
    for update in updates:
        p, g, state, _ = update
        arrays = p, g, state["m"], state["v"]
        if kernels.ready(*arrays) and all(x.flags.c_contiguous for x in arrays):
            mine.setdefault(p.dtype, []).append(update)
        else:
            left.append(update)
    for dtype, updates in mine.items():
        for part in _parts(updates):
            _launch(dtype, *part)
    return left


def _parts(updates):
    """(updates, [the number of the step of each], the steps) for one launch after the other."""
    part, numbers, steps = [], [], {}
    for update in updates:
        _, _, state, options = update
        step = _step(state["step"], **options)
        if len(part) == TENSORS or len(steps) == STEPS and step not in steps:
            yield part, numbers, steps
            part, numbers, steps = [], [], {}
        part.append(update)
        numbers.append(steps.setdefault(step, len(steps)))
    yield part, numbers, steps


def _step(t, *, lr, b1, b2, eps, weight_decay):
    return 1 - lr * weight_decay, b1, b2, eps, lr / (1 - b1 ** t), math.sqrt(1 - b2 ** t)


def _launch(dtype, updates, numbers, steps):
    cupy = require_cupy()
    table, pieces = _table(cupy, cupy.cuda.Device().id, tuple(
        (p.data.ptr, state["m"].data.ptr, state["v"].data.ptr, p.size, number)
        for (p, _, state, _), number in zip(updates, numbers)))
    if not len(pieces):
        return
    now = np.zeros((), LAUNCH)
    now["g"][:len(updates)] = [g.data.ptr for _, g, _, _ in updates]
    now["steps"][:len(steps)] = list(steps)
    macros, = kernels.variants("adamw", dtype)
    kernels.launch("adamw", "adamw", (len(pieces),), (THREADS,), table, pieces, now, dtype=dtype, **macros)


@functools.lru_cache(maxsize=16)
def _table(cupy, device, rows):
    """Those rows, and (tensor, first number) of every piece of them, on the device: sent once, and then kept."""
    pieces = [(number, first) for number, row in enumerate(rows) for first in range(0, row[3], PIECE)]
    both = cupy.asarray(np.array([n for row in (*rows, *pieces) for n in row], LONG))
    n = 5 * len(rows)
    return both[:n].reshape(len(rows), 5), both[n:].reshape(len(pieces), 2)


TWINS["cuda", "AdamW"] = adamw
