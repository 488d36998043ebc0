"""Why these planted faults are none: for every file of ops, the changed statement -> the reason.

``python -m minitx check --mutations`` fails where a fault survives that is not here, or where one listed here does not.
"""
SURVIVORS = {
    "activation": {
        "promotion, native_half = ('mixed', False)":
            "it is about float16 on a GPU, which the cases do not hold; tests/test_precision.py does",
        "_BEYOND = 1100.0":
            "every gate is exactly 0 or 1 from |x| = 40 on",
    },
    "arithmetic": {
        "broadcasts, promotion, native_half = (True, 'mixed', False)":
            "it is about float16 on a GPU, which the cases do not hold; tests/test_precision.py does",
        "promotion, native_half = ('mixed', False)":
            "it is about float16 on a GPU, which the cases do not hold; tests/test_precision.py does",
        "da = xp.where(b == 0, 0, dy * b * a ** xp.where(b == 0, 2, b - 1))":
            "where b is 0 the 0 is chosen, whatever power stands there",
    },
    "attention": {
        "def forward(self, q, k, v, bias=None, *, mask=None, is_causal=False, scale=None, keep=None, "
        "dropout_p=1.0, return_weights=False):":
            "without keep the gain is not used",
        "dropped: mask = backend.follow(mask, s)":
            "it moves the mask to the scores' device and makes arrays of lists; the cases hold host arrays",
    },
    "dropout": {
        "return 1 / (1 - p) if p < 1 else 1.0":
            "with p = 1 nothing is kept, so the gain multiplies zeros",
    },
    "einsum": {
        "if letter not in target:":
            "every letter then goes through a unit matrix: the same sum, only slower",
        "if not all((letter in term and array.shape[term.index(letter)] == n for term, array in zip(terms, arrays))):":
            "a letter that is there already gets one more factor of ones",
        "return xp_of(operands[0]).einsum(','.join(self.terms) + '->' + self.result, *operands, optimize=False)":
            "the same products, in another order",
        "return xp.einsum(','.join(terms) + '->' + target, *arrays, optimize=False)":
            "the same products, in another order",
    },
    "embedding": {
        "promotion, native_half = ('one', False)":
            "it is about float16 on a GPU, which the cases do not hold; tests/test_precision.py does",
    },
    "extrema": {
        "self.p = e / xp.where(total == 0, 2, total)":
            "that row's e is all zeros: 0 / 2 is 0 too",
        "return xp_of(m).where(xp_of(m).isfinite(m), m, 0)":
            "NumPy 2 keeps m's dtype beside a Python 0; CuPy is asked to say so",
        "return xp_of(m).where(xp_of(m).isfinite(m), m, 1).astype(m.dtype)":
            "an infinity is the same with 1 more or less: exp(-inf - 1) is 0 and 1 + ln inf is inf too",
    },
    "join": {
        "promotion, native_half = ('mixed', False)":
            "it is about float16 on a GPU, which the cases do not hold; tests/test_precision.py does",
    },
    "linear": {
        "broadcasts, promotion, native_half = (True, 'same', False)":
            "it is about float16 on a GPU, which the cases do not hold; tests/test_precision.py does",
        "promotion, native_half = ('one', False)":
            "it is about float16 on a GPU, which the cases do not hold; tests/test_precision.py does",
        "dropped: da = da[..., 0, :] if self.row else da":
            "the engine's sum over broadcast axes takes the axis of length 1 out too",
    },
    "loss": {
        "promotion, wide_result = ('float', False)":
            "the engine asks for it with float16 logits alone, and tests/test_autograd.py does",
        "dropped: targets = backend.beside(targets, logits)":
            "it makes arrays of lists; the cases hold arrays",
        "dropped: targets = backend.like(targets, x)":
            "it moves targets to the logits' device; the cases hold host arrays",
        "return -xp.zeros(self.shape[:-1] if reduction == 'none' else (), x.dtype)":
            "-0 equals 0",
        "self.p = x":
            "x is empty there: nothing could be overwritten",
        "return (-dx.reshape(self.shape),)":
            "dx is empty there",
        "return (dx.reshape(self.shape) * 2,)":
            "dx is empty there",
        "return (dx.reshape(self.shape) * 0,)":
            "dx is empty there",
        "self.p = x - finite_or_zero(x.max(axis=1, keepdims=True))":
            "x is a matrix: axis 1 is the last",
        "return xp.maximum(c, xp.where(x == -inf, -inf, xp.finfo(x.dtype).min))":
            "NumPy 2 keeps x's dtype beside a Python number; CuPy is asked to say so",
        "mean = (representable(self.p, x) / V).sum(axis=1) if label_smoothing else 0":
            "p is a matrix: axis 1 is the last",
        "mean = (representable(self.p, x) / V).sum(axis=-1) if label_smoothing else 1":
            "it is multiplied by label_smoothing, which is 0 there",
        "total = self.p.sum(axis=1)":
            "p is a matrix: axis 1 is the last",
        "dx -= a / dx.shape[1]":
            "dx is a matrix: axis 1 is the last",
    },
    "norm": {
        "root = math.sqrt(c.shape[-1]) or 1.1":
            "only a row of width 0 has the root 0, and it has nothing to be scaled",
    },
    "reduce": {
        "y = xp_of(dy).where(self.y == 0, 2, self.y)":
            "there every c is 0 too, so any divisor will do",
    },
    "rotary": {
        "dropped: positions = backend.follow(positions, x)":
            "it moves positions to x's device and makes arrays of lists; the cases hold host arrays",
        "dropped: frequencies = backend.follow(frequencies, x)":
            "it moves them to x's device and makes arrays of lists; the cases hold host arrays",
        "frequencies = base ** (xp.arange(K // 2) * (-2 / max(K, 2)))":
            "K is even: 2 or more, or 0 and then there is no angle",
        "self.cos, self.sin = (xp.cos(angle), xp.sin(angle).astype(x.dtype))":
            "y has x's dtype, so a float64 table is only rounded later",
        "self.cos, self.sin = (xp.cos(angle).astype(x.dtype), xp.sin(angle))":
            "y has x's dtype, so a float64 table is only rounded later",
    },
    "select": {
        "self.mask = backend.follow(mask, x)":
            "the product with dy broadcasts as well; broadcast_to is there to refuse a mask larger than x",
        "return xp_of(dy).where(larger == smaller, 0.5, larger >= smaller).astype(dy.dtype)":
            "where the two are equal the 0.5 has been chosen already",
        "y = x if min is None and max is None else x":
            "the same numbers, copied or not",
        "y = x.copy() if min is None or max is None else x":
            "the same numbers, copied once more",
        "y = x.copy() if min is not None and max is None else x":
            "the same numbers, copied or not",
        "y = x.copy() if min is None and max is not None else x":
            "the same numbers, copied or not",
    },
    "shape": {
        "back = [1] * dy.ndim":
            "every entry is overwritten in the loop",
        "dropped: if all((part is None or part is Ellipsis or isinstance(part, (slice, int)) for part in self.index)):":
            "the general road below gives the same, only slower",
        "if all((part is None and part is Ellipsis and isinstance(part, (slice, int)) for part in self.index)):":
            "the general road below gives the same, only slower",
        "dropped: return (dx,)":
            "the general road below gives the same, only slower",
        "return backend.to_device(x, device).astype(dtype, copy=True)":
            "the same numbers, copied once more",
        "return (backend.to_device(dy, self.device).astype(self.dtype, copy=True),)":
            "the same numbers, copied once more",
    },
    "softmax": {
        "c = x - finite_or_zero(x.max(axis=axis, keepdims=True)) if x.size else x":
            "c is only read, so it may be x itself",
        "scores /= xp.where(total == 0, 2, total)":
            "that row is all zeros: 0 / 2 is 0 too",
    },
}
