"""Optimisers: they edit parameters in place, from the gradients that backward left in ``.grad``."""
import math

import numpy as np

from minitx import backend
from minitx.autograd import Tensor
from minitx.backend import SINGLE, xp_of

BLOCK = 1 << 16                         # elements that an update works on at once: they fit the processor's cache


class Optimizer:
    """What SGD and AdamW share: parameters in groups with their own options, and what is remembered of each.

    params is an iterable of Tensors, or of dicts {"params": Tensors, option: value ...} whose options override those
    given to the optimiser. ``param_groups`` holds them as dicts; an option may be changed there at any time. lr is a
    number, or a function from the number of the step about to be taken, counted from 1, to a number.

    TypeError for what is no Tensor. ValueError for no parameters at all, one given twice, one that is no leaf or does
    not require gradients, and an option that is unknown or out of range.
    """

    memory: tuple[str, ...] = ()        # the names of what is remembered for each parameter

    def __init__(self, params, **options):
        params = [params] if isinstance(params, (Tensor, dict)) else list(params)
        if not any(isinstance(entry, dict) for entry in params):
            params = [{"params": params}]
        self.steps = 0
        self.param_groups = [self._group(entry, options) for entry in params]
        self.state = [{} for _ in self._parameters()]           # beside _parameters(); empty until the first gradient
        if not self.state:
            raise ValueError(f"{self._name}: there are no parameters to train")
        if len({id(p) for p in self._parameters()}) < len(self.state):
            raise ValueError(f"{self._name}: a parameter was given twice and would be stepped twice")

    _name = property(lambda self: type(self).__name__)

    def _group(self, group, options):
        if not isinstance(group, dict) or "params" not in group:
            raise TypeError(f"{self._name}: give Tensors, or dicts with a key 'params', not both")
        self._check_known(group, options)
        params = group["params"]
        group = {**options, **group, "params": [params] if isinstance(params, Tensor) else list(params)}
        for p in group["params"]:
            if not isinstance(p, Tensor):
                raise TypeError(f"{self._name}: expected a Tensor, got {type(p).__name__}")
            if p.node is not None:
                raise ValueError(f"{self._name}: a Tensor of shape {p.shape} was computed ({p.node.name}); "
                                 "only leaves can be trained")
            if not p.requires_grad:
                raise ValueError(f"{self._name}: a Tensor of shape {p.shape} does not require gradients; leave it out")
        self._check(group)
        return group

    def _check_known(self, group, options):
        unknown = group.keys() - options.keys() - {"params"}
        if unknown:
            raise ValueError(f"{self._name}: unknown option {', '.join(unknown)}; it knows {', '.join(options)}")

    def _check(self, group):
        self._options({**group, "lr": 0.0} if callable(group["lr"]) else group)

    def _options(self, group):
        """The options of a group, checked, as Python floats: they leave float32 arrays float32."""
        return {"lr": _at_least_zero("lr", group["lr"])}

    def _update(self, p, g, state, **options):
        """Change array p by its gradient g."""
        raise NotImplementedError

    def _parameters(self):
        return [p for group in self.param_groups for p in group["params"]]

    def zero_grad(self):
        """Set every gradient to None."""
        for p in self._parameters():
            p.grad = None

    def step(self):
        """Change every parameter that has a gradient. One whose gradient is None stays as it is, decay included."""
        options = []
        for group in self.param_groups:
            lr = group["lr"]
            options.append(self._options({**group, "lr": lr(self.steps + 1)} if callable(lr) else group))
        self.steps += 1
        states = iter(self.state)
        for group, chosen in zip(self.param_groups, options):
            for p, state in zip(group["params"], states):
                if p.grad is not None:
                    self._update(p.data, p.grad, state, **chosen)
                    p.version += 1              # a graph that used the old values must not be walked now

    def state_dict(self):
        """{"steps", "state": a dict for each parameter, "param_groups": options, and the numbers of their parameters}.

        The arrays are the optimiser's own, not copies. A callable lr is left out.
        """
        number = {id(p): i for i, p in enumerate(self._parameters())}
        groups = [{key: value for key, value in group.items() if not callable(value)} for group in self.param_groups]
        return {"steps": self.steps, "state": [dict(state) for state in self.state],
                "param_groups": [{**group, "params": [number[id(p)] for p in group["params"]]} for group in groups]}

    def load_state_dict(self, state):
        """Continue where a state_dict() stood: copies its arrays and options; a callable lr stays the one given here.

        ValueError where it does not fit these parameters; then nothing is changed.
        """
        if not {"steps", "state", "param_groups"} <= state.keys():
            raise ValueError(f"{self._name}: a state has steps, state and param_groups, this one {', '.join(state) or 'nothing'}")
        ours = [len(group["params"]) for group in self.param_groups]
        theirs = [len(group["params"]) for group in state["param_groups"]]
        if ours != theirs or len(state["state"]) != sum(ours):
            raise ValueError(f"{self._name}: the state is of groups of {theirs} parameters, these are {ours}")
        for i, (p, entry) in enumerate(zip(self._parameters(), state["state"])):
            if entry and entry.keys() != set(self.memory):
                raise ValueError(f"{self._name}: the state of parameter {i} has {', '.join(entry)}; this optimiser "
                                 f"remembers {', '.join(self.memory)}")
            for name, value in entry.items():
                if name != "step" and value.shape != p.shape:
                    raise ValueError(f"{self._name}: parameter {i} has shape {p.shape}, its {name} {value.shape}")
        groups = []
        for group, saved in zip(self.param_groups, state["param_groups"]):
            self._check_known(saved, {key: None for key in group if key != "params"})
            groups.append({**group, **{key: value for key, value in saved.items() if not callable(group[key])},
                           "params": group["params"]})
            self._check(groups[-1])
        self.param_groups, self.steps = groups, state["steps"]
        self.state = [{name: value if name == "step" else backend.like(value, p.data).astype(_wide(p.data))
                       for name, value in entry.items()} for p, entry in zip(self._parameters(), state["state"])]


