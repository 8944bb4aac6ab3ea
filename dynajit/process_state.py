"""State of the whole process, or of torch in one thread, that is otherwise while dynajit works and is put back after.

In: what is to be otherwise. Out: context managers, written in C. Threads capture side by side, and an interrupt
(Ctrl+C) may come between any two instructions of Python code: saving a value, setting another one and putting the first
back leaves another thread's value behind, or none. Whoever changes such state does it by `changed`.
"""

from __future__ import annotations

import weakref
from typing import Any

from dynajit import _C
from dynajit.locks import on_fork

_all: weakref.WeakSet[_C.StateChange] = weakref.WeakSet()


def changed(*settings: tuple[Any, ...]) -> _C.StateChange:
    """For `with`, by any number of threads and again inside: the first one in changes the state, the last one out puts
    it back, unless somebody else has changed it meanwhile. One for each state: two of the same would mix.

    Args:
        settings: (object, name of an attribute, value) or (read, write, value), `write` taking what `read` gives, a
            tuple as arguments; both written in C. (read, write) is put back where the block has changed it.
    """
    change = _C.StateChange(*settings)
    _all.add(change)
    return change


@on_fork
def _forked() -> None:
    for change in list(_all):
        change.forked()
