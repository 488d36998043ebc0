"""The small layers: values and gradients of PyTorch's, their initial values, and what they refuse."""
import numpy as np
import pytest
from double import here

import minitx as mt
from minitx import nn, optim

RNG = np.random.default_rng(0)


def twins(torch):
    """(ours, PyTorch's, input) of every layer that both have."""
    ids = RNG.integers(0, 7, (2, 5))
    x = RNG.standard_normal((2, 3, 4))
    return [(nn.Linear(4, 6), torch.nn.Linear(4, 6), x), (nn.Linear(4, 6, bias=False), torch.nn.Linear(4, 6, False), x),
            (nn.Embedding(7, 4), torch.nn.Embedding(7, 4), ids),
            (nn.Embedding(7, 4, padding_idx=2), torch.nn.Embedding(7, 4, padding_idx=2), ids),
            (nn.Embedding(7, 4, padding_idx=-1), torch.nn.Embedding(7, 4, padding_idx=-1), ids),
            (nn.LayerNorm(4), torch.nn.LayerNorm(4), x), (nn.LayerNorm(4, 0.1), torch.nn.LayerNorm(4, 0.1), x),
            (nn.LayerNorm(4, bias=False), torch.nn.LayerNorm(4, bias=False), x),
            (nn.RMSNorm(4), torch.nn.RMSNorm(4, eps=1e-6), x), (nn.RMSNorm(4, 0.1), torch.nn.RMSNorm(4, eps=0.1), x),
            (nn.GELU(), torch.nn.GELU(), x), (nn.GELU("tanh"), torch.nn.GELU("tanh"), x),
            (nn.ReLU(), torch.nn.ReLU(), x), (nn.SiLU(), torch.nn.SiLU(), x), (nn.Tanh(), torch.nn.Tanh(), x),
            (nn.Dropout(0.3), torch.nn.Dropout(0.3), x)]


def test_every_layer_is_pytorchs():
    torch = pytest.importorskip("torch")
    for ours, theirs, x in twins(torch):
        ours.to(dtype=np.float64).eval()
        theirs.double().eval()
        for name, p in ours.named_parameters():                     # far from 1 and 0, so that each one counts
            p.data[...] = mt.tensor(RNG.standard_normal(p.shape)).data
        theirs.load_state_dict({name: torch.tensor(here(value)) for name, value in ours.state_dict().items()})
        a, b = mt.tensor(x, requires_grad=x.dtype.kind == "f"), torch.tensor(x, requires_grad=x.dtype.kind == "f")
        y, z = ours(a), theirs(b)
        np.testing.assert_allclose(y.numpy(), z.detach().numpy(), rtol=1e-10, atol=1e-10, err_msg=repr(ours))
        if not y.requires_grad:
            continue
        dy = RNG.standard_normal(y.shape)
        y.backward(dy)
        z.backward(torch.tensor(dy))
        pairs = [(p.grad, q.grad) for p, q in zip(ours.parameters(), theirs.parameters())]
        for g, h in pairs + ([(a.grad, b.grad)] if a.requires_grad else []):
            np.testing.assert_allclose(g, h.numpy(), rtol=1e-10, atol=1e-10, err_msg=repr(ours))


def test_layers_are_their_formulas():
    x = RNG.standard_normal((2, 3)).astype(np.float32)
    linear = nn.Linear(3, 4)
    np.testing.assert_allclose(linear(x).data, x @ linear.weight.numpy().T + linear.bias.numpy(), rtol=1e-5)
    norm = nn.LayerNorm(4)
    np.testing.assert_allclose(norm(mt.tensor([1.0, 0, 0, 0])).data, [1.7320, -0.5773, -0.5773, -0.5773], atol=2e-4)
    table = nn.Embedding(5, 2)
    np.testing.assert_array_equal(table([[4, 0]]).data, table.weight.numpy()[[[4, 0]]])


def test_linear_starts_uniform_within_one_over_root_of_its_inputs():
    layer = nn.Linear(16, 5000)
    for p in layer.weight.numpy(), layer.bias.numpy():
        assert p.min() == pytest.approx(-0.25, abs=2e-3) and p.max() == pytest.approx(0.25, abs=2e-3)
        assert np.abs(p).max() <= 0.25 and p.dtype == np.float32


