"""Every record of tests/data/values.json: faults that users of other engines met, with the right values.

CALLS reads the records that are one call of an operation; READERS the others, each by the record's op. A record that
neither knows fails.
"""
import builtins
import copy
import gc
import json
import pickle
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from double import here

import minitx as mt
from minitx import checkpoint, models, nn, ops, optim, sampling, schedule
from minitx.backend import is_array
from minitx.models.weights import from_published
from minitx.nn.positions import relative_buckets
from minitx.ops.dropout import Dropout

RECORDS = json.loads((Path(__file__).parent / "data" / "values.json").read_text(encoding="utf-8"))["records"]


def attention(q, k, v, keep_mask=None, scale="1/sqrt(d)", causal=False):
    assert scale == "1/sqrt(d)" or scale == f"1/sqrt({q.shape[-1]})"    # ours without being asked
    return ops.scaled_dot_product_attention(q, k, v, keep_mask, is_causal=causal)


def getitem(x, index=None, mask=None):
    if mask is not None:
        return x[np.array(mask)]
    return x[tuple(index) if np.ndim(index) == 2 else index]


def dropout(x=mt.ones(3), mask=None, p=0.5, training=True):
    if mask is not None:
        return Dropout.apply(x, None, keep=mt.tensor(mask, dtype=bool), p=p)
    return ops.dropout(x, p, training)


def layer_norm(x, w=None, b=None, eps=1e-5, affine=True):
    assert affine or w is None
    return ops.layer_norm(x, w, b, eps)


def reduction(name):
    def reduce(x, axis=None, keepdims=False, dtype_in=None):
        x = mt.tensor(x.data.astype(dtype_in)) if dtype_in else x
        return getattr(ops, name)(x, tuple(axis) if isinstance(axis, list) else axis, keepdims)
    return reduce


def concat_max_twice(x):
    for _ in range(2):
        x = ops.concatenate([ops.max(x, keepdims=True).reshape(1, 1), x], axis=1)
    return x.sum()


CALLS = {
    "scaled_dot_product_attention": attention,
    "getitem": getitem, "dropout": dropout, "layer_norm": layer_norm, "concat_max_twice": concat_max_twice,
    "sum": reduction("sum"), "mean": reduction("mean"), "prod": reduction("prod"),
    "max": reduction("max"), "min": reduction("min"),
    "softmax": lambda x, axis=-1: ops.softmax(x, axis),
    "log_softmax": lambda x: ops.log_softmax(x),
    "maximum": lambda x, y: ops.maximum(x, y),
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
    "matmul": lambda a, b: a @ b, "pow_tensor": lambda a, b: a ** b, "pow": lambda x, n: x ** n,
    "sigmoid": lambda x: ops.sigmoid(x), "relu": lambda x: ops.relu(x),
    "gelu": lambda x, approximate: ops.gelu(x, approximate),
    "clip": lambda x, min, max: ops.clip(x, min, max),
    "embedding": lambda weight, ids: ops.embedding(ids.data, weight),
    "cross_entropy": lambda logits, target, **options: ops.cross_entropy(logits, target, **options),
    "strip_right": lambda x, pad: x[:len(x) - pad.item()],
    "tensor": lambda data, **options: mt.tensor(data.tolist(), **options),
    "ndarray_add_tensor": lambda a, y: a.numpy() + y, "ndarray_sub_tensor": lambda a, y: a.numpy() - y,
    "ndarray_mul_tensor": lambda a, y: a.numpy() * y, "ndarray_div_tensor": lambda a, y: a.numpy() / y,
    "ndarray_matmul_tensor": lambda a, y: a.numpy() @ y, "ndarray_pow_tensor": lambda a, y: a.numpy() ** y,
    "causal_mask": lambda q_len, k_len: mt.tensor(nn.causal_mask(q_len.item(), k_len.item())),
}
READERS = {}


def reads(op):
    def keep(reader):
        READERS[op] = reader
        return reader
    return keep


