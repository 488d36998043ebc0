"""Values from outside: what PyTorch said about every case once, in float64, kept in tests/reference/ of the repository.

    ops.npz       NAME/LABEL/x0 ...  y0 ...  dy0 ...  dx0 ...    inputs, outputs, output gradients, input gradients
                  NAME/LABEL/call                                the rest of the call, as text
    layers.npz    NAME/x0 ...  y0 ...  dy0 ...  dx0 ...          the same of a layer
                  NAME/state/...  grad/...                       its parameters and their gradients, by our names

In each file `values` are all the numbers one after the other, in float64, and `index` is JSON: key -> [start, shape,
dtype], or the text itself; `versions` says what wrote it. tests/reference/write.py writes both. An installed package
has no tests beside it, and so no values.
"""
import functools
import json
import math
from pathlib import Path

import numpy as np

from minitx import models, nn, ops
from minitx.proof import opcheck
from minitx.proof.differences import is_float, random_like
from minitx.proof.opcheck import Result

TOLERANCE = 1e-10
FOLDER = Path(__file__).parents[2] / "tests" / "reference"


class StaleReference(ValueError):
    """The stored values belong to other inputs than the case has now."""


@functools.cache
def _file(name):
    """{key: array or text} of one file; None where the folder is not there. Nothing is ever unpickled."""
    path = FOLDER / name
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as file:
        values, found = file["values"], json.loads(str(file["index"]))
    for key, entry in found.items():
        if isinstance(entry, list):
            start, shape, dtype = entry
            found[key] = values[start:start + math.prod(shape)].reshape(shape).astype(dtype)
    return found


def save(path, found):
    """Write {key: array or text} so that _file reads it again."""
    index, rows = {}, []
    for key, entry in found.items():
        index[key] = entry
        if not isinstance(entry, str):
            index[key] = [sum(map(len, rows)), entry.shape, entry.dtype.name]
            rows.append(np.ravel(entry).astype(np.float64))
    np.savez_compressed(path, values=np.concatenate(rows), index=np.array(json.dumps(index)))


def versions():
    """What wrote the values, such as "torch 2.13.0, numpy 2.4.6"; None without them."""
    found = _file("ops.npz")
    return None if found is None else found["versions"]


def stored(case):
    """Result that PyTorch gave for a case with dys = random_like(outputs); None where there are no stored values.

    StaleReference if inputs, options or dys of the case are no longer those that PyTorch was given, or the case is new.
    """
    values = _file("ops.npz")
    if values is None:
        return None
    key, outputs = f"{case.op.name}/{case.label}/", []
    while f"{key}y{len(outputs)}" in values:
        outputs.append(values[f"{key}y{len(outputs)}"])
    dys = random_like(outputs)
    if not outputs or values[key + "call"] != called(case) or not all(
            np.array_equal(values[key + name], array) for name, array in given(case, dys).items()):
        raise StaleReference(f"{case.op.name}, case {case.label!r}: the stored values were made from other inputs, or "
                             "there are none yet; run tests/reference/write.py again, where PyTorch is installed")
    gradients = tuple(values[f"{key}dx{i}"] if is_float(x) else None for i, x in enumerate(case.inputs))
    return Result(tuple(outputs), gradients)


def given(case, dys):
    """{name: array} of the arrays that a case hands to both engines: x0, x1 ... and dy0 ..."""
    inputs = {f"x{i}": x for i, x in enumerate(case.inputs) if is_float(x)}
    return inputs | {f"dy{i}": dy for i, dy in enumerate(dys)}


def called(case):
    """The rest of the call as text: the shapes or numbers it gave, and its options, arrays by shape and values."""
    return repr(([x.shape if is_float(x) else x for x in case.inputs],
                 {name: _plain(case.options[name]) for name in sorted(case.options)}))


def _plain(value):
    if type(value) is tuple:
        return tuple(map(_plain, value))
    return (value.shape, value.tolist()) if isinstance(value, np.ndarray) else str(value)


def against(case):
    """The worst relative error, in values and gradients, between a case's op and what is stored; None without it."""
    theirs = stored(case)
    return None if theirs is None else opcheck.compare(opcheck.run_op(case.op, case.inputs, case.options), theirs)


