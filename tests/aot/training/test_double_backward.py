"""Gradients of gradients through several compiled graphs, whose inputs are memory that nobody need keep."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.checkpoint import create_selective_checkpoint_contexts as selective

import dynajit

W = (torch.eye(6) * 0.5 + 0.1).requires_grad_()
MEAN, VAR, COUNT = torch.zeros(6), torch.ones(6), torch.tensor(0)
WRITTEN = torch.zeros(6)
ROWS = 5


def _chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = (x * y).relu() + x
        dynajit.graph_break()
    return x @ W * y


def _two_results(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    a, b = x.exp() * y, (x @ W).sin()
    dynajit.graph_break()
    c = a + b.relu() * 2
    dynajit.graph_break()
    return c * c + a


def _masks(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    dynajit.graph_break()
    x = torch.where(x > 0, x, x * 0.5)
    dynajit.graph_break()
    return x.square() + y


def _random(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = torch.nn.functional.dropout(x, 0.5) * y
    dynajit.graph_break()
    x = x.relu() + 1
    dynajit.graph_break()
    return x.square() @ W


def _written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Past autograd, and between the graphs."""
    x = x * y
    with torch.no_grad():
        dynajit.disable(x.add_)(1)
    x = x.relu() + x
    dynajit.graph_break()
    return x.square()


def _viewed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = x * y
    dynajit.graph_break()
    a, b = x[:2].relu(), x.t().relu()
    dynajit.graph_break()
    return a.square().sum() + (b * 2).square().sum()


