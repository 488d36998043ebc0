"""Rows of a table, looked up by number."""
from minitx import backend
from minitx.autograd import Op


class Embedding(Op):
    r"""Look up one row of a table for every id.

        ids (...) integers   weight (V, C)   ->   y (..., C)

    forward       y = weight[ids]
    backward      dweight = zeros; dweight[ids] += dy           an id that occurs twice gets both gradients
                  dweight[padding_idx] = 0
    saved         ids (...)

    twin          minitx/fused/cpu/embedding.py   minitx/fused/cuda/embedding.py and .cu
    """
    promotion, native_half = "one", True

    def forward(self, weight, *, ids, padding_idx=None):
        if weight.ndim != 2:
            raise ValueError("weight must be (V, C)")
        self.ids = backend.follow_index(ids, len(weight), weight)
        self.rows, self.padding_idx = len(weight), padding_idx
        return weight[self.ids]

    def backward(self, dy):
        dweight = backend.scatter_add(self.ids.ravel(), dy.reshape(self.ids.size, dy.shape[-1]), self.rows)
        if self.padding_idx is not None:
            dweight[self.padding_idx] = 0
        return dweight,


def embedding(ids, weight):
    """Rows of weight (V, C) for integer ids of any shape (...): (..., C). Host arrays of ids follow the weight's device.

    IndexError for an id below 0 or above V - 1, TypeError for ids that are not integers.
    """
    return Embedding.apply(weight, ids=ids)
