"""A break while a container that was changed is gone through: what it held before is read before the change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dynajit.testing import assert_same


def cell_and_entry_swapped(x: Tensor, table: dict[str, Tensor]) -> Any:
    table["a"], x = x, table["a"]
    for name, value in table.items():
        print(name, value.sum())
    return (lambda: x)()


def local_and_entry_swapped(x: Tensor, table: dict[str, Tensor]) -> Any:
    table["a"], x = x, table["a"]
    sizes = {name: print(name, value.shape) for name, value in table.items()}
    return x * 2, sizes


@pytest.mark.parametrize("fn", [cell_and_entry_swapped, local_and_entry_swapped])
def test_like_eager(fn: Any) -> None:
    assert_same(fn, torch.ones(3), {"a": torch.zeros(2), "b": torch.full((1,), 2.0)})
