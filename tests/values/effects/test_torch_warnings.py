"""What torch's C++ warns of: once in a process, or each time where the program has told it to."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import dynajit

WARNING: dict[str, Callable[[torch.Tensor], Any]] = {
    "overload": lambda x: x.add(2, x),
    "in_place": lambda x: x.addmm_(1, x, x),
    "transposed": lambda x: x[0].T,
    "unused": lambda x: torch.addcmul(x, 2, x, x) is None,
    "chain": lambda x: torch.chain_matmul(x, x, x),
}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(False)
    yield
    torch.set_warn_always(before)


def _texts(function: Callable[[torch.Tensor], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(torch.ones(3, 3))
    return [str(warning.message).partition("(Triggered")[0] for warning in caught]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", WARNING)
def test_each_call_warns_where_torch_always_warns(name: str, backend: str) -> None:
    function = WARNING[name]
    _texts(function)  # what comes once has come
    compiled = dynajit.compile(function, backend=backend)
    assert _texts(compiled) == _texts(function)
    torch.set_warn_always(True)
    expected = _texts(function)
    assert expected
    assert [_texts(compiled) for _ in range(3)] == [expected] * 3
    torch.set_warn_always(False)
    assert _texts(compiled) == _texts(function)


def test_captures_after_the_first_hear_what_an_operation_warns_of() -> None:
    torch.set_warn_always(True)
    expected = _texts(_twice)
    assert len(expected) == 2
    for _ in range(2):
        dynajit.reset()
        assert _texts(dynajit.compile(_twice, backend="codegen")) == expected


def _twice(x: torch.Tensor) -> torch.Tensor:
    return torch.cholesky(torch.cholesky(x * torch.eye(3)))


def _by_a_kernel(x: torch.Tensor) -> torch.Tensor:
    return torch.searchsorted(x[0] + 1, x.detach().t(), side="right") + x.sin()


@pytest.mark.parametrize("gradients", [False, True])
def test_kernels_that_generated_code_calls_warn_through_python(gradients: bool) -> None:
    """The fake kernel says nothing."""
    compiled = dynajit.compile(_by_a_kernel, fullgraph=True)
    torch.set_warn_always(True)
    for _ in range(2):
        for function in (_by_a_kernel, compiled):
            with pytest.warns(UserWarning, match="non-contiguous"):
                function(torch.ones(3, 3, requires_grad=gradients))
            with warnings.catch_warnings(), pytest.raises(UserWarning, match="non-contiguous"):
                warnings.simplefilter("error")
                function(torch.ones(3, 3, requires_grad=gradients))
