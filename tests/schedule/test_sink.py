"""The order in which a backward graph's kernels and calls run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dynajit.aot.passes.gradient_sums import added_in_place
from dynajit.loopir.lower_graph import forget, lower
from dynajit.schedule.fuse import Call, fuse
from dynajit.schedule.sink import sink_units

aten = torch.ops.aten


def _calls(fn: Callable[..., Any], *args: torch.Tensor) -> tuple[list[str], list[str]]:
    """The products' names in graph order, and in the new one."""
    try:
        schedule = fuse(lower(added_in_place(make_fx(fn, tracing_mode="fake")(*args)), "test"))
        units = sink_units(schedule.units, schedule.reads, set(schedule.stored_in))
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


def test_a_large_result_that_only_the_caller_needs_comes_last() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return aten.mm.default(x, x.t()), aten.mm.default(aten.mm.default(y, z), z)

    before, after = _calls(fn, torch.randn(400, 4), torch.randn(8, 8), torch.randn(8, 8))
    assert before == ["mm", "mm_1", "mm_2"]
    assert after == ["mm_1", "mm_2", "mm"]


def test_a_result_stays_whose_arguments_others_read_and_are_larger() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return aten.mm.default(x.t(), x), aten.mm.default(aten.mm.default(x, y), z)

    before, after = _calls(fn, torch.randn(4000, 200), torch.randn(200, 8), torch.randn(8, 8))
    assert after == before


def test_what_is_added_to_a_product_in_place_comes_last_with_it() -> None:
    def fn(x: torch.Tensor, rows: torch.Tensor, at: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = aten.mm.default(x, x.t())
        whole = product + aten.embedding_dense_backward.default(rows, at, 400, -1, False)
        return whole, aten.mm.default(aten.mm.default(z, z), z)

    args = torch.randn(400, 4), torch.randn(3, 400), torch.tensor([1, 5, 1]), torch.randn(8, 8)
    before, after = _calls(fn, *args)
    assert before == ["mm", "mm_1", "mm_2"]
    assert after == ["mm_1", "mm_2", "mm"]
