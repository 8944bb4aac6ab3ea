"""Programs at the corners of the language: whatever the capture does, the outcome is eager's."""

import collections
import dataclasses
import enum
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from program_cases import Case, Cases
from torch import Tensor

import dynajit

x = torch.arange(6.0).reshape(2, 3)
cases = Cases()


def case(*args: Any, **options: Any) -> Any:
    return cases(*args, graphs=None, breaks=None, **options)


class Rude:
    def __init__(self, what: str) -> None:
        self.what = what

    def __bool__(self) -> bool:
        if self.what == "bool":
            raise ValueError("no truth")
        return True

    def __eq__(self, other: object) -> Any:
        if self.what == "eq":
            raise ValueError("no equality")
        return NotImplemented

    def __hash__(self) -> int:
        if self.what == "hash":
            raise ValueError("no hash")
        return 1

    def __len__(self) -> int:
        return -1

    def __iter__(self) -> Iterator[int]:
        yield 1
        raise ValueError("no more")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


@case(x)
def rude_objects(x: Tensor) -> Any:
    texts = []
    rude = {name: Rude(name) for name in ("bool", "eq", "hash", "other")}
    for call in (
        lambda: not rude["bool"],
        lambda: rude["eq"] == 1,
        lambda: {rude["hash"]: 1},
        lambda: len(rude["other"]),
        lambda: list(rude["other"]),
        lambda: rude["other"].nope,
        lambda: 1 in [rude["eq"]],
        lambda: sorted([rude["other"], rude["other"]]),
        lambda: hasattr(rude["other"], "nope"),
        lambda: rude["eq"] != 2,
        lambda: int(rude["other"]),
    ):
        try:
            texts.append(call())
        except Exception as error:
            texts.append((type(error).__name__, str(error)))
    return texts, x + 1


@case(x)
def endless_recursion(x: Tensor) -> Any:
    def f(n: int) -> int:
        return f(n + 1)

    try:
        f(0)
    except RecursionError:
        return x + 1


class Layered(dict):  # type: ignore[type-arg]
    def __getitem__(self, key: Any) -> Any:
        return ("layered", super().__getitem__(key))

    def __missing__(self, key: Any) -> Any:
        return "missing " + str(key)

    def __contains__(self, key: object) -> bool:
        return key == "magic" or super().__contains__(key)

    def keys(self) -> Any:
        return ["a"]


@case(x, Layered(a=1, b=2))
def overriding_dict_subclass(x: Tensor, d: Layered) -> Any:
    return (
        d["a"],
        d["zz"],
        "magic" in d,
        d.get("a"),
        d.get("q"),
        dict(d),
        {**d},
        list(d),
        len(d),
        [*d.values()],
        d.copy(),
        d == {"a": 1, "b": 2},
        x + 1,
    )


class ShortList(list):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 1

    def __getitem__(self, i: Any) -> Any:
        return "item"

    def __iter__(self) -> Any:
        return iter(["iterated"])


@case(x, ShortList([1, 2, 3]))
def overriding_list_subclass(x: Tensor, items: ShortList) -> Any:
    a, *b = items
    return a, b, len(items), items[5], list(items), [*items], (1, *items), items[0:2], x + 1


class Named(collections.namedtuple("Named", "a b")):
    extra = 3

    @property
    def total(self) -> Any:
        return self.a + self.b

    def __add__(self, other: Any) -> Any:
        return "added"


@case(x, Named(1, 2))
def named_tuple_subclass(x: Tensor, n: Named) -> Any:
    made = Named(x, 2)
    return (
        n.total,
        n.extra,
        n + (1,),
        made.total,
        made + made,
        n == (1, 2),
        isinstance(n, tuple),
        n[0],
        type(n).__name__,
    )


@case(x)
def star_star_errors(x: Tensor) -> Any:
    texts = []

    def f(**kw: Any) -> Any:
        return kw

    for call in (
        lambda: f(**{"a": 1}, **{"a": 2}),
        lambda: f(**{1: 2}),
        lambda: f(*1),
        lambda: f(**3),
        lambda: dict(a=1, **{"a": 2}),
        lambda: [*None],
        lambda: {**[1]},
    ):  # type: ignore[arg-type,call-overload,list-item,misc]
        try:
            texts.append(call())
        except TypeError as error:
            texts.append(str(error))
    return texts, x + 1


@case(x)
def unpacking_errors(x: Tensor) -> Any:
    texts = []
    for values in ([1], [1, 2, 3], 5, "abc", {1: 2, 3: 4}):
        try:
            a, b = values  # type: ignore[misc]
            texts.append((a, b))
        except (ValueError, TypeError) as error:
            texts.append(str(error))
        try:
            a, *b, c = values  # type: ignore[misc]
            texts.append((a, b, c))
        except (ValueError, TypeError) as error:
            texts.append(str(error))
    return texts, x + 1


@case(x, [1, 2, 3])
def changing_while_iterating(x: Tensor, items: list[int]) -> Any:
    d, log = {"a": 1}, []
    try:
        for key in d:
            d["b"] = 2
    except RuntimeError as error:
        log.append(str(error))
    for item in items[:]:
        items.remove(item)
    it = iter([1, 2, 3])
    for a in it:
        log.append((a, next(it, None)))
    return log, items, x + 1


@case(x, iter([1, 2, 3]), repeat=1)
def iterator_argument(x: Tensor, it: Any) -> Any:
    return next(it), x + 1, list(it)


