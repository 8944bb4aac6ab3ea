"""Programs about the standard library: text, numbers, containers, functools, itertools, contexts, state of the process."""

import array
import base64
import bisect
import calendar
import cmath
import collections
import contextlib
import contextvars
import datetime
import decimal
import fractions
import functools
import hashlib
import heapq
import inspect
import itertools
import json
import keyword
import logging
import math
import numbers
import operator
import os
import pathlib
import platform
import pprint
import random
import re
import reprlib
import statistics
import string
import struct
import sys
import textwrap
import threading
import time
import types
import uuid
import warnings
import weakref
from typing import Any

import pytest
import torch
from cases import Case, Cases
from torch import Tensor

x = torch.arange(6.0).reshape(2, 3)
cases = Cases()


class Named:
    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"<{self.name}>"

    def __repr__(self) -> str:
        return f"Named({self.name!r})"

    def __format__(self, spec: str) -> str:
        return f"{self.name}:{spec}"


@cases(x, Named("q"), "word", 7, 2.5)
def formatting(x: Tensor, o: Any, s: str, n: int, f: float) -> Any:
    width = 8
    return (
        x + 1, f"{s:>10}|{n:05d}|{f:.3e}|{s!r:^{width}}|{n=}|{f=:.1f}|{o}|{o!r}|{o!s:>6}|{o:abc}|{n:,}|{n:#x}|{1e6:_.2f}",
        "%s %r %5d %-5s| %05.2f %% %x %c" % (s, s, n, s, f, n, "z"), "%(a)s-%(b)03d" % {"a": s, "b": n}, "%s" % o, "%r and %s" % (o, o),
        "{} {!r} {:>4}".format(s, s, n), "{0} {1} {0}".format(s, n), "{a.name} {b[0]} {c[k]}".format(a=o, b=[n], c={"k": f}),
        "{:{}}".format(s, 10), "{!s}".format(o), "{:zz}".format(o), format(f, ".1f"), format(o, "x"), str(o), repr([o, s, n]), str({"a": o}), repr((o,)), ascii("é"),
        f"{x.shape}", f"{tuple(x.shape)} {x.dtype} {x.device}", str(x.dtype), "{}".format(x.shape), f"{x.ndim}d", f"{[1, 2]} { {'a': 1} } {None} {True}",
        "%s" % (x.shape,), "%s" % [1, 2], "%d%%" % 5, f"{'a' 'b'}{'{'}{{}}", f"{f!r:>10}", f"{n:{width}d}", f"{s[:2].upper()}", "%*d" % (5, n),
    )  # fmt: skip


@cases(x, "Hello World", b"bytes")
def string_methods(x: Tensor, s: str, b: bytes) -> Any:
    return (
        x + len(s), s.lower(), s.upper(), s.title(), s.swapcase(), s.split(), s.split("o", 1), s.rsplit(None, 1), s.partition(" "), s.replace("l", "L"),
        s.find("o"), s.rfind("o"), s.index("W"), s.count("l"), s.startswith(("He", "x")), s.endswith("d"), s.strip("Hd"), s.lstrip("H"), s.rstrip("d"),
        s.center(20, "*"), s.ljust(15), s.rjust(15), s.zfill(15), s.encode(), s.isalpha(), s.isdigit(), s.isspace(), s.casefold(), "a\tb".expandtabs(4),
        ",".join(["a", "b"]), ",".join(c for c in s if c.isupper()), s[::-1], s[1:4], s * 2, "x" in s, s.removeprefix("He"), s.removesuffix("ld"),
        s.translate(str.maketrans("lo", "01")), "a\nb".splitlines(), s < "I", sorted(s), list(s), set("aab") == {"a", "b"}, max(s), ord("a"), chr(98),
        b.decode(), b.hex(), b[0], b[1:3], b + b"x", bytes([1, 2]), b.split(b"t"), b.upper(), bytes.fromhex("00ff"), b.find(b"t"), list(b), int.from_bytes(b"\x01\x02", "big"),
        (258).to_bytes(2, "little"), "abc".isidentifier(), s.format(), "{}".join(["a", "b"]), "é".encode("utf8"), str(b, "ascii"), s.istitle(), "12".isnumeric(),
    )  # fmt: skip


