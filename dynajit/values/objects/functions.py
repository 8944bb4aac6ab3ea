"""Callables: Python functions made while tracing or found outside, bound methods, C functions, cells.

In: function objects or MAKE_FUNCTION's operands. Out: models whose `call` inlines the body (`FunctionVal`), looks up
a builtin's model (`core/registry.py`), or ends the graph. Generators are in `generators.py`.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Sequence
from typing import Any

from dynajit import _C
from dynajit.guards.source import AttrSource, CellSource, ClosureCellSource, ConstSource, ItemSource, Source
from dynajit.report import breaks
from dynajit.values.containers.attributes import AttributeDict
from dynajit.values.containers.identity import object_key
from dynajit.values.containers.mapping import DictVal
from dynajit.values.containers.sequence import TupleVal
from dynajit.values.core.value import Direct, GraphBreak, Tracer, Value
from dynajit.values.scalars.constant import ConstVal


class CellVal(Value):
    """A closure cell. `real` is the cell object if it came from outside."""

    kind = types.CellType

    def __init__(
        self,
        contents: Value | None = None,
        source: Source | None = None,
        contents_source: Source | None = None,
        real: Any = None,
    ) -> None:
        self.contents = contents
        self.source = source
        self.contents_source = contents_source
        self.real_cell = real
        self.known = real is None
        #: the state before a node was made of a function that reads the variable then, and perhaps later
        self.read_later_at: Any = None

    def get(self, tx: Tracer) -> Value | None:
        """The contents, or None if the cell is empty."""
        if not self.known:
            try:
                inside = self.real_cell.cell_contents
            except ValueError:
                tx.guard(self.source, "CELL_EMPTY")
                tx.journal.set_attr(self, "known", True)
                return None
            tx.journal.set_attr(self, "contents", tx.wrap(inside, self.contents_source))
            tx.journal.set_attr(self, "known", True)
        return self.contents

    def is_empty(self, tx: Tracer) -> bool:
        """Whether it has no contents; these are not looked at."""
        if not self.known:
            with contextlib.suppress(ValueError):
                _ = self.real_cell.cell_contents
                return False
        return self.get(tx) is None

    def set(self, tx: Tracer, value: Value | None) -> None:
        if self.read_later_at is not None:
            told = "a variable is bound anew that backward reads, of a function that was handed over"
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, told, at=self.read_later_at)
        tx.journal.set_attr(self, "contents", value)
        tx.journal.set_attr(self, "known", True)
        tx.journal.wrote(self)

    def changed_places(self) -> Sequence[Source]:
        return () if self.contents_source is None else (self.contents_source,)

    def getattr(self, tx: Tracer, name: str) -> Value:
        if name == "cell_contents":
            found = self.get(tx)
            if found is None:
                raise tx.raised(ValueError, "Cell is empty")
            return found
        return super().getattr(tx, name)

    def setattr(self, tx: Tracer, name: str, value: Value) -> None:
        if name != "cell_contents":
            super().setattr(tx, name, value)
        self.set(tx, value)

    def fill_children(self) -> Sequence[Value]:
        return (self.contents,) if self.contents is not None else ()

    def rebuild(self, out: Any) -> None:
        """A new cell is made empty and filled afterwards, since it may be part of a cycle."""
        out.call_on(types.CellType)
        if self.contents is not None:
            out.later(self, self._fill)

    def _fill(self, out: Any) -> None:
        out.set_attr(self, "cell_contents", self.contents)

    def emit_effect(self, out: Any) -> None:
        if self.contents is not None and isinstance(self.source, CellSource):
            out.push(self.contents)
            out.emit.store_deref(self.source.local_name)
        else:
            out.set_attr(self.source, "cell_contents", self.contents)

    def effect_children(self) -> Sequence[Value]:
        return self.fill_children()


# what a function keeps beside its `__dict__`
_OWN_ATTRIBUTES = frozenset(
    name
    for name, found in vars(types.FunctionType).items()
    if isinstance(found, (types.GetSetDescriptorType, types.MemberDescriptorType))
)


class FunctionVal(Value):
    """A Python function. Outside functions keep the real object; those made while tracing have symbolic parts."""

    kind = types.FunctionType
    has_identity = True

    def __init__(
        self,
        code: types.CodeType,
        globals_: dict[str, Any],
        name: str,
        qualname: str,
        defaults: Value | None = None,
        kwdefaults: Value | None = None,
        closure: Sequence[CellVal] = (),
        annotations: Value | None = None,
    ) -> None:
        self.code = code
        self.globals = globals_
        self.name = name
        self.qualname = qualname
        self.defaults = defaults
        self.kwdefaults = kwdefaults
        self.closure = list(closure)
        self.annotations = annotations
        #: what the program assigned to the function's own attributes (None: deleted), such as `__doc__`
        self.written: dict[str, Value | None] = {}
        self._dict: AttributeDict | None = None
        self.real_function: types.FunctionType | None = None
        # guards the function's identity, where that is not done from the start
        self.pin: Callable[[], None] | None = None

    @staticmethod
    def outside(tx: Tracer, function: types.FunctionType, source: Source | None) -> FunctionVal:
        """The model of an existing function."""
        known = tx.known_object(function, source) if isinstance(source, ConstSource) else None
        if isinstance(known, FunctionVal):
            if known.pin is not None:
                known.pin()
            return known
        made = FunctionVal(function.__code__, function.__globals__, function.__name__, function.__qualname__)
        made.real_function = function
        made.source = source
        return made

    def base_source(self) -> Source:
        assert self.real_function is not None
        return self.source if self.source is not None else ConstSource(self.real_function, self.qualname)

    def describe(self) -> str:
        return f"the function {self.qualname}"

    def real(self) -> Any:
        if self.real_function is None or self.changed():
            return super().real()
        if self.pin is not None:
            self.pin()
        return self.real_function

    def hash_key(self, tx: Tracer) -> object:
        if self.pin is not None:
            self.pin()
        return self.real_function if self.real_function is not None else self

    # -- parts

    def default_count(self) -> int:
        if self.real_function is not None:
            return len(self.real_function.__defaults__ or ())
        return len(self.defaults.items) if isinstance(self.defaults, TupleVal) else 0

    def get_default(self, tx: Tracer, index: int) -> Value:
        """One positional default, so that only those used are guarded."""
        if self.real_function is not None:
            wrapped = tx.wrap(self.real_function.__defaults__, AttrSource(self.base_source(), "__defaults__"))
        else:
            wrapped = self.defaults  # type: ignore[assignment]
        assert isinstance(wrapped, TupleVal)
        return wrapped.item(tx, index)

    def get_kwdefault(self, tx: Tracer, name: str) -> Value | None:
        if self.real_function is not None:
            real = self.real_function.__kwdefaults__ or {}
            if name not in real:
                return None
            return tx.wrap(real[name], ItemSource(AttrSource(self.base_source(), "__kwdefaults__"), name))
        return self.kwdefaults.lookup(tx, ConstVal(name)) if isinstance(self.kwdefaults, DictVal) else None

    def get_closure(self, tx: Tracer) -> list[CellVal]:
        if self.real_function is not None and not self.closure:
            cells = []
            for index, cell in enumerate(self.real_function.__closure__ or ()):
                cells.append(tx.wrap_cell(cell, ClosureCellSource(self.base_source(), index)))
            self.closure = cells
        return self.closure

    # -- attributes

    def attributes(self) -> AttributeDict:
        """The function's `__dict__`."""
        if self._dict is None:
            real = self.real_function.__dict__ if self.real_function is not None else None
            self._dict = AttributeDict(self, self.base_source() if self.real_function is not None else None, real)
        return self._dict

    def changed(self) -> bool:
        """Whether the program assigned to attributes of the function."""
        return bool(self.written or (self._dict is not None and (self._dict.changed_names or not self.real_function)))

    def getattr(self, tx: Tracer, name: str) -> Value:
        if name in _OWN_ATTRIBUTES:
            return self._own_attribute(tx, name)
        found = self.attributes().attribute(tx, name)
        if found is not None:
            return found
        if hasattr(types.FunctionType, name):
            return tx.class_attribute(self, types.FunctionType, name)
        raise tx.raised(AttributeError, f"'function' object has no attribute '{name}'")

    def _own_attribute(self, tx: Tracer, name: str) -> Value:
        if name in self.written:
            return self.written[name] or ConstVal(None)
        if name == "__annotations__" and isinstance(self.written.get("__annotate__"), FunctionVal):
            return self._made_annotations(tx, self.written["__annotate__"])
        if name == "__dict__":
            return self.attributes()
        if name == "__code__":
            return tx.from_real(self.code)
        if name in ("__name__", "__qualname__") and self._keeps_names():
            return ConstVal(getattr(self, name.strip("_")))
        if self.real_function is not None:
            return tx.wrap(getattr(self.real_function, name), AttrSource(self.base_source(), name))
        return self._attribute_made(tx, name)

    def _keeps_names(self) -> bool:
        """Whether nobody is taken to give the function another name: it was made here, or is of Python's or torch's."""
        return self.real_function is None or (self.pin is None and isinstance(self.base_source(), ConstSource))

    def _attribute_made(self, tx: Tracer, name: str) -> Value:
        """Of a function made while tracing."""
        annotate = self.annotations if isinstance(self.annotations, FunctionVal) else None
        parts = {
            "__defaults__": self.defaults,
            "__kwdefaults__": self.kwdefaults,
            "__closure__": TupleVal(self.closure) if self.closure else None,
            "__annotate__": annotate,
        }
        if name in parts:
            return parts[name] or ConstVal(None)
        if name == "__globals__":
            return tx.wrap(self.globals, ConstSource(self.globals, "globals()"))
        if name == "__annotations__":
            dropped = "__annotate__" in self.written and annotate is not None
            return self._made_annotations(tx, None if dropped else self.annotations)
        return tx.from_real(getattr(self._bare(), name))

    def _bare(self) -> types.FunctionType:
        """A function with this code alone, for what CPython reads off it."""
        cells = tuple(types.CellType() for _ in self.code.co_freevars)
        return types.FunctionType(self.code, self.globals, self.name, None, cells)

    def _made_annotations(self, tx: Tracer, annotations: Value | None) -> Value:
        """The dictionary of annotations, which exists from its first use on: of names and values, or what a function
        gives for the format VALUE."""
        if isinstance(annotations, FunctionVal):
            made = tx.call(annotations, [ConstVal(1)], {})
            if made.py_type() is not dict:
                raise GraphBreak(breaks.RAISES, "TypeError: __annotate__ returned something else than a dict")
        else:
            made = DictVal()
            parts = annotations.values(tx) if isinstance(annotations, TupleVal) else ()
            for key, value in zip(parts[::2], parts[1::2], strict=True):
                made.setitem(tx, key, value)
        tx.journal.set_item(self.written, "__annotations__", made)
        return made

    def setattr(self, tx: Tracer, name: str, value: Value) -> None:
        if name not in _OWN_ATTRIBUTES:
            self.attributes().setitem(tx, ConstVal(name), value)
        elif not self._set_own(tx, name, value, value.py_type()):
            super().setattr(tx, name, value)
        if self.real_function is not None:
            tx.remember_object(self.real_function, self)

    def _set_own(self, tx: Tracer, name: str, value: Value, kind: type) -> bool:
        """Whether an attribute of the function's own could be set to the value, of class `kind`."""
        if name in ("__name__", "__qualname__"):
            self._rename(tx, name, value)
        elif name in ("__doc__", "__module__") or (name == "__type_params__" and kind is tuple):
            self._write(tx, name, value)
        elif name == "__annotations__" and kind in (dict, type(None)):
            self._write(tx, name, value if kind is dict else DictVal())
        elif name == "__annotate__":
            return self._set_annotate(tx, value, kind)
        elif self.real_function is None and (name, kind) in (("__defaults__", tuple), ("__kwdefaults__", dict)):
            tx.journal.set_attr(self, name.strip("_"), value)
        else:
            return False
        return True

    def _set_annotate(self, tx: Tracer, value: Value, kind: type) -> bool:
        if isinstance(value, FunctionVal):
            others = {name: found for name, found in self.written.items() if name != "__annotations__"}
            tx.journal.replace_all(self.written, others)
        elif kind is not type(None) or self._has_outside_annotations():
            return False
        self._write(tx, "__annotate__", value)
        return True

    def _has_outside_annotations(self) -> bool:
        """Whether annotations came with the function from outside; which of them were asked for so far is not known."""
        real = self.real_function
        return getattr(real, "__annotate__", None) is not None or bool(getattr(real, "__annotations__", None))

    def _rename(self, tx: Tracer, name: str, value: Value) -> None:
        if value.py_type() is not str:
            raise tx.raised(TypeError, f"{name} must be set to a string object")
        if self.real_function is None and value.is_const() and not value.symbolic:
            tx.journal.set_attr(self, name.strip("_"), value.const())
        else:
            self._write(tx, name, value)

    def names(self) -> tuple[str, str]:
        """`__name__` and `__qualname__` as they are now."""
        written = [self.written.get(name) for name in ("__name__", "__qualname__")]
        first, second = [value.const() if value is not None else None for value in written]
        return first or self.name, second or self.qualname

    def _write(self, tx: Tracer, name: str, value: Value | None) -> None:
        tx.journal.set_item(self.written, name, value)
        if self.real_function is not None:
            tx.journal.touch(self)

    def delattr(self, tx: Tracer, name: str) -> None:
        if name in ("__doc__", "__module__"):
            self._write(tx, name, None)
        elif name in _OWN_ATTRIBUTES:
            super().delattr(tx, name)
        elif self.attributes().attribute(tx, name) is None:
            raise GraphBreak(breaks.RAISES, f"AttributeError: the function has no attribute {name!r}")
        else:
            self.attributes().take(tx, ConstVal(name))

    def call(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None) -> Value:
        return tx.inline(self, args, kwargs, direct)

    # -- generated code

    def children(self) -> Sequence[Value]:
        parts = [self.defaults, self.kwdefaults, self.annotations, *self.closure]
        return [part for part in parts if part is not None]

    def _made_attributes(self) -> AttributeDict | None:
        return self._dict if self.real_function is None else None

    def fill_children(self) -> Sequence[Value]:
        own = self._made_attributes()
        return [*self.effect_children()[:-1], *(own.entry_values() if own is not None else ())]

    def rebuild(self, out: Any) -> None:
        if self.real_function is not None:
            out.const(self.real_function)
            return

        parts = (self.defaults, self.kwdefaults, self.annotations, self.closure)
        out.call_on(make_function, self.code, self.globals, self.name, self.qualname, *parts)
        if self.changed():
            out.later(self, self._fill)

    def _fill(self, out: Any) -> None:
        self.emit_effect(out)
        own = self._made_attributes()
        if own is not None:
            own.fill_owner(out)

    def emit_effect(self, out: Any) -> None:
        for name, value in self.written.items():
            out.set_attr(self, name, value)

    def effect_children(self) -> Sequence[Value]:
        return [*(value for value in self.written.values() if value is not None), self]


