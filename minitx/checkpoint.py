"""A state on disk, as a safetensors file. Nothing is ever unpickled."""
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from minitx import backend
from minitx.tensor import Tensor, as_numpy
from minitx.writing import check_regular, write

READ = {"BOOL": "?", "F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "<u2", "I8": "i1", "I16": "<i2", "I32": "<i4",
        "I64": "<i8", "U8": "u1", "U16": "<u2", "U32": "<u4", "U64": "<u8"}        # safetensors' names
PIECE = 1 << 17                         # numbers that are read at once
TIED = "minitx.tied"                    # in a file's metadata: JSON of {name: the name that its array is stored under}
CONVERT = ('python -c "import glob, torch; from safetensors.torch import save_file; save_file({name: x.contiguous()'
           ".clone() for file in glob.glob('pytorch_model*.bin') for name, x in torch.load(file, map_location='cpu', "
           "weights_only=True).items()}, 'model.safetensors', {'format': 'pt'})\"")


def save(path, state, metadata=None):
    """Write {name: array or Tensor}, as state_dict() gives it, and {str: str} metadata.

    The file appears whole or not at all: it is written under another name in the same folder, flushed to the disk, then
    renamed. A file that it replaces lends it its mode; through a link, the file that the link leads to is replaced. What
    is killed while it writes leaves hidden files there, .NAME.xxxxxxxx.tmp and safetensors' own .tmpXXXXXX, that may be
    deleted when no one writes.
    An array that stands under several names, as tied weights do, is stored once, and `load` gives it all its names.

    ValueError naming the file for what safetensors cannot store, ImportError where safetensors is missing, TypeError for
    what is no array. OSError where the file cannot be written, or something else than a file has its name.
    """
    safetensors, path = _safetensors(), Path(path)
    metadata, state, first = dict(metadata or {}), dict(state), {}
    # `state` holds what a lazy mapping makes: so no id of an array comes twice
    tied = {name: first.setdefault(id(value.data if isinstance(value, Tensor) else value), name)
            for name, value in state.items()}
    tied = {name: kept for name, kept in tied.items() if name != kept}
    if TIED in metadata or "__metadata__" in state:
        raise ValueError(f"{path}: cannot be saved: {TIED} in metadata and a tensor's name __metadata__ are taken")
    if tied:
        metadata[TIED] = json.dumps(tied)
    state = {name: _plain(name, value) for name, value in state.items() if name not in tied}
    try:
        write(path, lambda unfinished: safetensors.numpy.save_file(state, unfinished, metadata))
    except (safetensors.SafetensorError, TypeError, KeyError, ValueError) as error:
        if code := re.search(r"([^:]+) \(os error (\d+)\)", str(error)):        # the library's own error for a full disk
            number = int(code[2])                               # on Windows one of Windows', which OSError takes last
            raise OSError(number, code[1].strip(), str(path), number) from error
        raise ValueError(f"{path}: cannot be saved: {error}") from error


def load(path, dtype=None):
    """{name: NumPy array} from a safetensors file, or from all that an index file (*.index.json) names: what
    Module.load_state_dict takes.

    dtype is what float tensors become, float16, float32 or float64 (else TypeError); left out they keep theirs, and
    bfloat16, which NumPy lacks, becomes float32. ValueError naming the file where it is none or holds another dtype,
    holds a finite number that is too large for the dtype, or was replaced while it was read; FileNotFoundError where
    there is no file.
    """
    return Stored(path, dtype).arrays()


class Stored(Mapping):
    """The tensors of a file, or of all that an index names, by name; each is read from the disk when it is asked for.

    So a model is filled tensor by tensor, and never lies in memory twice. metadata is what `metadata` gives of the same
    file. Errors are those of `load`.
    """

    def __init__(self, path, dtype=None):
        path, asked = Path(path), dtype
        try:
            dtype = None if asked is None else np.dtype(asked)
        except TypeError:                                           # NumPy knows no bfloat16
            dtype = asked
        if dtype not in (None, backend.HALF, backend.SINGLE, backend.DOUBLE):
            raise TypeError(f"checkpoint: floats are read as float16, float32 or float64, not as {dtype}")
        self.dtype, self.places, self.metadata = dtype, {}, {}
        for file, names in (_shards(path) if path.name.endswith(".index.json") else {path: None}).items():
            places, about = _places(file)
            self.metadata |= about
            names = places if names is None else names
            lacking = [name for name in names if name not in places]
            if lacking:
                raise ValueError(f"{file}: lacks what the index says it holds: {', '.join(lacking)}")
            self.places.update({name: places[name] for name in names})

    def __getitem__(self, name):
        shape, dtype = self.describe(name)
        array, done = np.empty(shape, dtype), 0
        try:
            with np.errstate(over="raise"):
                for piece in self.pieces(name):
                    array.reshape(-1)[done:done + piece.size] = piece
                    done += piece.size
        except FloatingPointError:
            raise ValueError(f"{self.places[name].path}: {name} holds a number that is too large for {dtype}") from None
        return array

    def arrays(self):
        """{name: array} of all; those that are tied in the file are one array."""
        arrays = {place: self[name] for place, name in dict(zip(self.places.values(), self)).items()}
        return {name: arrays[place] for name, place in self.places.items()}

    def describe(self, name):
        """(shape, dtype) of the array that a name gives."""
        place = self.places[name]
        dtype = np.dtype("f4" if place.kind == "BF16" else READ[place.kind]).newbyteorder("=")
        return place.shape, dtype if self.dtype is None or dtype.kind != "f" else self.dtype

    def pieces(self, name):
        """The numbers of a tensor as they are read, in order: 1-d arrays, so that none lies in memory twice."""
        path, stamp, kind, shape, start = self.places[name]
        with open(path, "rb") as file:
            file.seek(start)
            for done in range(0, math.prod(shape), PIECE):
                wanted = min(PIECE, math.prod(shape) - done)
                piece = np.fromfile(file, READ[kind], wanted)
                _check_same(path, file, stamp)
                if piece.size < wanted:
                    raise ValueError(f"{path}: {name} cannot be read whole")
                yield from_bfloat16(piece) if kind == "BF16" else piece

    def same(self, first, second):
        """Whether two names give the same numbers in the same shape."""
        if self.places[first] == self.places[second]:
            return True
        return self.describe(first)[0] == self.describe(second)[0] and all(
            np.array_equal(a, b, equal_nan=True) for a, b in zip(self.pieces(first), self.pieces(second)))

    def __iter__(self):
        return iter(self.places)

    def __len__(self):
        return len(self.places)


