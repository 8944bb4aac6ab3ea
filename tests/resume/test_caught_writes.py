"""An operation in place that meets a bad index inside a block that catches: the handler sees what eager's sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit
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


def _divides(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return k // (k - 1)


def _takes_a_remainder(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return torch.remainder(k, k - 1)


def _chooses(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return x[k * 9]


def _decomposes(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return torch.linalg.cholesky(x - 2)


def _draws(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return torch.normal(torch.rand(2, 2), 0.5 - k)


def _chooses_by_chance(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return torch.multinomial(0.5 - k, 1)


def _writes_items_of_its_own(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return torch.zeros(2, 2).scatter_(0, k.long() * 9, x)


def _writes_by_a_mask(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[k > 0] = torch.ones(k.shape[0])
    return y


RAISING = (_divides, _takes_a_remainder, _chooses, _decomposes)
RAISING += (_draws, _chooses_by_chance, _writes_items_of_its_own, _writes_by_a_mask)
WRITTEN: dict[str, Callable[[torch.Tensor], Any]] = {
    "add_": lambda x: x.add_(1),
    "part": lambda x: x[1:].mul_(3),
    "item": lambda x: x.__setitem__((0, 1), 7.0),
    "copy_": lambda x: x.copy_(x.sin().sum(0)),
}


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("raising", RAISING)
def test_what_is_written_behind_an_operation_that_raises(raising: Any, written: str, backend: str) -> None:
    write = WRITTEN[written]

    def in_finally(x: torch.Tensor, k: torch.Tensor) -> Any:
        try:
            found = raising(x, k)
        finally:
            write(x)
        return found

    def in_both(x: torch.Tensor, k: torch.Tensor) -> Any:
        try:
            found = raising(x, k)
            write(x)
        except RuntimeError:
            write(x)
            return x.sum()
        return found

    def told_before(x: torch.Tensor, k: torch.Tensor, seen: list[int]) -> Any:
        seen.append(1)
        found = raising(x, k)
        write(x)
        return found

    ones = torch.ones(2, 2, dtype=torch.int32)
    for program, *more in ((in_finally,), (in_both,), (told_before, [])):
        assert_same(program, torch.ones(2, 2), ones, *more, backend=backend)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_a_seed_behind_an_operation_that_raises_is_not_set(backend: str) -> None:
    def program(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        found = k // (k - 1)
        torch.manual_seed(5)
        return found

    torch.manual_seed(0)
    before = torch.get_rng_state()
    compiled = dynajit.compile(program, backend=backend)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="ZeroDivision"):
            compiled(torch.ones(2, 2), torch.ones(2, 2, dtype=torch.int32))
        assert torch.equal(torch.get_rng_state(), before)
    compiled(torch.ones(2, 2), torch.full((2, 2), 3))
    assert torch.initial_seed() == 5


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("raising", RAISING)
def test_what_is_written_before_an_operation_that_raises_and_after_it(raising: Any, backend: str) -> None:
    def plain(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        found = raising(x, k)
        k.add_(1)
        return found

    def drawing(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        x.uniform_()
        found = raising(x, k)
        return found + torch.rand(2)

    def in_place(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        k %= k - 1
        return raising(x, k)

    def caught(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        x.uniform_()
        try:
            raising(x, k)
        except RuntimeError:
            x.add_(1)
        return x

    for program in (plain, drawing, in_place, caught):
        assert_same(program, torch.ones(2, 2), torch.ones(2, 2, dtype=torch.int32), backend=backend)
