"""Models of `warnings`: calls that warn or change the filters are made by generated code, in the program's order.

In: arguments as values. Out: effects. The filters are followed while tracing, since one of them may make
an exception of a warning: there the graph ends, and so it does where the program reads what was recorded.
"""

from __future__ import annotations

import functools
import inspect
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
from dynajit.torch_warnings import filters_of_program, program_warns_always
from dynajit.values.containers.lazy_list import OutsideList
from dynajit.values.core.registry import builtin
from dynajit.values.core.slots import ending_graph
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.effects.deferred import break_outside_forward, defer_call
from dynajit.values.effects.table import Arguments, Rule, When, register
from dynajit.values.objects.exceptions import ExceptionVal
from dynajit.values.objects.objects import ClassVal, ObjVal
from dynajit.values.scalars.constant import ConstVal, is_none

Filter = tuple[Any, ...]
_ACTIONS = ("error", "ignore", "always", "default", "module", "once", "all")
_NAMES = ("message", "category", "stacklevel", "source")
_RAISING, _REPEATING = frozenset({"error"}), frozenset({"error", "always", "all"})
_FILTER = ("action", "category", "lineno")
_DEFAULTS = {"message": "", "category": Warning, "module": "", "lineno": 0, "append": False}
_HERE = ConstSource(warnings, "warnings")
_hooks: Any = warnings


def _refuse(detail: str) -> NoReturn:
    raise GraphBreak(breaks.OUTPUT_CALL, detail)


@builtin(warnings.warn)
def warn(tx: Tracer, *args: Value, **kwargs: Value) -> None:
    given = {**dict(zip(_NAMES, args, strict=False)), **kwargs}
    anywhere = given.get("skip_file_prefixes")  # looks through all frames
    break_outside_forward(tx, "warnings.warn", given.get("stacklevel") if anywhere is None else anywhere)
    if not config.replay_warnings or len(args) > len(_NAMES) or "message" not in given or set(given) - {*_NAMES}:
        _refuse("warnings.warn")
    if not is_none(given.get("source")):
        _refuse("warnings.warn with a source")
    text, category = _message(given["message"], given.get("category"))
    _defer(tx, text, category, warnings.warn, args, kwargs)


def warns_through(tx: Tracer, function: Callable[[], Any], text: str, category: type[Warning]) -> None:
    """Have generated code call a function that gives this warning."""
    if not config.replay_warnings:
        _refuse("warnings.warn")
    if tx.static_numbers:
        _warns_by_itself(tx, text, category)
    else:
        _defer(tx, text, category, function, (), {})


def _warns_by_itself(tx: Tracer, text: str, category: type[Warning]) -> None:
    """What is traced here is run for real by the graph, or when that is compiled: it warns then. That is what eager
    mode does if a line warns only once."""
    once = _Harmless(text, category, _REPEATING)
    if tx.warning_filters is not None or _record() is not None or not once(warnings):
        _refuse("warnings.warn where each time counts")
    tx.guard(_HERE, "PREDICATE", once, f"shows {category.__name__} once: {text[:40]!r}")


def _defer(
    tx: Tracer,
    text: str,
    category: type[Warning],
    function: Callable[..., Any],
    args: Sequence[Value],
    kwargs: dict[str, Value],
) -> None:
    _check_filters(tx, text, category)
    effect = defer_call(tx, tx.from_real(function), args, kwargs)
    effect.may_draw = False
    if _record() is not None:  # in another call that may be any list from outside
        effect.comes_too_late.append(_knows_a_list)


def _knows_a_list(tx: Tracer) -> bool:
    return any(isinstance(model, OutsideList) for model in tx.models)


def _message(message: Value, category: Value | None) -> tuple[str, type[Warning]]:
    """The text and the class that the filters look at."""
    if isinstance(message, ExceptionVal) and issubclass(message.cls, Warning):
        plain = not any(isinstance(getattr(message.cls, name), types.FunctionType) for name in ("__init__", "__str__"))
        if not plain or not all(arg.is_const() for arg in message.args.items):
            _refuse(f"warnings.warn of {message.describe()}")
        return str(message.real()), message.cls
    if not message.is_const() or type(message.const()) is not str:
        _refuse(f"warnings.warn of {message.describe()}")
    if category is None or is_none(category):
        return message.const(), UserWarning
    if not isinstance(category, ClassVal) or not issubclass(category.obj, Warning):
        _refuse(f"warnings.warn of the category {category.describe()}")
    return message.const(), category.obj


