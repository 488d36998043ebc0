"""PyTorch's modules as ours and back: equal outputs and gradients, masks, what is kept, what is refused by name."""
import copy
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from double import here
from hypothesis import given, settings
from hypothesis import strategies as st

import minitx as mt
from minitx import models, nn, ops
from minitx.interop import from_torch, mask_from_torch, to_torch
from minitx.nn.vision import PatchProjection

torch = pytest.importorskip("torch")
t, F = torch.nn, torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:The PyTorch API of nested tensors")

# of outputs, and of gradients, some of which are all but zero by cancellation: then float32 keeps fewer digits
TOLERANCE = {np.float64: (1e-10, 1e-10), np.float32: (2e-5, 1e-4)}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: dtype.__name__)
BOTH_WAYS = pytest.mark.parametrize("way", ["from_torch", "to_torch"])


def close(ours, theirs, tol, name=""):
    ours, theirs = np.asarray(here(ours)), theirs.detach().numpy()
    assert ours.shape == theirs.shape, name
    scale = max(np.abs(theirs).max(initial=0), 1e-3)
    assert np.abs(ours - theirs).max(initial=0) <= tol * scale, name


def shuffle(module, rng):
    """In eval mode, with values away from the zeros and ones that modules start with, but outputs of order 1."""
    with torch.no_grad():
        for p in module.parameters():
            vector = len(p.shape) == 1
            values = rng.standard_normal(tuple(p.shape)) * (0.3 if vector else p.shape[-1] ** -0.5) + 0.7 * vector
            if isinstance(p, mt.Tensor):
                p.data[...] = mt.tensor(values).data
            else:
                p.copy_(torch.tensor(values))
    return module.eval()


def twins(way, theirs, ours, dtype, rng):
    """(ours, theirs), one made of the other: from_torch(theirs()) and theirs(), or ours() and to_torch(ours())."""
    if way == "from_torch":
        theirs = shuffle(theirs().to(torch.float64 if dtype is np.float64 else torch.float32), rng)
        return from_torch(theirs), theirs
    ours = shuffle(ours().to(dtype=dtype), rng)
    return ours, to_torch(ours)


def same_gradients(ours, theirs, tol):
    """Compares the gradients of all parameters, as PyTorch names and packs them."""
    for p in ours.parameters():
        p.data = mt.zeros(p.shape, dtype=p.dtype).data if p.grad is None else p.grad
    gradients = dict(to_torch(ours).named_parameters())
    for name, p in theirs.named_parameters():
        close(gradients.pop(name).detach(), torch.zeros_like(p) if p.grad is None else p.grad, tol, name)
    assert not gradients


# The layers and stacks, with every option

Kind = namedtuple("Kind", "theirs ours inputs")                     # inputs: the lengths of its sequences
LAYER = ("d_ff", "activation", "norm_first", "bias", "eps")


def their_options(o):
    return dict(dim_feedforward=o["d_ff"], activation=o["activation"], norm_first=o["norm_first"], bias=o["bias"],
                layer_norm_eps=o["eps"], batch_first=o["batch_first"])


def our_options(o):
    return dict(d_ff=o["d_ff"], norm_first=o["norm_first"], activation=o["activation"], eps=o["eps"], bias=o["bias"])


def their_encoder(o):
    norm = t.LayerNorm(o["C"], o["eps"], bias=o["bias"]) if o["final_norm"] else None
    return t.TransformerEncoder(t.TransformerEncoderLayer(o["C"], o["H"], **their_options(o)), o["layers"], norm)


def their_decoder(o):
    norm = t.LayerNorm(o["C"], o["eps"], bias=o["bias"]) if o["final_norm"] else None
    return t.TransformerDecoder(t.TransformerDecoderLayer(o["C"], o["H"], **their_options(o)), o["layers"], norm)


def their_transformer(o):
    """Whole, or of two stacks of its own kind."""
    if o["final_norm"]:
        return t.Transformer(o["C"], o["H"], o["layers"], 1, **their_options(o))
    return t.Transformer(o["C"], o["H"], custom_encoder=their_encoder(o), custom_decoder=their_decoder(o),
                         batch_first=o["batch_first"])


KINDS = {
    "MultiheadAttention": Kind(
        lambda o: t.MultiheadAttention(o["C"], o["H"], 0.1, bias=o["bias"], batch_first=o["batch_first"],
                                       kdim=o["kdim"], vdim=o["vdim"]),
        lambda o: nn.MultiHeadAttention(o["C"], o["H"], bias=o["bias"], kdim=o["kdim"], vdim=o["vdim"]), "TSS"),
    "TransformerEncoderLayer": Kind(
        lambda o: t.TransformerEncoderLayer(o["C"], o["H"], **their_options(o)),
        lambda o: nn.EncoderBlock(o["C"], o["H"], **our_options(o)), "T"),
    "TransformerEncoder": Kind(
        their_encoder,
        lambda o: nn.Encoder(o["layers"], o["C"], o["H"], **our_options(o), final_norm=o["final_norm"]), "T"),
    "TransformerDecoderLayer": Kind(
        lambda o: t.TransformerDecoderLayer(o["C"], o["H"], **their_options(o)),
        lambda o: nn.DecoderBlock(o["C"], o["H"], **our_options(o)), "TS"),
    "TransformerDecoder": Kind(
        their_decoder,
        lambda o: nn.Decoder(o["layers"], o["C"], o["H"], **our_options(o), final_norm=o["final_norm"]), "TS"),
    "Transformer": Kind(
        their_transformer,
        lambda o: nn.Transformer(o["C"], o["H"], o["layers"], 1, **our_options(o)), "ST"),
}