def from_bfloat16(bits):
    """uint16 bits -> the float32 numbers whose upper halves they are, exactly."""
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def to_bfloat16(x):
    """float32 numbers -> the uint16 bits of their upper halves, rounded to nearest, ties to even. NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + (0x7fff + (bits >> 16 & 1))) >> 16
    return np.where(np.isnan(x), bits >> 16 | 0x40, rounded).astype(np.uint16).reshape(np.shape(x))


def metadata(path):
    """The {str: str} that was saved along with the tensors; empty if there was none."""
    return {key: value for key, value in _read_header(Path(path))[1].items() if key != TIED}


class Place(NamedTuple):
    """Where a tensor lies: in which file, the stamp of that, and there as what, from which byte on."""
    path: Path
    stamp: tuple
    kind: str
    shape: tuple
    start: int


def _read_header(path):
    """({name: its Place}, metadata) of one safetensors file, whose header the library has checked.

    Whatever is wrong in it becomes a ValueError that names it. Names are opened several times, as Windows lets no one
    replace a file that is kept open; the stamp says whether it is still the same.
    """
    safetensors = _safetensors()
    check_regular(path)
    with open(path, "rb") as file:
        if path.suffix in (".bin", ".pt", ".pth"):
            raise ValueError(f"{path}: a pickle, which can run any code when opened, so it is not read. Convert it once, "
                             f"where PyTorch is, in its folder: {CONVERT.replace('pytorch_model*.bin', path.name)}")
        stamp = _stamp(file)
        try:
            with safetensors.safe_open(path, framework="numpy") as checked:
                names, about = set(checked.keys()), checked.metadata() or {}
        except (safetensors.SafetensorError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: cannot be read as safetensors: {error}") from error
        with open(path, "rb") as again:                         # what the library has opened, between the two
            _check_same(path, again, stamp)
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    return {name: Place(path, stamp, tensor["dtype"], tuple(tensor["shape"]), 8 + size + tensor["data_offsets"][0])
            for name, tensor in header.items() if name in names}, about


def _stamp(file):
    """What tells an open file from another, and from itself when it is written into."""
    about = os.fstat(file.fileno())
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns


def _check_same(path, file, stamp):
    if _stamp(file) != stamp:
        raise ValueError(f"{path}: was replaced while it was read; read it again")


def _shards(index):
    """{file: the names that an index says it holds}. ValueError where it is no index, or a file is not beside it."""
    try:
        files = {}
        for name, file in json.loads(index.read_text(encoding="utf-8"))["weight_map"].items():
            if Path(file).name != file:
                raise ValueError(f"{file} does not lie beside it")
            files.setdefault(index.parent / file, []).append(name)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{index}: no index of safetensors files: {error!r}") from error
    missing = [file.name or '""' for file in files if not os.path.isfile(file)]
    if missing or not files:
        raise ValueError(f"{index}: names files that are not beside it: {', '.join(missing)}" if missing else
                         f"{index}: no index of safetensors files: it names none")
    return files


def _places(path):
    """({name: its Place}, metadata) of one file, with the names that are tied."""
    places, about = _read_header(path)
    try:
        tied = json.loads(about.pop(TIED, "{}"))
        if taken := places.keys() & tied.keys():
            raise ValueError(f"{', '.join(sorted(taken))} is a tensor of its own")
        places |= {name: places[kept] for name, kept in tied.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: what its metadata says of tied tensors is wrong: {error!r}") from error
    for name, place in places.items():
        if place.kind not in READ:
            raise ValueError(f"{path}: {name} is {place.kind}; floats of 16, 32 and 64 bits, bfloat16, integers and bools "
                             "are read: convert it where it was made")
    return places, about


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
