"""Views that are the negative or the conjugate of their memory, which kernels leave to torch: read and written."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

import dynajit

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda x: x,
    "negative": torch._neg_view,
    "conjugate": torch.conj,
    "both": lambda x: torch._neg_view(x.conj()),
    "imaginary": lambda x: x.conj().imag,
    "row": lambda x: x.view(2, 2).mT[0],
}
WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "copy": lambda to, x: to.copy_(x),
    "mul": lambda to, x: to.mul_(x),
    "index": lambda to, x: to.index_add_(0, torch.tensor([1]), x[:1]),
}
GIVEN: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (lambda x: x, torch._neg_view)
CASES = [(to, x, write) for to, x in itertools.product(VIEWS, VIEWS) if (to == "imaginary") == (x == "imaginary")
         and (to == "row") == (x == "row") for write in WRITES][::3]  # fmt: skip


@pytest.mark.parametrize(("to", "x", "write"), CASES)
def test_what_is_written_is_read(to: str, x: str, write: str) -> None:
    def program(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        WRITES[write](VIEWS[to](b), VIEWS[x](a))
        return a.neg(), b + a, b

    for give in GIVEN:
        found = []
        for function in (program, dynajit.compile(program)):
            torch.manual_seed(0)
            a, b = (give(torch.randn(4, dtype=torch.complex64)) for _ in range(2))
            found.append((*function(a, b), b))
        for expected, given in zip(*found, strict=True):
            assert torch.equal(expected, given)
            assert (expected.is_neg(), expected.is_conj()) == (given.is_neg(), given.is_conj())
