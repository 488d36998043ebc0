"""Files: what is written comes back, whole or not at all, and nothing malformed is believed."""
import json
import os
import re
import struct
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import minitx as mt
from minitx import checkpoint, nn

safetensors = pytest.importorskip("safetensors")
RECORDS = json.loads((Path(__file__).parent / "data" / "values.json").read_text(encoding="utf-8"))["records"]
FILES = [record for record in RECORDS if record["op"] == "safetensors_load"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


ARRAYS = {
    "float32": np.arange(6, dtype=np.float32).reshape(2, 3), "float64": np.array([0.1, np.nan, -np.inf]),
    "float16": np.ones(2, np.float16), "int64": np.array([2 ** 62]), "uint8": np.array([255], np.uint8),
    "bool": np.array([True, False]), "0-d": np.array(1.5), "empty": np.zeros((0, 3)),
    "transposed": np.arange(6.0).reshape(2, 3).T, "stepped": np.arange(6.0)[::-2],
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "broadcast": np.broadcast_to(np.arange(2.0), (3, 2)),
    "big-endian": np.arange(3, dtype=">f4"),
}


def test_every_array_comes_back(path):
    checkpoint.save(path, ARRAYS)
    loaded = checkpoint.load(path)
    assert loaded.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert loaded[name].dtype == array.dtype.newbyteorder("=") and loaded[name].shape == array.shape, name
        np.testing.assert_array_equal(loaded[name], array, err_msg=name)


def test_a_model_comes_back(path):
    model, other = nn.EncoderBlock(8, 2, 16), nn.EncoderBlock(8, 2, 16)
    checkpoint.save(str(path), model.state_dict(), {"step": "7", "note": "größer"})
    other.load_state_dict(checkpoint.load(str(path)))
    for p, q in zip(model.parameters(), other.parameters()):
        np.testing.assert_array_equal(p.data, q.data)
    assert checkpoint.metadata(path) == {"step": "7", "note": "größer"}


def test_tied_weights_are_stored_once_and_tied_again(path):
    a, b = (mt.tensor(np.arange(1000.0)).data for _ in "ab")
    checkpoint.save(path, {"a": a, "b": b, "again": a, "tensor": mt.Tensor(b), "view": a[:]}, {"step": "7"})
    assert path.stat().st_size < 3 * a.nbytes + 1000
    assert checkpoint.metadata(path) == {"step": "7"}                           # no word of it
    loaded = checkpoint.load(path)
    assert loaded.keys() == {"a", "b", "again", "tensor", "view"}
    assert loaded["again"] is loaded["a"] and loaded["tensor"] is loaded["b"] and loaded["view"] is not loaded["a"]
    for array in loaded.values():
        np.testing.assert_array_equal(array, a)
    loaded["a"][0] = 5
    assert loaded["again"][0] == 5 and loaded["view"][0] == loaded["b"][0] == 0


def test_a_tied_model_comes_back_tied(path):
    def tied():
        embedding, linear = nn.Embedding(7, 3), nn.Linear(3, 7)
        linear.weight = embedding.weight
        return nn.Sequential(embedding, linear)

    model, other = tied(), tied()
    checkpoint.save(path, model.state_dict())
    with safetensors.safe_open(path, framework="numpy") as file:
        assert sorted(file.keys()) == ["0.weight", "1.bias"]
    other.load_state_dict(checkpoint.load(path))
    state, expected = other.state_dict(), model.state_dict()
    np.testing.assert_array_equal(state["1.weight"], expected["0.weight"])
    assert state["1.weight"] is state["0.weight"]


@pytest.mark.parametrize("tied", ["", "[]", '{"b": "c"}', '{"b": ["a"]}', "[" * 100000])
def test_what_a_file_says_of_ties_is_checked(tied, path):
    safetensors_numpy().save_file({"a": np.ones(2)}, path, {"minitx.tied": tied})
    with pytest.raises(ValueError, match="model.safetensors: what its metadata says of tied tensors is wrong"):
        checkpoint.load(path)


def safetensors_numpy():
    return pytest.importorskip("safetensors.numpy")


def test_a_tensor_is_not_hidden_behind_a_tie(path):
    safetensors_numpy().save_file({"a": np.zeros(2), "b": np.ones(2)}, path, {"minitx.tied": '{"b": "a"}'})
    with pytest.raises(ValueError, match="model.safetensors: what its metadata says .*b is a tensor of its own"):
        checkpoint.load(path)


def test_tensors_are_saved_too(path):
    checkpoint.save(path, {"x": mt.tensor([1.0, 2.0])})
    np.testing.assert_array_equal(checkpoint.load(path)["x"], [1, 2])
    assert checkpoint.metadata(path) == {}


@pytest.mark.parametrize("record", FILES, ids=[record["id"] for record in FILES])
def test_stored_files(record, path):
    path.write_bytes(bytes.fromhex(record["inputs"]["file_hex"]))
    if record["kind"] == "error":
        for read in checkpoint.load, checkpoint.metadata:
            with pytest.raises(ValueError, match="model.safetensors"):
                read(path)
        return
    loaded, expected = checkpoint.load(path), record["expected"]
    if "metadata" in expected:
        assert loaded == expected["tensors"] and checkpoint.metadata(path) == expected["metadata"]
    elif "z_shape" in expected:
        assert loaded["s"].shape == () and loaded["s"] == expected["s"]
        assert list(loaded["z"].shape) == expected["z_shape"]
    else:
        assert {name: array.tolist() for name, array in loaded.items()} == expected


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth"])
def test_pickles_are_not_read(name, tmp_path):
    (tmp_path / name).write_bytes(b"anything")
    with pytest.raises(ValueError, match=f"{name}.*save_file.*glob.'{name}'"):
        checkpoint.load(tmp_path / name)


@pytest.mark.parametrize("keep", [0, 7, 8, 40, -1])
def test_a_file_that_was_cut(keep, path):
    checkpoint.save(path, {"a": np.arange(9.0)})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match="model.safetensors: cannot be read as safetensors"):
        checkpoint.load(path)