@st.composite
def options(draw):
    o = dict(B=draw(st.integers(1, 3)), T=draw(st.integers(1, 6)), S=draw(st.integers(1, 6)),
             H=draw(st.integers(1, 4)), layers=draw(st.integers(1, 2)), d_ff=draw(st.integers(2, 9)),
             eps=draw(st.sampled_from([1e-5, 1e-2])), activation=draw(st.sampled_from(["relu", "gelu"])),
             seed=draw(st.integers(0, 999)))
    for name in ("norm_first", "bias", "batch_first", "final_norm", "hint"):
        o[name] = draw(st.booleans())
    o["C"] = 4 * o["H"]
    o["kdim"], o["vdim"] = draw(st.sampled_from([(None, None), (5, None), (None, 7), (3, 7)]))
    o["attn_mask"] = draw(st.sampled_from(["none", "causal", "random", "per head"]))
    o["padded"], o["memory"] = draw(st.booleans()), draw(st.sampled_from(["none", "mask", "padding", "both"]))
    o["mask_dtype"] = draw(st.sampled_from(["bool", "-inf", "float"]))
    return o


def blocked(kind, padded, o, T, S, rng, mask_dtype, dtype):
    """PyTorch's (attn_mask, key_padding_mask) for T queries and S keys. No query is left without a key."""
    free = 0 if kind == "causal" else rng.integers(S)
    masks = [None, None]
    if kind == "causal":
        masks[0] = np.triu(np.ones((T, S), bool), 1)
    elif kind != "none":
        masks[0] = rng.random((o["B"] * o["H"], T, S) if kind == "per head" else (T, S)) < 0.4
    if padded:
        masks[1] = rng.random((o["B"], S)) < 0.4
    for i, mask in enumerate(masks):
        if mask is not None:
            mask[..., free] = False
            if mask_dtype != "bool":
                values = rng.standard_normal(mask.shape) if mask_dtype == "float" else np.zeros(mask.shape)
                mask = np.where(mask, -np.inf, values).astype(dtype)
            masks[i] = torch.tensor(mask)                           # floats in the dtype of the layer
    return masks


def calls(kind, o, rng, dtype):
    """What a layer of this kind is given beside its inputs: (options of ours, of theirs, padding of the queries)."""
    T, S = o["T"], o["S"]
    if kind == "MultiheadAttention":
        mask, padding = blocked(o["attn_mask"], o["padded"], o, T, S, rng, o["mask_dtype"], dtype)
        return (mask_from_torch(mask, padding, o["H"]),
                dict(attn_mask=mask, key_padding_mask=padding, need_weights=o["hint"]), None)
    mask_dtype = "-inf" if kind == "Transformer" and o["mask_dtype"] == "float" else o["mask_dtype"]
    mask, padding = blocked(o["attn_mask"], o["padded"], o, T, T, rng, mask_dtype, dtype)
    causal = o["attn_mask"] == "causal" and o["mask_dtype"] != "float"
    ours = mask_from_torch(None if causal and o["hint"] else mask, padding, o["H"])
    ours["is_causal"] = causal and o["hint"]                    # for PyTorch beside the mask, for us instead of it
    if "Encoder" in kind:
        name = "src_mask" if "Layer" in kind else "mask"
        return ours, {name: mask, "src_key_padding_mask": padding, "is_causal": ours["is_causal"]}, padding
    theirs = dict(tgt_mask=mask, tgt_key_padding_mask=padding, tgt_is_causal=ours["is_causal"])
    memory, memory_padding = blocked("random" if o["memory"] in ("mask", "both") else "none",
                                     o["memory"] in ("padding", "both"), o, T, S, rng, "bool", dtype)
    theirs.update(memory_mask=memory, memory_key_padding_mask=memory_padding)
    ours["memory_mask"] = mask_from_torch(memory, memory_padding).get("mask", np.ones((1, S), bool))
    if kind == "Transformer":
        source, source_padding = blocked("none", o["padded"], o, S, S, rng, "bool", dtype)
        theirs.update(src_mask=source, src_key_padding_mask=source_padding)
        ours["tgt_mask"] = ours.pop("mask", None)
        ours["src_mask"] = mask_from_torch(source, source_padding).get("mask")
    return ours, theirs, padding


