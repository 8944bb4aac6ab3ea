"""Attention written by hand: what is recognised gives eager's result, at least as precisely; what must not be stays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import dynajit
from dynajit.aot.inference import attention
from dynajit.aot.inference.attention import Attention

F = torch.nn.functional
INF = math.inf
Made = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Attention]]:
    """Each attention found, however small: what a user's sizes would decide is decided for it."""
    seen: list[Attention] = []

    def always(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
        return attention.recognise(gm, lambda one: seen.append(one) is None)

    monkeypatch.setattr("dynajit.aot.pipeline.recognise", always)
    dynajit.reset()
    yield seen
    dynajit.reset()


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def causal(size: int) -> torch.Tensor:
    return torch.ones(size, size, dtype=torch.bool).tril()


def scaled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), dim=-1) @ v


def heads(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    batch, rows, width = x.shape
    q, k, v = (part.view(batch, rows, 4, -1).transpose(1, 2) for part in (x @ w).chunk(3, -1))
    scores = q @ k.transpose(-2, -1) * (1.0 / math.sqrt(q.size(-1)))
    scores = scores.masked_fill(causal(rows) == 0, -INF)
    return (F.softmax(scores, -1) @ v).transpose(1, 2).contiguous().view(batch, rows, width)


def einsum(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weights = (torch.einsum("bqhd,bkhd->bhqk", q, k) * 0.3 + mask).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


def wide(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = (q @ k.mT).float() * 0.4
    return torch.softmax(scores, -1).to(q.dtype) @ v


def wide_softmax(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.softmax(q @ k.mT, dim=-1, dtype=torch.float32).to(q.dtype) @ v


def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return torch.softmax((q @ k.mT * 0.5).masked_fill(~keep, -INF), -1) @ v


def where(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.where(keep, q @ k.mT, torch.tensor(-INF)) * 0.5, -1) @ v


def added(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *masks: torch.Tensor) -> torch.Tensor:
    scores = q @ k.mT
    for mask in masks:
        scores = mask + scores
    return torch.softmax(scores, -1) @ v


def window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    at = torch.arange(q.shape[-2])
    far = (at[:, None] - at[None, :]).abs() > 2
    return torch.softmax((q @ k.mT).masked_fill(far, -INF), -1) @ v


def dropped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.dropout(torch.softmax(q @ k.mT, -1), 0.1, training=False) @ v


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    k, v = (x[:, :, None].expand(-1, -1, 2, -1, -1).reshape(2, 4, 6, 8) for x in (k, v))
    return scaled(q, k, v)


def flat(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return scaled(q, k, v).view(2, -1)


def turned(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k, -1) @ v


def four(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    return tuple(randn(2, 4, 6, 8, dtype=dtype) for _ in range(3))


def some(*shape: int) -> torch.Tensor:
    keep = torch.rand(*shape) < 0.6
    keep[..., 0] = True
    return keep


def blank(*shape: int) -> torch.Tensor:
    """A mask with rows in which nothing is kept."""
    keep = some(*shape)
    keep[..., 1, :] = False
    return keep


def as_added(keep: torch.Tensor) -> torch.Tensor:
    return torch.zeros(keep.shape).masked_fill(~keep, -INF)


CASES: dict[str, tuple[Made, Callable[[], tuple[Any, ...]]]] = {
    "plain": (scaled, four),
    "float64": (scaled, lambda: four(torch.float64)),
    "bfloat16": (scaled, lambda: four(torch.bfloat16)),
    "float16": (scaled, lambda: four(torch.float16)),
    "scores in float32": (wide, lambda: four(torch.bfloat16)),
    "softmax in float32": (wide_softmax, lambda: four(torch.bfloat16)),
    "three dimensions": (scaled, lambda: tuple(randn(3, 6, 8) for _ in range(3))),
    "matrices": (scaled, lambda: tuple(randn(6, 8) for _ in range(3))),
    "five dimensions": (scaled, lambda: tuple(randn(2, 2, 2, 6, 8) for _ in range(3))),
    "fewer queries": (scaled, lambda: (randn(2, 4, 1, 8), randn(2, 4, 9, 8), randn(2, 4, 9, 8))),
    "one matrix of queries": (scaled, lambda: (randn(6, 8), randn(2, 4, 6, 8), randn(2, 4, 6, 8))),
    "heads side by side, causal": (heads, lambda: (randn(2, 6, 32), randn(32, 96))),
    "einsum": (einsum, lambda: (*(randn(2, 6, 4, 8) for _ in range(3)), randn(6, 6))),
    "kept": (masked, lambda: (*four(), some(6, 6))),
    "kept, for each batch": (masked, lambda: (*four(), some(2, 1, 1, 6))),
    "kept, transposed mask": (masked, lambda: (*four(), some(6, 6).logical_or(torch.eye(6).bool()).t())),
    "nothing kept in a row": (masked, lambda: (*four(), blank(2, 1, 6, 6))),
    "nothing kept in a row, bfloat16": (masked, lambda: (*four(torch.bfloat16), blank(6, 6))),
    "kept, three dimensions": (masked, lambda: (*(randn(3, 6, 8) for _ in range(3)), some(3, 1, 6))),
    "kept before the scale": (where, lambda: (*four(), some(6, 6))),
    "added": (added, lambda: (*four(), randn(4, 6, 6))),
    "added, bfloat16": (added, lambda: (*four(torch.bfloat16), randn(6, 6, dtype=torch.bfloat16))),
    "two added": (added, lambda: (*four(), randn(4, 6, 6), as_added(some(2, 1, 1, 6)))),
    "added, nothing kept in a row": (added, lambda: (*four(), as_added(blank(6, 6)))),
    "a window": (window, four),
    "dropout in evaluation": (dropped, four),
    "repeated heads": (grouped, lambda: (randn(2, 4, 6, 8), randn(2, 2, 6, 8), randn(2, 2, 6, 8))),
    "a view of the result": (flat, four),
    "keys by columns": (turned, lambda: (randn(2, 4, 6, 8), randn(2, 4, 8, 6), randn(2, 4, 6, 8))),
    "turned inputs": (scaled, lambda: tuple(randn(2, 6, 4, 8).transpose(1, 2) for _ in range(3))),
    "values of no number": (scaled, lambda: (*four()[:2], torch.full((2, 4, 6, 8), math.nan))),
}


def error(result: torch.Tensor, reference: torch.Tensor) -> float:
    return float((result.double() - reference).abs().nan_to_num().max())


DYNAMIC = (
    "plain",
    "matrices",
    "three dimensions",
    "einsum",
    "heads side by side, causal",
    "added",
    "a view of the result",
)


@pytest.mark.parametrize(("name", "dynamic"), [*((name, False) for name in CASES), *((name, True) for name in DYNAMIC)])
def test_recognised(name: str, dynamic: bool, found: list[Attention]) -> None:
    function, make = CASES[name]
    torch.manual_seed(0)
    args = make()
    with torch.no_grad():
        expected = function(*args)
        actual = dynajit.compile(function, dynamic=dynamic, fullgraph=True)(*args)
        double = function(*(x.double() if x.is_floating_point() else x for x in args))
    assert found or dynamic
    loose = 2e-2 if expected.dtype in (torch.bfloat16, torch.float16) else 1e-5
    torch.testing.assert_close(actual, expected, equal_nan=True, rtol=loose, atol=loose)
    assert actual.stride() == expected.stride()
    assert torch.equal(actual.isnan(), expected.isnan())
    if expected.dtype is not torch.float64 and function is not wide_softmax:
        # the library's products round otherwise on other processors: by a few units in the last place of the largest
        noise = 4 * torch.finfo(torch.float32).eps * float(double.abs().nan_to_num().max())
        assert error(actual, double) <= error(expected, double) * 1.1 + max(noise, 1e-6)


NUMBERS = [name for name, (_, make) in CASES.items() if make()[0].dtype is torch.float32]


@pytest.mark.parametrize("name", NUMBERS)
def test_where_the_function_turns_gradients_off(name: str) -> None:
    """Such a graph goes through AOTAutograd if its inputs have gradients, and masks are looked into as elsewhere."""
    function, make = CASES[name]

    def off(*args: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return function(*args)

    torch.manual_seed(0)
    q, *rest = make()
    args = (q.requires_grad_(), *rest)
    torch.testing.assert_close(dynajit.compile(off, fullgraph=True)(*args), off(*args), equal_nan=True)


def test_symbols_are_recognised(found: list[Attention]) -> None:
    compiled = dynajit.compile(masked, dynamic=True)
    with torch.no_grad():
        for rows in (6, 7, 9):
            q, k, v = (randn(2, 4, rows, 8) for _ in range(3))
            keep = some(rows, rows)
            torch.testing.assert_close(compiled(q, k, v, keep), masked(q, k, v, keep))
    assert len(found) == 1


def weights_too(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    weights = torch.softmax(q @ k.mT, -1)
    return weights @ v, weights


def scores_too(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scores = q @ k.mT
    return torch.softmax(scores, -1) @ v, scores.amax(-1)


def other_dim(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT, -2) @ v


def mixed_up(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax((q @ k.mT).transpose(0, 1), -1).transpose(1, 2) @ v


def turned_scores(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax((q @ k.mT).mT, -1) @ v


def finite_fill(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax((q @ k.mT).masked_fill(torch.zeros(6, 6, dtype=torch.bool), -1e9), -1) @ v


def added_then_scaled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax((q @ k.mT + v[0, 0, :, :6]) * 0.5, -1) @ v


def negative_scale(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax((q @ k.mT).masked_fill(~causal(6), INF) * -0.5, -1) @ v


def scaled_weights(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (torch.softmax(q @ k.mT, -1) * 0.5) @ v


def drawn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.dropout(torch.softmax(q @ k.mT, -1), 0.5) @ v


def in_double(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax((q @ k.mT).double(), -1).float() @ v


def squared(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.mT
    return torch.softmax(scores + scores, -1) @ v


STAYS: list[Callable[..., Any]] = [
    *(weights_too, scores_too, other_dim, mixed_up, turned_scores, finite_fill, added_then_scaled, negative_scale),
    *(scaled_weights, drawn, in_double, squared),
]


@pytest.mark.parametrize("function", STAYS, ids=lambda function: function.__name__)
def test_stays(function: Callable[..., Any], found: list[Attention]) -> None:
    args = tuple(randn(6, 6, 6, 6) for _ in range(3))
    with torch.no_grad():
        torch.manual_seed(1)
        actual = dynajit.compile(function, fullgraph=True)(*args)
        torch.manual_seed(1)
        expected = function(*args)
    torch.testing.assert_close(actual, expected, equal_nan=True, rtol=1e-5, atol=1e-5)
    assert not found


def test_training_stays(found: list[Attention]) -> None:
    args = tuple(x.requires_grad_() for x in four())
    result = dynajit.compile(scaled)(*args)
    result.sum().backward()
    assert not found
    assert args[0].grad is not None


def test_what_a_causal_mask_hides_still_spoils(found: list[Attention]) -> None:
    """Zero times infinity is NaN: the rows before an infinite value have it in eager."""

    def hides(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax((q @ k.mT).masked_fill(~causal(6), -INF), -1) @ v

    q, k, v = four()
    v[0, 0, 5, 2] = INF
    v[1, 1, 3, 3] = math.nan
    with torch.no_grad():
        actual, expected = dynajit.compile(hides)(q, k, v), hides(q, k, v)
    assert found
    assert torch.equal(actual.isfinite(), expected.isfinite())


def test_autocast_is_in_the_graph(found: list[Attention]) -> None:
    args = four()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        actual, expected = dynajit.compile(scaled)(*args), scaled(*args)
    assert found
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)


def test_without_a_fused_kernel_it_stays() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    args = four()
    with torch.no_grad(), sdpa_kernel([SDPBackend.MATH]):
        torch.testing.assert_close(dynajit.compile(scaled)(*args), scaled(*args))


def test_where_it_pays() -> None:
    def one(rows: int, keys: int, dtype: torch.dtype, device: str) -> Attention:
        graph = torch.fx.Graph()
        node = graph.placeholder("query")
        node.meta["val"] = torch.empty(8, rows, 64, dtype=dtype, device="meta")
        node.meta["val"] = _On(node.meta["val"], device)
        shape = (1, 8, rows, 64)
        return Attention(node, node, node, [shape] * 3, (1, 8, rows, keys), 1.0, [], node)

    assert attention.pays(one(512, 512, torch.float32, "cpu"))
    assert not attention.pays(one(64, 64, torch.float32, "cpu"))
    assert attention.pays(one(64, 64, torch.bfloat16, "cpu"))
    assert not attention.pays(one(16, 16, torch.bfloat16, "cpu"))
    assert attention.pays(one(1024, 1024, torch.bfloat16, "cuda"))
    assert not attention.pays(one(1024, 1024, torch.float32, "cuda"))
    assert not attention.pays(one(1, 1024, torch.bfloat16, "cuda"))


class _On:
    """A tensor's dtype, as if on that device."""

    def __init__(self, tensor: torch.Tensor, device: str) -> None:
        self.dtype = tensor.dtype
        self.device = torch.device(device)
