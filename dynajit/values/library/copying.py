"""Models of `copy.copy` and `copy.deepcopy`.

In: a value. Out: its copy, with what `copy` shares shared: equal objects inside stay one object, atoms are themselves.
Objects are copied as `object.__reduce_ex__` describes them; a class that describes itself otherwise ends the graph.
"""

from __future__ import annotations

import collections
import copy
import copyreg
import types
from collections.abc import Callable
from typing import Any

import torch

from dynajit.guards.source import InstanceAttrSource
from dynajit.report import breaks
from dynajit.values.containers.deque import DequeVal
from dynajit.values.containers.identity import object_key
from dynajit.values.containers.mapping import DictVal
from dynajit.values.containers.ordered_dict import OrderedDictVal
from dynajit.values.containers.sequence import ListVal, TupleVal
from dynajit.values.containers.sets import SetVal
from dynajit.values.core.bound_methods import BoundBuiltin
from dynajit.values.core.registry import builtin
from dynajit.values.core.value import GraphBreak, Raised, Tracer, Value
from dynajit.values.objects.exceptions import ExceptionVal
from dynajit.values.objects.functions import FunctionVal, MethodVal
from dynajit.values.objects.objects import BuiltinVal, ClassVal, ObjVal, RealVal, lookup_type
from dynajit.values.objects.subclasses import is_immutable
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.scalars.symbolic import SymVal
from dynajit.values.tensors.tensor import TensorVal

_ATOMS = (ConstVal, SymVal, FunctionVal, ClassVal, BuiltinVal)
_OWN_PROTOCOL = ("__reduce_ex__", "__reduce__", "__getstate__")
_OWN_FILLING = ("__setitem__", "append", "extend", "__new__", "__getnewargs__", "__getnewargs_ex__", "__setattr__")


