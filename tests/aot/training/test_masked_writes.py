"""`x[mask] = values` and its kind in graphs that train: compiled, with eager's gradients and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.report.counters import counters
from dynajit.testing import assert_same, compare

MASK = torch.tensor([[1, 0, 0, 1], [0, 0, 1, 0], [1, 1, 1, 1]]).bool()


def one_for_all(x: Tensor, mask: Tensor, row: Tensor) -> Any:
    y = x * 2
    y[mask] = row
    return y.sin()


def a_number_that_trains(x: Tensor, mask: Tensor, row: Tensor) -> Any:
    y = x * 2
    y[mask] = row.sum()
    return y


def with_ones_before(x: Tensor, mask: Tensor, row: Tensor) -> Any:
    y = x * 2
    y[mask, :] = row[None, None]
    return y


def one_row_each(x: Tensor, mask: Tensor, row: Tensor) -> Any:
    y = x * 2
    y[mask] = row * torch.arange(7.0)[:, None]
    return y.sin()


def behind_others(x: Tensor, mask: Tensor, row: Tensor) -> Any:
    y = x * 2
    y[:, mask[0]] = row
    y[..., mask[1, :2]] = row[:1]
    y[None, 1:, mask[2], 0] = row[0] * 2
    y[2, mask[0], :] = row[None]
    return y


def between(x: Tensor, mask: Tensor, row: Tensor) -> Any:
    y = (x * 2)[:, None]
    y[..., mask[0], :1] = (row[0] + x[:, 0, :1])[:, None, None]
    y[0, ..., mask[1], None, 1] = row[1]
    return y


def at_a_size(x: Tensor, mask: Tensor, row: Tensor) -> Any:
    y = x * 2
    y[x.shape[0] - 1, mask[0]] = row
    y[..., x.shape[2] - 1][mask] = row[0]
    return y


def of_a_view(x: Tensor, mask: Tensor, row: Tensor) -> Any:
    y = x * 2
    y.transpose(0, 1)[mask.t()] = row * 3
    return y.sin(), y[1]


def twice(x: Tensor, mask: Tensor, row: Tensor) -> Any:
    y = torch.zeros_like(x)
    y[mask] = row
    y[~mask] = row * 2
    return y


def by_method(x: Tensor, mask: Tensor, row: Tensor) -> Any:
    y = (x * 2).index_put((mask,), row)
    y.index_put_((mask,), row * 3, accumulate=True)
    return y.index_put([mask], y.new_ones(7, 1) * row, accumulate=True)


def none_chosen(x: Tensor, mask: Tensor, row: Tensor) -> Any:
    y = x * 2
    y[mask & ~mask] = row
    y[mask & ~mask] = row.new_empty(0, 2)
    return y * row


def in_16_bits(x: Tensor, mask: Tensor, row: Tensor) -> Any:
    y = x.bfloat16()
    y[mask] = row.bfloat16()
    return y * 2


def too_few(x: Tensor, mask: Tensor, row: Tensor) -> Any:
    y = x * 2
    y[mask] = row * torch.arange(6.0)[:, None]
    return y


def of_another_dtype(x: Tensor, mask: Tensor, row: Tensor) -> Any:
    y = x * 2
    y[mask] = row.double()
    return y


def added(x: Tensor, mask: Tensor, row: Tensor) -> Any:
    y = x * 2
    y[mask] += row
    return y


PROGRAMS: list[Callable[..., Any]] = [
    *(one_for_all, a_number_that_trains, with_ones_before, one_row_each, behind_others, between, at_a_size, of_a_view),
    *(twice, by_method, none_chosen, in_16_bits),
]


def _inputs() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(3, 4, 2, requires_grad=True), MASK, torch.randn(2, requires_grad=True)


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
@pytest.mark.parametrize("program", [*PROGRAMS, too_few, of_another_dtype, added])
def test_values_gradients_and_errors_are_eagers(program: Callable[..., Any], backend: str) -> None:
    assert_same(program, *_inputs(), backend=backend)


def test_sizes_that_vary() -> None:
    more = [(torch.randn(3, 4 + n, 3, requires_grad=True), MASK[:, :1].expand(3, 4 + n), torch.ones(3)) for n in (1, 2)]
    assert_same(at_a_size, *_inputs(), then=more, backend="codegen", dynamic=True)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_graph_is_compiled(program: Callable[..., Any]) -> None:
    counters.clear()
    dynajit.compile(program, backend="codegen")(*_inputs())
    assert not counters["as_captured"]


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
def test_how_many_are_chosen_varies(backend: str) -> None:
    compiled = dynajit.compile(added, backend=backend)
    for count in (3, 5, 1, 0, 12, 7):
        mask = (torch.arange(12) < count).view(3, 4)
        sides = []
        for call in (added, compiled):
            x, _, row = _inputs()
            call(x, mask, row).sin().sum().backward()
            sides.append((x.grad, row.grad))
        compare(*sides, exact=False)


@pytest.mark.parametrize("program", [one_for_all, one_row_each])
def test_gradients_can_be_differentiated_again(program: Callable[..., Any]) -> None:
    def penalised(call: Callable[..., Any]) -> Any:
        x, mask, row = _inputs()
        first = torch.autograd.grad(call(x, mask, row).square().sum(), (x, row), create_graph=True)
        return first, torch.autograd.grad(sum(each.square().sum() for each in first), (x, row))

    compare(penalised(dynajit.compile(program, backend="codegen")), penalised(program), exact=False)