@cases(x, graphs=None, breaks=None)
def text_modules(x: Tensor) -> Any:
    t = string.Template("$a and ${b}")
    return (
        x + 1, t.substitute(a=1, b="q"), t.safe_substitute(a=2), textwrap.dedent("  a\n  b"), textwrap.indent("a\nb", "> "), textwrap.shorten("hello world foo", 11),
        string.ascii_letters[:3], string.digits, string.capwords("a b"), json.dumps({"a": [1, 2.5, None, True], "b": "q"}, sort_keys=True), json.loads('{"a": [1, 2]}'),
        re.match(r"(\w+)\.(\d+)", "layer.12").groups(), re.sub(r"\d+", "#", "a1b22"), re.findall(r"[a-z]+", "ab1cd"), bool(re.search("x", "abc")), re.split(r",\s*", "a, b,c"),
        re.compile("a+").fullmatch("aaa") is not None, re.match("(?P<k>a)", "ab").group("k"), re.escape("a.b"), keyword.iskeyword("for"), pprint.pformat({"a": 1}), textwrap.wrap("aa bb cc", 5),
        reprlib.repr("a" * 100), textwrap.fill("aa bb cc", 5), base64.b64encode(b"abc"), hashlib.md5(b"abc").hexdigest(), string.Formatter().format("{0}-{a}", 1, a=2),
    )  # fmt: skip


PATTERN = re.compile(r"^layers\.(\d+)\.(.*)$")


@cases(x, ["layers.0.w", "head", "layers.12.b"])
def regular_expressions(x: Tensor, names: Any) -> Any:
    found = {}
    for name in names:
        if m := PATTERN.match(name):
            found.setdefault(int(m.group(1)), []).append((m[2], m.start(2), m.groupdict()))
    return (
        x * len(found),
        found,
        PATTERN.pattern,
        PATTERN.sub(r"\1", names[0]),
        [m.group() for m in re.finditer(r"\w", "a b")],
    )


@cases(x, 7, 2.5, graphs=None, breaks=None)
def numbers_of_all_kinds(x: Tensor, n: int, f: float) -> Any:
    return (
        x * n + f, n.bit_length(), f.is_integer(), f.as_integer_ratio(), (-n) // 2, -n % 3, divmod(-n, 2), n**2, 2**-1, n / 2, round(f), round(2.675, 2), n & 3, n | 8, n ^ 5, ~n,
        n << 2, n >> 1, int("12"), int("ff", 16), float("1e3"), complex(1, 2).conjugate(), abs(-3 + 4j), (1 + 2j).real, bool(n), 1_000, 0x1F, 0b11, hash(n), n.numerator, f.hex(), float.fromhex("0x1p-1"),
        math.sqrt(f), math.floor(f), math.ceil(f), math.log(n, 2), math.gcd(12, 18), math.lcm(4, 6), math.prod([1, 2, 3]), math.isclose(0.1 + 0.2, 0.3), math.inf, math.nan != math.nan, math.comb(5, 2), math.perm(5, 2),
        math.factorial(5), math.hypot(3, 4), math.atan2(1, 2), math.fsum([0.1] * 3), math.dist([0, 0], [3, 4]), math.copysign(1, -0.0), math.frexp(8.0), math.modf(2.5), math.trunc(-2.5), math.isqrt(17), math.erf(0.5), math.tau, math.degrees(1),
        cmath.exp(1j), cmath.phase(1j), cmath.polar(1 + 1j), min(n, f), max([n, f]), sum([n, f]), sum([[1], [2]], []), isinstance(n, numbers.Integral), isinstance(f, numbers.Real), pow(n, 3, 5), bin(n), hex(255), oct(8),
        fractions.Fraction(1, 2) + 1 == fractions.Fraction(3, 2), decimal.Decimal("1.5") * 2 == decimal.Decimal("3.0"), statistics.mean([1, 2, 3]), struct.pack("<i", 5), struct.unpack("<i", b"\x05\0\0\0"), struct.calcsize("if"), sys.maxsize > 5, sys.float_info.epsilon,
    )  # fmt: skip


