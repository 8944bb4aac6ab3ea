"""Items that a tensor of one integer chooses, and numbers read from tensors, inside of torch.func's transforms: a break
there would leave the whole transform to eager mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacrev, jvp, vjp, vmap

import dynajit
from dynajit.aot.modes import levels_left
from dynajit.testing import assert_same

_LAYER = torch.nn.Linear(4, 4)
_WEIGHTS = {name: each.detach() for name, each in _LAYER.named_parameters()}


def _overwritten(x: Tensor, t: Tensor) -> Tensor:
    y = x.clone()
    row = y[t]
    y.mul_(2)
    return (row * y[0]).sum()


def _written(x: Tensor, t: Tensor) -> Tensor:
    y = x.clone()
    y[t] = 0.0
    return (y * y).sum()


def _written_view(x: Tensor, t: Tensor) -> Tensor:
    y = x * 2
    y[t].mul_(3)
    return (y * y).sum()


def _scaled(x: Tensor, t: Tensor) -> Tensor:
    return (x * t.item()).sin().sum()


def _loss(weights: dict[str, Tensor], x: Tensor, t: Tensor) -> Tensor:
    return functional_call(_LAYER, weights, (x,))[t].square()


TRANSFORMED: dict[str, Any] = {
    "grad": lambda x, t: grad(lambda x: (x[t].sin() * 2).sum())(x),
    "grad, as an argument": lambda x, t: grad(lambda x, t: (x[t].sin() * 2).sum())(x, t),
    "grad of a column": lambda x, t: grad(lambda x: (x[:, t].sin() * 2).sum())(x),
    "grad of grad": lambda x, t: grad(lambda x: grad(lambda x: (x[t].sin() * x[0]).sum())(x).sum())(x),
    "grad, item beside it": lambda x, t: grad(lambda x: (x[t].sin().sum(), x[t]), has_aux=True)(x),
    "overwritten": lambda x, t: grad(_overwritten)(x, t),
    "written": lambda x, t: grad(_written)(x, t),
    "written view": lambda x, t: grad(_written_view)(x, t),
    "number": lambda x, t: grad(_scaled)(x, t),
    "jvp": lambda x, t: jvp(lambda x: x[t].sin() * 2, (x,), (torch.ones_like(x),)),
    "vjp": lambda x, t: vjp(lambda x: x[t].sin(), x)[1](torch.ones(4)),
    "jacrev": lambda x, t: jacrev(lambda x: (x[t] * x[0]).sin())(x),
    "vmap": lambda x, t: vmap(lambda row: row[t] * 2)(x),
    "vmap of a table": lambda x, t: vmap(lambda row: x[t] * row)(x),
    "vmap, item returned": lambda x, t: vmap(lambda row: row[t])(x).add_(1),
    "vmap along columns": lambda x, t: vmap(lambda row: row[t] * 2, in_dims=1)(x),
    "vmap of grad": lambda x, t: vmap(grad(lambda row: row[t].sin() * row[0]))(x),
    "gradients of each sample": lambda x, t: vmap(grad(_loss), in_dims=(None, 0, None))(_WEIGHTS, x, t),
    "outside, too": lambda x, t: grad(lambda x: (x[t] * 2).sum())(x)[t] + x[t],
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", TRANSFORMED)
def test_items_in_transforms(name: str, backend: str, dynamic: bool | None) -> None:
    calls = [(torch.rand(4, 4), torch.tensor(number)) for number in (1, 3, 0, -4)]
    given: dict[str, Any] = {"backend": backend, "dynamic": dynamic, "graphs": 1, "breaks": 0, "recompiles": 0}
    near: dict[str, Any] = {} if backend == "eager" else {"rtol": 1e-6, "atol": 1e-6}
    assert_same(TRANSFORMED[name], *calls[0], then=calls[1:], **given, **near)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", [name for name in TRANSFORMED if name != "number"])
def test_out_of_range_in_transforms(name: str, backend: str) -> None:
    x, compiled = torch.rand(4, 4), dynajit.compile(TRANSFORMED[name], backend=backend)
    compiled(x.clone(), torch.tensor(1))
    with pytest.raises(IndexError) as wanted:
        TRANSFORMED[name](x.clone(), torch.tensor(4))
    with pytest.raises(IndexError) as found:
        compiled(x.clone(), torch.tensor(4))
    assert str(found.value) == str(wanted.value)
    torch.testing.assert_close(vmap(torch.sin)(x), x.sin())  # no level was left open


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_the_item_that_vmap_gives_is_a_view(backend: str) -> None:
    x, compiled = torch.rand(4, 4), dynajit.compile(TRANSFORMED["vmap, item returned"], backend=backend)
    wanted = x.clone()
    TRANSFORMED["vmap, item returned"](wanted, torch.tensor(2))
    compiled(x, torch.tensor(2))
    torch.testing.assert_close(x, wanted)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_an_error_in_a_level_of_forward_mode_leaves_it(backend: str) -> None:
    def fn(x: Tensor, t: Tensor) -> Any:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(forward_ad.make_dual(x, torch.ones_like(x))[t].sin() * 2)[1]

    x, compiled = torch.rand(4, 4), dynajit.compile(fn, backend=backend)
    compiled(x, torch.tensor(1))
    with pytest.raises(IndexError):
        compiled(x, torch.tensor(9))
    with forward_ad.dual_level():
        pass  # there is none


def test_a_batch_of_indices_raises() -> None:
    """As any number that would be read of a batch."""
    assert_same(lambda x, t: vmap(lambda row, at: row[at] * 2)(x, t), torch.rand(4, 4), torch.tensor([1, 0, 3, 2]))
    assert_same(
        lambda x, t: vmap(grad(lambda row, at: row[at] * 2))(x, t), torch.rand(4, 4), torch.tensor([1, 0, 3, 2])
    )


def test_branches_on_numbers_end_the_graph() -> None:
    def fn(x: Tensor, t: Tensor) -> Tensor:
        return grad(lambda x: (x[t] if t.item() > 1 else x[0]).sin().sum())(x) * 2

    assert_same(fn, torch.rand(4, 4), torch.tensor(2), then=[(torch.rand(4, 4), torch.tensor(1))], breaks=1)


def test_second_derivatives() -> None:
    """Forward mode over reverse mode compares where views begin, which two numbers tell: it may end the graph."""
    assert_same(lambda x, t: hessian(lambda x: (x[t] * x[0]).sin().sum())(x), torch.rand(4, 4), torch.tensor(2))


def test_no_level_stays_where_tracing_fails() -> None:
    graph = torch.fx.Graph()
    graph.output(graph.call_function(torch._C._functorch._grad_increment_nesting, ()))
    module = torch.fx.GraphModule({}, graph)
    with pytest.raises(ArithmeticError), levels_left(module):
        module()
        raise ArithmeticError
    assert torch._C._functorch.get_dynamic_layer_stack_depth() == 0
