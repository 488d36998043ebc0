"""The steps of a training that may stop at any of them and go on later, from a file that training.py writes."""
import json
import signal
import threading
import time
from pathlib import Path

from minitx import training


class StateError(Exception):
    """A state cannot be gone on from, or cannot be kept; the message says in one line why, and what to do."""


class Steps:
    """The numbers 1 .. n of a training's steps, without those that were taken before.

        with resume.Steps(1000, model, optimiser, "state.safetensors", dict(seed=0, batch=32)) as steps:
            for step in steps:
                ...

    The state is kept in the file at the beginning, every hundred steps and at the end. Where the file is there already,
    the steps go on from it: `done` are behind, and `progress`, a dict for whatever else is to be kept as JSON can say it,
    is filled. settings are what has to be the same for that. Without a file nothing is kept.

    The first Ctrl-C inside the with lets the step end, keeps the state, and ends the loop; `stopped` is True then. The
    second one stops at once. StateError for a file that is another training's, or cannot be read or written; then it
    stays as it was.
    """

    def __init__(self, n, model, optimiser, path=None, settings=None, *, every=100):
        self.n, self.model, self.optimiser, self.every = n, model, optimiser, every
        self.path = None if path is None else Path(path)
        settings = {**(settings or {}), "steps": n}
        self.settings = json.loads(json.dumps(settings, default=training.as_python))    # as the file says it
        self.done, self.progress, self.kept = 0, {}, None               # kept: the step whose state is in the file
        self.pressed, seconds = False, 0.0
        if self.path is not None and self.path.exists():
            seconds = self._go_on()
        self._begun = time.perf_counter() - seconds

    def _go_on(self):
        try:
            saved = training.progress(self.path)
            kinds = {"settings": dict, "step": int, "seconds": (int, float), "progress": dict}
            if not all(isinstance(saved.get(name), kind) for name, kind in kinds.items()):
                raise ValueError(f"{self.path}: holds a training without settings, step, seconds and progress: give "
                                 "another file")
            for key in {**self.settings, **saved["settings"]}:
                ours, theirs = self.settings.get(key), saved["settings"].get(key)
                if ours != theirs:
                    raise ValueError(f"{self.path}: holds another training, whose {key} is {theirs}, not {ours}; give "
                                     "another file, or what it was begun with")
            loaded = training.load(self.path, self.model, self.optimiser)
            if loaded != saved:
                raise ValueError(f"{self.path}: was replaced while it was read; begin again")
        except OSError as error:
            raise StateError(f"cannot read {self.path} ({error.strerror or error}): give another file") from error
        except (ValueError, ImportError) as error:
            raise StateError("; ".join(str(error).split("\n  "))) from error
        self.done = self.kept = saved["step"]
        self.progress = saved["progress"]
        return saved["seconds"]

    @property
    def seconds(self):
        """How many seconds it has trained, the pauses between its parts not counted."""
        return time.perf_counter() - self._begun

    @property
    def stopped(self):
        """Whether Ctrl-C has ended it early."""
        return self.pressed and self.done < self.n

    def __str__(self):
        if self.path is None:
            return "the state is not kept"
        return f"goes on at step {self.done} of {self.path}" if self.done else f"the state is kept in {self.path}"

    def __enter__(self):
        self._before = signal.getsignal(signal.SIGINT)
        if self._before is signal.default_int_handler and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *error):
        if signal.getsignal(signal.SIGINT) == self._press:
            signal.signal(signal.SIGINT, self._before)

    def _press(self, *signal_and_frame):
        if self.pressed:
            raise KeyboardInterrupt
        self.pressed = True

    def __iter__(self):
        if self.done < self.n:
            self._keep()                                    # better known now than after a hundred steps
        while self.done < self.n and not self.pressed:
            yield self.done + 1
            self.done += 1
            if self.done % self.every == 0 or self.done == self.n or self.pressed:
                self._keep()

    def _keep(self):
        if self.path is None:
            return
        try:
            training.save(self.path, self.model, self.optimiser, step=self.done, seconds=self.seconds,
                          settings=self.settings, progress=self.progress)
        except ImportError as error:
            raise StateError(str(error)) from error
        except OSError as error:
            there = self.kept is not None and self.path.exists()
            raise StateError(f"cannot write {self.path} ({error.strerror or error}); "
                             f"{f'the state of step {self.kept} is kept there' if there else 'nothing is kept'}: "
                             "make room, or give another file") from error
        self.kept = self.done
