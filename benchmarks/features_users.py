"""Classes and control flow as programs of torch.compile's users have them; see features.py."""

import abc
import collections
import contextlib
import contextvars
import copy
import dataclasses
import enum
import functools
import io
import itertools
import logging
import pickle
import types
import typing
import warnings
from typing import Any

import torch
from feature_table import simple, x8
from torch import Tensor

CLASSES = "classes"


FLOW = "control flow"


@dataclasses.dataclass(slots=True)
class Slotted:
    a: Tensor
    b: int = 2
    c: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    a: int
    b: str = "b"


class Pair(typing.NamedTuple):
    left: Tensor
    right: Tensor

    def total(self) -> Tensor:
        return self.left + self.right


class Hooked:
    kinds: typing.ClassVar[list[str]] = []
    scale = 1.0

    def __init_subclass__(cls, scale: float = 2.0, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        cls.scale = scale
        Hooked.kinds.append(cls.__name__)


class Tripled(Hooked, scale=3.0):
    pass


class Meta(type):
    def __getattr__(cls, name: str) -> int:
        return len(name)

    def __len__(cls) -> int:
        return 7

    def __contains__(cls, item: Any) -> bool:
        return item == 3


class WithMeta(metaclass=Meta):
    pass


class Unit:
    """A descriptor with a name and a store of its own."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = "_" + name

    def __get__(self, obj: Any, owner: type | None = None) -> Any:
        return self if obj is None else getattr(obj, self.name, 1.0)

    def __set__(self, obj: Any, value: float) -> None:
        setattr(obj, self.name, value * 2)

    def __delete__(self, obj: Any) -> None:
        delattr(obj, self.name)


class Measured:
    width = Unit()

    def __init__(self, width: float) -> None:
        self.width = width


class Shape(abc.ABC):
    @property
    @abc.abstractmethod
    def factor(self) -> float: ...

    @classmethod
    def default(cls) -> "Shape":
        return cls()

    @staticmethod
    def half(x: Tensor) -> Tensor:
        return x / 2


class Square(Shape):
    @property
    def factor(self) -> float:
        return 4.0


class Growing:
    """Arithmetic of its own, in place and reflected, with tensors."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __add__(self, other: Any) -> "Growing":
        return Growing(self.value + getattr(other, "value", other))

    __radd__ = __add__

    def __matmul__(self, other: Any) -> Any:
        return self.value * getattr(other, "value", other)

    def __iadd__(self, other: Any) -> "Growing":
        self.value = self.value + other
        return self

    def __getitem__(self, key: Any) -> Any:
        return self.value[key]

    def __call__(self, x: Tensor) -> Tensor:
        return self.value * x

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Growing)

    def __hash__(self) -> int:
        return 5


class Level(enum.IntFlag):
    LOW = 1
    HIGH = 2


class Mode(str, enum.Enum):  # noqa: UP042
    FAST = "fast"
    SLOW = "slow"


def _slotted(x: Tensor) -> Any:
    s = Slotted(x)
    s.b += 1
    s.c.append(s.b)
    t = dataclasses.replace(s, a=s.a * 2)
    return t.a * t.b, [f.name for f in dataclasses.fields(t)], t.c


def _frozen(x: Tensor) -> Any:
    table = {Frozen(1): 2.0, Frozen(1, "c"): 3.0}
    try:
        Frozen(1).a = 3  # type: ignore[misc]
    except dataclasses.FrozenInstanceError as error:
        text = str(error)
    return x * table[Frozen(1, "c")], Frozen(1) < Frozen(2), max(Frozen(1), Frozen(0)), text


def _named(x: Tensor) -> Any:
    p = Pair(x, right=x * 2)
    q = p._replace(left=x * 3)
    return q.total(), p._asdict()["left"], Pair._fields, q


def _deleted(x: Tensor) -> Any:
    m = Measured(2.0)
    before = m.width
    del m.width
    return x * before, m.width, isinstance(Measured.width, Unit)


def _operators(x: Tensor) -> Any:
    g = Growing(x)
    g += 1
    return (g + g).value, (2 + g).value, g @ g, g[2:], g(x), bool(g), g == Growing(0), {g: 1}[Growing(3)], not g


def _subclassed(x: Tensor) -> Any:
    return x * Tripled.scale, Hooked.kinds[0]