@DTYPES
@BOTH_WAYS
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)
@given(o=options())
def test_layers_and_stacks_are_pytorchs(kind, way, dtype, o):
    """float32 is held against what PyTorch makes of the same numbers in float64: it rounds more than we do."""
    rng, (tol, of_gradients), build = np.random.default_rng(o["seed"]), TOLERANCE[dtype], KINDS[kind]
    ours, theirs = twins(way, lambda: build.theirs(o), lambda: build.ours(o), dtype, rng)
    theirs, batch_first = theirs.double(), o["batch_first"] or way == "to_torch"

    def turned(z):
        return z if batch_first else z.transpose(0, 1)

    widths = [o["C"], o["kdim"] or o["C"], o["vdim"] or o["C"]] if "TSS" == build.inputs else [o["C"]] * 3
    inputs = [rng.standard_normal((o["B"], o[n], width)).astype(dtype) for n, width in zip(build.inputs, widths)]
    xs = [mt.tensor(x, requires_grad=True) for x in inputs]
    zs = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in inputs]
    our_masks, their_masks, padding = calls(kind, o, rng, dtype)

    def call():
        z = theirs(*map(turned, zs), **their_masks)
        return turned(z[0] if isinstance(z, tuple) else z)

    for name, m in their_masks.items():
        if torch.is_tensor(m) and m.is_floating_point():
            their_masks[name] = m.double()
    y, z = ours(*xs, **our_masks), call()
    assert y.dtype == dtype
    close(y.data, z, tol)
    if o["mask_dtype"] != "float":                              # any number but 0 blocks there
        with torch.no_grad():                                   # PyTorch's fast path, which may leave padding out
            real = np.ones(y.shape[:2], bool) if padding is None or way == "to_torch" else padding.numpy() == 0
            close(y.numpy()[real], call()[torch.tensor(real)], tol)
    dy = rng.standard_normal(y.shape).astype(dtype)
    y.backward(dy)
    z.backward(torch.tensor(dy).double())
    for x, z in zip(xs, zs):
        close(x.grad, z.grad, of_gradients)
    same_gradients(ours, theirs, of_gradients)


def test_padding_is_no_nested_tensor_in_what_to_torch_makes():
    """Of itself PyTorch's fast path gives 0 at the end of a padded row."""
    rng = np.random.default_rng(0)
    ours = shuffle(nn.Encoder(2, 8, 2, 12, norm_first=False).to(dtype=np.float64), rng)
    x, padding = rng.standard_normal((2, 5, 8)), torch.tensor([[False] * 5, [False, False, False, True, True]])
    with torch.no_grad():
        z = to_torch(ours)(torch.tensor(x), src_key_padding_mask=padding)
    close(ours(x, **mask_from_torch(None, padding)).data, z, 1e-10)


# The small ones

IMAGE, VECTORS = (2, 3, 8, 6), (2, 5, 8)
SMALL = {
    "linear": (lambda: t.Linear(8, 5), lambda: nn.Linear(8, 5), VECTORS),
    "linear without bias": (lambda: t.Linear(8, 5, bias=False), lambda: nn.Linear(8, 5, bias=False), VECTORS),
    "embedding": (lambda: t.Embedding(7, 4), lambda: nn.Embedding(7, 4), int),
    "embedding with padding": (lambda: t.Embedding(7, 4, padding_idx=-2), lambda: nn.Embedding(7, 4, -2), int),
    "layer norm": (lambda: t.LayerNorm(8, 1e-3), lambda: nn.LayerNorm(8, 1e-3), VECTORS),
    "layer norm without bias": (lambda: t.LayerNorm(8, bias=False), lambda: nn.LayerNorm(8, bias=False), VECTORS),
    "rms norm": (lambda: t.RMSNorm(8, 1e-3), lambda: nn.RMSNorm(8, 1e-3), VECTORS),
    "dropout": (lambda: t.Dropout(0.3), lambda: nn.Dropout(0.3), VECTORS),
    "gelu": (t.GELU, nn.GELU, VECTORS),
    "gelu, tanh": (lambda: t.GELU("tanh"), lambda: nn.GELU("tanh"), VECTORS),
    "relu": (t.ReLU, nn.ReLU, VECTORS),
    "silu": (t.SiLU, nn.SiLU, VECTORS),
    "tanh": (t.Tanh, nn.Tanh, VECTORS),
    "patches": (lambda: t.Conv2d(3, 5, (4, 2), (4, 2)), lambda: PatchProjection(3, 5, (4, 2)), IMAGE),
    "patch embedding": (lambda: t.Conv2d(3, 5, 2, 2, padding="valid"), lambda: nn.PatchEmbed((8, 6), 2, 3, 5), IMAGE),
    "sequential": (lambda: t.Sequential(t.Linear(8, 3), t.Sequential(t.SiLU()), t.Linear(3, 8), t.Tanh()),
                   lambda: nn.Sequential(nn.Linear(8, 3), nn.Sequential(nn.SiLU()), nn.Linear(3, 8), nn.Tanh()),
                   VECTORS),
}
OURS_LEAVES_OUT = {
    "layer norm without weights": (lambda: t.LayerNorm(8, elementwise_affine=False), VECTORS),
    "rms norm without weights": (lambda: t.RMSNorm(8, 1e-3, elementwise_affine=False), VECTORS),
    "rms norm with the eps of its dtype": (lambda: t.RMSNorm(8), VECTORS),
    "patches without bias": (lambda: t.Conv2d(3, 5, 2, 2, bias=False), IMAGE),
}


