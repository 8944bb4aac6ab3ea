"""Weak references while tracing: `weakref.ref(x)` made by the traced program, and what any weak reference refers to.

In: the model of what is referred to, or a real reference from outside. Out: `WeakRefVal`; `referent` gives what a
reference refers to where that lives for sure, as it does if a variable holds it, or something unchanged that the
program reached it from. Elsewhere the graph ends, and the real reference tells.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from dynajit.guards.source import (
    AttrSource,
    CallSource,
    ConstSource,
    InstanceAttrSource,
    ItemSource,
    LocalSource,
    Source,
    TypeAttrSource,
)
from dynajit.nested import reached
from dynajit.report import breaks
from dynajit.values.containers.attributes import AttributeDict
from dynajit.values.containers.mapping import DictVal
from dynajit.values.core.registry import builtin, constructor, models_of
from dynajit.values.core.value import Direct, GraphBreak, Tracer, Value
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.tensors.tensor import TensorVal

_REFERENT: Any = weakref.ref.__call__


class WeakRefVal(Value):
    """`weakref.ref(target)`. There is one for an object, as in CPython."""

    kind = weakref.ref
    child_names = ("target",)

    def __init__(self, target: Value) -> None:
        self.target = target

    @staticmethod
    def of(target: Value) -> WeakRefVal:
        """The reference to `target`, the same for each call."""
        made: WeakRefVal = target.__dict__.setdefault("_weak_reference", WeakRefVal(target))
        return made

    def is_same(self, tx: Tracer, other: Value) -> bool | None:
        if isinstance(other, WeakRefVal):
            return tx.same_object(self.target, other.target)
        if other.py_type() is self.py_type():
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, "whether a weak reference is one made before")
        return None

    def getattr(self, tx: Tracer, name: str) -> Value:
        if name == "__callback__":
            return ConstVal(None)
        return super().getattr(tx, name)

    def call(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None) -> Value:
        if args or kwargs:
            return super().call(tx, args, kwargs, direct)
        target = self.target
        if not (_is_held(tx, target) if target.source is not None else _is_reached(tx, target)):
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, "an object known only through a weak reference")
        return target

    def rebuild(self, out: Any) -> None:
        out.call_on(weakref.ref, self.target)


@constructor(weakref.ref)
def weak_reference(tx: Tracer, target: Value, *callback: Value) -> Value:
    """`weakref.ref(target)`."""
    if callback and not (callback[0].is_const() and callback[0].const() is None):
        raise GraphBreak(breaks.UNKNOWN_CALL, "weakref.ref with a callback")
    kind = target.py_type()
    if not kind.__weakrefoffset__:
        raise tx.raised(TypeError, f"cannot create weak reference to '{kind.__name__}' object")
    if not target.rebuildable() or (isinstance(target, TensorVal) and target.source is None):
        # how long the tensor of an operation lives depends on the backend
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"a weak reference to {target.describe()}")
    return WeakRefVal.of(target)


@builtin(weakref.ref.__call__)
def referent(tx: Tracer, reference: Value) -> Value:
    """What a weak reference refers to."""
    if isinstance(reference, WeakRefVal):
        return reference.call(tx, [], {})
    real = reference.real_object
    if type(real) not in (weakref.ref, weakref.KeyedRef) or reference.source is None:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"calling {reference.describe()}")
    target = _REFERENT(real)
    known = tx.known_object(target, ConstSource(real, "<weak reference>")) if target is not None else ConstVal(None)
    if known is None and _lets_nothing_go(tx):
        return tx.wrap(target, CallSource(reference.source, _REFERENT, "{}()"))
    if known is None or not (target is None or _is_held(tx, known)):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "an object known only through a weak reference")
    read = CallSource(reference.source, _REFERENT, "{}()")
    if target is None:
        tx.guard(read, "ID", None)
    else:
        tx.guard(read, "SAME_OBJECT", known.source)
    return known


# ------------------------------------------------------------------- containers of weak references, from outside


def _held_at(key: weakref.ref[Any], container: Any) -> Any:
    return container.data[key]


def _has(key: weakref.ref[Any], there: bool, container: Any) -> bool:
    return (key in container.data) is there


def _looked_up(tx: Tracer, container: Value, key: Value) -> tuple[Any, weakref.ref[Any], bool]:
    """The container, a reference to the key, and whether it is there; guarded."""
    real, item = container.real_object, key.real_object
    kind: Any = type(item)
    plain = kind.__hash__ is object.__hash__ and kind.__eq__ is object.__eq__
    if real is None or item is None or container.source is None or key.source is None:
        raise GraphBreak(breaks.SKIPPED_CALL, f"{container.py_type().__qualname__} of objects made while tracing")
    if not plain or not type(item).__weakrefoffset__ or type(real) not in (weakref.WeakKeyDictionary, weakref.WeakSet):
        raise GraphBreak(breaks.SKIPPED_CALL, f"{container.py_type().__qualname__} with keys of a kind of their own")
    _check_unchanged(tx, container)
    tx.guard(key.source, "ID", item)
    reference = weakref.ref(item)
    there = reference in real.data
    tx.guard(container.source, "PREDICATE", functools.partial(_has, reference, there), "has the same weak key")
    return real, reference, there


def _check_unchanged(tx: Tracer, container: Value) -> None:
    """The container's own methods end graphs where they change it, but not all that the program may do to its parts."""
    parts = vars(container.real_object).values()  # type: ignore[attr-defined]
    models = [tx.known_object(part, ConstSource(part, "<part>")) for part in parts if type(part) in (dict, set, list)]
    changed = {id(value) for value in tx.journal.dirty.values()}
    if id(container) in changed or any(id(model) in changed for model in models):
        raise GraphBreak(breaks.SKIPPED_CALL, f"{container.py_type().__qualname__} whose parts were changed")


