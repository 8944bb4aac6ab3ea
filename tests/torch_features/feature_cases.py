"""What the tests of torch's features share: a table of programs, each compared with eager under several backends.

In: functions behind `@cases(...)`, with makers of their arguments; with `make=True` the function makes a module,
which is what is compiled. Out: `check` compares results, gradients of inputs and parameters, state, random state and
grad mode over several calls, and pins graphs and breaks.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

import dynajit
from dynajit.report import records
from dynajit.report.explain import ExplainReport
from dynajit.testing import compare

BACKENDS = ("eager", "aot_eager", "codegen")
Maker = Callable[[], Any]


def rand(*shape: int, grad: bool = False) -> Maker:
    """A maker of always the same tensor."""

    def make() -> torch.Tensor:
        generator = torch.Generator().manual_seed(sum(shape) + len(shape))
        return torch.randn(*shape, generator=generator).requires_grad_(grad)

    return make


def leaf(*shape: int) -> Maker:
    """A maker of a tensor that requires grad."""
    return rand(*shape, grad=True)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)


def backward(result: Any) -> None:
    """Gradients of everything that has some."""
    sums = [(part.real if part.is_complex() else part).sum() for part in tensors(result) if part.requires_grad]
    if sums:
        sum(sums).backward()  # type: ignore[union-attr]


def run(fn: Callable[..., Any], args: list[Any], calls: int, train: bool) -> list[Any]:
    seen: list[Any] = []
    for number in range(calls):
        torch.manual_seed(number)
        try:
            result = fn(*args)
        except Exception as error:
            seen.append((type(error), str(error)))
            continue
        if train:
            backward(result)
        seen.append((result, args, torch.get_rng_state(), torch.is_grad_enabled(), torch.get_default_dtype()))
    return seen


@dataclasses.dataclass
class Case:
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    graphs: int | None = 1
    breaks: int | None = 0
    calls: int = 2
    train: bool = True
    make: bool = False
    exact: bool = True

    def sides(self) -> tuple[Callable[..., Any], list[Any]]:
        torch.manual_seed(99)
        made = self.fn() if self.make else self.fn
        return made, [arg() if callable(arg) else arg for arg in self.args]

    def check(self, backend: str) -> None:
        dynajit.reset()
        eager, eager_args = self.sides()
        other, other_args = self.sides()
        seen: list[records.CompileRecord] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = run(eager, eager_args, self.calls, self.train)
            torch.set_grad_enabled(True)
            with records.listen(seen.append):
                actual = run(dynajit.compile(other, backend=backend), other_args, self.calls, self.train)
            torch.set_grad_enabled(True)
        report = ExplainReport(seen)
        exact = backend == "eager" and self.exact
        tolerance = {} if exact else {"rtol": 1e-4, "atol": 1e-5}
        compare(actual, expected, exact=exact, **tolerance)
        if isinstance(eager, torch.nn.Module) and isinstance(other, torch.nn.Module):
            state = [({**m.state_dict()}, [p.grad for p in m.parameters()]) for m in (other, eager)]
            compare(state[0], state[1], "module", exact=exact, **tolerance)
        assert self.graphs in (None, report.graph_count), f"{report.graph_count} graphs\n{report}"
        assert self.breaks in (None, report.graph_break_count), f"{report.graph_break_count} breaks\n{report}"
        assert not dynajit.counters["internal_errors"]


class Cases(list[Case]):
    """The programs of one test module."""

    def __call__(self, *args: Any, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def register(fn: Callable[..., Any]) -> Callable[..., Any]:
            self.append(Case(fn, args, **options))
            return fn

        return register

    @property
    def names(self) -> list[str]:
        return [case.fn.__name__ for case in self]