def compare(ours, theirs, shape, dtype, rng, scale=1.0):
    tol, of_gradients = TOLERANCE[dtype]
    if shape is int:
        ids = rng.integers(0, 7, (2, 9))
        y, z = ours(ids), theirs(torch.tensor(ids))
    else:
        x = mt.tensor((rng.standard_normal(shape) * scale).astype(dtype), requires_grad=True)
        w = torch.tensor(x.numpy(), requires_grad=True)
        y, z = ours(x), theirs(w)
        z = z.flatten(2).transpose(1, 2) if shape is IMAGE else z
    assert y.dtype == dtype
    close(y.data, z, tol)
    dy = rng.standard_normal(y.shape).astype(dtype)
    y.backward(dy)
    z.backward(torch.tensor(dy))
    if shape is not int:
        close(x.grad, w.grad, of_gradients)
    same_gradients(ours, theirs, of_gradients)


@DTYPES
@BOTH_WAYS
@pytest.mark.parametrize("name", SMALL)
def test_small_modules_are_pytorchs(name, way, dtype):
    theirs, ours, shape = SMALL[name]
    rng = np.random.default_rng(0)
    ours, theirs = twins(way, theirs, ours, dtype, rng)
    compare(ours, theirs, shape, dtype, rng)


@DTYPES
@pytest.mark.parametrize("name", OURS_LEAVES_OUT)
def test_what_only_pytorchs_can_leave_out_is_left_out(name, dtype):
    theirs, shape = OURS_LEAVES_OUT[name]
    rng = np.random.default_rng(0)
    ours, theirs = twins("from_torch", theirs, None, dtype, rng)
    compare(ours, theirs, shape, dtype, rng, scale=1e-4 if "eps" in name else 1.0)          # so small that eps counts
    assert len(list(to_torch(ours).parameters())) == len(list(theirs.parameters()))


ACTIVATIONS = {
    "relu": F.relu, "torch.relu": torch.relu, "gelu": F.gelu, "silu": F.silu, "tanh": F.tanh,
    "torch.tanh": torch.tanh, "ReLU": t.ReLU(), "GELU": t.GELU(), "GELU, tanh": t.GELU("tanh"), "SiLU": t.SiLU(),
    "Tanh": t.Tanh()}


@BOTH_WAYS
@pytest.mark.parametrize("layer", [t.TransformerEncoderLayer, t.TransformerDecoderLayer])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name, layer, way):
    rng = np.random.default_rng(0)
    theirs = shuffle(layer(8, 2, 12, activation=ACTIVATIONS[name], batch_first=True, dtype=torch.float64), rng)
    ours = from_torch(theirs)
    theirs = theirs if way == "from_torch" else to_torch(ours)
    x = rng.standard_normal((2, 5, 8))
    inputs = [x] * (1 + (layer is t.TransformerDecoderLayer))
    y, z = ours(*inputs), theirs(*map(torch.tensor, inputs))
    close(y.data, z, 1e-10)
    if name != "GELU, tanh" or way == "to_torch":               # PyTorch's own fast path takes any GELU for the exact
        with torch.no_grad():
            close(y.data, theirs(*map(torch.tensor, inputs)), 1e-10)


# Masks

def test_bool_masks_are_inverted_and_combined():
    causal = torch.ones(4, 4, dtype=torch.bool).triu(1)
    padding = torch.tensor([[False, False, True, True], [False] * 4])
    assert mask_from_torch() == {}
    assert list(mask_from_torch(causal)) == ["mask"]
    np.testing.assert_array_equal(mask_from_torch(causal)["mask"], nn.causal_mask(4))
    np.testing.assert_array_equal(mask_from_torch(None, padding)["mask"], nn.padding_mask([2, 4], 4))
    both = nn.causal_mask(4) & nn.padding_mask([2, 4], 4)
    np.testing.assert_array_equal(mask_from_torch(causal, padding)["mask"], both)
    per_head = torch.tensor(np.random.default_rng(0).random((6, 4, 4)) < 0.5)           # B 2, H 3
    found = mask_from_torch(per_head, num_heads=3)["mask"]
    assert found.shape == (2, 3, 4, 4) and found[1, 2, 0, 3] == (not per_head[5, 0, 3])
    found = mask_from_torch(per_head, padding, 3)["mask"]
    np.testing.assert_array_equal(found, ~per_head.numpy().reshape(2, 3, 4, 4) & nn.padding_mask([2, 4], 4)[:, None])
    assert mask_from_torch(per_head[:2], num_heads=1)["mask"].shape == (2, 4, 4)
    assert mask_from_torch(torch.zeros(3, 4, dtype=torch.bool))["mask"].all()       # stays, though it blocks nothing


