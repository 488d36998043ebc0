"""The original Transformer: its formula, its slopes, padding, initial values, and what it learns."""
import math

import numpy as np
import pytest
from double import here

import minitx as mt
from minitx import generate, models, nn, ops, optim, schedule
from minitx.proof.gradcheck import directional

RNG = np.random.default_rng(0)
SMALL = dict(src_vocab_size=11, tgt_vocab_size=13, d_model=8, num_heads=2, num_encoder_layers=2, num_decoder_layers=2,
             d_ff=16, max_len=9, dropout=0.0)


def small(head="lm", **options):
    return models.Seq2Seq(models.Seq2SeqConfig(**{**SMALL, **options}), head)


def exact(**options):
    """In float64, every parameter redrawn: zeros and ones would hide what they multiply."""
    model = small(**options).to(dtype=np.float64)
    for p in model.parameters():
        p.data[...] = mt.tensor(RNG.standard_normal(p.shape) * 0.5).data
    return model


def ids(*shape, n=11):
    return RNG.integers(0, n, shape)


def test_it_is_its_formula():
    model, src, tgt = small(), ids(2, 5), ids(2, 4)
    src_mask, tgt_mask = np.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]]), np.array([[1, 1, 1, 1], [0, 0, 1, 1]])

    def embedded(table, ids, places):
        return mt.tensor(table.weight.numpy()[ids] * np.float32(math.sqrt(8)) + model.positions.pe.numpy()[0, places])

    x = embedded(model.src_embed, src, [[0, 1, 2, 2, 2], [0, 0, 1, 2, 3]])
    y = embedded(model.tgt_embed, tgt, [[0, 1, 2, 3], [0, 0, 0, 1]])
    h = model.transformer(x, y, src_mask[:, None] == 1, tgt_mask[:, None] == 1, is_causal=True)
    expected = model.lm_head(h).data
    np.testing.assert_array_equal(model(src, tgt, src_mask, tgt_mask).data, expected)
    for kind in (lambda mask: mask == 1), np.uint8, mt.tensor, np.ndarray.tolist:
        np.testing.assert_array_equal(model(src, tgt, kind(src_mask), kind(tgt_mask)).data, expected)
    x, y = embedded(model.src_embed, src, range(5)), embedded(model.tgt_embed, tgt, range(4))
    expected = model.lm_head(model.transformer(x, y, is_causal=True)).data
    np.testing.assert_array_equal(model(src.tolist(), mt.tensor(tgt)).data, expected)
    np.testing.assert_array_equal(model(src, tgt, np.ones((2, 5), int), np.ones((2, 4), int)).data, expected)


def test_the_two_halves_are_the_whole():
    model, src, tgt, mask = small(), ids(2, 5), ids(2, 4), np.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]])
    memory = model.encode(src, mask)
    assert memory.shape == (2, 5, 8)
    np.testing.assert_array_equal(model.decode(tgt, memory, mask).data, model(src, tgt, mask).data)
    shown = np.array([[1, 1, 0, 0], [1, 1, 1, 1]])
    np.testing.assert_array_equal(model.decode(tgt, memory, mask, shown).data, model(src, tgt, mask, shown).data)


def test_shapes_with_and_without_a_head():
    model, src, tgt = small(), ids(2, 5), ids(2, 4)
    bare = small(None)
    state = model.state_dict()
    bare.load_state_dict({name: value for name, value in state.items() if not name.startswith("lm_head")})
    assert model(src, tgt).shape == (2, 4, 13) and bare(src, tgt).shape == (2, 4, 8) and bare.lm_head is None
    np.testing.assert_array_equal(model(src, tgt).data, model.lm_head(bare(src, tgt)).data)


@pytest.mark.parametrize("options", [{}, {"norm_first": True, "tie_embeddings": True, "tgt_vocab_size": 11}],
                         ids=["paper", "pre-norm, tied"])
