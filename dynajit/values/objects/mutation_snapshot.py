"""Whether a traced function changes objects that were made while tracing, before it was called.

In: the values through which the function could reach them. Out: `MutationSnapshot.changed()`, one that differs since.
Objects from outside are in the journal when they change (`journal.dirty`); those made while tracing change in their
models alone, which is nothing to a program that runs the function later, again, or not at all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from dynajit.report import breaks
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.objects.functions import CellVal

_MAX_OBJECTS = 10_000


class MutationSnapshot:
    """The contents of what is made while tracing and reached from `roots`."""

    def __init__(self, roots: Iterable[Value]) -> None:
        self._before: list[tuple[Value, list[Any]]] = []
        waiting, seen = list(roots), set()
        while waiting:
            value = waiting.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            if len(seen) > _MAX_OBJECTS:
                raise GraphBreak(breaks.TOO_LONG, f"a function that {_MAX_OBJECTS} objects can be reached from")
            parts = _parts(value)
            if value.source is None:
                self._before.append((value, parts))
            waiting += [part for part in parts if isinstance(part, Value)]

    def changed(self) -> Value | None:
        """One whose contents are others now."""
        for value, before in self._before:
            now = _parts(value)
            if len(now) != len(before) or any(left is not right for left, right in zip(now, before, strict=True)):
                return value
        return None


@contextlib.contextmanager
def without_effects(tx: Tracer, what: str, roots: Iterable[Value]) -> Iterator[None]:
    """Break if what is traced in the body changes anything: objects from outside, or made before and reached from
    `roots`. `what`: for the message."""
    changes, snapshot = tx.journal.changes, MutationSnapshot(roots)
    yield
    # also of what was changed before too; what is not dirty was made in the body, or its change was taken back
    effects = (value for value in tx.journal.changed[changes:] if id(value) in tx.journal.dirty)
    changed = next(effects, None) or snapshot.changed()
    if changed is not None:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{what} changes {changed.describe()}")


def _parts(value: Value) -> list[Any]:
    """The contents of containers, the attributes of instances, what a cell holds."""
    found: list[Any] = []
    for held in vars(value).values():
        found += _held(held)
    if isinstance(value, CellVal) and value.source is None:
        found.append(value.contents)
    return found


def _held(held: Any) -> Iterator[Any]:
    if isinstance(held, (list, tuple)):
        yield from (part for part in held if isinstance(part, Value))
    elif isinstance(held, dict):
        for part in held.values():
            yield from _held(part) if isinstance(part, tuple) else [part]