def test_float_masks_become_a_bias_and_their_infinities_a_mask():
    causal = t.Transformer.generate_square_subsequent_mask(4)
    assert list(mask_from_torch(causal)) == ["mask"]
    np.testing.assert_array_equal(mask_from_torch(causal)["mask"], nn.causal_mask(4))
    found = mask_from_torch(torch.tensor([[0.5, -1.0], [-np.inf, 0.0]], dtype=torch.float64))
    np.testing.assert_array_equal(found["mask"], [[True, True], [False, True]])
    np.testing.assert_array_equal(found["bias"], [[0.5, -1.0], [0.0, 0.0]])
    assert found["bias"].dtype == np.float64
    assert mask_from_torch(torch.zeros(3, 4)) == {}
    assert list(mask_from_torch(torch.full((3, 4), -1e9))) == ["bias"]
    found = mask_from_torch(causal, torch.tensor([[0.0, 0.0, 2.0, -np.inf]] * 2))
    assert found["mask"].shape == (2, 4, 4) and found["bias"].shape == (2, 1, 1, 4)
    assert found["bias"].dtype == np.float32
    mixed = mask_from_torch(causal, torch.tensor([[False, False, True, True]]))
    np.testing.assert_array_equal(mixed["mask"], nn.causal_mask(4) & nn.padding_mask([2], 4))
    assert "bias" not in mixed
    assert mask_from_torch(nn.causal_mask(3), num_heads=9)["mask"].shape == (3, 3)      # an array will do


def test_masks_without_a_batch_axis():
    theirs = t.MultiheadAttention(8, 2, dtype=torch.float64)
    ours, x = from_torch(theirs), np.random.default_rng(0).standard_normal((5, 8))
    padding, z = torch.tensor([False, False, True, False, True]), torch.tensor(x)
    for mask in padding, torch.where(padding, -torch.inf, 0.5).double():
        close(ours(x, x, x, **mask_from_torch(None, mask)).data, theirs(z, z, z, key_padding_mask=mask)[0], 1e-10)


def test_masks_that_make_no_sense():
    with pytest.raises(ValueError, match=r"\(6, 4, 4\).*num_heads.*None"):
        mask_from_torch(torch.zeros(6, 4, 4))
    with pytest.raises(ValueError, match="divide 6, got 4"):
        mask_from_torch(torch.zeros(6, 4, 4), num_heads=4)
    with pytest.raises(TypeError, match="int64"):
        mask_from_torch(torch.zeros(4, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match="bfloat16"):
        mask_from_torch(torch.zeros(4, 4, dtype=torch.bfloat16))


def test_is_causal_beside_the_causal_mask():
    """PyTorch's hint needs the mask; ours is the mask. Alone or together they say the same."""
    rng = np.random.default_rng(0)
    theirs = shuffle(t.TransformerEncoderLayer(8, 2, 12, batch_first=True, dtype=torch.float64), rng)
    ours, x = from_torch(theirs), rng.standard_normal((2, 5, 8))
    infinite = t.Transformer.generate_square_subsequent_mask(5).double()
    for causal in torch.ones(5, 5, dtype=torch.bool).triu(1), infinite:
        z = theirs(torch.tensor(x), src_mask=causal, is_causal=True)
        for call in mask_from_torch(causal), {"is_causal": True}, {**mask_from_torch(causal), "is_causal": True}:
            close(ours(x, **call).data, z, 1e-10)


@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.float64])
def test_a_row_that_may_see_nothing_is_zero_here(mask_dtype):
    rng = np.random.default_rng(0)
    theirs = shuffle(t.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64), rng)
    ours = from_torch(theirs)
    blocked = torch.tensor(rng.random((4, 5)) < 0.3)
    blocked[:, 1] = False
    blocked[2] = True
    mask = blocked if mask_dtype is torch.bool else torch.where(blocked, -torch.inf, 0.25).double()
    q, k = rng.standard_normal((2, 4, 8)), rng.standard_normal((2, 5, 8))
    x = mt.tensor(q, requires_grad=True)
    y, weights = ours(x, k, k, **mask_from_torch(mask), return_weights=True)
    z, their_weights = theirs(*map(torch.tensor, (q, k, k)), attn_mask=mask, average_attn_weights=False)
    rows = [0, 1, 3]
    close(y.numpy()[:, rows], z[:, rows], 1e-10)
    close(weights.numpy()[:, :, rows], their_weights[:, :, rows], 1e-10)
    assert their_weights[:, :, 2].isnan().all() and (weights.data[:, :, 2] == 0).all()
    np.testing.assert_array_equal(y.data[:, 2], np.broadcast_to(ours.w_o.bias.numpy(), (2, 8)))
    y.backward(rng.standard_normal(y.shape))
    assert (here(x.grad)[:, 2] == 0).all() and (here(x.grad)[:, rows] != 0).any()


# What is kept

def everything():
    """Of every kind one, all in PyTorch."""
    o = dict(C=8, H=2, d_ff=12, activation="gelu", norm_first=True, bias=True, eps=1e-5, batch_first=True, layers=2,
             final_norm=True, kdim=None, vdim=None)
    modules = [kind.theirs(o) for kind in KINDS.values()] + [build() for build, _, _ in SMALL.values()]
    return t.ModuleList(modules)