def same(ours, expected, tol=1e-9):
    """Values and shape; "nan", "inf" and "-inf" are the numbers of that name."""
    ours, expected = np.asarray(here(ours)), np.array(expected, float)
    assert ours.shape == expected.shape
    np.testing.assert_allclose(ours, expected, rtol=tol, atol=tol)


def given(record):
    """The record's inputs as Tensors; those with expected gradients require them."""
    wanted, tensors = record.get("expected_grads", {}), {}
    for name, value in record["inputs"].items():
        if name.endswith("_shape"):
            name, value = name.removesuffix("_shape"), np.zeros(value)
        array = np.array(value if name != "target" or value else np.zeros(0, int))
        if array.dtype.kind == "U":
            array = array.astype(float)                             # "inf" among the numbers
        if array.dtype.kind == "f":
            array = array.astype(record["dtype"])
        tensors[name] = mt.tensor(array, requires_grad=name in wanted)
    return tensors


def errors(record):
    """The error types that the record allows, as pytest.raises takes them."""
    return tuple(getattr(builtins, name) for name in record["expect_error"].split(" or "))


def call(record):
    """One call, in both directions. Only where the right answer is not finite may NumPy warn."""
    function, inputs = CALLS[record["op"]], given(record)
    if record["kind"] == "error":
        with pytest.raises(errors(record)):
            function(**inputs, **record["kwargs"])
        return
    expected, grads = record["expected"], record.get("expected_grads", {})
    finite = "inf" not in json.dumps([expected, grads])
    with np.errstate(**({} if finite else {"all": "ignore"})):
        out = function(**inputs, **record["kwargs"])
        if grads:
            out.backward(np.array(record["grad_output"], record["dtype"]))
    assert isinstance(out, mt.Tensor) and is_array(out.data)
    if isinstance(expected, dict):
        assert expected == {"shape": list(out.shape)}
    else:
        same(out, expected, record["tol"])
    for name, grad in grads.items():
        assert type(inputs[name].grad) is type(inputs[name].data)
        same(inputs[name].grad, grad, record["tol"])


# ---- records that are more than one call -----------------------------------------------------------------------------

@reads("rope")
def rope(record):
    if record["kind"] == "error":
        with pytest.raises(errors(record)):
            ops.rope(np.ones((1, record["inputs"]["head_dim"])), np.arange(1))
        return
    x, positions = np.array(record["inputs"]["x"]), np.array(record["inputs"]["positions"])
    halves, pairs = (ops.rope(x, positions, **record["kwargs"], interleaved=i).numpy() for i in (False, True))
    same(halves, record["expected"]["half_split"])
    same(pairs, record["expected"]["interleaved"])
    order = record["interleaved_to_half_permutation"]
    same(ops.rope(x[:, order], positions).numpy(), pairs[:, order])


@reads("rope_relative")
def rope_relative(record):
    q, k = np.array(record["inputs"]["q"]), np.array(record["inputs"]["k"])
    distance = record["inputs"]["distance"]
    scores = [float((ops.rope(q, np.array([start + distance])) * ops.rope(k, np.array([start]))).sum())
              for start in record["inputs"]["starts"]]
    same(scores, record["expected"])


@reads("patchify")
def patchify(record):
    if record["kind"] == "error":
        with pytest.raises(errors(record), match="(?=.*225)(?=.*16)"):
            ops.patchify(np.ones(record["inputs"]["image_shape"]), record["kwargs"]["patch"])
        return
    patches = ops.patchify(np.array(record["inputs"]["image"]), tuple(record["kwargs"]["patch"])).numpy()
    same(patches, record["expected"]["patches"])
    kernel = np.array(record["expected"]["kernel"]).reshape(-1, 1)
    same(patches @ kernel, record["expected"]["conv_equivalent"])


@reads("vit")
def vit(record):
    model = models.ViT(models.ViTConfig(hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4))
    assert list(model.patches.grid) == record["inputs"]["pos_embed_grid"]
    with pytest.raises(errors(record), match="(?=.*224, 224)(?=.*224, 320)"):
        model(np.ones((1, 3, *record["inputs"]["image"]), np.float32))


