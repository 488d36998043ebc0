"""The two kinds of Tensor that a Module owns."""
import numpy as np

from minitx import backend
from minitx.autograd import Tensor
from minitx.nn import init


class Parameter(Tensor):
    """A Tensor that a Module trains. It copies the data it is given; inside init.hollow() it only takes their shape.

    TypeError for integers.
    """

    __slots__ = ()

    def __init__(self, data, requires_grad=True):
        super().__init__(init.zeros(np.shape(data)) if init.is_hollow() else _own(data), requires_grad)


class Buffer(Tensor):
    """A Tensor that moves and is saved with its Module, but is not trained. It copies its data.

    With persistent=False it is not saved: for tables that can be computed again.
    """

    __slots__ = ("persistent",)

    def __init__(self, data, persistent=True):
        super().__init__(_own(data))
        self.persistent = persistent


def _own(data):
    """A C-ordered copy of a Tensor, an array or Python numbers."""
    return data.data.copy() if isinstance(data, Tensor) else backend.make_array(data)