def test_embedding_starts_normal_and_its_padding_row_stays_zero():
    table = nn.Embedding(500, 40, padding_idx=3)
    assert (table.weight.data[3] == 0).all() and table.weight.numpy().std() == pytest.approx(1, abs=0.02)
    optimiser = optim.AdamW(table.parameters(), lr=0.1)
    table(np.array([3, 4])).sum().backward()
    optimiser.step()
    assert (table.weight.data[3] == 0).all() and (table.weight.grad[4] == 1).all()


def test_norms_start_as_identity_of_scale():
    assert (nn.LayerNorm(3).weight == 1).all() and (nn.LayerNorm(3).bias == 0).all()
    assert (nn.RMSNorm(3).weight == 1).all()


def test_dropout_follows_the_mode():
    layer, x = nn.Dropout(0.25), mt.ones(100, 100)
    y = layer(x).numpy()
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.75)} and 0.72 < (y > 0).mean() < 0.78
    assert (layer.eval()(x) == x.data).all()
    assert (nn.Dropout(1.0)(x) == 0).all()


def test_what_may_be_added_on_the_way():
    x, residual, bias = mt.randn(3, 4), mt.randn(3, 4), mt.randn(4)
    np.testing.assert_allclose(nn.Dropout(0.5).eval()(x, residual).numpy(), (x + residual).numpy())
    np.testing.assert_allclose(nn.Dropout(1.0)(x, residual).numpy(), residual.numpy())
    for approximate in ("none", "tanh"):
        layer = nn.GELU(approximate)
        np.testing.assert_allclose(layer(x, bias).numpy(), layer(x + bias).numpy(), rtol=1e-6)


@pytest.mark.parametrize("make, says", [
    (lambda: nn.Dropout(1.5), "1.5"), (lambda: nn.Dropout(-0.1), "-0.1"), (lambda: nn.Dropout(float("nan")), "nan"),
    (lambda: nn.GELU("erf"), "erf"), (lambda: nn.Linear(0, 3), "in_features"),
    (lambda: nn.Linear(3, -1), "out_features"),
    (lambda: nn.Embedding(3, 2, padding_idx=3), "padding_idx 3"), (lambda: nn.Embedding(3, 2, padding_idx=-4), "-4"),
    (lambda: nn.Embedding(0, 2), "n must be"), (lambda: nn.LayerNorm(0), "dim")])
def test_numbers_that_cannot_be(make, says):
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.parametrize("call, error, says", [
    (lambda: nn.Linear(3, 4)(mt.ones(2, 5)), ValueError, "linear"),
    (lambda: nn.LayerNorm(3)(mt.ones(2, 5)), ValueError, "layer_norm"),
    (lambda: nn.RMSNorm(3)(mt.ones(2, 5)), ValueError, "rms_norm"),
    (lambda: nn.Embedding(3, 4)([3]), IndexError, "3"), (lambda: nn.Embedding(3, 4)([-1]), IndexError, "-1"),
    (lambda: nn.Embedding(3, 4)([1.0]), TypeError, "integers"),
    (lambda: nn.Linear(3, 4)(np.ones((2, 3))), TypeError, "float32.*float64|float64.*float32")])
def test_input_that_does_not_fit(call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_repr():
    assert repr(nn.Linear(3, 4, bias=False)) == "Linear(3, 4, bias=False)  12 parameters"
    assert repr(nn.Embedding(3, 4, padding_idx=0)) == "Embedding(3, 4, padding_idx=0)  12 parameters"
    assert repr(nn.LayerNorm(3)) == "LayerNorm(3, eps=1e-05)  6 parameters"
    assert repr(nn.GELU("tanh")) == 'GELU("tanh")' and repr(nn.GELU()) == "GELU()"
    assert repr(nn.Dropout(0.1)) == "Dropout(0.1)" and repr(nn.ReLU()) == "ReLU()"


@pytest.mark.parametrize("layer", [nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize("eps", [-1e-5, np.nan, np.inf])
def test_an_eps_that_makes_no_norm(layer, eps):
    with pytest.raises(ValueError, match="eps must be"):
        layer(4, eps)


def test_a_size_that_is_no_whole_number():
    with pytest.raises(TypeError, match="Linear: in_features must be a whole number, got 2.0"):
        nn.Linear(2.0, 3)
