"""Lists and tuples (named tuples, `torch.Size`, torch's structured results) while tracing.

In: items as values, or a real container with its source, whose items become values when they are first looked at.
Out: `ListVal`, `TupleVal`. Methods of `list` are entries of `LIST_METHODS` behind `@list_method`.
"""

from __future__ import annotations

import collections
import contextlib
import operator
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch

from dynajit.bytecode.return_action import INDEX
from dynajit.guards.source import HEAP_TYPE, Source
from dynajit.report import breaks
from dynajit.values.containers.access_tracking import Contents, Watch, read_item
from dynajit.values.containers.identity import identical
from dynajit.values.containers.iterators import LONGEST, PositionIterator, SequenceIterator, ended_iterator, iterator_at
from dynajit.values.containers.lengths import LONG_TO_READ, leave_long
from dynajit.values.containers.standin import StandIn, call_real, value_of
from dynajit.values.core.effect import Pushed
from dynajit.values.core.finalizers import check_dropped, check_removed
from dynajit.values.core.operations import COMPARE
from dynajit.values.core.registry import Model, entering
from dynajit.values.core.slots import by_rule, left_to_real_call, raising
from dynajit.values.core.value import Exhausted, GraphBreak, NotReal, Tracer, Value, parts_to_graph
from dynajit.values.scalars.constant import ConstVal, constant_of, is_none, slice_of
from dynajit.values.scalars.number_calls import in_order, is_among, varies
from dynajit.values.scalars.symbolic import Ordered, SymVal


class Lazy:
    """An item of a real container that nobody has looked at."""

    __slots__ = ("obj", "source")

    def __init__(self, obj: object, source: Source | None) -> None:
        self.obj = obj
        self.source = source


# Items of a sequence from outside that are read one by one; what is longer the program reads itself.
MAX_READ = 4096


