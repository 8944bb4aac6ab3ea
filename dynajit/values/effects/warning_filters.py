"""Models of `warnings`: calls that warn or change the filters are made by generated code, in the program's order.

In: arguments as values. Out: effects (`effects.py`). The filters are followed while tracing, since one of them may make
an exception of a warning: there the graph ends, and so it does where the program reads what was recorded.
"""

from __future__ import annotations

import functools
import logging
import re
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from dynajit.config import config
from dynajit.guards.source import ConstSource
from dynajit.report import breaks
from dynajit.values.base import GraphBreak, Tracer, Value
from dynajit.values.builtins.registry import builtin
from dynajit.values.constant import ConstVal
from dynajit.values.effects.deferred import defer_call
from dynajit.values.exceptions import ExceptionVal
from dynajit.values.objects import ClassVal, ObjVal

Filter = tuple[Any, ...]
_ACTIONS = ("error", "ignore", "always", "default", "module", "once", "all")
_NAMES = ("message", "category", "stacklevel", "source")
_HERE = ConstSource(warnings, "warnings")
_hooks: Any = warnings


def _refuse(detail: str) -> NoReturn:
    raise GraphBreak(breaks.OUTPUT_CALL, detail)


@builtin(warnings.warn)
def warn(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    given = {**dict(zip(_NAMES, args, strict=False)), **kwargs}
    if not config.replay_warnings or len(args) > len(_NAMES) or "message" not in given or set(given) - {*_NAMES}:
        _refuse("warnings.warn")
    if not (given.get("source") is None or _is_none(given["source"])):
        _refuse("warnings.warn with a source")
    text, category = _message(given["message"], given.get("category"))
    _check_filters(tx, text, category)
    effect = defer_call(tx, tx.from_real(warnings.warn), args, kwargs, level=given.get("stacklevel"))
    effect.may_draw, effect.recorded = False, _record() is not None
    return ConstVal(None)


def _is_none(value: Value) -> bool:
    return isinstance(value, ConstVal) and value.value is None


def _message(message: Value, category: Value | None) -> tuple[str, type[Warning]]:
    """The text and the class that the filters look at."""
    if isinstance(message, ExceptionVal) and issubclass(message.cls, Warning):
        plain = not any(isinstance(getattr(message.cls, name), types.FunctionType) for name in ("__init__", "__str__"))
        if not plain or not all(arg.is_const() for arg in message.args.items):
            _refuse(f"warnings.warn of {message.describe()}")
        return str(message.real()), message.cls
    if not message.is_const() or type(message.const()) is not str:
        _refuse(f"warnings.warn of {message.describe()}")
    if category is None or _is_none(category):
        return message.const(), UserWarning
    if not isinstance(category, ClassVal) or not issubclass(category.obj, Warning):
        _refuse(f"warnings.warn of the category {category.describe()}")
    return message.const(), category.obj


def _may_raise(filters: Sequence[Filter], text: str, category: type[Warning]) -> bool:
    """Whether a filter may make an exception of the warning. Which module and line warn is left open."""
    for action, message, kind, module, line in filters:
        fits = issubclass(category, kind) and (message is None or message.match(text) is not None)
        if fits and action == "error":
            return True
        if fits and module is None and line == 0:
            return False
    return bool(_hooks.defaultaction == "error")


def _record() -> list[Any] | None:
    """The list that warnings are appended to, if they are recorded."""
    found = getattr(_hooks._showwarnmsg_impl, "__self__", None)
    return found if type(found) is list else None


def _is_current(module: Any) -> bool:
    return sys.modules.get("warnings") is module


def _shown_as_usual() -> bool:
    """Whether warnings are shown, logged or recorded by the library's own code."""
    if not _is_current(warnings):
        return False
    usual = (_hooks._showwarning_orig, getattr(logging, "_showwarning", None))
    shows = _hooks._showwarnmsg_impl
    own = _record() is not None or getattr(shows, "__module__", "").endswith("warnings")
    return _hooks.showwarning in usual and own


class _Harmless:
    """A guard's predicate: the warning would be shown as usual, and no filter makes an exception of it."""

    def __init__(self, text: str, category: type[Warning]) -> None:
        self.text, self.category = text, category
        self.seen: list[Filter] | None = None  # filters that were looked through
        self.default = ""
        self.recorded = _record() is not None

    def __call__(self, module: Any) -> bool:
        if module.filters != self.seen or module.defaultaction != self.default:
            if _may_raise(module.filters, self.text, self.category):
                return False
            self.seen, self.default = list(module.filters), module.defaultaction
        return _shown_as_usual() and self.recorded == (_record() is not None)


def _check_filters(tx: Tracer, text: str, category: type[Warning]) -> None:
    """Break where the warning may be an exception, or where the program may read it."""
    if tx.written_global(vars(warnings), None) is not None:
        _refuse("warnings.warn after the module's variables were written")
    filters = _followed(tx)
    if filters is None:
        harmless = _Harmless(text, category)
        if not harmless(warnings):
            _refuse("warnings.warn where filters make it an exception, or where the program shows it itself")
        tx.guard(_HERE, "PREDICATE", harmless, f"no filter raises {category.__name__}: {text[:40]!r}")
    elif _may_raise(filters, text, category) or not _shown_as_usual():
        _refuse("warnings.warn where filters make it an exception, or where the program shows it itself")
    else:
        usual = functools.partial(_still_usual, _record() is not None)
        tx.guard(_HERE, "PREDICATE", usual, "are shown or recorded as before")
    record = _record()
    if record is not None:
        if _reaches(tx, record):
            _refuse("warnings.warn where the function has the list of what is recorded")
        tx.journal.set_item(tx.recorded, id(record), record)


def _still_usual(recorded: bool, module: Any) -> bool:
    return _shown_as_usual() and recorded == (_record() is not None)


def _reaches(tx: Any, record: list[Any]) -> bool:
    """Whether the program has the list that warnings are appended to."""
    return tx.known_object(record, ConstSource(record, "<recorded>")) is not None or any(
        box.real is record for box in tx._boxes
    )


# ------------------------------------------------------------------------------------------- the filters, followed


def _followed(tx: Tracer) -> list[Filter] | None:
    """The filters as the program has made them; None: as they were outside."""
    return tx.warning_filters


def _filters(tx: Tracer) -> list[Filter]:
    followed = _followed(tx)
    if followed is not None:
        return followed
    found = list(warnings.filters)
    tx.guard(_HERE, "PREDICATE", functools.partial(_same_filters, found), "have the same filters")
    return found


def _same_filters(expected: list[Filter], module: Any) -> bool:
    return bool(module.filters == expected)


def _set(tx: Tracer, filters: list[Filter]) -> None:
    tx.journal.set_attr(tx, "warning_filters", filters)


def _with(filters: Sequence[Filter], made: Filter, append: bool) -> list[Filter]:
    """The filters with another one, as the library adds it."""
    if append:
        return list(filters) if made in filters else [*filters, made]
    rest = list(filters)
    if made in rest:
        rest.remove(made)
    return [made, *rest]


def _known(value: Value | None, default: Any) -> Any:
    """An argument: a constant, or a class."""
    if value is None:
        return default
    if not isinstance(value, ClassVal) and (not value.is_const() or value.symbolic):
        _refuse(f"a warnings filter of {value.describe()}")
    return value.real()


def _add(
    tx: Tracer, function: Callable[..., None], message: Any, module: Any, rest: Sequence[Any], given: dict[str, Value]
) -> Value:
    """Follow what the function does to the filters, and have it called."""
    action, category, line, append = rest
    texts = isinstance(message, str) and isinstance(module, str)
    fits = isinstance(category, type) and issubclass(category, Warning) and isinstance(line, int) and line >= 0
    if not config.replay_warnings or action not in _ACTIONS or not texts or not fits:
        _refuse(f"warnings.{function.__name__}")
    try:
        found = re.compile(message, re.I) if message else None, re.compile(module) if module else None
    except re.error as error:
        raise GraphBreak(breaks.RAISES, str(error)) from None
    filters = _with(_filters(tx), (action, found[0], category, found[1], line), bool(append))
    defer_call(tx, tx.from_real(function), [], given).may_draw = False
    _set(tx, filters)
    return ConstVal(None)


@builtin(warnings.simplefilter)
def simplefilter(
    tx: Tracer, action: Value, category: Value | None = None, lineno: Value | None = None, append: Value | None = None
) -> Value:
    given = {"action": action, "category": category, "lineno": lineno, "append": append}
    rest = _known(action, ""), _known(category, Warning), _known(lineno, 0), _known(append, False)
    return _add(tx, warnings.simplefilter, "", "", rest, _given(given))


@builtin(warnings.filterwarnings)
def filterwarnings(
    tx: Tracer,
    action: Value,
    message: Value | None = None,
    category: Value | None = None,
    module: Value | None = None,
    lineno: Value | None = None,
    append: Value | None = None,
) -> Value:
    given = {"action": action, "message": message, "category": category, "module": module}
    rest = _known(action, ""), _known(category, Warning), _known(lineno, 0), _known(append, False)
    every = _given({**given, "lineno": lineno, "append": append})
    return _add(tx, warnings.filterwarnings, _known(message, ""), _known(module, ""), rest, every)


def _given(values: dict[str, Value | None]) -> dict[str, Value]:
    return {name: value for name, value in values.items() if value is not None}


@builtin(warnings.resetwarnings)
def resetwarnings(tx: Tracer) -> Value:
    if not config.replay_warnings:
        _refuse("warnings.resetwarnings")
    defer_call(tx, tx.from_real(warnings.resetwarnings), [], {}).may_draw = False
    _set(tx, [])
    return ConstVal(None)


# ------------------------------------------------------------------------------------------------- catch_warnings


@builtin(warnings.catch_warnings.__init__)
def catch_warnings(tx: Tracer, self: Value, **kwargs: Value) -> Value:
    """What `__init__` does; what is made is entered, and left, by the library's own code."""
    if not isinstance(self, ObjVal) or self.cls is not warnings.catch_warnings or "module" in kwargs:
        _refuse("warnings.catch_warnings of another module, or of a subclass")
    if not config.replay_warnings or not _is_current(warnings):
        _refuse("warnings.catch_warnings")
    tx.guard(_HERE, "PREDICATE", _is_current, "is the one that is imported")
    action = kwargs.get("action", ConstVal(None))
    rest = [kwargs.get("category", tx.from_real(Warning)), kwargs.get("lineno", ConstVal(0))]
    chosen = action if _is_none(action) else tx.new_tuple([action, *rest, kwargs.get("append", ConstVal(False))])
    given = {
        "_record": kwargs.get("record", ConstVal(False)),
        "_module": tx.from_real(warnings),
        "_entered": ConstVal(False),
    }
    for name, value in {**given, "_filter": chosen}.items():
        self.setattr(tx, name, value)
    return ConstVal(None)


@builtin(warnings.catch_warnings.__enter__)
def enter(tx: Tracer, self: Value) -> Value:
    if not isinstance(self, ObjVal) or self.cls is not warnings.catch_warnings or self.source is not None:
        _refuse("warnings.catch_warnings from outside")
    if self.getattr(tx, "_entered").truth(tx) or id(self) in tx.saved_filters:
        raise GraphBreak(breaks.RAISES, "entering warnings.catch_warnings twice")
    if self.getattr(tx, "_record").truth(tx):
        _refuse("warnings.catch_warnings that records")
    before = _filters(tx)
    chosen = self.getattr(tx, "_filter")
    defer_call(tx, tx.from_real(warnings.catch_warnings.__enter__), [self], {}).may_draw = False
    tx.journal.set_item(tx.saved_filters, id(self), before)
    action, category, line, append = ("", Warning, 0, False) if _is_none(chosen) else map(_real, tx.unpack(chosen))
    _set(tx, before if not action else _with(before, (action, None, category, None, line), append))
    return ConstVal(None)


def _real(value: Value) -> Any:
    return _known(value, None)


@builtin(warnings.catch_warnings.__exit__)
def leave(tx: Tracer, self: Value, *error: Value) -> Value:
    before = tx.saved_filters.get(id(self))
    real = getattr(self, "real_object", None)
    if before is None and type(real) is warnings.catch_warnings and self.source is not None:
        before = getattr(real, "_filters", None)
        if type(before) is list and vars(real).get("_entered"):
            same = functools.partial(_restores, list(before))
            tx.guard(self.source, "PREDICATE", same, "restores the same filters")
    if type(before) is not list:
        _refuse("leaving a warnings.catch_warnings that was not entered, or keeps its filters elsewhere")
    nothing = [ConstVal(None)] * 3
    defer_call(tx, tx.from_real(warnings.catch_warnings.__exit__), [self, *nothing], {}).may_draw = False
    _set(tx, list(before))
    return ConstVal(None)


def _restores(expected: list[Filter], context: Any) -> bool:
    return bool(getattr(context, "_filters", None) == expected)
