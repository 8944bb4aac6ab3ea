"""The order in which a backward graph's kernels and calls run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dynajit.loopir.lower_graph import forget, lower
from dynajit.schedule.fuse import Call, fuse
from dynajit.schedule.sink import sunk

aten = torch.ops.aten


def _calls(fn: Callable[..., Any], *args: torch.Tensor) -> tuple[list[str], list[str]]:
    """The products' names in graph order, and in the new one."""
    try:
        schedule = fuse(lower(make_fx(fn, tracing_mode="fake")(*args), "test"))
        units = sunk(schedule.units, schedule.reads, set(schedule.stored_in))
        assert sorted(map(id, units)) == sorted(map(id, schedule.units))
        places = {unit: place for place, unit in enumerate(units)}
        assert all(places[other] < places[unit] for unit in units for other in unit.before)
        return tuple(
            [result.name for unit in order if isinstance(unit, Call) for result in unit.extern.results]
            for order in (schedule.units, units)
        )
    finally:
        forget()


def test_a_large_result_of_small_things_waits_for_its_reader() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        large = aten.mm.default(x, x.t())
        small = aten.mm.default(aten.mm.default(y, z), z)
        return (large + small.sum(),)

    before, after = _calls(fn, torch.randn(400, 4), torch.randn(8, 8), torch.randn(8, 8))
    assert before == ["mm", "mm_1", "mm_2"]
    assert after == ["mm_1", "mm_2", "mm"]


def test_what_lets_go_of_more_than_it_makes_stays() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        little = aten.mm.default(x.t(), x)
        small = aten.mm.default(aten.mm.default(y, z), z)
        return (little + small.sum(),)

    before, after = _calls(fn, torch.randn(4000, 200), torch.randn(8, 8), torch.randn(8, 8))
    assert after == before


def test_a_result_that_only_the_caller_needs_stays() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return aten.mm.default(x, x.t()), aten.mm.default(aten.mm.default(y, z), z)

    before, after = _calls(fn, torch.randn(400, 4), torch.randn(8, 8), torch.randn(8, 8))
    assert after == before
