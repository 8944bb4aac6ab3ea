"""Programs about objects: attributes, properties, descriptors, super, slots, dataclasses, enums, operators."""

import abc
import dataclasses
import enum
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from cases import Case, Cases
from torch import Tensor, nn

import dynajit

x = torch.arange(6.0).reshape(2, 3)
cases = Cases()


class Config:
    kind = "base"

    def __init__(self, scale: float, names: Any = ("a", "b")) -> None:
        self.scale = scale
        self.names = list(names)
        self.table = {"k": 3}

    def apply(self, t: Any) -> Any:
        return t * self.scale

    @property
    def doubled(self) -> float:
        return self.scale * 2

    @doubled.setter
    def doubled(self, value: float) -> None:
        self.scale = value / 2

    @classmethod
    def make(cls, n: float) -> Any:
        return cls(n)

    @staticmethod
    def add(a: Any, b: Any) -> Any:
        return a + b


class Special(Config):
    kind = "special"

    def __init__(self, scale: float) -> None:
        super().__init__(scale, names=("z",))
        self.extra = self.doubled

    def apply(self, t: Any) -> Any:
        return super().apply(t) + 1

    @property
    def doubled(self) -> float:
        return super().doubled + 100

    @classmethod
    def make(cls, n: float) -> Any:
        made = super().make(n + 1)
        made.marked = True
        return made


@cases(x, Config(3.0))
def attributes(x: Tensor, c: Config) -> Any:
    return (
        c.apply(x),
        c.doubled,
        c.names,
        c.table["k"] * x,
        c.kind,
        Config.kind,
        c.add(1, x),
        hasattr(c, "nope"),
        getattr(c, "nope", 5),
    )


@cases(x, Special(2.0))
def inheritance(x: Tensor, c: Special) -> Any:
    return (
        c.apply(x),
        c.doubled,
        c.extra,
        c.kind,
        isinstance(c, Config),
        type(c).__name__,
        type(c).__mro__[1] is Config,
        c.names,
    )


@cases(x)
def made_inside(x: Tensor) -> Any:
    c = Special.make(2.0)
    c.doubled_twice = c.doubled * 2
    return c, c.apply(x), c.marked, vars(c)["scale"], c.__dict__["extra"], c.__class__ is Special


@cases(x, Config(3.0), repeat=1)
def setting_attributes(x: Tensor, c: Config) -> Any:
    c.scale += 1
    c.doubled = 10.0
    c.new = x * c.scale  # type: ignore[attr-defined]
    setattr(c, "other", 3)  # noqa: B010
    del c.names
    c.__dict__["direct"] = 4
    return c.scale, c.other, hasattr(c, "names"), c.direct, c.new + 1  # type: ignore[attr-defined]


@cases(x, Config(3.0), graphs=None, breaks=None)
def missing_attribute(x: Tensor, c: Config) -> Any:
    y = x + 1
    return c.nothing + y  # type: ignore[attr-defined]


@cases(x, Config(3.0))
def missing_attribute_caught(x: Tensor, c: Config) -> Any:
    texts = []
    for name in ("nothing", "__nope__"):
        try:
            getattr(c, name)
        except AttributeError as error:
            texts.append(str(error))
    try:
        del c.nothing  # type: ignore[attr-defined]
    except AttributeError as error:
        texts.append(str(error))
    try:
        Special.doubled.fset(c, 1)  # type: ignore[attr-defined]
    except TypeError as error:
        texts.append(str(error))
    return texts, x + 1


class Dynamic:
    def __init__(self) -> None:
        self.real = 1

    def __getattr__(self, name: str) -> Any:
        if name.startswith("dyn_"):
            return name.upper()
        raise AttributeError(f"no {name}")


class Logged:
    def __init__(self) -> None:
        object.__setattr__(self, "log", [])

    def __getattribute__(self, name: str) -> Any:
        if name not in ("log", "__dict__"):
            object.__getattribute__(self, "log").append(("get", name))
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self.log.append(("set", name))
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        self.log.append(("del", name))
        object.__delattr__(self, name)


