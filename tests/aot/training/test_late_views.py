"""Results that are one of several views: autograd lets nobody write them, in a compiled graph's results either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit
from dynajit.report.counters import counters
from dynajit.testing import assert_same, compare

WEIGHT = torch.nn.Parameter(torch.eye(4))


def first_of_a_tensor(x: torch.Tensor) -> Any:
    first, *_ = x * 2
    return first


def unbound(x: torch.Tensor) -> Any:
    a, b = (x @ WEIGHT).unbind()
    return a, b.sin(), b


def split_and_turned(x: torch.Tensor) -> Any:
    q, k, v = torch.cat([x, x * 2, x * 3]).split(x.shape[0])
    return q.t(), (q * k).sum(), k.reshape(-1), v[0]


def of_an_input(x: torch.Tensor) -> Any:
    a, b = x.chunk(2)
    return a, a + b, x * 2


def with_the_whole(x: torch.Tensor) -> Any:
    y = (x @ WEIGHT).tanh()
    a, b = y.chunk(2)
    return a, y, (a * b).sum()


def views_alone(x: torch.Tensor) -> Any:
    return x.unbind()


PROGRAMS: list[Callable[..., Any]] = [first_of_a_tensor, unbound, split_and_turned, of_an_input, views_alone]


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_views_and_what_autograd_says_of_writes(program: Callable[..., Any], dynamic: bool, backend: str) -> None:
    compiled = dynajit.compile(program, backend=backend, dynamic=dynamic)
    for width in (4, 4):
        sides = []
        for fn in (compiled, program):
            x = torch.arange(2.0 * width).reshape(2, width).requires_grad_()
            made = fn(x * 1)
            results = made if isinstance(made, (tuple, list)) else [made]
            said = []
            for result in results:
                try:
                    result.mul_(1)
                    said.append(None)
                except RuntimeError as error:
                    said.append(str(error))
            WEIGHT.grad = None
            sum(result.sum() for result in results).backward()
            values = [(result.detach(), result.stride(), result._is_view()) for result in results]
            sides.append((values, said, x.grad, WEIGHT.grad))
        compare(*sides, exact=False)


@pytest.mark.parametrize("program", [*PROGRAMS, with_the_whole])
def test_the_rest_is_compiled(program: Callable[..., Any]) -> None:
    counters.clear()
    assert_same(program, torch.randn(2, 4, requires_grad=True), backend="codegen")
    assert not counters["as_captured"]


def refused(x: torch.Tensor) -> Any:
    a, b = (x * 2).unbind()
    try:
        a.t().add_(1)
    except RuntimeError as error:
        return str(error), a, a * b


def refused_behind_a_break(x: torch.Tensor) -> Any:
    a, *_ = x * 2
    dynajit.graph_break()
    a.add_(1)
    return a


def written_without_gradients(x: torch.Tensor) -> Any:
    a, b = (x * 2).unbind()
    with torch.no_grad():
        a.zero_()
    return a + 1, b


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("program", [refused, refused_behind_a_break, written_without_gradients])
def test_writes_inside(program: Callable[..., Any], backend: str) -> None:
    assert_same(program, torch.ones(2, 4, requires_grad=True), backend=backend)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "codegen"])
@pytest.mark.parametrize("begin", [0, 1])
def test_views_of_a_written_input_at_places_that_depend_on_data(begin: int, backend: str) -> None:
    def item(x: torch.Tensor, t: torch.Tensor) -> Any:
        return x[t][begin:], x.add_(1)

    x, t = torch.randn(4, 3), torch.tensor(2)
    own = x.clone()
    compiled = dynajit.compile(item, backend=backend, fullgraph=True)
    compare((compiled(own, t), own), (item(x, t), x))
    (part, _), (expected, _) = compiled(own, t - 1), item(x, t - 1)
    own.mul_(2), x.mul_(2)
    compare(part, expected)


def turned_after_a_view(x: torch.Tensor) -> Any:
    y = x * 2
    a = y.t()
    row = a[0]
    a.t_()
    return y, a, row


def widened(x: torch.Tensor) -> Any:
    y = x * 2
    a = y.view(-1)
    a.unsqueeze_(0)
    return y, a


def written_and_turned(x: torch.Tensor) -> Any:
    b = x.detach()
    b.add_(1)
    b.t_()
    return b


def turned_and_written(x: torch.Tensor) -> Any:
    b = x.detach()
    b.t_()
    b.add_(1)
    return b[0]


def base_turned(x: torch.Tensor) -> Any:
    y = x * 2
    a = y.t()
    y.t_()
    return y, a


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    "function", [turned_after_a_view, widened, written_and_turned, turned_and_written, base_turned]
)
def test_views_that_are_laid_out_anew_in_place(function: Callable[..., Any], requires_grad: bool) -> None:
    first, *others = (torch.rand(*sizes, requires_grad=requires_grad) for sizes in ((3, 2), (4, 2), (5, 3), (1, 3)))
    assert_same(function, first, then=[(other,) for other in others], repeat=1, backend="codegen")


# views of a tensor of 4 x 4 in which an element stands in several places, and what writes a part of one
OVERLAPPING: dict[str, Callable[[Any], Any]] = {
    "expanded": lambda x: x.sum(0, keepdim=True).expand(4, 4),
    "greatest": lambda x: x.max(0, keepdim=True)[0].expand(4, 4),
    "broadcast": lambda x: torch.broadcast_to(x.sin()[0], (3, 4))[1:],
    "a number": lambda x: x.sum().expand(3),
    "windows": lambda x: x.exp().view(-1).unfold(0, 4, 2),
    "by strides": lambda x: x.exp().as_strided((3, 3), (1, 1)),
}


def _first_doubled(x: torch.Tensor) -> None:
    x[0].mul_(2)


def _first_like_second(x: torch.Tensor) -> None:
    x[0] = x[1]


@pytest.mark.parametrize("write", [_first_doubled, _first_like_second])
@pytest.mark.parametrize("view", OVERLAPPING)
def test_a_part_of_a_view_that_overlaps_itself_is_written(view: str, write: Callable[..., Any]) -> None:
    def f(x: torch.Tensor) -> Any:
        y = OVERLAPPING[view](x)
        dynajit.graph_break()
        write(y)
        return y, y * 2

    def outcome(call: Callable[..., Any], place: int) -> Any:
        x = torch.linspace(-1, 1, 16).reshape(4, 4).requires_grad_()
        try:
            call(x)[place].sum().backward()
        except RuntimeError as error:
            return str(error)[:60]
        return x.grad

    for place in range(2):
        expected, found = outcome(f, place), outcome(dynajit.compile(f, backend="codegen"), place)
        assert isinstance(found, str) == isinstance(expected, str), (found, expected)
        if isinstance(expected, str):
            assert found == expected
        else:
            torch.testing.assert_close(found, expected)
