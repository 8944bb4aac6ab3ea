"""How a function goes on after a break, as data and back: `Part`s, and how what they stand for is found.

In: a part of the function at hand, or of one that it calls. Out: JSON, of which `PartReader` makes the part of this
process. The code is the function's own, or found by its name; the rest are places, names and kinds. Variants of a part
are kept like those of functions, each in a file of its own, found by the part's description.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from dynajit import _C
from dynajit.backends.kept_plan import NotKept
from dynajit.bytecode import Code, InnerCall, Part, decode, part_of, return_action
from dynajit.bytecode.return_action import ReturnAction
from dynajit.guards.source import Source
from dynajit.kept.describe import Data, Describer, nested, step

_ACTIONS = {name: way for name, way in vars(return_action).items() if isinstance(way, ReturnAction)}
# how another process finds code and globals
CodeRef = Callable[[types.CodeType, dict[str, Any]], list[Data]]


class Parts(Protocol):
    """Makes the functions that generated code calls, and knows them again (`capture/session.py`)."""

    def go_on(self, part: Part, globals_: dict[str, Any], varying: Sequence[Source] = ()) -> _C.CompiledFunction:
        """The call object of a part, one for each; `varying`: parameters that are numbers which vary."""

    def body(
        self, code: types.CodeType, globals_: dict[str, Any], whole: Code, varying: Sequence[Source]
    ) -> _C.CompiledFunction:
        """The call object of a loop's body, cut out of `whole`; one for each."""

    def expected(self, function: Any) -> list[Source]:
        """The parameters that were said to vary."""


def own_code(function: types.FunctionType) -> types.CodeType:
    """The code that a frame of the function runs, from its start or from a later instruction on."""
    part = part_of(function)
    return function.__code__ if part is None else part.code.code


def part_to_data(part: Part, globals_: dict[str, Any], refer: CodeRef) -> Data:
    """The part. Raises NotKept."""
    inner = part.inner
    called: Data = None
    if inner is not None:
        action = next((name for name, way in _ACTIONS.items() if way == inner.action), None)
        function: Any = getattr(inner.function, "function", None)
        further = part_of(function) if isinstance(function, types.FunctionType) else None
        if action is None or further is None:
            raise NotKept("what goes on takes what a callee returns in a way that has no name")
        called = [part_to_data(further, function.__globals__, refer), inner.argc, action, list(inner.names)]
    where = [part.index, list(part.stack), list(part.locals), list(part.cells), list(part.shared), part.throw]
    return [*refer(part.code.code, globals_), *where, called]


def identity(function: types.FunctionType, describer: Describer) -> Data:
    """What the function is, wherever it is: equal in two processes for the same code and part."""

    def refer(code: types.CodeType, globals_: dict[str, Any]) -> list[Data]:
        return [describer.code(code), str(globals_.get("__name__"))]

    part = part_of(function)
    if part is not None:
        return part_to_data(part, function.__globals__, refer)
    return refer(function.__code__, function.__globals__)


class Finder:
    """Code and globals as data: those of the function at hand, or by name."""

    def __init__(self, function: types.FunctionType, describer: Describer) -> None:
        self.own = own_code(function)
        self.describer = describer

    def refer(self, code: types.CodeType, globals_: dict[str, Any]) -> list[Data]:
        """How another process finds them. Raises NotKept."""
        places = nested(self.own, code)
        if places is not None:
            return [["own", *places], self.globals_to_data(globals_)]
        found = self.describer.name_of_code(code, str(globals_.get("__name__")))
        return [found, self.globals_to_data(globals_)]

    def globals_to_data(self, globals_: dict[str, Any]) -> Data:
        """The globals. Raises NotKept."""
        return self.describer.name(globals_)

    def code_of(self, data: Data) -> types.CodeType:
        own = data[0] == "own"
        found = functools.reduce(step, data[1:], self.own) if own else self.describer.find(data)
        if not isinstance(found, types.CodeType):
            raise NotKept("what goes on is no code")
        return found

    def globals_of(self, data: Data) -> dict[str, Any]:
        found = self.describer.find(data)
        if type(found) is not dict:
            raise NotKept("no globals")
        return found

    def part_of_data(self, data: Data, parts: Parts) -> tuple[Part, dict[str, Any]]:
        """The part that was written, with its globals. Raises NotKept."""
        code, globals_, index, stack, locals_, cells, shared, throw, called = data
        inner = None
        if called is not None:
            further, argc, action, names = called
            way = _ACTIONS.get(action)
            if way is None:
                raise NotKept(f"no way to take a result is called {action}")
            inner = InnerCall(parts.go_on(*self.part_of_data(further, parts)), argc, way, tuple(names))
        whole = decode(self.code_of(code))
        if whole.refusal is not None:
            raise NotKept(whole.refusal)
        made = Part(whole, index, stack, locals_, cells, inner, shared, throw)
        return made, self.globals_of(globals_)
