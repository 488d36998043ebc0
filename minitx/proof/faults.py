"""A machine that plants faults in ops, to see whether the checks find them.

``plant(module)`` reads the source of a module, finds its Op classes and what they use of that module (helpers,
constants, base classes), and yields every Fault: one slip (see slips.py) in one place. ``Fault.classes()`` gives the op
classes with the fault inside; the module itself stays as it is.
"""
import ast
import collections
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
        return {name: names[variable] for name, variable in _variables(self.module).items() if name in self.ops}


def name_of(module):
    """The name of a module without its package: softmax."""
    return module.__name__.rpartition(".")[2]


def op_classes(module) -> dict:
    """name -> class of every op that the module itself defines."""
    return {name: vars(module)[variable] for name, variable in _variables(module).items()}


def _variables(module):
    """name of an op -> the variable of the module that holds its class. ValueError for two classes of one name."""
    found = {}
    for variable, cls in vars(module).items():
        if (inspect.isclass(cls) and issubclass(cls, Op) and cls.__module__ == module.__name__
                and cls.forward is not Op.forward):
            other = vars(module)[found.setdefault(cls.name, variable)]
            if other is not cls:
                raise ValueError(f"{other.__name__} and {cls.__name__} are both named {cls.name!r}; give one of them a "
                                 "name of its own: name = ...")
    return found


def unharmed(module, only=None) -> Fault:
    """The ops of a module made again from its source, with no fault inside: where they do not do as the module's own
    (a class that registers itself, say, will not be made twice), a planted fault would prove nothing."""
    units = _Units(module, only)
    return Fault(module, "", "", "none", 0, "", "", tuple(units.reached), tuple(units.codes.values()))


def plant(module, only=None) -> Iterator[Fault]:
    """Every fault in the ops of a module (`only`: in those of these names), in the order of the source."""
    units, seen = _Units(module, only), set()
    for unit in units.codes:
        ops = tuple(op for op, names in units.reached.items() if unit in names)
        for owner, tree in units.parts(unit):
            for kind, statement, put, old, new in slips(tree):
                before, line = _head(statement), statement.lineno
                put(new)
                after = "(dropped)" if new is DROPPED else _head(new if old is statement else statement)
                if after != before and (line, before, after) not in seen:
                    seen.add((line, before, after))
                    changed = tuple({**units.codes, unit: units.compiled(unit)}.values())
                    yield Fault(module, owner, units.half(tree), kind, line, before, after, ops, changed)
                put(old)


def _head(statement):
    return ast.unparse(statement).partition("\n")[0]


def _sets_what_ops_have(node):
    return isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None and all(
        hasattr(Op, name) for name in _bound(node))


def _top_level(nodes):
    """The statements of a module, those inside an `if`, `try` or `with` too."""
    for node in nodes:
        if isinstance(node, (ast.If, ast.Try, ast.With, ast.ExceptHandler)):
            yield from _top_level(ast.iter_child_nodes(node))
        else:
            yield node


def _bound(node):
    """The names that a statement gives a value."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    return [name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)]


class _Units:
    """The functions, classes and constants of a module, each under the names that it binds, and who uses whom.

    A name bound twice, as in the two branches of an `if`, is left alone: it keeps the value that the module has.

    reached     name of an op -> the units that it needs, its class included
    codes       compiled, every unit that some op needs
    """

    def __init__(self, module, only):
        self.file, nodes = inspect.getsourcefile(module), list(_top_level(ast.parse(inspect.getsource(module)).body))
        times = collections.Counter(name for node in nodes for name in _bound(node))
        self.future = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
        self.trees, self.unit_of = {}, {}
        for node in nodes:
            names = _bound(node)
            constant = isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None and names
            if (constant or isinstance(node, (ast.FunctionDef, ast.ClassDef))) and all(
                    times[name] == 1 and name in vars(module) for name in names):
                unit = ", ".join(names)
                self.trees[unit] = node
                self.unit_of.update(dict.fromkeys(names, unit))
        self.in_forward = self._used_by_forward()
        self.reached = {name: self._reached_from(variable) for name, variable in _variables(module).items()
                        if only is None or name in only}
        self.codes = {unit: self.compiled(unit) for unit in self.trees
                      if any(unit in units for units in self.reached.values())}

    def parts(self, unit):
        """(owner, tree) of what a unit is made of: a class of its methods and settings, all else of itself."""
        node = self.trees[unit]
        if not isinstance(node, ast.ClassDef):
            return [(unit, node)]
        return [(f"{unit}.{getattr(member, 'name', 'settings')}", member) for member in node.body
                if isinstance(member, ast.FunctionDef) or _sets_what_ops_have(member)]

    def _reached_from(self, variable):
        """The units that the one of this variable needs, itself included."""
        units, stack = set(), [variable]
        while stack:
            unit = self.unit_of.get(stack.pop())
            if unit is not None and unit not in units:
                units.add(unit)
                stack += [node.id for node in ast.walk(self.trees[unit]) if isinstance(node, ast.Name)]
        return units

    def _used_by_forward(self):
        """The names that any forward mentions, and what those mention in turn: helpers, constants, own methods."""
        methods = [tree for unit in self.trees for _, tree in self.parts(unit) if isinstance(tree, ast.FunctionDef)]
        bodies = {tree.name: tree for tree in methods if tree.name not in ("forward", "backward")}
        bodies.update((name, self.trees[unit]) for name, unit in self.unit_of.items()
                      if not isinstance(self.trees[unit], ast.ClassDef))
        names, stack = set(), [tree for tree in methods if tree.name == "forward"]
        while stack:
            for node in ast.walk(stack.pop()):
                name = getattr(node, "id", getattr(node, "attr", None))
                if name in bodies and name not in names:
                    names.add(name)
                    stack.append(bodies[name])
        return names

    def half(self, tree):
        names = _bound(tree)
        return "forward" if "forward" in names or self.in_forward.intersection(names) else "backward"

    def compiled(self, unit):
        module = ast.fix_missing_locations(ast.Module([*self.future, self.trees[unit]], []))
        return compile(module, self.file, "exec", dont_inherit=True)
