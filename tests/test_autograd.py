"""The engine: the walk back, who owns a gradient, and what an op may return."""
import gc
import threading
import time
import weakref

import numpy as np
import pytest

import minitx as mt
from minitx import backend, ops


class Spy(mt.Op):
    """y = x, counting how often it goes forward and back."""
    ran = []

    def forward(self, x):
        self.ran.append("forward")
        self.x = x
        return x.copy()

    def backward(self, dy):
        self.ran.append("backward")
        return dy,


@pytest.fixture(autouse=True)
def forget():
    Spy.ran.clear()


def leaf(*values, dtype=np.float64):
    return mt.tensor(list(values), dtype=dtype, requires_grad=True)


# ---- the walk --------------------------------------------------------------------------------------------------------

def test_a_diamond_adds_up_its_two_ways():
    x = leaf(3.0)
    y = x * 2
    (y * y + y).backward()
    np.testing.assert_array_equal(x.grad, [2 * 6 * 2 + 2])


@pytest.mark.parametrize("function, slope", [
    (lambda x: x + x, 2), (lambda x: x * x, 6), (lambda x: x - x, 0), (lambda x: x + x * 1 + x * 2, 4),
    (lambda x: ops.concatenate([x, x, x]).sum(), 3), (lambda x: x / x, 0)])
def test_a_tensor_used_several_times(function, slope):
    x = leaf(3.0)
    function(x).backward()
    np.testing.assert_allclose(x.grad, [slope], atol=1e-15)


def test_three_consumers_of_one_output_run_its_op_back_once():
    x = leaf(2.0)
    y = Spy.apply(x)
    (y * 1 + y * 10 + y * 100).backward()
    assert Spy.ran == ["forward", "backward"] and x.grad.tolist() == [111]


@pytest.mark.parametrize("used", [0, 1, 2])
def test_an_output_that_nobody_used_counts_as_zero(used):
    x = leaf(1.0, 2.0, 3.0)
    ops.split(x, 3)[used].backward()
    assert x.grad.tolist() == [float(i == used) for i in range(3)]


def test_every_piece_of_a_split_finds_its_way_back():
    x = leaf(1.0, 2.0, 3.0)
    a, b, c = ops.split(x, 3)
    (a + 2 * b + 3 * c).backward()
    assert x.grad.tolist() == [1, 2, 3]


def test_backward_is_not_run_where_nobody_wants_a_gradient():
    x = leaf(1.0)
    constant = Spy.apply(mt.tensor([5.0], dtype=np.float64))
    assert not constant.requires_grad
    (constant * x).backward()
    assert Spy.ran == ["forward"] and x.grad.tolist() == [5]


def test_an_op_computes_only_the_gradients_that_are_needed():
    asked = []

    class Asked(mt.Op):
        def forward(self, a, b):
            return a * b

        def backward(self, dy):
            asked.append(list(self.needs))
            return dy, None

    Asked.apply(leaf(1.0), mt.ones(1, dtype=np.float64)).backward()
    assert asked == [[True, False]]


def test_gradients_add_up_over_backwards():
    x = leaf(1.0, 2.0)
    for _ in range(3):
        (x * x).sum().backward()
    assert x.grad.tolist() == [6, 12]


def test_a_leaf_is_its_own_gradient():
    x = leaf(1.0)
    x.backward()
    assert x.grad.tolist() == [1]


@pytest.mark.parametrize("join", [lambda old, new: new + old, lambda old, new: old + new])
def test_an_op_waits_for_every_gradient_that_comes_to_it(join):
    x = leaf(2.0)
    old = Spy.apply(x)
    join(old, Spy.apply(Spy.apply(old))).backward()
    assert Spy.ran == ["forward"] * 3 + ["backward"] * 3 and x.grad.tolist() == [2]


def deep(n):
    x = mt.tensor(1.0, dtype=np.float64, requires_grad=True)
    y = x
    for _ in range(n):
        y = y + 1.0
    return x, y


def test_a_chain_of_20_000_ops():
    x, y = deep(20_000)
    y.backward()
    assert y.item() == 20_001 and x.grad == 1
    x, y = deep(20_000)
    del x, y                                                        # and one that is dropped without a backward


