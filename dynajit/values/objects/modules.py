"""Python's modules, and immutable objects of its library, while tracing.

In: the real objects. Out: `ModuleVal`, whose attributes are guarded unless the module is trusted, and `LibraryVal`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynajit.guards.source import AttrSource, ConstSource, Source
from dynajit.report import breaks
from dynajit.values.containers.mapping import OverlaidDict
from dynajit.values.core.registry import BUILTINS
from dynajit.values.core.slots import AsksClass, ending_graph
from dynajit.values.core.value import Direct, GraphBreak, Tracer, Value
from dynajit.values.objects.functions import FunctionVal
from dynajit.values.objects.lookup import bind, guard_missing, in_python, is_data_descriptor, lookup_type
from dynajit.values.objects.objects import RealVal, is_trusted
from dynajit.values.scalars.constant import ConstVal

# attributes that hold objects of the program's; if these are containers, they may change
_HELD = frozenset({"default", "annotation", "return_annotation", "default_factory", "type"})


class LibraryVal(AsksClass, RealVal):
    """An immutable object of a library's, such as a signature or torch's version: attributes are read, methods run.

    `subject`, of what a pattern was found in: the text, where it is no plain one.
    """

    subject: Value | None = None

    def getattr(self, tx: Tracer, name: str) -> Value:
        if name == "string" and self.subject is not None:
            return self.subject
        try:
            found = getattr(self.obj, name)
            if name in _HELD and type(found) in (list, dict, set, tuple):
                return tx.wrap(found, ConstSource(found, f"{name} of {self.describe()}"))
            return tx.from_real(found)
        except AttributeError as error:
            raise tx.raised(AttributeError, *error.args) from None
        except Exception as error:  # code of the program's that stands behind the attribute
            raise GraphBreak(breaks.RAISES, f"reading {name} raises {type(error).__name__}") from None

    def getitem(self, tx: Tracer, key: Value) -> Value:
        return tx.fold(lambda obj, index: obj[index], [self, key])

    def equals(self, tx: Tracer, other: Value) -> bool | None:
        kind: Any = type(self.obj)
        return tx.same_object(self, other) if kind.__eq__ is object.__eq__ else None

    def hash_key(self, tx: Tracer) -> object:
        with ending_graph(breaks.RAISES, f"the hash of {self.describe()}", Exception):  # of something that it holds
            hash(self.obj)
        kind: Any = type(self.obj)
        if kind.__hash__ is object.__hash__:
            tx.guard(self.source, "ID", self.obj)
        return self.obj


class LibraryMethod(RealVal):
    """A method of such an object."""

    def call(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None) -> Value:
        owner = self.obj.__self__
        descriptor = getattr(type(owner), self.obj.__name__, None)
        if descriptor in BUILTINS:
            return tx.call_builtin(descriptor, [LibraryVal(owner), *args], kwargs)
        return tx.fold(self.obj, args, kwargs)


class NamespaceVal(OverlaidDict):
    """A module's namespace as a dictionary: what is written to it, functions of the module see as their globals."""

    def changed(self, tx: Tracer, name: Any) -> tuple[Value | None] | None:
        return tx.written_global(self.real_dict, name)

    def setitem(self, tx: Tracer, key: Value, value: Value) -> None:
        if not (key.is_const() and type(key.const()) is str):
            self.unsupported("a key that is no name")
        tx.store_global(self.real_dict, key.const(), value)

    def take(self, tx: Tracer, key: Value) -> Value:
        found = self.getitem(tx, key)
        tx.store_global(self.real_dict, key.const(), None)  # type: ignore[arg-type]
        return found

    def mutate(self, tx: Tracer) -> None:
        self.unsupported("changing all of it")


def is_namespace(table: dict[Any, Any]) -> bool:
    """Whether a dictionary is some module's, or what functions take for one."""
    return "__builtins__" in table or ("__spec__" in table and "__name__" in table)


class ProxyVal(Value):
    """`types.MappingProxyType`: a dictionary that can only be read."""

    kind = types.MappingProxyType
    child_names = ("mapping",)

    def __init__(self, mapping: Value, source: Source | None = None) -> None:
        self.mapping = mapping
        self.source = source

    def getattr(self, tx: Tracer, name: str) -> Value:
        if name not in types.MappingProxyType.__dict__:
            raise tx.raised(AttributeError, f"'mappingproxy' object has no attribute '{name}'")
        return self.mapping.getattr(tx, name)

    def length(self, tx: Tracer) -> Value:
        return self.mapping.length(tx)

    def truth(self, tx: Tracer) -> bool:
        return self.mapping.truth(tx)

    def iterate(self, tx: Tracer) -> Value:
        return self.mapping.iterate(tx)

    def getitem(self, tx: Tracer, key: Value) -> Value:
        return self.mapping.getitem(tx, key)

    def contains(self, tx: Tracer, item: Value) -> bool:
        return self.mapping.contains(tx, item)

    def setitem(self, tx: Tracer, key: Value, value: Value) -> None:
        raise tx.raised(TypeError, "'mappingproxy' object does not support item assignment")

    def rebuild(self, out: Any) -> None:
        out.call_on(types.MappingProxyType, self.mapping)


