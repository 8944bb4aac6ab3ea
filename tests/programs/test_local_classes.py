# mypy: ignore-errors
# (programs as users write them, without annotations)
"""Classes defined inside of functions: one graph while they stay inside, another class at each call where they leave.

Methods on tensors, inheritance, super(), closures, properties, decorators, dataclasses.
"""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import functools
import time
import typing
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dynajit
from dynajit.testing import assert_same

G = []


class Base:
    def f(self, y):
        return y * 2

    @classmethod
    def c(cls, y):
        return y + len(cls.__name__)


def plain(x):

    class A:
        k = 3

        def __init__(self, v):
            self.v = v

        def f(self, y):
            return self.v * y + self.k

    return A(x.sin()).f(x).cos()


def cached(x):

    class A:
        def __init__(self, v):
            self.v, self.made = v, 0

        @functools.cached_property
        def doubled(self):
            self.made += 1
            return self.v * 2

    a = A(x.sin())
    return a.doubled + a.doubled * A(x).doubled, a.made


def inherit(x):

    class A(Base):
        def f(self, y):
            return super().f(y) + 1

    class B(A):
        def f(self, y):
            return super().f(y) * 3

    return B().f(x) + B.c(x)


def closure(x):
    y = x.sin()
    n = 2

    class A:
        def f(self):
            nonlocal n
            n += 1
            return y * n

    a = A()
    a.f()
    return a.f().cos() + n


def props(x):

    class A:
        def __init__(self, v):
            self._v = v

        @property
        def v(self):
            return self._v * 2

        @v.setter
        def v(self, w):
            self._v = w + 1

        @staticmethod
        def s(y: torch.Tensor) -> torch.Tensor:
            return y + 1

        @classmethod
        def c(cls, y):
            return cls(y)

        def __call__(self, y):
            return self.v + y

        def __add__(self, o):
            return A(self._v + o._v)

        def __len__(self):
            return 2

        def __bool__(self):
            return False

        def __eq__(self, o):
            return isinstance(o, A)

        __hash__ = None

    a = A.c(A.s(x))
    a.v = x
    b = a + a
    return (a(x) * len(a), b.v, not a, a == b, isinstance(b, A), type(b).__name__, A.__qualname__)


def data(x):

    @dataclasses.dataclass
    class P:
        a: torch.Tensor
        b: int = 2

        def area(self):
            return self.a * self.b

    p = P(x.sin())
    q = dataclasses.replace(p, b=4)
    return (p.area() + q.area(), [f.name for f in dataclasses.fields(P)])


def frozen(x):

    @dataclasses.dataclass(frozen=True)
    class P:
        a: torch.Tensor
        b: int = 2

    p = P(x.sin())
    try:
        p.b = 3
    except dataclasses.FrozenInstanceError as e:
        return (p.a * p.b, str(e))


def slots(x):

    class A:
        __slots__ = ("v",)

        def __init__(self, v):
            self.v = v

    a = A(x.sin())
    try:
        a.w = 3
    except AttributeError as e:
        return (a.v, str(e))


def abstract(x):

    class A(abc.ABC):
        @abc.abstractmethod
        def f(self, y): ...

    class B(A):
        def f(self, y):
            return y + 1

    try:
        A()
    except TypeError as e:
        return (B().f(x.sin()), str(e))


def returned(x):

    class A:
        def __init__(self, v):
            self.v = v

    y = x.sin()
    a = A(y)
    return (y.cos(), a.v, type(a).__name__)


def escapes(x):
    y = x.sin()

    class A:
        def f(self):
            return y * 2

    G.append(A())
    return G[-1].f().cos()


def escapes_class(x):
    y = x.sin()

    class A:
        k = 2

    return A


def escapes_method(x):
    y = x.sin()

    class A:
        def f(self):
            return y * 2

    return (A().f, A.f, y.cos())


def distinct(x):
    c = escapes_class(x)
    d = escapes_class(x)
    return (c is d, x.sin())


def over_break(x):
    y = x.sin()

    class A:
        def f(self, z):
            return y * z

    a = A()
    r = a.f(2)
    print("break")
    return a.f(r).cos()


