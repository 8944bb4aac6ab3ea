"""A break inside of a special method that a builtin function or an expression asks for: two graphs, eager's result."""

# mypy: ignore-errors
# (classes that a type checker is there to refuse)

from __future__ import annotations

import dataclasses
import math
import operator
import reprlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dynajit.testing import assert_same


class Asked:
    """Each special method computes, prints, computes, and gives `answer`."""

    def __init__(self, data: Tensor, answer: Any) -> None:
        self.__dict__.update(data=data, answer=answer)

    def _answer(self, what: str) -> Any:
        self.__dict__["data"] = self.data * 2
        print(what)
        self.__dict__["data"] = self.data + 1
        return self.answer

    def __len__(self) -> Any:
        return self._answer("len")

    def __hash__(self) -> Any:
        return self._answer("hash")

    def __str__(self) -> Any:
        return self._answer("str")

    def __repr__(self) -> Any:
        return self._answer("repr")

    def __format__(self, spec: str) -> Any:
        return self._answer("format " + spec)

    def __index__(self) -> Any:
        return self._answer("index")

    def __int__(self) -> Any:
        return self._answer("int")

    def __float__(self) -> Any:
        return self._answer("float")

    def __complex__(self) -> Any:
        return self._answer("complex")

    def __abs__(self) -> Any:
        return self._answer("abs")

    def __round__(self, digits: Any = None) -> Any:
        return self._answer(f"round {digits}")

    def __floor__(self) -> Any:
        return self._answer("floor")

    def __iter__(self) -> Any:
        return self._answer("iter")

    def __next__(self) -> Any:
        return self._answer("next")

    def __reversed__(self) -> Any:
        return self._answer("reversed")


class AskedTruth(Asked):
    def __bool__(self) -> Any:
        return self._answer("bool")


class Shown(Asked):
    __format__ = object.__format__


class ShownByRepr(Shown):
    __str__ = object.__str__


def text(value: Any) -> str:
    return f"{value}"


def text_with_spec(value: Any) -> str:
    return f"{value:>{3}}"


def text_of_repr(value: Any) -> str:
    return f"<{value!r}>"


def text_of_str(value: Any) -> str:
    return f"<{value!s:>4}>"


def item(value: Any) -> Any:
    return [10, 11, 12][value], (7, 8, 9)[value]


def set_item(value: Any) -> Any:
    items = [10, 11, 12]
    items[value] = 3
    del items[0]
    return items


def chosen(value: Any) -> Any:
    found = value or 5
    return found if isinstance(found, int) else "itself"


def both(value: Any) -> Any:
    found = value and 5
    return found if isinstance(found, int) else "itself"


def several(value: Any) -> Any:
    return "yes" if (value and len("ab") < 3) or not value else "no"


def negated(value: Any) -> Any:
    return not value


def chosen_value(value: Any) -> Any:
    return "yes" if value else "no"


FUNCTIONS: list[tuple[Callable[[Any], Any], list[Any]]] = [
    (len, [3, 0, True, -1, "three", 2**70]),
    (hash, [7, -1, 2**70, True, "seven"]),
    (bool, [3, 0, -1, None]),
    (str, ["abc", 3]),
    (repr, ["abc", None]),
    (format, ["abc", 3]),
    (text, ["abc", 3]),
    (text_with_spec, ["abc", None]),
    (text_of_repr, ["abc", 1]),
    (operator.index, [2, True, "two"]),
    (int, [2, "two", 2.5]),
    (float, [2.5, "two", 2]),
    (complex, [2.5j, "two"]),
    (abs, [2, "any"]),
    (round, [2, "any"]),
    (lambda value: round(value, 2), [2]),
    (math.floor, [2, "any"]),
    (iter, [5]),
    (next, [5]),
    (lambda value: next(value, 8), [5]),
    (reversed, [5]),
    (chosen, [3, 0, -1]),
    (both, [3, 0, "three"]),
    (negated, [3, 0, "three"]),
    (chosen_value, [3, 0, -1]),
]
ALL = [(fn, answer) for fn, answers in FUNCTIONS for answer in answers]


def _program(cls: type, fn: Callable[[Any], Any]) -> Callable[..., Any]:
    def program(x: Tensor, answer: Any) -> Any:
        asked = cls(x.sin(), answer)
        try:
            found = fn(asked)
        except Exception as error:
            found = type(error), str(error)
        return found, asked.data.cos()

    return program


def _name(value: Any) -> str:
    """A test's name for it, without its address."""
    return getattr(value, "__name__", None) or repr(value)


@pytest.mark.parametrize(("fn", "answer"), ALL, ids=_name)
def test_what_a_function_makes_of_an_answer(fn: Callable[[Any], Any], answer: Any) -> None:
    assert_same(_program(Asked, fn), torch.randn(3), answer)