def test_along_a_direction(options):
    model = exact(activation="gelu", **options)
    src, tgt, targets = ids(3, 5), ids(3, 4), ids(3, 4)
    masks = nn.padding_mask([5, 2, 4], 5)[:, 0], nn.padding_mask([4, 4, 1], 4)[:, 0, ::-1]
    directional(lambda model: model(src, tgt, *masks), model)
    directional(lambda model: ops.cross_entropy(model(src, tgt, *masks), targets, label_smoothing=0.1), model)


def test_a_later_token_changes_no_earlier_output_by_one_bit():
    model, src, tgt = small(), ids(2, 5), ids(2, 6)
    before = model(src, tgt).data
    for t in range(1, 6):
        later = tgt.copy()
        later[:, t:] = (tgt[:, t:] + 1) % 11
        after = model(src, later).data
        np.testing.assert_array_equal(after[:, :t], before[:, :t])
        assert (after[:, t:] != before[:, t:]).any(-1).all()
    assert (model((src + 1) % 11, tgt).data != before).any(-1).all()        # while all of the source is seen


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_no_real_position(side, norm_first):
    model, src, tgt = exact(norm_first=norm_first), ids(2, 4), ids(2, 3)
    alone = model(src, tgt).data
    masks, found = [], []
    for n in 4, 3:
        mask = np.zeros((2, n + 2), int)
        mask[:, slice(2, None) if side == "left" else slice(n)] = 1
        masks.append(mask)
    for filling in 0, 7, 10:
        padded = [np.full(mask.shape, filling) for mask in masks]
        for mask, values, real in zip(masks, padded, (src, tgt)):
            values[mask == 1] = real.ravel()
        found.append(model(*padded, *masks).numpy())
        assert np.isfinite(found[-1]).all()
    real = [y[masks[1] == 1].reshape(alone.shape) for y in found]
    np.testing.assert_array_equal(real[0], real[1])                 # what stands in the padding: not one bit
    np.testing.assert_array_equal(real[0], real[2])
    np.testing.assert_allclose(real[0], alone, rtol=1e-11, atol=1e-11)


def test_a_source_that_is_all_padding_is_not_seen():
    model, tgt, mask = exact(), ids(2, 4), np.array([[0, 0, 0], [1, 1, 0]])
    y = [model(source, tgt, mask) for source in (np.zeros((2, 3), int), np.full((2, 3), 5))]
    np.testing.assert_array_equal(y[0].data[0], y[1].data[0])
    assert (y[0].data[1] != y[1].data[1]).any() and np.isfinite(y[0].numpy()).all()


@pytest.mark.parametrize("batch, n_src, n_tgt", [(1, 1, 1), (1, 9, 9), (0, 5, 4), (2, 0, 4), (2, 5, 0), (0, 0, 0)])
def test_small_and_empty(batch, n_src, n_tgt):
    model, src, tgt = small(dropout=0.1), ids(batch, n_src), ids(batch, n_tgt)
    logits = model(src, tgt, np.ones((batch, n_src), int), np.ones((batch, n_tgt), int))
    assert logits.shape == (batch, n_tgt, 13)
    loss = ops.cross_entropy(logits, tgt)
    loss.backward()
    assert np.isfinite(loss.numpy()) and all(p.grad is None or np.isfinite(here(p.grad)).all() for p in model.parameters())


def test_rows_do_not_mix():
    model, src, tgt, mask = exact(), ids(3, 5), ids(3, 4), nn.padding_mask([5, 1, 3], 5)[:, 0]
    whole = model(src, tgt, mask).data
    for b in range(3):
        one = model(src[b:b + 1], tgt[b:b + 1], mask[b:b + 1]).data
        np.testing.assert_allclose(one[0], whole[b], rtol=1e-11, atol=1e-11)


# ---- parameters ------------------------------------------------------------------------------------------------------

def test_the_default_is_the_papers_base_model():
    c = models.Seq2SeqConfig()
    assert (c.d_model, c.num_heads, c.num_encoder_layers, c.num_decoder_layers, c.d_ff) == (512, 8, 6, 6, 2048)
    assert (c.dropout, c.norm_first, c.activation, c.tie_embeddings) == (0.1, False, "relu", False)
    with nn.init.hollow():
        model = models.Seq2Seq()
    assert sum(p.size for p in model.parameters()) == 44_140_544 + 3 * 37000 * 512 + 37000


