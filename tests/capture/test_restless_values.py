"""Numbers and texts that are other ones at each call: variants for some, then one for all the others."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit.testing import assert_same

x = torch.linspace(-1.0, 1.0, 8).reshape(2, 4)
TABLE = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]


def values_of(report: Any) -> set[str]:
    return {found.kind for found in report.break_reasons} - {"input-output"}


class Stack(nn.Module):
    def __init__(self, kind: type) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = kind(nn.Linear(4, 4) for _ in range(12))

    def forward(self, x: Tensor) -> Tensor:
        for i in range(len(self.layers)):
            x = self.layers[i](x)
            print("layer", i)
        return x


def test_layers_by_a_loops_counter_share_their_graphs() -> None:
    for kind in (nn.ModuleList, list):
        report = assert_same(Stack(kind), x)
        assert report.graph_count <= 4 and not values_of(report)


def test_dictionary_by_the_keys_of_a_loop() -> None:
    def summed(x: Tensor, table: dict[str, Tensor]) -> Tensor:
        for key in table:
            x = x + table[key]
            print(key)
        return x

    report = assert_same(summed, x, {f"key {i}": torch.ones(4) * i for i in range(12)})
    assert report.graph_count <= 4 and len(report.recompile_reasons) <= 4


def test_an_index_that_is_another_one_at_each_call() -> None:
    def looked_up(x: Tensor, i: int) -> tuple[Tensor, int]:
        y = x * 2
        found = TABLE[i]
        return y + 1, found

    report = assert_same(looked_up, x, 0, then=[(x, i) for i in range(1, 16)], repeat=1)
    assert len(report.recompile_reasons) <= 1 and not values_of(report)


def test_a_text_that_is_another_one_at_each_call() -> None:
    def measured(x: Tensor, name: str) -> Tensor:
        return x * 2 * len(name) + 1

    def told(x: Tensor, name: str) -> Tensor:
        return x * 2 * {"nn": 1}.get(name, 3) + 1

    report = assert_same(measured, x, "", then=[(x, "n" * i) for i in range(1, 16)], repeat=1)
    assert len(report.recompile_reasons) <= 1 and not values_of(report)
    report = assert_same(told, x, "", then=[(x, "n" * i) for i in range(1, 16)], repeat=1)
    assert len(report.recompile_reasons) <= 8 and values_of(report) == {"varying-value"}


def test_a_key_that_is_another_one_at_each_call() -> None:
    """Whatever the text is, the dictionary is guarded not to have it."""

    class Noted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.record: dict[str, Tensor] = {}

        def forward(self, x: Tensor, step: int) -> Tensor:
            self.record[f"step{step}"] = x.sum()
            return x * 2

    report = assert_same(Noted(), x, 0, then=[(x, i) for i in range(1, 16)], repeat=1, never_repeats="keeps all keys")
    assert len(report.recompile_reasons) <= 1 and not values_of(report)


def test_the_index_of_a_number_stays_symbolic() -> None:
    class Whole:
        def __init__(self, n: int) -> None:
            self.n = n

        def __index__(self) -> int:
            return self.n

    def counted(x: Tensor, n: int) -> Tensor:
        return x * operator.index(Whole(n)) + operator.index(n)

    assert_same(counted, x, 2, then=[(x, n) for n in range(3, 9)], repeat=1, breaks=0)


def test_functions_of_a_loop() -> None:
    functions = [eval(f"lambda x: x * {i} + 1") for i in range(12)]

    def applied(x: Tensor) -> Tensor:
        for function in functions:
            x = function(x)
            print("called")
        return x

    report = assert_same(applied, x)
    assert len(report.recompile_reasons) < 8 and values_of(report) == {"varying-value"}


QUESTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "is": lambda found, known: found is known,
    "is not": lambda found, known: known is not found,
    "==": lambda found, known: found == known,
    "!=": lambda found, known: known != found,
    "in": lambda found, known: found in (None, known),
    "index": lambda found, known: [known, found].index(found),
    "key": lambda found, known: {known: 1}.get(found),
    "of a set": lambda found, known: len({found, known}),
}
# what is found, and a function that gives the last of it, to which no variable leads
OBJECTS: dict[str, tuple[Sequence[Any], Callable[[], Any]]] = {
    "class": ((Tensor, str, float, bool, int), lambda: int),
    "function": ((abs, min, max, sum, len), lambda: len),
    "alias": ((list[bool], list[str], list[float], list[bytes], list[int]), lambda: list[int]),
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
@pytest.mark.parametrize("kind", OBJECTS)
def test_an_object_that_varies_is_not_taken_for_another_than_a_known_one(
    kind: str, question: Callable[[Any, Any], Any]
) -> None:
    objects, give = OBJECTS[kind]

    def asked(x: Tensor) -> list[Any]:
        answers = []
        for found in objects:
            answers.append(question(found, give()))
            print("asked")
        return [*answers, x + 1]

    assert_same(asked, x)


def test_numpy_numbers_without_symbols_are_compared_with_tensors() -> None:
    """Where another one came at each call, the graph ends: it is no object that a tensor is never equal to."""
    whole = torch.arange(4) + 2**40
    compiled = dynajit.compile(lambda x, n: (x == n, n != x, x < n), backend="eager")
    for call in range(10):
        n = numpy.int64(2**40 + call % 5 + call)
        for found, expected in zip(compiled(whole, n), (whole == n, n != whole, whole < n), strict=True):
            assert torch.equal(found, expected)
