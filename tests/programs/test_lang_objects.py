"""Programs about objects in all their forms: hashing, copying, subclasses of builtins, classes made inside, descriptors."""

import collections
import collections.abc
import dataclasses
import enum
import functools
import weakref
from collections.abc import Iterator
from typing import Any, TypeVar

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


@dataclasses.dataclass(frozen=True, order=True)
class Version:
    major: int
    minor: int = 0


@dataclasses.dataclass(eq=True, unsafe_hash=True)
class Loose:
    tag: str


class Hashed:
    def __init__(self, n: int) -> None:
        self.n = n

    def __hash__(self) -> int:
        return hash(self.n % 2)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hashed) and self.n == other.n

    def __repr__(self) -> str:
        return f"Hashed({self.n})"


@cases(x)
def frozen_keys_made_inside(x: Tensor) -> Any:
    table = {Key("a"): x, Key("b", 1): x + 1}
    return (
        table[Key("a")] + table[Key("b", 1)],
        Key("c") in table,
        len({Key("a"), Key("a"), Key("b")}),
        Key("a") == Key("a"),
    )


KEYED = {Key("a"): 2.0, Key("b", 1): 3.0}


@cases(x, Key("a"), {Key("a"): 1.5, Key("z"): 2.5})
def frozen_keys_from_outside(x: Tensor, k: Any, d: Any) -> Any:
    return x * d[k] + x * d[Key("z")] + KEYED[k] + KEYED[Key("b", 1)], d.get(Key("q")), k in KEYED


@cases(x)
def own_hash_keys(x: Tensor) -> Any:
    seen: dict[Any, Any] = {}
    for n in (1, 2, 3, 1):
        seen.setdefault(Hashed(n), []).append(x + n)
    return [(k.n, v) for k, v in seen.items()], len({Hashed(1), Hashed(3), Hashed(1)}), seen[Hashed(3)]


@cases(x, {Hashed(1): 1.0, Hashed(2): 2.0})
def own_hash_outside(x: Tensor, d: Any) -> Any:
    total = x
    for k, v in d.items():
        total = total * v + k.n
    return total, d[Hashed(2)], Hashed(9) in d


@cases(x)
def frozen_as_memo(x: Tensor) -> Any:
    memo: dict[Any, Any] = {}

    def get(k: Any) -> Any:
        if k not in memo:
            memo[k] = x * k.level
        return memo[k]

    a, b = get(Key("q", 3)), get(Key("q", 3))
    return a, a is b, hash(Key("q", 3)) == hash(Key("q", 3)), memo


@cases(x)
def frozen_fails_to_set(x: Tensor) -> Any:
    k = Key("a")
    try:
        k.name = "b"  # type: ignore[misc]
    except dataclasses.FrozenInstanceError as error:
        return x + 1, str(error)
    return x


@cases(x)
def ordered_dataclasses(x: Tensor) -> Any:
    vs = [Version(2), Version(1, 5), Version(1, 2)]
    return (
        x + 1,
        sorted(vs),
        max(vs),
        Version(1) < Version(1, 1),
        min(vs, key=lambda v: v.minor),
        vs.index(Version(1, 5)),
    )


@dataclasses.dataclass
class Config:
    dim: int = 3
    scale: float = 2.0
    names: list[str] = dataclasses.field(default_factory=list)
    extra: Any = dataclasses.field(default=None, repr=False, compare=False)
    init: dataclasses.InitVar[int] = 4

    def __post_init__(self, init: int) -> None:
        self.doubled = self.dim * 2 + init


@cases(x, Config(5))
def dataclass_tools(x: Tensor, c: Config) -> Any:
    c2 = dataclasses.replace(c, scale=4.0, init=1)
    return x * c2.scale, dataclasses.asdict(c2), dataclasses.astuple(c), repr(c), c == Config(5), c2.doubled


@dataclasses.dataclass
class Out(collections.OrderedDict):  # as in transformers' ModelOutput
    loss: Any = None
    logits: Any = None

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            v = getattr(self, f.name)
            if v is not None:
                self[f.name] = v

    def to_tuple(self) -> Any:
        return tuple(self[k] for k in self.keys())


@cases(x)
def model_output(x: Tensor) -> Any:
    o = Out(logits=x + 1)
    return o, o.to_tuple(), o["logits"], o.loss


class Str(str):
    def shout(self) -> str:
        return self.upper() + "!"