def test_generator_argument() -> None:

    def program(x: Tensor, g: Any) -> Any:
        first = next(g)
        return x + first, sum(g)

    for fn in (program, dynajit.compile(program, backend="eager")):
        for _ in range(2):
            result, rest = fn(x, (i for i in (1, 2, 3)))
            assert torch.equal(result, x + 1) and rest == 5


class Meters(float):
    unit = "m"


class Label(str):
    def shout(self) -> str:
        return self.upper() + "!"


@case(x, Meters(2.5), Label("abc"))
def number_and_string_subclasses(x: Tensor, m: Meters, s: Label) -> Any:
    return x * m, m.unit, m + 1, s.shout(), s + "d", {s: 1}["abc"], isinstance(s, str), f"{m:.1f}"


class Count(enum.IntFlag):
    A = 1
    B = 2


@case(x, Count.A | Count.B)
def flags(x: Tensor, c: Count) -> Any:
    return c & Count.A, Count.B in c, x * int(c), c == 3, bool(c), ~Count.A & Count.B, c.value


@dataclasses.dataclass(slots=True)
class WithSlots:
    a: Any
    b: list[Any] = dataclasses.field(default_factory=list)


@case(x, WithSlots(1), repeat=1)
def dataclass_with_slots(x: Tensor, d: WithSlots) -> Any:
    d.a += 1
    d.b.append(2)
    made = WithSlots(x + 1)
    made.b.append(d.a)
    return d.a, made.a, made.b, made.b is d.b


class Temperature:
    def __get__(self, obj: Any, cls: Any) -> Any:
        return obj.__dict__.get("_t", 0) if obj is not None else "class"

    def __set__(self, obj: Any, value: Any) -> None:
        if value == "bad":
            raise ValueError("bad value")
        obj.__dict__["_t"] = value

    def __delete__(self, obj: Any) -> None:
        obj.__dict__.pop("_t")


class Room:
    temperature = Temperature()

    def __init__(self) -> None:
        self._secret = 1

    @property
    def deletable(self) -> Any:
        return self._secret

    @deletable.deleter
    def deletable(self) -> None:
        self._secret = 0


@case(x, Room())
def descriptor_protocol(x: Tensor, room: Room) -> Any:
    log: list[Any] = [room.temperature, Room.temperature]
    room.temperature = 5
    log.append(room.temperature)
    try:
        room.temperature = "bad"
    except ValueError as error:
        log.append(str(error))
    del room.temperature
    del room.deletable
    try:
        room.deletable = 1  # type: ignore[misc]
    except AttributeError as error:
        log.append(str(error))
    return log, room.deletable, room.temperature, x + 1


@case(x)
def late_binding_and_scopes(x: Tensor) -> Any:
    fs = [lambda: i for i in range(3)]
    gs = [lambda i=i: i for i in range(3)]
    n = 1

    def outer() -> Any:
        n = 2

        def inner() -> Any:
            nonlocal n
            n += 1
            return n

        return inner(), n

    return [f() for f in fs], [g() for g in gs], outer(), n, (lambda *a, k=3, **kw: (a, k, kw))(1, 2, z=4), x + 1


@case(x)
def exception_scoping(x: Tensor) -> Any:
    log = []
    try:
        raise ValueError("v")
    except ValueError as error:
        kept = error
    try:
        error  # noqa: B018, F821
    except NameError as missing:
        log.append(str(missing))
    try:
        try:
            1 / 0
        finally:
            log.append("cleanup")
    except ZeroDivisionError as error:
        log.append(type(error.__context__).__name__)
    return log, kept.args, x + 1


@case(x)
def exception_groups(x: Tensor) -> Any:
    log = []
    try:
        raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
    except* ValueError as group:
        log.append(len(group.exceptions))
    except* KeyError:
        log.append("key")
    return log, x + 1


@case(x)
def weak_references(x: Tensor) -> Any:
    room = Room()
    ref = weakref.ref(room)
    return ref() is room, x + 1


@case(x)
def identity_of_small_things(x: Tensor) -> Any:
    a, b = (1, 2), (1, 2)
    c: list[Any] = []
    empty, other, text = (), (), "a"
    return (
        empty is other,
        c is c,
        c is list(c),
        None is None,
        True is True,
        type(c) is list,
        a == b,
        x is x,
        (x + 1) is (x + 1),
        text is str("a"),
    )


@case(x)
def global_statement_in_nested_function(x: Tensor) -> Any:
    def write() -> None:
        global corner_global
        corner_global = 5  # type: ignore[name-defined]

    write()
    return corner_global, "corner_global" in globals(), x + 1  # type: ignore[name-defined]


@case(x)
def imports_inside(x: Tensor) -> Any:
    import math
    import os.path as path
    from collections import OrderedDict as Ordered

    return math.floor(2.5), path.join("a", "b"), Ordered(a=1), x + 1


@case(x, {"a": [1, {"b": 2}]})
def augmented_assignments(x: Tensor, d: Any) -> Any:
    d["a"][1]["b"] += 5
    d["a"][0] -= 1
    d["a"] += [3]
    d["s"] = d.get("s", "") + "x"
    n = 7
    n //= 2
    n **= 2
    n <<= 1
    n |= 1
    t = (1,)
    t += (2,)
    s = "a"
    s *= 3
    return d, n, t, s, x + 1


@pytest.mark.parametrize("case", cases, ids=cases.names)
def test_corners(case: Case) -> None:
    case.check()
