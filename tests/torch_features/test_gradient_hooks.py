"""Hooks on the gradients of what a compiled function computes: in the graph where they can be, else beside a break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import BACKENDS, Cases, leaf, rand
from torch import nn

import dynajit
from dynajit.testing import assert_same

cases = Cases(backward=True)
Tensor = torch.Tensor


@cases(leaf(3))
def on_a_result(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda g: g * 3)
    return y.sin()


@cases(leaf(3))
def two_in_their_order(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda g: g + 1)
    z = y.exp()
    y.register_hook(lambda g: g * 3)
    return z * y


@cases(leaf(3))
def with_a_tensor_of_the_graph(x: Tensor) -> Tensor:
    scale = x.detach().exp()
    y = x * 2
    y.register_hook(lambda g: g * scale)
    return (y * y).sum()


@cases(leaf(3))
def that_keeps_the_gradient(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda g: None)
    return y.sin()


@cases(leaf(3))
def before_a_write(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda g: g * 5)
    y.mul_(3)
    return y


@cases(leaf(3))
def of_a_result_that_is_returned_too(x: Tensor) -> Any:
    y = x * 2
    y.register_hook(lambda g: g * 5)
    return y, y.sin()


@cases(leaf(3))
def clamped(x: Tensor) -> Any:
    y = x * 2
    y.register_hook(torch.nan_to_num)
    return (y**3).sum()


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.factor = 0.5
        self.register_buffer("shift", torch.ones(3))

    def hook(self, gradient: Tensor) -> Tensor:
        return gradient * self.factor + self.shift

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x)
        hidden.register_hook(self.hook)
        return hidden.relu()


@cases(rand(2, 3), make=True)
def of_a_module() -> nn.Module:
    return Scaled()


@cases(leaf(3), repeat=1)
def on_a_leaf_from_outside(x: Tensor) -> Tensor:
    x.register_hook(lambda g: g * 3)
    return x * 2


@cases(leaf(3), repeat=1)
def after_accumulation(x: Tensor) -> Tensor:
    def halve(tensor: Tensor) -> None:
        tensor.grad.mul_(0.5)

    x.register_post_accumulate_grad_hook(halve)
    return x * 2


# what a graph can't do
@cases(leaf(3), graphs=2, breaks=1)
def with_an_effect(x: Tensor) -> Any:
    seen: list[Tensor] = []
    y = x * 2
    y.register_hook(lambda g: seen.append(g))
    return y.sin(), seen


@cases(leaf(3), graphs=2, breaks=1)
def of_a_variable_bound_again(x: Tensor) -> Tensor:
    factor = 2
    y = x * 2
    y.register_hook(lambda g: g * factor)
    factor = 3
    return y.sin() * factor


@cases(leaf(3), graphs=None, breaks=None)
def of_a_loop_variable(x: Tensor) -> Tensor:
    y = x
    for factor in range(1, 4):
        y = y * 2
        y.register_hook(lambda g: g * factor)  # noqa: B023
    return y


@cases(leaf(3), graphs=1, breaks=1)
def of_a_view(x: Tensor) -> Tensor:
    y = (x * 2).view(3, 1)
    y.register_hook(lambda g: g * 2)
    return y


@cases(leaf(3), graphs=2, breaks=1, backward=False)
def of_another_shape(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda g: g.sum())
    return y.sin()


@cases(leaf(3))
def whose_handle_nobody_reads(x: Tensor) -> Tensor:
    for _ in range(2):
        x = x * 2
        handle = x.register_hook(lambda g: g * 3)  # noqa: F841
    return x.sin()


@cases(leaf(3), graphs=2, breaks=1)
def whose_handle_nobody_reads_behind_a_break(x: Tensor) -> Tensor:
    y = x * 2
    handle = y.register_hook(lambda g: g * 3)  # noqa: F841
    dynajit.graph_break()
    return y.sin()


@cases(leaf(3))
def whose_handle_is_among_locals(x: Tensor) -> Any:
    y = x * 2
    handle = y.register_hook(lambda g: g * 3)
    return y.sin(), type(locals()["handle"])


@cases(leaf(3), graphs=2, breaks=1)
def whose_handle_is_kept(x: Tensor) -> Tensor:
    y = x * 2
    handle = y.register_hook(lambda g: g * 3)
    z = y.sin()
    return z if handle is not None else y


@cases(rand(3), graphs=1, breaks=1)
def without_gradients(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda g: g * 3)
    return y


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", cases, ids=cases.names)
def test_same_as_eager(case: Any, backend: str) -> None:
    case.check(backend)


class Recorder:
    """What a hook changes of it was changed by the function before."""

    shared: Any = None

    def __init__(self) -> None:
        self.gradient: Any = None
        self.items: list[Any] = []
        self.named: dict[str, Any] = {}
        self.kinds: set[str] = set()

    def used_once(self) -> None:
        self.gradient, Recorder.shared = 1, 1
        self.items += [1, 2]
        self.named |= {"a": 1, "b": 2}
        self.kinds.add("a")


CHANGES: dict[str, Callable[[Recorder, Tensor], Any]] = {
    "an attribute": lambda seen, g: setattr(seen, "gradient", g),
    "the attribute of a class": lambda seen, g: setattr(Recorder, "shared", g),
    "append": lambda seen, g: seen.items.append(g),
    "pop": lambda seen, g: setattr(seen, "gradient", seen.items.pop()),
    "an item": lambda seen, g: seen.items.__setitem__(0, g),
    "a key": lambda seen, g: seen.named.update(a=g),
    "a key less": lambda seen, g: seen.named.__delitem__("b"),
    "a set": lambda seen, g: seen.kinds.add("b"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_what_the_function_changed_before(change: Callable[[Recorder, Tensor], Any]) -> None:
    def f(x: Tensor, seen: Recorder) -> Any:
        seen.used_once()
        y = x * 2
        y.register_hook(lambda g: change(seen, g))
        before = len(seen.items), len(seen.named), len(seen.kinds), seen.gradient
        y.sin().sum().backward()
        return before, Recorder.shared

    assert_same(f, torch.ones(3, requires_grad=True), Recorder())


def test_backward_from_one_of_two_results() -> None:
    def f(x: Tensor) -> Any:
        y = x * 2
        y.register_hook(lambda g: g + 1)
        return y.sin(), x.exp()

    grads = []
    for fn in (f, dynajit.compile(f)):
        x = torch.ones(3, requires_grad=True)
        hooked, other = fn(x)
        other.sum().backward()
        grads.append([x.grad.clone()])  # type: ignore[union-attr]
        hooked.sum().backward()
        grads[-1].append(x.grad.clone())  # type: ignore[union-attr]
    torch.testing.assert_close(grads[1], grads[0])
