"""Block by block: the tutorial that this project grew from, with the same names, shapes and numbers.

Where PyTorch is installed its own classes are built here, as the tutorial describes them, and load into ours.
"""
import functools
import math

import numpy as np
import pytest
from double import here

import minitx as mt
from minitx import models, nn, ops, optim, schedule

RNG = np.random.default_rng(0)


def draw(*shape):
    return RNG.standard_normal(shape)


@functools.cache
def tutorial():
    """The tutorial's classes in PyTorch, by name."""
    torch = pytest.importorskip("torch")
    from torch.nn import functional as F

    class MultiHeadAttention(torch.nn.Module):
        def __init__(self, d_model, num_heads, dropout=0.1):
            super().__init__()
            self.num_heads = num_heads
            self.w_q, self.w_k, self.w_v, self.w_o = (torch.nn.Linear(d_model, d_model) for _ in range(4))
            self.dropout = torch.nn.Dropout(dropout)

        def forward(self, query, key, value, mask=None):
            Q, K, V = (w(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
                       for w, x in ((self.w_q, query), (self.w_k, key), (self.w_v, value)))
            scores = Q @ K.transpose(-2, -1) / math.sqrt(Q.size(-1))
            if mask is not None:
                scores = scores.masked_fill(mask == 0, -math.inf)
            context = self.dropout(F.softmax(scores, dim=-1)) @ V
            return self.w_o(context.transpose(1, 2).flatten(2))

    class PositionalEncoding(torch.nn.Module):
        def __init__(self, d_model, max_len=5000, dropout=0.1):
            super().__init__()
            self.dropout = torch.nn.Dropout(dropout)
            rates = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
            angles = torch.arange(max_len)[:, None] * rates
            self.register_buffer("pe", torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[None])

        def forward(self, x):
            return self.dropout(x + self.pe[:, :x.size(1)])

    class FeedForward(torch.nn.Module):
        def __init__(self, d_model, d_ff, dropout=0.1):
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(d_model, d_ff), torch.nn.GELU(), torch.nn.Dropout(dropout),
                                           torch.nn.Linear(d_ff, d_model))

        def forward(self, x):
            return self.net(x)

    class EncoderBlock(torch.nn.Module):
        def __init__(self, d_model, num_heads, d_ff, dropout=0.1):
            super().__init__()
            self.attn, self.ff = MultiHeadAttention(d_model, num_heads, dropout), FeedForward(d_model, d_ff, dropout)
            self.norm1, self.norm2 = torch.nn.LayerNorm(d_model), torch.nn.LayerNorm(d_model)
            self.dropout = torch.nn.Dropout(dropout)

        def forward(self, x, mask=None):
            a = self.norm1(x)
            x = x + self.dropout(self.attn(a, a, a, mask))
            return x + self.dropout(self.ff(self.norm2(x)))

    class PatchEmbed(torch.nn.Module):
        def __init__(self, img_size=224, patch=16, in_ch=3, d_model=768):
            super().__init__()
            self.n_patches = (img_size // patch) ** 2
            self.proj = torch.nn.Conv2d(in_ch, d_model, kernel_size=patch, stride=patch)

        def forward(self, x):
            return self.proj(x).flatten(2).transpose(1, 2)

    classes = MultiHeadAttention, PositionalEncoding, FeedForward, EncoderBlock, PatchEmbed
    return {cls.__name__: cls for cls in classes}


def equal(ours, theirs, *inputs, masks=()):
    """Theirs' state loads strictly into ours; then outputs and all gradients are the same, to 1e-10 in float64."""
    import torch
    ours, theirs = ours.to(dtype=np.float64).eval(), theirs.double().eval()
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(torch.tensor(draw(*p.shape) * 0.5))
    state = {name: value.numpy() for name, value in theirs.state_dict().items()}
    assert set(ours.state_dict()) == set(state)
    assert ours.load_state_dict(state) == ([], [])
    a, b = [mt.tensor(x, requires_grad=True) for x in inputs], [torch.tensor(x, requires_grad=True) for x in inputs]
    y, expected = ours(*a, *masks), theirs(*b, *map(torch.tensor, masks))
    dy = draw(*y.shape)
    y.backward(dy)
    expected.backward(torch.tensor(dy))
    pairs = [(y.data, expected.detach())] + [(x.grad, z.grad) for x, z in zip(a, b)]
    pairs += [(p.grad, dict(theirs.named_parameters())[name].grad) for name, p in ours.named_parameters()]
    for mine, other in pairs:
        assert mine.shape == tuple(other.shape)
        assert np.abs(here(mine) - other.numpy()).max() <= 1e-10 * max(np.abs(other.numpy()).max(), 1e-3)


def count(module):
    return sum(p.size for p in module.parameters())


# ---- scaled dot-product attention ------------------------------------------------------------------------------------

def test_scaled_dot_product_attention():
    q, k = mt.randn(2, 4, 10, 16), mt.randn(2, 4, 10, 16)
    v = mt.randn(2, 4, 10, 32)                                      # values may be wider than queries and keys
    out, attn = ops.scaled_dot_product_attention(q, k, v, return_weights=True)
    assert out.shape == (2, 4, 10, 32) and attn.shape == (2, 4, 10, 10)
    scores = q.numpy() @ k.numpy().swapaxes(-1, -2) / math.sqrt(16)
    expected = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(attn.data, expected, rtol=1e-5)
    np.testing.assert_allclose(out.data, expected @ v.numpy(), rtol=1e-4, atol=1e-5)
    keep = nn.causal_mask(10)
    _, attn = ops.scaled_dot_product_attention(q, k, v, keep, return_weights=True)
    assert ((attn.numpy() > 0) == keep).all()


def test_the_scale_keeps_the_variance_of_the_scores_near_one():
    for d_k in 4, 64, 1024:
        q, k = draw(200, d_k), draw(200, d_k)
        assert np.var(q @ k.T / math.sqrt(d_k)) == pytest.approx(1, rel=0.2)
        assert np.var(q @ k.T) == pytest.approx(d_k, rel=0.2)


# ---- multi-head attention --------------------------------------------------------------------------------------------

def test_multi_head_attention():
    mha, x = nn.MultiHeadAttention(d_model=64, num_heads=8), mt.randn(2, 10, 64)
    assert mha(x, x, x).shape == (2, 10, 64)
    assert (mha.d_model, mha.num_heads, mha.d_k, count(mha)) == (64, 8, 8, 16_640)
    assert mha.split_heads(x).shape == (2, 8, 10, 8)
    with pytest.raises(ValueError, match="d_model 10 .* num_heads 3"):
        nn.MultiHeadAttention(10, 3)


@pytest.mark.parametrize("masks", [(), (nn.causal_mask(5),), (nn.padding_mask([5, 2], 5)[:, None],)],
                         ids=["", "causal", "padding"])
def test_multi_head_attention_is_the_tutorials(masks):
    theirs = tutorial()["MultiHeadAttention"](16, 4)
    equal(nn.MultiHeadAttention(16, 4), theirs, draw(2, 5, 16), draw(2, 5, 16), draw(2, 5, 16), masks=masks)
    assert sum(p.numel() for p in tutorial()["MultiHeadAttention"](64, 8).parameters()) == 16_640


# ---- positional encoding ---------------------------------------------------------------------------------------------

def test_positional_encoding():
    pos = nn.PositionalEncoding(d_model=64)
    assert pos(mt.randn(2, 10, 64)).shape == (2, 10, 64) and pos.pe.shape == (1, 5000, 64)
    assert list(pos.state_dict()) == ["pe"] and count(pos) == 0 and pos.dropout.p == 0.1
    for p in 0, 1, 4999:
        for i in 0, 1, 31:
            angle = p / 10000 ** (2 * i / 64)
            wave = math.sin(angle), math.cos(angle)
            np.testing.assert_allclose(pos.pe.data[0, p, 2 * i:2 * i + 2], wave, atol=1e-7)


def test_an_offset_is_a_linear_map_of_the_encoding():
    """Each pair (sin, cos) turns by an angle that depends on the offset k alone."""
    pe, k = nn.sinusoids(300, 64), 17
    angle = k / 10000 ** (np.arange(0, 64, 2) / 64)
    shift = np.zeros((64, 64))
    for i, a in enumerate(angle):
        shift[2 * i:2 * i + 2, 2 * i:2 * i + 2] = [[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]]
    np.testing.assert_allclose(pe[:-k] @ shift, pe[k:], atol=1e-12)


def test_positional_encoding_is_the_tutorials():
    equal(nn.PositionalEncoding(16, 50), tutorial()["PositionalEncoding"](16, 50), draw(2, 10, 16))
    theirs = tutorial()["PositionalEncoding"](64).pe.numpy()
    assert np.abs(theirs - nn.PositionalEncoding(64).pe.numpy()).max() < 1e-3          # it was computed in float32


def test_without_positions_attention_sees_a_set():
    mha, x, order = nn.MultiHeadAttention(16, 4).to(dtype=np.float64).eval(), draw(2, 7, 16), RNG.permutation(7)
    a, b = mt.tensor(x), mt.tensor(x[:, order])
    np.testing.assert_allclose(mha(b, b, b).data, mha(a, a, a).numpy()[:, order], rtol=1e-12, atol=1e-12)
    pos = nn.PositionalEncoding(16).to(dtype=np.float64).eval()
    a, b = pos(a), pos(b)
    assert np.abs(mha(b, b, b).numpy() - mha(a, a, a).numpy()[:, order]).max() > 1e-2


# ---- the block -------------------------------------------------------------------------------------------------------

def test_encoder_block():
    block = nn.EncoderBlock(d_model=64, num_heads=8, d_ff=256)
    assert block(mt.randn(2, 10, 64)).shape == (2, 10, 64)
    assert count(block) == 49_984 and count(nn.FeedForward(64, 256)) == 33_088
    assert count(nn.ModuleList(nn.EncoderBlock(64, 8, 256) for _ in range(6))) == 299_904
    assert count(nn.Encoder(6, 64, 8, 256, final_norm=False)) == 299_904


@pytest.mark.parametrize("masks", [(), (nn.causal_mask(5),), (nn.padding_mask([5, 2], 5)[:, None],)],
                         ids=["", "causal", "padding"])
def test_encoder_block_is_the_tutorials(masks):
    equal(nn.EncoderBlock(16, 4, 24), tutorial()["EncoderBlock"](16, 4, 24), draw(2, 5, 16), masks=masks)
    equal(nn.FeedForward(16, 24), tutorial()["FeedForward"](16, 24), draw(2, 5, 16))
    theirs = tutorial()["EncoderBlock"](64, 8, 256)
    assert sum(p.numel() for p in theirs.parameters()) == 49_984
    assert list(theirs.state_dict()) == list(nn.EncoderBlock(64, 8, 256).state_dict())


def test_six_blocks_are_the_tutorials():
    torch = pytest.importorskip("torch")
    theirs = torch.nn.Sequential(*(tutorial()["EncoderBlock"](16, 4, 24) for _ in range(6)))
    equal(nn.Sequential(*(nn.EncoderBlock(16, 4, 24) for _ in range(6))), theirs, draw(2, 5, 16))


# ---- causal masking --------------------------------------------------------------------------------------------------

def test_causal_mask():
    m = nn.causal_mask(5)
    assert m.dtype == bool and str(m.astype(int)) == """\
[[1 0 0 0 0]
 [1 1 0 0 0]
 [1 1 1 0 0]
 [1 1 1 1 0]
 [1 1 1 1 1]]"""
    mha, x = nn.MultiHeadAttention(d_model=64, num_heads=8), mt.randn(2, 5, 64)
    assert mha(x, x, x, mask=nn.causal_mask(5)).shape == (2, 5, 64)
    mha.eval()
    np.testing.assert_array_equal(mha(x, x, x, mask=nn.causal_mask(5)).data, mha(x, x, x, is_causal=True).data)


@pytest.mark.parametrize("build", [
    lambda: nn.EncoderBlock(16, 4, 24), lambda: nn.EncoderBlock(16, 4, 24, norm_first=False),
    lambda: nn.Encoder(3, 16, 4, 24)])
def test_a_later_token_changes_no_earlier_output_by_one_bit(build):
    layer, x = build().eval(), draw(2, 8, 16).astype(np.float32)
    before = layer(mt.tensor(x), nn.causal_mask(8)).data
    for t in range(1, 8):
        later = x.copy()
        later[:, t:] = 100 * draw(2, 8 - t, 16)
        after = layer(mt.tensor(later), nn.causal_mask(8)).data
        np.testing.assert_array_equal(after[:, :t], before[:, :t])
        assert (after[:, t:] != before[:, t:]).any(-1).all()


@pytest.mark.parametrize("side", ["left", "right"])
def test_what_padding_holds_changes_no_token_by_one_bit(side):
    layer, x = nn.Encoder(3, 16, 4, 24).eval(), draw(2, 8, 16).astype(np.float32)
    mask = nn.padding_mask([3, 6], 8)
    mask = mask if side == "right" else mask[..., ::-1]
    other = np.where(mask.swapaxes(1, 2), x, 100 * draw(2, 8, 16)).astype(np.float32)
    for m in mask, mask & nn.causal_mask(8):
        a, b = layer(mt.tensor(x), m).numpy(), layer(mt.tensor(other), m).numpy()
        np.testing.assert_array_equal(a[mask[:, 0]], b[mask[:, 0]])
        assert np.isfinite(b).all() and (a[~mask[:, 0]] != b[~mask[:, 0]]).any()


# ---- PyTorch's own modules, and what stands for them here ------------------------------------------------------------

def test_built_ins():
    attn, x = nn.MultiHeadAttention(64, 8), mt.randn(2, 10, 64)
    out, weights = attn(x, x, x, return_weights=True)
    assert out.shape == (2, 10, 64) and weights.shape == (2, 8, 10, 10)
    averaged = weights.mean(axis=1)                                 # PyTorch's attention gives the mean of the heads
    assert averaged.shape == (2, 10, 10)
    np.testing.assert_allclose(averaged.data.sum(-1), 1, rtol=1e-5)
    encoder = nn.Encoder(6, 64, 8, 256, activation="gelu", norm_first=True, final_norm=False)
    assert encoder(x).shape == (2, 10, 64) and len(encoder.layers) == 6
    assert nn.causal_mask(10).shape == (10, 10)
    decoder = nn.Decoder(2, 64, 8, 256)
    assert decoder(x, encoder(x), is_causal=True).shape == (2, 10, 64)
    assert nn.Transformer(64, 8, 1, 1, 256)(x, x[:, :4]).shape == (2, 4, 64)


def test_built_ins_are_pytorchs():
    torch = pytest.importorskip("torch")
    theirs = torch.nn.MultiheadAttention(embed_dim=64, num_heads=8, batch_first=True).double().eval()
    ours, x = nn.MultiHeadAttention(64, 8).to(dtype=np.float64).eval(), draw(2, 10, 64)
    for name, layer in zip("qkv", (ours.w_q, ours.w_k, ours.w_v)):
        rows = slice(64 * "qkv".index(name), 64 * "qkv".index(name) + 64)
        layer.weight.data[...], layer.bias.data[...] = (mt.tensor(p.detach().numpy()[rows]).data for p in
                                                        (theirs.in_proj_weight, theirs.in_proj_bias))
    ours.w_o.load_state_dict({name: p.numpy() for name, p in theirs.out_proj.state_dict().items()})
    out, weights = ours(*3 * [mt.tensor(x)], return_weights=True)
    expected, averaged = theirs(*3 * [torch.tensor(x)])
    assert tuple(expected.shape) == (2, 10, 64) and tuple(averaged.shape) == (2, 10, 10)
    np.testing.assert_allclose(out.data, expected.detach().numpy(), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(weights.mean(axis=1).data, averaged.detach().numpy(), rtol=1e-10, atol=1e-10)
    blocked = torch.nn.Transformer.generate_square_subsequent_mask(10)
    np.testing.assert_array_equal(blocked.numpy() == 0, nn.causal_mask(10))         # there 0 = may attend


# ---- architecture families -------------------------------------------------------------------------------------------

BERT = dict(vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
            max_position_embeddings=12)
FAMILIES = {        # as the tutorial names them -> a small model
    "BERT": lambda: models.BERT(models.BertConfig(**BERT)),
    "RoBERTa": lambda: models.BERT(models.RobertaConfig(**BERT)),
    "GPT": lambda: models.GPT2(models.GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2)),
    "LLaMA": lambda: models.Llama(models.LlamaConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)),
    "original Transformer": lambda: models.Seq2Seq(models.Seq2SeqConfig(
        src_vocab_size=11, tgt_vocab_size=11, d_model=8, num_heads=2, num_encoder_layers=1, num_decoder_layers=1,
        d_ff=16)),
    "T5": lambda: models.T5(models.T5Config(
        vocab_size=11, d_model=8, d_kv=4, num_heads=2, num_layers=1, num_decoder_layers=1, d_ff=16)),
    "BART": lambda: models.BART(models.BartConfig(
        vocab_size=11, d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=12)),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_that_is_named_is_here(name):
    """Encoders see both sides of a token, decoders its past; encoder-decoders one whole text and the other's past."""
    model, ids = FAMILIES[name]().eval(), RNG.integers(3, 11, (2, 5))
    later = ids.copy()
    later[:, 4] = 3 + (ids[:, 4] - 2) % 8                           # another last token

    def changed(a, b):
        assert a.shape == b.shape == (2, 5, 11)
        return (a.data != b.data).any(-1).tolist()

    if name in ("BERT", "RoBERTa"):
        assert changed(model(ids), model(later)) == 2 * [5 * [True]]
    elif name in ("GPT", "LLaMA"):
        assert changed(model(ids), model(later)) == 2 * [4 * [False] + [True]]
    else:
        assert changed(model(ids, ids), model(ids, later)) == 2 * [4 * [False] + [True]]
        assert changed(model(ids, ids), model(later, ids)) == 2 * [5 * [True]]


# ---- vision ----------------------------------------------------------------------------------------------------------

def test_patch_embed():
    pe = nn.PatchEmbed()
    assert pe(mt.randn(2, 3, 224, 224)).shape == (2, 196, 768) and pe.n_patches == 14 * 14
    assert nn.ClassToken(768)(mt.zeros(2, 196, 768)).shape == (2, 197, 768)
    model = models.ViT(models.ViTConfig(
        image_size=8, patch_size=4, num_channels=1, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16))
    logits = model(mt.randn(3, 1, 8, 8))
    assert logits.ndim == 2 and len(logits) == 3


def test_patch_embed_is_the_tutorials():
    equal(nn.PatchEmbed(12, 4, 2, 8), tutorial()["PatchEmbed"](12, 4, 2, 8), draw(3, 2, 12, 12))


# ---- training notes --------------------------------------------------------------------------------------------------

def test_noam_rates():
    assert [round(schedule.noam_lr(s, 64), 5) for s in [1, 100, 4000, 8000]] == [0.0, 5e-05, 0.00198, 0.0014]
    assert schedule.noam_lr(0) == schedule.noam_lr(1)
    assert schedule.noam_lr(4000) == pytest.approx(6.98771e-4, rel=1e-6)


class Tagger(nn.Module):
    """The tutorial's encoder between an embedding and a layer of logits: the smallest thing that can be trained."""

    def __init__(self, n=11, dropout=0.1):
        self.embed, self.positions = nn.Embedding(n, 64), nn.PositionalEncoding(64, dropout=dropout)
        self.encoder = nn.Encoder(2, 64, 8, 256, dropout, norm_first=False, activation="relu")
        self.out = nn.Linear(64, n)

    def forward(self, ids, mask=None):
        return self.out(self.encoder(self.positions(self.embed(ids)), mask))


def test_the_loop_runs_and_learns():
    model = Tagger()
    opt = optim.AdamW(model.parameters(), lr=lambda step: schedule.noam_lr(step, 64, warmup=20), betas=(0.9, 0.98),
                      weight_decay=0.01)
    x = RNG.integers(0, 11, (8, 10))
    losses = []
    for _ in range(40):
        opt.zero_grad()
        loss = ops.cross_entropy(model(x), x[:, ::-1], label_smoothing=0.1)         # every position names its mirror
        loss.backward()
        optim.clip_grad_norm(model.parameters(), 1.0)
        opt.step()
        losses.append(loss.item())
    assert np.isfinite(losses).all() and losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("rate", [
    lambda step: schedule.noam_lr(step, d_model=64), lambda step: schedule.inverse_sqrt(step, 1e-3, 4000),
    lambda step: schedule.warmup_cosine(step, 1e-3, 4000, 20000)], ids=["noam", "inverse square root", "cosine"])
def test_rates_warm_up_and_then_decay(rate):
    found = np.array([rate(step) for step in range(1, 20001, 100)])
    peak = found.argmax()
    assert abs(1 + 100 * peak - 4000) <= 100 and (np.diff(found[peak + 1:]) < 0).all()
    np.testing.assert_allclose(np.diff(found[:peak]), found[1] - found[0], rtol=1e-6)       # a straight line up


def test_pieces_of_a_batch_make_the_gradient_of_the_whole():
    """Each piece's sum is divided by the number of tokens of the whole batch. A mean of means is something else."""
    model, ids, n = Tagger(dropout=0.0).to(dtype=np.float64), RNG.integers(0, 11, (6, 9)), [9, 1, 4, 2, 9, 3]
    mask = nn.padding_mask(n, 9)
    targets = np.where(mask[:, 0], ids[:, ::-1], -100)              # -100 is no token

    def gradients(pieces, loss_of):
        model.zero_grad()
        for rows in pieces:
            loss_of(model(ids[rows], mask[rows]), targets[rows]).backward()         # backward adds to what is there
        return [p.grad for p in model.parameters()]

    def mean(logits, targets):
        return ops.cross_entropy(logits, targets)

    def share(logits, targets):
        return ops.cross_entropy(logits, targets, reduction="sum") / sum(n)

    pieces = [slice(0, 2), slice(2, 3), slice(3, 6)]
    whole = gradients([slice(0, 6)], mean)
    for a, b in zip(gradients(pieces, share), whole):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-13)
    means = gradients(pieces, lambda *args: mean(*args) / 3)
    assert max(np.abs(a - b).max() / np.abs(b).max() for a, b in zip(map(here, means), map(here, whole))) > 0.1


