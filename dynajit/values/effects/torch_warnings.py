"""What torch warns of while an operation runs on fake tensors: kept from the program, which is warned where it runs.

In: a `with` block around the run, or around all of a capture. Out: the texts; `warnings` as it was.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from dynajit.locks import process_lock

_hooks: Any = warnings
_BY_TORCHS_OWN = "(Triggered internally at"


class WarnsInside(Exception):
    """An operation written in Python warns: its body is to be traced, so that the warning tells the program's line."""


class Warned:
    """What is warned of in the body, in `texts`; it is not shown. The filters' version stays: a new one would have the
    interpreter forget what it has shown before. What torch warns of once in a process, it will still warn of."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.thread = threading.get_ident()

    def __enter__(self) -> Warned:
        with _lock:
            _listening.append(weakref.ref(self, _gone))
            _settle()
        return self

    def __exit__(self, *error: object) -> None:
        with _lock:
            _listening[:] = [each for each in _listening if each() is not self]
            _settle()

    @property
    def in_python(self) -> bool:
        """Whether one of them comes from Python code."""
        return any(_BY_TORCHS_OWN not in text for text in self.texts)

    @property
    def in_torchs_own(self) -> bool:
        """Whether one of them comes from torch's C++ code."""
        return any(_BY_TORCHS_OWN in text for text in self.texts)


# Threads capture side by side, and an interrupt may come between any two instructions: the state of the process is
# changed while anyone listens, and put back by the last one that left or, where an interrupt kept it from that, died.
_lock = process_lock()
_listening: list[weakref.ref[Warned]] = []
_before: tuple[Any, ...] | None = None  # the state that is to be put back


def _gone(listener: weakref.ref[Warned]) -> None:
    with _lock:
        _listening[:] = [each for each in _listening if each is not listener]
        _settle()


def _settle() -> None:
    global _before
    if _listening:
        if _before is None:
            shows = _hooks.filters, _hooks._showwarnmsg_impl, _hooks.showwarning
            _before = *shows, torch.is_warn_always_enabled()
        _hooks.filters = [("always", None, Warning, None, 0)]
        _hooks._showwarnmsg_impl, _hooks.showwarning = _note, _hooks._showwarning_orig
        torch.set_warn_always(True)
    elif _before is not None:
        _hooks.filters, _hooks._showwarnmsg_impl, _hooks.showwarning, always = _before
        torch.set_warn_always(always)
        _before = None


def _note(message: Any) -> None:
    before, here = _before, threading.get_ident()
    mine = [each for each in (listener() for listener in list(_listening)) if each is not None and each.thread == here]
    if mine:
        mine[-1].texts.append(str(message.message))
        return
    if before is None:  # put back a moment ago
        _hooks._showwarnmsg(message)
        return
    _, show, replaced, _ = before  # of a thread that isn't listening
    if replaced is _hooks._showwarning_orig:
        show(message)
    else:
        replaced(*(message.message, message.category, message.filename, message.lineno), message.file, message.line)


@contextlib.contextmanager
def filters_kept() -> Iterator[None]:
    """Filters that are changed and restored in the body, as torch does while it compiles, leave no trace: the
    interpreter does not forget which warnings it has shown."""
    # who changes filters calls the one that its release has; both lead to the interpreter
    name = next((name for name in ("_filters_mutated_lock_held", "_filters_mutated") if hasattr(_hooks, name)), "")
    told = getattr(_hooks, name, None)
    if told is None or told is _nothing:
        yield
        return
    before = _hooks.filters, list(_hooks.filters)
    setattr(_hooks, name, _nothing)
    try:
        yield
    finally:
        setattr(_hooks, name, told)
        if _hooks.filters is not before[0] or _hooks.filters != before[1]:
            told()


def _nothing() -> None:
    pass
