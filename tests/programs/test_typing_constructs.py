"""Constructs of typing, classes' namespaces, modules of the program's own, comparisons of unlike containers."""

from __future__ import annotations

import inspect
import sys
import types
import typing
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.testing import assert_same

X = torch.ones(2)
UserId = typing.NewType("UserId", int)


class Point(typing.TypedDict):
    x: int


@typing.runtime_checkable
class Sized(typing.Protocol):
    size: int


class Box:
    def __init__(self) -> None:
        self.size = 1


class Kind(str):
    pass


class Plain:
    x = 1
    y = [1, 2]


def typed_dictionaries_are_dictionaries(x: Tensor) -> Any:
    made = Point(x=1)
    return x + made["x"], type(made).__name__


def no_instances_of_special_forms(x: Tensor) -> Any:
    found: list[Any] = []
    kinds: list[Any] = [typing.List, typing.Dict[str, int], typing.Any]  # noqa: UP006
    for kind in kinds:
        try:
            kind()
        except TypeError as error:
            found.append(str(error))
    return x + 1, found


def checks_that_raise(x: Tensor) -> Any:
    found = []
    for kind in (Point, typing.Any):
        try:
            isinstance({}, kind)  # type: ignore[arg-type]
        except TypeError as error:
            found.append(str(error))
    return x + 1, found, isinstance(Box(), Sized), isinstance(1, Sized)


def new_types(x: Tensor) -> Any:
    return x + UserId(3)


def metadata_is_kept_as_it_is(x: Tensor) -> Any:
    made = typing.Annotated[int, Kind("a")]
    return x + 1, type(made.__metadata__[0]).__name__  # type: ignore[attr-defined]


def a_classs_own_namespace(x: Tensor) -> Any:
    names = Plain.__dict__
    found: list[Any] = [type(names).__name__, names["x"], names["y"] is Plain.y, "z" in names]
    Plain.x = 5
    found += [names["x"], vars(Plain)["x"]]
    Plain.x = 1
    try:
        names["z"] = 1  # type: ignore[index]
    except TypeError as error:
        found.append(str(error))
    return x + 1, found


def unlike_sequences_have_no_order(x: Tensor) -> Any:
    try:
        return (1, 2) < [1, 2]  # type: ignore[operator]
    except TypeError as error:
        return x + 1, str(error), {1: 2}.values() == {1: 2}.values(), (1,) == [1]


def signature_without_following(x: Tensor) -> Any:
    import functools

    def inner(a: int) -> int:
        return a

    @functools.wraps(inner)
    def outer(*args: Any) -> Any:
        return inner(*args)

    return x + 1, str(inspect.signature(outer)), str(inspect.signature(outer, follow_wrapped=False))