@cases(x)
def heaps_and_bisection(x: Tensor) -> Any:
    h: list[Any] = []
    for n in (5, 1, 4):
        heapq.heappush(h, (n, "k"))
    a = [1, 3, 5]
    bisect.insort(a, 4)
    h2 = [3, 1, 2]
    heapq.heapify(h2)
    return (
        x + heapq.heappop(h)[0], h, heapq.nlargest(2, [1, 5, 3]), heapq.nsmallest(2, [4, 1, 3], key=lambda v: -v), heapq.heappushpop(h2, 0), heapq.heapreplace(h2, 9), h2,
        bisect.bisect_left(a, 3), bisect.bisect(a, 3), bisect.bisect_right(a, 9), a, list(heapq.merge([1, 4], [2, 3])), bisect.bisect_left([(1, 2), (3, 4)], 3, key=lambda p: p[0]),
    )  # fmt: skip


@cases(x, collections.deque([1, 2], maxlen=3), repeat=1)
def deques(x: Tensor, outside: Any) -> Any:
    d = collections.deque([x, 2], maxlen=3)
    d.append(3)
    d.appendleft(0)
    d.rotate(1)
    d.extend([7, 8])
    e = collections.deque("abc")
    e.insert(1, "z")
    e.remove("b")
    e += ["q"]
    outside.append(5)
    outside.appendleft(6)
    total = sum(outside)
    return (
        x + total,
        d,
        e,
        e.index("z"),
        e.count("a"),
        list(reversed(e)),
        e[0],
        e[-1],
        "z" in e,
        len(e),
        e.copy() == e,
        list(outside),
        outside.maxlen,
        outside[0],
        bool(outside),
        e.pop(),
        e.popleft(),
    )


class History:
    def __init__(self) -> None:
        self.items: Any = collections.deque(maxlen=2)


@cases(x, History(), graphs=3, repeat=5)
def deque_attribute(x: Tensor, h: Any) -> Any:
    h.items.append(x + 1)
    return sum(h.items)


@cases(x, collections.Counter("aab"), collections.OrderedDict(a=1, b=2), collections.defaultdict(list, a=[1]), repeat=1)
def collections_outside(x: Tensor, c: Any, o: Any, d: Any) -> Any:
    c.update("bcc")
    c["z"] += 5
    o.move_to_end("a")
    o["c"] = x
    first = o.popitem(last=False)
    d["new"].append(x)
    d["a"].append(2)
    return (
        x + c["a"],
        c.most_common(2),
        c["nope"],
        sum(c.values()),
        c.total(),
        first,
        list(o),
        list(reversed(o)),
        o == collections.OrderedDict(a=1),
        dict(d),
        sorted(c.elements())[:3],
        c.copy()["a"],
    )


@cases(x)
def collections_inside(x: Tensor) -> Any:
    c = collections.Counter([1, 2, 2, 3])
    c2 = c + collections.Counter([2]) - collections.Counter([1])
    o = collections.OrderedDict([("a", x), ("b", 2)])
    o.move_to_end("a")
    d = collections.defaultdict(lambda: collections.defaultdict(int))
    d["q"]["z"] += 3
    m = collections.ChainMap({"a": 1}, {"a": 2, "b": x})
    child = m.new_child({"c": 3})
    child["d"] = 4
    u = collections.UserDict({"a": 1})
    u["b"] = 2
    ul = collections.UserList([1, 2])
    ul.append(3)
    c.subtract([1, 1])
    return (
        x + c[2], c, c2, c & c2, c | c2, +c, c.most_common(), o, o.popitem(), d, m["b"], m["a"], list(m), child["a"], len(child), "d" in child, dict(child), child.maps[0], child.parents["a"],
        u["b"], len(u), list(u.items()), ul[-1], len(ul), ul + [4], collections.Counter(a=2) == collections.Counter(["a", "a"]), max(c, key=c.get), m.get("zz", 5),
    )  # fmt: skip


