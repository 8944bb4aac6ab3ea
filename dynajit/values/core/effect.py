"""Calls that generated code makes after the graph's, in order.

In: the function's model and its arguments'. Out: an entry in the journal, which emits the call.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dynajit.values.core.value import Value


class Pushed(NamedTuple):
    """Of a call in generated code, an argument that this pushes."""

    push: Callable[[Any], None]


class Place(NamedTuple):
    """Where an inlined frame was."""

    code_object: types.CodeType
    globals: dict[str, Any]
    current: Any


class CallEffect(Value):
    """One call to make, in order with the other effects.

    Attributes:
        positions: of the outermost frame's instruction; None: nobody asks where the call is made.
        places: of the inlined frames.
    """

    kind = type(None)
    positions: Any = None
    places: Sequence[Place] = ()

    def __init__(self, function: Value, args: Sequence[Value], kwargs: dict[str, Value] | None = None) -> None:
        self.function = function
        self.args = list(args)
        self.kwargs = dict(kwargs or {})

    def describe(self) -> str:
        return f"a call of {self.function.describe()}"

    def effect_children(self) -> Sequence[Value]:
        return (self.function, *self.args, *self.kwargs.values())

    def emit_effect(self, out: Any) -> None:
        if self.positions is not None:
            out.emit.set_location(self.positions)
        out.call_placed(self.places, self.function, [*self.args, *self.kwargs.values()], tuple(self.kwargs))
        out.emit.pop_top()