class SequenceVal(Value):
    """What lists and tuples share."""

    kind: type
    items: list[Any]

    @property
    def first_items(self) -> list[Any]:
        """The first two, as a hint that nothing is to rely on."""
        return self.items[:2]

    def unread(self) -> int:
        return sum(type(item) is Lazy for item in self.items)

    def _is_graph_data(self) -> bool:
        """Whether it holds tensors, which are inputs of the graph if anything is made of them."""
        return any(type(item) is Lazy and torch.is_tensor(item.obj) for item in self.first_items[:1])

    def item(self, tx: Tracer, index: int) -> Value:
        found = self.items[index]
        if isinstance(found, Lazy):
            found = tx.wrap(found.obj, found.source)
            self._fill(tx, index, found)
        return found

    def _fill(self, tx: Tracer, index: int, value: Value) -> None:
        """Replace a lazy item; a rollback makes it lazy again, since its guards are taken back too."""
        old = self.items[index]
        items = self.items
        items[index] = value

        def restore() -> None:
            items[index] = old

        tx.journal.record(restore)

    def values(self, tx: Tracer) -> list[Value]:
        if not self._is_graph_data():
            leave_long(tx, self)
        return self.all_values(tx)

    def all_values(self, tx: Tracer) -> list[Value]:
        """As `values`, for the graph, however many they are."""
        count = len(self.items)
        if count > MAX_READ and self.source is not None:
            raise GraphBreak(breaks.TOO_LONG, f"reading all of a {self.kind.__name__} of {count} items")
        tx.journal.charge(count)
        return [self.item(tx, at) if isinstance(item, Lazy) else item for at, item in enumerate(self.items)]

    def look_into(self, tx: Tracer) -> None:
        for item in self.values(tx):
            item.look_into(tx)

    def real(self) -> Any:
        found = []
        for item in self.items:
            if isinstance(item, Lazy):
                raise NotReal("an item not looked at yet")
            found.append(item.real())
        return self._make_real(found)

    def _make_real(self, items: list[Any]) -> Any:
        return items

    def stood_for(self, items: list[Any]) -> Any:
        """What C code is called on instead of the sequence, whatever names its items have."""
        return [*items]

    def truth(self, tx: Tracer) -> bool:
        return bool(self.items)

    def length(self, tx: Tracer) -> Value:
        return ConstVal(len(self.items))

    def iterate(self, tx: Tracer) -> Value:
        return LiveIterator(self)

    def iterate_backwards(self, tx: Tracer) -> Value:
        return SequenceIterator(self.values(tx)[::-1], reversed)

    @property
    def family(self) -> type:
        """Sequences of different families are never equal."""
        return self.kind

    def alike(self, items: list[Value], other: SequenceVal | None) -> Value:
        """What `self + other`, or `self` repeated, gives: a sequence of these items."""
        raise NotImplementedError

    def binary(self, tx: Tracer, symbol: str, right: Value) -> Value | None:
        if symbol == "+" and isinstance(right, SequenceVal) and right.family is self.family:
            joined: Any = (
                right.spread(tx, ListVal(self.values(tx))) if self.kind in (list, tuple) and self.items else None
            )
            if joined is not None:
                return joined if self.kind is list else joined.as_tuple(tx)
            return self.alike([*self.values(tx), *right.values(tx)], right)
        if symbol == "*" and is_count(right):
            return self.alike(self.values(tx) * self.repeats(right), None)
        return None

    def rbinary(self, tx: Tracer, symbol: str, left: Value) -> Value | None:
        return self.binary(tx, symbol, left) if symbol == "*" else None

    def copied(self, tx: Tracer, part: Callable[[Value], Value], remember: Callable[[Value], Value]) -> Value:
        made: Any = self.alike([], None)
        remember(made)
        made.items.extend(part(item) for item in self.values(tx))
        return made

    def _change(self, tx: Tracer) -> None:
        """To be called before each change, which is recorded in the journal."""
        tx.journal.wrote(self)

    def repeats(self, times: Value) -> int:
        """How often it is repeated; a long result is the real operator's to make, or to refuse."""
        count = times.const()
        if not isinstance(count, int) or abs(count) > sys.maxsize or len(self.items) * count > LONGEST:
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"a {self.kind.__name__} repeated {count} times")
        return count

    def equals(self, tx: Tracer, other: Value) -> bool | None:
        if not isinstance(other, SequenceVal):
            return None
        leave_long(tx, self)
        leave_long(tx, other)
        if self.family is not other.family or len(self.items) != len(other.items):
            return False
        different = self.first_difference(tx, other)
        return len(self.items) == len(other.items) and (different is None or different >= len(self.items))

    def first_difference(self, tx: Tracer, other: SequenceVal) -> int | None:
        """Where two sequences differ, as far as both go; a user's `__eq__` may change them meanwhile."""
        index = 0
        while index < len(self.items) and index < len(other.items):
            first, second = self.item(tx, index), other.item(tx, index)
            if not identical(tx, first, second) and not tx.equal(first, second):
                return index
            index += 1
        return None

    def compare(self, tx: Tracer, symbol: str, right: Value) -> Value | None:
        if not isinstance(right, SequenceVal) or self.family is not right.family:
            return None
        leave_long(tx, self)
        leave_long(tx, right)
        different = self.first_difference(tx, right)
        if different is not None and different < min(len(self.items), len(right.items)):
            return tx.compare(self.item(tx, different), symbol, right.item(tx, different))
        return ConstVal(COMPARE[symbol][0](len(self.items), len(right.items)))

    def contains(self, tx: Tracer, item: Value) -> bool:
        leave_long(tx, self)
        found = is_among(tx, self, item)
        if found is not None:
            return found
        index = 0
        while index < len(self.items):  # a user's __eq__ may change the list
            member = self.item(tx, index)
            if identical(tx, member, item) or tx.equal(member, item):
                return True
            index += 1
        return False

    def getitem(self, tx: Tracer, key: Value) -> Value:
        if key.py_type() is slice:
            chosen = range(len(self.items))[slice_of(key)]
            if len(chosen) >= LONG_TO_READ:
                leave_long(tx, self)
            return self._slice(tx, [self.item(tx, index) for index in chosen])
        return self.item(tx, self._index(tx, key, "index"))

    def _slice(self, tx: Tracer, items: list[Value]) -> Value:
        raise NotImplementedError

    def _index(self, tx: Tracer, key: Value, what: str) -> int:
        if not hasattr(key.py_type(), "__index__"):
            if type(self) not in (ListVal, TupleVal) or not _has_plain_name(key.py_type()):
                raise GraphBreak(breaks.RAISES, f"TypeError: an index of type {key.py_type().__name__}")
            own = "list" if isinstance(self, ListVal) else "tuple"
            raise tx.raised(TypeError, f"{own} indices must be integers or slices, not {key.py_type().__name__}")
        payload = key.payload
        if payload is not None and issubclass(key.py_type(), int):
            key = payload  # C takes the int that it is
        elif isinstance(getattr(key.py_type(), "__index__", None), types.FunctionType):
            key = by_rule(tx, tx.call(tx.class_attribute(key, key.py_type(), "__index__"), [], {}, INDEX), INDEX)
        index = constant_of(key, "an index")
        if abs(index) > sys.maxsize:
            raise GraphBreak(breaks.RAISES, "IndexError: an index beyond all sizes")
        if index < 0:
            index += len(self.items)
        if not 0 <= index < len(self.items):
            raise tx.raised(IndexError, f"{_base(self.kind).__name__} {what} out of range")
        return index

    def children(self) -> Sequence[Value]:
        return [item for item in self.items if not isinstance(item, Lazy)]