def base(a: Any, b: Any = 2, *, c: Any = 3) -> Any:
    """doc"""
    return a * b + c


@functools.lru_cache(maxsize=None)
def cached_number(n: int) -> int:
    return n * n


@functools.cache
def cached_table(n: int) -> Any:
    return [n, n + 1]


@functools.singledispatch
def shown(v: Any) -> Any:
    return "object"


@shown.register
def _(v: int) -> Any:
    return v + 1


@shown.register(list)
def _(v: Any) -> Any:
    return [shown(i) for i in v]


@shown.register(Tensor)
def _(v: Any) -> Any:
    return v * 2


class Dispatching:
    @functools.singledispatchmethod
    def go(self, v: Any) -> Any:
        return "base"

    @go.register
    def _(self, v: int) -> Any:
        return v + 10

    @functools.cached_property
    def table(self) -> Any:
        return [1, 2]

    @functools.lru_cache(maxsize=4)  # noqa: B019
    def slow(self, n: int) -> int:
        return n + 1


@cases(x, Dispatching(), graphs=2)
def functools_everything(x: Tensor, d: Any) -> Any:
    p = functools.partial(base, b=5)
    q = functools.partial(p, c=1)
    t = d.table
    return (
        p(x), q(x), q.func is base, q.keywords, functools.reduce(lambda a, b: a + b, [x, x, x]), functools.reduce(operator.mul, [1, 2, 3], 10), cached_number(4) + cached_number(4),
        shown(3), shown("a"), shown([1, [2]]), shown(x), d.go(5), d.go("s"), t, t is d.table, functools.cmp_to_key(lambda a, b: b - a)(3) < functools.cmp_to_key(lambda a, b: b - a)(2),
        sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a)), d.slow(4), q.args, base.__doc__, functools.partial(torch.add, x)(1),
    )  # fmt: skip


@cases(x, graphs=None, breaks=None)
def cached_identity(x: Tensor) -> Any:
    a, b = cached_table(3), cached_table(3)
    return x + a[0], a is b


def twice(fn: Any) -> Any:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs) * 2

    return wrapper


def scale_by(k: int) -> Any:
    def deco(fn: Any) -> Any:
        @functools.wraps(fn)
        def inner(*args: Any, **kwargs: Any) -> Any:
            inner.calls += 1
            return fn(*args, **kwargs) * k

        inner.calls = 0
        return inner

    return deco


@twice
@scale_by(3)
def decorated(a: Any, *, b: int = 1) -> Any:
    """The doc."""
    return a + b


@cases(x, repeat=1)
def decorators(x: Tensor) -> Any:
    @scale_by(2)
    @twice
    def inner(a: Any) -> Any:
        return a + 1

    return (
        decorated(x, b=4),
        inner(x),
        inner.calls,
        decorated.__name__,
        decorated.__doc__,
        inner.__wrapped__.__name__,
        decorated.__wrapped__.__wrapped__(x),
    )


