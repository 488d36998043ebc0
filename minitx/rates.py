"""How fast a run is: without the steps in which kernels compile, and beside the CPU. The demos print it."""
import time

from minitx import backend

COMPILING = 3                   # so many steps at the beginning of a run on a GPU compile kernels
SIZES = [4 ** i for i in range(6)]
LONG = 0.5                      # seconds: the CPU is tried with no larger size than the first that takes so long


def left_out():
    """How many steps at the beginning a rate leaves out: those in which kernels compile, on the CPU none."""
    return 0 if backend.default_device() == "cpu" else COMPILING


class Rate:
    """Steps a second since it was made or restarted, on a GPU without the first steps of all, in which kernels compile."""

    def __init__(self):
        self.skip = left_out()
        self.restart()

    def restart(self):
        self.steps, self.begun = 0, time.perf_counter()

    def step(self):
        """A step has been taken."""
        self.steps += 1
        if self.skip:
            self.skip -= 1
            self.restart()

    @property
    def per_second(self):
        """None where no step counts yet."""
        return self.steps / max(time.perf_counter() - self.begun, 1e-9) if self.steps else None


def warm(bar):
    """Called with tqdm's bar in every step: when kernels have compiled, it forgets how long that took."""
    if left_out() and not hasattr(bar, "warm") and bar.n - bar.initial >= COMPILING:
        bar.initial, bar.start_t, bar.warm = bar.n, time.time(), True
        bar.last_print_t = bar.start_t                                  # else it takes itself for one never shown


def compare(model, work, size, what="batch", flag="leave out --device"):
    """Print, at the end of a run on a GPU, what a step takes there and on the CPU, and the size from which the GPU wins.

    model      of the run; it goes to the CPU, and back
    work(n)    takes a step with n rows, wherever the model and the default device are
    size       the rows of this run, called `what`
    flag       what to do where that is too few

    The first steps, in which kernels compile, do not count. On the CPU nothing is printed.
    """
    device = backend.default_device()
    if device == "cpu":
        return
    times = both(work, sorted({*SIZES, size}), model)
    here, first = max(n for n in times if n <= size), first_win(times)
    print(f"with {what} {here} a step takes {1000 * times[here][1]:.3g} ms on {device}, {1000 * times[here][0]:.3g} ms on "
          f"the CPU; rates leave out the first {COMPILING} steps, in which kernels compile")
    if first is None:
        print(f"the CPU wins up to {what} {max(times)}, the largest tried: leave out --device")
    elif first <= size:
        print(f"the GPU wins from {what} {first} on, so here: --device {device.partition(':')[0]}")
    else:
        print(f"the GPU wins from {what} {first} on: {flag}")


def both(work, sizes, model=None):
    """{size: (seconds on the CPU, on the default device)} of work(size), up to the first that takes the CPU long."""
    device, times = backend.default_device(), []
    for side in ("cpu", device):
        if model is not None:
            model.zero_grad()
            model.to(side)
        with backend.on_device(side):
            times.append(_seconds(work, sizes))
        sizes = list(times[0])
    return {n: (times[0][n], times[1][n]) for n in sizes}


def first_win(times):
    """The size from which on the second side of `both` wins; None where it loses even the largest."""
    wins = [n for n in times if all(there <= here for m, (here, there) in times.items() if m >= n)]
    return min(wins, default=None)


def _seconds(work, sizes):
    """{size: the least seconds of a few steps}, up to the first size for which that is long."""
    times = {}
    for n in sizes:
        tries = []
        for _ in range(1 + COMPILING):
            backend.synchronise()
            begun = time.perf_counter()
            work(n)
            backend.synchronise()
            tries.append(time.perf_counter() - begun)
            if tries[-1] > LONG and backend.default_device() == "cpu":
                break
        times[n] = min(tries)
        if times[n] > LONG and backend.default_device() == "cpu":
            break
    return times