def _metaclass(x: Tensor) -> Any:
    return x * WithMeta.abcd, len(WithMeta), 3 in WithMeta  # type: ignore[attr-defined, operator, arg-type]


def _abstract(x: Tensor) -> Any:
    try:
        Shape()  # type: ignore[abstract]
    except TypeError as error:
        text = str(error)
    return Square.default().factor * Shape.half(x), issubclass(Square, Shape), text


def _stack(x: Tensor) -> Any:
    seen: list[str] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.callback(seen.append, "called")
        stack.push(lambda *error: seen.append("pushed"))
        y = x * 2
    return y, seen, torch.is_grad_enabled()


def _nested_managers(x: Tensor) -> Any:
    @contextlib.contextmanager
    def scaled(by: float) -> Any:
        log.append(f"in {by}")
        try:
            yield by
        except ValueError:
            log.append("caught")
        finally:
            log.append(f"out {by}")

    log: list[str] = []
    with scaled(2.0) as a, scaled(3.0) as b, contextlib.nullcontext(4.0) as c:
        x = x * a * b * c
        raise ValueError("left")
    return x, log


@contextlib.contextmanager
def _named_region(name: str) -> Any:
    yield name


@_named_region("whole")
def _decorated_by_manager(x: Tensor) -> Tensor:
    return x * 2


def _closing(x: Tensor) -> Any:
    def parts() -> Any:
        try:
            for n in itertools.count():
                got = yield x * n
                if got:
                    yield x + got
        finally:
            log.append("closed")

    log: list[str] = []
    with contextlib.closing(parts()) as running:
        first = next(running)
        second = running.send(3)
        third = next(running)
    return first, second, third, log


def _thrown(x: Tensor) -> Any:
    def parts() -> Any:
        total = x
        while True:
            try:
                total = total + (yield total)
            except KeyError as error:
                yield total * len(str(error))
                return "done"

    def outer() -> Any:
        return (yield from parts())

    running = outer()
    out = [next(running), running.send(2), running.throw(KeyError("k"))]
    try:
        next(running)
    except StopIteration as stop:
        return out, stop.value
    return out, None


def _walrus(x: Tensor) -> Any:
    found = [y for n in range(5) if (y := n * 2) > 3]
    if (m := len(found)) > 2 and (k := m + 1):
        x = x * k
    return x, y, found


class Point2:
    __match_args__ = ("a", "b")

    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b


def _matched(x: Tensor, case: Any) -> Any:
    match case:
        case Point2(0, b):
            return x * b
        case Point2(a, b=[first, *rest]) if a > 1:
            return x * a + first + len(rest)
        case {"kind": "scale" | "mul" as kind, "by": by, **more}:
            return x * by, kind, more
        case [int(n), str(s), _] | (float(n), str(s)):
            return x * n, s
        case None | True:
            return x + 1
        case Mode.FAST:
            return x - 1
        case _:
            return x


def _all_matched(x: Tensor) -> Any:
    cases = [
        Point2(0, 3),
        Point2(2, [1, 2, 3]),
        {"kind": "mul", "by": 2, "z": 0},
        [2, "s", None],
        (1.5, "t"),
        None,
        Mode.FAST,
        5,
    ]
    return [_matched(x, case) for case in cases]


CONTEXT: contextvars.ContextVar[float] = contextvars.ContextVar("scale", default=2.0)


def _context_variable(x: Tensor) -> Any:
    token = CONTEXT.set(3.0)
    y = x * CONTEXT.get()
    CONTEXT.reset(token)
    return y * CONTEXT.get()


def _copied_shallow(x: Tensor) -> Any:
    config = types.SimpleNamespace(a=1, b=[1, 2])
    other = copy.copy(config)
    other.a = 5
    other.b.append(3)
    return x * config.a + other.a, config.b, copy.copy(Point2(1, 2)).b


def _pickled(x: Tensor) -> Any:
    text = pickle.dumps({"a": 3, "b": (1, 2)})
    return x * pickle.loads(text)["a"]


def _saved(x: Tensor) -> Any:
    buffer = io.BytesIO()
    torch.save(x * 2, buffer)
    buffer.seek(0)
    return torch.load(buffer) + 1