def _has_plain_name(kind: type) -> bool:
    """Whether C code says of the type in messages what `__name__` is: it knows others with their module."""
    return kind.__module__ == "builtins" or bool(kind.__flags__ & HEAP_TYPE)


def _base(kind: type) -> type:
    """The builtin class whose C code runs."""
    return next(base for base in kind.__mro__ if base.__module__ in ("builtins", "collections", "torch"))


def is_count(value: Value) -> bool:
    """Whether it is a known integer, by which a sequence is repeated."""
    return (value.is_const() or value.symbolic) and isinstance(value.const(), int)


def put(tx: Tracer, items: list[Any], item: Value, at_start: bool = False) -> None:
    """Add an item at one end, undoable."""
    at = 0 if at_start else len(items)
    items.insert(at, item)
    tx.journal.record(lambda: items.pop(at))


class LiveIterator(PositionIterator):
    """Over a list or tuple model; a list that changes while it is iterated is seen to change."""

    def __init__(self, sequence: SequenceVal) -> None:
        self.kind: Any = type(iter([])) if isinstance(sequence, ListVal) else type(iter(()))
        self.container = sequence

    def item(self, tx: Tracer, index: int) -> Value:
        return self.container.item(tx, index)

    def count(self, tx: Tracer) -> int:
        return len(self.container.items)

    def rebuild(self, out: Any) -> None:
        if self.ended:
            out.call_on(ended_iterator, () if self.kind is type(iter(())) else [])
        else:
            out.bring_up_to_date(self.container)  # a shorter one has no such place
            out.call_on(iterator_at, self.container, self.index)


class ReversedList(LiveIterator):
    """`reversed(list)`: sees the list change too."""

    kind: type = type(reversed([]))

    def __init__(self, sequence: SequenceVal) -> None:
        self.container = sequence
        self.last = len(sequence.items) - 1

    def item(self, tx: Tracer, index: int) -> Value:
        return self.container.item(tx, self.last - index)

    def count(self, tx: Tracer) -> int:
        return self.last + 1 if self.last - self.index < len(self.container.items) else 0

    def rebuild(self, out: Any) -> None:
        if self.ended:
            out.call_on(ended_iterator, [], reversed)
        else:
            out.bring_up_to_date(self.container)
            out.call_on(iterator_at, self.container, self.last - self.index, reversed)


