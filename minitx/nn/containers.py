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

    A Linear before a GELU leaves its bias to it, which adds it while it reads the numbers anyway.
    """

    def __init__(self, *modules):
        super().__init__(modules)

    def forward(self, x):
        modules, bias = list(self), None
        for module, after in zip(modules, [*modules[1:], None]):
            if type(module) is Linear and type(after) is GELU:
                x, bias = ops.linear(x, module.weight), module.bias
            elif bias is not None:
                x, bias = module(x, bias), None
            else:
                x = module(x)
        return x
