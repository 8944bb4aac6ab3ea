"""Both roads of the aot layer against eager, with and without code generation."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from aot_harness import capture, check, compile_with

import dynajit
from dynajit.aot import compile_joint
from dynajit.backends import lookup_backend

BACKENDS = ["eager", "aot_eager", "codegen"]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=[False, True], ids=["inference", "training"])
def grad(request: pytest.FixtureRequest) -> bool:
    return request.param


def tensor(*shape: int, grad: bool = False, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).requires_grad_(grad)


PURE: dict[str, tuple[Callable, tuple[tuple[int, ...], ...]]] = {
    "softmax_matmul": (lambda x, y: (torch.softmax(x @ y, dim=1),), ((5, 4), (4, 6))),
    "abs_div": (lambda a, b: (a / (abs(a) + 1) * b,), ((8,), (8,))),
    "relu_scale": (lambda x, w, b: (torch.relu(x * w + b) * 0.5,), ((4, 8), (8,), (8,))),
    "linear_gelu": (lambda x, w, b: (F.gelu(F.linear(x, w, b)),), ((3, 4), (5, 4), (5,))),
    "layer_norm": (lambda x, w, b: (F.layer_norm(x, (8,), w, b),), ((4, 8), (8,), (8,))),
    "conv": (lambda x, w: (F.relu(F.conv2d(x, w, padding=1)),), ((2, 3, 6, 6), (4, 3, 3, 3))),
    "attention": (lambda q, k, v: (F.scaled_dot_product_attention(q, k, v, is_causal=True),), ((2, 2, 8, 4),) * 3),
    "several_outputs": (lambda x, y: (x + y, x - y, (x * y).sum()), ((4, 4), (4, 4))),
    "zero_dimensional": (lambda x: (x * 2, x.sin()), ((),)),
    "empty": (lambda x: (x * 2, x.sum()), ((0, 3),)),
    "cat_split": (
        lambda x, y: ((parts := torch.cat([x, y], 1).split(3, 1))[0], parts[2]),
        ((2, 3), (2, 6)),
    ),
    "mean_var": (lambda x: (x.mean(1), x.var(0)), ((4, 6),)),
    "where": (lambda x, y: (torch.where(x > y, x, y.exp()),), ((4, 4), (4, 4))),
    "transposed_add": (lambda x, y: (x.t() + y,), ((3, 4), (4, 3))),
    "no_output": (lambda x: (), ((3,),)),
    "none_and_numbers": (lambda x: (None, x + 1, 3, 2.5, True), ((3,),)),
    "unused_input": (lambda x, y: (x * 2,), ((3,), (2,))),
    "unused_result": (lambda x: (x.sum(), x.exp())[:1], ((3,),)),
    "dropout": (lambda x: (F.dropout(x, 0.5) + x,), ((8, 8),)),
    "random": (lambda x: (x + torch.rand_like(x), torch.bernoulli(torch.sigmoid(x))), ((8,),)),
}


@pytest.mark.parametrize("name", PURE)
def test_pure(backend: str, grad: bool, name: str) -> None:
    fn, shapes = PURE[name]
    check(backend, fn, *(tensor(*shape, grad=grad, seed=index) for index, shape in enumerate(shapes)))


def test_dead_random_draw_still_moves_the_generator(backend: str, grad: bool) -> None:
    def fn(x):
        torch.rand_like(x) * 2
        return (x + torch.rand_like(x),)

    check(backend, fn, tensor(4, grad=grad))


ALIASING: dict[str, Callable] = {
    "input_itself": lambda x, y: (x, y + 1),
    "input_twice": lambda x, y: (x, x),
    "view_of_input": lambda x, y: (x.t(), x.view(-1)[3:], y + x),
    "detached_input": lambda x, y: (x.detach(), y * 2),
    "alias_of_result": lambda x, y: ((z := x + y), z.detach(), z.view_as(z)),
    "same_result_twice": lambda x, y: ((z := x + y), z),
    "view_of_result": lambda x, y: ((z := x + y), z.t(), z[1:]),
    "two_views_of_a_hidden_result": lambda x, y: ((z := x + y)[0], z[1]),
    "view_of_a_view": lambda x, y: ((z := x.t()), z.t()[1:]),
    "expanded": lambda x, y: (x[0].expand(4, 4), y + 1),
    "contiguous_is_itself": lambda x, y: (x.contiguous(), x.t().contiguous()),
}


@pytest.mark.parametrize("name", ALIASING)
def test_aliasing(backend: str, grad: bool, name: str) -> None:
    check(backend, ALIASING[name], tensor(4, 4, grad=grad), tensor(4, 4, grad=grad, seed=1))


def add_in_place(x, y):
    x.add_(y)
    return (x * 2,)


def add_in_place_and_return(x, y):
    x.add_(y)
    return x, x + 1


def mutate_through_view(x, y):
    x.view(-1)[2:5].mul_(3)
    return (x + y,)


def return_view_of_mutated(x, y):
    x.mul_(2)
    return x.t(), y + x


def view_then_mutate(x, y):
    view = x[1:]
    x.add_(1)
    return view, view * y[1:]


def swap(x, y):
    old = x.clone()
    x.copy_(y)
    y.copy_(old)
    return (x - y,)


def mutate_twice(x, y):
    x.add_(1)
    z = x * y
    x.mul_(2)
    return (z, x.sum())


def mutate_result(x, y):
    z = x + y
    view = z[0]
    z.mul_(2)
    view.add_(1)
    return z, view


def write_row(x, y):
    x[0].copy_(y[1])
    return (x.sum(0),)


def transpose_in_place(x, y):
    x.t_()
    return (x + y,)


def mutate_only(x, y):
    x.zero_()
    return ()


def out_argument(x, y):
    torch.add(y, 1, out=x)
    return (x * 2,)


def copy_from_other_input(x, y):
    x.copy_(y)
    y.add_(1)
    return (x.clone(),)


MUTATIONS = [
    add_in_place,
    add_in_place_and_return,
    mutate_through_view,
    return_view_of_mutated,
    view_then_mutate,
    swap,
    mutate_twice,
    mutate_result,
    write_row,
    transpose_in_place,
    mutate_only,
    out_argument,
    copy_from_other_input,
]


@pytest.mark.parametrize("fn", MUTATIONS, ids=lambda fn: fn.__name__)
def test_mutation(backend: str, fn: Callable) -> None:
    check(backend, fn, tensor(4, 4), tensor(4, 4, seed=1))


# Left out is what eager refuses: out= with gradients, a mutated leaf, a tensor mutated that backward needs.
REFUSED = (out_argument, swap, copy_from_other_input, mutate_twice)


@pytest.mark.parametrize("fn", [fn for fn in MUTATIONS if fn not in REFUSED], ids=lambda fn: fn.__name__)
def test_mutation_in_training(backend: str, fn: Callable) -> None:
    # x is mutated and does not require grad; y does, so that autograd's road is taken.
    got_x, want_x = tensor(4, 4), tensor(4, 4)
    got_y, want_y = tensor(4, 4, grad=True), tensor(4, 4, grad=True)
    compiled = compile_with(backend, fn, [got_x, got_y])
    for got, want in zip(compiled(got_x, got_y), fn(want_x, want_y), strict=True):
        torch.testing.assert_close(got, want)
        assert got.requires_grad == want.requires_grad
        if got.requires_grad:
            got.sum().backward(retain_graph=True)
            want.sum().backward(retain_graph=True)
    torch.testing.assert_close(got_x, want_x)
    torch.testing.assert_close(got_y.grad, want_y.grad)


@pytest.mark.parametrize("fn", [add_in_place, mutate_through_view, swap, mutate_twice], ids=lambda fn: fn.__name__)
def test_overlapping_inputs(backend: str, fn: Callable) -> None:
    compiled = compile_with(backend, fn, [torch.zeros(4, 4), torch.zeros(4, 4)])
    got, want = torch.arange(16.0).view(4, 4), torch.arange(16.0).view(4, 4)
    for mine, theirs in zip(compiled(got, got.view(4, 4)), fn(want, want.view(4, 4)), strict=True):
        torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("grad", [False, True])
def test_overlapping_inputs_at_compile_time(backend: str, grad: bool) -> None:
    def fn(x, y, w):
        x.add_(1)
        return (y * w,)

    def make():
        base = torch.arange(16.0)
        return base[:8], base[4:12], torch.ones(8, requires_grad=grad)

    compiled = compile_with(backend, fn, make())
    got, want = make(), make()
    torch.testing.assert_close(compiled(*got), fn(*want))
    torch.testing.assert_close(got[1], want[1])
    apart_got, apart_want = ([t.detach().clone() for t in make()] for _ in range(2))
    if not grad:
        torch.testing.assert_close(compiled(*apart_got), fn(*apart_want))
        torch.testing.assert_close(apart_got[1], apart_want[1])


def graph_with_grad_modes(*modes: bool) -> torch.fx.GraphModule:
    """x * y, and once more under each of the modes, which stay on, with a view of it."""
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    outputs = [graph.call_function(torch.mul, (x, y))]
    for mode in modes:
        graph.call_function(torch._C._set_grad_enabled, (mode,))
        outputs.append(graph.call_function(torch.mul, (x, y)))
        outputs.append(graph.call_function(torch.unsqueeze, (outputs[-1], 0)))
    graph.output(tuple(outputs))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("modes", [(False,), (True,), (False, True), (True, False)])
def test_grad_mode_nodes(backend: str, grad: bool, start: bool, modes: tuple[bool, ...]) -> None:
    gm = graph_with_grad_modes(*modes)
    inputs = [tensor(3, grad=grad), tensor(3, grad=grad, seed=1)]
    with torch.set_grad_enabled(start):
        compiled = compile_with(backend, gm, inputs)
        expected = gm(*inputs)
        mode_after = torch.is_grad_enabled()
        torch.set_grad_enabled(start)
        got = compiled(*inputs)
        assert torch.is_grad_enabled() == mode_after
    for wanted, value in zip(expected, got, strict=True):
        assert (value.requires_grad, value.is_leaf) == (wanted.requires_grad, wanted.is_leaf)
    torch.testing.assert_close(list(got), list(expected))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode], ids=lambda c: c.__name__)
def test_without_grad_on_parameters(backend: str, context: Callable) -> None:
    weight = torch.nn.Parameter(tensor(4, 4))
    x = tensor(2, 4)

    def fn(x, w):
        return F.linear(x, w).relu(), w, w.t()

    with context():
        compiled = compile_with(backend, fn, [x, weight])
        got, same, view = compiled(x, weight)
        want = fn(x, weight)[0]
        assert same is weight
        assert view.untyped_storage().data_ptr() == weight.untyped_storage().data_ptr()
        assert not got.requires_grad
        assert got.is_inference() == want.is_inference()
    torch.testing.assert_close(got, want)


def test_inputs_made_in_inference_mode(backend: str) -> None:
    with torch.inference_mode():
        x, y = tensor(4, 4), tensor(4, 4, seed=1)
        check(backend, add_in_place_and_return, x, y)


# Eager caches the cast of a leaf, so its gradients are summed in bfloat16; ours are summed in float32.
BF16 = {"rtol": 2e-2, "atol": 3e-2}


def test_autocast_around(backend: str, grad: bool) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check(
            backend,
            lambda x, y: (x @ y, (x @ y).softmax(1), x.exp()),
            tensor(4, 4, grad=grad),
            tensor(4, 4, seed=1),
            tolerance=BF16,
        )


def test_autocast_inside(backend: str, grad: bool) -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    enter = graph.call_function(torch.amp.autocast_mode._enter_autocast, ("cpu", torch.bfloat16, True, None))
    y = graph.call_function(torch.matmul, (x, x))
    graph.call_function(torch.amp.autocast_mode._exit_autocast, (enter,))
    graph.output((y, graph.call_function(torch.matmul, (x, x))))
    check(backend, torch.fx.GraphModule(torch.nn.Module(), graph), tensor(4, 4, grad=grad), tolerance=BF16)
    assert not torch.is_autocast_enabled("cpu")


DTYPES = [
    *(torch.float64, torch.bfloat16, torch.float16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(backend: str, dtype: torch.dtype) -> None:
    x = (tensor(4, 4) * 3).to(dtype)
    y = (tensor(4, 4, seed=1) * 3).to(dtype)
    check(backend, lambda x, y: (x + y, x * y, x == y, x.to(torch.float64)), x, y)


def test_constants_are_fresh_at_each_call(backend: str) -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    constant = graph.call_function(torch.tensor, ([1.0, 2.0],))
    graph.output((constant, graph.call_function(torch.add, (x, constant))))
    compiled = check(backend, torch.fx.GraphModule(torch.nn.Module(), graph), tensor(2))
    first = compiled(torch.zeros(2))[0]
    first.add_(100)
    assert compiled(torch.zeros(2))[0].tolist() == [1.0, 2.0]


def test_attribute_of_the_graph(backend: str) -> None:
    root = torch.nn.Module()
    root.table = torch.arange(4.0)
    graph = torch.fx.Graph()
    x, table = graph.placeholder("x"), graph.get_attr("table")
    graph.output((graph.call_function(torch.mul, (x, table)), table))
    gm = torch.fx.GraphModule(root, graph)
    assert compile_with(backend, gm, [tensor(4)])(tensor(4))[1] is gm.table
    check(backend, gm, tensor(4))


def test_mutated_attribute_of_the_graph(backend: str) -> None:
    root = torch.nn.Module()
    root.register_buffer("count", torch.zeros(()))
    graph = torch.fx.Graph()
    x, count = graph.placeholder("x"), graph.get_attr("count")
    graph.output((graph.call_function(torch.add, (x, graph.call_method("add_", (count, 1)))),))
    gm = torch.fx.GraphModule(root, graph)
    compiled = compile_with(backend, gm, [tensor(2)])
    gm.count.zero_()
    assert [compiled(torch.zeros(2))[0].tolist() for _ in range(2)] == [[1, 1], [2, 2]]


def test_retain_graph(backend: str) -> None:
    x = tensor(4, 4, grad=True)
    (y,) = compile_with(backend, lambda x: ((x * x).sigmoid() @ x,), [x])(x)
    y.sum().backward(retain_graph=True)
    once = x.grad.clone()
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * once)


def test_mixed_requires_grad(backend: str) -> None:
    check(backend, lambda x, y: (x * 2, x + y), tensor(3), tensor(3, grad=True))


def test_batch_norm_updates_its_statistics(backend: str, grad: bool) -> None:
    def fn(x, w, b, mean, var):
        return (F.relu(F.batch_norm(x, mean, var, w, b, training=True)),)

    inputs = [tensor(4, 3, 5, 5), tensor(3, grad=grad), tensor(3, grad=grad, seed=1), torch.zeros(3), torch.ones(3)]
    check(backend, fn, *inputs)


def test_symbolic_sizes(grad: bool) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    x = tensor(4, 6, grad=grad)
    gm, _ = capture(lambda x: ((x * 2).sum(1),), [x])
    fake = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(x)
    compiled = compile_joint(gm, [fake], lambda graph, inputs, phase: graph.forward)
    torch.testing.assert_close(compiled(x)[0], (x * 2).sum(1))


def test_real_example_inputs(backend: str, grad: bool) -> None:
    inputs = [tensor(3, 4, grad=grad), tensor(4)]
    compiled = lookup_backend(backend)(torch.fx.symbolic_trace(lambda x, y: (x * y,)), inputs)
    torch.testing.assert_close(compiled(*inputs)[0], inputs[0] * inputs[1])


def test_everything_is_compiled_ahead() -> None:
    seen = []

    def record(graph, inputs, phase):
        seen.append(phase)
        placeholders = graph.graph.find_nodes(op="placeholder")
        assert len(placeholders) == len(inputs)
        assert all("val" in node.meta for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    def fn(x):
        return (x.sin() * x,)

    for x in (tensor(3), tensor(3, grad=True)):
        compile_joint(*capture(fn, [x]), record)
    assert seen[0] == "inference"
    assert sorted(seen[1:]) == ["backward", "forward"]


@pytest.mark.filterwarnings("ignore")
def test_errors_of_the_program_come_through() -> None:
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        compile_with("aot_eager", lambda x, y: (x @ y,), [tensor(2, 3), tensor(2, 3)])(tensor(2, 3), tensor(2, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_batch_norm_of_low_precision_is_as_close_to_float64_as_eager(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.BatchNorm2d(6), torch.nn.Tanh(), torch.nn.BatchNorm2d(6)).to(dtype)
    x, weight = torch.randn(4, 6, 9, 9).to(dtype), torch.randn(4, 6, 9, 9).to(dtype)

    def run(model: Any, dtype: torch.dtype, wrap: Any = lambda model: model) -> list[torch.Tensor]:
        leaf = x.to(dtype).requires_grad_()
        (wrap(model)(leaf) * weight.to(dtype)).sum().backward()
        found = [leaf.grad, *(p.grad for p in model.parameters()), *model.buffers()]
        return [each for each in found if each is not None and each.is_floating_point()]

    exact = run(copy.deepcopy(model).double(), torch.float64)
    eager = run(copy.deepcopy(model), dtype)
    ours = run(copy.deepcopy(model), dtype, lambda model: dynajit.compile(model, fullgraph=True))
    for e, o, reference in zip(eager, ours, exact, strict=True):
        assert o.dtype is e.dtype
        error, theirs = ((each.double() - reference).norm() / reference.norm() for each in (o, e))
        assert error <= 2 * theirs + torch.finfo(dtype).eps


@pytest.mark.parametrize("shape", [(4, 8, 14, 14), (16, 8, 20, 30)])
def test_batch_norm_in_training_has_the_bits_of_eager(shape: tuple[int, ...]) -> None:
    """Behind many layers of it a gradient hangs on single bits: what is near zero changes its sign."""
    torch.manual_seed(0)
    models = [torch.nn.BatchNorm2d(shape[1]) for _ in range(2)]
    torch.nn.init.normal_(models[0].weight)
    torch.nn.init.normal_(models[0].bias)
    models[1].load_state_dict(models[0].state_dict())
    x = torch.randn(shape) * 2 + 1
    if torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512"):
        assert torch.equal(dynajit.compile(models[0])(x), models[1](x))
        assert torch.equal(models[0].running_mean, models[1].running_mean)
    torch.testing.assert_close(models[0].running_var, models[1].running_var)


def test_a_leaf_that_is_made_behind_a_transform() -> None:
    def program(x: torch.Tensor) -> torch.Tensor | None:
        w = torch.func.grad(lambda q: (q * q).sum())(x).detach().requires_grad_()
        (w * w).sum().backward()
        return w.grad

    x = torch.arange(3.0)
    torch.testing.assert_close(dynajit.compile(program)(x), program(x))


def test_a_view_of_a_result_that_was_made_without_gradients() -> None:
    def program(x):
        y = x + 1
        with torch.no_grad():
            return y, y[0]

    x = torch.ones(3, 3, requires_grad=True)
    wanted, found = ([(r.requires_grad, r.is_leaf) for r in f(x)] for f in (program, dynajit.compile(program)))
    assert found == wanted


def test_a_view_that_was_made_without_gradients() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        with torch.no_grad():
            return y, x[0]

    x = torch.ones(2, 3, requires_grad=True)
    wanted, found = ([(r.requires_grad, r.is_leaf) for r in f(x)] for f in (program, dynajit.compile(program)))
    assert found == wanted


@pytest.mark.parametrize("backend", ("aot_eager", "codegen"))
def test_a_gradient_whose_size_depends_on_values(backend):
    """That of a filled-in value goes over the distinct places. It can't be traced, of which nothing is printed."""
    x, value = torch.randn(5, 5, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    places = torch.tensor([3, 0, 3, 0, 1])
    compiled = dynajit.compile(lambda x, value: x.index_fill(-1, places, value), backend=backend)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gradients = torch.autograd.grad(compiled(x, value).sum(), (x, value))
    assert told == []
    torch.testing.assert_close(gradients, torch.autograd.grad(x.index_fill(-1, places, value).sum(), (x, value)))


def test_a_fault_of_our_own_is_loud(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ran as captured without a word, as what AOTAutograd can't express does."""
    monkeypatch.setattr("dynajit.aot.autograd.reachability_of", lambda: None)  # which takes arguments
    x = torch.ones(3, requires_grad=True)
    with pytest.warns(UserWarning, match="(?s)failed while compiling a graph.*autograd.py.*TypeError"):
        result = dynajit.compile(lambda x: x.sin() * 2)(x)
    torch.testing.assert_close(result, x.sin() * 2)
