"""Modules: what is found, saved, loaded, moved and copied, and what a tie means for each."""
import copy
import pickle

import numpy as np
import pytest

import minitx as mt
from minitx import nn, optim


class Model(nn.Module):
    """Everything at once: a tie, buffers, Modules in plain lists and dicts, and things that do not count."""

    def __init__(self):
        self.name, self.sizes, self.none = "model", [1, 2], None
        self.wte = nn.Embedding(5, 4)
        self.table = nn.Buffer(np.arange(3.0, dtype=np.float32))
        self.cache = nn.Buffer(np.arange(3), persistent=False)
        self.listed = [nn.Linear(4, 4), {"norm": nn.LayerNorm(4)}]
        self.drop = nn.Dropout(0.5)
        self.lm_head = nn.Linear(4, 5, bias=False)
        self.lm_head.weight = self.wte.weight
        self.loose = mt.tensor([1.0], requires_grad=True)

    def forward(self, ids):
        return self.lm_head(self.drop(self.listed[1]["norm"](self.listed[0](self.wte(ids)))))


NAMES = ["wte.weight", "listed.0.weight", "listed.0.bias", "listed.1.norm.weight", "listed.1.norm.bias"]
SAVED = ["wte.weight", "table", "listed.0.weight", "listed.0.bias", "listed.1.norm.weight", "listed.1.norm.bias",
         "lm_head.weight"]
IDS = np.array([[0, 1], [4, 4]])


def test_what_is_found():
    model = Model()
    assert [name for name, _ in model.named_parameters()] == NAMES
    assert [id(p) for p in model.parameters()] == [id(p) for _, p in model.named_parameters()]
    assert [name for name, _ in model.named_modules()] == ["", "wte", "listed.0", "listed.1.norm", "drop", "lm_head"]
    assert list(model.modules())[0] is model
    assert next(model.parameters()) is model.wte.weight             # an iterator, as PyTorch's


def test_a_module_used_twice_is_found_once():
    model, shared = nn.Module(), nn.Linear(2, 2)
    model.a, model.b = shared, shared
    assert len(list(model.modules())) == 2 and len(list(model.parameters())) == 2
    assert list(model.state_dict()) == ["a.weight", "a.bias", "b.weight", "b.bias"]


def test_state_holds_the_arrays_themselves_under_every_name():
    model = Model()
    state = model.state_dict()
    assert list(state) == SAVED
    assert state["lm_head.weight"] is state["wte.weight"] is model.wte.weight.data


@pytest.mark.parametrize("wrap", [lambda array: array, mt.Tensor, lambda array: array.astype(np.float64)],
                         ids=["array", "Tensor", "float64"])
def test_load_copies_in_place(wrap):
    model, other = Model(), Model()
    before = {name: (p, p.data, p.version) for name, p in model.named_parameters()}
    given = {name: wrap(array) for name, array in other.state_dict().items()}
    assert model.load_state_dict(given) == ([], [])
    for name, (p, array, version) in before.items():
        assert p.data is array and p.dtype == np.float32 and p.version == version + 1
        np.testing.assert_array_equal(array, other.state_dict()[name])
        assert not np.shares_memory(array, given[name].data if isinstance(given[name], mt.Tensor) else given[name])
    assert model.lm_head.weight is model.wte.weight
    np.testing.assert_array_equal(model(IDS).shape, (2, 2, 5))


def test_what_does_not_fit_is_listed_whole_and_changes_nothing():
    model = Model()
    before = {name: array.copy() for name, array in model.state_dict().items()}
    state = {name: array + 1 for name, array in before.items()}
    del state["listed.0.bias"], state["table"]
    state["extra"] = state["more"] = np.ones(3)
    state["listed.1.norm.bias"] = np.ones((4, 1))
    state["listed.0.weight"] = [[1.0]]
    state["listed.1.norm.weight"] = np.ones(4, complex)
    state["lm_head.weight"] = state["wte.weight"] + 1
    with pytest.raises(ValueError) as raised:
        model.load_state_dict(state)
    for line in ("missing: listed.0.bias", "missing: table", "unexpected: extra", "unexpected: more",
                 "wrong shape: listed.1.norm.bias is (4,), the state has (4, 1)", "wrong kind: listed.0.weight",
                 "wrong kind: listed.1.norm.weight is float32, the state has complex128",
                 "tied: wte.weight and lm_head.weight"):
        assert line in str(raised.value)
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(array, before[name])
    assert all(p.version == 0 for p in model.parameters())


