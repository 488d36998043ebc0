"""Module: a tree of Parameters, Buffers and other Modules, found by walking the attributes."""
import itertools
import reprlib
import textwrap
from typing import NamedTuple

import numpy as np

from minitx import backend
from minitx.autograd import Tensor
from minitx.backend import is_array, xp_of
from minitx.nn import init
from minitx.nn.parameter import Buffer, Parameter


class Mismatch(NamedTuple):
    """What load_state_dict(strict=False) passed over."""

    missing_keys: list
    unexpected_keys: list


class Module:
    """A layer, or a model made of layers: it owns what it holds as attributes, and ``forward`` says what it computes.

    Parameters, Buffers and Modules count wherever an attribute leads to them, also in plain lists, tuples and dicts;
    their names are the path to them (``h.0.attn.w_q.weight``). One thing under two names is tied: it is one parameter,
    trained once. Nothing needs ``super().__init__()``.
    """

    training = True                     # Modules start in train mode

    def __call__(self, *inputs, **options):
        return self.forward(*inputs, **options)

    def forward(self, *inputs, **options):
        """What the Module computes; each class writes its own."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def parameters(self):
        """Every Parameter, each once."""
        return (parameter for _, parameter in self._named(Parameter))

    def named_parameters(self):
        """(name, Parameter) pairs, each Parameter once, under the first of its names."""
        return iter(self._named(Parameter))

    def modules(self):
        """This Module and every one inside it, each once, outer before inner."""
        return (module for _, module in self._named(Module))

    def named_modules(self):
        """(name, Module) pairs, each Module once; this one has the name ""."""
        return iter(self._named(Module))

    def _named(self, kind):
        found = {}
        for name, thing in _walk(self):
            if isinstance(thing, kind):
                found.setdefault(id(thing), (name, thing))
        return found.values()

    def train(self, mode=True):
        """Train mode here and in every Module inside: dropout drops."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self):
        """Eval mode: dropout passes everything."""
        return self.train(False)

    def zero_grad(self):
        """Set every gradient to None."""
        for parameter in self.parameters():
            parameter.grad = None

    def to(self, device=None, dtype=None):
        """Move parameters and buffers, in place: ties stay, and an optimiser that holds them still does.

        dtype is float16, float32 or float64 (else TypeError) and concerns floats alone. float16 is trained with
        optim.GradScaler. Make the optimiser afterwards: what it remembers of earlier steps does not move. Returns the
        Module.
        """
        device = None if device is None else backend.check_device(device)
        dtype = None if dtype is None else np.dtype(dtype)
        if dtype not in (None, backend.HALF, backend.SINGLE, backend.DOUBLE):
            raise TypeError(f"to: a Module computes in float16, float32 or float64, not in {dtype}")
        for _, tensor in self._named(Tensor):
            moved = _moved(tensor.data, device, dtype)
            if moved is not tensor.data:
                tensor.data, tensor.grad = moved, _moved(tensor.grad, device, dtype)
                tensor.version += 1
        return self

    def state_dict(self):
        """{name: array} of every Parameter and persistent Buffer: the arrays themselves, not copies.

        A tied tensor stands under each of its names.
        """
        return {name: tensor.data for name, tensor in self.saved().items()}

    def saved(self):
        """{name: Parameter or Buffer} of what state_dict() gives the arrays of. ValueError for two under one name."""
        found = {}
        for name, thing in _walk(self):
            if isinstance(thing, Parameter) or isinstance(thing, Buffer) and thing.persistent:
                if found.setdefault(name, thing) is not thing:
                    raise ValueError(f"{type(self).__name__}: two tensors are called {name}; give one another name")
        return found

    def load_state_dict(self, state, strict=True):
        """Copy the values of {name: array or Tensor} into parameters and buffers, into their own dtype and device.

        All is checked before anything is changed: one ValueError lists everything missing, unexpected, of a wrong shape
        or kind, and what is read-only here. A tied tensor needs only one of its names; given under several, the values
        must be the same. The state may hold this Module's own arrays, also under exchanged names. strict=False leaves
        the missing as they are and ignores the unexpected; both are returned as (missing_keys, unexpected_keys).
        """
        if init.is_hollow():
            raise ValueError(f"{type(self).__name__}: inside init.hollow() there is nothing to load into")
        targets = self.saved()
        arrays, complaints = {}, []
        own = {id(_memory(target.data)) for target in targets.values()}
        for name in (name for name in targets if name in state):
            target = targets[name]
            array = state[name].data if isinstance(state[name], Tensor) else state[name]
            if not is_array(array) or not np.can_cast(array.dtype, target.dtype, "same_kind"):
                complaints.append(f"wrong kind: {name} is {target.dtype}, "
                                  f"the state has {array.dtype if is_array(array) else type(array).__name__}")
            elif array.shape != target.shape:
                complaints.append(f"wrong shape: {name} is {target.shape}, the state has {array.shape}")
            elif not getattr(target.data.flags, "writeable", True):             # CuPy has no such flag
                complaints.append(f"read-only: {name} cannot be written into; give it an array: its .data = array")
            else:
                array = backend.like(array.copy() if id(_memory(array)) in own else array, target.data)
                array = array.astype(target.dtype, copy=False)          # what a warning refuses is refused before the writes
                first, values = arrays.setdefault(id(target), (name, array))
                if values is not array and not _same(values, array):
                    complaints.append(f"tied: {first} and {name} are one tensor, the state has two different values")
        given = {id(target) for name, target in targets.items() if name in state}
        missing = [name for name, target in targets.items() if id(target) not in given]
        unexpected = [name for name in state if name not in targets]
        if strict:
            complaints += [f"missing: {name}" for name in missing] + [f"unexpected: {name}" for name in unexpected]
        if complaints:
            complaints.insert(0, f"{type(self).__name__}: the state does not fit; nothing was loaded")
            raise ValueError("\n  ".join(complaints))
        for target in {id(t): t for t in targets.values() if id(t) in arrays}.values():
            target.data[...] = arrays[id(target)][1]
            target.version += 1
        return Mismatch(missing, unexpected)

    def extra_repr(self):
        """What stands between the parentheses of the repr."""
        return ""

    @reprlib.recursive_repr("...")
    def __repr__(self):
        count = sum(parameter.size for parameter in self.parameters())
        lines = [f"{type(self).__name__}({self.extra_repr()})" + (f"  {count:,} parameters" if count else "")]
        for text, alike in itertools.groupby(_children(self), key=lambda child: repr(child[1])):
            names = [name for name, _ in alike]                         # neighbours that look alike are shown once
            names = names if len(names) <= 4 else [names[0], "...", names[-1]]
            lines.append(textwrap.indent(f"{', '.join(names)}: {text}", "  "))
        return "\n".join(lines)


