"""How this folder measures: two sides in turns, A B A B, in one run and with the same number of threads.

A figure is the median of the pairs' ratios, beside it the middle half of them: a machine that is busy for a while slows
both sides of a pair. Both are warm before the first pair, and a measurement repeats what it measures until that takes a
tenth of a second.
"""
import argparse
import contextlib
import dataclasses
import importlib.util
import json
import math
import os
import platform
import statistics
import sys
import time
from pathlib import Path

VERSIONS = {"torch": "torch==2.13.0"}
LEAST = 0.1             # seconds that a measurement takes at least
REST = 0.05             # before each on several threads: the other side's threads go on spinning for a while

HEADER = (f"{'':46} {'threads':>7} {'minitx':>9} {'other':>9} {'':2} {'ratio':>6} {'middle half':>12} {'mark':>8}"
          f"  share of the limit")


@dataclasses.dataclass
class Row:
    """One line of a table: medians of both sides in `unit`, the ratio of ours to theirs, its quartiles, and its marks."""
    name: str
    threads: int | str                  # or what else tells rows of one name apart
    ours: float | None = None
    theirs: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    mark: float | None = None           # the ratio should be at most that; None: it is stated
    share: float | None = None          # of the machine's limit
    limit: str | None = None            # which limit: "product" or "memory"
    least: float | None = None          # the share should be at least that
    unit: str = "ms"
    note: str = ""

    @property
    def missed(self):
        """Whether it has a mark and misses it."""
        return (self.mark is not None and self.ratio is not None and self.ratio > self.mark
                or self.least is not None and self.share is not None and self.share < self.least)

    def cells(self):
        """The figures as texts: ours, theirs, ratio, middle half, mark, share of the limit and what else is to be said."""
        def number(x):
            return "" if x is None else f"{x:.3g}" if x < 100 else f"{x:.0f}"
        half = "" if self.low is None else f"{self.low:.2f} to {self.high:.2f}"
        mark = "stated" if self.mark is None else f"{self.mark:.2f}"
        share = "" if self.share is None else f"{self.share:.0%} of {self.limit}"
        share += "" if self.least is None else f" (mark {self.least:.0%})"
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        said = "; ".join(filter(None, (share, self.note, "MISSED" if self.missed else "")))
        return number(self.ours), number(self.theirs), ratio, half, mark, said

    def __str__(self):
        ours, theirs, ratio, half, mark, said = self.cells()
        return (f"{self.name:46} {self.threads:>7} {ours:>9} {theirs:>9} {self.unit:2} {ratio:>6} {half:>12} {mark:>8}"
                f"  {said}").rstrip()


def seconds(call, times=1):
    """How long one of so many calls takes, on average."""
    begun = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begun) / times


def warm(call, clock=None, least=LEAST):
    """Call until it is warm; how many calls make a measurement."""
    clock = clock or seconds
    call()
    once = clock(call)
    return max(1, math.ceil(least / max(min(once, clock(call)) if once < least else once, 1e-7)))


def paired(ours, theirs, pairs, threads=1, clocks=None, least=LEAST):
    """The two calls in turns: what `summary` makes of their milliseconds. clocks: what measures each, as `seconds` does."""
    ours_clock, their_clock = clocks or (seconds, seconds)
    sides = [(call, clock, warm(call, clock, least)) for call, clock in ((ours, ours_clock), (theirs, their_clock))]
    timed = []
    for _ in range(pairs):
        for call, clock, times in sides:
            time.sleep(REST if threads > 1 else 0)
            timed.append(1000 * clock(call, times))
    return summary(zip(timed[::2], timed[1::2]))


def summary(pairs, scale=1.0):
    """Of pairs (ours, theirs): both medians, the median of their ratios times scale, and its quartiles."""
    pairs = list(pairs)
    low, ratio, high = statistics.quantiles([scale * a / b for a, b in pairs], n=4, method="inclusive")
    ours, theirs = map(statistics.median, zip(*pairs))
    return dict(ours=ours, theirs=theirs, ratio=ratio, low=low, high=high)


def cores():
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def absent(*libraries):
    """Those of the libraries that are not installed."""
    return [name for name in libraries if importlib.util.find_spec(name) is None]


def need(*libraries):
    """Where some of the libraries are not installed, say how to get them and end with status 2."""
    if lacking := absent(*libraries):
        print(f"this benchmark needs {' and '.join(lacking)}: pip install "
              f"{' '.join(VERSIONS.get(name, name) for name in lacking)}", file=sys.stderr)
        sys.exit(2)


@contextlib.contextmanager
def pinned(threads):
    """Inside it NumPy's BLAS, and so minitx, uses so many threads, and PyTorch too, if it is loaded."""
    need("threadpoolctl")
    from threadpoolctl import threadpool_limits
    with threadpool_limits(threads):
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(threads)       # a limit alone does not reach all of its pools
        yield


def marks(threads, one, all_cores):
    """Whichever of the two marks belongs to so many threads; None where neither does."""
    return one if threads == 1 else all_cores if threads == cores() else None


def options(description, names=(), pairs=20, threads=None):
    """The parser of the options that all scripts share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=at_least(1), nargs="+", metavar="N", default=threads or sorted({1, cores()}),
                        help="by default 1 and all")
    parser.add_argument("--pairs", type=at_least(2), default=pairs, metavar="N", help="how many pairs are measured")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them there")
    if names:
        parser.add_argument("--only", nargs="+", choices=list(names), default=list(names), metavar="NAME",
                            help=", ".join(names))
    return parser


def at_least(least):
    def whole(text):
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is below {least}")
        return int(text)
    return whole


def machine():
    """What was measured with."""
    loaded = {name: sys.modules[name].__version__ for name in ("minitx", "numpy", "torch") if name in sys.modules}
    return dict(python=platform.python_version(), system=f"{platform.system()} {platform.machine()}", cores=cores(), **loaded)


def plot(rows, file):
    """The ratios with their middle halves, one line each, and a stroke where a mark is."""
    import matplotlib.figure
    rows = [row for row in rows if row.ratio is not None][::-1]
    figure = matplotlib.figure.Figure(figsize=(9, 1 + 0.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(1, color="0.7")
    for y, row in enumerate(rows):
        axes.plot([row.low, row.high], [y, y], color="C0", alpha=0.5)
        axes.plot(row.ratio, y, "o", color="C3" if row.missed else "C0")
        if row.mark is not None:
            axes.plot(row.mark, y, "|", color="black", markersize=12)
    axes.set_yticks(range(len(rows)), [f"{row.name}, {row.threads}" for row in rows])
    axes.set_xlim(left=0)
    axes.set_xlabel("minitx over the other: dots are medians, lines the middle half, strokes the marks")
    figure.savefig(file, dpi=120)


def report(measured, args, plot=plot):
    """Print every Row as it comes, keep them where the options say, and plot(rows, file) them. The list of them."""
    print(HEADER, flush=True)
    rows = []
    for row in measured:
        print(row, flush=True)
        rows.append(row)
    if args.json:
        kept = dict(rows=[dataclasses.asdict(row) for row in rows], machine=machine())
        args.json.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    if args.plot:
        plot(rows, args.plot)
    return rows
