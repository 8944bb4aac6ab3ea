"""Attribute look-up in classes, and what a found attribute gives when it is bound: the descriptor protocol.

In: a class and a name. Out: the attribute's model, guarded. The order is that of the language reference, section
"Invoking Descriptors". Instances' own attributes are in `objects.py`.
"""

from __future__ import annotations

import abc
import builtins
import functools
import os
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy
import torch

from dynajit import _C
from dynajit.bytecode.return_action import READ
from dynajit.guards.assumed import ABSENT, attribute_of, current
from dynajit.guards.source import HEAP_TYPE, IMMUTABLE_TYPE, AttrSource, ConstSource, Source, TypeAttrSource
from dynajit.report import breaks
from dynajit.values.containers.sequence import NAMED_ITEM
from dynajit.values.core.bound_methods import BoundBuiltin
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.objects.functions import FunctionVal, MethodVal
from dynajit.values.scalars.constant import ConstVal, is_literal
from dynajit.values.scalars.symbolic import COUNTERS

if TYPE_CHECKING:
    from dynajit.guards.assumed import Assumptions

MISSING = ABSENT
# what a class written in C, or one with `__slots__`, has for an attribute that is in the instance itself
SLOTS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_PACKAGES = frozenset({"torch", "numpy"})
_TRUSTED_ROOTS = _PACKAGES | sys.stdlib_module_names
# what Cython makes of functions and methods
CYTHON_FUNCTION: type = type(numpy.random.Generator.normal)
#: what pybind11 makes of a C++ method
_INSTANCE_METHOD = type(torch._C.Graph.__dict__["str"])
#: what torch's modules do, whatever a program has put in their place since
MODULE_GETATTR, MODULE_SETATTR, MODULE_CALL_IMPL = (
    vars(torch.nn.Module)[name] for name in ("__getattr__", "__setattr__", "_call_impl")
)
_C_DESCRIPTORS = (types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType)


def is_trusted(name: str | None) -> bool:
    """Whether the module's attributes are taken not to change: Python's own library and torch."""
    if name is None or name == "__main__":
        return False
    root = name.partition(".")[0]
    return root in _TRUSTED_ROOTS and not _is_hidden(root)


def _is_hidden(root: str) -> bool:
    """Whether a file of the program's has the name of a module of Python's own library, and is what is imported."""
    found = _hidden.get(root)
    if found is None:
        file = getattr(sys.modules.get(root), "__file__", None)
        if file is None:
            return False
        of_python = file.startswith(_LIBRARY) and "-packages" not in file.removeprefix(_LIBRARY)
        is_ours = root in _PACKAGES or not file.endswith(".py") or of_python
        found = _hidden[root] = not is_ours
    return found


_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")
_hidden: dict[str, bool] = {}


def of_library(kind: type) -> bool:
    """Whether nobody is taken to change the class. One that code made in a bare namespace only says that it is one of
    `builtins`."""
    is_made = (
        kind.__module__ == "builtins" and kind.__flags__ & HEAP_TYPE and vars(builtins).get(kind.__name__) is not kind
    )
    return not is_made and is_trusted(kind.__module__)


#: a class's own namespace, whatever its metaclass calls `__dict__`
namespace_of: Callable[[type], Mapping[str, Any]] = type.__dict__["__dict__"].__get__  # type: ignore[attr-defined]


def lookup_type(kind: type, name: str) -> tuple[Any, Any]:
    """(attribute as it is in the class that has it, that class) by the method resolution order; or (MISSING, None)."""
    order: tuple[type, ...] | None = kind.__mro__
    if order is None:
        raise GraphBreak(breaks.UNSUPPORTED_ATTRIBUTE, f"{name!r} of a class that is being made")
    found: tuple[Any, Any] = MISSING, None
    for base in order:
        names = namespace_of(base)
        known = _plain_names.get(id(base))
        if (known is None or known() is not base) and _check_names(base, names):
            raise GraphBreak(breaks.UNSUPPORTED_ATTRIBUTE, f"{base.__qualname__}, whose names are no strings")
        if name in names:
            found = names[name], base
            break
    assumed = current()
    if assumed is not None and (id(kind), name) not in assumed.looked_up:
        assumed.looked_up.add((id(kind), name))
        _assume(assumed, order, name, found[1])
    return found


