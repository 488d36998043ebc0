"""scaled_dot_product_attention: masks above all."""
import numpy as np
import pytest
from double import here

import minitx as mt
from minitx import ops

B, H, T, S, K, D = 2, 3, 4, 5, 6, 7
attend = ops.scaled_dot_product_attention


def qkv(*lead, t=T, s=S, dtype=np.float64):
    draw = np.random.default_rng(0).normal
    return [mt.tensor(draw(size=lead + shape).astype(dtype), requires_grad=True) for shape in ((t, K), (s, K), (s, D))]


def plainly(q, k, v, mask=None, bias=0.0, scale=None):
    """The same in five lines of NumPy, without care for anything."""
    s = q @ k.swapaxes(-1, -2) * (1 / np.sqrt(q.shape[-1]) if scale is None else scale) + bias
    e = np.exp(s) * (1 if mask is None else mask)
    total = e.sum(-1, keepdims=True)
    p = e / np.where(total == 0, 1, total)
    return p @ v, p


def arrays(tensors):
    return [t.numpy() for t in tensors]


def drawn(shape):
    return np.random.default_rng(sum(shape)).random(shape) < 0.6


@pytest.mark.parametrize("lead", [(), (B,), (B, H)])
def test_against_the_plain_formula(lead):
    q, k, v = qkv(*lead)
    out, weights = attend(q, k, v, return_weights=True)
    expected = plainly(*arrays((q, k, v)))
    np.testing.assert_allclose(out.numpy(), expected[0], rtol=1e-12)
    np.testing.assert_allclose(weights.numpy(), expected[1], rtol=1e-12)
    assert isinstance(attend(q, k, v), mt.Tensor)
    np.testing.assert_allclose(attend(q, k, v, scale=0.3).numpy(), plainly(*arrays((q, k, v)), scale=0.3)[0],
                               rtol=1e-12)


@pytest.mark.parametrize("shape, spread", [
    ((T, S), (T, S)), ((1, S), (1, S)), ((S,), (S,)), ((B, T, S), (B, 1, T, S)), ((B, 1, S), (B, 1, 1, S)),
    ((1, T, S), (1, 1, T, S)), ((B, H, T, S), (B, H, T, S)), ((B, 1, 1, S), (B, 1, 1, S)), ((1, H, T, S), (1, H, T, S)),
    ((1, 1, 1, S), (1, 1, 1, S))])
