"""Encoder, Decoder and Transformer: slopes, masks, padding, weights, and what they are made of."""
import functools
import math

import numpy as np
import pytest
from double import here

import minitx as mt
from minitx import nn
from minitx.proof.gradcheck import directional

RNG = np.random.default_rng(0)
B, S, T, C, H = 2, 5, 4, 8, 2


def draw(*shape):
    return RNG.standard_normal(shape)


def ready(module, scale=0.5):
    """The module in float64 and eval mode, every parameter redrawn: zeros and ones would hide what they multiply."""
    for p in module.to(dtype=np.float64).eval().parameters():
        p.data[...] = mt.tensor(draw(*p.shape) * scale).data
    return module


def encoder(num_layers=2, norm_first=True, **options):
    return ready(nn.Encoder(num_layers, C, H, 12, norm_first=norm_first, **options))


def decoder(num_layers=2, norm_first=True, **options):
    return ready(nn.Decoder(num_layers, C, H, 12, norm_first=norm_first, **options))


def transformer(norm_first=False, **options):
    return ready(nn.Transformer(C, H, 2, 2, 12, norm_first=norm_first, **{"activation": "gelu", **options}))


ENCODER, DECODER, TRANSFORMER = encoder(), decoder(), transformer()


def flat(outputs):
    """Every Tensor in nested tuples and lists, one after the other."""
    if isinstance(outputs, mt.Tensor):
        return outputs,
    return tuple(x for inner in outputs for x in flat(inner))


NORMS = pytest.mark.parametrize("norm_first", [True, False], ids=["pre-norm", "post-norm"])
SIDES = pytest.mark.parametrize("side", ["left", "right"])


def padded(n, lengths, side):
    """Mask (B, 1, n) whose real positions lie at the other side than the padding."""
    mask = nn.padding_mask(lengths, n)
    return mask if side == "right" else mask[..., ::-1]


# ---- gradients -------------------------------------------------------------------------------------------------------

@NORMS
def test_encoder_against_finite_differences(norm_first):
    small = ready(nn.Encoder(2, 4, 2, 5, norm_first=norm_first))
    mask = nn.padding_mask([0, 3], 3)                               # in the first sequence nothing may be seen
    mt.gradcheck(lambda module, x: module(x, mask, is_causal=True), small, draw(2, 3, 4))


@NORMS
def test_decoder_against_finite_differences(norm_first):
    small = ready(nn.Decoder(2, 4, 2, 3, norm_first=norm_first))
    masks = nn.padding_mask([1, 2], 2), nn.padding_mask([0, 1], 2)
    mt.gradcheck(lambda module, *inputs: module(*inputs, *masks, is_causal=True), small, draw(2, 2, 4), draw(2, 2, 4))


@NORMS
@pytest.mark.parametrize("bias", [True, False])
def test_transformer_along_a_direction(norm_first, bias):
    masks = nn.padding_mask([3, 5], S), nn.padding_mask([4, 2], T)
    model = transformer(norm_first, bias=bias)
    directional(lambda model, src, tgt: model(src, tgt, *masks, is_causal=True), model, draw(B, S, C), draw(B, T, C))
    directional(lambda model, *inputs: flat(model(*inputs, return_weights=True)), model, draw(B, S, C), draw(B, T, C))


# ---- what they are made of -------------------------------------------------------------------------------------------

@NORMS
def test_an_encoder_is_its_blocks_and_a_norm(norm_first):
    stack, x, mask = encoder(norm_first=norm_first), draw(B, S, C), nn.padding_mask([3, 5], S)
    first, second = stack.layers
    assert (stack.norm is None) != norm_first
    last = stack.norm or (lambda x: x)
    expected = last(second(first(mt.tensor(x), mask, is_causal=True), mask, is_causal=True))
    np.testing.assert_array_equal(stack(mt.tensor(x), mask, is_causal=True).data, expected.data)


