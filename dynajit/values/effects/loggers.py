"""Loggers: calls of their methods are deferred; what they are asked is answered while tracing, and guarded.

In: the function or method of `logging`, its arguments. Out: a deferred call (`deferred.py`), or an answer. What
handlers and filters keep, the program may read after a call that is deferred: then the graph ends at the call instead.
"""

from __future__ import annotations

import collections
import functools
import io
import itertools
import logging
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dynajit.config import config
from dynajit.guards.source import ConstSource, ItemSource
from dynajit.report import breaks
from dynajit.values.containers.mapping import DictVal
from dynajit.values.core.registry import builtin, models_of
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.effects.deferred import break_outside_forward, defer_call, never_changes
from dynajit.values.effects.table import is_changed
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.scalars.symbolic import SymVal

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "exception": logging.ERROR,
    "critical": logging.CRITICAL,
    "log": None,  # says it itself
}
# a conversion with its flags, width and precision: its letter
_CONVERSION = re.compile(r"%[#0\- +]*\d*(?:\.\d+)?([srdeEfFgG])")
_MAX_INT = 1 << 62  # an int that is a float as well
_MAX_REACHED = 1000
_NOT_FOLLOWED = (type, types.ModuleType, logging.Logger, logging.LoggerAdapter, logging.Manager, logging.LogRecord)
# handlers that keep nothing but what they write to, and their attributes
_PRINTERS = (logging.StreamHandler, logging.NullHandler, type(logging.lastResort))
_OF_PRINTERS = frozenset(vars(logging.StreamHandler()))
_LOGGERS = (logging.Logger, logging.LoggerAdapter)


def is_replayed(function: Any, args: Sequence[Value]) -> bool:
    """Whether calling the function with these arguments is an effect without a result: logging, to a real logger."""
    if not config.replay_logging:
        return False
    name = getattr(function, "__name__", "")
    if name in _LEVELS and function is getattr(logging, name, None):
        return True
    if not args or not _is_logger(args[0]):
        return False
    if isinstance(function, functools._lru_cache_wrapper):
        return getattr(function, "__wrapped__", None) is not None
    owner = logging.Logger if issubclass(args[0].py_type(), logging.Logger) else logging.LoggerAdapter
    return name in _LEVELS and function is getattr(owner, name)


def replay(tx: Tracer, function: Value, args: Sequence[Value], kwargs: dict[str, Value], name: str = "") -> Value:
    """Defer the call of a logger's method (or the function of `logging`) of this name."""
    loggers, given = [*filter(_is_logger, args)], [*itertools.filterfalse(_is_logger, args)]
    logged = [*given, *itertools.filterfalse(_is_logger, kwargs.values())]
    changed = _are_changed(loggers, tx) or tx.written_global(vars(logging), None) is not None
    if not changed and not all(map(never_changes, logged)) and _is_off(tx, args, name):
        return ConstVal(None)
    break_outside_forward(tx, f"{name}()", kwargs.get("stacklevel"))
    why = _why_not_deferred(tx, kwargs, name, changed)
    if why is None and name and not _formats(given[name == "log" :]):
        why = "whose message may not fit its arguments"
    if why is not None:
        raise GraphBreak(breaks.OUTPUT_CALL, f"{name}() {why}")
    effect = defer_call(tx, function, args, kwargs, logged)
    effect.comes_too_late.append(functools.partial(_are_changed, loggers))
    reached = _reached_by_records(tx, loggers[0] if loggers else None)
    effect.comes_too_late.append(lambda tx: not reached.keys().isdisjoint(tx.outside_objects()))
    return ConstVal(None)


def _why_not_deferred(tx: Tracer, kwargs: dict[str, Value], name: str, changed: bool) -> str | None:
    """What a call shows besides its arguments, which would be something else later."""
    if tx.exceptions.current is not None and (name == "exception" or not {"exc_info", "stack_info"}.isdisjoint(kwargs)):
        return "of the exception that is being handled"
    if "stack_info" in kwargs:
        return "of the stack"
    return "of a logger that was changed" if changed else None


def _is_logger(value: Value) -> bool:
    return issubclass(value.py_type(), _LOGGERS)


def _are_changed(loggers: Sequence[Value], tx: Tracer) -> bool:
    """Whether the program has set attributes of one of these objects from outside."""
    return any(is_changed(tx, logger) for logger in loggers)


def _formats(args: Sequence[Value]) -> bool:
    """Whether the message is sure to be made of its arguments without an exception."""
    template = args[0] if args else None
    if template is None or not template.is_const() or template.py_type() is not str:
        return len(args) == 1
    given = args[1:]
    if not given:
        return True
    if all(value.is_const() and not value.symbolic for value in given):
        return _fit(template.const(), tuple(value.const() for value in given))
    text = template.const().replace("%%", "")
    specs = _CONVERSION.findall(text)
    if text.count("%") == len(specs) == len(given) and all(map(_converts, specs, given)):
        return True
    return isinstance(given[0], DictVal)


