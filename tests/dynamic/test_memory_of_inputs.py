"""Inputs whose sizes vary, in memory of every kind (conjugated, negated, behind others, with gaps): views, parts,
and the views of inputs that a graph writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import dynajit
from dynajit.testing import assert_same

BACKENDS = ["eager", "aot_eager", "codegen"]
Make = Callable[[int], Tensor]


def _rows(n: int) -> Tensor:
    return torch.arange(1.0, 2 * n + 1).reshape(n, 2)


_LAYOUTS: dict[str, Make] = {
    "plain": _rows,
    "behind": lambda n: torch.cat([_rows(n), _rows(n)])[n:],
    "gaps": lambda n: _rows(2 * n)[::2],
    "turned": lambda n: _rows(n).t().contiguous().t(),
    "of a leaf": lambda n: (torch.cat([_rows(n), _rows(n)]).requires_grad_() * 1)[n:],
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "make",
    [lambda n: (torch.arange(n) * (1 + 2j)).conj(), lambda n: (torch.arange(n) * (1 + 2j)).conj().imag],
    ids=["conjugated", "negated"],
)
def test_what_memory_stands_for(make: Make, backend: str) -> None:
    def looks(x: Tensor) -> Any:
        return x.is_conj(), x.is_neg(), x * 2, x[1:], x.clone()

    assert_same(looks, make(3), then=[(make(4),), (make(5),)], repeat=1, backend=backend)


_VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "view_as": lambda x: x.view_as(x),
    "head": lambda x: x[: x.shape[0] - 1],
    "row of the tail": lambda x: x[1 : x.shape[0]][0],
    "expand": lambda x: x.expand(2, *x.shape),
    "detach": lambda x: x.detach(),
    "diagonal": lambda x: x.view_as(x).diagonal(),
}
_WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "input": lambda x, v: x.mul_(3),
    "part": lambda x, v: x[1:].add_(1),
    "view": lambda x, v: v.add_(1) if v.dim() < 3 else x.zero_(),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("write", _WRITES)
@pytest.mark.parametrize("layout", _LAYOUTS)
@pytest.mark.parametrize("view", _VIEWS)
def test_views_of_written_inputs(view: str, layout: str, write: str, backend: str) -> None:
    def looks_at_it(x: Tensor) -> Any:
        v = _VIEWS[view](x)
        _WRITES[write](x, v)
        return v, x * 2

    make = _LAYOUTS[layout]
    assert_same(looks_at_it, make(2), then=[(make(4),), (make(5),)], repeat=1, backend=backend)


def _from_the_end(x: Tensor) -> Any:
    y = x.clone()
    y[-3:] += 1
    y[-4:-1] *= 2
    y[-3::2] = 9
    return y, x[-3:] * 2, x[:-3], torch.slice_scatter(x, x[-3:] * 2, 0, -3)


def _gradient_from_the_end(x: Tensor) -> Any:
    x = x.clone().requires_grad_()
    ((x[-3:] ** 2).sum() + (x[-4:-1] * x[1:2]).sum()).backward()
    return x.grad


def _rolls(x: Tensor) -> Any:
    return x.roll(1), x.roll(-1, 1), x.roll((1, 1), (0, 1))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [_from_the_end, _gradient_from_the_end, _rolls])
def test_parts_that_may_begin_before_the_first(program: Callable[[Tensor], Any], backend: str) -> None:
    others = [(_rows(n),) for n in (6, 2, 3, 7)]
    assert_same(program, _rows(5), then=others, repeat=1, backend=backend)


def _narrow(x: Tensor, at: Tensor) -> Any:
    return x.narrow(0, at.item(), 1) * 2


def _write_narrowed(x: Tensor, at: Tensor) -> Any:
    x.narrow(0, at.item(), 1).add_(1)
    return x.sum()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [_narrow, _write_narrowed])
def test_narrow_where_data_says(program: Callable[..., Any], backend: str) -> None:
    others = [(_rows(4), torch.tensor(at)) for at in (2, 0, -1, -2, 3, -4)]
    assert_same(program, _rows(4), torch.tensor(1), then=others, repeat=1, backend=backend, fullgraph=True, graphs=1)


@pytest.mark.parametrize(
    "operation",
    [
        *(lambda x: F.dropout(x, 0.5, False), lambda x: F.dropout(x, 0.0), lambda x: torch.dropout(x, 0.5, False)),
        *(lambda x: torch.nn.Dropout(0.1).eval()(x), lambda x: F.alpha_dropout(x, 0.5, False)),
        *(lambda x: F.dropout2d(x[None, None], 0.5, False), lambda x: F.feature_alpha_dropout(x, 0.5, False)),
        *(lambda x: torch.broadcast_tensors(x, x[:1])[0], lambda x: x.tensor_split(2)[0], lambda x: x.chunk(2, 1)[1]),
        *(lambda x: x.reshape(-1), lambda x: x.t().contiguous(), lambda x: x.contiguous(), lambda x: x.float()),
        *(lambda x: x.flatten(), lambda x: x.unflatten(1, (1, -1)), lambda x: x.movedim(0, 1), lambda x: x.unbind()[1]),
        *(lambda x: x.type_as(x), lambda x: x.positive(), lambda x: x.squeeze(), lambda x: torch.atleast_3d(x)),
        *(lambda x: x.unsafe_chunk(2)[0], lambda x: x.hsplit(2)[1], lambda x: x.expand_as(x), lambda x: x.real),
        *(lambda x: x.resolve_conj(), lambda x: x.nan_to_num(), lambda x: x.view_as(x), lambda x: torch.asarray(x)),
        *(lambda x: F.pad(x, (0, 0)), lambda x: x.roll(0), lambda x: x.tile(1), lambda x: x.repeat(1, 1)),
    ],
)
def test_what_may_be_the_argument_itself_where_sizes_vary(operation: Callable[[Tensor], Tensor]) -> None:
    """torch's Python for operators made of others, which symbols need, may copy where its C++ doesn't."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        inner = x * 2
        operation(inner).mul_(3)
        operation(x).add_(1)
        return inner, operation(inner)

    compiled = dynajit.compile(function, backend="aot_eager")
    for size in (4, 6, 8):
        x, mine = (torch.arange(2.0 * size).reshape(2, size) for _ in range(2))
        (inner, result), wanted = compiled(mine), function(x)
        torch.testing.assert_close((inner, result, mine), (*wanted, x))
        one, other = (pair[0].data_ptr() == pair[1].data_ptr() for pair in (wanted, (inner, result)))
        assert one == other


