"""What a program says of single functions: one operation of the graph, no part of it, a constant.

In: functions, marked by `allow_in_graph`, `disallow_in_graph`, `assume_constant_result` (public as `dynajit.…`, with
the meaning that `torch.compiler` gives these names). Out: the marks, read where calls are modelled. One more mark: a
function here, and where it is read in `dynajit/interp/calls.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from dynajit.exc import ConfigError
from dynajit.graph.opaque import OPAQUE
from dynajit.report import breaks
from dynajit.values.base import GraphBreak, Tracer, Value
from dynajit.values.builtins.registry import BUILTINS

F = TypeVar("F", bound=Callable[..., Any])


def allow_in_graph(fn: F) -> F:
    """Make a call of `fn` one operation of the graph: its body is not captured, but run with stand-ins for tensors.

    For functions of tensors that capturing can't follow. Their Python code runs while the graph is compiled, and must
    not depend on tensors' values nor on anything that changes; what it relies on is not guarded. Also a decorator.

    Args:
        fn: takes tensors, numbers and containers of them; returns a tensor or a tuple or list of tensors.

    Raises:
        ConfigError: `fn` is not a function.
    """
    _check(fn, "allow_in_graph")
    BUILTINS.pop(fn, None)
    OPAQUE.add(fn)
    return fn


def disallow_in_graph(fn: F) -> F:
    """End the graph at each call of `fn`, which is then called as it is. Also a decorator.

    Args:
        fn: a function, such as torch.sub. Calls by another name of the same operation (`a - b`, `a.sub(b)`) stay in
            the graph.

    Raises:
        ConfigError: `fn` is not a function.
    """
    _check(fn, "disallow_in_graph")
    OPAQUE.discard(fn)
    BUILTINS[fn] = _Disallowed(fn)
    return fn


def assume_constant_result(fn: F) -> F:
    """Promise that `fn` gives the same result for equal arguments as long as the process lives. Also a decorator.

    A captured call of it is made once, while capturing, and its result is a constant; nothing that it reads is guarded.

    Args:
        fn: a Python function whose arguments are plain data.

    Raises:
        ConfigError: `fn` is not a function written in Python.
    """
    if not hasattr(fn, "__code__"):
        raise ConfigError(f"assume_constant_result() needs a function written in Python, not {fn!r}")
    fn._dynajit_constant = True  # type: ignore[attr-defined]
    return fn


class _Disallowed:
    """The model of a function that is no part of graphs."""

    def __init__(self, fn: Any) -> None:
        self.name = getattr(fn, "__qualname__", repr(fn))

    def __call__(self, tx: Tracer, *args: Value, **kwargs: Value) -> NoReturn:
        raise GraphBreak(breaks.DISALLOWED, self.name)


def _check(fn: Any, mark: str) -> None:
    if isinstance(fn, type) or not callable(fn) or not hasattr(fn, "__name__"):
        raise ConfigError(f"{mark}() needs a function, not {fn!r}")
