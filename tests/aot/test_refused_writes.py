"""Writes that autograd has rules of its own for, and results written over what they are computed from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch

import dynajit


def _rows(x: torch.Tensor) -> torch.Tensor:
    for row in x.unbind():
        with contextlib.suppress(RuntimeError):
            row /= 2
    return x


def _half(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2)
    first.t().mul_(2)
    return first + second


def _over(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad(), contextlib.suppress(RuntimeError):
        torch.add(x[::2][:1], 1, out=x)
    return x


def _resized(x: torch.Tensor) -> torch.Tensor:
    part = x.detach()[-1:]
    torch.mul(x.detach(), 2, out=part)
    return part


def _one_of_several(x: torch.Tensor) -> torch.Tensor:
    first, _ = torch.stack([x * 1, x * 2])
    turned = first.transpose(0, -1)
    turned.add_(1)
    return turned


def _one_of_several_caught(x: torch.Tensor) -> torch.Tensor:
    first, second = (x * 2).chunk(2)
    with contextlib.suppress(RuntimeError):
        first += 1
    return first + second


def _seen(f: Callable[[torch.Tensor], torch.Tensor], requires_grad: bool) -> tuple[object, ...]:
    x = torch.arange(8.0).view(4, 2).requires_grad_(requires_grad)
    try:
        result: object = f(x).tolist()
    except RuntimeError as error:
        result = str(error)
    return result, x.tolist()


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
@pytest.mark.parametrize("f", [_rows, _half, _over, _resized, _one_of_several, _one_of_several_caught])
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_write(f: Callable[[torch.Tensor], torch.Tensor], backend: str, requires_grad: bool) -> None:
    dynajit.reset()
    assert _seen(dynajit.compile(f, backend=backend), requires_grad) == _seen(f, requires_grad)


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
def test_a_result_of_another_size_beside_a_written_view(backend: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.add(x, 1, out=torch.empty(0))[0], x.view(-1).mul_(2)

    x, own = torch.ones(3, 3), torch.ones(3, 3)
    assert all(map(torch.equal, (*dynajit.compile(f, backend=backend)(x), x), (*f(own), own)))


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
def test_an_operation_reads_what_it_has_written(backend: str) -> None:
    def adds(z: torch.Tensor) -> torch.Tensor:
        z[::2].add_(z[..., :1])
        return z * 2

    def shifts(z: torch.Tensor) -> torch.Tensor:
        z[1:] += z[:-1]
        return z * 2

    def columns(z: torch.Tensor) -> torch.Tensor:
        z[:, 0] += z[:, 1]
        return z * 2

    for function, shape in ((adds, (3,)), (shifts, (40,)), (columns, (4, 4))):
        outcomes = []
        for call in (function, dynajit.compile(function, backend=backend)):
            z = torch.arange(1.0, 41.0)[: torch.Size(shape).numel()].reshape(shape)
            try:
                outcomes.append(call(z).tolist())
            except RuntimeError as error:
                outcomes.append(str(error))
            outcomes.append(z.tolist())
        assert outcomes[:2] == outcomes[2:]


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
def test_inputs_that_shared_memory_at_the_first_call_need_not_do_so_later(backend: str) -> None:
    weight = torch.ones(1, requires_grad=True)

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.fill_(2)
        return y * weight

    compiled = dynajit.compile(function, backend=backend)
    x = torch.zeros(2, 3)
    assert compiled(x, x[0]).tolist() == [2, 2, 2]
    assert compiled(x, torch.zeros(3)).tolist() == [0, 0, 0]


def _by_autograd(h: torch.Tensor) -> None:
    h[torch.tensor([0])] = 2.0


def _past_autograd(h: torch.Tensor) -> None:
    h.detach().mul_(0.5)


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
@pytest.mark.parametrize("write", [_by_autograd, _past_autograd])
def test_backward_from_a_loss_leaves_a_written_inputs_history(
    backend: str, write: Callable[[torch.Tensor], None]
) -> None:
    """Both come out of one graph, in which they have nothing to do with each other."""

    def step(weight: torch.Tensor, h: torch.Tensor) -> None:
        loss = (weight * 3) ** 2
        write(h)
        loss.backward()

    seen = []
    for call in (step, dynajit.compile(step, backend=backend)):
        weight, x = torch.tensor(0.5, requires_grad=True), torch.ones(2, 2, requires_grad=True)
        h = x * 5
        call(weight, h)
        h.sum().backward()
        seen.append((weight.grad, x.grad, h.detach()))
    torch.testing.assert_close(seen[1], seen[0])


def _first_row(x: torch.Tensor) -> torch.Tensor:
    x[0] = 2.0
    return x + 0


@pytest.mark.parametrize(
    "make",
    [lambda: torch.ones(4).expand(4, 4), lambda: torch.arange(4.0).as_strided((2, 2), (1, 1))],
    ids=["expanded", "overlapping"],
)
def test_an_input_whose_elements_share_memory(make: Callable[[], torch.Tensor]) -> None:
    x, other = make(), make()
    assert torch.equal(dynajit.compile(_first_row, backend="codegen")(x), _first_row(other))
    assert torch.equal(x, other)


@pytest.mark.parametrize("requires_grad", [True, False])
def test_a_result_in_memory_that_was_used_before_may_be_written(requires_grad: bool) -> None:
    """Of a graph of varying sizes."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        doubled = x * 2
        summed = (doubled.cumsum(0) * 3).cumsum(1)
        first = (summed + 1) * summed.take(torch.tensor([0]))
        return first + doubled.take(torch.tensor([1])), x.detach().view(-1)[:1], summed

    compiled = dynajit.compile(function, dynamic=True)
    for size in (3, 5, 9):
        outcomes = []
        for call in (function, compiled):
            x = torch.arange(1.0, size * size + 1).view(size, size).requires_grad_(requires_grad)
            results = call(x)
            views = [results[place]._is_view() for place in (0, 2)]
            results[0].mul_(2)
            if requires_grad:
                results[0].sum().backward()
            outcomes.append((views, results[0].tolist(), x.grad if x.grad is None else x.grad.tolist()))
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_views_that_another_graph_makes_stale(backend: str) -> None:
    """One graph has the views, another writes what they are of: a variant made before that write does not fit."""

    def in_a_loop(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        for row in y:
            if row.sum() > 1000:
                break
            y.uniform_(0, 1)
        return y

    def returned(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        first, second = y.unbind()
        dynajit.graph_break()
        y.add_(1)
        return first + second

    for program in (in_a_loop, returned):
        compiled = dynajit.compile(program, backend=backend)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="is a view and its base or another view of its base"):
                program(torch.ones(2, 2, requires_grad=True))
            with pytest.raises(RuntimeError, match="is a view and its base or another view of its base"):
                compiled(torch.ones(2, 2, requires_grad=True))
        torch.manual_seed(0)
        expected = program(torch.ones(2, 2))
        torch.manual_seed(0)
        torch.testing.assert_close(compiled(torch.ones(2, 2)), expected)
