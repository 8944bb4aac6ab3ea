"""The guard kind on torch's modes: grad mode, autocast, default dtype and the rest.

In: nothing; the snapshot is taken when the guard is made. Out: see guard.py. What the snapshot has: global_state.cpp.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from dynajit import _C
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