@pytest.mark.timing
def test_a_chain_takes_time_in_proportion():
    def seconds(n):
        start = time.perf_counter()
        deep(n)[1].backward()
        return time.perf_counter() - start

    gc.disable()
    try:
        short, long = zip(*((seconds(20_000), seconds(40_000)) for _ in range(5)))
    finally:
        gc.enable()
    assert min(long) <= 2.5 * min(short)


# ---- freeing ---------------------------------------------------------------------------------------------------------

def test_saved_arrays_are_freed_as_the_walk_passes():
    alive = []

    class Watch(mt.Op):
        """y = x; on the way back it looks whether the arrays of the ops behind it in the walk are still there."""
        def forward(self, x):
            self.x = x.copy()
            alive.append(weakref.ref(self.x))
            return x.copy()

        def backward(self, dy):
            seen.append([ref() is not None for ref in alive])
            return dy,

    seen = []
    y = Watch.apply(Watch.apply(Watch.apply(leaf(1.0))))
    y.backward()
    assert seen == [[True, True, True], [True, True, False], [True, False, False]]
    assert not any(ref() is not None for ref in alive)


def test_an_activation_that_no_op_saved_dies_with_its_last_user():
    x = leaf(*range(8))
    y = x + 1.0
    gone = weakref.ref(y)
    z = y + 1.0
    del y
    assert gone() is None
    z.sum().backward()
    assert x.grad.tolist() == [1] * 8


def test_a_second_backward_is_an_error():
    x = leaf(1.0)
    y = x * 2
    z = y * 3
    z.backward()
    for again in (z, y, y + 1):
        with pytest.raises(RuntimeError, match="freed"):
            again.backward()
    assert x.grad.tolist() == [6]


def test_a_leaf_that_the_optimiser_changed_since():
    x = leaf(1.0)
    y = x * x
    x.version += 1
    with pytest.raises(RuntimeError, match=r"(?s)optimiser.*\(1,\).*mul"):
        y.backward()
    assert x.grad is None
    (x * x).backward()
    assert x.grad.tolist() == [2]


# ---- backward(gradient) ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 2), (2, 1), (2, 2)])
def test_the_gradient_has_exactly_the_shape_of_the_output(shape):
    with pytest.raises(ValueError, match="shape"):
        (leaf(1.0, 2.0) * 1).backward(np.ones(shape))


def test_only_one_element_may_leave_the_gradient_out():
    with pytest.raises(RuntimeError, match=r"\(2,\)"):
        (leaf(1.0, 2.0) * 1).backward()
    for shape in [(), (1,), (1, 1)]:
        x = mt.ones(shape, requires_grad=True)
        (x * 2).backward()
        assert x.grad.shape == shape and x.grad == 2


@pytest.mark.parametrize("gradient",
                         [[1.0, 2.0], np.array([1, 2]), np.array([1, 2], np.float32), mt.tensor([1.0, 2.0])])
def test_a_gradient_may_come_as_list_array_or_tensor(gradient):
    x = leaf(1.0, 1.0)
    (x * 3).backward(gradient)
    assert x.grad.dtype == np.float64 and x.grad.tolist() == [3, 6]


def test_backward_without_a_history():
    for y in (mt.ones(1), leaf(1.0).detach() * 2):
        with pytest.raises(RuntimeError, match="no history"):
            y.backward()
    with mt.no_grad():
        y = leaf(1.0) * 2
    with pytest.raises(RuntimeError, match="no_grad"):
        y.backward()


# ---- who owns a gradient ---------------------------------------------------------------------------------------------

SHARING = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "reshape": lambda a, b: a.reshape(4, 1) + b.reshape(4, 1),
    "transpose": lambda a, b: a.T + b.T,
    "getitem": lambda a, b: a[::-1] + b[:],
    "concatenate": lambda a, b: ops.concatenate([a, b]),
    "stack": lambda a, b: ops.stack([a, b]),
    "mul": lambda a, b: a * b,
    "matmul": lambda a, b: a @ b,
    "linear": lambda a, b: ops.linear(a, b),
    "where": lambda a, b: ops.where(np.eye(2, dtype=bool), a, b),
    "sum": lambda a, b: a.sum() + b.sum(),
    "broadcast": lambda a, b: a.sum(axis=0) + b,
    "exp": lambda a, b: ops.exp(a) + ops.tanh(b),
    "identity": lambda a, b: ops.dropout(a, 0.0) + ops.dropout(b, 0.5, training=False),
    "to": lambda a, b: a.to(dtype=np.float64) + b.to(b.device),
}


