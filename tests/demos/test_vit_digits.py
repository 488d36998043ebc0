"""The digits, how they are split and moved, and a training small enough for a test."""
import importlib.util
from pathlib import Path

import numpy as np
import pytest

DEMO = Path(__file__).parents[2] / "demos" / "vit_digits.py"


@pytest.fixture
def demo(monkeypatch, tmp_path):
    """The demo as a module, which trains a small model for a few steps only, in an empty folder."""
    spec = importlib.util.spec_from_file_location("vit_digits", DEMO)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "STEPS", 60)
    monkeypatch.setattr(module, "MODEL", module.MODEL | dict(hidden_size=32, num_hidden_layers=1))
    monkeypatch.chdir(tmp_path)
    return module


def test_digits(demo):
    images, digits = demo.read_digits()
    assert images.shape == (1797, 1, 8, 8) and images.dtype == np.float32
    assert images.min() == 0 and images.max() == 1
    assert np.bincount(digits).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert digits[:10].tolist() == list(range(10))
    assert (16 * images[0, 0, 0]).tolist() == [0, 0, 5, 13, 9, 1, 0, 0]                     # the first image is a 0


def test_every_image_is_tested_once(demo):
    splits = [demo.split_of(1797, number) for number in range(5)]
    assert sorted(np.concatenate([test for _, test in splits]).tolist()) == list(range(1797))
    for train, test in splits:
        assert len(test) in (359, 360)
        assert sorted(np.concatenate([train, test]).tolist()) == list(range(1797))
    assert (splits[0][1] != np.arange(360)).any()
    assert all((again == test).all() for again, test in zip(demo.split_of(1797, 3), splits[3]))


def test_moved(demo):
    """Every one of the nine moves happens, and nothing else does."""
    images = np.zeros((400, 1, 8, 8), np.float32)
    images[:, :, 3, 4] = 1
    images[:, :, 0, 0] = 0.5                                                                # leaves or moves inwards
    out = demo.moved(images, np.random.default_rng(0))
    assert out.shape == images.shape and out.dtype == images.dtype
    _, _, rows, columns = np.nonzero(out == 1)
    assert len(rows) == 400
    assert set(zip(rows.tolist(), columns.tolist())) == {(r, c) for r in (2, 3, 4) for c in (3, 4, 5)}
    for image, down, across in zip(out[:, 0], rows - 3, columns - 4):
        inside = down >= 0 and across >= 0
        assert image.sum() == (1.5 if inside else 1) and (not inside or image[down, across] == 0.5)


def test_nearest_neighbour(demo):
    images = np.random.default_rng(0).random((20, 1, 8, 8), np.float32)
    digits = np.arange(20) % 10
    near = images[::-1] + np.float32(0.01)
    assert (demo.nearest_neighbour(images, digits, near) == digits[::-1]).all()


def test_learns_and_shows(demo, capsys):
    """Sixty steps are enough to be better than a guess; everything is printed, the mean near the end."""
    assert demo.main(["--split", "2", "--seed", "1"]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0].startswith("split 2   ViT ") and "nearest neighbour 98.89%" in lines[0]
    assert "read as" in printed.out and "read right" in printed.out and "/60 [" in printed.err
    assert lines[-2].startswith("mean of 1: ViT ") and lines[-2].endswith("nearest neighbour 98.89%")
    assert float(lines[-2].split()[4].rstrip("%,")) > 30
    demo.main(["--split", "2", "--seed", "1"])
    assert capsys.readouterr().out.splitlines()[-2] == lines[-2]                            # the seed decides


def test_look(demo):
    """The gaze is a share of attention for each patch; looking leaves no tape."""
    images, digits = demo.read_digits()
    model = demo.models.ViT(demo.models.ViTConfig(**demo.MODEL)).eval()
    answers, gaze = demo.look(model, images[:5])
    rows, columns = model.patches.grid
    assert answers.shape == (5,) and gaze.shape == (5, rows, columns)
    _, weights = model(demo.mt.tensor(images[:5]), return_weights=True)
    to_itself = weights[-1].numpy()[:, :, 0, 0].mean(axis=1)
    np.testing.assert_allclose(gaze.sum(axis=(1, 2)) + to_itself, 1, atol=1e-6)
    assert demo.enlarged(gaze[0], images[0, 0]).shape == (8, 8) and demo.enlarged(gaze[0], images[0, 0]).max() == 1


def test_text(demo):
    square = np.array([[0.0, 1.0], [0.5, 0.0]])
    assert demo.text(square, square) == "  @@   |     @@\n==     |   ==  "


def test_picture(demo, capsys):
    pytest.importorskip("matplotlib")
    demo.STEPS = 10
    assert demo.main(["--split", "0", "--out", "it.png"]) == 0
    assert Path("it.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_refused(demo, capsys, monkeypatch):
    for arguments, says in ((["--seed", "-1"], "give 0 or more"), (["--device", "tpu"], "'cpu', 'cuda'"),
                            (["--out", "missing/it.png"], "cannot write missing")):
        assert demo.main(arguments) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1 and lines[0].startswith("vit_digits: ") and says in lines[0], lines
    monkeypatch.setattr(demo, "DATA", Path("nowhere.csv.gz"))
    assert demo.main([]) == 2 and "cannot read nowhere.csv.gz" in capsys.readouterr().err
