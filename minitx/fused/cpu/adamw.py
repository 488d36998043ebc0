"""AdamW over all parameters in one walk, in blocks that stay in the cache, on several threads."""
import math

import numpy as np

from minitx.fused import TWINS
from minitx.fused.cpu.threads import BLOCK, share
from minitx.memory import empty


def adamw(updates):
    """Change every p of (p, g, state, options) as optim.AdamW does; return those that are left to it.

        p = (1 - lr weight_decay) p - rate m / (sqrt v + eps root)      root = sqrt(1 - b2^t)   rate = lr root / (1 - b1^t)
    """
    pieces, left = [], []
    for update in updates:
        p, g, state, options = update
        arrays = p, g, state["m"], state["v"]
        if not all(type(x) is np.ndarray and x.dtype == p.dtype and x.flags.c_contiguous for x in arrays):
            left.append(update)
            continue
        arrays = [x.reshape(-1) for x in arrays]
        pieces += [(*(x[i:i + BLOCK] for x in arrays), state["step"], options) for i in range(0, p.size, BLOCK)]
    if sum(piece[0].size for piece in pieces) < BLOCK:              # for so few nobody is woken
        for piece in pieces:
            _piece(*piece)
    else:
        share(_piece, pieces)
    return left


def _piece(p, g, m, v, t, options):
    lr, b1, b2, eps, weight_decay = (options[key] for key in ("lr", "b1", "b2", "eps", "weight_decay"))
    root = math.sqrt(1 - b2 ** t)
    s = empty(p.shape, p.dtype)
    np.multiply(g, 1 - b1, out=s)
    m *= b1
    m += s
    np.multiply(g, g, out=s)
    s *= 1 - b2
    v *= b2
    v += s
    np.sqrt(v, out=s)
    s += eps * root
    np.divide(m, s, out=s)
    s *= lr * root / (1 - b1 ** t)
    if weight_decay:
        p *= 1 - lr * weight_decay
    p -= s


TWINS["AdamW"] = adamw