@cases(x)
def itertools_everything(x: Tensor) -> Any:
    a, b = itertools.tee([1, 2, 3])
    c = itertools.count(5, 2)
    groups = [(k, list(g)) for k, g in itertools.groupby([1, 1, 2, 3, 3], key=lambda v: v % 2)]
    cyc = itertools.cycle([x, x + 1])
    return (
        next(cyc) + next(cyc), list(a), list(b), next(c), next(c), groups, list(itertools.islice(itertools.count(), 2, 8, 2)), list(itertools.chain([1], (2,), "a")), list(itertools.chain.from_iterable([[1], [2]])),
        list(itertools.product([1, 2], "ab")), list(itertools.product([0, 1], repeat=2)), list(itertools.permutations([1, 2, 3], 2)), list(itertools.combinations("abc", 2)), list(itertools.combinations_with_replacement([1, 2], 2)),
        list(itertools.accumulate([1, 2, 3])), list(itertools.accumulate([1, 2, 3], operator.mul, initial=2)), list(itertools.takewhile(lambda v: v < 3, [1, 2, 3, 1])), list(itertools.dropwhile(lambda v: v < 3, [1, 3, 1])),
        list(itertools.filterfalse(lambda v: v % 2, [1, 2, 3])), list(itertools.compress("abc", [1, 0, 1])), list(itertools.starmap(pow, [(2, 3), (3, 2)])), list(itertools.zip_longest([1], [2, 3], fillvalue=0)), list(itertools.repeat(x, 2)),
        list(itertools.pairwise([1, 2, 3])), list(zip([1, 2], "ab", strict=True)), list(map(lambda a, b: a + b, [1, 2], [3, 4])), list(filter(None, [0, 1, "", "a"])), list(enumerate("ab", start=1)), list(reversed([1, 2])), any([0, 1]), all([]),
        next(iter([]), "default"), list(iter([1, 2].pop, None))[:0] if False else 0, dict(zip("ab", [1, 2])), [*range(3)], sum(v for v in range(4)), max((3, "a"), (2, "b")), min([[2], [1, 5]]), sorted({"b": 1, "a": 2}.items(), key=lambda kv: kv[1]),
    )  # fmt: skip


class Box:
    def __init__(self, **kw: Any) -> None:
        self.__dict__.update(kw)

    def times(self, n: Any, *, plus: Any = 0) -> Any:
        return self.t * n + plus


@cases(x)
def operator_everything(x: Tensor) -> Any:
    b = Box(t=x, sub=Box(v=3), items=[1, 2])
    get = operator.attrgetter("sub.v")
    two = operator.attrgetter("t", "items")
    item = operator.itemgetter(1)
    call = operator.methodcaller("times", 2, plus=1)
    items = [1, 2, 3]
    items = operator.iadd(items, [4])
    d = {"a": 1}
    operator.setitem(d, "b", 2)
    operator.delitem(d, "a")
    return (
        call(b), get(b), two(b)[1], item([5, 6]), operator.itemgetter(0, 2)("abc"), operator.itemgetter(slice(1, 3))([1, 2, 3]), items, d, operator.add(x, 1), operator.matmul(x, x.T), operator.neg(x), operator.truth([]), operator.not_(1),
        operator.concat([1], [2]), operator.contains([1], 1), operator.countOf([1, 1, 2], 1), operator.indexOf([1, 2], 2), operator.is_(b, b), operator.getitem(x, 0), operator.xor(5, 3), operator.inv(5), operator.floordiv(7, 2), operator.lt(1, 2), operator.abs(-3),
        operator.index(3), operator.length_hint([1, 2]), sorted([(2, "a"), (1, "b")], key=operator.itemgetter(0)), list(map(operator.attrgetter("v"), [Box(v=1), Box(v=2)])), operator.pow(2, 3), operator.imul(3, 4),
    )  # fmt: skip


