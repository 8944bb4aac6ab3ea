"""Programs whose graph ends late, when many variants have shown what varies: the parts behind that end know it at once,
and compile little. Called thirty times each, the same as eager at each call."""

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit
from dynajit.report import records
from dynajit.report.counters import counters
from tests.dynamic.test_ways_of_values import WORDS, captures_of, drawn

CALLS = 30
X = torch.linspace(-1, 1, 32).reshape(4, 8)


def lists_of(most: int, *places: int) -> Callable[[int], Any]:
    """Lists of up to so many numbers each."""

    def given(call: int) -> Any:
        return [[float(n) for n in range(1 + drawn(call + place).randrange(most))] for place in places]

    return given


def padded(x: Any, rows: list[list[float]]) -> Any:
    out = torch.zeros(len(rows), max(len(row) for row in rows))
    for place, row in enumerate(rows):
        out[place, : len(row)] = torch.tensor(row)
    return out.cumsum(1)


def returns(x: Any, rows: list[list[float]]) -> Any:
    out: list[float] = []
    total = 0.0
    for n in reversed(rows[0]):
        total = n + 0.9 * total
        out.insert(0, total)
    made = torch.tensor(out)
    return made - made.mean()


def two_deques(x: Any, rows: list[list[float]]) -> Any:
    first, second = map(collections.deque, rows)
    return x * sum(first) + sum(second), first, second


CELL = torch.nn.RNNCell(8, 8)


def recurrent(x: Any, steps: Any) -> Any:
    h = x.detach()
    for at in range(steps.shape[0]):
        h = CELL(steps[at], h)
    return h


def scaled_inside(x: Any, steps: Any) -> Any:
    doubled = steps * 2
    for at in range(doubled.shape[0]):
        x = x + doubled[at] * doubled.shape[0]
    return x, doubled.sum()


def steps_of(call: int) -> Any:
    return torch.linspace(0, 1, 32 * (2 + drawn(call).randrange(9))).reshape(-1, 4, 8)


def letters(x: Any, text: str) -> Any:
    return x * sum(letter in "aeiou" for letter in text)


@dataclasses.dataclass
class Progress:
    best: float = float("inf")
    wait: int = 0
    rate: float = 0.1
    steps: int = 0


def annealed() -> tuple[Callable[..., Any], Callable[[int], Any]]:
    """What the function itself changes: a rate that is read behind the decisions."""
    state = Progress()

    def step(x: Any, loss: float) -> Any:
        state.steps += 1
        if loss < state.best:
            state.best, state.wait = loss, 0
        else:
            state.wait += 1
            if state.wait > 2:
                state.rate *= 0.5
                state.wait = 0
        return x * state.rate, dataclasses.astuple(state)

    return step, lambda call: drawn(call).random()


def plain(fn: Callable[..., Any], given: Callable[[int], Any]) -> Callable[[], Any]:
    return lambda: (fn, given)


# name -> what makes the program and what it is given, and how many captures it may cost; of them how many behind the
# fifth call
PROGRAMS: dict[str, tuple[Callable[[], Any], int, int]] = {
    "rows padded": (plain(padded, lists_of(6, 0, 1, 2)), 16, 11),
    "returns": (plain(returns, lists_of(7, 0)), 17, 12),
    "two deques": (plain(two_deques, lists_of(9, 0, 40)), 13, 8),
    "steps of a cell": (plain(recurrent, steps_of), 10, 5),
    "steps of what was computed": (plain(scaled_inside, steps_of), 9, 5),
    "letters": (plain(letters, lambda call: WORDS[drawn(call).randrange(len(WORDS))]), 11, 7),
    "a state that is annealed": (annealed, 10, 5),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_parts_that_come_late_compile_little(name: str) -> None:
    make, most, late = PROGRAMS[name]
    (wanted, given), (fn, _) = make(), make()
    found = captures_of(dynajit.compile(fn, backend="eager"), wanted, given, X, CALLS)
    assert sum(found) <= most and sum(found[5:]) <= late, found
    assert not any(found[20:]) and not counters["recompile_limit"], found


def test_a_size_that_varies_is_handed_to_what_goes_on() -> None:
    """The part behind the break is made for any size where the graph before it was."""
    stops = [False]

    def cut(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        if stops[0]:
            dynajit.graph_break()
        return y.cos() + x

    compiled = dynajit.compile(cut, backend="eager")
    for size in (3, 4):
        assert torch.equal(compiled(torch.ones(size)), cut(torch.ones(size)))
    stops[0] = True
    for captures, size in ((2, 5), (0, 6), (0, 7)):
        made: list[records.CompileRecord] = []
        with records.listen(made.append):
            got = compiled(torch.ones(size))
        assert torch.equal(got, cut(torch.ones(size))) and len(made) == captures
