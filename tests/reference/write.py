"""Writes ops.npz and layers.npz beside this file: what PyTorch says, in float64, about every case and some layers.

    python tests/reference/write.py         needs PyTorch, and minitx on the path

To be run again when a case is added or changed; reference.py says which are stale. The files stay under 1 MB together.
"""
import math
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from minitx.proof import reference, torch_twins
from minitx.proof.cases import Draw, cases, edges
from minitx.proof.differences import random_like
from minitx.proof.opcheck import forward

HERE = Path(__file__).parent
VERSIONS = f"torch {torch.__version__}, numpy {np.__version__}"


def write_ops():
    values = {"versions": VERSIONS}
    for found in (cases(), edges()):
        for name, several in found.items():
            for case in several:
                key = f"{name}/{case.label}/"
                if key + "call" in values:
                    raise SystemExit(f"{name} has two cases named {case.label!r}")
                dys = random_like(forward(case.op, case.inputs, case.options)[1])
                theirs = torch_twins.through_torch(torch_twins.TORCH[name], case.inputs, case.options, dys)
                values[key + "call"] = reference.called(case)
                values.update({key + part: array for part, array in reference.given(case, dys).items()})
                values.update({f"{key}y{i}": y for i, y in enumerate(theirs.outputs)})
                values.update({f"{key}dx{i}": dx for i, dx in enumerate(theirs.gradients) if dx is not None})
    reference.save(HERE / "ops.npz", values)


# ---- layers, written in PyTorch's functions; the weights have the names of our state_dict ----------------------------

def attention(w, q, k, v, heads, causal=False):
    """(out, weights) of PyTorch's own multi-head attention."""
    return F.multi_head_attention_forward(
        *(x.transpose(0, 1) for x in (q, k, v)), q.shape[-1], heads, None,
        torch.cat([w["w_q.bias"], w["w_k.bias"], w["w_v.bias"]]), None, None, False, 0.0,
        w["w_o.weight"], w["w_o.bias"], need_weights=True, average_attn_weights=False, is_causal=causal,
        use_separate_proj_weight=True, q_proj_weight=w["w_q.weight"], k_proj_weight=w["w_k.weight"],
        v_proj_weight=w["w_v.weight"],
        attn_mask=torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).triu(1) if causal else None)


def attend(w, q, k, v, heads, causal=False):
    out, weights = attention(w, q, k, v, heads, causal)
    return out.transpose(0, 1), weights


def feed_forward(w, x, activation):
    return F.linear(activation(F.linear(x, w["net.0.weight"], w["net.0.bias"])), w["net.3.weight"], w["net.3.bias"])


def block(w, x, heads, activation, norm_first=True, causal=False, eps=1e-5):
    def norm(name, x):
        return F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], eps)

    a = norm("norm1", x) if norm_first else x
    x = x + attend(inside(w, "attn."), a, a, a, heads, causal)[0]
    x = x if norm_first else norm("norm1", x)
    x = x + feed_forward(inside(w, "ff."), norm("norm2", x) if norm_first else x, activation)
    return x if norm_first else norm("norm2", x)


def gelu_tanh(x):
    return F.gelu(x, approximate="tanh")


def gpt2(w, ids):
    x = w["wte.weight"][ids] + w["wpe.weight"][:ids.shape[1]]
    for i in range(2):
        x = block(inside(w, f"h.{i}."), x, 3, gelu_tanh, causal=True)
    return F.layer_norm(x, x.shape[-1:], w["ln_f.weight"], w["ln_f.bias"], 1e-5) @ w["wte.weight"].T


def inside(w, prefix):
    return {name[len(prefix):]: x for name, x in w.items() if name.startswith(prefix)}


def gated(w, x):
    return F.linear(F.silu(F.linear(x, w["gate.weight"])) * F.linear(x, w["net.0.weight"]), w["net.3.weight"])


def causal_attention(w, q, k, v, K, turn=None):
    """Heads K wide, fewer of them for keys and values; turn takes queries and keys (B, H, T, K) to their places."""
    q, k, v = (F.linear(x, w[f"w_{name}.weight"], w[f"w_{name}.bias"]).unflatten(-1, (-1, K)).transpose(1, 2)
               for name, x in zip("qkv", (q, k, v)))
    q, k = (q, k) if turn is None else (turn(q), turn(k))
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return F.linear(o.transpose(1, 2).flatten(2), w["w_o.weight"], w["w_o.bias"])


