"""The guard kinds on the process: torch's modes (grad mode, autocast, default dtype and the rest), libraries' names.

In: nothing; the snapshot is taken when the guard is made. What it has: global_state.cpp. Or what a trace has found in
classes and modules of Python's own library and torch (`assumed.py`). Out: see guard.py.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from dynajit import _C
from dynajit.guards.assumed import Facts
from dynajit.guards.guard import FIRST, GuardKind, guard_kind


@guard_kind("GLOBAL_STATE")
class TorchModes(GuardKind):
    """The modes that were on while tracing."""

    rank = FIRST
    reads_source = False

    def normalize(self, *params: Any) -> tuple[Any, ...]:
        return params or (_C.GlobalState(),)

    def key(self, params: tuple[Any, ...]) -> Hashable:
        state = params[0]
        return (*state.values.items(), *state.modes)

    def check(self, value: Any, params: tuple[Any, ...]) -> bool:
        now = _C.GlobalState()
        return bool(now.values == params[0].values and now.modes == params[0].modes)

    def describe(self, name: str, params: tuple[Any, ...]) -> str:
        return "torch's modes: " + ", ".join(f"{mode}={value}" for mode, value in params[0].values.items())

    def explain(self, name: str, value: Any, params: tuple[Any, ...]) -> str:
        return "; ".join(params[0].difference()) or "torch's modes changed"


@guard_kind("ASSUMED")
class LibraryStands(GuardKind):
    """What was found in Python's own library and in torch is what is there."""

    rank = FIRST
    reads_source = False

    def key(self, params: tuple[Any, ...]) -> Hashable:
        return id(params[0])

    def encode(self, params: tuple[Any, ...]) -> tuple[str, object]:
        return self.name, params[0].in_c

    def check(self, value: Any, params: tuple[Any, ...]) -> bool:
        facts: Facts = params[0]
        return facts.changed() is None

    def describe(self, name: str, params: tuple[Any, ...]) -> str:
        return f"{len(params[0])} names of Python's own library and of torch are what they were"

    def explain(self, name: str, value: Any, params: tuple[Any, ...]) -> str:
        facts: Facts = params[0]
        return facts.changed() or self.describe(name, params)