@cases(x, Dynamic())
def custom_getattr(x: Tensor, d: Dynamic) -> Any:
    return d.real, d.dyn_one, hasattr(d, "other"), getattr(d, "other", None), x + 1


def custom_attribute_hooks(x: Tensor, d: Any) -> Any:
    d.a = x
    d.b = d.a + 1
    del d.a
    return d.b


def test_attribute_hooks_run_as_often_as_in_eager() -> None:
    logs = []
    for fn in (custom_attribute_hooks, dynajit.compile(custom_attribute_hooks, backend="eager", fullgraph=True)):
        objects = [Logged(), Logged()]
        for obj in objects:
            fn(x, obj)
        logs.append([obj.log for obj in objects])
    assert logs[0] == logs[1]


class Typed:
    """A descriptor in Python, with a per-instance value."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = "_" + name

    def __get__(self, obj: Any, cls: Any = None) -> Any:
        return self if obj is None else getattr(obj, self.name)

    def __set__(self, obj: Any, value: Any) -> None:
        setattr(obj, self.name, value * 2)


class WithDescriptor:
    field = Typed()

    def __init__(self, v: Any) -> None:
        self.field = v


@cases(x, WithDescriptor(3))
def descriptors(x: Tensor, w: WithDescriptor) -> Any:
    w.field = 5
    made = WithDescriptor(x)
    return w.field, made.field, type(w).field.name, w._field  # type: ignore[attr-defined]


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a: Any) -> None:
        self.a = a


@cases(x, Slotted(2))
def slots(x: Tensor, s: Slotted) -> Any:
    s.b = x * s.a
    made = Slotted(x)
    made.a = made.a + 1
    try:
        s.c = 1  # type: ignore[attr-defined]
    except AttributeError as error:
        text = str(error)
    return s.b, made.a, hasattr(made, "b"), text


@dataclasses.dataclass
class Item:
    value: Any
    weight: float = 1.0
    tags: list[str] = dataclasses.field(default_factory=list)
    registry: ClassVar[int] = 7

    def __post_init__(self) -> None:
        self.sum = self.weight + 1

    def total(self) -> Any:
        return self.value * self.weight


@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    n: int
    m: int = 2


@cases(x, Item(x + 1, 2.0), repeat=1)
def dataclass_objects(x: Tensor, item: Item) -> Any:
    made = Item(x, tags=["t"])
    other = dataclasses.replace(made, weight=3.0)
    item.tags.append("new")
    names = [f.name for f in dataclasses.fields(item)]
    return item.total(), made, other.total(), names, made.sum, dataclasses.is_dataclass(item), item.registry


@cases(x, Frozen(1))
def frozen_dataclasses(x: Tensor, f: Frozen) -> Any:
    g = Frozen(1, 2)
    texts = []
    try:
        f.n = 3  # type: ignore[misc]
    except dataclasses.FrozenInstanceError as error:
        texts.append(str(error))
    return f == g, f < Frozen(2), f != Frozen(3), hash(f) == hash(g), texts, x + f.m


@cases(x, graphs=None, breaks=None)
def dataclass_text(x: Tensor) -> Any:
    return (
        repr(Frozen(1)),
        str(Frozen(2)),
        f"{Frozen(3)}",
        dataclasses.asdict(Frozen(4)),
        dataclasses.astuple(Frozen(5)),
        x + 1,
    )


class Pair(NamedTuple):
    left: Any
    right: int = 3

    def swap(self) -> Any:
        return Pair(self.right, self.left)


@cases(x, Pair(x + 1))
def typed_named_tuples(x: Tensor, p: Pair) -> Any:
    return p.left + p.right, p.swap(), Pair(x), p[1], len(p), p == Pair(p.left, 4), [*p]


class Color(enum.Enum):
    RED = 1
    BLUE = "b"

    def describe(self) -> str:
        return f"{self.name}:{self.value}"

    @property
    def loud(self) -> str:
        return self.name + "!"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Flags(enum.Flag):
    A = 1
    B = 2


class Shape(enum.Enum):
    SQUARE = (2, 2)
    WIDE = (1, 4)

    def __init__(self, rows: int, columns: int) -> None:
        self.rows = rows
        self.columns = columns


@cases(x, Color.RED)
def enums(x: Tensor, c: Color) -> Any:
    table = {Color.RED: x, Color.BLUE: x + 1}
    return (
        table[c],
        c is Color.RED,
        c == Color.BLUE,
        c.describe(),
        c.loud,
        Color("b"),
        Color["RED"],
        [m.name for m in Color],
        len(Color),
        Level.HIGH > Level.LOW,
        Level.HIGH + 1,
        x * Level.HIGH,
        isinstance(c, Color),
        c in (Color.RED,),
        str(c),
        Shape.WIDE.columns,
        Shape((2, 2)).rows,
        Flags.A | Flags.B,
        bool(Flags.A & Flags.B),
        Color.RED.value,
        hash(c) == hash(Color.RED),
        f"{Level.LOW}",
    )


class Vector:
    def __init__(self, v: Any) -> None:
        self.v = v

    def __add__(self, other: Any) -> Any:
        return Vector(self.v + (other.v if isinstance(other, Vector) else other))

    def __radd__(self, other: Any) -> Any:
        return Vector(other + self.v)

    def __iadd__(self, other: Any) -> Any:
        self.v = self.v + other
        return self

    def __mul__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, str) else Vector(self.v * other)

    def __matmul__(self, other: Any) -> Any:
        return self.v @ other.v.T

    def __neg__(self) -> Any:
        return Vector(-self.v)

    def __invert__(self) -> Any:
        return "inverted"

    def __abs__(self) -> Any:
        return Vector(abs(self.v))

    def __getitem__(self, i: Any) -> Any:
        return self.v[i]

    def __setitem__(self, i: Any, value: Any) -> None:
        self.v = self.v + i * value

    def __delitem__(self, i: Any) -> None:
        self.v = None

    def __len__(self) -> int:
        return 2

    def __contains__(self, item: Any) -> bool:
        return item == 7

    def __eq__(self, other: object) -> Any:
        return isinstance(other, Vector) and other.tag == self.tag

    def __lt__(self, other: Any) -> bool:
        return self.tag < other.tag

    def __hash__(self) -> int:
        return 5

    def __bool__(self) -> bool:
        return False

    def __call__(self, k: int, **kw: Any) -> Any:
        return self.v * k

    def __int__(self) -> int:
        return 42

    def __float__(self) -> float:
        return 4.5

    def __index__(self) -> int:
        return 1

    def __str__(self) -> str:
        return "<vector>"

    def __format__(self, spec: str) -> str:
        return f"[{spec}]"

    def __iter__(self) -> Iterator[Any]:
        yield self.v
        yield 2

    def __reversed__(self) -> Any:
        return iter([2, 1])

    tag = 3


@cases(x)
def operators(x: Tensor) -> Any:
    v = Vector(x)
    w = v + v
    u = 5 + v
    t = v + 1
    kept = v
    v += 2
    return w.v, u.v, t.v, kept is v, (v * 2).v, v @ w, (-v).v, ~v, abs(v).v, v[0]


@cases(x)
def container_protocol(x: Tensor) -> Any:
    v = Vector(x)
    v[2] = 3
    first, second = v
    return (
        v.v,
        len(v),
        7 in v,
        8 in v,
        not v,
        v(3, k2=1),
        int(v),
        float(v),
        str(v),
        f"{v:abc}",
        first + second,
        list(reversed(v)),
        [4, 5][v],
        list(v)[1],
    )


@cases(x)
def comparisons_of_objects(x: Tensor) -> Any:
    a, b = Vector(x), Vector(x + 1)
    b.tag = 4
    return (
        a == b,
        a != b,
        a < b,
        b > a,
        a == Vector(0),
        a in [b, Vector(1)],
        sorted([b, a])[0] is a,
        max(a, b).tag,
        x + 1,
    )


@cases(x)
def unsupported_operators(x: Tensor) -> Any:
    texts = []
    text: Any = "a"
    for call in (
        lambda: Vector(x) - 1,
        lambda: Vector(x) * "s",
        lambda: Vector(x) <= 1,
        lambda: Config(1)[0],
        lambda: len(Config(1)),  # type: ignore[arg-type,index,operator]
        lambda: Config(1)(),
        lambda: 1 + "a",
        lambda: [1] + (2,),
        lambda: None + 1,
        lambda: -"s",
        lambda: iter(Config(1)),  # type: ignore[call-overload,index,misc,operator]
        lambda: [1][text],
        lambda: (1).real.nope,
        lambda: None.x,
        lambda: [].nope,
        lambda: {}.nope,
        lambda: next(3),
        lambda: 1 in 2,
        lambda: [][0],
        lambda: (1,)[5],
    ):  # type: ignore[attr-defined,call-overload,operator]
        try:
            call()
        except (TypeError, AttributeError, IndexError) as error:
            texts.append(f"{type(error).__name__} {error}")
    return texts, x + 1


class Base(abc.ABC):
    @abc.abstractmethod
    def run(self, t: Any) -> Any: ...


class Impl(Base):
    def run(self, t: Any) -> Any:
        return t + 1


@cases(x, Impl())
def isinstance_on_everything(x: Tensor, impl: Base) -> Any:
    values = [
        1,
        True,
        1.5,
        "s",
        None,
        [1],
        (1,),
        {1: 2},
        {1},
        x,
        impl,
        int,
        len,
        lambda: 0,
        range(3),
        torch.float32,
        x.shape,
        slice(1),
    ]
    kinds = [
        int,
        bool,
        float,
        str,
        list,
        tuple,
        dict,
        set,
        Tensor,
        Base,
        type,
        Callable,
        Iterable,
        Sequence,
        Mapping,
        numbers.Number,
        torch.dtype,
        torch.Size,
        nn.Module,
        object,
        nn.Parameter,
        slice,
    ]
    return (
        [[isinstance(v, k) for k in kinds] for v in values],
        isinstance(1, (str, int)),
        isinstance(1, int | str),
        issubclass(bool, int),
        impl.run(x),
    )


@cases(x)
def type_of_everything(x: Tensor) -> Any:
    return (
        type(x),
        int,
        type([]),
        type(None),
        type(lambda: 0).__name__,
        type(x) is Tensor,
        type(Impl()) is Impl,
        type(int),
        x + 1,
    )


class Meta(type):
    def __call__(cls, *args: Any) -> Any:
        made = super().__call__(*args)
        made.meta = True
        return made

    @property
    def label(cls) -> str:
        return cls.__name__.lower()

    def __getitem__(cls, key: Any) -> Any:
        return key


class WithMeta(metaclass=Meta):
    def __init__(self, v: Any) -> None:
        self.v = v


@cases(x)
def metaclasses(x: Tensor) -> Any:
    w = WithMeta(x)
    return w.v + 1, w.meta, WithMeta.label, WithMeta[3]  # type: ignore[attr-defined]


class WithNew:
    def __new__(cls, n: int) -> Any:
        made = super().__new__(cls)
        made.from_new = n
        return made

    def __init__(self, n: int) -> None:
        self.from_init = n + 1


@cases(x)
def custom_new(x: Tensor) -> Any:
    w = WithNew(3)
    return w.from_new, w.from_init, x + 1


class DictLike(dict):  # type: ignore[type-arg]
    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class ListLike(list):  # type: ignore[type-arg]
    def append(self, item: Any) -> None:
        super().append(item)
        super().append(item)


@cases(x, DictLike(a=1, b=2), repeat=1)
def dict_subclass(x: Tensor, d: DictLike) -> Any:
    d.c = x + d.a
    made = DictLike(z=1)
    made.y = 2
    return d, made, len(d), "c" in d, list(d), d["b"], d.get("q", 9), hasattr(d, "nope"), d == {"a": 1}


@cases(x, ListLike([1, 2]), repeat=1)
def list_subclass(x: Tensor, items: ListLike) -> Any:
    items.append(x + 1)
    made = ListLike()
    made.append(1)
    made.extend([5])
    return items, made, len(items), items[-1] + items[0], items == [1, 2], isinstance(items, list), list(made)


class OutputLike(dict):  # type: ignore[type-arg]
    """As transformers' ModelOutput: fields as attributes and keys."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(fields)
        self.__dict__.update(fields)

    def to_tuple(self) -> Any:
        return tuple(self[k] for k in self)