def _warned(x: Tensor) -> Any:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn("careful", stacklevel=1)
        y = x * 2
    return y, [str(w.message) for w in seen]


LOGGER = logging.getLogger("features")


def _logged(x: Tensor) -> Any:
    LOGGER.debug("value %s", 3)
    if LOGGER.isEnabledFor(logging.DEBUG):
        x = x + 1
    return x * 2


@functools.cache
def _table(n: int) -> float:
    return float(n) ** 0.5


@functools.wraps(_table)
def _wrapped(n: int) -> float:
    return _table(n) * 2


def _annotated(x: Tensor) -> Any:
    hints = typing.get_type_hints(Pair)
    return x * len(hints), typing.get_origin(list[int]) is list, typing.cast(int, 3)


def _chained_maps(x: Tensor) -> Any:
    out = {"a": 1, "b": 2} | {"c": 3}
    first, *middle, last = out.items()
    (a, (b, *c)), d = (1, (2, 3, 4)), 5
    return x * sum(out.values()), first, middle, last, [a, b, c, d], dict(zip("ab", range(2), strict=True))


def _nonlocal(x: Tensor) -> Any:
    count = 0

    def bump(by: int = 1, /, *args: int, key: int = 0, **rest: int) -> int:
        nonlocal count
        count += by + len(args) + key + sum(rest.values())
        return count

    bump()
    bump(2, 3, key=4, z=5)
    return x * count, bump.__name__, bump.__kwdefaults__


def _finally_returns(x: Tensor) -> Any:
    out = []
    for n in range(4):
        try:
            if n == 1:
                continue
            if n == 3:
                break
            out.append(x * n)
        finally:
            out.append(n)
    else:
        out.append("never")
    return out


def _in_strings(x: Tensor) -> Any:
    text = f"{x.shape[0]:>4}|{x.dtype!s:.5}|{3.14159:.2f}|{'a'!r:^5}|{x.ndim=}"
    percent = "%s-%d" % ("a", 3)  # noqa: UP031
    return x * len(text), text, percent


def _flags(x: Tensor) -> Any:
    both = Level.LOW | Level.HIGH
    return x * int(both), Level.LOW in both, Mode("fast") is Mode.FAST, Mode.FAST == "fast", Mode.SLOW.value, [*Mode]


def _in_place_slices(x: Tensor) -> Any:
    rows = [x * n for n in range(4)]
    rows[1:3] = [x + 10]
    del rows[-1]
    rows *= 2
    return rows, len(rows), rows[::-2]


def _slots(x: Tensor) -> Any:
    s = slice(1, None, 2)
    return x[s], x[..., :3], s.indices(8), x[torch.tensor([0, 3])], x[None, :, None].shape


def _partial_methods(x: Tensor) -> Any:
    class Scaler:
        def scale(self, y: Tensor, by: float) -> Tensor:
            return y * by

        double = functools.partialmethod(scale, by=2.0)

    return Scaler().double(x), functools.partial(Scaler.scale, Scaler(), by=3.0)(x)


def _total(x: Tensor) -> Any:
    @functools.total_ordering
    class Rank:
        def __init__(self, n: int) -> None:
            self.n = n

        def __lt__(self, other: "Rank") -> bool:
            return self.n < other.n

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Rank) and self.n == other.n

    return x * sorted([Rank(3), Rank(1)])[0].n, Rank(2) >= Rank(1)


def _typed_dict(x: Tensor) -> Any:
    class Config(typing.TypedDict, total=False):
        a: int
        b: float

    c: Config = {"a": 2}
    c.setdefault("b", 1.5)
    return x * c["a"] * c.get("b", 0), {**c, "a": 7}, c.pop("a"), "a" in c


def _generic(x: Tensor) -> Any:
    T = typing.TypeVar("T")

    class Holder(typing.Generic[T]):
        def __init__(self, value: T) -> None:
            self.value = value

    return Holder[Tensor](x).value * 2


def _protocol(x: Tensor) -> Any:
    @typing.runtime_checkable
    class HasScale(typing.Protocol):
        scale: float

    return x * 2 if isinstance(Tripled, HasScale) else x


