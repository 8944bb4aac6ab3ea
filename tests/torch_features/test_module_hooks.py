"""Hooks of modules that a compiled function registers itself, hooks of all modules, and hooks called in any case."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import dynajit
from dynajit.report import records
from dynajit.report.explain import ExplainReport
from dynajit.testing import assert_same, compare

Tensor = torch.Tensor
BACKENDS = ["eager", "codegen"]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))


def features(model: nn.Sequential, x: Tensor) -> Any:
    seen: dict[str, Tensor] = {}
    handles = [
        child.register_forward_hook(lambda module, inputs, result, name=name: seen.__setitem__(name, result.detach()))
        for name, child in model.named_children()
    ]
    y = model(x)
    for handle in handles:
        handle.remove()
    return y, seen


def changed_inputs(model: nn.Module, x: Tensor) -> Tensor:
    handle = model.register_forward_pre_hook(
        lambda module, args, kwargs: ((args[0] * 2,), kwargs), with_kwargs=True, prepend=True
    )
    try:
        y: Tensor = model(x)
    finally:
        handle.remove()
    return y


class Recorder:
    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.results: list[Tensor] = []

    def __enter__(self) -> Recorder:
        self.handle = self.module.register_forward_hook(lambda module, inputs, result: self.results.append(result))
        return self

    def __exit__(self, *error: object) -> None:
        self.handle.remove()


def recorded(model: nn.Module, x: Tensor) -> Any:
    with Recorder(model[0]) as recorder:  # type: ignore[index]
        y = model(x)
    return y, recorder.results


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [features, changed_inputs, recorded])
def test_registered_and_removed_inside(program: Any, backend: str) -> None:
    """Each call gives the handles other numbers: they are not what the trace holds for."""
    assert_same(program, net(), torch.randn(2, 3), repeat=4, graphs=1, breaks=0, recompiles=0, backend=backend)


def test_two_on_one_module() -> None:
    def f(model: nn.Module, x: Tensor) -> Any:
        first, second = (model.register_forward_hook(lambda module, inputs, result: result + 1) for _ in range(2))
        y = model(x)
        first.remove()
        z = model(x)
        second.remove()
        return y, z, model(x), second.id - first.id

    assert_same(f, nn.Linear(3, 3), torch.randn(2, 3), repeat=3, graphs=1, breaks=0)


def test_the_handle_is_returned() -> None:
    def f(x: Tensor) -> Any:
        return model(x), model.register_forward_hook(lambda module, inputs, result: result * 2)

    model = nn.Identity()
    compiled = dynajit.compile(f, backend="eager")
    handles = [compiled(torch.ones(2))[1] for _ in range(3)]
    assert list(model._forward_hooks) == [handle.id for handle in handles]
    for handle in handles:
        handle.remove()
    assert not model._forward_hooks


def test_of_all_modules() -> None:
    compiled, x = dynajit.compile(nn.Linear(3, 3), backend="eager"), torch.ones(2, 3)
    plain = compiled(x)
    handle = nn.modules.module.register_module_forward_hook(lambda module, inputs, result: result * 2)
    try:
        assert torch.equal(compiled(x), plain * 2)
    finally:
        handle.remove()
    assert torch.equal(compiled(x), plain)


class Refuses(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("no")


@pytest.mark.parametrize("everywhere", [False, True])
def test_called_behind_an_exception_too(everywhere: bool) -> None:
    def f(x: Tensor) -> Any:
        try:
            model(x)
        except ValueError as error:
            return x + 1, str(error)

    model, seen = Refuses(), []
    register = nn.modules.module.register_module_forward_hook if everywhere else model.register_forward_hook
    compiled = dynajit.compile(f, backend="eager")
    compiled(torch.ones(2))
    handle = register(lambda *args: seen.append(len(args)), always_call=True)  # type: ignore[operator]
    try:
        for _ in range(2):
            assert compiled(torch.ones(2))[1] == "no"
    finally:
        handle.remove()
    assert seen == [3, 3]


def test_full_backward_hooks_end_the_graph_twice_a_module() -> None:
    def f(model: nn.Module, x: Tensor) -> Tensor:
        result: Tensor = model(x.exp()).sin()
        return result

    outcomes = []
    for run in (f, dynajit.compile(f, backend="eager")):
        torch.manual_seed(0)
        model, x, seen = nn.Linear(3, 3), torch.ones(2, 3, requires_grad=True), []
        model.register_full_backward_hook(lambda module, into, out, seen=seen: seen.append((into, out)))
        model.register_full_backward_hook(lambda module, into, out: (into[0] * 2,))
        model.register_full_backward_pre_hook(lambda module, out: (out[0] * 3,))
        for _ in range(2):
            run(model, x).sum().backward()
        outcomes.append((seen, x.grad, model.weight.grad))
    compare(outcomes[1], outcomes[0])
    report = dynajit.explain(f, backend="eager")(model, x)
    assert [brk.kind for brk in report.break_reasons] == ["module-backward-hook"] * 2
    assert report.graph_count == 3
    with torch.no_grad():
        report = assert_same(f, model, x.detach(), graphs=1, breaks=0)
    assert report.frames[0].code_name == "f" and report.op_count == 3


def test_lazy_modules_are_in_the_graph_of_their_first_call() -> None:
    def f(model: nn.Module, x: Tensor) -> Any:
        y = model[0](x).relu()  # type: ignore[index]
        return model[1](y)  # type: ignore[index]

    models = nn.ModuleList([nn.LazyLinear(4), nn.LazyLinear(2)])
    assert_same(f, models, torch.ones(2, 3), repeat=1, graphs=1, breaks=0)


class Ordered(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)
        self.blocks = nn.ModuleList(net() for _ in range(depth))
        for block in self.blocks:
            block.append(nn.Linear(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.last(x)
        return result


@pytest.mark.parametrize("around", ["each", "each and all"])
def test_equal_modules_between_hooks_that_are_never_traced_are_captured_once(around: str) -> None:
    """As `fully_shard` adds them: numbers of hooks, and how many blocks there are, are nothing to capture again for."""
    log: list[str] = []

    @dynajit.disable
    def before(module: nn.Module, args: Any) -> None:
        log.append(f"before {type(module).__name__}")

    @dynajit.disable
    def after(module: nn.Module, args: Any, result: Tensor) -> Tensor:
        log.append(f"after {type(module).__name__}")
        return result * 2

    model = Ordered(12)
    for each in [*model.blocks, *([model] if around == "each and all" else [])]:
        each.register_forward_pre_hook(before)
        each.register_forward_hook(after)
    x = torch.ones(2, 3)
    expected, told = model(x), log.copy()
    log.clear()
    seen: list[records.CompileRecord] = []
    compiled = dynajit.compile(model)
    with records.listen(seen.append):
        for _ in range(3):
            torch.testing.assert_close(compiled(x), expected)
    assert log == 3 * told
    report = ExplainReport(seen)
    assert (report.graph_count, report.graph_break_count, len(report.recompile_reasons)) == (3, 1, 0)


class CalledItself(nn.Module):
    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs) * 5

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


def _called_by_its_own() -> nn.Module:
    module = nn.ReLU()
    module._call_impl = lambda x: x * 7  # type: ignore[method-assign]
    return module


@pytest.mark.parametrize("make", [CalledItself, _called_by_its_own])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_module_with_its_own_way_of_being_called(make: Any, backend: str) -> None:
    assert_same(make(), torch.ones(2, 3), backend=backend, graphs=1, breaks=0)
    assert_same(nn.Sequential(make(), nn.Linear(3, 2), make()), torch.ones(2, 3), backend=backend, graphs=1, breaks=0)
    assert_same(lambda x: make()(x), torch.ones(2, 3), backend=backend, graphs=1)
