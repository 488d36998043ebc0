"""What the optimisers of optim.py share: groups of parameters, their options, and what is remembered between steps."""
import math
import operator

import numpy as np

from minitx import backend
from minitx.autograd import Tensor
from minitx.backend import HALF, SINGLE, is_array, xp_of


class Optimizer:
    """What SGD and AdamW share: parameters in groups with their own options, and what is remembered of each.

    params is an iterable of Tensors, or of dicts {"params": Tensors, option: value ...} whose options override those
    given to the optimiser. ``param_groups`` holds them as dicts: options and parameters may be changed there at any
    time. lr is a number, or a function from the number of the step about to be taken, counted from 1, to a number.

    A float16 parameter is the rounded copy of a float32 one, its master, which the optimiser keeps among what it remembers
    and changes in its place: steps that are too small for float16 add up there. Micikevicius et al. 2018, "Mixed Precision
    Training". Where somebody else has changed elements of the parameter, these begin anew from what they are.

    TypeError for what is no Tensor and an option that is no number. ValueError for no parameters at all, one given twice,
    one that is no leaf or does not require gradients, and an option that is unknown or out of range.
    """

    memory: tuple[str, ...] = ()        # the names of what is remembered for each parameter

    def __init__(self, params, **options):
        params = listed(self._name, params)
        if not any(isinstance(entry, dict) for entry in params):
            params = [{"params": params}]
        self.steps = 0
        self.param_groups = [self._group(entry, options) for entry in params]
        self.state = {}                 # parameter: what is remembered of it, from its first gradient on
        if not self._parameters():
            raise ValueError(f"{self._name}: there are no parameters to train")

    _name = property(lambda self: type(self).__name__)

    def _group(self, group, options):
        if not isinstance(group, dict) or "params" not in group:
            raise TypeError(f"{self._name}: give Tensors, or dicts with a key 'params', not both")
        self._check_known(group, options)
        group = {**options, **group, "params": listed(self._name, group["params"])}
        for p in group["params"]:
            if not isinstance(p, Tensor):
                raise TypeError(f"{self._name}: expected a Tensor, got {type(p).__name__}")
            if p.node is not None:
                raise ValueError(f"{self._name}: a Tensor of shape {p.shape} was computed ({p.node.name}); "
                                 "only leaves can be trained")
            if not p.requires_grad:
                raise ValueError(f"{self._name}: a Tensor of shape {p.shape} does not require gradients; leave it out")
        self._checked(group)
        return group

    def _check_known(self, group, options):
        known = options.keys() - {"params"}
        unknown = group.keys() - known - {"params"}
        if unknown:
            raise ValueError(f"{self._name}: unknown option {', '.join(unknown)}; it knows {', '.join(sorted(known))}")

    def _checked(self, group, step=None):
        """The options of a group for that step, as floats; without a step a callable lr is not asked."""
        lr = group["lr"]
        if callable(lr):
            lr = 0.0 if step is None else lr(step)
        return self._options({**group, "lr": lr})

    def _options(self, group):
        """What _update is given: the group's options as floats, each in its range."""
        return {"lr": in_range("lr", group["lr"])}

    def _update(self, p, g, state, **options):
        """Change array p by its gradient g."""
        raise NotImplementedError(f"{self._name} has no _update")

    def _parameters(self):
        params = [p for group in self.param_groups for p in group["params"]]
        if len(set(params)) < len(params):
            raise ValueError(f"{self._name}: a parameter was given twice and would be stepped twice")
        return params

    def zero_grad(self):
        """Set every gradient to None."""
        for p in self._parameters():
            p.grad = None

    def step(self):
        """Change every parameter that has a gradient. One whose gradient is None stays as it is, decay included.

        Every option, gradient and parameter is checked before the first is changed: TypeError for a gradient that is no
        array of floats on the parameter's device, ValueError for one of another shape and for a read-only parameter.
        """
        options = {}
        for group in self.param_groups:
            options |= dict.fromkeys(group["params"], self._checked(group, self.steps + 1))
        found, updates = self.gradients(), []
        for p, g in found:
            p.version += 1                      # a graph that used the old values must not be walked from now on
            state = self.state.setdefault(p, {})
            updates.append((self._master(p, state), g.astype(SINGLE) if g.dtype == HALF else g, state, options[p]))
        self._update_all(updates)
        for (p, _), (array, *_) in zip(found, updates):
            if array is not p.data:
                p.data[...] = array             # a master, rounded
        self.steps += 1

    def _master(self, p, state):
        """The array that a step changes: p's own, or the master of a float16 one."""
        if p.dtype != HALF:
            state.pop("master", None)           # it was float16 once
            return p.data
        if "master" in state:
            xp_of(p.data).copyto(state["master"], p.data, where=state["master"].astype(HALF) != p.data)
        else:
            state["master"] = p.data.astype(SINGLE)
        return state["master"]

    def _update_all(self, updates):
        """Change every array p of (p, its gradient g, its state, options)."""
        for p, g, state, options in updates:
            self._update(p, g, state, **options)

    def gradients(self):
        """(parameter, its gradient) of all that have one, after the checks of `step`."""
        found = [(p, p.grad) for p in self._parameters() if p.grad is not None]
        for p, g in found:
            self._check_gradient(p, g)
        return found

    def _check_gradient(self, p, g):
        if not is_array(g) or g.dtype.kind != "f":
            kind = g.dtype if is_array(g) else type(g).__name__
            raise TypeError(f"{self._this(p)} needs an array of floats as gradient, got {kind} of shape {np.shape(g)}")
        if g.shape != p.shape:
            raise ValueError(f"{self._this(p)} has a gradient of shape {g.shape}")
        if backend.device_of(g) != p.device:
            raise TypeError(f"{self._this(p)} is on {p.device}, its gradient on {backend.device_of(g)}; move one")
        if not getattr(p.data.flags, "writeable", True):        # CuPy has no such flag
            raise ValueError(f"{self._this(p)} is read-only: make it from a copy of its data")
        for x in self.state.get(p, {}).values():
            if is_array(x) and backend.device_of(x) != p.device:
                raise TypeError(f"{self._this(p)} is on {p.device}, what is remembered of it on {backend.device_of(x)}; make "
                                "the optimiser after the model has moved, and load its state_dict() there")

    def _this(self, p):
        """What an error calls a parameter."""
        return f"{self._name}: the parameter of shape {p.shape}"

    def state_dict(self):
        """{"steps", "state": a dict for each parameter, "param_groups": options, and the numbers of their parameters}.

        The arrays are the optimiser's own, not copies. A callable lr is left out.
        """
        number = {p: i for i, p in enumerate(self._parameters())}
        groups = [{key: value for key, value in group.items() if not callable(value)} for group in self.param_groups]
        return {"steps": self.steps, "state": [dict(self.state.get(p, {})) for p in number],
                "param_groups": [{**group, "params": [number[p] for p in group["params"]]} for group in groups]}

    def load_state_dict(self, state):
        """Continue where a state_dict() stood: copies its arrays and options; a callable lr stays the one given here.

        ValueError where it is no such state, or not one of these parameters; then nothing is changed.
        """
        try:
            self.steps, self.state, self.param_groups = self._read(state)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{self._name}: this is no optimiser's state_dict: {error!r}") from error

    def _read(self, state):
        params, saved = self._parameters(), state["param_groups"]
        ours, theirs = ([len(group["params"]) for group in groups] for groups in (self.param_groups, saved))
        if ours != theirs or len(state["state"]) != len(params):
            raise ValueError(f"{self._name}: the state is of groups of {theirs} parameters, these are {ours}")
        groups = []
        for group, other in zip(self.param_groups, saved):
            self._check_known(other, group)
            options = {key: value for key, value in other.items() if not callable(group[key])}
            groups.append({**group, **options, "params": group["params"]})
            self._checked(groups[-1])
        remembered = {p: self._remembered(i, p, entry) for i, (p, entry) in enumerate(zip(params, state["state"]))}
        return _count("steps", state["steps"]), remembered, groups

    def _remembered(self, i, p, entry):
        own = entry.keys() - ({"master"} if p.dtype == HALF else ())
        if own and own != set(self.memory):
            raise ValueError(f"{self._name}: the state of parameter {i} has {', '.join(map(str, entry))}; this optimiser "
                             f"remembers {', '.join(self.memory)} of {p.dtype}")
        for name, value in entry.items():
            if name != "step" and not (is_array(value) and value.dtype.kind == "f" and value.shape == p.shape):
                kind = f"{value.dtype} {value.shape}" if is_array(value) else type(value).__name__
                raise ValueError(f"{self._name}: parameter {i} is {p.dtype} {p.shape}, its {name} {kind}")
        return {name: _count(name, value) if name == "step" else backend.like(value, p.data).astype(wide(p.data))
                for name, value in entry.items()}


def listed(name, params):
    """One Tensor, one group, or many of them, as a list. TypeError for a Module."""
    if hasattr(params, "parameters"):
        raise TypeError(f"{name}: a {type(params).__name__} is no parameter; give its .parameters()")
    return [params] if isinstance(params, (Tensor, dict)) else list(params)


def in_range(name, value, stop=math.inf):
    """A number from 0 up to stop as a Python float: it leaves float32 arrays float32."""
    try:
        fits = bool(0 <= value < stop)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {value!r}") from None
    if not fits:
        raise ValueError(f"{name} must lie in [0, {stop}), got {value}")
    return float(value)


def _count(name, value):
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if number < 0:
        raise ValueError(f"{name} must be a whole number, at least 0; got {value!r}")
    return number


def wide(p):
    """The dtype to compute an update in: p's, but at least float32."""
    return np.promote_types(p.dtype, SINGLE)