@cases(x)
def model_output(x: Tensor) -> Any:
    out = OutputLike(logits=x * 2, loss=None)
    return out, out.logits + 1, out["logits"] is out.logits, out.to_tuple()


@cases(x, {"impl": Impl(), "list": [Config(1.0), Config(2.0)]}, repeat=1)
def objects_in_containers(x: Tensor, d: Any) -> Any:
    for c in d["list"]:
        x = c.apply(x)
        c.scale = 5.0
    return d["impl"].run(x), d["list"][0] is d["list"][1], d["list"].index(d["list"][1])


@cases(x, Config(1.0))
def object_identity_and_keys(x: Tensor, c: Config) -> Any:
    other = Config(1.0)
    table = {c: 1, other: 2}
    return table[c], table[other], c is c, c == other, c in [other], c in table, [c, other].index(other), x + 1


class Cycle:
    def __init__(self) -> None:
        self.me = self
        self.items = [self]


@cases(x)
def cyclic_objects(x: Tensor) -> Any:
    c = Cycle()
    return c, c.me is c, c.items[0] is c, x + 1


@cases(x, graphs=None, breaks=None)
def objects_with_own_hash_as_keys(x: Tensor) -> Any:
    return {Frozen(1): 1}[Frozen(1, 2)], {Vector(x): 2}.get(Vector(2)), {Frozen(1), Frozen(1)}, x + 1


