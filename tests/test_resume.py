"""A training in parts: where it stops, what it keeps, how it goes on, and what it refuses to go on from."""
import errno
import signal
import sys
import threading

import numpy as np
import pytest

import minitx as mt
from minitx import checkpoint, nn, ops, optim, resume, training

pytest.importorskip("safetensors")


@pytest.fixture(autouse=True)
def ctrl_c():
    """Ctrl-C as at a terminal, whatever started the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler, "the handler was not put back"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state.safetensors"


def begin(n, path=None, settings=None, **options):
    mt.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    return resume.Steps(n, model, optim.AdamW(model.parameters(), lr=0.01), path, settings, **options)


def take(steps, stop_at=None, times=1):
    """The steps, Ctrl-C in the middle of one of them; the numbers and losses since the very beginning."""
    log, rng = steps.progress.setdefault("log", []), mt.backend.generator()
    with steps:
        for step in steps:
            x = rng.standard_normal((5, 3), dtype=np.float32)
            loss = ops.cross_entropy(steps.model(x), rng.integers(2, size=5))
            for _ in range(times if step == stop_at else 0):
                signal.raise_signal(signal.SIGINT)
            steps.optimiser.zero_grad()
            loss.backward()
            steps.optimiser.step()
            log.append([step, loss.item()])
    return log


def contents(path):
    """All that is in a file, but for the seconds."""
    told = training.progress(path)
    told.pop("seconds")
    about = mt.checkpoint.metadata(path)["training"].partition('"progress"')[0]
    return {name: array.tobytes() for name, array in checkpoint.load(path).items()}, about, told


def test_without_a_file(tmp_path):
    steps = begin(4)
    assert [step for step, _ in take(steps)] == [1, 2, 3, 4] and steps.done == 4 and not steps.stopped
    assert not list(tmp_path.iterdir()) and str(steps) == "the state is not kept"
    stopped = begin(4)
    take(stopped, stop_at=2)
    assert stopped.stopped and stopped.done == 2


@pytest.mark.parametrize("stops", [[50], [1], [99], [10, 11, 64]])
def test_in_parts_as_in_one(stops, tmp_path):
    whole = take(begin(100, tmp_path / "whole", every=7))
    for stop in stops:
        steps = begin(100, tmp_path / "parts", every=7)
        take(steps, stop)
        assert steps.stopped and steps.done == stop
    steps = begin(100, tmp_path / "parts", every=7)
    assert steps.done == stops[-1] and str(steps) == f"goes on at step {stops[-1]} of {tmp_path / 'parts'}"
    assert take(steps) == whole and not steps.stopped
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_when_it_is_kept(path, monkeypatch):
    saved, save = [], training.save

    def spied(path, *args, **told):
        saved.append(told["step"])
        save(path, *args, **told)

    monkeypatch.setattr(training, "save", spied)
    steps = begin(25, path, every=10)
    assert str(steps) == f"the state is kept in {path}"
    take(steps)
    assert saved == [0, 10, 20, 25] and steps.kept == 25
    finished = begin(25, path, every=10)
    assert take(finished) == steps.progress["log"] and finished.done == 25 and saved == [0, 10, 20, 25]
    take(begin(250, path.with_name("long")))
    assert saved[4:] == [0, 100, 200, 250]


def test_an_error_keeps_what_was_kept(path):
    with pytest.raises(ZeroDivisionError), begin(9, path, every=2) as steps:
        for step in steps:
            1 / (step - 6)
    assert begin(9, path, every=2).done == 4


def test_ctrl_c_at_the_last_step_stops_nothing(path):
    steps = begin(3, path)
    take(steps, stop_at=3)
    assert steps.done == 3 and not steps.stopped


def test_ctrl_c_before_the_first_step(path):
    with begin(3, path) as steps:
        signal.raise_signal(signal.SIGINT)
        assert list(steps) == [] and steps.stopped and path.exists()


def test_the_second_ctrl_c_stops_at_once(path):
    with pytest.raises(KeyboardInterrupt):
        take(begin(9, path), stop_at=4, times=2)
    assert begin(9, path).done == 0                                     # the step it broke is not kept


def test_a_handler_of_ones_own_stays():
    pressed = []
    signal.signal(signal.SIGINT, lambda *_: pressed.append(1))
    steps = begin(3)
    take(steps, stop_at=2)
    assert pressed == [1] and steps.done == 3
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_in_a_thread():
    steps = begin(3)
    thread = threading.Thread(target=take, args=(steps,))
    thread.start()
    thread.join()
    assert steps.done == 3


def test_seconds_add_up(path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(resume.time, "perf_counter", lambda: now[0])
    with begin(2, path) as steps:
        for _ in steps:
            now[0] += 3
    now[0] += 1000
    assert begin(2, path).seconds == 6


# ---- what is refused -------------------------------------------------------------------------------------------------

def refused(path, says, n=5, settings=None):
    """StateError in one line; the file is as it was."""
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(resume.StateError) as caught:
        take(begin(n, path, settings))
    assert says in str(caught.value) and "\n" not in str(caught.value), str(caught.value)
    assert before is None or path.read_bytes() == before


def test_other_settings(path):
    take(begin(5, path, dict(seed=1, betas=(0.9, 0.99), rate=np.float32(0.1))))
    assert begin(5, path, dict(seed=1, betas=(0.9, 0.99), rate=np.float32(0.1))).done == 5
    again = dict(seed=1, betas=(0.9, 0.99), rate=float(np.float32(0.1)))
    refused(path, f"{path}: holds another training, whose seed is 1, not 2; give another file, or what it was begun with",
            settings=again | dict(seed=2))
    refused(path, "whose betas is [0.9, 0.99], not [0.9, 0.999]", settings=again | dict(betas=(0.9, 0.999)))
    refused(path, "whose rate is 0.1", settings=dict(seed=1, betas=(0.9, 0.99)))
    refused(path, "whose more is None, not 3", settings=again | dict(more=3))
    refused(path, "whose steps is 5, not 6", n=6, settings=again)


def test_other_files(path):
    steps = begin(5)
    checkpoint.save(path, steps.model.state_dict())
    refused(path, "holds no state of a training")
    training.save(path, steps.model, steps.optimiser, step=3)
    refused(path, f"{path}: holds a training without settings, step, seconds and progress: give another file")
    training.save(path, steps.model, steps.optimiser, step=3, seconds=1.0, settings=3, progress={})
    refused(path, f"{path}: holds a training without settings, step, seconds and progress: give another file")
    path.write_bytes(b"something else")
    refused(path, "cannot be read as safetensors")
    refused(path.parent, f"cannot read {path.parent}")


def test_a_file_that_is_replaced_between_the_check_and_the_load(path, monkeypatch):
    take(begin(5, path))
    load = training.load
    monkeypatch.setattr(training, "load", lambda *args: load(*args) | {"step": 4})
    refused(path, f"{path}: was replaced while it was read; begin again")


def test_progress_that_is_no_number_is_gone_on_from(path):
    steps = begin(5, path)
    steps.progress["loss"] = float("nan")
    take(steps)
    assert np.isnan(begin(5, path).progress["loss"])


def test_another_model_in_one_line(path):
    steps = begin(5, path)
    take(steps)
    model = nn.Linear(3, 4)
    with pytest.raises(resume.StateError, match="nothing was loaded; wrong") as caught:
        resume.Steps(5, model, optim.AdamW(model.parameters()), path)
    assert "\n" not in str(caught.value)


def test_no_place_to_write(path, monkeypatch):
    """Known before the first step where it can be; later it says what is kept."""
    refused(path / "nowhere" / "state", "); nothing is kept: make room, or give another file")

    save = training.save

    def full(*args, step, **told):
        if step == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(*args, step=step, **told)

    monkeypatch.setattr(training, "save", full)
    for wanted in "the state of step 2 is kept there", "nothing is kept":
        with pytest.raises(resume.StateError) as caught, begin(5, path, every=2) as steps:
            for step in steps:
                if step == 3 and wanted == "nothing is kept":
                    path.unlink()
        assert str(caught.value) == (f"cannot write {path} (No space left on device); {wanted}: make room, or give another "
                                     "file")
        assert not path.exists() or training.progress(path)["step"] == 2


def test_missing_library_is_named(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    refused(path, "pip install safetensors")
    assert len(take(begin(3))) == 3
    path.write_bytes(b"")
    refused(path, "pip install safetensors")