class TupleVal(SequenceVal):
    """A tuple, or a subclass that adds nothing but names: a named tuple, torch.Size, torch.return_types.*."""

    def __init__(self, items: Sequence[Any], kind: type = tuple, source: Source | None = None) -> None:
        self.items = list(items)
        self.kind = kind
        self.source = source

    def is_const(self) -> bool:
        return all(not isinstance(item, Lazy) and item.is_const() for item in self.items)

    @property
    def symbolic(self) -> bool:  # type: ignore[override]
        return all(not isinstance(item, Lazy) and (item.is_const() or item.symbolic) for item in self.items)

    def const(self) -> Any:
        if not self.is_const() and not self.symbolic:
            return super().const()
        return self._make_real([item.const() for item in self.items])

    def _make_real(self, items: list[Any]) -> Any:
        if self.kind is tuple:
            return tuple(items)
        if hasattr(self.kind, "_fields"):
            return tuple.__new__(self.kind, items)
        return self.kind(items)

    def to_graph(self, tx: Tracer) -> tuple[Any, Any]:
        return parts_to_graph(
            tx, self.all_values(tx), torch.Size if self.kind is torch.Size and self.is_const() else tuple
        )

    def _slice(self, tx: Tracer, items: list[Value]) -> Value:
        return TupleVal(items, torch.Size if self.kind is torch.Size else tuple)

    @property
    def family(self) -> type:
        return tuple

    def alike(self, items: list[Value], other: SequenceVal | None) -> Value:
        if torch.Size not in (self.kind, other and other.kind):
            return TupleVal(items)
        # torch.Size says itself when a sum or a product is one; it differs from release to release
        ours, theirs = (kind if kind is torch.Size else tuple for kind in (self.kind, other and other.kind))
        return TupleVal(items, type(ours((1,)) * 2 if other is None else ours((1,)) + theirs((1,))))

    def binary(self, tx: Tracer, symbol: str, right: Value) -> Value | None:
        if symbol == "*" and self.kind is tuple and is_count(right) and right.const() == 1:
            return self
        same = other_than_empty(tx, self, right) if symbol == "+" else None
        return super().binary(tx, symbol, right) if same is None else same

    def stood_for(self, items: list[Any]) -> Any:
        return tuple(items)

    def copied(self, tx: Tracer, part: Callable[[Value], Value], remember: Callable[[Value], Value]) -> Value:
        if getattr(self.kind, "n_fields", 0) > getattr(self.kind, "n_sequence_fields", 0):
            self.unsupported("a copy of fields that are no items,")
        old = self.values(tx)
        new = [part(item) for item in old]
        if self.kind is tuple and all(map(operator.is_, old, new)):
            return self
        return remember(TupleVal(new, self.kind))

    def field_index(self, name: str) -> int | None:
        fields = getattr(self.kind, "_fields", None)
        if fields is not None:
            return fields.index(name) if name in fields else None
        if hasattr(self.kind, "n_sequence_fields"):
            order = getattr(self.kind, "__match_args__", None)
            if order:
                if name in order:
                    return order.index(name)
                return None
            member = self.kind.__dict__.get(name)
            if isinstance(member, types.MemberDescriptorType):
                fields = [
                    key for key, found in self.kind.__dict__.items() if isinstance(found, types.MemberDescriptorType)
                ]
                return _structseq_order(self.kind, fields).index(name)
        return None

    def getattr(self, tx: Tracer, name: str) -> Value:
        index = self.field_index(name)
        if index is not None:
            return self.item(tx, index)
        return tx.class_attribute(self, self.kind, name)

    def is_same(self, tx: Tracer, other: Value) -> bool | None:
        if isinstance(other, TupleVal) and not self.items and not other.items:
            return self.kind is tuple and other.kind is tuple
        return None

    def setitem(self, tx: Tracer, key: Value, value: Value) -> None:
        raise tx.raised(TypeError, f"'{self.kind.__name__}' object does not support item assignment")

    def hash_key(self, tx: Tracer) -> object:
        return tuple(item.hash_key(tx) for item in self.values(tx))

    def rebuild(self, out: Any) -> None:
        if self.kind is tuple and not self.items:
            out.const(())  # there is only one; any other is a new object in each call
            return
        if self.kind is tuple:
            out.push_tuple(self.items)
        elif hasattr(self.kind, "_fields"):
            out.call_const(tuple.__new__, lambda: (out.const(self.kind), out.push_tuple(self.items)), 2)
        else:
            out.call_const(self.kind, lambda: out.push_tuple(self.items), 1)


def other_than_empty(tx: Tracer, left: Value, right: Value) -> Value | None:
    """One of two tuples, if the other is empty: their sum is the very object."""
    if left.py_type() is not tuple or right.py_type() is not tuple:
        return None
    return right if not left.truth(tx) else left if not right.truth(tx) else None


_Named = collections.namedtuple("_Named", "item")
_NAMED_REPR: Any = _Named.__repr__
#: what a named tuple's class has for each name
NAMED_ITEM: type = type(vars(_Named)["item"])
# what a class can have of its own and still be no more than a tuple with names
_NOT_ASKED = frozenset({"__new__", "__doc__", "__getnewargs__", "__class_getitem__", "__repr__"})
_ASKED = frozenset(vars(tuple)) - _NOT_ASKED | {"__init__", "__getattr__", "__setattr__", "__delattr__", "__bool__"}


