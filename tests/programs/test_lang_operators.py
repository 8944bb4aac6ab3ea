"""Programs about objects and operators: special methods, typing constructs, abstract classes, ordering, copying, namespaces."""

import abc
import collections
import collections.abc
import copy
import dataclasses
import functools
import numbers
import types
import typing
from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import pytest
import torch
from cases import Case, Cases
from torch import Tensor

x = torch.arange(6.0).reshape(2, 3)
cases = Cases()
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Key:
    name: str
    level: int = 0


class Vec:
    __slots__ = ("v",)

    def __init__(self, v: Any) -> None:
        self.v = v

    def __add__(self, o: Any) -> Any:
        if isinstance(o, Vec):
            return Vec(self.v + o.v)
        return NotImplemented

    def __radd__(self, o: Any) -> Any:
        return Vec(o + self.v)

    def __iadd__(self, o: Any) -> Any:
        self.v = self.v + 100
        return self

    def __mul__(self, o: Any) -> Any:
        return Vec(self.v * o)

    __rmul__ = __mul__

    def __matmul__(self, o: Any) -> Any:
        return self.v @ o.v.T

    def __pow__(self, o: Any, mod: Any = None) -> Any:
        return ("pow", o, mod)

    def __rpow__(self, o: Any) -> Any:
        return ("rpow", o)

    def __divmod__(self, o: Any) -> Any:
        return ("divmod", o)

    def __neg__(self) -> Any:
        return Vec(-self.v)

    def __abs__(self) -> Any:
        return Vec(abs(self.v))

    def __invert__(self) -> Any:
        return "inv"

    def __round__(self, n: Any = None) -> Any:
        return ("round", n)

    def __trunc__(self) -> int:
        return 4

    def __floor__(self) -> int:
        return 5

    def __ceil__(self) -> int:
        return 6

    def __int__(self) -> int:
        return 7

    def __float__(self) -> float:
        return 8.5

    def __complex__(self) -> complex:
        return 1j

    def __index__(self) -> int:
        return 1

    def __bool__(self) -> bool:
        return False

    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, int) and i >= 2:
            raise IndexError(i)
        return ("item", i)

    def __call__(self, *a: Any, **k: Any) -> Any:
        return (a, k)

    def __format__(self, spec: str) -> str:
        return f"<{spec}>"

    def __repr__(self) -> str:
        return "Vec()"

    def __lshift__(self, o: Any) -> Any:
        return ("<<", o)

    def __rand__(self, o: Any) -> Any:
        return ("rand", o)

    def __length_hint__(self) -> int:
        return 2


@cases(x)
def operators_of_users(x: Tensor) -> Any:
    import math
    import operator

    v = Vec(x)
    w = v
    w += 1
    return (
        (v + v).v, (1 + v).v, (v * 2).v, (2 * v).v, v @ Vec(x), v**2, pow(v, 2, 3), 2**v, divmod(v, 3), (-v).v, abs(v).v, ~v,
        round(v), round(v, 2), math.trunc(v), math.floor(v), math.ceil(v), int(v), float(v), complex(v), [10, 20][v], bool(v), len(v),
        v[0], v[1:2], v[..., None], list(v), ("item", 1) in v, v(1, k=2), f"{v:>5}", f"{v!r}", str(v), "%s" % v, "{:x}".format(v), v << 1, 3 & v,
        w is v, operator.index(v), list(reversed(v)), "{0!r:>8}".format(v), bin(v), hex(v), range(v),
    )  # fmt: skip


@cases(x)
def slots_classes(x: Tensor) -> Any:
    v = Vec(x)
    v.v = v.v + 1
    try:
        v.other = 1  # type: ignore[attr-defined]
    except AttributeError as e:
        return v.v, str(e), v
    return None


class Stack(Generic[T]):
    def __init__(self) -> None:
        self.items: list[T] = []

    def push(self, item: T) -> None:
        self.items.append(item)

    def pop(self) -> T:
        return self.items.pop()


class HasShape(Protocol):
    @property
    def shape(self) -> Any: ...


@typing.runtime_checkable
class Closable(Protocol):
    def close(self) -> None: ...


class File:
    def close(self) -> None:
        pass


class Pt(NamedTuple):
    a: Any
    b: int = 2

    def total(self) -> Any:
        return self.a + self.b

    @property
    def neg(self) -> Any:
        return -self.a


class Opts(typing.TypedDict, total=False):
    lr: float


@typing.overload
def scaled(t: Tensor, by: int) -> Tensor: ...


@typing.overload
def scaled(t: Tensor, by: str) -> Tensor: ...


