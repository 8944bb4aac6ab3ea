"""Whether torch warns while an operation is traced under filters that the program has changed.

In: a `with` block around the operation's run on fake tensors. Out: the texts. Only where the operation itself runs
under these filters is its warning treated as the program wants, so the graph ends there.
"""

from __future__ import annotations

import warnings
from typing import Any

_hooks: Any = warnings


class Warned:
    """What is warned of in the body, in `texts`; it is not shown. The filters' version stays: a new one would have the
    interpreter forget what it has shown before."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __enter__(self) -> Warned:
        self._before = _hooks.filters, _hooks._showwarnmsg_impl, _hooks.showwarning
        _hooks.filters = [("always", None, Warning, None, 0)]
        _hooks._showwarnmsg_impl, _hooks.showwarning = self._note, _hooks._showwarning_orig
        return self

    def __exit__(self, *error: object) -> None:
        _hooks.filters, _hooks._showwarnmsg_impl, _hooks.showwarning = self._before

    def _note(self, message: Any) -> None:
        self.texts.append(str(message.message))
