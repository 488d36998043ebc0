"""What a gradient check works on: a function or Module, run on raw arrays, and the comparison of its gradients."""
import numpy as np

from minitx.autograd import Tensor, no_grad
from minitx.backend import DOUBLE, device_of, is_array, read_only, to_device, to_numpy
from minitx.creation import tensor
from minitx.nn.module import Module
from minitx.proof.differences import GradientError, excess
from minitx.proof.tape import pull, recording


class Subject:
    """fn and everything it is given. Parameters lend their place and get their own data and gradients back on leaving.

    name            of fn
    names, arrays   of each input and parameter that is checked: what to call it, and its values, read-only
    """

    def __init__(self, check, fn, inputs):
        self.check, self.fn = check, fn
        self.name = getattr(getattr(fn, "__self__", None), "name", None) or getattr(fn, "__name__", type(fn).__name__)
        inputs = inputs[0] if len(inputs) == 1 and type(inputs[0]) is tuple else inputs
        self.names, self.leaves, self.call = [], [], []
        if isinstance(fn, Module):
            self._add_parameters(fn, "")
        for i, x in enumerate(inputs):
            name = f"input {i}"
            if isinstance(x, Module):
                self._add_parameters(x, name + ": ")
            elif _is_float(x):
                x = Tensor(x.data) if isinstance(x, Tensor) else tensor(x)      # a host array goes to the default device
                self._add(name, x)
            elif isinstance(x, (list, tuple, dict)) and any(map(_is_float, _flat(x))):
                raise TypeError(f"{check}: {name} is a {type(x).__name__} that holds float arrays, which would go "
                                "unchecked; pass each as an input of its own and put them together inside fn")
            self.call.append(x)
        if not any(leaf.data.size for leaf in self.leaves):
            raise TypeError(f"{check}: nothing to check: {self.name} is given no float array, Tensor or parameter"
                            + (" that is not empty" if self.leaves else ""))
        self.arrays = [np.array(to_numpy(leaf.data)) for leaf in self.leaves]
        for array in self.arrays:
            read_only(array)

    def _add_parameters(self, module, prefix):
        for name, parameter in module.named_parameters():
            if not any(parameter is leaf for leaf in self.leaves):
                self._add(prefix + name, parameter)

    def _add(self, name, leaf):
        if leaf.dtype != DOUBLE:
            raise TypeError(f"{self.check}: {name} is {leaf.dtype}, and finite differences need float64, or rounding "
                            "hides the gradient: x.astype(np.float64), model.to(dtype='float64')")
        self.names.append(name)
        self.leaves.append(leaf)

    def __enter__(self):
        self.before = [(leaf.data, leaf.grad, leaf.requires_grad) for leaf in self.leaves]
        return self

    def __exit__(self, *error):
        for leaf, (data, grad, requires_grad) in zip(self.leaves, self.before):
            leaf.data, leaf.grad, leaf.requires_grad = data, grad, requires_grad

    def run(self, arrays):
        """Call fn on leaves that hold these arrays; its float outputs as a flat list of Tensors."""
        for leaf, array, (before, _, _) in zip(self.leaves, arrays, self.before):
            leaf.data, leaf.grad, leaf.requires_grad = to_device(array, device_of(before)), None, True
        outputs = list(_flat(self.fn(*self.call)))
        for y in outputs:
            if not isinstance(y, Tensor):
                raise TypeError(f"{self.check}: {self.name} must return a Tensor or a tuple of Tensors, got "
                                f"{type(y).__name__}")
        outputs = [y for y in outputs if y.dtype.kind == "f"]
        if not outputs or any(y.dtype != DOUBLE for y in outputs):
            kinds = ", ".join(str(y.dtype) for y in outputs) or "no floats"
            raise TypeError(f"{self.check}: {self.name} returned {kinds}; finite differences need float64 throughout")
        return outputs

    def values(self, arrays):
        """The outputs as arrays, copied: an op may return a view of its input."""
        with no_grad():
            return [np.array(to_numpy(y.data)) for y in self.run(arrays)]

    def outputs_twice(self):
        """The outputs, after two calls that gave the same."""
        first, second = self.values(self.arrays), self.values(self.arrays)
        for y, again in zip(first, second, strict=True):
            if not np.array_equal(y, again, equal_nan=True):
                raise GradientError(f"{self.name} is not deterministic: two calls with the same inputs gave different "
                                    "results. Dropout on? Call model.eval(), or fix the seed inside fn")
        return first

    def gradients(self, arrays, dys):
        """What backward says, for every leaf; dys holds None for an output that is left out."""
        with recording():
            outputs = self.run(arrays)
            for y in outputs:
                if y.node is not None:                      # else it is no op's, but a Tensor that was there before
                    read_only(y.data)                       # returned to the caller: backward may only read it
            pull(outputs, dys)
        return [np.zeros(x.shape) if leaf.grad is None else to_numpy(leaf.grad)
                for leaf, x in zip(self.leaves, arrays)]

    def compare(self, numeric, ours, circumstance=""):
        """The worst excess of each leaf. GradientError for the worst of all, if that is above 1."""
        off = [excess(a, b) for a, b in zip(numeric, ours)]
        worst = [float(e.max(initial=0)) for e in off]
        i = int(np.argmax(worst))
        if worst[i] > 1:
            at = np.unravel_index(int(off[i].argmax()), off[i].shape)
            wrong = [int((e > 1).sum()) for e in off]
            raise GradientError(
                f"{self.name}{circumstance}: the gradient of {self.names[i]} {off[i].shape} is wrong at "
                f"[{', '.join(map(str, at))}]: finite differences {numeric[i][at]:.10g}, backward {ours[i][at]:.10g}; "
                f"{wrong[i]} of its {off[i].size} entries are wrong, {sum(wrong)} of {sum(e.size for e in off)} in all")
        return worst


def _flat(nested):
    """What tuples, lists and dicts hold, however deep."""
    if isinstance(nested, (tuple, list, dict)):
        for inner in nested.values() if isinstance(nested, dict) else nested:
            yield from _flat(inner)
    else:
        yield nested


def _is_float(x):
    return (isinstance(x, Tensor) or is_array(x)) and x.dtype.kind == "f"