@cases(x, graphs=None, breaks=None)
def contexts(x: Tensor) -> Any:
    log: list[Any] = []

    @contextlib.contextmanager
    def managed(name: str) -> Any:
        log.append("in " + name)
        try:
            yield name.upper()
        except ValueError as e:
            log.append(repr(e))
        finally:
            log.append("out " + name)

    class Closing:
        def close(self) -> None:
            log.append("closed")

    class Deco(contextlib.ContextDecorator):
        def __enter__(self) -> Any:
            log.append("enter")
            return self

        def __exit__(self, *exc: Any) -> bool:
            log.append("exit")
            return False

    @Deco()
    def decorated(v: Any) -> Any:
        return v + 1

    with contextlib.ExitStack() as stack:
        names = [stack.enter_context(managed(n)) for n in "ab"]
        stack.callback(log.append, "callback")
        stack.push(lambda *exc: log.append("pushed") or False)
    with contextlib.suppress(KeyError, IndexError):
        [][1]
    with managed("c"), managed("d") as d:
        raise ValueError("boom")
    with contextlib.closing(Closing()), contextlib.nullcontext(5) as five:
        log.append(five)
    return x + 1, decorated(x), names, d, log


@cases(x)
def exit_stack_moves(x: Tensor) -> Any:
    log: list[Any] = []
    with contextlib.ExitStack() as stack:
        stack.callback(log.append, 1)
        kept = stack.pop_all()
    kept.close()
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(log.append, 2)
            raise KeyError("k")
    except KeyError as e:
        log.append(str(e))
    return x + 1, log


@cases(x)
def tracebacks_passed_on(x: Tensor) -> Any:
    log: list[Any] = []
    try:
        try:
            raise KeyError("k")
        except KeyError as e:
            log.append(e.__traceback__ is None)
            raise ValueError("v").with_traceback(e.__traceback__) from e
    except ValueError as e:
        log.append(isinstance(e.__traceback__, types.TracebackType))
        again = e.with_traceback(e.__traceback__)
        log.append(again is e)
        details = type(e), e, e.__traceback__
    return x + 1, log, details[0]


@cases(x, graphs=None, breaks=None)
def tracebacks_dropped(x: Tensor) -> Any:
    made = ValueError("never raised")
    log = [made.__traceback__ is None]
    try:
        raise made
    except ValueError as e:
        e.__traceback__ = None
        log.append(e.__traceback__ is None)
    try:
        raise made
    except ValueError as e:
        log.append(e.with_traceback(None).__traceback__ is None)
    try:
        raise made
    except ValueError as e:
        log.append(e.__traceback__ is None)
    return x + 1, log


VAR: contextvars.ContextVar[Any] = contextvars.ContextVar("VAR", default=3)
LOCAL = threading.local()
LOCAL.scale = 4


@cases(x, graphs=None, breaks=None)
def context_variables(x: Tensor) -> Any:
    token = VAR.set(5)
    y = x * VAR.get()
    VAR.reset(token)
    return y + VAR.get(), VAR.name


@cases(x, graphs=None, breaks=None)
def thread_locals(x: Tensor) -> Any:
    LOCAL.temp = x + 1
    return x * LOCAL.scale, getattr(LOCAL, "nope", 2), LOCAL.temp


@cases(x, graphs=None, breaks=None)
def process_facts(x: Tensor) -> Any:
    return (
        x + 1, sys.version_info >= (3, 8), sys.version_info.major, sys.platform, sys.byteorder, os.name, os.sep, os.environ.get("NOPE_NOPE"), "HOME" in os.environ, os.getenv("NOPE", "d"), os.environ.get("HOME"), sys.maxsize, platform.system(),
        os.path.join("a", "b"), os.path.basename("/a/b.c"), os.path.splitext("x.py"), os.path.dirname("/a/b"), os.path.isabs("/a"), os.path.normpath("/a/../b"), __name__, __debug__, str(pathlib.PurePosixPath("a") / "b"), sys.implementation.name, torch.__version__, len(sys.argv) > 0,
        os.fspath("a"), os.path.split("/a/b"), os.environ["HOME"],
    )  # fmt: skip


