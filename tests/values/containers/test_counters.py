"""`itertools.count` from outside: advanced by the graph's code, its numbers vary."""

import itertools
import types
from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import CompileCounter, compare


def once(x: torch.Tensor, c: Any) -> Any:
    return x + next(c)


def thrice(x: torch.Tensor, c: Any) -> Any:
    return x * next(c), next(c), c.__next__()


def zipped(x: torch.Tensor, c: Any) -> Any:
    return [row * n for n, row in zip(c, x, strict=False)]


def until_large(x: torch.Tensor, c: Any) -> Any:
    for n in c:
        x = x + 1
        if n % 5 == 4:
            break
    return x


def returned(x: torch.Tensor, c: Any) -> Any:
    next(c)
    return x + 1, iter(c) is c, type(c).__name__, isinstance(c, itertools.count)


def shown(x: torch.Tensor, c: Any) -> Any:
    next(c)
    return x + 1, repr(c)


def twice_held(x: torch.Tensor, c: Any) -> Any:
    held = types.SimpleNamespace(a=c, b=c)
    return x + next(held.a), next(held.b)


def given_up(x: torch.Tensor, c: Any) -> Any:
    try:
        next(c)
        raise KeyError(next(c))
    except KeyError as error:
        return x + 1, error.args


def broken_after(x: torch.Tensor, c: Any) -> Any:
    n = next(c)
    dynajit.graph_break()
    return x + n, next(c)


@pytest.mark.parametrize(
    "program", [once, thrice, zipped, until_large, returned, shown, twice_held, given_up, broken_after]
)
@pytest.mark.parametrize("start", [(), (3,), (2, 3), (-1, -2), (2**40, 2**35), (1.5,), (0, 0), (True,)], ids=str)
def test_counts_from_outside(program: Any, start: tuple[Any, ...]) -> None:
    if program is until_large and (start == (1.5,) or len(start) == 2):
        start = (7,)  # those never come to their end
    real, ours = itertools.count(*start), itertools.count(*start)
    compiled = dynajit.compile(program, backend="eager")
    x = torch.arange(3.0)
    for _ in range(4):
        compare(compiled(x, ours), program(x, real))
        assert repr(ours) == repr(real)


def test_numbers_vary_without_new_graphs() -> None:
    counter = CompileCounter()
    compiled = dynajit.compile(once, backend=counter, fullgraph=True)
    c = itertools.count(5)
    for expected in range(5, 12):
        assert compiled(torch.zeros(()), c) == expected
    assert counter.frame_count == 2
    assert compiled(torch.zeros(()), itertools.count(3)) == 3
    assert counter.frame_count == 2


def test_another_kind_of_iterator() -> None:
    compiled = dynajit.compile(once, backend="eager")
    for c in (itertools.count(2), iter([7, 8]), itertools.count(4), itertools.cycle([9])):
        n = next(c)
        assert compiled(torch.zeros(()), c) == next(itertools.chain([{2: 3, 7: 8, 4: 5, 9: 9}[n]]))
