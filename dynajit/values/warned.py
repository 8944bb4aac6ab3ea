"""What torch warns of while an operation runs on fake tensors: kept from the program, which is warned where it runs.

In: a `with` block around the run. Out: the texts.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

_hooks: Any = warnings


class Warned:
    """What is warned of in the body, in `texts`; it is not shown. The filters' version stays: a new one would have the
    interpreter forget what it has shown before. What torch warns of once in a process, it will still warn of."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __enter__(self) -> Warned:
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
        self.texts.append(str(message.message))
