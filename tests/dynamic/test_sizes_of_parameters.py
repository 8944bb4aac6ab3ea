"""Modules whose parameters have other sizes at each call, given or made inside: eager's results and gradients, few
captures, and none after the first calls. Modules that come again keep variants of their own sizes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit.report import records
from dynajit.report.counters import counters
from dynajit.testing import compare

CALLS = 10


def grown(call: int) -> int:
    return 3 + call


def feed_forward(n: int) -> nn.Module:
    return nn.Sequential(nn.Linear(n, 2 * n), nn.GELU(), nn.LayerNorm(2 * n), nn.Linear(2 * n, n))


# name -> a module of a size, and what it is given
GIVEN: dict[str, tuple[Callable[[int], nn.Module], Callable[[int], Tensor]]] = {
    "linear": (lambda n: nn.Linear(n, 2), lambda n: torch.randn(4, n)),
    "linear, both sizes": (lambda n: nn.Linear(n, n + 2), lambda n: torch.randn(4, n)),
    "linear without bias": (lambda n: nn.Linear(4, n, bias=False), lambda n: torch.randn(4, 4)),
    "bilinear": (lambda n: nn.Bilinear(n, n, 2), lambda n: torch.randn(2, n)),
    "embedding": (lambda n: nn.Embedding(n, 2 * n), lambda n: torch.tensor([0, 2, n - 1])),
    "layer norm": (lambda n: nn.LayerNorm(n), lambda n: torch.randn(4, n)),
    "batch norm": (lambda n: nn.BatchNorm1d(n), lambda n: torch.randn(4, n)),
    "convolution": (lambda n: nn.Conv1d(n, 2 * n, 3), lambda n: torch.randn(2, n, 8)),
    "convolution with other windows": (lambda n: nn.Conv1d(2, 3, n), lambda n: torch.randn(2, 2, 24)),
    "prelu": (lambda n: nn.PReLU(n), lambda n: torch.randn(4, n)),
    "several layers": (feed_forward, lambda n: torch.randn(4, n)),
    "a table of parameters": (
        lambda n: nn.ParameterDict({"a": nn.Parameter(torch.randn(n)), "b": nn.Parameter(torch.randn(n, 1))}),
        lambda n: torch.randn(n),
    ),
}


def applied(module: nn.Module, x: Tensor) -> Tensor:
    if isinstance(module, nn.ParameterDict):
        return (x * module["a"] + module["b"]).sin()
    return module(x, x) if isinstance(module, nn.Bilinear) else module(x)  # type: ignore[no-any-return]


def applied_behind_a_break(module: nn.Module, x: Tensor) -> Tensor:
    x = x + 0
    print(end="")
    return applied(module, x)


def counted(compiled: Callable[..., Any], calls: int, given: Callable[[int], Any]) -> list[int]:
    """How many captures each call made."""
    found = []
    for call in range(calls):
        made: list[records.CompileRecord] = []
        with records.listen(made.append):
            compiled(*given(call))
        found.append(len(made))
    return found


@pytest.mark.parametrize(
    ("function", "name", "backend"),
    [
        *((applied, name, "eager") for name in GIVEN),
        *((applied, name, "codegen") for name in ("linear, both sizes", "embedding", "batch norm", "several layers")),
        *((applied_behind_a_break, name, "eager") for name in ("linear", "convolution", "several layers")),
    ],
)
def test_modules_of_ever_other_sizes(function: Any, name: str, backend: str) -> None:
    make, inputs = GIVEN[name]
    compiled = dynajit.compile(function, backend=backend)
    results: list[list[Any]] = []

    def run(call: int) -> None:
        size = grown(call)
        results.append([])
        for fn in (function, compiled):
            torch.manual_seed(call)
            module, x = make(size), inputs(size)
            result = fn(module, x)
            result.square().mean().backward()
            results[-1].append((result.detach(), [part.grad for part in module.parameters()]))

    found = counted(run, CALLS, lambda call: (call,))
    for wanted, result in results:
        compare(wanted, result, exact=False, rtol=1e-4, atol=1e-5)
    assert not any(found[7:]) and sum(found) <= 9, found
    assert not counters["recompile_limit"]


def inside(n: int, device: str) -> Any:
    made = nn.Linear(n, 2, device=device), nn.Sequential(nn.Linear(2, n, device=device), nn.ReLU())
    return sum(parameter.numel() for module in made for parameter in module.parameters()), made[0].weight.shape


def inside_of_a_device(n: int, device: str) -> Any:
    with torch.device(device):
        module = nn.Linear(n, n)
    return torch.ones(3) * sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("function", [inside, inside_of_a_device])
def test_modules_made_inside(function: Any, device: str) -> None:
    compiled = dynajit.compile(function, backend="eager")

    def run(call: int) -> None:
        torch.manual_seed(call)
        wanted = function(grown(call), device)
        torch.manual_seed(call)
        compare(wanted, compiled(grown(call), device))

    found = counted(run, 18, lambda call: (call,))
    assert not any(found[11:]) and sum(found) <= 20, found


def test_modules_that_come_again_keep_their_own_variants() -> None:
    """As the stages of a network do: their sizes stay constants in the graphs."""
    modules = [nn.Linear(4, n) for n in (3, 5, 7, 9, 11)]
    compiled = dynajit.compile(applied, backend="eager")
    for module in modules:
        for _ in range(2):
            compare(applied(module, torch.ones(2, 4)), compiled(module, torch.ones(2, 4)))
    assert dynajit.counters()["recompiles"] == len(modules) - 1