class CompiledVal(Value):
    """What `dynajit.compile` returned for a function; its call is traced as the function's."""

    kind = _C.CompiledFunction

    def __init__(self, obj: _C.CompiledFunction, function: FunctionVal, source: Source | None) -> None:
        self.obj = obj
        self.function = function
        self.source = source
        # guards the object's identity, where that is not done from the start
        self.pin: Callable[[], None] | None = None

    def describe(self) -> str:
        return f"the compiled function {self.function.qualname}"

    def real(self) -> Any:
        if self.pin is not None:
            self.pin()
        return self.obj

    def hash_key(self, tx: Tracer) -> object:
        return self.real()

    def getattr(self, tx: Tracer, name: str) -> Value:
        if name == "__get__":
            return super().getattr(tx, name)
        source = self.source if self.source is not None else ConstSource(self.obj, self.function.qualname)
        if not hasattr(self.obj, name):
            raise tx.raised(AttributeError, f"'CompiledFunction' object has no attribute '{name}'")
        return tx.wrap(getattr(self.obj, name), AttrSource(source, name))

    def call(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None) -> Value:
        return tx.call(self.function, args, kwargs, direct)

    def rebuild(self, out: Any) -> None:
        out.const(self.obj)


def make_function(
    code: types.CodeType,
    globals_: dict[str, Any],
    name: str,
    qualname: str,
    defaults: Any,
    kwdefaults: Any,
    annotations: Any,
    closure: Any,
) -> types.FunctionType:
    """A function with the given parts; runs in generated code. `annotations`: names and values in turn, or the function
    that gives them (CPython 3.14)."""
    made = types.FunctionType(code, globals_, name, defaults, tuple(closure) or None)
    made.__kwdefaults__ = kwdefaults
    if isinstance(annotations, types.FunctionType):
        made.__annotate__ = annotations  # type: ignore[attr-defined]
    elif annotations is not None:
        made.__annotations__ = dict(zip(annotations[::2], annotations[1::2], strict=True))
    made.__qualname__ = qualname
    return made


