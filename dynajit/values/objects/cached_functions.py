"""What `functools.lru_cache` and `functools.cache` make of a function inside the traced program.

In: the function and the cache's size. Out: `CachedVal`, whose cache is a dictionary of the trace's; generated code that
needs the object makes a real one and fills it (`polyfills/caches.py`). Calls of those from outside are in
`interp/calls.py`.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Sequence
from typing import Any

from dynajit import _C
from dynajit.values.containers.attributes import AttributeDict
from dynajit.values.containers.mapping import DictVal
from dynajit.values.core.bound_methods import BoundMethod
from dynajit.values.core.value import Direct, Tracer, Value
from dynajit.values.polyfills import caches
from dynajit.values.scalars.constant import ConstVal


class CachedVal(Value):
    """The object behind which a cached function stands. `counts` holds its hits and misses."""

    kind = functools._lru_cache_wrapper
    child_names = ("function", "info")

    def __init__(self, tx: Tracer, function: Value, maxsize: Value, typed: Value, info: Value) -> None:
        self.function = function
        self.maxsize = maxsize
        self.typed = typed
        self.info = info
        self.cache = DictVal()
        self.counts = DictVal()
        for name in ("hits", "misses"):
            self.counts.setitem(tx, ConstVal(name), ConstVal(0))
        self.attributes = AttributeDict(self, None, None)

    def describe(self) -> str:
        return f"a cached function, {self.function.describe()}"

    def hash_key(self, tx: Tracer) -> object:
        return tx.object_key(self)

    def call(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None) -> Value:
        named = DictVal()
        for name, value in kwargs.items():
            named.setitem(tx, ConstVal(name), value)
        state = [self.function, self.cache, self.counts, self.maxsize, self.typed]
        return tx.run_python(caches.call_cached, [*state, tx.new_tuple(args), named])

    def getattr(self, tx: Tracer, name: str) -> Value:
        if name == "__dict__":
            return self.attributes
        found = self.attributes.attribute(tx, name)
        if found is not None:
            return found
        if name in ("cache_info", "cache_clear"):
            return BoundMethod(self, name)
        return tx.class_attribute(self, self.kind, name)

    def call_method(self, tx: Tracer, name: str, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        if args or kwargs or name not in ("cache_info", "cache_clear"):
            return super().call_method(tx, name, args, kwargs)
        if name == "cache_clear":
            return tx.run_python(caches.cache_clear, [self.cache, self.counts])
        return tx.run_python(caches.cache_info, [self.info, self.cache, self.counts, self.maxsize])

    def setattr(self, tx: Tracer, name: str, value: Value) -> None:
        self.attributes.setitem(tx, ConstVal(name), value)

    # -- generated code

    def _used(self) -> bool:
        return any(value.const() for _, value in self.counts.entries.values())

    def rebuildable(self) -> bool:
        return not self._used() or (self.function.py_type() is types.FunctionType and self.function.source is None)

    def fill_children(self) -> Sequence[Value]:
        used = [self.cache, *DictVal.children(self.counts)] if self._used() else []
        return [*used, *self.attributes.entry_values()]

    def rebuild(self, out: Any) -> None:
        out.call_on(self.kind, self.function, self.maxsize, self.typed, self.info)
        out.later(self, self._fill)

    def _fill(self, out: Any) -> None:
        if self._used():
            entries = [value for _, value in self.cache.entries.values()]
            counts = [value for _, value in self.counts.entries.values()]
            out.run(_fill_cache, self, self.function, entries, *counts)
        self.attributes.fill_owner(out)


def _fill_cache(*state: Any) -> None:
    """The calls that fill it are nothing to compile."""
    _C.call_eager(caches.fill_cache, state)
