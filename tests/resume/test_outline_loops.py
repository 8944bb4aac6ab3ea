"""Breaks in loops: the loop stays a loop, and its body is compiled once for all iterations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from resume_harness import skipped
from torch import Tensor, nn

import dynajit
from dynajit.testing import CompileCounter, assert_same

x = torch.linspace(-1.0, 2.0, 6)


def plain(x: Tensor) -> Any:
    x = x * 2
    for _ in range(4):
        x = x + 1
        print("body")
        x = x.sin()
    return x.cos()


def with_else(x: Tensor, n: int) -> Any:
    for i in range(n):
        x = x + 1
        print("at", i)
        if i == 2:
            break
        x = x * 2
    else:
        x = x * 100
    return x, n


def continues(x: Tensor, items: list[int]) -> Any:
    out = []
    for item in items:
        if item % 2:
            continue
        print("even", item)
        out.append(x * item)
    return out


def returns(x: Tensor, items: list[int]) -> Any:
    for item in items:
        print("at", item)
        x = x + 1
        if item > 2:
            return x.sin(), item
    return x


def loop_variable_afterwards(x: Tensor, items: list[int]) -> Any:
    for item in items:
        print("at", item)
        x = x + 1
    return x * item


def deleted_in_the_body(x: Tensor, items: list[int]) -> Any:
    found = x
    for item in items:
        if item == 3:
            del found
        print("at", item)
        x = x + 1
    return found + x


def iterator_goes_on_behind(x: Tensor, items: list[int]) -> Any:
    rest = iter(items)
    for item in rest:
        print("first", item)
        x = x + item
        if item == 2:
            break
    return x, list(rest)


def grows_what_it_iterates(x: Tensor, items: list[int]) -> Any:
    for item in items:
        print(item)
        if item < 4:
            items.append(item + 2)
        x = x + 1
    return x, items


def closures_in_the_body(x: Tensor, items: list[int]) -> Any:
    made, total = [], 0
    for item in items:
        made.append(lambda item=item: x * item + total)  # noqa: B023 - the last total is what is meant
        print("made", len(made))
        total += item
    return [fn() for fn in made]


def nonlocal_in_the_body(x: Tensor, items: list[int]) -> Any:
    count = 0

    def step(y: Tensor) -> Tensor:
        nonlocal count
        count += 1
        print("count", count)
        return y + 1

    for _ in items:
        x = step(x) * 2
    return x, count


def nested(x: Tensor, items: list[int]) -> Any:
    for i in items:
        for j in range(2):
            if j == 1 and i == 2:
                break
            print("inner", i, j)
            x = x + 1
        else:
            continue
        print("outer", i)
        x = x * 2
    return x


def in_try(x: Tensor, items: list[int]) -> Any:
    n = 0
    try:
        for item in items:
            x = x + 1
            n += item
            print("at", item)
            if item == 3:
                raise ValueError(item)
    except ValueError as error:
        return x * 2, n, item, repr(error)
    finally:
        print("finally", n)
    return x, n


def try_inside(x: Tensor, items: list[int]) -> Any:
    for item in items:
        try:
            print("try", item)
            x = x / 1 if [0, 0][item - 1] == 0 else x
        except IndexError:
            x = x + 1
            if item == 3:
                break
        finally:
            x = x * 2
    return x


def over_a_zip(x: Tensor, items: list[int]) -> Any:
    for i, (item, factor) in enumerate(zip(items, (2.0, 3.0, 4.0))):
        print(i, item)
        x = x * factor + item
    return x


def over_a_dict(x: Tensor, items: list[int]) -> Any:
    table = {str(item): x + item for item in items}
    for key, value in table.items():
        print(key)
        x = x + value
    return x


def over_a_tensor(x: Tensor, items: list[int]) -> Any:
    total = x.new_zeros(())
    for row in x.reshape(2, 3):
        print(row.shape)
        total = total + row.sum()
    return total


def over_a_map(x: Tensor, items: list[int]) -> Any:
    for value in map(torch.sin, [x, x + 1]):
        print("mapped")
        x = x + value
    return x


def counter(x: Tensor, items: list[int]) -> Any:
    n = 0
    while n < len(items):
        x = x + 1
        print("n", n)
        n += 1
    return x, n


def endless(x: Tensor, items: list[int]) -> Any:
    while True:
        x = x + 1
        print("again")
        items.pop()
        if not items:
            break
        x = x * 2
    return x


def until_a_tensor_says(x: Tensor, items: list[int]) -> Any:
    while x.sum() < 50:
        x = x * 2 + 1
    return x


def comprehension(x: Tensor, items: list[int]) -> Any:
    y = x + 1
    found = [(print("item", item), y * 2)[1] for item in items]
    return torch.stack(found).sum(), item_of(items)


def item_of(items: list[int]) -> int:
    return {item: print("value", item) or item for item in items if item}[items[0]]


def of_a_callee(x: Tensor, items: list[int]) -> Any:
    y = x.sin()
    return plain(y) + y


WITH_ITEMS = [
    continues,
    returns,
    loop_variable_afterwards,
    deleted_in_the_body,
    iterator_goes_on_behind,
    grows_what_it_iterates,
    closures_in_the_body,
    nonlocal_in_the_body,
    nested,
    in_try,
    try_inside,
    over_a_zip,
    over_a_dict,
    over_a_tensor,
    over_a_map,
    counter,
    endless,
    until_a_tensor_says,
    comprehension,
    of_a_callee,
]


@pytest.mark.parametrize("items", [[1, 2], [2, 3, 1], [4]], ids=str)
@pytest.mark.parametrize("fn", WITH_ITEMS)
def test_like_eager(fn: Callable[..., Any], items: list[int]) -> None:
    report = assert_same(fn, x, items, repeat=2)
    assert report.frames[0].skipped is None


@pytest.mark.parametrize("fn", [loop_variable_afterwards, in_try, iterator_goes_on_behind, counter])
def test_no_iteration(fn: Callable[..., Any]) -> None:
    assert_same(fn, x, [])


@pytest.mark.parametrize("n", [0, 2, 5])
def test_else(n: int) -> None:
    assert_same(with_else, x, n)


def test_body_is_compiled_once() -> None:
    report = assert_same(plain, x, graphs=4, recompiles=0)
    assert not skipped(report)


def test_a_thousand_iterations() -> None:
    def long(x: Tensor) -> Tensor:
        for _ in range(1000):
            x = x * 0.999
            dynajit.graph_break()
            x = x + 0.001
        return x.cos()

    counter = CompileCounter()
    torch.testing.assert_close(dynajit.compile(long, backend=counter)(x), long(x))
    assert counter.frame_count <= 4


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
            print("layer")
            x = x.relu()
        return x


def test_layers_share_the_body() -> None:
    # what comes in first needs no gradient, what follows does
    assert_same(Layers(), x, graphs=3, recompiles=1)


# --- generators


def pieces(x: Tensor, noisy: bool) -> Iterator[Tensor]:
    y = x * 2
    if noisy:
        print("first")
    try:
        got = yield y + 1
        print("got", got)
        yield y.sin()
    except ValueError as error:
        print("thrown", error)
        yield y * 3
    finally:
        print("closed")


def consumed(x: Tensor, noisy: bool) -> Any:
    for part in pieces(x + 1, noisy):
        x = x + part
        print("loop")
    return x * 2


def step_by_step(x: Tensor, noisy: bool) -> Any:
    made = pieces(x + 1, noisy)
    first = next(made).sin()
    print("between", made.__name__)
    return first + made.send(3), list(made)


def thrown_into(x: Tensor, noisy: bool) -> Any:
    made = pieces(x, noisy)
    first = next(made)
    print("between")
    second = made.throw(ValueError("v"))
    made.close()
    return first + second


def expression(x: Tensor, noisy: bool) -> Any:
    return sum((print("item", i), x * i)[1] for i in range(3)) + 1


@pytest.mark.parametrize("noisy", [True, False])
@pytest.mark.parametrize("fn", [consumed, step_by_step, thrown_into, expression])
def test_generators(fn: Callable[..., Any], noisy: bool) -> None:
    report = assert_same(fn, x, noisy, repeat=2)
    assert report.graph_count > (fn is not expression)


def test_a_loop_with_a_break_fits_lists_of_every_length() -> None:
    """Whether the first two items differ was asked of all of them: a variant for each length, and a fault for one that
    is too long to be read."""

    def printed(x: Tensor, items: list[int]) -> Tensor:
        x = x.sin()
        for item in items:
            print(item)
            x = x + 1
        return x.cos()

    lists = [list(range(count)) for count in range(3, 12)]
    x = torch.randn(3)
    assert_same(printed, x, [0, 1], then=[(x, each) for each in lists], graphs=3, recompiles=0)
    assert_same(printed, x, [*range(10_001)], repeat=1, graphs=3, recompiles=0)
    assert_same(printed_letters, x, "ab", then=[(x, "c" * count) for count in range(3, 12)], graphs=3, recompiles=0)


def printed_letters(x: Tensor, text: str) -> Tensor:
    x = x.sin()
    for letter in text:
        print(letter)
        x = x + 1
    return x.cos()


def counted(x: Tensor, count: int) -> Any:
    x = x.sin()
    for number in range(count):
        print(number)
        x = x + number
    return x.cos(), range(count)


def counted_by_length(x: Tensor, items: list[int]) -> Tensor:
    x = x.sin()
    for place in range(len(items)):
        print(place)
        x = x + place
    return x.cos()


def counted_twice(x: Tensor, count: int) -> Tensor:
    for number in range(1, count):
        for inner in range(number):
            print(number, inner)
            x = x + inner
        x = x * 2
    return x


@pytest.mark.parametrize("program", [counted, counted_by_length, counted_twice])
def test_a_loop_with_a_break_fits_ranges_of_every_length(program: Any) -> None:
    x = torch.randn(3)
    given = [[*range(count)] if program is counted_by_length else count for count in range(2, 14)]
    report = assert_same(
        program,
        x,
        given[0],
        repeat=1,
        then=[(x, each) for each in [*given, given[0][:0] if program is counted_by_length else 0]],
    )
    assert report.graph_count <= 4
    assert not any("count" in reason or "items" in reason for reason in report.recompile_reasons)


def test_a_range_is_read_where_the_program_depends_on_it() -> None:
    def read(x: Tensor, count: int) -> Any:
        numbers = range(count)
        iterator = iter(range(1, count))
        first = next(iterator, None)
        print(first)
        return x + len(numbers), numbers, numbers[-1:], list(numbers), list(iterator), {numbers: 1}, 2 in numbers

    x = torch.randn(3)
    assert_same(read, x, 4, then=[(x, count) for count in (3, 1, 0, 7)])


def test_the_length_of_a_list_is_what_it_was_when_it_was_asked_for() -> None:
    def grown(x: Tensor, items: list[int]) -> Any:
        before = len(items)
        items.append(before)
        print(before)
        items.append(before)
        return x * 2, before, len(items), items

    x = torch.randn(3)
    assert_same(grown, x, [1, 2], then=[(x, [1]), (x, [1, 2, 3, 4])])
