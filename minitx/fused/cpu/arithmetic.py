"""The sum of two large arrays, which is what a residual connection is."""
import numpy as np

from minitx.fused import twin
from minitx.fused.cpu.threads import BLOCK, in_blocks
from minitx.memory import LEAST, empty
from minitx.ops.arithmetic import Add


@twin
class FusedAdd(Add):
    """Two arrays of one shape, block by block, into memory that is there already."""

    @staticmethod
    def fits(a, b):
        return (type(a) is type(b) is np.ndarray and a.shape == b.shape and a.nbytes >= LEAST
                and a.flags.c_contiguous and b.flags.c_contiguous)

    def forward(self, a, b):
        y = empty(a.shape, a.dtype)
        a, b, out = a.reshape(-1), b.reshape(-1), y.reshape(-1)
        in_blocks(lambda i, j: np.add(a[i:j], b[i:j], out=out[i:j]), a.size, 4 * BLOCK)       # one pass is soon done
        return y
