"""What special methods may return, and what CPython makes of it, in every place that calls them.

Each program is called with an object whose method returns what the object's attribute holds; that changes from call to
call, so that numbers become symbolic. Results, types, exceptions and warnings are eager's.
"""

# ruff: noqa: SIM201, SIM300, UP031, UP032 - how an operation is written is what is tested

from __future__ import annotations

import itertools
import math
import operator
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import dynajit
from dynajit.outcomes import without_addresses


class Int(int):
    pass


class Float(float):
    pass


class Str(str):
    pass


class Thing:
    pass


class Index:
    def __init__(self, number: Any) -> None:
        self.number = number

    def __index__(self) -> Any:
        return self.number


# what one object's method returns at one call after another
RETURNED: dict[str, list[Any]] = {
    "integers": [5, 7, 0, 3, -1, 1, -2, 2**62, 10**30, -(10**30)],
    "floats": [0.5, 1.5, 2.0, -1.0, float("inf"), float("nan"), 0.0],
    "anything": [
        *(True, False, None, 0.5, "a", "", Int(5), Int(0), Int(-1), Float(5.0), Str("a"), 1j, NotImplemented),
        *(Thing(), Index(3), Index(0), Index(-1), [1], []),
    ],
    "numbers and truths": [3, 4, True, 0, False, 1],
}


def loops(o: Any) -> int:
    count = 0
    while o:
        count += 1
        if count > 2:
            break
    return count


def asserts(o: Any) -> int:
    assert o, "no"
    return 1


def goes_through(o: Any) -> list[Any]:
    found = []
    for item in o:
        found.append(item)
    return found


def unpacks(o: Any) -> tuple[Any, Any]:
    first, *rest = o
    return first, rest


def delegates(o: Any) -> Iterator[Any]:
    yield from o


def leaves(o: Any) -> int:
    with o:
        raise KeyError("inside")
    return 1


def enters(o: Any) -> Any:
    with o as found:
        return found


def sets_item(o: Any) -> list[int]:
    items = [1, 2, 3, 4]
    items[o] = 9
    return items


def inserts(o: Any) -> list[int]:
    items = [1, 2, 3]
    items.insert(o, 9)
    return items


def size_of(o: Any) -> int:
    try:
        return abs(operator.index(o))
    except TypeError:
        return 0


class Iterated:
    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator

    def __iter__(self) -> Any:
        return self.iterator


def first_items(items: Any) -> list[Any]:
    return list(itertools.islice(items, 3))


