"""The modules of the double: cupy, cupy.cuda, cupy.random, cupyx."""
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np

from double import runtime
from double.array import Array, call, inside, operand, outside, permitted
from double.counts import count
from double.ufunc import Ufunc
from minitx import special

MISSING = """
False_ ScalarType True_ asmatrix block bmat busday_count busday_offset bytes_ character clongdouble complex256
datetime64 datetime_as_string datetime_data einsum_path errstate flexible float128 frompyfunc fromregex geomspace
get_include getbufsize geterr geterrcall histogram_bin_edges info insert is_busday isnat little_endian longdouble
matrix matvec memmap nanpercentile nanquantile ndenumerate nditer nested_iters object_ polyder polydiv polyint
recarray record sctypeDict setbufsize seterr seterrcall show_runtime spacing str_ test timedelta64 typecodes unstack
vecdot vecmat void
""".split()
MADE = set("zeros ones empty full arange linspace logspace eye tri identity indices".split())     # from numbers alone
ABOUT = set("promote_types result_type can_cast min_scalar_type issubdtype isscalar shape ndim size "
            "shares_memory may_share_memory".split())
PAIRS = set("dot vdot inner outer tensordot kron take take_along_axis searchsorted isin copyto "
            "allclose isclose array_equal".split())                   # whose second argument is an array too
SORTS = {"argpartition": np.argsort, "partition": np.sort}              # CuPy sorts fully


class Cupy(ModuleType):
    """NumPy's names, as far as CuPy has them, taking and giving device arrays."""
    ndarray = Array
    __version__ = "14.2.0"
    RawModule = runtime.RawModule

    def __getattr__(self, name):
        found = getattr(np, name, ...)
        if name.startswith("_") or name in MISSING or found is ... or isinstance(found, ModuleType):
            raise AttributeError(f"module 'cupy' has no attribute {name!r}")
        if isinstance(found, np.ufunc):
            found = Ufunc(found)
        elif isinstance(found, type):
            if not issubclass(found, (np.generic, np.dtype, np.finfo, np.iinfo)):
                raise AttributeError(f"module 'cupy' has no attribute {name!r}")
        elif callable(found):
            found = function(name, found)
        setattr(self, name, found)
        return found

    def array(self, obj, dtype=None, copy=True, order="K"):
        if isinstance(obj, Array):
            return obj.astype(obj.dtype if dtype is None else dtype, order=order, copy=copy)
        made = np.array(obj, dtype, order=order)
        count("transfers_in")
        return Array(made)

    def asarray(self, a, dtype=None, order=None):
        return self.array(a, dtype, False, order or "K")

    def asnumpy(self, a):
        return a.get() if isinstance(a, Array) else np.asarray(a)

    def clip(self, a, a_min, a_max, out=None):
        for bound in (a_min, a_max):
            operand(0 if bound is None else bound)
        return call(np.clip, "clip", a, a_min, a_max, out=out)

    def where(self, condition, *choices):
        if not isinstance(condition, Array):
            if isinstance(condition, np.ndarray):
                inside(condition)
            raise AttributeError(f"{type(condition).__name__!r} object has no attribute 'astype'")
        if not choices:
            return condition.nonzero()
        return outside(np.asarray(np.where(condition._array, *map(operand, choices)), order="C"))

    def take_along_axis(self, a, indices, axis):
        return call(np.take_along_axis, "take_along_axis", a, indices, axis)


def function(name, found):
    """A NumPy function as CuPy has it."""
    found = SORTS.get(name, found)

    def method(*args, **keywords):
        if name in ABOUT:
            return found(*inside(args), **keywords)
        if name in MADE:
            if any(isinstance(x, (Array, np.ndarray, list)) for x in (*args, *keywords.values())):
                raise TypeError(f"{name}() is given numbers here, not an array")
            return outside(found(*args, **permitted(name, keywords)))
        first = args[0]
        for x in args[1:] if isinstance(first, str) else first if type(first) in (tuple, list) else args[:1]:
            if not isinstance(x, Array):
                raise TypeError(f"{name}() takes device arrays, not {type(x)}")
        if name in PAIRS:
            operand(args[1])
        if name in SORTS:
            args, keywords = args[:1], {key: value for key, value in keywords.items() if key == "axis"}
        result = call(found, name, *args, **keywords)
        return Array(np.asarray(result)) if type(result) is bool else result

    return method


class Generator:
    """Of what cupy.random.Generator draws, what is asked for here. It has no normal, no shuffle, no state to read."""

    def __init__(self, bits):
        self._draw = np.random.default_rng(bits.seed)

    def random(self, size=None, dtype=np.float64, out=None):
        return _given(out, self._draw.random(size, dtype))

    def standard_normal(self, size=None, dtype=np.float64, out=None):
        return _given(out, self._draw.standard_normal(size, dtype))

    def uniform(self, low=0.0, high=1.0, size=None, dtype=np.float64):
        return _given(None, self._draw.uniform(low, high, size).astype(dtype))

    def integers(self, low, high=None, size=None, dtype=np.int64, endpoint=False):
        return _given(None, self._draw.integers(low, high, size, dtype, endpoint))


def _given(out, drawn):
    if out is None:
        return Array(np.asarray(drawn))
    out._array[...] = drawn
    return out


class Bits:
    """What stands for CuPy's bit generators, which give other numbers than NumPy's."""

    def __init__(self, seed=None, *, size=-1):
        self.seed = seed


def erf(x, out=None):
    """cupyx.scipy.special.erf, from the error function that minitx has for NumPy."""
    made = Array(np.asarray(special.erf(inside(x))))
    if out is None:
        return made
    out[...] = made
    return out


def package(name, **names):
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(names)
    return module


CUPY = Cupy("cupy")
CUPY.__spec__ = ModuleSpec("cupy", None)
CUPY.cuda = package(
    "cupy.cuda", Device=runtime.Device, Stream=runtime.Stream, Event=runtime.Event, is_available=lambda: True,
    get_elapsed_time=runtime.get_elapsed_time,
    cublas=package("cupy.cuda.cublas"), nvrtc=package("cupy.cuda.nvrtc", getVersion=lambda: (13, 0)),
    runtime=package(
        "cupy.cuda.runtime", CUDARuntimeError=runtime.CUDARuntimeError, getDeviceCount=lambda: 1,
        driverGetVersion=lambda: 13000, runtimeGetVersion=lambda: 13000,
        getDeviceProperties=lambda number: dict(name=b"a double", totalGlobalMem=2 ** 34, major=9, minor=0)))
CUPY.random = package("cupy.random", Generator=Generator, XORWOW=Bits, MRG32k3a=Bits, Philox4x3210=Bits,
                      default_rng=lambda seed=None: Generator(Bits(seed)))
CUPYX = package("cupyx", scatter_add=lambda a, index, b: CUPY.add.at(a, index, b),
                scipy=package("cupyx.scipy", special=package("cupyx.scipy.special", erf=erf)))


def compute_types():
    """cupy._core's switch of the precision of products."""
    kinds = package("cupy._core._routines_linalg", COMPUTE_TYPE_DEFAULT=1, COMPUTE_TYPE_TF32=7)
    told = {}
    return package("cupy._core", _routines_linalg=kinds, get_compute_type=lambda dtype: told.get(np.dtype(dtype), 1),
                   set_compute_type=lambda dtype, kind: told.update({np.dtype(dtype): kind}))


CUPY._core = compute_types()