@reads("gpt2_conv1d")
def gpt2_conv1d(record):
    x, w, b = (np.array(record["inputs"][name]) for name in "xwb")
    published = {"h.0.mlp.c_fc.weight": w, "h.0.mlp.c_fc.bias": b}
    ours = from_published("gpt2", ["h.0.ff.net.0.weight", "h.0.ff.net.0.bias"], published)
    same(ops.linear(x, *ours.values()), record["expected"])


@reads("gelu_gap")
def gelu_gap(record):
    x = np.linspace(-6, 6, 120001)
    gap = np.abs(ops.gelu(x).numpy() - ops.gelu(x, "tanh").numpy())
    same(gap.max(), record["expected"]["max_abs_difference"], record["tol"])
    same(abs(x[gap.argmax()]), record["expected"]["at_abs_x"], 1e-3)


@reads("float16_constants")
def float16_constants(record):
    with np.errstate(over="ignore"):
        assert np.float16(-1e9) == -np.inf == np.float16(record["expected"]["half_min"]) + np.float16(-16)
    scores = np.full((2, 3), np.finfo(np.float16).min)              # so a mask is no number added to the scores
    y = ops.softmax(scores, mask=np.array([[True, True, True], [False, False, False]]))
    same(y, [[1 / 3] * 3, [0] * 3], 1e-3)


@reads("sum_and_mean")
def sum_and_mean(record):
    x = np.ones(70000, np.float16)
    with np.errstate(over="ignore"):
        same(ops.sum(x), record["expected"]["sum"])
    same(ops.mean(x), record["expected"]["mean"])


@reads("PositionalEncoding")
def positional_encoding(record):
    mt.set_default_dtype(np.float64)
    try:
        table = nn.PositionalEncoding(record["inputs"]["d"], max_len=record["inputs"]["n"]).pe
    finally:
        mt.set_default_dtype(np.float32)
    same(table.numpy().reshape(table.shape[-2:]), record["expected"])


@reads("sinusoidal_pe_row")
def sinusoidal_row(record):
    table = nn.PositionalEncoding(record["inputs"]["d"], max_len=record["inputs"]["position"] + 1).pe.numpy()
    assert table.dtype == np.float32                                # and yet computed wider: right to the last bit
    np.testing.assert_array_equal(table.reshape(table.shape[-2:])[-1], np.float32(record["expected"]))


@reads("position_ids_from_mask")
def position_ids_from_mask(record):
    mask = np.array(record["inputs"]["attention_mask"], bool)
    same(nn.position_ids_from_mask(mask) * mask, record["expected"])        # at padding any position will do


@reads("t5_bucket")
def t5_bucket(record):
    same(relative_buckets(np.array(record["inputs"]["relative_position"]), **record["kwargs"]), record["expected"])


@reads("t5_bias_row")
def t5_bias_row(record):
    layer, S = nn.RelativePositionBias(1, **record["kwargs"]), record["inputs"]["key_length"]
    assert record["inputs"]["query_position"] == S - 1              # the last query stands at the last key
    layer.weight.data[:, 0] = mt.arange(len(layer.weight)).data
    same(layer(1, S).numpy()[0, 0, 0], record["expected"])


@reads("t5_scaling")
def t5_scaling(record):
    hidden, W = np.array(record["inputs"]["hidden"]), np.array(record["inputs"]["W"])
    for tied in True, False:
        model = models.T5(models.T5Config(len(W), **record["kwargs"], tie_word_embeddings=tied)).to(dtype=np.float64)
        model.lm_head.weight.data[...] = mt.tensor(W).data
        model.decoder = lambda *inputs, **options: mt.tensor(hidden[None])
        ids = np.zeros((1, len(hidden)), int)
        same(model(ids, ids).numpy()[0], record["expected"]["tied_logits" if tied else "untied_logits"])


