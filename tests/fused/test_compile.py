"""Every CUDA source, with all that it can be asked for, compiles for four generations of GPUs. NVRTC needs none."""
import pytest

from minitx.fused.cuda import kernels

ARCHITECTURES = (75, 80, 90, 120)           # Turing, Ampere, Hopper, Blackwell


@pytest.fixture(scope="module")
def compile_():
    """compile_(family, options, architecture, change) -> the machine code of the family's source, changed first."""
    pytest.importorskip("cupy", reason="CuPy, which brings NVRTC's interface, is not installed", exc_type=ImportError)
    compiler = pytest.importorskip("cupy.cuda.compiler", reason="the double in CuPy's place compiles nothing",
                                   exc_type=ImportError)
    try:
        from cupy_backends.cuda.libs import nvrtc
        nvrtc.getVersion()
    except Exception as error:              # CuPy's loader raises what it likes
        pytest.skip(f"NVRTC is not installed (pip install nvidia-cuda-nvrtc): {error}")

    def compile_(family, options, architecture, change=lambda text: text):
        program = compiler._NVRTCProgram(change(kernels.source(family)), f"{family}.cu", method="cubin")
        return program.compile((*options, f"-arch=sm_{architecture}"))[0]
    return compile_


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("family, options", [*kernels.every()], ids=lambda x: x if isinstance(x, str) else "".join(x[1:]))
def test_every_source_compiles(compile_, family, options, architecture):
    assert compile_(family, options, architecture).startswith(b"\x7fELF")


def test_a_fault_is_seen_and_named_by_file_and_line(compile_):
    line = kernels.source("softmax").split('#line 1 "softmax.cu"\n')[1].split("exp(x[j]")[0].count("\n") + 1
    with pytest.raises(Exception, match=rf'softmax\.cu\({line}\): error: identifier "axp" is undefined'):
        compile_("softmax", kernels.options("float32"), 90, lambda text: text.replace("exp(x[j]", "axp(x[j]"))


def test_a_block_that_wants_more_shared_memory_than_every_gpu_has_is_seen(compile_):
    with pytest.raises(Exception, match="shared"):
        compile_("attention", kernels.options("float64", WIDTH=128, TILE=16), 90)


def test_every_family_is_listed():
    from importlib.resources import files
    names = {path.name[:-3] for path in files("minitx.fused.cuda").iterdir() if path.name.endswith(".cu")}
    assert names == {"block", *(name for family in kernels.FAMILIES for name in kernels.FILES.get(family, (family,)))}
    assert {family for family, _ in kernels.every()} == set(kernels.FAMILIES)
