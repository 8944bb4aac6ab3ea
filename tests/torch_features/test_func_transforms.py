"""torch.func: transforms and their nests in one graph, under each backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import BACKENDS, Case, Cases, leaf, rand
from torch import Tensor, nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)

import dynajit
from dynajit.testing import assert_same

cases = Cases(backward=True)
_vm = vmap(lambda a: a.sum())


@cases(leaf(3, 4))
def f_vmap(x):
    return vmap(lambda a: a.sin() * a.sum())(x)


@cases(leaf(3, 4), leaf(4, 5))
def f_vmap_dims(x, y):
    return vmap(torch.dot, in_dims=(0, 1))(
        vmap(lambda a: a, out_dims=0)(x), vmap(lambda a: a * 2, in_dims=1, out_dims=1)(y)[:, :3]
    )


@cases(leaf(3, 4), leaf(4))
def f_vmap_none(x, y):
    return vmap(lambda a, b: (a * b, a + b), in_dims=(0, None), out_dims=(0, 1))(x, y)


@cases(rand(3))
def f_grad(x):
    return grad(lambda a: (a**3).sum())(x)


@cases(leaf(3))
def f_grad_train(x):
    return grad(lambda a: (a**3).sum())(x)


@cases(leaf(2), leaf(3, 2))
def f_forward_over_reverse_train(x, w):
    """Gradients of zero in forward mode, which have no memory, are in the backward graph."""
    return jacfwd(grad(lambda a: (a @ w.t()).tanh().sum()))(x).mean()


@cases(rand(3))
def f_gradval(x):
    return grad_and_value(lambda a: ((a**3).sum(), a.sin()), has_aux=True)(x)


@cases(rand(3))
def f_jvp(x):
    return jvp(torch.sin, (x,), (torch.ones_like(x),))


@cases(rand(3))
def f_vjp(x):
    o, f = vjp(torch.sin, x)
    return (o, f(torch.ones_like(o)))


@cases(rand(3))
def f_jacrev(x):
    return jacrev(lambda a: a**2)(x)


@cases(rand(3))
def f_jacfwd(x):
    return jacfwd(lambda a: a**2)(x)


@cases(rand(3))
def f_hessian(x):
    return hessian(lambda a: (a**3).sum())(x)


@cases(rand(3, 4))
def f_vmap_grad(x):
    return vmap(grad(lambda a: a.sin().sum()))(x)


@cases(rand(3))
def f_grad_grad(x):
    return vmap(grad(grad(lambda a: a**3)))(x)


@cases(rand(3), 2.0)
def f_grad_closure(x, k):
    w = x * 2

    def loss(a):
        return (a * w * k).sum()

    return grad(loss)(x)


@cases(rand(3, 4), leaf(4, 5))
def f_persample(x, w):

    def loss(w, a):
        return (a @ w).tanh().sum()

    return vmap(grad(loss), in_dims=(None, 0))(w, x)


@cases(rand(3, 4), make=True)
def f_functional_call():

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.Linear(4, 4)

        def forward(s, x):
            p = {k: v * 2 for k, v in s.l.named_parameters()}
            return functional_call(s.l, p, (x,))

    return M()


@cases(rand(3, 4), make=True)
def f_functional_grad():

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.Linear(4, 4)

        def forward(s, x):
            p = dict(s.l.named_parameters())
            return grad(lambda q: functional_call(s.l, q, (x,)).sum())(p)

    return M()


@cases(rand(3, 4), make=True)
def f_ensemble():

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.ls = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
            s.base = nn.Linear(4, 4)

        def forward(s, x):
            p, b = stack_module_state(list(s.ls))
            return vmap(lambda pp, bb, xx: functional_call(s.base, (pp, bb), (xx,)), in_dims=(0, 0, None))(p, b, x)

    return M()


@cases(rand(3, 4))
def f_vmap_rand(x):
    return vmap(lambda a: a + torch.rand(4), randomness="different")(x)


@cases(rand(3, 4))
def f_vmap_chunk(x):
    return vmap(lambda a: a * 2, chunk_size=2)(x)


@cases(rand(3, 4))
def f_vmap_global(x):
    return _vm(x)


@cases(rand(3, 4), make=True)
def f_vmap_module():

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.Linear(4, 4)

        def forward(s, x):
            return vmap(s.l)(x)

    return M()


@cases(rand(3, 4))
def f_names(x):
    doubled = vmap(grad(grad_and_value(lambda a: (a * 2).sum())))
    try:
        vmap(lambda a: a)(x.sum())
    except ValueError as error:
        return doubled.__name__, str(error), x * 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", cases, ids=cases.names)
def test_program(case: Case, backend: str) -> None:
    case.check(backend)


def test_outer_tensors_of_another_size() -> None:
    """The second call makes an input with symbolic sizes while grad's level is open."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return grad(lambda a: (a * y).sum())(x)

    assert_same(fn, torch.ones(3), torch.ones(3), then=[(torch.ones(5), torch.ones(5))])


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_size_that_is_mapped_over_varies(backend: str) -> None:
    """A level of vmap was entered with the size as a constant: each size was compiled again."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return vmap(grad(lambda row: (row.sin() * row).sum()))(x)

    first, *others = (torch.rand(n, 4) for n in (3, 5, 7))
    report = assert_same(fn, first, then=[(x,) for x in others], backend=backend)
    assert (report.graph_count, report.graph_break_count, len(report.recompile_reasons)) == (2, 0, 1)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_results_without_a_batch_under_a_function_mode(count: int) -> None:
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    def f(*places: torch.Tensor) -> torch.Tensor:
        def of_one(first: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
            return first.new_ones(())

        made: Any = of_one
        for last in reversed(range(count)):
            made = torch.vmap(made, in_dims=tuple(0 if at == last else None for at in range(count)))
        with Mode():
            return made(*places)  # type: ignore[no-any-return]

    assert_same(f, *(torch.arange(1.0 + size) for size in range(1, count + 1)), graphs=1, breaks=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_out_that_grows_beside_a_transform(backend: str) -> None:
    def fn(x: torch.Tensor) -> Any:
        row = torch.add(x, 1, out=torch.empty(0, dtype=torch.float64))[0]
        return row, grad(lambda q: q.sin().sum())(row)

    assert_same(fn, torch.rand(3, 2), backend=backend)


TRANSFORMED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "grad": lambda x, y: grad(lambda a: (a.sin() * y).sum())(x),
    "grad of grad": lambda x, y: grad(lambda a: grad(lambda b: (b.sin() * y).sum())(a).sum())(x),
    "vmap": lambda x, y: vmap(lambda a, b: a.sin() * b)(x, y),
    "vmap of grad": lambda x, y: vmap(grad(lambda a: a.sin() * a))(x) * y,
    "jvp": lambda x, y: jvp(torch.sin, (x,), (y,))[1],
    "vjp": lambda x, y: vjp(torch.sin, x)[1](y)[0],
    "jacrev": lambda x, y: jacrev(lambda a: a.sin() * y)(x).sum(0),
    "hessian": lambda x, y: hessian(lambda a: (a.sin() * y).sum())(x).sum(0),
}


def _twice(result: Tensor, wanted: list[Tensor]) -> list[Tensor | None]:
    once = torch.autograd.grad(result.square().sum(), wanted, create_graph=True)
    ends = sum(each.square().sum() for each in once)
    return [*once, *torch.autograd.grad(ends, wanted, allow_unused=True)]


def _batched(result: Tensor, wanted: list[Tensor]) -> Any:
    return torch.autograd.grad(result, wanted, torch.eye(3), is_grads_batched=True)


def _mapped(result: Tensor, wanted: list[Tensor]) -> Any:
    return vmap(lambda row: torch.autograd.grad(result, wanted, row, retain_graph=True))(torch.eye(3))


@pytest.mark.parametrize("derive", [_twice, _batched, _mapped])
@pytest.mark.parametrize("name", TRANSFORMED)
def test_gradients_of_a_transform_that_make_the_graph_run_again(name: str, derive: Callable[..., Any]) -> None:
    def found(function: Callable[[Tensor, Tensor], Tensor]) -> Any:
        x = (torch.arange(3.0) / 3).requires_grad_()
        y = (torch.arange(3.0) + 1).requires_grad_()
        return derive(function(x, y), [x, y])

    torch.testing.assert_close(found(dynajit.compile(TRANSFORMED[name])), found(TRANSFORMED[name]))
