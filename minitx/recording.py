"""How ops run, for each thread: whether they are recorded (no_grad), and whether faster twins stand in (plain_ops)."""
import contextlib
import functools
import inspect
import os
import threading


def all_plain():
    """Whether MINITX_PLAIN keeps this process to the plain ops. What counts is what it says when the first op runs."""
    return os.environ.get("MINITX_PLAIN", "0") not in ("", "0")


class _Twins(dict):
    """{op: its twin}, empty until the first op is looked up: then the wing of twins is loaded."""

    def get(self, op):
        if not all_plain():
            from minitx import fused
            fused.load(self)
        self.get = super().get
        return self.get(op)


class _Mode(threading.local):
    recording = True
    twins = _Twins()
    outer = ()                          # (name, value): what was outside each of the contexts that this thread is in


mode = _Mode()
ran = {"plain": 0, "twins": 0}          # how many ops of each kind this process has run


def ran_as():
    """A line on how many of the ops that this process has run were faster twins: a demo ends with it."""
    total = sum(ran.values())
    if all_plain():
        return f"ops: {total:,}, all as they stand in minitx/ops (MINITX_PLAIN is set)"
    return (f"ops: {ran['twins']:,} of {total:,} ran as faster twins (minitx/fused); "
            "with MINITX_PLAIN=1 all run as they stand in minitx/ops")


class _Switch(contextlib.ContextDecorator):
    """Something of `mode` set for the time of a block, a function or a generator function."""

    name: str
    inside: object

    def __enter__(self):
        mode.outer += ((self.name, getattr(mode, self.name)),)
        setattr(mode, self.name, self.inside)
        return self

    def __exit__(self, *error):
        last = max(i for i, (name, _) in enumerate(mode.outer) if name == self.name)
        setattr(mode, *mode.outer[last])
        mode.outer = mode.outer[:last] + mode.outer[last + 1:]

    def __call__(self, function):
        """The function, or generator function, run inside."""
        if not inspect.isgeneratorfunction(function):
            return super().__call__(function)

        @functools.wraps(function)
        def generate(*inputs, **options):
            generator = function(*inputs, **options)
            while True:
                with self:
                    item = next(generator, mode)
                if item is mode:
                    return
                yield item                                              # here the caller's own mode holds
        return generate


class no_grad(_Switch):
    """Inside it nothing is recorded: ``with no_grad():`` or ``@no_grad()``. Per thread, and undone by an exception too."""
    name, inside = "recording", False


class plain_ops(_Switch):
    """Inside it every op runs as it stands in minitx/ops, none as its faster twin: ``with plain_ops():`` or
    ``@plain_ops()``. Per thread, and undone by an exception too. MINITX_PLAIN=1 does it for the whole process."""
    name = "twins"
    inside: dict = {}
