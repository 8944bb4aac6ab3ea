"""`untyped_storage()`, `_version` and `_base`: in the graph, as eager has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.report import records
from dynajit.testing import CompileCounter, assert_same, require_no_capture

X = torch.arange(8.0)


def sizes(x: Tensor) -> Any:
    y = x * 2
    storage = x.untyped_storage()
    return x + storage.size(), storage.nbytes(), len(y.untyped_storage()), y[2:].untyped_storage().size()


def versions_of_what_is_made(x: Tensor) -> Any:
    y = x * 2
    before = y._version
    view = y[1:]
    y.add_(1)
    view.mul_(2)
    return y, before, y._version, view._version, torch.empty(3).fill_(1)._version


def version_of_an_argument(x: Tensor) -> Any:
    return x * 2, x._version


def bases(x: Tensor) -> Any:
    y = x * 2
    view = y.view(2, 4)
    return view._base is y, view[0]._base is y, y._base, x._base, x.view(-1)._base is x, y


def cached_by_version(x: Tensor, cache: dict[str, Any]) -> Tensor:
    if cache.get("version") != x._version:
        cache["version"], cache["value"] = x._version, x.sum()
    return x * cache["value"]


@pytest.mark.parametrize("fn", [sizes, versions_of_what_is_made, version_of_an_argument, bases])
def test_in_one_graph(fn: Callable[..., Any]) -> None:
    assert_same(fn, X, repeat=3, graphs=1, breaks=0)


def version_behind_a_write(x: Tensor) -> Any:
    x.add_(1)
    return x * 2, x._version - x.view(-1)._version


def version_of_data(x: Tensor) -> Any:
    y = x * 2
    y.data.mul_(2)
    return y, y._version


def other_uses_of_a_storage(x: Tensor) -> Any:
    y = x * 2
    return y.untyped_storage().data_ptr() == y.data_ptr(), y.untyped_storage().device, y


def resized(x: Tensor) -> Any:
    y = x * 2
    y.untyped_storage().resize_(0)
    return y.shape, y.untyped_storage().size(), x + 1


def numbers_before_a_write(x: Tensor) -> Any:
    before = x._version, x.shape[0], x.storage_offset(), x.untyped_storage().size()
    x.add_(1)
    return before, x.resize_(4).shape, x.stride()


def version_before_a_write(x: Tensor) -> Any:
    before = x._version
    x.add_(1)
    return before, before + 1


def version_before_a_write_and_a_break(x: Tensor) -> Any:
    before = x._version
    x[:2].add_(1)
    dynajit.graph_break()
    x.mul_(2)
    return before, x._version


@pytest.mark.parametrize(
    "fn",
    [
        *(version_behind_a_write, version_of_data, resized, numbers_before_a_write, version_before_a_write),
        version_before_a_write_and_a_break,
    ],
)
def test_same_as_eager(fn: Callable[..., Any]) -> None:
    assert_same(fn, X, repeat=3)


def other_data(x: Tensor, other: Tensor) -> Any:
    storage, view = x.untyped_storage(), x.view(-1).untyped_storage()
    x.data = other
    return storage.nbytes(), storage, view, x


def set_to_another(x: Tensor, other: Tensor) -> Any:
    y = x * 2
    storage = y.untyped_storage()
    y.set_(other)
    return storage, y


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("fn", [other_data, set_to_another])
def test_a_storage_whose_tensor_gets_other_memory(fn: Callable[..., Any], backend: str) -> None:
    dynajit.reset()
    compiled = dynajit.compile(fn, backend=backend)
    for _ in range(3):
        for found, wanted in zip(compiled(X.clone(), X[:3] + 1), fn(X.clone(), X[:3] + 1), strict=True):
            assert list(found) == list(wanted) if not isinstance(found, int) else found == wanted


@pytest.mark.parametrize("fn", [version_before_a_write, version_before_a_write_and_a_break])
def test_a_version_that_is_another_one_at_each_call(fn: Callable[..., Any]) -> None:
    run, ours, expected = dynajit.compile(fn, backend="eager"), X.clone(), X.clone()
    for _ in range(4):
        assert run(ours) == fn(expected)


def test_addresses_that_are_others_at_every_call_do_not_compile_for_ever() -> None:
    """Every result is held, so that no memory is given out twice."""
    run, seen = dynajit.compile(other_uses_of_a_storage, backend="eager"), []  # type: Any, list[Any]
    held = [run(X) for _ in range(4)]
    with records.listen(seen.append):
        held += [run(X) for _ in range(4)]
    require_no_capture(seen, "a later call")
    assert len({y.data_ptr() for *_, y in held}) == len(held)
    for *same, y in held:
        assert same == [*other_uses_of_a_storage(X)[:2]]
        torch.testing.assert_close(y, X * 2)


def test_bases_of_views_that_are_arguments() -> None:
    whole = torch.arange(8.0)
    run = dynajit.compile(bases, backend="eager")
    for given in (whole, whole.view(8), whole.detach(), whole.clone()):
        for _ in range(2):
            found, expected = run(given), bases(given)
            assert found[:3] == expected[:3] and found[4] == expected[4]
            assert found[3] is expected[3]


def test_sizes_and_versions_that_change_do_not_compile_for_ever() -> None:
    counter = CompileCounter()
    run = dynajit.compile(version_of_an_argument, backend=counter)
    x = torch.arange(8.0)
    for _ in range(6):
        assert run(x)[1] == x._version
        x.add_(1)
    assert counter.frame_count <= 2
    run, whole = dynajit.compile(sizes, backend=counter), torch.arange(32.0)
    for size in range(8, 14):
        assert run(whole[:size].clone())[1:] == sizes(whole[:size].clone())[1:]
        assert run(whole[:size])[1:] == sizes(whole[:size])[1:]


def test_a_cache_by_version() -> None:
    x, caches = torch.arange(8.0), ({}, {})  # type: tuple[dict[str, Any], dict[str, Any]]
    run = dynajit.compile(cached_by_version, backend="eager")
    for step in range(6):
        torch.testing.assert_close(run(x, caches[0]), cached_by_version(x, caches[1]))
        if step % 2:
            x.mul_(2)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize(
    "parts",
    [
        lambda x: x.unsafe_chunk(2),
        lambda x: torch.unsafe_split(x, 2),
        lambda x: x.unsafe_split_with_sizes([1, 3]),
    ],
)
def test_views_that_are_not_said_to_be_views(parts: Any, backend: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        parts(y)[1].add_(1)
        return y * 3

    x = torch.arange(4.0)
    torch.testing.assert_close(dynajit.compile(function, backend=backend)(x), function(x))
