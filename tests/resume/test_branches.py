"""Branches on tensors' values: the right side each time, both sides compiled once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from assert_programs import asserts_tensor
from resume_harness import skipped
from torch import Tensor, nn

import dynajit
from dynajit.testing import assert_same

HIGH, LOW = torch.full((3,), 2.0), torch.full((3,), -2.0)


def if_statement(x: Tensor) -> Tensor:
    y = x.sin()
    if x.sum() > 0:
        y = y + 1
    return y.cos()


def if_else(x: Tensor) -> Tensor:
    y = x * 2
    if y.mean() > 0:
        z = y.sin()
    else:
        z = y.cos()
    return z * y


def elif_chain(x: Tensor) -> Tensor:
    y = x * 2
    if y.sum() > 100:
        return y + 1
    elif y.sum() > 0:
        z = y + 2
    elif y.sum() > -1:
        z = y + 3
    else:
        z = y + 4
    return z.sin()


def ternary(x: Tensor) -> Tensor:
    return x.sin() + (x.cos() if x.sum() > 0 else x.tan()) * 2


def and_operator(x: Tensor) -> Any:
    y = x.sin()
    z = x.sum() and y
    return z * 2


def or_operator(x: Tensor) -> Any:
    y = x.sin()
    z = (x.sum() > 0) or y
    return y, z


def and_condition(x: Tensor) -> Any:
    y = x.sin()
    if (x.sum() > 0 and y.sum() > 0) or y.sum() > 5:
        return y + 1
    return y - 1


def not_operator(x: Tensor) -> Any:
    y = x.sin()
    flag = not x.sum() > 0
    return y.cos(), flag


def not_condition(x: Tensor) -> Any:
    y = x.sin()
    if not (x.sum() > 0):
        return y + 1
    return y - 1


def chained_comparison(x: Tensor) -> Any:
    y = x.sin()
    if 0 < x.sum() < 100:
        return y + 1
    return y - 1


def bool_call(x: Tensor) -> Any:
    y = x.sin()
    return y.cos() if bool(x.sum() > 0) else y.tan()


def item_call(x: Tensor) -> Any:
    y = x.sin()
    n = x.sum().item()
    return y * 2, n > 0


def inlined(x: Tensor) -> Any:
    y = x.sin()
    z = if_else(y) + elif_chain(y)
    return z * y


def operands_below(x: Tensor) -> Any:
    y = x.sin()
    return torch.stack([y, y + 1 if x.sum() > 0 else y - 1, if_else(x)])


def with_mutation(x: Tensor, out: list[Tensor]) -> Any:
    y = x.sin()
    out.append(y)
    if y.sum() > 0:
        out.append(y + 1)
    out[0] = out[0] + 1
    return y


def match_statement(x: Tensor) -> Any:
    y = x.sin()
    match (x.shape[0], x.sum() > 0):
        case (3, flag) if flag:
            return y + 1
        case (n, _):
            return y - n


BRANCHES: list[tuple[Callable[..., Any], int | None]] = [
    (if_statement, 3),
    (if_else, 3),
    (elif_chain, None),
    (ternary, 3),
    (and_operator, None),
    (or_operator, None),
    (and_condition, None),
    (not_operator, None),
    (not_condition, 3),
    (chained_comparison, None),
    (bool_call, 3),
    (item_call, None),
    (inlined, None),
    (operands_below, None),
    (match_statement, 3),
]


# the Python value that the break gives is an input of the continuation
VALUE_IN_CONTINUATION = (not_operator, bool_call, item_call)


@pytest.mark.parametrize(("fn", "graphs"), BRANCHES, ids=lambda value: getattr(value, "__name__", ""))
def test_both_sides(fn: Callable[..., Any], graphs: int | None) -> None:
    recompiles = None if fn in VALUE_IN_CONTINUATION else 0
    calls = [(LOW,), (HIGH,), (LOW,), (HIGH / 100,), (LOW / 100,)]
    report = assert_same(fn, HIGH, then=calls, graphs=graphs, recompiles=recompiles)
    assert not skipped(report), report


def test_effects_before_the_branch() -> None:
    assert_same(with_mutation, HIGH, [], repeat=1, then=[(LOW, []), (HIGH, [])], graphs=3, breaks=1, recompiles=0)


def test_assert() -> None:
    assert_same(asserts_tensor, HIGH, -1, then=[(HIGH, 100), (HIGH, -2)])


def while_loop(x: Tensor) -> Any:
    y = x.abs() + 1
    while y.sum() < 100:
        y = step(y)
    return y.sin()


def step(y: Tensor) -> Tensor:
    return y * 2 + 1


def while_in_callee(x: Tensor) -> Any:
    y = x.sin()
    z = while_loop(y)
    return z + y


@pytest.mark.parametrize("fn", [while_loop, while_in_callee])
def test_tensor_valued_while(fn: Callable[..., Any]) -> None:
    report = assert_same(fn, HIGH, then=[(LOW,)])
    assert report.graph_count >= 1


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if y.sum() > 0:
            return y.relu() + 1
        return y.sigmoid() - 1


def test_module_with_a_branch() -> None:
    assert_same(Gate(), HIGH, then=[(LOW,), (HIGH,)], graphs=3, breaks=1, recompiles=0)


def test_modules_with_branches_in_a_sequential_run_one_by_one() -> None:
    report = assert_same(nn.Sequential(Gate(), Gate()), HIGH, then=[(LOW,), (HIGH,)])
    for broken in report.break_reasons:
        assert not any("dynajit/api.py" in location.filename for location in broken.user_stack), report


def _not_none(x: torch.Tensor, v: Any) -> torch.Tensor:
    y = x + 1
    if v is not None:
        y = y * 2
    return y


def _in_loop(x: torch.Tensor, v: Any) -> torch.Tensor:
    for i in range(3):
        if v is None:
            break
        x = x + i
    return x


def _in_try(x: torch.Tensor, v: Any) -> torch.Tensor:
    try:
        return _not_none(x, v) if v is not None else _not_none(x + 1, v)
    finally:
        x.mul_(2)


OF_ANY_TYPE: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "an expression": lambda x, v: x * (1 if v is None else 2),
    "beside another question": lambda x, v: (x * (1 if v is None else 2), isinstance(v, int | str)),
    "in a function": lambda x, v: _not_none(x, v) + 1,
    "in a loop": _in_loop,
    "in a try": _in_try,
}


@pytest.mark.parametrize("program", OF_ANY_TYPE.values(), ids=OF_ANY_TYPE)
def test_none_or_an_object_of_more_types_than_there_are_variants(program: Callable[..., Any]) -> None:
    dynajit.reset()
    compiled = dynajit.compile(program, backend="eager")
    given: list[Any] = [1, "a", None, [1], 2, "b", None, (1,), 3, "c", {}, 3.5, set(), None, 0, "", [], b"", None]
    for v in given * 2:
        x, other = torch.ones(2), torch.ones(2)
        assert str((compiled(x, v), x)) == str((program(other, v), other)), v
    assert not dynajit.counters["internal_errors"]
