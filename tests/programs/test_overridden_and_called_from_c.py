"""Subclasses of containers override special methods: those that the base's own methods, written in C, call are called."""

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import compare

OVERRIDDEN = (
    *(
        "__setitem__",
        "__getitem__",
        "__delitem__",
        "__contains__",
        "__iter__",
        "__len__",
        "__missing__",
        "__reversed__",
    ),
    *("keys", "items", "values", "update", "pop", "popitem", "get", "setdefault", "copy", "move_to_end", "clear"),
    *("append", "extend", "add", "__eq__", "index", "insert", "discard", "remove"),
)

Op = Callable[[Any, Any, Any], Any]

# of an instance, its class, and the base
MAPPINGS: dict[str, Op] = {
    "made": lambda s, kind, base: kind({"p": 1}, q=2),
    "made of pairs": lambda s, kind, base: kind([("p", 1), ("q", 2)]),
    "made of its like": lambda s, kind, base: kind(s),
    "init": lambda s, kind, base: base.__init__(s, z=1),
    "update": lambda s, kind, base: base.update(s, {"z": 1}),
    "update by its like": lambda s, kind, base: base.update(s, s),
    "update by pairs and names": lambda s, kind, base: base.update(s, [("z", 1)], y=2),
    "|=": lambda s, kind, base: base.__ior__(s, {"z": 1}),
    "|": lambda s, kind, base: base.__or__(s, {"z": 1}),
    "reflected |": lambda s, kind, base: base.__ror__(s, {"z": 1}),
    "setdefault": lambda s, kind, base: base.setdefault(s, "z", 1),
    "setdefault, there": lambda s, kind, base: base.setdefault(s, "a", 1),
    "pop": lambda s, kind, base: base.pop(s, "a"),
    "pop, default": lambda s, kind, base: base.pop(s, "z", 1),
    "popitem": lambda s, kind, base: base.popitem(s),
    "copy": lambda s, kind, base: base.copy(s),
    "clear": lambda s, kind, base: base.clear(s),
    "get": lambda s, kind, base: base.get(s, "a"),
    "views": lambda s, kind, base: [list(base.keys(s)), list(base.values(s)), list(base.items(s))],
    "==": lambda s, kind, base: (base.__eq__(s, {"a": 1}), base.__eq__(s, base(a=1, b=2))),
    "dict()": lambda s, kind, base: dict(s),
    "OrderedDict()": lambda s, kind, base: collections.OrderedDict(s),
    "fromkeys": lambda s, kind, base: kind.fromkeys("pq"),
    "list()": lambda s, kind, base: list(s),
    "**": lambda s, kind, base: (lambda **named: named)(**s),
    "{**}": lambda s, kind, base: {**s},
    "reversed": lambda s, kind, base: list(base.__reversed__(s)),
    "in": lambda s, kind, base: base.__contains__(s, "a"),
    "del": lambda s, kind, base: base.__delitem__(s, "a"),
    "item": lambda s, kind, base: base.__getitem__(s, "a"),
}
SEQUENCES: dict[str, Op] = {
    "made": lambda s, kind, base: kind([1]),
    "init": lambda s, kind, base: base.__init__(s, [3]),
    "extend": lambda s, kind, base: base.extend(s, [1]),
    "extend by its like": lambda s, kind, base: base.extend(s, s),
    "copy": lambda s, kind, base: base.copy(s),
    "+=": lambda s, kind, base: base.__iadd__(s, [1]),
    "+": lambda s, kind, base: base.__add__(s, base([1])),
    "*": lambda s, kind, base: base.__mul__(s, 2),
    "pop": lambda s, kind, base: base.pop(s),
    "index, count": lambda s, kind, base: (base.index(s, 1), base.count(s, 1)),
    "list()": lambda s, kind, base: list(s),
    "tuple()": lambda s, kind, base: tuple(s),
    "sorted": lambda s, kind, base: sorted(s),
    "insert, remove": lambda s, kind, base: (base.insert(s, 0, 5), base.remove(s, 1)),
    "item": lambda s, kind, base: base.__getitem__(s, 0),
    "in": lambda s, kind, base: base.__contains__(s, 1),
}
SETS: dict[str, Op] = {
    "made": lambda s, kind, base: kind([1]),
    "copy": lambda s, kind, base: base.copy(s),
    "|": lambda s, kind, base: s | {7},
    "&": lambda s, kind, base: s & {1},
    "-": lambda s, kind, base: s - {1},
    "union": lambda s, kind, base: base.union(s, [7]),
    "issubset": lambda s, kind, base: base.issubset(s, [1, 2, 3]),
    "sorted": lambda s, kind, base: sorted(s),
    "set()": lambda s, kind, base: set(s),
    "in": lambda s, kind, base: base.__contains__(s, 1),
}


def overriding(base: type, log: list[str]) -> Any:
    """A subclass whose methods tell that they were called, and do what the base does."""

    def telling(name: str) -> Any:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            log.append(name)
            return getattr(base, name)(self, *args, **kwargs)

        return method

    names = [name for name in OVERRIDDEN if hasattr(base, name)]
    return type("Derived", (base,), {name: telling(name) for name in names})


def shown(value: Any) -> Any:
    """What a container holds, without its methods."""
    for base in (collections.OrderedDict, dict, list, collections.deque, set, frozenset):
        if isinstance(value, base) and type(value) is not base:
            held: Any = dict(base.items(value)) if issubclass(base, dict) else sorted(base.__iter__(value))
            return type(value).__name__, held
    return value


CASES = [
    *((dict, {"a": 1, "b": 2}, what, op) for what, op in MAPPINGS.items()),
    *((collections.OrderedDict, {"a": 1, "b": 2}, what, op) for what, op in MAPPINGS.items()),
    *((list, [1, 2], what, op) for what, op in SEQUENCES.items()),
    *((collections.deque, [1, 2], what, op) for what, op in SEQUENCES.items()),
    *((set, [1, 2], what, op) for what, op in SETS.items()),
    *((frozenset, [1, 2], what, op) for what, op in SETS.items()),
]


@pytest.mark.parametrize("made_inside", [True, False], ids=["made inside", "given"])
@pytest.mark.parametrize(("base", "seed", "what", "op"), CASES, ids=[f"{c[0].__name__} {c[2]}" for c in CASES])
def test_overridden_methods_are_called(base: Any, seed: Any, what: str, op: Op, made_inside: bool) -> None:
    log: list[str] = []
    kind = overriding(base, log)

    def program(x: torch.Tensor, given: Any) -> Any:
        held = kind(seed) if made_inside else given
        log.append("made")
        return op(held, kind, base), held, x + 1

    compiled = dynajit.compile(program, backend="eager")
    for _ in range(3):
        outcomes = []
        for each in (program, compiled):
            given = kind(seed)
            log.clear()
            result, held, x = each(torch.ones(2), given)
            outcomes.append((shown(result), shown(held), x, list(log)))
        compare(outcomes[1], outcomes[0])
