"""A graph for a GPU is taken apart into what the CPU computes first, of its own tensors, and the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from dynajit.aot.host_part import split
from dynajit.graph.meta import graph_notes, note_graph

aten = torch.ops.aten


def graph_of(function: Callable[..., Any], *devices: str) -> torch.fx.GraphModule:
    """Its ATen graph for tensors of four numbers on these devices ("meta" stands for a GPU)."""
    with FakeTensorMode():
        inputs = [torch.empty(4, device=device) for device in devices]
        return make_fx(lambda *args: list(function(*args)))(*inputs)


def called(gm: torch.fx.GraphModule) -> list[str]:
    return [node.target.__name__ for node in gm.graph.nodes if node.op == "call_function"]


def check(function: Callable[..., Any], *devices: str, host: list[str], device: list[str]) -> None:
    """The two halves make these calls, and give together what the function gives."""
    gm = graph_of(function, *devices)
    parts = split(gm, ())
    assert parts is not None
    assert (called(parts.host), called(parts.device)) == (host, device)
    inputs = [torch.arange(4.0) + at for at in range(len(devices))]
    for part in (parts.host, parts.device):
        for node in part.graph.nodes:  # all run on the CPU here
            node.kwargs = {name: torch.device("cpu") if name == "device" else arg for name, arg in node.kwargs.items()}
        part.recompile()
    torch.manual_seed(0)
    made = parts.join(parts.host.forward, parts.device.forward)(*inputs)
    torch.manual_seed(0)
    torch.testing.assert_close(list(made), list(function(*inputs)))


def test_a_result_on_the_cpu() -> None:
    check(lambda x, c: (x * 2, c + 1, x), "meta", "cpu", host=["add.Tensor"], device=["mul.Tensor"])


def test_what_the_device_reads_is_handed_to_it() -> None:
    check(
        lambda c, x: ((c + 1).sum(), x * (c + 1).sum()),
        *("cpu", "meta"),
        host=["add.Tensor", "sum.default", "add.Tensor", "sum.default"],
        device=["mul.Tensor"],
    )


def test_a_result_twice_and_none() -> None:
    def function(x: torch.Tensor, c: torch.Tensor) -> Any:
        y, d = x * 2, c.exp()
        return y, d, y, None, c, d

    gm = graph_of(function, "meta", "cpu")
    parts = split(gm, ())
    assert parts is not None
    x, c = torch.ones(4), torch.zeros(4)
    made = parts.join(parts.host.forward, parts.device.forward)(x, c)
    assert made[0] is made[2] and made[1] is made[5] and made[3] is None and made[4] is c


def test_random_numbers_keep_their_order() -> None:
    check(
        lambda x: (torch.rand(4), x + 1, torch.rand(4)),
        "meta",
        host=["rand.default", "rand.default"],
        device=["add.Tensor"],
    )

    def behind(x: torch.Tensor) -> Any:
        return x.to("cpu").bernoulli(), torch.rand(4), x + 1

    assert split(graph_of(behind, "meta"), ()) is None


def test_the_devices_own_random_numbers_are_no_matter() -> None:
    """As of attention, whose operator draws where there is dropout."""
    gm = graph_of(lambda x: (x.bernoulli() + 1, torch.rand(4), x.bernoulli(), torch.rand(4)), "meta")
    parts = split(gm, ())
    assert parts is not None
    assert called(parts.host) == ["rand.default"] * 2 and "rand.default" not in called(parts.device)


def test_what_is_carried_to_the_device_is_handed_there() -> None:
    check(
        lambda c, x: (x * (torch.arange(4) + 1 + c).to(x.device), x + 1),
        *("cpu", "meta"),
        host=["arange.default", "add.Tensor", "add.Tensor", "_to_copy.default"],
        device=["mul.Tensor", "add.Tensor"],
    )


def test_little_work_stays_where_that_is_asked() -> None:
    gm = graph_of(lambda x, c: (x * 2, c + 1, c.exp()), "meta", "cpu")
    assert split(gm, (), 7) is not None
    assert split(gm, (), 8) is None


def test_what_waits_for_the_device_stays() -> None:
    assert split(graph_of(lambda x: (x.to("cpu") + 1, x * 2), "meta"), ()) is None
    assert split(graph_of(lambda c: (c + 1,), "cpu"), ()) is None


def test_numbers_that_kernels_are_given_stay() -> None:
    gm = graph_of(lambda x, c: (x * c.sum().sqrt(),), "meta", "cpu")
    (root,) = gm.graph.find_nodes(op="call_function", target=aten.sqrt.default)
    parts = split(gm, {root})
    assert parts is not None and called(parts.host) == ["sum.default"]
    assert called(parts.device) == ["sqrt.default", "mul.Tensor"]
    (total,) = gm.graph.find_nodes(op="call_function", target=aten.sum.default)
    assert split(gm, {root, total}) is None


@pytest.mark.parametrize(("returns", "shown"), [(None, None), (3, 2), (1, 1), (2, 1)])
def test_results_that_are_kept_for_backward_are_told(returns: int | None, shown: int | None) -> None:
    gm = graph_of(lambda x, c: (x * 2, c + 1, x + 1, x + 3, c + 2), "meta", "cpu")
    note_graph(gm, returns=returns, original=print)
    parts = split(gm, ())
    assert parts is not None
    assert graph_notes(parts.device).returns == shown
    assert graph_notes(parts.device).original is graph_notes(parts.host).original is None


def test_results_that_hooks_wait_for_are_told() -> None:
    gm = graph_of(lambda x, c: (c + 1, x * 2, x, x + 1), "meta", "cpu")
    note_graph(gm, waited_for=frozenset({0, 2, 3}))
    parts = split(gm, ())
    assert parts is not None
    assert graph_notes(parts.device).waited_for == {1}
    assert graph_notes(parts.host).waited_for == set()
