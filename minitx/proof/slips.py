"""The slips of the pen: every way in which one place of a function could have been written wrongly.

An operator, comparison, condition, constant, flag, axis, reduction, function or sign changed, a statement dropped; and
of what forward and backward return, each value negated, each gradient doubled, zeroed, exchanged with its neighbour.
Left alone: statements that only refuse bad input (an ``if`` that raises, a call of check_...), and annotations, as they
compute nothing.
"""
import ast

_OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
              ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
              ast.BitXor: ast.BitAnd}
_COMPARISONS = {ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt),
                ast.GtE: (ast.Gt, ast.LtE), ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,),
                ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,)}
_REDUCTIONS = {"sum": "mean", "mean": "sum", "prod": "sum", "max": "min", "min": "max", "any": "all", "all": "any",
               "maximum": "minimum", "minimum": "maximum", "argmax": "argmin", "argmin": "argmax",
               "cumprod": "cumsum", "cumsum": "cumprod"}
_FUNCTIONS = {"sin": "cos", "cos": "sin", "zeros": "ones", "ones": "zeros", "zeros_like": "ones_like",
              "ones_like": "zeros_like"}
_LEFT_OUT = {"exp", "log", "sqrt", "tanh", "abs", "sign", "erf", "square", "reciprocal", "swapaxes", "transpose",
             "moveaxis", "astype", "copy", "clip", "broadcast_to", "ascontiguousarray"}
_ABOUT_AXES = {"swapaxes", "moveaxis", "transpose", "expand_dims", "squeeze"}
_LIBRARIES = {"xp", "np", "numpy", "cp", "cupy", "math", "backend"}

DROPPED = ast.Pass()


def slips(function):
    """(kind, statement, put, old, new) for every slip in the tree of a function, or of an assignment outside of one.

    put(new) makes the slip, put(old) undoes it: the tree is changed in place, one slip at a time.
    """
    if not isinstance(function, ast.FunctionDef):
        return _visit(function, lambda new: None, function, "", "constant", last=True)
    return _of_function(function)


def _of_function(function):
    arguments = function.args
    method = function.name if arguments.args and arguments.args[0].arg == "self" else ""
    for defaults in (arguments.defaults, arguments.kw_defaults):
        for i, node in enumerate(defaults):
            if node is not None:
                yield from _visit(node, _item(defaults, i), function, method, "constant")
    for i, node in enumerate(function.body):
        yield from _visit(node, _item(function.body, i), node, method, "constant", last=node is function.body[-1])


def _visit(node, put, statement, method, role, last=False):
    if isinstance(node, ast.stmt):
        if _computes_nothing(node):
            return
        statement = node
        if not last:
            yield "dropped", statement, put, node, DROPPED
        if isinstance(node, ast.Return) and node.value is not None and method in ("forward", "backward"):
            yield from ((kind, statement, *change) for kind, *change in _returned(node, method))
    for kind, new in _replacements(node, role):
        yield kind, statement, put, node, new
    if isinstance(node, ast.JoinedStr) or _is_negative(node):
        return
    for field, value in ast.iter_fields(node):
        if field == "annotation":
            continue
        below = "axis" if _is_about_axes(node, field) else role
        if isinstance(value, list):
            for i, child in enumerate(value):
                if isinstance(child, ast.AST):
                    yield from _visit(child, _item(value, i), statement, method, below)
        elif isinstance(value, ast.AST):
            yield from _visit(value, _field(node, field), statement, method, below)


def _item(items, i):
    return lambda new: items.__setitem__(i, new)


def _field(node, field):
    return lambda new: setattr(node, field, new)


def _computes_nothing(node):
    if isinstance(node, ast.If):
        return not node.orelse and all(isinstance(inner, ast.Raise) for inner in node.body)
    if isinstance(node, ast.Expr):
        called = node.value.func if isinstance(node.value, ast.Call) else None
        name = getattr(called, "attr", getattr(called, "id", ""))
        return isinstance(node.value, ast.Constant) or name.startswith("check_")
    return isinstance(node, (ast.Raise, ast.Pass, ast.Import, ast.ImportFrom))


