"""Numbers that the host knows when a plan runs, in kernels for GPUs: CPU tensors without dimensions, and floats."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="kernels for GPUs are Triton's")

from triton_harness import check, compile_all, plan_of_floats, run

from dynajit.codegen.plan import ExternStep, NumberStep


def adam(p: torch.Tensor, grad: torch.Tensor, step: torch.Tensor) -> Any:
    """The count of steps is the host's to change; what is computed of it is part of the kernel."""
    step = step + 1
    bias = 1 - 0.9 ** step.double()
    scale = (1 - 0.999 ** step.double()).sqrt() / bias
    return p - grad * (0.01 * scale), step


CASES: dict[str, tuple[Any, tuple[Any, ...], int]] = {
    "times": (lambda x, s: x * s + 1, (torch.randn(40), torch.tensor(2.5)), 1),
    "nothing": (lambda x, s: x * s, (torch.randn(40), torch.tensor(0.0)), 1),
    "of doubles": (lambda x, s: x.double() / s, (torch.randn(40), torch.tensor(-1 / 3, dtype=torch.float64)), 1),
    "rounded": (lambda x, s: x + s, (torch.randn(40), torch.tensor(1 / 3, dtype=torch.bfloat16)), 1),
    "a half": (lambda x, s: x * s, (torch.randn(40).half(), torch.tensor(1 / 3)), 1),
    "whole": (lambda x, s: x * s, (torch.arange(40), torch.tensor(-7)), 1),
    "large": (lambda x, s: x + s, (torch.arange(40), torch.tensor((1 << 40) + 3)), 1),
    "truth": (lambda x, s: torch.where(s, x, -x), (torch.randn(40), torch.tensor(True)), 1),
    "rows": (lambda x, s: (x * s).softmax(1), (torch.randn(6, 40), torch.tensor(3.0)), 1),
    "two": (lambda x, s, t: x * s.exp() + t / s, (torch.randn(40), torch.tensor(0.5), torch.tensor(3.0)), 2),
    "a part": (lambda x, s: x * s[1], (torch.randn(40), torch.tensor([3.0, 4.0])), 1),
}


@pytest.mark.parametrize("name", CASES)
def test_tensors_of_the_host(name: str) -> None:
    function, args, host = CASES[name]
    plan = check(function, *args, kernels=None, externs=None, host=host)
    assert sum(isinstance(step, NumberStep) for step in plan.steps) == host
    calls = [str(step.target) for step in plan.steps if isinstance(step, ExternStep)]
    assert calls == ["aten.select.int"] * (name == "a part")
    compile_all(plan)


def test_what_others_read_as_well_is_the_hosts_to_compute() -> None:
    args = torch.randn(40), torch.randn(40), torch.tensor(4.0)
    plan = check(adam, *args, kernels=2, externs=1, host=1)
    assert [str(step.target) for step in plan.steps if isinstance(step, ExternStep)] == ["aten.add.Tensor"]
    compile_all(plan)


def test_what_kernels_cannot_compute_is_the_hosts() -> None:
    def program(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return x * torch.lgamma(s + 1)

    plan = check(program, torch.randn(40), torch.tensor(2.0), kernels=1, externs=2, host=1)
    assert str(next(step for step in plan.steps if isinstance(step, ExternStep)).target) == "aten.add.Tensor"


def test_a_float_beside_a_tensor_of_the_host() -> None:
    def program(x: torch.Tensor, rate: float, count: torch.Tensor) -> torch.Tensor:
        return x * (rate / (1 - 0.9**count))

    args = torch.randn(40), 0.25, torch.tensor(3.0)
    plan = plan_of_floats(program, *args, host=1)
    assert not any(isinstance(step, ExternStep) for step in plan.steps)
    torch.testing.assert_close(run(plan, args[0], args[2], 0.25)[0], program(*args))


def test_a_float_that_varies() -> None:
    def program(x: torch.Tensor, rate: float) -> torch.Tensor:
        return x - x.sin() * (rate * 0.5) + rate

    x = torch.randn(40)
    plan = plan_of_floats(program, x, 0.25)
    assert sum(isinstance(step, NumberStep) for step in plan.steps) == 2
    assert not any(isinstance(step, ExternStep) for step in plan.steps)
    for rate in (0.25, -3.0, 0.0, float("inf")):
        (found,) = run(plan, x, rate)
        torch.testing.assert_close(found, program(x, rate), equal_nan=True)
    compile_all(plan)
