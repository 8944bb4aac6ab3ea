"""Backward passes that start from some of a graph's results: gradients, None where eager gives none, errors, NaN."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dynajit
from dynajit.testing import CompileCounterWithBackend, compare

BACKENDS = ["aot_eager", "codegen"]
HEADS = nn.ModuleDict({"body": nn.Linear(3, 3), "left": nn.Linear(3, 2), "right": nn.Linear(3, 1)})


def heads(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = HEADS["body"](x).tanh()
    a, b = HEADS["left"](h), HEADS["right"](h)
    return a, b, HEADS["left"]((b.detach() * 2).expand(2, 3)).sum(), b.floor(), torch.log(HEADS["right"].bias * 0)


def grads(module: nn.Module) -> list[torch.Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def passes(fn: Callable[..., Any], orders: tuple[tuple[int, ...], ...]) -> list[Any]:
    """What backward gives from the sums of these results, one after the other."""
    results = fn(torch.ones(2, 3))
    seen: list[Any] = []
    for numbers in orders:
        HEADS.zero_grad(set_to_none=True)
        try:
            sum(results[number].sum() for number in numbers).backward()
            seen.append(grads(HEADS))
        except RuntimeError as error:
            seen.append(str(error))
    return seen


def assert_equal(got: Any, wanted: Any) -> None:
    if isinstance(wanted, list):
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            assert_equal(one, other)
    elif isinstance(wanted, torch.Tensor):
        assert isinstance(got, torch.Tensor)
        torch.testing.assert_close(got, wanted, equal_nan=True)
    else:
        assert got == wanted


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "orders",
    [
        ((0,), (2,), (1,)),
        ((0, 1), (2,)),
        ((3,), (2,), (4,)),
        ((0, 2), (4,)),
        ((2,), (2,)),
        ((0, 1, 2, 3, 4), (2,)),
        ((4,), (2,), (3,), (0,)),
    ],
)
def test_gradients_and_errors_are_eagers(backend: str, orders: tuple[tuple[int, ...], ...]) -> None:
    wanted = passes(heads, orders)
    assert_equal(passes(dynajit.compile(heads, backend=backend, fullgraph=True), orders), wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_infinite_derivative_of_another_result_is_not_multiplied_by_zero(backend: str) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = x * 2
        return h.sum(), h.sqrt()

    compiled = dynajit.compile(fn, backend=backend)
    x = torch.zeros(3, requires_grad=True)
    total, _ = compiled(x)
    total.backward()
    assert x.grad is not None and x.grad.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_adversarial_training_in_one_function(backend: str) -> None:
    def train(compile: Callable[..., Any]) -> tuple[list[Any], list[torch.Tensor]]:
        torch.manual_seed(0)
        generator, critic = nn.Linear(3, 4), nn.Linear(4, 1)
        first = torch.optim.SGD(critic.parameters(), 0.1, momentum=0.9)
        second = torch.optim.SGD(generator.parameters(), 0.1, weight_decay=0.1)

        def step(noise: torch.Tensor, real: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            fake = generator(noise).view(-1, 2, 2)
            first.zero_grad()
            loss = F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach().flatten(1))).mean()
            loss.backward()
            first.step()
            second.zero_grad()
            score = F.softplus(-critic(fake.flatten(1))).mean()
            score.backward()
            second.step()
            return loss.detach(), score.detach()

        compiled = compile(step)
        torch.manual_seed(1)
        losses = [compiled(torch.randn(6, 3), torch.randn(6, 4)) for _ in range(3)]
        return losses, [*generator.parameters(), *critic.parameters()]

    wanted = train(lambda fn: fn)
    torch.testing.assert_close(train(dynajit.compile(backend=backend)), wanted)


def test_what_was_saved_goes_when_no_result_needs_it() -> None:
    """As in a model that returns its loss and what that was computed from: after loss.backward() the rest has no
    backward, and does not keep what the graph saved."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = (x.exp() * 3).exp()
        return logits.logsumexp(0), logits

    compiled = dynajit.compile(fn, backend="aot_eager")
    inner = torch.ones(4, requires_grad=True) * 1
    saved = weakref.ref(inner)
    loss, logits = compiled(inner)
    del inner
    assert saved() is not None
    loss.backward()
    gc.collect()
    assert saved() is None
    with pytest.raises(RuntimeError, match="second time"):
        logits.sum().backward()


def test_one_backward_graph_for_a_model_that_returns_its_loss_and_more() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, inputs: list[Any], phase: str) -> Callable[..., Any]:
        if phase == "backward":
            graphs.append(graph)
        return graph.forward

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        from dynajit.aot import compile_joint

        return compile_joint(gm, inputs, keep)

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = x.exp()
        return logits.logsumexp(0), logits

    counter = CompileCounterWithBackend(backend)
    compiled = dynajit.compile(fn, backend=counter)
    for _ in range(2):
        compiled(torch.ones(4, requires_grad=True))[0].backward()
    assert counter.frame_count == 1
    assert len(graphs) == 1 and not any("add" in str(node.target) for node in graphs[0].graph.nodes)


