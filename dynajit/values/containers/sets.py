"""Sets and frozensets while tracing.

In: members. Out: `SetVal`. Methods are entries of `SET_METHODS`, by `@set_method`; the set operators of views of
dictionaries are here, too (`SetLike`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from dynajit.guards.source import Source
from dynajit.values.containers.iterators import PositionIterator, ended_iterator, iterator_at, taken
from dynajit.values.containers.keys import collide, has_user_key
from dynajit.values.containers.rebuild_containers import (
    push_members,
    replace_members,
)
from dynajit.values.containers.set_history import (
    UNKNOWN,
    History,
    Recipe,
    Steps,
    as_given,
    carried_out,
    change,
    changes_of,
    copied_like,
    from_outside,
    made_of,
    of_own,
    real_member,
    recipe,
    replayed,
)
from dynajit.values.containers.standin import call_real
from dynajit.values.core.effect import Pushed
from dynajit.values.core.registry import Model, entering
from dynajit.values.core.value import NotReal, Tracer, Value
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.scalars.number_calls import is_among, varies

_SET_OPERATORS = {"|": "union", "&": "intersection", "-": "difference", "^": "symmetric_difference"}
_IN_PLACE = {symbol: f"{name}_update" for symbol, name in _SET_OPERATORS.items()} | {"|": "update"}


class SetLike(Value):
    """What sets and views of dictionaries share.

    Attributes:
        compares: whether it is equal to another one of the same members.
        is_view: whether it is a dictionary's.
    """

    compares: bool = True
    is_view: bool = True

    def rbinary(self, tx: Tracer, symbol: str, left: Value) -> Value | None:
        ours = _set_like(tx, left)
        return None if ours is None else ours.binary(tx, symbol, self)

    def binary(self, tx: Tracer, symbol: str, other: Value) -> Value | None:
        right = _set_like(tx, other)
        if symbol not in _SET_OPERATORS:
            return None
        if right is None:
            if self.compares and self.is_view:  # a view of keys or items takes any iterable
                other.unsupported(f"{symbol!r} with a view of a dictionary")
            return None
        if isinstance(self, SetVal) and isinstance(right, SetVal):
            return SET_METHODS[_SET_OPERATORS[symbol]](tx, self, right)
        if all(isinstance(side, SetVal) or not side.compares for side in (self, right)):
            return None  # a view of values has no such operators
        # with a view of keys or items it is a set, whatever the other is
        first, second = (SetVal.of(tx, tx.unpack_set(side)) for side in (self, right))
        made: Any = SET_METHODS[_SET_OPERATORS[symbol]](tx, first, second)
        if symbol == "&":
            given = _looked_for(self.py_type(), right.py_type(), first.entries, second.entries)
            made.entries = {key: member for key, member in given.items() if key in made.entries}
        made.history = self.as_operand(first.entries).then(symbol, right.as_operand(second.entries))
        return cast(SetVal, made).placed(tx)

    def as_operand(self, entries: dict[Any, Value]) -> History:
        """How it came to be, as an operator's operand; `entries`: its members."""
        raise NotImplementedError

    def equals(self, tx: Tracer, other: Value) -> bool | None:
        if not self.compares:
            return False
        if not isinstance(other, SetLike):
            return None
        return other.compares and self._members_hold(tx, "==", other)

    def compare(self, tx: Tracer, symbol: str, right: Value) -> Value | None:
        if not isinstance(right, SetLike) or not (self.compares and right.compares):
            return None
        return ConstVal(self._members_hold(tx, symbol, right))

    def _members_hold(self, tx: Tracer, symbol: str, other: SetLike) -> bool:
        are_sets = [side.py_type() in (set, frozenset) for side in (self, other)]
        view_answers = symbol == "==" and are_sets == [True, False]
        inner, outer = (other, self) if symbol in (">", ">=") or view_answers else (self, other)
        fits = tx.holds(self.length(tx), symbol, other.length(tx))
        return fits and all(outer.contains(tx, each) for each in tx.unpack_set(inner))


def _looked_for(kind: type, other: type, ours: dict[Any, Value], theirs: dict[Any, Value]) -> dict[Any, Value]:
    """Of two operands of `&`, of which at least one is a view: the members that CPython looks for in the other one. Of
    equal members these are in the result."""
    if kind in (set, frozenset):
        return _looked_for(other, kind, theirs, ours)
    if other is set:
        return ours if len(ours) <= len(theirs) else theirs
    return ours if other is not frozenset and len(theirs) > len(ours) else theirs


