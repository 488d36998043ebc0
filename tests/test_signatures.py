"""Every call that minitx makes through ``xp``, held to the signatures of the real CuPy. No GPU is needed for that, only CuPy.

What is a function of CuPy is found by its names in the source: ``xp.name(...)``, ``xp_of(x).name(...)``, ``cupy.name(...)``
and what is imported from CuPy's packages. Methods of arrays are not: the double in tests/double is strict about those.
"""
import ast
import importlib
import inspect
from pathlib import Path

import double
import pytest

import minitx

cupy = pytest.importorskip("cupy", exc_type=ImportError)
if isinstance(cupy, double.Cupy):
    pytest.skip("needs CuPy itself", allow_module_level=True)

HOUSE = Path(minitx.__file__).parent
FILES = sorted(HOUSE.rglob("*.py"))
SEAMS = {"xp_of", "require_cupy"}                               # functions that give the library
UFUNC = {"out", "dtype", "casting"}                             # the keywords that a ufunc's call takes
TAKES = {"einsum": {"dtype", "optimize"}}                       # what hides behind **kwargs
# of ufuncs: which have it, how it is called
METHODS = {"at": ({"add", "maximum", "minimum"}, lambda a, indices, b: None),
           "reduce": ({"add", "multiply"}, lambda array, axis=0, dtype=None, out=None, keepdims=False: None)}


