"""The command line: ``python -m minitx check`` proves the ops, ``python -m minitx info`` says what runs here."""
import argparse
import os
import sys


def main(arguments=None):
    """Run one command; return its exit status: 0 all right, 1 a check failed, 2 it could not run as asked."""
    parser = argparse.ArgumentParser(prog="python -m minitx", description="The Transformer in plain NumPy.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    check = commands.add_parser(
        "check", help="hold every op against finite differences, its twins and stored values; plant faults in it",
        description="Hold every op, forward and backward, against finite differences, its composed twin, stored "
        "values, PyTorch where it is installed and CuPy where a GPU is; then plant faults in the ops and see who finds "
        "them. Exit status 1 if anything fails, 2 if nothing could be checked.")
    check.add_argument("names", nargs="*", metavar="NAME|FILE.py",
                       help="ops to check (default: all), or a Python file: every Op that it defines, faults included")
    check.add_argument("--mutations", action="store_true",
                       help="list the classic faults, and the planted ones that change nothing, with the reasons")
    check.add_argument("--json", metavar="FILE", help="write the results to FILE as well")
    commands.add_parser("info", help="versions, BLAS, threads, faster twins, devices, optional libraries")
    options = parser.parse_args(arguments)

    if options.command == "info":
        print(info())
        return 0
    if options.command == "check":
        from minitx.proof import report         # here, so that info stays quick
        try:
            return report.run(options.names, in_full=options.mutations, json_file=options.json)
        except (report.CannotCheck, OSError) as error:
            print(f"minitx check: {error}", file=sys.stderr)
            return 2
    parser.print_help()
    return 0


def info():
    """What runs here, as text: versions, BLAS and threads, faster twins, devices, and which optional libraries are there."""
    import platform
    from importlib.util import find_spec

    import numpy as np

    import minitx
    from minitx import backend

    devices = ["cpu"]
    if backend.cuda.is_available():
        devices += [f"cuda:{i}" for i in range(backend.cuda.device_count())]
    try:
        backend.require_cupy()
        missing = ""
    except RuntimeError as error:
        missing = f" ({error})"
    extras = ("cupy", "safetensors", "tokenizers", "tqdm", "matplotlib", "threadpoolctl", "torch")
    there = [name for name in extras if find_spec(name)]
    absent = [name for name in extras if name not in there]
    blas = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    rows = {
        "minitx": f"{minitx.__version__} in {os.path.dirname(minitx.__file__)}",
        "Python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "NumPy": np.__version__,
        "BLAS": f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip(),
        "threads": _threads("threadpoolctl" in there),
        "twins": _twins("threadpoolctl" in there),
        "devices": ", ".join(devices) + missing,
        "installed": ", ".join(there) or "none",
        "missing": ", ".join(absent) or "none",
    }
    return "\n".join(f"{name:10}{value}" for name, value in rows.items())


def _threads(with_threadpoolctl):
    """How many processors there are, and how many threads the BLAS uses, as far as that can be known."""
    text = f"{os.cpu_count()} processors"
    if with_threadpoolctl:
        from threadpoolctl import threadpool_info
        for pool in threadpool_info():
            if pool["user_api"] == "blas":
                text += f", {pool['internal_api']} {pool['version']} uses {pool['num_threads']}"
        return text
    names = [name for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS") if name in os.environ]
    set_here = "".join(f", {name}={os.environ[name]}" for name in names)
    return f"{text}{set_here} (pip install threadpoolctl to see those of the BLAS)"


def _twins(with_threadpoolctl):
    """Which ops a faster twin may stand in for, and how many threads the twins work with."""
    from minitx import fused, recording
    if recording.all_plain():
        return "none: MINITX_PLAIN is set"
    from minitx.fused.cpu import threads
    fused.load(found := {})
    names = sorted((getattr(op, "name", op) for op in found), key=str.lower)
    n = threads.count()
    text = f"{', '.join(names)}; on {n} thread{'s' if n > 1 else ''}"
    return text if with_threadpoolctl else f"{text} (pip install threadpoolctl for as many as the BLAS uses)"


if __name__ == "__main__":
    sys.exit(main())
