"""Models of `copy.copy` and `copy.deepcopy`.

In: a value. Out: its copy, with what `copy` shares shared: equal objects inside stay one object, atoms are themselves.
Objects are copied as `object.__reduce_ex__` describes them, or as their class does, in Python, by `__reduce_ex__`,
`__reduce__`, `__getstate__` and `__setstate__`; a class that describes itself in C ends the graph.
"""

from __future__ import annotations

import copy
import copyreg
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dynajit.guards.source import HEAP_TYPE
from dynajit.report import breaks
from dynajit.torch_compat import memory_of
from dynajit.values.containers.identity import object_key
from dynajit.values.containers.mapping import DictVal
from dynajit.values.containers.sequence import TupleVal
from dynajit.values.containers.sets import SetVal
from dynajit.values.core.registry import builtin
from dynajit.values.core.value import GraphBreak, Raised, Tracer, Value
from dynajit.values.objects.exceptions import ExceptionVal
from dynajit.values.objects.functions import FunctionVal, MethodVal
from dynajit.values.objects.lookup import in_python
from dynajit.values.objects.objects import BuiltinVal, ClassVal, ObjVal, RealVal, lookup_type
from dynajit.values.objects.subclasses import is_immutable
from dynajit.values.polyfills.attributes import restore_state
from dynajit.values.scalars.constant import ConstVal, is_none
from dynajit.values.scalars.symbolic import SymVal
from dynajit.values.tensors.tensor import TensorVal

_ATOMS = (ConstVal, SymVal, FunctionVal, ClassVal, BuiltinVal)
_OWN_PROTOCOL = ("__reduce_ex__", "__reduce__", "__getstate__")
_PROTOCOL = 4  # what `copy` asks `__reduce_ex__` for
_OWN_FILLING = ("__setitem__", "append", "extend", "__new__", "__getnewargs__", "__getnewargs_ex__", "__setattr__")


class Memo(DictVal):
    """The `memo` that `__deepcopy__` gets; what was copied is found by the model."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: dict[object, Value] = {}
        self.tensors: list[TensorVal] = []


@builtin(copy.copy)
def shallow_copy(tx: Tracer, x: Value) -> Value:
    if isinstance(x, (*_ATOMS, RealVal)) or x.py_type() in (tuple, frozenset):
        return x
    if isinstance(x, ObjVal):
        own = x.special(tx, "__copy__")
        return tx.call(own, [], {}) if own is not None else _copy_object(tx, x, _itself, _itself)
    return x.copied(tx, _itself, _itself)


def _itself(value: Value) -> Value:
    return value


@builtin(copy.deepcopy)
def deep_copy(tx: Tracer, x: Value, memo: Value | None = None) -> Value:
    if not is_none(memo) and not isinstance(memo, Memo):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "copy.deepcopy with a memo of the program's own")
    return _deep(tx, x, memo if isinstance(memo, Memo) else Memo())


def _deep(tx: Tracer, value: Value, memo: Memo) -> Value:
    if isinstance(value, _ATOMS) or (isinstance(value, RealVal) and type(value.obj).__module__ == "typing"):
        return value
    place = object_key(tx, value)
    if place not in memo.copies:
        memo.copies[place] = _deep_made(tx, value, memo, lambda made: memo.copies.setdefault(place, made))
    return memo.copies[place]


def _deep_made(tx: Tracer, value: Value, memo: Memo, remember: Callable[[Value], Value]) -> Value:
    def part(inner: Value) -> Value:
        return _deep(tx, inner, memo)

    if isinstance(value, TensorVal):
        return _copy_tensor(tx, value, memo)
    if isinstance(value, MethodVal) and isinstance(value.function, FunctionVal):
        return MethodVal(part(value.owner), value.function)
    if isinstance(value, ObjVal):
        own = value.special(tx, "__deepcopy__")
        return tx.call(own, [memo], {}) if own is not None else _copy_object(tx, value, part, remember)
    return value.copied(tx, part, remember)


def _copy_tensor(tx: Tracer, value: TensorVal, memo: Memo) -> Value:
    """A clone, where that is what `Tensor.__deepcopy__` makes: a dense leaf without gradient, its memory its own."""
    fake = value.fake
    if value.kind is not torch.Tensor or not owns_memory(fake) or fake.requires_grad or value.attrs:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"copy.deepcopy of {value.describe()}")
    for other in memo.tensors:
        # two tensors in one memory would be two copies in one memory
        if memory_of(other.fake) == memory_of(fake) or (other.source is not None and value.source is not None):
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, "copy.deepcopy of tensors that may share memory")
    if value.source is not None:
        if not _is_bare(value.real_tensor):
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"copy.deepcopy of {value.describe()} with attributes")
        tx.guard(value.source, "PREDICATE", _is_bare, "has its memory to itself, densely, and no gradient or attribute")
    memo.tensors.append(value)
    return tx.torch_op("call_method", "clone", [value], {})


def _is_bare(tensor: Any) -> bool:
    """Whether nothing but its data is copied: a tensor that requires no gradient may have been given one."""
    return owns_memory(tensor) and tensor.grad is None and not tensor.__dict__


def owns_memory(tensor: torch.Tensor) -> bool:
    """Whether the tensor is its storage, in order; sparse ones and those of torch.func's levels have none."""
    if memory_of(tensor) is None or not tensor.is_contiguous() or tensor.storage_offset() != 0:
        return False
    return bool(tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size())


