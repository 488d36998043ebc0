"""Optimisers: they edit parameters in place, from the gradients that backward left in ``.grad``."""
import math

import numpy as np

from minitx import backend
from minitx.backend import xp_of
from minitx.optimizer import Optimizer, in_range, listed, wide
from minitx.recording import mode
from minitx.scaling import GradScaler

__all__ = ["AdamW", "GradScaler", "Optimizer", "SGD", "clip_grad_norm", "decay_groups"]

BLOCK = 1 << 14                         # elements that an update works on at once: they fit the processor's cache


class SGD(Optimizer):
    """Steps against the gradient g, with momentum along a running sum of gradients.

        b = momentum b + g              b starts at 0; without momentum b = g
        p = p - lr b
    """

    memory = ("b",)

    def __init__(self, params, lr, momentum=0.0):
        super().__init__(params, lr=lr, momentum=momentum)

    def _options(self, group):
        return {**super()._options(group), "momentum": in_range("momentum", group["momentum"])}

    def _update(self, p, g, state, *, lr, momentum):
        xp = xp_of(p)
        if momentum:
            if "b" not in state:
                state["b"] = xp.zeros_like(p, dtype=wide(p))
            state["b"] *= momentum
            state["b"] += g
            g = state["b"]
        for p, g in _blocks(p, g):
            p -= xp.multiply(g, lr, dtype=wide(p))


class AdamW(Optimizer):
    """Adam with decoupled weight decay.

    Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", Algorithm 2.

        p = p - lr weight_decay p                       every parameter given here decays: see decay_groups
        m = b1 m + (1 - b1) g                           b1, b2 = betas; m and v start at 0
        v = b2 v + (1 - b2) g^2
        p = p - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

    t counts the gradients that p has had, from 1. lr is the paper's alpha and eta in one, as in PyTorch. Of float16
    parameters m, v and the master are float32. Its faster twins: minitx/fused/cpu/adamw.py,
    minitx/fused/cuda/adamw.py and .cu.
    """

    memory = ("step", "m", "v")

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def _options(self, group):
        try:
            b1, b2 = group["betas"]
        except (TypeError, ValueError):
            raise ValueError(f"betas must be two numbers, got {group['betas']!r}") from None
        return {**super()._options(group), "b1": in_range("betas", b1, 1), "b2": in_range("betas", b2, 1),
                "eps": in_range("eps", group["eps"]), "weight_decay": in_range("weight_decay", group["weight_decay"])}

    def _update_all(self, updates):
        for p, _, state, _ in updates:
            if "step" not in state:
                state.update(step=0, m=xp_of(p).zeros_like(p, dtype=wide(p)), v=xp_of(p).zeros_like(p, dtype=wide(p)))
            state["step"] += 1
        for key in ("AdamW", ("cuda", "AdamW")) if type(self) is AdamW else ():
            twin = mode.twins.get(key)
            updates = twin(updates) if updates and twin else updates        # what a twin does not do is left
        super()._update_all(updates)

    def _update(self, p, g, state, *, lr, b1, b2, eps, weight_decay):
        xp, t = xp_of(p), state["step"]
        rate, root = lr / (1 - b1 ** t), math.sqrt(1 - b2 ** t)
        for p, g, m, v in _blocks(p, g, state["m"], state["v"]):
            g = g.astype(m.dtype, copy=False)
            s = xp.multiply(g, 1 - b1, out=xp.empty_like(m))    # the one temporary, of a block's size
            m *= b1
            m += s
            xp.multiply(g, g, out=s)
            s *= 1 - b2
            v *= b2
            v += s
            xp.sqrt(v, out=s)
            s /= root
            s += eps
            xp.divide(m, s, out=s)
            s *= rate
            p *= 1 - lr * weight_decay
            p -= s


def decay_groups(module, weight_decay):
    """The two usual groups of a Module's trained parameters: matrices and embeddings decay, biases and norms do not.

    AdamW(decay_groups(model, 0.1), lr=...). Vectors are what does not decay. A tied tensor appears once.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    return [{"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
            {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0}]


def clip_grad_norm(params, max_norm):
    """Scale all gradients, in place, so that their common 2-norm is at most max_norm; return the norm they had.

    The norm is a 0-d array where the gradients live, computed in their dtype. One that is not finite leaves the
    gradients untouched: check it with numpy.isfinite. An array that is the gradient of two parameters counts twice and is
    scaled once. Pascanu et al. 2013. ValueError for a negative max_norm.
    """
    max_norm = float(max_norm)
    if not max_norm >= 0:
        raise ValueError(f"clip_grad_norm: max_norm must be at least 0, got {max_norm}")
    gradients = [p.grad for p in dict.fromkeys(listed("clip_grad_norm", params)) if p.grad is not None]
    if not gradients:
        return backend.make_array(0.0)
    xp = xp_of(gradients[0])
    squares = sum(xp.vdot(g, g) for g in (g.astype(wide(g), copy=False) for g in gradients))
    norm = xp.asarray(xp.sqrt(squares))
    finite = xp.isfinite(norm)
    factor = xp.minimum(max_norm / (xp.where(finite, norm, 1) + 1e-6), 1)       # 1e-6 is PyTorch's
    factor = xp.where(finite, factor, 1).astype(norm.dtype)
    for g in {id(g): g for g in gradients}.values():
        g *= factor
    return norm


def _blocks(*arrays):
    """Matching pieces of arrays of one shape, cut along the first axis to about BLOCK elements."""
    first = arrays[0]
    if xp_of(first) is not np or first.size <= BLOCK:           # a GPU wants everything at once
        return [arrays]
    rows = max(1, BLOCK * len(first) // first.size)
    return [[a[i:i + rows] for a in arrays] for i in range(0, len(first), rows)]