def _set_like(tx: Tracer, value: Value) -> SetLike | None:
    """The value, if set operators take it; a set of a frozenset that is a constant."""
    value = of_constant(tx, value)
    return value if isinstance(value, SetLike) else None


def of_constant(tx: Tracer, value: Value) -> Value:
    """A set of a frozenset that is a constant, or the value itself."""
    if value.py_type() is not frozenset or not value.is_const():
        return value
    real = value.const()
    return SetVal.outside(frozenset, real, {each.hash_key(tx): each for each in map(tx.from_real, real)})


def set_part(value: Value) -> Value:
    """What C takes of an iterable where it makes or fills a set: of a set subclass's instance the members, unasked."""
    held = value.payload
    return held if isinstance(held, SetVal) else value


class SetVal(SetLike):
    """A set or frozenset."""

    is_view = False

    def __init__(self, kind: type = set, source: Source | None = None) -> None:
        self.kind = kind
        self.source = source
        self.entries: dict[Any, Value] = {}
        self.history = made_of({})
        self.removals = 0
        self.popping: list[Any] | None = None  # after pop(): in which order it takes the rest
        self.placed_at: Any = None  # the state before the instruction that left it in an order that is not known

    @staticmethod
    def of(tx: Tracer, items: Sequence[Value], kind: type = set) -> SetVal:
        made = SetVal(kind)
        for item in items:
            made.entries.setdefault(item.hash_key(tx), item)
        made.history = made_of(made.entries, kind)
        return made

    @staticmethod
    def of_items(tx: Tracer, items: Value | None, kind: type = set) -> SetVal:
        """`kind(items)`."""
        items = items and set_part(items)
        made = SetVal.of(tx, tx.unpack_set(items) if items is not None else [], kind)
        given = None if items is None else as_given(items, made.entries)
        if type(given) is History:
            made.history = given.then("made", kind)
        elif type(given) is dict:
            made.history = made_of(given, kind, as_dict=True)
        return made.placed(tx)

    @staticmethod
    def outside(kind: type, real: Any, entries: dict[Any, Value], source: Source | None = None) -> SetVal:
        """A set that is nothing of the trace's, with its members in their order."""
        made = SetVal(kind, source)
        made.entries = entries
        made.history = from_outside(kind, real) if source is not None else of_own(kind, real, entries)
        return made

    def real(self) -> Any:
        if len(self.entries) < 2:
            return self.kind(item.real() for item in self.entries.values())
        found = replayed(self.history)
        if found is None:
            raise NotReal("a set whose order is not known")
        return copied_like(self.kind, found)

    def truth(self, tx: Tracer) -> bool:
        return bool(self.entries)

    def length(self, tx: Tracer) -> Value:
        return ConstVal(len(self.entries))

    def contains(self, tx: Tracer, item: Value) -> bool:
        if varies(item) and all(member.is_const() for member in self.entries.values()):
            found = is_among(tx, ConstVal(frozenset(member.const() for member in self.entries.values())), item)
            if found is not None:
                return found
        return item.hash_key(tx) in self.entries

    def add_alone(self, tx: Tracer, item: Value) -> bool:
        """Add a member if nothing has to be known of the others; whether that was so."""
        return False

    def ordered(self) -> list[Value]:
        """Items in the order in which the real set would give them, where that is known."""
        if len(self.entries) <= 1:
            return list(self.entries.values())
        order = self._in_order()
        if order is None:
            self.unsupported("the order of a set from outside that was changed, or of one that was made of it")
        return [self.entries[key] for key in order.values()]

    def _in_order(self) -> dict[Any, Any] | None:
        """The members of the real set in its order, with their hash keys; None if that is not known. Raises NotReal."""
        order = replayed(self.history)
        keys = {real_member(key, item): key for key, item in self.entries.items()}
        return {member: keys[member] for member in order} if order is not None and keys.keys() == set(order) else None

    def _made_by(self) -> Recipe | Steps | None:
        """By which generated code makes it, or changes it if it is from outside; None if its order is not known."""
        return recipe(self.history) if self.source is None else changes_of(self.history)

    def _is_lost(self) -> bool:
        """Whether generated code can't give it the order that it has."""
        try:
            return len(self.entries) > 1 and self._made_by() is None
        except NotReal:
            return False  # where its members are in memory decides

    def placed(self, tx: Tracer) -> SetVal:
        """The set, whose history is complete; remembers where it was made if generated code can't."""
        if self.placed_at is None and self._is_lost():
            tx.journal.set_attr(self, "placed_at", tx.snapshot())
        return self

    def _to_add(self) -> dict[Any, Value]:
        """The members in an order that gives a set like the real one if they are added one by one, if one is known."""
        try:
            order = self._in_order() if len(self.entries) > 1 else None
        except NotReal:
            order = None
        if order is None or [*set(order)] != [*order]:
            return self.entries
        return {key: self.entries[key] for key in order.values()}

    def iterate(self, tx: Tracer) -> Value:
        self.told_in_order(tx)
        return SetIterator(self)

    def told_in_order(self, tx: Tracer) -> None:
        """The trace relies on the order of the members: that of texts is another one in each process."""
        if len(self.entries) > 1 and not all(type(key) is int for key in self.entries):
            tx.assumed.of_process("the order of a set stands in the trace")

    def getattr(self, tx: Tracer, name: str) -> Value:
        return tx.class_attribute(self, self.kind, name)

    def replace(self, tx: Tracer, entries: dict[Any, Value], history: History = UNKNOWN) -> None:
        """Give it these members; `history`: how it comes to them."""
        tx.journal.wrote(self)
        tx.journal.set_attr(self, "history", history)
        if not self.entries.keys() <= entries.keys():
            tx.journal.set_attr(self, "removals", self.removals + 1)
        tx.journal.replace_all(self.entries, entries)
        self.placed(tx)

    def ibinary(self, tx: Tracer, symbol: str, other: Value) -> bool:
        right = _set_like(tx, other)
        if self.kind is not set or symbol not in _SET_OPERATORS or not isinstance(right, SetVal):
            return False
        result = SET_METHODS[_SET_OPERATORS[symbol]](tx, self, right)
        assert isinstance(result, SetVal)
        self.replace(tx, result.entries, self.history.then(_IN_PLACE[symbol], right.history))
        return True

    def copied(self, tx: Tracer, part: Callable[[Value], Value], remember: Callable[[Value], Value]) -> Value:
        made = SetVal.of(tx, [part(member) for member in self.entries.values()], self.kind)
        made.history = self.history.then("deepcopy", self.kind)
        return made.placed(tx)

    def hash_key(self, tx: Tracer) -> object:
        return frozenset(self.entries) if self.kind is frozenset else super().hash_key(tx)

    def children(self) -> Sequence[Value]:
        return list(self.entries.values())

    def as_operand(self, entries: dict[Any, Value]) -> History:
        return self.history

    def rebuildable(self) -> bool:
        return (self.source is not None or not collide(self.entries)) and not self._is_lost()

    def rebuild(self, out: Any) -> None:
        try:
            made_by = self._made_by()
        except NotReal:
            made_by = None
        if made_by is not None and len(self.entries) > 1:
            out.call_on(carried_out, made_by)
        elif self.kind is set:
            push_members(out, self._to_add())
        else:
            out.call_const(self.kind, lambda: push_members(out, self._to_add()), 1)

    def emit_effect(self, out: Any) -> None:
        try:
            steps = self._made_by()
        except NotReal:
            steps = None
        if steps is not None:
            out.run(change, self.source, steps)
            return
        out.run(replace_members, self.source, Pushed(lambda out: push_members(out, self.entries, in_order=True)))