class Memo(DictVal):
    """The `memo` that `__deepcopy__` gets; what was copied is found by the model."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: dict[object, Value] = {}
        self.tensors: list[TensorVal] = []


@builtin(copy.copy)
def shallow_copy(tx: Tracer, x: Value) -> Value:
    if isinstance(x, (*_ATOMS, RealVal)) or (isinstance(x, TupleVal) and x.kind is tuple):
        return x
    if isinstance(x, TupleVal):
        _check_fields(x)
        return TupleVal(x.values(tx), x.kind)
    if isinstance(x, OrderedDictVal):
        return _copy_ordered(tx, x, OrderedDictVal(), lambda part: part)
    _rely_on_no_attributes(tx, x)
    if isinstance(x, (ListVal, DictVal, SetVal, DequeVal)):
        if isinstance(x, SetVal) and x.kind is frozenset:
            return x
        return x.call_method(tx, "copy", [], {})
    if isinstance(x, ObjVal):
        own = x.special(tx, "__copy__")
        return tx.call(own, [], {}) if own is not None else _copy_object(tx, x, None)
    raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"copy.copy of {x.describe()}")


@builtin(copy.deepcopy)
def deep_copy(tx: Tracer, x: Value, memo: Value | None = None) -> Value:
    if memo is not None and not isinstance(memo, Memo) and not (isinstance(memo, ConstVal) and memo.value is None):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "copy.deepcopy with a memo of the program's own")
    return _deep(tx, x, memo if isinstance(memo, Memo) else Memo())


def _deep(tx: Tracer, value: Value, memo: Memo) -> Value:
    if isinstance(value, _ATOMS):
        return value
    known = memo.copies.get(object_key(tx, value))
    if known is not None:
        return known
    made = _deep_made(tx, value, memo)
    memo.copies[object_key(tx, value)] = made
    return made


def _rely_on_no_attributes(tx: Tracer, value: Value) -> None:
    """An OrderedDict from outside that has no attributes now may have some another time, and they are copied."""
    if isinstance(value, DictVal) and value.kind is collections.OrderedDict and value.source is not None:
        tx.guard(InstanceAttrSource(value.source, "__dict__"), "LEN", 0)


def _copy_ordered(
    tx: Tracer, value: OrderedDictVal, made: OrderedDictVal, part: Callable[[Value], Value]
) -> OrderedDictVal:
    """Fill a copy, its attributes first, as `copy` does it."""
    attributes = [(name, part(item)) for name, item in value.attributes.items(tx)]
    for name, item in attributes:
        made.attributes.setitem(tx, name, item)
    for key, item in value.items(tx):
        made.setitem(tx, part(key), part(item))
    return made


def _deep_made(tx: Tracer, value: Value, memo: Memo) -> Value:
    if isinstance(value, TensorVal):
        return _copy_tensor(tx, value, memo)
    if isinstance(value, ListVal):
        made = ListVal([])
        memo.copies[object_key(tx, value)] = made
        made.items.extend(_deep(tx, item, memo) for item in value.values(tx))
        return made
    if isinstance(value, TupleVal):
        return _copy_tuple(tx, value, memo)
    if isinstance(value, DictVal):
        if isinstance(value, OrderedDictVal):
            ordered = OrderedDictVal()
            memo.copies[object_key(tx, value)] = ordered
            return _copy_ordered(tx, value, ordered, lambda part: _deep(tx, part, memo))
        _rely_on_no_attributes(tx, value)
        mapping = DictVal(value.kind)
        memo.copies[object_key(tx, value)] = mapping
        for key, item in value.items(tx):
            mapping.setitem(tx, _deep(tx, key, memo), _deep(tx, item, memo))
        return mapping
    if isinstance(value, SetVal):
        return SetVal.of(tx, [_deep(tx, member, memo) for member in value.entries.values()], value.kind)
    if isinstance(value, MethodVal) and isinstance(value.function, FunctionVal):
        return MethodVal(_deep(tx, value.owner, memo), value.function)
    if isinstance(value, ObjVal):
        own = value.special(tx, "__deepcopy__")
        return tx.call(own, [memo], {}) if own is not None else _copy_object(tx, value, memo)
    if isinstance(value, RealVal) and not isinstance(value, BoundBuiltin) and type(value.obj).__module__ == "typing":
        return value
    raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"copy.deepcopy of {value.describe()}")


def _check_fields(value: TupleVal) -> None:
    kind: Any = value.kind
    if getattr(kind, "n_fields", 0) > getattr(kind, "n_sequence_fields", 0):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"a copy of a {kind.__name__}, which has fields that are no items")


def _copy_tuple(tx: Tracer, value: TupleVal, memo: Memo) -> Value:
    _check_fields(value)
    old = value.values(tx)
    new = [_deep(tx, item, memo) for item in old]
    known = memo.copies.get(object_key(tx, value))  # a tuple may contain itself by way of a list
    if known is not None:
        return known
    if value.kind is tuple and all(left is right for left, right in zip(old, new, strict=True)):
        return value
    return TupleVal(new, value.kind)


def _copy_tensor(tx: Tracer, value: TensorVal, memo: Memo) -> Value:
    """A clone, where that is what `Tensor.__deepcopy__` makes: a dense leaf without gradient, its memory its own."""
    fake = value.fake
    if value.kind is not torch.Tensor or not owns_memory(fake) or fake.requires_grad or value.attrs:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"copy.deepcopy of {value.describe()}")
    for other in memo.tensors:
        # two tensors in one memory would be two copies in one memory
        same = other.fake.untyped_storage()._cdata == fake.untyped_storage()._cdata
        if same or (other.source is not None and value.source is not None):
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, "copy.deepcopy of tensors that may share memory")
    if value.source is not None:
        tx.guard(value.source, "PREDICATE", owns_memory, "has all of its memory to itself, densely")
    memo.tensors.append(value)
    return tx.torch_op("call_method", "clone", [value], {})


def owns_memory(tensor: torch.Tensor) -> bool:
    """Whether the tensor is its storage, in order."""
    if not tensor.is_contiguous() or tensor.storage_offset() != 0:
        return False
    return bool(tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size())


def _copy_object(tx: Tracer, value: ObjVal, memo: Memo | None) -> Value:
    """By `copyreg.__newobj__`, the instance's dictionary and slots, and a container's contents."""
    kind = value.cls
    if isinstance(value, ExceptionVal) or not kind.__flags__ & (1 << 9) or kind in copyreg.dispatch_table:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"copying {value.describe()}")
    _check_protocol(kind, value)
    part = (lambda inner: inner) if memo is None else (lambda inner: _deep(tx, inner, memo))
    payload = value.payload if value.payload is not None and is_immutable(kind) else None
    made = ObjVal(kind, payload=None if payload is None else part(payload))
    if memo is not None:
        memo.copies[object_key(tx, value)] = made
    if value.cls.__dictoffset__ != 0:
        for key, item in value.instance_dict(tx).items(tx):
            made.instance_dict(tx).setitem(tx, key, part(item))
    for name in _slot_names(kind):
        try:
            found = value.getattr(tx, name)
        except Raised:  # the slot is empty
            continue
        made.setattr(tx, name, part(found))
    if isinstance(value.payload, DictVal):
        made.payload = DictVal(value.payload.kind)
        for key, item in value.payload.items(tx):
            made.payload.setitem(tx, part(key), part(item))
    elif isinstance(value.payload, ListVal):
        made.payload = ListVal([part(item) for item in value.payload.values(tx)])
    elif isinstance(value.payload, SetVal) and value.payload.kind is set:
        made.payload = SetVal.of(tx, [part(member) for member in value.payload.entries.values()])
    return made


def _check_protocol(kind: type, value: ObjVal) -> None:
    """The class must not say itself how it is copied."""
    own = [name for name in _OWN_PROTOCOL if lookup_type(kind, name)[1] not in (object, None)]
    if isinstance(value.payload, SetVal) and lookup_type(kind, "__reduce__")[1] in (set, frozenset):
        own = [name for name in own if name != "__reduce__"]
    if lookup_type(kind, "__setstate__")[1] is not None:
        own.append("__setstate__")
    if value.payload is not None or _slot_names(kind):
        own.extend(name for name in _OWN_FILLING if isinstance(lookup_type(kind, name)[0], (types.FunctionType)))
    if isinstance(lookup_type(kind, "__new__")[0], staticmethod) and value.payload is not None:
        own.append("__new__")
    if isinstance(value.payload, DictVal) and lookup_type(kind, "__reduce__")[1] is not object:
        own.append("__reduce__")
    if own:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"copying {value.describe()}, which has {own[0]}")


def _slot_names(kind: type) -> list[str]:
    found: list[str] = []
    for base in kind.__mro__:
        slots: Any = base.__dict__.get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                mangled = name.startswith("__") and not name.endswith("__")
                found.append(f"_{base.__name__.lstrip('_')}{name}" if mangled else name)
    return found
