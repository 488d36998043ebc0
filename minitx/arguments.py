"""What an op is given, made ready: Tensors unwrapped, dtypes settled, and errors that name the op and the shapes."""
import functools

import numpy as np

from minitx import backend
from minitx.backend import HALF, SINGLE, is_array
from minitx.tensor import Tensor

WEAK = {float, int, bool, type(None)}
EXPLAINED = (ValueError, TypeError, IndexError, AttributeError, ArithmeticError)


def raw(name, x, weak):
    """What an op may get that is no Tensor: an array, None, or a number, as an array unless it is weak and stays one."""
    if isinstance(x, np.generic):
        x = x.item() if x.dtype.char != "g" else float(x)               # np.float64(2) is no stronger than 2.0
    if is_array(x):
        return backend.plain(x)
    if x is None:
        return x
    if isinstance(x, (float, int)):
        return x if weak else backend.make_array(x)
    raise TypeError(f"{name}: expected a Tensor, an array or a number, got {type(x).__name__}"
                    + ("; wrap it: minitx.tensor(...)" if isinstance(x, (list, tuple)) else ""))


def as_tensor(name, x):
    """x as a Tensor, for a function that must look at its shape before its op runs."""
    if x is None:
        raise TypeError(f"{name}: expected a Tensor, an array or a number, got None")
    return x if isinstance(x, Tensor) else Tensor(raw(name, x, weak=False))


def bare(name, option):
    """An option without Tensors and NumPy scalars: the array inside, also within a tuple (an index); a Python number."""
    if isinstance(option, Tensor):
        if option.requires_grad:
            raise TypeError(f"{name}: an option takes no gradient, and this Tensor requires one: use its .detach(), or "
                            "arithmetic on the inputs")
        return option.data
    if isinstance(option, np.generic):
        return option.item()
    return tuple(bare(name, part) for part in option) if type(option) is tuple else option


def promote(cls, arrays):
    """The arrays in the dtype they compute in, and whether the result goes back to float16."""
    if not any(is_array(array) for array in arrays):
        arrays = [None if x is None else backend.make_array(x) for x in arrays]
    floats = {array.dtype for array in arrays if is_array(array) and array.dtype.kind == "f"}
    if cls.promotion in ("same", "one") and len(floats) > 1:
        names = ", ".join(sorted(map(str, floats)))
        raise TypeError(f"inputs are {names}; bring them to one dtype with .to(dtype=...)")
    if not floats and (cls.promotion in ("float", "one") or any(type(x) is float for x in arrays)):
        floats = {backend.default_dtype()}
    if not floats:
        return arrays, False                        # integers stay integers
    target = functools.reduce(np.promote_types, floats)
    half = target == HALF and not (cls.native_half and _all_half_on_gpu(arrays))
    work = SINGLE if half else target
    return [array.astype(work) if is_array(array) and array.dtype != target or half and is_array(array) else array
            for array in arrays], half


def _all_half_on_gpu(arrays):
    """Whether all inputs that there are are CuPy's arrays of float16."""
    return all(x is None or is_array(x) and not isinstance(x, np.ndarray) and x.dtype == HALF for x in arrays)


def explain(name, error, arrays):
    """The same error, naming the op and the shapes; or that the inputs lie on two devices."""
    devices = sorted({backend.device_of(array) for array in arrays if is_array(array)})
    if len(devices) > 1:
        return TypeError(f"{name}: inputs are on {' and '.join(devices)}; move one with .to(device)")
    if isinstance(error, FloatingPointError):
        kind = FloatingPointError                                       # somebody asked NumPy for it
    elif isinstance(error, (TypeError, AttributeError)):
        kind = TypeError
    elif isinstance(error, IndexError) and not isinstance(error, np.exceptions.AxisError):
        kind = IndexError
    else:
        kind = ValueError
    shapes = ", ".join(str(array.shape) if is_array(array) else repr(array) for array in arrays if array is not None)
    return kind(f"{name}: {error} [inputs {shapes}]")
