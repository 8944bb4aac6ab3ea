"""Backward passes that are asked for the gradients of some inputs: what they give, come by, and use up, as in eager."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit

Program = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]

PROGRAMS: dict[str, Program] = {
    "one of two": lambda x, y, z: (x.exp() + y.sin() * z,),
    "nothing kept on the way": lambda x, y, z: (x + y.exp() + (y * z).sum(), z.sin()),
    "apart": lambda x, y, z: (x.exp(), y.sin() * z, z + 1),
    "heads": lambda x, y, z: ((x.exp() * y).sum(), x.exp() * z, y + z.sin()),
    "inner": lambda x, y, z: ((h := x.exp()), (k := h * y), (k + z).square()),
    "inner without a tensor kept": lambda x, y, z: ((h := x + y), h.exp().sum(), h.sum() + z),
    "a result's own": lambda x, y, z: ((h := x * y), h + z, h.clone().mul_(z)),
    "loss and more": lambda x, y, z: ((h := torch.tanh(x @ y) @ z), h.square().mean()),
    "nothing of one": lambda x, y, z: (x.exp().sum(), y.detach() * z, (x * 0 + y.sum()).sin()),
}


def _observed(run: Program, seed: int) -> list[Any]:
    """Of some passes: gradients, or the error; what results have kept of theirs; what hooks of leaves were told."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    leaves = [torch.randn(3, 3, generator=generator, requires_grad=True) for _ in range(3)]
    given = [leaves[0] * 1 if rng.random() < 0.3 else leaves[0], *leaves[1:]]
    results = run(given[0], given[1], given[2])
    told: list[tuple[int, bool]] = []
    for at, leaf in enumerate(leaves):
        if rng.random() < 0.3:
            leaf.register_hook(lambda grad, at=at: told.append((at, grad is None)))  # type: ignore[no-untyped-call]
    kept = [result for result in results if rng.random() < 0.4]
    for result in kept:
        result.retain_grad()
    seen: list[Any] = []
    for _ in range(3):
        ends = [result.sum() * 2 for result in rng.sample(results, rng.randint(1, len(results)))]
        asked = rng.sample(leaves, rng.randint(1, 2)) + rng.sample(results, rng.random() < 0.3)
        way, keep = rng.choice(("all", "inputs", "grad", "grad")), rng.random() < 0.3
        try:
            if way == "grad":
                found = torch.autograd.grad(ends, asked, retain_graph=keep, allow_unused=True)
                seen.append([None if grad is None else grad.clone() for grad in found])
            else:
                torch.autograd.backward(ends, retain_graph=keep, inputs=None if way == "all" else asked)
        except RuntimeError as error:
            # how far a pass got that fails is the engine's affair
            return [*seen, str(error)]
        seen.append([None if each.grad is None else each.grad.clone() for each in (*leaves, *kept)])
        seen.append(sorted(told))
    return seen


def _same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, list):
        assert len(found) == len(wanted)
        for own, theirs in zip(found, wanted, strict=True):
            _same(own, theirs)
    elif isinstance(wanted, Tensor):
        torch.testing.assert_close(found, wanted)
    else:
        assert found == wanted


@pytest.mark.parametrize("name", PROGRAMS)
def test_passes_for_some_inputs_are_eagers(name: str) -> None:
    compiled = dynajit.compile(PROGRAMS[name], backend="codegen", fullgraph=True)
    for seed in range(80):
        _same([seed, *_observed(compiled, seed)], [seed, *_observed(PROGRAMS[name], seed)])


def test_nothing_is_differentiated_for_a_result_alone() -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.exp(), y * 2

    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    one, other = dynajit.compile(program, backend="codegen")(x, y)
    other.register_hook(lambda grad: pytest.fail("no pass comes by it"))  # type: ignore[no-untyped-call]
    torch.autograd.backward([one.sum(), other.sum()], inputs=[x])
    torch.testing.assert_close(x.grad, torch.full((3,), torch.e))
    assert y.grad is None


def test_what_was_saved_dies_with_the_last_of_several_nodes_or_is_kept_for_another_pass() -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.exp() * x, y.exp() * y

    compiled = dynajit.compile(program, backend="codegen")
    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    results = compiled(x, y)
    (of_x,) = torch.autograd.grad([each.sum() for each in results], x)
    (of_y,) = torch.autograd.grad(results[1].sum(), y)
    torch.testing.assert_close([of_x, of_y], [torch.full((3,), 2 * torch.e)] * 2)
    for leaf, result in zip((x, y), results, strict=True):
        with pytest.raises(RuntimeError, match="a second time"):
            torch.autograd.grad(result.sum(), leaf)


@pytest.mark.parametrize("also", [False, True])
def test_gradients_of_a_view_made_without_them_are_lost(also: bool) -> None:
    """To autograd such a view is a leaf that nobody has: no pass comes by what it is a view of, or its hooks."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        with torch.no_grad():
            turned = w.t()
        return x @ turned + (x * x if also else 0)

    for run in (f, dynajit.compile(f, backend="codegen")):
        x, w = torch.ones(3, 3, requires_grad=also), torch.ones(3, 3, requires_grad=True)
        w.register_hook(lambda grad: grad * 2)
        result = run(x, w)
        assert result.requires_grad
        for _ in range(1 if also else 2):
            result.sum().backward()
        assert w.grad is None and (x.grad is not None) == also
