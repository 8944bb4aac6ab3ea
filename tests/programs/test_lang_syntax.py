"""Programs about the language itself: generators, exceptions, match, unpacking, arguments, closures, iteration."""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from cases import Case, Cases
from torch import Tensor

x = torch.arange(6.0).reshape(2, 3)
cases = Cases()


def numbers(n: int) -> Iterator[Any]:
    got = yield "start"
    while n:
        got = yield (n, got)
        n -= 1
    return "end"


def delegating(n: int) -> Iterator[Any]:
    result = yield from numbers(n)
    yield result
    yield from [1, 2]
    yield from (i * i for i in range(2))


def guarded(log: Any) -> Iterator[Any]:
    try:
        while True:
            try:
                log.append((yield len(log)))
            except ValueError as e:
                log.append(f"caught {e}")
    finally:
        log.append("closed")


@cases(x)
def generators(x: Tensor) -> Any:
    g = numbers(2)
    first = next(g), g.send("a"), g.send(x)
    try:
        g.send("z")
    except StopIteration as stop:
        first += (stop.value,)
    log: list[Any] = []
    h = guarded(log)
    next(h)
    h.send("one")
    h.throw(ValueError("oops"))
    h.close()
    return (
        x + 1,
        first,
        log,
        list(delegating(2)),
        list(zip(numbers(1), "ab")),
        sum(i for i in range(4)),
        next(numbers(1)),
        [*numbers(1)],
    )


class Loader:
    def __init__(self, n: int) -> None:
        self.stream = self.items(n)
        self.seen = 0

    def items(self, n: int) -> Iterator[int]:
        for i in range(n):
            self.seen += 1
            yield i

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        return next(self.stream)


@cases(x)
def stored_generators(x: Tensor) -> Any:
    loader = Loader(5)
    a = next(loader) + next(loader)
    rest = []
    for i in loader:
        rest.append(i)
        if i == 3:
            break
    return x * a + sum(rest), loader.seen, max(loader, default=9), next(loader, "done")


@cases(x, graphs=None, breaks=None)
def generator_returned(x: Tensor) -> Any:
    g = (x * i for i in range(3))
    next(g)
    return list(g)


@cases(x, graphs=None, breaks=None)
def builtin_arguments(x: Tensor) -> Any:
    errors = []
    for call in (lambda: len(), lambda: len(1, 2), lambda: [].append()):
        try:
            errors.append(call())
        except TypeError as e:
            errors.append(str(e))
    return x + 1, errors


class Countdown:
    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        if self.n <= 0:
            raise StopIteration
        self.n -= 1
        return self.n


