"""The feed-forward net and the two blocks: PyTorch, finite differences, and the tutorial's shapes and names."""
import numpy as np
import pytest
from double import here

import minitx as mt
from minitx import nn, ops

RNG = np.random.default_rng(0)
NAMES = {"attn.w_o.": "self_attn.out_proj.", "ff.net.0.": "linear1.", "ff.net.3.": "linear2.", "norm1.": "norm1.",
         "norm2.": "norm2."}                                        # ours: PyTorch's


def redrawn(module):
    """The module in float64 and eval mode, every parameter redrawn: zeros and ones would hide what they multiply."""
    for p in module.to(dtype=np.float64).eval().parameters():
        p.data[...] = mt.tensor(RNG.standard_normal(p.shape) * 0.5).data
    return module


def pytorch_state(block):
    ours, state = block.state_dict(), {}
    for kind in "weight", "bias":
        if f"attn.w_q.{kind}" in ours:
            state[f"self_attn.in_proj_{kind}"] = np.concatenate([here(ours[f"attn.w_{x}.{kind}"]) for x in "qkv"])
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
        p.data[...] = mt.tensor(RNG.standard_normal(p.shape) * 0.5).data
    theirs = torch.nn.TransformerEncoderLayer(12, 3, 20, activation=activation, layer_norm_eps=1e-3, bias=bias,
                                              batch_first=True, norm_first=norm_first, dtype=torch.float64)
    theirs.load_state_dict({name: torch.tensor(here(value)) for name, value in pytorch_state(ours).items()})
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
    x, block = mt.tensor(RNG.standard_normal((2, 4, 8))), redrawn(nn.EncoderBlock(8, 2, 16))
    a = block.norm1(x)
    h = x + block.attn(a, a, a)
    np.testing.assert_array_equal(block(x).data, (h + block.ff(block.norm2(h))).data)
    block.norm_first = False
    h = block.norm1(x + block.attn(x, x, x))
    np.testing.assert_array_equal(block(x).data, block.norm2(h + block.ff(h)).data)


def test_weights_come_along():
    block, x = nn.EncoderBlock(8, 2, 16).eval(), mt.randn(2, 4, 8)
    y, weights = block(x, nn.padding_mask([2, 4], 4), is_causal=True, return_weights=True)
    np.testing.assert_allclose(y.data, block(x, nn.padding_mask([2, 4], 4), is_causal=True).data, atol=1e-6)
    assert weights.shape == (2, 2, 4, 4) and (weights.data[0, :, :, 2:] == 0).all()
    assert (weights.numpy()[1][:, ~nn.causal_mask(4)] == 0).all()


def test_dropout_acts_in_three_places():
    block, x = nn.EncoderBlock(8, 2, 16, dropout=1.0), mt.randn(2, 4, 8)
    np.testing.assert_array_equal(block(x).data, x.data)            # all that is added is dropped
    rates = {name: m.p for name, m in block.named_modules() if isinstance(m, nn.Dropout)}
    assert rates == {"attn.dropout": 1.0, "ff.net.2": 1.0, "dropout": 1.0}
    np.testing.assert_array_equal(nn.DecoderBlock(8, 2, 16, dropout=1.0)(x, mt.randn(2, 5, 8)).data, x.data)


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


def test_dropout_falls_where_the_tutorial_puts_it(monkeypatch):
    drawn, keep_mask = [], mt.backend.keep_mask
    monkeypatch.setattr(mt.backend, "keep_mask", lambda shape, *args: drawn.append(shape) or keep_mask(shape, *args))
    x, memory, block = mt.randn(2, 4, 8), mt.randn(2, 3, 8), nn.EncoderBlock(8, 2, 16, 0.5)
    weights, inside, added = (2, 2, 4, 4), (2, 4, 16), (2, 4, 8)
    block(x)
    assert drawn == [weights, added, inside, added]
    drawn.clear()
    decoder = nn.DecoderBlock(8, 2, 16, 0.5)
    decoder(x, memory)
    assert drawn == [weights, added, (2, 2, 4, 3), added, inside, added]
    drawn.clear()
    nn.FeedForward(8, 16, 0.5, gated=True)(x)
    assert drawn == [inside]
    drawn.clear()
    for block, inputs in (block, (x,)), (decoder, (x, memory)):
        block.eval()
        np.testing.assert_array_equal(block(*inputs).data, block(*inputs).data)
    assert not drawn


# ---- the decoder block -----------------------------------------------------------------------------------------------

def test_decoder_block_is_its_formula():
    x, memory = mt.tensor(RNG.standard_normal((2, 4, 8))), mt.tensor(RNG.standard_normal((2, 3, 8)))
    block = redrawn(nn.DecoderBlock(8, 2, 16))
    mask, memory_mask = nn.padding_mask([2, 4], 4), nn.padding_mask([3, 1], 3)
    a = block.norm1(x)
    h = x + block.attn(a, a, a, mask, is_causal=True)
    h = h + block.cross_attn(block.norm2(h), memory, memory, memory_mask)           # memory itself is not normed
    expected = h + block.ff(block.norm3(h))
    np.testing.assert_array_equal(block(x, memory, mask, memory_mask, is_causal=True).data, expected.data)
    block.norm_first = False
    h = block.norm1(x + block.attn(x, x, x, mask, is_causal=True))
    h = block.norm2(h + block.cross_attn(h, memory, memory, memory_mask))
    expected = block.norm3(h + block.ff(h))
    np.testing.assert_array_equal(block(x, memory, mask, memory_mask, is_causal=True).data, expected.data)