def is_named_tuple(kind: type) -> bool:
    """Whether instances are tuples with names for their items, and nothing is done in a way of their own."""
    fields = getattr(kind, "_fields", None)
    if not issubclass(kind, tuple) or type(fields) is not tuple:
        return False
    for base in kind.__mro__:
        if base is tuple:
            return all(type(getattr(kind, str(name), None)) is NAMED_ITEM for name in fields)
        found = vars(base)
        if not _ASKED.isdisjoint(found) or any(isinstance(each, cached_property) for each in found.values()):
            return False
        if "__repr__" in found and getattr(found["__repr__"], "__code__", None) is not _NAMED_REPR.__code__:
            return False
    return False


def _structseq_order(kind: type, fields: list[str]) -> list[str]:
    """Names of a structured result's fields in the order of its items."""
    probe: Any = kind(range(len(fields)))
    return sorted(fields, key=lambda name: getattr(probe, name))


LIST_METHODS: dict[str, Model] = {}
list_method = entering(LIST_METHODS)


class ListVal(SequenceVal):
    """A list: made while tracing, or the changed contents of a real one."""

    kind = list
    items: Any = Contents()
    contents_name = "items"
    watches: tuple[Watch, ...] = ()
    raw = False  # whether the real list is of a subclass

    def __init__(self, items: Sequence[Any], source: Source | None = None) -> None:
        self.items = list(items)
        self.source = source

    def getitem(self, tx: Tracer, key: Value) -> Value:
        found = read_item(self, tx, key) if self.watches else None
        return found if found is not None else super().getitem(tx, key)

    def alike(self, items: list[Value], other: SequenceVal | None) -> Value:
        return ListVal(items)

    def iterate_backwards(self, tx: Tracer) -> Value:
        return ReversedList(self)

    def ibinary(self, tx: Tracer, symbol: str, right: Value) -> bool:
        if symbol == "+":
            extend(tx, self, right)
        elif symbol == "*":
            self.replace(tx, self.values(tx) * self.repeats(right))
        return symbol in ("+", "*")

    def mutate(self, tx: Tracer) -> None:
        """As `_change`, of a list whose items are to be known."""
        leave_long(tx, self)
        if self.source is not None:
            self.values(tx)
        self._change(tx)

    def replace(self, tx: Tracer, items: Sequence[Value]) -> None:
        self.mutate(tx)
        check_removed(self.items, items)
        tx.journal.replace_all(self.items, list(items))

    def append(self, tx: Tracer, item: Value) -> None:
        self.mutate(tx)
        put(tx, self.items, item)

    def extend(self, tx: Tracer, items: Sequence[Value]) -> None:
        self.replace(tx, [*self.values(tx), *items])

    def as_tuple(self, tx: Tracer) -> Value:
        """A tuple of the same items."""
        return TupleVal(self.values(tx))

    def to_graph(self, tx: Tracer) -> tuple[Any, Any]:
        return parts_to_graph(tx, self.all_values(tx))

    def _slice(self, tx: Tracer, items: list[Value]) -> Value:
        return ListVal(items)

    def getattr(self, tx: Tracer, name: str) -> Value:
        return tx.class_attribute(self, list, name)

    def setitem(self, tx: Tracer, key: Value, value: Value) -> None:
        leave_long(tx, self)
        items = self.values(tx)
        if key.py_type() is slice:
            new: list[Any] = list(items)
            chosen = slice_of(key)
            if not isinstance(value, SequenceVal) and not hasattr(value.py_type(), "__iter__"):
                raise GraphBreak(breaks.RAISES, "TypeError: a slice is assigned what is no iterable")
            with raising(tx, ValueError):
                new[chosen] = tx.unpack(value)
            self.replace(tx, new)
            return
        index = self._index(tx, key, "assignment index")
        check_dropped(items[index])
        self.mutate(tx)
        self._fill(tx, index, value)

    def delitem(self, tx: Tracer, key: Value) -> None:
        leave_long(tx, self)
        new = self.values(tx)
        if key.py_type() is slice:
            del new[slice_of(key)]
        else:
            del new[self._index(tx, key, "assignment index")]
        self.replace(tx, new)

    def rebuild(self, out: Any) -> None:
        out.push_list(self.items)

    def emit_effect(self, out: Any) -> None:
        """Bring the real list up to date: `real[:] = items`, without running code of a subclass."""
        if self.raw:
            out.run(list.__setitem__, self.source, slice(None), Pushed(lambda out: out.push_list(self.items)))
            return
        out.push_list(self.items)
        out.load(self.source)
        out.emit.load_const(slice(None))
        out.emit.store_subscr()


