"""Objects made while tracing that a recorded call was handed, such as a cache that each layer writes to: what the call
reads of them is part of its summary's conditions, and what it writes is repeated.

In: a call's arguments. Out: `Handed`, which follows the call: its `reads`, each with what has to be found there, and
its `writes`. Attributes and items of lists are followed; a call that uses such an object in another way has no summary.
A number of the module's own that only chooses an item of a list (`cache.layers[self.layer_idx]`) may be another one in
an equal layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dynajit.guards.source import Source
from dynajit.interp.call_state import Unknown, describe, identities
from dynajit.values.containers import access_tracking
from dynajit.values.containers.sequence import ListVal
from dynajit.values.core.value import Value
from dynajit.values.objects.objects import ObjVal
from dynajit.values.scalars.constant import ConstVal


class ReadEntry(NamedTuple):
    """An entry that the call found.

    Attributes:
        owner: place among the leaves of the object or list.
        at: name, or index.
        number: what the index was read from, where nothing else depends on it.
        key: what the entry has to be.
    """

    owner: int
    at: str | int
    number: Source | None
    key: tuple[Any, ...]


class Handed:
    """What one recorded call does with the objects that it was handed.

    Attributes:
        leaves: the arguments with what is in them, then what was read, in order.
        reads: in order.
    """

    def __init__(self, tx: Any, leaves: Sequence[Value]) -> None:
        self.tx = tx
        self.leaves, self.reads = [*leaves], list[ReadEntry]()
        self._places: dict[int, int] = {}
        self._containers: list[Any] = []
        self._known: set[tuple[int, str | int | Source]] = set()
        self._written: dict[tuple[int, str], None] = {}
        self._followed = True
        for place, value in enumerate(leaves):
            if type(value) is ObjVal and value.source is None:
                self._follow(value.instance_dict(tx), place)

    def stop(self) -> None:
        """The call has ended."""
        for container in self._containers:
            access_tracking.stop(container, self)

    def _follow(self, container: Any, place: int) -> None:
        if id(container) not in self._places:
            self._places[id(container)] = place
            self._containers.append(container)
            access_tracking.start(container, self)

    # -- what the containers tell

    def read(self, container: Any, at: str | int, number: Source | None, found: Value | None) -> None:
        owner = self._places[id(container)]
        if (owner, number or at) in self._known:
            return
        self._known.add((owner, number or at))
        first = len(self.leaves)
        try:
            self.reads.append(ReadEntry(owner, at, number, _key(found, self.leaves)))
        except Unknown:
            self._followed = False
            return
        for place in range(first, len(self.leaves)):
            value = self.leaves[place]
            if type(value) is ObjVal and value.source is None:
                self._follow(value.instance_dict(self.tx), place)
            elif type(value) is ListVal:
                self._follow(value, place)

    def wrote(self, container: Any, at: str) -> None:
        owner = self._places[id(container)]
        self._known.add((owner, at))
        self._written[owner, at] = None

    def whole(self, container: Any) -> None:
        self._followed = False

    # -- at the end

    def writes(self) -> list[tuple[int, str, Value]]:
        """What stands at the end where something was written. Raises Unknown."""
        made = [value for value in self.leaves if type(value) is ObjVal and value.source is None]
        if not self._followed or any(value.slots or value.payload is not None for value in made):
            raise Unknown
        found = []
        for owner, name in self._written:
            entry = access_tracking.contents_of(self.leaves[owner].instance_dict(self.tx)).get(name)  # type: ignore[attr-defined]
            if entry is None:
                raise Unknown
            found.append((owner, name, entry[1]))
        return found


def find(reads: Sequence[tuple[ReadEntry, int | None]], leaves: list[Value], pattern: Any) -> bool:
    """Whether another call finds the same: adds what it reads to its leaves. With each read goes the index that it has
    for this call, if it is one that may differ. Raises Unknown."""
    for read, index in reads:
        found = _look(leaves[read.owner], read.at if index is None else index)
        if _key(found, leaves) != read.key:
            return False
    return bool(identities(leaves) == pattern)


def _key(found: Any, leaves: list[Value]) -> tuple[Any, ...]:
    """What an entry has to be, whose parts are added to the leaves. Raises Unknown."""
    key: list[Any] = []
    if found is not None:
        describe(found, key, leaves, closed=True)
    return tuple(key)


def _look(owner: Any, at: str | int) -> Any:
    """What stands there, without telling anyone."""
    if type(owner) is ListVal:
        items = access_tracking.contents_of(owner)
        if not isinstance(at, int) or not 0 <= at < len(items):
            raise Unknown
        return items[at]
    entry = access_tracking.contents_of(owner._dict).get(at) if owner._dict is not None else None
    return None if entry is None else entry[1]


def tell(tx: Any, reads: Sequence[tuple[ReadEntry, int | None, Source | None]], leaves: list[Value]) -> None:
    """Tell the recordings of calls around this one what it reads."""
    for read, index, number in reads:
        owner = leaves[read.owner]
        container: Any = owner if type(owner) is ListVal else owner.instance_dict(tx)  # type: ignore[attr-defined]
        at = read.at if index is None else index
        for watch in container.watches:
            watch.read(container, at, number, _look(owner, at))


def write(tx: Any, owner: Any, name: str, value: Value) -> None:
    """Set an attribute as the call did."""
    owner.instance_dict(tx).setitem(tx, ConstVal(name), value)
