"""The optional backend that hands graphs to Inductor: inference and gradients as eager's."""

from __future__ import annotations

import torch

import dynajit


def scaled(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * 2) + 1


def test_inference_and_training() -> None:
    compiled = dynajit.compile(scaled, backend="inductor", fullgraph=True)
    x = torch.randn(16)
    torch.testing.assert_close(compiled(x), scaled(x))
    ours, theirs = (x.clone().requires_grad_() for _ in range(2))
    compiled(ours).sum().backward()
    scaled(theirs).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_complex_numbers_of_sizes_that_vary() -> None:
    def spun(x: torch.Tensor) -> torch.Tensor:
        return (x * 2j + 1).abs()

    compiled = dynajit.compile(spun, backend="inductor")
    for size in (3, 4, 5, 6):
        x = torch.randn(size, 3, dtype=torch.complex64)
        torch.testing.assert_close(compiled(x), spun(x))
    assert dynajit.counters()["recompiles"] == 1