@list_method
def append(tx: Tracer, self: ListVal, item: Value) -> None:
    self.append(tx, item)


# what is asked of an object before it is read
_HINTS = ("__len__", "__length_hint__")


@list_method
def extend(tx: Tracer, self: ListVal, other: Value) -> None:
    if isinstance(other, SequenceVal) or other.payload is self:  # itself, as it is now
        if getattr(other.py_type(), "__iter__", None) not in (list.__iter__, tuple.__iter__):
            other.unsupported("extend() by itself, whose __iter__ some releases ask,")
        held: Any = other if other.payload is None else other.payload
        self.extend(tx, held.values(tx))
        return
    if any(isinstance(getattr(other.py_type(), name, None), types.FunctionType) for name in _HINTS):
        with left_to_real_call():  # what came before is in the list by then
            self.extend(tx, tx.unpack_hinted(other))
        return
    iterator = other.iterate(tx)
    while True:  # one at a time: a generator sees the list grow
        try:
            item = iterator.next(tx)
        except Exhausted:
            return
        append(tx, self, item)


@list_method
def sort(tx: Tracer, self: ListVal, key: Value | None = None, reverse: Value | None = None) -> None:
    leave_long(tx, self)
    items = self.values(tx)
    self.replace(tx, [])  # so the program sees it meanwhile
    try:
        sort_values(tx, items, key, reverse)
    finally:  # where a comparison raises, it is sorted so far
        is_changed = bool(self.items)
        self.replace(tx, items)
    if is_changed:
        raise tx.raised(ValueError, "list modified during sort")


def sort_values(tx: Tracer, items: list[Value], key: Value | None, reverse: Value | None) -> None:
    """Bring items in the order of `sorted(items, key=, reverse=)`."""
    if reverse is not None and not hasattr(reverse.py_type(), "__index__"):
        raise GraphBreak(breaks.RAISES, f"TypeError: reverse is of type {reverse.py_type().__name__}")
    backwards = reverse is not None and reverse.truth(tx)
    if is_none(key) and (sorted_numbers := in_order(tx, items, backwards)) is not None:
        items[:] = sorted_numbers
        return
    found = items if is_none(key) else [tx.call(key, [item], {}) for item in items]  # type: ignore[arg-type]
    if any(isinstance(key, SymVal) for key in found):
        with contextlib.suppress(NotReal):
            ordered = [Ordered(key) for key in found]
            items[:] = [items[at] for at in sorted(range(len(items)), key=ordered.__getitem__, reverse=backwards)]
            return
    keys: Iterator[Any] = iter([StandIn(tx, key) for key in found])
    if not any(map(varies, found)):  # else the order alone is guarded
        with contextlib.suppress(NotReal):
            keys = iter([key.real() for key in found])
    call_real(tx, items.sort, key=lambda _: next(keys), reverse=backwards)


def real_method(name: str, changes: bool = False, compares: bool = False) -> Callable[..., Value]:
    """The model of a method of lists, tuples or deques: CPython's own, on a copy."""

    def model(tx: Tracer, self: Any, /, *args: Value) -> Value:
        if changes or compares:
            leave_long(tx, self)
        items = self.values(tx)
        changed = tx.journal.changes

        def follow() -> None:
            """What compares the items may change them."""
            nonlocal items, changed
            if tx.journal.changes != changed:
                changed = tx.journal.changes
                if self.items != items:
                    items = self.values(tx)
                    real.clear()
                    real.extend(StandIn(tx, item, follow) for item in items)

        real = self.stood_for([StandIn(tx, item, follow) for item in items] if compares else items)
        found = call_real(tx, getattr(real, name), *(StandIn(tx, arg) for arg in args))
        if changes:
            self.replace(tx, [part.value if type(part) is StandIn else part for part in real])
        return self.alike([*found], None) if type(found) is type(real) else value_of(found)

    return model


LIST_METHODS.update({name: real_method(name, changes=True) for name in ("clear", "insert", "reverse")})
LIST_METHODS.update({name: real_method(name, compares=True) for name in ("index", "count")})
_copy = real_method("copy")


@list_method
def copy(tx: Tracer, self: ListVal) -> Value:
    copied = self.spread(tx, ListVal([]))
    return copied if copied is not None else _copy(tx, self)


LIST_METHODS["remove"] = real_method("remove", changes=True, compares=True)