def scaled(t: Any, by: Any) -> Any:
    return t * (len(by) if isinstance(by, str) else by)


@cases(x)
def typing_constructs(x: Tensor) -> Any:
    s: Stack[Tensor] = Stack()
    s.push(x)
    s2 = Stack[int]()
    s2.push(3)
    y = typing.cast(Tensor, s.pop())
    p = Pt(x)
    o: Opts = Opts(lr=0.5)
    a, b = p
    return (
        y * s2.pop(), p.total(), p.neg, p._replace(b=5), a + b, o["lr"], scaled(x, "ab"), isinstance(File(), Closable), isinstance(3, Closable),
        typing.get_origin(list[int]), typing.get_args(dict[str, int]), isinstance(3, int | str), isinstance([1], collections.abc.Sequence),
        typing.Optional[int] is not None, p == Pt(x, 2) if False else p[1], typing.TYPE_CHECKING, isinstance(x, (int, Tensor)),
    )  # fmt: skip


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self) -> Any: ...

    @property
    @abc.abstractmethod
    def name(self) -> str: ...

    def describe(self) -> str:
        return f"{self.name}: {self.area()}"


class Square(Shape):
    def __init__(self, s: int) -> None:
        self.s = s

    def area(self) -> Any:
        return self.s**2

    name = "square"  # type: ignore[assignment]


class Seq(collections.abc.Sequence):
    def __init__(self, items: Any) -> None:
        self._items = items

    def __getitem__(self, i: Any) -> Any:
        return self._items[i]

    def __len__(self) -> int:
        return len(self._items)


class Map(collections.abc.MutableMapping):
    def __init__(self) -> None:
        self._d: dict[Any, Any] = {}

    def __getitem__(self, k: Any) -> Any:
        return self._d[k]

    def __setitem__(self, k: Any, v: Any) -> None:
        self._d[k] = v

    def __delitem__(self, k: Any) -> None:
        del self._d[k]

    def __iter__(self) -> Any:
        return iter(self._d)

    def __len__(self) -> int:
        return len(self._d)


@cases(x, Square(3), Seq([1, 2, 3]))
def abstract_classes(x: Tensor, sq: Any, seq: Any) -> Any:
    try:
        Shape()  # type: ignore[abstract]
    except TypeError as e:
        text = str(e)[:20]
    m = Map()
    m["a"] = x
    m.update(b=2, c=3)
    return (
        x * sq.area(), sq.describe(), text, isinstance(sq, Shape), 2 in seq, list(reversed(seq)), seq.index(3), seq.count(1), list(seq),
        m.pop("b"), m.get("zz", 9), m.setdefault("q", 4), list(m.items()), "a" in m, dict(m), m == {"a": 1}, len(m), isinstance(m, collections.abc.Mapping),
        isinstance(3, numbers.Number), isinstance(2.5, numbers.Integral), isinstance(x, collections.abc.Hashable), isinstance(len, collections.abc.Callable),
    )  # fmt: skip


@functools.total_ordering
class Ver:
    def __init__(self, n: int) -> None:
        self.n = n

    def __eq__(self, o: Any) -> Any:
        return self.n == o.n if isinstance(o, Ver) else NotImplemented

    def __lt__(self, o: Any) -> Any:
        return self.n < o.n


@cases(x, [Ver(3), Ver(1)])
def total_ordering(x: Tensor, vs: Any) -> Any:
    vs = [*vs, Ver(2)]
    return (
        x * max(vs).n,
        [v.n for v in sorted(vs)],
        [v.n for v in sorted(vs, reverse=True)],
        Ver(1) >= Ver(1),
        Ver(2) <= Ver(1),
        Ver(2) in vs,
        vs.index(Ver(1)),
        vs.count(Ver(2)),
        min(vs).n,
    )


class Copied:
    def __init__(self, t: Any) -> None:
        self.t = t
        self.nested = [t, {"k": 1}]

    def __copy__(self) -> Any:
        made = Copied(self.t * 2)
        return made


class Deep:
    def __init__(self, n: Any) -> None:
        self.n = n
        self.items = [1, [2, 3]]
        self.me = self

    def __deepcopy__(self, memo: Any) -> Any:
        made = Deep.__new__(Deep)
        made.n = copy.deepcopy(self.n, memo) + 1
        return made


class Plain:
    def __init__(self, t: Any = None) -> None:
        self.t = t
        self.items = [1, [2, 3]]


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a: Any) -> None:
        self.a = a