def test_a_file_that_is_cut_while_it_is_read(path):
    checkpoint.save(path, {"a": np.arange(9.0)})
    stored = checkpoint.Stored(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="model.safetensors: was replaced while it was read; read it again"):
        stored["a"]


def test_a_file_that_is_replaced_while_it_is_read(path, tmp_path, monkeypatch):
    """By one of the same size too: never the numbers of one under the names of the other."""
    for name, metadata in ("old", {"a": "bc"}), ("new", {"ab": "c"}):
        checkpoint.save(tmp_path / name, {"x": np.arange(9.0)}, metadata)
    os.replace(tmp_path / "old", path)
    stored = checkpoint.Stored(path)
    pieces = stored.pieces("x")
    monkeypatch.setattr(checkpoint, "PIECE", 4)
    next(pieces)
    os.utime(path, ns=(5, 5))                                       # as one that is written into
    with pytest.raises(ValueError, match="model.safetensors: was replaced while it was read; read it again"):
        next(pieces)
    stored = checkpoint.Stored(path)
    os.replace(tmp_path / "new", path)
    with pytest.raises(ValueError, match="model.safetensors: was replaced while it was read; read it again"):
        stored["x"]


@pytest.mark.parametrize("read", [checkpoint.load, checkpoint.metadata])
def test_a_file_that_is_replaced_while_its_header_is_read(read, path, monkeypatch):
    safe_open = safetensors.safe_open

    def replaced(*args, **options):
        checkpoint.save(path, {"y": np.ones(3)})
        return safe_open(*args, **options)

    checkpoint.save(path, {"x": np.ones(3)})
    monkeypatch.setattr(safetensors, "safe_open", replaced)
    with pytest.raises(ValueError, match="model.safetensors: was replaced while it was read; read it again"):
        read(path)


def test_metadata_and_tensors_of_one_file(path):
    a = np.ones(3)
    checkpoint.save(path, {"a": a, "b": a}, {"step": "7"})
    stored = checkpoint.Stored(path)
    assert stored.metadata == checkpoint.metadata(path) == {"step": "7"}
    arrays = stored.arrays()
    assert arrays.keys() == {"a", "b"} and arrays["a"] is arrays["b"]