class SGD(Optimizer):
    """Steps against the gradient g, with momentum along a running sum of gradients.

        b = momentum b + g              b starts at 0; without momentum b = g
        p = p - lr b
    """

    memory = ("b",)

    def __init__(self, params, lr, momentum=0.0):
        super().__init__(params, lr=lr, momentum=momentum)

    def _options(self, group):
        return {**super()._options(group), "momentum": _at_least_zero("momentum", group["momentum"])}

    def _update(self, p, g, state, *, lr, momentum):
        xp = xp_of(p)
        if momentum:
            if not state:
                state["b"] = xp.zeros_like(p, dtype=_wide(p))
            state["b"] *= momentum
            state["b"] += g
            g = state["b"]
        for p, g in _blocks(p, g):
            p -= xp.multiply(g, lr, dtype=_wide(p))


class AdamW(Optimizer):
    """Adam with decoupled weight decay. Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", Algorithm
    2.

        p = p - lr weight_decay p                       every parameter given here decays: see decay_groups
        m = b1 m + (1 - b1) g                           b1, b2 = betas; m and v start at 0
        v = b2 v + (1 - b2) g^2
        p = p - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

    t counts the gradients that p has had, from 1. lr is the paper's alpha and eta in one, as in PyTorch. float16
    parameters have their m and v in float32.
    """

    memory = ("step", "m", "v")

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def _options(self, group):
        b1, b2 = map(float, group["betas"])
        if not (0 <= b1 < 1 and 0 <= b2 < 1):
            raise ValueError(f"betas must lie in [0, 1), got {b1}, {b2}")
        return {**super()._options(group), "b1": b1, "b2": b2, "eps": _at_least_zero("eps", group["eps"]),
                "weight_decay": _at_least_zero("weight_decay", group["weight_decay"])}

    def _update(self, p, g, state, *, lr, b1, b2, eps, weight_decay):
        xp = xp_of(p)
        if not state:
            state.update(step=0, m=xp.zeros_like(p, dtype=_wide(p)), v=xp.zeros_like(p, dtype=_wide(p)))
        state["step"] = t = state["step"] + 1
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
    """The two usual groups of a Module's trained parameters: matrices and embeddings decay, vectors (biases, norms) do
    not.

    AdamW(decay_groups(model, 0.1), lr=...). A tied tensor appears once.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    return [{"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
            {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0}]


def clip_grad_norm(params, max_norm):
    """Scale all gradients, in place, so that their common 2-norm is at most max_norm; return the norm they had.

    The norm is a 0-d array where the gradients live, computed in their dtype. One that is not finite leaves the
    gradients untouched: check it with numpy.isfinite. Pascanu et al. 2013. ValueError for a negative max_norm.
    """
    max_norm = float(max_norm)
    if not max_norm >= 0:
        raise ValueError(f"clip_grad_norm: max_norm must be at least 0, got {max_norm}")
    params = [params] if isinstance(params, Tensor) else params
    gradients = list({id(p): p.grad for p in params if p.grad is not None}.values())
    if not gradients:
        return backend.make_array(0.0)
    xp = xp_of(gradients[0])
    wide = [g.astype(_wide(g), copy=False) for g in gradients]
    norm = xp.asarray(xp.sqrt(sum(xp.vdot(g, g) for g in wide)))
    finite = xp.isfinite(norm)
    factor = xp.minimum(max_norm / (xp.where(finite, norm, 1) + 1e-6), 1)       # 1e-6 is PyTorch's
    factor = xp.where(finite, factor, 1).astype(norm.dtype)
    for g in gradients:
        g *= factor
    return norm


def _blocks(*arrays):
    """Matching pieces of arrays of one shape, cut along the first axis to about BLOCK elements."""
    first = arrays[0]
    if xp_of(first) is not np or first.size <= BLOCK:           # a GPU wants everything at once
        return [arrays]
    rows = max(1, BLOCK * len(first) // first.size)
    return [[a[i:i + rows] for a in arrays] for i in range(0, len(first), rows)]


def _wide(p):
    """The dtype to compute an update in: p's, but at least float32."""
    return np.promote_types(p.dtype, SINGLE)


def _at_least_zero(name, value):
    value = float(value)
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be a finite number, at least 0; got {value}")
    return value
