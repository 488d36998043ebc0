"""Backward from several outputs at once, each with its own dy."""
import contextlib

import numpy as np

from minitx.autograd import Op, Tensor
from minitx.backend import to_device, to_numpy, xp_of
from minitx.proof.differences import is_float
from minitx.proof.opcheck import Result, there
from minitx.recording import mode


class _Seed(Op):
    """The root that backward starts from: hands each output its dy as it is, read-only. Its own value is no matter."""
    name = "gradcheck"

    def forward(self, *ys, dys):
        self.dys = dys
        return xp_of(ys[0]).zeros(())

    def backward(self, dy):
        return self.dys


@contextlib.contextmanager
def recording():
    """Inside it ops are recorded, whatever no_grad says outside."""
    before, mode.recording = mode.recording, True
    try:
        yield
    finally:
        mode.recording = before


def pull(outputs, dys):
    """Add the gradient of the sum of <<dy, y>> to every leaf. outputs: Tensors; dys: arrays, None for one left out."""
    used = [(y, to_device(dy, y.device)) for y, dy in zip(outputs, dys) if dy is not None]
    root = _Seed.apply(*[y for y, _ in used], dys=tuple(dy for _, dy in used))
    if root.requires_grad:
        root.backward()


def through_tensors(fn, inputs, options, dys):
    """Result of fn(*Tensors, **options) and its backward, on the default device: a twin's counterpart of opcheck.run_op."""
    inputs = [Tensor(there(x), requires_grad=True) if is_float(x) else there(x) for x in inputs]
    outputs = fn(*inputs, **options)
    outputs = outputs if type(outputs) is tuple else (outputs,)
    pull(outputs, dys)
    return Result(tuple(to_numpy(y.data) for y in outputs),
                  tuple(map(_gradient, inputs)))


def _gradient(x):
    if not isinstance(x, Tensor):
        return None
    return np.zeros(x.shape) if x.grad is None else to_numpy(x.grad)
