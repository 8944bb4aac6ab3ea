"""Whatever a program does that depends on two objects being one or not, called with one object and with two.

Each operation, on each kind of object, is compiled for two objects and called with one, and the other way round.
"""

from __future__ import annotations

import collections
import copy
import functools
import itertools
import operator
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import CompileCounter


class Box:
    pass


class Unequal:
    """Not equal to itself: only identity finds it."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


class Keyed(Unequal):
    def __hash__(self) -> int:  # type: ignore[override]
        return 7


class Scale(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(1, 1)


def closure() -> Callable[[int], int]:
    def inner(x: int) -> int:
        return x

    return inner


MAKERS: dict[str, Callable[[], Any]] = {
    "tensor": lambda: torch.ones(2),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "object": Box,
    "module": Scale,
    "unequal": Unequal,
    "keyed": Keyed,
    "function": closure,
    "list": lambda: [1],
    "list of nan": lambda: [float("nan")],
    "tuple": lambda: (Box(),),
    "nan": lambda: float("nan"),
    "number": lambda: float("1.5"),
    "text": lambda: "".join(["a b", "c"]),
    "frozenset": lambda: frozenset([1.5]),
    "method": lambda: Box().__init__,
}


def removes(a: Any, b: Any) -> Any:
    items = [b, a]
    items.remove(a)
    return items[0] is b


def discards(a: Any, b: Any) -> int:
    members = {a}
    members.discard(b)
    return len(members)


def defaults(a: Any, b: Any) -> Any:
    table = {a: 1}
    return table.setdefault(b, 2), len(table)


def weak_keys(a: Any, b: Any) -> int:
    table: Any = weakref.WeakKeyDictionary()
    table[a] = 1
    table[b] = 2
    return len(table)


@functools.lru_cache
def remembered(key: Any) -> int:
    return 3


def copies(a: Any, b: Any) -> Any:
    first, second = copy.deepcopy([a, b])
    return first is second


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "members of a set": lambda a, b: len({a, b}),
    "members of a frozenset": lambda a, b: len(frozenset([a, b])),
    "keys": lambda a, b: len({a: 1, b: 2}),
    "in a dict": lambda a, b: b in {a: 1},
    "get": lambda a, b: {a: 1}.get(b, 5),
    "setdefault": defaults,
    "pop": lambda a, b: {a: 1}.pop(b, 5),
    "fromkeys": lambda a, b: len(dict.fromkeys([a, b])),
    "parts of keys": lambda a, b: len({(a, 1), (b, 1)}),
    "sets of sets": lambda a, b: len({frozenset([a]), frozenset([b])}),
    "|": lambda a, b: len({a} | {b}),
    "&": lambda a, b: len({a} & {b}),
    "-": lambda a, b: len({a} - {b}),
    "^": lambda a, b: len({a} ^ {b}),
    "<=": lambda a, b: {a} <= {b},
    "equal sets": lambda a, b: {a} == {b},
    "isdisjoint": lambda a, b: {a}.isdisjoint({b}),
    "discard": discards,
    "Counter": lambda a, b: len(collections.Counter([a, b])),
    "in a list": lambda a, b: a in [b],
    "in a tuple": lambda a, b: a in (b,),
    "in a deque": lambda a, b: a in collections.deque([b]),
    "in values": lambda a, b: a in {1: b}.values(),
    "in items": lambda a, b: (1, a) in {1: b}.items(),
    "index": lambda a, b: [b, a].index(a),
    "count": lambda a, b: [b, a].count(a),
    "remove": removes,
    "contains": lambda a, b: operator.contains([a], b),
    "countOf": lambda a, b: operator.countOf([a], b),
    "==": lambda a, b: torch.is_tensor(a) or a == b,
    "equal lists": lambda a, b: [a] == [b],
    "equal dicts": lambda a, b: {1: a} == {1: b},
    "groupby": lambda a, b: len(list(itertools.groupby([a, b]))),
    "is": lambda a, b: a is b,
    "is not": lambda a, b: a is not b,
    "is_": lambda a, b: operator.is_(a, b),
    "id": lambda a, b: id(a) == id(b),
    "ids": lambda a, b: len({id(a), id(b)}),
    "hash": lambda a, b: hash(a) == hash(b),
    "methods": lambda a, b: len({a.__hash__, b.__hash__}),
    "equal methods": lambda a, b: a.__hash__ == b.__hash__,
    "deepcopy": copies,
    "weakref is": lambda a, b: weakref.ref(a) is weakref.ref(b),
    "weakref ==": lambda a, b: torch.is_tensor(a) or weakref.ref(a) == weakref.ref(b),
    "WeakSet": lambda a, b: len(weakref.WeakSet([a, b])),
    "WeakKeyDictionary": weak_keys,
    "parameters": lambda a, b: len(list(torch.nn.ModuleList([a, b]).parameters())),
    "modules": lambda a, b: len(list(torch.nn.ModuleList([a, b]).modules())),
}


def outcome(fn: Callable[..., Any], *args: Any) -> str:
    try:
        return repr(fn(*args))
    except (TypeError, ValueError, KeyError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


def program_of(operation: str) -> Callable[..., Any]:
    operate = OPERATIONS[operation]

    def program(x: torch.Tensor, a: Any, b: Any) -> Any:
        return x + 1, operate(a, b)

    return program


@pytest.mark.parametrize("operation", OPERATIONS)
def test_one_object_and_two(operation: str) -> None:
    program = program_of(operation)
    dynajit.reset()
    x = torch.zeros(1)
    for kind, make in MAKERS.items():
        a, b = make(), make()
        for calls in (((a, b), (a, a), (a, b), (b, b)), ((a, a), (a, b), (b, b))):
            compiled = dynajit.compile(program, backend="eager")
            for first, second in calls:
                found, expected = outcome(compiled, x, first, second), outcome(program, x, first, second)
                assert found == expected, f"{operation} of {kind}, one object: {first is second}"
            assert not dynajit.counters["internal_errors"], f"{operation} of {kind}"
            dynajit.reset()


VARYING: dict[str, Callable[[int], Any]] = {
    "int": lambda number: number,
    "float": lambda number: (number + 0.5) if number < 9 else float("nan"),
    "text": lambda number: f"t{number}",
    "bytes": lambda number: b"t%d" % number,
}


# but what tells methods of equal numbers apart
@pytest.mark.parametrize("operation", [name for name in OPERATIONS if "methods" not in name])
def test_values_that_vary_and_come_to_be_one_object(operation: str) -> None:
    program = program_of(operation)
    dynajit.reset()
    x = torch.zeros(1)
    for kind, make in VARYING.items():
        compiled = dynajit.compile(program, backend="eager")
        for first, second in ((3, 1), (5, 4), (1, 2), (4, 4), (2, 2), (9, 9), (7, 3), (6, 6)):
            a = make(first)
            for b in (a if first == second else make(second), make(second)):
                found, expected = outcome(compiled, x, a, b), outcome(program, x, a, b)
                assert found == expected, f"{operation} of {kind}, {a!r} and {b!r}, one object: {a is b}"
        assert not dynajit.counters["internal_errors"], f"{operation} of {kind}"
        dynajit.reset()


def captures(program: Callable[..., Any], *calls: tuple[Any, ...]) -> int:
    """How many graphs it took for calls that gave what eager gives."""
    counter = CompileCounter()
    compiled = dynajit.compile(program, backend=counter)
    for args in calls:
        assert outcome(compiled, torch.ones(1), *args) == outcome(program, torch.ones(1), *args)
    return counter.frame_count


def test_what_was_not_compared_may_be_one_object() -> None:
    a, b, c = Box(), Box(), Box()
    assert captures(lambda x, a, b: x + len({a}) + len({b}), (a, b), (a, a)) == 1
    assert captures(lambda x, a, b, c: x + (a in {b}) + (a in {c}), (a, b, c), (a, b, b)) == 1
    assert captures(lambda x, a, b: x + len({a: 1}) + len([b]), (a, b), (a, a)) == 1
    assert captures(lambda x, a, b: x + (a == [1]) + (b == [2]), ([1], [1]), (one := [1], one)) == 1


def test_pairwise_distinct_objects_take_one_guard() -> None:
    def program(x: torch.Tensor, items: list[Any]) -> torch.Tensor:
        return x + len(set(items))

    for count in (3, 40):
        text = str(dynajit.explain(program)(torch.ones(1), [Box() for _ in range(count)]))
        assert text.count("are distinct objects") <= 1


@pytest.mark.parametrize("count", [2, 31, 32, 33, 70])
@pytest.mark.parametrize("operation", ["set", "get", "id", "copy"])
def test_many_objects_of_which_two_become_one(count: int, operation: str) -> None:
    def program(x: torch.Tensor, items: list[Any]) -> Any:
        if operation == "set":
            return x + len(set(items))
        if operation == "get":
            return x + {item: place for place, item in enumerate(items[:-1])}.get(items[-1], -1)
        if operation == "id":
            return x + len({id(item): None for item in items})
        return x + len({id(item) for item in copy.deepcopy(items)})

    items = [Box() for _ in range(count)]
    tied = [*items[:-1], items[0]]
    assert captures(program, (items,), (tied,), (items,), ([*items[1:], items[1]],)) <= 3


def test_a_key_that_is_none_of_a_dicts_now_and_one_of_them_later() -> None:
    table = {Box(): 1, Box(): 2}

    def program(x: torch.Tensor, key: Any) -> torch.Tensor:
        return x + table.get(key, 5)

    captures(program, (Box(),), (next(iter(table)),), (list(table)[1],), (Box(),))


def test_parameters_that_are_tied_and_untied() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))

    def program(x: torch.Tensor) -> Any:
        return x * len(list(model.named_parameters())), model[0].weight is model[1].weight, list(model.state_dict())

    compiled = dynajit.compile(program, backend="eager")
    own = [layer.weight for layer in model]
    for weights in ((0, 1, 2), (0, 0, 2), (0, 1, 1), (0, 0, 0), (0, 1, 2)):
        for layer, chosen in zip(model, weights, strict=True):
            layer.weight = own[chosen]
        assert outcome(compiled, torch.ones(1)) == outcome(program, torch.ones(1))
        total, alone = compiled(torch.ones(1, requires_grad=True)), program(torch.ones(1, requires_grad=True))
        assert torch.equal(total[0], alone[0])


def test_numbers_that_vary_and_are_one_object() -> None:
    def program(x: torch.Tensor, n: Any, k: Any) -> Any:
        return x + 1, n is k, n is None

    numbers = [(5, 6), (7, 8), (9, 10), (9, 9), (int("1000"), int("1000")), (11, 12)]
    compiled = dynajit.compile(program, backend="eager")
    for n, k in numbers:
        assert outcome(compiled, torch.ones(1), n, k) == outcome(program, torch.ones(1), n, k)


def test_bound_methods_from_outside_keep_what_they_are() -> None:
    items = [1]

    def program(x: torch.Tensor, append: Any) -> Any:
        dynajit.graph_break()
        return x + 1, append is kept, type(append) is types.BuiltinMethodType

    kept = items.append
    compiled = dynajit.compile(program, backend="eager")
    for method in (kept, items.append, kept):
        assert outcome(compiled, torch.ones(1), method) == outcome(program, torch.ones(1), method)


def squares(p: torch.Tensor, q: torch.Tensor) -> Any:
    return torch.autograd.grad((p * p * q).sum(), [p, q])


def of_one(p: torch.Tensor, q: torch.Tensor) -> Any:
    return torch.autograd.grad((p * p * q).sum(), [p])


def gives_a_hook(p: torch.Tensor, q: torch.Tensor) -> Any:
    p.register_hook(lambda grad: grad * 2)
    return torch.autograd.grad((q * 3).sum(), [q])


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("program", [squares, of_one, gives_a_hook])
def test_gradients_of_one_leaf_and_of_two(program: Callable[..., Any], backend: str) -> None:
    for order in ((False, True, False), (True, False, True)):
        compiled = dynajit.compile(program, backend=backend)
        for tied in order:
            found = []
            for fn in (program, compiled):
                p = torch.tensor([1.0, 2.0], requires_grad=True)
                found.append(outcome(fn, p, p if tied else torch.tensor([1.0, 2.0], requires_grad=True)))
            assert found[0] == found[1], f"one leaf: {tied}"
        dynajit.reset()


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_gradients_through_what_was_computed_outside_and_with_hooks(backend: str) -> None:
    def through(p: torch.Tensor, q: torch.Tensor) -> Any:
        return torch.autograd.grad((p * q).sum(), [p, q])

    compiled = dynajit.compile(through, backend=backend)
    for doubled, hooked in ((False, False), (True, False), (False, True), (False, False)):
        found = []
        for fn in (through, compiled):
            p = torch.tensor([1.0, 2.0], requires_grad=True)
            q = p * 2 if doubled else torch.tensor([1.0, 2.0], requires_grad=True)
            if hooked:
                p.register_hook(lambda grad: grad * 2)
            found.append(outcome(fn, p, q))
        assert found[0] == found[1]


def test_a_function_that_is_reached_in_two_ways() -> None:
    """A module's function by the module and by its own global, in a list of the module's."""
    collective = pytest.importorskip("torch.distributed.distributed_c10d")
    if not hasattr(collective, "_check_op"):
        pytest.skip("torch without distributed")

    def f(x: torch.Tensor) -> torch.Tensor:
        collective._check_op(torch.distributed.isend)
        collective._check_op(torch.distributed.irecv)
        return x + 1

    counter = CompileCounter()
    compiled = dynajit.compile(f, backend=counter, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a guard that fails on what it was made from warns
        for _ in range(2):
            assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert counter.frame_count == 1
