"""Every optimizer in its forms: steps, closures, schedules and states as eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dynajit
from dynajit.testing import CompileCounter, compare

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "Adam": {},
    "AdamW": {"amsgrad": True},
    "Adamax": {},
    "NAdam": {},
    "RAdam": {},
    "Adagrad": {},
    "Adadelta": {},
    "RMSprop": {"lr": 0.01, "momentum": 0.9, "centered": True},
    "Rprop": {},
    "ASGD": {"weight_decay": 0.1},
}
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "foreach": {"foreach": True, "maximize": True},
    "single": {"foreach": False},
    "tensor_lr": {"foreach": False, "lr": torch.tensor(0.01)},
}


def x() -> torch.Tensor:
    return torch.arange(15.0).reshape(5, 3) / 10


def train(wrap: Callable[..., Any], name: str, form: str, closure: bool) -> Any:
    """Parameters and state after four steps, with a schedule, and a round trip of the state in between."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    options = {**OPTIMIZERS[name], **copy.deepcopy(FORMS[form])}
    optimizer = getattr(torch.optim, name)(model.parameters(), **options)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = (model(x()) ** 2).mean()
        value.backward()
        return value

    def step() -> Any:
        return optimizer.step(loss) if closure else optimizer.step()

    step = wrap(step)
    losses = []
    for number in range(4):
        if not closure:
            loss()
        losses.append(step())
        schedule.step()
        if number == 1:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return losses, list(model.parameters()), optimizer.state_dict()


@pytest.mark.parametrize(("form", "closure"), [*((form, False) for form in FORMS), ("plain", True)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_as_eager(name: str, form: str, closure: bool) -> None:
    try:
        expected = train(lambda fn: fn, name, form, closure)
    except (TypeError, RuntimeError, ValueError) as error:
        pytest.skip(f"eager refuses: {error}")
    dynajit.reset()
    compare(train(dynajit.compile(backend="eager"), name, form, closure), expected, exact=False, rtol=1e-4, atol=1e-6)
    assert not dynajit.counters["internal_errors"]


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adamax", "NAdam", "Rprop"])
def test_foreach_is_one_graph(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, foreach=True)
    for _ in range(2):
        optimizer.zero_grad()
        model(x()).sum().backward()
        report = dynajit.explain(lambda: optimizer.step(), backend="eager")()
        assert report.error is None and report.graph_break_count == 0 and report.graph_count == 1


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", ["RAdam", "ASGD"])
def test_choices_by_numbers_in_tensors_are_part_of_the_graph(name: str, foreach: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, foreach=foreach)
    step = dynajit.compile(lambda: optimizer.step(), backend="eager")
    before = dynajit.counters()["graph_break_events"]
    for _ in range(8):  # RAdam goes another way from the sixth step on
        optimizer.zero_grad()
        model(x()).sum().backward()
        step()
    assert dynajit.counters()["graph_break_events"] == before


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_lists_written_in_place_alone(backend: str) -> None:
    """Nothing is returned: the writes are all that the graph is for."""

    def f(a: torch.Tensor, b: torch.Tensor) -> None:
        torch._foreach_mul_([a, b], 0.5)
        torch._foreach_add_([b], [a], alpha=2)
        torch._foreach_addcdiv_([a, b], [a * 2, b - 1], [a + 1, b + 1], [0.5, 0.25])

    compiled = dynajit.compile(f, backend=backend)
    for size in (2, 2, 3):
        expected, actual = ([torch.ones(size), torch.full((size,), 3.0)] for _ in range(2))
        f(*expected)
        compiled(*actual)
        compare(actual, expected, exact=False)


@pytest.mark.parametrize("name", ["Adam", "NAdam", "Adamax"])
def test_numbers_made_of_the_count_of_steps_are_as_exact_as_in_eager(name: str) -> None:
    def weights(compiled: bool) -> list[torch.Tensor]:
        weight = nn.Parameter(torch.linspace(-1, 1, 5))
        optimizer = getattr(torch.optim, name)([weight], lr=0.05)
        step = dynajit.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        seen = []
        for count in range(3):
            weight.grad = torch.arange(5.0) * 0.3 - count
            step()
            seen.append(weight.detach().clone())
        return seen

    assert all(torch.equal(*pair) for pair in zip(weights(False), weights(True)))


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "decoupled_weight_decay": True}])
@pytest.mark.parametrize("foreach", [False, True])
def test_radam_gives_eagers_weights(foreach: bool, options: dict[str, Any]) -> None:
    def trained(compiled: bool) -> tuple[list[nn.Parameter], dict[str, Any]]:
        torch.manual_seed(0)
        weights = [nn.Parameter(torch.linspace(-1, 1, 5)), nn.Parameter(torch.randn(3, 4))]
        optimizer = torch.optim.RAdam(weights, lr=0.05, foreach=foreach, **options)
        step = dynajit.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        for count in range(9):  # it goes another way from the sixth step on
            for weight in weights:
                weight.grad = torch.sin(weight.detach() * 3 + count)
            step()
        return weights, optimizer.state_dict()

    compare(trained(True), trained(False))


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_compiles_what_its_closure_calls(search: str | None) -> None:
    """Each of its steps goes another way, and its history grows: 65 graphs in ten calls were made of it."""
    counter = CompileCounter()

    def trained(compiled: bool) -> tuple[list[torch.Tensor], list[nn.Parameter]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn=search)

        def step() -> torch.Tensor:
            def loss() -> torch.Tensor:
                optimizer.zero_grad()
                value = model(x()).square().mean()
                value.backward()
                return value

            return optimizer.step(loss).detach() * 2

        run = dynajit.compile(step, backend=counter) if compiled else step
        return [run() for _ in range(8)], [*model.parameters()]

    compare(trained(True), trained(False))
    assert 2 <= counter.frame_count <= 4  # the model's loss, and what follows the step