@NORMS
def test_a_decoder_is_its_blocks_and_a_norm(norm_first):
    stack, x, memory = decoder(norm_first=norm_first), mt.tensor(draw(B, T, C)), mt.tensor(draw(B, S, C))
    masks = nn.padding_mask([3, 4], T), nn.padding_mask([2, 5], S)
    last = stack.norm or (lambda x: x)
    first, second = stack.layers
    expected = last(second(first(x, memory, *masks), memory, *masks))
    np.testing.assert_array_equal(stack(x, memory, *masks).data, expected.data)


def test_a_transformer_is_an_encoder_and_a_decoder():
    model, src, tgt = transformer(), mt.tensor(draw(B, S, C)), mt.tensor(draw(B, T, C))
    expected = model.decoder(tgt, model.encoder(src, nn.causal_mask(S)), nn.padding_mask([3, 4], T), is_causal=True)
    y = model(src, tgt, nn.causal_mask(S), nn.padding_mask([3, 4], T), is_causal=True)
    np.testing.assert_array_equal(y.data, expected.data)


@pytest.mark.parametrize("stack", [nn.Encoder, nn.Decoder])
def test_the_last_norm_is_an_option(stack):
    for norm_first, final_norm, there in [(True, None, True), (False, None, False), (True, False, False),
                                          (False, True, True)]:
        assert (stack(1, C, H, 12, norm_first=norm_first, final_norm=final_norm).norm is not None) == there
        model = nn.Transformer(C, H, 1, 1, 12, norm_first=norm_first)
        assert model.encoder.norm and model.decoder.norm


def test_every_stack_has_its_own_number_of_layers():
    model = nn.Transformer(C, H, 1, 3, 12)
    assert len(model.encoder.layers) == 1 and len(model.decoder.layers) == 3
    assert len(nn.Encoder(0, C, H, 12).layers) == 0 and len(nn.Decoder(4, C, H, 12).layers) == 4


@pytest.mark.parametrize("build", [functools.partial(nn.Encoder, 2, C), functools.partial(nn.Decoder, 2, C),
                                   lambda *args, **options: nn.Transformer(C, args[0], 1, 1, *args[1:], **options)])
def test_options_arrive_in_every_block(build):
    module = build(H, 12, 0.3, False, activation="silu", eps=1e-2, bias=False)
    blocks = [m for m in module.modules() if isinstance(m, (nn.EncoderBlock, nn.DecoderBlock))]
    assert len(blocks) == 2 and not any(block.norm_first for block in blocks)
    assert {m.p for m in module.modules() if isinstance(m, nn.Dropout)} == {0.3}
    assert {m.eps for m in module.modules() if isinstance(m, nn.LayerNorm)} == {1e-2}
    assert all(isinstance(block.ff.net[1], nn.SiLU) for block in blocks)
    assert not [name for name in module.state_dict() if name.endswith("bias")]


def test_the_paper_is_the_default():
    with nn.init.hollow():
        model = nn.Transformer()
        parts = model, model.encoder.layers[0], model.decoder.layers[5]
    assert [sum(p.size for p in part.parameters()) for part in parts] == [44_140_544, 3_152_384, 4_204_032]
    block = model.decoder.layers[0]
    assert not block.norm_first and isinstance(block.ff.net[1], nn.ReLU) and block.dropout.p == 0.1


@pytest.mark.parametrize("build", [lambda: nn.Encoder(3, C, H, 12), lambda: nn.Decoder(3, C, H, 12),
                                   lambda: nn.Transformer(C, H, 2, 2, 12)])
def test_every_matrix_is_drawn_anew_and_a_seed_draws_them_again(build):
    matrices = [(name, p.numpy()) for name, p in build().named_parameters() if p.ndim == 2]
    for i, (name, p) in enumerate(matrices):
        for other, q in matrices[:i]:
            assert np.isin(p, q).mean() < 0.1, f"{name} and {other} have entries in common"
    mt.manual_seed(7)
    first = build().state_dict()
    mt.manual_seed(7)
    again = build().state_dict()
    mt.manual_seed(8)
    other = build().state_dict()
    assert list(first) == list(again)
    assert all((first[name] == again[name]).all() for name in first)
    assert not any((first[name] == other[name]).all() for name in first if first[name].ndim == 2)


