"""What autograd knows of results that are detached inputs or views of them, and writes through them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynajit
from dynajit.testing import compare


def detached(z: torch.Tensor) -> Any:
    return z.detach()


def row(z: torch.Tensor) -> Any:
    x = z.detach()
    return x[0], x


def both_ways(z: torch.Tensor) -> Any:
    return z.detach().view(-1), z.view(-1).detach(), z.view(-1)


@pytest.mark.parametrize("function", [detached, row, both_ways])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_without_gradients(function: Callable[..., Any], requires_grad: bool) -> None:
    outcomes = []
    for call in (function, dynajit.compile(function, backend="codegen")):
        z = torch.ones(3, requires_grad=requires_grad)
        with torch.no_grad():
            results = call(z)
        results = results if isinstance(results, tuple) else (results,)
        seen: list[Any] = [(r._is_view(), r._base is z, r.requires_grad, r.tolist()) for r in results]
        results[0].add_(1)
        outcomes.append([*seen, z.tolist(), z._version])
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_an_inference_tensor_is_written_through_detach(backend: str) -> None:
    def writes(x: torch.Tensor) -> torch.Tensor:
        x.detach().add_(1)
        return x * 2

    with torch.inference_mode():
        x = torch.ones(3)
    with torch.no_grad():
        result = dynajit.compile(writes, backend=backend)(x)
    assert result.tolist() == [4, 4, 4]
    assert x.tolist() == [2, 2, 2]


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_out_that_changes_its_size(backend: str) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        view = (x * 5)[..., :1]
        torch.add(y, 1, out=view)
        return view + 1

    with pytest.warns(UserWarning, match="resized"):
        result = dynajit.compile(function, backend=backend)(torch.ones(3, 3), torch.ones(()))
    assert result.shape == () and result.item() == 3


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
def test_a_detached_part_beside_what_requires_gradients(backend: str) -> None:
    weight = torch.ones(1, requires_grad=True)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        value = x * weight
        return value.detach()[0], value

    part, whole = dynajit.compile(function, backend=backend)(torch.ones(3, 3))
    assert not part.requires_grad and whole.requires_grad
    assert part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    part.mul_(3)
    assert whole[0].tolist() == [3, 3, 3] and whole._version == 1


@pytest.mark.parametrize("factor", [2, -0.75, True])
def test_numbers_beside_batched_tensors_without_dimensions(factor: float) -> None:
    def function(z: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(lambda row: row.sum() * factor)(z)

    for z in (torch.arange(6.0).reshape(3, 2), torch.arange(3)):
        result = dynajit.compile(function, backend="codegen")(z)
        assert result.tolist() == function(z).tolist() and result.dtype == function(z).dtype


@pytest.mark.parametrize("rest", [lambda t: t[:1], lambda t: t.flatten(), lambda t: t])
def test_views_of_what_has_gradients(rest: Callable[[torch.Tensor], torch.Tensor]) -> None:
    weight = torch.nn.Parameter(torch.ones(1))

    def f(x: torch.Tensor) -> Any:
        t = (x + weight)[..., -1:]
        return t, rest(t.detach())

    t, seen = dynajit.compile(f)(torch.ones(4, 4))
    assert t.requires_grad and not seen.requires_grad
    assert t.data_ptr() == seen.data_ptr()
    t.sum().backward()
    assert weight.grad is not None and weight.grad.item() == 4


def test_all_of_a_result_may_be_written_wherever_it_stands_among_the_results() -> None:
    """It covers the result that it is a view of, which autograd must not take for a view itself."""

    def function(x: torch.Tensor) -> Any:
        y = x.sin()
        return y[:1], y

    for requires_grad in (False, True):
        view, y = dynajit.compile(function, backend="codegen")(torch.ones(1, requires_grad=requires_grad))
        assert (view._is_view(), y._is_view(), view._base is y) == (True, False, True)
        view.mul_(2)
        assert torch.equal(y, torch.ones(1).sin() * 2)


def through_a_detached_view(y: torch.Tensor) -> torch.Tensor:
    y.detach().add_(1)
    return y * 2


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("make", [torch.t, lambda w: w.view(9), lambda w: w, lambda w: (w * 2).t()])
def test_a_view_of_a_leaf_is_written_through_detach(backend: str, make: Any) -> None:
    outcomes = []
    for function in (through_a_detached_view, dynajit.compile(through_a_detached_view, backend=backend)):
        torch.manual_seed(0)
        weight = torch.rand(3, 3).requires_grad_()
        view = make(weight)
        result = function(view)
        (gradient,) = torch.autograd.grad((view + result).sum(), weight)
        outcomes.append((result.detach(), view.detach(), weight.detach(), gradient))
    torch.testing.assert_close(outcomes[1], outcomes[0])


def beside_a_view_of_an_input(x: torch.Tensor, w: torch.Tensor) -> Any:
    a = x * 2 + 1
    picked = F.silu(a + w).take(torch.tensor([0]))
    b = (a * 2 + a + picked) * 3 + a
    return b + F.silu(a + w).take(torch.tensor([0])), (b**2).sum() > 0.1, x.detach().flatten()[:1]


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_beside_views_of_inputs_may_be_written(dynamic: bool) -> None:
    compiled = dynajit.compile(beside_a_view_of_an_input, dynamic=dynamic)
    for n in (4, 5, 6):
        sides = []
        for fn in (compiled, beside_a_view_of_an_input):
            torch.manual_seed(n)
            x, w = torch.randn(n, n, requires_grad=True), torch.randn(1, requires_grad=True)
            result, flag, view = fn(x, w)
            result.mul_(2)
            result.sum().backward()
            sides.append((result.detach(), flag, view, x.grad, w.grad))
        compare(*sides, exact=False)


def view_of_a_detached(x: torch.Tensor) -> Any:
    return (x * 2).detach().view(-1)


def detached_with_its_view(x: torch.Tensor) -> Any:
    d = (x * 2).detach()
    return d.view(-1), d


@pytest.mark.parametrize("function", [view_of_a_detached, detached_with_its_view])
@pytest.mark.parametrize("given", [0, -1])
def test_views_of_what_is_detached_may_get_a_history(function: Callable[..., Any], given: int) -> None:
    sides = []
    for fn in (function, dynajit.compile(function)):
        result = fn(torch.ones(2, 3, requires_grad=True))
        results = result if isinstance(result, tuple) else (result,)
        weight = torch.tensor(2.0, requires_grad=True)
        results[given].mul_(weight)
        results[0].sum().backward()
        sides.append((results[0].detach(), [each.requires_grad for each in results], weight.grad))
    compare(*sides)


@pytest.mark.parametrize("of_result", [False, True])
def test_writes_to_data_that_is_returned_are_not_counted(of_result: bool) -> None:
    def function(x: torch.Tensor) -> Any:
        y = x * x
        return y, (y if of_result else x).data

    for fn in (function, dynajit.compile(function)):
        x = torch.ones(3, requires_grad=True)
        y, data = fn(x)
        data.add_(1)
        y.sum().backward()
        assert (x._version, y._version, x.grad.tolist()) == (0, 0, [4.0] * 3 if not of_result else [2.0] * 3)


@pytest.mark.parametrize("detach", [lambda t: t.detach(), lambda t: t.detach()[0], lambda t: t.t().detach().t()])
def test_a_result_that_is_also_detached_is_of_a_node_of_our_own(detach: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """`loss, loss.detach()`: torch's wrapper runs its backward once, whether anything was saved for it or not."""

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        made = y.exp() + x
        return made, detach(made)

    sides = []
    for call in (function, dynajit.compile(function)):
        x, y = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2)
        made, apart = call(x, y)
        made.sum().backward()
        made.sum().backward()
        apart.mul_(2)
        sides.append((made.detach(), apart, apart.requires_grad, apart._is_view(), made._version, x.grad))
    compare(*sides)
    assert made.grad_fn.name() == "DynajitBackward"
