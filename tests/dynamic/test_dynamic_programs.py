"""Small programs of many kinds with changing sizes and numbers, against eager, with the number of recompiles pinned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import dynajit
from dynajit.testing import assert_same

BACKENDS = ["eager", "codegen"]


def rand(*sizes: int) -> Tensor:
    return torch.rand(sizes)


class Case(NamedTuple):
    fn: Any
    calls: list[tuple[Any, ...]]
    recompiles: int | None


CASES: dict[str, Case] = {}


def case(calls: list[tuple[Any, ...]], recompiles: int | None = 1) -> Callable[[Any], Any]:
    def register(fn: Any) -> Any:
        CASES[fn.__name__] = Case(fn, calls, recompiles)
        return fn

    return register


@case([(rand(n, m), rand(n, m)) for n, m in ((3, 4), (4, 5), (6, 7))])
def in_place(x: Tensor, y: Tensor) -> Any:
    x.add_(1)
    y.mul_(x[:, :1])
    return x.sum() + y.sum()


_BASES = [rand(2 * n, 4) for n in (3, 4, 5, 6)]


@case([(base[:-1], base[1:]) for base in _BASES], None)
def overlapping(x: Tensor, y: Tensor) -> Any:
    x.add_(1)
    return y * 2


@case([(rand(n, 3, h, h),) for n, h in ((2, 8), (3, 10), (4, 12), (5, 9))])
def convolution(x: Tensor) -> Any:
    return F.conv2d(x, torch.ones(3, 3, 3, 3), padding=1).relu().mean((2, 3))


@case([(rand(n, m),) for n, m in ((4, 6), (5, 8), (6, 10), (9, 12))])
def views(x: Tensor) -> Any:
    turned = x.transpose(0, 1).contiguous().view(-1)
    return turned, x.unflatten(1, (2, -1)).flatten(0, 1), x[1:-1, ::2], x[-1], x[:, -2]


@case([(rand(n, 3),) for n in (4, 5, 6)])
def loop_over_size(x: Tensor) -> Any:
    y = x
    for i in range(x.shape[1]):
        y = y + x[:, i : i + 1]
    return y


@case([(rand(b, s, 32),) for b, s in ((2, 7), (3, 9), (4, 16), (5, 33))])
def attention(q: Tensor) -> Any:
    b, s, d = q.shape
    q = q.view(b, s, 4, d // 4).transpose(1, 2)
    mask = torch.tril(torch.ones(s, s, dtype=torch.bool))
    weights = (q @ q.mT / (d // 4) ** 0.5).masked_fill(~mask, float("-inf")).softmax(-1)
    return (weights @ q).transpose(1, 2).reshape(b, s, d), F.scaled_dot_product_attention(q, q, q, is_causal=True)


@case([(rand(n, m),) for n, m in ((4, 6), (5, 8), (6, 10), (9, 12))])
def reductions(x: Tensor) -> Any:
    both = torch.stack([x, x]).flatten()
    return x.cumsum(0), x.argmax(-1), x.sort(-1).values, both, x.var(0), x.std(), x.log_softmax(0)


@case([(torch.randint(0, 10, (n, m)), rand(10, 8)) for n, m in ((4, 6), (5, 8), (6, 10))])
def embedding(ids: Tensor, table: Tensor) -> Any:
    places = torch.arange(1, ids.shape[1] + 1) * 2
    return F.embedding(ids, table).mean(1), F.one_hot(ids, 10), F.pad(ids, (1, 2)), places


@case([(rand(n, 7).requires_grad_(), torch.randint(0, 7, (n,))) for n in (4, 6, 7, 9)])
def loss(x: Tensor, target: Tensor) -> Any:
    return F.cross_entropy(x, target)


@case([(rand(9, n).t(),) for n in (4, 6, 7, 9)])
def transposed_input(x: Tensor) -> Any:
    return (x + 1).sum(1), x.is_contiguous(), x.stride()


@case([(rand(9, n)[:, : n - 2],) for n in (5, 6, 7, 9)])
def sliced_input(x: Tensor) -> Any:
    return (x + 1).sum(1), x.is_contiguous(), x.stride()


@case([(rand(n),) for n in (4, 6, 7)], None)
def printed(x: Tensor) -> Any:
    print(f"{x.shape}")
    return x + 1


@case([(rand(n, 3),) for n in (4, 6, 8, 7, 9)], None)
def even_or_odd(x: Tensor) -> Any:
    rows = x.shape[0]
    return x / rows + rows**0.5, x.reshape(rows // 2, 2, -1) if rows % 2 == 0 else x


@case([(rand(10), k) for k in (3, 4, 5)], None)
def number_as_length(x: Tensor, k: int) -> Any:
    return x[:k] * k, x[k:], list(range(k)), [0] * k


@case([(rand(n, 3),) for n in (4, 6, 8)], None)
def shape_as_tuple(x: Tensor) -> Any:
    return sum(x.shape), max(x.shape), min(len(x), 5), tuple(x.shape) == (4, 3), [row * 2 for row in x]


_ADDENDS = [torch.full((), float(n)) for n in range(4)]


@case([(rand(n, 3),) for n in (7, 5, 3, 4)], None)
def sizes_read_before_they_change(x: Tensor) -> Any:
    n = x.shape[0]
    for addend in _ADDENDS:
        x.add_(addend)
    x.unsqueeze_(0)
    return n, n % 7, x.shape[1] + 1, x.numel() % 5, x.stride()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", list(CASES))
def test_program(name: str, backend: str) -> None:
    fn, calls, recompiles = CASES[name]
    tolerance: dict[str, Any] = {} if backend == "eager" else {"rtol": 1e-4, "atol": 1e-5}
    assert_same(fn, *calls[0], then=calls[1:], repeat=1, backend=backend, recompiles=recompiles, **tolerance)


@pytest.mark.parametrize("backend", BACKENDS)
def test_module_that_counts_its_calls(backend: str) -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.norm = torch.nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Any:
            self.calls += 1
            return self.norm(x) * self.calls

    calls = [(rand(n, 4),) for n in (3, 3, 4, 5, 6, 7, 8)]
    report = assert_same(Counting(), *calls[0], then=calls[1:], repeat=1, backend=backend, rtol=1e-4, atol=1e-5)
    assert len(report.recompile_reasons) <= 3


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_the_place_of_a_view_in_its_memory(backend: str) -> None:
    def f(x: torch.Tensor) -> Any:
        return x.storage_offset(), x[1:].storage_offset(), (x * 2).storage_offset(), x.as_strided((2,), (1,)) * 2

    run, whole = dynajit.compile(f, backend=backend), torch.arange(12.0)
    for x in (whole, whole[3:], whole[1:6], whole.view(3, 4)[1], whole[3:9], whole[2:].detach().requires_grad_()):
        found, expected = run(x), f(x)
        assert found[:3] == expected[:3]
        torch.testing.assert_close(found[3], expected[3])


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_views_without_elements(backend: str) -> None:
    """Their last element lies nowhere, so their strides say nothing about the memory."""

    def f(x: torch.Tensor) -> Any:
        return x.storage_offset(), x.shape, (x * 2).shape

    run, whole = dynajit.compile(f, backend=backend, fullgraph=True), torch.arange(1000.0).view(10, 100)
    for end in (4, 5, 6, 7):
        assert run(whole[0:0, 3:end]) == f(whole[0:0, 3:end])
