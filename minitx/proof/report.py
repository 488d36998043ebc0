"""What ``python -m minitx check`` prints: every op on its cases, held against all that can say what it should give;
then the faults that were planted in the ops, and who caught them.

A row shows for each way the worst error and the time it took, or a dash where it has nothing to say. The error of
finite differences is a share of their tolerance, 1 being the limit; the others (see ways.py) are relative.
"""
import difflib
import json
import time

from minitx import backend, ops
from minitx.proof import mutations
from minitx.proof.cases import cases, edges
from minitx.proof.measure import TOLERANCE, measure
from minitx.proof.user import CannotCheck, ops_in


def run(names=(), *, in_full=False, json_file=None, device=None):
    """Check the named ops and those in the named files, or all ops; print; return the exit status, 0 or 1.

    in_full     list the classic faults, and those that change nothing with the reason; without a reason they fail
    json_file   write everything to this file too
    device      where the ops run: "cpu", "cuda" or "cuda:1"; None is the default device

    CannotCheck, in one line, for a name that is no op, for a file without any, and for a device that cannot be had.
    """
    try:
        device = backend.check_device(device)
    except (ValueError, RuntimeError) as error:
        raise CannotCheck(str(error)) from None
    with backend.on_device(device):
        return _run(names, in_full, json_file, device)


def _run(names, in_full, json_file, device):
    start = time.perf_counter()
    if json_file is not None:
        open(json_file, "a", encoding="utf-8").close()      # where it cannot be written, say so at once
    chosen = [_known(name) for name in names if not name.endswith(".py")] if names else None
    files = {name: ops_in(name) for name in names if name.endswith(".py")}

    print(f"every op runs on {device}")
    print(f"{'op':28}{'cases':>6}  " + "".join(f"{way:>16}" for way in TOLERANCE))
    smooth, sharp = cases(chosen), edges(chosen)
    for name in list(smooth)[:1]:
        measure(ops.OPS[name], smooth[name])                # loads PyTorch and the stored values, in nobody's time
    rows = [_shown(measure(ops.OPS[name], smooth[name], sharp[name])) for name in smooth]
    scores = []
    if smooth and not _failures(rows):
        scores.append(mutations.score(smooth, sharp))
    own = []
    for path, found in files.items():
        print(f"\n{path}")
        for cls, (calls, source) in found.items():
            print(f"  {cls.__name__}: {source}")
            rows.append(_shown(measure(cls, calls)))
            if not rows[-1].failures:
                own.append((cls.name, mutations.score({cls.name: calls}, classics=())))

    print(_summary(rows, device))
    for score in scores:
        print("\n" + mutations.text(score, in_full))
    for name, score in own:
        print("\n" + mutations.user_text(name, score))
    if _failures(rows):
        print("no faults were planted where a check fails")
    print(f"\n{time.perf_counter() - start:.0f} s in all")
    if json_file is not None:
        with open(json_file, "w", encoding="utf-8") as file:
            json.dump(_plain(rows, scores, own, device), file, indent=1)
    wrong = any(score.holes or in_full and (score.unexplained or score.stale) for score in scores)
    return 1 if wrong or _failures(rows) else 0


def _known(name):
    if name not in ops.OPS:
        near = difflib.get_close_matches(name, ops.OPS, 3)
        raise CannotCheck(f"there is no op {name!r}; " + (f"did you mean {' or '.join(near)}?" if near else
                          f"the ops are {', '.join(ops.OPS)}"))
    return name


def _failures(rows):
    return [failure for row in rows for failure in row.failures]


def _shown(row):
    cells = "".join(f"{'-':>16}" if cell is None else f"{cell.error:8.1e}{1000 * cell.seconds:5.0f} ms"
                    for cell in row.cells.values())
    print(f"{row.op:28}{row.cases:>6}  {cells}" + ("  FAILED" if row.failures else ""), flush=True)
    return row


def _summary(rows, device):
    lines = [""]
    for way, tolerance in TOLERANCE.items():
        found = [(row.cells[way].error, row.op) for row in rows if row.cells[way] is not None]
        if found:
            lines.append(f"{way:12} ops: {len(found):3}, worst error {max(found)[0]:.1e} ({max(found)[1]}), "
                         f"allowed {tolerance:.0e}")
    lines += ["", *_first_failures(rows)]
    failed = [row.op for row in rows if row.failures]
    lines.append(f"{len(rows)} op{'s' * (len(rows) != 1)}, {sum(row.cases for row in rows)} cases on {device}: "
                 + (f"FAILED: {', '.join(failed)}" if failed else "all right"))
    return "\n".join(lines)


def _first_failures(rows):
    """For every op and way the first case that failed, and how many more did."""
    groups = {}
    for failure in _failures(rows):
        groups.setdefault((failure.op, failure.way), []).append(failure)
    for first, *others in groups.values():
        yield f"{first}" + (f"\n    and {len(others)} other case{'s' * (len(others) > 1)}" if others else "")
        yield ""


def _plain(rows, scores, own, device):
    """Everything as what JSON knows."""
    return {"device": device, "tolerance": TOLERANCE,
            "ops": [{"op": row.op, "cases": row.cases, "failures": [failure._asdict() for failure in row.failures],
                     "ways": {way: cell and cell._asdict() for way, cell in row.cells.items()}} for row in rows],
            "faults": [mutations.plain(score) for score in (*scores, *(score for _, score in own))]}
