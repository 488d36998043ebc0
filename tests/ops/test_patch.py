"""patchify."""
import numpy as np
import pytest

import minitx as mt
from minitx import ops


@pytest.mark.parametrize("patch, ph, pw", [(2, 2, 2), ((2, 3), 2, 3), ([4, 6], 4, 6), (1, 1, 1)])
def test_each_patch_is_its_window(patch, ph, pw):
    images = mt.tensor(np.arange(2 * 3 * 4 * 6.0).reshape(2, 3, 4, 6), requires_grad=True)
    y = ops.patchify(images, patch)
    W = 6 // pw
    assert y.shape == (2, 24 // (ph * pw), 3 * ph * pw)
    for n in range(y.shape[1]):
        h, w = n // W * ph, n % W * pw
        np.testing.assert_array_equal(y.numpy()[:, n], images.numpy()[:, :, h:h + ph, w:w + pw].reshape(2, -1))
    y.backward(y.numpy())
    np.testing.assert_array_equal(images.grad, images.numpy())      # everything back in its place


@pytest.mark.parametrize("shape, patch, numbers",
                         [((1, 3, 225, 224), 16, (225, 16)), ((1, 3, 224, 100), (16, 32), (100, 32))])
def test_a_patch_that_does_not_divide(shape, patch, numbers):
    with pytest.raises(ValueError, match=r"patchify: (?=.*{})(?=.*{})".format(*numbers)):
        ops.patchify(mt.zeros(shape), patch)


@pytest.mark.parametrize("shape", [(3, 4, 4), (4, 4), (1, 1, 3, 4, 4)])
def test_images_have_four_axes(shape):
    with pytest.raises(ValueError, match="patchify: "):
        ops.patchify(mt.zeros(shape), 2)


@pytest.mark.parametrize("patch", [0, -2, (2, 0), (2,), (2, 2, 2), 1.5])
def test_patches_that_are_none(patch):
    with pytest.raises((ValueError, TypeError), match="patch"):
        ops.patchify(mt.zeros(1, 1, 4, 4), patch)


def test_an_empty_batch():
    assert ops.patchify(mt.zeros(0, 3, 4, 4), 2).shape == (0, 4, 12)


def test_a_patch_of_numpys_number():
    x = mt.ones(1, 1, 4, 6)
    assert ops.patchify(x, np.int64(2)).shape == (1, 6, 4)
    assert ops.patchify(x, (np.int32(2), 3)).shape == (1, 4, 6)
    for patch in (True, (True, 2), np.bool_(True), np.float64(2)):
        with pytest.raises((ValueError, TypeError), match="patchify: "):
            ops.patchify(x, patch)


@pytest.mark.parametrize("images", [2.0, [[1.0]], "ab", None], ids=str)
def test_what_is_no_image(images):
    with pytest.raises((TypeError, ValueError), match="(?s)^patchify: (?!.*cuda)"):
        ops.patchify(images, 2)
