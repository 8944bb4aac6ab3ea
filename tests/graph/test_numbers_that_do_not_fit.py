"""Numbers that the dtype of an operation cannot hold: eager raises, whichever way the operation takes its number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dynajit.testing import assert_same

_OPERATIONS: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "add_alpha": lambda x, n: x.add(x, alpha=n),
    "rsub_alpha": lambda x, n: torch.rsub(x, x, alpha=n),
    "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
    "clamp": lambda x, n: x.clamp(0, n),
    "clamp_max": lambda x, n: x.clamp(max=n),
    "hardtanh": lambda x, n: F.hardtanh(x, -abs(n), n),
    "threshold": lambda x, n: F.threshold(x, 1, n),
    "masked_fill": lambda x, n: x.masked_fill(x > 1, n),
    "fill_": lambda x, n: x.clone().fill_(n),
    "full": lambda x, n: torch.full((2,), n, dtype=x.dtype),
    "full_like": lambda x, n: torch.full_like(x, n),
    "new_full": lambda x, n: x.new_full((2,), n),
    "pad": lambda x, n: F.pad(x, (1, 1), value=n),
    "index_fill": lambda x, n: x.index_fill(0, torch.tensor([0]), n),
    "scatter": lambda x, n: x.scatter(0, torch.tensor([0]), n),
    "fill_one": lambda x, n: x[:1].clone().fill_(n),
    "masked_fill_": lambda x, n: x.clone().masked_fill_(x > 1, n),
    "pow": lambda x, n: x**n,
    "compare": lambda x, n: x > n,
    "plus": lambda x, n: x + n,
}


@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        (torch.float16, 1e5),
        (torch.float16, -(2**20)),
        (torch.float16, 65504),
        (torch.bfloat16, 1e39),
        (torch.uint8, 300),
        (torch.uint8, 2**40),
        (torch.int16, 1e39),
        (torch.int32, 2**40),
        (torch.float32, 2**40),
    ],
)
@pytest.mark.parametrize("name", _OPERATIONS)
def test_raises_where_eager_does(name: str, dtype: torch.dtype, number: float) -> None:
    def program(x: torch.Tensor, seen: list[int]) -> Any:
        seen.append(1)
        unused = _OPERATIONS[name](x + 1, number)
        seen.append(2)
        return unused.shape, _OPERATIONS[name](x, number)

    assert_same(program, torch.tensor([1, 2, 3, 1]).to(dtype), [], backend="codegen", rtol=1e-3, atol=0)


def test_numbers_that_fit_stay_in_the_graph() -> None:
    def program(x: torch.Tensor) -> Any:
        y = x.masked_fill(x > 1, torch.finfo(x.dtype).min), x.clamp(max=60000), x.add(x, alpha=50000)
        return *y, torch.full_like(x, -65504.0), x.new_full((2,), 2.0**15), F.pad(x, (0, 1), value=5000)

    assert_same(program, torch.ones(3, dtype=torch.float16), graphs=1, breaks=0)


_FILLINGS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "masked_fill": lambda x, n: x.masked_fill(x > 1, n),
    "masked_fill_": lambda x, n: x.clone().masked_fill_(x > 1, n),
    "of nothing": lambda x, n: x[:0].masked_fill(x[:0] > 1, n),
}


@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        (torch.float16, torch.tensor(1e5)),
        (torch.float16, torch.tensor(70000)),
        (torch.float16, torch.tensor(-65504.0)),
        (torch.float16, torch.tensor(float("-inf"))),
        (torch.bfloat16, torch.tensor(3.4e38)),
        (torch.float32, torch.tensor(1e39, dtype=torch.float64)),
        (torch.float32, torch.tensor(2**40)),
        (torch.uint8, torch.tensor(300)),
        (torch.uint8, torch.tensor(-1, dtype=torch.int8)),
        (torch.int32, torch.tensor(2**40)),
        (torch.int8, torch.tensor(5)),
        (torch.bool, torch.tensor(2)),
    ],
)
@pytest.mark.parametrize("made", ["given", "constant"])
@pytest.mark.parametrize("name", _FILLINGS)
def test_a_tensors_number_is_looked_at(name: str, made: str, dtype: torch.dtype, number: torch.Tensor) -> None:
    value, kind = number.item(), number.dtype

    def program(x: torch.Tensor, n: torch.Tensor, seen: list[int]) -> Any:
        seen.append(1)
        y = _FILLINGS[name](x, n if made == "given" else torch.tensor(value, dtype=kind))
        seen.append(2)
        return y

    assert_same(program, torch.tensor([1, 2, 3, 1]).to(dtype), number, [], backend="codegen", rtol=1e-3, atol=0)