def _assume(assumed: Assumptions, order: tuple[type, ...], name: str, where: type | None) -> None:
    """Note what classes of libraries were found to have of that name, up to the one that has it. Of the program's
    classes guards are made, where it matters, and so they are of what counts or can be written to."""
    for base in order:
        if lasts(base):
            found = attribute_of(base, name)
            if found is MISSING or hasattr(type(found), "__get__") or _stands(name, found):
                assumed.of_attribute(base, name, found)
        if base is where:
            return


def _stands(name: str, found: Any) -> bool:
    """Whether what a library's class has is a part of what it does, and no state: no number, as
    `RemovableHandle.next_id`."""
    counts = type(found) is int and not name.startswith("__")
    return isinstance(found, (type, types.BuiltinFunctionType, *_C_DESCRIPTORS)) or (is_literal(found) and not counts)


def lasts(kind: type) -> bool:
    """Whether it is a class of a library that can be given other attributes, and lives as long as its module."""
    known = _lasting.get(id(kind))
    if known is None or known[0]() is not kind:
        mutable = kind.__flags__ & HEAP_TYPE and not kind.__flags__ & IMMUTABLE_TYPE
        known = _lasting[id(kind)] = weakref.ref(kind), bool(mutable and of_library(kind) and _is_in_module(kind))
    return known[1]


def _is_in_module(kind: type) -> bool:
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found is kind


_lasting: dict[int, tuple[weakref.ref[type], bool]] = {}


def in_python(kind: type, name: str) -> bool:
    """Whether what the class has of that name is a function written in Python."""
    return isinstance(lookup_type(kind, name)[0], types.FunctionType)


def is_iterable(kind: type) -> bool:
    """Whether instances may be gone through, as their class says: a metaclass's `__iter__` is not theirs."""
    return any(lookup_type(kind, name)[1] is not None for name in ("__iter__", "__getitem__"))


def has_odd_names(names: Mapping[Any, Any]) -> bool:
    """Whether looking a name up may run code of the program's: the `__eq__` of a key that is no string."""
    return not all(type(name) is str for name in names)


def _check_names(kind: type, names: Mapping[Any, Any]) -> bool:
    """As `has_odd_names`, of a class, which gets no other ones once it is made."""
    odd = has_odd_names(names)
    if not odd:
        _plain_names[id(kind)] = weakref.ref(kind)
    return odd


# by id, since a metaclass may have an `__eq__`; an id that another class got later does not count
_plain_names: dict[int, weakref.ref[type]] = {}


def hides_dict(kind: type) -> bool:
    """Whether `__dict__` of an instance is something else than the dictionary of its attributes."""
    found, _ = lookup_type(kind, "__dict__")
    return found is not MISSING and not isinstance(found, SLOTS)


def is_data_descriptor(found: Any) -> bool:
    """Whether what was found in a class comes before an instance's own attributes."""
    kind = type(found)
    return hasattr(kind, "__set__") or hasattr(kind, "__delete__")


def comes_first(tx: Tracer, found: Any) -> bool:
    """The same, relied on: the class of a descriptor of the program's may be given such a method, or lose it."""
    kind = type(found)
    for name in ("__set__", "__delete__") if hasattr(kind, "__get__") and not of_library(kind) else ():
        there, where = lookup_type(kind, name)
        if where is None:
            guard_missing(tx, kind, name)
        else:
            tx.guard(type_source(kind, name), "ID", there)
    return is_data_descriptor(found)


def type_source(kind: type, name: str) -> Source:
    """How the guards reach an attribute found in the class, or in a base of it."""
    return TypeAttrSource(ConstSource(kind, kind.__qualname__), name)


def class_value(tx: Tracer, kind: type, owner: type, name: str, found: Any) -> Value:
    """The model of an attribute found in a class, guarded unless that belongs to a trusted module."""
    source = type_source(kind, name)
    if of_library(owner):
        tx.assumed.of_class(kind)
        if not of_library(kind):
            tx.guard(source, "ID", found)  # the class may be given one of its own
        if isinstance(found, types.FunctionType) and is_trusted(found.__globals__.get("__name__")):
            return FunctionVal.outside(tx, found, ConstSource(found, found.__qualname__))
        if _stands(name, found):
            return tx.from_real(found)
    if source in COUNTERS:
        tx.seen.expect(source)
    return tx.wrap(found, source)


