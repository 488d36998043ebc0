"""Writes ops.npz and layers.npz beside this file: what PyTorch says, in float64, about every case and some layers.

    python tests/reference/write.py         needs PyTorch, and minitx on the path

To be run again when a case is added or changed; reference.py says which are stale. The files stay under 1 MB together.
"""
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
        parts = {f"state/{k}": p for k, p in parameters.items()}
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
