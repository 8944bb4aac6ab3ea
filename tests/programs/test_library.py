"""Programs that use functools, itertools, collections, operator, math, contextlib, copy, typing."""

import collections
import contextlib
import copy
import functools
import itertools
import math
import operator
import typing
from typing import Any

import pytest
import torch
from cases import Case, Cases
from torch import Tensor

x = torch.arange(6.0).reshape(2, 3)
cases = Cases()


@cases(x)
def iteration_tools(x: Tensor) -> Any:
    count = itertools.count(5, 2)
    return (
        list(itertools.chain([1], (2, 3), "a")),
        list(itertools.chain.from_iterable([[1], [x]])),
        list(itertools.islice(range(10), 1, 8, 3)),
        [next(count) for _ in range(3)],
        list(itertools.zip_longest([1, 2], "a", fillvalue=0)),
        list(itertools.product([1, 2], "ab")),
        list(itertools.permutations([1, 2, 3], 2)),
        list(itertools.combinations([x, 1, 2], 2)),
        list(itertools.accumulate([1, 2, 3])),
        list(itertools.accumulate([x, x], torch.mul)),
        list(itertools.starmap(pow, [(2, 3), (3, 2)])),
        list(itertools.takewhile(lambda v: v < 3, [1, 2, 3, 1])),
        list(itertools.dropwhile(lambda v: v < 3, [1, 2, 3, 1])),
        list(itertools.repeat(x, 2)),
        [(k, list(g)) for k, g in itertools.groupby("aabbb")],
        list(itertools.pairwise([1, 2, 3])),
        list(itertools.compress("abc", [1, 0, 1])),
        list(itertools.islice(itertools.cycle([1, 2]), 5)),
        list(zip(range(3), itertools.repeat(7), strict=False)),
        x + 1,
    )


@cases(x)
def operator_functions(x: Tensor) -> Any:
    pairs = [(2, "b"), (1, "a")]
    return (
        operator.add(x, 1),
        operator.itemgetter(1)([1, 2]),
        operator.itemgetter(0, 2)("abc"),
        sorted(pairs, key=operator.itemgetter(0)),
        operator.attrgetter("shape")(x),
        operator.methodcaller("sum", 0)(x),
        operator.getitem({"a": 1}, "a"),
        operator.lt(1, 2),
        operator.contains([1], 1),
        operator.is_(None, None),
        operator.truth([]),
        operator.neg(3),
        operator.mul("a", 2),
        operator.index(True),
        operator.matmul(x, x.T),
    )


@cases(x, 2.5)
def mathematics(x: Tensor, f: float) -> Any:
    return (
        x * math.sqrt(2),
        math.floor(f),
        math.ceil(f),
        math.pi,
        math.log(f),
        math.isclose(f, 2.5),
        math.gcd(12, 8),
        math.prod([1, 2, 3]),
        math.inf,
        math.copysign(1, -f),
        math.comb(5, 2),
        math.fmod(7, 3),
        math.hypot(3, 4),
        math.factorial(5),
        math.log2(8),
        math.trunc(f),
    )


class Lazy:
    def __init__(self) -> None:
        self.computed = 0

    @functools.cached_property
    def value(self) -> int:
        self.computed += 1
        return 42


@cases(x, Lazy(), repeat=1)
def cached_properties(x: Tensor, lazy: Lazy) -> Any:
    made = Lazy()
    return x + lazy.value + lazy.value, lazy.computed, made.value, made


@functools.singledispatch
def dispatched(v: Any) -> str:
    return "other"


@dispatched.register
def _(v: int) -> str:
    return "int"


@cases(x, graphs=None, breaks=None)
def single_dispatch(x: Tensor) -> Any:
    y = x + 1
    return dispatched(1), dispatched("s"), y * 2


@cases(x)
def collection_types(x: Tensor) -> Any:
    counts = collections.Counter("hello")
    counts.update("ll")
    groups = collections.defaultdict(lambda: x * 0)
    for i in range(4):
        groups[i % 2] += i
    ordered = collections.OrderedDict([("b", 1), ("a", 2)])
    return (
        counts["l"],
        counts.most_common(1),
        counts.total(),
        dict(groups),
        groups.get(9),
        list(ordered),
        collections.OrderedDict(sorted(ordered.items())),
        x + 1,
    )


@cases(x, collections.defaultdict(list, {"a": [1]}), collections.Counter("ab"), repeat=1)
def collection_arguments(x: Tensor, d: Any, c: Any) -> Any:
    d["b"].append(x + 1)
    d["a"].append(2)
    c["z"] += 1
    return len(d), c["nothing"], d, c


@cases(x, graphs=None, breaks=None)
def chained_maps(x: Tensor) -> Any:
    m = collections.ChainMap({"a": 1}, {"a": 2, "b": 3})
    return m["a"], m["b"], x + 1


@cases(x, [1, [2]], graphs=None, breaks=None)
def copies(x: Tensor, items: list[Any]) -> Any:
    shallow = copy.copy(items)
    shallow.append(3)
    deep = copy.deepcopy(items)
    deep[1].append(4)
    return x + 1, shallow, deep, items, shallow[1] is items[1]


@cases(x)
def copies_of_deques(x: Tensor) -> Any:
    first = collections.deque([x, [1]], 3)
    one, other = copy.deepcopy([first, first])
    one.append(2)
    return one[0] + 1, one is other, len(first), one[1] == first[1], one[1] is first[1], one.maxlen


@cases(x)
def exit_stacks(x: Tensor) -> Any:
    log: list[Any] = []

    @contextlib.contextmanager
    def manager(name: str) -> Any:
        log.append(name)
        try:
            yield name
        finally:
            log.append("-" + name)

    with contextlib.ExitStack() as stack:
        names = [stack.enter_context(manager(name)) for name in "ab"]
        stack.callback(log.append, "callback")
        x = x + len(names)
    return x, log


@cases(x)
def typing_constructs(x: Tensor) -> Any:
    kind = typing.Optional[int]
    y: list[int] = typing.cast(list[int], [1])
    return typing.get_origin(kind) is typing.Union, typing.get_args(dict[str, int]), y, x + 1


@cases(x)
def wrapped_functions(x: Tensor) -> Any:
    def logged(fn: Any) -> Any:
        @functools.wraps(fn)
        def inner(*args: Any, **kwargs: Any) -> Any:
            calls.append(fn.__name__)
            return fn(*args, **kwargs)

        return inner

    calls: list[str] = []

    @logged
    def double(t: Tensor) -> Tensor:
        "Twice."
        return t * 2

    return double(x), double(t=x), calls, double.__name__, double.__doc__, double.__wrapped__(x)


@pytest.mark.parametrize("case", cases, ids=cases.names)
def test_library(case: Case) -> None:
    case.check()
