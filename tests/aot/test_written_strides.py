"""Tensors keep their strides, and what their memory means, when they are written; functional graphs make other tensors
instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import assert_same


def out_of_another_order(x: Any, y: Any) -> Any:
    x = x * 2
    torch.add(y, 1, out=x)
    return x


def masked(x: Any, y: Any) -> Any:
    x = x.t() + 1
    x.masked_fill_(y > 0, 2.0)
    return x


def masked_and_computed_with(x: Any, y: Any) -> Any:
    x = x.t() + 1
    x.masked_fill_(y > 0, 2.0)
    return x + 1


def with_gaps(x: Any, y: Any) -> Any:
    z = torch.empty_strided((3, 3), (8, 2))
    z.fill_(1.0)
    return z


def input_and_result(x: Any, y: Any) -> Any:
    torch.add(y * 2, 1, out=x)
    return x + 1


def relaid(x: Any, y: Any) -> Any:
    x.add_(1)
    x.swapaxes_(0, -1)


def relaid_and_returned(x: Any, y: Any) -> Any:
    y = x.t_()
    y.mul_(2)
    return y, x[0]


def by_strides(x: Any, y: Any) -> Any:
    x = x.t() + 1
    x.masked_fill_(y > 0, 2.0)
    return x.as_strided((9,), (1,)) * 1


def views_of_one(x: Any, y: Any) -> Any:
    x = x.t() + 1
    x.masked_fill_(y > 0, 2.0)
    return x, x[0]


def conjugate_written(x: Any, y: Any) -> Any:
    z = torch.complex(x, y)
    view = z.conj()
    view.mul_(1j)
    return z, view


def place_of_a_conjugate_written(x: Any, y: Any) -> Any:
    z = torch.complex(x, y).conj()
    z[0] = 5j
    return z, z * 2


def negated_written(x: Any, y: Any) -> Any:
    z = torch.complex(x, y)
    view = z.conj().imag
    view.add_(y)
    return z.imag, view


CASES: list[Callable[..., Any]] = [
    out_of_another_order,
    masked,
    masked_and_computed_with,
    with_gaps,
    input_and_result,
    relaid,
    relaid_and_returned,
    by_strides,
    views_of_one,
    conjugate_written,
    place_of_a_conjugate_written,
    negated_written,
]


def described(value: Any) -> list[Any]:
    values = value if isinstance(value, tuple) else (value,)
    return [
        (each.stride(), each.storage_offset(), each.is_conj(), each.is_neg(), each.requires_grad, each.tolist())
        if each is not None
        else None
        for each in values
    ]


@pytest.mark.parametrize("function", CASES)
@pytest.mark.parametrize("gradients", ["none", "off", "on"])
def test_strides(function: Callable[..., Any], gradients: str) -> None:
    outcomes = []
    for call in (function, dynajit.compile(function, backend="codegen")):
        generator = torch.Generator().manual_seed(1)
        x, y = (torch.randn(3, 3, generator=generator) for _ in range(2))
        if gradients != "none":
            x.requires_grad_(), y.requires_grad_()
        if gradients == "on":
            x, y = x * 1, y * 1
        x = x.t() if function is input_and_result else x
        with torch.set_grad_enabled(gradients != "off"):
            try:
                outcome: Any = described(call(x, y.t()))
            except RuntimeError as error:
                outcome = str(error)
        outcomes.append((outcome, described((x, y))))
    assert outcomes[0] == outcomes[1]


def test_memory_that_results_share_is_shared() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return views_of_one(x, y)

    whole, row = dynajit.compile(function, backend="codegen")(torch.randn(3, 3), torch.randn(3, 3))
    assert row.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
def test_versions_that_the_program_reads(backend: str) -> None:
    def function(x: torch.Tensor) -> tuple[Any, ...]:
        y = x * 2
        view = y.view(-1)
        view.mul_(2)
        before = y._version
        y.t_()
        return before, y._version, view._version, y

    wanted, got = function(torch.ones(2, 3)), dynajit.compile(function, backend=backend)(torch.ones(2, 3))
    assert wanted[:3] == got[:3] and wanted[3]._version == got[3]._version


WRITES: dict[str, Callable[..., Any]] = {
    "divided": lambda v, y: v.div_(3.0),
    "augmented": lambda v, y: v.__itruediv__(3.0),
    "another order added": lambda v, y: v.add_(y.t().reshape(v.shape)),
    "copied": lambda v, y: v.copy_(y.t().reshape(v.shape)),
    "one place": lambda v, y: (v.__setitem__(0, 1.0), v)[1],
    "masked": lambda v, y: v.masked_fill_(v > 0, 2.0),
    "cumulated": lambda v, y: v.cumsum_(0),
    "filled": lambda v, y: v.index_fill_(0, torch.tensor([0]), 5.0),
}
VIEWS: dict[str, Callable[..., Any]] = {
    "itself": lambda z: z,
    "transposed": lambda z: z.t(),
    "a part": lambda z: z[1:],
    "of another rank": lambda z: z.view(2, 2, 4).transpose(0, 1) if z.is_contiguous() else z.unsqueeze(0),
    "unfolded": lambda z: z.unfold(0, 2, 2),
}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("write", WRITES)
def test_memory_read_by_strides_after_a_write(write: str, view: str, gradients: bool) -> None:
    for transposed in (False, True):

        def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            v = WRITES[write](VIEWS[view](x * 1), y)
            return v.as_strided((3, 4), (2, 1), 1) * 2, v + 1

        x, y = torch.randn(4, 4), torch.randn(4, 4)
        x = (x.t() if transposed else x).requires_grad_(gradients)
        assert_same(program, x, y, backend="aot_eager")
