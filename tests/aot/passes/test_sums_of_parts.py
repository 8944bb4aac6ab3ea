"""Gradients of the parts of a tensor: put together where eager adds up tensors of zeros."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dynajit.aot.passes.sums_of_parts import sums_of_parts
from dynajit.testing import assert_same

aten = torch.ops.aten
Terms = Callable[..., torch.Tensor]


def _counts(gm: torch.fx.GraphModule) -> dict[str, int]:
    targets = [str(node.target).split(".")[1] for node in gm.graph.nodes if node.op == "call_function"]
    return {name: targets.count(name) for name in ("add", "stack", "cat", "select_backward", "slice_backward")}


def _rewritten(fn: Terms, *given: torch.Tensor) -> dict[str, int]:
    """What is left of the function's operations; its result has the same bits."""
    graph = make_fx(fn, tracing_mode="fake")(*given)
    made = sums_of_parts(graph)
    made.graph.lint()
    assert torch.equal(made(*given), graph(*given))
    return _counts(made)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_a_tensor_of_all_steps_is_stacked(dim: int, backwards: bool) -> None:
    steps = list(range(20))[:: -1 if backwards else 1]

    def fn(*parts: torch.Tensor) -> torch.Tensor:
        return _sum([aten.select_backward(parts[t], _around(dim, 20), dim, t - 20 * (t % 2)) for t in steps])

    left = _rewritten(fn, *(torch.randn(3, 4) for _ in steps))
    assert left == {"add": 0, "stack": 1, "cat": 0, "select_backward": 0, "slice_backward": 0}


def _around(dim: int, size: int) -> list[int]:
    sizes = [3, 4]
    sizes.insert(dim % 3, size)
    return sizes


def _sum(parts: list[torch.Tensor]) -> torch.Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def test_where_no_part_lies_there_are_zeros() -> None:
    def fn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return aten.select_backward(a, [9, 4], 0, 5) + aten.slice_backward(b, [9, 4], 0, 1, 3, 1)

    assert _rewritten(fn, torch.randn(4), torch.randn(2, 4))["add"] == 0


def test_two_parts_that_overlap_stay() -> None:
    def fn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return aten.slice_backward(a, [9, 4], 0, 1, 9, 1) + aten.slice_backward(b, [9, 4], 0, 0, 8, 1)

    assert _rewritten(fn, torch.randn(8, 4), torch.randn(8, 4))["slice_backward"] == 2


def test_a_sum_that_others_read_stays() -> None:
    def fn(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        both = aten.select_backward(a, [3, 4], 0, 0) + aten.slice_backward(b, [3, 4], 0, 0, 3, 1)
        return both.relu() * (both + aten.select_backward(c, [3, 4], 0, 2))

    assert _rewritten(fn, torch.randn(4), torch.randn(3, 4), torch.randn(4))["add"] == 2


def test_a_sum_in_a_sum_is_found_by_its_new_name() -> None:
    def fn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        rows = [aten.select_backward(a[t], [3, 4], 0, t) for t in range(3)]
        inner = _sum(rows)
        columns = [aten.select_backward(b[:, t], [3, 4], 1, t) for t in range(4)]
        return inner * (_sum(columns) + inner)

    left = _rewritten(fn, torch.randn(3, 4), torch.randn(3, 4))
    assert left["stack"] == 2 and left["add"] == 1


@pytest.mark.parametrize("seed", range(30))
def test_any_parts_are_added_up_in_the_same_order(seed: int) -> None:
    draw = random.Random(seed)
    size, given, terms = draw.randint(1, 6), [], []
    for _ in range(draw.randint(2, 9)):
        kind = draw.choice(["select", "select", "slice", "slice", "other dim", "whole", "step"])
        start = draw.randrange(size)
        end = draw.randint(start + 1, size)
        if kind == "select":
            given.append(torch.randn(3))
            terms.append(lambda x, start=start: aten.select_backward(x, [size, 3], 0, start))
        elif kind == "slice":
            given.append(torch.randn(end - start, 3))
            terms.append(lambda x, a=start, b=end: aten.slice_backward(x, [size, 3], 0, a, b, 1))
        elif kind == "other dim":
            given.append(torch.randn(size))
            terms.append(lambda x: aten.select_backward(x, [size, 3], 1, 2))
        elif kind == "step":
            given.append(torch.randn(len(range(start, end, 2)), 3))
            terms.append(lambda x, a=start, b=end: aten.slice_backward(x, [size, 3], 0, a, b, 2))
        else:
            given.append(torch.randn(size, 3))
            terms.append(lambda x: x.exp())
    swaps = [draw.random() < 0.3 for _ in terms]

    def fn(*parts: torch.Tensor) -> torch.Tensor:
        made = [term(part) for term, part in zip(terms, parts, strict=True)]
        total = made[0]
        for part, swap in zip(made[1:], swaps, strict=False):
            total = part + total if swap else total + part
        return total

    _rewritten(fn, *given)


@pytest.mark.parametrize("steps", [3, 24])
def test_a_scan_trains_as_eager_does(steps: int) -> None:
    def scan(x: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
        state, states = x.new_zeros(2, 4), []
        for t in range(x.shape[1]):
            state = state * decay[:, t] + x[:, t] * x[:, max(t - 1, 0)]
            states.append(state)
        return torch.stack(states, 1).sin()

    def step(x: torch.Tensor, decay: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(scan(x, decay).sum(), (x, decay))

    given = [torch.randn(2, steps, 4, requires_grad=True) for _ in range(2)]
    assert_same(step, *given)
