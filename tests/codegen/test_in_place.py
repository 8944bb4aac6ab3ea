"""What is copied to an input at the end is stored there by the kernel that computes it, where nothing can notice."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit


def _swap(x: Tensor, y: Tensor) -> None:
    old = x * 1
    x.copy_(y)
    y.copy_(old)


def _mix(x: Tensor, y: Tensor) -> Tensor:
    mean = (x + y) * 0.5
    x.mul_(0.5).add_(y)
    y.sub_(x).abs_()
    return mean + x * y


def _turned(x: Tensor, y: Tensor) -> None:
    x.copy_(x.t() * 2 + y)


def _shifted(x: Tensor, y: Tensor) -> None:
    x[1:] = x[:-1] + y[1:]


def _of_its_sum(x: Tensor, y: Tensor) -> None:
    x.div_(x.sum())
    y.sub_(y.amax(1, keepdim=True)).exp_()


def _padded(x: Tensor, y: Tensor) -> None:
    x.copy_(torch.nn.functional.pad(x[1:-1], (0, 0, 1, 1)) + y)


def _scanned(x: Tensor, y: Tensor) -> None:
    x.copy_(x.cumsum(0) + y)


def _turned_other(x: Tensor, y: Tensor) -> None:
    x.add_(y.t())
    y.mul_(2)


def _part(x: Tensor, y: Tensor) -> Tensor:
    x[2:5].mul_(3)
    y[:, ::2] += 1
    return x.sum() + y.sum()


def _read_after(x: Tensor, y: Tensor) -> Tensor:
    before = x @ y
    x.add_(1)
    return before + x @ y


def _same_twice(x: Tensor, y: Tensor) -> None:
    x.add_(y)
    y.copy_(x)
    x.mul_(y)


PROGRAMS = [
    _swap,
    _mix,
    _turned,
    _shifted,
    _of_its_sum,
    _padded,
    _scanned,
    _turned_other,
    _part,
    _read_after,
    _same_twice,
]


def _inputs(dtype: torch.dtype, layout: str, size: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(size)
    made = [torch.randn(size, size).to(dtype) for _ in range(2)]
    if layout == "turned":
        return made[0].t(), made[1]
    return (torch.randn(size, 2 * size).to(dtype)[:, ::2], made[1]) if layout == "stepping" else (made[0], made[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", ["plain", "turned", "stepping"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_inputs_hold_what_eager_leaves_there(program: Callable[..., Any], layout: str, dtype: torch.dtype) -> None:
    compiled = dynajit.compile(program, fullgraph=True)
    for size in (7, 96):
        want_in, got_in = _inputs(dtype, layout, size), _inputs(dtype, layout, size)
        want, got = program(*want_in), compiled(*got_in)
        tolerance: dict[str, Any] = {"rtol": 5e-2, "atol": 5e-2} if dtype is torch.bfloat16 else {}
        torch.testing.assert_close(got, want, **tolerance)
        for now, then in zip(got_in, want_in, strict=True):
            torch.testing.assert_close(now, then, **tolerance)
            assert (now._version > 0) == (then._version > 0)


def test_nothing_has_changed_where_an_index_is_refused() -> None:
    def f(x: Tensor, table: Tensor, at: Tensor) -> Tensor:
        picked = table[at] * 2
        x.add_(1)
        return picked + x

    compiled = dynajit.compile(f)
    x = torch.zeros(4)
    torch.testing.assert_close(compiled(x, torch.arange(5.0), torch.tensor([0, 1, 2, 4])), torch.tensor([1.0, 3, 5, 9]))
    with pytest.raises(IndexError):
        compiled(x, torch.arange(5.0), torch.tensor([0, 1, 2, 7]))
    assert torch.equal(x, torch.ones(4))


def test_saved_tensors_notice_the_change() -> None:
    def step(weight: Tensor, grad: Tensor) -> None:
        with torch.no_grad():
            weight.sub_(grad * 0.1)

    weight = torch.randn(5, requires_grad=True)
    loss = (weight * weight).sum()
    dynajit.compile(step)(weight, torch.ones(5))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_optimizer_copies_nothing() -> None:
    weight = torch.randn(300, 300, requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=0.1)
    weight.grad = torch.randn(300, 300)
    optimizer.step()
    report = dynajit.explain(optimizer.step)()
    # the operator, not `_to_copy`: conversions are part of kernels
    assert not re.search(r"(?<!_to_)copy_", str(report).partition("Guards:")[0])


@pytest.mark.parametrize("simd", ("auto", "none"))
def test_memory_that_is_stored_over_twice(simd: str) -> None:
    """A result over another that lies over a third: one pointer in the kernel for what it reads and stores there."""

    def f(x: Tensor) -> Tensor:
        y = torch.nn.functional.dropout(x.sin(), 0.4)
        return torch.nn.functional.dropout(y, 0.4).exp() + y

    with dynajit.config.patch(simd=simd):
        x = torch.randn(5, 6, requires_grad=True)
        found = []
        for call in (f, dynajit.compile(f)):
            torch.manual_seed(0)
            result = call(x)
            found.append((result, *torch.autograd.grad(result.sum(), x)))
        torch.testing.assert_close(found[1], found[0])


_ROWS = torch.tensor([3, 1])
_WRITES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "index_fill_": lambda x, y: x.index_fill_(0, _ROWS, 2.5),
    "index_fill_, tensor": lambda x, y: x.index_fill_(1, _ROWS, y[0, 0]),
    "index_reduce_": lambda x, y: x.index_reduce_(0, _ROWS, y[:2], "amax"),
    "masked_scatter_": lambda x, y: x.masked_scatter_(y > 0, y * 2),
    "put_": lambda x, y: x.put_(_ROWS, y[0, :2], accumulate=True),
    "scatter_, reduce": lambda x, y: x.scatter_(0, _ROWS[None].expand(2, 2), y, reduce="multiply"),
    "scatter_, value, reduce": lambda x, y: x.scatter_(0, _ROWS[None], 0.5, reduce="add"),
    "scatter_reduce_": lambda x, y: x.scatter_reduce_(0, _ROWS[None], y, "amin", include_self=False),
}


@pytest.mark.parametrize("name", _WRITES)
def test_what_writes_a_part_of_an_input_copies_nothing(name: str) -> None:
    write = _WRITES[name]
    x, y = torch.randn(5, 6), torch.randn(5, 6)
    mine, ours = x.clone(), x.clone()
    compiled = dynajit.compile(write)
    assert compiled(ours, y) is ours
    write(mine, y)
    torch.testing.assert_close(ours, mine)
    with torch.profiler.profile() as profile:
        compiled(ours, y)
    write(mine, y)
    torch.testing.assert_close(ours, mine)
    assert not any("copy" in event.name or "clone" in event.name for event in profile.events())


def test_a_place_outside_is_eagers_error_and_changes_nothing() -> None:
    x, rows = torch.randn(3, 4), torch.tensor([0, 3])
    before = x.clone()
    with pytest.raises(IndexError):
        dynajit.compile(lambda x, rows: x.index_fill_(0, rows, 1.0))(x, rows)
    eager = before.clone()
    with pytest.raises(IndexError):
        eager.index_fill_(0, rows, 1.0)
    assert torch.equal(x, eager)
