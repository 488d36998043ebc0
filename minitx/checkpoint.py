"""A state on disk, as a safetensors file. Nothing is ever unpickled."""
import contextlib
import os
import secrets
import shutil
from pathlib import Path

import numpy as np

from minitx import backend
from minitx.tensor import Tensor, as_numpy


READ = {"BOOL", "F16", "F32", "F64", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64"}   # safetensors' names


def save(path, state, metadata=None):
    """Write {name: array or Tensor}, as state_dict() gives it, and {str: str} metadata.

    The file appears whole or not at all: it is written under another name in the same folder, flushed to the disk, then
    renamed. A file that it replaces lends it its mode; through a link, the file that the link leads to is replaced.
    ValueError naming the file for what safetensors cannot store, ImportError where safetensors is missing.
    """
    safetensors, path = _safetensors(), Path(path)
    state = {name: _plain(name, value) for name, value in state.items()}
    if "__metadata__" in state:
        raise ValueError(f"{path}: no tensor can have the name __metadata__ in a safetensors file")
    target = Path(os.path.realpath(path))
    unfinished = target.with_name(f".{secrets.token_hex(4)}.tmp")
    try:
        try:
            data = safetensors.numpy.save(state, metadata)
        except (safetensors.SafetensorError, TypeError, KeyError, ValueError) as error:
            raise ValueError(f"{path}: cannot be saved: {error}") from error
        with open(unfinished, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, unfinished)
        os.replace(unfinished, target)
    except BaseException:                       # Ctrl-C too
        unfinished.unlink(missing_ok=True)
        raise


def load(path):
    """{name: NumPy array} from a safetensors file: what Module.load_state_dict takes.

    ValueError naming the file where it is none, or holds a dtype that NumPy lacks, such as BF16; FileNotFoundError where
    there is no file.
    """
    with _opened(path) as file:
        for name in file.keys():
            dtype = file.get_slice(name).get_dtype()
            if dtype not in READ:
                raise ValueError(f"{name} is {dtype}; float16, float32, float64, integers and bools are read: convert it "
                                 "where it was made")
        return {name: file.get_tensor(name) for name in file.keys()}


def metadata(path):
    """The {str: str} that was saved along with the tensors; empty if there was none."""
    with _opened(path) as file:
        return file.metadata() or {}


@contextlib.contextmanager
def _opened(path):
    """A safetensors file open for reading; whatever is wrong in it becomes a ValueError that names it."""
    safetensors, path = _safetensors(), Path(path)
    with open(path, "rb"):                                      # nothing there, a folder, not allowed: Python says it best
        pass
    if path.suffix in (".bin", ".pt", ".pth"):
        raise ValueError(f"{path}: a pickle, which can run any code when opened, so it is not read. Convert it once: "
                         "safetensors.torch.save_file(torch.load(PATH, weights_only=True), 'model.safetensors')")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            yield file
    except (safetensors.SafetensorError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read as safetensors: {error}") from error


def _safetensors():
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ImportError("minitx.checkpoint needs the library safetensors: pip install safetensors") from error
    return safetensors


def _plain(name, value):
    """The value as a C-contiguous NumPy array: of others safetensors would write the numbers in a wrong order."""
    if not isinstance(value, Tensor) and not backend.is_array(value):
        raise TypeError(f"checkpoint.save: {name} must be an array or a Tensor, got {type(value).__name__}")
    return np.asarray(as_numpy(value), order="C")           # ascontiguousarray would make () into (1,)
