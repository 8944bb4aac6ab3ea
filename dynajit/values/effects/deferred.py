"""Calls that are only effects: made for real by the generated code, after the graph.

In: a function whose result the program can't depend on (it is None), such as a logger's methods. Out: an entry in the
journal, made where the program's frames stood, since loggers and warnings tell a line. What such a call may print has
to be as it was then: if it changes later on, the graph ends at the call instead. To let another function be replayed,
add it to `is_replayed`.
"""

from __future__ import annotations

import functools
import logging
import re
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from dynajit.config import config
from dynajit.guards.source import ConstSource
from dynajit.report import breaks
from dynajit.values.base import GraphBreak, Tracer, Value
from dynajit.values.constant import ConstVal
from dynajit.values.effects.loggers import Handlers
from dynajit.values.mapping import DictVal
from dynajit.values.outside_list import OutsideList
from dynajit.values.sequence import ListVal, TupleVal
from dynajit.values.symbolic import SymVal
from dynajit.values.tensor import TensorVal
from dynajit.values.watched import Watched

_LOGGER_METHODS = frozenset({"debug", "info", "warning", "warn", "error", "critical", "exception", "log"})
_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "exception": logging.ERROR,
    "critical": logging.CRITICAL,
}


# a conversion with its flags, width and precision: its letter
_CONVERSION = re.compile(r"%[#0\- +]*\d*(?:\.\d+)?([srdeEfFgG])")
_MOST = 1 << 62  # an int that is a float as well


class Place(NamedTuple):
    """Where an inlined frame stood."""

    code_object: types.CodeType
    globals: dict[str, Any]
    current: Any


class DeferredCall(Value):
    """One call to make, in order with the other effects.

    Attributes:
        positions: of the outermost frame's instruction; None: nobody asks where the call is made.
        places: of the inlined frames.
        at: the interpreter's state before the call.
        unchanged: what the call may print, if that can change.
        loggers: objects whose attributes say what becomes of it.
        handlers: who is told of it, and may change what the program reads then.
        recorded: whether what it does is appended to a list; in another call that may be any list from outside.
        may_draw: whether what it runs may draw random numbers.
    """

    def __init__(self, function: Value, args: Sequence[Value], kwargs: dict[str, Value], positions: Any = None) -> None:
        self.function = function
        self.args = list(args)
        self.kwargs = dict(kwargs)
        self.positions = positions
        self.places: list[Place] = []
        self.at: Any = None
        self.unchanged: Unchanged | None = None
        self.may_draw = True
        self.loggers: list[Value] = []
        self.handlers: Handlers | None = None
        self.recorded = False

    def py_type(self) -> type:
        return type(None)

    def describe(self) -> str:
        return f"a call of {self.function.describe()}"

    def effect_children(self) -> Sequence[Value]:
        return (self.function, *self.args, *self.kwargs.values())

    def emit_effect(self, out: Any) -> None:
        if self.positions is not None:
            out.emit.set_location(self.positions)
        out.call_placed(self.places, self.function, [*self.args, *self.kwargs.values()], tuple(self.kwargs))
        out.emit.pop_top()


class Unchanged:
    """What a call that was put off may look at, as it was then."""

    def __init__(self, tx: Tracer, effect: DeferredCall, values: Sequence[Value]) -> None:
        self.effect = effect
        self._known = all(_is_known(value) for value in values)
        self._watched = Watched(values)
        self._changes = tx.journal.changes
        tensors = [value for value in values if isinstance(value, TensorVal)] if self._known else tx.tensors.values()
        self._versions = [(tensor.fake, _version(tensor.fake)) for tensor in tensors]

    def broken(self, tx: Tracer) -> bool:
        """Whether anything of it is otherwise now."""
        if self._watched.changed() is not None or any(_version(fake) != then for fake, then in self._versions):
            return True
        if self._known:
            return False
        # the program's own code prints it: it may look at anything
        calls = [value for value in tx.journal.dirty.values() if isinstance(value, DeferredCall)]
        later = next(number for number, value in enumerate(reversed(calls)) if value is self.effect)
        return tx.journal.changes > self._changes + later


