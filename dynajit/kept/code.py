"""The generated code of a variant as data, and back.

In: the code object that `resume/emit.py` made, whose constants are objects of this process. Out: JSON, of which
`code_of` makes the code object again, with the objects of that process. Nothing is unmarshalled or unpickled: the
fields of a code object are numbers, texts and bytes.
"""

from __future__ import annotations

import base64
import dis
import types
from collections.abc import Callable
from typing import Any

from dynajit import _C
from dynajit.backends.kept_plan import NotKept
from dynajit.kept.describe import Data, Describer, constant, constant_of
from dynajit.resume.rerun import Rerun

_FIELDS = (
    *("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_flags", "co_stacksize", "co_firstlineno"),
    *("co_names", "co_varnames", "co_freevars", "co_cellvars", "co_filename", "co_name", "co_qualname"),
)
_BYTES = ("co_code", "co_linetable", "co_exceptiontable")
# what makes sets, whose order follows from what was added first, and another one in each process
_MAKES_SETS = frozenset({"BUILD_SET", "SET_ADD", "SET_UPDATE"})
_TEMPLATE = (lambda: None).__code__
# constants of the process that writes, and of the one that reads
Write = Callable[[Any], Data]
Read = Callable[[Data], Any]


def code_to_data(code: types.CodeType, describer: Describer, special: Write) -> Data:
    """The code object's fields. `special` gives the JSON of what is written otherwise, or None. Raises NotKept."""
    if any(instr.opname in _MAKES_SETS for instr in dis.get_instructions(code)):
        raise NotKept("a set is made, whose order is another one in each process")

    def write(value: Any) -> Data:
        known = special(value)
        if known is not None:
            return known
        if type(value) is tuple:
            return ["tuple", *map(write, value)]
        if type(value) is types.CodeType:
            return ["code", code_to_data(value, describer, special)]
        if type(value) is _C.AttributeFiller:
            return ["filler", list(value.names)]
        if isinstance(value, types.BuiltinMethodType) and type(value.__self__) in (str, bytes):
            return ["method", constant(value.__self__), value.__name__]
        if type(value) in (set, frozenset) or value is set or value is frozenset:
            raise NotKept("a set is made, whose order is another one in each process")
        try:
            return constant(value)
        except NotKept:
            return describer.name(value)

    fields = {name: getattr(code, name) for name in _FIELDS}
    raw = {name: base64.b64encode(getattr(code, name)).decode() for name in _BYTES}
    return {**fields, **raw, "co_consts": list(map(write, code.co_consts))}


def code_of(data: dict[str, Data], describer: Describer, special: Read) -> types.CodeType:
    """The code object that was written. `special` gives what was written otherwise, or None. Raises NotKept."""

    def read(value: Data) -> Any:
        if not isinstance(value, list):
            return value
        match value[0]:
            case "tuple":
                return tuple(map(read, value[1:]))
            case "code":
                return code_of(value[1], describer, special)
            case "filler":
                return _C.AttributeFiller(tuple(value[1]))
            case "method":
                return getattr(constant_of(value[1]), value[2])
            case "named" | "globals":
                return describer.find(value)
        known = special(value)
        return constant_of(value) if known is None else known

    fields: dict[str, Any] = {
        **{name: tuple(data[name]) if isinstance(data[name], list) else data[name] for name in _FIELDS},
        **{name: base64.b64decode(data[name]) for name in _BYTES},
    }
    fields["co_nlocals"] = len(fields["co_varnames"])
    return _TEMPLATE.replace(**fields, co_consts=tuple(map(read, data["co_consts"])))


def special_constants(graph: Any) -> Write:
    """What a variant's code has of its own: the call of the graph, and what runs the frame again where that raises."""

    def write(value: Any) -> Data:
        if graph is not None and value is graph:
            return ["graph"]
        if type(value) is Rerun:
            if not value.only_runs_again():
                raise NotKept("where the graph raises, something has to be put back")
            return ["rerun", value.pure]
        return None

    return write