@reads("bart_position_rows")
def bart_position_rows(record):
    model = models.BART(models.BartConfig(8, 10, 1, 8, 1, 1, 8, 1, d_model=4))
    assert len(model.encoder_positions.table.weight) == 10 + record["kwargs"]["offset"] and not record["inputs"]["past"]
    memory = model.encode(np.full((1, record["inputs"]["length"]), model.config.pad_token_id))
    memory.backward(np.random.default_rng(0).standard_normal(memory.shape).astype(np.float32))
    same(np.flatnonzero(here(model.encoder_positions.table.weight.grad).any(-1)), record["expected"])


@reads("kv_cache")
def kv_cache(record):
    inputs = {name: np.array(value) for name, value in record["inputs"].items()}
    q, k, v = (inputs["x"] @ inputs[w] for w in ("wq", "wk", "wv"))
    same(ops.scaled_dot_product_attention(q, k, v, **{"is_causal": record["kwargs"]["causal"]}), record["expected"])
    ends = np.cumsum(inputs["chunks"])                              # new queries, all the keys so far
    rows = [ops.scaled_dot_product_attention(q[end - n:end], k[:end], v[:end], is_causal=True)
            for n, end in zip(inputs["chunks"], ends)]
    same(ops.concatenate(rows, axis=0), record["expected"])


@reads("AdamW")
def adamw(record):
    p = mt.tensor(np.array(record["inputs"]["p"]), requires_grad=True)
    optimiser = optim.AdamW([p], **record["kwargs"])
    for grad, expected in zip(record["inputs"]["grads"], record["expected"], strict=True):
        p.grad = None if grad is None else mt.tensor(np.array(grad)).data
        optimiser.step()
        same(p, expected)


@reads("decay_groups")
def decay_groups(record):
    model, parameters = nn.Module(), {}
    for path, shape in record["inputs"]["params"].items():
        *owners, name = path.removesuffix("(tied)").split(".")
        owner = model
        for attribute in owners:
            if not hasattr(owner, attribute):
                setattr(owner, attribute, nn.Module())
            owner = getattr(owner, attribute)
        parameters[path] = parameters["wte.weight"] if path.endswith("(tied)") else nn.Parameter(np.ones(shape))
        setattr(owner, name, parameters[path])
    groups = {group["weight_decay"]: group["params"] for group in optim.decay_groups(model, 0.1)}
    for decay, key in ((0.1, "decay"), (0.0, "no_decay")):
        assert [id(p) for p in groups[decay]] == [id(parameters[path]) for path in record["expected"][key]]


@reads("noam_lr")
def noam(record):
    options = dict(record["kwargs"])
    assert options.pop("factor", 1.0) == 1.0
    if record["kind"] == "error":
        with pytest.raises(errors(record)):
            schedule.noam_lr(1, **options)
        return
    np.testing.assert_allclose([schedule.noam_lr(step, **options) for step in record["inputs"]["steps"]],
                               record["expected"], rtol=1e-9)
    assert schedule.noam_lr(0, **options) in (0.0, schedule.noam_lr(1, **options))


@reads("deep_graph")
def deep_graph(record):
    x = y = mt.tensor(np.float64(record["inputs"]["x"]), dtype=np.float64, requires_grad=True)
    for _ in range(record["kwargs"]["n"]):
        y = y * 1 + 0
    assert repr(y) and repr(copy.deepcopy(x))
    same(y, record["expected"])
    y.backward(np.array(record["grad_output"]))
    same(x.grad, record["expected_grads"]["x"])
    for _ in range(record["kwargs"]["n"]):
        x = x * 1 + 0
    del x                                                           # and a graph that no backward takes apart
    gc.collect()


@reads("backward_twice")
def backward_twice(record):
    x = mt.tensor(record["inputs"]["x"], requires_grad=True)
    y = 2 * (3 * x)
    same(y, record["expected"])
    y.backward()
    with pytest.raises(RuntimeError, match="freed"):
        y.backward()
    same(x.grad, record["expected_grads"]["after_first"])


@reads("backward")
def backward(record):
    y = mt.ones(record["inputs"]["y_shape"], requires_grad=True) * 1
    shape = record["inputs"].get("grad_shape")
    with pytest.raises(errors(record)):
        y.backward(*([np.ones(shape, np.float32)] if shape else []))


