"""The report of `dynajit.explain(fn)(*args)`.

In: the `CompileRecord`s of one run, in the order of capture. Out: `ExplainReport`: counts, the graphs, the breaks
with the user's line, and `str(report)` for reading. Every break in the records counts, once: capture records one only
where it cut a graph or cost one, and a break in a loop once more for the loop.
"""

import dataclasses
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dynajit.report import costs
from dynajit.report.phases import PHASES
from dynajit.report.records import BreakRecord, CodeRecord, CompileRecord, FrameLoc, GraphRecord

#: of one frame, in the text
SHOWN_GUARDS = 40


class ExplainReport:
    """What a run compiled.

    Attributes:
        graph_count, graph_break_count, op_count, guard_count: totals.
        break_reasons: the `BreakRecord` objects, with reason, kind, user_stack, hint, text and cost.
        graphs: the fx GraphModules.
        frames: the `CompileRecord` objects.
        phases: seconds by compile phase, all frames together.
        result: what the call returned.
        error: the exception that it raised, or None; the report then holds what was compiled up to there.
    """

    def __init__(
        self, records: Iterable[CompileRecord], result: Any = None, error: BaseException | None = None
    ) -> None:
        self.frames: list[CompileRecord] = list(records)
        self.result = result
        self.error = error
        self.graph_records: list[GraphRecord] = [graph for record in self.frames for graph in record.graphs]
        self.break_reasons: list[BreakRecord] = _told_once(self.frames)
        self.graphs: list[Any] = [graph.graph_module for graph in self.graph_records]

    @property
    def graph_count(self) -> int:
        return len(self.graph_records)

    @property
    def graph_break_count(self) -> int:
        return len(self.break_reasons)

    @property
    def break_places(self) -> list[tuple[BreakRecord, int]]:
        """The breaks, those of one place and way there once; and how often each was met: in each variant of a function
        that was compiled again, say."""
        count = Counter((brk.kind, brk.reason, *brk.user_stack) for brk in self.break_reasons)
        first = {(brk.kind, brk.reason, *brk.user_stack): brk for brk in reversed(self.break_reasons)}
        return [(first[key], count[key]) for key in count]

    @property
    def op_count(self) -> int:
        return sum(graph.op_count for graph in self.graph_records)

    @property
    def guard_count(self) -> int:
        return sum(len(record.guards) for record in self.frames)

    @property
    def recompile_reasons(self) -> list[str]:
        return [record.recompile_reason for record in self.frames if record.recompile_reason]

    @property
    def phases(self) -> dict[str, float]:
        total: dict[str, float] = {}
        for record in self.frames:
            for name, seconds in record.phases.items():
                total[name] = total.get(name, 0.0) + seconds
        ordered = [name for name in PHASES if name in total] + sorted(name for name in total if name not in PHASES)
        return {name: total[name] for name in ordered}

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data (no graphs), ready for JSON."""
        return {
            "graph_count": self.graph_count,
            "graph_break_count": self.graph_break_count,
            "op_count": self.op_count,
            "guard_count": self.guard_count,
            "graphs": [_graph_dict(graph) for graph in self.graph_records],
            "breaks": [_break_dict(brk) for brk in self.break_reasons],
            "recompiles": self.recompile_reasons,
            "frames": [_frame_dict(record) for record in self.frames],
            "phases": self.phases,
            "error": None if self.error is None else f"{type(self.error).__name__}: {self.error}",
        }

    def html(self, path: str | os.PathLike[str]) -> None:
        """Write the report as one page that needs no network: the source as a heat map, graphs, kernels, times."""
        from dynajit.report import html  # a page is rarely wanted

        Path(path).write_text(html.page(self), encoding="utf-8")

    def __str__(self) -> str:
        totals = {
            "graph": self.graph_count,
            "graph break": self.graph_break_count,
            "operation": self.op_count,
            "guard": self.guard_count,
        }
        lines = [", ".join(_count(n, noun) for noun, n in totals.items())]
        places = self.break_places
        if len(places) < self.graph_break_count:
            lines += [f"The graph breaks are in {_count(len(places), 'place')}."]
        if self.error is not None:
            lines += [f"The call raised {type(self.error).__name__}: {self.error}"]
        names = {record.compile_id: record.code_name for record in self.frames}
        lines += [_section("Graphs", [_graph_line(i, graph, names) for i, graph in enumerate(self.graph_records, 1)])]
        lines += [_section("Graph breaks", _breaks(places))]
        lines += [_section("Recompiles", self.recompile_reasons)]
        skipped = [
            f"{r.compile_id} {r.code_name} ({r.filename}:{r.firstlineno}): {r.skipped}"
            for r in self.frames
            if r.skipped
        ]
        lines += [_section("Frames that run eagerly", skipped)]
        code = [(i, part) for i, graph in enumerate(self.graph_records, 1) for part in graph.code]
        lines += [_section("Kernels", [f"graph {i}, {_code_text(part)}" for i, part in code])]
        lines += [_section("Guards", [_guard_text(record) for record in self.frames if record.guards])]
        lines += [_section("Compile time", [f"{name:<15} {seconds:8.3f} s" for name, seconds in self.phases.items()])]
        return "\n".join(filter(None, lines))

    def __repr__(self) -> str:
        return f"<ExplainReport: {_count(self.graph_count, 'graph')}, {_count(self.graph_break_count, 'graph break')}>"


def _breaks(places: list[tuple[BreakRecord, int]]) -> list[str]:
    return [f"{i}. {brk.render()}{_times(n)}" for i, (brk, n) in enumerate(places, 1)]


def _times(n: int) -> str:
    return f"\n  Met {n} times while compiling" if n > 1 else ""


def _told_once(frames: Iterable[CompileRecord]) -> list[BreakRecord]:
    """The breaks. What a loop was cut out for is met again in the loop's body: one break, where it was met first. Other
    variants of the body meet it at that place, too."""
    found: list[BreakRecord] = []
    waiting: dict[Any, int] = {}  # where in `found` the one is that was told of a loop
    ways: dict[Any, list[FrameLoc]] = {}  # from the body's own frames: from the outermost one
    for brk in (brk for record in frames for brk in record.breaks):
        way = brk.kind, *brk.user_stack
        at = waiting.get(brk.place)
        if at is None:
            if brk.loops:
                waiting[brk.place] = len(found)
            found.append(dataclasses.replace(brk, user_stack=ways[way]) if way in ways else brk)
            continue
        outer = found[at]
        stack = ways[way] = max(outer.user_stack, brk.user_stack, key=len)
        loops = list(dict.fromkeys([*outer.loops, *brk.loops]))
        found[at] = dataclasses.replace(brk, user_stack=stack, loops=loops)
        if not brk.loops:
            del waiting[brk.place]
    return found


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _section(title: str, entries: list[str]) -> str:
    if not entries:
        return ""
    body = "\n".join("  " + line for entry in entries for line in entry.split("\n"))
    return f"{title}:\n{body}"


def _graph_line(i: int, graph: GraphRecord, names: dict[str, str]) -> str:
    name = names.get(graph.compile_id, "")
    where = f" of {name}" if name else ""
    if graph.first_line and graph.last_line:
        first, last = graph.first_line, graph.last_line
        where += f" ({first[0]}:{first[1]}"
        if last != first:
            where += f" to {last[1]}" if last[0] == first[0] else f" to {last[0]}:{last[1]}"
        where += ")"
    return f"{i}. {graph.compile_id} {_count(graph.op_count, 'operation')}{where}; ended by: {graph.why_ended}"


def _code_text(code: CodeRecord) -> str:
    """The kernels of one ATen graph, one to a line, and what runs through torch's dispatcher."""
    lines = [f"{code.phase} ({code.name})"]
    for kernel in code.kernels:
        moved = ""
        if kernel.bytes_moved is not None:
            seconds = kernel.bytes_moved / costs.memory_speed()
            moved = f": {costs.size(kernel.bytes_moved)}, at least {costs.microseconds(seconds)} at the memory's speed"
        times = f" x {kernel.calls}" if kernel.calls > 1 else ""
        lines.append(f"  {kernel.name}{times}{moved}")
        lines.append(f"    fuses {', '.join(kernel.operations)}")
    if code.extern:
        lines.append(f"  through torch: {', '.join(code.extern)}")
    lines += [f"  {each.text}" for each in code.collectives]
    if code.copies:
        lines.append(f"  copied at each replay of the recorded graph: {', '.join(code.copies)}")
    return "\n".join(lines)