@pytest.mark.parametrize("head, matrices, biases", [("lm", 3, 1), (None, 2, 0)])
def test_tied_embeddings_are_one_matrix(head, matrices, biases):
    options = dict(tgt_vocab_size=11, d_model=8)
    apart, tied = small(head, **options), small(head, tie_embeddings=True, **options)
    count = sum(p.size for p in tied.transformer.parameters())
    assert sum(p.size for p in apart.parameters()) == count + matrices * 88 + biases * 11
    assert sum(p.size for p in tied.parameters()) == count + 88 + biases * 11
    assert tied.src_embed.weight is tied.tgt_embed.weight and apart.src_embed.weight is not apart.tgt_embed.weight
    if head:
        assert tied.lm_head.weight is tied.tgt_embed.weight
    assert set(tied.state_dict()) == set(apart.state_dict())
    tied(ids(2, 3), ids(2, 3)).backward(np.ones((2, 3, 11 if head else 8), np.float32))
    assert np.isfinite(here(tied.src_embed.weight.grad)).all()


def test_initial_values():
    model = small(src_vocab_size=400, tgt_vocab_size=300, d_model=64, num_heads=4)
    for embedding in model.src_embed, model.tgt_embed:
        assert embedding.weight.numpy().std() == pytest.approx(1 / 8, rel=0.03)
        assert abs(embedding.weight.numpy().mean()) < 0.005
    w = model.transformer.encoder.layers[0].attn.w_o.weight.numpy()
    assert 0.98 < np.abs(w).max() / math.sqrt(6 / 128) <= 1         # nn.Transformer's own
    assert not model.transformer.decoder.layers[1].norm_first and model.transformer.decoder.norm is not None
    mt.manual_seed(5)
    first = small().state_dict()
    mt.manual_seed(5)
    assert all((value == first[name]).all() for name, value in small().state_dict().items())


def test_options_arrive():
    model = small(dropout=0.3, norm_first=True, activation="gelu_tanh", num_encoder_layers=1, num_decoder_layers=3)
    blocks = [*model.transformer.encoder.layers, *model.transformer.decoder.layers]
    assert [type(block) for block in blocks] == [nn.EncoderBlock] + 3 * [nn.DecoderBlock]
    assert all(block.norm_first and block.ff.net[1].approximate == "tanh" for block in blocks)
    rates = {name: m.p for name, m in model.named_modules() if isinstance(m, nn.Dropout)}
    assert set(rates.values()) == {0.3} and len(rates) == 1 + 3 + 3 * 4 and rates["positions.dropout"] == 0.3
    assert model.positions.pe.shape == (1, 9, 8) and "positions.pe" in model.state_dict()
    src, tgt = ids(2, 5), ids(2, 4)
    assert (model(src, tgt).data != model(src, tgt).data).any()
    model.eval()
    np.testing.assert_array_equal(model(src, tgt).data, model(src, tgt).data)


def test_a_float32_model_stays_float32():
    model = small(dropout=0.1)
    memory = model.encode(ids(2, 5), np.ones((2, 5), int))
    logits = model.decode(ids(2, 4), memory, np.ones((2, 5), int), np.ones((2, 4), int))
    logits.backward(np.ones(logits.shape, np.float32))
    assert memory.dtype == logits.dtype == np.float32 and all(p.grad.dtype == np.float32 for p in model.parameters())


# ---- what it learns --------------------------------------------------------------------------------------------------

