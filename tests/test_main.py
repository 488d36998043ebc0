"""The command line."""
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import minitx
from minitx import fused
from minitx.__main__ import main
from minitx.fused.cpu import threads


def test_help(capsys):
    assert main([]) == 0
    text = capsys.readouterr().out
    assert "check" in text and "info" in text


def info(capsys):
    """Its rows."""
    assert main(["info"]) == 0
    return dict(line.split(None, 1) for line in capsys.readouterr().out.replace(f"\n{'':10}", " ").splitlines())


def test_info(capsys):
    rows = info(capsys)
    assert list(rows) == ["minitx", "Python", "NumPy", "BLAS", "threads", "twins", "CuPy", "CUDA", "devices", "default",
                          "installed", "missing"]
    assert rows["default"] == minitx.backend.default_device()
    assert rows["minitx"].startswith(minitx.__version__) and rows["NumPy"] == np.__version__
    assert rows["Python"].startswith("%d.%d" % sys.version_info[:2])
    assert rows["devices"].startswith("cpu") and ("cuda:0" in rows["devices"]) == minitx.cuda.is_available()
    assert "processors" in rows["threads"]
    assert "torch" in rows["installed"] + rows["missing"]


def test_info_says_which_twins_are_in_force_and_with_how_many_threads(capsys, monkeypatch):
    monkeypatch.delenv("MINITX_PLAIN", raising=False)
    names = info(capsys)["twins"].split("; ")[0].split(", ")
    of_the_cpu = [op for op in fused.TWINS if not isinstance(op, tuple)]
    assert {"AdamW", "gelu", "softmax"} <= set(names) and len(names) == len(of_the_cpu)
    assert names == sorted(names, key=str.lower)
    monkeypatch.setattr(threads, "count", lambda: 1)
    assert re.search(r"; on 1 thread(?!s)", info(capsys)["twins"])
    monkeypatch.setattr(threads, "count", lambda: 7)
    assert "; on 7 threads" in info(capsys)["twins"]
    monkeypatch.setenv("MINITX_PLAIN", "1")
    assert info(capsys)["twins"] == "none: MINITX_PLAIN is set"


def test_info_follows_the_threads_of_the_blas(capsys, monkeypatch):
    monkeypatch.delenv("MINITX_PLAIN", raising=False)
    limits = pytest.importorskip("threadpoolctl").threadpool_limits
    with limits(1, user_api="blas"):
        assert info(capsys)["twins"].split("; ")[1] == "on 1 thread"


def test_info_without_threadpoolctl():
    code = "import sys; sys.modules['threadpoolctl'] = None; from minitx.__main__ import main; main(['info'])"
    environ = {name: value for name, value in os.environ.items() if name != "MINITX_PLAIN"}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, encoding="utf-8", env=environ,
                          timeout=60)
    said = "; on 1 thread (pip install threadpoolctl for as many as the BLAS uses)"
    assert said in done.stdout.replace(f"\n{'':10}", " ")


def test_info_lists_the_twins_in_lines_that_a_terminal_holds(capsys, monkeypatch):
    monkeypatch.delenv("MINITX_PLAIN", raising=False)
    main(["info"])
    text = capsys.readouterr().out
    twins = text[text.index("\ntwins") + 1:text.index("\nCuPy")].splitlines()
    assert len(twins) > 1 and all(60 < len(line) <= 100 for line in twins[:-1]) and len(twins[-1]) <= 100
    assert all(line[:10].isspace() and not line[10].isspace() for line in twins[1:])


def test_info_says_what_is_wrong_with_the_default_device(capsys, monkeypatch):
    monkeypatch.setitem(minitx.backend._defaults, "device", None)
    monkeypatch.setenv("MINITX_DEVICE", "gpu")
    assert info(capsys)["default"].startswith("the environment variable MINITX_DEVICE: unknown device 'gpu'")


def test_info_says_why_there_is_no_gpu(capsys, monkeypatch):
    monkeypatch.setattr(minitx.backend, "_probe", lambda: (None, "nothing to be had"))
    rows = info(capsys)
    assert rows["CUDA"].endswith("nothing to be had") and rows["devices"] == "cpu"


def test_info_shows_the_gpu(cupy, capsys, monkeypatch):
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceProperties", lambda i: dict(
        name=b"Double", totalGlobalMem=16 * 2 ** 30, major=9, minor=0), raising=False)
    for name, number in dict(runtimeGetVersion=13020, driverGetVersion=13010).items():
        monkeypatch.setattr(cupy.cuda.runtime, name, lambda number=number: number, raising=False)
    rows = info(capsys)
    assert rows["devices"] == "cpu, cuda:0 Double (16 GiB, compute 9.0)"
    assert rows["CUDA"] == "runtime 13.2, driver 13.1" and rows["CuPy"].startswith(cupy.__version__)


def test_info_tells_the_twins_of_the_two_devices_apart(capsys, monkeypatch):
    monkeypatch.delenv("MINITX_PLAIN", raising=False)
    gelu = minitx.ops.OPS["gelu"]
    monkeypatch.setattr(fused, "load", lambda table: table.update({gelu: 1, "AdamW": 2, ("cuda", gelu): 3}))
    monkeypatch.setattr(threads, "count", lambda: 1)
    assert info(capsys)["twins"].replace(" (pip install threadpoolctl for as many as the BLAS uses)", "") == (
        "AdamW, gelu; on 1 thread; on cuda: gelu")


def test_info_is_quick():
    code = ("import sys; from minitx.__main__ import main; main(['info']); "
            "assert not {'minitx.proof', 'torch', 'tokenizers', 'matplotlib'} & set(sys.modules)")
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("arguments, message", [
    (["check", "sofmax"], "minitx check: there is no op 'sofmax'; did you mean softmax"),
    (["check", "nowhere.py"], "minitx check: there is no file nowhere.py"),
])
def test_what_cannot_be_checked_is_one_line_and_2(arguments, message, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(message) and error.count("\n") == 1


def test_check_passes_its_options_on(tmp_path, capsys):
    file = tmp_path / "out.json"
    assert main(["check", "neg", "--mutations", "--json", str(file)]) == 0
    assert file.exists() and "changes that change no result" in capsys.readouterr().out


def test_a_file_that_cannot_be_written(tmp_path, capsys):
    assert main(["check", "neg", "--json", str(tmp_path / "no" / "such" / "folder")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_failed_checks_are_1(monkeypatch, capsys):
    neg = minitx.ops.OPS["neg"]
    monkeypatch.setattr(neg, "backward", lambda self, dy: (dy,))
    assert main(["check", "neg"]) == 1


def test_unknown_commands_are_2(capsys):
    with pytest.raises(SystemExit) as error:
        main(["chekc"])
    assert error.value.code == 2
