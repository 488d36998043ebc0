"""What is missing for CUDA: each machine gets the one sentence that cures it, and everything else keeps working."""
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

import minitx as mt
from minitx import backend, missing
from minitx.__main__ import main


class Lost:
    """A part of CuPy whose library cannot be loaded."""

    def __getattr__(self, name):
        raise OSError("libnvrtc.so.13: cannot open shared object file\nand much more")


def cupy_that(available=True, driver=13000, runtime=13020, nvrtc=None):
    """A CuPy as far as the probe looks at it."""
    return SimpleNamespace(__version__="14.2", cuda=SimpleNamespace(
        is_available=available if callable(available) else lambda: available, cublas=object(),
        nvrtc=nvrtc or SimpleNamespace(getVersion=lambda: (13, 0)),
        runtime=SimpleNamespace(driverGetVersion=lambda: driver, runtimeGetVersion=lambda: runtime,
                                getDeviceCount=lambda: 1)))


def in_trouble():
    raise RuntimeError("cudaErrorSystemNotReady: system not yet initialized")


@pytest.fixture
def machine(monkeypatch):
    """A function that makes this machine one with such a module (None: no CuPy), such packages, and such a driver."""
    def machine(cupy, packages=("cupy-cuda13x",), driver=0):
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        monkeypatch.setattr(missing, "cupys", lambda: sorted(packages))
        monkeypatch.setattr(missing, "driver", lambda: driver)
        backend._probe.cache_clear()
    yield machine
    monkeypatch.undo()
    backend._probe.cache_clear()


MACHINES = {
    "no CuPy": ((None, ()), "CuPy is not installed: pip install \"cupy-cuda13x[ctk]\" (extra: minitx[cuda]; "
                "\"cupy-cuda12x[ctk]\" where nvidia-smi shows CUDA 12)"),
    "no CuPy, driver 12": ((None, (), 12040), "CuPy is not installed: pip install \"cupy-cuda12x[ctk]\" (extra: "
                           "minitx[cuda12])"),
    "no driver": ((cupy_that(False, driver=0),), "CuPy 14.2 is installed but finds no NVIDIA driver: install one"),
    "no GPU": ((cupy_that(False),), "CuPy 14.2 finds a driver but no NVIDIA GPU: see that nvidia-smi shows one"),
    "another CUDA": ((cupy_that(False, driver=12040),), "CuPy 14.2 is built for CUDA 13 and the driver knows CUDA 12.4 at "
                     "most: update the driver, or pip uninstall -y cupy-cuda13x, then pip install \"cupy-cuda12x[ctk]\""),
    "no libraries": ((cupy_that(nvrtc=Lost()),), "CuPy 14.2 finds a GPU but not CUDA's libraries (OSError: "
                     "libnvrtc.so.13: cannot open shared object file): pip install \"cupy-cuda13x[ctk]\""),
    "no libraries, CUDA 12": ((cupy_that(runtime=12090, nvrtc=Lost()), ("cupy-cuda12x",)), "pip install "
                              "\"cupy-cuda12x[ctk]\" (extra: minitx[cuda12])"),
    "two CuPys and no libraries": ((cupy_that(nvrtc=Lost()), ("cupy-cuda12x", "cupy-cuda13x")), "pip uninstall -y "
                                   "cupy-cuda12x cupy-cuda13x, then pip install \"cupy-cuda13x[ctk]\""),
    "half of a CuPy": ((SimpleNamespace(), ("cupy-cuda13x",)), "CuPy is there and fails when it is asked for a GPU "
                       "(AttributeError: 'types.SimpleNamespace' object has no attribute '__version__'): see that "
                       "nvidia-smi shows one, or pip uninstall -y cupy-cuda13x, then pip install "),
    "a driver in trouble": ((cupy_that(in_trouble), (), 13000), "CuPy is there and fails when it is asked for a GPU "
                            "(RuntimeError: cudaErrorSystemNotReady: system not yet initialized): see that nvidia-smi "),
}


@pytest.mark.parametrize("there, sentence", MACHINES.values(), ids=MACHINES)
def test_the_sentence_that_cures_it(machine, there, sentence, capsys):
    machine(*there)
    assert not mt.cuda.is_available() and mt.cuda.device_count() == 0
    with pytest.raises(RuntimeError, match="device 'cuda' is not available: ") as error:
        mt.zeros(2, device="cuda")
    assert sentence in str(error.value) and "\n" not in str(error.value)
    assert main(["info"]) == 0
    assert str(error.value).partition("not available: ")[2] in capsys.readouterr().out
    assert mt.zeros(2, device="cpu").tolist() == [0, 0]                                     # all else works


def test_nothing_is_missing(machine):
    machine(cupy_that(driver=13000, runtime=13020))                 # a CUDA of the same number needs no newer driver
    assert backend._probe()[1] == "" and mt.cuda.is_available()
    machine(cupy_that(driver=13000, runtime=12090))
    assert mt.cuda.is_available()


def test_a_broken_import_names_what_it_was_made_from():
    try:
        raise ImportError("=====\nhelp\n=====") from OSError("libcudart.so.13: no such file")
    except ImportError as error:
        assert "(OSError: libcudart.so.13: no such file)" in missing.without_cupy(error)


def test_two_cupys_are_told_of(machine, capsys):
    machine(None, ("cupy-cuda12x", "cupy-cuda13x"))
    main(["info"])
    said = "2 CuPys write over each other's files: pip uninstall -y cupy-cuda12x cupy-cuda13x, then pip install "
    assert said in capsys.readouterr().out
    machine(None)
    main(["info"])
    assert "each other" not in capsys.readouterr().out


def test_packages_that_are_cupy(monkeypatch):
    names = "cupy-cuda13x", "CuPy", "cupy-xarray", "numpy", None, "cupy-rocm-7-0"
    packages = [SimpleNamespace(metadata={"Name": name}) for name in names]
    monkeypatch.setattr("importlib.metadata.distributions", lambda: packages)
    assert missing.cupys() == ["cupy", "cupy-cuda13x", "cupy-rocm-7-0"]


def test_a_driver_is_asked_for_and_its_absence_is_no_error():
    assert missing.driver() >= 0 and missing.version(12040) == "12.4" and missing.version(13000) == "13.0"


@pytest.mark.skipif(not find_spec("cupy") or mt.cuda.is_available(), reason="wants CuPy, and no GPU")
def test_the_real_cupy_without_a_gpu(capsys):
    main(["info"])
    rows = dict(line.split(None, 1) for line in capsys.readouterr().out.replace(f"\n{'':10}", " ").splitlines())
    assert rows["CuPy"].startswith(sys.modules["cupy"].__version__) and "(cupy-" in rows["CuPy"]
    assert rows["CUDA"].startswith("runtime ") and "driver" in rows["CUDA"] and "; CuPy " in rows["CUDA"]
