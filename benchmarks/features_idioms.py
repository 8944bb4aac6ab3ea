"""Idioms of the library and the language in programs of people; see features.py."""

import abc
import argparse
import bisect
import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import gc
import heapq
import inspect
import itertools
import json
import math
import operator
import re
import string
import sys
import time
import types
import typing
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from feature_table import varied_feature
from features_loops import batches, small_net
from features_parts import leaves
from torch import Tensor, nn

IDIOMS = "idioms"
idioms = functools.partial(varied_feature, IDIOMS)


class Registry(dict[str, Any]):
    def register(self, name: str) -> Callable[[Any], Any]:
        def put(fn: Any) -> Any:
            self[name] = fn
            return fn

        return put

    def __missing__(self, key: str) -> Any:
        return self["identity"]


ACTIVATIONS = Registry()
ACTIVATIONS.register("identity")(lambda x: x)
ACTIVATIONS.register("swish")(lambda x: x * x.sigmoid())


@idioms(
    "registry of functions by names, a default",
    *[(x, name) for (x,), name in zip(batches(3), ("swish", "none", "swish", "identity"), strict=True)],
)
def _() -> Any:
    return lambda x, name: (ACTIVATIONS[name](x), name in ACTIVATIONS, sorted(ACTIVATIONS))


@idioms("argparse namespace, vars, setdefault", *batches(3))
def _() -> Any:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float, default=2.0)
    parser.add_argument("--layers", nargs="*", type=int, default=[1, 2])
    options = parser.parse_args(["--scale", "3"])

    def run(x: Tensor) -> Any:
        known = vars(options)
        known.setdefault("seen", 0)
        options.seen += 1
        return x * options.scale + sum(options.layers), getattr(options, "absent", None), dict(known)

    return run


@idioms("timer as a context manager and decorator", *batches(3))
def _() -> Any:
    class Timer(contextlib.ContextDecorator):
        spent: dict[str, int] = collections.defaultdict(int)

        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> "Timer":
            self.start = time.perf_counter()
            return self

        def __exit__(self, *error: object) -> None:
            assert time.perf_counter() >= self.start
            Timer.spent[self.name] += 1

    @Timer("inner")
    def inner(x: Tensor) -> Tensor:
        return x.sin()

    def run(x: Tensor) -> Any:
        with Timer("outer"):
            y = inner(x) + inner(x + 1)
        return y, dict(Timer.spent)

    return run


@idioms("lru_cache of masks by size and dtype", *batches(3))
def _() -> Any:
    @functools.lru_cache(maxsize=32)
    def mask(n: int, dtype: torch.dtype) -> Tensor:
        return torch.ones(n, n, dtype=dtype).tril()

    def run(x: Tensor) -> Any:
        return mask(x.shape[0], x.dtype) @ x, mask.cache_info().currsize

    return run


@idioms("cached_property, __slots__, weak reference to the parent", *batches(3))
def _() -> Any:
    class Node:
        __slots__ = ("__dict__", "__weakref__", "children", "parent", "value")

        def __init__(self, value: Any, parent: Any = None) -> None:
            self.value, self.children = value, []
            self.parent = weakref.ref(parent) if parent is not None else None
            if parent is not None:
                parent.children.append(self)

        @functools.cached_property
        def depth(self) -> int:
            above = self.parent() if self.parent is not None else None
            return 0 if above is None else above.depth + 1

        def __iter__(self) -> Iterator["Node"]:
            yield self
            for child in self.children:
                yield from child

    def run(x: Tensor) -> Any:
        root = Node(x)
        Node(x * 2, Node(x + 1, root))
        return sum(node.value * (node.depth + 1) for node in root), [node.depth for node in root]

    return run


@idioms("generators piped: batched, windows, enumerate, zip_longest", *batches(2, many=(5, 6, 5, 9)))
def _() -> Any:
    def windows(rows: Any, n: int) -> Iterator[tuple[Tensor, ...]]:
        held: collections.deque[Tensor] = collections.deque(maxlen=n)
        for row in rows:
            held.append(row)
            if len(held) == n:
                yield tuple(held)

    def batched(rows: Any, n: int) -> Iterator[list[Tensor]]:
        iterator = iter(rows)
        while chunk := list(itertools.islice(iterator, n)):
            yield chunk

    def run(x: Tensor) -> Any:
        total = torch.zeros(2)
        for i, window in enumerate(windows(x, 3), start=1):
            total = total + i * sum(window)
        sizes = [len(chunk) for chunk in batched(x.unbind(), 2)]
        ends = [a + (b if b is not None else 0) for a, b in itertools.zip_longest(x, x[1:])]
        return total, sizes, torch.stack(ends)

    return run


