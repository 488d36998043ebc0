"""A deadline for code that may never end, as a loop with a planted fault may not."""
import contextvars
import ctypes
import threading


class TooLong(Exception):
    """It did not end in time."""


def within(seconds, work):
    """What work() returns or raises. TooLong if that takes longer than so many seconds (None: wait for ever).

    It runs in a thread of its own, in a copy of this one's context, so that what is meant to stop it can never arrive
    here. Python stops between two of its steps: a loop inside one call of C runs on, unheeded, until it ends.
    """
    results, errors = [], []

    def run():
        try:
            results.append(context.run(work))
        except BaseException as error:                      # sys.exit() too: to be raised where somebody waits for it
            errors.append(error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    late = thread.is_alive()
    for _ in range(20):
        if thread.is_alive():                               # still: a bare `except:` in a loop swallows an exception
            _stop(thread)
            thread.join(0.05)
    if late:
        raise TooLong(f"no end within {seconds:.3g} seconds")
    if errors:
        raise errors[0]
    return results[0]


def _stop(thread):
    """Raise SystemExit in the thread: the one exception that a thread may end with and nobody is told."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
