"""Tensors that the program can't see lie in memory as their readers want; what can be seen is eager's, strides too."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import dynajit
from dynajit.aot import pipeline
from dynajit.aot.passes import layouts as module
from dynajit.aot.passes.layouts import with_layouts
from dynajit.testing import assert_same

aten = torch.ops.aten


class Net(nn.Module):
    def __init__(self, head: Callable[[Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.point = nn.Conv2d(8, 12, 1, bias=False)
        self.last = nn.Conv2d(20, 6, 3, dilation=2, padding=2)
        self.head = head

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.norm(self.first(x)))
        y = self.point(F.hardswish(self.depthwise(x)) + x)
        return self.head(self.last(torch.cat([x, y], 1)))


HEADS: dict[str, Callable[[Tensor], Any]] = {
    "as it is": lambda x: x,
    "two of its results": lambda x: (x, x * 2, x.sum()),
    "flattened": lambda x: x.view(x.shape[0], -1) * 2,
    "patches": lambda x: x.flatten(2).transpose(1, 2),
    "channels split": lambda x: x.view(x.shape[0], 2, 3, *x.shape[2:]).softmax(1),
    "shuffled": lambda x: F.pixel_shuffle(x[:, :4], 2),
    "pooled": lambda x: F.max_pool2d(F.avg_pool2d(x, 2), 2),
    "larger": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "means": lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1),
    "strides written": lambda x: torch.as_strided(x * 1, (4,), (3,)),
    "rows": lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (6,)),
    "grouped": lambda x: F.group_norm(x, 3),
    "transposed": lambda x: F.conv_transpose2d(x, torch.ones(6, 2, 2, 2) / 8),
    "in place": lambda x: x.mul_(2).view(-1)[3:9].add_(1),
    "bytes": lambda x: x.contiguous().view(torch.int32) ^ 1,
    "a large weight": lambda x: F.conv2d(F.adaptive_avg_pool2d(x, 2), torch.ones(64, 6, 3, 3) / 9, padding=1),
    "sorted": lambda x: x.sort(1).values,
}


def outcome(net: nn.Module, call: Callable[[Tensor], Any], shape: tuple[int, ...], train: bool) -> Any:
    torch.manual_seed(1)
    x = torch.randn(shape, requires_grad=train)
    with torch.set_grad_enabled(train):
        result = call(x)
    parts = result if isinstance(result, tuple) else (result,)
    if train:
        torch.stack([part.square().sum() for part in parts]).sum().backward()
    grads = [x.grad, *(weight.grad for weight in net.parameters())]
    seen = [*parts, *(grad for grad in grads if grad is not None)]
    return seen, [part.stride() for part in seen], [*net.buffers()]


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("head", HEADS)
def test_same_as_eager(head: str, train: bool) -> None:
    if head == "bytes" and train:
        pytest.skip("integers have no gradients")
    net = Net(HEADS[head]).train(train)
    own = copy.deepcopy(net)
    found = outcome(own, dynajit.compile(own), (2, 3, 18, 14), train)
    torch.testing.assert_close(found, outcome(net, net, (2, 3, 18, 14), train), rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 3, 9, 9), (3, 3, 1, 1), (2, 3, 7, 1)])
def test_shapes_and_dtypes(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    net = Net(HEADS["two of its results"]).eval().to(dtype)
    x = torch.randn(shape, dtype=dtype)
    with torch.no_grad():
        found, expected = dynajit.compile(net)(x), net(x)
    tolerance = 1e-9 if dtype == torch.float64 else 5e-2
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert [part.stride() for part in found] == [part.stride() for part in expected]


def layouts(fn: Callable[..., Any], *inputs: Tensor) -> list[list[bool]]:
    """Whether the tensor and the weight of each convolution have their channels last."""
    graph = with_layouts(make_fx(fn, tracing_mode="fake")(*inputs)).graph
    return [
        [arg.meta["val"].is_contiguous(memory_format=torch.channels_last) for arg in node.args[:2]]
        for node in graph.find_nodes(op="call_function", target=aten.convolution.default)
    ]


def test_where_weights_are_small() -> None:
    def two(x: Tensor, weight: Tensor) -> tuple[Tensor]:
        return (F.conv2d(F.conv2d(x, weight, padding=1).relu(), weight, padding=1),)

    assert layouts(two, torch.randn(2, 8, 20, 20), torch.randn(8, 8, 3, 3)) == [[True, True], [True, True]]
    assert layouts(two, torch.randn(1, 64, 3, 3), torch.randn(64, 64, 3, 3)) == [[False, False], [False, False]]


def test_large_weights_behind_small_ones() -> None:
    def mixed(x: Tensor, small: Tensor, large: Tensor) -> tuple[Tensor]:
        return (F.conv2d(F.avg_pool2d(F.conv2d(x, small, padding=1), 12), large, padding=1),)

    inputs = torch.randn(1, 16, 24, 24), torch.randn(64, 16, 3, 3), torch.randn(64, 64, 3, 3)
    assert layouts(mixed, *inputs) == [[True, True], [False, False]]
    torch.testing.assert_close(dynajit.compile(mixed)(*inputs), mixed(*inputs), rtol=1e-3, atol=1e-3)


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done for GPUs is done on the CPU."""
    monkeypatch.setitem(module.IN_TRAINING, "cpu", True)
    monkeypatch.setitem(module.CHOOSES, "cpu", True)
    monkeypatch.setattr(module, "_pays_on_cpu", lambda node: True)
    dynajit.reset()


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("head", HEADS)
def test_same_as_eager_where_all_choose(head: str, train: bool) -> None:
    test_same_as_eager(head, train)