def _actions(filters: Sequence[Filter], text: str, category: type[Warning]) -> set[str]:
    """What may be done with the warning. Which module and line warn is left open."""
    found = set()
    for action, message, kind, module, line in filters:
        if issubclass(category, kind) and (message is None or message.match(text) is not None):
            found.add(action)
            if module is None and line == 0:
                return found
    return found | {_hooks.defaultaction}


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
    """A guard's predicate: the warning would be shown as usual, and no filter does with it what is `refused`."""

    def __init__(self, text: str, category: type[Warning], refused: frozenset[str] = _RAISING) -> None:
        self.text, self.category, self.refused = text, category, refused
        self.seen: list[Filter] | None = None  # filters that were looked through
        self.default = ""
        self.recorded = _record() is not None

    def __call__(self, module: Any) -> bool:
        if module.filters != self.seen or module.defaultaction != self.default:
            if not self.refused.isdisjoint(_actions(module.filters, self.text, self.category)):
                return False
            self.seen, self.default = list(module.filters), module.defaultaction
        return _still_usual(self.recorded, module)


def _check_filters(tx: Tracer, text: str, category: type[Warning]) -> None:
    """Break where the warning may be an exception, or where the program may read it."""
    if tx.written_global(vars(warnings), None) is not None:
        _refuse("warnings.warn after the module's variables were written")
    filters = tx.warning_filters
    record = _record()
    harmless: Callable[[Any], bool] = functools.partial(_still_usual, record is not None)
    told = "are shown or recorded as before"
    if filters is None:
        harmless, told = _Harmless(text, category), f"no filter raises {category.__name__}: {text[:40]!r}"
    raises = filters is not None and not _RAISING.isdisjoint(_actions(filters, text, category))
    if raises or not harmless(warnings):
        _refuse("warnings.warn where filters make it an exception, or where the program shows it itself")
    tx.guard(_HERE, "PREDICATE", harmless, told)
    if record is not None:
        if _reaches(tx, record):
            _refuse("warnings.warn where the function has the list of what is recorded")
        tx.journal.set_item(tx.recorded, id(record), record)


def _still_usual(recorded: bool, module: Any) -> bool:
    return _shown_as_usual() and recorded == (_record() is not None)


def _reaches(tx: Tracer, record: list[Any]) -> bool:
    """Whether the program has the list that warnings are appended to."""
    return tx.known_object(record, ConstSource(record, "<recorded>")) is not None or any(
        box.real is record for box in tx.boxes
    )


def warns_always(tx: Tracer) -> bool:
    """Whether torch's own warnings, of which most come once in a process, come each time."""
    always = program_warns_always()
    tx.guard(
        _HERE, "PREDICATE", functools.partial(_warns_as_often, always), f"come {'each time' if always else 'once'}"
    )
    return always


def _warns_as_often(always: bool, _: Any) -> bool:
    return program_warns_always() == always


# ------------------------------------------------------------------------------------------- the filters, followed


def _filters(tx: Tracer) -> list[Filter]:
    """The filters as the program has made them, or as they were outside, guarded."""
    if tx.warning_filters is not None:
        return tx.warning_filters
    found = filters_of_program()
    tx.guard(_HERE, "PREDICATE", functools.partial(_same_filters, found), "have the same filters")
    return found


def _same_filters(expected: list[Filter], _: Any) -> bool:
    return filters_of_program() == expected


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


def _known(value: Value) -> Any:
    """An argument: a constant, or a class."""
    if not isinstance(value, ClassVal) and (not value.is_const() or value.symbolic):
        _refuse(f"a warnings filter of {value.describe()}")
    return value.real()


