"""All that a machine with a CUDA GPU can tell about minitx, in one command and under five minutes.

    python benchmarks/gpu.py [--only probe curves sizes steps ops suite] [--pairs 3] [--json FILE] [--plot FILE]

    probe     the double of tests/double, on which the tests run without a GPU, beside the real CuPy
    curves    the losses of the same 200 training steps on the CPU and on the GPU: at most 1e-3 apart
    sizes     from which size CuPy is faster than NumPy: a product, an elementwise op, a small training step
    steps     the training steps of step.py, and of the medium model at batch 64, beside PyTorch on the same GPU
    ops       every op, forward and backward, on 4 million numbers, beside PyTorch
    suite     the tests with MINITX_DEVICE=cuda, for as long as is left of the five minutes

Steps and ops in float32, in TF32 where there are products, and in float16 (PyTorch: autocast; both scale the loss). First
both sides must agree. CUDA events take the time, when both are warm; the first call, in which kernels compile, stands
apart. The share is that of a large product, or of a large copy, on this GPU. Exit 1 if something fails or differs, 2
without a GPU.
"""
import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path

import gpu_checks
import gpu_speed
import pairs
from ops import INPUTS

import minitx as mt
from minitx import backend, info

PARTS = ("probe", "curves", "sizes", "steps", "ops", "suite")
FIVE_MINUTES = 290                                      # less what the beginning takes
PROBE, PROBE_SECONDS = "tests/test_probe.py", 60


def pytorch():
    """(torch, "") where PyTorch can compute on a GPU, else (None, a sentence that says why not)."""
    try:
        import torch
    except ImportError:
        return None, "PyTorch is not installed, so nothing stands beside minitx's figures: pip install torch"
    if not torch.cuda.is_available():
        return None, (f"PyTorch {torch.__version__} finds no GPU, so nothing stands beside minitx's figures: install a build "
                      "for CUDA")
    return torch, ""


def sides_of(torch):
    return gpu_speed.Sides(gpu_speed.events(backend.require_cupy()), torch, torch and gpu_speed.events(torch))


def title(part, begun):
    print(f"\n==== {part}, after {time.perf_counter() - begun:.0f} s", flush=True)


def run(args, torch, begun):
    """Every part that was asked for, printed as it comes. (what was found, the Rows, whether all is well)"""
    found, fine = {}, True
    if "probe" in args.only:
        title("probe", begun)
        found["probe"] = gpu_checks.pytest([PROBE], PROBE_SECONDS)
        print(found["probe"]["summary"])
        fine &= found["probe"]["passed"] is True
    if "curves" in args.only:
        title("curves", begun)
        found["curves"] = gpu_checks.curves(backend.default_device())
        print(gpu_checks.shown(found["curves"]))
        fine &= found["curves"]["apart"] <= gpu_checks.APART
    if "sizes" in args.only:
        title("sizes", begun)
        found["sizes"] = gpu_checks.overtaking()
        print(*gpu_checks.told(found["sizes"]), sep="\n")
    rows = []
    if {"steps", "ops"} & set(args.only):
        title("steps and ops", begun)
        print(pairs.HEADER.replace("threads", "  kind "), flush=True)
        names, steps = (INPUTS if "ops" in args.only else ()), (gpu_speed.STEPS if "steps" in args.only else ())
        for row in gpu_speed.rows(sides_of(torch), args.pairs, names, steps):
            print(row, flush=True)
            rows.append(row)
        fine &= not any(row.note.startswith(("FAILED", "DIFFERS")) for row in rows)
    if "suite" in args.only:
        title("suite", begun)
        left = FIVE_MINUTES - (time.perf_counter() - begun)
        found["suite"] = gpu_checks.pytest([], left, dict(MINITX_DEVICE="cuda"))
        print(found["suite"]["summary"])
        fine &= found["suite"]["passed"] is not False
    return found, rows, fine


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--pairs", type=pairs.at_least(2), default=3, metavar="N", help="how many pairs are measured")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the ratios there")
    args, begun = parser.parse_args(argv), time.perf_counter()
    torch, without = pytorch()
    try:
        mt.set_default_device("cuda")
    except RuntimeError as error:
        print(f"gpu: {error}", file=sys.stderr)
        if torch:
            print("PyTorch's training steps alone, to be compared with later:")
            for row in gpu_speed.their_rows(torch, args.pairs):
                print(row, flush=True)
        return 2
    print(info.text())
    print(without or f"PyTorch   {torch.__version__}, CUDA {torch.version.cuda}")
    found, rows, fine = run(args, torch, begun)
    seconds = time.perf_counter() - begun
    if args.json:
        kept = dict(found, rows=[dataclasses.asdict(row) for row in rows], info=info.rows(), machine=pairs.machine(),
                    seconds=seconds)
        args.json.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    if args.plot:
        pairs.plot(rows, args.plot)
    missed = [f"{row.name}, {row.threads}" for row in rows if row.missed]
    print(f"\n{'all is well' if fine else 'SOMETHING FAILED OR DIFFERS: see above'}; "
          f"{'marks missed: ' + '; '.join(missed) if missed else 'no mark is missed'}; {seconds:.0f} s")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
