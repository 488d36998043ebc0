"""einsum."""
import numpy as np
import pytest
from double import here

import minitx as mt
from minitx import ops

FORMS = {
    "ij,jk->ik": [(2, 3), (3, 4)], "bij,bjk->bik": [(2, 3, 4), (2, 4, 5)], "ij->ji": [(2, 3)], "ij->": [(2, 3)],
    "ij->i": [(2, 3)], "ii->i": [(3, 3)], "ii->": [(3, 3)], "ii": [(3, 3)], "i,j->ij": [(2,), (3,)],
    "i,i->": [(3,), (3,)], "ij,jk": [(2, 3), (3, 4)], "ba": [(2, 3)], "...ij,...jk->...ik": [(5, 2, 3), (5, 3, 4)],
    "...i,i->...": [(4, 2, 3), (3,)], "i...->...": [(2, 3, 4)], "...i,...i": [(2, 3), (2, 3)],
    "ij,ij->ij": [(1, 3), (2, 3)], "...ij,jk->...ik": [(2, 3), (3, 4)], "iij->j": [(2, 2, 3)],
    "i,j,k->ijk": [(2,), (3,), (4,)], "bhtk,bhsk->bhts": [(2, 2, 3, 4), (2, 2, 5, 4)], "ij,kl->ik": [(2, 3), (4, 5)],
    " ij , jk -> ik ": [(2, 3), (3, 4)], "...,...->...": [(3, 1), (1, 2)], ",i->i": [(), (3,)], "->": [()],
    "ij,jk->ki": [(0, 3), (3, 2)],
}


@pytest.mark.parametrize("equation", FORMS)
def test_values_and_gradients(equation):
    draw = np.random.default_rng(0).normal
    xs = [mt.tensor(draw(size=shape), requires_grad=True) for shape in FORMS[equation]]
    y = ops.einsum(equation, *xs)
    arrays = [x.numpy() for x in xs]
    np.testing.assert_allclose(y.numpy(), np.einsum(equation, *arrays), rtol=1e-12, atol=1e-14)
    dy = draw(size=y.shape)
    y.backward(dy)
    for i, x in enumerate(xs):
        h = draw(size=x.shape)
        changed = [*arrays[:i], h, *arrays[i + 1:]]                  # linear in every operand: the slope is exact
        np.testing.assert_allclose((here(x.grad) * h).sum(), (np.einsum(equation, *changed) * dy).sum(), rtol=1e-9,
                                   atol=1e-12)
        assert x.grad.shape == x.shape


@pytest.mark.parametrize("equation, shapes", [
    ("ij,jk->ik", [(2, 3)]), ("ij->i", [(2, 3), (3,)]), ("ijk->i", [(2, 3)]), ("i->i", [(2, 3)]),
    ("ij,jk->ik", [(2, 3), (4, 5)]),
    ("ij->ik", [(2, 3)]), ("ii->i", [(2, 3)]), ("i->ii", [(2,)]), ("i?->i", [(2, 3)])])
def test_what_does_not_fit(equation, shapes):
    with pytest.raises(ValueError, match="einsum: "):
        ops.einsum(equation, *(mt.ones(shape) for shape in shapes))


def test_no_operands_or_no_equation():
    with pytest.raises((ValueError, TypeError)):
        ops.einsum("ij->i")
    with pytest.raises((ValueError, TypeError), match="einsum|equation"):
        ops.einsum(mt.ones(2, 2), "ij->i")


def test_only_what_is_needed_gets_a_gradient():
    a, b = mt.ones(2, 3, requires_grad=True), mt.ones(3)
    ops.einsum("ij,j->i", a, b).sum().backward()
    assert a.grad.shape == (2, 3) and b.grad is None
    assert ops.einsum("ij->ji", mt.tensor([[1, 2]])).shape == (2, 1)


@pytest.mark.parametrize("bad", [2.0, 3, [1.0, 2.0], "ab", None], ids=str)
def test_numbers_and_lists_have_no_letters(bad):
    for call in (lambda: ops.einsum("i->", bad), lambda: ops.einsum("i,i->", mt.ones(2), bad),
                 lambda: ops.einsum("i,i->", bad, mt.ones(2))):
        with pytest.raises((TypeError, ValueError), match="(?s)^einsum: (?!.*cuda)"):
            call()
