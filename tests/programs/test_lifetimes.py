"""Objects live as long as the program's variables keep them, also across breaks; tracebacks show one frame."""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from cases import outside, same

import dynajit
from dynajit.testing import assert_same


class Thing:
    pass


def test_an_object_dies_when_its_last_variable_is_deleted() -> None:
    def program(x: Any) -> list[bool]:
        thing = Thing()
        seen = weakref.ref(thing)
        y = x + 1
        alive = [seen() is not None]
        dynajit.graph_break()
        alive.append(seen() is not None)
        thing = None
        dynajit.graph_break()
        alive.append(seen() is not None)
        y * 2
        return alive

    compiled = dynajit.compile(program, backend="eager")
    assert program(torch.ones(1)) == [True, True, False]
    gc.disable()  # what a capture leaves behind must not wait for the collector
    try:
        for _ in range(2):
            assert compiled(torch.ones(1)) == [True, True, False]
    finally:
        gc.enable()


class Telling:
    """Tells when it dies."""

    def __init__(self, told: list[str]) -> None:
        self.told = told

    def __del__(self) -> None:
        self.told.append("died")


@pytest.mark.parametrize("holder", [lambda: torch.empty(2), Thing])
def test_what_an_object_has_as_an_attribute_dies_with_it(holder: Any) -> None:
    def program(x: torch.Tensor) -> Any:
        told: list[str] = []
        held = holder()
        held.mark = Telling(told)
        dynajit.graph_break()
        before = len(told)
        y = x + held.mark.told.__len__()
        del held
        return before, len(told), y + len(told)

    assert_same(program, torch.ones(2))


def test_an_error_behind_breaks_shows_one_frame() -> None:
    def program(x: Any) -> Any:
        y = x + 1
        dynajit.graph_break()
        y = y * 2
        dynajit.graph_break()
        raise ValueError("at the end")

    for _ in range(2):
        try:
            dynajit.compile(program, backend="eager")(torch.ones(1))
        except ValueError as error:
            assert [frame.name for frame in traceback.extract_tb(error.__traceback__)][1:] == ["program"]


def test_long_loops_without_tensors_are_run_not_traced() -> None:
    def program(x: Any, count: int) -> Any:
        total = 0
        for number in range(count):
            total += number
        return x + total

    compiled = dynajit.compile(program, backend="eager")
    dynajit.counters.clear()
    assert compiled(torch.ones(1), 10**6).item() == program(torch.ones(1), 10**6).item()
    assert dynajit.counters["graph_breaks"]["trace-too-long"] >= 1


def test_what_a_loop_leaves_behind_dies_with_the_function() -> None:
    """The cell that keeps it for the loop's next round is held by nothing of the capture."""
    ended: list[int] = []

    def talks(number: int) -> Any:
        try:
            yield number
        finally:
            ended.append(number)

    def program(x: Any, items: list[Any]) -> Any:
        for number in range(2):
            talk = talks(number)
            next(talk)
            dynajit.graph_break()
            for _ in items:
                x = x + 1
        return x

    gc.disable()
    try:
        for call in (program, dynajit.compile(program, backend="eager")):
            ended.clear()
            call(torch.ones(1), [None])
            assert ended == [0, 1]
    finally:
        gc.enable()


def _told(number: int) -> Any:
    try:
        yield number
    finally:
        print("ends", number)


def _delegates(number: int) -> Any:
    yield from _told(number)
    yield from _told(number * 2)


def _holds(number: int) -> Any:
    held = [_told(number)]
    next(held[0])
    yield number
    yield held