ITEMS = [10, 20, 30, 40]
NAMES = {True: "a", False: "b"}
TRUTHS: list[Callable[[Any], Any]] = [
    lambda o: bool(o),
    lambda o: 1 if o else 2,
    lambda o: "y" if not o else "n",
    lambda o: not o,
    lambda o: (o and 3) == 3,
    lambda o: (o or 3) is o,
    lambda o: all([o]),
    lambda o: any([o]),
    lambda o: len(list(filter(None, [o]))),
    lambda o: operator.truth(o),
    lambda o: operator.not_(o),
    lambda o: [1 for _ in range(2) if o],
    lambda o: NAMES.get(bool(o)),
    lambda o: sorted([2, 1], reverse=bool(o)),
    lambda o: list(filter(lambda _: o, [1, 2])),
    loops,
    asserts,
]
USES: dict[str, list[Callable[[Any], Any]]] = {
    "__bool__": TRUTHS,
    "__len__": [
        *TRUTHS,
        lambda o: len(o),
        lambda o: list(range(min(len(o), 5))),
        lambda o: len(o) + 1,
        lambda o: len(o) > 6,
        lambda o: o.__len__(),
        lambda o: first_items(reversed(o)),
        lambda o: operator.length_hint(o),
    ],
    "__hash__": [
        lambda o: hash(o),
        lambda o: {o: 1}[o],
        lambda o: len({o}),
        lambda o: hash((o, 1)) == hash((o, 1)),
        lambda o: o in {1: 2},
        lambda o: hash(o) == -2,
        lambda o: o.__hash__(),
    ],
    "__int__": [lambda o: int(o), lambda o: int(o) + 1, lambda o: "%d" % o, lambda o: bool(int(o))],
    "__float__": [
        lambda o: float(o),
        lambda o: float(o) * 2,
        lambda o: "%.1f" % o,
        lambda o: math.sqrt(o),
        lambda o: math.isnan(o),
        lambda o: complex(o),
    ],
    "__complex__": [lambda o: complex(o)],
    "__index__": [
        lambda o: operator.index(o),
        lambda o: ITEMS[o],
        lambda o: ITEMS[o:],
        lambda o: ITEMS[:o],
        lambda o: (1, 2, 3, 4)[o],
        lambda o: "abcd"[o],
        lambda o: range(10)[o],
        lambda o: len(range(o)),
        lambda o: first_items(range(o)),
        lambda o: int(o),
        lambda o: float(o),
        lambda o: complex(o),
        lambda o: (hex(o), bin(o), oct(o)),
        lambda o: chr(o),
        lambda o: len([1] * o) if size_of(o) < 100 else 0,
        lambda o: [1, 2, 3, 4].pop(o),
        lambda o: round(1.2345, o),
        lambda o: list(itertools.islice([1, 2, 3, 4], o)),
        lambda o: list(enumerate([1], o)),
        lambda o: math.factorial(o) if size_of(o) < 10 else 0,
        lambda o: "a".rjust(o) if size_of(o) < 100 else 0,
        lambda o: pow(2, 3, o),
        lambda o: torch.arange(4)[o].item(),
        sets_item,
        inserts,
    ],
    "__round__": [lambda o: round(o), lambda o: round(o, 1)],
    "__trunc__": [lambda o: math.trunc(o)],
    "__floor__": [lambda o: math.floor(o)],
    "__ceil__": [lambda o: math.ceil(o)],
    "__abs__": [lambda o: abs(o)],
    "__neg__": [lambda o: -o],
    "__divmod__": [lambda o: divmod(o, 2)],
    "__add__": [lambda o: o + 1, lambda o: sum([1], o)],
    "__getitem__": [lambda o: o[0], lambda o: "y" if o[0] else "n"],
    "__contains__": [
        lambda o: 1 in o,
        lambda o: 1 not in o,
        lambda o: "y" if 1 in o else "n",
        lambda o: operator.contains(o, 1),
        lambda o: NAMES.get(1 in o),
        lambda o: o.__contains__(1),
    ],
    "__length_hint__": [lambda o: operator.length_hint(o), lambda o: operator.length_hint(o, 3)],
    "__eq__": [
        lambda o: o == 1,
        lambda o: o != 1,
        lambda o: "y" if o == 1 else "n",
        lambda o: not (o == 1),
        lambda o: (o == 1) and 4,
        lambda o: o in [1, 2],
        lambda o: [o, 1].index(o),
        lambda o: [1, 2].count(o),
        lambda o: [o] == [1],
        lambda o: (o, 2) == (1, 2),
        lambda o: [1, 2].remove(o),
        lambda o: any([o == 1]),
        lambda o: 1 in {2: o}.values(),
    ],
    "__lt__": [
        lambda o: o < 1,
        lambda o: "y" if o < 1 else "n",
        lambda o: 1 > o,
        lambda o: min(o, 1) is o,
        lambda o: sorted([1, o])[0] is o,
        lambda o: (o,) < (1,),
        lambda o: o < 1 < 2,
    ],
    "__str__": [
        lambda o: str(o),
        lambda o: f"{o}",
        lambda o: f"{o!s}",
        lambda o: "%s" % o,
        lambda o: "{}".format(o),
        lambda o: format(o),
    ],
    "__repr__": [
        lambda o: repr(o),
        lambda o: f"{o!r}",
        lambda o: "%r" % o,
        lambda o: str(o),
        lambda o: str([o]),
        lambda o: ascii(o),
        lambda o: repr({1: o}),
    ],
    "__format__": [lambda o: format(o, "x"), lambda o: f"{o}", lambda o: f"{o:x}", lambda o: "{:x}".format(o)],
    "__iter__": [
        lambda o: type(iter(o)).__name__,
        lambda o: list(o),
        lambda o: [*o],
        lambda o: sum(o),
        lambda o: 1 in o,
        lambda o: list(zip(o, o, strict=False)),
        lambda o: set(o),
        lambda o: list(delegates(o)),
        lambda o: list(enumerate(o)),
        lambda o: dict.fromkeys(o),
        goes_through,
        unpacks,
    ],
    "__next__": [lambda o: next(o), lambda o: list(itertools.islice(Iterated(o), 2))],
    "__enter__": [enters],
    "__exit__": [leaves],
    "__fspath__": [lambda o: os.fspath(o), lambda o: os.path.join("a", o)],
    "__reversed__": [lambda o: reversed(o)],
}
BESIDE: dict[str, dict[str, Callable[..., Any]]] = {
    "__enter__": {"__exit__": lambda self, *error: None},
    "__exit__": {"__enter__": lambda self: self},
    "__next__": {"__iter__": lambda self: self},
    "__length_hint__": {"__iter__": lambda self: iter([1, 2])},
    "__len__": {"__getitem__": lambda self, index: index},
}


