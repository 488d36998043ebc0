"""The side wing: faster twins of ops, each with the plain op as the statement of what it computes.

A twin is a subclass of its op with other halves; ``Op.apply`` takes it where the arrays are of one float dtype and its
``fits`` agrees. ``minitx.plain_ops()`` and MINITX_PLAIN=1 keep to the plain ops.
"""
import importlib

CPU = ("activation", "adamw", "attention", "embedding", "linear", "loss", "norm", "softmax")
CUDA = ("activation", "adamw", "attention", "dropout", "embedding", "loss", "norm", "softmax")
TWINS: dict = {}        # {op: its twin, ("cuda", op): that for CuPy's arrays}; an optimiser's update stands there by its name


def twin(cls):
    """Register a subclass of an op as its twin for NumPy arrays. It has a static method ``fits(*arrays, **options)``, true
    for what it can do: it sees the very inputs of forward, before any check, and must not raise."""
    cls.name = cls.__mro__[1].name              # errors speak of the op
    TWINS[cls.__mro__[1]] = cls
    return cls


def cuda_twin(cls):
    """Register a subclass of an op as its twin for CuPy arrays, as `twin` does for NumPy's."""
    cls.name = cls.__mro__[1].name
    TWINS["cuda", cls.__mro__[1]] = cls
    return cls


def load(table):
    """Put every twin into a table {op: its twin}."""
    for wing, names in (("cpu", CPU), ("cuda", CUDA)):
        for name in names:
            importlib.import_module(f"minitx.fused.{wing}.{name}")
    table.update(TWINS)
