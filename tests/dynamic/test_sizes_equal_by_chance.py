"""Sizes drawn from few numbers, so that many are equal by chance: what was different in an earlier trace has symbols of
its own, and few variants fit all calls. Sizes that were equal in each trace share one."""

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import dynajit
from dynajit.report import records
from dynajit.testing import compare

CALLS = 24


def drawn(call: int, *shapes: str) -> list[Tensor]:
    """Tensors of the shapes, a letter for each size: equal letters are equal sizes."""
    draw = random.Random(call * 7 + 1)
    sizes = {letter: draw.randint(2, 5) for letter in "abcdefgh"}
    return [torch.ones([sizes[letter] for letter in shape]) for shape in shapes]


# name -> the program, the shapes, and how many captures it may cost
PROGRAMS: dict[str, tuple[Callable[..., Tensor], tuple[str, ...], int]] = {
    "added up": (lambda x, y: x.sum() + y.sum(), ("ab", "cd"), 3),
    "a product": (lambda x, y: x @ y, ("ab", "bc"), 3),
    "batches of products": (lambda x, y: (x @ y).relu() * 2, ("abc", "acd"), 3),
    "attention": (lambda q, k: F.scaled_dot_product_attention(q, k, k), ("abcd", "abed"), 3),
    "four of any shape": (lambda *xs: torch.cat([x.flatten() for x in xs]), ("ab", "cd", "ef", "gh"), 4),
    "an outer product": (lambda x, y, z: x[:, None] * y + z, ("a", "b", "ab"), 3),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_equal_sizes_are_no_variants(name: str, dynamic: bool | None) -> None:
    fn, shapes, most = PROGRAMS[name]
    compiled = dynajit.compile(fn, backend="eager", dynamic=dynamic)
    found = []
    for call in range(CALLS):
        made: list[records.CompileRecord] = []
        with records.listen(made.append):
            result = compiled(*drawn(call, *shapes))
        compare(fn(*drawn(call, *shapes)), result)
        found.append(len(made))
    assert sum(found) <= most and not any(found[8:]), found


def test_sizes_that_are_equal_in_each_trace_share_a_symbol() -> None:
    compiled = dynajit.compile(lambda x, y: (x.sum(), y.sum()), backend="eager")
    for size in (3, 4, 5):
        compiled(torch.ones(size), torch.ones(size))
    assert dynajit.counters()["recompiles"] == 1
    compiled(torch.ones(3), torch.ones(4))
    compiled(torch.ones(5), torch.ones(5))
    assert dynajit.counters()["recompiles"] == 2
