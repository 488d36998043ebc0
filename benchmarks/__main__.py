"""Run every benchmark, each in its own process, one after the other, and write the README's table on speed.

    python -m benchmarks [--only step memory ...] [--pairs N] [--json FILE] [--text FILE]

The table stands between two comments in README.md, and takes the rows of step, versus_torch, memory, mlp and scaling (of the
last those that have a mark). It is written when all five were run and none failed. ops, tokens and sentences print their
figures, and shakespeare, where --text names its file; tokens and sentences need transformers, the latter also weights. It
takes about an hour, in which the machine should do nothing else. Exit 1 if one of them failed.
"""
import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))                           # as for the scripts, which import their neighbours by name

from pairs import Row, need  # noqa: E402

TABLE = ("step", "versus_torch", "memory", "mlp", "scaling")
SCRIPTS = (*TABLE, "ops", "tokens", "sentences", "shakespeare")
ALONE = {"mlp", "scaling", "ops"}                        # without PyTorch
OPTIONS = {"versus_torch": ["--compile"], "tokens": ["--long"]}
README = HERE.parent / "README.md"
BEGIN, END = "<!-- python -m benchmarks writes from here -->", "<!-- to here -->"


def markdown(rows, machine):
    """The table of the rows, and what it was measured with."""
    lines = [f"{machine['cores']} processors, {machine['system']}; Python {machine['python']}, NumPy {machine['numpy']}, "
             f"PyTorch {machine['torch']}.", "",
             "| what | threads | minitx | the other | ratio (middle half) | mark | share of the limit, and more |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        ours, theirs, ratio, half, mark, said = row.cells()
        ours, theirs = (f"{figure} {row.unit}" if figure else "" for figure in (ours, theirs))
        ratio = f"{ratio} ({half})" if ratio else ""
        mark = mark if row.mark is None else f"at most {mark}"
        lines.append("| " + " | ".join((row.name, str(row.threads), ours, theirs, ratio, mark, said)) + " |")
    return "\n".join(lines)


def written(readme, table):
    """The text of a README with the table between its two comments. ValueError where they are not there, once each."""
    if readme.count(BEGIN) != 1 or readme.count(END) != 1:
        raise ValueError(f"{README.name} must have one line {BEGIN} and below it one line {END}")
    return re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: f"{BEGIN}\n{table}\n{END}", readme, flags=re.DOTALL)


def run(script, options, folder):
    """The figures of a script, None if it failed."""
    file = Path(folder) / f"{script}.json"
    command = [sys.executable, str(HERE / f"{script}.py"), *OPTIONS.get(script, []), *options]
    if script != "shakespeare":
        command += ["--json", str(file)]
    print(f"\n==== {script}", flush=True)
    if subprocess.run(command).returncode:
        print(f"{script} failed", file=sys.stderr)
        return None
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SCRIPTS, metavar="NAME", help=", ".join(SCRIPTS))
    parser.add_argument("--pairs", metavar="N", help="pairs of each; by default what each finds right")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--text", metavar="FILE", help="tiny Shakespeare, without which shakespeare is not run")
    args = parser.parse_args()
    pairs = ["--pairs", args.pairs] if args.pairs else []
    scripts = args.only or [script for script in SCRIPTS if script != "shakespeare" or args.text]
    if set(scripts) - ALONE:
        need("torch")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for script in scripts:
            options = pairs if script != "shakespeare" else ["--text", args.text or parser.error("give it its --text")]
            found[script] = run(script, options, folder)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    if all(found.get(script) for script in TABLE):
        rows = [Row(**row) for script in TABLE for row in found[script]["rows"]
                if script != "scaling" or row["mark"] is not None]          # of each axis the largest alone
        table = markdown(rows, found["step"]["machine"])
        README.write_text(written(README.read_text(encoding="utf-8"), table), encoding="utf-8")
        print(f"\n{len(rows)} rows written into {README}")
    return 1 if None in found.values() else 0


if __name__ == "__main__":
    sys.exit(main())
