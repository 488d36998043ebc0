"""Multi-head attention: against PyTorch, against itself written out, and grouped heads against repeated ones."""
import functools

import numpy as np
import pytest
from double import here

import minitx as mt
from minitx import nn, ops

RNG = np.random.default_rng(0)
B, T, S, C, H = 2, 5, 7, 12, 3


def draw(*shape):
    return mt.tensor(RNG.standard_normal(shape), requires_grad=True)


def attention(*arguments, **options):
    return nn.MultiHeadAttention(*arguments, **options).to(dtype=np.float64).eval()


@pytest.mark.parametrize("kind", ["self", "cross", "kdim and vdim", "no bias"])
@pytest.mark.parametrize("masked", ["no mask", "padding", "causal", "per head"])
def test_it_is_pytorchs(kind, masked):
    torch = pytest.importorskip("torch")
    kdim, vdim = (4, 6) if kind == "kdim and vdim" else (C, C)
    q, k, v = draw(B, T, C), draw(B, S, kdim), draw(B, S, vdim)
    if kind == "self":
        k = v = q
    n_keys = k.shape[1]
    mask = {"no mask": None, "padding": nn.padding_mask([3, n_keys], n_keys), "causal": nn.causal_mask(T, n_keys),
            "per head": RNG.random((B, H, T, n_keys)) < 0.7}[masked]
    if masked == "per head":
        mask[..., 0] = True
    ours = attention(C, H, bias=kind != "no bias", kdim=kdim, vdim=vdim)
    theirs = torch.nn.MultiheadAttention(C, H, batch_first=True, bias=kind != "no bias", kdim=kdim, vdim=vdim).double()
    state = {"out_proj.weight": ours.w_o.weight}
    weights = [w.weight.numpy() for w in (ours.w_q, ours.w_k, ours.w_v)]
    if kind == "kdim and vdim":
        state.update(zip(("q_proj_weight", "k_proj_weight", "v_proj_weight"), weights))
    else:
        state["in_proj_weight"] = np.concatenate(weights)
    if kind != "no bias":
        state["out_proj.bias"] = ours.w_o.bias
        state["in_proj_bias"] = np.concatenate([w.bias.numpy() for w in (ours.w_q, ours.w_k, ours.w_v)])
    theirs.load_state_dict({name: torch.tensor(here(value)) for name, value in state.items()})

    a, b, c = ([torch.tensor(x.numpy(), requires_grad=True) for x in (q, k, v)])
    if kind == "self":
        b = c = a
    blocked = None if mask is None else torch.tensor(~np.broadcast_to(
        mask if mask.ndim == 4 else mask.reshape(-1, 1, *mask.shape[-2:]), (B, H, T, n_keys)).reshape(B * H, T, n_keys))
    out, p = ours(q, k, v, mask, return_weights=True)
    expected, expected_p = theirs(a, b, c, attn_mask=blocked, average_attn_weights=False)
    np.testing.assert_allclose(out.numpy(), expected.detach().numpy(), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(p.numpy(), expected_p.detach().numpy(), rtol=1e-10, atol=1e-10)
    dy = RNG.standard_normal(out.shape)
    out.backward(dy)
    expected.backward(torch.tensor(dy))
    for x, y in zip((q, k, v), (a, b, c)):
        np.testing.assert_allclose(x.grad, y.grad.numpy(), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(ours.w_o.weight.grad, theirs.out_proj.weight.grad.numpy(), rtol=1e-10, atol=1e-10)


def test_each_head_is_an_attention_of_its_own():
    layer, x = attention(C, H), draw(B, T, C)
    out, weights = layer(x, x, x, is_causal=True, return_weights=True)
    assert weights.shape == (B, H, T, T)
    heads = []
    for h in range(H):
        rows = slice(h * C // H, (h + 1) * C // H)
        q, k, v = (x.numpy() @ w.weight.numpy()[rows].T + w.bias.numpy()[rows] for w in (layer.w_q, layer.w_k, layer.w_v))
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(C // H)
        p = np.exp(np.where(nn.causal_mask(T), scores, -np.inf))
        p /= p.sum(-1, keepdims=True)
        np.testing.assert_allclose(weights.data[:, h], p, rtol=1e-12, atol=1e-12)
        heads.append(p @ v)
    expected = np.concatenate(heads, -1) @ layer.w_o.weight.numpy().T + layer.w_o.bias.numpy()
    np.testing.assert_allclose(out.data, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("mask", [
    None, nn.causal_mask(T, S), nn.padding_mask([3, 7], S), RNG.random((B, 4, T, S)) < 0.6,
    RNG.random((B, 1, T, S)) < 0.6, mt.tensor(RNG.random((B, 4, T, S)) < 0.6),
], ids=["none", "causal", "padding", "heads", "one head", "Tensor"])
def test_grouped_heads_are_heads_repeated(kv_heads, mask):
    grouped, whole = grouped_and_whole(kv_heads)
    q, m = draw(B, T, 8), draw(B, S, 8)
    a, b = grouped(q, m, m, mask, return_weights=True), whole(q, m, m, mask, return_weights=True)
    dy = RNG.standard_normal(a[0].shape)
    for x, y in zip(a, b):
        np.testing.assert_allclose(x.data, y.data, rtol=1e-12, atol=1e-12)
    a[0].backward(dy)
    first, q.grad = q.grad, None
    b[0].backward(dy)
    np.testing.assert_allclose(first, q.grad, rtol=1e-12, atol=1e-12)
    summed = whole.w_v.weight.grad.reshape(kv_heads, 4 // kv_heads, 2, 8).sum(1).reshape(-1, 8)
    np.testing.assert_allclose(grouped.w_v.weight.grad, summed, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("shape", [(T, S), (4, T, S), (1, T, S), (4, 1, S)], ids=str)
def test_grouped_heads_of_one_sequence_without_a_batch(kv_heads, shape):
    grouped, whole = grouped_and_whole(kv_heads)
    q, m, mask = draw(T, 8), draw(S, 8), RNG.random(shape) < 0.6
    for x, y in zip(grouped(q, m, m, mask, return_weights=True), whole(q, m, m, mask, return_weights=True)):
        assert x.shape == y.shape and x.ndim in (2, 3)
        np.testing.assert_allclose(x.data, y.data, rtol=1e-12, atol=1e-12)


def grouped_and_whole(kv_heads, d_k=2):
    """Two equal layers of 4 heads: one with kv_heads for keys and values, one where each of those is written out."""
    grouped, whole = attention(8, 4, num_kv_heads=kv_heads, d_k=d_k), attention(8, 4, d_k=d_k)
    assert grouped.w_k.weight.shape == (kv_heads * d_k, 8)
    state = grouped.state_dict()
    for name in "w_k.weight", "w_k.bias", "w_v.weight", "w_v.bias":
        heads = here(state[name]).reshape(kv_heads, d_k, -1)
        state[name] = np.repeat(heads, 4 // kv_heads, axis=0).reshape(whole.state_dict()[name].shape)
    whole.load_state_dict(state)
    return grouped, whole


def test_a_query_that_sees_nothing_is_the_output_bias():
    layer, x = attention(C, H), draw(B, T, C)
    out = layer(x, x, x, nn.padding_mask([0, T], T))
    assert (out.data[0] == layer.w_o.bias.data).all()
    out.backward(np.ones(out.shape))
    assert (x.grad[0] == 0).all() and np.isfinite(here(x.grad)).all()


def test_dropout_falls_on_the_weights_in_train_mode():
    layer, x = nn.MultiHeadAttention(C, H, dropout=0.5), mt.randn(B, T, C)
    y, weights = layer(x, x, x, return_weights=True)
    np.testing.assert_allclose(weights.data.sum(-1), 1, rtol=1e-5)          # they are shown as before dropout
    assert (y != layer(x, x, x).data).any()
    layer.eval()
    np.testing.assert_array_equal(layer(x, x, x).data, layer(x, x, x).data)


def test_attend_may_be_replaced():
    calls = []

    def uniform(q, k, v, mask=None, **options):
        calls.append((q.shape, k.shape, mask, options))
        return ops.mean(v, axis=-2, keepdims=True) + q * 0.0

    layer, x = nn.MultiHeadAttention(C, H, dropout=0.25), mt.randn(B, T, C)
    layer.attend = uniform
    out = layer(x, x, x, is_causal=True)
    mean = layer.w_o(layer.w_v(x).mean(axis=1, keepdims=True))
    np.testing.assert_allclose(out.data, np.broadcast_to(mean.numpy(), out.shape), atol=1e-6)
    options = {"is_causal": True, "dropout_p": 0.25, "return_weights": False}
    assert calls == [((B, H, T, 4), (B, H, T, 4), None, options)]


def test_splitting_copies_nothing():
    layer, x = nn.MultiHeadAttention(C, H), mt.randn(B, T, C)
    assert layer.split_heads(x).shape == (B, H, T, C // H) and np.shares_memory(layer.split_heads(x).data, x.data)
    grouped = nn.MultiHeadAttention(C, 6, num_kv_heads=2)
    assert np.shares_memory(grouped.group(grouped.split_heads(x)).data, x.data)


def test_sizes():
    assert sum(p.size for p in nn.MultiHeadAttention(64, 8).parameters()) == 16_640
    assert list(nn.MultiHeadAttention(4, 2, bias=False).state_dict()) == [f"w_{x}.weight" for x in "qkvo"]


@pytest.mark.parametrize("arguments, options, says", [
    ((10, 3), {}, "d_model 10 .* num_heads 3"), ((10, 0), {}, "num_heads 0"),
    ((12, 4), {"num_kv_heads": 3}, "num_heads 4 .* num_kv_heads 3"), ((12, 4), {"num_kv_heads": 0}, "num_kv_heads 0"),
    ((12, 4, 1.5), {}, "1.5")])
def test_heads_that_do_not_divide(arguments, options, says):
    with pytest.raises(ValueError, match=says):
        nn.MultiHeadAttention(*arguments, **options)


@pytest.mark.parametrize("kv_heads", [H, 1])
def test_masks_of_the_wrong_kind(kv_heads):
    layer, x = nn.MultiHeadAttention(C, H, num_kv_heads=kv_heads), mt.randn(B, T, C)
    for mask in np.ones((T, T), int), np.zeros((T, T), np.float32), np.ones((B, T, T), int), np.ones((T, T), bool).tolist():
        with pytest.raises(TypeError, match="bool"):
            layer(x, x, x, mask)
    with pytest.raises(ValueError, match="scaled_dot_product_attention"):
        layer(x, x, x, np.ones((T, T + 1), bool))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("shape", [(2, 2, 3, 3), (2, 3, 1, 3), (2, 8, 3, 3)], ids=str)
def test_a_mask_with_another_number_of_heads(kv_heads, shape):
    layer, x = nn.MultiHeadAttention(8, 4, num_kv_heads=kv_heads), mt.randn(2, 3, 8)
    with pytest.raises(ValueError, match="MultiHeadAttention|scaled_dot_product_attention"):
        layer(x, x, x, np.ones(shape, bool))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("shape", [(2, 3, 3), (2, 4, 3, 3), (2, 1, 3, 3)], ids=str)
def test_a_mask_with_more_than_a_sequence_without_a_batch_has(kv_heads, shape):
    layer, x = nn.MultiHeadAttention(8, 4, num_kv_heads=kv_heads), mt.randn(3, 8)
    with pytest.raises(ValueError, match="MultiHeadAttention|scaled_dot_product_attention"):
        layer(x, x, x, np.ones(shape, bool))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("bias", [(4, T, S), (1, T, S), (T, S), (B, 4, T, S), (B, 1, T, S), (1, 4, 1, S), (4, T, 1)],
                         ids=str)
@pytest.mark.parametrize("mask", [None, (T, S), (B, 1, S), (B, 4, T, S)], ids=str)
def test_grouped_heads_with_a_bias_are_heads_repeated(kv_heads, bias, mask):
    grouped, whole = grouped_and_whole(kv_heads, d_k=3)
    q, m, mask = draw(B, T, 8), draw(B, S, 8), None if mask is None else RNG.random(mask) < 0.6
    first = draw(*bias)
    second = mt.tensor(first.data, requires_grad=True)
    options = dict(is_causal=True, return_weights=True)
    a, b = grouped(q, m, m, mask, bias=first, **options), whole(q, m, m, mask, bias=second, **options)
    for x, y in zip(a, b):
        np.testing.assert_allclose(x.data, y.data, rtol=1e-12, atol=1e-12)
    dy = RNG.standard_normal(a[0].shape)
    a[0].backward(dy)
    b[0].backward(dy)
    np.testing.assert_allclose(first.grad, second.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_bias_of_one_sequence_without_a_batch(kv_heads):
    layer, q, m, bias = attention(8, 4, num_kv_heads=kv_heads), draw(1, T, 8), draw(1, S, 8), draw(4, T, S)
    np.testing.assert_allclose(layer(q[0], m[0], m[0], bias=bias).data, layer(q, m, m, bias=bias).data[0], rtol=1e-12)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("shape", [(3, T, S), (8, T, S), (4, T, S + 1), (4, T + 1, S), (B + 1, 4, T, S),
                                   (B, 3, T, S)], ids=str)
def test_a_bias_that_does_not_fit(kv_heads, shape):
    layer, q, m = attention(8, 4, num_kv_heads=kv_heads), draw(B, T, 8), draw(B, S, 8)
    with pytest.raises(ValueError, match="scaled_dot_product_attention|MultiHeadAttention"):
        layer(q, m, m, bias=draw(*shape))


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_a_bias_never_makes_the_result_larger(kv_heads):
    layer, q, m = attention(8, 4, num_kv_heads=kv_heads), draw(1, 1, 8), draw(1, S, 8)
    for shape in (T, S), (4, T, S), (B, 4, 1, S):
        with pytest.raises(ValueError, match="bias"):
            layer(q, m, m, bias=draw(*shape))


def test_heads_of_another_width():
    layer = attention(10, 3, d_k=4)                                 # 10 is no multiple of 3: with d_k it need not be
    assert [w.weight.shape for w in (layer.w_q, layer.w_k, layer.w_v, layer.w_o)] == 3 * [(12, 10)] + [(10, 12)]
    x = draw(B, T, 10)
    out, weights = layer(x, x, x, return_weights=True)
    assert out.shape == (B, T, 10) and weights.shape == (B, 3, T, T)
    q, k, v = (layer.split_heads(w(x)) for w in (layer.w_q, layer.w_k, layer.w_v))
    o, p = ops.scaled_dot_product_attention(q, k, v, return_weights=True)           # scores by 1 / sqrt(4)
    np.testing.assert_array_equal(weights.data, p.data)
    np.testing.assert_array_equal(out.data, layer.w_o(o.swapaxes(1, 2).reshape(B, T, 12)).data)
    with pytest.raises(ValueError, match="out_features .*0"):
        nn.MultiHeadAttention(10, 3, d_k=0)


# ---- finite differences ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 3, "vdim": 5}, {"num_kv_heads": 1}, {"d_k": 3}],
                         ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_attention_against_finite_differences(options, masked):
    layer = attention(4, 2, **options)
    inputs = [RNG.standard_normal((2, 3, n)) for n in (4, options.get("kdim", 4), options.get("vdim", 4))]
    mask = nn.padding_mask([0, 2], 3) if masked else None
    mt.gradcheck(lambda layer, *x: layer(*x, mask, is_causal=masked, return_weights=True), layer, *inputs)


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_self_attention_with_a_bias_against_finite_differences(kv_heads):
    layer = attention(4, 2, num_kv_heads=kv_heads)
    mt.gradcheck(lambda layer, x, bias: layer(x, x, x, bias=bias, is_causal=True), layer,
                 RNG.standard_normal((2, 3, 4)), RNG.standard_normal((2, 3, 3)))


def test_grouped_attention_with_distances_against_finite_differences():
    layer, distances = attention(4, 2, num_kv_heads=1), nn.RelativePositionBias(2, 4, 4).to(dtype=np.float64)
    mt.gradcheck(lambda layer, distances, x: layer(x, x, x, bias=distances(4, 4), is_causal=True), layer, distances,
                 RNG.standard_normal((2, 4, 4)))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_rotated_attention_against_finite_differences(kv_heads, interleaved):
    layer = attention(4, 2, num_kv_heads=kv_heads)
    layer.rotate = functools.partial(ops.rope, base=10.0, interleaved=interleaved)
    options = dict(positions=np.array([[0, 1, 5], [0, 0, 2]]), is_causal=True)
    mt.gradcheck(lambda layer, q, m: layer(q, m, m, **options), layer, RNG.standard_normal((2, 2, 4)),
                 RNG.standard_normal((2, 3, 4)))


# ---- nothing to see, nothing there -----------------------------------------------------------------------------------

@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_who_may_see_nothing_gets_the_last_bias(kv_heads):
    layer, q, m = attention(8, 4, num_kv_heads=kv_heads), draw(B, T, 8), draw(B, S, 8)
    mask = np.ones((B, 4, T, S), bool)
    mask[0, :, 2] = mask[1] = False                                 # one query, and a whole sequence
    out, weights = layer(q, m, m, mask, return_weights=True)
    assert (weights.data[0, :, 2] == 0).all() and (weights.data[1] == 0).all()
    np.testing.assert_array_equal(out.data[0, 2], layer.w_o.bias.data)
    np.testing.assert_array_equal(out.data[1], np.broadcast_to(layer.w_o.bias.numpy(), (T, 8)))
    out.backward(RNG.standard_normal(out.shape))
    assert (q.grad[0, 2] == 0).all() and (q.grad[1] == 0).all() and (m.grad[1] == 0).all() and (m.grad[0] != 0).any()


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("batch, n, n_keys", [(1, 1, 1), (0, T, S), (B, 0, S), (B, T, 0), (0, 0, 0)])
def test_empty_and_single(kv_heads, batch, n, n_keys):
    layer, (q, m) = nn.MultiHeadAttention(8, 4, num_kv_heads=kv_heads), (mt.zeros(batch, x, 8) for x in (n, n_keys))
    out, weights = layer(q, m, m, np.ones((batch, 1, n_keys), bool), is_causal=True, return_weights=True)
    assert out.shape == (batch, n, 8) and weights.shape == (batch, 4, n, n_keys)
    out.backward(np.ones(out.shape, np.float32))
    assert all(np.isfinite(here(p.grad)).all() for p in layer.parameters())


def test_dropout_falls_on_the_weights_alone(monkeypatch):
    drawn, keep_mask = [], mt.backend.keep_mask
    monkeypatch.setattr(mt.backend, "keep_mask", lambda shape, *args: drawn.append(shape) or keep_mask(shape, *args))
    x = mt.randn(B, T, 8)
    for kv_heads, shape in (4, (B, 4, T, T)), (2, (B, 2, 2, T, T)):
        layer = nn.MultiHeadAttention(8, 4, 0.5, num_kv_heads=kv_heads)
        out, weights = layer(x, x, x, return_weights=True)
        assert drawn == [shape]
        np.testing.assert_allclose(weights.data.sum(-1), 1, rtol=1e-6)              # as before dropout
        layer.eval()(x, x, x)
        assert drawn.pop() == shape and not drawn
        np.testing.assert_array_equal(layer(x, x, x, return_weights=True)[1].data, weights.data)
    layer = nn.MultiHeadAttention(8, 4, 1.0)
    np.testing.assert_array_equal(layer(x, x, x).data, np.broadcast_to(layer.w_o.bias.numpy(), (B, T, 8)))