def _iterated(x: Tensor) -> Any:
    class Countdown:
        def __init__(self, n: int) -> None:
            self.n = n

        def __iter__(self) -> "Countdown":
            return self

        def __next__(self) -> int:
            if self.n <= 0:
                raise StopIteration
            self.n -= 1
            return self.n

        def __reversed__(self) -> Any:
            return iter(range(self.n))

        def __len__(self) -> int:
            return self.n

        def __contains__(self, item: int) -> bool:
            return item == 2

    c = Countdown(3)
    return x * sum(c), list(reversed(Countdown(2))), 2 in Countdown(9), len(Countdown(4)), max(Countdown(5), default=0)


def _groups(x: Tensor) -> Any:
    pairs = [(k, [*g]) for k, g in itertools.groupby(sorted("banana"))]
    batched = list(itertools.islice(itertools.cycle([1, 2]), 5))
    return x * len(pairs), batched, list(itertools.pairwise([1, 2, 3])), list(itertools.accumulate([1, 2, 3]))


def _user_dict(x: Tensor) -> Any:
    class Outputs(collections.OrderedDict):
        def __getattr__(self, name: str) -> Any:
            return self[name]

        def to_tuple(self) -> Any:
            return tuple(self[k] for k in self)

    o = Outputs(a=x, b=x * 2)
    o["c"] = o.a + o.b
    return o.to_tuple(), list(o), o.c


def _missing(x: Tensor) -> Any:
    class Zeros(dict):
        def __missing__(self, key: str) -> int:
            self[key] = len(key)
            return self[key]

    z = Zeros()
    return x * z["abc"] + z["abc"], dict(z)


simple(CLASSES, "dataclass with slots", _slotted, x8)
simple(CLASSES, "dataclass, frozen and ordered", _frozen, x8)
simple(CLASSES, "typing.NamedTuple with a method", _named, x8)
simple(CLASSES, "__init_subclass__", _subclassed, x8)
simple(CLASSES, "metaclass with __getattr__, __len__", _metaclass, x8)
simple(CLASSES, "descriptor with __set_name__, __set__, __delete__", _deleted, x8)
simple(CLASSES, "abstract class, classmethod, staticmethod", _abstract, x8)
simple(CLASSES, "operators of a class", _operators, x8)
simple(CLASSES, "partialmethod", _partial_methods, x8)
simple(CLASSES, "total_ordering, sorted", _total, x8)
simple(CLASSES, "IntFlag, str enum", _flags, x8)
simple(CLASSES, "TypedDict", _typed_dict, x8)
simple(CLASSES, "Generic made inside", _generic, x8)
simple(CLASSES, "Protocol, runtime_checkable", _protocol, x8)
simple(CLASSES, "iterator and container protocols", _iterated, x8)
simple(CLASSES, "OrderedDict subclass with __getattr__", _user_dict, x8)
simple(CLASSES, "dict with __missing__", _missing, x8)
simple(FLOW, "ExitStack with callbacks", _stack, x8)
simple(FLOW, "contextmanagers that catch", _nested_managers, x8)
simple(FLOW, "contextmanager as a decorator", _decorated_by_manager, x8)
simple(FLOW, "closing a generator", _closing, x8)
simple(FLOW, "yield from, send, throw", _thrown, x8)
simple(FLOW, "walrus", _walrus, x8)
simple(FLOW, "match on everything", _all_matched, x8)
simple(FLOW, "context variable", _context_variable, x8)
simple(FLOW, "finally with continue and break", _finally_returns, x8)
simple(FLOW, "nonlocal, positional-only, keyword-only", _nonlocal, x8)
simple(FLOW, "unpacking of everything", _chained_maps, x8)
simple(FLOW, "format specifications", _in_strings, x8)
simple(FLOW, "slices assigned and deleted", _in_place_slices, x8)
simple(FLOW, "slice objects", _slots, x8)
simple(FLOW, "warnings recorded", _warned, x8)
simple(FLOW, "logging", _logged, x8)
simple(FLOW, "lru_cache, wraps", lambda x: x * _wrapped(4), x8)
simple(FLOW, "type hints at run time", _annotated, x8)
simple(FLOW, "itertools.groupby, pairwise, accumulate", _groups, x8)
simple(FLOW, "copy.copy", _copied_shallow, x8)
simple(FLOW, "pickle of plain data", _pickled, x8)
simple(FLOW, "torch.save, torch.load", _saved, x8)
