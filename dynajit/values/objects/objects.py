"""Instances of user classes, classes, modules (Python's), C functions: attribute look-up as CPython does it.

In: a real object with its source, or a class to be instantiated while tracing. Out: `ObjVal`, `ClassVal`,
`BuiltinVal`. The order of look-up is that of the language reference, section "Customizing attribute access"; user
code that CPython would run (`__getattr__`, properties, `__set__`) is traced.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import functools
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from dynajit import _C
from dynajit.bytecode.return_action import (
    CONTAINED,
    DROPPED,
    INDEXED,
    ITERATED,
    MEASURED,
    READ,
    TESTED,
    TESTED_LENGTH,
)
from dynajit.guards.source import AttrSource, ConstSource, InstanceAttrSource, ItemSource, Source
from dynajit.report import breaks
from dynajit.values.containers.access_tracking import Contents, Watch, untold
from dynajit.values.containers.attributes import AttributeDict
from dynajit.values.containers.identity import object_key
from dynajit.values.containers.iterators import has_item
from dynajit.values.containers.keys import user_key
from dynajit.values.containers.mapping import DictVal
from dynajit.values.containers.rebuild_containers import fill_mapping, push_members
from dynajit.values.containers.sequence import ListVal, TupleVal
from dynajit.values.containers.sets import SetVal
from dynajit.values.core.effect import Pushed
from dynajit.values.core.slots import AsksClass, by_rule, raising
from dynajit.values.core.value import Direct, Exhausted, GraphBreak, NotReal, Raised, Tracer, Value
from dynajit.values.objects.class_writes import ClassNamespace, write_class, written
from dynajit.values.objects.functions import SuperVal
from dynajit.values.objects.lookup import (
    MISSING,
    MODULE_GETATTR,
    MODULE_SETATTR,
    SLOTS,
    bind,
    class_value,
    comes_first,
    guard_missing,
    has_odd_names,
    in_python,
    is_data_descriptor,
    is_trusted,
    lookup_type,
    namespace_of,
    rely_on,
    type_source,
)
from dynajit.values.objects.scripted import call_scripted, is_scripted
from dynajit.values.objects.subclasses import behaves_as_plain, is_immutable
from dynajit.values.polyfills import backwards, by_position
from dynajit.values.polyfills.attributes import from_fallback, from_property
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.scalars.exception_text import names_what_is_written, no_place_for_attribute


class InstanceDict(AttributeDict):
    """The `__dict__` of an instance of a user's class."""

    owner: ObjVal
    entries: Any = Contents()
    contents_name = "entries"
    watches: tuple[Watch, ...] = ()

    def __init__(self, owner: ObjVal) -> None:
        real = None
        if owner.real_object is not None and owner.cls.__dictoffset__ != 0:
            real = _C.generic_getattr(owner.real_object, "__dict__", None)
            if not issubclass(type(real), dict):  # some classes written in C keep it to themselves
                raise GraphBreak(breaks.UNSUPPORTED_ATTRIBUTE, f"the dictionary of {owner.describe()}")
            if has_odd_names(real):
                raise GraphBreak(breaks.UNSUPPORTED_ATTRIBUTE, f"{owner.describe()}, whose names are no strings")
        super().__init__(owner, owner.source, real)
        self.own_reading = in_python(owner.cls, "__getattribute__")
        if self.own_reading and owner.source is not None:
            self.source = InstanceAttrSource(owner.source, "__dict__")

    def lookup_hashed(self, tx: Tracer, hashed: Any, key: Value) -> Value | None:
        if not self.watches:
            return super().lookup_hashed(tx, hashed, key)
        with untold(self) as watches:
            found = super().lookup_hashed(tx, hashed, key)
        for watch in watches:
            watch.read(self, hashed, None, found)
        return found

    def setitem(self, tx: Tracer, key: Value, value: Value) -> None:
        if not self.watches:
            super().setitem(tx, key, value)
            return
        hashed = key.hash_key(tx)
        self.lookup_hashed(tx, hashed, key)  # what it lets go of
        with untold(self) as watches:
            super().setitem(tx, key, value)
        for watch in watches:
            watch.wrote(self, str(hashed))

    def guard_absent(self, tx: Tracer, name: str) -> None:
        tx.guard(self.owner_source, "HAS_NO_INSTANCE_ATTR", name)
        # a number of the class is where one of the instance's own begins
        tx.seen.stood(self.entry_source(name), lookup_type(self.owner.cls, name)[0])

    def entry_source(self, name: str) -> Source:
        """Generated code must not run a user's `__getattribute__`, or a descriptor that the entry hides behind."""
        assert self.owner_source is not None
        if self.own_reading or is_data_descriptor(lookup_type(self.owner.cls, name)[0]):
            return ItemSource(InstanceAttrSource(self.owner_source, "__dict__"), name)
        return InstanceAttrSource(self.owner_source, name)


