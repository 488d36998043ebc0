"""The package as it is installed, and what importing it does to the process: as little as can be."""
import configparser
import importlib.metadata
import importlib.resources
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

import minitx as mt

ROOT = Path(__file__).parents[1]


def run(code):
    """Run code in a fresh Python whose warnings are errors; what it printed."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True,
                          encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def setup_cfg():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    return config


def test_core_needs_numpy_alone():
    assert setup_cfg()["options"]["install_requires"].split() == ["numpy>=2.0"]
    # everything but NumPy and the standard library is forbidden, as if it were not installed
    run("""
import sys

class OnlyNumPy:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in sys.stdlib_module_names | {"numpy", "minitx"}:
            raise ModuleNotFoundError(f"{name} is forbidden here")

sys.meta_path.insert(0, OnlyNumPy())
import minitx as mt
from minitx import models
x = mt.tensor([1.0, 2.0], requires_grad=True)
mt.ops.softmax(x).backward(x)
mt.nn.Linear(2, 3)(x)
models.GPT2(models.GPT2Config(vocab_size=5, n_positions=4, n_embd=8, n_layer=1, n_head=2))(mt.tensor([[1, 2]]))
assert not mt.cuda.is_available()
""")


def test_extras():
    extras = setup_cfg()["options.extras_require"]
    assert set(extras) == {"cuda", "cuda12", "weights", "text", "demos", "fast", "test", "dev"}
    assert "minitx[weights,text,fast]" in extras["demos"]


def test_version_and_metadata():
    assert setup_cfg()["metadata"]["version"] == "attr: minitx.__version__"
    try:
        metadata = importlib.metadata.metadata("minitx")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("minitx is used from its folder, not installed")
    assert metadata["Version"] == mt.__version__
    assert metadata["Requires-Python"] == ">=3.10"


def test_typed():
    assert "py.typed" in setup_cfg()["options.package_data"]["minitx"]
    assert (importlib.resources.files("minitx") / "py.typed").is_file()


def test_import_loads_little():
    loaded = run("""
import sys, numpy
before = set(sys.modules)
import minitx
print(*set(sys.modules) - before)
""").split()
    late = {"minitx.models", "minitx.proof", "minitx.interop", "minitx.checkpoint", "minitx.generate", "minitx.sampling",
            "minitx.training", "minitx.resume", "numpy.random", "cupy", "torch", "safetensors", "tqdm", "matplotlib",
            "threadpoolctl", "argparse", "json", "ast"}
    assert not late & set(loaded)
    assert {"minitx.backend", "minitx.autograd", "minitx.ops", "minitx.nn", "minitx.optim",
            "minitx.schedule"} <= set(loaded)


def test_import_is_a_good_guest():
    run("""
import locale, os, random, signal, sys, threading, warnings
import numpy as np
try:
    from threadpoolctl import threadpool_info
except ImportError:
    threadpool_info = list

def state():
    return {
        "floating point": np.geterr(), "printing": np.get_printoptions(), "warnings": list(warnings.filters),
        "locale": locale.setlocale(locale.LC_ALL), "environment": dict(os.environ), "random": random.getstate(),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "threads": (threading.active_count(), [(pool["filepath"], pool["num_threads"]) for pool in threadpool_info()]),
        "hooks": (sys.excepthook, sys.displayhook, sys.getrecursionlimit(), sys.getswitchinterval(), sys.stdout),
    }

before = state()
import minitx
from minitx import checkpoint, generate, models, proof
after = state()
changed = [name for name in before if before[name] != after[name]]
assert not changed, changed
""")


@pytest.mark.timing
def test_import_time():
    """At most 1.3 times the time of importing NumPy: the median over pairs of processes, run one after the other."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def seconds(code):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)
        return time.perf_counter() - begun

    def ratio():
        return seconds("import minitx") / seconds("import numpy")

    ratio()                                         # compiles, and brings the files into memory
    ratios = [ratio() for _ in range(15)]
    print(f"import minitx takes {statistics.median(ratios):.2f} times as long as import numpy")
    assert statistics.median(ratios) <= 1.3, sorted(ratios)
