"""Patches and the class token: against a convolution, the definition, and finite differences."""
import math

import numpy as np
import pytest
from double import here

import minitx as mt
from minitx import nn

RNG = np.random.default_rng(0)
SIZES = pytest.mark.parametrize("size, patch", [
    ((6, 6), (2, 2)), ((4, 9), (2, 3)), ((5, 8), (5, 2)), ((3, 2), (3, 2)), ((3, 4), (1, 1))], ids=str)


def embedding(size, patch, in_ch=2, d_model=5):
    return nn.PatchEmbed(size, patch, in_ch, d_model).to(dtype=np.float64)


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


@SIZES
def test_it_is_pytorchs_convolution(size, patch):
    torch = pytest.importorskip("torch")
    ours = embedding(size, patch)
    theirs = torch.nn.Conv2d(2, 5, patch, stride=patch, dtype=torch.float64)
    theirs.load_state_dict({name: torch.tensor(here(p)) for name, p in ours.proj.state_dict().items()})
    x = mt.tensor(RNG.standard_normal((3, 2, *size)), requires_grad=True)
    z = torch.tensor(x.numpy(), requires_grad=True)
    y, expected = ours(x), theirs(z).flatten(2).transpose(1, 2)
    close(y.data, expected.detach().numpy())
    dy = RNG.standard_normal(y.shape)
    y.backward(dy)
    expected.backward(torch.tensor(dy))
    close(x.grad, z.grad.numpy())
    for name, p in theirs.named_parameters():
        close(dict(ours.proj.named_parameters())[name].grad, p.grad.numpy())


@SIZES
def test_it_is_a_product_with_every_patch(size, patch):
    layer, x, (ph, pw) = embedding(size, patch), RNG.standard_normal((3, 2, *size)), patch
    weight, bias = layer.proj.weight.numpy(), layer.proj.bias.numpy()
    patches = [x[:, None, :, i:i + ph, j:j + pw] for i in range(0, size[0], ph) for j in range(0, size[1], pw)]
    expected = np.stack([(patch * weight).sum((2, 3, 4)) + bias for patch in patches], axis=1)
    close(layer(mt.tensor(x)).data, expected)
    assert layer.n_patches == len(patches) and layer.grid == (size[0] // ph, size[1] // pw)


@pytest.mark.parametrize("size, patch", [((4, 4), (2, 2)), ((2, 6), (1, 3))])
def test_patches_against_finite_differences(size, patch):
    mt.gradcheck(embedding(size, patch), RNG.standard_normal((2, 2, *size)))


def test_sizes_are_numbers_or_pairs():
    assert nn.PatchEmbed(32, 8, 1, 4).n_patches == nn.PatchEmbed((32, 32), (8, 8), 1, 4).n_patches == 16
    layer = nn.PatchEmbed([np.int64(4), 6], np.int64(2), 1, 4)
    assert layer.n_patches == 6 and layer.grid == (2, 3)
    assert layer(mt.zeros(1, 1, 8, 2)).shape == (1, 4, 4)                   # an image of another size
    assert nn.PatchEmbed().n_patches == 196
    assert {name: value.shape for name, value in nn.PatchEmbed().state_dict().items()} == {
        "proj.weight": (768, 3, 16, 16), "proj.bias": (768,)}


def test_patches_start_as_a_convolution_does():
    layer = nn.PatchEmbed(8, 4, 3, 64)
    bound = 1 / math.sqrt(3 * 16)
    for p in map(here, layer.parameters()):
        assert 0.9 * bound < np.abs(p).max() <= bound and abs(p.mean()) < 0.1 * bound


@pytest.mark.parametrize("arguments, says", [
    ((10, 4), "4 x 4 .* 10 x 10"), (((8, 9), (4, 4)), "4 x 4 .* 8 x 9"), (((9, 8), (4, 4)), "4 x 4 .* 9 x 8"),
    ((3, 4), "4 x 4 .* 3 x 3"), ((8.0, 4), "img_size .*8.0"), ((8, 0), "patch .*0"), ((8, -4), "patch .*-4"),
    ((8, True), "patch .*True"), (((8, 8, 8), 4), r"img_size .*\(8, 8, 8\)"), ((8, (4,)), r"patch .*\(4,\)"),
    (("8", 4), "img_size .*'8'"), ((8, 4, 0), "in_ch .*0"), ((8, 4, 1, 0), "d_model .*0")])
def test_patches_that_cannot_be(arguments, says):
    with pytest.raises(ValueError, match=f"Patch(Embed|Projection): .*{says}"):
        nn.PatchEmbed(*arguments)


@pytest.mark.parametrize("shape, says", [
    ((2, 3, 8, 8), r"\(B, 1, height, width\), got \(2, 3, 8, 8\)"), ((1, 8, 8), r"\(B, 1, .*\(1, 8, 8\)"),
    ((2, 1, 9, 8), r"4 x 4 .*\(2, 1, 9, 8\)"), ((2, 1, 8, 6), r"4 x 4 .*\(2, 1, 8, 6\)")])
def test_images_that_do_not_fit(shape, says):
    with pytest.raises(ValueError, match=says):
        nn.PatchEmbed(8, 4, 1, 5)(mt.zeros(*shape))


def test_an_empty_batch_of_images():
    layer = nn.PatchEmbed(8, 4, 1, 5)
    y = layer(mt.tensor(np.zeros((0, 1, 8, 8), np.float32)))
    assert y.shape == (0, 4, 5)
    y.backward(np.zeros(y.shape, np.float32))
    assert all((p.grad == 0).all() and p.grad.shape == p.shape for p in layer.parameters())


# ---- the class token -------------------------------------------------------------------------------------------------

def test_the_token_stands_before_every_sequence():
    layer, x = nn.ClassToken(6), mt.randn(3, 4, 6)
    y = layer(x)
    assert y.shape == (3, 5, 6)
    np.testing.assert_array_equal(y.data[:, 1:], x.data)
    np.testing.assert_array_equal(y.data[:, 0], np.repeat(layer.weight.numpy(), 3, axis=0))
    assert layer(mt.zeros(0, 4, 6)).shape == (0, 5, 6) and layer(mt.zeros(2, 0, 6)).shape == (2, 1, 6)
    assert list(layer.state_dict()) == ["weight"] and 0.005 < nn.ClassToken(100).weight.data.std() < 0.04


def test_the_token_against_finite_differences():
    mt.gradcheck(nn.ClassToken(3).to(dtype=np.float64), RNG.standard_normal((2, 2, 3)))


@pytest.mark.parametrize("shape", [(4, 6), (2, 4, 5), (2, 4, 7), (1, 2, 4, 6)], ids=str)
def test_sequences_that_get_no_token(shape):
    with pytest.raises(ValueError, match=r"ClassToken: x must be \(B, T, 6\), got"):
        nn.ClassToken(6)(mt.zeros(*shape))
    with pytest.raises(ValueError, match="d_model .*0"):
        nn.ClassToken(0)
