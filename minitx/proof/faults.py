"""A machine that plants faults in ops, to see whether the checks find them.

``plant(module)`` reads the source of a module, finds its Op classes and what they use of that module (helpers,
constants, base classes), and yields every Fault: one slip (see slips.py) in one place. ``Fault.classes()`` gives the op
classes with the fault inside; the module itself stays as it is.
"""
import ast
import inspect
from typing import Any, Iterator, NamedTuple

from minitx.autograd import Op
from minitx.proof.slips import DROPPED, slips


class Fault(NamedTuple):
    """One planted fault.

    owner           "Softmax.backward", or the name of a helper or constant
    half            "forward" if forward runs it, "backward" if backward alone does
    kind            operator, comparison, condition, constant, flag, axis, reduction, function, sign, dropped, doubled,
                    zero, swapped
    before, after   the statement on one line, or the head of a compound one
    ops             the names of the ops that it reaches
    """
    module: Any
    owner: str
    half: str
    kind: str
    line: int
    before: str
    after: str
    ops: tuple
    codes: tuple

    @property
    def file(self):
        return name_of(self.module)

    def __str__(self):
        return f"{self.file}.py:{self.line} {self.owner}, {self.kind}: `{self.before}` became `{self.after}`"

    def classes(self) -> dict:
        """name -> op class with the fault inside."""
        names = dict(vars(self.module))
        for code in self.codes:
            exec(code, names)
        return {name: names[cls.__name__] for name, cls in op_classes(self.module).items() if name in self.ops}


def name_of(module):
    """The name of a module without its package: softmax."""
    return module.__name__.rpartition(".")[2]


def op_classes(module) -> dict:
    """name -> class of every op that the module itself defines."""
    return {cls.name: cls for cls in vars(module).values()
            if inspect.isclass(cls) and issubclass(cls, Op) and cls.__module__ == module.__name__
            and cls.forward is not Op.forward}


def plant(module, only=None) -> Iterator[Fault]:
    """Every fault in the ops of a module (`only`: in those of these names), in the order of the source."""
    units = _Units(module)
    reached = {name: units.reached_from(cls.__name__) for name, cls in op_classes(module).items()
               if only is None or name in only}
    used = [unit for unit in units.trees if any(unit in names for names in reached.values())]
    codes = {unit: units.compiled(unit) for unit in used}
    seen = set()
    for unit in used:
        ops = tuple(op for op, names in reached.items() if unit in names)
        for owner, tree in units.parts(unit):
            for kind, statement, put, old, new in slips(tree):
                before, line = _head(statement), statement.lineno
                put(new)
                after = "(dropped)" if new is DROPPED else _head(new if old is statement else statement)
                if after != before and (line, before, after) not in seen:
                    seen.add((line, before, after))
                    changed = tuple({**codes, unit: units.compiled(unit)}.values())
                    yield Fault(module, owner, units.half(tree, unit), kind, line, before, after, ops, changed)
                put(old)


def _head(statement):
    return ast.unparse(statement).partition("\n")[0]


def _sets_what_ops_have(node):
    return isinstance(node, ast.Assign) and all(
        hasattr(Op, name.id) for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name))


class _Units:
    """The top-level functions, classes and constants of a module, and who uses whom."""

    def __init__(self, module):
        self.file, self.trees = inspect.getsourcefile(module), {}
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                self.trees[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.trees[node.targets[0].id] = node
        self.in_forward = self._used_by_forward()

    def parts(self, unit):
        """(owner, tree) of what a unit is made of: a class of its methods and settings, all else of itself."""
        node = self.trees[unit]
        if not isinstance(node, ast.ClassDef):
            return [(unit, node)]
        return [(f"{unit}.{getattr(member, 'name', 'settings')}", member) for member in node.body
                if isinstance(member, ast.FunctionDef) or _sets_what_ops_have(member)]

    def reached_from(self, name):
        """Names of the units that this one needs, itself included."""
        names, stack = set(), [name]
        while stack:
            name = stack.pop()
            if name in self.trees and name not in names:
                names.add(name)
                stack += [node.id for node in ast.walk(self.trees[name]) if isinstance(node, ast.Name)]
        return names

    def _used_by_forward(self):
        """The names that any forward mentions, and what those mention in turn: helpers, constants, own methods."""
        methods = [tree for unit in self.trees for _, tree in self.parts(unit) if isinstance(tree, ast.FunctionDef)]
        bodies = {tree.name: tree for tree in methods if tree.name not in ("forward", "backward")}
        bodies.update((unit, tree) for unit, tree in self.trees.items() if not isinstance(tree, ast.ClassDef))
        names, stack = set(), [tree for tree in methods if tree.name == "forward"]
        while stack:
            for node in ast.walk(stack.pop()):
                name = getattr(node, "id", getattr(node, "attr", None))
                if name in bodies and name not in names:
                    names.add(name)
                    stack.append(bodies[name])
        return names

    def half(self, tree, unit):
        name = getattr(tree, "name", unit)
        return "forward" if name == "forward" or name in self.in_forward else "backward"

    def compiled(self, unit):
        module = ast.fix_missing_locations(ast.Module([self.trees[unit]], []))
        return compile(module, self.file, "exec", dont_inherit=True)
