"""One compiled variant as data, and one made of such data.

In: what a capture knows of its variant (`Made`). Out: `to_data`, JSON; `from_data`, the variant of this process with
its guards, for the call at hand. `NotKept` says what has no form as data, or which condition does not hold.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from torch import fx

from dynajit import _C
from dynajit.backends import kept_plan
from dynajit.backends.kept_plan import NotKept
from dynajit.guards.assumed import Assumptions
from dynajit.guards.program import CallValues, GuardSet
from dynajit.guards.source import Environment, Source
from dynajit.kept.code import CodeReader, CodeWriter
from dynajit.kept.conditions import Reader, Writer
from dynajit.kept.describe import Data, Describer
from dynajit.kept.parts import Parts, own_code
from dynajit.resume.rerun import InputsOverlap, Undoing


class Made(NamedTuple):
    """What is kept of a capture: the code up to the function's end, or to its first break; None: it runs as it is."""

    root: types.FunctionType
    code: types.CodeType | None
    guards: GuardSet
    handed: Sequence[Source]
    assumed: Assumptions
    module: fx.GraphModule | None
    graph: _C.GraphCall | None
    parts: Parts
    needs_hook: bool = False


class Loaded(NamedTuple):
    """A kept variant in this process: its code is not marked as dynajit's own yet."""

    code: types.CodeType | None
    guards: GuardSet
    program: _C.GuardProgram
    needs_hook: bool
    # tensors and numbers that it is for
    sized: list[tuple[Source, Any]]


def to_data(made: Made) -> dict[str, Data]:
    """The variant and its conditions. Raises NotKept."""
    root: Any = made.root
    if made.module is not None:
        kept_plan.check_targets(made.module)
    modules = [str(globals_.get("__name__")) for _, globals_ in made.assumed.codes.values()]
    describer = Describer(modules, root.__globals__)
    graph = None if made.graph is None else _graph_to_data(made.graph, describer)
    writer = Writer(describer)
    guards = [writer.guard(guard) for guard in made.guards if guard.kind != "ASSUMED"]
    handed = [writer.source(source) for source in made.handed]
    writer_of_code = CodeWriter(root, describer, made.graph, made.parts)
    code = None if made.code is None else writer_of_code.write(made.code)
    consts = code["co_consts"] if code is not None else ()
    reruns = [row[1] for row in consts if isinstance(row, list) and row[:1] == ["rerun"]]
    if graph is not None and not any(reruns) and kept_plan.may_refuse(graph["plan"]):
        raise NotKept("its graph can't be run operator by operator where a kernel refuses a value")
    if graph is not None and not reruns and kept_plan.writes(graph["plan"]):
        raise NotKept("its graph can't be run operator by operator where inputs overlap")
    assumed = writer.assumed(made.assumed, own_code(root))
    return {
        "sources": writer.rows,
        "facts": writer.facts,
        "guards": guards,
        "handed": handed,
        "code": code,
        "graph": graph,
        "needs_hook": made.needs_hook,
        **assumed,
    }


def _graph_to_data(call: _C.GraphCall, describer: Describer) -> dict[str, Data]:
    inner: Any = call.fn
    undoing = [inner.written, inner.draws] if isinstance(inner, Undoing) else None
    if isinstance(inner, Undoing):
        whole: Any = inner.graph
        inner = whole.fn
    plan = kept_plan.to_data(inner, describer.name)
    return {"plan": plan, "undoing": undoing, "alone": call.gives_only_result}


def from_data(
    data: dict[str, Data], function: types.FunctionType, values: Sequence[Any], name: str, parts: Parts
) -> Loaded:
    """The variant for a call of the function with these parameters and cells; `name` is the graph's. Raises NotKept."""
    reader = Reader(data, Environment(values, function.__globals__))
    guards = reader.read()
    globals_ = function.__globals__
    program = guards.build(len(values), globals_, [reader.sources[place] for place in data["handed"]])
    failed = program.check(tuple(values))
    if failed >= 0:
        raise NotKept(guards.failure_reason(failed, CallValues(values, globals_)))
    graph = _graph_of(data["graph"], name, reader.describer) if data["graph"] is not None else None

    code = None
    if data["code"] is not None:
        code = CodeReader(function, reader.describer, graph, parts).read(data["code"])
    return Loaded(code, guards, program, data["needs_hook"], reader.sized())


def _graph_of(data: dict[str, Data], name: str, describer: Describer) -> _C.GraphCall:
    compiled = kept_plan.from_data(data["plan"], _overlapping, describer.find)
    call = _C.GraphCall(compiled, name, kept_plan.is_flat(compiled))
    if data["undoing"] is not None:
        call = _C.GraphCall(Undoing(call, *data["undoing"]))
    call.gives_only_result = data["alone"]
    return call


def _overlapping(*inputs: Any) -> NoReturn:
    raise InputsOverlap("an input that is written shares memory with another one")