class Int(int):
    def twice(self) -> int:
        return self * 2


class Float(float):
    unit = "m"


class Names(list[Any]):
    def first(self) -> Any:
        return self[0]


class Table(dict[Any, Any]):
    def __missing__(self, key: Any) -> Any:
        return f"no {key}"


class Pair(tuple[Any, ...]):
    def swap(self) -> Any:
        return Pair((self[1], self[0]))


class Bag(set[Any]):
    def total(self) -> Any:
        return sum(self)


@cases(x, Str("ab"), Int(3), Float(2.5))
def scalar_subclasses_outside(x: Tensor, s: Any, i: Any, f: Any) -> Any:
    return (
        x * i + f,
        s.shout(),
        s + "c",
        i.twice(),
        i + 1,
        f.unit,
        f * 2,
        isinstance(s, str),
        type(i) is Int,
        {s: 1}["ab"],
        x.view(i, 2),
    )


@cases(x)
def scalar_subclasses_inside(x: Tensor) -> Any:
    s, i, f = Str("ab"), Int(3), Float(2.5)
    return x * i + f, s.shout(), s + "c", i.twice(), i + 1, f.unit, type(s) is Str, s, i, f, f"{s}-{i}-{f:.1f}"


@cases(x, Names([1, 2]), Table(a=1), Pair((1, 2)), Bag({1, 2}), repeat=1)
def container_subclasses_outside(x: Tensor, n: Any, t: Any, p: Any, b: Any) -> Any:
    n.append(3)
    t["new"] = x
    return x + n.first(), t["zz"], t["a"], p.swap(), b.total(), len(n), 2 in b, [*n], dict(t), p + (3,)


@cases(x)
def container_subclasses_inside(x: Tensor) -> Any:
    n, t, p, b = Names([x, 2]), Table(a=1), Pair((x, 2)), Bag({1, 2})
    b.add(5)
    n.extend([7])
    return n.first() + 1, t["zz"], p.swap(), b.total(), n, t, p, b, type(n), isinstance(p, tuple)


@cases(x, graphs=None, breaks=None)
def classes_inside(x: Tensor) -> Any:
    class Local:
        factor = 3

        def __init__(self, t: Tensor) -> None:
            self.t = t

        def run(self) -> Tensor:
            return self.t * self.factor

        @property
        def shape(self) -> Any:
            return self.t.shape

        @classmethod
        def make(cls, t: Tensor) -> Any:
            return cls(t + 1)

    class Child(Local):
        factor = 4

        def run(self) -> Tensor:
            return super().run() + 1

    return Local(x).run() + Child.make(x).run(), Child(x).shape[0], issubclass(Child, Local), Child.__name__


@cases(x, graphs=None, breaks=None)
def dataclasses_inside(x: Tensor) -> Any:
    @dataclasses.dataclass
    class State:
        h: Tensor
        step: int = 0

    s = State(x)
    for _ in range(3):
        s = State(s.h * 2, s.step + 1)
    return s.h, s.step


@cases(x, graphs=None, breaks=None)
def namedtuples_inside(x: Tensor) -> Any:
    Pt = collections.namedtuple("Pt", ["a", "b"])
    p = Pt(x, 2)
    return p.a * p.b, p._replace(b=3).b, p._asdict(), Pt._fields


@cases(x, graphs=None, breaks=None)
def classes_capturing(x: Tensor) -> Any:
    scale = 3.0

    class Scaler:
        def __call__(self, t: Tensor) -> Tensor:
            return t * scale

    return Scaler()(x), type("Dyn", (), {"v": 2}).v


@cases(x, graphs=None, breaks=None)
def enums_inside(x: Tensor) -> Any:
    class Mode(enum.Enum):
        A = 1
        B = 2

    return x * Mode.A.value, Mode.B.name, len(Mode), Mode(2) is Mode.B


class Perm(enum.Flag):
    R = enum.auto()
    W = enum.auto()
    X = enum.auto()
    RW = R | W


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5

    @property
    def doubled(self) -> int:
        return self * 2

    @classmethod
    def top(cls) -> Any:
        return max(cls)


class Act(str, enum.Enum):
    RELU = "relu"
    TANH = "tanh"

    def __str__(self) -> str:
        return self.value

    @classmethod
    def _missing_(cls, value: object) -> Any:
        return cls.RELU


