"""Attributes that each thread has its own of: `threading.local` and its subclasses while tracing.

In: an object from outside. Out: `ThreadLocalVal`, whose attributes are the running thread's. A subclass runs its
`__init__` in each thread that looks at it first, which may be the guards: one that does more than set attributes is not
traced.
"""

from __future__ import annotations

import threading
import types
from typing import Any

from dynajit.bytecode import decode
from dynajit.values.containers.attributes import AttributeDict
from dynajit.values.core.value import Raised, Tracer, Value
from dynajit.values.objects.lookup import lookup_type
from dynajit.values.objects.objects import ObjVal

# what the `__init__` of a subclass is made of, and what it may call
_PLAIN = frozenset({"COPY_FREE_VARS", "RESUME", "NOP", "CALL", "POP_TOP", "PUSH_NULL", "RETURN_VALUE", "RETURN_CONST"})
_PLAIN |= {"LOAD_CONST", "LOAD_FAST", "LOAD_DEREF", "STORE_ATTR", "BUILD_LIST", "BUILD_MAP", "BUILD_TUPLE"}
_CALLED = frozenset({"super", "__init__", "list", "dict", "set"})


class ThreadLocalVal(ObjVal):
    """An instance of `threading.local` or of a subclass."""

    def instance_dict(self, tx: Tracer) -> Any:
        if self._dict is None:
            # read as an attribute it is the running thread's
            source = self.source
            self._dict = AttributeDict(self, source, self.real_object.__dict__)  # type: ignore[assignment,union-attr]
        return self._dict

    def generic_getattr(self, tx: Tracer, name: str, fallback: bool = True) -> Value:
        return self.instance_dict(tx) if name == "__dict__" else super().generic_getattr(tx, name, fallback)

    def _has_dict(self) -> bool:
        return True

    def _missing(self, tx: Tracer, name: str) -> Raised:
        if self.cls is threading.local:
            return tx.raised(AttributeError, f"'_thread._local' object has no attribute '{name}'")
        return super()._missing(tx, name)


def only_sets_attributes(kind: type) -> bool:
    """Whether making the attributes of a thread does nothing that the program could see."""
    reads, (makes, where) = lookup_type(kind, "__getattribute__")[0], lookup_type(kind, "__init__")
    if type(reads) is types.FunctionType:
        return False
    if type(makes) is not types.FunctionType:
        return where in (threading.local, object)
    for instr in decode(makes.__code__).instrs:
        name = instr.arg[0] if type(instr.arg) is tuple else instr.arg
        if instr.op not in _PLAIN and not (instr.op.startswith("LOAD_") and name in _CALLED):
            return False
    return True
