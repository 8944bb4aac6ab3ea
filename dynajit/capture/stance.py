"""The stance: what the process does where a call fits no compiled variant, or whether it compiles at all.

In: `set_stance(name)`, and `run(fn)` for one function's calls. Out: `on_miss`, asked by `capture/` before a frame is
captured; "force_eager" is read in C at each call. One more stance: a name in `STANCES`, and what it means in `on_miss`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from dynajit import _C
from dynajit.exc import ConfigError, RecompileForbidden
from dynajit.locks import process_lock

F = TypeVar("F", bound=Callable[..., Any])
STANCES = ("default", "eager_on_recompile", "fail_on_recompile", "force_eager")


class _ThreadStance(threading.local):
    running_only = 0  # how many calls of what `run` returned are under way


_thread = _ThreadStance()


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
        self._blocks = 0  # that are open
        with _lock:
            _chosen.append(self)
            _forget_oldest()
            _tell()

    def __enter__(self) -> None:
        with _lock:
            if self._blocks or self not in _chosen:
                _chosen.append(self)
            self._blocks += 1
            _tell()

    def __exit__(self, *exc_info: object) -> None:
        with _lock:
            self._blocks -= 1
            self._end()

    def _end(self) -> None:
        with _lock:
            if self in _chosen:
                del _chosen[len(_chosen) - 1 - _chosen[::-1].index(self)]
            _tell()

    def __call__(self, fn: F) -> F:
        self._end()

        @functools.wraps(fn)
        def held(*args: Any, **kwargs: Any) -> Any:
            with set_stance(self.stance):
                return fn(*args, **kwargs)

        return held  # type: ignore[return-value]

    @property
    def is_open(self) -> bool:
        """Whether a block of a `with` statement goes on."""
        return self._blocks > 0


# What was chosen and has not ended; the last holds. A block takes its own away at its end, whatever other threads chose
# meanwhile: were the former stance put back, two blocks that overlap would leave the stance of one of them for ever.
_chosen: list[set_stance] = []
_lock = process_lock()
# Choices without a block have no end. The last ones are kept: one may still become a block's, in another thread.
_MAX_WITHOUT_END = 16


def _forget_oldest() -> None:
    endless = [choice for choice in _chosen if not choice.is_open]
    for choice in endless[:-_MAX_WITHOUT_END]:
        _chosen.remove(choice)


def _tell() -> None:
    _C.set_force_eager(_stance() == "force_eager")


def _stance() -> str:
    try:
        return _chosen[-1].stance
    except IndexError:  # none, or another thread's ended just now
        return "default"


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


def on_miss(name: str, compiled: bool, why: str | None) -> bool:
    """Whether a frame may be captured. `compiled`: there are variants of it, and none fits, as `why` says."""
    stance = _stance()
    if stance == "force_eager" or _thread.running_only or (compiled and stance == "eager_on_recompile"):
        return False
    if compiled and stance == "fail_on_recompile":
        raise RecompileForbidden(name, why)
    return True
