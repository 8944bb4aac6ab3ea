"""Gradients that autograd refuses: by their values, those of complex eigenvectors and singular vectors, which are known
up to their phase; and those through what an earlier pass used up."""

from __future__ import annotations

import warnings

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


def test_a_graph_that_an_earlier_pass_used_up_warns_of_nothing() -> None:
    def product_with_hessian(x: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (gradient,) = torch.autograd.grad((x**3).sum() + x.prod(), x, create_graph=True)
        return gradient, torch.autograd.grad(gradient, x, v)[0]

    x, v = torch.arange(1.0, 5.0, requires_grad=True), torch.ones(4)
    compiled = dynajit.compile(product_with_hessian)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            torch.testing.assert_close(compiled(x, v), product_with_hessian(x, v))
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        compiled(x, v)[0].sum().backward()
