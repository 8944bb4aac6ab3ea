"""Guard kinds on instances and classes: attributes that must not be there, nn.Module's hooks.

In and out: see guard.py.
"""

from __future__ import annotations

from typing import Any

from dynajit import _C
from dynajit.guards.guard import GuardKind, guard_kind
from dynajit.report.shown import short

HOOK_DICTS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_MISSING = object()


class _NoAttribute(GuardKind):
    def normalize(self, *params: Any) -> tuple[Any, ...]:
        (name,) = params
        if type(name) is not str:
            raise TypeError(f"an attribute's name must be a str, not {short(name)}")
        return (name,)

    def encode(self, params: tuple[Any, ...]) -> tuple[str, object]:
        return self.name.removeprefix("HAS_"), params[0]


@guard_kind("HAS_NO_INSTANCE_ATTR")
class HasNoInstanceAttr(_NoAttribute):
    """The instance itself has no such attribute, so the class's is used."""

    shown, failed = "{p[0]!r} not in {name}.__dict__", "{name} has now an attribute {p[0]!r} of its own"

    def check(self, value: Any, params: tuple[Any, ...]) -> bool:
        return _C.instance_getattr(value, params[0], _MISSING) is _MISSING


@guard_kind("HAS_NO_TYPE_ATTR")
class HasNoTypeAttr(_NoAttribute):
    """No class in the MRO has such an attribute. The source leads to the class."""

    shown, failed = "no class in {name}.__mro__ has {p[0]!r}", "{name} has now an attribute {p[0]!r}"

    def check(self, value: Any, params: tuple[Any, ...]) -> bool:
        return isinstance(value, type) and not any(params[0] in kind.__dict__ for kind in value.__mro__)


@guard_kind("NO_HOOKS")
class NoHooks(GuardKind):
    """An nn.Module with no forward or backward hooks."""

    shown, failed = "{name} has no hooks", "{name} has hooks now"

    def check(self, value: Any, params: tuple[Any, ...]) -> bool:
        found = [_C.instance_getattr(value, name, None) for name in HOOK_DICTS]
        return all(isinstance(hooks, dict) and not dict.__len__(hooks) for hooks in found)
