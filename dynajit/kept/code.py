"""The generated code of a variant as data, and back.

In: the code object that `resume/emit.py` made, whose constants are objects of this process: the graph, functions that
were generated beside it, call objects that go on after a break (`parts.py`). Out: JSON, of which `CodeReader` makes the
code object again, with the objects of that process. Nothing is unmarshalled or unpickled: the fields of a code object
are numbers, texts and bytes.
"""

from __future__ import annotations

import base64
import dis
import types
from collections.abc import Sequence
from typing import Any

from dynajit import _C, constants, symbols
from dynajit.backends.kept_plan import NotKept
from dynajit.bytecode import decode, part_of
from dynajit.constants import NotData
from dynajit.guards import source as sources
from dynajit.guards.source import Source
from dynajit.kept.conditions import FIELDS, tree_of, tree_to_data
from dynajit.kept.describe import Data, Describer
from dynajit.kept.parts import Finder, Parts, part_to_data
from dynajit.resume.rerun import Rerun

_OF_SETS = "a set is made, whose order is another one in each process"

_FIELDS = (
    *("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_flags", "co_stacksize", "co_firstlineno"),
    *("co_names", "co_varnames", "co_freevars", "co_cellvars", "co_filename", "co_name", "co_qualname"),
)
_BYTES = ("co_code", "co_linetable", "co_exceptiontable")
# what makes sets, whose order follows from what was added first, and another one in each process
_MAKES_SETS = frozenset({"BUILD_SET", "SET_ADD", "SET_UPDATE"})
_TEMPLATE = (lambda: None).__code__
_OURS = 1  # DJ_OURS of csrc/call/code_cache.h


class CodeWriter:
    """Writes the code of one variant of the function at hand, with the functions that it calls."""

    def __init__(self, function: types.FunctionType, describer: Describer, graph: Any, parts: Parts) -> None:
        self.describer = describer
        self.graph = graph
        self.parts = parts
        self.finder = Finder(function, describer)

    def write(self, code: types.CodeType) -> Data:
        """The code object's fields. Raises NotKept."""
        if any(instr.opname in _MAKES_SETS for instr in dis.get_instructions(code)):
            raise NotKept(_OF_SETS)
        fields = {name: getattr(code, name) for name in _FIELDS}
        raw = {name: base64.b64encode(getattr(code, name)).decode() for name in _BYTES}
        fields["co_filename"] = None if code.co_filename == self.finder.own.co_filename else code.co_filename
        return {**fields, **raw, "co_consts": list(map(self._constant, code.co_consts))}

    def _constant(self, value: Any) -> Data:
        kind = type(value)
        if self.graph is not None and value is self.graph:
            return ["graph"]
        if kind is Rerun:
            if not value.only_runs_again():
                raise NotKept("where the graph raises, something has to be put back")
            return ["rerun", value.pure, value.communicates]
        if kind is tuple:
            return ["tuple", *map(self._constant, value)]
        if kind is types.CodeType:
            return ["code", self.write(value)]
        if kind is _C.AttributeFiller:
            return ["filler", list(value.names)]
        if kind is _C.CompiledFunction:
            return self._call_object(value.function)
        computes = symbols.computed(value) if kind is types.FunctionType else None
        if computes is not None:
            return ["computes", tree_to_data(computes[0]), list(computes[1])]
        if kind is types.FunctionType and _C.code_flags(value.__code__) & _OURS:
            return ["function", self.write(value.__code__), self.finder.globals_to_data(value.__globals__)]
        if isinstance(value, types.BuiltinMethodType) and type(value.__self__) in (str, bytes):
            return ["method", constants.encode(value.__self__), value.__name__]
        if kind in (set, frozenset) or value is set or value is frozenset:
            raise NotKept(_OF_SETS)
        try:
            return constants.encode(value)
        except NotData:
            return self.describer.name(value)

    def _call_object(self, function: types.FunctionType) -> Data:
        """A call object that goes on in the middle of a function, or runs a loop's body."""
        part, globals_ = part_of(function), function.__globals__
        expected = [path(source) for source in self.parts.expected(function)]
        if part is not None:
            return ["part", part_to_data(part, globals_, self.finder.refer), expected]
        whole = function.__dict__.get("_continues")
        if whole is None:
            return self.describer.name(function)
        return ["body", self.write(function.__code__), self.finder.refer(whole[1], globals_), expected]


class CodeReader:
    """Makes the code that was written, with the objects of this process. Raises NotKept."""

    def __init__(self, function: types.FunctionType, describer: Describer, graph: Any, parts: Parts) -> None:
        self.function = function
        self.describer = describer
        self.graph = graph
        self.parts = parts
        self.finder = Finder(function, describer)

    def read(self, data: dict[str, Data]) -> types.CodeType:
        """The code object of these fields."""
        fields: dict[str, Any] = {
            **{name: tuple(data[name]) if isinstance(data[name], list) else data[name] for name in _FIELDS},
            **{name: base64.b64decode(data[name]) for name in _BYTES},
        }
        fields["co_filename"] = data["co_filename"] or self.finder.own.co_filename
        fields["co_nlocals"] = len(fields["co_varnames"])
        return _TEMPLATE.replace(**fields, co_consts=tuple(map(self._constant, data["co_consts"])))

    def _constant(self, value: Data) -> Any:
        if not isinstance(value, list):
            return value
        match value[0]:
            case "graph":
                return self.graph
            case "rerun":
                function = self.function
                of_frame = function.__code__, part_of(function), function.__globals__
                return Rerun(*of_frame, None, value[1], True, communicates=value[2])
            case "tuple":
                return tuple(map(self._constant, value[1:]))
            case "code":
                return self.read(value[1])
            case "filler":
                return _C.AttributeFiller(tuple(value[1]))
            case "method":
                return getattr(constants.decode(value[1]), value[2])
            case "named" | "globals":
                return self.describer.find(value)
            case "computes":
                return symbols.function_of(tree_of(value[1]), tuple(value[2]))
            case "function" | "part" | "body":
                return self._function(*value)
        return constants.decode(value)

    def _function(self, kind: str, data: Data, where: Data, expected: Sequence[Data] = ()) -> Any:
        """A function that the code calls: generated, or how one goes on."""
        if kind == "function":
            code = self.read(data)
            _C.mark_ours(code)
            return types.FunctionType(code, self.finder.globals_of(where), code.co_name)
        if kind == "part":
            part, globals_ = self.finder.part_of_data(data, self.parts)
            return self.parts.go_on(part, globals_, list(map(source_of, where)))
        found, named = where
        whole = decode(self.finder.code_of(found))
        varying = list(map(source_of, expected))
        return self.parts.body(self.read(data), self.finder.globals_of(named), whole, varying)


def path(source: Source) -> Data:
    """A source that starts at a parameter, for which nothing is looked up. Raises NotKept."""
    fields = FIELDS.get(type(source).__name__)
    if fields is None:
        raise NotKept(f"{source.name()} is reached by a {type(source).__name__}")
    base = None if source.base is None else path(source.base)
    return [type(source).__name__, base, *(constants.encode(getattr(source, field)) for field in fields)]


def source_of(data: Data) -> Source:
    """The source that was written."""
    kind, base, *fields = data
    if kind not in FIELDS:
        raise NotKept(f"no kind of source is called {kind}")
    made: Any = getattr(sources, kind)
    values = map(constants.decode, fields)
    found: Source = made(*values) if base is None else made(source_of(base), *values)
    return found