class Windows:
    def __init__(self, items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Any:
        return self.items[i]

    def __contains__(self, v: Any) -> bool:
        return v == "magic"

    def __reversed__(self) -> Any:
        return iter(["rev"])


@cases(x, Countdown(4), Windows([1, 2]), repeat=1)
def iterator_protocols(x: Tensor, c: Any, w: Any) -> Any:
    a, b, *rest = c
    return (
        x * a + b,
        rest,
        list(w),
        "magic" in w,
        list(reversed(w)),
        [i for i in Windows([x])],
        list(iter([3, 2, 1].pop, 1)),
        dict(enumerate(w)),
        c.n,
        tuple(Countdown(2)),
        set(Countdown(3)),
        min(Countdown(3)),
        sorted(Countdown(3)),
        [*map(str, Countdown(2))],
    )


class AppError(Exception):
    def __init__(self, code: int, *args: Any) -> None:
        super().__init__(f"code {code}", *args)
        self.code = code


class SubError(AppError, KeyError):
    pass


def failing(n: int) -> Any:
    try:
        if n == 0:
            raise AppError(3, "extra")
        if n == 1:
            return {}["k"]
        if n == 2:
            return [][5]
        if n == 3:
            return int("zz")
        if n == 4:
            raise SubError(4) from ValueError("why")
        return None.nope  # type: ignore[attr-defined]
    finally:
        n += 10


@cases(x)
def exceptions(x: Tensor) -> Any:
    out: list[Any] = []
    for n in range(6):
        try:
            failing(n)
        except AppError as e:
            out.append((type(e).__name__, e.code, str(e), e.args, repr(e.__cause__)))
        except (KeyError, IndexError) as e:
            out.append((str(e), repr(e), isinstance(e, LookupError)))
        except Exception as e:
            out.append(f"{type(e).__name__}: {e}")
        else:
            out.append("else")
        finally:
            out.append(n)
    return x + 1, out


@cases(x)
def chained_exceptions(x: Tensor) -> Any:
    try:
        try:
            raise ValueError("a")
        except ValueError as e:
            try:
                raise KeyError("b") from e
            except KeyError as k:
                inner = (repr(k.__cause__), repr(k.__context__), k.__suppress_context__)
            raise
    except ValueError as e:
        outer = repr(e), repr(e.__context__)
        e.add_note("a note")
        notes = e.__notes__
    try:
        raise TypeError("t") from None
    except TypeError as e:
        none = e.__suppress_context__, e.__cause__
    return x + 1, inner, outer, notes, none


def returning(log: Any, n: int) -> Any:
    for i in range(3):
        try:
            if n == 0:
                return "returned"
            if n == 1:
                continue
            if n == 2:
                break
        finally:
            log.append((n, i))
    else:
        return "else"
    return "broke"


@cases(x)
def finally_orders(x: Tensor) -> Any:
    log: list[Any] = []
    return x + 1, [returning(log, n) for n in range(4)], log


@cases(x)
def exception_groups(x: Tensor) -> Any:
    out: list[Any] = []
    try:
        raise ExceptionGroup("group", [ValueError("v"), TypeError("t"), ExceptionGroup("in", [KeyError("k")])])
    except* ValueError as e:
        out.append([str(i) for i in e.exceptions])
    except* (TypeError, KeyError) as e:
        out.append(len(e.exceptions))
    try:
        raise KeyError("naked")
    except* KeyError as e:
        out.append(type(e).__name__)
    return x + 1, out


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = 0


class Plain:
    __match_args__ = ("a",)

    def __init__(self, a: Any) -> None:
        self.a = a


def matched(v: Any) -> Any:
    match v:
        case 0 | 1:
            return "small"
        case int(n) if n > 100:
            return ("big", n)
        case str() as s:
            return s.upper()
        case -1.5 | 2j:
            return "odd"
        case None | True:
            return "single"
        case [1, 2]:
            return "one two"
        case [a, [b, *inner], *rest]:
            return (a, b, inner, rest)
        case [Point(x=0, y=yy)]:
            return ("origin-ish", yy)
        case (only,):
            return ("only", only)
        case []:
            return "empty"
        case {"op": "add", "args": [l, r]}:
            return l + r
        case {"k": value, **others}:
            return (value, others)
        case Point(0, 0):
            return "origin"
        case Point(px, py=_) if False:
            return px
        case Point(px, 5):
            return ("five", px)
        case Plain(Point(q)):
            return ("nested", q)
        case float(f):
            return f * 2
        case bytes():
            return "bytes"
        case torch.float32 | torch.float64:
            return "dtype"
        case _:
            return "other"


@cases(x)
def match_statements(x: Tensor) -> Any:
    values = [0, 1, 500, 50, "word", -1.5, 2j, None, True, [1, 2], [1, [2, 3, 4], 5], (1, (2,)), [Point(0, 9)], (7,), [], {"op": "add", "args": [x, 1]}, {"k": 1, "z": 2}]  # fmt: skip
    values += [Point(0, 0), Point(3, 5), Point(1, 1), Plain(Point(x)), 2.5, b"z", torch.float32, {1, 2}]
    return x + 1, [matched(v) for v in values]


@cases(x)
def unpacking(x: Tensor) -> Any:
    a, *b, c = [x, 1, 2, 3]
    (d, e), [f, *g] = (1, 2), "abc"
    h, i = i, h = 5, 6  # noqa: F841
    first, *_ = {"k": 1, "l": 2}
    m = {**{"a": 1}, "b": 2, **dict(c=3)}
    n = [*range(2), *"ab", *(x,)]
    o = (*n, *[1])
    p, q = x
    *r, s = x.shape
    try:
        t, u = [1]
    except ValueError as err:
        t = str(err)
    try:
        t2, u2 = 1, *[1, 2]
    except ValueError as err:
        t2 = str(err)
    try:
        a2, *b2, c2 = [1]
    except ValueError as err:
        a2 = str(err)
    return a, b, c, d, e, f, g, h, i, first, m, n, o, p + q, r, s, t, t2, a2, {*[1, 2], 3}


def every(a: Any, b: Any = 2, /, c: Any = 3, *args: Any, d: Any, e: Any = 5, **kwargs: Any) -> Any:
    return a, b, c, args, d, e, kwargs


def only_keywords(*, k: Any = 1) -> Any:
    return k


@cases(x)
def arguments(x: Tensor) -> Any:
    errors = []
    for call in (
        lambda: every(),
        lambda: every(1),
        lambda: every(1, b=3, d=1),
        lambda: every(1, 2, 3, c=4, d=5),
        lambda: only_keywords(1),
        lambda: only_keywords(z=1),
        lambda: (lambda q: q)(),
        lambda: (lambda q, r=1: q)(1, 2, 3),
        lambda: Point(),
        lambda: every(1, **{"d": 2}, **{"d": 3}),
    ):
        try:
            errors.append(call())
        except TypeError as e:
            errors.append(str(e))
    return (
        x + 1,
        every(x, d=1),
        every(1, 2, 3, 4, 5, d=6, z=7),
        every(*[1, 2], **{"d": 3, "q": 4}),
        every(1, d=1, b=9),
        errors,
    )


@cases(x)
def argument_names(x: Tensor) -> Any:
    defaults: list[Any] = []

    def collect(item: Any, into: Any = defaults) -> Any:
        into.append(item)
        return into

    def shadow(len: Any = 3) -> Any:
        return len + 1

    collect(1)
    return x + 1, collect(2), shadow(), collect.__defaults__, collect(3, into=[0])


@cases(x)
def closures(x: Tensor) -> Any:
    count = 0
    fns = []
    for i in range(3):
        fns.append(lambda v, i=i: v * i + count)

    def bump(by: int = 1) -> int:
        nonlocal count
        count += by
        return count

    def outer() -> Any:
        z = x

        def mid() -> Any:
            nonlocal z
            z = z + 1
            return lambda: z

        return mid

    bump()
    bump(5)
    get = outer()()
    late = [f(2) for f in fns]
    del fns
    return (
        get(),
        late,
        count,
        (lambda *a, **k: (a, k))(1, z=2),
        bump.__closure__ is not None,
        bump.__name__,
        bump.__qualname__,
    )


@cases(x)
def comprehensions(x: Tensor) -> Any:
    n = 10
    return (
        [x * i for i in range(2)], {i: j for i, j in enumerate("ab")}, {i % 2 for i in range(5)}, [(i, j) for i in range(3) for j in range(i) if i != j], [[k + n for k in range(i)] for i in range(3)],
        list(v for v in (w + n for w in range(2))), [y := 1, y**2], [last := i for i in range(3)], last, {k: [v for v in range(k)] for k in range(2)}, any((hit := v) > 1 for v in range(5)), hit, sum(1 for _ in "abc"), [i for i in range(9) if i % 2 if i > 3],
    )  # fmt: skip


@cases(x)
def walrus_and_conditions(x: Tensor) -> Any:
    out = []
    items = [3, 0, 5]
    while (v := items.pop()) or len(items) > 1:
        out.append(v)
        if (w := v * 2) > 5 and (z := w - 1):
            out.append(z)
    a = x if out else None
    b = out[0] if len(out) > 9 else "short"
    chained = 1 < 2 < 3 != 4, 1 < 3 > 2 == 2, not 0, 0 or "x", 1 and "y", None is None, 3 not in [1]
    return a + 1, b, out, chained


@cases(x)
def loops(x: Tensor) -> Any:
    out = []
    for i in range(10):
        if i == 2:
            continue
        if i == 5:
            break
        out.append(i)
    else:
        out.append("never")
    while out:
        if out.pop() == 3:
            break
    else:
        out.append("no")
    for i, (a, *b) in enumerate([(1, 2, 3), "ab"]):
        out.append((i, a, b))
    for obj_attr in [Point(1)]:
        for obj_attr.y in range(3):
            pass
        out.append(obj_attr.y)
    total = x
    for row in x:
        total = total + row
    for k in {"a": 1}.items():
        out.append(k)
    return total, out, i


COUNTER = 0
TABLE: dict[str, Any] = {}


@cases(x, repeat=3)
def globals_written(x: Tensor) -> Any:
    global COUNTER
    COUNTER += 1
    TABLE["last"] = COUNTER
    c, COUNTER = COUNTER, 0
    return x * c, TABLE["last"]


@cases(x)
def local_names(x: Tensor) -> Any:
    a = 1
    del a
    try:
        return a  # noqa: F821
    except UnboundLocalError as e:
        text = str(e)
    try:
        undefined_name  # type: ignore[name-defined]  # noqa: B018, F821
    except NameError as e:
        text += str(e)
    return x + 1, text


@cases(x, graphs=None, breaks=None)  # pytest rewrites them
def assertions(x: Tensor) -> Any:
    dims = x.dim()
    assert dims == 2, "dims"
    try:
        assert dims == 3, f"dims {dims}"
    except AssertionError as e:
        return x + 1, str(e), e.args
    return None


@cases(x)
def augmented(x: Tensor) -> Any:
    a = [1]
    alias = a
    a += [2]
    a *= 2
    d = {"k": 1}
    d["k"] += 5
    d |= {"z": 1}
    s = {1}
    s |= {2}
    s -= {1}
    t = (1,)
    t += (2,)
    p = Point([1])
    p.x += [2]
    n = 7
    n //= 2
    n **= 2
    n <<= 1
    n ^= 3
    n %= 7
    y = x.clone()
    z = y
    y += 1
    y[0] *= 2
    y[:, 1] = 5
    return y, z is y, alias is a, a, d, s, t, p, n


@cases(x)
def sliced(x: Tensor) -> Any:
    a = list(range(10))
    a[2:4] = ["x"]
    del a[::3]
    a[1:1] = [9, 9]
    b = a[::-1]
    c = a[-3:]
    del a[0], a[-1]
    n = [[0] * 2 for _ in range(2)]
    n[1][0] = x
    return (
        x[..., 0],
        x[:, 1:],
        x[None].shape,
        x[-1],
        x[0, 1],
        x[[0, 1]],
        x[torch.tensor([1])],
        x[x > 2] if False else 0,
        a,
        b,
        c,
        n,
        "abc"[1:],
        (1, 2, 3)[::2],
        range(5)[1:3],
    )


def star(fn: Any, *args: Any, **kwargs: Any) -> Any:
    return fn(*args, **kwargs)


@cases(x)
def functions_as_values(x: Tensor) -> Any:
    table = {"relu": torch.relu, "id": lambda t: t, "neg": x.neg, "len": len}
    compose = lambda *fs: lambda v: [v := f(v) for f in fs][-1]  # noqa: E731
    fact = lambda n: 1 if n < 2 else n * fact(n - 1)  # noqa: E731
    return (
        table["relu"](x),
        table["neg"](),
        star(torch.add, x, 1, alpha=2),
        compose(torch.sin, torch.cos)(x),
        fact(5),
        star(sorted, [2, 1], reverse=True),
        [f(-1) for f in (abs, str, float)],
        (lambda: (yield))().__class__.__name__,
    )


class Tree:
    def __init__(self, v: Any, *kids: Any) -> None:
        self.v, self.kids = v, kids

    def walk(self) -> Iterator[Any]:
        yield self.v
        for kid in self.kids:
            yield from kid.walk()

    def depth(self) -> int:
        return 1 + max((k.depth() for k in self.kids), default=0)


@cases(x)
def recursion(x: Tensor) -> Any:
    t = Tree(x, Tree(x + 1, Tree(1)), Tree(2))
    total = x
    for v in t.walk():
        total = total + v
    return total, t.depth()


@cases(x)
def nested_contexts(x: Tensor) -> Any:
    log: list[Any] = []

    @contextlib.contextmanager
    def step(name: Any) -> Any:
        log.append(f"+{name}")
        try:
            yield name
        finally:
            log.append(f"-{name}")

    def work() -> Any:
        with step("a") as a, step("b"):
            for i in range(3):
                with step(i):
                    if i == 1:
                        return a
        return None

    try:
        with step("q"):
            raise KeyError("in")
    except KeyError as e:
        log.append(repr(e))
    return x + 1, work(), log


@cases(x)
def del_statements(x: Tensor) -> Any:
    d = {"a": 1, "b": 2}
    del d["a"]
    p = Point(1)
    del p.x
    items = [1, 2, 3]
    del items[0], items[-1:]
    (a, b) = (1, 2)
    del a, (b)
    return x + 1, d, hasattr(p, "x"), items


@cases(x)
def string_concatenation(x: Tensor) -> Any:
    name = "layer"
    s = ""
    for i in range(3):
        s += f"{name}.{i}" + ("," if i < 2 else "")
    return x + len(s), s, "ab", name * 2, s.split(",")[::-1], "%d items" % len(s)


async def coroutine(x: Tensor) -> Any:
    return x + 1


@cases(x, graphs=None, breaks=None)
def coroutines(x: Tensor) -> Any:
    c = coroutine(x)
    try:
        c.send(None)
    except StopIteration as stop:
        return stop.value
    return None


@cases(x, graphs=None, breaks=None)
def dynamic_code(x: Tensor) -> Any:
    a = 3
    names = sorted(locals())
    b = eval("a + 1")
    scope: dict[str, Any] = {}
    exec("def f(t):\n    return t * 2", scope)
    return scope["f"](x), names, b, sys._getframe().f_code.co_name, "x" in vars(), "COUNTER" in globals()


@pytest.mark.parametrize("case", cases, ids=cases.names)
def test_syntax(case: Case) -> None:
    case.check()