def test_it_learns_to_turn_digits_round():
    """Label smoothing and the paper's rate together: then greedy decoding reverses what it has seen."""
    model = small(tgt_vocab_size=11, d_model=32, num_encoder_layers=1, num_decoder_layers=1, d_ff=64)
    optimiser = optim.AdamW(model.parameters(), lr=lambda step: schedule.noam_lr(step, 32, 40), betas=(0.9, 0.98),
                            eps=1e-9, weight_decay=0.0)
    src = np.random.default_rng(0).integers(1, 11, (8, 4))
    targets = src[:, ::-1]
    given = np.pad(targets[:, :-1], ((0, 0), (1, 0)))               # 0 is the begin token
    losses = []
    for _ in range(250):
        optimiser.zero_grad()
        loss = ops.cross_entropy(model(src, given), targets, label_smoothing=0.1)
        loss.backward()
        optim.clip_grad_norm(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
    assert losses[0] > 2 and losses[-1] < 0.6
    np.testing.assert_array_equal(generate.generate(model, src, 4, start_id=0), targets)


# ---- input that cannot be --------------------------------------------------------------------------------------------

@pytest.mark.parametrize("call, error, says", [
    (lambda m: m(ids(1, 10), ids(1, 4)), ValueError, "10 .* 9"),
    (lambda m: m(ids(1, 4), ids(1, 10)), ValueError, "10 .* 9"),
    (lambda m: m(ids(4), ids(1, 4)), ValueError, r"\(B, T\), got \(4,\)"),
    (lambda m: m(ids(1, 4), ids(1, 4, 1)), ValueError, r"\(B, T\), got \(1, 4, 1\)"),
    (lambda m: m(ids(1, 4) / 1, ids(1, 4)), TypeError, "integers"),
    (lambda m: m(ids(1, 4), ids(1, 4) > 5), TypeError, "integers"),
    (lambda m: m([[11]], [[0]]), IndexError, "11"), (lambda m: m([[0]], [[13]]), IndexError, "13"),
    (lambda m: m([[-1]], [[0]]), IndexError, "-1"),
    (lambda m: m(ids(2, 4), ids(3, 4)), ValueError, r"\(2, 4, 8\).*\(3, 4\)"),
    (lambda m: m(ids(2, 4), ids(2, 4), np.ones((2, 3), int)), ValueError, r"attention_mask .*\(2, 3\).*\(2, 4\)"),
    (lambda m: m(ids(2, 4), ids(2, 3), None, np.ones((2, 4), int)), ValueError, r"attention_mask .*2, 4\).*2, 3\)"),
    (lambda m: m(ids(2, 4), ids(2, 3), np.ones((2, 4))), TypeError, "attention_mask"),
    (lambda m: m(ids(2, 4), ids(2, 3), np.full((2, 4), 2)), ValueError, "attention_mask"),
    (lambda m: m.decode(ids(2, 3), m.encode(ids(2, 4)), np.ones((2, 3), int)), ValueError, "attention_mask"),
    (lambda m: m.decode(ids(2, 3), mt.zeros(4, 8)), ValueError, r"memory \(4, 8\)"),
    (lambda m: m.decode(ids(2, 3), mt.zeros(2, 4, 7)), ValueError, r"\(2, 4, 7\)")])
def test_input_that_cannot_be(call, error, says):
    with pytest.raises(error, match=says):
        call(small())


@pytest.mark.parametrize("options, says", [
    ({"num_heads": 3}, "d_model 8 .* num_heads 3"),
    ({"activation": "mish"}, "'mish'.*gelu, gelu_tanh, relu, silu, tanh"),
    ({"tie_embeddings": True}, "src_vocab_size 11 .*tgt_vocab_size 13"), ({"dropout": 1.5}, "1.5"),
    ({"max_len": 0}, "max_len .*0"), ({"src_vocab_size": 0}, "0"), ({"num_decoder_layers": -1}, "num_layers .*-1")])
def test_configurations_that_cannot_be(options, says):
    with pytest.raises(ValueError, match=says):
        small(**options)


def test_neither_a_configuration_nor_a_head():
    for config in SMALL, {}, models.GPT2Config():
        with pytest.raises(TypeError, match="Seq2SeqConfig"):
            models.Seq2Seq(config)
    with pytest.raises(ValueError, match="classifier"):
        small("classifier")