def break_in_method(x):
    y = x.sin()

    class A:
        def f(self, z):
            z = y * z
            print("in")
            return z + 1

    return A().f(3).cos()


def class_write(x):

    class A:
        k = 2

    r = []
    for i in range(2):
        A.k += 1
        r.append(A.k)
    return (r, x * A.k)


def mutable_attr(x):

    class A:
        items = []

    A.items.append(x)
    A.items.append(2)
    return (len(A.items), A.items[0].sin())


def exc(x):

    class E(Exception):
        pass

    try:
        raise E("a")
    except E as e:
        return (x.sin(), e.args)


def exc_out(x):

    class E(ValueError):
        pass

    y = x.sin()
    raise E("a")


def loop(x):
    for i in range(3):

        class A:
            def f(self, z):
                return z + i

        x = A().f(x)
    return x.sin()


def loop_break(x):
    for i in range(3):

        class A:
            def f(self, z):
                return z + i

        x = A().f(x)
        print(i)
    return x.sin()


def registry(x):

    class A(Base):
        pass

    n = [c.__name__ for c in Base.__subclasses__()].count("A")
    return (x.sin(), n >= 1)


def mod(x):

    class M(nn.Module):
        def forward(self, y):
            return y * 2

    return M()(x.sin()).cos()


def meta(x):

    class M(type):
        def __call__(cls, *a):
            return super().__call__(*a)

    class A(metaclass=M):
        def __init__(self, v):
            self.v = v

    return A(x.sin()).v


def nested(x):

    class A:
        class B:
            def f(self, y):
                return y * 2

        def g(self, y):
            return A.B().f(y)

    return A().g(x.sin())


def factory(k):

    class A:
        def f(self, y):
            return y * k

    return A()


def uses_factory(x):
    return factory(2).f(x) + factory(3).f(x)


def annotated(x: torch.Tensor):

    class A:
        v: torch.Tensor
        k: int = 3

        def f(self, y: torch.Tensor) -> "A":
            return y * self.k

    return (A().f(x).sin(), sorted(A.__annotations__))


def holds_classes_and_functions(x):

    class A(Base):
        table = dict
        kind = torch.Tensor
        activate = torch.relu

        def f(self, y):
            return self.table(a=super().f(y))["a"]

    return A().f(A.activate(x)), isinstance(x, A.kind)


def dictkey(x):

    class A:
        pass

    d = {A: x.sin()}
    return d[A].cos()


def weak(x):

    class A:
        pass

    a = A()
    a.v = x.sin()
    r = weakref.ref(a)
    return r().v.cos()


def total(x):

    @functools.total_ordering
    class T:
        def __init__(self, v):
            self.v = v

        def __lt__(self, o):
            return self.v < o.v

        def __eq__(self, o):
            return self.v == o.v

    return (T(1) <= T(2), T(1) >= T(2), x.sin())


def named_tuple(x):
    P = collections.namedtuple("P", ["a", "b"], defaults=(2,))
    p = P(x.sin())
    return (p.a * p.b, P._fields, sorted(p._replace(b=4)._asdict()), P.__module__, P._make([1, 2]).b, p == P(p.a))


def typed_named_tuple(x):

    class P(typing.NamedTuple):
        a: torch.Tensor
        b: int = 3

        def product(self):
            return self.a * self.b

    return P(x.sin()).product(), P(x, 5).b


def enumeration(x):

    class E(enum.Enum):
        A = 1
        B = 2
        C = enum.auto()

        def twice(self):
            return self.value * 2

    return x.sin() * E.B.value, [e.name for e in E], E["A"].twice(), E(2) is E.B, len(E), E.C.value


def enumerations_of_numbers_and_texts(x):

    class N(enum.IntEnum):
        A = 1
        B = enum.auto()

    class T(enum.StrEnum):
        A = enum.auto()
        B = "bb"

    class F(enum.Flag):
        R = 1
        W = 2

    class S(str, enum.Enum):
        A = "a"

    y = {T.A: x, T.B: x.sin()}[T("bb")] * N.B
    return y, N.A < N.B, bool(F.R & (F.R | F.W)), S.A == "a"