def _members(value):
    """(key, value) of everything directly inside a Module, or inside a plain list, tuple or dict."""
    if isinstance(value, Module):
        return vars(value).items()
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, (list, tuple)) else ()


def _walk(value, name="", above=()):
    """(name, thing) of every Module, Parameter and Buffer from value down, in attribute order, under all its names.

    `above` is what lies on the way down, by id: a Module may know its parent.
    """
    if id(value) in above:
        return
    if isinstance(value, (Module, Parameter, Buffer)):
        yield name, value
    for key, inner in _members(value):
        yield from _walk(inner, f"{name}.{key}" if name else str(key), (*above, id(value)))


def _children(value, name=""):
    """(name, Module) of the Modules directly inside value."""
    for key, inner in _members(value):
        path = f"{name}.{key}" if name else str(key)
        if isinstance(inner, Module):
            yield path, inner
        else:
            yield from _children(inner, path)


def _moved(array, device, dtype):
    if array is None:
        return None
    array = array if device is None else backend.to_device(array, device)
    return array if dtype is None or array.dtype.kind != "f" else array.astype(dtype, copy=False)


def _memory(array):
    """The array that owns what `array` shows."""
    while getattr(array, "base", None) is not None:
        array = array.base
    return array


def _same(a, b):
    return bool(xp_of(a).array_equal(a, b, equal_nan=True))
