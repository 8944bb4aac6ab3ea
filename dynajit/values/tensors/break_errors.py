"""Blocks in which a graph break is an error: `dynajit.error_on_graph_break`.

In: the program's `with` blocks and decorated functions. Out: `are_errors()`, asked where a break is planned. The state
belongs to the thread; while tracing it is changed for real, so that it holds where tracing stands, and undone with the
journal; generated code changes it where a block is entered or left (`torch_state.SETTINGS`).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from dynajit.exc import ConfigError
from dynajit.values.core.registry import builtin
from dynajit.values.core.value import Tracer, Value
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.tensors.torch_state import SETTINGS, Setting

F = TypeVar("F", bound=Callable[..., Any])


class _Thread(threading.local):
    errors = False


_thread = _Thread()


def are_errors() -> bool:
    """Whether graph breaks are errors in this thread now."""
    return _thread.errors


def set_errors(errors: bool) -> None:
    """Make graph breaks errors in this thread, or none."""
    _thread.errors = errors


class error_on_graph_break:
    """Make graph breaks errors in a block, as under `fullgraph=True`, or allow them in a block inside of such a one.

    A context manager in compiled code or around calls of it, and a decorator of functions. It speaks of what is
    captured under it: code compiled before keeps its breaks. Under `fullgraph=True` every break is an error anyway.

    Args:
        error: True raises `Unsupported` at a break, False breaks the graph.

    Raises:
        ConfigError: `error` is no bool.
    """

    def __init__(self, error: bool) -> None:
        if not isinstance(error, bool):
            raise ConfigError(f"error_on_graph_break takes True or False, not {error!r}")
        self.error = error
        self.before: list[bool] = []

    def __enter__(self) -> None:
        self.before.append(are_errors())
        set_errors(self.error)

    def __exit__(self, *exc_info: object) -> None:
        set_errors(self.before.pop())

    def __call__(self, fn: F) -> F:
        error = self.error

        @functools.wraps(fn)
        def held(*args: Any, **kwargs: Any) -> Any:
            with error_on_graph_break(error):
                return fn(*args, **kwargs)

        return held  # type: ignore[return-value]


@builtin(are_errors)
def are_errors_model(tx: Tracer) -> Value:
    return ConstVal(are_errors())


@builtin(set_errors)
def set_errors_model(tx: Tracer, errors: Value) -> None:
    before = are_errors()
    set_errors(errors.const())
    tx.journal.record(functools.partial(set_errors, before))


SETTINGS.append(Setting(set_errors, are_errors, of_thread=True))