class Color(enum.Enum):
    RED = (1, 0)
    GREEN = (0, 1)

    def __init__(self, r: int, g: int) -> None:
        self.r, self.g = r, g

    def mix(self, t: Tensor) -> Tensor:
        return t * self.r + self.g


@cases(x, Perm.R, Level.HIGH, Act.TANH, Color.RED)
def enums(x: Tensor, p: Any, level: Any, act: Any, color: Any) -> Any:
    both = p | Perm.W
    flags = (
        Perm.R in both,
        both == Perm.RW,
        both & ~Perm.W,
        bool(Perm.R & Perm.X),
        Perm(3),
        Perm["X"],
        both.value,
        p ^ Perm.RW,
    )
    levels = (
        level + 1,
        level > Level.LOW,
        level.doubled,
        Level.top(),
        Level(1),
        Level["LOW"],
        sorted(Level),
        int(level),
        f"{level:03d}",
    )
    acts = (
        Act("tanh") is act,
        Act("zz"),
        act == "tanh",
        str(act),
        f"{act}",
        act.upper(),
        {Act.RELU: 1}["relu"],
        [a.value for a in Act],
    )
    colors = (
        color.mix(x),
        Color.GREEN.mix(x),
        Color((0, 1)),
        color.r,
        color in (Color.RED,),
        Color.RED.name,
        list(Color.__members__),
    )
    return flags, levels, acts, colors, isinstance(level, int), hash(color) == hash(Color.RED), color is Color.RED


@cases(x)
def enum_dispatch(x: Tensor) -> Any:
    table = {Color.RED: torch.sin, Color.GREEN: torch.cos}
    out = x
    for c in Color:
        out = table[c](out)
    return out, [repr(c) for c in Color], {c.name: c.value for c in Color}


