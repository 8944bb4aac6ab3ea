"""Tensors that a part of a function only hands on, to a call that breaks the graph: the part is one for all of them,
unless it asks what they are like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dynajit
from dynajit.report import records

GIVEN: list[Callable[[], torch.Tensor]] = [
    lambda: torch.ones(3),
    lambda: torch.ones(4),
    lambda: torch.ones(3, requires_grad=True),
    lambda: torch.ones(3, requires_grad=True) * 2,
    lambda: torch.ones(3, dtype=torch.float64),
    lambda: torch.ones(2, 3).t(),
    lambda: torch.ones(2, 3),
    lambda: torch.ones(4).to_sparse(),
    lambda: nn.Parameter(torch.ones(3)),
    lambda: torch.ones(3)[None].expand(2, 3),
]
# what of a tensor is asked before it is handed on; of other modules, what of their weights
QUESTIONS = (
    *("x.shape", "x.dtype", "x.requires_grad", "x.is_leaf", "x.dim()", "x.stride()", "x.layout", "x.is_sparse"),
    *("len(x)", "x.grad is None", "x.grad_fn is None", "isinstance(x, nn.Parameter)", "x.device", "x.nelement()"),
    *("x.is_contiguous()", "x._version", "x.size(0)", "hasattr(x, 'name')", "x.is_floating_point()", "type(x)"),
    *("inner(x)", "inner(x), outer(x)", "x is y", "x.storage_offset()", "tuple(x.shape)[0] == 3", "x.ndim + len(x)"),
)


class Asked(nn.Module):
    """Tells of a tensor, and of its own weight."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> Any:
        return x.shape, self.weight.shape, self.weight.requires_grad


@dynajit.disable
def outside(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def part(code: Any) -> Callable[[records.CompileRecord], bool]:
    return lambda record: record.code is code.__code__


def test_one_part_for_all() -> None:
    def f(x: torch.Tensor) -> Any:
        return outside(x) + 1

    dynajit.reset()
    compiled, seen = dynajit.compile(f), list[records.CompileRecord]()
    with records.listen(seen.append):
        for make in GIVEN[:6]:
            torch.testing.assert_close(compiled(make()), f(make()))
    assert len(list(filter(part(f), seen))) == 1


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_is_asked_is_guarded(question: str) -> None:
    y, names = torch.ones(3), {"outside": outside, "nn": nn, "inner": Asked(3), "outer": Asked(3), "torch": torch}
    exec(f"def f(x, y):\n    told = {question}\n    outside(y)\n    return told", names)
    f: Any = names["f"]
    dynajit.reset()
    compiled = dynajit.compile(f)
    for make in [*GIVEN[:7], lambda: y, *GIVEN]:
        x = make()
        assert outcome(compiled, x, y) == outcome(f, x, y)


def outcome(call: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    try:
        return call(x, y)
    except Exception as error:  # eager's own is what is compared
        return type(error), str(error)


def test_a_branch_on_a_size_is_guarded() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        first = outside if x.shape[0] > 3 else len
        return first(y), x

    compiled = dynajit.compile(f)
    for size in (2, 5, 3, 4):
        found, kept = compiled(torch.ones(size), torch.ones(size))
        assert type(found) is (torch.Tensor if size > 3 else int) and kept.shape == (size,)


def test_weights_of_equal_layers_are_guarded() -> None:
    """The second layer's call is not traced, and relies on what the first one's was found to ask."""
    layers = [Asked(3), Asked(3)]

    def f(x: torch.Tensor) -> Any:
        told = [layer(x) for layer in layers]
        outside(x)
        return told

    compiled, x = dynajit.compile(f), torch.ones(2)
    assert compiled(x) == f(x)
    layers[1].weight.data = torch.ones(5)
    assert compiled(x) == f(x)
    layers[1].weight.requires_grad = False
    assert compiled(x) == f(x)
