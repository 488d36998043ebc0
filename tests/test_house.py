"""The floors of the house, read from the imports of its files. What `import minitx` loads is in test_package.py."""
import ast
import graphlib
import sys
from pathlib import Path

import pytest

import minitx

HOUSE = Path(minitx.__file__).parent
FILES = sorted(HOUSE.rglob("*.py"))
NAMES = [path.relative_to(HOUSE).as_posix() for path in FILES]

# From the ground up. What stands in no row may not exist; `__init__` of the package itself only gathers names.
FLOORS = [["memory", "missing", "random", "special"], ["backend", "precision", "recording"],
          ["tensor", "arguments", "op", "autograd"], ["creation", "ops"],
          ["fused", "nn", "optim", "optimizer", "scaling", "schedule"],
          ["models", "writing", "checkpoint", "training", "resume", "rates", "generate", "beam", "sampling",
           "interop"],
          ["proof", "__main__", "info"]]
LEVEL = {name: level for level, row in enumerate(FLOORS) for name in row}


def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def module_of(path):
    parts = ("minitx",) + path.relative_to(HOUSE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path, everywhere=True):
    """The modules that a file imports; without `everywhere` only those at its top level, at once."""
    modules, nodes = {module_of(p) for p in FILES}, ast.walk(tree(path)) if everywhere else tree(path).body
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: a relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in modules else node.module


def floor_of(module):
    """backend, ops, nn ...: the part of the house that a module of minitx belongs to, None for the package itself."""
    return module.split(".")[1] if "." in module else None


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_file_imports_its_own_floor_and_below(path):
    here = floor_of(module_of(path))
    if here is None:
        return                                                      # minitx/__init__.py
    assert here in LEVEL, f"{path.name} stands on no floor"
    for module in imports(path):
        if module.partition(".")[0] != "minitx":
            continue
        there = floor_of(module)
        if there is None:
            assert LEVEL[here] >= LEVEL["models"], f"{path.name} imports the whole house"
        elif here == "recording" and there == "fused":
            continue                                                # the registry look-up, lazily
        elif here == "fused":
            assert LEVEL[there] < LEVEL["nn"] or there == "fused", f"{path.name} imports {module}"
        else:
            assert LEVEL[there] <= LEVEL[here], f"{path.name} imports {module}"


def test_no_two_files_import_each_other():
    graph = {module_of(path): {m for m in imports(path, everywhere=False) if m.startswith("minitx.")} for path in FILES}
    graph.pop("minitx")
    list(graphlib.TopologicalSorter(graph).static_order())          # CycleError names the circle


HOMES = {"cupy": ("backend.py", "fused/cuda/"), "cupyx": ("backend.py", "fused/cuda/"),
         "torch": ("interop/", "proof/"), "safetensors": ("checkpoint.py", "models/", "proof/reference.py"),
         "tokenizers": ("models/",), "threadpoolctl": ("fused/cpu/", "info.py", "__main__.py", "models/sentence.py")}


@pytest.mark.parametrize("path, name", list(zip(FILES, NAMES)), ids=NAMES)
def test_what_is_no_part_of_python_or_numpy_is_imported_where_it_belongs(path, name):
    for module in imports(path):
        root = module.partition(".")[0]
        if root in ("minitx", "numpy") or root in sys.stdlib_module_names:
            continue
        assert name.startswith(HOMES.get(root, ())), f"{name} imports {module}"
    if name.startswith("proof/torch_twins/"):
        return                                                      # loaded where PyTorch is, by the check alone
    for module in imports(path, everywhere=False):
        root = module.partition(".")[0]
        assert root in ("minitx", "numpy") or root in sys.stdlib_module_names, f"{name} imports {module} at its top"


LONGER = {"backend.py": 370}                                     # one seam


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_files_are_short_and_say_errors_aloud(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGER.get(path.relative_to(HOUSE).as_posix(), 270)
    assert not [node.lineno for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Assert)], "a bare assert"


@pytest.mark.parametrize("path", [p for p in FILES if p.parent.name == "ops"], ids=lambda p: p.name)
def test_the_files_of_ops_are_plain_ascii(path):
    path.read_text(encoding="ascii")


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_files_are_opened_with_their_encoding_named(path):
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        mode = next((a.value for a in node.args[:2] if isinstance(a, ast.Constant) and str(a.value).strip("+") in
                     ("rb", "wb", "ab", "xb")), None)
        if name in ("open", "read_text", "write_text", "fdopen") and mode is None:
            assert any(k.arg in ("encoding", None) for k in node.keywords), f"{path.name}:{node.lineno}"


def test_the_public_names():
    import minitx as mt
    names = ("Tensor tensor zeros ones arange rand randn no_grad manual_seed Op gradcheck set_default_device "
             "set_default_dtype cuda nn ops optim schedule models").split()
    assert not [name for name in names if not hasattr(mt, name)]
    with pytest.raises(AttributeError, match="tensr"):
        mt.tensr
    assert set(names) <= set(mt.__all__)
