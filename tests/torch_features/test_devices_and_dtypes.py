"""Device contexts, dtypes that kernels refuse, subclasses of Parameter, hints for TorchScript."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from cases import BACKENDS, Case, Cases, leaf, rand
from torch import nn

import dynajit

cases = Cases(backward=True)


@cases(rand(3))
def hints_for_torchscript(x):
    parts = torch.jit.annotate(list[torch.Tensor], [])
    for i in range(3):
        parts.append(x + i)
    return parts, torch.jit.is_scripting()


@cases(rand(3))
def device_context(x):
    with torch.device("cpu"):
        y = torch.ones(3)
    with torch.device("meta"):
        m = torch.ones(3)
        with torch.device("cpu"):
            z = torch.arange(3)
        inner = torch.zeros(2, device="cpu")
    return x + y + z, m.device, m.shape, inner


@cases(rand(3), graphs=None, breaks=None)
def break_inside_of_a_device_context(x):
    y = x.sin()
    with torch.device("cpu"):
        print(end="")
        y = y + torch.ones(3)
    return y * 2


@cases(rand(3), graphs=None, breaks=None)
def relu_of_bools(x):
    return F.relu(x > 0)


@cases(rand(3), graphs=None, breaks=None)
def gelu_of_integers(x):
    y = x + 1
    try:
        return F.gelu(y.int())
    except (RuntimeError, NotImplementedError) as error:
        return y, str(error)


class Weight(nn.Parameter):
    """A parameter with a name."""

    label = "weight"

    def scaled(self, factor: float) -> torch.Tensor:
        return self * factor


@cases(leaf(3, 4), make=True)
def subclass_of_parameter():
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = Weight(torch.ones(4))

        def forward(self, x):
            return x * self.w + self.w.scaled(2.0), self.w.label, type(self.w) is Weight, self.w.is_leaf

    return Scale()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", cases, ids=cases.names)
def test_program(case: Case, backend: str) -> None:
    case.check(backend)


def test_a_device_context_entered_outside_is_left_for_real() -> None:
    def leave(x: torch.Tensor, context: torch.device) -> torch.Tensor:
        y = x + 1
        context.__exit__(None, None, None)
        return y + torch.ones(2)

    context = torch.device("meta")
    context.__enter__()
    report = dynajit.explain(leave, backend="eager")(torch.zeros(2, device="cpu"), context)
    assert report.error is None and report.result.tolist() == [2, 2]
    assert torch.ones(1).device.type == "cpu"
    assert [brk.kind for brk in report.break_reasons] == ["unsupported-value"]
