"""Features of Python and NumPy, a small program for each; see features.py."""

import asyncio
import collections
import contextlib
import copy
import dataclasses
import decimal
import enum
import inspect
import queue
import random
import re
import threading
import typing
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from feature_table import block, simple, x8
from torch import Tensor

PY = "Python"
Pair = collections.namedtuple("Pair", "a b")


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Boom(Exception):
    pass


def _make_namedtuple(x: Tensor) -> Tensor:
    P = collections.namedtuple("P", "a b")
    p = P(x, x + 1)
    return p.a * p.b


def _make_dataclass(x: Tensor) -> Tensor:
    @dataclasses.dataclass
    class D:
        a: Tensor
        b: int = 2

    d = D(x)
    return d.a * d.b


def _make_function(x: Tensor) -> Tensor:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 2

    return Double.apply(x) + 1


def _make_enum(x: Tensor) -> Tensor:
    class E(enum.Enum):
        A = 1
        B = 2

    return x * E.B.value


def _caught(x: Tensor) -> Tensor:
    try:
        raise Boom("x")
    except Boom as e:
        return x * len(e.args)


def _leaves(x: Tensor) -> Tensor:
    y = x * 2
    if y.dim() == 1:
        raise ValueError("one dimension")
    return y


def _import(x: Tensor) -> Tensor:
    import math

    return x * math.pi


def _exec(x: Tensor) -> Tensor:
    space: dict[str, Any] = {}
    exec("a = 1 + 2", space)
    return x * space["a"]


def _locals(x: Tensor) -> Tensor:
    y = x * 2
    return locals()["y"] + 1


def _decimal(x: Tensor) -> Tensor:
    return x * float(decimal.Decimal("1.5") * 2)


class Base:
    pass


class Derived(Base):
    pass


LOCK = threading.Lock()
RLOCK = threading.RLock()


def _locked(x: Tensor) -> Tensor:
    with LOCK:
        y = x * 2
    return y + 1


def _rlocked(x: Tensor) -> Tensor:
    with RLOCK:
        y = x * 2
    return y + 1


def _own_lock(x: Tensor) -> Tensor:
    with threading.Lock():
        return x * 2


def _queue(x: Tensor) -> Tensor:
    q: Any = queue.Queue()
    q.put(x * 2)
    return q.get() + 1


def _simple_queue(x: Tensor) -> Tensor:
    q: Any = queue.SimpleQueue()
    q.put(x * 2)
    return q.get() + 1


def _event(x: Tensor) -> Tensor:
    e = threading.Event()
    e.set()
    return x * 2 if e.is_set() else x


def _signature(x: Tensor) -> Tensor:
    return x * len(inspect.signature(block).parameters)


def _bind(x: Tensor) -> Tensor:
    bound = inspect.signature(block).bind(x, scale=2.0)
    bound.apply_defaults()
    return block(*bound.args, **bound.kwargs)


def _typing(x: Tensor) -> Tensor:
    hints = typing.get_type_hints(block)
    return x * len(hints) if typing.get_origin(list[int]) is list else x


class Key:
    pass


def _weak_key(x: Tensor) -> Tensor:
    d: Any = weakref.WeakKeyDictionary()
    k = Key()
    d[k] = x * 2
    return d[k] + 1


def _weak_value(x: Tensor) -> Tensor:
    d: Any = weakref.WeakValueDictionary()
    k = Key()
    k.x = x * 2  # type: ignore[attr-defined]
    d["k"] = k
    return d["k"].x + 1


def _weak_set(x: Tensor) -> Tensor:
    k = Key()
    s = weakref.WeakSet([k])
    return x * len(s) if k in s else x