def _is_about_axes(node, field):
    if isinstance(node, ast.keyword):
        return node.arg in ("axis", "axes")
    return field == "args" and isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _ABOUT_AXES


def _is_negative(node):
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)


def _replacements(node, role):
    """(kind, new node) for each slip at this very node."""
    if isinstance(node, (ast.BinOp, ast.AugAssign)):
        if isinstance(node.op, ast.MatMult) and isinstance(node, ast.BinOp):
            yield "operator", ast.BinOp(node.right, node.op, node.left)
        elif type(node.op) in _OPERATORS:
            yield "operator", _with(node, op=_OPERATORS[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield "operator", _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif _is_negative(node):
        yield role, ast.Constant(_next(-node.operand.value))
        yield "sign", node.operand
    elif isinstance(node, ast.UnaryOp):
        yield "sign" if isinstance(node.op, ast.USub) else "operator", node.operand
    elif isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            for other in _COMPARISONS[type(op)]:
                yield "comparison", _with(node, ops=node.ops[:i] + [other()] + node.ops[i + 1:])
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield "flag", ast.Constant(not node.value)
        elif isinstance(node.value, (int, float)):
            yield role, ast.Constant(_next(node.value))
    elif isinstance(node, ast.Attribute) and node.attr == "T":
        yield "function", node.value
    elif isinstance(node, ast.Call):
        yield from _called(node)
    if isinstance(node, (ast.If, ast.IfExp)) and not isinstance(node.test, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
        yield "condition", _with(node, test=ast.UnaryOp(ast.Not(), node.test))


def _next(number):
    """The number that a slip makes of it: an integer's successor, a tenth more of a float."""
    return number + 1 if isinstance(number, int) or number == 0 else float(f"{number * 1.1:.6g}")


def _called(node):
    """A function exchanged for its neighbour, or left out so that its argument passes through; where's two branches."""
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    for kind, table in (("reduction", _REDUCTIONS), ("function", _FUNCTIONS)):
        if name in table:
            field = "attr" if isinstance(node.func, ast.Attribute) else "id"
            yield kind, _with(node, func=_with(node.func, **{field: table[name]}))
    if name in _LEFT_OUT:
        if isinstance(node.func, ast.Attribute) and not _is_library(node.func.value):
            yield "function", node.func.value
        elif node.args:
            yield "function", node.args[0]
    if name == "where" and len(node.args) == 3:
        yield "function", _with(node, args=[node.args[0], node.args[2], node.args[1]])


def _is_library(node):
    return getattr(node.func if isinstance(node, ast.Call) else node, "id", "") in _LIBRARIES | {"xp_of"}


def _returned(node, method):
    many = isinstance(node.value, ast.Tuple)
    values = node.value.elts if many else [node.value]
    for i, value in enumerate(values):
        put, inner = (_item(values, i) if many else _field(node, "value")), value
        if isinstance(value, ast.IfExp) and isinstance(value.orelse, ast.Constant):
            put, inner = _field(value, "body"), value.body          # `dx if self.needs[0] else None`
        if isinstance(inner, ast.Constant):
            continue
        if not isinstance(inner, ast.UnaryOp):                      # else the minus that is there gets dropped anyway
            yield "sign", put, inner, ast.UnaryOp(ast.USub(), inner)
        if method == "backward" and many:
            yield "doubled", put, inner, ast.BinOp(inner, ast.Mult(), ast.Constant(2))
            yield "zero", put, inner, ast.BinOp(inner, ast.Mult(), ast.Constant(0))
            if i:
                swapped = values[:i - 1] + [values[i], values[i - 1]] + values[i + 1:]
                yield "swapped", _field(node, "value"), node.value, ast.Tuple(swapped, ast.Load())


def _with(node, **fields):
    return type(node)(**{**dict(ast.iter_fields(node)), **fields})
