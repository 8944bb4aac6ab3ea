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


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool])
@pytest.mark.parametrize("backend", BACKENDS)
def test_places_and_counts_of_what_is_unique(backend: str, dtype: torch.dtype) -> None:
    def fn(x: Tensor) -> Any:
        made = [
            torch.unique(x, return_inverse=True, return_counts=True),
            torch.unique(x, dim=0, return_inverse=True, return_counts=True),
            torch.unique_consecutive(x, return_inverse=True, return_counts=True),
            torch.unique_consecutive(x, dim=0, return_inverse=True, return_counts=True),
        ]
        return [(found[at] * 0.5, at // 2, counts + 0.5, at.dtype, counts.dtype) for found, at, counts in made]

    for size in (6, 0):
        x = torch.tensor([3, 1, 1, 2, 3, 3])[:size].to(dtype)
        whole(fn, [(x,), (x + x,)], backend)


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


def _written(x: Tensor, at: Any, value: Any) -> Tensor:
    y = x * 2
    y[at] = value
    return y


def _viterbi(emissions: Tensor, moves: Tensor) -> Any:
    score, before = emissions[0], []
    for each in emissions[1:]:
        score, best = (score[:, None] + moves + each).max(0)
        before.append(best)
    path = [score.argmax()]
    for best in reversed(before):
        path.append(best[path[-1]])
    return torch.stack(path[::-1]), score.max()


INDEXED: dict[str, Any] = {
    "item": lambda x, t, k: x[t.item()] + 1,
    "tensor": lambda x, t, k: x[t] * 2 + x[t - 1],
    "a view of the input": lambda x, t, k: (x[t], x[:, t]),
    "of what is computed": lambda x, t, k: (x * 2)[t - 2] + 1,
    "twice": lambda x, t, k: x[k[t], t] + k[k[t]],
    "beside a slice": lambda x, t, k: x[..., None, t, 1:] - 1,
    "beside indices": lambda x, t, k: x[t, k[:2]] + x[k[1:3], t],
    "slice by item": lambda x, t, k: (x[: t.item()] + 1, x[t.item() :] * 2, x[t.item() : t.item() + 1].sum()),
    "slice by tensor": lambda x, t, k: (x[:t] * 2, x[:, t:].sum(1)),
    "select": lambda x, t, k: x.select(0, t.item() - 2) + 1,
    "int32": lambda x, t, k: x[t.int()] + x[k.to(torch.int16)[t]],
    "write": lambda x, t, k: _written(x, t, k[:3] * 0.5),
    "write by item": lambda x, t, k: _written(x, t.item() - 3, 7.0),
    "write of one": lambda x, t, k: _written(x, (t, t), x.sum()),
    "write beside indices": lambda x, t, k: _written(x, (t, k[:2] % 3), 1.0),
    "write of a slice": lambda x, t, k: _written(x, slice(t), -1.0),
    "write of more dimensions": lambda x, t, k: _written(x, t, torch.ones(1, 1, 3)),
    "an input written": lambda x, t, k: x[t].add_(1) + x[t, 1],
    "unused": lambda x, t, k: (x[t], x.select(1, t.item()), x * 2)[2],
    "viterbi": lambda x, t, k: _viterbi(x, x[:3, :3] + t),
}


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", INDEXED)
def test_indices_that_depend_on_data(name: str, backend: str) -> None:
    for numbers in ((1, 2, 0), (1, -1, -4, 5)):  # the last one is out of range where it isn't a slice's
        compiled = dynajit.compile(INDEXED[name], fullgraph=True, backend=backend)
        for number in numbers:
            outcomes = []
            for fn in (INDEXED[name], compiled):
                x = torch.arange(12.0).reshape(4, 3)
                try:
                    found = fn(x, torch.tensor(number), torch.tensor([2, 0, 1, 2]))
                except IndexError as error:
                    found = error
                outcomes.append((found, x))
            (wanted, x), (found, ours) = outcomes
            assert type(found) is type(wanted)
            if isinstance(wanted, IndexError):
                assert str(found) == str(wanted)
            else:
                torch.testing.assert_close(found, wanted)
            torch.testing.assert_close(ours, x)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_gradients_of_items_that_data_chooses(backend: str) -> None:
    def crf(x: Tensor, tags: Tensor, moves: Tensor) -> Tensor:
        score, total = x[0, tags[0]], x[0]
        for t in range(1, x.shape[0]):
            score = score + moves[tags[t - 1], tags[t]] + x[t, tags[t]]
            total = torch.logsumexp(total[:, None] + moves + x[t], 0)
        return torch.logsumexp(total, 0) - score

    compiled = dynajit.compile(crf, fullgraph=True, backend=backend)
    for _ in range(3):
        x, moves = torch.randn(4, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
        tags = torch.randint(0, 3, (4,))
        wanted, found = (torch.autograd.grad(fn(x, tags, moves), (x, moves)) for fn in (crf, compiled))
        torch.testing.assert_close(found, wanted)


def _zeroed(x: Tensor, t: Tensor) -> Tensor:
    x = x * 2
    x.narrow(0, t.item(), 1).zero_()
    return x.sin()


NARROWED: dict[str, Any] = {
    "by item": lambda x, t: x.narrow(0, t.item(), 1) + 1,
    "that of more": lambda x, t: x.narrow(0, t.item(), 2).sum(0),
    "so many": lambda x, t: x.narrow(0, 0, t.item()) + 1,
    "none": lambda x, t: x.narrow(1, t.item(), 0),
    "written": _zeroed,
    "all pairs": lambda x, t: torch.combinations(x[0]) * t,
}
READS = {
    "by tensor": lambda x, t: torch.narrow(x, 0, t, 2),
    "by tensor, written": lambda x, t: (x * 2).narrow(-1, t, 1).add_(1),
    "and again": lambda x, t: (x.narrow(0, t, 1), x.select(0, t.item())),
}


def _outcome(fn: Any, number: int, differentiated: bool) -> Any:
    x = torch.arange(20.0).reshape(5, 4).sin().requires_grad_(differentiated)
    try:
        found = fn(x, torch.tensor(number))
        found = found if isinstance(found, tuple) else (found,)
        return *found, *(torch.autograd.grad(sum(each.sum() for each in found), x) if differentiated else ())
    except (IndexError, RuntimeError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("differentiated", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [*NARROWED, *READS])
def test_narrow_by_what_data_says(name: str, backend: str, differentiated: bool) -> None:
    """Places before the first, behind the last and between them; a fake that reads values itself can't check them."""
    fn = NARROWED.get(name) or READS[name]
    compiled = dynajit.compile(fn, fullgraph=name in NARROWED, backend=backend)
    for number in (1, 3, 0, -1, -2, 5, 7, -5, -6):
        wanted, found = (_outcome(each, number, differentiated) for each in (fn, compiled))
        if isinstance(wanted[0], Tensor):
            torch.testing.assert_close(found, wanted)
        else:
            assert found == wanted
    if name in READS:
        with pytest.raises(dynajit.exc.Unsupported, match="reads values"):
            dynajit.compile(fn, fullgraph=True, backend=backend)(torch.ones(5, 4), torch.tensor(1))