@pytest.mark.parametrize("talks", [_told, _delegates, _holds])
@pytest.mark.parametrize("twice", [False, True])
def test_what_a_loop_leaves_behind_waits_for_the_function_s_end(
    talks: Any, twice: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A generator that the last round began, in which another one is held or waited for, is not let go of before."""

    def once_each(x: torch.Tensor) -> torch.Tensor:
        for number in range(3):
            talk = talks(number)
            next(talk)
        print("behind")
        return x.sin()

    def twice_each(x: torch.Tensor) -> torch.Tensor:
        for number in range(3):
            talk = talks(number)
            next(talk)
            next(talk, None)
        print("behind")
        return x.sin()

    program = twice_each if twice else once_each
    compiled = dynajit.compile(program, backend="eager")
    outputs = []
    for call in (program, compiled, compiled):
        call(torch.ones(1))
        print("returned")
        outputs.append(capsys.readouterr().out)
    assert outputs[1:] == outputs[:1] * 2


def test_a_captured_argument_has_no_weak_references_left() -> None:
    x, y = torch.randn(3), torch.randn(3)
    dynajit.compile(lambda x, y: x * y, backend="eager")(x, y)
    assert weakref.getweakrefs(x) == weakref.getweakrefs(y) == []


def test_tensors_are_swapped_as_in_eager_mode() -> None:
    def swapped(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = x * 2, x * 3
        torch.utils.swap_tensors(a, b)
        return a + 1, b

    def arguments(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch.utils.swap_tensors(x, y)
        return x - y

    assert_same(swapped, torch.randn(3), graphs=2, breaks=1)
    assert_same(arguments, torch.randn(3), torch.randn(3), breaks=1)


def _finalized(told: list[str]) -> Any:
    thing = Thing()
    thing.me = weakref.proxy(thing)  # type: ignore[attr-defined]
    weakref.finalize(thing, told.append, "died")
    return thing


class Holder:
    """Holds the last reference in each way."""

    def __init__(self, make: Any, told: list[str], key: str) -> None:
        setattr(self, key, [make(told)] if key == "items" else {"a": make(told)} if key == "named" else make(told))


def _popped(held: Any) -> None:
    held.items.pop()


def _cut(held: Any) -> None:
    held.items[:] = []


def _taken(held: Any) -> None:
    del held.items[0]


def _item_written(held: Any) -> None:
    held.items[0] = None


def _popped_by_name(held: Any) -> None:
    held.named.pop("a")


def _deleted_by_name(held: Any) -> None:
    del held.named["a"]


def _written_by_name(held: Any) -> None:
    held.named["a"] = None


def _deleted(held: Any) -> None:
    del held.part


def _overwritten(held: Any) -> None:
    held.part = None


DROPS = {
    "items": (_popped, _cut, _taken, _item_written, lambda held: held.items.clear()),
    "named": (_popped_by_name, _deleted_by_name, _written_by_name, lambda held: held.named.clear()),
    "part": (_deleted, _overwritten),
}


@pytest.mark.parametrize("make", [Telling, _finalized])
@pytest.mark.parametrize("key, drop", [(key, drop) for key, drops in DROPS.items() for drop in drops])
def test_what_a_container_lets_go_of_dies_before_what_follows(key: str, drop: Any, make: Any) -> None:
    def program(held: Any, told: list[str], x: torch.Tensor) -> Any:
        drop(held)
        return len(told), x + 1

    compiled = dynajit.compile(program, backend="eager")
    for call in (program, compiled, compiled):
        told: list[str] = []
        assert call(Holder(make, told, key), told, torch.ones(1))[0] == 1


def test_a_bound_method_stays_itself() -> None:
    class Owner:
        def method(self) -> None:
            pass

    def program() -> Any:
        bound = Owner().method
        reference = weakref.ref(bound)
        alive = reference() is bound
        outside(bound)
        again = reference()
        kept = again is bound
        del bound, again
        outside()
        return alive, kept, reference() is None

    assert same(program) == (True, True, True)


def test_objects_in_a_container_die_with_it() -> None:
    class Counted:
        count = 0

        def __init__(self) -> None:
            type(self).count += 1

        def __del__(self) -> None:
            type(self).count -= 1

    def program() -> Any:
        several = [Counted(), Counted()]
        before = Counted.count
        outside()
        del several
        return before, Counted.count

    assert same(program) == (2, 0)


def a_generator(x: torch.Tensor) -> Iterator[Any]:
    yield x
    yield x + 1


MAKERS: list[Callable[..., Any]] = [
    lambda told, x: Telling(told),
    lambda told, x: [Telling(told)],
    lambda told, x: a_generator(x),
]


@pytest.mark.parametrize("make", MAKERS)
def test_an_argument_that_a_closure_holds_lives_on(make: Any) -> None:
    def program(x: torch.Tensor, held: Any) -> Any:
        def later() -> Any:
            return held

        return x + 1, later

    compiled, x = dynajit.compile(program, backend="eager"), torch.ones(2)
    for _ in range(3):
        told: list[str] = []
        held = make(told, x)
        if isinstance(held, Iterator):
            next(held)
        y, later = compiled(x, held)
        assert torch.equal(y, x + 1) and later() is held and told == []
