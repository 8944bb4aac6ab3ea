"""Sizes and numbers that depend on data, as symbols in the graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.testing import assert_same

BACKENDS = ["eager", "aot_eager", "codegen"]


@pytest.fixture(autouse=True)
def _captured() -> Iterator[None]:
    with dynajit.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield


def whole(fn: Any, calls: list[tuple[Any, ...]], backend: str) -> None:
    """One graph for all calls, equal to eager."""
    tolerance: dict[str, Any] = {} if backend == "eager" else {"rtol": 1e-4, "atol": 1e-5}
    assert_same(fn, *calls[0], then=calls[1:], repeat=1, backend=backend, graphs=1, breaks=0, recompiles=0, **tolerance)


def filled(x: Tensor, n: Tensor) -> Any:
    count = n.item()
    torch._check(count >= 2)
    torch._check(count <= 100)
    return torch.ones(count, 3) * x.sum() + count, count, count * 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_item(backend: str) -> None:
    whole(filled, [(torch.rand(4), torch.tensor(n)) for n in (5, 2, 7, 100)], backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nonzero_and_masks(backend: str) -> None:
    def fn(x: Tensor) -> Any:
        where = x.nonzero()
        kept = x[x > 0.5]
        return where * 2, kept + 1, kept.sum(), where.shape[0]

    # the third keeps nothing
    whole(fn, [(torch.rand(8),), (torch.rand(8),), (torch.zeros(8),), (torch.ones(8),)], backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_promise_on_the_number_found(backend: str) -> None:
    def fn(x: Tensor) -> Any:
        where = x.nonzero()
        torch._check(where.shape[0] > 1)
        return where * 2, x[x > 0].sum()

    whole(fn, [(torch.ones(4),), (torch.tensor([1.0, 0, 2, 0]),), (torch.tensor([0, 3.0, 4, 5]),)], backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_tolist_and_float(backend: str) -> None:
    def fn(x: Tensor, n: Tensor) -> Any:
        first, second = n.tolist()
        return x * first + second, float(x.sum()) * 2, int(n[0])

    whole(fn, [(torch.rand(8), torch.tensor([k, 3])) for k in (2, 7, 9)], backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_unique(backend: str) -> None:
    def fn(x: Tensor) -> Any:
        found = torch.unique(x)
        return found * 2, found.shape

    whole(fn, [(torch.randint(0, 5, (8,)),) for _ in range(3)], backend)


def test_decision_breaks_the_graph() -> None:
    def fn(x: Tensor, n: Tensor) -> Any:
        count = n.item()
        if count > 3:
            return x + count
        return x * count

    calls = [(torch.rand(8), torch.tensor(n)) for n in (2, 7, 9)]
    report = assert_same(fn, *calls[0], then=calls[1:], repeat=1, backend="eager")
    assert report.break_reasons[0].kind == "data-dependent"
    with pytest.raises(dynajit.exc.Unsupported, match="if count > 3"):
        dynajit.compile(fn, fullgraph=True, backend="eager")(*calls[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_broken_promise(backend: str) -> None:
    compiled = dynajit.compile(filled, backend=backend)
    compiled(torch.rand(4), torch.tensor(5))
    with pytest.raises(RuntimeError, match="Expected cond to be True"):
        compiled(torch.rand(4), torch.tensor(1))


def test_off_by_default() -> None:
    with dynajit.config.patch(capture_scalar_outputs=False, capture_dynamic_output_shape_ops=False):
        report = assert_same(filled, torch.rand(4), torch.tensor(5), backend="eager")
        assert report.graph_break_count == 1
