"""`contextvars`."""

from __future__ import annotations

import contextvars

from dynajit.values.base import Tracer, Value
from dynajit.values.builtins.registry import builtin
from dynajit.values.constant import ConstVal
from dynajit.values.effects import context_variables


@builtin(contextvars.ContextVar.get)
def get(tx: Tracer, self: Value, default: Value | None = None) -> Value:
    return context_variables.get(tx, self, default)


@builtin(contextvars.ContextVar.set)
def set_value(tx: Tracer, self: Value, value: Value) -> Value:
    return context_variables.set_value(tx, self, value)


@builtin(contextvars.ContextVar.reset)
def reset(tx: Tracer, self: Value, token: Value) -> Value:
    context_variables.reset(tx, self, token)
    return ConstVal(None)