class SetIterator(PositionIterator):
    """Over a set; changing the size meanwhile raises as in CPython."""

    kind: type = type(iter({1}))

    def __init__(self, members: SetVal) -> None:
        self.container = members
        self.order = members.ordered()
        self.removals = members.removals
        self.changed = False  # in size, as was found once

    def item(self, tx: Tracer, index: int) -> Value:
        return self.order[index]

    def count(self, tx: Tracer) -> int:
        return len(self.order)

    def check(self, tx: Tracer) -> None:
        if self.changed or len(self.container.entries) != len(self.order):
            tx.journal.set_attr(self, "changed", True)
            raise tx.raised(RuntimeError, "Set changed size during iteration")
        if self.removals != self.container.removals:
            self.unsupported("going on after members were exchanged")

    def rebuildable(self) -> bool:
        return self.ended or (self.removals == self.container.removals and not self.changed)

    def rebuild(self, out: Any) -> None:
        if self.ended:
            out.call_on(ended_iterator, frozenset())
            return
        out.bring_up_to_date(self.container)  # an iterator made before the change would notice it
        out.call_on(iterator_at, self.container, self.index)


SET_METHODS: dict[str, Callable[..., Any]] = {}
set_method = entering(SET_METHODS)


@set_method
def add(tx: Tracer, self: SetVal, item: Value) -> None:
    if self.add_alone(tx, item):
        return
    hashed = item.hash_key(tx)
    if hashed not in self.entries:
        if self.source is not None and has_user_key(hashed) and collide([hashed, *self.entries]):
            self.unsupported("two members of one hash")
        tx.journal.wrote(self)
        tx.journal.set_attr(self, "history", self.history.then("add", (hashed, item)))
        tx.journal.set_item(self.entries, hashed, item)