def test_label_smoothing_shares_out_a_tenth():
    logits, targets = mt.tensor(draw(4, 5)), np.array([0, 3, 2, 2])
    p = ops.log_softmax(logits).numpy()
    wanted = 0.9 * np.eye(5)[targets] + 0.1 / 5
    loss = ops.cross_entropy(logits, targets, label_smoothing=0.1)
    assert loss.item() == pytest.approx(-(wanted * p).sum() / 4, rel=1e-12)


def test_clipping_brings_the_common_norm_down_to_one():
    model, ids = Tagger(), RNG.integers(0, 11, (2, 5))
    (ops.cross_entropy(model(ids), ids) * 100.0).backward()
    before = [here(p.grad).copy() for p in model.parameters()]
    norm = float(optim.clip_grad_norm(model.parameters(), 1.0))
    assert norm == pytest.approx(math.sqrt(sum((g ** 2).sum() for g in before)), rel=1e-5) and norm > 1
    assert math.sqrt(sum((here(p.grad) ** 2).sum() for p in model.parameters())) == pytest.approx(1, rel=1e-5)
    for g, p in zip(before, model.parameters()):
        np.testing.assert_allclose(p.grad, g / norm, rtol=1e-5, atol=1e-9)
    kept = [p.grad.copy() for p in model.parameters()]
    optim.clip_grad_norm(model.parameters(), 2.0)                   # small enough already
    assert all((p.grad == g).all() for p, g in zip(model.parameters(), kept))