def _copy_object(
    tx: Tracer, value: ObjVal, part: Callable[[Value], Value], remember: Callable[[Value], Value]
) -> Value:
    """By what the class says of itself, or by `copyreg.__newobj__`, the instance's dictionary and slots, and a
    container's contents."""
    kind = value.cls
    if isinstance(value, ExceptionVal) or not kind.__flags__ & HEAP_TYPE or kind in copyreg.dispatch_table:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"copying {value.describe()}")
    for name, args in (("__reduce_ex__", [ConstVal(_PROTOCOL)]), ("__reduce__", [])):
        if in_python(kind, name):
            return _reconstruct(tx, value, tx.call(value.getattr(tx, name), args, {}), part, remember)
        if lookup_type(kind, name)[1] is not object:
            break
    by_state = _has_own_state(kind)
    _check_protocol(kind, value, by_state)
    payload = value.payload if value.payload is not None and is_immutable(kind) else None
    if _makes_itself(kind) or (by_state and payload is not value.payload):
        of_kind = tx.from_real(kind)
        made = tx.call(of_kind.getattr(tx, "__new__"), [of_kind], {})
        if not isinstance(made, ObjVal) or made.cls is not kind:
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"copying {value.describe()}, which has __new__")
    else:
        made = ObjVal(kind, payload=None if payload is None else part(payload))
    remember(made)
    if by_state:
        _restore(tx, made, tx.call(value.getattr(tx, "__getstate__"), [], {}), part)
    else:
        if value.cls.__dictoffset__ != 0:
            for key, item in value.instance_dict(tx).items(tx):
                made.instance_dict(tx).setitem(tx, key, part(item))
        for name, found in _filled_slots(tx, value):
            made.setattr(tx, name, part(found))
    if value.payload is not None and payload is None:
        made.payload = value.payload.copied(tx, part, _itself)
    return made


def _reconstruct(
    tx: Tracer, value: ObjVal, found: Value, part: Callable[[Value], Value], remember: Callable[[Value], Value]
) -> Value:
    """What `copy._reconstruct` makes of what `__reduce_ex__` gave."""
    if found.py_type() is str:
        return value
    given = tx.unpack(found) if found.py_type() is tuple else []
    if len(given) not in (2, 3):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"copying {value.describe()} by {found.describe()}")
    made = tx.call(given[0], [part(arg) for arg in tx.unpack(given[1])], {})
    remember(made)
    _restore(tx, made, given[2] if len(given) == 3 else ConstVal(None), part)
    return made


def _restore(tx: Tracer, made: Value, state: Value, part: Callable[[Value], Value]) -> None:
    if not is_none(state):
        tx.run_python(restore_state, [made, part(state)])


@builtin(object.__getstate__)
def default_state(tx: Tracer, self: Value) -> Value:
    """The instance's dictionary, or None where it is empty, and with it the slots that are filled."""
    if not isinstance(self, ObjVal):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"object.__getstate__ of {self.describe()}")
    state: Value = ConstVal(None)
    if self.cls.__dictoffset__ != 0 and self.instance_dict(tx).truth(tx):
        state = self.getattr(tx, "__dict__")
    slots = DictVal()
    for name, found in _filled_slots(tx, self):
        slots.setitem(tx, ConstVal(name), found)
    return TupleVal([state, slots]) if slots.truth(tx) else state


def _makes_itself(kind: type) -> bool:
    """Whether the class has a `__new__` in Python."""
    return isinstance(lookup_type(kind, "__new__")[0], staticmethod)


def _has_own_state(kind: type) -> bool:
    """Whether the class says in Python what its state is, or how it is put back: `copy` asks for `__setstate__` as for
    any attribute."""
    return any(in_python(kind, name) for name in ("__getstate__", "__setstate__", "__getattr__", "__getattribute__"))


def _check_protocol(kind: type, value: ObjVal, by_state: bool) -> None:
    """The class must not say in C how it is copied, nor in Python how it is made and filled."""
    own = _protocol_in_c(kind, value, by_state)
    if value.payload is not None or (_slot_names(kind) and not by_state):
        own.extend(name for name in _OWN_FILLING if in_python(kind, name))
    if _makes_itself(kind):
        told = "__new__", "__getnewargs__", "__getnewargs_ex__"
        own.extend(name for name in told if value.payload is not None or in_python(kind, name))
    if own:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"copying {value.describe()}, which has {own[0]}")


def _protocol_in_c(kind: type, value: ObjVal, by_state: bool) -> list[str]:
    """The methods of the protocol that are not followed here."""
    own = [name for name in _OWN_PROTOCOL if lookup_type(kind, name)[1] not in (object, None)]
    reduces = lookup_type(kind, "__reduce__")[1]
    same = isinstance(value.payload, SetVal) and reduces in (set, frozenset)
    if same or (reduces is types.SimpleNamespace and not by_state and not in_python(kind, "__init__")):
        own.remove("__reduce__")  # what it gives makes the same copy
    if lookup_type(kind, "__setstate__")[1] is not None:
        own.append("__setstate__")
    if isinstance(value.payload, DictVal) and reduces is not object:
        own.append("__reduce__")
    return [name for name in own if not (by_state and in_python(kind, name))]


def _filled_slots(tx: Tracer, value: ObjVal) -> Iterator[tuple[str, Value]]:
    for name in _slot_names(value.cls):
        try:
            found = value.getattr(tx, name)
        except Raised:  # it is empty
            continue
        yield name, found


def _slot_names(kind: type) -> list[str]:
    found: list[str] = []
    for base in kind.__mro__:
        slots: Any = base.__dict__.get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                mangled = name.startswith("__") and not name.endswith("__")
                found.append(f"_{base.__name__.lstrip('_')}{name}" if mangled else name)
    return found