def test_initial_values_are_those_of_pytorchs_transformer():
    """In PyTorch one matrix (3 C, C) makes queries, keys and values, and Xavier's rule goes by its shape."""
    d = 48
    for name, p in nn.Transformer(d, 4, 1, 1, 2 * d).named_parameters():
        p = p.numpy()
        if p.ndim == 2:
            rows = 3 * d if name.endswith(("w_q.weight", "w_k.weight", "w_v.weight")) else len(p)
            bound = math.sqrt(6 / (rows + p.shape[1]))
            assert 0.98 * bound < np.abs(p).max() <= bound and abs(p.mean()) < 0.05 * bound, name
        elif "net" in name:
            bound = 1 / math.sqrt(2 * d if "net.3" in name else d)
            assert 0.9 * bound < np.abs(p).max() <= bound, name
        else:
            assert (p == (1 if "norm" in name and name.endswith("weight") else 0)).all(), name


# ---- weights ---------------------------------------------------------------------------------------------------------

def check_weights(weights, shape, allowed):
    assert weights.shape == shape
    weights, allowed = weights.numpy(), np.broadcast_to(allowed, shape)
    assert (weights[~allowed] == 0).all() and (weights[allowed] > 0).all()
    np.testing.assert_allclose(weights.sum(-1), allowed.any(-1), rtol=1e-12, atol=0)


def test_weights_of_every_layer_come_along():
    model, src, tgt = transformer(), mt.tensor(draw(B, S, C)), mt.tensor(draw(B, T, C))
    src_mask, tgt_mask = nn.padding_mask([0, 3], S), nn.padding_mask([4, 2], T)
    y, (of_encoder, of_decoder) = model(src, tgt, src_mask, tgt_mask, is_causal=True, return_weights=True)
    np.testing.assert_allclose(y.data, model(src, tgt, src_mask, tgt_mask, is_causal=True).data, atol=1e-6)
    assert type(of_encoder) is type(of_decoder) is list and len(of_encoder) == len(of_decoder) == 2
    for weights in of_encoder:
        check_weights(weights, (B, H, S, S), src_mask[:, None])
    for pair in of_decoder:
        assert type(pair) is tuple and len(pair) == 2
        check_weights(pair[0], (B, H, T, T), (tgt_mask & nn.causal_mask(T))[:, None])
        check_weights(pair[1], (B, H, T, S), src_mask[:, None])


def test_weights_of_a_stack_alone():
    x, memory = mt.tensor(draw(B, T, C)), mt.tensor(draw(B, S, C))
    y, weights = encoder(3)(x, return_weights=True)
    assert y.shape == (B, T, C) and [w.shape for w in weights] == 3 * [(B, H, T, T)]
    y, weights = decoder(3)(x, memory, return_weights=True)
    assert y.shape == (B, T, C) and [(a.shape, b.shape) for a, b in weights] == 3 * [((B, H, T, T), (B, H, T, S))]
    assert nn.Encoder(0, C, H, 12)(x.to(dtype=np.float32), return_weights=True)[1] == []


# ---- masks -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("shape", [(1, S), (B, 1, S), (B, 1, 1, S), (B, H, 1, S)], ids=str)
def test_a_source_mask_with_one_row_is_memorys_too(shape):
    model, src, tgt = transformer(), mt.tensor(draw(B, S, C)), mt.tensor(draw(B, T, C))
    mask = RNG.random(shape) < 0.6
    y = model(src, tgt, mask).data
    np.testing.assert_array_equal(y, model(src, tgt, mask, memory_mask=mask).data)
    np.testing.assert_array_equal(y, model.decoder(tgt, model.encoder(src, mask), None, mask).data)
    everything = np.ones((1, S), bool)
    assert (y != model(src, tgt, mask, memory_mask=everything).data).any()          # what is given counts
    np.testing.assert_array_equal(model(src, tgt, None, None, mask).data, model.decoder(tgt, model.encoder(src), None,
                                                                                        mask).data)