def test_numbers_that_the_dtype_asked_for_cannot_say(path):
    checkpoint.save(path, {"small": np.array([6e4, -np.inf, np.nan, 1e-30], np.float32),
                           "large": np.array([1, 7e4], np.float32), "double": np.array([1e40])})
    stored = checkpoint.Stored(path, np.float16)
    np.testing.assert_array_equal(stored["small"], np.array([6e4, -np.inf, np.nan, 0], np.float16))
    with pytest.raises(ValueError, match="model.safetensors: large holds a number that is too large for float16"):
        stored["large"]
    with pytest.raises(ValueError, match="double holds a number that is too large for float32"):
        checkpoint.load(path, np.float32)
    assert checkpoint.load(path, np.float64)["double"] == 1e40


def test_a_missing_file():
    for name in "nowhere.safetensors", "nowhere.bin":
        with pytest.raises(FileNotFoundError, match=name):
            checkpoint.load(name)


def test_a_folder(tmp_path):
    with pytest.raises(OSError, match=tmp_path.name):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize("dtype, size", [("F8_E4M3", 1), ("F8_E5M2", 1)])
def test_floats_that_numpy_lacks(dtype, size, path):
    header = json.dumps({"good": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                         "bad": {"dtype": dtype, "shape": [3], "data_offsets": [4, 4 + 3 * size]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4 + 3 * size))
    with pytest.raises(ValueError, match=f"model.safetensors.*bad is {dtype}; floats of 16, 32 and 64"):
        checkpoint.load(path)
    assert checkpoint.metadata(path) == {}


def bfloat16_file(path, bits):
    header = json.dumps({"half": {"dtype": "BF16", "shape": [len(bits)], "data_offsets": [0, 2 * len(bits)]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bits.astype("<u2").tobytes())


@pytest.mark.parametrize("dtype", [None, np.float32, np.float64, np.float16])
def test_bfloat16_is_read_as_what_was_asked_for(dtype, path):
    numbers = np.array([1.0, -2.0, 3.140625, 0.10009765625, np.inf, -0.0])
    bfloat16_file(path, checkpoint.to_bfloat16(numbers))
    loaded = checkpoint.load(path, dtype)["half"]
    assert loaded.dtype == (dtype or np.float32)
    np.testing.assert_array_equal(loaded, numbers.astype(loaded.dtype))
    assert np.isnan(checkpoint.from_bfloat16(checkpoint.to_bfloat16(np.array([np.nan, np.float32(np.nan)])))).all()


def test_floats_become_the_dtype_asked_for_and_integers_stay(path):
    checkpoint.save(path, {"half": np.ones(2, np.float16), "double": np.ones(2), "ids": np.arange(2)})
    loaded = checkpoint.load(path, np.float32)
    assert [loaded[name].dtype for name in ("half", "double", "ids")] == [np.float32, np.float32, np.int64]


@pytest.mark.parametrize("dtype", [np.int32, bool, "U3", np.complex64, np.longdouble])
def test_a_dtype_that_would_lose_what_floats_say(dtype, path):
    checkpoint.save(path, {"a": np.array([1.5])})
    with pytest.raises(TypeError, match="float16, float32 or float64"):
        checkpoint.load(path, dtype)


def sharded(folder, shards):
    index = {"metadata": {"total_size": 0}, "weight_map": {}}
    for i, state in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        checkpoint.save(folder / file, state)
        index["weight_map"].update(dict.fromkeys(state, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder / "model.safetensors.index.json"


def test_shards_are_read_through_their_index(tmp_path):
    index = sharded(tmp_path, [{"a": np.ones(2), "b": np.zeros(1)}, {"c": np.arange(3)}])
    loaded = checkpoint.load(index)
    assert list(loaded) == ["a", "b", "c"] and loaded["c"].tolist() == [0, 1, 2]
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match="index.json: names files that are not beside it: model-00002-of-00002"):
        checkpoint.load(index)


def test_the_index_is_believed_and_checked(tmp_path):
    index = sharded(tmp_path, [{"a": np.ones(2), "both": np.zeros(1)}, {"both": np.ones(1)}])
    content = json.loads(index.read_text(encoding="utf-8"))
    content["weight_map"]["both"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(content), encoding="utf-8")
    assert checkpoint.load(index)["both"] == 0
    content["weight_map"]["a"] = "model-00002-of-00002.safetensors"
    index.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match="model-00002-of-00002.safetensors: lacks .*: a"):
        checkpoint.load(index)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', '{"weight_map": {}}',
                                  '{"weight_map": {"a": "../a.safetensors"}}', "[" * 100000])
def test_an_index_that_is_none(text, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="model.safetensors.index.json: no index"):
        checkpoint.load(tmp_path / "model.safetensors.index.json")


@pytest.mark.parametrize("name", ["", "..", "folder", "n" * 300, "a\0"])
def test_an_index_that_names_no_file(name, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}), encoding="utf-8")
    with pytest.raises(ValueError, match="index.json: names files that are not beside it"):
        checkpoint.load(tmp_path / "model.safetensors.index.json")


