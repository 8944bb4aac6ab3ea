"""Tensors that are computed again and again for calls are computed once, and only for them."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dynajit.codegen.generate import generate
from dynajit.codegen.plan import ExternStep, KernelStep, Plan


def plan_of(function: object, *args: torch.Tensor) -> Plan:
    with torch.no_grad():
        gm = make_fx(function, tracing_mode="fake")(*args)
    fakes = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    return generate(gm, fakes, "test")


def masked(x: torch.Tensor, keep: torch.Tensor) -> tuple[torch.Tensor, ...]:
    results = []
    for _ in range(3):
        mask = torch.where(keep > 0.5, torch.zeros((), dtype=x.dtype), -torch.inf)
        x = x @ torch.sin(mask.exp())
        results.append(x)
    return tuple(results)


def test_computed_once_for_all_calls() -> None:
    plan = plan_of(masked, torch.randn(9, 9), torch.rand(9, 9))
    calls = [step for step in plan.steps if isinstance(step, ExternStep)]
    assert len(calls) == 3 and len({step.args[1].name for step in calls}) == 1
    assert sum(isinstance(step, KernelStep) for step in plan.steps) == 1


def test_others_differ() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x @ (x + 1), x @ (x + 2), x @ (x + 1).t(), x @ (x.t() + 1)

    plan = plan_of(function, torch.randn(9, 9))
    calls = [step for step in plan.steps if isinstance(step, ExternStep)]
    assert len({step.args[1].name for step in calls}) == 4


def test_results_of_the_user_stay_apart() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one, other = x.sin(), x.sin()
        return one, other, one @ other

    plan = plan_of(function, torch.randn(9, 9))
    assert plan.outputs[0] != plan.outputs[1]