def _has_length(expected: int, container: Any) -> bool:
    return len(container) == expected


@models_of(weakref.WeakKeyDictionary.__len__, weakref.WeakValueDictionary.__len__, weakref.WeakSet.__len__)
def _length(function: Any, tx: Tracer, container: Value) -> Value:
    real = container.real_object
    if real is None or container.source is None or not _lets_nothing_go(tx):
        raise GraphBreak(breaks.SKIPPED_CALL, f"len() of a {container.py_type().__qualname__} that may have changed")
    found: int = function(real)
    tx.guard(container.source, "PREDICATE", functools.partial(_has_length, found), f"has {found} items")
    return ConstVal(found)


@models_of(weakref.WeakKeyDictionary.__contains__, weakref.WeakSet.__contains__)
def _has_weak_key(function: Any, tx: Tracer, container: Value, key: Value) -> Value:
    return ConstVal(_looked_up(tx, container, key)[2])


@models_of(weakref.WeakKeyDictionary.__getitem__, weakref.WeakKeyDictionary.get)
def _at_weak_key(function: Any, tx: Tracer, container: Value, key: Value, *default: Value) -> Value:
    real, reference, there = _looked_up(tx, container, key)
    if not there and function is weakref.WeakKeyDictionary.get:
        return default[0] if default else ConstVal(None)
    if not there:
        raise GraphBreak(breaks.RAISES, "KeyError: a weak reference")
    assert container.source is not None
    held = functools.partial(_held_at, reference)
    read = CallSource(container.source, held, "the value of a weak key in {}", reference)
    return tx.wrap(_held_at(reference, real), read)


# ------------------------------------------------------------------------------------------------ who is alive


def _variables(frame: Any) -> list[Any]:
    """What the frame's variables and stack hold, parameters that nobody read yet included."""
    unread = getattr(frame.locals, "boxes", {})
    return [
        *(value for name, value in unread.items() if name not in dict.keys(frame.locals)),
        *dict.values(frame.locals),
        *(cell.contents for cell in frame.cells.values()),
        *frame.stack,
    ]


def _is_held(tx: Tracer, known: Value) -> bool:
    """Whether an object from outside lives for sure: a variable holds it, or it is reached from one through what is
    unchanged. That it was changed itself does not matter."""
    if known.source is None or isinstance(known.source, ConstSource):
        return True
    held = [value for frame in tx.frames for value in _variables(frame)]
    if any(value is known for value in held):
        return True
    if _is_weak(known.source):
        return _lets_nothing_go(tx)
    root = known.source.root()
    if not _way_is_unchanged(tx, known.source):
        return False
    return not isinstance(root, LocalSource) or any(getattr(value, "source", None) == root for value in held)


def _way_is_unchanged(tx: Tracer, source: Source) -> bool:
    """Whether each object that the way leads through still holds the next one."""
    if tx.globals_written:
        return False
    changed: dict[Source, Value] = {}
    for value in tx.journal.dirty.values():
        for place in (value.source, value.owner_source if isinstance(value, AttributeDict) else None):
            if place is not None:
                changed[place] = value
    step = source
    while step.base is not None:
        holder = changed.get(step.base)
        if (holder is not None and not _still_holds(holder, step)) or (
            tx.class_writes and isinstance(step, TypeAttrSource)
        ):
            return False
        step = step.base
    return True


def _still_holds(holder: Value, step: Source) -> bool:
    """Whether a dictionary, or an object's attributes, that the program changed still hold there what they had."""
    if not isinstance(holder, DictVal) or not isinstance(step, (ItemSource, AttrSource, InstanceAttrSource)):
        return False
    name = step.key if isinstance(step, ItemSource) else step.attr
    if isinstance(holder, AttributeDict) and name != "__dict__" and name not in holder.changed_names:
        return True
    entry = holder.entries.get(name)
    return entry is not None and getattr(entry[1], "source", None) == step


def _is_weak(source: Source) -> bool:
    """Whether the way to the object goes through a weak reference."""
    step: Source | None = source
    while step is not None:
        if isinstance(step, CallSource) and step.function is _REFERENT:
            return True
        step = step.base
    return False


def _lets_nothing_go(tx: Tracer) -> bool:
    """Whether all that was alive when the frame was entered still is: nothing was changed, no parameter bound anew."""
    return not tx.journal.dirty and len(getattr(tx.frames[0].locals, "boxes", ())) == len(tx.boxes)


def _is_reached(tx: Tracer, target: Value) -> bool:
    """Whether an object made while tracing is held by a variable, or by what an effect leaves in an object."""
    pending: list[Any] = [value for frame in tx.frames for value in _variables(frame)]
    for changed in tx.journal.dirty.values():
        pending += changed.effect_children()
    return any(value is target for value in reached(pending, _parts, id))


def _parts(value: Any) -> Iterable[Any]:
    """What an object holds; of one from outside what the program put there is among the effects."""
    if not isinstance(value, Value) or isinstance(value, WeakRefVal) or value.source is not None:
        return ()
    return [*value.children(), *value.fill_children()]