def test_every_shape_of_mask_beside_four_axes(shape, spread):
    q, k, v = qkv(B, H)
    mask = drawn(shape)
    expected, p = plainly(*arrays((q, k, v)), mask.reshape(spread))
    for given in (mask, mt.tensor(mask)):
        out, weights = attend(q, k, v, given, return_weights=True)
        np.testing.assert_allclose(out.numpy(), expected, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(weights.numpy(), p, rtol=1e-12)
        assert (weights.numpy()[~np.broadcast_to(mask.reshape(spread), p.shape)] == 0).all()


def test_a_mask_beside_three_axes():
    q, k, v = qkv(B)
    for shape in ((T, S), (B, T, S), (B, 1, S)):
        mask = drawn(shape)
        np.testing.assert_allclose(attend(q, k, v, mask).numpy(), plainly(*arrays((q, k, v)), mask)[0], rtol=1e-12,
                                   atol=1e-15)


@pytest.mark.parametrize("kind", [np.int32, np.uint8, np.float32, np.float64])
def test_a_mask_that_is_not_bool(kind):
    with pytest.raises(TypeError, match=r"(?s)scaled_dot_product_attention: .*mask\.astype\(bool\).*bias="):
        attend(*qkv(), np.ones((T, S), kind))


@pytest.mark.parametrize("shape", [(S, T), (T, 1), (B + 1, T, S), (3, 1, 1, T, S), ()], ids=str)
def test_a_mask_that_does_not_fit(shape):
    with pytest.raises(ValueError, match="scaled_dot_product_attention: "):
        attend(*qkv(B, H), np.ones(shape, bool))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_query_that_may_see_nothing(dtype):
    q, k, v = qkv(B, H, dtype=dtype)
    bias = mt.tensor(np.zeros((T, S), dtype), requires_grad=True)
    mask = np.ones((T, S), bool)
    mask[1] = False
    mask[:, 2] = False
    out, weights = attend(q, k, v, mask, bias=bias, return_weights=True)
    (out.sum() + (weights * weights).sum()).backward()
    for array, nothing in ((out.numpy(), np.s_[:, :, 1]), (weights.numpy(), np.s_[:, :, 1]), (q.grad, np.s_[:, :, 1]),
                           (k.grad, np.s_[:, :, 2]), (v.grad, np.s_[:, :, 2]), (bias.grad, np.s_[1])):
        array = here(array)
        assert (array[nothing] == 0).all() and np.isfinite(array).all() and array.any()


@pytest.mark.parametrize("t, s", [(1, 4), (2, 5), (3, 3), (5, 2), (4, 1), (3, 0)])
def test_causal_is_aligned_bottom_right(t, s):
    q, k, v = qkv(B, H, t=t, s=s)
    mask = np.tril(np.ones((t, s), bool), s - t)
    out = attend(q, k, v, is_causal=True)
    np.testing.assert_allclose(out.numpy(), plainly(*arrays((q, k, v)), mask)[0], rtol=1e-12, atol=1e-15)
    out.sum().backward()
    assert (out.numpy()[:, :, :max(t - s, 0)] == 0).all() and (q.grad[:, :, :max(t - s, 0)] == 0).all()


def test_causal_and_mask_both_hold():
    q, k, v = qkv(B, H)
    mask = drawn((B, 1, S))
    both = mask[:, None] & np.tril(np.ones((T, S), bool), S - T)
    np.testing.assert_allclose(attend(q, k, v, mask, is_causal=True).numpy(), plainly(*arrays((q, k, v)), both)[0],
                               rtol=1e-12,
                               atol=1e-15)


def test_no_keys_at_all():
    q, k, v = qkv(B, s=0)
    out, weights = attend(q, k, v, return_weights=True)
    out.backward(np.ones(out.shape))
    assert out.shape == (B, T, D) and not out.numpy().any() and weights.shape == (B, T, 0)
    assert q.grad.shape == q.shape and not q.grad.any() and k.grad.shape == (B, 0, K)


@pytest.mark.parametrize("t, b", [(0, 2), (4, 0)])
def test_no_queries_and_no_batch(t, b):
    q, k, v = qkv(b, t=t)
    out = attend(q, k, v, is_causal=True)
    out.backward(np.ones(out.shape))
    assert out.shape == (b, t, D) and k.grad.shape == k.shape and not k.grad.any()


@pytest.mark.parametrize("shape", [(T, S), (1, S), (H, T, S), (1, H, T, S), (B, H, T, S), (S,), (B, 1, 1, 1)])
def test_a_bias_is_added_and_gets_its_gradient(shape):
    q, k, v = qkv(B, H)
    bias = mt.tensor(np.random.default_rng(5).normal(size=shape), requires_grad=True)
    out = attend(q, k, v, bias=bias)
    np.testing.assert_allclose(out.numpy(), plainly(*arrays((q, k, v)), bias=bias.numpy())[0], rtol=1e-12)
    dy = np.random.default_rng(6).normal(size=out.shape)
    out.backward(dy)
    h = 1e-6 * np.random.default_rng(7).normal(size=shape)
    above, below = (plainly(*arrays((q, k, v)), bias=bias.numpy() + d)[0] for d in (h, -h))
    assert bias.grad.shape == shape
    assert ((above - below) * dy).sum() / 2 == pytest.approx((here(bias.grad) * h).sum(), rel=1e-5, abs=1e-12)


def test_leading_axes_broadcast():
    (q, _, _), (_, k, v) = qkv(B, H), qkv(1, 1)
    out = attend(q, k, v)
    out.sum().backward()
    np.testing.assert_allclose(out.numpy(), plainly(*arrays((q, k, v)))[0], rtol=1e-12)
    assert k.grad.shape == (1, 1, S, K) and v.grad.shape == (1, 1, S, D)


def test_dropout_of_weights():
    q, k, v = qkv(50, 4)
    v = mt.ones(50, 4, S, D, dtype=np.float64)
    mt.manual_seed(0)
    out, weights = attend(q, k, v, dropout_p=0.3, return_weights=True)
    np.testing.assert_allclose(weights.numpy().sum(-1), 1)                      # as before dropout
    assert out.numpy().std() > 0.1 and abs(out.numpy().mean() - 1) < 0.1
    again = attend(q, k, v, dropout_p=0.3).numpy()
    assert (again != out.numpy()).any()
    mt.manual_seed(0)
    np.testing.assert_allclose(attend(q, k, v, dropout_p=0.3).numpy(), out.numpy(), rtol=1e-12)


def test_dropping_everything_or_nonsense():
    q, k, v = qkv()
    out = attend(q, k, v, dropout_p=1.0)
    out.sum().backward()
    assert not out.numpy().any() and not q.grad.any() and not v.grad.any()
    for p in (-0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="scaled_dot_product_attention"):
            attend(q, k, v, dropout_p=p)


def test_weights_alone_have_gradients():
    q, k, v = qkv()
    _, weights = attend(q, k, v, return_weights=True)
    (weights * weights).sum().backward()
    assert q.grad.any() and not v.grad.any() and v.grad.shape == v.shape


@pytest.mark.parametrize("q, k, v",
                         [((4, 6), (5, 3), (5, 7)), ((4, 6), (5, 6), (3, 7)), ((6,), (5, 6), (5, 7)),
                          ((2, 4, 6), (3, 5, 6), (3, 5, 7))])
def test_shapes_that_do_not_fit(q, k, v):
    with pytest.raises(ValueError, match=r"scaled_dot_product_attention: .*6\)"):
        attend(mt.ones(q), mt.ones(k), mt.ones(v))


def test_a_scale_of_numpys_stays_weak():
    q, k, v = qkv(dtype=np.float32)
    assert attend(q, k, v, scale=np.float64(0.5)).dtype == np.float32
    assert attend(q, k, v, dropout_p=np.float64(0.5)).dtype == np.float32


def test_float16_scores_beyond_its_range():
    q = k = np.full((2, 2), 200.0, np.float16)
    v = np.array([[1, 2], [3, 4]], np.float16)
    out = attend(q, k, v)
    assert out.dtype == np.float16 and out.tolist() == [[2, 3], [2, 3]]


@pytest.mark.parametrize("bad", [2.0, 3, [[1.0]], "ab", None], ids=str)
@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
def test_numbers_and_lists_are_no_queries(bad, dropout_p):
    x = mt.ones(2, 2)
    for given in ((bad, x, x), (x, bad, x), (x, x, bad), (bad, bad, bad)):
        with pytest.raises((TypeError, ValueError), match="(?s)^scaled_dot_product_attention: (?!.*cuda)"):
            attend(*given, dropout_p=dropout_p)


def test_a_list_is_no_mask_and_no_bias():
    x = mt.ones(2, 2)
    for options in ({"mask": [[True, True]]}, {"bias": [[0.0, 0.0]]}):
        with pytest.raises(TypeError, match="(?s)^scaled_dot_product_attention: (?!.*cuda)"):
            attend(x, x, x, **options)


@pytest.mark.parametrize("dtype", [bool, np.int64])
def test_a_bias_that_is_a_mask_is_refused(dtype):
    x = np.ones((1, 1, 3, 4))
    with pytest.raises(TypeError, match="bias must be floats.*mask="):
        ops.scaled_dot_product_attention(x, x, x, bias=np.tri(3).astype(dtype))


@pytest.mark.parametrize("shape", [(2, 1, 3, 3), (2, 1, 1, 3, 3), (4, 3), (3, 2)])
def test_a_bias_that_does_not_broadcast_to_the_scores_is_refused(shape):
    x = np.ones((1, 1, 3, 4))
    with pytest.raises(ValueError, match="bias .* must broadcast to the scores"):
        ops.scaled_dot_product_attention(x, x, x, bias=np.zeros(shape))
