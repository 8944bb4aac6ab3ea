"""Exception groups: what `except*` does with them, and their methods.

In: a group's model and a condition. Out: its two parts, as `BaseExceptionGroup.split` makes them (PEP 654).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dynajit.report import breaks
from dynajit.values.containers.sequence import ListVal, TupleVal
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.objects.exceptions import ExceptionVal
from dynajit.values.objects.lookup import in_python
from dynajit.values.objects.objects import ClassVal
from dynajit.values.scalars.constant import ConstVal

Condition = Callable[[ExceptionVal], bool]
NONE = ConstVal(None)


def _is_group(value: Value) -> bool:
    return isinstance(value, ExceptionVal) and issubclass(value.cls, BaseExceptionGroup)


def members(tx: Tracer, group: ExceptionVal) -> list[ExceptionVal]:
    """The exceptions in a group."""
    found = tx.unpack(group.args.item(tx, 1))
    if not all(isinstance(part, ExceptionVal) for part in found):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "an exception group of exceptions made outside")
    return found  # type: ignore[return-value]


def make_group(tx: Tracer, kind: type, args: Sequence[Value]) -> ExceptionVal:
    """`ExceptionGroup(message, exceptions)`."""
    if len(args) != 2 or args[0].py_type() is not str:
        raise GraphBreak(breaks.RAISES, f"TypeError: {kind.__name__}() takes a message and exceptions")
    parts = tx.unpack(args[1])
    if not parts or not all(isinstance(part, ExceptionVal) for part in parts):
        raise GraphBreak(breaks.RAISES, f"{kind.__name__}() of something else than exceptions")
    only_exceptions = all(issubclass(part.py_type(), Exception) for part in parts)
    if kind is BaseExceptionGroup and only_exceptions:
        kind = ExceptionGroup
    if issubclass(kind, Exception) and not only_exceptions:
        raise tx.raised(TypeError, f"Cannot nest BaseExceptions in an {kind.__name__}")
    return ExceptionVal(kind, [args[0], args[1]])


def derive(tx: Tracer, group: ExceptionVal, parts: Sequence[Value]) -> ExceptionVal:
    """A group like `group` of some of its exceptions."""
    if in_python(group.cls, "derive"):
        made = tx.call(group.getattr(tx, "derive"), [ListVal(parts)], {})
        if not isinstance(made, ExceptionVal):
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, "derive() that returns another thing than a group")
    else:
        made = make_group(tx, BaseExceptionGroup, [group.args.item(tx, 0), ListVal(parts)])
    made.cause, made.context, made.suppress = group.cause, group.context, group.suppress
    made.origin = group.origin or group
    return made


def split(tx: Tracer, error: ExceptionVal, condition: Condition) -> tuple[Value, Value]:
    """(what fulfils the condition, the rest), None for nothing."""
    if condition(error):
        return error, NONE
    if not _is_group(error):
        return NONE, error
    matching: list[Value] = []
    others: list[Value] = []
    for part in members(tx, error):
        match, rest = split(tx, part, condition)
        for found, collected in ((match, matching), (rest, others)):
            if found is not NONE:
                collected.append(found)
    if not matching:
        return NONE, error
    return derive(tx, error, matching), derive(tx, error, others) if others else NONE


def _traced(error: Value) -> ExceptionVal:
    """The exception, if it was raised while tracing."""
    if not isinstance(error, ExceptionVal):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"except* of {error.describe()}, raised before")
    return error


def match_star(tx: Tracer, error: Value, wanted: Value) -> tuple[Value, Value]:
    """What `except* wanted` takes of an exception, always as a group, and the rest."""
    kinds = tuple(kind.real() for kind in (wanted.values(tx) if isinstance(wanted, TupleVal) else [wanted]))
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise GraphBreak(breaks.RAISES, "TypeError: except* of what is no class of exceptions")
    if any(issubclass(kind, BaseExceptionGroup) for kind in kinds):
        raise tx.raised(TypeError, "catching ExceptionGroup with except* is not allowed. Use except instead.")
    if error.is_const():
        return NONE, NONE  # nothing is left
    match, rest = split(tx, _traced(error), lambda part: issubclass(part.cls, kinds))
    if isinstance(match, ExceptionVal) and not _is_group(match):
        match = make_group(tx, BaseExceptionGroup, [ConstVal(""), TupleVal([match])])
    return match, rest


def reraise_star(tx: Tracer, original: Value, raised: Value) -> Value:
    """What leaves the `except*` clauses: what they raised, and what none of them took."""
    errors = [_traced(part) for part in tx.unpack(raised) if not part.is_const()]
    if not errors:
        return NONE
    original = _traced(original)
    if not _is_group(original):
        return errors[0]
    untaken = [part for part in errors if part is original or part.origin is (original.origin or original)]
    new: list[Value] = [part for part in errors if part not in untaken]
    left: Value = NONE
    if untaken:
        leaves = {id(leaf) for part in untaken for leaf in _leaves(tx, part)}
        left = split(tx, original, lambda part: not _is_group(part) and id(part) in leaves)[0]
    if not new:
        return left
    return make_group(tx, BaseExceptionGroup, [ConstVal(""), ListVal([*new, *([left] if left is not NONE else [])])])


def _leaves(tx: Tracer, error: ExceptionVal) -> list[ExceptionVal]:
    if not _is_group(error):
        return [error]
    return [leaf for part in members(tx, error) for leaf in _leaves(tx, part)]


def condition_of(tx: Tracer, given: Value) -> Condition:
    """The condition that `split` and `subgroup` take: a class, several, or a function."""
    if isinstance(given, (ClassVal, TupleVal)):
        kinds = given.real()
        return lambda part: issubclass(part.cls, kinds)
    return lambda part: tx.call(given, [part], {}).truth(tx)