def turned(x, positions, base=10000.0, interleaved=False):
    """Pairs as complex numbers, multiplied by e^(i angle): x (B, H, T, K), positions (B, 1, T)."""
    K = x.shape[-1]
    rates = torch.tensor([base ** (-2 * i / K) for i in range(K // 2)], dtype=torch.float64)
    angle = torch.tensor(positions)[..., None] * rates
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    y = torch.complex(a, b) * torch.polar(torch.ones_like(angle), angle)
    return torch.stack([y.real, y.imag], -1).flatten(-2) if interleaved else torch.cat([y.real, y.imag], -1)


def relative(w, n_queries, n_keys, num_buckets, max_distance, bidirectional):
    """One distance at a time, the steps that grow with the logarithm found by comparing powers of whole numbers."""
    def bucket(distance):                                   # key minus query
        n, start = num_buckets, 0
        if bidirectional:
            n, start = n // 2, n // 2 if distance > 0 else 0
        far = abs(distance) if bidirectional else max(-distance, 0)
        exact = n // 2
        if far < exact:
            return start + far
        step = 0                # the largest with (far / exact)^(n - exact) >= (max_distance / exact)^step
        while step < n - exact - 1 and far ** (n - exact) * exact ** (step + 1) >= max_distance ** (step + 1) * exact ** (
                n - exact):
            step += 1
        return start + exact + step

    queries = range(n_keys - n_queries, n_keys)
    buckets = torch.tensor([[bucket(key - query) for key in range(n_keys)] for query in queries])
    return w["weight"][buckets].permute(2, 0, 1)[None]


PYTORCHS = [("cross_attn.w_o", "multihead_attn.out_proj"), ("cross_attn", "multihead_attn"),
            ("attn.w_o", "self_attn.out_proj"), ("attn", "self_attn"), ("ff.net.0", "linear1"), ("ff.net.3", "linear2")]


def run(module, w, *inputs, **options):
    """A module of PyTorch's own with our weights: its names, and queries, keys and values as one matrix."""
    state = {}
    for name, x in w.items():
        *path, layer, kind = name.split(".")
        if layer in ("w_q", "w_k", "w_v"):
            name = ".".join([*path, f"in_proj_{kind}"])
            x = torch.cat([state[renamed(name)], x]) if layer != "w_q" else x
        state[renamed(name)] = x
    return torch.func.functional_call(module, state, inputs, options)


def renamed(name):
    for ours, theirs in PYTORCHS:
        if f".{ours}." in f".{name}":
            return f".{name}".replace(f".{ours}.", f".{theirs}.")[1:]
    return name


def decoder_layer(heads, norm_first, activation, eps=1e-5):
    return torch.nn.TransformerDecoderLayer(6, heads, 8, 0.0, activation, eps, True, norm_first, dtype=torch.float64)


def later(n):
    return torch.ones(n, n, dtype=torch.bool).triu(1)


def hidden(lengths, n):
    """True = hidden, as PyTorch has it."""
    return torch.arange(n) >= torch.tensor(lengths)[:, None]


def encoder(w, x):
    layer = torch.nn.TransformerEncoderLayer(6, 2, 8, 0.0, F.gelu, 1e-5, True, True, dtype=torch.float64)
    stack = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return run(stack, w, x, src_key_padding_mask=hidden([4, 3], 4))


def decoder(w, x, memory):
    stack = torch.nn.TransformerDecoder(decoder_layer(2, True, F.gelu), 2, torch.nn.LayerNorm(6, dtype=torch.float64))
    return run(stack, w, x, memory, tgt_mask=later(4))


def transformer(w, src, tgt, layers=(1, 2), padding=hidden([3, 5], 5)):
    model = torch.nn.Transformer(6, 2, *layers, 8, 0.0, batch_first=True, dtype=torch.float64)
    return run(model, w, src, tgt, tgt_mask=later(tgt.shape[1]), src_key_padding_mask=padding,
               memory_key_padding_mask=padding)


BUFFERS = {"positions.pe": torch.tensor([[[
    (math.cos if i % 2 else math.sin)(place / 10000 ** ((i - i % 2) / 6)) for i in range(6)] for place in range(5)]],
    dtype=torch.float64)}


def seq2seq(w, ids, decoder_ids):
    def embedded(table, ids, places):
        return table[ids] * math.sqrt(6) + BUFFERS["positions.pe"][0, torch.tensor(places)]

    src = embedded(w["src_embed.weight"], ids, [[0, 1, 2, 0], [0, 0, 1, 2]])
    tgt = embedded(w["tgt_embed.weight"], decoder_ids, [0, 1, 2])
    padding = torch.tensor([[0, 0, 0, 1], [1, 0, 0, 0]]).bool()
    y = transformer(inside(w, "transformer."), src, tgt, (1, 1), padding)
    return F.linear(y, w["lm_head.weight"], w["lm_head.bias"])


THEIRS = {          # name -> (input shapes, or ready ids; the same layer in torch)
    "linear": ([(2, 5, 3)], lambda w, x: F.linear(x, w["weight"], w["bias"])),
    "layer_norm": ([(2, 3, 5)], lambda w, x: F.layer_norm(x, (5,), w["weight"], w["bias"])),
    "attention": ([(2, 4, 6), (2, 5, 6), (2, 5, 6)], lambda w, q, k, v: attend(w, q, k, v, 3)),
    "attention, other widths": ([(2, 4, 6), (2, 3, 5), (2, 3, 3)], lambda w, q, k, v: attend(w, q, k, v, 2)[0]),
    "feed-forward": ([(2, 3, 4)], lambda w, x: feed_forward(w, x, F.gelu)),
    "block, pre-norm": ([(2, 3, 6)], lambda w, x: block(w, x, 2, F.gelu)),
    "block, post-norm": ([(2, 4, 6)], lambda w, x: block(w, x, 3, F.relu, norm_first=False, eps=1e-3)),
    "block, causal": ([(2, 4, 6)], lambda w, x: block(w, x, 2, gelu_tanh, causal=True)),
    "gpt2": ([np.array([[3, 0, 10, 3, 7], [1, 1, 4, 9, 2]])], gpt2),
    "rms_norm": ([(2, 3, 5)], lambda w, x: F.rms_norm(x, (5,), w["weight"], 1e-6)),
    "feed-forward, gated": ([(2, 3, 4)], gated),
    "attention, grouped queries": ([(2, 4, 8)] * 3, lambda w, q, k, v: causal_attention(w, q, k, v, 2)),
    "attention, rotary": ([(2, 4, 8)] * 3, lambda w, q, k, v: causal_attention(
        w, q, k, v, 4, lambda x: turned(x, [[[0, 1, 2, 3]]]))),
    "attention, rotary and grouped": ([(2, 4, 8)] * 3, lambda w, q, k, v: causal_attention(
        w, q, k, v, 2, lambda x: turned(x, [[[0, 1, 2, 3]], [[0, 0, 4, 9]]], 500.0, True))),
    "relative positions": ([], lambda w: relative(w, 9, 15, 8, 12, True)),
    "relative positions, one way": ([], lambda w: relative(w, 16, 16, 6, 12, False)),
    "decoder block, pre-norm": ([(2, 4, 6), (2, 5, 6)], lambda w, x, m: run(
        decoder_layer(2, True, F.gelu), w, x, m, tgt_mask=later(4))),
    "decoder block, post-norm": ([(2, 4, 6), (2, 5, 6)], lambda w, x, m: run(
        decoder_layer(3, False, F.relu, 1e-3), w, x, m, tgt_mask=later(4), memory_key_padding_mask=hidden([2, 5], 5))),
    "encoder": ([(2, 4, 6)], encoder),
    "decoder": ([(2, 4, 6), (2, 5, 6)], decoder),
    "transformer": ([(2, 5, 6), (2, 4, 6)], transformer),
    "patch embed": ([(2, 2, 4, 9)], lambda w, x: F.conv2d(
        x, w["proj.weight"], w["proj.bias"], stride=(2, 3)).flatten(2).transpose(1, 2)),
    "seq2seq": ([np.array([[3, 0, 8, 3], [1, 1, 4, 2]]), np.array([[1, 0, 6], [5, 5, 2]])], seq2seq),
}


def write_layers():
    values = {"versions": VERSIONS}
    for name, (shapes, theirs) in THEIRS.items():
        draw, (module, _) = Draw(name), reference.LAYERS[name]()
        parameters = {k: torch.tensor(0.5 * draw(*p.shape), requires_grad=True) for k, p in module.named_parameters()}
        inputs = [torch.tensor(draw(*x), requires_grad=True) if type(x) is tuple else torch.tensor(x) for x in shapes]
        outputs = theirs(parameters, *inputs)
        outputs = outputs if type(outputs) is tuple else (outputs,)
        dys = random_like(outputs)
        floats = [x for x in inputs if x.requires_grad]
        gradients = torch.autograd.grad(outputs, [*floats, *parameters.values()], [torch.tensor(dy) for dy in dys])
        kept = parameters | {k: x for k, x in BUFFERS.items() if k in module.state_dict()}
        parts = {f"state/{k}": x for k, x in kept.items()}
        parts |= {f"x{i}": x for i, x in enumerate(inputs)} | {f"y{i}": y for i, y in enumerate(outputs)}
        parts |= {f"dy{i}": torch.tensor(dy) for i, dy in enumerate(dys)}
        parts |= {f"dx{i}": g for i, g in enumerate(gradients[:len(floats)])}
        parts |= {f"grad/{k}": g for k, g in zip(parameters, gradients[len(floats):])}
        values.update({f"{name}/{part}": x.detach().numpy() for part, x in parts.items()})
    reference.save(HERE / "layers.npz", values)


if __name__ == "__main__":
    with np.errstate(invalid="ignore"):                     # some edges lie at infinity
        write_ops()
    write_layers()
    for file in ("ops.npz", "layers.npz"):
        print(f"{file}: {(HERE / file).stat().st_size / 1000:.0f} kB")
