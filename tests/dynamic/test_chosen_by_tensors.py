"""Items that a tensor of one integer chooses.

With nothing set they are loaded by kernels where the program does not see that eager's item is a view. Elsewhere, and
on GPUs, the graph ends there: a number that is read and checked costs more than a break. Where the user wants numbers
to be in the graph they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.testing import assert_same


@pytest.fixture
def captured() -> Iterator[None]:
    with dynajit.config.patch(capture_scalar_outputs=True):
        yield


def _written(x: Tensor, at: Any, value: Any) -> Tensor:
    x[at] = value
    return x * 2


def _added(x: Tensor, t: Tensor) -> Tensor:
    x[:, t] += x[:, t + 1]
    return x * 2


def _view_written(x: Tensor, t: Tensor) -> Any:
    row = x[t]
    row.add_(1)
    return row, x * 2


def _schedule(x: Tensor, t: Tensor) -> Tensor:
    factor = x.flatten()[t]
    while factor.dim() < x.dim():
        factor = factor.unsqueeze(-1)
    return factor.sqrt() * x


def _loop(x: Tensor, t: Tensor) -> Tensor:
    for at in torch.stack([t, t + 1]):
        x = x + x[at] * 0.1
    return x


def _last(x: Tensor, t: Tensor) -> Tensor:
    lengths = t + torch.arange(3)
    return torch.stack([x[row, lengths[row] - 1] for row in range(3)])


CHOSEN: dict[str, Any] = {
    "row": lambda x, t: x[t] * 2 + x[t - 1],
    "views": lambda x, t: (x[t], x[:, t]),
    "both": lambda x, t: x[t, t] + x[-t, 0],
    "beside a slice": lambda x, t: x[..., None, t, 1:] - 1,
    "beside indices": lambda x, t: x[t, torch.arange(2)] + x[t, torch.tensor([[0, 1]])],
    "beside a list": lambda x, t: x[t, [0, 2]] + x[[0, 2], t],
    "int32": lambda x, t: x[t.int()] + 1,
    "where the maximum is": lambda x, t: x[x.sum(1).argmax()] * t,
    "write": lambda x, t: _written(x, t, 1.0),
    "write of one": lambda x, t: _written(x, (t, t), x.max()),
    "write beside a list": lambda x, t: _written(x, (t, [0, 2]), x[0, :2]),
    "added": _added,
    "written view": _view_written,
    "schedule": _schedule,
    "loop": _loop,
    "last of each": _last,
    "vmap": lambda x, t: torch.vmap(lambda row: row[t])(x),
    "vmap of the index": lambda x, t: torch.vmap(lambda at: x[at])(torch.stack([t, t + 1])),
}


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", CHOSEN)
def test_items_chosen_by_tensors(name: str, backend: str) -> None:
    calls = [(torch.rand(4, 4), torch.tensor(number)) for number in (1, 2, 0)]
    near: dict[str, Any] = {} if backend == "eager" else {"rtol": 1e-6, "atol": 1e-6}
    assert_same(CHOSEN[name], *calls[0], then=calls[1:], backend=backend, graphs=1, breaks=0, recompiles=0, **near)


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_gradients_of_items_chosen_by_tensors(backend: str) -> None:
    def fn(x: Tensor, t: Tensor) -> Tensor:
        return (x[t] * x[t + 1]).sum() + x[x.sum(1).argmax(), t]

    compiled = dynajit.compile(fn, backend=backend)
    for number in (1, 0, 2):
        x = torch.randn(4, 3, requires_grad=True)
        wanted, found = (torch.autograd.grad(each(x, torch.tensor(number)), x) for each in (fn, compiled))
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_out_of_range(backend: str) -> None:
    x = torch.randn(4, 3)
    compiled = dynajit.compile(CHOSEN["row"], backend=backend)
    compiled(x, torch.tensor(1))
    with pytest.raises(IndexError) as wanted:
        CHOSEN["row"](x, torch.tensor(4))
    with pytest.raises(IndexError) as found:
        compiled(x, torch.tensor(4))
    assert str(found.value) == str(wanted.value)


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_one_index_in_two_branches(backend: str) -> None:
    """What a branch reads of a tensor, the other one has to read for itself."""

    def fn(x: Tensor, t: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda a, at: a[at] + 0, lambda a, at: a[at] * 2, (x, t))  # type: ignore[no-any-return]

    report = dynajit.explain(fn)(torch.ones(4, 3), torch.tensor(1))
    assert (report.graph_count, report.graph_break_count) == (1, 0)
    compiled = dynajit.compile(fn, backend=backend)
    for sign, at in ((1, 2), (-1, 2), (-1, 0)):
        x = torch.rand(4, 3) * sign
        torch.testing.assert_close(compiled(x, torch.tensor(at)), x[at] if sign > 0 else x[at] * 2)


def _dynamic_programming(x: Tensor, t: Tensor) -> Tensor:
    best = x.clone()
    for row in range(1, 4):
        best[row] = best[row - 1] + best[t, 0]
        best[row, t] = best[row, t] * 2
    return best


def _greedy(x: Tensor, t: Tensor) -> Tensor:
    for _ in range(3):
        t = x[t].argmax()
    return x[t] * 2


def _put_number(x: Tensor, t: Tensor) -> Tensor:
    x[t, 1:] = x[0, 1:]
    x[t] = x[0, :1]
    x[t] = 3
    return x + 1


def _put_in_a_column(x: Tensor, t: Tensor) -> Tensor:
    own = x + 1
    own[:, t] = 3
    own[1, t] = own[t, 1]
    return own


def _column_after_a_write(x: Tensor, t: Tensor) -> Tensor:
    x += 1
    return x[1, t] * 2


def _counted(x: Tensor, t: Tensor) -> Tensor:
    counts = torch.zeros(4)
    for at in torch.stack([t, t + 1, t]):
        counts[at] += 1
    return counts + x


def _filled(x: Tensor, t: Tensor) -> Any:
    own = x + 1
    own[t].fill_(2)
    own[:, t].copy_(x[0])
    own.select(0, t).unsqueeze(0).mul_(3)
    own[t, 1] -= x.max()
    return own, own[..., t] * 2


def _kept_and_read(x: Tensor, t: Tensor) -> Any:
    row = x[t]
    row += 1
    row[1:] = row[:-1] * 2
    return row.sum() + x[t] + x.sum()


def _row_of_a_column(x: Tensor, t: Tensor) -> Any:
    x[:, t][t] += 5
    return x * 2


#: without numbers: one graph with nothing set
LOADED: dict[str, Any] = {
    **{
        name: CHOSEN[name]
        for name in ("row", "both", "int32", "where the maximum is", "schedule", "loop", "last of each")
    },
    **{name: CHOSEN[name] for name in ("beside indices", "write", "write of one")},
    "beside an integer": lambda x, t: x[1, t] + x[t, -1] + x[None, t, 1:].sum(),
    "views of it": lambda x, t: x[t].unsqueeze(0).expand(4, 4) * x,
    "its layout": lambda x, t: x[t].view(2, 2).t().reshape(-1) + x[t].stride(0),
    "its base": lambda x, t: (x[t]._base is x, x[t]._is_view(), x[t] + 1)[2],
    "of what was computed": lambda x, t: (x * 2)[t] + 1,
    "under no_grad": torch.no_grad()(lambda x, t: x[t] * 2),
    "dynamic programming": _dynamic_programming,
    "greedy": _greedy,
    "a number is put": _put_number,
    "put in a column": _put_in_a_column,
    "a column": lambda x, t: x[:, t] * 2 + x[..., t],
    "a column of three dimensions": lambda x, t: x.view(2, 2, 4)[:, t.clamp(0, 1)].relu() @ x,
    "a column beside an integer": lambda x, t: x.view(2, 2, 4)[:, -1, t] + 1,
    "a column in one piece": lambda x, t: (x[:, t].contiguous() + 1, x[:, t].reshape(2, 2) * 2),
    "a part of a column": lambda x, t: x[1:, t].cumsum(0) + x[:, None, t][:3, 0],
    "select": lambda x, t: x.select(1, t) + torch.select(x, index=t, dim=-2),
    "narrow": lambda x, t: x.narrow(1, t.remainder(3), 2) @ torch.narrow(x, 0, t.remainder(3), length=2),
    "a column is written": lambda x, t: _written(x, (slice(None), t), 1.0),
    "before an ellipsis": lambda x, t: _written(x, (..., t), x[:, 0]),
    "row is added to": lambda x, t: _added_to(x, t),
    "added": _added,
    "counted": _counted,
    "filled": _filled,
    "kept and read": _kept_and_read,
    "row of a column": _row_of_a_column,
}


def _added_to(x: Tensor, t: Tensor) -> Tensor:
    x[t] += 1
    x[t, 0] *= 2
    return x * 2


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", LOADED)
def test_items_are_loaded_with_nothing_set(name: str, backend: str) -> None:
    calls = [(torch.rand(4, 4), torch.tensor(number)) for number in (1, 2, -1)]
    near: dict[str, Any] = {} if backend == "eager" else {"rtol": 1e-6, "atol": 1e-6}
    assert_same(LOADED[name], *calls[0], then=calls[1:], backend=backend, graphs=1, breaks=0, recompiles=0, **near)


def _written_after(x: Tensor, t: Tensor) -> Any:
    row = x[t]
    x.mul_(2)
    return row + 1


def _read_before_writes(x: Tensor, t: Tensor) -> Any:
    factor = x[t] + 1
    x.mul_(2)
    return factor


def _kept(x: Tensor, t: Tensor) -> Any:
    row = x[t]
    out = row * 2

    def later() -> Tensor:
        return row

    x.add_(1)
    return out, later()


def _in_a_branch(x: Tensor, t: Tensor) -> Any:
    row = x[t]
    return torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (row,))


def _after_a_break(x: Tensor, t: Tensor) -> Any:
    row = x[t]
    print(end="")
    return row.add_(1), x + 1


def _moved(x: Tensor, t: Tensor) -> Any:
    row = x[t]
    t.add_(1).remainder_(4)
    row += 1
    x[t] = row
    return x * 2


def _added_across(x: Tensor, t: Tensor) -> Any:
    x[t] += x[:, 1]
    x[:, t] *= x[t]
    x[t] -= x[0, 2]
    return x * 2


def _written_around(x: Tensor, t: Tensor) -> Any:
    first, second = x[t], x[t - 1]
    first.add_(1)
    x[0, 0] = 5
    return first * 2, second + 1


#: where a copy would be something else, or may be
VIEWS: dict[str, Any] = {
    "returned": lambda x, t: x[t],
    "a view of it returned": lambda x, t: (x[t].unsqueeze(0), x * 2),
    "the same, contiguous": lambda x, t: (x[t].contiguous(), x * 2),
    "written": CHOSEN["written view"],
    "in place": lambda x, t: (x[t].unsqueeze(0).mul_(2), x + 1)[1],
    "out": lambda x, t: (torch.add(x[0], 1, out=x[t]), x + 1)[1],
    "written after": _written_after,
    "kept": _kept,
    "after a break": _after_a_break,
    "around it": lambda x, t: x[t].as_strided((4, 4), (4, 1), 0) + 1,
    "a column's layout": lambda x, t: x[:, t].is_contiguous(),
    "in a list": lambda x, t: [x[t], x[t] + 1],
    "detached": lambda x, t: (x[t].detach(), x + 1),
    "branch": _in_a_branch,
    "a row is put across": lambda x, t: (_written(x, (..., t), x[0]), _written(x, t, x[:, 2])),
    "a row is added across": _added_across,
    "index is written": _moved,
    "written, and around it": _written_around,
    "a column in one piece is written": lambda x, t: (x[:, t].contiguous().mul_(2), x[:, t] + 1)[1],
    "a column in one piece, twice": lambda x, t: (x[:, t].contiguous(), x[:, t].contiguous()),
    "laid out as the view": lambda x, t: x[None, t].clone(),
    "beside an integer after a write": _column_after_a_write,
    "a part": lambda x, t: (x[t][1:], x + 1),
    "split": lambda x, t: (x[t].split(2)[1], x + 1),
    "mask": lambda x, t: x[t > 1] + x[t.to(torch.bool)],
}


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("settings", [{}, {"capture_scalar_outputs": True}], ids=["nothing set", "scalars"])
@pytest.mark.parametrize("name", VIEWS)
def test_items_that_are_views_stay_views(name: str, settings: Any, backend: str) -> None:
    calls = [(torch.rand(4, 4), torch.tensor(number)) for number in (1, 2, 0)]
    near: dict[str, Any] = {} if backend == "eager" else {"rtol": 1e-6, "atol": 1e-6}
    with dynajit.config.patch(**settings):
        assert_same(VIEWS[name], *calls[0], then=calls[1:], backend=backend, **near)
        x, t = torch.rand(4, 4), torch.tensor(2)
        wanted, found = VIEWS[name](x.clone(), t), dynajit.compile(VIEWS[name], backend=backend)(x, t)
    if name in ("returned", "a view of it returned", "detached", "split", "a part", "in a list", "kept"):
        wanted, found = (each if isinstance(each, Tensor) else each[0] for each in (wanted, found))
        if name != "kept":
            assert found.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert found.storage_offset() == wanted.storage_offset() or name == "kept"


# these have no item there that eager would not find
_RAISING = sorted(
    LOADED.keys()
    - {"where the maximum is", "last of each", "loop", "greedy", "schedule", "narrow", "a column of three dimensions"}
)


def test_where_an_item_begins() -> None:
    calls = [(torch.rand(4, 4), torch.tensor(number)) for number in (1, 2, 0)]
    assert_same(lambda x, t: x[t] + x[t].storage_offset(), *calls[0], then=calls[1:], recompiles=None)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("index", [4, -5])
@pytest.mark.parametrize("name", [*_RAISING, "beside an integer after a write"])
def test_an_item_that_there_is_not(name: str, index: int, backend: str) -> None:
    """Eager's error, and what eager has written until then."""
    program = {**VIEWS, **LOADED}[name]
    compiled = dynajit.compile(program, backend=backend)
    compiled(torch.rand(4, 4), torch.tensor(1))
    x = torch.rand(4, 4)
    ours, theirs = x.clone(), x.clone()
    with pytest.raises(IndexError) as wanted:
        program(theirs, torch.tensor(index))
    with pytest.raises(IndexError) as found:
        compiled(ours, torch.tensor(index))
    assert str(found.value) == str(wanted.value)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("start", [3, 4, -1, -4, -5, 9])