def test_modes_are_kept_module_by_module():
    theirs = everything()
    for mode in True, False:
        ours = from_torch(theirs.train(mode))
        assert {m.training for m in ours.modules()} == {m.training for m in to_torch(ours).modules()} == {mode}
    theirs = t.Sequential(t.TransformerEncoderLayer(8, 2, 12), t.Dropout(0.5))
    theirs[0].eval()
    theirs[0].dropout.train()
    theirs[0].linear1.train()
    ours = from_torch(theirs)
    kept = {name for name, m in ours.named_modules() if m.training}
    assert kept == {"", "1", "0.ff.net.0", "0.ff.net.2"}
    assert {name for name, m in to_torch(ours).named_modules() if m.training} == {"", "1", "0.dropout", "0.linear1"}


def test_dropout_rates_are_kept_where_they_act():
    theirs = t.TransformerDecoderLayer(8, 2, 12)
    rates = dict(dropout=0.1, dropout1=0.2, dropout2=0.2, dropout3=0.2)
    for name, p in rates.items():
        getattr(theirs, name).p = p
    theirs.self_attn.dropout, theirs.multihead_attn.dropout = 0.3, 0.4
    ours = from_torch(theirs)
    assert {name: m.p for name, m in ours.named_modules() if isinstance(m, nn.Dropout)} == {
        "attn.dropout": 0.3, "cross_attn.dropout": 0.4, "ff.net.2": 0.1, "dropout": 0.2}
    back = to_torch(ours)
    assert {name: m.p for name, m in back.named_modules() if isinstance(m, t.Dropout)} == rates
    assert (back.self_attn.dropout, back.multihead_attn.dropout) == (0.3, 0.4)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_values_and_dtypes_are_kept_there_and_back_bit_for_bit(dtype):
    theirs = everything().to(getattr(torch, dtype))
    ours = from_torch(theirs)
    assert {p.dtype for p in ours.parameters()} == {np.dtype(dtype)}
    back = to_torch(ours)
    ours_again = from_torch(back).state_dict()
    assert list(back.state_dict()) == list(theirs.state_dict()) and list(ours_again) == list(ours.state_dict())
    for name, value in back.state_dict().items():
        assert value.dtype == theirs.state_dict()[name].dtype and value.device.type == "cpu"
        assert torch.equal(value, theirs.state_dict()[name])
    for name, value in ours.state_dict().items():
        np.testing.assert_array_equal(value, ours_again[name])


def test_names_and_repr_are_those_of_a_module_made_here():
    o = dict(C=8, H=2, d_ff=12, activation="relu", norm_first=False, bias=True, eps=1e-3, batch_first=True, layers=2,
             final_norm=True, kdim=3, vdim=5)
    for kind in KINDS.values():
        made, converted = kind.ours(o), from_torch(kind.theirs(o))
        assert list(made.state_dict()) == list(converted.state_dict())
        assert repr(made) == repr(converted)
        assert {name: p.shape for name, p in made.named_parameters()} == {
            name: p.shape for name, p in converted.named_parameters()}
    for theirs, ours, _ in SMALL.values():
        made = ours()
        assert repr(getattr(made, "proj", made)).replace("idx=-2", "idx=5") == repr(from_torch(theirs()))
        assert repr(to_torch(made)) == repr(theirs()).replace(", padding=valid", "")
    for name, (theirs, _) in OURS_LEAVES_OUT.items():
        if "eps" not in name:
            assert repr(to_torch(from_torch(theirs()))) == repr(theirs())


def test_no_memory_is_shared_and_nothing_is_changed():
    theirs = everything()
    before = {name: value.clone() for name, value in theirs.state_dict().items()}
    ours = from_torch(theirs)
    copies = {name: value.copy() for name, value in ours.state_dict().items()}
    back = to_torch(ours)
    for p in back.parameters():
        p.data.add_(1)
    for name, value in ours.state_dict().items():
        np.testing.assert_array_equal(value, copies[name])
        assert value.flags.owndata and value.flags.c_contiguous
        value += 1
    for name, value in theirs.state_dict().items():
        assert torch.equal(value, before[name])


def test_no_random_number_is_drawn():
    theirs = everything()
    mt.manual_seed(3)
    expected = mt.rand(4).data
    mt.manual_seed(3)
    state = torch.get_rng_state()
    to_torch(from_torch(theirs))
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(mt.rand(4).data, expected)


def test_ties_are_kept():
    theirs = t.Sequential(t.Embedding(7, 8), t.TransformerEncoderLayer(8, 2, 12), t.TransformerEncoderLayer(8, 2, 12),
                          t.Linear(8, 7))
    theirs[3].weight = theirs[0].weight
    theirs[2].self_attn.in_proj_weight = theirs[1].self_attn.in_proj_weight
    theirs.append(theirs[1])                                            # a whole module twice
    ours = from_torch(theirs)
    assert ours[3].weight is ours[0].weight and ours[4] is ours[1] and ours[2] is not ours[1]
    for w in "w_q", "w_k", "w_v":
        assert getattr(ours[1].attn, w).weight is getattr(ours[2].attn, w).weight
    assert ours[1].attn.w_q.weight is not ours[1].attn.w_k.weight
    assert ours[1].attn.w_q.bias is not ours[2].attn.w_q.bias
    back = to_torch(ours)
    assert back[3].weight is back[0].weight and back[4] is back[1]
    assert back[1].self_attn.in_proj_weight is back[2].self_attn.in_proj_weight
    assert back[1].self_attn.in_proj_bias is not back[2].self_attn.in_proj_bias
    assert len(list(back.parameters())) == len(list(theirs.parameters()))


