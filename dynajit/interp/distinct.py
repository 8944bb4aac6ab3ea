"""Which objects have to be distinct for a trace to hold.

In: pairs of objects that the program compared, by `is` or as keys and members; the journal's objects that it changed,
the tensors whose layout the graph changes, and all objects that the trace reached. Out: guards. The trace models each
object once: what it changed in one it did not see in another, so a later call that passes one object in both places
must not run it. (Two ways that led to one object are guarded where the second is found, in `Interpreter.known_object`;
tensors that share memory are the business of the compiled graph.)
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dynajit.guards.guard import Guard
from dynajit.guards.source import ConstSource, RunTimeSource, Source
from dynajit.report.records import FrameLoc
from dynajit.values.core.value import Value

if TYPE_CHECKING:
    from dynajit.graph.builder import GraphInput

MAX_PAIRS = 32
Places = dict[int, Source]  # id of an object -> how it is reached


def may_be_one(left: Value, right: Value) -> bool:
    """Whether two objects that are distinct now may be one object at another call."""
    if _made_anew(left) or _made_anew(right) or left.py_type() is not right.py_type() or left.source == right.source:
        return False
    return not (isinstance(left.source, ConstSource) and isinstance(right.source, ConstSource))


def compared_objects(
    pairs: Iterable[tuple[Value, Value, FrameLoc | None]],
    groups: Iterable[Sequence[Value]],
    tables: Collection[frozenset[int]],
) -> Iterator[Guard]:
    """Guards that the objects of each pair are distinct, and so are those of each group that are of one type; keys of
    one dictionary are anyway. Objects that are pairwise distinct take one guard together."""
    apart: dict[int, dict[int, FrameLoc | None]] = {}
    values: dict[int, Value] = {}
    for left, right, location in pairs:
        if not any(id(left) in table and id(right) in table for table in tables):
            for one, other in ((left, right), (right, left)):
                values[id(one)] = one
                apart.setdefault(id(one), {})[id(other)] = location
    while apart:
        first, others = next(iter(apart.items()))
        if not others:
            del apart[first]
            continue
        second, location = next(iter(others.items()))
        group = [first, second]
        for key in others:
            if key != second and all(key in apart[member] for member in group[1:]):
                group.append(key)
        for member, mate in itertools.permutations(group, 2):
            apart[member].pop(mate, None)
        yield _distinct([values[key] for key in group], location)
    for whole in groups:
        of_type: dict[type, list[Value]] = {}
        for value in whole:
            if not _made_anew(value):
                of_type.setdefault(value.py_type(), []).append(value)
        for alike in of_type.values():
            ids = {id(value) for value in alike}
            fixed = all(isinstance(value.source, ConstSource) for value in alike)
            if len(alike) > 1 and not fixed and not any(ids <= table for table in tables):
                yield _distinct(alike, None)


def _made_anew(value: Value) -> bool:
    """Whether each call makes the object."""
    return value.source is None or isinstance(value.source.root(), RunTimeSource)


def _distinct(values: list[Value], location: FrameLoc | None) -> Guard:
    first, *others = dict.fromkeys(value.source for value in values)
    return Guard(first, "NOT_ALIASED", *others, user_loc=location)


def distinct_objects(
    reached: Iterable[tuple[Any, Value]], changed: Iterable[Value], inputs: Iterable[GraphInput]
) -> Iterator[Guard]:
    """Guards that what was changed is none of the other objects of its type."""
    entries = list(reached)
    written = _written(entries, changed) | _relaid(inputs)
    if not written:
        return
    kinds = {type(obj) for obj, _ in entries if id(obj) in written}
    of_kind: dict[type, Places] = {kind: {} for kind in kinds}
    for obj, value in entries:
        if type(obj) in kinds and value.source is not None:
            of_kind[type(obj)][id(obj)] = value.source
    for places in of_kind.values():
        yield from _guards(places, written)


def _written(entries: list[tuple[Any, Value]], changed: Iterable[Value]) -> set[int]:
    """Ids of the outside objects that the program changed. What changes may be a part of an object's model: its
    attributes, or the builtin part of an instance of a builtin's subclass."""
    parts: set[int] = set()
    for value in changed:
        parts.update((id(value), id(getattr(value, "owner", None))))
    parts.discard(id(None))
    return {id(obj) for obj, value in entries if id(value) in parts or id(value.payload) in parts}


def _relaid(inputs: Iterable[GraphInput]) -> set[int]:
    """Ids of the tensors of which the graph changes what is known of them while tracing."""
    return {id(entry.real) for entry in inputs if isinstance(entry.real, torch.Tensor) and entry.changes_metadata}


def _guards(places: Places, written: set[int]) -> Iterator[Guard]:
    first = [key for key in places if key in written]
    loose = [key for key, source in places.items() if not isinstance(source, ConstSource)]
    if len(first) * len(places) > MAX_PAIRS:
        source, *others = places.values()
        yield Guard(source, "NOT_ALIASED", *others)
        return
    done: set[int] = set()
    for key in first:
        done.add(key)
        for other in places if key in loose else loose:
            if other not in done:
                yield Guard(places[key], "NOT_ALIASED", places[other])