WEAK_KEYS: Any = weakref.WeakKeyDictionary()
KEPT = Key()
WEAK_KEYS[KEPT] = 3
WEAK_VALUES: Any = weakref.WeakValueDictionary({"k": KEPT})
WEAK_SET = weakref.WeakSet([KEPT])
simple(PY, "namedtuple class made inside", _make_namedtuple, x8)
simple(PY, "dataclass made inside", _make_dataclass, x8)
simple(PY, "autograd.Function made inside", _make_function, x8)
simple(PY, "Enum made inside", _make_enum, x8)
simple(PY, "exception caught", _caught, x8)
simple(PY, "exception that leaves", _leaves, x8)
simple(PY, "import inside", _import, x8)
simple(PY, "eval of a constant", lambda x: x * eval("1 + 2"), x8)
simple(PY, "exec of a constant", _exec, x8)
simple(PY, "locals()", _locals, x8)
simple(PY, "!a formatting", lambda x: (f"{'ü'!a} {x.dim()!r:>4}", x * 2), x8)
simple(PY, "type.__subclasses__", lambda x: x * len(Base.__subclasses__()), x8)
simple(PY, "Decimal", _decimal, x8)
simple(PY, "random.sample", lambda x: x * random.sample(range(1), 1)[0], x8)
simple(PY, "random.random", lambda x: x * random.random(), x8)
simple(PY, "lock from outside", _locked, x8)
simple(PY, "RLock from outside", _rlocked, x8)
simple(PY, "lock made inside", _own_lock, x8)
simple(PY, "queue.Queue", _queue, x8)
simple(PY, "queue.SimpleQueue", _simple_queue, x8)
simple(PY, "threading.Event", _event, x8)
simple(PY, "inspect.signature", _signature, x8)
simple(PY, "inspect.signature().bind", _bind, x8)
simple(PY, "typing introspection", _typing, x8)
simple(PY, "WeakKeyDictionary made inside", _weak_key, x8)
simple(PY, "WeakValueDictionary made inside", _weak_value, x8)
simple(PY, "WeakSet made inside", _weak_set, x8)
simple(PY, "WeakKeyDictionary from outside", lambda x: x * WEAK_KEYS[KEPT] if KEPT in WEAK_KEYS else x, x8)
simple(
    PY, "WeakValueDictionary from outside", lambda x: x * len(WEAK_VALUES) if WEAK_VALUES.get("k") is KEPT else x, x8
)
simple(PY, "WeakSet from outside", lambda x: x * len(WEAK_SET) if KEPT in WEAK_SET else x, x8)


class Text(str):
    pass


def _regex(x: Tensor) -> Tensor:
    found = re.match(r"layer(\d+)", Text("layer12"))
    return x * int(found.group(1)) if found else x


async def _agen(x: Tensor) -> Any:
    for i in range(3):
        yield x * i


async def _awaits(x: Tensor) -> Tensor:
    total = x
    async for y in _agen(x):
        total = total + y
    return total


def _coroutine(x: Tensor) -> Tensor:
    try:
        _awaits(x).send(None)
    except StopIteration as stop:
        return stop.value * 2
    return x


def _generator(x: Tensor) -> Iterator[Tensor]:
    for i in range(3):
        yield x * i


simple(PY, "re on a str subclass", _regex, x8)
simple(PY, "re on str", lambda x: x * int(re.sub("[a-z]", "", "layer12")), x8)
simple(PY, "async generator", _coroutine, x8)
simple(PY, "asyncio.run", lambda x: asyncio.run(_awaits(x)), x8)
simple(PY, "generator", lambda x: sum(_generator(x)), x8)
simple(PY, "contextlib.ExitStack", lambda x: _exit_stack(x), x8)
simple(PY, "copy.deepcopy", lambda x: copy.deepcopy([x, {"a": x}])[1]["a"] * 2, x8)
simple(PY, "match statement", lambda x: _matched(Pair(x, 2)), x8)
simple(PY, "enum members", lambda x: x * Color["BLUE"].value * len(Color), x8)


def _exit_stack(x: Tensor) -> Tensor:
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        return x * 2


def _matched(p: Any) -> Any:
    match p:
        case Pair(a, 2):
            return a * 2
        case _:
            return p


# ---------------------------------------------------------------------------------------- NumPy

NP = "NumPy"


def a8() -> Any:
    return np.linspace(-1.0, 1.0, 8)


def a44() -> Any:
    return np.arange(16.0).reshape(4, 4)


