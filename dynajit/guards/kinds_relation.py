"""The guard kind on relations among numbers: sizes and strides of tensors, Python ints and floats.

In: a tree of `dynajit/symbols.py`, its symbols' names, and for each name the source of the number. Out: see guard.py.
Arithmetic, comparisons and `math`'s functions are evaluated in C (csrc/guards/relation.c), bit operations, rounding and
their like by a Python function.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any

from dynajit import symbols
from dynajit.guards.guard import GuardKind, guard_kind
from dynajit.guards.source import Source

_ONE_TO_ONE = frozenset({"add", "mul", "truediv", "float"})


def _holds(tree: Any, names: tuple[str, ...], *values: Any) -> bool:
    """What both leaves decide: false for what is no number, for ints beyond 64 bits, and where the arithmetic fails."""
    if not all(type(value) is float or (type(value) is int and abs(value) < symbols.INT_LIMIT) for value in values):
        return False
    try:
        return bool(symbols.value_of(tree, dict(zip(names, values, strict=True)), limit=symbols.INT_LIMIT))
    except (ArithmeticError, ValueError):
        return False


def settled_float(tree: Any) -> bool:
    """Whether the relation is that a float, or what is computed as one, is a certain number."""
    numbers = [part for part in tree[1:] if not symbols.names_in(part)]
    return tree[0] == "eq" and any(type(part) is float for part in numbers) and not any(map(_vanishes, tree[1:]))


def settles(params: tuple[Any, ...]) -> bool:
    """Whether the relation is that one number, or what is computed of it alone, is a certain number."""
    tree, _, others, _ = params
    return not others and tree[0] == "eq" and sum(not symbols.names_in(part) for part in tree[1:]) == 1


def _vanishes(tree: Any) -> bool:
    """Whether it is zero for each finite number: that a float is finite is guarded so."""
    return isinstance(tree, tuple) and tree[0] in ("mul", "truediv") and 0 in tree[1:]


def _one_to_one(tree: Any) -> bool:
    """Whether different numbers give different results."""
    if not isinstance(tree, tuple):
        return isinstance(tree, str)
    if _vanishes(tree):
        return False
    varying = [part for part in tree[1:] if symbols.names_in(part)]
    return tree[0] in _ONE_TO_ONE and len(varying) == 1 and _one_to_one(varying[0])


@guard_kind("RELATION")
class Relation(GuardKind):
    """A relation that the trace decided by the numbers at hand. The guard's own source is the first name's."""

    def normalize(self, *params: Any) -> tuple[Any, ...]:
        tree, names, others, note = params
        if len(names) != len(others) + 1:
            raise ValueError(f"a RELATION guard has {len(names)} names for {len(others) + 1} sources")
        return tree, tuple(names), tuple(others), str(note)

    def key(self, params: tuple[Any, ...]) -> Hashable:
        tree, names, others, _ = params
        return repr(tree), names, others

    def encode(self, params: tuple[Any, ...]) -> tuple[str, object]:
        tree, names, _, _ = params
        words = symbols.words_of(tree, {name: number for number, name in enumerate(names)})
        if words is not None and len(words) < 96:  # its stack is 64 numbers deep
            return "RELATION", words
        return "PREDICATE_OF_MANY", functools.partial(_holds, tree, names)

    def sources(self, params: tuple[Any, ...]) -> tuple[Source, ...]:
        others: tuple[Source, ...] = params[2]
        return others

    def pins(self, params: tuple[Any, ...]) -> bool:
        tree = params[0]
        return settles(params) and (settled_float(tree) or any(map(_one_to_one, tree[1:])))

    def check(self, value: Any, params: tuple[Any, ...]) -> bool:
        tree, names, others, _ = params
        values = value if others else [value]
        return _holds(tree, names, *values)

    def describe(self, name: str, params: tuple[Any, ...]) -> str:
        tree, names, others, note = params
        texts = dict(zip(names, [name, *(source.name() for source in others)], strict=True))
        return symbols.readable(tree, texts) + (f" ({note})" if note else "")

    def explain(self, name: str, value: Any, params: tuple[Any, ...]) -> str:
        _, _, others, _ = params
        values = value if others else [value]
        texts = [name, *(source.name() for source in others)]
        now = ", ".join(f"{text} is {number!r}" for text, number in zip(texts, values, strict=True))
        return f"{self.describe(name, params)} does not hold: {now}"