def test_frozen_parameters_stay_frozen():
    theirs = t.TransformerEncoderLayer(8, 2, 12)
    theirs.self_attn.in_proj_weight.requires_grad_(False)
    theirs.norm1.bias.requires_grad_(False)
    ours = from_torch(theirs)
    frozen = {name for name, p in ours.named_parameters() if not p.requires_grad}
    assert frozen == {"attn.w_q.weight", "attn.w_k.weight", "attn.w_v.weight", "norm1.bias"}
    frozen = {name for name, p in to_torch(ours).named_parameters() if not p.requires_grad}
    assert frozen == {"self_attn.in_proj_weight", "norm1.bias"}


def test_to_torch_gives_modules_to_train_with():
    """Under dropout, in a step of PyTorch's own optimiser, and copied: nothing is left without values."""
    model = to_torch(nn.Transformer(8, 2, 1, 1, 12))
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(2, 5, 8)
    before = model(x, x).square().mean()
    before.backward()
    optimiser.step()
    assert all(p.grad is not None and p.device.type == "cpu" for p in model.parameters())
    assert model.d_model == 8 and model.nhead == 2 and model.batch_first and model.encoder.num_layers == 1
    twin = copy.deepcopy(model).eval()
    assert torch.equal(twin(x, x), model.eval()(x, x))


# What is refused, by name