def test_decay_pulls_at_matrices_alone():
    model = Tagger()
    before = {name: value.copy() for name, value in model.state_dict().items()}
    opt = optim.AdamW(optim.decay_groups(model, 0.1), lr=0.5)
    for p in model.parameters():
        p.grad = mt.zeros(p.shape).data                             # nothing but decay moves anything
    opt.step()
    for name, p in model.named_parameters():
        decays = name == "embed.weight" or name.endswith("weight") and "norm" not in name
        np.testing.assert_allclose(p.data, before[name] * (0.95 if decays else 1.0), rtol=1e-6, err_msg=name)


def test_dropout_is_where_the_tutorial_has_it(monkeypatch):
    """On attention weights, in the feed-forward net, on what either adds, and on embeddings; in eval mode nowhere."""
    drawn, keep_mask = [], mt.backend.keep_mask
    monkeypatch.setattr(mt.backend, "keep_mask", lambda shape, *args: drawn.append(shape) or keep_mask(shape, *args))
    x = mt.randn(2, 5, 64)
    weights, vectors, inside = (2, 8, 5, 5), (2, 5, 64), (2, 5, 256)
    mha, block = nn.MultiHeadAttention(64, 8), nn.EncoderBlock(64, 8, 256)
    for layer, inputs, places in [
            (mha, (x, x, x), [weights]), (nn.FeedForward(64, 256), (x,), [inside]),
            (nn.PositionalEncoding(64), (x,), [vectors]), (block, (x,), [weights, vectors, inside, vectors]),
            (nn.PatchEmbed(8, 4, 1, 64), (mt.zeros(2, 1, 8, 8),), []), (nn.LayerNorm(64), (x,), []),
            (nn.Embedding(11, 64), (np.ones((2, 5), int),), [])]:
        assert {m.p for m in layer.modules() if isinstance(m, nn.Dropout)} <= {0.1}
        drawn.clear()
        layer(*inputs)
        assert drawn == places
        drawn.clear()
        layer.eval()
        np.testing.assert_array_equal(layer(*inputs).data, layer(*inputs).data)
        assert not drawn
