"""Gradients of a weight that is used several times: one tensor, to which rows are added."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import dynajit
from dynajit.aot.passes.gradient_sums import added_in_place
from dynajit.graph.meta import notes

aten = torch.ops.aten


@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_tied_embedding_has_the_gradient_of_eager(padding: int | None, dtype: torch.dtype) -> None:
    def loss(weight: torch.Tensor, words: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
        first = F.embedding(words, weight, padding_idx=padding).sum(1)
        second = F.embedding(more, weight, padding_idx=padding)
        return ((first.tanh() @ weight.t()).sum() + (second * second).mean()).float()

    torch.manual_seed(0)
    words, more = torch.randint(50, (4, 7)), torch.randint(50, (5,))
    words[0] = more[1] = 3
    values = torch.randn(50, 8).to(dtype)
    weight, other = (values.clone().requires_grad_() for _ in range(2))
    loss(weight, words, more).backward()
    dynajit.compile(loss)(other, words, more).backward()
    torch.testing.assert_close(other.grad, weight.grad)


def _graph(keep: bool) -> torch.fx.GraphModule:
    """x @ y, plus rows of a gradient; `keep`: the product is returned too."""

    def fn(x: torch.Tensor, y: torch.Tensor, words: torch.Tensor, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = aten.mm.default(x, y)
        rows = aten.embedding_dense_backward.default(gradient, words, 6, -1, False)
        total = aten.add.Tensor(product, rows)
        return (total, product) if keep else (total,)

    from torch.fx.experimental.proxy_tensor import make_fx

    given = (torch.randn(6, 3), torch.randn(3, 4), torch.randint(6, (5,)), torch.randn(5, 4))
    return make_fx(fn, tracing_mode="fake")(*given)


@pytest.mark.parametrize("keep", [False, True])
def test_only_what_nobody_else_needs_is_written_over(keep: bool) -> None:
    graph = _graph(keep)
    made = added_in_place(graph)
    (put,) = made.graph.find_nodes(op="call_function", target=aten.index_put.default)
    assert notes(put).takes_first is not keep
    assert not made.graph.find_nodes(op="call_function", target=aten.add.Tensor)
    given = (torch.randn(6, 3), torch.randn(3, 4), torch.randint(6, (5,)), torch.randn(5, 4))
    for ours, theirs in zip(made(*given), graph(*given), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_graph_without_embeddings_stays_what_it_is() -> None:
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    assert added_in_place(graph) is graph
