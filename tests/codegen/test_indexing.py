"""Ops that read where values say: against eager and the reference interpreter, with eager's errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import check, trace
from reference_interpreter import interpret
from well_formed import verify

import dynajit
from dynajit.loopir.lower_graph import lower
from dynajit.testing import assert_same

X = torch.randn(5, 9, 3, 4)
TABLE = torch.randn(50, 16)
TARGET = torch.tensor([3, -100, 8, 0, 2])

# function, arguments
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "embedding": (lambda w, i: F.embedding(i, w) * 2 + 1, (TABLE, torch.randint(50, (4, 7)))),
    "embedding of one": (lambda w, i: F.embedding(i, w), (TABLE, torch.tensor(3))),
    "embedding of a transposed": (lambda w, i: F.embedding(i, w.t()) + 1, (TABLE, torch.randint(16, (4, 7)))),
    "embedding in half": (lambda w, i: F.embedding(i, w) + 1, (TABLE.bfloat16(), torch.randint(50, (4, 7)))),
    "gather": (lambda x, i: x.gather(1, i) + 1, (X[:, :, 0, 0], torch.randint(9, (4, 20)))),
    "gather, other dimension": (lambda x, i: x.gather(0, i), (X[0], torch.randint(9, (2, 3, 4)))),
    "index": (lambda x, i: x[i] * 2, (X, torch.randint(-5, 5, (4, 6)))),
    "index of 32 bits": (lambda x, i: x[i] * 2, (X, torch.randint(-5, 5, (4, 6), dtype=torch.int32))),
    "index apart": (lambda x, i, j: x[:, i, :, j], (X, torch.randint(-9, 9, (4, 1)), torch.randint(-4, 4, (6,)))),
    "index together": (lambda x, i, j: x[:, i, j], (X, torch.randint(-9, 9, (4, 1)), torch.randint(-3, 3, (6,)))),
    "index of a view": (lambda x, i: x.reshape(45, 12).t()[i], (X, torch.randint(-12, 12, (7,)))),
    "index of computed": (lambda x, i: (x * 2).exp()[:, i], (X, torch.randint(-9, 9, (7,)))),
    "index by computed": (lambda x, i: x[(i * 2) % 5], (X, torch.randint(9, (7,)))),
    "index, then a sum": (lambda x, i: x[i].sum(0), (X, torch.randint(-5, 5, (40,)))),
    "index of truth": (lambda x, i: (x > 0)[i], (X, torch.randint(-5, 5, (40,)))),
    "index_select": (lambda x, i: x.index_select(1, i) + 1, (X, torch.randint(9, (40,)))),
    "in a concatenation": (lambda x, i: torch.cat([x[i], x], 0), (X, torch.randint(5, (3,)))),
    "nll_loss": (lambda x, t: F.nll_loss(x, t), (X[:, :, 0, 0], TARGET)),
    "nll_loss, sum": (lambda x, t: F.nll_loss(x, t, reduction="sum"), (X[:, :, 0, 0], TARGET)),
    "nll_loss, each": (lambda x, t: F.nll_loss(x, t, reduction="none"), (X[:, :, 0, 0], TARGET)),
    "nll_loss of one": (lambda x, t: F.nll_loss(x, t), (X[0, :, 0, 0], TARGET[0])),
    "nll_loss, weighted": (lambda x, t, w: F.nll_loss(x, t, w), (X[:, :, 0, 0], TARGET, torch.rand(9))),
    "nll_loss of pictures": (lambda x, t: F.nll_loss(x, t), (X, torch.randint(9, (5, 3, 4)))),
    "cross entropy": (lambda x, t: F.cross_entropy(x, t), (X[:, :, 0, 0], TARGET)),
}


@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(name: str) -> None:
    function, args = CASES[name]
    check(function, *args, externs=0)


@pytest.mark.parametrize("name", CASES)
def test_reference_interpreter(name: str) -> None:
    function, args = CASES[name]
    program = lower(trace(function, *args), "test")
    verify(program)
    (actual,) = interpret(program, dict(zip(program.inputs, args, strict=True)))
    torch.testing.assert_close(actual, function(*args))


def test_embedding_and_sum_is_one_kernel() -> None:
    check(lambda w, i, y: F.embedding(i, w) + y, TABLE, torch.randint(50, (7,)), torch.randn(7, 16), kernels=1)


BAD: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "embedding": (lambda w, i: F.embedding(i, w) + 1, (TABLE, torch.tensor([1, 50]))),
    "embedding, negative": (lambda w, i: F.embedding(i, w) + 1, (TABLE, torch.tensor([1, -1]))),
    "index": (lambda x, i: x[i] + 1, (X, torch.tensor([4, 5]))),
    "index, negative": (lambda x, i: x[:, i] + 1, (X, torch.tensor([4, -10]))),
    "gather": (lambda x, i: x.gather(0, i) + 1, (X[0, 0, 0], torch.tensor([3, 4]))),
    "nll_loss": (lambda x, t: F.nll_loss(x, t) + 1, (X[:, :, 0, 0], TARGET + 1)),
}


@pytest.mark.parametrize("name", BAD)
def test_errors_are_eagers(name: str) -> None:
    function, args = BAD[name]
    with pytest.raises(Exception) as expected:
        function(*args)
    with pytest.raises(type(expected.value)) as found:
        dynajit.compile(function)(*args)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradient_of_cross_entropy(reduction: str, weighted: bool) -> None:
    weight = torch.rand(9) if weighted else None
    grads = []
    for wrap in (lambda f: f, dynajit.compile):
        x = X[:, :, 0, 0].clone().requires_grad_()
        wrap(lambda x, t: F.cross_entropy(x, t, weight, reduction=reduction))(x, TARGET).backward()
        grads.append(x.grad)
    torch.testing.assert_close(grads[1], grads[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.uint8], ids=str)
@pytest.mark.parametrize("shape", [(64, 1024), (70, 131), (333, 81), (8, 4000)], ids=str)
def test_what_lies_across_is_read_in_tiles(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, y = (torch.randn(shape) * 20).to(dtype), (torch.randn(shape[::-1]) * 20).to(dtype)
    plan = check(lambda x, y: x.t() + y, x, y, kernels=1)
    assert "turn_" in plan.source or dtype is torch.uint8


def test_a_tile_serves_the_axes_that_it_does_not_depend_on() -> None:
    """The weights of places, which lie across, are the same for a dimension between them."""
    x, w = torch.randn(2, 70, 6, 40), torch.randn(2, 1, 40, 70).permute(0, 3, 1, 2)
    plan = check(lambda x, w: x + w, x, w, kernels=1)
    body = plan.source[plan.source.index("turn_32((") :]
    assert plan.source.count("turn_32((") == 1 and "< 6; ++" in body


@pytest.mark.parametrize("shape", [(4, 6, 5), (3, 2, 5, 7)], ids=str)
def test_a_number_divided_by_sizes_and_put_together_again_is_itself(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    places = torch.randint(x[0].numel(), (shape[0], 50))
    plan = check(lambda x, i: x.flatten(1).gather(1, i) + 1, x, places, kernels=1)
    assert "% INT64_C" not in plan.source
    # not so where the axes lie otherwise
    check(lambda x, i: x.transpose(1, 2).flatten(1).gather(1, i) + 1, x, places)


@pytest.mark.parametrize("read", [
    lambda x, at: torch.nn.functional.cross_entropy(x, at),
    lambda x, at: torch.nn.functional.cross_entropy(torch.ones(4, 3), at),
    lambda x, at: torch.nn.functional.embedding(at, x[:1]),
    lambda x, at: x.gather(1, at[:, None]),
    lambda x, at: x[:1][at],
    lambda x, at: x.index_select(1, at),
])  # fmt: skip
def test_places_are_checked_where_all_elements_are_the_same(read) -> None:
    """There is one element, in a dimension of size one, or a constant: the place chooses nothing."""
    for places in ([0, 0, 0, 0], [0, 0, 0, 7], [0, -9, 0, 0]):
        assert_same(read, torch.randn(4, 1), torch.tensor(places), backend="codegen")
