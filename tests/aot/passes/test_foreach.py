"""Operators over lists of tensors, which optimizers use: one for each tensor, with eager's results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit.aot.passes.foreach import RULES

SHAPES = [(3,), (2, 5), ()]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64]


def arguments(schema: Any, dtype: torch.dtype) -> list[Any]:
    """One value for each positional argument, the same at each call."""
    torch.manual_seed(0)
    found: list[Any] = []
    for argument in schema.arguments:
        kind = str(argument.type)
        if argument.kwarg_only or argument.name in ("ord", "dtype"):
            continue
        if kind == "List[Tensor]":
            found.append([(torch.rand(shape) * 4 + 1).to(dtype) for shape in SHAPES])
        elif kind in ("List[number]", "List[Scalar]"):
            found.append([2, 3, 1])
        elif kind == "Tensor":
            found.append(torch.tensor(2).to(dtype))
        else:
            found.append(2)
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("operator", RULES, ids=str)
def test_as_in_eager(operator: Any, dtype: torch.dtype) -> None:
    given = arguments(operator._schema, dtype)
    try:
        expected = operator(*given)
    except (RuntimeError, NotImplementedError):
        pytest.skip("torch has none of that dtype")
    for actual, wanted in zip(RULES[operator](*given), expected, strict=True):
        torch.testing.assert_close(actual, wanted, equal_nan=True)


def step_of(kind: Any, **options: Any) -> tuple[list[nn.Parameter], Any]:
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape)) for shape in ((4, 3), (7,), ())]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return parameters, kind(parameters, **options)


OPTIMIZERS: list[Any] = [
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (torch.optim.Adam, {"amsgrad": True}),
    (torch.optim.AdamW, {"weight_decay": 0.1}),
    (torch.optim.RMSprop, {"centered": True, "momentum": 0.5}),
    (torch.optim.Adagrad, {"lr": 0.1}),
    (torch.optim.Adadelta, {}),
    (torch.optim.NAdam, {}),
    (torch.optim.Adamax, {}),
    (torch.optim.Rprop, {}),
]


@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS, ids=lambda value: getattr(value, "__name__", ""))
def test_optimizers_that_work_on_lists(kind: Any, options: dict[str, Any]) -> None:
    ours, optimizer = step_of(kind, foreach=True, **options)
    theirs, eager = step_of(kind, foreach=True, **options)
    step = dynajit.compile(optimizer.step)
    for _ in range(4):
        step()
        eager.step()
        torch.testing.assert_close(ours, theirs)


def test_a_parameter_s_update_is_one_kernel() -> None:
    _, optimizer = step_of(torch.optim.AdamW, foreach=True)
    optimizer.step()
    report = dynajit.explain(optimizer.step)()
    (code,) = report.graph_records[0].code
    assert not any("foreach" in name for name in code.extern), code.extern


@pytest.mark.parametrize("order", [2.0, 1.0, float("inf")])
def test_clipped_gradients(order: float) -> None:
    def clipped(parameters: list[Tensor]) -> Tensor:
        return nn.utils.clip_grad_norm_(parameters, 0.5, order, foreach=True)

    ours, _ = step_of(torch.optim.SGD)
    theirs, _ = step_of(torch.optim.SGD)
    torch.testing.assert_close(dynajit.compile(clipped)(ours), clipped(theirs))
    torch.testing.assert_close([p.grad for p in ours], [p.grad for p in theirs])
