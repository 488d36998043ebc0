"""Peak memory of training beyond weights and optimiser state: minitx, with twins and with plain ops, against PyTorch.

    python benchmarks/memory.py [--only medium small] [--threads 1 2] [--pairs 3] [--json FILE] [--plot FILE]

Every figure is a process of its own, which takes a training step of a tiny model (so that all is loaded, and the BLAS has its
buffers), and notes how much of its memory is resident. Then it builds the model, takes two steps, sets the system's
high-water mark back, takes three more and reads the mark. What is counted is that peak, less what was resident at first, less
the weights and AdamW's two moments: activations, gradients, temporary arrays, and what the library keeps for later. Where the
mark cannot be set back (it can on Linux) it is that of the whole process. A pair is one process of each side.
"""
import os
import subprocess
import sys
from pathlib import Path

from pairs import Row, marks, need, options, pinned, report, summary
from workloads import WORKLOADS, gpt2, step_of

OURS = {"twins": "0", "plain ops": "1"}                 # and MINITX_PLAIN for it
MODELS = {"medium": (1.0, 1.0), "small": (None, None)}


def peak():
    """The most bytes that were resident at once, since set_back where that works."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        import resource                                 # not on Windows, where nothing is measured
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else 1024 * most


def set_back():
    """Let the peak be what is resident now."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        pass                                            # the peak of the whole process is what there is


def ours(work):
    """(minitx's step, the bytes of its weights)"""
    model = work.build()
    return step_of(work, model), sum(p.data.nbytes for p in model.parameters())


def theirs(work):
    """The same of PyTorch, with weights of its own: minitx's would leave traces in this process."""
    import torch_models
    import torch_steps
    model = torch_models.TWINS[work.family.__name__](work.config)
    return torch_steps.step_of(work, model), sum(p.nbytes for p in model.parameters())


def measure_here(side, name, threads):
    """Bytes beyond weights and moments in this process."""
    built, work = {"minitx": ours, "torch": theirs}[side], WORKLOADS[name]()
    if side == "torch":
        import torch  # noqa: F401  (before the threads are pinned, which then holds for it too)
    with pinned(threads):
        tiny, _ = built(gpt2("tiny", 2, n_positions=16, n_embd=32, n_layer=1, n_head=2))
        tiny()
        set_back()
        before = peak()
        step, weights = built(work)
        step(), step()
        set_back()
        step(), step(), step()
        return peak() - before - 3 * weights


def megabytes(side, name, threads, plain="0"):
    """The same of a fresh process."""
    command = [sys.executable, __file__, "--side", side, "--only", name, "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env={**os.environ, "MINITX_PLAIN": plain})
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return int(done.stdout) / 1e6


def measure(name, threads, pairs):
    """The Rows of a model, with twins and with plain ops."""
    turns = [[megabytes("torch", name, threads), *(megabytes("minitx", name, threads, plain) for plain in OURS.values())]
             for _ in range(pairs)]
    for i, kind in enumerate(OURS, 1):
        figures = summary((turn[i], turn[0]) for turn in turns)
        yield Row(f"memory, GPT-2 {name}, {kind}", threads, **figures, unit="MB",
                  mark=marks(threads, *MODELS[name]) if kind == "twins" else None)


def main():
    parser = options(__doc__, MODELS, pairs=3)
    parser.add_argument("--side", choices=("minitx", "torch"), help="measure this process; print the bytes")
    args = parser.parse_args()
    need("torch", "threadpoolctl")                      # here, for the processes that want them say it too late
    if args.side:
        print(measure_here(args.side, args.only[0], args.threads[0]))
    else:
        rows = report((row for threads in args.threads for name in args.only for row in measure(name, threads, args.pairs)),
                      args)
        return 1 if any(row.missed for row in rows) else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