@pytest.mark.parametrize("shape", [(S, S), (B, S, S), (B, H, S, S)], ids=str)
def test_a_source_mask_of_many_rows_is_the_encoders_alone(shape):
    model, src, tgt = transformer(), mt.tensor(draw(B, S, C)), mt.tensor(draw(B, S, C))
    mask = RNG.random(shape) < 0.6
    expected = model.decoder(tgt, model.encoder(src, mask))
    np.testing.assert_array_equal(model(src, tgt, mask).data, expected.data)


@pytest.mark.parametrize("shape", [(T, T), (1, T), (B, 1, T), (B, T, T), (1, T, T), (B, 1, 1, T), (B, 1, T, T),
                                   (1, H, T, T), (B, H, T, T)], ids=str)
def test_masks_of_every_shape_are_the_whole_one(shape):
    mask = RNG.random(shape) < 0.6
    whole = np.broadcast_to(mask[:, None] if len(shape) == 3 else mask, (B, H, T, T))
    x, memory = mt.tensor(draw(B, T, C)), mt.tensor(draw(B, T, C))
    for given in mask, mt.tensor(mask):
        np.testing.assert_array_equal(ENCODER(x, given).data, ENCODER(x, whole).data)
        np.testing.assert_array_equal(DECODER(x, memory, given, given).data, DECODER(x, memory, whole, whole).data)


@NORMS
def test_causal_and_padding_in_one_mask_or_apart(norm_first):
    x, memory = mt.tensor(draw(B, T, C)), mt.tensor(draw(B, S, C))
    for padding in nn.padding_mask([2, 4], T), padded(T, [1, 3], "left"):
        both = padding & nn.causal_mask(T)
        stack = encoder(norm_first=norm_first)
        np.testing.assert_array_equal(stack(x, both).data, stack(x, padding, is_causal=True).data)
        stack = decoder(norm_first=norm_first)
        np.testing.assert_array_equal(stack(x, memory, both).data, stack(x, memory, padding, is_causal=True).data)
        model = transformer(norm_first)
        np.testing.assert_array_equal(model(memory, x, None, both).data, model(memory, x, None, padding,
                                                                               is_causal=True).data)


def test_is_causal_is_the_targets():
    model, src, tgt = transformer(), mt.tensor(draw(B, S, C)), mt.tensor(draw(B, T, C))
    np.testing.assert_array_equal(model(src, tgt, is_causal=True).data,
                                  model.decoder(tgt, model.encoder(src), nn.causal_mask(T)).data)


@NORMS
def test_a_later_token_changes_no_earlier_output_by_one_bit(norm_first):
    src, tgt = draw(B, S, C), draw(B, T, C)
    model, stack = transformer(norm_first), encoder(norm_first=norm_first)
    for run in (lambda x: model(mt.tensor(src), mt.tensor(x), is_causal=True),
                lambda x: stack(mt.tensor(x), is_causal=True)):
        before = run(tgt).data
        for t in range(1, T):
            later = tgt.copy()
            later[:, t:] = draw(B, T - t, C)
            after = run(later).data
            np.testing.assert_array_equal(after[:, :t], before[:, :t])
            assert (after[:, t:] != before[:, t:]).any(-1).all()


@SIDES
@NORMS
def test_what_padding_holds_changes_no_real_position_by_one_bit(norm_first, side):
    src, tgt = draw(B, S, C), draw(B, T, C)
    src_mask, tgt_mask = padded(S, [2, 5], side), padded(T, [3, 1], side)
    model, stack = transformer(norm_first), encoder(norm_first=norm_first)
    other_src, other_tgt = (np.where(mask.swapaxes(1, 2), x, 100 * draw(*x.shape))
                            for x, mask in ((src, src_mask), (tgt, tgt_mask)))
    real_src, real_tgt = src_mask[:, 0], tgt_mask[:, 0]
    for causal in False, True:
        a, b = (stack(mt.tensor(x), src_mask, is_causal=causal).numpy() for x in (src, other_src))
        np.testing.assert_array_equal(a[real_src], b[real_src])
        a, b = (model(mt.tensor(x), mt.tensor(z), src_mask, tgt_mask, is_causal=causal).numpy()
                for x, z in ((src, tgt), (other_src, other_tgt)))
        np.testing.assert_array_equal(a[real_tgt], b[real_tgt])
        assert np.isfinite(b).all()