@pytest.mark.parametrize("absent", ["wte.weight", "lm_head.weight"])
def test_a_tied_tensor_needs_one_of_its_names(absent):
    model = Model()
    state = {name: array + 1 for name, array in model.state_dict().items() if name != absent}
    model.load_state_dict(state)
    np.testing.assert_array_equal(model.wte.weight.data, state.get("wte.weight", state.get("lm_head.weight")))
    del state[({"wte.weight", "lm_head.weight"} - {absent}).pop()]
    with pytest.raises(ValueError, match="missing: wte.weight\n.*missing: lm_head.weight"):
        model.load_state_dict(state)


def test_tied_values_may_both_be_nan():
    model = Model()
    state = {name: array * np.nan for name, array in model.state_dict().items()}
    model.load_state_dict(state)
    assert np.isnan(model.wte.weight.numpy()).all()


def test_not_strict_says_what_it_passed_over():
    model = Model()
    report = model.load_state_dict({"table": np.zeros(3), "extra": np.ones(1)}, strict=False)
    assert report.missing_keys == [name for name in SAVED if name != "table"] and report.unexpected_keys == ["extra"]
    assert (model.table == 0).all()
    with pytest.raises(ValueError, match="table"):
        model.load_state_dict({"table": np.zeros(4)}, strict=False)


@pytest.mark.parametrize("view", [lambda array: array, lambda array: array[:], mt.Tensor], ids=["array", "view", "Tensor"])
def test_loading_its_own_arrays_under_exchanged_names(view):
    model = nn.Module()
    model.a, model.b, model.c = (nn.Parameter(np.full(3, value)) for value in (1.0, 2.0, 3.0))
    model.load_state_dict({"a": view(model.b.data), "b": view(model.c.data), "c": view(model.a.data)})
    assert [p.data.tolist() for p in model.parameters()] == [[2.0] * 3, [3.0] * 3, [1.0] * 3]
    model.load_state_dict({"a": model.a.data[::-1], "b": model.b.data, "c": model.c.data})
    assert not np.shares_memory(model.a.data, model.b.data)


@pytest.mark.host("only NumPy's arrays can be read-only")
def test_a_read_only_target_is_found_before_anything_is_changed():
    model = Model()
    model.lm_head.bias = nn.Parameter(np.zeros(5, np.float32))
    model.lm_head.bias.data.flags.writeable = False
    state = {name: array + 1 for name, array in model.state_dict().items()}
    with pytest.raises(ValueError, match="nothing was loaded\n  read-only: lm_head.bias"):
        model.load_state_dict(state)
    assert all(p.version == 0 for p in model.parameters()) and (model.wte.weight.data != state["wte.weight"]).all()


def test_loading_its_own_state_changes_nothing():
    model = Model()
    before = model.wte.weight.data.copy()
    model.load_state_dict(model.state_dict())
    np.testing.assert_array_equal(model.wte.weight.data, before)


def test_a_graph_from_before_the_load_is_refused():
    model = Model()
    loss = model(IDS).sum()
    model.load_state_dict(model.state_dict())
    with pytest.raises(RuntimeError):
        loss.backward()


def test_train_eval_and_zero_grad():
    model = Model()
    assert all(m.training for m in model.modules())
    assert model.eval() is model and not any(m.training for m in model.modules())
    assert model.train() is model and all(m.training for m in model.modules())
    model(IDS).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    model.zero_grad()
    assert all(p.grad is None for p in model.parameters())


def test_to_changes_floats_in_place():
    model = Model()
    model(IDS).sum().backward()
    held, optimiser = list(model.parameters()), optim.AdamW(model.parameters())
    assert model.to(dtype=np.float64) is model
    assert all(a is b and a.dtype == a.grad.dtype == np.float64 for a, b in zip(held, model.parameters()))
    assert model.table.dtype == np.float64 and model.cache.dtype == np.int64
    assert model.lm_head.weight is model.wte.weight
    optimiser.step()
    version = held[0].version
    model.to(held[0].device).to(dtype=np.float64)
    assert held[0].version == version                               # nothing moved, nothing to warn of


