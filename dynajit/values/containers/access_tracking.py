"""Containers made while tracing that tell who uses them, so that a recorded call's use of them is known.

In: a container that a recorded call was handed, and the recording. Out: each entry that is read or written is told to
it; every other use of the contents is told as a use of the whole, so that no reader is missed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

from dynajit.guards.source import Source
from dynajit.values.core.value import Tracer, Value
from dynajit.values.scalars.constant import UnreadConst


class Watch(Protocol):
    """A recording."""

    def read(self, container: Any, at: str | int, number: Source | None, found: Value | None) -> None:
        """An entry was read, or found missing. `number`: of an index that nothing else depends on so far."""

    def wrote(self, container: Any, at: str) -> None:
        """An entry was set."""

    def whole(self, container: Any) -> None:
        """Something else was done."""


class Contents:
    """What a container reads in the place of its contents while it is followed. Else they are its own attribute."""

    def __get__(self, container: Any, kind: type) -> Any:
        for watch in container.watches:
            watch.whole(container)
        return vars(container)["contents"]


def contents_of(container: Any) -> Any:
    """The contents, without telling."""
    own = vars(container)
    return own["contents"] if "contents" in own else own[container.contents_name]


def start(container: Any, watch: Watch) -> None:
    """Tell `watch`, too."""
    own = vars(container)
    if not container.watches:
        own["contents"] = own.pop(container.contents_name)
    container.watches += (watch,)


def stop(container: Any, watch: Watch) -> None:
    """Tell `watch` no more."""
    container.watches = tuple(one for one in container.watches if one is not watch)
    if not container.watches:
        own = vars(container)
        own[container.contents_name] = own.pop("contents")


@contextlib.contextmanager
def untold(container: Any) -> Iterator[tuple[Watch, ...]]:
    """Use the container without telling; gives whom to tell."""
    watches, container.watches = container.watches, ()
    try:
        yield watches
    finally:
        container.watches = watches


def read_item(sequence: Any, tx: Tracer, key: Value) -> Value | None:
    """`sequence[key]` of a list that a recording follows, where the key is a plain index of one of its items."""
    if key.py_type() is not int or not key.is_const():
        return None
    number = key.source if type(key) is UnreadConst and not key.is_read else None
    index = key.hint if number is not None else key.const()  # type: ignore[attr-defined]
    if not 0 <= index < len(contents_of(sequence)):
        return None
    if number is not None:
        key.rely()  # type: ignore[attr-defined]
    with untold(sequence) as watches:
        found: Value = sequence.item(tx, index)
    for watch in watches:
        watch.read(sequence, index, number, found)
    return found
