"""Whether ops are recorded: per thread, and switched off by no_grad."""
import contextlib
import functools
import inspect
import threading


class _Mode(threading.local):
    recording = True
    outer = ()                          # what recording was outside each no_grad that this thread is in


mode = _Mode()


class no_grad(contextlib.ContextDecorator):
    """Inside it nothing is recorded: ``with no_grad():`` or ``@no_grad()``. Per thread, and undone by an exception too."""

    def __enter__(self):
        mode.outer += (mode.recording,)
        mode.recording = False
        return self

    def __exit__(self, *error):
        *outer, mode.recording = mode.outer
        mode.outer = tuple(outer)

    def __call__(self, function):
        """The function, or generator function, with nothing recorded while it runs."""
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