class MethodVal(Value):
    """A function bound to an object."""

    kind = types.MethodType
    child_names = ("owner", "function")

    def __init__(self, owner: Value, function: Value) -> None:
        self.owner = owner
        self.function = function

    def describe(self) -> str:
        return f"a method ({self.function.describe()})"

    def getattr(self, tx: Tracer, name: str) -> Value:
        if name == "__self__":
            return self.owner
        if name == "__func__":
            return self.function
        return self.function.getattr(tx, name)

    def call(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None) -> Value:
        return tx.call(self.function, [self.owner, *args], kwargs, direct)

    def hash_key(self, tx: Tracer) -> object:
        # of one object, whatever that one is equal to
        return (MethodVal, object_key(tx, self.owner), self.function.hash_key(tx))

    def real(self) -> Any:
        return types.MethodType(self.function.real(), self.owner.real())

    def rebuild(self, out: Any) -> None:
        out.call_on(types.MethodType, self.function, self.owner)


class SuperVal(Value):
    """`super(cls, obj)`."""

    kind = super
    child_names = ("obj",)

    def __init__(self, cls: type, obj: Value, start: type) -> None:
        self.cls = cls
        self.obj = obj
        self.start = start

    def getattr(self, tx: Tracer, name: str) -> Value:
        return tx.super_attribute(self, name)

    def rebuild(self, out: Any) -> None:
        out.call_on(super, self.cls, self.obj)
