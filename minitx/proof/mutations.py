"""The mutation score: faults planted by machine in both halves of every op, and how many of them the checks find.

A fault that no check finds is a *hole* if it changes a result on some case. If it changes nothing on any case it is a
*survivor*, and survivors.py has to say why that is no fault.
"""
import ast
import sys
import time
from typing import NamedTuple

from minitx.proof.classic import CLASSIC
from minitx.proof.faults import name_of, op_classes, plant, unharmed
from minitx.proof.judge import Verdict, judge
from minitx.proof.survivors import SURVIVORS
from minitx.proof.ways import Known

HALVES = ("forward", "backward")


class Score(NamedTuple):
    """judged     (Fault, Verdict) of every fault that was planted
    classics      (Classic, Verdict) of those with a name
    seconds       how long it took
    files         the files of which all ops were tried, so that a reason whose survivor is gone can be told
    """
    judged: list
    classics: list
    seconds: float
    files: tuple

    @property
    def holes(self):
        """Faults that change a result and are found by nothing; classic ones too."""
        return [fault for fault, v in self.judged + self.classics if v.changed and not (v.raised or v.caught)]

    @property
    def survivors(self):
        """(fault, reason or None) of each that changes nothing."""
        return [(fault, reason(fault)) for fault, v in self.judged if not (v.changed or v.raised or v.caught)]

    @property
    def unexplained(self):
        """Survivors without a reason."""
        return [fault for fault, why in self.survivors if why is None]

    @property
    def stale(self):
        """The reasons whose survivor does not exist any more."""
        used = {(fault.file, meaning(slip_of(fault))) for fault, _ in self.survivors}
        return [f"{file}.py: `{slip}`" for file in self.files for slip in SURVIVORS.get(file, ())
                if (file, meaning(slip)) not in used]


def score(smooth, sharp=None, classics=CLASSIC):
    """Plant every fault in the ops of these cases (name -> list of Case) and judge it. A Score."""
    start = time.perf_counter()
    known = {name: [Known(case) for case in several] + [Known(case, False) for case in (sharp or {}).get(name, ())]
             for name, several in smooth.items()}
    modules = dict.fromkeys(sys.modules[cases[0].cls.__module__] for cases in known.values())
    judged = [pair for module in modules for pair in _judged(module, known)]
    named = [(classic, judge(classic.classes, known)) for classic in classics if classic.op in known]
    whole = tuple(name_of(module) for module in modules if set(op_classes(module)) <= set(known))
    return Score(judged, named, time.perf_counter() - start, whole)


def _judged(module, known):
    """(Fault, Verdict) of every fault in a module. Each has ten times as long as the ops without a fault, so that a loop
    which it makes endless is found out. None is planted where the ops made again are not the same ops."""
    start = time.perf_counter()
    if judge(unharmed(module, known).classes, known) != Verdict(False, False, frozenset()):
        return []
    seconds = max(2.0, 10 * (time.perf_counter() - start))
    return [(fault, judge(fault.classes, known, seconds)) for fault in plant(module, known)]


DROPPED = "dropped: "


def slip_of(fault):
    """What a reason is filed under: the statement as it became, or the one that was dropped."""
    return DROPPED + fault.before if fault.kind == "dropped" else fault.after


def meaning(slip):
    """The same for two slips that differ in brackets alone: every Python spells a statement a little differently."""
    statement = slip.removeprefix(DROPPED)
    tree = ast.dump(ast.parse(f"{statement} pass" if statement.endswith(":") else statement))
    return slip.startswith(DROPPED), tree


def reason(fault):
    """Why this fault is none, or None."""
    reasons = {meaning(slip): why for slip, why in SURVIVORS.get(fault.file, {}).items()}
    return reasons.get(meaning(slip_of(fault)))


# ---- in words --------------------------------------------------------------------------------------------------------

def _by(way):
    return lambda verdict: not verdict.raised and way in verdict.caught


_COLUMNS = {"raised": lambda v: v.raised, "differences": _by("differences"), "composed": _by("composed"),
            "stored": _by("stored"), "float32": _by("float32"),
            "no change": lambda v: not (v.raised or v.changed or v.caught),
            "missed": lambda v: v.changed and not (v.raised or v.caught)}


def text(result, in_full=False):
    """The score as lines to print; in full with the classic faults and the survivors."""
    head = "".join(f"{column:>13}" for column in ("planted", "caught", *_COLUMNS))
    lines = [f"faults planted by machine, and who caught them ({result.seconds:.0f} s)", f"{'':10}{head}"]
    for half in HALVES:
        verdicts = [v for fault, v in result.judged if fault.half == half]
        numbers = [len(verdicts), sum(v.raised or bool(v.caught) for v in verdicts)]
        numbers += [sum(map(test, verdicts)) for test in _COLUMNS.values()]
        lines.append(f"{half:10}" + "".join(f"{n:13}" for n in numbers))
    alone = [v for fault, v in result.judged if fault.half == "forward" and v.changed and not v.raised]
    blind = sum("differences" not in v.caught for v in alone)
    lines += ["raised: an error, a warning or no end gave it away; the ways after it overlap; no change: same results",
              f"finite differences alone let {blind} of {len(alone)} forward faults through: where both halves agree",
              "on the wrong function, only a value from outside tells"]
    if in_full:
        lines += ["", "classic faults, and who catches each"]
        lines += [f"  {classic.title:58}{classic.op:30}{_catchers(v)}" for classic, v in result.classics]
        lines += ["", "changes that change no result, and why"]
        for fault, why in result.survivors:
            lines += [f"  {fault}", f"      {why or 'NO REASON GIVEN'}"]
    else:
        explained = sum(why is not None for _, why in result.survivors)
        lines.append(f"{explained} of the {len(result.survivors)} that change nothing have a reason (see --mutations)")
    for title, faults in (("MISSED: these change a result, and no check finds them", result.holes),
                          ("NO REASON in survivors.py for these, which change nothing: is a case missing?",
                           result.unexplained if in_full else ()),
                          ("STALE in survivors.py: no such survivor any more", result.stale if in_full else ())):
        if faults:
            lines += ["", title] + [f"  {fault}" for fault in faults]
    return "\n".join(lines)


def user_text(name, result):
    """The score of an op from a user's file, for which finite differences are the only judge."""
    if not result.judged:
        return (f"no faults were planted in {name}: its class does not stand at the top level of the file, or bound to one "
                "name once,\nor cannot be made a second time from its source")
    let_through = [fault for fault, v in result.judged if not (v.raised or v.caught)]
    lines = [f"faults planted in {name}: {len(result.judged)}, caught {len(result.judged) - len(let_through)}"]
    if let_through:
        lines += ["not caught: no case shows the change, or forward and backward agree on the wrong function, which "
                  "finite\ndifferences cannot see", *(f"  {fault}" for fault in let_through)]
    return "\n".join(lines)


def _catchers(verdict):
    return "an error" if verdict.raised else ", ".join(sorted(verdict.caught)) or "NOBODY"


def plain(result):
    """The score as what JSON knows."""
    return {"seconds": result.seconds,
            "faults": [{"fault": str(fault), "half": fault.half, "kind": fault.kind, "ops": fault.ops, **_plain(v),
                        "reason": reason(fault)} for fault, v in result.judged],
            "classics": [{"fault": classic.title, "op": classic.op, "half": classic.half, **_plain(v)}
                         for classic, v in result.classics]}


def _plain(verdict):
    return {"raised": verdict.raised, "changed": verdict.changed, "caught": sorted(verdict.caught)}
