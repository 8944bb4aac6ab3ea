"""Which exception is being handled: in generators, and in who runs them, each sees its own and its callers'."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import assert_same, compare


def _name(error: BaseException | None) -> str | None:
    return None if error is None else type(error).__name__


def run_in_handlers(x: torch.Tensor) -> Any:
    seen: list[Any] = []

    def parts() -> Iterator[Any]:
        seen.append(_name(sys.exception()))
        yield x + 1
        try:
            raise TypeError
        except TypeError as error:
            seen.append((_name(sys.exception()), _name(error.__context__)))
        seen.append(_name(sys.exception()))
        yield x + 2
        seen.append(_name(sys.exception()))
        yield x + 3

    made = parts()
    found = [next(made)]
    try:
        raise ValueError
    except ValueError:
        found.append(next(made))
    found.append(next(made))
    return found, seen, _name(sys.exception())


def suspended_in_a_handler(x: torch.Tensor) -> Any:
    def parts() -> Iterator[Any]:
        try:
            raise KeyError("in the generator")
        except KeyError:
            yield x + 1
            try:
                raise
            except KeyError as error:
                yield _name(error.__context__)

    made = parts()
    found = [next(made)]
    try:
        raise ValueError
    except ValueError as error:
        found.append(_name(error.__context__))
        found.append(next(made))
    try:
        raise IndexError
    except IndexError as error:
        found.append(_name(error.__context__))
    return found


def nothing_to_raise_again(x: torch.Tensor) -> Any:
    def parts() -> Iterator[Any]:
        try:
            raise KeyError
        except KeyError:
            yield x

    made = parts()
    next(made)
    raise


def raised_behind_the_end(x: torch.Tensor) -> Any:
    def parts() -> Iterator[Any]:
        yield x
        raise TypeError("last")

    made = parts()
    next(made)
    try:
        raise ValueError
    except ValueError:
        try:
            next(made)
        except TypeError as error:
            return _name(error.__context__), x + 1
    return None


def thrown_where_it_handles(x: torch.Tensor) -> Any:
    def parts() -> Iterator[Any]:
        try:
            raise KeyError("a")
        except KeyError:
            yield x

    made = parts()
    found = next(made) + 1
    dynajit.graph_break()
    try:
        made.throw(ValueError)
    except ValueError as error:
        return _name(error.__context__), found
    return None


def knows_itself(x: torch.Tensor) -> Any:
    def parts() -> Iterator[Any]:
        own = yield x + 1
        yield own is made

    made = parts()
    first = next(made)
    second = made.send(made)
    dynajit.graph_break()
    return first, second, next(made, "end")


def named_as_its_function(x: torch.Tensor) -> Any:
    def parts() -> Iterator[Any]:
        yield x

    before = parts()
    parts.__name__, parts.__qualname__ = "other", "the.other"
    after = parts()
    dynajit.graph_break()
    return [(each.__name__, each.__qualname__) for each in (before, after)], next(after) + 1


def value_of_stop_iteration(x: torch.Tensor) -> Any:
    def parts() -> Any:
        yield x
        return StopIteration(2)

    made = parts()
    next(made)
    try:
        next(made)
    except StopIteration as end:
        error = end
        dynajit.graph_break()
        return error.value.value, x + 1
    return None


def _outcome(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return fn(*args)
    except Exception as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize(
    "program",
    [
        *(run_in_handlers, suspended_in_a_handler, nothing_to_raise_again, raised_behind_the_end),
        *(thrown_where_it_handles, knows_itself, named_as_its_function, value_of_stop_iteration),
    ],
)
def test_like_eager(program: Callable[..., Any]) -> None:
    x = torch.ones(2)
    compiled = dynajit.compile(program, backend="eager")
    for _ in range(2):
        compare(_outcome(compiled, x), _outcome(program, x))


def _stopped(made: Iterator[Any]) -> str:
    try:
        made.throw(StopIteration("thrown"))  # type: ignore[attr-defined]
    except (RuntimeError, StopIteration) as error:
        return f"{error!r} from {error.__cause__!r}"
    return "went on"


@pytest.mark.parametrize("breaks", [0, 1])
@pytest.mark.parametrize("begun", ["not", "once", "over"])
def test_a_stop_iteration_is_thrown_into_a_generator(begun: str, breaks: int) -> None:
    """What has not begun hands it on as it is in some releases of Python, and as a RuntimeError in others."""

    def program(x: torch.Tensor) -> Any:
        made = (part * 2 for part in (x,))
        if begun != "not":
            next(made)
        if begun == "over":
            list(made)
        if breaks:
            dynajit.graph_break()
        return _stopped(made), x + 1

    assert_same(program, torch.ones(2), graphs=1, breaks=2 if breaks and begun == "over" else breaks)