def _fit(template: str, values: tuple[Any, ...]) -> bool:
    named = len(values) == 1 and isinstance(values[0], Mapping) and bool(values[0])
    try:
        _ = template % (values[0] if named else values)
    except (TypeError, ValueError, KeyError):
        return False
    return True


def _converts(spec: str, value: Value) -> bool:
    """Whether a conversion of `%` takes the value, whatever it is when the call is made."""
    kind = value.py_type()
    if spec in "srd":
        return spec != "d" or kind in (int, bool)
    if isinstance(value, SymVal):
        return kind in (int, float)
    return value.is_const() and (kind is float or (kind is int and abs(value.const()) < _MAX_INT))


def _is_off(tx: Tracer, args: Sequence[Value], name: str) -> bool:
    """Whether the logger drops records of this level; if so, that is guarded."""
    logger = args[0] if args else None
    if logger is None or type(logger.real_object) not in (logging.Logger, logging.RootLogger) or logger.source is None:
        return False
    real = logger.real_object
    level = _LEVELS.get(name)
    if name == "log" and len(args) > 1 and args[1].is_const() and type(args[1].const()) is int:
        level = args[1].const()
    if level is None or real.isEnabledFor(level):
        return False
    source = logger.source if not isinstance(logger.source, ConstSource) else ConstSource(real, f"logger {real.name}")
    tx.guard(source, "PREDICATE", functools.partial(_drops, level), f"drops records of level {level}")
    return True


def _drops(level: int, logger: Any) -> bool:
    return not logger.isEnabledFor(level)


# ------------------------------------------------------------------------------------------- what handlers may change


def _reached_by_records(tx: Tracer, logger: Value | None) -> dict[int, Any]:
    """The objects, by id, that those may change who are told of a record; who they are is guarded."""
    real: Any = logging.root if logger is None else logger.real_object
    while isinstance(real, logging.LoggerAdapter):
        real = real.logger
    if not isinstance(real, logging.Logger):
        return {}
    told = told_by(real)
    source = ConstSource(real, f"logger {real.name}")
    tx.guard(source, "PREDICATE", functools.partial(tells, tuple(map(id, told))), "has the handlers it had")
    return {id(obj): obj for obj in _reach(told)}


def told_by(logger: logging.Logger) -> list[Any]:
    """The handlers and filters on the way of a logger's records."""
    found: list[Any] = []
    current: logging.Logger | None = logger
    while current is not None:
        found += [*(current.filters if current is logger else ()), *current.handlers]
        current = current.parent if current.propagate else None
    return found


def tells(expected: tuple[int, ...], logger: logging.Logger) -> bool:
    """Whether those that are told of a logger's records are these, by id."""
    return tuple(map(id, told_by(logger))) == expected


def only_prints(told: Any) -> bool:
    """Whether it is a handler of Python's library that writes records to a file as they are, and keeps nothing."""
    stream, formatter = getattr(told, "stream", None), getattr(told, "formatter", None)
    own = getattr(getattr(told, "flush", None), "__self__", None)  # a library may put the stream's there
    return (
        type(told) in _PRINTERS
        and not told.filters
        and (stream is None or type(stream) is io.TextIOWrapper)
        and (formatter is None or type(formatter) is logging.Formatter)
        and (own is told or own is stream)
        and vars(told).keys() - {"flush"} <= _OF_PRINTERS
    )


def _reach(roots: list[Any]) -> Iterator[Any]:
    """Objects that code of these may change: what they keep, and what their methods' globals and cells name."""
    waiting = list(roots)
    seen: set[int] = set()
    while waiting and len(seen) < _MAX_REACHED:
        obj = waiting.pop()
        if id(obj) in seen or isinstance(obj, _NOT_FOLLOWED):
            continue
        seen.add(id(obj))
        yield obj
        if isinstance(obj, types.MethodType):
            waiting += [obj.__self__, obj.__func__]
        elif isinstance(obj, types.FunctionType):
            waiting += _named(obj)
        elif isinstance(obj, dict):
            waiting += obj.values()
        elif isinstance(obj, (list, tuple, set, frozenset, collections.deque)):
            waiting += obj
        elif hasattr(obj, "__dict__"):
            waiting += vars(obj).values()
            methods = (value for cls in type(obj).__mro__ for value in vars(cls).values())
            waiting += [method for method in methods if isinstance(method, types.FunctionType)]


def _named(function: types.FunctionType) -> Iterator[Any]:
    """What a function of the program's may reach besides its arguments."""
    if function.__module__ == "logging":
        return
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield function.__globals__[name]
    for cell in function.__closure__ or ():
        yield cell
        try:
            yield cell.cell_contents
        except ValueError:
            continue  # not bound yet


# --------------------------------------------------------------------------------------------- what loggers are asked


@models_of(logging.Logger.isEnabledFor, logging.Logger.getEffectiveLevel)
def _asked(function: Any, tx: Tracer, logger: Value, level: Value | None = None) -> Value:
    """What a logger from outside answers, guarded."""
    method = function.__name__
    real: Any = logger.real_object
    if type(real) not in (logging.Logger, logging.RootLogger) or logger.source is None:
        logger.unsupported(method)
    given = [] if level is None else [level.const()]
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