def test_backward_gets_what_forward_saved(everywhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a graph that trains both halves take the orders that were chosen before it was parted."""
    joints: list[GraphModule] = []

    def noting(gm: GraphModule, training: bool = False) -> GraphModule:
        joints.append(module.with_layouts(gm, training))
        return joints[-1]

    monkeypatch.setattr(pipeline, "with_layouts", noting)
    net = Net(HEADS["as it is"])
    dynajit.compile(net)(torch.randn(2, 3, 18, 14)).sum().backward()
    nodes = joints[0].graph.find_nodes(op="call_function", target=aten.convolution_backward.default)
    assert len(nodes) == 4
    for node in nodes:
        given = [arg.meta["val"] for arg in node.args[:2]]
        assert all(value.is_contiguous(memory_format=torch.channels_last) for value in given)


def residual(x: Tensor, positions: Tensor, weight: Tensor) -> Tensor:
    """Rows that lie across memory, as a convolution and a permutation leave them."""
    rows = x.permute(0, 2, 1) + positions
    for _ in range(3):
        rows = rows + F.layer_norm(rows, (8,)) @ weight
    return rows


def orders(fn: Callable[..., Any], *inputs: Tensor) -> list[Any]:
    """The orders in which sums lie."""
    traced = make_fx(lambda *args: (fn(*args),), tracing_mode="fake")(*inputs)
    first = next(iter(traced.graph.nodes))
    with traced.graph.inserting_after(first):  # as some attention of a library's gives, beside tensors
        traced.graph.call_function(aten.sym_size.int, (first, 0)).meta["val"] = first.meta["val"].shape[0]
    graph = with_layouts(traced).graph
    readers = [user for node in graph.find_nodes(op="call_function", target=aten.add.Tensor) for user in node.users]
    kept = [node for node in readers if node.target is aten.clone.default]
    return [module.order_of(node.meta["val"]) for node in kept]


def test_reductions_of_a_number(everywhere: None) -> None:
    def number(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(x, torch.ones(2, 2, 1, 1)).sum().mean(0).amax(-1)

    assert_same(number, torch.rand(1, 2, 3, 3), graphs=1, backend="codegen")


def test_rows_of_a_residual_stream_lie_in_memory_as_rows(everywhere: None) -> None:
    inputs = torch.randn(2, 8, 5), torch.randn(5, 8), torch.randn(8, 8)
    assert orders(residual, *inputs)[0] == (0, 1, 2)
    found, expected = dynajit.compile(residual)(*inputs), residual(*inputs)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride() == (40, 1, 5)
    # nothing reads rows: there is nothing to gain
    assert orders(lambda x, y: (x.permute(0, 2, 1) + y).exp(), *inputs[:2]) == []


def test_order_of_a_views_base() -> None:
    def views(x: Tensor) -> tuple[Tensor, ...]:
        return x.view(2, 3, 2, 20), x.permute(0, 2, 3, 1), x.view(2, 6, 20).transpose(1, 2), x[:, 1:3], x[:, 1]

    graph = make_fx(views, tracing_mode="fake")(torch.randn(2, 6, 4, 5)).graph
    split, turned, rows, part, one = graph.output_node().args[0]
    last = (0, 2, 3, 1)
    assert module._order_before(split, (0, 3, 1, 2)) == last
    assert module._order_before(split, (0, 2, 1, 3)) is None
    assert module._order_before(turned, (0, 1, 2, 3)) == last
    assert module._order_before(rows.args[0], (0, 2, 1)) == last
    assert module._order_before(part, last) == last
    assert module._order_before(one, (0, 1, 2)) == (1, 0, 2, 3)
