"""Rows brought to one size: layer norm and RMS norm."""
import math

from minitx.autograd import Op
from minitx.backend import row_dot, xp_of


class LayerNorm(Op):
    r"""Give every row mean 0 and variance 1, then let it choose its own scale and shift.

        x (..., C)   gamma (C,)   beta (C,)   ->   y (..., C)

    forward       mu = <x>      r = 1 / sqrt(<(x - mu)^2> + eps)        <.> = mean over C
                  xhat = (x - mu) r
                  y = gamma xhat + beta

    backward      g = gamma dy                          what reaches xhat
                  dx = r (g - <g> - xhat <g xhat>)      mu and r are functions of x too: each
                                                        subtracts the direction it had removed
                  dgamma = sum xhat dy                  sums over every axis but C
                  dbeta  = sum dy

    saved         xhat (..., C)   r (..., 1)   gamma (C,)

    twin          minitx/fused/cpu/norm.py   minitx/fused/cuda/norm.py and .cu
    """
    promotion = "one"

    def forward(self, x, gamma, beta, *, eps=1e-5):
        check_width(x, gamma, beta)
        self.gamma = gamma
        c = x - x.sum(axis=-1, keepdims=True) / max(x.shape[-1], 1)
        self.xhat, self.r = unit_rows(c, eps)
        y = self.xhat * (1 if gamma is None else gamma)
        if beta is not None:
            y += beta
        return y

    def backward(self, dy):
        xhat, C = self.xhat, max(self.xhat.shape[-1], 1)
        dgamma, dbeta = parameter_gradients(xhat, dy) if any(self.needs[1:]) else (None, None)
        dx = dy * (1 if self.gamma is None else self.gamma)             # g, becoming dx
        scale = row_dot(dx, xhat)[..., None] / C
        dx -= dx.sum(axis=-1, keepdims=True) / C
        dx -= xhat * scale
        dx *= self.r
        return dx, dgamma, dbeta


class RMSNorm(Op):
    r"""Give every row mean square 1, then let it choose its own scale.

        x (..., C)   gamma (C,)   ->   y (..., C)

    forward       r = 1 / sqrt(<x^2> + eps)             <.> = mean over C
                  xhat = x r
                  y = gamma xhat

    backward      g = gamma dy
                  dx = r (g - xhat <g xhat>)            r is a function of x too
                  dgamma = sum xhat dy                  over every axis but C

    saved         xhat (..., C)   r (..., 1)   gamma (C,)

    twin          minitx/fused/cuda/norm.py and .cu
    """
    promotion = "one"

    def forward(self, x, gamma, *, eps=1e-6):
        check_width(x, gamma, None)
        self.gamma = gamma
        self.xhat, self.r = unit_rows(x.copy(), eps)
        return self.xhat * (1 if gamma is None else gamma)

    def backward(self, dy):
        xhat, C = self.xhat, max(self.xhat.shape[-1], 1)
        dgamma = parameter_gradients(xhat, dy)[0] if self.needs[1] else None
        dx = dy * (1 if self.gamma is None else self.gamma)             # g, becoming dx
        dx -= xhat * (row_dot(dx, xhat)[..., None] / C)
        dx *= self.r
        return dx, dgamma


def unit_rows(c, eps):
    """Bring the rows of c to mean square 1, in place; return them and r, what each was multiplied by.

    Dividing by sqrt C first keeps the sum of squares from overflowing: in float32 rows up to 1e18 come out right.
    """
    root = math.sqrt(c.shape[-1]) or 1.0
    c *= 1 / root
    r = 1 / xp_of(c).sqrt(row_dot(c, c)[..., None] + eps)
    c *= r * root
    return c, r


def parameter_gradients(xhat, dy):
    """dgamma = sum xhat dy and dbeta = sum dy over every axis but the last."""
    xp, C = xp_of(dy), dy.shape[-1]
    rows = dy.reshape(math.prod(dy.shape[:-1]), C)
    dgamma = xp.einsum("nc,nc->c", rows, xhat.reshape(rows.shape))
    return dgamma, xp.ones(len(rows), dy.dtype) @ rows                  # a product adds columns up faster than sum does


def check_width(x, *vectors):
    """ValueError unless x has rows and each vector is as long as one."""
    if x.ndim == 0:
        raise ValueError("x must have at least one axis to normalise")
    for vector in vectors:
        if vector is not None and vector.shape != x.shape[-1:]:
            raise ValueError(f"weight and bias must have shape {x.shape[-1:]}, the width of x")


def layer_norm(x, weight=None, bias=None, eps=1e-5):
    """Normalise the last axis of x (..., C) to mean 0 and variance 1 (biased, eps inside the root), then scale and shift.

    weight, bias (C,) or None. Ba, Kiros and Hinton 2016, "Layer Normalization", section 3. ValueError where the widths
    differ, TypeError where two float dtypes meet.
    """
    return LayerNorm.apply(x, weight, bias, eps=eps)


def rms_norm(x, weight=None, eps=1e-6):
    """Normalise the last axis of x (..., C) to mean square 1, then scale by weight (C,) or None.

    Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", equation 4. ValueError where the widths differ,
    TypeError where two float dtypes meet.
    """
    return RMSNorm.apply(x, weight, eps=eps)
