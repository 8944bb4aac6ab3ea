"""What torch warns of while an operation runs on fake tensors: kept from the program, which is warned where it runs.

In: a `with` block around the run, or around all of a capture. Out: the texts; `warnings` as it was.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import torch

_hooks: Any = warnings
_BY_TORCHS_OWN = "(Triggered internally at"


class WarnsInside(Exception):
    """An operation written in Python warns: its body is to be traced, so that the warning tells the program's line."""


class Warned:
    """What is warned of in the body, in `texts`; it is not shown. The filters' version stays: a new one would have the
    interpreter forget what it has shown before. What torch warns of once in a process, it will still warn of."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __enter__(self) -> Warned:
        self._thread = threading.get_ident()
        self._before = _hooks.filters, _hooks._showwarnmsg_impl, _hooks.showwarning
        self._always = torch.is_warn_always_enabled()
        _hooks.filters = [("always", None, Warning, None, 0)]
        _hooks._showwarnmsg_impl, _hooks.showwarning = self._note, _hooks._showwarning_orig
        torch.set_warn_always(True)
        return self

    def __exit__(self, *error: object) -> None:
        _hooks.filters, _hooks._showwarnmsg_impl, _hooks.showwarning = self._before
        torch.set_warn_always(self._always)

    def _note(self, message: Any) -> None:
        if threading.get_ident() == self._thread:
            self.texts.append(str(message.message))
            return
        _, show, replaced = self._before  # another thread's
        if replaced is _hooks._showwarning_orig:
            show(message)
        else:
            replaced(*(message.message, message.category, message.filename, message.lineno), message.file, message.line)

    @property
    def in_python(self) -> bool:
        """Whether one of them comes from Python code."""
        return any(_BY_TORCHS_OWN not in text for text in self.texts)


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
