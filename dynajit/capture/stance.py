"""The stance: what the process does where a call fits no compiled variant, or whether it compiles at all.

In: `set_stance(name)`, and `run(fn)` for one function's calls. Out: `on_miss`, asked by `capture/` before a frame is
captured; "force_eager" is read in C at each call. One more stance: a name in `STANCES`, and what it means in `on_miss`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from dynajit import _C
from dynajit.exc import ConfigError, RecompileForbidden

F = TypeVar("F", bound=Callable[..., Any])
STANCES = ("default", "eager_on_recompile", "fail_on_recompile", "force_eager")
_stance = "default"


class _Thread(threading.local):
    running_only = 0  # how many calls of what `run` returned are under way


_thread = _Thread()


class set_stance:
    """Choose what happens where compiled code doesn't fit, for the whole process.

    "default": compile again. "eager_on_recompile": run such calls eagerly; what was never compiled is compiled.
    "fail_on_recompile": raise `RecompileForbidden` for them. "force_eager": run everything eagerly, compiled or not.

    Called by itself it holds from then on; as a context manager until the end of the block; as a decorator during the
    function's calls.

    Raises:
        ConfigError: there is no such stance; the message lists them.
    """

    def __init__(self, stance: str = "default") -> None:
        if stance not in STANCES:
            raise ConfigError.unknown("stance", stance, STANCES)
        self.stance = stance
        self._former = _stance
        _put(stance)

    def __enter__(self) -> None:
        _put(self.stance)

    def __exit__(self, *exc_info: object) -> None:
        _put(self._former)

    def __call__(self, fn: F) -> F:
        _put(self._former)

        @functools.wraps(fn)
        def held(*args: Any, **kwargs: Any) -> Any:
            with _holding(self.stance):
                return fn(*args, **kwargs)

        return held  # type: ignore[return-value]


def run(fn: F) -> F:
    """`fn` with the variants that are compiled already, and no new ones: its calls that fit none run eagerly.

    Args:
        fn: a compiled function or module, or any function that calls some.
    """

    def runs(*args: Any, **kwargs: Any) -> Any:
        _thread.running_only += 1
        try:
            return fn(*args, **kwargs)
        finally:
            _thread.running_only -= 1

    _C.mark_skip(runs.__code__)
    return functools.wraps(fn)(runs)  # type: ignore[return-value]


@contextmanager
def _holding(stance: str) -> Iterator[None]:
    former = _stance
    _put(stance)
    try:
        yield
    finally:
        _put(former)


def _put(stance: str) -> None:
    global _stance
    _stance = stance
    _C.set_force_eager(stance == "force_eager")


def on_miss(name: str, compiled: bool, why: str | None) -> bool:
    """Whether a frame may be captured. `compiled`: there are variants of it, and none fits, as `why` says."""
    if _stance == "force_eager" or _thread.running_only or (compiled and _stance == "eager_on_recompile"):
        return False
    if compiled and _stance == "fail_on_recompile":
        raise RecompileForbidden(name, why)
    return True