def _runs_hooks(name: str, real: Any) -> bool:
    """Whether an attribute is what an autograd node has saved, which hooks of the program's may unpack."""
    return "saved_" in name and issubclass(type(real), torch.autograd.graph.Node)


def _is_writable(found: types.MemberDescriptorType) -> bool:
    """Members of other classes written in C may be read-only, which only writing tells."""
    return issubclass(found.__objclass__, (BaseException, collections.defaultdict)) or "__slots__" in namespace_of(
        found.__objclass__
    )


class ObjVal(Value):
    """An instance of a class that has no model of its own.

    `payload` models the builtin part of instances of `dict`, `list`, ... subclasses. Objects made while tracing have
    no `real_object`. `raised_at`, of an exception: the interpreter's state before the instruction that raised it, since
    only running makes a traceback.
    """

    raised_at: Any = None
    read_by_items = True

    def __init__(self, cls: type, real: Any = None, source: Source | None = None, payload: Value | None = None) -> None:
        self.cls = cls
        self.real_object = real
        self.source = source
        self.payload = payload
        self.slots: dict[str, Value | None] = {}
        self._dict: InstanceDict | None = None

    def py_type(self) -> type:
        return self.cls

    def instance_dict(self, tx: Tracer) -> InstanceDict:
        if self._dict is None:
            self._dict = InstanceDict(self)
        return self._dict

    def changed(self) -> bool:
        """Whether attributes were written."""
        return bool(self.slots) or (self._dict is not None and bool(self._dict.changed_names))

    def plain_payload(self) -> Value | None:
        """The builtin part, where C code sees no more than that."""
        payload = self.payload
        return payload if isinstance(payload, (ConstVal, TupleVal)) and behaves_as_plain(self.cls) else None

    def real(self) -> Any:
        plain = self.plain_payload()
        if plain is not None:
            return plain.real()
        if self.real_object is None or self.changed():
            raise NotReal(self.describe())
        if self.source is not None and not isinstance(self.source, ConstSource):
            raise NotReal(self.describe())
        return self.real_object

    def to_graph(self, tx: Tracer) -> tuple[Any, Any]:
        in_mapping = self.payload is None or isinstance(self.payload, (DictVal, SetVal))
        return super().to_graph(tx) if in_mapping else self.payload.to_graph(tx)  # type: ignore[union-attr]

    def unread(self) -> int:
        own = self.payload is None or type(lookup_type(self.cls, "__iter__")[0]) is types.FunctionType
        return 0 if own else self.payload.unread()  # type: ignore[union-attr]

    def is_same(self, tx: Tracer, other: Value) -> bool | None:
        if not isinstance(other, ObjVal):
            return None
        if self.real_object is None or other.real_object is None:
            return False
        return True if self.real_object is other.real_object else None

    def hash_key(self, tx: Tracer) -> object:
        method = rely_on(tx, self.cls, "__hash__")
        if method is None:
            raise tx.raised(TypeError, f"unhashable type: '{self.cls.__name__}'")
        if isinstance(method, types.FunctionType):
            bound = self.special(tx, "__hash__")
            assert bound is not None
            return user_key(tx, self, bound)
        compared = rely_on(tx, self.cls, "__eq__")
        if method is object.__hash__ and compared is object.__eq__:
            return object_key(tx, self)
        if self.payload is not None and compared is self.payload.py_type().__eq__:
            return self.payload.hash_key(tx)
        return super().hash_key(tx)

    # -- attributes

    def getattr(self, tx: Tracer, name: str) -> Value:
        custom, where = lookup_type(self.cls, "__getattribute__")
        if isinstance(custom, types.FunctionType):
            function = class_value(tx, self.cls, where, "__getattribute__", custom)
            try:
                return tx.call(function, [self, ConstVal(name)], {})
            except Raised as raised:
                return self._fallback(tx, name, raised)
        rely_on(tx, self.cls, "__getattribute__")
        return self.generic_getattr(tx, name)

    def generic_getattr(self, tx: Tracer, name: str, fallback: bool = True) -> Value:
        changed = written(tx, self.cls, name)
        if changed is not None:
            own = self.instance_dict(tx).lookup(tx, ConstVal(name)) if self._has_dict() else None
            value = own if own is not None else changed[0]
            if value is not None:
                return value
            if not fallback:
                raise self._missing(tx, name)
            return self._fallback(tx, name, self._missing(tx, name))
        found, where = lookup_type(self.cls, name)
        if found is not MISSING and comes_first(tx, found):
            return self._data_descriptor(tx, name, found, where, fallback)
        if self._has_dict():
            value = self.instance_dict(tx).lookup(tx, ConstVal(name))
            if value is not None:
                return value
        if found is not MISSING:
            return bind(tx, self, self.cls, name, found, where)
        guard_missing(tx, self.cls, name)
        if fallback:
            return self._fallback(tx, name, self._missing(tx, name))
        raise self._missing(tx, name)

    def _has_dict(self) -> bool:
        return self.cls.__dictoffset__ != 0

    def _missing(self, tx: Tracer, name: str) -> Raised:
        return tx.raised(AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'")

    def _fallback(self, tx: Tracer, name: str, error: Raised) -> Value:
        """`error` is in no variable of the caller's, nor of this frame when it is raised: its traceback keeps both, and
        they the program's frames that are being captured, until the collector comes."""
        found, where = lookup_type(self.cls, "__getattr__")
        if found is MISSING or not error.is_a(AttributeError):
            if error.is_a(AttributeError):
                guard_missing(tx, self.cls, "__getattr__")
            try:
                raise error
            finally:
                del error
        if found is MODULE_GETATTR:
            named = ("_parameters", "_buffers", "_modules")
            tables = [self.instance_dict(tx).lookup(tx, ConstVal(table)) for table in named]
            if all(table is None or isinstance(table, DictVal) for table in tables):  # else it has code of its own
                return self._module_getattr(tx, name, [table for table in tables if table is not None])
        method = class_value(tx, self.cls, where, "__getattr__", found)
        if isinstance(found, types.FunctionType):
            return tx.run_python(from_fallback, [method, self, ConstVal(name)], direct=READ)
        return tx.call(method, [self, ConstVal(name)], {})

    def ask_fallback(self, tx: Tracer, name: str) -> Value:
        """What the class's `__getattr__` gives, after a property raised AttributeError."""
        return self._fallback(tx, name, tx.raised(AttributeError, name))

    def _module_getattr(self, tx: Tracer, name: str, tables: list[Any]) -> Value:
        """nn.Module.__getattr__: parameters, then buffers, then submodules."""
        key = ConstVal(name)
        for entries in tables:
            real = entries.real_dict
            if not entries.complete and name not in entries.entries and real is not None and name not in real:
                continue
            value = entries.lookup(tx, key)
            if value is not None:
                return value  # type: ignore[no-any-return]
        for entries in tables:
            entries.contains(tx, key)
        raise tx.raised(AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'")

    def _data_descriptor(self, tx: Tracer, name: str, found: Any, where: type, fallback: bool) -> Value:
        if isinstance(found, property):
            if not fallback or lookup_type(self.cls, "__getattr__")[0] is MISSING:
                return bind(tx, self, self.cls, name, found, where)
            if isinstance(found.fget, types.FunctionType) and type(found) is property:
                get = tx.getattr(class_value(tx, self.cls, where, name, found), "fget")
                return tx.run_python(from_property, [get, self, ConstVal(name)], direct=READ)
            try:
                with tx.not_resumable():
                    return bind(tx, self, self.cls, name, found, where)
            except Raised as raised:
                return self._fallback(tx, name, raised)
        if name == "__class__":
            return tx.from_real(self.cls)
        if name == "__dict__":
            return self.instance_dict(tx)
        if isinstance(found, SLOTS):
            return self._slot(tx, name, found, fallback)
        getless = lookup_type(type(found), "__get__")[0] is MISSING and self._has_dict()
        if getless and (own := self.instance_dict(tx).lookup(tx, ConstVal(name))) is not None:
            return own
        return bind(tx, self, self.cls, name, found, where)

    def _slot(self, tx: Tracer, name: str, found: Any, fallback: bool) -> Value:
        if name == "__traceback__" and self.raised_at is not None:
            raise GraphBreak(breaks.FRAME_INTROSPECTION, name)
        if name in self.slots:
            if (value := self.slots[name]) is not None:
                return value
        elif self.real_object is not None:
            if _runs_hooks(name, self.real_object):
                raise GraphBreak(breaks.UNSUPPORTED_ATTRIBUTE, f"{name!r} of an autograd node, which hooks unpack")
            try:
                return tx.wrap(found.__get__(self.real_object), AttrSource(self.source, name))  # type: ignore[arg-type]
            except AttributeError:
                if not _is_writable(found):
                    raise GraphBreak(breaks.UNSUPPORTED_ATTRIBUTE, f"the empty slot {name!r}") from None
                self._guard_slot(tx, name, found, full=False)
            except Exception as refusal:
                raise GraphBreak(breaks.UNSUPPORTED_ATTRIBUTE, f"{name!r}, which raises {refusal!r}") from None
        elif isinstance(found, types.GetSetDescriptorType):
            return super().getattr(tx, name)
        if fallback:
            return self._fallback(tx, name, self._missing(tx, name))
        raise self._missing(tx, name)

    def setattr(self, tx: Tracer, name: str, value: Value) -> None:
        custom, where = lookup_type(self.cls, "__setattr__")
        plain = custom is MODULE_SETATTR and self._plain_module_write(name, value)
        if plain:
            class_value(tx, self.cls, where, "__setattr__", custom)  # which is relied on
        if plain or not self._written_by_class(tx, "__setattr__", [ConstVal(name), value]):
            self.generic_setattr(tx, name, value)

    def _written_by_class(self, tx: Tracer, method: str, args: list[Value]) -> bool:
        """Whether the class has a method of its own for it, which was called. `__setattr__ = dict.__setitem__` makes a
        dictionary's keys its attributes."""
        custom, where = lookup_type(self.cls, method)
        if not isinstance(custom, types.FunctionType):
            if getattr(custom, "__name__", "") == method:
                rely_on(tx, self.cls, method)
                return False
            if not isinstance(custom, (types.WrapperDescriptorType, types.MethodDescriptorType)) or where is None:
                told = f"{args[0].describe()} through another method written in C"
                raise GraphBreak(breaks.UNSUPPORTED_ATTRIBUTE, told)
        tx.call(class_value(tx, self.cls, where, method, custom), [self, *args], {}, DROPPED)
        return True

    def _plain_module_write(self, name: str, value: Value) -> bool:
        """Whether nn.Module.__setattr__ would only write the instance's dictionary."""
        if issubclass(value.py_type(), (torch.Tensor, torch.nn.Module)) or self.real_object is None:
            return False
        tables = [self.real_object.__dict__.get(table) or {} for table in ("_parameters", "_buffers", "_modules")]
        return not any(name in table for table in tables) and name in self.real_object.__dict__

    def generic_setattr(self, tx: Tracer, name: str, value: Value | None) -> None:
        found, _ = lookup_type(self.cls, name)
        if found is not MISSING and comes_first(tx, found):
            self._set_through_descriptor(tx, name, found, value)
        elif not self._has_dict():
            context: dict[str, Value] = {"name": ConstVal(name), "obj": self} if names_what_is_written() else {}
            raise tx.raised(AttributeError, no_place_for_attribute(self.cls, name), **context)
        elif value is not None:
            self.instance_dict(tx).setitem(tx, ConstVal(name), value)
        elif self.instance_dict(tx).lookup(tx, ConstVal(name)) is None:
            raise tx.raised(AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'")
        else:
            self.instance_dict(tx).take(tx, ConstVal(name))

    def _set_through_descriptor(self, tx: Tracer, name: str, found: Any, value: Value | None) -> None:
        source = type_source(self.cls, name)
        if isinstance(found, property):
            setter, part = (found.fset, "fset") if value is not None else (found.fdel, "fdel")
            if setter is None:
                what = "setter" if value is not None else "deleter"
                raise tx.raised(AttributeError, f"property {name!r} of {self.cls.__name__!r} object has no {what}")
            tx.call(tx.wrap(setter, AttrSource(source, part)), [self] if value is None else [self, value], {}, DROPPED)
            return
        if isinstance(found, types.MemberDescriptorType) and _is_writable(found):
            if value is None and not self._slot_is_full(tx, name, found):
                raise tx.raised(AttributeError, name)
            tx.journal.set_item(self.slots, name, value)
            tx.journal.wrote(self)
            return
        operation = "__set__" if value is not None else "__delete__"
        setter, _ = lookup_type(type(found), operation)
        if isinstance(setter, types.FunctionType):
            given = [value] if value is not None else []
            tx.call(tx.from_real(setter), [tx.wrap(found, source), self, *given], {}, DROPPED)
            return
        if setter is MISSING:
            raise tx.raised(AttributeError, operation)
        raise GraphBreak(breaks.UNSUPPORTED_ATTRIBUTE, f"setting {name!r} of {self.describe()}")

    def _slot_is_full(self, tx: Tracer, name: str, found: Any) -> bool:
        if name in self.slots:
            return self.slots[name] is not None
        if self.real_object is None:
            return False
        self._guard_slot(tx, name, found, full := _holds_something(found, self.real_object))
        return full

    def _guard_slot(self, tx: Tracer, name: str, found: Any, full: bool) -> None:
        """Rely on whether there is something in a slot, whatever it is."""
        told = f"has {'something' if full else 'nothing'} in its slot {name!r}"
        tx.guard(self.source, "PREDICATE", functools.partial(_is_as_full, found, full), told)

    def delattr(self, tx: Tracer, name: str) -> None:
        if not self._written_by_class(tx, "__delattr__", [ConstVal(name)]):
            self.generic_setattr(tx, name, None)

    # -- special methods

    def special(self, tx: Tracer, name: str) -> Value | None:
        """The bound special method, looked up in the class alone; None if there is none."""
        found, where = lookup_type(self.cls, name)
        if found is MISSING:
            guard_missing(tx, self.cls, name)
        if found is MISSING or found is None:
            return None
        return bind(tx, self, self.cls, name, found, where)

    def call_special(self, tx: Tracer, name: str, *args: Value, direct: Direct = None) -> Value:
        if (method := self.special(tx, name)) is None:
            self.unsupported(f"{name}")
        return tx.call(method, args, {}, direct)

    def call(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None) -> Value:
        if self.source is not None and issubclass(self.cls, torch.nn.Module):
            return tx.call_module(self, args, kwargs, direct)
        return self.trace_call(tx, args, kwargs, direct)

    def trace_call(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct) -> Value:
        if is_scripted(self.real_object):
            return call_scripted(tx, self, args, kwargs)
        if (method := self.special(tx, "__call__")) is None:
            raise tx.raised(TypeError, f"'{self.cls.__name__}' object is not callable")
        return tx.call(method, args, kwargs, direct)

    def truth(self, tx: Tracer) -> bool:
        for name, action in (("__bool__", TESTED), ("__len__", TESTED_LENGTH)):
            method = self.special(tx, name)
            if method is not None:
                return by_rule(tx, tx.call(method, (), {}, action), action).truth(tx)
        return True

    def length(self, tx: Tracer) -> Value:
        if self.special(tx, "__len__") is None:
            raise tx.raised(TypeError, f"object of type '{self.cls.__name__}' has no len()")
        return by_rule(tx, self.call_special(tx, "__len__"), MEASURED)

    def iterate(self, tx: Tracer) -> Value:
        if isinstance(self.payload, ConstVal) and behaves_as_plain(self.cls):
            return self.payload.iterate(tx)
        if self.special(tx, "__iter__") is not None:
            return by_rule(tx, self.call_special(tx, "__iter__", direct=ITERATED), ITERATED)
        if self.special(tx, "__getitem__") is not None:
            made: Any = tx.run_python(by_position, [self])
            made.origin = iter, [self], {}
            return made  # type: ignore[no-any-return]
        raise tx.raised(TypeError, f"'{self.cls.__name__}' object is not iterable")

    def iterate_backwards(self, tx: Tracer) -> Value:
        if self.special(tx, "__reversed__") is not None:
            return self.call_special(tx, "__reversed__")
        if self.payload is not None:
            return self.payload.iterate_backwards(tx)
        made: Any = tx.run_python(backwards, [self, self.length(tx)])
        made.origin = reversed, [self], {}
        return made  # type: ignore[no-any-return]

    def next(self, tx: Tracer) -> Value:
        """For user-defined iterators."""
        try:
            return self.call_special(tx, "__next__")
        except Raised as raised:
            if raised.is_a(StopIteration):
                raise Exhausted(raised.value.getattr(tx, "value"), raised) from None
            raise

    def contains(self, tx: Tracer, item: Value) -> bool:
        if self.special(tx, "__contains__") is not None:
            found = self.call_special(tx, "__contains__", item, direct=CONTAINED)
            with tx.not_resumable():
                return found.truth(tx)
        return has_item(tx, self, item)

    def getitem(self, tx: Tracer, key: Value) -> Value:
        if self.special(tx, "__getitem__") is None:
            raise tx.raised(TypeError, f"'{self.cls.__name__}' object is not subscriptable")
        return self.call_special(tx, "__getitem__", key, direct=INDEXED)

    def setitem(self, tx: Tracer, key: Value, value: Value) -> None:
        self.call_special(tx, "__setitem__", key, value, direct=DROPPED)

    def delitem(self, tx: Tracer, key: Value) -> None:
        self.call_special(tx, "__delitem__", key, direct=DROPPED)

    # -- generated code

    def _made_with(self) -> Value | None:
        """The builtin part that `__new__` takes."""
        return self.payload if self.real_object is None and is_immutable(self.cls) else None

    def children(self) -> Sequence[Value]:
        made_with = self._made_with()
        return (made_with,) if made_with is not None else ()

    def rebuild(self, out: Any) -> None:
        if self.real_object is not None:
            out.const(self.real_object)
            return
        made_with = self._made_with()
        out.call_on(maker(self.cls), self.cls, *(() if made_with is None else (made_with,)))
        out.later(self, self._fill)

    def _fill(self, out: Any) -> None:
        """Contents come after the bare object, since they may refer to it."""
        if self.payload is not None and isinstance(self.payload, DictVal):
            if self.payload.entries:
                fill_mapping(out, self.cls, self, self.payload.entries)
        elif isinstance(self.payload, SetVal) and self.payload.kind is set:
            members = self.payload.entries
            out.run(set.update, self, Pushed(lambda out: push_members(out, members)))
        elif isinstance(self.payload, ListVal):
            out.run(list.extend, self, self.payload.items)
        if self._dict is not None:
            self._dict.fill_owner(out)
        self._emit_slots(out)

    def fill_children(self) -> Sequence[Value]:
        """What `_fill` pushes."""
        found: list[Value] = [value for value in self.slots.values() if value is not None]
        for part in (self.payload, self._dict if self.source is None else None):
            if part is self._made_with():
                continue
            if isinstance(part, AttributeDict):
                found.extend(part.entry_values())
            elif isinstance(part, DictVal):
                found.extend(DictVal.children(part))
            elif part is not None:
                found.extend(part.children())
        return found

    def _emit_slots(self, out: Any) -> None:
        for name, value in self.slots.items():
            if value is not None:
                out.run(object.__setattr__, self, name, value)
            elif self.real_object is not None:  # made while tracing, the slot is empty anyway
                out.run(object.__setattr__, self, name, None)  # it may be empty: what was deleted was written here
                out.run(object.__delattr__, self, name)

    def emit_effect(self, out: Any) -> None:
        self._emit_slots(out)

    def changed_places(self) -> Sequence[Source]:
        return () if self.source is None else [AttrSource(self.source, name) for name in self.slots]

    def effect_children(self) -> Sequence[Value]:
        return [self, *(value for value in self.slots.values() if value is not None)]


def _holds_something(slot: Any, owner: object) -> bool:
    try:
        slot.__get__(owner)
    except AttributeError:
        return False
    return True


def _is_as_full(slot: Any, full: bool, owner: object) -> bool:
    return _holds_something(slot, owner) is full


def maker(cls: type) -> Callable[..., Any]:
    """The C `__new__` that makes a bare instance."""
    for base in cls.__mro__:
        new = namespace_of(base).get("__new__")
        if isinstance(new, types.BuiltinMethodType) and base is not object:  # functions stand there too, if assigned
            return new
    return _C.bare_object


def _is_itself(value: Value) -> bool:
    """Whether `value.real()` is the very object, not only one that computes alike: it will be kept."""
    if isinstance(value, TupleVal):
        return all(isinstance(item, Value) and _is_itself(item) for item in value.items)
    return value.payload is None


class RealVal(Value):
    """A thing known by identity: class, module, C function."""

    has_identity = True

    def __init__(self, obj: Any, source: Source | None = None) -> None:
        self.obj = obj
        self.source = source

    def py_type(self) -> type:
        return type(self.obj)

    def real(self) -> Any:
        return self.obj

    def hash_key(self, tx: Tracer) -> object:
        return self.obj

    def getitem(self, tx: Tracer, key: Value) -> Value:
        """For typing's constructs, such as `Optional[int]`."""
        if type(self.obj).__module__ != "typing" or not _is_itself(key):
            return super().getitem(tx, key)
        return tx.fold(lambda obj, part: obj[part], [self, key])

    def call(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None) -> Value:
        """`Stack[int]()` makes an instance of the class, and tells it so."""
        if isinstance(self.obj, typing.NewType) and len(args) == 1 and not kwargs:
            return args[0]
        origin = getattr(self.obj, "__origin__", None)
        if not isinstance(origin, type) or not getattr(self.obj, "_inst", True):
            return super().call(tx, args, kwargs, direct)
        with tx.not_resumable():
            made = tx.call(tx.from_real(origin), args, kwargs)
            if isinstance(made, ObjVal):
                with contextlib.suppress(Raised):  # as typing does: the instance may have no place for it
                    made.setattr(tx, "__orig_class__", self)
        return made

    def describe(self) -> str:
        return (
            f"{getattr(self.obj, '__module__', None) or ''}.{getattr(self.obj, '__qualname__', repr(self.obj))}".lstrip(
                "."
            )
        )

    def rebuild(self, out: Any) -> None:
        out.const(self.obj)


_OF_EVERY_CLASS = ("__name__", "__qualname__", "__module__", "__doc__", "__bases__", "__mro__", "__base__", "__flags__")


# What Python's classes mean where torch takes a dtype; torch.FloatTensor and its like have a class of their own.
_DTYPES: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
_TENSOR_TYPE: Any = type(torch.FloatTensor)


class ClassVal(AsksClass, RealVal):
    """A class."""

    def to_graph(self, tx: Tracer) -> tuple[Any, Any]:
        """As torch takes it, in a form that the code of an fx graph can hold."""
        kind: Any = self.obj
        if type(kind) is _TENSOR_TYPE:
            return (f"{kind.__module__}.{kind.__name__}",) * 2
        if kind not in _DTYPES:
            self.unsupported("a torch operation")
        return (_DTYPES[kind],) * 2

    def getattr(self, tx: Tracer, name: str) -> Value:
        cls = self.obj
        changed = written(tx, cls, name)
        if changed is not None:
            return changed[0] or self._lacks(tx, name)
        meta = type(cls)
        meta_found, meta_where = lookup_type(meta, name)
        is_data = is_data_descriptor(meta_found)
        if name in _OF_EVERY_CLASS and (meta_where is type or not is_data):
            return tx.from_real(getattr(cls, name))
        if name == "__class__" and meta_where is object:
            return tx.from_real(meta)
        if meta_where is type and isinstance(meta_found, SLOTS):
            return self._of_type(tx, name, meta_found)
        found, where = lookup_type(cls, name)
        if found is not MISSING and not is_data:
            return ConstVal(found) if isinstance(found, enum.Enum) else bind(tx, None, cls, name, found, where, self)
        if meta_found is not MISSING:
            return bind(tx, self, meta, name, meta_found, meta_where)
        return self._by_fallback(tx, name)

    def _by_fallback(self, tx: Tracer, name: str) -> Value:
        """What the metaclass's `__getattr__` gives."""
        fallback, _ = lookup_type(type(self.obj), "__getattr__")
        if isinstance(fallback, types.FunctionType):
            if issubclass(self.obj, enum.Enum) and name in self.obj.__members__:
                return ConstVal(getattr(self.obj, name))
            return tx.call(tx.from_real(fallback), [self, ConstVal(name)], {})
        guard_missing(tx, self.obj, name)
        self._lacks(tx, name)

    def _lacks(self, tx: Tracer, name: str) -> NoReturn:
        raise tx.raised(AttributeError, f"type object '{self.obj.__name__}' has no attribute '{name}'")

    def _of_type(self, tx: Tracer, name: str, found: object) -> Value:
        """What `type` keeps of every class: its dictionary, annotations, abstract methods."""
        if name == "__dict__":
            return tx.read_only(ClassNamespace.of(tx, self.obj))
        if isinstance(found, types.MemberDescriptorType):
            return tx.from_real(getattr(self.obj, name))  # its size in memory and the like, which nothing changes
        with raising(tx, AttributeError):
            real = getattr(self.obj, name)
        return tx.wrap(real, AttrSource(ConstSource(self.obj, self.obj.__qualname__), name))

    def setattr(self, tx: Tracer, name: str, value: Value) -> None:
        write_class(tx, self.obj, name, value)

    def delattr(self, tx: Tracer, name: str) -> None:
        write_class(tx, self.obj, name, None)

    def getitem(self, tx: Tracer, key: Value) -> Value:
        cls = self.obj
        if issubclass(cls, enum.Enum):
            return tx.fold(lambda kind, name: kind[name], [self, key])
        found, _ = lookup_type(type(cls), "__getitem__")
        if isinstance(found, types.FunctionType):
            return tx.call(tx.from_real(found), [self, key], {})
        if not _is_itself(key):
            self.unsupported("indexing with an object that is kept")
        return tx.fold(lambda kind, part: kind[part], [self, key])

    def iterate(self, tx: Tracer) -> Value:
        if issubclass(self.obj, enum.Enum):
            return tx.iterator([ConstVal(member) for member in self.obj], type(iter(())))
        found, where = lookup_type(type(self.obj), "__iter__")
        if where is None:
            raise tx.raised(TypeError, f"'{type(self.obj).__name__}' object is not iterable")
        return tx.call(bind(tx, self, type(self.obj), "__iter__", found, where), [], {})

    def own(self, tx: Tracer, name: str) -> Value | None:
        """Of the metaclass."""
        found, where = lookup_type(type(self.obj), name)
        if where is None or not isinstance(found, types.FunctionType) or issubclass(self.obj, enum.Enum):
            return None
        return bind(tx, self, type(self.obj), name, found, where)

    def call(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None) -> Value:
        return tx.construct(self, args, kwargs, direct)


class BuiltinVal(RealVal):
    """A function or method written in C."""

    def getattr(self, tx: Tracer, name: str) -> Value:
        with raising(tx, AttributeError):
            found = getattr(self.obj, name)
        if type(found) in (list, dict, set) or name in getattr(self.obj, "__dict__", ()):
            source = self.source if self.source is not None else ConstSource(self.obj, self.describe())
            return tx.wrap(found, AttrSource(source, name))
        return tx.from_real(found)

    def call(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None) -> Value:
        return tx.call_builtin(self.obj, args, kwargs, direct)


def super_attribute(tx: Tracer, value: SuperVal, name: str) -> Value:
    """`super(cls, obj).name`: the look-up starts after `cls` in the order of the object's class."""
    order = value.start.__mro__
    of_class = isinstance(value.obj, ClassVal) and value.start is value.obj.obj
    owner, cls = (None, value.obj) if of_class else (value.obj, tx.from_real(value.start))
    for base in order[order.index(value.cls) + 1 :]:
        if name in namespace_of(base):
            found = namespace_of(base)[name]
            if name == "__class__":
                break
            if isinstance(found, types.GetSetDescriptorType) and name == "__dict__":
                return value.obj.getattr(tx, "__dict__")
            return bind(tx, owner, base, name, found, base, cls)
    raise tx.raised(AttributeError, f"'super' object has no attribute '{name}'")


def payload_of(value: Value) -> Any:
    """The builtin part of an instance of a builtin's subclass, or the value itself."""
    return value if value.payload is None else value.payload


__all__ = ["MISSING", "bind", "class_value", "is_trusted", "lookup_type"]