def _version(fake: torch.Tensor) -> int | None:
    return None if fake.is_inference() else fake._version


def _is_known(value: Value) -> bool:
    """Whether all that its text depends on is seen: numbers, tensors, and builtin containers of these made here."""
    if isinstance(value, (ConstVal, SymVal, TensorVal)):
        return True
    if value.source is not None or not isinstance(value, (TupleVal, ListVal, DictVal)):
        return value.is_const() and not value.symbolic
    return all(_is_known(part) for part in value.children())


def broken_effect(tx: Tracer) -> DeferredCall | None:
    """The first call put off whose arguments are others now than they were."""
    for value in tx.journal.dirty.values():
        if not isinstance(value, DeferredCall):
            continue
        if value.unchanged is not None and value.unchanged.broken(tx):
            return value
        if any(_is_changed(tx, logger) for logger in value.loggers):
            return value
        if value.handlers is not None and value.handlers.looked_at(tx):
            return value
        if value.recorded and any(isinstance(model, OutsideList) for model in tx._models):  # type: ignore[attr-defined]
            return value
    return None


def is_replayed(function: Any, args: Sequence[Value]) -> bool:
    """Whether calling the function with these arguments is an effect without a result: logging, to a real logger."""
    if not config.replay_logging:
        return False
    name = getattr(function, "__name__", "")
    if name in _LOGGER_METHODS and function is getattr(logging, name, None):
        return True
    if not args or not issubclass(args[0].py_type(), (logging.Logger, logging.LoggerAdapter)):
        return False
    if isinstance(function, functools._lru_cache_wrapper):
        return getattr(function, "__wrapped__", None) is not None
    owner = logging.Logger if issubclass(args[0].py_type(), logging.Logger) else logging.LoggerAdapter
    return name in _LOGGER_METHODS and function is getattr(owner, name)


def replay(tx: Tracer, function: Value, args: Sequence[Value], kwargs: dict[str, Value], name: str = "") -> Value:
    """Put the call of a logger's method (or the function of `logging`) of this name off to the generated code."""
    if tx.handled is not None and (name == "exception" or not {"exc_info", "stack_info"}.isdisjoint(kwargs)):
        raise GraphBreak(breaks.OUTPUT_CALL, f"{name}() of the exception that is being handled")
    if "stack_info" in kwargs:
        raise GraphBreak(breaks.OUTPUT_CALL, f"{name}() of the stack")
    logged = [value for value in (*args, *kwargs.values()) if not _is_logger(value)]
    loggers = [value for value in args if _is_logger(value)]
    if any(_is_changed(tx, logger) for logger in loggers) or _is_namespace_written(tx, logging):
        raise GraphBreak(breaks.OUTPUT_CALL, f"{name}() of a logger that was changed")
    if not all(map(_never_changes, logged)) and _is_off(tx, args, name):
        return ConstVal(None)
    message = [value for value in args if not _is_logger(value)][name == "log" :]
    if name and not _formats(message):
        raise GraphBreak(breaks.OUTPUT_CALL, f"{name}() whose message may not fit its arguments")
    effect = defer_call(tx, function, args, kwargs, logged, kwargs.get("stacklevel"))
    effect.loggers, effect.handlers = loggers, Handlers(tx, loggers[0] if loggers else None)
    return ConstVal(None)