def test_tensors_are_read_one_by_one(path):
    checkpoint.save(path, {"a": np.arange(3.0), "b": np.ones((2, 2), np.float16)})
    stored = checkpoint.Stored(path, np.float32)
    assert set(stored) == {"a", "b"} and len(stored) == 2 and "c" not in stored
    assert stored["a"].tolist() == [0, 1, 2] and stored["b"].dtype == np.float32
    stored["a"][0] = 7                                              # an array of its own
    assert stored["a"][0] == 0 and stored["b"].flags.owndata
    assert stored.describe("b") == ((2, 2), np.float32)


@pytest.mark.parametrize("dtype", [None, np.float64])
def test_tensors_are_read_in_pieces(dtype, path, monkeypatch):
    monkeypatch.setattr(checkpoint, "PIECE", 4)
    arrays = {"a": np.arange(11.0, dtype=np.float32), "b": np.arange(12).reshape(4, 3), "empty": np.ones((0, 2)),
              "0-d": np.array(2.5), "eight": np.arange(8, dtype=np.float16)}
    checkpoint.save(path, arrays)
    stored = checkpoint.Stored(path, dtype)
    assert [len(piece) for piece in stored.pieces("a")] == [4, 4, 3]
    for name, array in arrays.items():
        np.testing.assert_array_equal(stored[name], array)
        assert stored.describe(name) == (stored[name].shape, stored[name].dtype)


def test_two_tensors_of_the_same_numbers(path, monkeypatch):
    monkeypatch.setattr(checkpoint, "PIECE", 4)
    a = np.arange(9, dtype=np.float32)
    a[5] = np.nan
    late = a.copy()
    late[8] = 0
    checkpoint.save(path, {"a": a, "again": a, "copy": a.copy(), "double": a.astype(float), "late": late,
                           "square": a.reshape(3, 3).copy()})
    stored = checkpoint.Stored(path)
    assert {name for name in stored if stored.same("a", name)} == {"a", "copy", "double", "again"}


@pytest.mark.parametrize("state, metadata, error", [
    ({"a": np.array(["text"])}, None, ValueError), ({"a": np.ones(2, complex)}, None, ValueError),
    ({1: np.ones(2)}, None, ValueError), ({"__metadata__": np.ones(2)}, None, ValueError),
    ({"a": np.ones(2)}, {"step": 7}, ValueError), ({"a": [1.0]}, None, TypeError), ({"\ud800": np.ones(2)}, None, ValueError),
    ({"a": np.ones(2)}, {7: "step"}, ValueError), ({"a": np.ones(2)}, {"minitx.tied": "{}"}, ValueError)])
def test_what_cannot_be_saved_leaves_the_old_file(state, metadata, error, path):
    checkpoint.save(path, {"old": np.ones(1)})
    with pytest.raises(error, match="model.safetensors" if error is ValueError else "a must be"):
        checkpoint.save(path, state, metadata)
    assert os.listdir(path.parent) == [path.name] and list(checkpoint.load(path)) == ["old"]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_write_that_fails_leaves_the_old_file(failing, error, path, monkeypatch):
    def fail(*arguments):
        raise error("stopped")

    checkpoint.save(path, {"old": np.ones(1)})
    with monkeypatch.context() as patch:
        patch.setattr(os, failing, fail)
        with pytest.raises(error, match="stopped"):
            checkpoint.save(path, {"new": np.ones(1)})
    assert os.listdir(path.parent) == [path.name] and list(checkpoint.load(path)) == ["old"]