class Doubled(t.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Other(nn.EncoderBlock):
    pass


def changed(module, **attributes):
    for path, value in attributes.items():
        *owners, name = path.split("__")
        owner = module
        for part in owners:
            owner = owner[int(part)] if part.isdecimal() else getattr(owner, part)
        setattr(owner, name, value)
    return module


def hooked():
    module = t.Linear(2, 2)
    module.register_forward_hook(lambda module, inputs, output: 2 * output)
    return module


def hooked_within():
    module = encoder_layer()
    module.dropout2.register_forward_pre_hook(lambda module, inputs: None)
    return module


def tied_in_two_forms():
    module = t.ModuleList([t.MultiheadAttention(4, 2), t.Linear(4, 12)])
    module[1].weight = module[0].in_proj_weight
    return module


def encoder_layer(**options):
    return t.TransformerEncoderLayer(8, 2, 12, **options)


FROM = {
    "add_bias_kv": lambda: t.MultiheadAttention(8, 2, add_bias_kv=True),
    "add_zero_attn": lambda: t.MultiheadAttention(8, 2, add_zero_attn=True),
    "max_norm": lambda: t.Embedding(7, 4, max_norm=1.0),
    "scale_grad_by_freq": lambda: t.Embedding(7, 4, scale_grad_by_freq=True),
    "sparse": lambda: t.Embedding(7, 4, sparse=True),
    "LayerNorm: normalized_shape": lambda: t.LayerNorm((3, 4)),
    "RMSNorm: normalized_shape": lambda: t.RMSNorm((3, 4)),
    "eps=None": lambda: t.RMSNorm(4, elementwise_affine=False),
    r"stride=\(1, 1\)": lambda: t.Conv2d(3, 4, 2),
    r"padding=\(1, 1\)": lambda: t.Conv2d(3, 4, 2, 2, padding=1),
    r"dilation=\(2, 2\)": lambda: t.Conv2d(3, 4, 2, 2, dilation=2),
    "groups=2": lambda: t.Conv2d(4, 4, 2, 2, groups=2),
    "padding_mode='reflect'": lambda: t.Conv2d(3, 4, 2, 2, padding_mode="reflect"),
    "Sequential.*Conv2d": lambda: t.Sequential(t.Conv2d(3, 4, 2, 2), t.LayerNorm(4)),
    "activation=<function.*relu, gelu, silu and tanh": lambda: encoder_layer(activation=lambda x: x),
    "LeakyReLU": lambda: encoder_layer(activation=t.LeakyReLU()),
    "dropout1=0.1, dropout2=0.4 ": lambda: changed(encoder_layer(), dropout2__p=0.4),
    "dropout3": lambda: changed(t.TransformerDecoderLayer(8, 2, 12), dropout3__training=False),
    "batch_first": lambda: t.Sequential(encoder_layer(), encoder_layer(batch_first=True)),
    "layer of TransformerEncoder must be": lambda: t.TransformerEncoder(t.TransformerDecoderLayer(8, 2, 12), 1),
    "custom_encoder": lambda: t.Transformer(8, 2, custom_encoder=t.Linear(8, 8)),
    "custom_decoder": lambda: t.Transformer(8, 2, 1, 1, custom_decoder=t.Linear(8, 8)),
    "attention of a layer must be": lambda: changed(encoder_layer(), self_attn=t.Linear(8, 8)),
    "Doubled": lambda: t.Sequential(Doubled(2, 2)),
    "GRU: no counterpart.*Linear, Embedding": lambda: t.GRU(4, 4),
    "forward_hooks": hooked,
    "Dropout: it has forward_pre_hooks": hooked_within,
    "forward of its own": lambda: changed(t.Linear(2, 2), forward=lambda x: x),
    "no place for extra": lambda: changed(t.Linear(2, 2), extra=t.Parameter(torch.ones(2))),
    "tied, but would be packed": tied_in_two_forms,
    "bfloat16.*float": lambda: t.Linear(2, 2, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("message", FROM)
def test_from_torch_refuses(message):
    with pytest.raises(ValueError, match=message):
        from_torch(FROM[message]())


def block(**attributes):
    return changed(nn.EncoderBlock(8, 2, 12), **attributes)


def attention(*arguments, **attributes):
    return changed(nn.MultiHeadAttention(8, 2), **attributes)


def half_tied():
    module = nn.ModuleList([nn.MultiHeadAttention(8, 2), nn.MultiHeadAttention(8, 2)])
    module[1].w_q.weight = module[0].w_q.weight
    return module


def tied_inside():
    module = nn.MultiHeadAttention(8, 2)
    module.w_k = module.w_q
    return module


TO = {
    "num_kv_heads=1 ": lambda: nn.MultiHeadAttention(8, 2, num_kv_heads=1),
    "d_k=3 ": lambda: nn.MultiHeadAttention(8, 2, d_k=3),
    "d_k=2 ": lambda: nn.MultiHeadAttention(7, 3, d_k=2),
    "attend=": lambda: attention(attend=lambda q, k, v, mask, **options: v),
    "rotate=": lambda: attention(rotate=ops.rope),
    "training": lambda: attention(dropout__training=False),
    "MultiHeadAttention: biases": lambda: attention(w_o=nn.Linear(8, 8, bias=False)),
    "projection.*must be just Linear": lambda: attention(w_v=nn.Sequential(nn.Linear(8, 8))),
    "frozen together": lambda: attention(w_k__weight=nn.Parameter(np.ones((8, 8), np.float32), requires_grad=False)),
    "one dtype": lambda: attention(w_k__weight=nn.Parameter(np.ones((8, 8)))),
    "not be tied": tied_inside,
    "tied, but would be packed": half_tied,
    "gated": lambda: block(ff=nn.FeedForward(8, 12, gated=True)),
    "EncoderBlock: biases": lambda: block(norm1=nn.LayerNorm(8, bias=False)),
    "or weights": lambda: block(norm1__weight=None),
    "norm of a block must be just LayerNorm, got RMSNorm": lambda: block(norm2=nn.RMSNorm(8)),
    "net of a block": lambda: block(ff=nn.Linear(8, 8)),
    "Linear, activation, Dropout, Linear": lambda: block(ff__net=nn.Sequential(nn.Linear(8, 8))),
    "last layer of a net": lambda: block(ff__net=nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0), nn.ReLU())),
    "dropout of a block": lambda: block(dropout=nn.ReLU()),
    "attention of a block": lambda: block(attn=nn.Linear(8, 8)),
    "Other: no counterpart.*Linear, Embedding": lambda: Other(8, 2, 12),
    "layer of Encoder must be just EncoderBlock, got Other": lambda: changed(
        nn.Encoder(1, 8, 2, 12), layers=nn.ModuleList([Other(8, 2, 12)])),
    "without layers": lambda: nn.Encoder(0, 8, 2, 12),
    "encoder of a Transformer": lambda: changed(nn.Transformer(8, 2, 1, 1, 12), encoder=nn.Linear(8, 8)),
    "decoder of a Transformer": lambda: changed(nn.Transformer(8, 2, 1, 1, 12), decoder=nn.Linear(8, 8)),
    "Sequential.*Conv2d": lambda: nn.Sequential(nn.PatchEmbed(4, 2, 3, 8), nn.LayerNorm(8)),
    "ClassToken": lambda: nn.ClassToken(8),
    "GPT2": lambda: models.GPT2(models.GPT2Config(7, 5, 8, 1, 2)),
    "forward of its own": lambda: changed(nn.Linear(2, 2), forward=lambda x: x),
    "no place for extra": lambda: changed(nn.Linear(2, 2), extra=nn.Parameter([1.0])),
}


@pytest.mark.parametrize("message", TO)
def test_to_torch_refuses(message):
    with pytest.raises(ValueError, match=message):
        to_torch(TO[message]())


def test_wrong_kinds():
    with pytest.raises(TypeError, match="from_torch: needs a Module of torch, got Linear"):
        from_torch(nn.Linear(2, 2))
    with pytest.raises(TypeError, match="to_torch: needs a Module of minitx, got Linear"):
        to_torch(t.Linear(2, 2))


def test_pytorch_loads_when_it_is_needed_and_is_named_when_it_is_missing():
    code = """
import sys
import minitx as mt
assert "minitx.interop" not in sys.modules
mt.interop.mask_from_torch
assert "torch" not in sys.modules
sys.modules["torch"] = None
try:
    mt.interop.to_torch(mt.nn.Linear(2, 2))
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=Path(__file__).parents[1],
                          capture_output=True, text=True, encoding="utf-8")
    assert "pip install torch" in done.stdout, done.stderr