def test_a_part_that_there_is_not(start: int, backend: str) -> None:
    compiled = dynajit.compile(lambda x, t: x.narrow(1, t, 2) * 2, backend=backend)
    compiled(torch.rand(4, 4), torch.tensor(1))
    x = torch.rand(4, 4)
    if start == -4:
        assert torch.equal(compiled(x, torch.tensor(start)), x[:, :2] * 2)
        return
    with pytest.raises((IndexError, RuntimeError)) as wanted:
        x.narrow(1, torch.tensor(start), 2)
    with pytest.raises(type(wanted.value)) as found:
        compiled(x, torch.tensor(start))
    assert str(found.value) == str(wanted.value)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_gradients_of_loaded_items(backend: str) -> None:
    def fn(x: Tensor, t: Tensor) -> Tensor:
        return (x[t] * x[t + 1]).sum() * x[t, 1].exp() + x[x.sum(1).argmax(), t]

    compiled = dynajit.compile(fn, backend=backend)
    for number in (1, 0, 2):
        x = torch.randn(4, 3, requires_grad=True, dtype=torch.float64)
        seconds = []
        for each in (fn, compiled):
            (first,) = torch.autograd.grad(each(x, torch.tensor(number)), x, create_graph=True)
            seconds.append((first, *torch.autograd.grad(first.sin().sum(), x)))
        torch.testing.assert_close(seconds[1], seconds[0])
    assert dynajit.explain(fn)(x, torch.tensor(1)).graph_break_count == 0


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_gradients_of_what_is_written_into_loaded_items(backend: str) -> None:
    def fn(x: Tensor, t: Tensor) -> Tensor:
        y = x * 2
        y[t] += x[0]
        y[:, t] *= 3
        y[t].clamp_(max=1)
        return (y * y[t]).sum() + y[..., t].exp().sum()

    compiled = dynajit.compile(fn, backend=backend)
    for number in (1, 0, 2):
        x = torch.randn(4, 4, requires_grad=True, dtype=torch.float64)
        wanted, found = (torch.autograd.grad(each(x, torch.tensor(number)), x) for each in (fn, compiled))
        torch.testing.assert_close(found, wanted)
    assert dynajit.explain(fn)(x, torch.tensor(1)).graph_break_count == 0


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_what_chose_may_be_written_before_backward(backend: str) -> None:
    def fn(x: Tensor, t: Tensor) -> Tensor:
        y = x * 2
        y[t + 0] = 1
        y[t] = y[:, t].exp()
        t.add_(1)
        return y * y[0]

    def trained(program: Any, number: int) -> Any:
        x, t = torch.linspace(-1, 1, 16).view(4, 4).requires_grad_(), torch.tensor(number)
        loss = program(x, t).sum()
        t.add_(1)
        return torch.autograd.grad(loss, x)

    for program in (fn, lambda x, t: x[t] * x[..., t], lambda x, t: _added(x * 2, t)):
        compiled = dynajit.compile(program, backend=backend)
        for number in (1, 2):
            torch.testing.assert_close(trained(compiled, number), trained(program, number))


def test_what_backward_keeps_of_a_loaded_item_may_not_be_written() -> None:
    def fn(x: Tensor, y: Tensor, t: Tensor) -> Tensor:
        return (x[t] * y).sum()

    for each in (fn, dynajit.compile(fn)):
        x, y = torch.rand(4, 3), torch.rand(3, requires_grad=True)
        loss = each(x, y, torch.tensor(1))
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_sizes_vary_around_loaded_items() -> None:
    calls = [(torch.rand(size, size), torch.tensor(size - 1)) for size in (4, 6, 8)]
    for name in ("row", "both", "write of one"):
        assert_same(LOADED[name], *calls[0], then=calls[1:], breaks=0, rtol=1e-6, atol=1e-6)


def test_no_long_tensor_is_copied_for_one_written_item() -> None:
    """Kernels that read and write items copy the whole tensor: of a long one that takes longer than a break."""
    for size, ends in ((4, False), (256, True)):
        x, t = torch.rand(size, size), torch.tensor(1)
        assert (dynajit.explain(_added)(x, t).graph_break_count > 0) == ends
        assert torch.equal(dynajit.compile(_added, backend="eager")(x.clone(), t), _added(x.clone(), t))
