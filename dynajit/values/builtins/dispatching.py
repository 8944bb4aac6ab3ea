"""Models of `functools.singledispatch` and `cmp_to_key`, of `logging.getLogger` and of what loggers are asked.

In: arguments as values. Out: the implementation's result, traced; which one it is, is guarded.
"""

from __future__ import annotations

import functools
import logging
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from dynajit.guards.source import ConstSource, ItemSource
from dynajit.report import breaks
from dynajit.values import polyfills
from dynajit.values.base import GraphBreak, Tracer, Value
from dynajit.values.builtins.registry import builtin, pure
from dynajit.values.constant import ConstVal
from dynajit.values.exceptions import raised_again

pure(sys.intern)
_WRAPPER = functools.singledispatch(lambda v: v).__code__  # type: ignore[attr-defined]
_DISPATCH = functools.singledispatch(lambda v: v).dispatch.__code__  # type: ignore[attr-defined]


def _inside(function: Any, name: str) -> Any:
    """A variable that the functions made by one singledispatch share."""
    for made in (function, getattr(function, "dispatch", None)):
        if isinstance(made, types.FunctionType) and name in made.__code__.co_freevars:
            return (made.__closure__ or ())[made.__code__.co_freevars.index(name)].cell_contents
    return None


@builtin(functools.cmp_to_key)
def cmp_to_key(tx: Tracer, mycmp: Value) -> Value:
    return tx.run_python(polyfills.cmp_to_key, [mycmp])


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


@builtin(logging.Logger.isEnabledFor)
def is_enabled_for(tx: Tracer, self: Value, level: Value) -> Value:
    return _asked(tx, self, "isEnabledFor", [level])


@builtin(logging.Logger.getEffectiveLevel)
def effective_level(tx: Tracer, self: Value) -> Value:
    return _asked(tx, self, "getEffectiveLevel", [])


def _asked(tx: Tracer, logger: Value, method: str, args: Sequence[Value]) -> Value:
    """What a logger from outside answers, guarded."""
    real: Any = getattr(logger, "real_object", None)
    if type(real) not in (logging.Logger, logging.RootLogger) or logger.source is None:
        logger.unsupported(method)
    given = [arg.const() for arg in args]
    answer = getattr(real, method)(*given)
    text = f".{method}({', '.join(map(repr, given))}) is {answer!r}"
    tx.guard(logger.source, "PREDICATE", functools.partial(_answers, method, tuple(given), answer), text)
    return ConstVal(answer)


def _answers(method: str, given: tuple[Any, ...], expected: Any, logger: Any) -> bool:
    return isinstance(logger, logging.Logger) and bool(getattr(logger, method)(*given) == expected)


@builtin(logging.getLogger)
def get_logger(tx: Tracer, name: Value | None = None) -> Value:
    """The logger itself: there is one of each name, for as long as the process lives."""
    if name is None or (name.is_const() and name.const() in (None, "", "root")):
        return tx.wrap(logging.root, ConstSource(logging.root, "logging.root"))
    if not name.is_const() or type(name.const()) is not str:
        raise GraphBreak(breaks.SKIPPED_CALL, "logging.getLogger of what is not known while tracing")
    manager = logging.Logger.manager
    logging.getLogger(name.const())
    loggers = ConstSource(manager.loggerDict, "logging.Logger.manager.loggerDict")
    return tx.wrap(manager.loggerDict[name.const()], ItemSource(loggers, name.const()))
