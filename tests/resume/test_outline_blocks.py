"""Breaks in with and try blocks and in handlers: one graph at each side; real exceptions, contexts entered once."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from dynajit.testing import assert_same

x = torch.linspace(-1.0, 2.0, 6)


class Noted:
    def __init__(self, log: list[str], swallow: bool = False) -> None:
        self.log, self.swallow = log, swallow

    def __enter__(self) -> Noted:
        self.log.append("enter")
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self.log.append(f"exit {kind and kind.__name__} {error} {trace is not None}")
        return self.swallow


@contextlib.contextmanager
def managed(log: list[str]) -> Iterator[int]:
    log.append("enter")
    try:
        yield 3
    except ValueError as error:
        log.append(f"caught {error}")
        raise
    finally:
        log.append("exit")


def in_with(x: Tensor, log: list[str]) -> Any:
    x = x * 2
    with Noted(log) as noted:
        x = x + 1
        print("in", noted.log)
        x = x.sin()
    return x.cos()


def in_no_grad(x: Tensor, log: list[str]) -> Any:
    with torch.no_grad():
        x = x + 1
        print("in", torch.is_grad_enabled())
        x = x.sin()
    return x.cos()


def in_try(x: Tensor, log: list[str]) -> Any:
    try:
        x = x + 1
        print("in")
        x = x.sin()
    except ValueError:
        x = x - 1
    else:
        x = x * 2
    finally:
        x = x * 3
    return x.cos()


@pytest.mark.parametrize("fn", [in_with, in_no_grad, in_try])
def test_two_graphs(fn: Callable[..., Any]) -> None:
    assert_same(fn, x, [], repeat=1, graphs=2, breaks=1, recompiles=0)


def raises_inside(x: Tensor, log: list[str]) -> Any:
    with Noted(log, swallow=True):
        x = x + 1
        print("in")
        raise ValueError("inside")
    return x * 2, log


def raises_through(x: Tensor, log: list[str]) -> Any:
    with Noted(log), managed(log):
        x = x + 1
        print("in")
        raise ValueError(f"through {len(log)}")


def returns_inside(x: Tensor, log: list[str]) -> Any:
    with Noted(log):
        try:
            print("in")
            return x + 1
        finally:
            print("finally")
            log.append("finally")


def the_call_raises(x: Tensor, log: list[str]) -> Any:
    try:
        y = x + 1
        int("nothing")
        y = y * 2
    except ValueError as error:
        print("caught", error)
        return y.sin(), str(error)


def handler_breaks(x: Tensor, log: list[str]) -> Any:
    try:
        x = x + 1
        raise KeyError("key")
    except KeyError as error:
        print("handled", sys.exc_info()[0], error)
        x = x * 2
    print("none", sys.exc_info()[0])
    return x.cos()


def shows_the_traceback(x: Tensor, log: list[str]) -> Any:
    try:
        x = x + 1
        raise ValueError("v")
    except ValueError:
        text = traceback.format_exc()
    return x * 3, text.splitlines()[-1], len(text.splitlines()) > 2


def raises_again(x: Tensor, log: list[str]) -> Any:
    try:
        try:
            x = x + 1
            raise KeyError("key")
        except KeyError:
            print("again")
            raise
    except LookupError as error:
        return x * 2, repr(error), repr(error.__context__)


def raises_another(x: Tensor, log: list[str]) -> Any:
    try:
        try:
            raise KeyError("key")
        except KeyError as error:
            print("another")
            raise ValueError("value") from error
    except ValueError as error:
        print("outer", repr(error.__cause__), repr(error.__context__))
        return x * 2


def leaves_with_context(x: Tensor, log: list[str]) -> Any:
    try:
        x = x + 1
        raise KeyError("key")
    except KeyError:
        print("leaving")
        raise ValueError("value")  # noqa: B904


def bare_raise_in_a_callee(x: Tensor, log: list[str]) -> Any:
    def again() -> None:
        print("in the callee")
        raise

    try:
        try:
            raise KeyError("key")
        except KeyError:
            again()
    except KeyError as error:
        return x + 1, repr(error)


def suppressed(x: Tensor, log: list[str]) -> Any:
    with contextlib.suppress(ValueError), managed(log) as n:
        x = x * n
        print("in", n)
        raise ValueError("gone")
    return x, log


def a_callee_with_a_handler(x: Tensor, log: list[str]) -> Any:
    def inner(y: Tensor) -> Tensor:
        try:
            y = y + 1
            int("z")
        except TypeError:
            return y
        return y

    try:
        x = inner(x.sin())
    except ValueError as error:
        print("outside", error)
        x = x * 2
    return x


def stack_of_contexts(x: Tensor, log: list[str]) -> Any:
    with contextlib.ExitStack() as stack:
        stack.enter_context(Noted(log))
        x = x + stack.enter_context(managed(log))
        print("in", log)
        x = x.sin()
    return x, log


def unbound_in_the_handler(x: Tensor, log: list[str]) -> Any:
    try:
        print("first")
        raise ValueError
        late = x
    except ValueError:
        return late + 1


PROGRAMS = [
    raises_inside,
    raises_through,
    returns_inside,
    the_call_raises,
    handler_breaks,
    shows_the_traceback,
    raises_again,
    raises_another,
    leaves_with_context,
    bare_raise_in_a_callee,
    suppressed,
    a_callee_with_a_handler,
    stack_of_contexts,
    unbound_in_the_handler,
]


def around(x: Tensor, log: list[str], fn: Callable[..., Any]) -> Any:
    y = x.sin()
    result = fn(y, log)
    return result, y.cos()


@pytest.mark.parametrize("fn", PROGRAMS)
def test_like_eager(fn: Callable[..., Any]) -> None:
    assert_same(fn, x, [], repeat=1)
    assert_same(around, x, [], fn, repeat=1)


def test_context_of_an_exception_that_leaves() -> None:
    import dynajit

    with pytest.raises(ValueError) as raised:
        dynajit.compile(leaves_with_context, backend="eager")(x, [])
    assert isinstance(raised.value.__context__, KeyError)


class Speaking:
    """Each special method does something on both sides of a break."""

    def __init__(self, x: Tensor) -> None:
        self.a = x + 1
        print("init")
        self.b = x * 2

    @property
    def doubled(self) -> Tensor:
        a = self.a.sin()
        print("get")
        return a * 2

    @doubled.setter
    def doubled(self, value: Tensor) -> None:
        value = value * 2
        print("set")
        self.a = value + 1

    def __add__(self, other: Tensor) -> Tensor:
        total = self.a + other
        print("add")
        return total * 2

    def __getitem__(self, index: Any) -> Tensor:
        found = self.a[index]
        print("item")
        return found * 3

    def __setitem__(self, index: Any, value: Tensor) -> None:
        value = value + 1
        print("set item")
        self.a = self.a * value

    def __len__(self) -> int:
        self.b = self.b + 1
        print("len")
        return 3

    def __bool__(self) -> bool:
        self.b = self.b * 2
        print("bool")
        return True

    def __eq__(self, other: object) -> bool:
        self.b = self.b.sin()
        print("eq")
        return other is not None

    def __contains__(self, other: object) -> bool:
        self.b = self.b.cos()
        print("contains")
        return False

    def __iter__(self) -> Iterator[Tensor]:
        print("iter")
        return iter([self.a, self.b])


def speaking(x: Tensor, log: list[str]) -> Any:
    made = Speaking(x.cos())
    made.doubled = x
    y = made.doubled + (made + x)
    made[0] = x
    y = y + made[0] + len(made)
    if made and made == 1 and 3 not in made:
        y = y * 2
    for part in made:
        y = y + part
    return y, made.a, made.b


def test_special_methods() -> None:
    report = assert_same(speaking, x, [], repeat=1)
    assert report.graph_count > 5
