"""A capture that changes nothing: each function is replaced by a clone of itself, so any program can be run through the
hook and must behave as in eager Python."""

from __future__ import annotations

import types
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from dynajit import _C

CO_VARIADIC = 0x04 | 0x08


def flatten_parameters(fn: types.FunctionType) -> types.FunctionType:
    """The same body with all of fn's parameters positional, as a variant's function wants it."""
    code = fn.__code__
    variadic = bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    flat = code.replace(
        co_argcount=code.co_argcount + code.co_kwonlyargcount + variadic,
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_flags=code.co_flags & ~CO_VARIADIC,
    )
    return types.FunctionType(flat, fn.__globals__, fn.__name__)


class CloneCapture:
    """Callback. Clones what is of `filename` and has no free variables; everything else is skipped."""

    def __init__(self, filename: str, needs_hook: bool = True, guards: Callable[..., list[Any]] | None = None) -> None:
        self.filename = filename
        self.needs_hook = needs_hook
        self.guards = guards
        self.seen: list[str] = []
        self.reasons: list[list[int]] = []

    def __call__(self, code: Any, fn: Any, local_values: tuple[Any, ...], reasons: list[Any]) -> _C.Variant | None:
        assert _C.get_callback() is None
        assert fn.__code__ is code
        if code.co_filename != self.filename or code.co_freevars:
            _C.mark_skip(code)
            return None
        self.seen.append(code.co_name)
        self.reasons.append([index for _, index in reasons])
        instructions = self.guards(local_values) if self.guards else []
        program = _C.GuardProgram(instructions, len(local_values), fn.__globals__)
        variant = _C.Variant(program, flatten_parameters(fn), self.needs_hook, fn.__globals__, key=_C.current_key())
        _C.add_variant(code, variant)
        return variant


@contextmanager
def hooked(callback: Any) -> Any:
    """The callback on, for what runs inside; the harness's own frames are skipped."""
    previous = _C.set_callback(callback, callback)
    try:
        yield callback
    finally:
        _C.set_callback(previous)


def compiled(fn: Any, callback: Any, **options: Any) -> Any:
    """A CompiledFunction, with a key of its own."""
    return _C.CompiledFunction(fn, callback, **options)