def named_tuple_out(x):
    P = collections.namedtuple("P", "a b")
    return tuple(P(x.sin(), 1)), repr(P), hash(P) == 0


def enumeration_out(x):

    class E(enum.Enum):
        A = 1

    G.append(E.A)
    return x.sin(), G.pop().value


def enumeration_with_hooks(x):

    class E(enum.Enum):
        A = 1

        @classmethod
        def _missing_(cls, value):
            return cls.A

    return x.sin() * E(5).value


def clock_in_a_body(x):

    class A:
        t = time.perf_counter()

    return x.sin(), A.t > 0


def by_type(x):
    K = type("K", (Base,), {"k": 3, "__doc__": "made"})
    return K().f(x) * K.k, K.__name__, K.__module__, K.__doc__, isinstance(K(), Base)


def by_type_out(x):
    K = type("K", (), {"items": []})
    K.items.append(1)
    return x.sin(), len(K.items)


INSIDE = [
    by_type,
    holds_classes_and_functions,
    named_tuple,
    typed_named_tuple,
    enumeration,
    enumerations_of_numbers_and_texts,
    plain,
    cached,
    inherit,
    closure,
    props,
    data,
    frozen,
    slots,
    abstract,
    returned,
    distinct,
    loop,
    mod,
    uses_factory,
    annotated,
    dictkey,
    total,
]
LEAVES = [
    by_type_out,
    named_tuple_out,
    enumeration_out,
    enumeration_with_hooks,
    clock_in_a_body,
    escapes,
    over_break,
    class_write,
    mutable_attr,
    exc,
    exc_out,
    loop_break,
    registry,
    meta,
    nested,
    weak,
]
X = torch.arange(6.0)


@pytest.mark.parametrize("fn", INSIDE)
def test_a_class_that_stays_inside_is_in_the_one_graph(fn: Callable[..., Any]) -> None:
    assert_same(fn, X, repeat=4, graphs=1, breaks=0, recompiles=0)


@pytest.mark.parametrize("fn", LEAVES)
@pytest.mark.filterwarnings("ignore:dynajit")
def test_a_class_that_leaves_or_can_not_be_kept(fn: Callable[..., Any]) -> None:
    assert_same(fn, X, repeat=4, never_repeats="each call makes a class of its own")


def test_a_break_in_a_method() -> None:
    assert_same(break_in_method, X, repeat=4, graphs=2, breaks=1, recompiles=0)


@pytest.mark.parametrize("fn", [escapes_class, escapes_method])
def test_what_is_returned_is_another_at_each_call(fn: Callable[..., Any]) -> None:
    compiled = dynajit.compile(fn, backend="eager")
    first, second = compiled(X), compiled(X)
    kinds = [found if isinstance(found, type) else type(found[0].__self__) for found in (first, second)]
    assert kinds[0] is not kinds[1] and kinds[0].__qualname__ == kinds[1].__qualname__ == f"{fn.__name__}.<locals>.A"
    if fn is escapes_method:
        torch.testing.assert_close(first[0](), X.sin() * 2)


def test_the_whole_function_in_one_graph_or_none() -> None:
    torch.testing.assert_close(dynajit.compile(plain, backend="eager", fullgraph=True)(X), plain(X))
    with pytest.raises(dynajit.exc.Unsupported, match="defined in the function"):
        dynajit.compile(escapes_class, backend="eager", fullgraph=True)(X)


def test_no_subclass_stays_behind() -> None:
    import gc

    dynajit.compile(inherit, backend="eager")(X)
    gc.collect()
    assert Base.__subclasses__() == []


def test_attributes_are_found_in_the_bases_of_a_dataclass() -> None:
    def fn(x: Any) -> Any:
        @dataclasses.dataclass(match_args=False)
        class Left:
            a: int
            __match_args__ = ("b",)

        first = Left.__match_args__

        @dataclasses.dataclass(match_args=False)
        class Right(Left):
            z: int

        return x * 2, first, Right.__match_args__

    for _ in range(2):
        assert dynajit.compile(fn, backend="eager")(X)[1:] == fn(X)[1:]
