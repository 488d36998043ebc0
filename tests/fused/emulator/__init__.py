"""CUDA sources run on the processor: what stands for cupy.RawModule where no GPU is.

The very text of a .cu file is compiled as C++ behind cuda.h, which plays the threads. Misuse is an error: a barrier that
not all threads reach, an argument of another kind than the kernel's, a write beside the arrays that it was given. Who
reads there gets NaN.
"""
import ctypes
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from fused.emulator.memory import Memory

HEADER = Path(__file__).with_name("cuda.h")
KINDS = {"float": "float32", "double": "float64", "bool": "bool", "int": "int32", "long long": "int64"}
SHARED = 48 << 10                       # bytes that a block has without asking for more


class RawModule:
    """The kernels of one source. Of the options those like -DNAME=VALUE count, others are the real compiler's."""

    def __init__(self, code, options=()):
        macros = [option for option in options if option.startswith("-D")]
        self.kernels = signatures(code, dict(macro[2:].split("=") for macro in macros))
        text = [HEADER.read_text(encoding="utf-8"), '#line 1 "kernels"', dynamic(code), '#line 1 "launchers"']
        text += [launcher(name, kinds) for name, kinds in self.kernels.items()]
        self.library = ctypes.PyDLL(compiled("\n".join(text), macros))  # keeps Python's lock: one launch at a time

    def get_function(self, name):
        return Kernel(self.library, name, self.kernels[name])


class Kernel:
    """Called as CuPy's. NumPy arrays stand for device memory; numbers, and structures as 0-d arrays, go by value."""

    def __init__(self, library, name, kinds):
        self.name, self.kinds, self.run = name, kinds, getattr(library, f"launch_{name}")
        self.run.restype = ctypes.c_char_p
        sizes = getattr(library, f"sizes_{name}")
        sizes.restype = ctypes.POINTER(ctypes.c_int)
        self.sizes = sizes()[:len(kinds)]

    def __call__(self, grid, block, args, shared_mem=0):
        grid, block = ([int(n) for n in (*shape, 1, 1)[:3]] for shape in (grid, block))
        if not (0 < grid[0] < 1 << 31 and 0 < grid[1] < 1 << 16 and 0 < grid[2] < 1 << 16 and 0 < min(block)
                and block[0] * block[1] * block[2] <= 1024):
            raise RuntimeError(f"{self.name}: no GPU has a grid {grid} of blocks {block}")
        if shared_mem > SHARED:
            raise RuntimeError(f"{self.name}: {shared_mem} bytes of shared memory, a block has {SHARED}")
        if len(args) != len(self.kinds):
            raise TypeError(f"{self.name}: {len(args)} arguments, it takes {len(self.kinds)}")
        for i, (x, kind, size) in enumerate(zip(args, self.kinds, self.sizes)):
            if not suits(x, kind, size):
                raise TypeError(f"{self.name}: argument {i} is {kind}, not {getattr(x, 'dtype', type(x))}")
        memory = Memory([x for x in args if in_memory(x)])
        values = [np.asarray(np.uintp(memory.place(x)) if in_memory(x) else x) for x in args]
        pointers = (ctypes.c_void_p * len(args))(*(x.ctypes.data for x in values))
        message = self.run((ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block), pointers)
        if message:
            raise RuntimeError(f"{self.name}: {message.decode()}")
        memory.bring_back(self.name)


def in_memory(x):
    """Whether it is an array that a kernel gets a pointer to."""
    return isinstance(x, np.ndarray) and not x.dtype.fields


def suits(x, kind, size):
    """Whether a kernel that asks for that kind may get x: CuPy does not ask, and the kernel would read nonsense."""
    if "*" in kind:
        known = KINDS.get(re.sub(r"\bconst\b|\*", "", kind).strip())
        return in_memory(x) and known in (None, x.dtype) or isinstance(x, np.uintp) and x == 0
    if not isinstance(x, np.generic) and not getattr(x, "dtype", np.dtype("b")).fields:
        return False
    return x.dtype.itemsize == size and KINDS.get(kind, x.dtype) == x.dtype


def signatures(code, macros):
    """{kernel: the kinds of its arguments}, with the macros replaced by what they stand for."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", " ", code, flags=re.DOTALL)
    found = {}
    for name, inside in re.findall(r'extern\s+"C"\s+__global__\s+void\s+(\w+)\s*\(([^)]*)\)', code):
        kinds = [re.fullmatch(r"(.*?)\w+", " ".join(part.split())).group(1).strip() for part in inside.split(",")]
        found[name] = [re.sub(r"\w+", lambda word: macros.get(word.group(), word.group()), kind) for kind in kinds]
    return found


def dynamic(code):
    """Shared memory whose size the launch gives, as C++ can say it."""
    return re.sub(r"extern\s+__shared__\s+(\w+)\s+(\w+)\[\]", r"\1* \2 = (\1*)emulator::dynamic_memory", code)


def launcher(name, kinds):
    """C++ that calls a kernel with values which are given, as the CUDA driver has it, by where they lie."""
    values = ", ".join(f"*({kind}*)args[{i}]" for i, kind in enumerate(kinds))
    return (f"static void body_{name}(void** args) {{ {name}({values}); }}\n"
            f'extern "C" const char* launch_{name}(const unsigned* grid, const unsigned* block, void** args)\n'
            f"{{ return emulator::launch(body_{name}, grid, block, args); }}\n"
            f'extern "C" const int* sizes_{name}()\n'
            f"{{ static int sizes[] = {{{', '.join(f'int(sizeof({kind}))' for kind in kinds)}}}; return sizes; }}")


@functools.cache
def compiler():
    """The C++ compiler of this machine. RuntimeError where there is none, or no way to switch stacks."""
    found = [path for path in map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++")) if path]
    if not found or sys.platform == "win32":
        raise RuntimeError("to run CUDA sources here takes a C++ compiler (g++ or clang++, not on Windows)")
    return found[0]


def compiled(text, macros):
    """The library made of that text, kept for the next time. RuntimeError with what the compiler says."""
    command = [compiler(), "-x", "c++", "-std=c++17", "-O1", "-shared", "-fPIC", "-w", "-U_FORTIFY_SOURCE",
               "-D_XOPEN_SOURCE=700", *macros]          # the check of fortified longjmp knows of one stack only
    key = hashlib.sha256("\n".join([*command, text]).encode()).hexdigest()[:32]
    folder = Path(tempfile.gettempdir()) / f"minitx-emulator-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o022:
        raise RuntimeError(f"{folder} belongs to somebody else: remove it, or set TMPDIR")
    library = folder / f"{key}.so"
    if not library.exists():
        part = folder / f"{key}.{os.getpid()}"
        done = subprocess.run([*command, "-o", str(part), "-"], input=text, capture_output=True, encoding="utf-8")
        if done.returncode:
            raise RuntimeError(f"the CUDA source does not compile:\n{done.stderr}")
        os.replace(part, library)
    return str(library)