def test_decoder_blocks_weights_come_along():
    block, x, memory = nn.DecoderBlock(8, 2, 16).eval(), mt.randn(2, 4, 8), mt.randn(2, 3, 8)
    masks = nn.padding_mask([2, 4], 4), nn.padding_mask([0, 2], 3)
    y, (weights, cross) = block(x, memory, *masks, is_causal=True, return_weights=True)
    np.testing.assert_allclose(y.data, block(x, memory, *masks, is_causal=True).data, atol=1e-6)
    assert weights.shape == (2, 2, 4, 4) and cross.shape == (2, 2, 4, 3)
    assert (weights.numpy()[:, :, ~nn.causal_mask(4)] == 0).all() and (weights.data[0, :, :, 2:] == 0).all()
    assert (cross.data[0] == 0).all() and (cross.data[1, :, :, 2] == 0).all()
    np.testing.assert_allclose(weights.data.sum(-1), 1, rtol=1e-6)
    np.testing.assert_allclose(cross.data[1].sum(-1), 1, rtol=1e-6)


def test_decoder_blocks_other_options_are_for_its_own_attention():
    block, x, memory = nn.DecoderBlock(8, 2, 16).eval(), mt.randn(2, 4, 8), mt.randn(2, 3, 8)
    bias = mt.randn(2, 4, 4)                                        # would not fit the scores of memory
    a = block.norm1(x)
    h = x + block.attn(a, a, a, bias=bias)
    h = h + block.cross_attn(block.norm2(h), memory, memory)
    np.testing.assert_array_equal(block(x, memory, bias=bias).data, (h + block.ff(block.norm3(h))).data)
    with pytest.raises(TypeError, match="basi"):
        block(x, memory, basi=bias)


def test_decoder_blocks_names_options_and_size():
    block = nn.DecoderBlock(64, 8, 256, 0.3, False, activation="relu", eps=1e-2)
    layers = [f"{attn}.w_{x}" for attn in ("attn", "cross_attn") for x in "qkvo"]
    layers += ["ff.net.0", "ff.net.3", "norm1", "norm2", "norm3"]
    assert list(block.state_dict()) == [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
    assert sum(p.size for p in block.parameters()) == 49_984 + 16_640 + 128
    assert not block.norm_first and isinstance(block.ff.net[1], nn.ReLU)
    assert {m.eps for m in block.modules() if isinstance(m, nn.LayerNorm)} == {1e-2}
    rates = {name: m.p for name, m in block.named_modules() if isinstance(m, nn.Dropout)}
    assert rates == dict.fromkeys(["attn.dropout", "cross_attn.dropout", "ff.net.2", "dropout"], 0.3)
    assert not [name for name in nn.DecoderBlock(8, 2, 16, bias=False).state_dict() if name.endswith("bias")]


def test_no_two_attentions_of_a_decoder_block_start_alike():
    state = nn.DecoderBlock(8, 2, 8).state_dict()
    matrices = [value for value in state.values() if value.ndim == 2]
    assert not any((a == b).all() for i, a in enumerate(matrices) for b in matrices[:i])
    mt.manual_seed(0)
    again = nn.DecoderBlock(8, 2, 8).state_dict()
    assert all((state[name] == again[name]).all() for name in state)


@pytest.mark.parametrize("build", [nn.EncoderBlock, nn.DecoderBlock])
def test_blocks_that_cannot_be_built(build):
    with pytest.raises(ValueError, match="d_model 10 .* num_heads 3"):
        build(10, 3, 16)
    with pytest.raises(ValueError, match="'swish'.* gelu, gelu_tanh, relu, silu, tanh"):
        build(8, 2, 16, activation="swish")


# ---- finite differences ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu", "tanh"])
@pytest.mark.parametrize("gated", [False, True])
def test_feed_forward_against_finite_differences(activation, gated):
    mt.gradcheck(redrawn(nn.FeedForward(3, 4, activation=activation, gated=gated)), RNG.standard_normal((2, 2, 3)))


@pytest.mark.parametrize("norm_first", [True, False], ids=["pre-norm", "post-norm"])
@pytest.mark.parametrize("options", [{}, {"is_causal": True, "mask": nn.padding_mask([0, 2], 3)}], ids=["", "masked"])
def test_encoder_block_against_finite_differences(norm_first, options):
    block = redrawn(nn.EncoderBlock(4, 2, 5, norm_first=norm_first))
    mt.gradcheck(lambda block, x: block(x, return_weights=True, **options), block, RNG.standard_normal((2, 3, 4)))


@pytest.mark.parametrize("norm_first", [True, False], ids=["pre-norm", "post-norm"])
@pytest.mark.parametrize("masks", [(None, None), (nn.padding_mask([2, 3], 3), nn.padding_mask([0, 1], 2))],
                         ids=["", "masked"])
def test_decoder_block_against_finite_differences(norm_first, masks):
    def run(block, x, memory):
        y, weights = block(x, memory, *masks, is_causal=masks[0] is not None, return_weights=True)
        return y, *weights

    block = redrawn(nn.DecoderBlock(4, 2, 3, norm_first=norm_first))
    mt.gradcheck(run, block, RNG.standard_normal((2, 3, 4)), RNG.standard_normal((2, 2, 4)))
