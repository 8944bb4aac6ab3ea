"""Containers from outside that a program only adds to: one variant fits them at every length."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.report import records
from dynajit.testing import CompileCounter

x = torch.arange(4.0)


def each(fn: Any, *argument_sets: Any) -> int:
    """Call eager and compiled with copies of each set; gives the number of compiled variants' graphs."""
    counter = CompileCounter()
    dynajit.reset()
    compiled = dynajit.compile(fn, backend=counter)
    for make in argument_sets:
        expected_args, args = make(), make()
        expected, found = fn(*expected_args), compiled(*args)
        assert repr(found) == repr(expected)
        assert repr(args) == repr(expected_args)
    return counter.frame_count


def lists(*lengths: int) -> list[Any]:
    return [lambda n=n: (x + n, list(range(n))) for n in lengths]


def test_append_does_not_look_at_the_length() -> None:
    def f(x: Any, out: list[Any]) -> Any:
        out.append(x + 1)
        out.extend((x * 2, "s"))
        out += [3]
        return out[-1], out[-3]

    assert each(f, *lists(0, 1, 5, 5000, 200_000)) == 1


def test_the_length_is_looked_at_after_appending() -> None:
    def f(x: Any, out: list[Any]) -> Any:
        out.append(x + 1)
        size = len(out)
        out.append(size)
        return x * size, out[0], list(reversed(out))[:2]

    assert each(f, *lists(0, 1, 2, 1)) == 3


def test_items_from_the_end_and_the_start() -> None:
    def f(x: Any, out: list[Any]) -> Any:
        y = x * out[-1] + out[0]
        out.append(y)
        return y, out[-1], out[1]

    each(f, *[lambda n=n: (x, [2.0] * n) for n in (1, 2, 7)])


def test_the_last_item_fits_every_length() -> None:
    def f(x: Any, out: list[Any]) -> Any:
        out.append(out[-1] * x + out[0])
        return out[-1]

    assert each(f, *[lambda n=n: (x, [x] * n) for n in (2, 3, 7)]) == 1


def test_an_index_out_of_range_raises() -> None:
    def f(x: Any, out: list[Any]) -> Any:
        out.append(x)
        try:
            return out[3] + 1
        except IndexError as error:
            return str(error)

    each(f, *lists(0, 1, 2, 3, 4, 2))


def test_aliased_lists_grow_together() -> None:
    def f(x: Any, a: list[Any], b: list[Any]) -> Any:
        a.append(x + 1)
        b.append(x + 2)
        return len(a), a is b

    def same() -> Any:
        one: list[Any] = []
        return x, one, one

    each(f, lambda: (x, [], []), same, lambda: (x, [1], []), same)


def test_a_list_that_is_read_after_an_exception() -> None:
    def f(x: Any, out: list[Any]) -> Any:
        try:
            out.append(x + 1)
            raise ValueError(len(out))
        except ValueError as error:
            out.append(str(error))
        return out[-1]

    each(f, *lists(0, 3))


def test_a_list_subclass_with_its_own_append() -> None:
    class Log(list):  # type: ignore[type-arg]
        def append(self, item: Any) -> None:
            super().append(("logged", item))

    def f(x: Any, log: Log) -> Any:
        log.append(x * 2)
        log.extend([1])
        return len(log)

    each(f, lambda: (x, Log()), lambda: (x, Log([1])))


@pytest.mark.parametrize("broken", [False, True])
def test_a_loop_that_fills_a_list(broken: bool) -> None:
    def f(x: Any, n: int) -> Any:
        outs, total = [], 0.0
        for _ in range(n):
            x = torch.sin(x) + 1
            if broken:
                print(end="")
            outs.append(x)
            if broken:
                total += x.sum().item()
        return torch.stack(outs), total

    assert each(f, lambda: (x, 50), lambda: (x, 50)) <= 4


def test_the_best_so_far() -> None:
    """A comparison of two floats that change is one relation."""

    class Fit:
        def __init__(self) -> None:
            self.history: list[float] = []
            self.best = 1e9
            self.steps = 0

        def __repr__(self) -> str:
            return f"{self.history} {self.best} {self.steps}"

        def run(self, x: Any) -> Any:
            for _ in range(40):
                x = x - 0.1 * x
                self.steps += 1
                loss = (x**2).sum().item()
                self.history.append(loss)
                if loss < self.best:
                    self.best = loss
            return x

    assert each(lambda x, fit: fit.run(x), lambda: (x, Fit())) <= 4