@idioms("event hooks: a list of callbacks that unsubscribe", *batches(3))
def _() -> Any:
    class Hooks:
        def __init__(self) -> None:
            self.called: dict[int, Callable[..., Any]] = {}
            self.number = itertools.count()

        def on(self, fn: Callable[..., Any]) -> Callable[[], None]:
            key = next(self.number)
            self.called[key] = fn
            return lambda: self.called.pop(key, None)

        def fire(self, *args: Any) -> list[Any]:
            return [fn(*args) for fn in list(self.called.values())]

    hooks, history = Hooks(), []
    hooks.on(lambda x: x.mean())

    def run(x: Tensor) -> Any:
        off = hooks.on(lambda x: history.append(x.shape[0]))
        first = hooks.fire(x)
        off()
        return first[0], len(hooks.called), list(history), hooks.fire(x + 1)[0]

    return run


@idioms(
    "state machine by enum and match, an unknown state",
    *[(x, word) for (x,), word in zip(batches(3), ("start", "stop", "start", "dance"), strict=True)],
)
def _() -> Any:
    class State(enum.Enum):
        START = "start"
        STOP = "stop"

        @classmethod
        def _missing_(cls, value: object) -> "State | None":
            return cls.STOP if value == "halt" else None

    def run(x: Tensor, word: str) -> Any:
        try:
            state = State(word)
        except ValueError as error:
            return x, str(error)
        match state:
            case State.START:
                return x + 1, State("halt").name
            case State.STOP if x.shape[0] > 5:
                return x * 2, state.value
        return x, repr(state)

    return run


@idioms(
    "singledispatch over types, recursion over a tree of containers",
    *[({"a": x, "b": [x, (x, 2, "s")], "c": None},) for (x,) in batches(3)],
)
def _() -> Any:
    @functools.singledispatch
    def scale(tree: Any, k: float) -> Any:
        return tree

    @scale.register
    def _(tree: Tensor, k: float) -> Any:
        return tree * k

    @scale.register(list)
    @scale.register(tuple)
    def _(tree: Any, k: float) -> Any:
        return type(tree)(scale(part, k) for part in tree)

    @scale.register
    def _(tree: dict, k: float) -> Any:  # type: ignore[type-arg]
        return {key: scale(part, k + 1) for key, part in tree.items()}

    return lambda tree: scale(tree, 2.0)


@idioms("priority queue, bisect, Counter over shapes", *batches(3))
def _() -> Any:
    seen: collections.Counter[int] = collections.Counter()
    order: list[int] = []

    def run(x: Tensor) -> Any:
        n = x.shape[0]
        seen[n] += 1
        bisect.insort(order, n)
        heap: list[Any] = []
        for i, row in enumerate(x):
            heapq.heappush(heap, (-i % 3, i, row))
        best = [heapq.heappop(heap)[2] for _ in range(2)]
        return torch.stack(best), seen.most_common(1), list(order)

    return run


@idioms("names by regular expressions, weights grouped", *batches(5))
def _() -> Any:
    net = small_net()
    pattern = re.compile(r"^(\d+)\.(?P<kind>weight|bias)$")

    def run(x: Tensor) -> Any:
        groups: dict[str, list[Tensor]] = {}
        for name, p in net.named_parameters():
            if found := pattern.match(name):
                groups.setdefault(found["kind"], []).append(p)
        decay = sum(p.square().sum() for p in groups["weight"])
        return net(x).sum() + 0.01 * decay, {k: len(v) for k, v in groups.items()}

    return run


@idioms("json and templates of a configuration, hash of it", *batches(3))
def _() -> Any:
    config = {"scale": 2, "names": ["a", "b"], "nested": {"x": 1.5}}

    def run(x: Tensor) -> Any:
        text = json.dumps(config, sort_keys=True)
        again = json.loads(text)
        title = string.Template("scale=$scale").substitute(again)
        return x * again["scale"] + again["nested"]["x"], title, len(text)

    return run


@idioms("method by name, partial, signature, kwargs filtered", *batches(3))
def _() -> Any:
    class Ops:
        def double(self, x: Tensor, *, by: float = 2.0) -> Tensor:
            return x * by

        def shift(self, x: Tensor, amount: int = 1, **rest: Any) -> Tensor:
            return x + amount + len(rest)

    ops, given = Ops(), {"by": 3.0, "amount": 4, "other": 1}

    def run(x: Tensor) -> Any:
        for name in ("double", "shift"):
            fn = getattr(ops, name)
            known = inspect.signature(fn).parameters
            takes_all = any(p.kind is p.VAR_KEYWORD for p in known.values())
            x = functools.partial(fn, **{k: v for k, v in given.items() if takes_all or k in known})(x)
        return x, operator.attrgetter("double.__name__")(ops)

    return run


class Schedule(abc.ABC):
    def __init__(self, base: float) -> None:
        self.base = base

    @abc.abstractmethod
    def at(self, step: int) -> float: ...

    def __call__(self, step: int) -> float:
        return self.base * self.at(step)

    def __add__(self, other: "Schedule") -> "Schedule":
        made = types.new_class("Sum", (Schedule,), {}, lambda ns: ns.update(at=lambda me, t: self(t) + other(t)))
        return made(1.0)