names_of_module: Callable[[types.ModuleType], dict[str, Any]] = vars(types.ModuleType)["__dict__"].__get__


class ModuleVal(RealVal):
    """A Python module."""

    def describe(self) -> str:
        if self._finds_itself():
            return "a module that finds its attributes itself"
        return f"the module {vars(self.obj).get('__name__')}"

    def _finds_itself(self) -> bool:
        """Whether reading any attribute runs code of the program's."""
        kind = type(self.obj)
        return kind is not types.ModuleType and in_python(kind, "__getattribute__")

    def getattr(self, tx: Tracer, name: str) -> Value:
        if self._finds_itself():
            raise GraphBreak(breaks.UNSUPPORTED_ATTRIBUTE, f"{name!r} of {self.describe()}")
        written = tx.written_global(self.obj.__dict__, name)
        if written is not None and written[0] is not None:
            return written[0]
        if not is_trusted(vars(self.obj).get("__name__")):
            own = self._through_class(tx, name)
            if own is not None:
                return own
        if name in self.obj.__dict__ or hasattr(self.obj, name):
            found = getattr(self.obj, name)
        else:
            if "__name__" not in self.obj.__dict__:
                self.unsupported(name)
            self._guard_lacks(tx, name)
            names = self.obj.__dict__
            if "__getattr__" not in names and not is_trusted(names["__name__"]):
                self._guard_lacks(tx, "__getattr__")
            raise tx.raised(AttributeError, f"module '{self.obj.__name__}' has no attribute '{name}'")
        if is_trusted(vars(self.obj).get("__name__")):
            trusted = trusted_value(tx, found)
            if trusted is not None:
                names = self.obj.__dict__
                if names.get(name) is found:  # else some `__getattr__` of the module's has it
                    tx.assumed.of_member(names, self.obj.__name__, name, found)
                return trusted
        return tx.wrap(found, AttrSource(self.source or ConstSource(self.obj, self.obj.__name__), name))

    def _through_class(self, tx: Tracer, name: str) -> Value | None:
        """What code of the program's gives: descriptors of a subclass of modules, `__getattr__`; None if there is
        none for the name."""
        kind, names = type(self.obj), self.obj.__dict__
        found, where = lookup_type(kind, name)
        if where not in (None, types.ModuleType, object) and (name not in names or is_data_descriptor(found)):
            if not is_data_descriptor(found):
                self._guard_lacks(tx, name)
            return bind(tx, self, kind, name, found, where)
        if name in names or where is not None:
            return None
        fallback, where = lookup_type(kind, "__getattr__")
        if where is not None:
            self._guard_lacks(tx, name)
            guard_missing(tx, kind, name)
            return tx.call(bind(tx, self, kind, "__getattr__", fallback, where), [ConstVal(name)], {})
        if "__getattr__" in names:
            self._guard_lacks(tx, name)
            return tx.call(self.getattr(tx, "__getattr__"), [ConstVal(name)], {})
        return None

    def _guard_lacks(self, tx: Tracer, name: str) -> None:
        """Rely on the module itself having no such name."""
        tx.guard(ConstSource(self.obj.__dict__, f"{self.obj.__name__}.__dict__"), "DICT_MISSING", name)

    def setattr(self, tx: Tracer, name: str, value: Value) -> None:
        kind = type(self.obj)
        custom = lookup_type(kind, "__setattr__")[1] not in (types.ModuleType, object)
        if custom or is_data_descriptor(lookup_type(kind, name)[0]):
            super().setattr(tx, name, value)
        tx.store_global(names_of_module(self.obj), name, value)


def trusted_value(tx: Tracer, found: Any) -> Value | None:
    """The model, without a guard, of an attribute of a trusted module if it is of a kind that does not change."""
    if isinstance(found, types.FunctionType) and is_trusted(found.__globals__.get("__name__")):
        return FunctionVal.outside(tx, found, ConstSource(found, found.__qualname__))
    if isinstance(found, (types.ModuleType, type, types.BuiltinFunctionType)):
        return tx.from_real(found)
    if isinstance(found, (torch.dtype, torch.layout, torch.memory_format)):
        return ConstVal(found)
    return None