def defer_call(
    tx: Tracer,
    function: Value,
    args: Sequence[Value],
    kwargs: dict[str, Value],
    printed: Sequence[Value] = (),
    level: Value | None = None,
) -> DeferredCall:
    """Have the generated code make a call where the program stands.

    Args:
        tx: the interpreter.
        function: what is called.
        args: its arguments.
        kwargs: its named arguments.
        printed: arguments whose contents it looks at.
        level: how many frames out it looks for the line to tell.
    """
    if tx.runs_elsewhere:
        raise GraphBreak(breaks.OUTPUT_CALL, f"{function.describe()} in {tx.runs_elsewhere}")
    frames: Any = tx.frames  # type: ignore[attr-defined]
    if level is not None and (not level.is_const() or type(level.const()) is not int):
        raise GraphBreak(breaks.OUTPUT_CALL, f"{function.describe()} whose stack level is not known")
    for depth in range(len(frames) - 1, max(len(frames) - level.const(), 0) if level is not None else len(frames), -1):
        if _is_modules_forward(frames[depth]):
            told = f"{function.describe()} that tells a line outside of a module's forward"
            raise GraphBreak(breaks.OUTPUT_CALL, told, at=tx.snapshot(depth))
    effect = DeferredCall(function, args, kwargs, frames[0].current.positions)
    effect.places = [
        Place(frame.code_object, frame.globals, frame.current)
        for frame in frames[1:]
        if not str(frame.globals.get("__name__")).startswith("dynajit.")
    ]
    printed = [value for value in printed if not _never_changes(value)]
    tx.journal.touch(effect)
    if printed:
        if tx.globals_written and not all(map(_is_known, printed)):  # type: ignore[attr-defined]
            raise GraphBreak(breaks.OUTPUT_CALL, f"{function.describe()} of an object, after globals were written")
        effect.unchanged = Unchanged(tx, effect, printed)
    effect.at = tx.snapshot()
    return effect


def _is_changed(tx: Tracer, value: Value) -> bool:
    """Whether the program has set attributes of an object from outside."""
    parts = (value, getattr(value, "_dict", None))
    return any(part is not None and id(part) in tx.journal.dirty for part in parts)


def _is_namespace_written(tx: Tracer, module: types.ModuleType) -> bool:
    return tx.written_global(vars(module), None) is not None


def _is_modules_forward(frame: Any) -> bool:
    """Whether torch's frames, which are not traced, may be between this one and its caller: the module is then called
    for real."""
    names = frame.code_object.co_varnames
    owner = frame.locals.get(names[0]) if names and frame.code_object.co_name == "forward" else None
    return isinstance(owner, Value) and issubclass(owner.py_type(), torch.nn.Module)


def _formats(args: Sequence[Value]) -> bool:
    """Whether the message is sure to be made of its arguments without an exception."""
    template = args[0] if args else None
    if template is None or not template.is_const() or template.py_type() is not str:
        return len(args) == 1
    given = args[1:]
    if not given:
        return True
    if all(value.is_const() and not value.symbolic for value in given):
        values = tuple(value.const() for value in given)
        named = len(values) == 1 and isinstance(values[0], Mapping) and bool(values[0])
        try:
            _ = template.const() % (values[0] if named else values)
        except (TypeError, ValueError, KeyError):
            return False
        return True
    text = template.const().replace("%%", "")
    specs = _CONVERSION.findall(text)
    if text.count("%") == len(specs) == len(given) and all(map(_converts, specs, given)):
        return True
    return isinstance(given[0], DictVal)


def _converts(spec: str, value: Value) -> bool:
    """Whether a conversion of `%` takes the value, whatever it is when the call is made."""
    kind = value.py_type()
    if spec in "srd":
        return spec != "d" or kind in (int, bool)
    if isinstance(value, SymVal):
        return kind in (int, float)
    return value.is_const() and (kind is float or (kind is int and abs(value.const()) < _MOST))


def _is_logger(value: Value) -> bool:
    return issubclass(value.py_type(), (logging.Logger, logging.LoggerAdapter))


def _never_changes(value: Value) -> bool:
    if isinstance(value, TupleVal) and value.source is None:
        return all(map(_never_changes, value.children()))
    return isinstance(value, SymVal) or value.is_const()


def _is_off(tx: Tracer, args: Sequence[Value], name: str) -> bool:
    """Whether the logger drops records of this level; if so, that is guarded."""
    logger = args[0] if args else None
    real: Any = getattr(logger, "real_object", None)
    if type(real) not in (logging.Logger, logging.RootLogger) or logger is None or logger.source is None:
        return False
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
