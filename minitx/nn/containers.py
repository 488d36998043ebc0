"""Modules made of a row of Modules."""
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
    """Modules run one after the other: Sequential(a, b)(x) = b(a(x))."""

    def __init__(self, *modules):
        super().__init__(modules)

    def forward(self, x):
        for module in self:
            x = module(x)
        return x