def guard_missing(tx: Tracer, kind: type, name: str) -> None:
    """Rely on a class having no such attribute, unless nobody is taken to change the class."""
    if of_library(kind):
        tx.assumed.of_class(kind)
    else:
        tx.guard(ConstSource(kind, kind.__qualname__), "HAS_NO_TYPE_ATTR", name)


def rely_on(tx: Tracer, kind: type, name: str) -> Any:
    """What the class has of that name, if that is no function of the program's: it is guarded to stay so, unless nobody
    is taken to change the class."""
    found, where = lookup_type(kind, name)
    if where is None or of_library(kind):
        guard_missing(tx, kind, name)
    elif not isinstance(found, types.FunctionType):
        tx.guard(type_source(kind, name), "ID", found)
    return found


def rely_on_check(tx: Tracer, cls: Any, name: str) -> None:
    """Rely on a class being asked by this method of its metaclass, unless nobody is taken to change that."""
    meta: type = type(cls)
    if not of_library(meta):
        tx.guard(type_source(meta, name), "ID", lookup_type(meta, name)[0])


def rely_on_answer(tx: Tracer, kind: type, cls: Any, name: str) -> bool:
    """Whether the one class is a subclass of the other, by the method of this name of the latter's metaclass: guarded
    where that may come to say something else, as of an abstract class that more are registered with."""
    answer = issubclass(kind, cls)
    rely_on_check(tx, cls, name)
    is_open = isinstance(cls, abc.ABCMeta) and cls not in kind.__mro__ and not of_library(cls)
    if is_open and id(kind) not in tx.made_classes:
        said = functools.partial(_says, kind, answer)
        words = f"{kind.__qualname__} is {'' if answer else 'no '}subclass of it"
        tx.guard(ConstSource(cls, cls.__qualname__), "PREDICATE", said, words)
    return answer


def _says(kind: type, answer: bool, cls: type) -> bool:
    return issubclass(kind, cls) is answer


def bind(
    tx: Tracer,
    owner: Value | None,
    kind: type,
    name: str,
    found: Any,
    where: type,
    cls: Value | None = None,
    source: Source | None = None,
) -> Value:
    """What `obj.name` gives for an attribute found in the class, by the descriptor protocol.

    Args:
        tx: the interpreter.
        owner: the object; None when the attribute is read from the class itself.
        kind: the class that was asked.
        name: the attribute's name.
        found: the attribute as it is in the class that has it.
        where: that class.
        cls: the model of what class methods are bound to, if it is not that of `kind`.
        source: how the guards reach `found`, if not by its name.
    """
    cls = cls if cls is not None else tx.from_real(kind)
    source = source if source is not None else type_source(kind, name)
    tx.assumed.of_class(kind)
    if isinstance(found, types.FunctionType):
        return _method(owner, class_value(tx, kind, where, name, found))
    if isinstance(found, classmethod):
        return _bind_classmethod(tx, cls, kind, name, found, source)
    if isinstance(found, staticmethod):
        return tx.wrap(found.__func__, AttrSource(source, "__func__"))
    if isinstance(found, _C_DESCRIPTORS):
        return _bind_method_of_c(tx, owner, kind, name, found, cls, source)
    if isinstance(found, (functools._lru_cache_wrapper, _C.CompiledFunction, CYTHON_FUNCTION)):
        return _method(owner, tx.wrap(found, source))
    if isinstance(found, _INSTANCE_METHOD):
        return _method(owner, tx.wrap(found.__func__, AttrSource(source, "__func__")))
    if isinstance(found, property):
        return _bind_property(tx, owner, name, found, source)
    if owner is not None:
        if isinstance(found, functools.cached_property):
            return _bind_cached_property(tx, owner, found, source)
        if isinstance(found, NAMED_ITEM):
            return _item_of(tx, owner, found, source)
        if isinstance(found, SLOTS):
            raise GraphBreak(breaks.UNSUPPORTED_ATTRIBUTE, f"{name!r} of {owner.describe()}")
    return _bind_by_get(tx, owner, kind, name, found, where, cls, source)


