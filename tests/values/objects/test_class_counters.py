"""Classes of torch that count what is made of them: a number is not taken twice."""

from __future__ import annotations

import torch

import dynajit


def test_hooks_of_every_call_stay() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        net.register_forward_hook(lambda module, inputs, result: result * 2)
        result: torch.Tensor = net(x)
        return result

    compiled = dynajit.compile(f, backend="eager")
    net = torch.nn.Identity()
    for count in range(1, 4):
        assert torch.equal(compiled(torch.ones(count)), torch.full((count,), 2.0**count))
        assert len(net._forward_hooks) == count