@set_method
def remove(tx: Tracer, self: SetVal, item: Value) -> None:
    if not self.contains(tx, item):
        raise tx.raised(KeyError, item)
    discard(tx, self, item)


@set_method
def discard(tx: Tracer, self: SetVal, item: Value) -> None:
    before = self.history
    SET_METHODS["difference_update"](tx, self, tx.new_list([item]))
    tx.journal.set_attr(self, "history", before.then("discard", (item.hash_key(tx), item)))


def _real_set_method(name: str) -> Model:
    """The model of a method that takes iterables: CPython's own, on sets of hash keys."""

    def model(tx: Tracer, self: SetVal, /, *others: Value) -> Value | None:
        tables = [_members(tx, other) for other in others]
        given = [set(table) if isinstance(other, SetVal) else [*table] for other, table in zip(others, tables)]
        real = self.kind(self.entries)
        asked = self.history.then(name, *map(as_given, others, tables))
        found = call_real(tx, getattr(real, name), *given)
        if isinstance(found, bool):
            return ConstVal(found)
        if found is real:
            return self
        chosen = set(map(id, real if found is None else found))  # of equal members it is not always the first one's
        entries = {
            key: member for table in (self.entries, *tables) for key, member in table.items() if id(key) in chosen
        }
        if found is None:
            self.replace(tx, entries, asked)
            return None
        made = SetVal(self.kind)
        made.entries, made.history = entries, asked
        return made.placed(tx)

    return model


def _members(tx: Tracer, value: Value) -> dict[Any, Value]:
    """The members of an iterable, each once, by their hash keys: a set does not ask its members again."""
    return value.entries if isinstance(value, SetVal) else SetVal.of(tx, tx.unpack_set(value)).entries


_OPERATIONS = ("intersection", "difference", "symmetric_difference")
SET_METHODS.update(
    {
        name: _real_set_method(name)
        for name in ("clear", "copy", "isdisjoint", "issubset", "issuperset", "union", "update", *_OPERATIONS)
        + tuple(f"{operation}_update" for operation in _OPERATIONS)
    }
)


def _reads_until(name: str, member: bool) -> Model:
    """The model of a question that an item which is a member, or none, answers: an iterator is read as far as that."""
    whole = SET_METHODS[name]

    def model(tx: Tracer, self: SetVal, other: Value, /) -> Value | None:
        if not _is_read_by_items(other):
            return whole(tx, self, other)
        found = (item.hash_key(tx) in self.entries for item in taken(tx, other.iterate(tx)))
        return ConstVal(member not in found)

    return model


def _reads_common(name: str) -> Model:
    """The model of an intersection: iterators are read until all members were met."""
    whole = SET_METHODS[name]

    def model(tx: Tracer, self: SetVal, /, *others: Value) -> Value | None:
        left, given = {*self.entries}, list[Value]()
        for other in others:
            read, common = list[Value](), set[Any]()
            if _is_read_by_items(other):
                for item in taken(tx, other.iterate(tx)):
                    read.append(item)
                    if (key := item.hash_key(tx)) in left:
                        common.add(key)
                        if len(common) == len(left):
                            break
                other = tx.new_list(read)
            else:
                common = left & _members(tx, other).keys()
            left = common
            given.append(other)
        return whole(tx, self, *given)

    return model


def _is_read_by_items(value: Value) -> bool:
    return value.read_by_items and set_part(value) is value


SET_METHODS.update({"isdisjoint": _reads_until("isdisjoint", True), "issuperset": _reads_until("issuperset", False)})
SET_METHODS.update({name: _reads_common(name) for name in ("intersection", "intersection_update")})
_rest = iter((1, 2))
if {1}.issubset(_rest) and next(_rest, None) is not None:  # CPython 3.11 reads all, later ones intersect
    SET_METHODS["issubset"] = _reads_common("issubset")