simple(NP, "array argument", lambda a: np.sin(a) * 2 + 1, a8)
simple(NP, "tensor.numpy()", lambda x: torch.from_numpy(np.exp(x.numpy())) * 2, x8)
simple(NP, "reductions", lambda a: (a.sum(0), a.mean(axis=1), np.max(a), a.std()), a44)
simple(NP, "meshgrid", lambda a: np.meshgrid(a, a), a8)
simple(NP, "linspace, arange, zeros", lambda a: np.linspace(0, 1, 8) + np.arange(8) + np.zeros(8) + a, a8)
simple(NP, "default_rng", lambda x: x * torch.from_numpy(np.random.default_rng(0).standard_normal(8)), x8)
simple(NP, "np.random.randn", lambda a: a * np.random.randn(8).shape[0], a8)
simple(NP, "tolist", lambda x: x * sum(np.arange(3).tolist()), x8)
simple(NP, "tolist of an argument", lambda a: a.tolist(), a8)
simple(NP, "linalg", lambda a: (np.linalg.norm(a), np.linalg.inv(a + np.eye(4) * 50)), a44)
simple(NP, "svd", lambda a: np.linalg.svd(a)[1], a44)
simple(NP, "fft", lambda a: np.fft.fft(a).real, a8)
simple(NP, "einsum, dot, matmul", lambda a: np.einsum("ij,jk->ik", a, a) + a.dot(a) + a @ a, a44)
simple(NP, "boolean mask", lambda a: a[a > 0], a8)
simple(NP, "where with one argument", lambda a: np.where(a > 0), a8)
simple(NP, "unique", lambda a: np.unique(a), a8)
simple(NP, "concatenate, stack, split", lambda a: np.split(np.concatenate([a, np.stack([a, a]).ravel()]), 3), a8)
simple(NP, "astype, dtypes", lambda a: a.astype(np.float32).astype("int64") + np.float64(2), a8)
simple(NP, "sort, argsort, take", lambda a: (np.sort(a), np.take(a, np.argsort(-a))), a8)
simple(
    NP,
    "broadcast_to, pad, flip, roll",
    lambda a: (np.broadcast_to(a, (2, 8)), np.pad(a, 1), np.flip(a), np.roll(a, 1)),
    a8,
)
simple(NP, "interp, histogram", lambda a: np.interp(a, [0.0, 1.0], [2.0, 3.0]), a8)
simple(NP, "percentile, median", lambda a: (np.median(a), np.percentile(a, 30)), a8)
simple(NP, "shape, dtype, size", lambda a: np.ones(a.shape, a.dtype) * a.size, a44)


def _np_write(a: Any) -> Any:
    b = a[1:]
    b += 1
    a[0] = 5
    return a * 2


def _np_shared(x: Tensor) -> Any:
    a = x.numpy()
    a[2:4] = 7
    return x + 1


def _np_alias(x: Tensor) -> Any:
    a = np.zeros(8, np.float32)
    t = torch.from_numpy(a)
    t += x
    return a, t * 2


def _np_loop(a: Any) -> Any:
    total = 0
    for row in a:
        total = total + row
    return total


def _np_item(a: Any) -> Any:
    return torch.ones(4) * float(a[0, 1])


def _np_struct(x: Tensor) -> Any:
    s = np.zeros(2, [("a", "f4"), ("b", "i4")])
    return x * float(s["a"].sum() + 1)


simple(NP, "writes into an argument", _np_write, a8)
simple(NP, "writes into a tensor's array", _np_shared, x8)
simple(NP, "tensor in an array's memory", _np_alias, x8)
simple(NP, "loop over rows", _np_loop, a44)
simple(NP, "item of an argument", _np_item, a44)
simple(NP, "structured dtype", _np_struct, x8)
simple(NP, "ufunc methods", lambda a: (np.add.reduce(a), np.multiply.outer(a, a), np.maximum.accumulate(a)), a8)
simple(NP, "vectorize", lambda a: np.vectorize(lambda v: v + 1)(a), a8)
simple(NP, "isclose, allclose", lambda a: np.isclose(a, a + 1e-9), a8)
simple(NP, "torch.as_tensor of an array", lambda a: torch.as_tensor(a) * 2 + torch.tensor(a), a8)
simple(NP, "np.asarray of a tensor", lambda x: np.asarray(x) * 2, x8)
simple(NP, "constant array of a module", lambda x: x * torch.from_numpy(TABLE), x8)
simple(NP, "scalar functions", lambda x: x * float(np.sqrt(2.0)) * np.pi * int(np.prod([2, 3])), x8)
simple(NP, "random.seed, then randn", lambda x: _np_seeded(x), x8)
TABLE = np.arange(8.0)


def _np_filled(a: Any) -> Any:
    out = np.zeros((3, 8))
    for i in range(3):
        out[i] = a * i
    out[out < 0] = 0
    return out**2


simple(NP, "array made inside and filled, mask write, power", _np_filled, a8)
simple(NP, "np.array of computed scalars", lambda a: np.array([a.sum(), a.max()]), a8)
simple(NP, "text of a scalar", lambda a: (f"{a.mean():.3f}", a * 2), a8)


def _np_seeded(x: Tensor) -> Tensor:
    return x * torch.from_numpy(np.random.RandomState(0).randn(8))