@pytest.mark.parametrize("function", SHARING.values(), ids=SHARING)
def test_gradients_of_leaves_share_no_memory(function):
    a, b = (mt.tensor(np.arange(1.0, 5).reshape(2, 2), requires_grad=True) for _ in "ab")
    out = function(a, b)
    node, dy = out.node, np.ones(out.shape)
    saved = [v for v in vars(node).values() if backend.is_array(v)]
    out.backward(dy)
    others = [a.data, b.data, out.data, dy, *saved]
    for grad, rest in ((a.grad, [b.grad, *others]), (b.grad, [a.grad, *others])):
        assert grad.shape == (2, 2) and getattr(grad.flags, "writeable", True)
        assert not any(np.shares_memory(grad, array) for array in rest)
        grad *= 2                                                   # what clipping in place does
    assert dy.min() == dy.max() == 1


def test_a_leaf_does_not_keep_the_gradient_it_was_handed():
    x, dy = leaf(1.0), np.ones(1)
    x.backward(dy)
    assert not np.shares_memory(x.grad, dy)


class Keeps(mt.Op):
    """y = 2x, whose backward returns an array that the op or the caller still has."""
    def forward(self, x):
        self.held = np.full(x.shape, 2.0)
        self.several = [np.full(x.shape, 2.0)]
        return 2 * x

    def backward(self, dy):
        return getattr(self, self.source)[...] if self.source == "held" else self.several[0],


@pytest.mark.parametrize("source", ["held", "several"])
def test_a_leaf_copies_what_an_op_keeps(source):
    Keeps.source = source
    x = leaf(1.0)
    y = Keeps.apply(x)
    held = y.node.held if source == "held" else y.node.several[0]
    y.backward()
    assert not np.shares_memory(x.grad, held) and x.grad.tolist() == [2]


@pytest.mark.parametrize("second", [lambda g: g, lambda g: g[...]], ids=["the same", "a view"])
@pytest.mark.parametrize("order", [1, -1])
def test_two_leaves_do_not_share_what_an_op_gave_to_both(second, order):
    class Twice(mt.Op):
        def forward(self, a, b):
            return a + b

        def backward(self, dy):
            g = 2 * dy
            return (g, second(g))[::order]

    a, b = leaf(1.0), leaf(1.0)
    Twice.apply(a, b).backward()
    assert a.grad.tolist() == b.grad.tolist() == [2] and not np.shares_memory(a.grad, b.grad)


# ---- ops of one's own ------------------------------------------------------------------------------------------------

def returning(result):
    class Mine(mt.Op):
        def forward(self, a, b):
            return a + b

        def backward(self, dy):
            return result(dy)

    return Mine.apply(leaf(1.0), leaf(2.0))


@pytest.mark.parametrize("result, error, words", [
    (lambda dy: dy, TypeError, "tuple of 2.*ndarray"),
    (lambda dy: [dy, dy], TypeError, "tuple of 2.*list"),
    (lambda dy: (dy,), TypeError, "tuple of 2.*1 entries"),
    (lambda dy: (dy, None), RuntimeError, "input 1.*None"),
    (lambda dy: (dy, np.ones((3, 1))), ValueError, r"gradient 1.*\(3, 1\).*\(1,\)"),
    (lambda dy: (dy, dy @ mt.ones(2, 3).data), ValueError, "mine, backward"),
])
def test_what_a_backward_must_return(result, error, words):
    with pytest.raises(error, match=f"(?s)mine, backward.*{words}" if "backward" not in words else words):
        returning(result).backward()


def test_the_name_of_an_op_comes_from_its_class():
    class MyOwnOp(mt.Op):
        """Nothing."""

    class GELU2D(mt.Op):
        name = "gelu2d"

    assert MyOwnOp.name == "my_own_op" and GELU2D.name == "gelu2d"


def test_an_op_runs_without_a_tape():
    op = Spy()
    x = np.ones(2)
    assert op.forward(x).tolist() == [1, 1] and op.backward(x)[0] is x and all(op.needs[:3])


def test_an_op_without_its_halves_says_so():
    class Empty(mt.Op):
        pass

    class Half(mt.Op):
        def forward(self, x):
            return x * 1

    with pytest.raises(NotImplementedError, match="forward"):
        Empty.apply(leaf(1.0))
    with pytest.raises(NotImplementedError, match="backward"):
        Half.apply(leaf(1.0)).backward()