def test_it_is_written_elsewhere_and_flushed_before_it_appears(path, monkeypatch):
    events, fsync, replace = [], os.fsync, os.replace

    def watched_fsync(file):
        events.append("fsync")
        fsync(file)

    def watched_replace(source, target):
        events.append((Path(source).parent, Path(target), path.exists()))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    checkpoint.save(path, {"a": np.ones(1)})
    assert events == ["fsync", (Path(os.path.realpath(path.parent)), Path(os.path.realpath(path)), False)]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no permission bits")
def test_others_may_read_it_as_any_new_file(path, tmp_path):
    checkpoint.save(path, {"a": np.ones(1)})
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    assert path.stat().st_mode == plain.stat().st_mode


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no permission bits")
def test_a_file_keeps_its_mode(path):
    checkpoint.save(path, {"a": np.ones(1)})
    for mode in 0o600, 0o664, 0o440:
        path.chmod(mode)
        checkpoint.save(path, {"a": np.ones(2)})
        assert path.stat().st_mode & 0o777 == mode and checkpoint.load(path)["a"].shape == (2,)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows asks for a privilege to make links")
def test_a_link_stays_a_link(path, tmp_path):
    target = tmp_path / "elsewhere" / "weights"
    target.parent.mkdir()
    path.symlink_to(target)
    for size in 1, 2:                                               # to nothing yet, then to a file
        checkpoint.save(path, {"a": np.ones(size)})
        assert path.is_symlink() and checkpoint.load(target)["a"].shape == (size,)
        assert os.listdir(target.parent) == ["weights"]


def test_a_very_long_name(tmp_path):
    path = tmp_path / ("n" * 243 + ".safetensors")                  # 255, the longest that file systems take
    try:
        path.touch()
    except OSError:
        pytest.skip("this system takes no path of that length")
    checkpoint.save(path, {"a": np.ones(2)})
    assert checkpoint.load(path)["a"].shape == (2,) and os.listdir(tmp_path) == [path.name]


def test_what_is_no_file_is_left_alone(path, tmp_path):
    """A pipe would be waited for and then be gone, a folder or a link in a circle too."""
    path.mkdir()
    others = [path]
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "circle").symlink_to("circle")
        others += [tmp_path / "pipe", tmp_path / "circle"]
    for other in others:
        for use in checkpoint.load, checkpoint.metadata, lambda path: checkpoint.save(path, {"a": np.ones(1)}):
            with pytest.raises(OSError, match=f"no regular file.*{other.name}"):
                use(other)
    assert sorted(tmp_path.iterdir()) == sorted(others) and path.is_dir()
    assert not any(other.is_file() for other in others) and all(os.path.lexists(other) for other in others)


def test_the_unfinished_file_says_whose_it_is(path, monkeypatch):
    seen = []
    monkeypatch.setattr(os, "fsync", lambda file: seen.extend(os.listdir(path.parent)))
    checkpoint.save(path, {"a": np.ones(1)})
    assert len(seen) == 1 and re.fullmatch(r"\.model\.safetensors\.[0-9a-f]{8}\.tmp", seen[0])


def test_saving_copies_nothing(path):
    state = {str(i): np.ones((1000, 300), np.float32) for i in range(8)}
    tracemalloc.start()
    try:
        checkpoint.save(path, state)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 0.1 * state["0"].nbytes


@pytest.mark.parametrize("use", [lambda path: checkpoint.load(path), lambda path: checkpoint.save(path, {})])
def test_without_safetensors_the_error_names_it(use, path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(ImportError, match="pip install safetensors"):
        use(path)


def test_what_a_file_holds_may_be_saved_as_it_is_read(tmp_path):
    """A lazy mapping makes its arrays one after the other, at addresses that may be those of arrays before."""
    checkpoint.save(tmp_path / "a", {f"x{i}": np.full(1000, i, np.float32) for i in range(9)})
    checkpoint.save(tmp_path / "b", checkpoint.Stored(tmp_path / "a"))
    for i, array in enumerate(checkpoint.load(tmp_path / "b").values()):
        np.testing.assert_array_equal(array, np.full(1000, int(i), np.float32))


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", np.int64, "f8,f8", complex, object()])
def test_what_floats_are_not_read_as(dtype, tmp_path):
    checkpoint.save(tmp_path / "a", {"x": np.ones(2)})
    with pytest.raises(TypeError, match="floats are read as float16, float32 or float64, not as"):
        checkpoint.load(tmp_path / "a", dtype)