@cases(x, Plain(1), [1, [2]], {"a": [1]})
def copies(x: Tensor, p: Any, items: Any, d: Any) -> Any:
    q = Plain(x)
    q2 = copy.copy(q)
    s = copy.copy(Slotted(x))
    shallow = (
        q2.t is q.t,
        q2.items is q.items,
        copy.copy(Copied(x)).t,
        copy.copy(items),
        copy.copy(d),
        copy.copy((1, 2)),
        copy.copy({1, 2}),
        s.a,
    )
    dp = copy.deepcopy(p)
    di = copy.deepcopy(items)
    di[1].append(5)
    dd = copy.deepcopy(d)
    dd["a"].append(6)
    loop: list[Any] = [1]
    loop.append(loop)
    dl = copy.deepcopy(loop)
    return (
        x + 1,
        shallow,
        dp,
        dp.items is p.items,
        di,
        dd,
        items,
        d,
        copy.deepcopy(Deep(3)).n,
        copy.deepcopy((1, [2])),
        dl[1] is dl,
        copy.deepcopy(Key("a")),
    )


@cases(x)
def deepcopy_tensors(x: Tensor) -> Any:
    state = {"h": x, "n": [x, x + 1]}
    other = copy.deepcopy(state)
    other["h"] += 1
    return other, state, other["h"] is other["n"][0]


def register(table: Any) -> Any:
    def deco(cls: Any) -> Any:
        table[cls.__name__] = cls
        return cls

    return deco


REG: dict[str, Any] = {}


@register(REG)
class Handler:
    def go(self, t: Tensor) -> Tensor:
        return t + 3


def tagged(cls: Any) -> Any:
    original = cls.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.tag = type(self).__name__

    cls.__init__ = init
    return cls


@tagged
class Tagged:
    def __init__(self, n: int, *, k: int = 2) -> None:
        self.n = n * k


class PM:
    def base(self, a: Any, b: Any, c: int = 0) -> Any:
        return a * b + c

    half = functools.partialmethod(base, 0.5)
    plus = functools.partialmethod(base, c=3)


@cases(x)
def class_decorators(x: Tensor) -> Any:
    t = Tagged(3, k=4)
    return REG["Handler"]().go(x), t.n, t.tag, PM().half(x), PM().plus(x, 2)


@cases(x)
def simple_namespaces(x: Tensor) -> Any:
    ns = types.SimpleNamespace(a=x, b=2)
    ns.c = ns.a * ns.b
    del ns.b
    return ns.c, ns, hasattr(ns, "b"), vars(ns)


NS = types.SimpleNamespace(a=2.0, sub=types.SimpleNamespace(k=3))
PROXY = types.MappingProxyType({"a": 1, "b": [2]})


@cases(x, types.SimpleNamespace(a=1))
def namespaces_outside(x: Tensor, ns: Any) -> Any:
    ns.n = x + NS.a
    return x * NS.sub.k, PROXY["a"], list(PROXY), "b" in PROXY, PROXY.get("zz"), len(PROXY), dict(PROXY)


class Ctx:
    def __init__(self, log: Any, swallow: bool = False) -> None:
        self.log = log
        self.swallow = swallow

    def __enter__(self) -> Any:
        self.log.append("in")
        return self

    def __exit__(self, kind: Any, value: Any, tb: Any) -> bool:
        self.log.append(kind.__name__ if kind else "out")
        return self.swallow


@cases(x)
def instance_introspection(x: Tensor) -> Any:
    q = Plain(x)
    return x + 1, (
        q.__class__.__name__, type(q).__mro__[1] is object, q.__dict__["t"], vars(q).keys() >= {"t"}, q.__class__ is Plain, hasattr(q, "__len__"),
        callable(q), Plain.__doc__, q.__module__ == Plain.__module__, Plain.__init__.__name__, isinstance(q, object), type(q.items) is list,
        Square.__bases__[0].__name__, Square.__mro__[-1] is object, issubclass(Square, Shape), q.__init__.__func__.__name__, sorted(vars(q)),
    )  # fmt: skip


class Node:
    def __init__(self, value: Any, nxt: Any = None) -> None:
        self.value, self.next = value, nxt


@cases(x)
def linked_structures(x: Tensor) -> Any:
    a = Node(x)
    b = Node(x + 1, a)
    a.next = b
    n, total = b, x
    for _ in range(5):
        total = total + n.value
        n = n.next
    return total, a, a.next.next is a


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


@cases(x, graphs=1, breaks=2)
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


@cases(x, graphs=0, breaks=0)
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


@cases(x, {"a": [1, {"b": 2}]}, graphs=2, breaks=0)
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
def test_operators(case: Case) -> None:
    case.check()
