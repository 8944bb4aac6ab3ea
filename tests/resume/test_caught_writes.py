"""An operation in place that meets a bad index inside a block that catches: the handler sees what eager's sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dynajit.testing import assert_same

Write = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]

WRITES: dict[str, Write] = {
    "index_copy_": lambda table, at, rows: table.index_copy_(1, at, rows),
    "index_add_": lambda table, at, rows: table.index_add_(1, at, rows),
    "index_fill_": lambda table, at, rows: table.index_fill_(1, at, 2.0),
    "index_put_": lambda table, at, rows: table.index_put_((torch.arange(3)[:, None], at), rows),
    "setitem": lambda table, at, rows: table.__setitem__((slice(None), at), rows),
    "scatter_": lambda table, at, rows: table.scatter_(1, at[None], rows),
    "scatter_add_": lambda table, at, rows: table.scatter_add_(1, at[None], rows),
}


class Swallows:
    """A context manager that notes what ends its block, and goes on."""

    seen: type[BaseException] | None = None

    def __enter__(self) -> Swallows:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> bool:
        self.seen = kind
        return True


def in_try(write: Write, table: torch.Tensor, at: torch.Tensor, rows: torch.Tensor) -> Any:
    try:
        write(table, at, rows)
    except (IndexError, RuntimeError) as error:
        return type(error).__name__, table + 1
    return "done", table + 1


def in_with(write: Write, table: torch.Tensor, at: torch.Tensor, rows: torch.Tensor) -> Any:
    table.mul_(2)
    with Swallows() as block:
        write(table, at, rows)
    with Swallows() as other:
        write(table, at - 100, rows)
    return block.seen, other.seen, table


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("program", [in_try, in_with])
@pytest.mark.parametrize("name", WRITES)
def test_a_bad_index_is_caught(name: str, program: Any, backend: str) -> None:
    good, bad = (
        (WRITES[name], torch.zeros(3, 5), at, torch.ones(3, 4)) for at in (torch.arange(4), torch.tensor([1, 0, 9, 3]))
    )
    assert_same(program, *good, then=[bad], backend=backend)


def test_what_is_too_large_to_be_put_back_is_written_eagerly() -> None:
    table = torch.zeros(1, 5 << 20)
    report = assert_same(in_try, WRITES["index_add_"], table, torch.tensor([1, 6 << 20]), torch.ones(1, 2))
    assert {broken.kind for broken, _ in report.break_places} == {"operation-may-raise"}