def test_a_dropout_whose_rate_varies_and_that_drops_nothing() -> None:
    def function(x: Tensor, p: float, training: bool) -> Tensor:
        return F.dropout(x, p, training).add_(1)

    compiled = dynajit.compile(function, backend="aot_eager")
    for p, training in ((0.5, False), (0.25, False), (0.75, False), (0.0, True), (0.1, False)):
        x = torch.zeros(3)
        assert compiled(x, p, training) is x and x.tolist() == [1.0] * 3


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (3, 1)])
def test_parts_of_one_element_are_views(backend: str, shape: tuple[int, int]) -> None:
    """From a place that varies, in a dimension of one element: what is written there is in the input."""

    def parts(x: Tensor, n: int) -> list[Tensor]:
        return [x[n:], x[:, n:], x.narrow(0, n, x.size(0) - n), x.split([n, x.size(1) - n], 1)[1]]

    compiled = dynajit.compile(parts, backend=backend)
    for n in (1, 0, 0, 1):
        given = [torch.ones(shape), torch.ones(shape)]
        for x, call in zip(given, (compiled, parts), strict=True):
            for at, part in enumerate(call(x, n)):
                part.add_(at + 1)
        assert torch.equal(*given)


def test_whether_parts_of_memory_are_contiguous() -> None:
    """Strides that vary, of tensors that begin somewhere in their memory."""
    compiled = dynajit.compile(lambda x: x.is_contiguous(), backend="eager")
    for size, rows, start in ((3, 18, 9), (4, 24, 12), (3, 9, 0), (5, 15, 0), (5, 30, 15)):
        x = torch.zeros(200).as_strided((2, 3, size), (rows, size, 1), start)
        assert compiled(x) == x.is_contiguous()
