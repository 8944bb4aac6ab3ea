"""Kinds of objects that a program may make anew at each call, and a use of each: (make, use), by name.

`make(k)` gives a fresh object, equal to the last one made for the same `k`; `use(o, x)` computes with it.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import inspect
import io
import itertools
import operator
import pathlib
import random
import re
import string
import threading
import types
import uuid
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import dynajit

LINE = compile("lambda x: x + 1", __file__, "eval")
Kind = tuple[Callable[[int], Any], Callable[[Any, Tensor], Any]]


class Plain:
    def __init__(self, k: int) -> None:
        self.k = k

    def add(self, x: Tensor) -> Tensor:
        return x + self.k

    @property
    def twice(self) -> int:
        return 2 * self.k

    @classmethod
    def one_more(cls, x: Tensor) -> Tensor:
        return x + 1


class Valued(Plain):
    def __call__(self, x: Tensor) -> Tensor:
        return x * self.k

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Valued) and self.k == other.k


class Slotted:
    __slots__ = ("k",)

    def __init__(self, k: int) -> None:
        self.k = k


class Text(str):
    pass


class Whole(int):
    pass


class Fixed(tuple[Any, ...]):
    pass


class Row(list[Any]):
    pass


class Table(dict[Any, Any]):
    pass


class Pair(NamedTuple):
    a: int
    b: int


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Record:
    a: int
    b: float = 2.0


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int


class Scaled(nn.Module):
    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k
        self.layer = linear(k)
        self.last = closure(k)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(x)) * self.k


def closure(k: int) -> Callable[[Tensor], Tensor]:
    def add(x: Tensor) -> Tensor:
        return x + k

    return add


def with_defaults(k: int) -> Callable[..., Tensor]:
    def add(x: Tensor, a: int = k, *, b: int = 2) -> Tensor:
        return x + a + b * k

    return add


def wrapped(k: int) -> Callable[[Tensor], Tensor]:
    @functools.wraps(closure)
    def add(x: Tensor) -> Tensor:
        return x + k

    return add


def with_attribute(k: int) -> Callable[[Tensor], Tensor]:
    def add(x: Tensor) -> Tensor:
        return x + add.k  # type: ignore[attr-defined]

    add.k = k  # type: ignore[attr-defined]
    return add


def renamed(k: int) -> Callable[[Tensor], Tensor]:
    add = closure(k)
    add.__name__ = "a" * k
    return add


def recursive(k: int) -> Callable[[Tensor, int], Tensor]:
    def add(x: Tensor, n: int) -> Tensor:
        return x + k if n == 0 else add(x, n - 1)

    return add


def nested(k: int) -> Callable[[Tensor], Tensor]:
    inner = lambda x: x * k  # noqa: E731
    return lambda x: inner(x) + 1


def numbers(k: int) -> Iterator[int]:
    yield from range(k + 1)


def linear(k: int) -> nn.Linear:
    torch.manual_seed(k)
    return nn.Linear(3, 3)


def namespace(text: str) -> types.ModuleType:
    made = types.ModuleType("made")
    exec(text, made.__dict__)
    return made


def local(k: int) -> threading.local:
    made = threading.local()
    made.k = k
    return made


def referred(k: int) -> tuple[Plain, weakref.ref[Plain]]:
    target = Plain(k)
    return target, weakref.ref(target)


def local_class(k: int) -> Any:
    class Local:
        v = k

        def add(self, x: Tensor) -> Tensor:
            return x + self.v

    return Local


def entered(o: Any, x: Tensor) -> Tensor:
    with o:
        return x + 1


#: told by their contents: the third call of a role compiles nothing
def _set_for_a_while(variable: contextvars.ContextVar[int], x: Tensor) -> Tensor:
    token = variable.set(variable.get() + 1)
    y = x * variable.get()
    variable.reset(token)
    return y + variable.get()


BY_CONTENTS: dict[str, Kind] = {
    "lambda": (lambda k: lambda x: x + 1, lambda o, x: o(x)),
    "lambda of a module": (lambda k: eval(LINE), lambda o, x: o(x)),
    "closure": (closure, lambda o, x: o(x)),
    "defaults": (with_defaults, lambda o, x: o(x)),
    "nested": (nested, lambda o, x: o(x)),
    "wrapped": (wrapped, lambda o, x: o(x)),
    "with an attribute": (with_attribute, lambda o, x: o(x)),
    "recursive": (recursive, lambda o, x: o(x, 2)),
    "named": (renamed, lambda o, x: x + len(o.__name__)),
    "functions in a dict": (lambda k: {"f": closure(k)}, lambda o, x: o["f"](x)),
    "functions in a list": (lambda k: [closure(k), nested(k)], lambda o, x: o[1](o[0](x))),
    "function returned": (closure, lambda o, x: (o(x), o)[0]),
    "function asked": (closure, lambda o, x: o(x) if o is not None and callable(o) else x),
    "allowed in the graph": (lambda k: dynajit.allow_in_graph(closure(1)), lambda o, x: x + 1),
    "method": (lambda k: Plain(k).add, lambda o, x: o(x)),
    "method of a hashed object": (lambda k: Valued(k).add, lambda o, x: o(x)),
    "class method": (lambda k: Plain(k).one_more, lambda o, x: o(x)),
    "partial": (lambda k: functools.partial(operator.add, k), lambda o, x: o(x)),
    "partial of a closure": (lambda k: functools.partial(closure(k)), lambda o, x: o(x)),
    "partial with names": (lambda k: functools.partial(torch.mul, other=k), lambda o, x: o(x)),
    "callable": (Valued, lambda o, x: o(x)),
    "object": (Plain, lambda o, x: x + o.k + o.twice),
    "object passed along": (lambda k: object(), lambda o, x: x + (o is not None)),
    "object is": (Plain, lambda o, x: x + (o is o) + (id(o) == id(o))),
    "object as a key": (Plain, lambda o, x: x + len({o: 1})),
    "hashed object as a key": (Valued, lambda o, x: x + len({o: 1})),
    "object in a list": (Plain, lambda o, x: x + (o in [o])),
    "slots": (Slotted, lambda o, x: x + o.k),
    "data class": (Record, lambda o, x: x + o.a * o.b + (o == Record(1))),
    "frozen data class": (Frozen, lambda o, x: x + {Frozen(1): 3}.get(o, 4)),
    "named tuple": (lambda k: Pair(k, 2), lambda o, x: x + o.a + o.b),
    "enumeration": (lambda k: Colour(k % 2 + 1), lambda o, x: x + (o is Colour.RED)),
    "simple namespace": (lambda k: types.SimpleNamespace(a=k), lambda o, x: x + o.a),
    "text": (lambda k: Text("ab" * k), lambda o, x: x + len(o) + o.startswith("ab")),
    "whole": (Whole, lambda o, x: x + o),
    "fixed": (lambda k: Fixed((k, 2)), lambda o, x: x + o[0]),
    "row": (lambda k: Row([k, 2]), lambda o, x: x + o[0]),
    "table": (lambda k: Table(a=k), lambda o, x: x + o["a"]),
    "set": (lambda k: {k, 2}, lambda o, x: x + len(o)),
    "frozenset": (lambda k: frozenset([k, 2]), lambda o, x: x + len(o)),
    "nested containers": (lambda k: ((k,), {"a": [k, {"b": (k,)}]}), lambda o, x: x + o[1]["a"][1]["b"][0]),
    "dict of tuples": (lambda k: {(1, "a"): k}, lambda o, x: x + o[(1, "a")]),
    "dict of hashed objects": (lambda k: {Valued(k): 1}, lambda o, x: x + len(o)),
    "ordered dict": (lambda k: collections.OrderedDict(a=k), lambda o, x: x + o["a"]),
    "default dict": (lambda k: collections.defaultdict(lambda: k), lambda o, x: x + o["a"]),
    "counter": (lambda k: collections.Counter("ab" * k), lambda o, x: x + o["a"]),
    "chain map": (lambda k: collections.ChainMap({"a": k}, {"b": 2}), lambda o, x: x + o["a"]),
    "deque": (lambda k: collections.deque([k, 2]), lambda o, x: x + o[0]),
    "mapping proxy": (lambda k: types.MappingProxyType({"a": k}), lambda o, x: x + o["a"]),
    "keys": (lambda k: {"a": k}.keys(), lambda o, x: x + len(o)),
    "values": (lambda k: {"a": k}.values(), lambda o, x: x + sum(o)),
    "list iterator": (lambda k: iter([k, 2]), lambda o, x: x + next(o)),
    "tuple iterator": (lambda k: iter((k, 2)), lambda o, x: x + sum(o)),
    "range iterator": (lambda k: iter(range(k, 4)), lambda o, x: x + next(o)),
    "dict iterator": (lambda k: iter({"a": k}), lambda o, x: x + len(list(o))),
    "enumerate": (lambda k: enumerate([k, 2]), lambda o, x: x + sum(b for _, b in o)),
    "zip": (lambda k: zip([k], [2], strict=True), lambda o, x: x + sum(b for _, b in o)),
    "map": (lambda k: map(closure(k), [2]), lambda o, x: x + sum(o)),
    "count": (itertools.count, lambda o, x: x + next(o)),
    "generator": (numbers, lambda o, x: x + sum(o)),
    "generator expression": (lambda k: (i for i in range(k + 1)), lambda o, x: x + sum(o)),
    "range": (range, lambda o, x: x + sum(o)),
    "slice": (lambda k: slice(0, k), lambda o, x: x[o] + 1),
    "match": (lambda k: re.match(r"(\d+)", f"{k}.2"), lambda o, x: x + int(o.group(1))),
    "pattern": (lambda k: re.compile(str(k)), lambda o, x: x + (o.match("1") is None)),
    "item getter": (operator.itemgetter, lambda o, x: o(x)),
    "attribute getter": (lambda k: operator.attrgetter("k"), lambda o, x: x + o(Plain(3))),
    "method caller": (lambda k: operator.methodcaller("add", k), lambda o, x: o(x)),
    "method of a list": (lambda k: [k].count, lambda o, x: x + o(1)),
    "method of a tensor": (lambda k: torch.full((3,), float(k)).add, lambda o, x: o(x)),
    "linear": (linear, lambda o, x: o(x)),
    "module": (Scaled, lambda o, x: o(x)),
    "module's method": (lambda k: Scaled(k).forward, lambda o, x: o(x)),
    "compiled": (lambda k: dynajit.compile(closure(k), backend="eager"), lambda o, x: o(x)),
    "static method": (lambda k: staticmethod(closure(k)), lambda o, x: o(x)),
    "property": (lambda k: property(lambda _: k), lambda o, x: x + o.fget(None)),
    "cell": (types.CellType, lambda o, x: x + o.cell_contents),
    "generic alias": (lambda k: list[int], lambda o, x: x + len(o.__args__)),
    "numpy integer": (np.int64, lambda o, x: x + o),
    "numpy float": (np.float32, lambda o, x: x + o),
    "array": (lambda k: np.full((3,), k), lambda o, x: x + torch.from_numpy(o)),
    "tensor": (lambda k: torch.full((3,), float(k)), lambda o, x: x + o),
    "parameter": (lambda k: nn.Parameter(torch.full((3,), float(k))), lambda o, x: x + o),
    "size": (lambda k: torch.Size([k, 2]), lambda o, x: x + o[0]),
    "device": (lambda k: torch.device("cpu"), lambda o, x: x.to(o) + 1),
    "generator of torch": (lambda k: torch.Generator().manual_seed(k), lambda o, x: x + torch.rand(3, generator=o)),
    "distribution": (lambda k: torch.distributions.Normal(torch.zeros(3), k), lambda o, x: o.log_prob(x)),
    "optimizer": (lambda k: torch.optim.SGD([nn.Parameter(torch.ones(3))], k), lambda o, x: x + o.defaults["lr"]),
    "no_grad": (lambda k: torch.no_grad(), entered),
    "autocast": (lambda k: torch.autocast("cpu", dtype=torch.bfloat16), entered),
    "context variable": (lambda k: contextvars.ContextVar("v", default=k), lambda o, x: x + o.get()),
    "context variable set": (lambda k: contextvars.ContextVar("v", default=k), _set_for_a_while),
    "null context": (contextlib.nullcontext, lambda o, x: x + o.__enter__()),
    "path": (lambda k: pathlib.Path("a") / str(k), lambda o, x: x + len(o.name)),
    "fraction": (lambda k: fractions.Fraction(k, 2), lambda o, x: x + float(o)),
    "decimal": (decimal.Decimal, lambda o, x: x + float(o)),
    "time span": (lambda k: datetime.timedelta(seconds=k), lambda o, x: x + o.total_seconds()),
    "template": (lambda k: string.Template("$a" * k), lambda o, x: x + len(o.substitute(a="b"))),
    "bytes": (lambda k: bytes([k]), lambda o, x: x + o[0]),
    "bytearray": (lambda k: bytearray([k]), lambda o, x: x + o[0]),
    "exception": (ValueError, lambda o, x: x + o.args[0]),
    "weak reference": (referred, lambda o, x: x + o[1]().k),
    "lock": (lambda k: threading.Lock(), lambda o, x: x + o.acquire()),
    "thread local": (local, lambda o, x: x + o.k),
    "stream": (lambda k: io.StringIO("a" * k), lambda o, x: x + len(o.getvalue())),
    "random": (random.Random, lambda o, x: x + o.random()),
    "uuid": (lambda k: uuid.UUID(int=k), lambda o, x: x + o.int),
}

#: told by identity, or whose use needs it: left out of the graph, so that from some call on nothing is compiled
LEFT_OUT: dict[str, Kind] = {
    "function as a key": (closure, lambda o, x: x + len({o: 1})),
    "hash of an object": (Plain, lambda o, x: x + (hash(o) != 0)),
    "made by exec": (lambda k: namespace(f"def f(x): return x + {k}").f, lambda o, x: o(x)),
    "set of functions": (lambda k: {closure(k)}, lambda o, x: x + len(o)),
    "dict of objects": (lambda k: {Plain(k): k}, lambda o, x: x + sum(o.values())),
    "dict of functions": (lambda k: {closure(k): k}, lambda o, x: x + sum(o.values())),
    "dict of tensors": (lambda k: {torch.ones(1): k}, lambda o, x: x + sum(o.values())),
    "python module": (lambda k: namespace(f"a = {k}"), lambda o, x: x + o.a),
    "function of a module": (lambda k: namespace(f"def f(x): return x + {k}"), lambda o, x: o.f(x)),
    "cached function": (lambda k: functools.lru_cache(lambda n: n + k), lambda o, x: x + o(1)),
    "signature": (lambda k: inspect.signature(closure(k)), lambda o, x: x + len(o.parameters)),
    "ufunc": (lambda k: np.frompyfunc(abs, 1, 1), lambda o, x: x + float(o(-3))),
    "class": (local_class, lambda o, x: o().add(x)),
    "object of a class": (lambda k: local_class(k)(), lambda o, x: o.add(x)),
    "named tuple's class": (lambda k: collections.namedtuple("Made", "a"), lambda o, x: x + o(3).a),
    "named tuple of a class": (lambda k: collections.namedtuple("Made", "a")(k), lambda o, x: x + o.a),
    "enumeration made": (lambda k: enum.Enum("Made", "A B"), lambda o, x: x + o.A.value),
    "member of an enumeration made": (lambda k: enum.Enum("Made", "A B").A, lambda o, x: x + o.value),
}
