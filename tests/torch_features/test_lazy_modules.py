"""Modules whose layers make their parameters at the first call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit.outcomes import compare
from dynajit.report import records


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.LazyConv2d(4, 3)
        self.norm = nn.LazyBatchNorm2d()
        self.more = nn.ModuleList([nn.LazyLinear(3), nn.LazyLinear(2)])

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x * 2).relu()).flatten(1)
        for layer in self.more:
            y = layer(nn.functional.dropout(y)).sin()
        return y


def trained(compiler: Callable[[nn.Module], Any]) -> list[Any]:
    torch.manual_seed(0)
    model = Net()
    run = compiler(model)
    results = []
    for _ in range(4):
        y = run(torch.randn(2, 3, 6, 6))
        y.sum().backward()
        results.append(y.detach())
    gradients = [parameter.grad for parameter in model.parameters()]
    kinds = [(type(part), len(part._forward_pre_hooks)) for part in model.modules()]
    return [results, gradients, model.state_dict(), kinds]


@pytest.mark.parametrize("fullgraph", [True, False])
def test_only_the_first_call_has_breaks(fullgraph: bool) -> None:
    seen: list[Any] = []
    marks = []

    def compiled(model: nn.Module) -> Any:
        fn = dynajit.compile(model, fullgraph=fullgraph, backend="eager")

        def run(x: Tensor) -> Any:
            marks.append(len(seen))
            return fn(x)

        return run

    with records.listen(seen.append):
        compare(trained(compiled), trained(lambda model: model))
    assert {broken.kind for record in seen[: marks[1]] for broken in record.breaks} == {"first-call"}
    assert [len(record.graphs) for record in seen[marks[1] :]] == [1]
    assert not any(record.breaks for record in seen[marks[1] :])


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.LazyLinear(3), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x) * self.calls  # type: ignore[no-any-return]


class Ones(nn.LazyLinear):
    def reset_parameters(self) -> None:
        if self.bias is not None and not self.has_uninitialized_params():  # type: ignore[misc]
            nn.init.ones_(self.weight)
            nn.init.ones_(self.bias)


class Drawing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LazyLinear(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + torch.rand_like(x))  # type: ignore[no-any-return]


class Seeding(Drawing):
    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(7)
        return self.layer(x)  # type: ignore[no-any-return]


FLAT: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2, bias=False)), (4, 3)),
    "one": (lambda: nn.LazyLinear(4), (4, 3)),
    "norm": (
        lambda: nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2)),
        (2, 3, 5, 5),
    ),
    "transposed": (
        lambda: nn.Sequential(nn.LazyConvTranspose1d(4, 3), nn.LazyInstanceNorm1d(affine=True), nn.LazyConv1d(2, 1)),
        (4, 3, 6),
    ),
    "dropout of nothing": (lambda: nn.Sequential(nn.LazyLinear(4), nn.Dropout(0.0), nn.LazyLinear(2)), (4, 3)),
    "double": (lambda: nn.Sequential(nn.LazyLinear(4), nn.LazyLinear(2)).double(), (4, 3)),
}
CUT: dict[str, Callable[[], nn.Module]] = {
    "dropout before": lambda: nn.Sequential(nn.LazyLinear(4), nn.Dropout(), nn.LazyLinear(2)),
    "numbers drawn before": Drawing,
    "seed set before": Seeding,
    "object changed before": Counted,
    "parameters that the program's code makes": lambda: nn.Sequential(Ones(3)),
}


def _twice(make: Callable[[], nn.Module], compiler: Callable[[nn.Module], Any], inputs: list[Tensor]) -> list[Any]:
    torch.manual_seed(0)
    model = make()
    run = compiler(model)
    results = [run(x.to(next(model.parameters()).dtype)) for x in inputs]
    kinds = [
        (type(part), len(part._forward_pre_hooks), len(part._load_state_dict_pre_hooks)) for part in model.modules()
    ]
    return [results, model.state_dict(), kinds, torch.get_rng_state()]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", [*FLAT, *CUT])
def test_the_first_call_is_one_graph_where_nothing_draws_before(name: str, dynamic: bool | None) -> None:
    """The parameters are drawn while tracing: what else draws, sets seeds or is asked for by the program's code has to
    run before."""
    make, shape = FLAT[name] if name in FLAT else (CUT[name], (4, 3))
    inputs = [torch.randn(shape), torch.randn(shape)]
    seen: list[Any] = []
    with records.listen(seen.append):
        found = _twice(make, lambda model: dynajit.compile(model, backend="eager", dynamic=dynamic), inputs)
    compare(found, _twice(make, lambda model: model, inputs))
    broken = [each.kind for record in seen for each in record.breaks]
    assert set(broken) == ({"first-call"} if name in CUT else set())
    if name in FLAT:
        assert [len(record.graphs) for record in seen] == [1]


def test_what_does_not_fit_raises_as_in_eager_mode() -> None:
    layer, compiled = nn.LazyConv2d(2, 3), dynajit.compile(nn.LazyConv2d(2, 3), backend="eager")
    with pytest.raises(RuntimeError) as wanted:
        layer(torch.ones(5))
    with pytest.raises(RuntimeError) as found:
        compiled(torch.ones(5))
    assert str(found.value) == str(wanted.value)


def test_another_break_is_an_error_all_the_same() -> None:
    layer = nn.LazyLinear(2)

    def call(x: Tensor) -> Tensor:
        y = layer(x)
        return y if y.sum() > 0 else y.sin()

    with pytest.raises(dynajit.exc.Unsupported, match="a branch depends on"):
        dynajit.compile(call, fullgraph=True)(torch.ones(2, 3))


@pytest.mark.parametrize("kept", [False, True])
def test_a_module_made_anew_for_each_call_is_not_compiled_for_each(kept: bool) -> None:
    counter, modules = dynajit.testing.CompileCounter(), []

    def call(layer: nn.Module, x: Tensor) -> Tensor:
        return layer(x * 2).sin() + 1  # type: ignore[no-any-return]

    run = dynajit.compile(call, backend=counter)
    counts = []
    for number in range(8):
        layer = nn.LazyLinear(3)
        if kept:
            modules.append(layer)
        torch.manual_seed(number)
        found = run(layer, torch.ones(2, 4))
        assert torch.equal(found, call(layer, torch.ones(2, 4)))
        counts.append(counter.frame_count)
    assert counts[-1] == counts[2] <= 4
