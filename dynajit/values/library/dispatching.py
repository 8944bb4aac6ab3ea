"""The model of functions made by `functools.singledispatch`.

In: arguments as values. Out: the implementation's result, traced; which one it is, is guarded.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

from dynajit.guards.source import ConstSource
from dynajit.report import breaks
from dynajit.values.core.registry import pure
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.objects.exceptions import raised_again

pure(sys.intern)
_WRAPPER = functools.singledispatch(lambda v: v).__code__  # type: ignore[attr-defined]
_DISPATCH = functools.singledispatch(lambda v: v).dispatch.__code__  # type: ignore[attr-defined]


def _inside(function: Any, name: str) -> Any:
    """A variable that the functions made by one singledispatch share."""
    for made in (function, getattr(function, "dispatch", None)):
        if isinstance(made, types.FunctionType) and name in made.__code__.co_freevars:
            return (made.__closure__ or ())[made.__code__.co_freevars.index(name)].cell_contents
    return None


def single_dispatch(function: types.FunctionType) -> Callable[..., Value] | None:
    """The model of a function made by `functools.singledispatch`, or of its `dispatch`."""
    if function.__code__ is _WRAPPER and type(_inside(function, "dispatch_cache")) is weakref.WeakKeyDictionary:
        return functools.partial(_call_single, function.dispatch)  # type: ignore[attr-defined]
    if function.__code__ is _DISPATCH and type(_inside(function, "dispatch_cache")) is weakref.WeakKeyDictionary:
        return functools.partial(_find_single, function)
    return None


def _call_single(dispatch: types.FunctionType, tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    if not args:
        raise tx.raised(TypeError, "singledispatch function requires at least 1 positional argument")
    return tx.call(_implementation(tx, dispatch, args[0].py_type()), args, kwargs)


def _find_single(dispatch: types.FunctionType, tx: Tracer, cls: Value) -> Value:
    return _implementation(tx, dispatch, cls.real())


def _implementation(tx: Tracer, dispatch: types.FunctionType, kind: type) -> Value:
    registry = _inside(dispatch, "registry")
    if any(getattr(value, "real_dict", None) is registry for value in tx.journal.dirty.values()):
        raise GraphBreak(
            breaks.UNSUPPORTED_VALUE, "a singledispatch function to which an implementation was just added"
        )
    try:
        found = dispatch(kind)
    except Exception as error:  # two implementations fit, or the program's classes raise
        raise raised_again(tx, error) from None
    source = ConstSource(dispatch, f"dispatch of {found.__qualname__}")
    tx.guard(source, "PREDICATE", functools.partial(_still_found, kind, found), f"gives the same for {kind.__name__}")
    return tx.wrap(found, ConstSource(found, found.__qualname__))


def _still_found(kind: type, expected: Any, dispatch: Any) -> bool:
    return dispatch(kind) is expected