def test_an_option_may_be_a_tensor():
    class Scale(mt.Op):
        def forward(self, x, *, by):
            assert type(by) is type(x)
            return x * by

    assert Scale.apply(leaf(2.0), by=mt.tensor([3.0])).item() == 6


@pytest.mark.host("only NumPy's arrays can be read-only")
@pytest.mark.parametrize("function", [lambda x: ops.exp(x), lambda x: ops.softmax(x), lambda x: ops.sigmoid(x)])
def test_what_an_op_saved_of_its_output_is_read_only(function):
    y = function(leaf(1.0, 2.0))
    with pytest.raises(ValueError, match="read-only"):
        y.data[0] = 7
    with mt.no_grad():
        function(leaf(1.0, 2.0)).data[0] = 7                        # nobody goes back over this one


# ---- no_grad ---------------------------------------------------------------------------------------------------------

def recording():
    return (mt.ones(1, requires_grad=True) * 1).requires_grad


def test_no_grad_nested_decorator_and_exception():
    with mt.no_grad():
        with mt.no_grad():
            assert not recording()
        assert not recording()
    assert recording()
    with pytest.raises(KeyError), mt.no_grad():
        raise KeyError
    assert recording()
    one = mt.no_grad()
    with one, one:                                                  # one instance, entered twice
        assert not recording()
    assert recording()

    @mt.no_grad()
    def countdown(n):
        assert not recording()
        return countdown(n - 1) if n else "done"

    assert countdown(3) == "done" and recording()


def test_no_grad_is_per_thread():
    seen, inside, leave = [], threading.Event(), threading.Event()

    def quiet():
        with mt.no_grad():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=quiet)
    thread.start()
    inside.wait(10)
    seen.append(recording())
    leave.set()
    thread.join()
    with mt.no_grad():
        other = threading.Thread(target=lambda: seen.append(recording()))
        other.start()
        other.join()
    assert seen == [True, True]


# ---- cost ------------------------------------------------------------------------------------------------------------

@pytest.mark.timing
@pytest.mark.parametrize("recorded, times", [(False, 6), (True, 8)])
def test_the_cost_of_a_small_op(recorded, times):
    """Forward of an add of four numbers against NumPy's own, best of many interleaved rounds."""
    a, b = np.ones(4, np.float32), np.ones(4, np.float32)
    x, y = mt.tensor(a, requires_grad=recorded), mt.tensor(b)

    def seconds(left, right):
        start = time.perf_counter()
        for _ in range(200):
            left + right
        return time.perf_counter() - start

    gc.disable()
    try:
        numpys, ours = zip(*((seconds(a, b), seconds(x, y)) for _ in range(300)))
    finally:
        gc.enable()
    print(f"an add of four numbers, {'recorded' if recorded else 'unrecorded'}: {min(ours) / min(numpys):.1f} times NumPy's")
    assert min(ours) <= times * min(numpys)


# ---- what went wrong once --------------------------------------------------------------------------------------------

def test_one_no_grad_in_two_threads_at_once():
    one, seen = mt.no_grad(), {}
    entered, both, left = threading.Event(), threading.Event(), threading.Event()

    def first():
        with one:
            entered.set()
            both.wait(10)
        seen["first"] = recording()
        left.set()

    def second():
        entered.wait(10)
        with mt.no_grad():
            with one:
                both.set()
                left.wait(10)
            seen["second, in its own"] = recording()
        seen["second"] = recording()

    threads = [threading.Thread(target=target) for target in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {"first": True, "second, in its own": False, "second": True}


def test_an_op_that_saves_and_returns_its_very_input():
    class Same(mt.Op):
        def forward(self, x):
            self.x = x
            return x

        def backward(self, dy):
            return dy * self.x,

    x = leaf(2.0, 3.0)
    y = Same.apply(x)
    assert getattr(x.data.flags, "writeable", True)
    y.sum().backward()
    x.data -= 1.0
    assert x.tolist() == [1, 2] and x.grad.tolist() == [2, 3]


def test_a_gradient_that_is_no_number():
    for gradient in (np.array([1j, 2]), np.array(["a", "b"]), ["a", "b"]):
        with pytest.raises((TypeError, ValueError)):
            (leaf(1.0, 2.0) * 2).backward(gradient)
