"""New Tensors, from data, from nothing, or by chance."""
from minitx import backend
from minitx.autograd import Tensor


def tensor(data, requires_grad=False, dtype=None, device=None):
    """A Tensor with a copy of data (numbers, nested lists, an array, a Tensor).

    Python floats and lists of them become the default dtype, ints int64, bools bool; arrays keep theirs. A Tensor, and an
    array on a GPU, stays on its device, everything else goes to the default one, unless device says where. TypeError for
    what is no number, and for integers that require gradients; RuntimeError for a device that cannot be had.
    """
    dtype = None if dtype is None else backend.check_dtype(dtype)
    if isinstance(data, Tensor):
        data, device = data.data, device or data.device
    array = backend.make_array(data, dtype, device)
    return Tensor(array, requires_grad)


def zeros(*shape, requires_grad=False, dtype=None, device=None):
    """A Tensor of zeros; shape as numbers or as one tuple. Default dtype and device unless told."""
    return _filled(0, shape, requires_grad, dtype, device)


def ones(*shape, requires_grad=False, dtype=None, device=None):
    """A Tensor of ones; shape as numbers or as one tuple. Default dtype and device unless told."""
    return _filled(1, shape, requires_grad, dtype, device)


def arange(start, stop=None, step=1, requires_grad=False, dtype=None, device=None):
    """The numbers from start (0 if only one is given) up to stop, without it: int64 for ints, else the default dtype."""
    start, stop = (0, start) if stop is None else (start, stop)
    return tensor(backend.host_arange(start, stop, step, dtype), requires_grad, device=backend.check_device(device))


def rand(*shape, requires_grad=False, dtype=None, device=None):
    """Uniform numbers in 0 .. 1 from minitx's one generator; shape as numbers or as one tuple."""
    return _drawn(backend.generator().random(_shape(shape)), requires_grad, dtype, device)


def randn(*shape, requires_grad=False, dtype=None, device=None):
    """Normal numbers (mean 0, variance 1) from minitx's one generator; shape as numbers or as one tuple."""
    return _drawn(backend.generator().standard_normal(_shape(shape)), requires_grad, dtype, device)


def _shape(shape):
    return tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape


def _drawn(numbers, requires_grad, dtype, device):
    """Drawn in float64 and rounded, so that every dtype and device gets the same numbers from the same seed."""
    return tensor(numbers, requires_grad, backend.default_dtype() if dtype is None else dtype, backend.check_device(device))


def _filled(value, shape, requires_grad, dtype, device):
    dtype = backend.default_dtype() if dtype is None else backend.check_dtype(dtype)
    return Tensor(backend.filled(_shape(shape), value, dtype, device), requires_grad)