class Cosine(Schedule):
    def at(self, step: int) -> float:
        return 0.5 * (1 + math.cos(math.pi * min(step, 10) / 10))


class Warm(Schedule):
    def at(self, step: int) -> float:
        return min(1.0, (step + 1) / 5)


@idioms("schedules as abstract classes with operators, a step that counts", *batches(3))
def _() -> Any:
    schedule, state = Cosine(0.1) + Warm(0.2), types.SimpleNamespace(step=0)

    def run(x: Tensor) -> Any:
        state.step += 1
        return x * schedule(state.step), round(schedule(state.step), 6)

    return run


class Named(typing.NamedTuple):
    hidden: Tensor
    aux: dict[str, Any] | None = None

    @property
    def loss(self) -> Tensor:
        return self.hidden.sum() + sum((self.aux or {}).values(), torch.zeros(()))


@idioms("results as named tuples, dataclasses with post_init, unpacked", *leaves(3))
def _() -> Any:
    @dataclasses.dataclass
    class Result:
        named: Named
        size: int = dataclasses.field(init=False)
        notes: list[str] = dataclasses.field(default_factory=list, repr=False)

        def __post_init__(self) -> None:
            self.size = len(self.named.hidden)
            self.notes.append(f"{self.size} rows")

        def __iter__(self) -> Iterator[Any]:
            return iter(dataclasses.astuple(self)[1:])

    def run(x: Tensor) -> Any:
        result = Result(Named(x.sin(), aux={"reg": x.square().mean()}))
        _, notes = result.size, result.notes
        changed = dataclasses.replace(result, named=result.named._replace(aux=None))
        return result.named.loss, changed.named.loss, notes, result.size

    return run


@idioms("gc, weak dictionary of modules, finalize not run", *batches(5))
def _() -> Any:
    net = small_net()
    names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
    for name, module in net.named_modules():
        names[module] = name

    def run(x: Tensor) -> Any:
        for layer in net:
            x = layer(x) * (1 + len(names[layer]))
        return x, gc.isenabled(), len(names)

    return run


@idioms("warnings once, by a module flag", *batches(3))
def _() -> Any:
    flags = {"warned": False}

    def run(x: Tensor) -> Any:
        if x.shape[0] > 5 and not flags["warned"]:
            warnings.warn("large batch", stacklevel=2)
            flags["warned"] = True
        return x + 1, dict(flags)

    return run


@idioms("assertions on shapes with messages", *batches(3))
def _() -> Any:
    def run(x: Tensor) -> Any:
        assert x.ndim == 2 and x.size(-1) == 3, f"bad shape {tuple(x.shape)}"
        assert x.shape[0] != 9, f"nine rows are {x.shape[0]} too many, {x.dtype}"
        return x.softmax(-1)

    return run


@idioms("retry after an exception, finally counts, else", *batches(3))
def _() -> Any:
    counts: collections.Counter[str] = collections.Counter()

    def attempt(x: Tensor, rows: int) -> Tensor:
        if x.shape[0] > rows:
            raise MemoryError(f"{x.shape[0]} > {rows}")
        return x.cumsum(0)

    def run(x: Tensor) -> Any:
        rows = 4
        while True:
            try:
                out = attempt(x, rows)
            except MemoryError as error:
                counts[type(error).__name__] += 1
                rows *= 2
            else:
                counts["good"] += 1
                break
            finally:
                counts["tries"] += 1
        return out, rows, dict(counts)

    return run


class Board:
    """A game's state, whose copies leave the cache behind."""

    def __init__(self, x: Tensor) -> None:
        self.cells, self.cache = x, {"moves": 3}

    def __getstate__(self) -> dict[str, Any]:
        return {"cells": self.cells}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.cache = {}


@idioms("copies by __getstate__ and __setstate__", *batches(3))
def _() -> Any:
    def run(x: Tensor) -> Any:
        board = Board(x * 2)
        clones = [copy.copy(board), copy.deepcopy(Board(x))]
        clones[0].cells = clones[0].cells + 1
        return [clone.cells for clone in clones], board.cells, clones[0].cache

    return run


@idioms("sys.exc_info in a loop of handlers", *batches(3))
def _() -> Any:
    def run(x: Tensor) -> Any:
        found = []
        for i in range(3):
            try:
                if i % 2:
                    raise ValueError(f"step {i}")
                x = x + i
            except ValueError:
                kind, error, _ = sys.exc_info()
                found.append((kind, str(error)))
        return x, found

    return run


@idioms("a choice by math.sqrt and log of counts", *batches(3))
def _() -> Any:
    visits, values = [1] * 3, [0.3, 0.2, 0.1]

    def run(x: Tensor) -> Any:
        bound = math.log(sum(visits) + 1)
        best = max(range(3), key=lambda i: values[i] + math.sqrt(bound / visits[i]))
        visits[best] += 1
        return x * best, best

    return run
