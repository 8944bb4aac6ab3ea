"""What generated programs may use besides torch, and the arguments they are called with.

In: a `Call` (sizes, dtypes, aliasing, Python values). Out: the arguments `(x, y, z, n, flag, items, table, obj)`, equal
for equal calls.
A new kind of argument or of aliasing is one line in `make_arguments` and one value in `random_call`.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

FLOATS = (torch.float32, torch.float32, torch.float32, torch.float64, torch.bfloat16)
DTYPES = (*FLOATS, torch.float32, torch.int64, torch.bool)


class Mark:
    """An object of which it matters only which one it is."""


class Thing:
    """An object with state, a property, `__getattr__`, and operators."""

    kind = "thing"

    def __init__(self, weight: torch.Tensor, count: int, ready: bool) -> None:
        self.weight = weight
        self.count = count
        self.ready = ready
        self.log: list[Any] = []
        self.child: Thing | None = None
        self.marks = [Mark(), Mark()]

    @property
    def doubled(self) -> torch.Tensor:
        return self.weight * 2

    @property
    def level(self) -> int:
        return self.count % 5

    @level.setter
    def level(self, value: int) -> None:
        self.count = value + 5
        self.log.append(value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("auto_"):
            return len(name) + self.count
        raise AttributeError(f"no {name} here")

    def __add__(self, other: Any) -> Any:
        return self.weight + other

    def __radd__(self, other: Any) -> Any:
        return other + self.weight

    def __mul__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, str) else self.weight * other

    def __iadd__(self, other: Any) -> Thing:
        self.weight = self.weight + other
        return self

    def __len__(self) -> int:
        return self.count % 4

    def __bool__(self) -> bool:
        return self.ready

    def __getitem__(self, index: int) -> Any:
        if index >= 3:
            raise IndexError(index)
        return self.weight * index

    def __contains__(self, item: object) -> bool:
        return item == self.count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing) and self.count == other.count

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, value: torch.Tensor, *more: Any, scale: float = 1.5) -> torch.Tensor:
        self.count += 1
        for extra in more:
            value = value + extra
        return value * scale

    def method(self, value: torch.Tensor) -> torch.Tensor:
        self.log.append(self.count)
        return value - self.count

    @classmethod
    def built(cls, value: torch.Tensor) -> Thing:
        return cls(value, 1, True)

    @staticmethod
    def halved(value: torch.Tensor) -> torch.Tensor:
        return value / 2


class Scope:
    """A context manager that writes to a Thing and may swallow ValueError."""

    def __init__(self, thing: Thing, swallow: bool = False) -> None:
        self.thing = thing
        self.swallow = swallow

    def __enter__(self) -> Thing:
        self.thing.count += 1
        return self.thing

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        self.thing.log.append(kind.__name__ if kind else "left")
        return self.swallow and kind is ValueError


class Vector:
    """A value with the other special methods; `Thing` has those of an object with state."""

    __slots__ = ("count", "data")

    def __init__(self, data: torch.Tensor, count: int = 1) -> None:
        self.data = data
        self.count = count

    @property
    def sum(self) -> torch.Tensor:
        return self.data.sum() * self.count

    def __add__(self, other: Any) -> Vector:
        return Vector(self.data + (other.data if isinstance(other, Vector) else other), self.count + 1)

    def __iadd__(self, other: Any) -> Vector:
        self.count += 1
        self.data = self.data + other
        return self

    def __neg__(self) -> torch.Tensor:
        return -self.data

    def __abs__(self) -> Vector:
        return Vector(self.data.abs(), abs(self.count))

    def __matmul__(self, other: torch.Tensor) -> torch.Tensor:
        return self.data * other + self.count

    def __getitem__(self, key: Any) -> torch.Tensor:
        return self.data[..., key] if isinstance(key, slice) and self.data.dim() else self.data

    def __setitem__(self, key: int, value: torch.Tensor) -> None:
        self.data = value if key == 0 else self.data

    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(self.count % 3):
            yield self.data + index

    def __contains__(self, item: object) -> bool:
        return item == self.count

    def __len__(self) -> int:
        return abs(self.count) % 4

    def __int__(self) -> int:
        return self.count * 2

    def __index__(self) -> int:
        return self.count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vector) and self.count == other.count

    def __lt__(self, other: Vector) -> bool:
        return self.count < other.count

    def __hash__(self) -> int:
        return hash((7, self.count)) % 11

    def __call__(self, power: int) -> torch.Tensor:
        return self.data * power + self.count

    def __enter__(self) -> Vector:
        self.count += 1
        return self

    def __exit__(self, *error: object) -> None:
        self.count -= 1
        print("out", self.count, error[0])

    def __repr__(self) -> str:
        return f"Vector({tuple(self.data.shape)}, {self.count})"


class Oops(Exception):
    """An exception of the user's own, with an attribute."""

    def __init__(self, code: int) -> None:
        super().__init__(f"oops {code}")
        self.code = code


def opaque(value: torch.Tensor) -> torch.Tensor:
    """A helper that always breaks the graph."""
    value = value * 2
    total = value.sum().item()
    return value + (1 if total > 0.137 else -1)


def said(value: torch.Tensor, text: str = "said") -> torch.Tensor:
    value = value + 1
    print(text, tuple(value.shape))
    return value * 0.5


def powers(value: torch.Tensor, count: int) -> Iterator[torch.Tensor]:
    for index in range(count % 4):
        yield value * index
    if count > 3:
        yield value.sum()


def joined(*values: Any, sep: float = 0.5, **named: Any) -> Any:
    total = sep
    for value in values:
        total = total + value
    for name in named:
        total = total + named[name] * len(name)
    return total


