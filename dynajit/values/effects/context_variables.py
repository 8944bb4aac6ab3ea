"""Context variables that the traced program sets: what they hold, and the tokens that set them back.

In: `ContextVar.get`, `set` and `reset`. Out: values, and effects: generated code sets a variable, after the graph,
unless it was set back before. A variable that the program didn't set is read, and guarded.
"""

from __future__ import annotations

import contextvars
from collections.abc import Sequence
from typing import Any, NamedTuple

from dynajit import _C
from dynajit.guards.source import AttrSource, CallSource, Source
from dynajit.report import breaks
from dynajit.values.core.effect import CallEffect
from dynajit.values.core.registry import builtin
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.effects.deferred import DeferredCall

_UNSET: Any = object()


class VariableContent(NamedTuple):
    """What a variable holds; None: it has no value."""

    value: Value | None


class TokenVal(Value):
    """What setting a variable gives.

    Attributes:
        before: what the variable held; None: what it held before the trace.
        pending: the tokens of the same variable whose effect comes before.
        is_used: whether a reset took it.
        is_undone: whether that left nothing to do.
    """

    kind = contextvars.Token

    def __init__(
        self, variable: Value, value: Value, before: VariableContent | None, pending: Sequence[TokenVal]
    ) -> None:
        self.variable = variable
        self.value = value
        self.before = before
        self.pending = pending
        self.is_used = False
        self.is_undone = False

    def getattr(self, tx: Tracer, name: str) -> Value:
        if name == "var":
            return self.variable
        if name == "old_value":
            before = self.before if self.before is not None else _held_outside(tx, self.variable)
            return before.value if before.value is not None else tx.from_real(contextvars.Token.MISSING)
        return super().getattr(tx, name)

    def children(self) -> Sequence[Value]:
        return (self.variable, self.value, *self.pending)

    def rebuild(self, out: Any) -> None:
        out.done.add(id(self))
        maker = _used_token if self.is_undone else contextvars.ContextVar.set
        out.call_on(maker, self.variable, self.value)

    def effect_children(self) -> Sequence[Value]:
        return () if self.is_undone else self.children()

    def emit_effect(self, out: Any) -> None:
        if not self.is_undone:
            out.prepare(self)


def _used_token(variable: contextvars.ContextVar[Any], value: Any) -> contextvars.Token[Any]:
    """In generated code: a token that can't be used any more."""
    token = variable.set(value)
    variable.reset(token)
    return token


# ------------------------------------------------------------------------------------------------ what the program does


@builtin(contextvars.ContextVar.get)
def get(tx: Tracer, variable: Value, default: Value | None = None) -> Value:
    real, source = _from_outside(tx, variable)
    written = tx.context_values.get(id(real))
    tx.journal.hidden_reads += written is not None
    held = written or _held_outside(tx, variable)
    if held.value is not None:
        return held.value
    if default is not None:
        return default
    own = _default_of(real)
    if own is _UNSET:
        raise GraphBreak(breaks.RAISES, f"LookupError: {real.name} has no value")
    return tx.wrap(own, CallSource(source, _default_of, "the default of {}"))


@builtin(contextvars.ContextVar.set)
def set_value(tx: Tracer, variable: Value, value: Value) -> Value:
    real, _ = _from_outside(tx, variable)
    if tx.runs_elsewhere or any(isinstance(effect, DeferredCall) for effect in _effects(tx)):
        # the variable is set before the deferred calls are made
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "setting a context variable after a call that was deferred")
    pending = [token for token in _tokens(tx) if _real(token.variable) is real]
    made = TokenVal(variable, value, tx.context_values.get(id(real)), pending)
    tx.journal.touch(made)
    tx.journal.set_item(tx.context_values, id(real), VariableContent(value))
    return made