def _selective(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A region that runs operation by operation, between two graphs."""
    x = x * y
    dynajit.graph_break()
    contexts = functools.partial(selective, [torch.ops.aten.mm.default])
    x = checkpoint(lambda q: q.sin() @ W, x, use_reentrant=False, context_fn=contexts)
    dynajit.graph_break()
    return (x * y).exp()


def _offloaded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Operations for hooks on saved tensors, between two graphs."""
    x = x * y
    with torch.autograd.graph.save_on_cpu():
        x = (x @ W).sin() + y
    return x.relu() * y.exp() + x.exp()


def _written_in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """By the continuations, which are one node each."""
    x = x @ W + y
    dynajit.graph_break()
    torch.nn.functional.leaky_relu(x, 0.2, inplace=True)
    x = x * y
    dynajit.graph_break()
    x.mul_(2).sin_()
    return x.square()


def _written_and_returned(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    first, second = (x * y).unbind(0)[:2]
    x = x * y
    dynajit.graph_break()
    x[0] = y[1] * second
    dynajit.graph_break()
    return x.exp_() * first


def _normed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Running statistics are written, and read by nobody."""
    x = torch.nn.functional.batch_norm(x @ W, MEAN, VAR, training=True)
    COUNT.add_(1)
    dynajit.graph_break()
    return torch.nn.functional.batch_norm(x * y, MEAN, VAR, training=True).sin()


def _views_of_results(x: torch.Tensor, y: torch.Tensor) -> Any:
    a, b = x * y, (x @ W).sin()
    dynajit.graph_break()
    c, d = a * b, a.sin()
    dynajit.graph_break()
    return _joined(*_views(c, d))


def _views(c: torch.Tensor, d: torch.Tensor) -> Any:
    e = c * d
    dynajit.graph_break()
    return e, e[1:], (c * 0.1).view(-1)[3:], d.t()[::2]


def _joined(e: torch.Tensor, f: torch.Tensor, g: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    dynajit.graph_break()
    return e.mean() * f.mean() + g.mean() * h.square().mean()


def _one_view(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """As discriminators return it, and written by the next graph."""
    x = (x * y).sin()[1:]
    dynajit.graph_break()
    x.mul_(2)
    return (x @ W).exp().view(-1)


def _in_bfloat16(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        x = (x @ W).sin()
        dynajit.graph_break()
        with torch.autocast("cpu", enabled=False):
            x = x.float() @ W
        return (x @ W).float() * y


def _gradients(f: Callable[..., Any], wanted: str) -> list[Any]:
    torch.manual_seed(0)
    x = torch.randn(ROWS, 6, dtype=torch.float32).requires_grad_()
    y = torch.rand(ROWS, 6).add(0.5).requires_grad_()
    inputs = {"x": [x], "W": [W], "all": [x, y, W]}[wanted]
    result = f(x, y).sum()
    gc.collect()
    first = torch.autograd.grad(result, inputs, create_graph=True, allow_unused=True)
    found = sum((each.square().sum() for each in first if each is not None), result * 0)
    second = torch.autograd.grad(found, [x, y, W], allow_unused=True)
    return [torch.zeros(()) if each is None else each.detach() for each in (*first, *second)]


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
@pytest.mark.parametrize("wanted", ["x", "W", "all"])
@pytest.mark.parametrize(
    "f",
    [
        *(_chain, _two_results, _masks, _random, _written, _viewed, _selective, _offloaded),
        *(_written_in_place, _written_and_returned, _normed, _in_bfloat16, _views_of_results, _one_view),
    ],
)
def test_through_several_graphs(f: Callable[..., Any], wanted: str, backend: str) -> None:
    found, expected = _gradients(dynajit.compile(f, backend=backend), wanted), _gradients(f, wanted)
    for each, value in zip(found, expected, strict=True):
        # a sum of bfloat16 is as exact as the greatest number in it, and each processor adds in its own order
        close = 2e-2 * max(float(value.abs().max()), 1) if f is _in_bfloat16 else 1e-4
        torch.testing.assert_close(each, value, rtol=1e-4, atol=close)


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
def test_running_statistics_are_written_once_for_each_call(backend: str) -> None:
    """Not by what runs again, and a call in between may write them."""
    found = []
    for wrap in (lambda m: m, functools.partial(dynajit.compile, backend=backend)):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), torch.nn.LeakyReLU(0.2, inplace=True)
        )
        run = wrap(model)
        x = torch.randn(ROWS, 6).requires_grad_()
        result = run(x).sum()
        run(torch.randn(ROWS, 6))
        (grad,) = torch.autograd.grad(result, x, create_graph=True)
        grad.square().sum().backward()
        found.append([grad.detach(), x.grad, model[0].weight.grad, model[1].weight.grad, *model.buffers()])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
    assert found[1][-1] == 2


def test_a_penalty_on_gradients_inside_a_compiled_function() -> None:
    """The line that has the input ask for gradients breaks the graph in the module's loop."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.LeakyReLU(0.2, inplace=True), torch.nn.Linear(4, 1))

    def f(x: torch.Tensor) -> torch.Tensor:
        (grad,) = torch.autograd.grad(model(x.requires_grad_()).sum(), x, create_graph=True)
        return (grad.norm(2, 1) - 1).square().mean()

    x, found = torch.randn(ROWS, 6), []
    for run in (f, dynajit.compile(f, backend="codegen")):
        found.append(torch.autograd.grad(run(x.clone()), model[0].weight)[0])
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
def test_what_was_drawn_is_drawn_again(backend: str) -> None:
    """Whatever has been drawn since, which goes on as it would have."""
    found = []
    for run in (_random, dynajit.compile(_random, backend=backend)):
        torch.manual_seed(1)
        x, y = torch.ones(ROWS, 6, requires_grad=True), torch.ones(ROWS, 6)
        result = run(x, y).sum()
        drawn = torch.rand(3)
        (first,) = torch.autograd.grad(result, W, create_graph=True)
        found.append([drawn, first.detach(), *torch.autograd.grad((first * W).sum(), (x, W)), torch.rand(3)])
    torch.testing.assert_close(found[1], found[0])


def test_what_a_generator_of_the_program_drew_stays() -> None:
    generator, found = torch.Generator(), []

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * torch.rand(ROWS, 6, generator=generator) @ W).sin()

    for run in (f, dynajit.compile(f, backend="codegen")):
        generator.manual_seed(1)
        (first,) = torch.autograd.grad(run(torch.ones(ROWS, 6)).sum(), W, create_graph=True)
        found.append([first.detach(), *torch.autograd.grad(first.sum(), W), torch.rand(3, generator=generator)])
    torch.testing.assert_close(found[1], found[0])


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _doubled_in_a_region(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(_doubled, x, use_reentrant=True)  # type: ignore[no-any-return]


def _doubled_by_operations_of_a_region(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(_doubled, x, use_reentrant=False, context_fn=lambda: selective([]))  # type: ignore[no-any-return]


def _doubled_for_hooks(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.save_on_cpu():
        return x * 2


@pytest.mark.parametrize(
    "double", [_doubled, _doubled_in_a_region, _doubled_by_operations_of_a_region, _doubled_for_hooks]
)
def test_inputs_of_a_continuation_die(double: Callable[..., torch.Tensor]) -> None:
    """Where backward needs less of them."""
    seen: list[weakref.ref[torch.Tensor]] = []

    @dynajit.disable
    def note(x: torch.Tensor) -> None:
        seen.append(weakref.ref(x))

    def f(x: torch.Tensor) -> torch.Tensor:
        x = double(x)
        note(x)
        return x.relu() + 1

    x = torch.randn(64, 64, requires_grad=True)
    result = dynajit.compile(f, backend="codegen")(x)
    assert seen[0]() is None
    if double is _doubled_in_a_region:  # which takes no other way
        result.sum().backward()
        found = x.grad
    else:
        (found,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        assert found.requires_grad
    torch.testing.assert_close(found.detach(), torch.autograd.grad((x * 2).relu().sum(), x)[0])


def test_a_graph_whose_inputs_were_written_does_not_run_again() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x + y
        dynajit.graph_break()
        return x.relu() * 2

    x, y = torch.randn(8, requires_grad=True), torch.zeros(8)
    result = dynajit.compile(f, backend="codegen")(x, y).sum()
    y.fill_(7)
    (first,) = torch.autograd.grad(result, x, create_graph=True)
    torch.testing.assert_close(first.detach(), (x > 0) * 2.0)
    with pytest.raises(RuntimeError, match="can't be differentiated again"):
        first.sum().backward()


def _compiled(*functions: Callable[..., Any]) -> list[Callable[..., Any]]:
    return [dynajit.compile(each, backend="codegen") for each in functions]


def test_two_heads_on_a_trunk_whose_backward_ran() -> None:
    """It computes what the second head was given, though its own inputs are not needed any more."""
    functions = (lambda x: x.sin(), lambda h: h.relu() * 2, lambda h: (h.relu() @ W).sin())
    found = []
    for trunk, first, second in (functions, _compiled(*functions)):
        x = torch.linspace(-1, 1, 12).view(2, 6).requires_grad_()
        hidden = trunk(x)
        one, other = first(hidden).sum(), second(hidden).sum()
        del hidden
        torch.autograd.grad(one, x)
        (grad,) = torch.autograd.grad(other, W, create_graph=True)
        found.append([grad.detach(), *torch.autograd.grad((grad * W).sum(), W)])
    torch.testing.assert_close(found[1], found[0])


def test_a_graph_that_keeps_nothing_is_differentiated_after_its_backward_ran() -> None:
    found = []
    for shift in (lambda x: x + 1, *_compiled(lambda x: x + 1)):
        x = torch.linspace(-1, 1, 6).requires_grad_()
        hidden = shift(x)
        torch.autograd.grad(hidden.sum(), x)
        (grad,) = torch.autograd.grad(hidden.square().sum(), x, create_graph=True)
        found.append([grad.detach(), *torch.autograd.grad(grad.square().sum(), x)])
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("trunk", [lambda x: x.exp(), lambda x: x.sin()])
@pytest.mark.parametrize("head", [lambda h: h.relu().square(), lambda h: h.sin(), lambda h: (h @ W).tanh()])
def test_written_through_data_between_two_graphs(
    head: Callable[..., Any], trunk: Callable[..., Any], late: bool
) -> None:
    """Autograd does not count the write, so what is computed again may not be what eager's operations kept."""
    found = []
    for first, second in ((trunk, head), _compiled(trunk, head)):
        x = torch.linspace(-1, 1, 12).view(2, 6).requires_grad_()
        hidden = first(x)
        result = second(hidden).sum() if late else None
        hidden.data.mul_(-2)
        result = second(hidden).sum() if result is None else result
        del hidden
        (grad,) = torch.autograd.grad(result, x, create_graph=True)
        try:
            found.append([grad.detach(), *torch.autograd.grad(grad.square().sum(), x)])
        except RuntimeError as error:
            assert first is not trunk and "can't be differentiated again" in str(error)
            found.append(found[0])
    torch.testing.assert_close(found[1], found[0])


def test_a_derivative_that_there_is_none_of_is_an_error_on_the_way_to_any_input() -> None:
    """Asked for one input's alone, autograd goes only where that is reached."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x @ W).sin() + WRITTEN

    result = dynajit.compile(f, backend="codegen")(torch.ones(2, 6))
    WRITTEN.add_(1)  # so that the graph can't run again
    (grad,) = torch.autograd.grad(result.sum(), W, create_graph=True)
    with pytest.raises(RuntimeError, match="can't be differentiated again"):
        torch.autograd.grad((grad * W).sum(), W)


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
def test_statistics_that_nothing_reads_beside_an_alias_of_a_result(backend: str) -> None:
    """The graph runs once more for each backward pass that is differentiated."""

    def observed(compiled: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        norm = torch.nn.BatchNorm1d(4).requires_grad_(False)

        def f(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            norm(y)
            twice = y * 2
            return twice, twice.detach()

        y = torch.randn(4, 4, requires_grad=True)
        result = (dynajit.compile(f, backend=backend) if compiled else f)(y)[0].square().sum()
        found = []
        for _ in range(3):
            (grad,) = torch.autograd.grad(result, y, create_graph=True)
            found += [grad.detach(), *torch.autograd.grad(grad.square().sum(), y, retain_graph=True)]
        return [*found, norm.running_mean, norm.num_batches_tracked]  # type: ignore[list-item]

    torch.testing.assert_close(observed(True), observed(False))


@pytest.mark.parametrize("name", ["uniform_", "normal_", "exponential_", "zero_", "random_"])
def test_what_an_input_that_is_filled_anew_held_does_not_matter(name: str) -> None:
    def f(x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        getattr(noise, name)()
        return x.exp() * noise

    found = []
    for call in (f, dynajit.compile(f, backend="codegen")):
        torch.manual_seed(0)
        x, noise = torch.ones(3, requires_grad=True), torch.ones(3)
        (first,) = torch.autograd.grad(call(x, noise).square().sum(), x, create_graph=True)
        first.square().sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("name", ["sin_", "t_then_mul_"])
def test_an_input_without_gradients_is_written_and_computed_with(name: str) -> None:
    def f(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        state.sin_() if name == "sin_" else state.t().mul_(0.9)
        return torch.where(x > 0, x, state).sin()

    found = []
    for call in (f, dynajit.compile(f, backend="codegen")):
        x, state = torch.eye(3).requires_grad_(), torch.ones(3, 3)
        for _ in range(2):
            result = call(x, state)
            state.add_(1)
            (first,) = torch.autograd.grad(result.square().sum(), x, create_graph=True)
            first.square().sum().backward()
        found.append((result.detach(), state, x.grad))
    torch.testing.assert_close(found[1], found[0])
    assert result.grad_fn.name() == "DynajitBackward"


def test_a_large_input_that_is_written_and_computed_with_is_not_copied_at_each_call() -> None:
    """Eager would not have another one in memory: the second derivative is refused."""

    def f(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x, state.sin_()).sin()

    x = torch.ones(300, 300).requires_grad_()
    result = dynajit.compile(f, backend="codegen")(x, torch.ones(300, 300))
    (first,) = torch.autograd.grad(result.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="can't be differentiated again"):
        first.sum().backward()
