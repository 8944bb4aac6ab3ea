"""More features of Python, its library and torch, as programs use them; see features.py."""

import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import heapq
import inspect
import io
import itertools
import json
import numbers
import operator
import string
import types
import typing
import weakref
from typing import Any

import numpy as np
import torch
from feature_table import add, block, leaf, simple, x8, x44
from torch import Tensor, nn

LANG = "language"
LIB = "library"
API = "torch API"


class Numbered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for number in range(3):
            setattr(self, f"layer{number}", nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        for number in range(3):
            x = eval(f"self.layer{number}")(x)
        return x


def _returns_locals(x: Tensor, k: int = 3) -> Any:
    y = x * k
    return locals()


def _asks_locals(x: Tensor) -> Tensor:
    if "z" in locals():
        return x
    return x + len(vars())


def _eval_in(x: Tensor) -> Any:
    return eval("torch.relu(x) + y", {"torch": torch, "x": x}, {"y": 2})


def _typed_named_tuple(x: Tensor) -> Any:
    class P(typing.NamedTuple):
        a: Tensor
        b: int = 3

    return P(x).a * P(x).b


def _int_enum(x: Tensor) -> Any:
    class E(enum.IntEnum):
        A = enum.auto()
        B = enum.auto()

    return x * E.B


def _flag(x: Tensor) -> Any:
    class F(enum.Flag):
        R = 1
        W = 2

    return x if F.R in (F.R | F.W) else x * 2


def _type_call(x: Tensor) -> Any:
    return x * type("K", (), {"k": 3})().k  # type: ignore[attr-defined]


def _group(x: Tensor) -> Tensor:
    y = x
    try:
        raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
    except* ValueError as e:
        y = x * len(e.exceptions)
    except* TypeError:
        y = y + 1
    return y


def _notes(x: Tensor) -> Any:
    try:
        e = ValueError("a")
        e.add_note("hint")
        raise e
    except ValueError as error:
        return x * len(error.__notes__)


def _send(x: Tensor) -> Any:
    def g() -> Any:
        total = 0
        while (v := (yield total)) is not None:
            total = total + v
        return total

    it = g()
    next(it)
    it.send(x)
    it.send(x * 2)
    try:
        it.send(None)
    except StopIteration as stop:
        return stop.value


def _match(x: Tensor) -> Any:
    match {"a": x, "k": 2, "z": 1}:
        case {"a": Tensor() as t, "k": int(k), **rest}:
            return t * k, rest


def _chained_errors(x: Tensor) -> Any:
    try:
        try:
            _ = 1 / 0
        except ZeroDivisionError as e:
            raise ValueError("v") from e
    except ValueError as e:
        return x * 2, type(e.__cause__).__name__


@dataclasses.dataclass
class Point:
    a: Any
    b: int = 2
    c: list[int] = dataclasses.field(default_factory=list)


@functools.singledispatch
def _dispatched(v: Any) -> Any:
    return v


@_dispatched.register
def _(v: int) -> Any:
    return v + 1


class Descriptor:
    def __set_name__(self, owner: Any, name: str) -> None:
        self.name = name

    def __get__(self, obj: Any, kind: Any = None) -> Any:
        return 5 if obj is not None else self.name


class Described:
    v = Descriptor()


class Meta(type):
    made: dict[Any, Any] = {}

    def __call__(cls, *args: Any) -> Any:
        if cls not in cls.made:
            cls.made[cls] = super().__call__(*args)
        return cls.made[cls]


class Single(metaclass=Meta):
    k = 2


SINGLE = Single()


def _suppressed(x: Tensor) -> Any:
    @contextlib.contextmanager
    def scaled(k: int) -> Any:
        yield k * 2

    with scaled(2) as k, contextlib.suppress(KeyError):
        return x * k


def _redirected(x: Tensor) -> Any:
    buffer = io.StringIO()
    with contextlib.redirect_stdout(buffer):
        print("hi")
    return x * len(buffer.getvalue())


def _deque(x: Tensor) -> Any:
    d = collections.deque([x, x * 2, x * 3], maxlen=3)
    d.rotate(1)
    d.appendleft(x * 5)
    return sum(d)


def _ordered(x: Tensor) -> Any:
    d = collections.OrderedDict(a=x, b=x * 2)
    d.move_to_end("a")
    return list(d), d.popitem()[1] + 1


def _default_dict(x: Tensor) -> Any:
    d = collections.defaultdict(list)
    d["a"].append(x)
    d["a"].append(x * 2)
    return torch.stack(d["a"])


def _tools(x: Tensor) -> Any:
    pairs = list(itertools.pairwise([x, x + 1, x + 2]))
    steps = list(itertools.accumulate([1, 2, 3], operator.mul))
    groups = {k: len(list(g)) for k, g in itertools.groupby("aabbb")}
    return sum(a * b for a, b in pairs) * steps[-1], groups, list(itertools.product("ab", [1]))


def _heap(x: Tensor) -> Any:
    h = [3, 1, 2]
    heapq.heapify(h)
    heapq.heappush(h, 0)
    return x * heapq.heappop(h), heapq.nlargest(2, h)


def _proxy(x: Tensor) -> Any:
    p = Point(x)
    return weakref.proxy(p).b * x


def _parameters_filtered(x: Tensor) -> Any:
    known = inspect.signature(block).parameters
    return block(x, **{k: v for k, v in {"scale": 3.0, "z": 1}.items() if k in known})


def _versions(x: Tensor) -> Any:
    y = x * 2
    before = y._version
    y.add_(1)
    return y, y._version - before


def _detached_state(x: Tensor) -> Any:
    state, total = torch.zeros(8), x * 0
    for _ in range(3):
        state = (state + x).tanh()
        total = total + state
        state.detach_()
    return total


def _data_trained(x: Tensor, p: Tensor) -> Any:
    p.data = p.data * 0.9
    with torch.no_grad():
        p.mul_(2)
    return (p * x).sin()


def _data_kept(x: Tensor, p: Tensor) -> Any:
    old = p.data
    p.data = p.data * 2
    return (old * x).sin() + p


def _set_view(x: Tensor) -> Any:
    y = torch.zeros(2)
    y.set_(x[::2])
    return y * 2


NET = nn.Sequential(nn.Linear(4, 4), nn.ReLU())


def _hooked(x: Tensor) -> Any:
    kept: list[Tensor] = []
    handle = NET[0].register_forward_hook(lambda m, i, o: kept.append(o))
    y = NET(x)
    handle.remove()
    return y, kept[0]


def _weight_sum(x: Tensor) -> Any:
    return sum(p.sum() for p in NET.parameters()) + x, [n for n, _ in NET.named_parameters()], len(NET.state_dict())


simple(LANG, "eval of an attribute's name", Numbered(), x44)
simple(LANG, "locals() returned", _returns_locals, x8)
simple(LANG, "name in locals()", _asks_locals, x8)
simple(LANG, "eval in dictionaries", _eval_in, x8)
simple(LANG, "typing.NamedTuple made inside", _typed_named_tuple, x8)
simple(LANG, "IntEnum with auto() made inside", _int_enum, x8)
simple(LANG, "Flag made inside", _flag, x8)
simple(LANG, "type(name, bases, namespace)", _type_call, x8)
simple(LANG, "except*", _group, x8)
simple(LANG, "notes of exceptions", _notes, x8)
simple(LANG, "generator that is sent to", _send, x8)
simple(LANG, "match on mappings and classes", _match, x8)
simple(LANG, "raise from", _chained_errors, x8)
simple(LANG, "descriptors", lambda x: (Described().v * x, Described.v), x8)
simple(LANG, "metaclass with __call__", lambda x: (Single() is SINGLE, x * Single().k), x8)
simple(LIB, "dataclasses.replace, asdict", lambda x: (dataclasses.replace(Point(x), b=3).b * x, repr(Point(1, 2))), x8)
simple(LIB, "functools.singledispatch", lambda x: _dispatched(x) * _dispatched(2), x8)
simple(LIB, "contextlib.contextmanager, suppress", _suppressed, x8)
simple(LIB, "contextlib.redirect_stdout", _redirected, x8)
simple(LIB, "deque", _deque, x8)
simple(LIB, "OrderedDict", _ordered, x8)
simple(LIB, "defaultdict", _default_dict, x8)
simple(LIB, "Counter", lambda x: x * collections.Counter("hello")["l"], x8)
simple(LIB, "ChainMap", lambda x: x * collections.ChainMap({"a": 1}, {"a": 2, "b": 3})["b"], x8)
simple(LIB, "itertools", _tools, x8)
simple(LIB, "heapq", _heap, x8)
simple(LIB, "functools.reduce, partial", lambda x: functools.reduce(functools.partial(torch.add, alpha=2), [x] * 3), x8)
simple(LIB, "operator", lambda x: (operator.methodcaller("sum", 0)(x), operator.itemgetter(0)([x])), x8)
simple(LIB, "string.Template", lambda x: x * len(string.Template("$a-$b").substitute(a=1, b=2)), x8)
simple(LIB, "json", lambda x: x * json.loads(json.dumps({"a": 3}))["a"], x8)
simple(LIB, "copy of containers", lambda x: copy.deepcopy({"a": [x, 1]})["a"][0] * 2, x8)
simple(LIB, "types.SimpleNamespace", lambda x: types.SimpleNamespace(a=x, b=2).a * 2, x8)
simple(LIB, "numbers, abstract classes", lambda x: x * isinstance(3, numbers.Number), x8)
simple(LIB, "weakref.proxy", _proxy, x8)
simple(LIB, "inspect.getfullargspec", lambda x: x * len(inspect.getfullargspec(block).args), x8)
simple(LIB, "inspect.ismodule", lambda x: x * (2 if inspect.ismodule(inspect) else 3), x8)
simple(LIB, "keyword arguments by signature", _parameters_filtered, x8)
simple(API, "_version of a result", _versions, x8)
simple(API, "detach_ in a loop", _detached_state, leaf)
simple(API, "`p.data =`, then a step and gradients", _data_trained, x8, leaf)
simple(API, "old data kept beside `p.data =`", _data_kept, leaf, x8)
simple(API, "set_() to a view", _set_view, x8)
simple(API, "module.to() and .float() inside", lambda x: NET.to(torch.float32)(x) + NET.float()(x), x44)
simple(API, "forward hook put on and removed", _hooked, x44)
simple(API, "parameters, state_dict", _weight_sum, x44)
simple(API, "torch.broadcast_shapes, result_type", lambda x: (torch.broadcast_shapes((1, 8), x.shape), x * 2), x8)
simple(API, "distributions", lambda x: torch.distributions.Normal(x, torch.ones(8)).log_prob(x), x8)
simple(API, "NumPy beside tensors", lambda x: torch.from_numpy(np.stack([np.ones(8), np.zeros(8)])) * x, x8)


# ---------------------------------------------------------------------------------------- chosen by tensors

CHOSEN = "chosen by tensors"


def two() -> Tensor:
    return torch.tensor(2)


def x345() -> Tensor:
    return torch.arange(60.0).reshape(3, 4, 5)


def _counted(x: Tensor) -> Tensor:
    counts = torch.zeros(5)
    for at in range(4):
        counts[x[at].argmax()] += 1
    return counts


def _added(x: Tensor, t: Tensor) -> Tensor:
    x[t] += 1
    x[:, t] *= 2
    return x.sum(0)


def _view_added(x: Tensor, t: Tensor) -> Tensor:
    own = x * 2
    own[t].add_(x[0])
    own.select(1, t).fill_(3)
    return own


class Cache(nn.Module):
    """Keys by position, as in generation."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = nn.Buffer(torch.zeros(4, 8, 4))

    def forward(self, key: Tensor, position: Tensor) -> Tensor:
        self.keys[:, position] = key
        return (self.keys @ key.T).sum(0)


simple(CHOSEN, "x[:, t], x[..., t]", lambda x, t: (x[:, t] * 2, x[..., t] + 1), x345, two)
simple(CHOSEN, "x.select(1, t), x.narrow(2, t, 2)", lambda x, t: (x.select(1, t) * 2, x.narrow(2, t, 2) + 1), x345, two)
simple(CHOSEN, "x[t] += 1, x[:, t] *= 2", _added, x345, two)
simple(CHOSEN, "x[t].add_(v), x.select(1, t).fill_(v)", _view_added, x345, two)
simple(CHOSEN, "counts[t] += 1", _counted, x44)
add(CHOSEN, "cache[:, position] = key", lambda: (Cache(), torch.ones(4, 4), torch.tensor(3)))
simple(CHOSEN, "x[t] returned", lambda x, t: x[t], x345, two)
