"""Gradients that a compiled backward graph is given: whatever memory they have or lack, results are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit


def real(x: Tensor) -> Any:
    return x.sin() * 2


def complex_(x: Tensor) -> Any:
    return torch.complex(x, x * 2).exp() * (1 + 2j)


def two(x: Tensor) -> Any:
    return x.sin() * 2, (x * 3).cos()


KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros without memory": lambda t: torch._efficientzerotensor(t.shape, dtype=t.dtype),
    "expanded zeros without memory": lambda t: torch._efficientzerotensor((1, 1), dtype=t.dtype).expand(t.shape),
    "conjugate": lambda t: t.conj(),
    "negative": lambda t: torch._neg_view(t),
    "imaginary part": lambda t: t.conj() if t.is_complex() else torch.complex(t, t + 1).conj().imag,
    "expanded": lambda t: t[:1].expand(t.shape),
    "one number": lambda t: torch.as_strided(t, (3, 3), (0, 0)),
    "transposed": lambda t: t.t(),
    "parameter": lambda t: torch.nn.Parameter(t),
}


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("program", [real, complex_, two], ids=lambda program: program.__name__)
def test_gradients_are_eagers(program: Callable[[Tensor], Any], kind: str, backend: str) -> None:
    for again in (False, True):

        def gradient(function: Callable[[Tensor], Any], again: bool = again) -> Tensor:
            x = torch.linspace(-1, 1, 9).reshape(3, 3).requires_grad_()
            found = function(x)
            results = found if isinstance(found, tuple) else (found,)
            generator = torch.Generator().manual_seed(0)
            given = [KINDS[kind](torch.randn(r.shape, dtype=r.dtype, generator=generator)) for r in results]
            (first,) = torch.autograd.grad(results, x, given, create_graph=again)
            return torch.autograd.grad(first.sum(), x)[0] if again else first

        torch.testing.assert_close(gradient(dynajit.compile(program, backend=backend)), gradient(program))