def test_deques_are_appended_to() -> None:
    def f(x: Any, seen: collections.deque[Any]) -> Any:
        seen.append(x + 1)
        seen.appendleft(x)
        return x * 2

    makers = [lambda n=n: (x, collections.deque(range(n))) for n in (0, 1, 2, 9, 5000)]
    assert each(f, *makers) == 1

    def bounded(x: Any, seen: collections.deque[Any]) -> Any:
        seen.extend([x + 1, 3])
        return x * 2

    makers = [lambda n=n: (x, collections.deque(range(n), 4)) for n in (0, 1, 2, 4)]
    assert each(bounded, *makers) == 1
    each(f, *makers)


def test_dictionaries_get_new_keys() -> None:
    def f(x: Any, found: dict[str, Any], key: str) -> Any:
        found["loss"] = x + 1
        found[key] = x * 2
        return found["loss"] * 2

    start = {f"k{n}": n for n in range(5)}
    makers = [lambda n=n: (x, dict(list(start.items())[:n]), "b") for n in range(5)]
    assert each(f, *makers) == 1
    each(f, *makers, lambda: (x, {"b": 1, "loss": 2}, "b"), lambda: (x, {"a": 1, "loss": 2}, "loss"))


def test_dictionaries_are_read_after_they_were_written() -> None:
    def f(x: Any, found: dict[Any, Any], key: Any) -> Any:
        found[key] = x + 1
        order = list(found)
        found.pop(order[0])
        return order, len(found), list(found.values())

    makers: list[Any] = [lambda: (x, {"a": 1, "b": 2}, "b"), lambda: (x, {"a": 1, "b": 2}, "c")]
    each(f, *makers, lambda: (x, {1: 0, 2: 3}, True), lambda: (x, {}, 1.0), lambda: (x, {1.0: 2}, 1))


def test_a_length_that_differs_is_a_number_that_varies() -> None:
    def f(x: Any, out: Any) -> Any:
        size = len(out)
        return x * size, size, -len(out), size > 3, [size]

    def added(x: Any, out: list[Any]) -> Any:
        out.append(len(out))
        return x * len(out), out[-1]

    def written(x: Any, out: dict[Any, Any]) -> Any:
        before = len(out)
        out["new"] = before
        return x * len(out), before

    assert each(f, *lists(2, 3)) == 2
    assert each(f, *lists(2, 3, 0, 1, 7, 5000)) == 2  # what is above three is told when it is asked for
    assert each(f, *[lambda n=n: (x, dict.fromkeys(range(n))) for n in (2, 3, 0, 1, 7, 50)]) == 2
    assert each(added, *lists(2, 3, 0, 1, 7, 5000)) == 2
    assert each(written, *[lambda n=n: (x, dict.fromkeys(range(n))) for n in (2, 3, 0, 1, 7, 50)]) == 2
    assert each(written, *[lambda n=n: (x, {**dict.fromkeys(range(n)), "new": 1}) for n in (2, 0, 7)]) == 2


def test_a_length_is_that_before_the_container_grew() -> None:
    def f(x: Any, out: list[Any]) -> Any:
        before = len(out)
        out.append(before)
        dynajit.graph_break()
        return before, len(out), x * before

    each(f, *lists(2, 3, 0, 1, 7))


@pytest.mark.parametrize("seen", [(0, 3), (3, 1), (1, 2)])
def test_truth_of_a_container_of_varying_length(seen: tuple[int, int]) -> None:
    def f(x: Any, out: Any) -> Any:
        return (x + 1 if out else x - 1), not out, len(out) == 2

    each(f, *lists(*seen, 2, 0, 1, 5))
    each(f, *[lambda n=n: (x, dict.fromkeys(range(n))) for n in (*seen, 2, 0, 1, 5)])


def test_a_list_where_a_dictionary_stood() -> None:
    """Its length is read of a list, though a dictionary's was a number that varies."""

    def count(x: Tensor, given: Any) -> Tensor:
        return x * len(given)

    compiled = dynajit.compile(count, fullgraph=True, backend="eager")
    seen: list[Any] = []
    with records.listen(seen.append):
        for given in ({"a": 1, "b": 2}, [1, 2, 3], {"a": 1}, [1, 2, 3, 4], {}, [1]):
            assert torch.equal(compiled(torch.ones(3), given), count(torch.ones(3), given))
    assert not any(record.skipped for record in seen)
