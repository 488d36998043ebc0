"""Every op, on all its cases, against finite differences, its composed twin, the stored values, and PyTorch itself."""
import numpy as np
import pytest
from double import here

from minitx import ops
from minitx.autograd import Tensor
from minitx.proof import check_op, composed, opcheck, reference, torch_twins
from minitx.proof.cases import cases, edges
from minitx.proof.differences import is_float, random_like, relative_error
from minitx.proof.tape import pull

CASES, EDGES = cases(), edges()
EVERY_OP = pytest.mark.parametrize("name", ops.OPS)
WARNED = {("pow", "infinity to zero"), ("pow", "infinity to powers")}     # inf * 0


def quiet(case):
    return np.errstate(invalid="ignore" if (case.op.name, case.label) in WARNED else "warn")


@EVERY_OP
def test_there_are_cases(name):
    assert len(CASES[name]) >= 2
    labels = [case.label for case in CASES[name] + EDGES[name]]
    assert len(set(labels)) == len(labels)
    shapes = [x.shape for case in CASES[name] for x in case.inputs if isinstance(x, np.ndarray)]
    need_an_axis = {"matmul", "linear", "layer_norm", "rms_norm", "concatenate", "split", "rope", "patchify", "embedding",
                    "cross_entropy", "scaled_dot_product_attention"}
    of_the_edges = [case.inputs[0].shape for case in EDGES[name]] if name == "std" else []      # it has a kink there
    assert name in need_an_axis or () in shapes + of_the_edges
    assert any(1 in shape for shape in shapes)


@EVERY_OP
def test_finite_differences(name):
    for case in CASES[name]:
        assert check_op(case.op, case.inputs, case.options) <= 1, case.label


@EVERY_OP
def test_composed_twin(name):
    if name not in composed.COMPOSED:
        assert name in ("add", "mul", "exp", "log", "to")
        pytest.skip("a primitive: all else is composed of it")
    for case in CASES[name]:
        assert composed.against(case) <= composed.TOLERANCE, case.label


@EVERY_OP
def test_stored_values(name):
    for case in CASES[name] + EDGES[name]:
        with quiet(case):
            assert reference.against(case) <= reference.TOLERANCE, case.label


@EVERY_OP
def test_pytorch(name):
    pytest.importorskip("torch")
    for case in CASES[name] + EDGES[name]:
        with quiet(case):
            assert torch_twins.against(case) <= torch_twins.TOLERANCE, case.label


@EVERY_OP
def test_float32_against_pytorchs_float64(name):
    if name == "to":
        pytest.skip("its dtype is an option")
    for case in CASES[name]:
        theirs = reference.stored(case)
        inputs = tuple(x.astype(np.float32) if is_float(x) else x for x in case.inputs)
        ours = opcheck.run_op(case.op, inputs, case.options, random_like(theirs.outputs))
        assert all(x.dtype == np.float32 for x in ours.outputs + ours.gradients if x is not None), case.label
        assert opcheck.compare(ours, theirs) <= 1e-5, case.label


@EVERY_OP
def test_each_input_alone_through_apply(name):
    """As in a model whose other inputs are frozen: only what is asked for is computed, and it is the same."""
    for case in CASES[name]:
        whole = opcheck.run_op(case.op, case.inputs, case.options)
        for i in [i for i, x in enumerate(case.inputs) if is_float(x)]:
            inputs = [Tensor(x, requires_grad=i == j) if is_float(x) else x for j, x in enumerate(case.inputs)]
            outputs = case.op.apply(*inputs, **case.options)
            pull(outputs if isinstance(outputs, tuple) else (outputs,), random_like(whole.outputs))
            assert relative_error(here(inputs[i].grad), whole.gradients[i]) <= 1e-12, (case.label, i)
            assert all(x.grad is None for j, x in enumerate(inputs) if isinstance(x, Tensor) and i != j)


# ---- stored values ---------------------------------------------------------------------------------------------------

def test_stored_values_are_small_and_say_who_made_them():
    files = [reference.FOLDER / "ops.npz", reference.FOLDER / "layers.npz"]
    assert sum(file.stat().st_size for file in files) < 1_000_000
    assert "torch" in reference.versions() and "numpy" in reference.versions()


def test_stale_values_are_not_passed_over():
    case = CASES["softmax"][2]
    x, = case.inputs
    for changed in (case._replace(inputs=(x + 1e-9,)), case._replace(options=dict(case.options, axis=0)),
                    case._replace(label="new")):
        with pytest.raises(reference.StaleReference, match="softmax"):
            reference.stored(changed)


def test_where_there_is_no_folder_there_are_no_values(monkeypatch, tmp_path):
    monkeypatch.setattr(reference, "FOLDER", tmp_path)
    reference._file.cache_clear()
    try:
        assert reference.stored(CASES["exp"][0]) is None and reference.versions() is None
        assert reference.layer("gpt2") is None
    finally:
        reference._file.cache_clear()


@pytest.mark.parametrize("name", reference.LAYERS)
def test_layers_against_stored_values(name):
    module, options, stored = reference.layer(name)
    inputs = [_leaf(x) for x in _parts(stored, "x")]
    outputs = module(*inputs, **options)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    pull(outputs, _parts(stored, "dy"))
    for ours, theirs in zip(outputs, _parts(stored, "y"), strict=True):
        assert relative_error(here(ours), theirs) <= 1e-10
    for ours, theirs in zip([x for x in inputs if x.dtype.kind == "f"], _parts(stored, "dx"), strict=True):
        assert relative_error(here(ours.grad), theirs) <= 1e-10
    parameters = dict(module.named_parameters())
    assert {f"grad/{key}" for key in parameters} == {key for key in stored if key.startswith("grad/")}
    for key, parameter in parameters.items():
        assert relative_error(here(parameter.grad), stored[f"grad/{key}"]) <= 1e-10, key


def _parts(stored, part):
    found = []
    while f"{part}{len(found)}" in stored:
        found.append(stored[f"{part}{len(found)}"])
    return found


def _leaf(x):
    return Tensor(x, requires_grad=True) if x.dtype.kind == "f" else x
