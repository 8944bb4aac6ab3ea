"""The backend that runs ATen graphs by their Python text."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynajit
from dynajit.backends import codegen


def draws_from(x: torch.Tensor) -> Any:
    low = {"from": -2, "to": 7}
    return (
        x.clone().random_(**low),
        torch.empty(3).random_(**{"from": 1, "to": 3}) + x.sum(),
        x.new_zeros(2).random_(2, 5),
    )


@pytest.mark.filterwarnings("ignore:dynajit. no kernels")
@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
def test_overloads_named_like_words_of_python(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`aten.random.from` has no text that Python reads; so where kernels can't be made, too."""
    if backend == "codegen":
        monkeypatch.setattr(codegen, "_compiled", _refuse)
    compiled = dynajit.compile(draws_from, backend=backend)
    for requires_grad in (False, True, True):
        x = torch.randn(4, requires_grad=requires_grad)
        torch.manual_seed(3)
        made = compiled(x)
        torch.manual_seed(3)
        for mine, eager in zip(made, draws_from(x), strict=True):
            assert torch.equal(mine, eager) and mine.requires_grad == eager.requires_grad


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise OSError("no kernels")