def object_with(slot: str) -> Any:
    def method(self: Any, *args: Any) -> Any:
        return self.found

    return type("Owner", (), {slot: method, **BESIDE.get(slot, {})})()


def shown(result: Any) -> str:
    """Equal for equal results of equal types."""
    if isinstance(result, (list, tuple)):
        return f"{type(result).__name__}({', '.join(map(shown, result))})"
    return without_addresses(f"{type(result).__name__} {result!r}")


def outcome(fn: Callable[..., Any], *args: Any) -> tuple[str, list[str]]:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            found = shown(fn(*args))
        except (TypeError, ValueError, OverflowError, ArithmeticError, LookupError, AssertionError) as error:
            found = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"  # pytest adds lines
    return found, [f"{warning.category.__name__}: {warning.message}" for warning in warned]


@pytest.mark.parametrize("slot", USES)
@pytest.mark.parametrize("returned", RETURNED)
def test_a_slots_rule_holds_for_whatever_its_method_returns(slot: str, returned: str) -> None:
    if (slot, returned) == ("__hash__", "anything"):
        pytest.skip("a guard behind a table's look-up runs the program's __hash__, and is reported as unfit")
    before = dict(dynajit.counters["internal_errors"])
    for number, use in enumerate(USES[slot]):

        def program(x: torch.Tensor, o: Any, use: Callable[[Any], Any] = use) -> Any:
            return float(x.sum()), use(o)

        with dynajit.config.patch(recompile_limit=64):
            compiled = dynajit.compile(program, backend="eager")
            eager, owner = object_with(slot), object_with(slot)
            for value in RETURNED[returned]:
                eager.found = owner.found = value
                expected, found = outcome(program, torch.ones(2), eager), outcome(compiled, torch.ones(2), owner)
                assert found == expected, f"{slot}, use {number}, which returns {value!r}"
        dynajit.reset()
    assert dict(dynajit.counters["internal_errors"]) == before


def test_the_truth_of_an_object_whose_length_varies() -> None:
    class Sized:
        size: Any = 0

        def __len__(self) -> Any:
            return self.size

    def program(x: torch.Tensor, sized: Sized) -> Any:
        return x.sum(), bool(sized), NAMES.get(bool(sized))

    compiled, sized = dynajit.compile(program, backend="eager", fullgraph=True), Sized()
    for sized.size in (5, 7, 0, 9):
        assert compiled(torch.ones(2), sized) == program(torch.ones(2), sized)
        assert type(compiled(torch.ones(2), sized)[1]) is bool


def test_the_truth_of_classes_whose_metaclass_decides() -> None:
    class Falsy(type):
        def __bool__(cls) -> bool:
            return False

    class Sized(type):
        def __len__(cls) -> int:
            return cls.size  # type: ignore[attr-defined, no-any-return]

    class Empty(metaclass=Falsy):
        pass

    class Counted(metaclass=Sized):
        size = 0

    def program(x: torch.Tensor) -> Any:
        return x + 1 if Empty else x, bool(Counted)

    compiled = dynajit.compile(program, backend="eager")
    for Counted.size in (0, 3, -1):
        assert outcome(compiled, torch.ones(1)) == outcome(program, torch.ones(1))
