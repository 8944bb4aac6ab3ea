"""What is warned of while an operation runs on fake tensors, or a graph is traced: kept from the program, which is
warned where it runs.

In: a `with` block, in one thread. Out: the texts; what other threads warn of goes its own way.
"""

from __future__ import annotations

import contextlib
import re
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from dynajit.process_state import changed

_hooks: Any = warnings
_BY_TORCHS_OWN = "(Triggered internally at"


class WarnsInside(Exception):
    """An operation written in Python warns: its body is to be traced, so that the warning tells the program's line."""


class Warned:
    """What was warned of, in `texts`."""

    def __init__(self, only: str) -> None:
        self.texts: list[str] = []
        self.pattern = re.compile(only)

    @property
    def in_python(self) -> bool:
        """Whether one of them comes from Python code."""
        return any(_BY_TORCHS_OWN not in text for text in self.texts)

    @property
    def in_torchs_own(self) -> bool:
        """Whether one of them comes from torch's C++ code."""
        return any(_BY_TORCHS_OWN in text for text in self.texts)


class _Listening(threading.local):
    by: tuple[Warned, ...] = ()  # of the blocks that the thread is in, the innermost last


_listening = _Listening()


class _Heard(type):
    def __subclasscheck__(cls, category: type) -> bool:
        return bool(_listening.by)


class _WarningHere(Warning, metaclass=_Heard):
    """The category of each warning of a thread that listens, and of no other's."""


def _show(message: Any) -> None:
    text = str(message.message)
    for warned in reversed(_listening.by):
        if warned.pattern.match(text):
            warned.texts.append(text)
            return
    _HEARD.before()[0](message)


_HEARD = changed((_hooks, "_showwarnmsg", _show))
_ALWAYS = changed((torch._C._get_warnAlways, torch._C._set_warnAlways, True))


@contextlib.contextmanager
def unwarned(only: str = "") -> Iterator[Warned]:
    """What the thread warns of in the body is not shown; gives what it was. `only`: how the texts begin that are meant.

    A filter before all others says so, of this thread alone. The filters' version stays: a new one would have the
    interpreter forget what it has shown before. What torch warns of once in a process, it will still warn of.
    """
    warned, outer, filters = Warned(only), _listening.by, _hooks.filters
    own = ("always", warned.pattern if only else None, _WarningHere, None, 0)
    with _HEARD, _HEARD if only else _ALWAYS:
        try:
            _listening.by = (*outer, warned)
            filters.insert(0, own)
            yield warned
        finally:
            _listening.by = outer
            if own in filters:  # else the program has emptied the list meanwhile
                filters.remove(own)


def filters_of_program() -> list[Any]:
    """`warnings.filters` without what other threads listen by."""
    return [each for each in _hooks.filters if each[2] is not _WarningHere]


def program_warns_always() -> bool:
    """What the program has said by `torch.set_warn_always`."""
    return bool(_ALWAYS.before()[0])


# Who changes filters calls the one that its release has; both lead to the interpreter.
_TELLS = next((name for name in ("_filters_mutated_lock_held", "_filters_mutated") if hasattr(_hooks, name)), "")


def _tell_of_others() -> None:
    if not _UNTOLD.is_inside():
        _UNTOLD.before()[0]()


_UNTOLD = changed(*([(_hooks, _TELLS, _tell_of_others)] if _TELLS else []))


@contextlib.contextmanager
def filters_kept() -> Iterator[None]:
    """Filters that this thread changes and restores in the body, as torch does while it compiles, leave no trace: the
    interpreter does not forget which warnings it has shown."""
    if not _TELLS or _UNTOLD.is_inside():
        yield
        return
    filters, before = _hooks.filters, filters_of_program()
    try:
        with _UNTOLD:
            yield
    finally:
        if _hooks.filters is not filters or filters_of_program() != before:
            _UNTOLD.before()[0]()