@pytest.mark.parametrize("backend", ["eager", *BACKENDS])
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_another_result_needs_was_written(backend: str, dynamic: bool) -> None:
    def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = abs(x)
        return h, h.sin()

    x = torch.tensor([-1.0, 2.0], requires_grad=True)
    first, second = dynajit.compile(two, backend=backend, dynamic=dynamic)(x)
    first %= 2
    first.sum().backward()
    assert_equal(x.grad, torch.tensor([-1.0, 1.0]))
    with pytest.raises(RuntimeError):
        second.sum().backward()


@pytest.mark.parametrize("backend", ["eager", *BACKENDS])
def test_an_input_without_gradient_gets_another_size(backend: str) -> None:
    def function(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        half = x * 0.5
        z.float().view(-1)
        torch.set_grad_enabled(False)
        torch.mul(half, x, out=z)
        return half

    x, z = torch.ones(3, 3, requires_grad=True), torch.zeros(0, requires_grad=True)
    with torch.enable_grad():
        result = dynajit.compile(function, backend=backend)(x, z)
    torch.autograd.backward([result.sum(), z.sum()])
    assert_equal(z.grad, torch.ones(3, 3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_of_the_optimizer_in_the_graph_leaves_results_apart(backend: str) -> None:
    def program(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            weight.sub_(0.5)
        return (weight * x.detach()).sin().sum(), x * 2

    gradients = []
    for call in (program, dynajit.compile(program, backend=backend)):
        x, weight = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        loss, y = call(x, weight)
        loss.backward()
        assert x.grad is None
        y.sum().backward()
        gradients.append([x.grad, weight.grad])
    assert_equal(gradients[1], gradients[0])


def three(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sin(), x.exp(), x.cos()


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("used", [(0,), (1,), (0, 2), (0, 1, 2)])
def test_hooks_of_results_run_where_backward_comes_by_them(used: tuple[int, ...], backend: str) -> None:
    def program(fn: Callable[..., Any]) -> list[Any]:
        x, seen = torch.ones(3, requires_grad=True), []
        results = fn(x)
        for number, result in enumerate(results):
            result.register_hook(lambda grad, number=number: seen.append((number, grad)) or grad * 2)
        results[1].retain_grad()
        torch.autograd.backward([results[number].sum() for number in used])
        return [x.grad, results[1].grad, sorted(seen, key=lambda pair: pair[0])]

    compiled = dynajit.compile(three, backend=backend)
    for _ in range(2):
        compare(program(compiled), program(three), exact=False)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "codegen"])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1), (0, 2), (2,)])
def test_hooks_of_leaves_hear_of_results_that_depend_on_them(used: tuple[int, ...], late: bool, backend: str) -> None:
    def heads(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, z = (w * 2).abs(), x * 3
        dynajit.graph_break()
        return y, z, w.exp() * 2, z + x

    def gradients(fn: Any) -> list[Any]:
        x, w = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, -1.0], requires_grad=True)
        heard: list[Any] = []

        def listen() -> None:
            x.register_hook(lambda grad: heard.append("x") or grad * 2)
            w.register_hook(lambda grad: heard.append("w") or grad * 5)
            torch.autograd.graph.register_multi_grad_hook((x, w), lambda grads: heard.append(str(grads)))

        if not late:
            listen()
        results = fn(x, w)
        if late:
            listen()
        found = []
        # what a pass leaves out is there for the next one, also after one that raises
        for places in (used, (3,), used):
            torch.autograd.backward([results[place].sum() for place in places], retain_graph=True)
            found += [sorted(heard), *(None if leaf.grad is None else leaf.grad.tolist() for leaf in (x, w))]
            handle = x.register_hook(lambda grad: 1 / 0)
            with contextlib.suppress(ZeroDivisionError):
                results[3].sum().backward(retain_graph=True)
            handle.remove()
        return found

    compiled = dynajit.compile(heads, backend=backend)
    for _ in range(2):
        assert gradients(compiled) == gradients(heads)


def test_results_that_backward_keeps_die_with_the_program() -> None:
    def grown(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.exp()
        return y, y.tanh(), y.sin()

    compiled = dynajit.compile(grown)
    gc.collect()
    gc.disable()
    try:
        results = compiled(torch.ones(3, requires_grad=True))
        dying: list[Any] = [weakref.ref(result) for result in results]
        node: Any = results[0].grad_fn
        while node.next_functions:  # a hook lives as long as the node that has it
            hook = lambda *_: None  # noqa: E731
            node.register_prehook(hook)
            dying.append(weakref.ref(hook))
            node = node.next_functions[0][0]
        del results, node, hook
        assert len(dying) > 4
        assert not any(ref() for ref in dying)
    finally:
        gc.enable()
