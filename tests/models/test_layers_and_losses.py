"""torch.nn layers, losses and arguments of operations that need a word of their own."""

from __future__ import annotations

import importlib.metadata
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dynajit
from dynajit.testing import assert_same


def test_an_lstm_holds_its_weights_by_weak_reference_too() -> None:
    lstm = nn.LSTM(4, 3)
    x = torch.randn(5, 2, 4)
    compiled = dynajit.compile(lstm, backend="eager")
    torch.testing.assert_close(compiled(x), lstm(x))
    assert dynajit.explain(lstm)(x).graph_break_count == 0


def test_a_weak_reference_to_another_object_is_another_variant() -> None:
    class Holder:
        pass

    def f(x: torch.Tensor, holder: Holder) -> torch.Tensor:
        return x + 1 if holder.reference() is holder.target else x - 1  # type: ignore[attr-defined]

    compiled = dynajit.compile(f, backend="eager")
    holder, x = Holder(), torch.ones(2)
    first, second = nn.Linear(1, 1), nn.Linear(1, 1)
    holder.target, holder.reference = first, weakref.ref(first)  # type: ignore[attr-defined]
    assert torch.equal(compiled(x, holder), x + 1)
    holder.reference = weakref.ref(second)  # type: ignore[attr-defined]
    assert torch.equal(compiled(x, holder), x - 1)


def test_an_lstm_trains_when_its_input_needs_no_gradient() -> None:
    lstm = nn.LSTM(4, 3)
    x = torch.randn(5, 2, 4)
    lstm(x)[0].sum().backward()
    expected = [parameter.grad.clone() for parameter in lstm.parameters() if parameter.grad is not None]
    lstm.zero_grad()
    dynajit.compile(lstm, backend="codegen")(x)[0].sum().backward()
    torch.testing.assert_close([parameter.grad for parameter in lstm.parameters()], expected)


def test_a_result_that_an_operation_leaves_out() -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        result, weights = dynajit.compile(attention, backend="codegen")(x, x, x, need_weights=False)
        torch.testing.assert_close(result, attention(x, x, x, need_weights=False)[0])
    assert weights is None


def test_a_break_at_an_operation_leaves_no_number_behind() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.gaussian_nll_loss(x * 2, y, x.sigmoid() + 0.1) + x.sum()

    x, y = torch.randn(4, requires_grad=True), torch.randn(4)
    torch.testing.assert_close(dynajit.compile(f, backend="codegen")(x, y), f(x, y))


def test_multilabel_margin_loss_ignores_what_is_behind_the_first_minus_one() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.multilabel_margin_loss(x, y)

    x, y = torch.randn(2, 4, requires_grad=True), torch.tensor([[1, -1, 0, 0], [2, 0, -1, 0]])
    torch.testing.assert_close(dynajit.compile(f, backend="codegen")(x, y), f(x, y))


def test_classes_as_dtypes() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.zeros(2, dtype=int), x.to(float), x.to(dtype=bool), x.type(torch.LongTensor)  # type: ignore[call-overload]

    assert_same(f, torch.randn(3), graphs=1, breaks=0)


def test_a_factor_given_as_a_tensor() -> None:
    def f(x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            return x.clone().addcdiv_(x, x + 4, value=step).add(x, alpha=step)  # type: ignore[call-overload]
        return x.clone().addcdiv_(x, x + 4, value=step.item()).add(x, alpha=step.item())

    x, step = torch.rand(3), torch.tensor(0.25)
    torch.testing.assert_close(dynajit.compile(f, backend="eager", fullgraph=True)(x, step), f(x, step))


def test_versions_of_packages_are_known() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + len(importlib.metadata.version("torch"))

    assert_same(f, torch.randn(3), graphs=1, breaks=0)


@pytest.mark.parametrize("reverse", [False, True])
def test_an_associative_scan_is_traced(reverse: bool) -> None:
    def combine(left: tuple[torch.Tensor, ...], right: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return left[0] * right[0], right[0] * left[1] + right[1]

    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        scan = torch._higher_order_ops.associative_scan
        return scan(combine, (a, b), dim=-2, reverse=reverse, combine_mode="generic")[1]  # type: ignore[no-any-return]

    a, b = torch.rand(2, 5, 3), torch.randn(2, 5, 3)
    compiled = dynajit.compile(f, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(a, b), f(a, b))
