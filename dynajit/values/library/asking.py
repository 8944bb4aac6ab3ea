"""Builtin functions that ask an object's class for one special method, and give what it answers.

In: the function's model, the method, and what CPython makes of the answer (a `ReturnAction`). Out: the model as a tail
call: where it is what the instruction at hand calls, the method and its caller are resumed after a break inside of the
method. One more: `@asks(method, action)` below the model's `@builtin`, and above nothing else.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

from dynajit.bytecode.return_action import FORMATTED, REPRESENTED, STRUNG, ReturnAction, after
from dynajit.values.core.registry import M, tail_call
from dynajit.values.core.slots import by_rule
from dynajit.values.core.value import Direct, Tracer, Value
from dynajit.values.objects.lookup import rely_on
from dynajit.values.objects.objects import ObjVal, lookup_type
from dynajit.values.scalars.constant import ConstVal


def ask(tx: Tracer, obj: Value, method: str, args: Sequence[Value], action: Direct) -> Value | None:
    """What a user's object answers, checked as CPython checks it; None if its class has no such method of its own, or
    the answer is not what the instruction at hand is about."""
    if action is None or not isinstance(obj, ObjVal):
        return None
    if not isinstance(rely_on(tx, obj.cls, method), types.FunctionType):
        return None
    if method == "__index__" and issubclass(obj.cls, int):
        return None  # C takes the int that it is
    return by_rule(tx, obj.call_special(tx, method, *args, direct=action), action)


def asks(*ways: tuple[str, ReturnAction | Callable[[str], ReturnAction]], most: int = 1) -> Callable[[M], M]:
    """The model's function asks for these methods, the first that the class has, if it gets no more than `most`
    arguments."""

    def register(model: M) -> M:
        @functools.wraps(model)
        def asking(tx: Tracer, *args: Value, **kwargs: Value) -> Value | None:
            direct = tx.resumable_call()
            if 0 < len(args) <= most and not kwargs and isinstance(args[0], ObjVal):
                for method, way in ways:
                    action = way if isinstance(way, ReturnAction) else way(args[0].cls.__name__)
                    found = ask(tx, args[0], method, args[1:], after(direct, action))
                    if found is not None:
                        return found
                    if lookup_type(args[0].cls, method)[0] is not _ABSENT:
                        break
            with tx.not_resumable():
                return model(tx, *args, **kwargs)

        return tail_call(asking)  # type: ignore[return-value]

    return register


def text_asked(tx: Tracer, obj: Value, method: str, direct: Direct) -> Value | None:
    """The text of an object: `str` falls back on `repr`."""
    action = after(direct, STRUNG if method == "__str__" else REPRESENTED)
    if method == "__str__" and isinstance(obj, ObjVal) and lookup_type(obj.cls, "__str__")[0] is object.__str__:
        method = "__repr__"
    return ask(tx, obj, method, (), action)


def format_asked(tx: Tracer, obj: Value, spec: Value | None, direct: Direct) -> Value | None:
    """`format(obj, spec)`: `object`'s own gives the object's text."""
    found = ask(tx, obj, "__format__", [spec or ConstVal("")], after(direct, FORMATTED))
    plain = isinstance(obj, ObjVal) and lookup_type(obj.cls, "__format__")[0] is object.__dict__["__format__"]
    if found is None and plain and (spec is None or (spec.is_const() and spec.const() == "")):
        return text_asked(tx, obj, "__str__", direct)
    return found


_ABSENT: Any = lookup_type(object, "dynajit has no such method")[0]
