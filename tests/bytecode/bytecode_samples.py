"""Small functions that between them hold most of what CPython's compiler emits, with arguments to call them with."""

from __future__ import annotations

import contextlib
import math
import types
from collections.abc import Callable, Iterator
from typing import Any

COUNTER = 0


def straight_line(a: int, b: int) -> tuple[int, ...]:
    c = a + b * 2 - (a // 3) % 7
    d = [a, b, c]
    d[0] += 5
    e = {"x": c, "y": d[1:]}
    return (c, *d, e["x"], len(e["y"]), -a, ~b, not a, a**2, a << 1, a & b | c ^ 1)


def keywords(a: int, b: int) -> list[Any]:
    return [
        sorted([b, a, 3], key=lambda v: -v, reverse=True),
        dict(a=a, b=b),  # noqa: C408
        max(a, b, key=abs),
        f"{a}-{b}",
    ]


def star_calls(args: tuple[int, ...], options: dict[str, int]) -> Any:
    def callee(*a: int, **k: int) -> Any:
        return a, sorted(k.items())

    return callee(*args), callee(1, *args, **options), callee(**options, z=1)


def branches(a: int, b: int | None) -> str:
    if (a > 3 and b is not None) or a == -1:
        kind = "big" if a > 10 else "middle"
    elif not a:
        kind = "zero"
    else:
        kind = "small"
    if b is None:
        kind += "?"
    return kind if 0 < a < 100 else kind.upper()


def loops(n: int) -> list[Any]:
    out: list[Any] = []
    for i in range(n):
        if i == 2:
            continue
        for j in range(i):
            if j == 3:
                break
            out.append(i * j)
        else:
            out.append("else")
        if i == 6:
            break
    k = 0
    while k < n:
        k += 1
        if k % 2:
            continue
        if k > 8:
            break
        out.append(k)
    return out


def return_in_loop(n: int) -> int | None:
    for i in range(10):
        for j in [i, i + 1]:
            if i * j > n:
                return i * 100 + j
    return None


def comprehensions(n: int) -> Any:
    base = 3
    table = {i: [j * base for j in range(i) if j % 2] for i in range(n)}
    return (
        table,
        {v for v in range(n) if v > base},
        sum(x * x for x in range(n)),
        [(i, j) for i in range(3) for j in range(i)],
    )


def closures(a: int, b: int) -> Any:
    total = a

    def add(v: int) -> int:
        nonlocal total
        total += v + b
        return total

    first = add(1)
    b = 10
    return first, add(2), [f() for f in [lambda: total, lambda: b]], total


def make_adder(n: int) -> Callable[[int], int]:
    last = 0

    def adder(v: int) -> int:
        nonlocal last
        last = v
        local = v * n
        return local + n + last

    return adder


def try_except(a: int, kind: str) -> list[str]:
    out = []
    try:
        out.append("body")
        if kind == "value":
            raise ValueError("v", a)
        if kind == "key":
            out.append({}[a])
        out.append("end")
    except ValueError as error:
        out.append(repr(error))
    except (KeyError, IndexError):
        out.append("lookup")
    else:
        out.append("else")
    finally:
        out.append("finally")
    return out


def nested_try(n: int) -> list[Any]:
    out: list[Any] = []
    for i in range(n):
        try:
            try:
                out.append(10 // (i - 1))
            finally:
                out.append("inner")
        except ZeroDivisionError as error:
            try:
                raise RuntimeError("again") from error
            except RuntimeError as second:
                out.append((str(second), type(second.__cause__).__name__))
                continue
        out.append(i)
    return out


def finally_return(n: int) -> Any:
    log = []
    try:
        if n > 2:
            return log
        log.append("low")
    finally:
        log.append("out")
    return "after", log


@contextlib.contextmanager
def noting(log: list[str], swallow: bool = False) -> Iterator[str]:
    log.append("enter")
    try:
        yield "value"
    except ValueError:
        log.append("caught")
        if not swallow:
            raise
    finally:
        log.append("exit")


def with_blocks(a: int) -> list[str]:
    log: list[str] = []
    with noting(log) as value, noting(log, swallow=True):
        log.append(value)
        if a > 1:
            raise ValueError(a)
        log.append("not raised")
    for _ in range(2):
        with noting(log):
            if a == 1:
                break
            continue
    return log


def unpacking(pairs: list[tuple[int, int]]) -> Any:
    (a, b), *rest = pairs
    first, *middle, last = range(a, b + 5)
    x, y = y, x = a, b
    return a, b, rest, first, middle, last, x, y


def strings(a: int, name: str) -> str:
    return f"{a:>5}|{name!r}|{name!s:^8}|{a + 1}|{a!a}" + "%d/%s" % (a, name)  # noqa: UP031


def matching(subject: Any) -> Any:
    match subject:
        case [x, y, *rest]:
            return "sequence", x, y, rest
        case {"k": value, **others}:
            return "mapping", value, others
        case int(n) | float(n):
            return "number", n
        case types.SimpleNamespace(a=1, b=b):
            return "object", b
        case None | "none":
            return "none"
        case _:
            return "other"


def attributes(a: int) -> Any:
    space = types.SimpleNamespace(a=a, items=[1, 2, 3])
    space.b = space.a + 1
    space.b *= 3
    space.items[1] = 7
    space.items[0:1] = [8, 9]
    del space.items[-1]
    del space.a
    return space.b, space.items, hasattr(space, "a"), space.items[1:3]


def globals_and_imports(a: int) -> Any:
    global COUNTER
    import os.path as path
    from math import floor, pi

    COUNTER = a
    COUNTER += 1
    join, root = path.join, math.isqrt
    return COUNTER, floor(pi * a), join("a", "b"), root(a)


def deletes(a: int) -> Any:
    b = a
    c = b + 1
    del b
    try:
        return b  # noqa: F821
    except UnboundLocalError:
        del a
        return c


def walrus_and_chain(a: int) -> Any:
    if (n := a * 2) > 3 and (m := n - 1):
        return n, m, 1 < a < n <= m + 1
    return n, a if a else None, a or n, a and n


def asserts(a: int) -> int:
    assert a > 0, "positive, please"
    assert isinstance(a, int)
    return a


def defaults_and_lambdas(a: int, *rest: int, scale: int = 2, **named: int) -> Any:
    def inner(v: int, w: int = a, *, k: int = scale) -> int:
        return v + w * k

    return inner(1), inner(1, 2, k=3), rest, sorted(named.items()), (lambda q=scale: q)()


def local_class(a: int) -> Any:
    class Local:
        field = a

        def get(self) -> int:
            return self.field + a

    return Local().get()


def try_in_while(n: int) -> Any:
    tries = 0
    while True:
        try:
            tries += 1
            if tries < n:
                raise KeyError(tries)
            return tries
        except KeyError as error:
            last = error.args[0]
            if last > 5:
                break
    return "gave up", last


class Base:
    def __init__(self, a: int) -> None:
        self.a = a

    def value(self, b: int) -> int:
        return self.a + b


class Derived(Base):
    def __init__(self, a: int) -> None:
        super().__init__(a + 1)

    def value(self, b: int) -> int:
        c = b * 2
        return super().value(c) + super().a_property + 1

    def with_closure(self, b: int) -> int:
        scale = lambda: self.a  # noqa: E731
        return super().value(b) + scale()

    def named(self, b: int) -> int:
        return super().value(b) + __class__.__name__.__len__()  # type: ignore[name-defined]

    def replaced(self, b: int) -> int:
        super = lambda: Base(50)  # noqa: E731
        return super().value(b)


Base.a_property = property(lambda self: self.a * 100)  # type: ignore[attr-defined]
SPACE = types.SimpleNamespace(a=1, b=5)

#: (function, argument tuples)
SAMPLES: list[tuple[Callable[..., Any], list[tuple[Any, ...]]]] = [
    (straight_line, [(5, 9), (-4, 0)]),
    (keywords, [(4, -7)]),
    (star_calls, [((1, 2), {"k": 3})]),
    (branches, [(5, 1), (50, None), (0, 0), (-1, None), (1, None)]),
    (loops, [(0,), (4,), (12,)]),
    (return_in_loop, [(3,), (1000,)]),
    (comprehensions, [(6,)]),
    (closures, [(1, 2)]),
    (make_adder(7), [(3,)]),
    (try_except, [(1, ""), (1, "value"), (1, "key")]),
    (nested_try, [(4,)]),
    (finally_return, [(1,), (5,)]),
    (with_blocks, [(0,), (1,), (2,)]),
    (unpacking, [([(1, 2), (3, 4), (5, 6)],)]),
    (strings, [(7, "né")]),
    (matching, [([1, 2, 3],), ({"k": 1, "l": 2},), (4.5,), (SPACE,), (None,), ("z",)]),
    (attributes, [(3,)]),
    (globals_and_imports, [(9,)]),
    (deletes, [(2,)]),
    (walrus_and_chain, [(1,), (2,), (0,)]),
    (asserts, [(3,), (-3,)]),
    (defaults_and_lambdas, [(1,), (1, 2, 3)]),
    (local_class, [(4,)]),
    (try_in_while, [(3,), (9,)]),
    (Derived(3).value, [(4,)]),
    (Derived(3).with_closure, [(4,)]),
    (Derived(3).named, [(4,)]),
    (Derived(3).replaced, [(4,)]),
]