def is_library(node, names):
    """Whether an expression is numpy or cupy, whichever it may be: a name for it, or a call of the seam."""
    return isinstance(node, ast.Name) and node.id in names or (
        isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", None)) in SEAMS)


def libraries(tree):
    """The names that a file has for the library: xp and cupy, and whatever else it calls it."""
    names = {"xp", "cupy"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = (zip(target.elts, node.value.elts)
                         if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) else [(target, node.value)])
                names |= {left.id for left, right in pairs if isinstance(left, ast.Name) and is_library(right, names)}
    return names


def imported(tree):
    """{name in the file: (object of CuPy, what it is called there)} of ``from cupyx.scipy.special import erf as ...``."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("cupy", "cupyx"):
            try:
                module = importlib.import_module(node.module)
            except ImportError:                                 # what needs a driver to be imported
                continue
            for alias in node.names:
                found[alias.asname or alias.name] = getattr(module, alias.name, None), f"{node.module}.{alias.name}"
    return found


def chain(node, names):
    """["add", "at"] of xp.add.at; None for what does not begin with the library."""
    path = []
    while isinstance(node, ast.Attribute):
        path.append(node.attr)
        node = node.value
    return path[::-1] if path and is_library(node, names) else None


def looked_up(path):
    """(the object of CuPy at that path, "") or (None, what is missing); (None, "") beyond a class or a value."""
    found = cupy
    for i, name in enumerate(path):
        owner = path[i - 1] if i else ""
        if isinstance(found, cupy.ufunc) and name in METHODS and owner not in METHODS[name][0]:
            return None, f"CuPy's {owner} has no {name}"
        if i and not inspect.ismodule(found) and not isinstance(found, cupy.ufunc):
            return None, ""                                     # of a class or a value: beyond what is looked at
        try:
            found = getattr(found, name)
        except AttributeError:
            return None, f"CuPy has no {'.'.join(path[:i + 1])}"
        except ImportError:                                     # a library of CUDA that is not here
            return None, ""
    return found, ""


def mismatch(found, name, call):
    """What CuPy would refuse of a call of an object that it calls `name`; "" if nothing."""
    starred = any(isinstance(a, ast.Starred) for a in call.args)
    count, keywords = len(call.args), {k.arg for k in call.keywords if k.arg}
    open_ended = starred or any(k.arg is None for k in call.keywords)
    owner, _, last = name.rpartition(".")
    if isinstance(found, cupy.ufunc):
        if keywords - UFUNC:
            return f"{name} is a ufunc, which takes no {', '.join(sorted(keywords - UFUNC))}="
        return "" if open_ended or count == found.nin else f"{name} takes {found.nin} arrays, is given {count}"
    if owner and last in METHODS and isinstance(looked_up(owner.split("."))[0], cupy.ufunc):
        signature = inspect.signature(METHODS[last][1])
    else:
        try:
            signature = inspect.signature(found)
        except (ValueError, TypeError):
            return ""                                           # built in, without a signature to look at
    if any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
        if name not in TAKES:
            return f"{name} takes **keywords: say in TAKES which"
        wrong = keywords - TAKES[name]
        return f"{name} takes no {', '.join(sorted(wrong))}=" if wrong else ""
    bind = signature.bind_partial if open_ended else signature.bind
    try:
        bind(*[None] * sum(not isinstance(a, ast.Starred) for a in call.args), **dict.fromkeys(keywords))
    except TypeError as error:
        return f"{name}{signature}: {error}"
    return ""


def complaints(text, file="code"):
    """What CuPy would refuse in a source text, one line each, with file and line."""
    tree = ast.parse(text)
    names, ours = libraries(tree), imported(tree)
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner and (path := chain(node, names)):
            found, says = looked_up(path)
            name = ".".join(path)
        elif isinstance(node, ast.Name) and node.id in ours:
            found, name = ours[node.id]
            says = f"CuPy has no {name}" if found is None else ""
        else:
            continue
        call = calls.get(id(node))
        says = says or (mismatch(found, name, call) if call is not None and found is not None else "")
        if says:
            yield f"{file}:{node.lineno}: {says}"


@pytest.mark.parametrize("path", FILES, ids=[path.relative_to(HOUSE).as_posix() for path in FILES])
def test_cupy_takes_every_call(path):
    assert list(complaints(path.read_text(encoding="utf-8"), path.relative_to(HOUSE).as_posix())) == []


def test_there_are_calls_to_check():
    calls = [node for path in FILES for tree in [ast.parse(path.read_text(encoding="utf-8"))]
             for node in ast.walk(tree) if isinstance(node, ast.Call) and chain(node.func, libraries(tree))]
    assert len(calls) > 100


@pytest.mark.parametrize("line, says", [
    ("xp.einsum('ij->i', a, out=b)", "einsum takes no out="), ("xp.sum(a, where=m)", "where"),
    ("xp.vecdot(a, b)", "CuPy has no vecdot"), ("xp.take(a, i, mode='clip')", "mode"),
    ("xp.exp(a, where=m)", "exp is a ufunc, which takes no where="), ("xp.add(a)", "add takes 2 arrays, is given 1"),
    ("xp.clip(a, min=0)", "min"), ("xp.multiply.at(a, i, b)", "multiply has no at"),
    ("xp.maximum.reduce(a)", "maximum has no reduce"), ("xp.add.at(a, i)", "missing a required argument: 'b'"),
    ("xp.copyto(a, b, c, d, e)", "too many"), ("xp_of(a).errstate()", "no errstate"),
    ("backend.require_cupy().random.normals(3)", "no random.normals"), ("cupy.full(3)", "missing a required argument"),
    ("from cupyx.scipy.special import erf as f\nf(a, b)", "erf takes 1 arrays, is given 2"),
    ("from cupyx.scipy.special import nothing as f\nf(a)", "no cupyx"),
    ("library = xp_of(a)\nlibrary.matvec(a, b)", "no matvec"), ("x, lib = a, xp_of(a)\nlib.sort(a, stable=True)", "stable"),
    ("f = xp.vecdot", "no vecdot"), ("xp.sum(*a, initial=0)", "initial"), ("xp.float128", "no float128")])
def test_bad_calls_are_found(line, says):
    found = list(complaints(line))
    assert len(found) == 1 and says in found[0], found


@pytest.mark.parametrize("line", [
    "xp.einsum('ij->i', a, optimize=True)", "xp.sum(a, axis=0, keepdims=True, dtype='f')", "xp.add.at(a, i, b)",
    "xp.add(a, b, out=c)", "xp.exp(a, dtype=t)", "xp.add.reduce(a, axis=1)", "xp.finfo(t).min",
    "xp.copyto(a, b, where=m)", "xp.where(m, *ab)", "xp.full(s, **options)", "np.vecdot(a, b)", "a.sum(where=m)",
    "cupy.cuda.Device(0).use()", "xp.float32", "cupy.random.default_rng(3).random(s, dtype='f')"])
def test_good_calls_are_let_through(line):
    assert list(complaints(line)) == []