@SIDES
@NORMS
def test_a_padded_sequence_is_the_sequence(norm_first, side):
    src, tgt = draw(1, 3, C), draw(1, 2, C)
    pad_src, pad_tgt = (((0, 0), (n, 0) if side == "left" else (0, n), (0, 0)) for n in (2, 2))
    model = transformer(norm_first)
    alone = model(mt.tensor(src), mt.tensor(tgt), is_causal=True).data
    padding = (mt.tensor(np.pad(x, pad, constant_values=3.0)) for x, pad in ((src, pad_src), (tgt, pad_tgt)))
    y = model(*padding, padded(5, [3], side), padded(4, [2], side), is_causal=True).data
    np.testing.assert_allclose(y[:, 2:] if side == "left" else y[:, :2], alone, rtol=1e-12, atol=1e-12)


def test_where_nothing_may_be_seen_attention_gives_exactly_nothing():
    """What is left is each attention's last bias; memory that nobody sees gets a gradient of zeros."""
    model = transformer(norm_first=True)
    for name, p in model.named_parameters():
        if name.endswith("w_o.bias"):
            p.data[...] = 0
    src, tgt = (mt.tensor(draw(B, n, C), requires_grad=True) for n in (S, T))
    nothing = np.zeros((1, S), bool)
    y, (seen, pairs) = model(src, tgt, nothing, np.zeros((T, T), bool), return_weights=True)
    assert all((w.data == 0).all() for w in flat((seen, pairs)))
    h = tgt
    for block in model.decoder.layers:
        h = h + block.ff(block.norm3(h))                            # all that a block does by itself
    np.testing.assert_array_equal(y.data, model.decoder.norm(h).data)
    y.backward(draw(*y.shape))
    assert (src.grad == 0).all() and np.isfinite(here(tgt.grad)).all() and (tgt.grad != 0).any()
    for name, p in model.named_parameters():
        if "attn.w_" in name and not name.endswith("w_o.bias"):
            assert (p.grad == 0).all(), name                        # the encoder's too: nothing of it arrives


@pytest.mark.parametrize("shape", [(T, T + 1), (T + 1, T), (T, 1), (B + 1, T, T), (B, H + 1, T, T), (1, B, H, T, T)],
                         ids=str)
@pytest.mark.parametrize("place", ["encoder", "decoder", "memory", "src_mask", "tgt_mask", "memory_mask"])
def test_masks_that_do_not_fit(shape, place):
    with pytest.raises(ValueError, match="scaled_dot_product_attention: .*mask"):
        masked(place, np.ones(shape, bool))


@pytest.mark.parametrize("place", ["encoder", "decoder", "memory", "src_mask", "tgt_mask", "memory_mask"])
def test_masks_that_are_not_bool(place):
    for dtype in np.float64, np.int64:
        with pytest.raises(TypeError, match=r"astype\(bool\).*bias="):
            masked(place, np.ones((1, T), dtype))
    with pytest.raises(TypeError, match="bool"):
        masked(place, [[True] * T])


def masked(place, mask):
    x = mt.tensor(draw(B, T, C))
    if place == "encoder":
        return ENCODER(x, mask)
    if place in ("decoder", "memory"):
        return DECODER(x, x, **{"mask" if place == "decoder" else "memory_mask": mask})
    return TRANSFORMER(x, x, **{place: mask})


# ---- sizes -----------------------------------------------------------------------------------------------------------

