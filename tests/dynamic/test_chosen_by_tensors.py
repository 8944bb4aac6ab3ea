"""Items that a tensor of one integer chooses: part of the graph where the user wants numbers to be.

With nothing set the graph ends there. Breaks cost less: on a CPU `x[t] * 2` takes 1.7 microseconds so, and 6.3 with
what reads and checks the number in the graph; and a GPU's graph that waits in its middle has no kernels of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.testing import assert_same


@pytest.fixture
def captured() -> Iterator[None]:
    with dynajit.config.patch(capture_scalar_outputs=True):
        yield


def _written(x: Tensor, at: Any, value: Any) -> Tensor:
    x[at] = value
    return x * 2


def _added(x: Tensor, t: Tensor) -> Tensor:
    x[:, t] += x[:, t + 1]
    return x * 2


def _view_written(x: Tensor, t: Tensor) -> Any:
    row = x[t]
    row.add_(1)
    return row, x * 2


def _schedule(x: Tensor, t: Tensor) -> Tensor:
    factor = x.flatten()[t]
    while factor.dim() < x.dim():
        factor = factor.unsqueeze(-1)
    return factor.sqrt() * x


def _loop(x: Tensor, t: Tensor) -> Tensor:
    for at in torch.stack([t, t + 1]):
        x = x + x[at] * 0.1
    return x


def _last(x: Tensor, t: Tensor) -> Tensor:
    lengths = t + torch.arange(3)
    return torch.stack([x[row, lengths[row] - 1] for row in range(3)])


CHOSEN: dict[str, Any] = {
    "row": lambda x, t: x[t] * 2 + x[t - 1],
    "views": lambda x, t: (x[t], x[:, t]),
    "both": lambda x, t: x[t, t] + x[-t, 0],
    "beside a slice": lambda x, t: x[..., None, t, 1:] - 1,
    "beside indices": lambda x, t: x[t, torch.arange(2)] + x[t, torch.tensor([[0, 1]])],
    "beside a list": lambda x, t: x[t, [0, 2]] + x[[0, 2], t],
    "int32": lambda x, t: x[t.int()] + 1,
    "where the maximum is": lambda x, t: x[x.sum(1).argmax()] * t,
    "write": lambda x, t: _written(x, t, 1.0),
    "write of one": lambda x, t: _written(x, (t, t), x.max()),
    "write beside a list": lambda x, t: _written(x, (t, [0, 2]), x[0, :2]),
    "added": _added,
    "written view": _view_written,
    "schedule": _schedule,
    "loop": _loop,
    "last of each": _last,
    "vmap": lambda x, t: torch.vmap(lambda row: row[t])(x),
    "vmap of the index": lambda x, t: torch.vmap(lambda at: x[at])(torch.stack([t, t + 1])),
}


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", CHOSEN)
def test_items_chosen_by_tensors(name: str, backend: str) -> None:
    calls = [(torch.rand(4, 4), torch.tensor(number)) for number in (1, 2, 0)]
    near: dict[str, Any] = {} if backend == "eager" else {"rtol": 1e-6, "atol": 1e-6}
    assert_same(CHOSEN[name], *calls[0], then=calls[1:], backend=backend, graphs=1, breaks=0, recompiles=0, **near)


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_gradients_of_items_chosen_by_tensors(backend: str) -> None:
    def fn(x: Tensor, t: Tensor) -> Tensor:
        return (x[t] * x[t + 1]).sum() + x[x.sum(1).argmax(), t]

    compiled = dynajit.compile(fn, backend=backend)
    for number in (1, 0, 2):
        x = torch.randn(4, 3, requires_grad=True)
        wanted, found = (torch.autograd.grad(each(x, torch.tensor(number)), x) for each in (fn, compiled))
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_out_of_range(backend: str) -> None:
    x = torch.randn(4, 3)
    compiled = dynajit.compile(CHOSEN["row"], backend=backend)
    compiled(x, torch.tensor(1))
    with pytest.raises(IndexError) as wanted:
        CHOSEN["row"](x, torch.tensor(4))
    with pytest.raises(IndexError) as found:
        compiled(x, torch.tensor(4))
    assert str(found.value) == str(wanted.value)


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_one_index_in_two_branches(backend: str) -> None:
    """What a branch reads of a tensor, the other one has to read for itself."""

    def fn(x: Tensor, t: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda a, at: a[at] + 0, lambda a, at: a[at] * 2, (x, t))  # type: ignore[no-any-return]

    report = dynajit.explain(fn)(torch.ones(4, 3), torch.tensor(1))
    assert (report.graph_count, report.graph_break_count) == (1, 0)
    compiled = dynajit.compile(fn, backend=backend)
    for sign, at in ((1, 2), (-1, 2), (-1, 0)):
        x = torch.rand(4, 3) * sign
        torch.testing.assert_close(compiled(x, torch.tensor(at)), x[at] if sign > 0 else x[at] * 2)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_with_nothing_set_graphs_end(backend: str) -> None:
    near: dict[str, Any] = {} if backend == "eager" else {"rtol": 1e-6, "atol": 1e-6}
    for name in ("row", "written view", "loop"):
        calls = [(torch.rand(4, 4), torch.tensor(number)) for number in (1, 2, 0)]
        report = assert_same(CHOSEN[name], *calls[0], then=calls[1:], backend=backend, recompiles=0, **near)
        assert {reason.kind for reason in report.break_reasons} == {"data-dependent"}
