"""What a program says of single functions: one operation of the graph, no part of it, a constant.

In: functions, marked by `allow_in_graph`, `disallow_in_graph`, `assume_constant_result` (public as `dynajit.…`, with
the meaning that `torch.compiler` gives these names). Out: the marks, read where calls are modelled. One more mark: a
function here, and where it is read in `dynajit/interp/calls.py`.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from dynajit.exc import ConfigError
from dynajit.graph.opaque import OPAQUE
from dynajit.report import breaks
from dynajit.values.core.registry import BUILTINS, tail_call
from dynajit.values.core.value import GraphBreak, Tracer, Value

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


def nonstrict_trace(fn: F) -> F:
    """A function that does what `fn` does, and is one operation of the graph, as `allow_in_graph` says; `fn` itself is
    captured as before. Also a decorator.

    Raises:
        ConfigError: `fn` is not a function.
    """
    _check(fn, "nonstrict_trace")

    @functools.wraps(fn)
    def traced(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return allow_in_graph(traced)  # type: ignore[return-value]


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


def substitute_in_graph(original: Callable[..., Any], *, skip_signature_check: bool = False) -> Callable[[F], F]:
    """Have captured code call another function in the place of `original`, as a decorator of that function.

    For functions written in C, or that capturing can't follow, of which a version in plain Python can be given: it is
    traced wherever captured code calls `original`. Code that runs eagerly calls `original` itself, so both have to do
    the same.

    Args:
        original: the function that is substituted.
        skip_signature_check: True for an original whose parameters Python can't tell, or names otherwise.

    Returns:
        A decorator, which returns the substitute as it is.

    Raises:
        ConfigError: `original` is not a function, the substitute none written in Python, or their parameters differ.

    Example:
        >>> @dynajit.substitute_in_graph(operator.indexOf)
        ... def index_of(a, b, /):
        ...     for position, item in enumerate(a):
        ...         if item is b or item == b:
        ...             return position
        ...     raise ValueError("sequence.index(x): x not in sequence")
    """
    _check(original, "substitute_in_graph")

    def register(substitute: F) -> F:
        if not isinstance(substitute, types.FunctionType):
            raise ConfigError(f"substitute_in_graph() needs a function written in Python, not {substitute!r}")
        if not skip_signature_check:
            _check_parameters(original, substitute)
        OPAQUE.discard(original)
        BUILTINS[original] = tail_call(_Substituted(substitute))
        return substitute

    return register


def _check_parameters(original: Callable[..., Any], substitute: Callable[..., Any]) -> None:
    """Whether both take their arguments alike."""
    try:
        wanted = inspect.signature(original)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the parameters of {original!r} are not known ({error}): pass skip_signature_check=True"
        ) from None
    given = inspect.signature(substitute)
    ours, theirs = (
        [(parameter.name, parameter.kind, parameter.default) for parameter in each.parameters.values()]
        for each in (given, wanted)
    )
    if ours != theirs:
        raise ConfigError(
            f"the parameters of {getattr(substitute, '__name__', substitute)}{given} are not those of "
            f"{getattr(original, '__name__', original)}{wanted}"
        )


class _Substituted:
    """The model of a function that has a substitute."""

    def __init__(self, substitute: types.FunctionType) -> None:
        self.substitute = substitute

    def __call__(self, tx: Tracer, *args: Value, **kwargs: Value) -> Value:
        return tx.run_python(self.substitute, args, kwargs, tx.resumable_call())


class _Disallowed:
    """The model of a function that is no part of graphs."""

    def __init__(self, fn: Any) -> None:
        self.name = getattr(fn, "__qualname__", repr(fn))

    def __call__(self, tx: Tracer, *args: Value, **kwargs: Value) -> NoReturn:
        raise GraphBreak(breaks.DISALLOWED, self.name)


def _check(fn: Any, mark: str) -> None:
    if isinstance(fn, type) or not callable(fn) or not hasattr(fn, "__name__"):
        raise ConfigError(f"{mark}() needs a function, not {fn!r}")