class Module:
    """Attribute hooks of all sorts."""

    __slots__ = ("__dict__", "a")

    def __init__(self) -> None:
        object.__setattr__(self, "log", [])
        self.a = 1
        self.b = 2

    def __setattr__(self, name: str, value: Any) -> None:
        self.log.append(("set", name))
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        self.log.append(("del", name))
        super().__delattr__(name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("dyn_"):
            return len(name)
        raise AttributeError(name)


class Spy:
    def __init__(self) -> None:
        self.count = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "magic":
            return 42
        return super().__getattribute__(name)


@cases(x, Module(), Spy(), repeat=1)
def attribute_hooks(x: Tensor, m: Any, s: Any) -> Any:
    m.c = x + m.dyn_abc
    m.a += 5
    del m.b
    fresh = Module()
    fresh.z = x
    del fresh.a
    s.count += 1
    return m.c * s.magic + s.count, hasattr(m, "b"), getattr(m, "nope", 7), fresh.log, fresh, hasattr(fresh, "a")


class Typed:
    def __set_name__(self, owner: Any, name: str) -> None:
        self.name = "_" + name

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        if obj is None:
            return self
        return obj.__dict__.get(self.name, 0)

    def __set__(self, obj: Any, value: Any) -> None:
        obj.__dict__[self.name] = value * 2

    def __delete__(self, obj: Any) -> None:
        del obj.__dict__[self.name]


class Lazily:
    def __init__(self, fn: Any) -> None:
        self.fn = fn
        functools.update_wrapper(self, fn)

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        value = self.fn(obj)
        obj.__dict__[self.fn.__name__] = value
        return value


class Described:
    width = Typed()
    height = Typed()

    @Lazily
    def area(self) -> Any:
        return self.width * self.height

    def __init_subclass__(cls, factor: int = 1, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.factor = factor

    def __class_getitem__(cls, item: Any) -> Any:
        return (cls.__name__, item)


class Bigger(Described, factor=7):
    pass


@cases(x, Bigger(), repeat=1)
def descriptors(x: Tensor, d: Any) -> Any:
    d.width = 3
    d.height = x
    area = d.area
    del d.width
    e = Bigger()
    e.width, e.height = 1, 2
    return area, d.area is area, d.width, d.factor, Bigger["k"], e.area, e, type(Bigger.width).__name__


class Meta(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__call__(*args, **kwargs)
        made.tagged = True
        return made

    def __getitem__(cls, n: int) -> Any:
        return n + 1

    def __len__(cls) -> int:
        return 3

    def __contains__(cls, n: int) -> bool:
        return n == 5

    def __iter__(cls) -> Iterator[int]:
        return iter((1, 2))

    def __instancecheck__(cls, obj: Any) -> bool:
        return obj == "yes" or super().__instancecheck__(obj)

    @property
    def label(cls) -> str:
        return "label " + cls.__name__


class WithMeta(metaclass=Meta):
    def __init__(self, t: Any) -> None:
        self.t = t


class Single:
    _instance: Any = None

    def __new__(cls, *args: Any) -> Any:
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance


@cases(x)
def metaclasses(x: Tensor) -> Any:
    w = WithMeta(x)
    return (
        w.t + 1,
        w.tagged,
        WithMeta[3],
        len(WithMeta),
        5 in WithMeta,
        list(WithMeta),
        isinstance("yes", WithMeta),
        isinstance(w, WithMeta),
        WithMeta.label,
    )


@cases(x)
def singletons(x: Tensor) -> Any:
    a, b = Single(), Single(2)
    a.v = x
    return b.v + 1, a is b


class Keys(dict[str, Any]):
    """Its keys are its attributes, by methods written in C."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__  # type: ignore[assignment]
    __delattr__ = dict.__delitem__  # type: ignore[assignment]

    def __deepcopy__(self, memo: Any) -> "Keys":
        return type(self)(self)


class Defaults(Keys):
    __getattr__ = dict.get  # type: ignore[assignment]
    __setattr__ = dict.setdefault  # type: ignore[assignment]
    __delattr__ = dict.pop  # type: ignore[assignment]


@cases(x, Keys(), graphs=None, breaks=0)
@cases(x, Defaults(), graphs=None, breaks=0)
def attributes_that_are_keys(t: Tensor, keys: Any) -> Any:
    keys.steps = keys.get("steps", 0) + 1
    keys.twice = t * 2
    return t + keys.steps, keys.twice


@cases(x, Keys(), graphs=1, breaks=0)
@cases(x, Defaults(), graphs=1, breaks=0)
def attributes_that_are_keys_go(t: Tensor, keys: Any) -> Any:
    object.__setattr__(keys, "scale", 5)
    keys.scale = 1
    keys.scale = 2
    del keys.scale
    return t + len(keys), vars(keys)


@cases(x, graphs=1, breaks=0)
def attributes_that_are_keys_of_a_new_object(t: Tensor) -> Any:
    keys = Keys(rate=1.0)
    keys.inner = Keys()
    keys.inner.sum = t
    keys.inner.sum = keys.inner.sum + 1
    del keys.rate
    try:
        del keys.nothing
    except KeyError as error:
        keys.error = str(error)
    return keys


class Layered(dict):  # type: ignore[type-arg]
    def __getitem__(self, key: Any) -> Any:
        return ("layered", super().__getitem__(key))

    def __missing__(self, key: Any) -> Any:
        return "missing " + str(key)

    def __contains__(self, key: object) -> bool:
        return key == "magic" or super().__contains__(key)

    def keys(self) -> Any:
        return ["a"]


@cases(x, Layered(a=1, b=2))
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


@cases(x, ShortList([1, 2, 3]))
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


@cases(x, Named(1, 2))
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


class Meters(float):
    unit = "m"


class Label(str):
    def shout(self) -> str:
        return self.upper() + "!"


@cases(x, Meters(2.5), Label("abc"))
def number_and_string_subclasses(x: Tensor, m: Meters, s: Label) -> Any:
    return x * m, m.unit, m + 1, s.shout(), s + "d", {s: 1}["abc"], isinstance(s, str), f"{m:.1f}"


class Count(enum.IntFlag):
    A = 1
    B = 2


@cases(x, Count.A | Count.B)
def flags(x: Tensor, c: Count) -> Any:
    return c & Count.A, Count.B in c, x * int(c), c == 3, bool(c), ~Count.A & Count.B, c.value


@dataclasses.dataclass(slots=True)
class WithSlots:
    a: Any
    b: list[Any] = dataclasses.field(default_factory=list)


@cases(x, WithSlots(1), repeat=1)
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


@cases(x, Room())
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


@cases(x)
def weak_references(x: Tensor) -> Any:
    room = Room()
    ref = weakref.ref(room)
    return ref() is room, x + 1


@pytest.mark.parametrize("case", cases, ids=cases.names)
def test_objects(case: Case) -> None:
    case.check()
