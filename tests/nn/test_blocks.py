"""The feed-forward net and the encoder block, against PyTorch and the tutorial's shapes and names."""
import numpy as np
import pytest

import minitx as mt
from minitx import nn, ops

RNG = np.random.default_rng(0)
NAMES = {"attn.w_o.": "self_attn.out_proj.", "ff.net.0.": "linear1.", "ff.net.3.": "linear2.", "norm1.": "norm1.",
         "norm2.": "norm2."}                                        # ours: PyTorch's


def pytorch_state(block):
    ours, state = block.state_dict(), {}
    for kind in "weight", "bias":
        if f"attn.w_q.{kind}" in ours:
            state[f"self_attn.in_proj_{kind}"] = np.concatenate([ours[f"attn.w_{x}.{kind}"] for x in "qkv"])
            state.update({theirs + kind: ours[name + kind] for name, theirs in NAMES.items()})
    return state


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation, bias", [("gelu", True), ("relu", False)])
@pytest.mark.parametrize("causal", [False, True])
def test_encoder_block_is_pytorchs(norm_first, activation, bias, causal):
    torch = pytest.importorskip("torch")
    ours = nn.EncoderBlock(12, 3, 20, norm_first=norm_first, activation=activation, eps=1e-3, bias=bias)
    ours.to(dtype=np.float64)
    for p in ours.parameters():
        p.data[...] = RNG.standard_normal(p.shape) * 0.5
    theirs = torch.nn.TransformerEncoderLayer(12, 3, 20, activation=activation, layer_norm_eps=1e-3, bias=bias,
                                              batch_first=True, norm_first=norm_first, dtype=torch.float64)
    theirs.load_state_dict({name: torch.tensor(value) for name, value in pytorch_state(ours).items()})
    for dropout in (m for m in (*ours.modules(), *theirs.modules()) if "Dropout" in type(m).__name__):
        dropout.p = 0.0
    theirs.self_attn.dropout = 0.0
    x = mt.tensor(RNG.standard_normal((2, 5, 12)), requires_grad=True)
    z = torch.tensor(x.numpy(), requires_grad=True)
    y = ours(x, is_causal=causal)
    w = theirs(z, src_mask=torch.tensor(~nn.causal_mask(5)) if causal else None)
    np.testing.assert_allclose(y.numpy(), w.detach().numpy(), rtol=1e-10, atol=1e-10)
    dy = RNG.standard_normal(y.shape)
    y.backward(dy)
    w.backward(torch.tensor(dy))
    np.testing.assert_allclose(x.grad, z.grad.numpy(), rtol=1e-10, atol=1e-10)
    for name, p in theirs.named_parameters():
        mine = {theirs: ours for ours, theirs in NAMES.items()}.get(name.rpartition(".")[0] + ".")
        if mine:
            grad = dict(ours.named_parameters())[mine + name.rpartition(".")[2]].grad
            np.testing.assert_allclose(grad, p.grad.numpy(), rtol=1e-10, atol=1e-10, err_msg=name)


def test_pre_norm_and_post_norm_are_their_formulas():
    x = mt.randn(2, 4, 8)
    block = nn.EncoderBlock(8, 2, 16).eval()
    a = block.norm1(x)
    h = x + block.attn(a, a, a)
    np.testing.assert_array_equal(block(x).data, (h + block.ff(block.norm2(h))).data)
    block.norm_first = False
    h = block.norm1(x + block.attn(x, x, x))
    np.testing.assert_array_equal(block(x).data, block.norm2(h + block.ff(h)).data)


def test_weights_come_along():
    block, x = nn.EncoderBlock(8, 2, 16).eval(), mt.randn(2, 4, 8)
    y, weights = block(x, nn.padding_mask([2, 4], 4), is_causal=True, return_weights=True)
    np.testing.assert_array_equal(y.data, block(x, nn.padding_mask([2, 4], 4), is_causal=True).data)
    assert weights.shape == (2, 2, 4, 4) and (weights.data[0, :, :, 2:] == 0).all()
    assert (weights.data[1][:, ~nn.causal_mask(4)] == 0).all()


def test_dropout_acts_in_three_places():
    block, x = nn.EncoderBlock(8, 2, 16, dropout=1.0), mt.randn(2, 4, 8)
    np.testing.assert_array_equal(block(x).data, x.data)            # all that is added is dropped
    rates = {name: m.p for name, m in block.named_modules() if isinstance(m, nn.Dropout)}
    assert rates == {"attn.dropout": 1.0, "ff.net.2": 1.0, "dropout": 1.0}


@pytest.mark.parametrize("name, function", [
    ("gelu", ops.gelu), ("relu", ops.relu), ("silu", ops.silu), ("tanh", ops.tanh),
    ("gelu_tanh", lambda x: ops.gelu(x, "tanh"))])
@pytest.mark.parametrize("gated", [False, True])
def test_feed_forward_is_its_formula(name, function, gated):
    net, x = nn.FeedForward(4, 6, activation=name, gated=gated).eval(), mt.randn(2, 3, 4)
    up, down = net.net[0], net.net[3]
    inside = function(net.gate(x)) * up(x) if gated else function(up(x))
    np.testing.assert_array_equal(net(x).data, down(inside).data)


def test_unknown_activation():
    with pytest.raises(ValueError, match="swish.*gelu, gelu_tanh, relu, silu, tanh"):
        nn.FeedForward(4, 6, activation="swish")


def test_names_and_sizes_are_the_tutorials():
    block = nn.EncoderBlock(64, 8, 256)
    assert sum(p.size for p in block.parameters()) == 49_984
    assert sum(p.size for p in nn.EncoderBlock(512, 8, 2048).parameters()) == 3_152_384
    layers = [f"attn.w_{x}" for x in "qkvo"] + ["ff.net.0", "ff.net.3", "norm1", "norm2"]
    assert list(block.state_dict()) == [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
    bare = nn.EncoderBlock(64, 8, 256, bias=False)
    assert not [name for name in bare.state_dict() if name.endswith("bias")]


def test_options_arrive():
    block = nn.EncoderBlock(8, 2, 16, 0.3, False, activation="relu", eps=1e-2)
    assert not block.norm_first and isinstance(block.ff.net[1], nn.ReLU) and block.norm1.eps == block.norm2.eps == 1e-2
