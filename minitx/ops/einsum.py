"""Einstein sums."""
import string

from minitx.autograd import Op
from minitx.backend import xp_of


class Einsum(Op):
    r"""Multiply arrays along named axes and sum over the names that the result does not have.

        operands, one term of the equation each   ->   y, the term after ->

    forward       y = einsum(equation, operands)
    backward      dx_i = einsum of dy and the other operands, towards the term of x_i:
                  a letter that only x_i has is filled up with ones, one that it has twice lies on the diagonal
    saved         operands
    """
    broadcasts, promotion = True, "same"

    def forward(self, *operands, equation):
        self.terms, self.result = parse(equation, operands)
        self.operands = operands
        return xp_of(operands[0]).einsum(",".join(self.terms) + "->" + self.result, *operands, optimize=True)

    def backward(self, dy):
        return tuple(self.towards(i, dy) if self.needs[i] else None for i in range(len(self.operands)))

    def towards(self, i, dy):
        xp, x = xp_of(dy), self.operands[i]
        terms = [self.result] + [term for j, term in enumerate(self.terms) if j != i]
        arrays = [dy] + [array for j, array in enumerate(self.operands) if j != i]
        free = iter(letter for letter in string.ascii_letters if letter not in "".join(terms) + self.terms[i])
        target = ""
        for letter, n in zip(self.terms[i], x.shape):
            if letter in target:                                        # twice in x: only the diagonal was read
                other = next(free)
                terms.append(letter + other)
                arrays.append(xp.eye(n, dtype=dy.dtype))
                letter = other
            elif not any(letter in term and array.shape[term.index(letter)] == n for term, array in zip(terms, arrays)):
                terms.append(letter)                                    # as long in x alone: dy is the same all along it
                arrays.append(xp.ones(n, dy.dtype))
            target += letter
        return xp.einsum(",".join(terms) + "->" + target, *arrays, optimize=True)


def parse(equation, operands):
    """(one term per operand, the result's term), the ellipsis spelled out in letters that the equation does not use."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise ValueError(f"equation {equation!r} has {len(terms)} terms for {len(operands)} operands")
    spare = [letter for letter in string.ascii_letters if letter not in equation]
    dots, spelled = "", []
    for term, x in zip(terms, operands):
        extra = x.ndim - len(term.replace("...", ""))
        if extra < 0 or extra and "..." not in term:
            raise ValueError(f"term {term!r} does not name the {x.ndim} axes of shape {x.shape}")
        mine = "".join(spare[:extra][::-1])                             # counted from the right, as broadcasting does
        dots = max(dots, mine, key=len)
        spelled.append(term.replace("...", mine))
    if not arrow:
        letters = left.replace(",", "").replace("...", "")
        right = "..." + "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    return spelled, right.replace("...", dots)


def einsum(equation, *operands):
    """NumPy's einsum, differentiable: "bij,bjk->bik", implicit results, repeated letters and ... included.

    ValueError where terms and shapes do not fit, TypeError where two float dtypes meet.
    """
    return Einsum.apply(*operands, equation=equation)