@reads("grad_accumulation")
def grad_accumulation(record):
    logits = mt.tensor(np.array(record["inputs"]["logits"]), requires_grad=True)
    targets, total, start = np.array(record["inputs"]["target"]), 0, 0
    for n in record["inputs"]["micro_batches"]:
        rows = slice(start, start + n)
        loss = ops.cross_entropy(logits[rows], targets[rows], reduction="sum") / len(targets)
        loss.backward()
        total, start = total + loss.item(), start + n
    same(total, record["expected"]["loss"])
    same(logits.grad, record["expected_grads"]["logits"])


@reads("bfloat16")
def bfloat16(record):
    numbers = np.array(record["inputs"]["float32"], np.float64).astype(np.float32)
    bits = checkpoint.to_bfloat16(numbers)
    assert bits.tolist() == record["expected"]["uint16_bits"]
    np.testing.assert_array_equal(checkpoint.from_bfloat16(bits),
                                  np.array(record["expected"]["back_to_float32"], float).astype(np.float32))


@reads("safetensors_load")
def safetensors_load(record):
    pytest.importorskip("safetensors")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.safetensors"
        path.write_bytes(bytes.fromhex(record["inputs"]["file_hex"]))
        if record["kind"] == "error":
            with pytest.raises(errors(record), match="weights.safetensors"):
                mt.checkpoint.load(path)
            return
        expected, state = dict(record["expected"]), mt.checkpoint.load(path)
        assert mt.checkpoint.metadata(path) == expected.pop("metadata", {})
        expected.update(expected.pop("tensors", {}))
        assert set(state) == {name.removesuffix("_shape") for name in expected}
        for name, value in expected.items():
            if name.endswith("_shape"):
                assert state[name.removesuffix("_shape")].shape == tuple(value)
            else:
                same(state[name], value)


@reads("sample")
def sample(record):
    logits = np.array(record["inputs"]["logits"])
    if record["kind"] == "error":
        with pytest.raises(errors(record)):
            sampling.sample_token(logits, **record["kwargs"])
        return
    generator = np.random.default_rng(0)
    before = generator.bit_generator.state
    assert sampling.sample_token(logits, generator=generator, **record["kwargs"]).tolist() == record["expected"]
    assert generator.bit_generator.state == before or record["kwargs"]["temperature"]


@reads("top_k_filter")
def top_k_filter(record):
    logits = np.array(record["inputs"]["logits"])
    if record["kind"] == "error":
        with pytest.raises(errors(record)):
            sampling.top_k_filter(logits, **record["kwargs"])
        return
    kept = sampling.top_k_filter(logits, **record["kwargs"])
    if isinstance(record["expected"], dict):
        assert {"kept_count": np.isfinite(kept).sum()} == record["expected"]
    else:
        same(kept, record["expected"])


@reads("vocab_padding")
def vocab_padding(record):
    logits = np.array(record["inputs"]["logits"])
    real = np.arange(logits.shape[-1]) < record["inputs"]["real_vocab"]
    p = ops.softmax(logits, mask=real).numpy()[0]
    assert p.argmax() == record["expected"]["argmax"]
    same(p[real], record["expected"]["probs_over_real"])
    assert sampling.sample_token(logits, 0.0, vocab_size=int(real.sum())) == record["expected"]["argmax"]


# ---- behaviours ------------------------------------------------------------------------------------------------------

def recording():
    return (mt.ones(1, requires_grad=True) * 1).requires_grad


@reads("no_grad")
def no_grad(record):
    if record["id"] == "C37a":
        with pytest.raises(KeyError), mt.no_grad():
            raise KeyError
        assert recording()
        with mt.no_grad():
            with mt.no_grad():
                assert not mt.no_grad()(recording)()
            assert not recording()
        assert recording()
    else:
        seen = []
        with mt.no_grad():
            thread = threading.Thread(target=lambda: seen.append(recording()))
            thread.start()
            thread.join()
            assert seen == [True] and not recording()