@pytest.mark.parametrize(("fn", "answer"), [(fn, answers[0]) for fn, answers in FUNCTIONS if fn is not iter], ids=_name)
def test_both_halves_of_the_method_are_in_the_callers_graphs(fn: Callable[[Any], Any], answer: Any) -> None:
    def program(x: Tensor, answer: Any) -> Any:
        asked = Asked(x.sin(), answer)
        found = fn(asked)
        return found, asked.data.cos()

    assert_same(program, torch.randn(3), answer, graphs=2, breaks=1)


@pytest.mark.parametrize("fn", [bool, chosen, both, negated, chosen_value, several])
@pytest.mark.parametrize("answer", [True, False, 1, None])
def test_truth(fn: Callable[[Any], Any], answer: Any) -> None:
    assert_same(_program(AskedTruth, fn), torch.randn(3), answer)


@pytest.mark.parametrize("cls", [Shown, ShownByRepr])
@pytest.mark.parametrize("fn", [str, repr, format, text, text_with_spec, text_of_repr, text_of_str])
@pytest.mark.parametrize("answer", ["abc", 3])
def test_texts(cls: type, fn: Callable[[Any], Any], answer: Any) -> None:
    assert_same(_program(cls, fn), torch.randn(3), answer)


@pytest.mark.parametrize("fn", [item, set_item])
@pytest.mark.parametrize("answer", [1, -1, 7, True, "one"])
def test_an_index(fn: Callable[[Any], Any], answer: Any) -> None:
    assert_same(_program(Asked, fn), torch.randn(3), answer)


class Reading:
    """`__getattr__` and a property."""

    def __init__(self, data: Tensor) -> None:
        self.data = data

    def _work(self, what: str) -> Any:
        self.data = self.data * 2
        print(what)
        self.data = self.data + 1
        return self.data

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = self._work(name)
        if name == "missing":
            raise AttributeError("no such thing")
        if name == "wrong":
            raise KeyError(name)
        return found

    @property
    def action(self) -> Any:
        return self._work("action")

    @property
    def failing(self) -> Any:
        self._work("failing")
        raise AttributeError("not now")


class ReadingModule(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    @property
    def action(self) -> Any:
        found = self.weight * 2
        print("action")
        return found + 1

    @property
    def broken(self) -> Any:
        found = self.weight * 2
        print("broken")
        return found + self.absent

    def forward(self, x: Tensor, name: str) -> Any:
        try:
            return x.sin() * getattr(self, name)
        except AttributeError as error:
            return x.cos(), str(error), error.name, error.obj is self


READS: list[Callable[[Any, str], Any]] = [
    getattr,
    hasattr,
    lambda obj, name: getattr(obj, name, None),
    lambda obj, name: obj.other,
]


@pytest.mark.parametrize("read", READS, ids=["getattr", "hasattr", "default", "plain"])
@pytest.mark.parametrize("name", ["other", "action"])
def test_reading_an_attribute_is_one_break(read: Callable[[Any, str], Any], name: str) -> None:
    def program(x: Tensor, name: str) -> Any:
        obj = Reading(x.sin())
        found = read(obj, name)
        return found, obj.data.cos()

    assert_same(program, torch.randn(3), name, graphs=2, breaks=1)


@pytest.mark.parametrize("read", READS[:3], ids=["getattr", "hasattr", "default"])
@pytest.mark.parametrize("name", ["missing", "wrong", "failing", "_private"])
@pytest.mark.parametrize("caught", [False, True])
def test_reading_an_attribute_that_raises(read: Callable[[Any, str], Any], name: str, caught: bool) -> None:
    def program(x: Tensor, name: str) -> Any:
        obj = Reading(x.sin())
        if not caught:
            return read(obj, name), obj.data.cos()
        try:
            return read(obj, name), obj.data.cos()
        except Exception as error:
            return (
                type(error),
                str(error),
                getattr(error, "name", None),
                getattr(error, "obj", None) is obj,
                obj.data.cos(),
            )

    assert_same(program, torch.randn(3), name)


def test_a_property_of_a_module() -> None:
    assert_same(ReadingModule(), torch.randn(3), "action", graphs=2, breaks=1)
    assert_same(ReadingModule(), torch.randn(3), "broken")
    assert_same(ReadingModule(), torch.randn(3), "absent", breaks=0)


class Ring:
    """It is among what it prints, as a value and through a break."""

    def __init__(self) -> None:
        self.items: list[Any] = [self, 1]

    @reprlib.recursive_repr()
    def __repr__(self) -> str:
        return f"Ring({self.items!r})"


@dataclasses.dataclass
class Record:
    number: int
    parts: list[Any]


def test_objects_that_print_themselves() -> None:
    def program(ring: Ring, record: Record, x: Tensor) -> Any:
        y = x * 2
        return y, repr(ring), f"{record}", str([ring])

    record = Record(3, [])
    record.parts.append(record)
    assert_same(program, Ring(), record, torch.ones(3))
