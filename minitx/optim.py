"""Optimisers: they edit parameters in place, from the gradients that backward left in ``.grad``."""
import math

from minitx import backend
from minitx.autograd import Tensor
from minitx.backend import SINGLE, is_array, xp_of


class Optimizer:
    """What SGD and AdamW share: groups of parameters, each with its own options, and what is remembered of each parameter.

    params is an iterable of Tensors, or of dicts {"params": Tensors, option: value ...} that override the options given to
    the optimiser. ``param_groups`` holds them as dicts; change an option there at any time. lr is a number, or a function
    from the number of the step about to be taken, counted from 1, to a number.

    TypeError for what is no Tensor, ValueError for no parameters at all, one given twice, one that is no leaf or does not
    require gradients, and for an option that is unknown or out of range.
    """

    slots = ()                          # the names of the arrays remembered for each parameter

    def __init__(self, params, **defaults):
        groups = [params] if isinstance(params, (Tensor, dict)) else list(params)
        if not any(isinstance(group, dict) for group in groups):
            groups = [{"params": groups}]
        self.steps = 0
        self.param_groups = [self._group(group, defaults) for group in groups]
        self.state = [{} for _ in self._parameters()]
        if not self.state:
            raise ValueError(f"{type(self).__name__}: no parameters to train")
        if len({id(p) for p in self._parameters()}) < len(self.state):
            raise ValueError(f"{type(self).__name__}: a parameter is given twice; it would be stepped twice")

    def _group(self, group, defaults):
        name = type(self).__name__
        if not isinstance(group, dict) or "params" not in group:
            raise TypeError(f"{name}: params must be Tensors, or dicts with 'params' among their keys, not a mixture")
        unknown = group.keys() - defaults.keys() - {"params"}
        if unknown:
            raise ValueError(f"{name}: unknown option {', '.join(sorted(unknown))}; it knows {', '.join(defaults)}")
        params = group["params"]
        group = {**defaults, **group, "params": [params] if isinstance(params, Tensor) else list(params)}
        for p in group["params"]:
            if not isinstance(p, Tensor):
                raise TypeError(f"{name}: expected a Tensor, got {type(p).__name__}")
            if p.node is not None or not p.requires_grad:
                raise ValueError(f"{name}: a Tensor of shape {p.shape} " + (
                    "was computed from others; only leaves are trained" if p.node is not None else
                    "does not require gradients; leave it out"))
        self._options(group)
        return group

    def _options(self, group):
        """The group's options as Python floats (a NumPy number would make float64 of a float32 array), lr for this step."""
        lr = group["lr"]
        return {"lr": _at_least_0("lr", lr(self.steps + 1) if callable(lr) else lr)}

    def _parameters(self):
        return [p for group in self.param_groups for p in group["params"]]

    def zero_grad(self):
        """Set every gradient to None."""
        for p in self._parameters():
            p.grad = None

    def step(self):
        """Change every parameter that has a gradient; those whose gradient is None stay as they are, decay included."""
        options = [self._options(group) for group in self.param_groups]
        self.steps += 1
        states, scratch = iter(self.state), {}
        for group, chosen in zip(self.param_groups, options):
            for p, state in zip(group["params"], states):
                if p.grad is None:
                    continue
                if not state:
                    wide = (p.data * SINGLE.type(0) if p.dtype.itemsize < 4 else p.data)
                    state.update({"step": 0}, **{slot: xp_of(p.data).zeros_like(wide) for slot in self.slots})
                state["step"] += 1
                self._update(p.data, p.grad, state, scratch, **chosen)
                p.version += 1

    def state_dict(self):
        """{"steps", "state": one dict for each parameter, "param_groups": options and the numbers of their parameters}.

        The arrays are the optimiser's own, not copies. A callable lr is left out.
        """
        number = {id(p): i for i, p in enumerate(self._parameters())}
        groups = [{key: value for key, value in group.items() if not callable(value)} for group in self.param_groups]
        groups = [{**group, "params": [number[id(p)] for p in group["params"]]} for group in groups]
        return {"steps": self.steps, "state": [dict(state) for state in self.state], "param_groups": groups}

    def load_state_dict(self, state):
        """Continue from a state_dict(): copies its arrays. ValueError, and nothing is changed, where it does not fit."""
        name, params = type(self).__name__, self._parameters()
        sizes = [len(group["params"]) for group in self.param_groups]
        loaded = [len(group["params"]) for group in state["param_groups"]]
        if sizes != loaded or len(state["state"]) != len(params):
            raise ValueError(f"{name}: the state has groups of {loaded} parameters, this optimiser {sizes}")
        for i, (p, entry) in enumerate(zip(params, state["state"])):
            if entry and entry.keys() != {"step", *self.slots}:
                raise ValueError(f"{name}: parameter {i} needs {', '.join(self.slots)}; the state has {', '.join(entry)}")
            for slot in self.slots if entry else ():
                if entry[slot].shape != p.shape:
                    raise ValueError(f"{name}: parameter {i} is {p.shape}, its {slot} {entry[slot].shape}")
        options = [{**group, **saved, "params": group["params"]}
                   for group, saved in zip(self.param_groups, state["param_groups"])]
        for group in options:
            self._options(group)
        self.param_groups, self.steps = options, state["steps"]
        self.state = [{key: _copied(value, p) for key, value in entry.items()} for p, entry in zip(params, state["state"])]