def _guard_text(record: CompileRecord) -> str:
    """The guards of one frame, sorted by source as they were made, each with the line that made it."""
    lines = [f"{record.compile_id} {record.code_name} ({record.filename}:{record.firstlineno})"]
    for guard in record.guards[:SHOWN_GUARDS]:
        text = guard.text if len(guard.text) <= 160 else guard.text[:157] + "..."
        where = ""
        if guard.user_loc:
            # the frame's own file has been named
            here = guard.user_loc.filename == record.filename
            where = f"  # line {guard.user_loc.lineno}" if here else f"  # {guard.user_loc.short()}"
        lines.append(f"  {text}{where}")
    if len(record.guards) > SHOWN_GUARDS:
        lines.append(f"  and {len(record.guards) - SHOWN_GUARDS} more: see to_dict(), html() or DYNAJIT_LOGS=guards")
    return "\n".join(lines)


def _frame_dict(record: CompileRecord) -> dict[str, Any]:
    return {
        "compile_id": record.compile_id,
        "name": record.code_name,
        "file": record.filename,
        "line": record.firstlineno,
        "skipped": record.skipped,
        "recompile_reason": record.recompile_reason,
        "phases": dict(record.phases),
        "guards": [
            {"source": guard.source, "text": guard.text, "line": guard.user_loc.short() if guard.user_loc else None}
            for guard in record.guards
        ],
    }


def _graph_dict(graph: GraphRecord) -> dict[str, Any]:
    return {
        "compile_id": graph.compile_id,
        "op_count": graph.op_count,
        "first_line": graph.first_line,
        "last_line": graph.last_line,
        "why_ended": graph.why_ended,
        "code": [dataclasses.asdict(code) for code in graph.code],
    }


def _break_dict(brk: BreakRecord) -> dict[str, Any]:
    return {
        "kind": brk.kind,
        "reason": brk.reason,
        "hint": brk.hint,
        "user_stack": [(loc.filename, loc.lineno, loc.function) for loc in brk.user_stack],
        "lifted_from": brk.lifted_from,
        "handed_over": brk.handed_over,
        "loops": [loop.short() for loop in brk.loops],
    }