PROGRAMS = [
    *(typed_dictionaries_are_dictionaries, no_instances_of_special_forms, checks_that_raise, new_types),
    *(metadata_is_kept_as_it_is, a_classs_own_namespace, unlike_sequences_have_no_order, signature_without_following),
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_like_eager(program: Callable[[Tensor], Any]) -> None:
    by_identity = "each call makes a signature that is guarded by identity"
    assert_same(program, X, never_repeats=by_identity if program is signature_without_following else "")


class Lazy(types.ModuleType):
    """A module that counts how often it makes an attribute."""

    made = 0

    @property
    def fixed(self) -> int:
        return 7

    def __getattr__(self, name: str) -> int:
        if name.startswith("_"):
            raise AttributeError(name)
        self.__dict__["made"] = self.__dict__.get("made", 0) + 1
        return len(name)


def test_attributes_of_a_subclass_of_modules() -> None:
    def run(compiled: bool) -> Any:
        module = Lazy("lazy_module_of_a_test")

        def program(x: Tensor) -> Any:
            return x * module.fixed + module.four, hasattr(module, "_none"), module.other

        call = dynajit.compile(program, backend="eager") if compiled else program
        return str(call(X)), module.__dict__.get("made")

    assert run(True) == run(False)


def test_names_are_imported_from_a_lazy_module_as_often_as_eager_does() -> None:
    def run(compiled: bool) -> Any:
        module = Lazy("lazy_module_of_a_test")
        sys.modules[module.__name__] = module
        try:

            def program(x: Tensor) -> Any:
                from lazy_module_of_a_test import abc  # type: ignore[import-not-found]

                return x + abc

            call = dynajit.compile(program, backend="eager") if compiled else program
            return str(call(X)), module.__dict__.get("made")
        finally:
            del sys.modules[module.__name__]

    assert run(True) == run(False)


def test_powers_of_a_number_that_turns_negative() -> None:
    def program(x: Tensor, n: int) -> Any:
        return x * 2**n

    compiled = dynajit.compile(program, backend="eager")
    for n in (1, 2, 3, -1, -2):
        torch.testing.assert_close(compiled(X, n), program(X, n))


class Hidden(dict[Any, Any]):
    """Its `__dict__` is not where its attributes are."""

    reads = 0

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        Hidden.reads += 1
        return {}


def test_a_dict_that_is_a_property_is_not_read() -> None:
    def program(x: Tensor) -> Any:
        made = Hidden()
        made.a = 4  # type: ignore[attr-defined]
        return x + made.a  # type: ignore[attr-defined]

    Hidden.reads = 0
    torch.testing.assert_close(dynajit.compile(program, backend="eager")(X), X + 4)
    assert Hidden.reads == 0


def test_large_numbers_in_instances_of_int() -> None:
    class Number(int):
        pass

    def program(x: Tensor, n: Number, table: dict[int, int]) -> Any:
        return x + n.bit_length() + table[10**5000]

    large, table = Number(10**5000), {10**5000: 1}
    with warnings.catch_warnings():  # such as that a guard fails on the very state that it was made from
        warnings.simplefilter("error")
        torch.testing.assert_close(dynajit.compile(program, backend="eager")(X, large, table), program(X, large, table))


class Base:
    def method(self) -> str:
        return "base"


class Derived(Base):
    def method(self) -> Any:
        del self
        return super().method()  # type: ignore[misc]


def test_super_without_its_first_argument() -> None:
    def program(x: Tensor) -> Any:
        try:
            return Derived().method()
        except RuntimeError as error:
            return x + 1, str(error)

    assert_same(program, X)


@typing.runtime_checkable
class Closable(typing.Protocol):
    def close(self) -> int: ...


@typing.runtime_checkable
class Scaled(typing.Protocol):
    scale: float

    def close(self) -> int: ...


class Closes:
    def close(self) -> int:
        return 1


class OfEach:
    """`close` and `scale` as the instance has them, if at all."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class ClosesNot(OfEach):
    close = None


class ScaledClass(Closes):
    scale = 2.0


class Declared(Closes):
    scale: float


class Nominal(Scaled):
    pass


class Computed(Closes):
    @property
    def scale(self) -> float:
        return 1.0


class Forwards(Closes):
    def __getattr__(self, name: str) -> int:
        if name != "scale":
            raise AttributeError(name)
        return 1


FOLLOWERS: dict[str, tuple[Callable[[], Any], int]] = {
    "nothing": (OfEach, 0),
    "a method of the instance": (lambda: OfEach(close=len), 0),
    "all of the instance": (lambda: OfEach(close=len, scale=1), 0),
    "a method that is None": (lambda: OfEach(close=None, scale=1), 0),
    "a class whose method is None": (ClosesNot, 0),
    "an instance whose class's method is None": (lambda: ClosesNot(close=len, scale=None), 0),
    "a method of the class": (Closes, 0),
    "all of the class": (ScaledClass, 0),
    "an annotation": (Declared, 0),
    "a subclass": (Nominal, 0),
    "a property": (Computed, 1),
    "__getattr__": (Forwards, 1),
    "a number": (lambda: 5, 0),
    "a list": (lambda: [1], 0),
    "a module": (lambda: torch.nn.Linear(1, 1), 0),
}


@pytest.mark.parametrize("make, breaks", FOLLOWERS.values(), ids=FOLLOWERS)
def test_instances_that_follow_a_protocol(make: Callable[[], Any], breaks: int) -> None:
    def program(x: Tensor, given: Any) -> Any:
        return x + 1, isinstance(given, Closable), isinstance(given, Scaled)

    assert_same(program, X, make(), breaks=breaks)


def test_an_attribute_that_makes_an_instance_follow_a_protocol() -> None:
    compiled = dynajit.compile(lambda x, given: x + isinstance(given, Closable), backend="eager")
    given = OfEach()
    torch.testing.assert_close(compiled(X, given), X)
    given.close = len  # type: ignore[attr-defined]
    torch.testing.assert_close(compiled(X, given), X + 1)
    del given.close  # type: ignore[attr-defined]
    torch.testing.assert_close(compiled(X, given), X)
