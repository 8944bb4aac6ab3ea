"""Gradients that autograd refuses by their values: of complex eigenvectors and singular vectors, which are known up to
their phase."""

from __future__ import annotations

import pytest
import torch

import dynajit


def eig(a: torch.Tensor) -> torch.Tensor:
    return torch.linalg.eig(a.exp()).eigenvectors


def eigh(a: torch.Tensor) -> torch.Tensor:
    return torch.linalg.eigh(a + a.mH)[1]


def svd(a: torch.Tensor) -> torch.Tensor:
    u, _, vh = torch.linalg.svd(a.exp(), full_matrices=False)
    return u + vh


def by_phase(vectors: torch.Tensor) -> torch.Tensor:
    return vectors.sum().abs()


def by_size(vectors: torch.Tensor) -> torch.Tensor:
    return vectors.abs().cos().sum() * 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("loss_of", [by_phase, by_size])
@pytest.mark.parametrize("vectors_of", [eig, eigh, svd])
def test_refused_where_eager_refuses(vectors_of: object, loss_of: object, dtype: torch.dtype, backend: str) -> None:
    def alone(a: torch.Tensor) -> torch.Tensor:
        return loss_of(vectors_of(a))  # type: ignore[operator, no-any-return]

    def beside_a_write(a: torch.Tensor) -> torch.Tensor:
        seen.copy_(a.detach().real)
        return loss_of(vectors_of(a))  # type: ignore[operator, no-any-return]

    seen = torch.zeros(3, 3, dtype=torch.float64)
    values = torch.randn(3, 3, dtype=dtype, generator=torch.Generator().manual_seed(0))
    for program in (alone, beside_a_write):
        found: list[object] = []
        for function in (program, dynajit.compile(program, backend=backend)):
            a = values.clone().requires_grad_()
            loss = function(a)
            try:
                loss.backward()
            except RuntimeError as error:
                found.append(str(error))
            else:
                found.append(a.grad)
        if isinstance(found[0], str):
            assert found[1] == found[0]
        else:
            torch.testing.assert_close(found[1], found[0])
