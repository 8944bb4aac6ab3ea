"""Convolutions whose bias is added apart, and its gradient found apart: as torch computes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from dynajit.aot import decompositions

aten = torch.ops.aten
CASES: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {
    "1d": (F.conv1d, (2, 3, 9), (4, 3, 3)),
    "2d": (F.conv2d, (2, 3, 6, 7), (4, 3, 3, 2)),
    "3d": (F.conv3d, (2, 3, 4, 5, 3), (4, 3, 2, 2, 2)),
    "transposed": (F.conv_transpose2d, (2, 3, 4, 5), (3, 4, 2, 2)),
    "one image": (F.conv2d, (3, 6, 7), (4, 3, 3, 2)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("wanted", [(0, 1, 2), (2,), (0,)])
def test_as_torch(case: str, wanted: tuple[int, ...]) -> None:
    function, *shapes = CASES[case]
    inputs = [torch.randn(shape).requires_grad_(at in wanted) for at, shape in enumerate((*shapes, (4,)))]

    def both(*args: torch.Tensor) -> list[torch.Tensor]:
        out = function(*args)
        return [out, *torch.autograd.grad(out.square().sum(), [args[at] for at in wanted])]

    graph = make_fx(both, decomposition_table=decompositions.for_codegen("cuda"))(*inputs)
    for found, expected in zip(graph(*inputs), both(*inputs), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    calls = [*graph.graph.find_nodes(op="call_function", target=aten.convolution.default)]
    assert [node.args[2] for node in calls] == [None]
    backward = graph.graph.find_nodes(op="call_function", target=aten.convolution_backward.default)
    assert [node.args[10][2] for node in backward] == [False] * (wanted != (2,))


def test_not_where_rounding_is_eagers() -> None:
    assert aten.convolution.default not in decompositions.for_codegen("cuda", True)
