"""Which objects have to be distinct for a trace to hold.

In: the journal's objects that the program changed, the tensors whose layout the graph changes, and all objects that the
trace reached. Out: guards. The trace models each object once: what it changed in one it did not see in another, so a
later call that passes one object in both places must not run it. (Two ways that led to one object are guarded where the
second is found, in `Interpreter.known_object`; tensors that share memory are the business of the compiled graph.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from dynajit.guards.guard import Guard
from dynajit.guards.source import ConstSource, Source
from dynajit.values.base import Value

if TYPE_CHECKING:
    from dynajit.graph.builder import GraphInput

MOST_PAIRS = 32
Places = dict[int, Source]  # id of an object -> how it is reached


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
    return {id(obj) for obj, value in entries if id(value) in parts or id(getattr(value, "payload", None)) in parts}


def _relaid(inputs: Iterable[GraphInput]) -> set[int]:
    """Ids of the tensors of which the graph changes what is known of them while tracing."""
    return {id(entry.real) for entry in inputs if isinstance(entry.real, torch.Tensor) and entry.changes_metadata}


def _guards(places: Places, written: set[int]) -> Iterator[Guard]:
    first = [key for key in places if key in written]
    loose = [key for key, source in places.items() if not isinstance(source, ConstSource)]
    if len(first) * len(places) > MOST_PAIRS:
        source, *others = places.values()
        yield Guard(source, "NOT_ALIASED", *others)
        return
    done: set[int] = set()
    for key in first:
        done.add(key)
        for other in places if key in loose else loose:
            if other not in done:
                yield Guard(places[key], "NOT_ALIASED", places[other])