@cases(x, graphs=None, breaks=None)
def signatures(x: Tensor) -> Any:
    s = inspect.signature(base)
    bound = s.bind(1, c=4)
    bound.apply_defaults()
    return (
        x + 1,
        list(s.parameters),
        s.parameters["b"].default,
        bound.arguments,
        "c" in s.parameters,
        inspect.isfunction(base),
        inspect.isclass(Box),
        inspect.getdoc(base),
        s.parameters["c"].kind.name,
        str(s),
        callable(base),
        inspect.getmodule(base) is None,
        inspect.ismodule(math),
    )


class Target:
    def __init__(self, v: Any) -> None:
        self.v = v

    def get(self) -> Any:
        return self.v


TARGET = Target(3)
REF = weakref.ref(TARGET)
WKD: Any = weakref.WeakKeyDictionary({TARGET: 5})
WVD: Any = weakref.WeakValueDictionary({"k": TARGET})
WSET: Any = weakref.WeakSet([TARGET])
PROXY: Any = weakref.proxy(TARGET)


@cases(x)
def weak_references(x: Tensor) -> Any:
    t = TARGET
    return x * REF().v, REF() is t


@cases(x, graphs=None, breaks=None)
def weak_references_inside(x: Tensor) -> Any:
    t = Target(x)
    r = weakref.ref(t)
    return r().v + 1, r() is t


@cases(x, graphs=None, breaks=None)
def weak_containers(x: Tensor) -> Any:
    return x * WKD[TARGET] * WVD["k"].v, TARGET in WSET, len(WKD)


@cases(x, graphs=None, breaks=None)
def weak_proxies(x: Tensor) -> Any:
    return x * PROXY.v + PROXY.get()


@cases(x, graphs=None, breaks=None, never_repeats="dates are guarded by value, and the clock goes on")
def clocks(x: Tensor) -> Any:
    start = time.time()
    y = x + 1
    took = time.perf_counter() - time.perf_counter()
    return y * 2, time.time() >= start, took <= 0, datetime.datetime.now().year > 2000, time.monotonic() > 0


@cases(x, graphs=None, breaks=None)
def random_numbers(x: Tensor) -> Any:
    a = random.random()
    b = random.randint(1, 10)
    y = x * a + b
    items = [1, 2, 3]
    random.shuffle(items)
    r = random.Random(5)
    return (
        y,
        random.choice([1, 2, 3]),
        items,
        random.uniform(0, 1),
        random.gauss(0, 1),
        random.sample(range(10), 3),
        r.random(),
        random.getrandbits(4),
    )


@cases(x, graphs=None, breaks=None)
def warned(x: Tensor) -> Any:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        y = x + 1
        warnings.warn("careful", UserWarning)
        y = y * 2
    return y, [str(w.message) for w in seen]


LOGGER = logging.getLogger("dynajit_test_logger")


@cases(x)
def logged(x: Tensor) -> Any:
    LOGGER.debug("value %s", x.shape)
    y = x + 1
    if LOGGER.isEnabledFor(logging.DEBUG):
        y = y + 1
    LOGGER.info("done")
    return y


@cases(x, graphs=None, breaks=None)
def other_modules(x: Tensor) -> Any:
    return (
        x + 1, array.array("i", [1, 2]).tolist(), datetime.timedelta(days=1).total_seconds(), datetime.date(2020, 1, 2).isoformat(), calendar.isleap(2020), uuid.UUID(int=5).hex[-1], types.SimpleNamespace(a=1).a, isinstance(base, types.FunctionType),
        isinstance(x.sum, types.BuiltinMethodType), sys.intern("a"), sys.getsizeof(1) > 0, bytearray(b"ab")[0], memoryview(b"ab")[1], slice(1, 5, 2).indices(4), range(10)[2:5], range(3) == range(0, 3), len(range(0, 10, 3)), 5 in range(10), range(5).index(3), complex("1+2j"), frozenset([1]) | {2},
    )  # fmt: skip


@pytest.mark.parametrize("case", cases, ids=cases.names)
def test_library(case: Case) -> None:
    case.check()
