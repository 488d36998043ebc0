"""Modules made of a row of Modules."""
from minitx import ops
from minitx.nn.layers import GELU, Linear
from minitx.nn.module import Module


class ModuleList(Module):
    """A list of Modules, named by their places 0, 1, 2 ..."""

    def __init__(self, modules=()):
        for module in modules:
            self.append(module)

    def append(self, module):
        """Add a Module at the end. TypeError for anything else."""
        if not isinstance(module, Module):
            raise TypeError(f"{type(self).__name__} holds Modules, got {type(module).__name__}")
        vars(self)[str(len(self))] = module
        return self

    def __iter__(self):
        return (value for value in vars(self).values() if isinstance(value, Module))

    def __len__(self):
        return sum(1 for _ in self)

    def __getitem__(self, index):
        return list(self)[index]


class Sequential(ModuleList):
    """Modules run one after the other: Sequential(a, b)(x) = b(a(x)).

    Where a GELU follows a Linear, the bias is added by GELU's op, which reads the numbers anyway: the same values, one
    pass fewer. Subclasses of the two, and layers with a forward of their own, are called as they are.
    """

    def __init__(self, *modules):
        super().__init__(modules)

    def forward(self, x):
        modules, bias = list(self), None
        for module, after in zip(modules, [*modules[1:], None]):
            if _just(Linear, module) and _just(GELU, after):
                x, bias = ops.linear(x, module.weight), module.bias
            elif bias is not None:
                x, bias = module(x, bias), None
            else:
                x = module(x)
        return x


def _just(kind, module):
    """Whether a Module is a layer of that kind and computes what its class says: neither a subclass nor an instance with
    a forward of its own."""
    return type(module) is kind and "forward" not in vars(module)
