"""What the two directions have in common: one walk, in which what is tied stays tied."""

# parts of a block: ours, PyTorch's
PARTS = {"attn": "self_attn", "cross_attn": "multihead_attn", "norm1": "norm1", "norm2": "norm2", "norm3": "norm3"}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Conversion:
    """One call. `made` has what every module and parameter became, `places` the form in which a parameter was stored.

    rules       {class: function that builds its counterpart, the modules inside converted}; each side has its own
    parameter   makes a parameter of the other side's
    """
    name: str
    kind: type
    rules: dict

    def __init__(self, torch):
        self.torch, self.made, self.places = torch, {}, {}

    def whole(self, module):
        """What module becomes. Every parameter must have found a place."""
        if not isinstance(module, self.kind):
            library = self.kind.__module__.partition(".")[0]
            raise TypeError(f"{self.name}: needs a Module of {library}, got {type(module).__name__}")
        made = self.convert(module)
        left = [name for name, p in module.named_parameters() if id(p) not in self.places]
        left += [name for name, _ in module.named_buffers()] if hasattr(module, "named_buffers") else []
        if left:
            self.refuse(module, f"there is no place for {', '.join(left)}")
        return made

    def convert(self, module):
        """What this module becomes; the same one whenever it comes again."""
        if id(module) not in self.made:
            if type(module) not in self.rules:
                known = ", ".join(kind.__name__ for kind in self.rules)
                self.refuse(module, f"no counterpart is known; there are those of {known}")
            for name, value in vars(module).items():
                method = callable(value) and callable(getattr(type(module), name, None))
                if name in HOOKS and value or method and name != "_compiled_call_impl":
                    self.refuse(module, f"it has {name.lstrip('_')} of its own, which would be lost")
            made = self.made[id(module)] = self.fill(self.rules[type(module)](module), module)
            made.training = module.training
        return self.made[id(module)]

    def fill(self, made, module):
        """made, with module's weight and bias where it has such."""
        for name in ("weight", "bias"):
            if hasattr(module, name):
                setattr(made, name, self.parameter(getattr(module, name)))
        return made

    def place(self, p, form):
        """Note in which form a parameter is stored: alone, or packed with others. Tied, it can have but one."""
        if self.places.setdefault(id(p), form) != form:
            raise ValueError(f"{self.name}: a parameter {tuple(p.shape)} is tied, but would be packed with others in "
                             "one place and not so in another; untie it first")

    def require(self, module, **options):
        for option, value in options.items():
            if getattr(module, option) != value:
                self.refuse(module, f"{option}={getattr(module, option)!r} cannot be kept, it must be {value!r}")

    def only(self, kind, module, part):
        """A part of a module must be exactly of this kind."""
        if type(module) is not kind:
            raise ValueError(f"{self.name}: {part} must be just {kind.__name__}, got {type(module).__name__}")

    def refuse(self, module, reason):
        raise ValueError(f"{self.name}: {type(module).__name__}: {reason}")


def array_of(x):
    """A PyTorch tensor's values on the host, not a copy where they are there. ValueError for bfloat16."""
    if str(x.dtype) == "torch.bfloat16":
        raise ValueError("interop: NumPy has no bfloat16; convert with .float() first")
    return x.detach().cpu().numpy() if hasattr(x, "detach") else x