# ---- layers ----------------------------------------------------------------------------------------------------------

LAYERS = {          # name -> a Module, and how it is called
    "linear": lambda: (nn.Linear(3, 4), {}),
    "layer_norm": lambda: (nn.LayerNorm(5), {}),
    "attention": lambda: (nn.MultiHeadAttention(6, 3, 0.0), dict(return_weights=True)),
    "attention, other widths": lambda: (nn.MultiHeadAttention(6, 2, 0.0, kdim=5, vdim=3), {}),
    "feed-forward": lambda: (nn.FeedForward(4, 7, 0.0), {}),
    "block, pre-norm": lambda: (nn.EncoderBlock(6, 2, 8, 0.0, True, activation="gelu"), {}),
    "block, post-norm": lambda: (nn.EncoderBlock(6, 3, 8, 0.0, False, activation="relu", eps=1e-3), {}),
    "block, causal": lambda: (nn.EncoderBlock(6, 2, 8, 0.0, True, activation="gelu_tanh"), dict(is_causal=True)),
    "gpt2": lambda: (models.GPT2(models.GPT2Config(
        vocab_size=11, n_positions=7, n_embd=6, n_layer=2, n_head=3, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0)), {}),
    "rms_norm": lambda: (nn.RMSNorm(5), {}),
    "feed-forward, gated": lambda: (nn.FeedForward(4, 7, 0.0, activation="silu", gated=True, bias=False), {}),
    "attention, grouped queries": lambda: (nn.MultiHeadAttention(8, 4, 0.0, num_kv_heads=2), dict(is_causal=True)),
    "attention, rotary": lambda: _rotary(nn.MultiHeadAttention(8, 2, 0.0), [0, 1, 2, 3]),
    "attention, rotary and grouped": lambda: _rotary(
        nn.MultiHeadAttention(8, 4, 0.0, num_kv_heads=2), [[0, 1, 2, 3], [0, 0, 4, 9]], base=500.0, interleaved=True),
    "relative positions": lambda: (nn.RelativePositionBias(2, 8, 12), dict(n_queries=9, n_keys=15)),
    "relative positions, one way": lambda: (
        nn.RelativePositionBias(3, 6, 12, bidirectional=False), dict(n_queries=16, n_keys=16)),
    "decoder block, pre-norm": lambda: (nn.DecoderBlock(6, 2, 8, 0.0, True), dict(is_causal=True)),
    "decoder block, post-norm": lambda: (
        nn.DecoderBlock(6, 3, 8, 0.0, False, activation="relu", eps=1e-3),
        dict(mask=nn.causal_mask(4), memory_mask=nn.padding_mask([2, 5], 5))),
    "encoder": lambda: (nn.Encoder(2, 6, 2, 8, 0.0, True, final_norm=False), dict(mask=nn.padding_mask([4, 3], 4))),
    "decoder": lambda: (nn.Decoder(2, 6, 2, 8, 0.0, True), dict(is_causal=True)),
    "transformer": lambda: (nn.Transformer(6, 2, 1, 2, 8, 0.0),
                            dict(src_mask=nn.padding_mask([3, 5], 5), is_causal=True)),
    "patch embed": lambda: (nn.PatchEmbed((4, 9), (2, 3), 2, 5), {}),
    "seq2seq": lambda: (models.Seq2Seq(models.Seq2SeqConfig(
        src_vocab_size=9, tgt_vocab_size=7, d_model=6, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, d_ff=8,
        dropout=0.0, max_len=5)), dict(attention_mask=np.array([[1, 1, 1, 0], [0, 1, 1, 1]]))),
}


def _rotary(attention, positions, **options):
    attention.rotate = functools.partial(ops.rope, **options)
    return attention, dict(positions=np.array(positions), is_causal=True)


def layer(name):
    """(module in float64 with the stored weights, options, the layer's arrays by name); None without stored values."""
    values = _file("layers.npz")
    if values is None:
        return None
    module, options = LAYERS[name]()
    mine = {key[len(name) + 1:]: array for key, array in values.items() if key.startswith(name + "/")}
    module.to(dtype=np.float64).load_state_dict(
        {key[len("state/"):]: array for key, array in mine.items() if key.startswith("state/")})
    return module, options, mine