@NORMS
def test_a_row_of_a_batch_is_the_batch_of_one(norm_first):
    model, src, tgt, mask = transformer(norm_first), draw(B, S, C), draw(B, T, C), nn.padding_mask([2, 5], S)
    whole = model(mt.tensor(src), mt.tensor(tgt), mask, is_causal=True).data
    for b in range(B):
        one = model(mt.tensor(src[b:b + 1]), mt.tensor(tgt[b:b + 1]), mask[b:b + 1], is_causal=True).data
        np.testing.assert_allclose(one, whole[b:b + 1], rtol=1e-12, atol=1e-12)
        bare = model(mt.tensor(src[b]), mt.tensor(tgt[b]), mask[b], is_causal=True).data        # without a batch axis
        np.testing.assert_allclose(bare, whole[b], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("batch, n_src, n_tgt", [(1, 1, 1), (1, 5, 1), (1, 1, 4), (0, 5, 4), (2, 0, 4), (2, 5, 0),
                                                 (0, 0, 0)])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_small_and_empty(batch, n_src, n_tgt, mode):
    model = nn.Transformer(C, H, 1, 1, 12).train(mode == "train")
    src, tgt = (mt.tensor(np.zeros((batch, n, C), np.float32), requires_grad=True) for n in (n_src, n_tgt))
    y, (of_encoder, of_decoder) = model(src, tgt, np.ones((batch, 1, n_src), bool), np.ones((batch, 1, n_tgt), bool),
                                        is_causal=True, return_weights=True)
    assert y.shape == (batch, n_tgt, C) and of_encoder[0].shape == (batch, H, n_src, n_src)
    assert [w.shape for w in of_decoder[0]] == [(batch, H, n_tgt, n_tgt), (batch, H, n_tgt, n_src)]
    y.backward(np.ones(y.shape, np.float32))
    for p in (src, tgt, *model.parameters()):
        assert p.grad is None or p.grad.shape == p.shape and np.isfinite(here(p.grad)).all()
    assert tgt.grad.shape == tgt.shape


# ---- input that cannot be --------------------------------------------------------------------------------------------

@pytest.mark.parametrize("build, says", [
    (lambda: nn.Encoder(2, 10, 3, 12), "d_model 10 .* num_heads 3"),
    (lambda: nn.Decoder(2, 10, 4, 12), "d_model 10 .* num_heads 4"),
    (lambda: nn.Transformer(10, 3, 1, 1, 12), "d_model 10 .* num_heads 3"),
    (lambda: nn.Encoder(2, C, H, 12, activation="swish"), "'swish'.* gelu, gelu_tanh, relu, silu, tanh"),
    (lambda: nn.Transformer(C, H, 1, 1, 12, activation="GELU"), "'GELU'.* gelu, gelu_tanh, relu, silu, tanh"),
    (lambda: nn.Encoder(-1, C, H, 12), "Encoder: num_layers .*-1"),
    (lambda: nn.Encoder(1, C, H, 0), "out_features .*0"),
    (lambda: nn.Decoder(1, C, H, 12, 1.5), "1.5")])
def test_stacks_that_cannot_be_built(build, says):
    with pytest.raises(ValueError, match=says):
        build()


def test_inputs_that_do_not_fit():
    x, narrow, other = mt.tensor(draw(B, T, C)), mt.tensor(draw(B, T, C - 1)), mt.tensor(draw(B + 1, T, C))
    for run in (lambda: ENCODER(narrow), lambda: DECODER(narrow, x),
                lambda: DECODER(x, narrow), lambda: TRANSFORMER(narrow, x)):
        with pytest.raises(ValueError, match=rf"linear|layer_norm.*\({B}, {T}, {C - 1}\)"):
            run()
    with pytest.raises(ValueError, match="DecoderBlock: memory"):
        TRANSFORMER(x, other)
    with pytest.raises(TypeError, match="float32, float64|float64, float32"):
        ENCODER(x.to(dtype=np.float32))
    with pytest.raises(TypeError, match="sclae"):
        ENCODER(x, sclae=2.0)


def test_a_mask_for_all_of_the_batch_holds_for_memory_too():
    x, keep = mt.tensor(draw(B, T, C)), np.arange(T) < 2
    y = TRANSFORMER(x, x, keep)
    np.testing.assert_allclose(y.data, TRANSFORMER(x, x, keep[None, None]).data, rtol=0, atol=1e-14)
    np.testing.assert_allclose(y.data, TRANSFORMER(x, x, keep, memory_mask=keep).data, rtol=0, atol=1e-14)


def test_a_memory_of_another_batch_is_refused_also_where_it_would_spread():
    x = mt.tensor(draw(B, T, C))
    with pytest.raises(ValueError, match=r"DecoderBlock: memory \(1, 4, 8\) must have the batch"):
        DECODER(x, x[:1])