@builtin(contextvars.ContextVar.reset)
def reset(tx: Tracer, variable: Value, token: Value) -> None:
    real, _ = _from_outside(tx, variable)
    if tx.runs_elsewhere:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "setting back a context variable")
    if not isinstance(token, TokenVal):
        before: VariableContent | None = _before_outside(tx, variable, token)
    elif token.is_used or _real(token.variable) is not real:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "setting back a context variable with a token that does not fit")
    else:
        before = token.before
        tx.journal.set_attr(token, "is_used", True)
    if isinstance(token, TokenVal) and _nothing_since(tx, token):
        tx.journal.set_attr(token, "is_undone", True)
    else:
        tx.journal.touch(CallEffect(tx.from_real(contextvars.ContextVar.reset), [variable, token]))
    tx.journal.changed.append(variable)
    tx.journal.set_item(tx.context_values, id(real), before)


def _real(variable: Value) -> contextvars.ContextVar[Any]:
    real = variable.real_object
    if type(real) is not contextvars.ContextVar or variable.source is None:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "a context variable made in the compiled function")
    return real


def _from_outside(tx: Tracer, variable: Value) -> tuple[contextvars.ContextVar[Any], Source]:
    """The variable, which is told by what it holds, and from those that were set: each call may make it anew."""
    real = _real(variable)
    source = variable.source
    assert source is not None
    for effect in _effects(tx):
        other = effect.variable if isinstance(effect, TokenVal) else effect.args[0] if _is_reset(effect) else None
        if other is not None and _real(other) is not real:
            tx.guard_distinct(variable, other)
    return real, source


def _value_alone(variable: contextvars.ContextVar[Any]) -> Any:
    return variable.get(_UNSET)


def _default_of(variable: contextvars.ContextVar[Any]) -> Any:
    try:
        return contextvars.Context().run(variable.get)
    except LookupError:
        return _UNSET


def _held_outside(tx: Tracer, variable: Value) -> VariableContent:
    """What it held before the trace."""
    real, source = _from_outside(tx, variable)
    found, read = _value_alone(real), CallSource(source, _value_alone, "{}.get(default)")
    if found is _UNSET:
        tx.guard(read, "ID", _UNSET)
        return VariableContent(None)
    return VariableContent(tx.wrap(found, read))


def _before_outside(tx: Tracer, variable: Value, token: Value) -> VariableContent:
    """What the variable holds when a token from before the trace has set it back."""
    real: Any = token.real_object
    source = token.source
    used = any(_is_reset(effect) and effect.args[-1] is token for effect in _effects(tx))
    if source is None or used or not (_C.token_is_usable(real) and real.var is _real(variable)):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "setting back a context variable with a token that does not fit")
    tx.guard(source, "PREDICATE", _C.token_is_usable, "was not used")
    tx.guard(AttrSource(source, "var"), "SAME_OBJECT", variable.source)
    old, read = _old_value(real), CallSource(source, _old_value, "{}.old_value")
    if old is contextvars.Token.MISSING:
        tx.guard(read, "ID", old)
        return VariableContent(None)
    return VariableContent(tx.wrap(old, read))


def _old_value(token: contextvars.Token[Any]) -> Any:
    return token.old_value


def _effects(tx: Tracer) -> list[Any]:
    return list(tx.journal.dirty.values())


def _is_reset(effect: Any) -> bool:
    return isinstance(effect, CallEffect) and getattr(effect.function, "obj", None) is contextvars.ContextVar.reset


def _tokens(tx: Tracer) -> list[TokenVal]:
    """Those whose effect comes at the end of the trace."""
    return [effect for effect in _effects(tx) if isinstance(effect, TokenVal) and not effect.is_undone]


def _nothing_since(tx: Tracer, token: TokenVal) -> bool:
    """Whether nothing that comes after the token's effect, at the end of the trace, depends on it."""
    effects = _effects(tx)
    for effect in effects[effects.index(token) + 1 :]:
        if isinstance(effect, DeferredCall) or _is_reset(effect):
            return False
        if isinstance(effect, TokenVal) and not effect.is_undone and token in effect.pending:
            return False
    return True