def test_a_graph_from_before_the_move_is_refused():
    model = Model()
    loss = model(IDS).sum()
    model.to(dtype=np.float64)
    with pytest.raises(RuntimeError):
        loss.backward()


def test_to_what_cannot_be():
    for dtype in np.int64, "complex64":
        with pytest.raises(TypeError, match="float"):
            Model().to(dtype=dtype)
    with pytest.raises(ValueError, match="gpu"):
        Model().to("gpu")


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_copies_keep_ties_also_after_a_forward(again):
    model = Model()
    loss = model(IDS).sum()
    loss.backward()
    other = again(model)
    assert other.lm_head.weight is other.wte.weight and other.wte.weight is not model.wte.weight
    for (name, p), (same, q) in zip(model.named_parameters(), other.named_parameters()):
        assert name == same and not np.shares_memory(p.data, q.data) and not np.shares_memory(p.grad, q.grad)
        np.testing.assert_array_equal(p.data, q.data)
        np.testing.assert_array_equal(p.grad, q.grad)
    np.testing.assert_array_equal(other.eval()(IDS).data, model.eval()(IDS).data)


def test_a_class_needs_no_super_init_and_a_forward():
    class Empty(nn.Module):
        def __init__(self):
            self.weight = nn.Parameter([1.0])

    assert [name for name, _ in Empty().named_parameters()] == ["weight"] and Empty().training
    with pytest.raises(NotImplementedError, match="Empty"):
        Empty()(1)


def test_repr_is_nested_and_counts():
    assert repr(Model()) == "\n".join([
        "Model()  48 parameters",
        "  wte: Embedding(5, 4)  20 parameters",
        "  listed.0: Linear(4, 4)  20 parameters",
        "  listed.1.norm: LayerNorm(4, eps=1e-05)  8 parameters",
        "  drop: Dropout(0.5)",
        "  lm_head: Linear(4, 5, bias=False)  20 parameters"])
    stack = nn.Sequential(*(nn.Sequential(nn.ReLU()) for _ in range(6)), nn.Tanh(), nn.Tanh())
    assert repr(stack) == "Sequential()\n  0, ..., 5: Sequential()\n    0: ReLU()\n  6, 7: Tanh()"


class Child(nn.Module):
    def __init__(self, parent):
        self.parent, self.layer = parent, nn.Linear(2, 3)


class Parent(nn.Module):
    def __init__(self):
        self.children = [Child(self), {"one": Child(self)}]
        self.me = self


def test_a_module_that_knows_its_parent():
    model = Parent()
    names = [f"children.{i}.layer.{name}" for i in ("0", "1.one") for name in ("weight", "bias")]
    assert [name for name, _ in model.named_parameters()] == list(model.state_dict()) == names
    assert len(list(model.parameters())) == 4 and len(list(model.modules())) == 5
    assert not any(module.training for module in model.eval().modules())
    assert model.to(dtype=np.float64) is model and all(p.dtype == np.float64 for p in model.parameters())
    model.load_state_dict({name: array + 1 for name, array in model.state_dict().items()})
    text = repr(model)
    assert "layer: Linear(2, 3)" in text and "18 parameters" in text and len(text) < 1000
    other = copy.deepcopy(model)
    assert other.children[0].parent is other.me is other and other.children[1]["one"].parent is other
    assert not np.shares_memory(other.children[0].layer.weight.data, model.children[0].layer.weight.data)


def test_two_tensors_of_one_name_are_refused():
    """None of the two would be lost in silence; one tensor may be there twice."""
    module, p = nn.Module(), nn.Parameter(np.ones(2))
    module.table = {"e.x": p, "e": {"x": nn.Parameter(np.zeros(2))}}
    for use in module.saved, module.state_dict, lambda: module.load_state_dict({}):
        with pytest.raises(ValueError, match="Module: two tensors are called table.e.x"):
            use()
    module.table["e"]["x"] = p
    assert module.saved() == {"table.e.x": p}