def _method(owner: Value | None, function: Value) -> Value:
    """A function as an attribute of the object; None: of the class."""
    return function if owner is None else MethodVal(owner, function)


def _bind_method_of_c(
    tx: Tracer, owner: Value | None, kind: type, name: str, found: Any, cls: Value, source: Source
) -> Value:
    if not of_library(kind):
        tx.guard(source, "ID", found)  # another may be put there, or a base's be hidden
    if isinstance(found, types.ClassMethodDescriptorType):
        return BoundBuiltin(cls, name, tx.from_real(found))
    if owner is not None and not issubclass(kind, found.__objclass__):
        raise GraphBreak(breaks.UNSUPPORTED_ATTRIBUTE, f"{name!r} of another class, {found.__objclass__.__name__}")
    return tx.from_real(found) if owner is None else BoundBuiltin(owner, name, tx.from_real(found))


def _bind_by_get(
    tx: Tracer, owner: Value | None, kind: type, name: str, found: Any, where: type, cls: Value, source: Source
) -> Value:
    """By the `__get__` of what was found, or what has none as it is."""
    getter, getter_class = lookup_type(type(found), "__get__")
    if isinstance(getter, types.FunctionType):
        descriptor = tx.wrap(found, source)
        function = class_value(tx, type(found), getter_class, "__get__", getter)
        return tx.call(function, [descriptor, owner if owner is not None else ConstVal(None), cls], {}, READ)
    if getter is not MISSING and not isinstance(
        found,
        (type, types.BuiltinFunctionType, types.MethodType, *SLOTS),
    ):
        raise GraphBreak(breaks.UNSUPPORTED_ATTRIBUTE, f"{name!r}, a {type(found).__name__} of {kind.__name__}")
    return class_value(tx, kind, where, name, found)


@functools.cache
def _class_methods_chain() -> bool:
    """Whether this Python has a class method bind what it wraps by that object's own `__get__` (3.9 to 3.12)."""
    probe: Any = type("Probe", (), {"name": classmethod(property(lambda cls: cls))})  # type: ignore[arg-type]
    return probe.name is probe


def _bind_classmethod(tx: Tracer, cls: Value, kind: type, name: str, found: Any, source: Source) -> Value:
    inner, inner_source = found.__func__, AttrSource(source, "__func__")
    if isinstance(inner, types.FunctionType) or not (_class_methods_chain() and hasattr(type(inner), "__get__")):
        return MethodVal(cls, tx.wrap(inner, inner_source))
    return bind(tx, cls, kind, name, inner, kind, cls, inner_source)


def _bind_property(tx: Tracer, owner: Value | None, name: str, found: property, source: Source) -> Value:
    if owner is None:
        tx.guard(source, "ID", found)
        return tx.from_real(found)
    if found.fget is None:
        raise tx.raised(AttributeError, f"property {name!r} of {owner.py_type().__name__!r} object has no getter")
    return tx.call(tx.wrap(found.fget, AttrSource(source, "fget")), [owner], {}, READ)


def _item_of(tx: Tracer, owner: Value, found: Any, source: Source) -> Value:
    """The item of a tuple that a named tuple's class has a name for."""
    tx.guard(source, "ID", found)
    items: Any = owner.payload
    index = found.__reduce__()[1][0]
    if not hasattr(items, "item") or not 0 <= index < len(items.items):
        raise GraphBreak(breaks.UNSUPPORTED_ATTRIBUTE, f"an item of {owner.describe()} by name")
    return items.item(tx, index)  # type: ignore[no-any-return]


def _bind_cached_property(tx: Tracer, owner: Value, found: Any, source: Source) -> Value:
    if not hasattr(owner, "instance_dict"):
        raise GraphBreak(breaks.UNSUPPORTED_ATTRIBUTE, f"a cached property of {owner.describe()}")
    value = tx.call(tx.wrap(found.func, AttrSource(source, "func")), [owner], {})
    instance_dict: Any = owner.instance_dict  # type: ignore[attr-defined]
    instance_dict(tx).setitem(tx, ConstVal(found.attrname), value)
    return value