@reads("ndarray_iadd")
def ndarray_iadd(record):
    a = np.ones(2, np.float32)
    try:
        a += mt.ones(2)
    except TypeError:
        pass
    assert isinstance(a, mt.Tensor) or a.dtype == np.float32
    product = np.float32(2) * mt.ones(2)
    assert isinstance(product, mt.Tensor) and product.dtype == np.float32


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(5, 4)
        self.lm_head = nn.Linear(4, 5, bias=False)
        self.lm_head.weight = self.wte.weight

    def __call__(self, ids):
        return self.lm_head(self.wte(ids))


@reads("copy")
def copies(record):
    leaf = mt.tensor([1.0, 2.0], dtype=np.float64, requires_grad=True)
    (leaf * 3).sum().backward()
    for twin in (copy.deepcopy(leaf), pickle.loads(pickle.dumps(leaf))):
        assert twin.requires_grad and twin.dtype == leaf.dtype
        same(twin, leaf.numpy())
        same(twin.grad, [3, 3])
        assert not np.shares_memory(twin.data, leaf.data) and not np.shares_memory(twin.grad, leaf.grad)
    model = Tied()
    model(np.arange(5)).sum().backward()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.lm_head.weight is twin.wte.weight is not model.wte.weight
    for copier in (copy.deepcopy, pickle.dumps):
        with pytest.raises(RuntimeError, match="detach"):
            copier(leaf * 2)


@reads("gradcheck")
def gradcheck(record):
    x = np.array([[0.3, -0.7, 1.1], [0.4, 0.5, -0.6]])
    mt.gradcheck(lambda x: x.T, x)                                  # a view of the input that the checker moves
    with pytest.raises(TypeError, match="float64"):
        mt.gradcheck(ops.exp, x.astype(np.float32))

    class Wrong(mt.Op):
        """y = x^2, whose backward forgets the 2 (or gives NaN)."""
        answer = 1.0

        def forward(self, x):
            self.x = x
            return x * x

        def backward(self, dy):
            return dy * self.x * self.answer,

    with pytest.raises(AssertionError, match=r"input 0 .*\[\d, \d\].* -?\d+\.\d+, .* -?\d+\.\d+"):
        mt.gradcheck(lambda x: Wrong.apply(x), x)
    Wrong.answer = np.nan
    with pytest.raises(AssertionError), np.errstate(all="ignore"):
        mt.gradcheck(lambda x: Wrong.apply(x) * float("nan"), x)


gpu = pytest.mark.skipif(not mt.cuda.is_available(), reason="needs CuPy and a GPU")


@reads("cupy_scatter")
def cupy_scatter(record):
    for stored in (r for r in RECORDS if r["id"].startswith("C07")):
        x = mt.tensor(given(stored)["x" if "x" in stored["inputs"] else "weight"].data, True, device="cuda")
        y = (getitem(x, **stored["kwargs"]) if stored["op"] == "getitem"
             else ops.embedding(np.array(stored["inputs"]["ids"]), x))
        y.backward(mt.tensor(np.array(stored["grad_output"]), device="cuda"))
        same(mt.Tensor(x.grad).numpy(), *stored["expected_grads"].values())


@reads("cupy_mixing")
def cupy_mixing(record):
    there = mt.ones(2, device="cuda")
    with pytest.raises(TypeError, match="(?s)cpu.*cuda|cuda.*cpu"):
        mt.ones(2, device="cpu") * there
    with pytest.raises(TypeError):
        np.asarray(there)
    assert (np.float64(2) * there + 1).tolist() == [3, 3] and (there * np.float64(2)).dtype == np.float32


@pytest.mark.parametrize("record", [
    pytest.param(record, id=f"{record['id']}-{record['op']}", marks=gpu if record["op"].startswith("cupy_") else ())
    for record in RECORDS])
def test_record(record):
    op = record["op"]
    assert record["kind"] in ("value", "error", "behaviour", "policy")
    assert (op in CALLS) + (op in READERS) == 1, f"nobody knows how to read a record about {op}"
    READERS.get(op, call)(record)


def test_the_tables_name_only_what_the_records_hold():
    assert len(RECORDS) == 157
    assert {*CALLS, *READERS} == {record["op"] for record in RECORDS}
