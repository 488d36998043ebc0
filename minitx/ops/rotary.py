"""Rotary positions."""
from minitx import backend
from minitx.autograd import Op
from minitx.backend import xp_of


class Rotary(Op):
    r"""Turn pairs of entries by an angle that grows with the position, so that q k depends on the distance alone.

        x (..., T, K)   positions (T,) or (B, T)   frequencies (K/2,)   ->   y (..., T, K)

    forward       angle_i = position * f_i                              i = 0 .. K/2 - 1
                  f_i = base^(-2i / K), or the frequencies given
                  y_a = x_a cos angle - x_b sin angle                   (a, b) = (i, i + K/2), the two halves,
                  y_b = x_a sin angle + x_b cos angle                   or (2i, 2i + 1) if interleaved
    backward      dx_a = dy_a cos angle + dy_b sin angle                turned back
                  dx_b = dy_b cos angle - dy_a sin angle
    saved         cos, sin (..., T, K/2)
    """
    name = "rope"
    promotion = "float"

    def forward(self, x, *, positions, base=10000.0, interleaved=False, frequencies=None):
        if x.ndim < 2 or x.shape[-1] % 2:
            raise ValueError("x must be (..., T, K) with an even K, to form pairs")
        xp, (T, K) = xp_of(x), x.shape[-2:]
        positions = backend.follow(positions, x)
        if positions.shape not in ((T,), (x.shape[0], T)):
            raise ValueError(f"positions {positions.shape} must be (T,) or (B, T), here ({T},) or ({x.shape[0]}, {T})")
        if positions.ndim == 2:                                         # (B, 1, ..., T): the same for every head
            positions = positions.reshape(len(positions), *(1,) * (x.ndim - 3), T)
        if frequencies is None:
            frequencies = base ** (xp.arange(K // 2) * (-2 / max(K, 1)))
        frequencies = backend.follow(frequencies, x)
        if frequencies.shape != (K // 2,):
            raise ValueError(f"frequencies {frequencies.shape} must be (K/2,), here ({K // 2},)")
        angle = positions[..., None] * frequencies                      # float64: positions grow large
        self.cos, self.sin = xp.cos(angle).astype(x.dtype), xp.sin(angle).astype(x.dtype)
        self.interleaved = interleaved
        return self.turned(x, self.sin)

    def backward(self, dy):
        return self.turned(dy, -self.sin),

    def turned(self, x, sin):
        half = x.shape[-1] // 2
        a = (..., slice(0, None, 2) if self.interleaved else slice(half))
        b = (..., slice(1, None, 2) if self.interleaved else slice(half, None))
        y = xp_of(x).empty_like(x)
        y[a] = x[a] * self.cos - x[b] * sin
        y[b] = x[a] * sin + x[b] * self.cos
        return y


def rope(x, positions, base=10000.0, interleaved=False, *, frequencies=None):
    """x (..., T, K) turned by its positions (T,), or (B, T) beside x (B, ..., T, K).

    Su et al. 2021, "RoFormer", equations 15 and 34. The pairs are the two halves (i, i + K/2), as in Hugging Face's LLaMA
    files, or neighbours (2i, 2i + 1) if interleaved, as in the paper and Meta's own files. frequencies (K/2,), the angle of
    each pair from one position to the next, come in place of the base. ValueError for an odd K, or positions or
    frequencies that do not fit.
    """
    return Rotary.apply(x, positions=positions, base=base, interleaved=interleaved, frequencies=frequencies)