def defaulted(
    value: torch.Tensor,
    scale: Any = 2,
    *,
    extra: Any = None,
    kept: list[int] = [],  # noqa: B006
) -> torch.Tensor:
    """A function with a default that it changes."""
    kept.append(len(kept))
    kept[:] = kept[-2:]
    value = value * scale
    return value if extra is None else value + extra


@dataclass(frozen=True)
class Call:
    """One call of a program: everything `make_arguments` needs."""

    seed: int
    size: int = 3
    shapes: tuple[str, str, str] = ("square", "square", "row")
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype] = (torch.float32,) * 3
    alias: str = "none"
    grad: bool = False
    grad_mode: bool = True
    n: int = 2
    flag: Any = True
    length: int = 2
    keys: str = "ab"
    more: str = "nothing"  # what `obj.more` is


ALIASES = ("none", "none", "none", "same", "transposed", "row", "items", "object", "table")
MORE_ALIASES = ("lists", "all", "weights", "flat", "equal items")


MORE = ("nothing", "tensor", "list", "longer list", "tuple", "dict", "nested", "int", "float", "bool")


def random_calls(seed: int, broad: bool = False, wide: bool = False) -> list[Call]:
    """Calls of one program: a first one, the same again, then changes of it, then the first once more.

    Those of the wide kind take more sizes, and an argument whose structure changes.
    """
    calls = _random_calls(seed, broad)
    if not wide:
        return calls
    rng = random.Random(f"wide calls {seed}")
    first, *others = [(rng.choice((2, 3, 5, 7)), rng.choice(MORE)) for _ in calls[1:-1]]
    chosen = [first, first, *(other if rng.random() < 0.6 else first for other in others), first]
    return [dataclasses.replace(call, size=size, more=more) for call, (size, more) in zip(calls, chosen)]


def _random_calls(seed: int, broad: bool) -> list[Call]:
    rng = random.Random(f"calls {seed}")
    first = _random_call(rng, broad)
    calls = [first, first]
    for _ in range(3 if broad else 2):
        other = _random_call(rng, broad)
        known = [name for name in Call.__dataclass_fields__ if name != "more"]
        names = rng.sample(known, rng.randint(1, 5))
        calls.append(Call(**{name: getattr(other if name in names else first, name) for name in vars(first)}))
    return [*calls, first]


def _random_call(rng: random.Random, broad: bool) -> Call:
    dtypes = (
        (rng.choice(FLOATS), rng.choice(DTYPES), rng.choice(DTYPES)) if rng.random() < 0.4 else (torch.float32,) * 3
    )
    shapes = tuple(rng.choice(("square", "square", "square", "row", "column", "batch", "scalar")) for _ in range(3))
    return Call(
        seed=rng.randrange(1000),
        size=rng.choice((3, 3, 3, 4, 1)),
        shapes=shapes if rng.random() < 0.4 else ("square", "square", "row"),  # type: ignore[arg-type]
        dtypes=dtypes,
        alias=rng.choice(ALIASES + MORE_ALIASES if broad else ALIASES),
        grad=rng.random() < 0.3,
        grad_mode=rng.random() < 0.9,
        n=rng.choice((0, 1, 2, 3, 5, -1, True)),
        flag=rng.choice((True, False, 0, None, "yes")),
        length=rng.choice((2, 2, 1, 3)),
        keys=rng.choice(("ab", "ab", "ba", "abz")),
    )


def make_arguments(call: Call) -> tuple[Any, ...]:
    """The arguments of one call, made anew: no two results share anything."""
    generator = torch.Generator().manual_seed(call.seed)
    size = call.size
    sizes = {"square": (size, size), "row": (size,), "column": (size, 1), "batch": (2, size, size), "scalar": ()}

    def tensor(shape: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        value = torch.randn(sizes[shape], generator=generator, dtype=torch.float64)
        value = (value * 3).to(dtype) if dtype == torch.int64 else value > 0 if dtype == torch.bool else value.to(dtype)
        return value.requires_grad_(call.grad and dtype.is_floating_point)

    x, y, z = (tensor(shape, dtype) for shape, dtype in zip(call.shapes, call.dtypes))
    items = [tensor("square") for _ in range(call.length)]
    table = {key: tensor("row" if key == "b" else "square") for key in call.keys}
    thing = Thing(tensor("square"), call.seed % 4, call.flag == "yes")
    match call.more:
        case "tensor":
            thing.more = tensor("row")
        case "list" | "longer list" | "tuple":
            thing.more = [tensor("row") for _ in range(3 if call.more == "longer list" else 2)]
            if call.more == "tuple":
                thing.more = (thing.more[0], 2)
        case "dict" | "nested":
            thing.more = {"p": tensor("row"), "q": {"r": [x]} if call.more == "nested" else tensor("square")}
        case "int" | "float" | "bool":
            thing.more = {"int": call.seed % 3, "float": call.seed / 7, "bool": call.seed % 2 == 0}[call.more]
    if call.alias in ("same", "all", "object"):
        thing.marks[1] = thing.marks[0]
    match call.alias:
        case "same":
            y = x
        case "transposed":
            y = x.t() if x.dim() <= 2 else x.transpose(0, 1)
        case "row":
            y = x[0] if x.dim() else x.view(1)
        case "items":
            items[0] = x
            items[-1] = items[0]
        case "object":
            thing.weight = y
            thing.child = thing
        case "table":
            table["a"] = items[-1]
        case "lists":
            thing.log = items
        case "all":
            y = z = x
        case "weights":
            thing.weight = items[0] = table["a"]
        case "flat":
            z = x.reshape(-1)
        case "equal items":
            items[:] = items[:1] * len(items)
    return x, y, z, call.n, call.flag, items, table, thing
