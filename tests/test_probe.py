"""The double is held to its own claims of what CuPy does (double/claims.py), and to CuPy itself where a GPU is."""
import inspect

import double
import numpy as np
import pytest
from double.array import LACKS, NOWHERE
from double.claims import CLAIMS, arrays
from double.module import MISSING

import minitx as mt


def outcome(value, xp):
    """A value as the claims write it: arrays as (dtype, nested list), several of them as a list."""
    if isinstance(value, xp.ndarray):
        return str(value.dtype), value.tolist()
    if isinstance(value, tuple) and any(isinstance(part, xp.ndarray) for part in value):
        return [outcome(part, xp) for part in value]
    return value


def check(claim, xp):
    names = arrays(xp)
    if isinstance(claim.outcome, type) or isinstance(claim.outcome, tuple) and isinstance(claim.outcome[0], type):
        with pytest.raises(claim.outcome):
            eval(claim.statement, names)
        return
    found = outcome(eval(claim.statement, names), xp)
    np.testing.assert_equal(rounded(found), rounded(claim.outcome))


def rounded(value):
    """Numbers to six digits: a GPU's functions round in their own way."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(rounded, value))
    return float(f"{value:.6g}") if isinstance(value, float) else value


def named(claims):
    return pytest.mark.parametrize("claim", claims, ids=[f"{claim.item}: {claim.statement}" for claim in claims])


@named(CLAIMS)
def test_on_the_double(claim, cupy):
    check(claim, cupy)


@pytest.mark.skipif(not mt.cuda.is_available() or isinstance(mt.backend.require_cupy(), double.Cupy),
                    reason="needs CuPy and a GPU")
@named([claim for claim in CLAIMS if not claim.strict])
def test_on_cupy(claim):
    check(claim, mt.backend.require_cupy())


# ---- what CuPy's own names and signatures say, which needs no GPU ----------------------------------------------------

@pytest.fixture
def real():
    found = pytest.importorskip("cupy", exc_type=ImportError)
    if isinstance(found, double.Cupy):
        pytest.skip("needs CuPy itself")
    return found


def test_what_the_double_lacks_cupy_lacks(real):
    assert [name for name in MISSING if hasattr(real, name)] == []


def test_what_the_double_has_cupy_has(real):
    names = [name for name in dir(np) if not name.startswith("_")]
    assert [name for name in names if hasattr(double.CUPY, name) and not hasattr(real, name)] == []


def test_keywords_that_the_double_refuses(real):
    for name in {*LACKS, *"sum mean max min prod any all zeros full asarray broadcast_to".split()}:
        known = set(inspect.signature(getattr(real, name)).parameters)
        assert not (NOWHERE | LACKS.get(name, set())) & known - {"subok"}, name       # which is there and has no effect