def _of_filter(rule: Rule, tx: Tracer, *args: Value, **kwargs: Value) -> Arguments:
    """The arguments of what adds a filter, which is followed."""
    given = {**dict(zip(inspect.signature(rule.function).parameters, args, strict=False)), **kwargs}
    found = {**_DEFAULTS, **{name: _known(value) for name, value in given.items()}}
    action, category, line, message, module = (found[name] for name in (*_FILTER, "message", "module"))
    texts = isinstance(message, str) and isinstance(module, str)
    fits = isinstance(category, type) and issubclass(category, Warning) and isinstance(line, int) and line >= 0
    if not config.replay_warnings or action not in _ACTIONS or not texts or not fits:
        _refuse(rule.name)
    with ending_graph(breaks.RAISES, rule.name, re.error):
        looked_for = re.compile(message, re.I) if message else None, re.compile(module) if module else None
    _set(tx, _with(_filters(tx), (action, looked_for[0], category, looked_for[1], line), bool(found["append"])))
    return [], given


def _of_reset(rule: Rule, tx: Tracer) -> Arguments:
    if not config.replay_warnings:
        _refuse(rule.name)
    _set(tx, [])
    return [], {}


# ------------------------------------------------------------------------------------------------- catch_warnings


@builtin(warnings.catch_warnings.__init__)
def catch_warnings(tx: Tracer, self: Value, **kwargs: Value) -> None:
    """What `__init__` does; what is made is entered, and left, by the library's own code."""
    if not isinstance(self, ObjVal) or self.cls is not warnings.catch_warnings or "module" in kwargs:
        _refuse("warnings.catch_warnings of another module, or of a subclass")
    if not config.replay_warnings or not _is_current(warnings):
        _refuse("warnings.catch_warnings")
    tx.guard(_HERE, "PREDICATE", _is_current, "is the one that is imported")
    action = kwargs.get("action", ConstVal(None))
    rest = [kwargs.get("category", tx.from_real(Warning)), kwargs.get("lineno", ConstVal(0))]
    chosen = action if is_none(action) else tx.new_tuple([action, *rest, kwargs.get("append", ConstVal(False))])
    record = kwargs.get("record", ConstVal(False))
    for name, value in (("_record", record), ("_module", tx.from_real(warnings)), ("_entered", ConstVal(False))):
        self.setattr(tx, name, value)
    self.setattr(tx, "_filter", chosen)


def _of_entry(rule: Rule, tx: Tracer, self: Value) -> Arguments:
    if not isinstance(self, ObjVal) or self.cls is not warnings.catch_warnings or self.source is not None:
        _refuse("warnings.catch_warnings from outside")
    if self.getattr(tx, "_entered").truth(tx) or id(self) in tx.saved_filters:
        raise GraphBreak(breaks.RAISES, "entering warnings.catch_warnings twice")
    if self.getattr(tx, "_record").truth(tx):
        _refuse("warnings.catch_warnings that records")
    before, chosen = _filters(tx), self.getattr(tx, "_filter")
    tx.journal.set_item(tx.saved_filters, id(self), before)
    action, category, line, append = ("", Warning, 0, False) if is_none(chosen) else map(_known, tx.unpack(chosen))
    _set(tx, before if not action else _with(before, (action, None, category, None, line), append))
    return [self], {}


def _of_exit(rule: Rule, tx: Tracer, self: Value, *error: Value) -> Arguments:
    before = tx.saved_filters.get(id(self))
    real = self.real_object
    if before is None and type(real) is warnings.catch_warnings and self.source is not None:
        before = getattr(real, "_filters", None)
        if type(before) is list and vars(real).get("_entered"):
            same = functools.partial(_restores, list(before))
            tx.guard(self.source, "PREDICATE", same, "restores the same filters")
    if type(before) is not list:
        _refuse("leaving a warnings.catch_warnings that was not entered, or keeps its filters elsewhere")
    _set(tx, list(before))
    return [self, *[ConstVal(None)] * 3], {}


def _restores(expected: list[Filter], context: Any) -> bool:
    return bool(getattr(context, "_filters", None) == expected)


register(
    [
        Rule("warnings.simplefilter", warnings.simplefilter, _of_filter, when=When.EFFECT),
        Rule("warnings.filterwarnings", warnings.filterwarnings, _of_filter, when=When.EFFECT),
        Rule("warnings.resetwarnings", warnings.resetwarnings, _of_reset, when=When.EFFECT),
        Rule("catch_warnings.__enter__", warnings.catch_warnings.__enter__, _of_entry, when=When.EFFECT),
        Rule("catch_warnings.__exit__", warnings.catch_warnings.__exit__, _of_exit, when=When.EFFECT),
    ]
)