def test_bound_method_argument() -> None:
    config = Config(2.0)
    compiled = dynajit.compile(
        lambda t, method: (method(t), method.__self__.scale, method.__name__), backend="eager", fullgraph=True
    )
    for scale in (2.0, 3.0):
        config.scale = scale
        result, got, name = compiled(x, config.apply)
        assert torch.equal(result, x * scale) and got == scale and name == "apply"


@dataclasses.dataclass
class Sizes:
    width: int
    name: str = "n"


@cases(x, 3, then=[(x, 4), (x, 5), (x, 6)], graphs=2)
def dataclass_of_a_varying_number_as_a_dictionary(x: Tensor, width: int) -> Any:
    found = dataclasses.asdict(Sizes(width * 2))
    return x * found["width"], found


@cases(x, graphs=None, breaks=None)
def class_defined_inside(x: Tensor) -> Any:
    class Local:
        factor = 3

        def apply(self, t: Tensor) -> Tensor:
            return t * self.factor

    return Local().apply(x + 1)


class Plain:
    pass


class ByNumber:
    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> Any:
        return self.number == other.number if isinstance(other, ByNumber) else NotImplemented


@cases(x)
def what_object_says_of_unequal(x: Tensor) -> Any:
    one, two, plain = ByNumber(1), ByNumber(2), Plain()
    asked = object.__ne__(one, one), object.__ne__(one, two), object.__ne__(plain, plain), plain.__ne__(one)
    return x + 1, asked, one != two, one != ByNumber(1), one != 1, plain != plain, plain != one


@pytest.mark.parametrize("case", cases, ids=cases.names)
def test_classes(case: Case) -> None:
    case.check()
