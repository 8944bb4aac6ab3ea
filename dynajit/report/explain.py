"""The report of `dynajit.explain(fn)(*args)`.

In: the `CompileRecord`s of one run, in the order of capture. Out: `ExplainReport`: counts, the graphs, the breaks
with the user's line, and `str(report)` for reading. Every break in the records counts: capture records one only where
it cut a graph or cost one.
"""

from collections.abc import Iterable
from typing import Any

from dynajit.report.phases import PHASES
from dynajit.report.records import BreakRecord, CompileRecord, GraphRecord


class ExplainReport:
    """What a run compiled.

    graph_count, graph_break_count, op_count, guard_count: totals. break_reasons: the `BreakRecord`s (`.reason`,
    `.kind`, `.user_stack`, `.hint`, `.text`). graphs: the fx GraphModules. frames: the `CompileRecord`s. phases:
    seconds by compile phase, all frames together.
    """

    def __init__(self, records: Iterable[CompileRecord], result: Any = None) -> None:
        self.frames: list[CompileRecord] = list(records)
        self.result = result
        self.graph_records: list[GraphRecord] = [graph for record in self.frames for graph in record.graphs]
        self.break_reasons: list[BreakRecord] = [brk for record in self.frames for brk in record.breaks]
        self.graphs: list[Any] = [graph.graph_module for graph in self.graph_records]

    @property
    def graph_count(self) -> int:
        return len(self.graph_records)

    @property
    def graph_break_count(self) -> int:
        return len(self.break_reasons)

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
            "frames": [
                {
                    "compile_id": r.compile_id,
                    "name": r.code_name,
                    "file": r.filename,
                    "line": r.firstlineno,
                    "skipped": r.skipped,
                }
                for r in self.frames
            ],
            "phases": self.phases,
        }

    def __str__(self) -> str:
        totals = {
            "graph": self.graph_count,
            "graph break": self.graph_break_count,
            "operation": self.op_count,
            "guard": self.guard_count,
        }
        lines = [", ".join(_count(n, noun) for noun, n in totals.items())]
        lines += [_section("Graphs", [_graph_line(i, graph) for i, graph in enumerate(self.graph_records, 1)])]
        lines += [_section("Graph breaks", [f"{i}. {brk.render()}" for i, brk in enumerate(self.break_reasons, 1)])]
        lines += [_section("Recompiles", self.recompile_reasons)]
        skipped = [
            f"{r.compile_id} {r.code_name} ({r.filename}:{r.firstlineno}): {r.skipped}"
            for r in self.frames
            if r.skipped
        ]
        lines += [_section("Frames that run eagerly", skipped)]
        lines += [_section("Compile time", [f"{name:<15} {seconds:8.3f} s" for name, seconds in self.phases.items()])]
        return "\n".join(filter(None, lines))

    def __repr__(self) -> str:
        return f"<ExplainReport: {_count(self.graph_count, 'graph')}, {_count(self.graph_break_count, 'graph break')}>"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _section(title: str, entries: list[str]) -> str:
    if not entries:
        return ""
    body = "\n".join("  " + line for entry in entries for line in entry.split("\n"))
    return f"{title}:\n{body}"


def _graph_line(i: int, graph: GraphRecord) -> str:
    where = ""
    if graph.first_line and graph.last_line:
        first, last = graph.first_line, graph.last_line
        where = f", {first[0]}:{first[1]}" + (f" to {last[1]}" if last[0] == first[0] else f" to {last[0]}:{last[1]}")
    return f"{i}. {graph.compile_id} {_count(graph.op_count, 'operation')}{where}; ended by: {graph.why_ended}"


def _graph_dict(graph: GraphRecord) -> dict[str, Any]:
    return {
        "compile_id": graph.compile_id,
        "op_count": graph.op_count,
        "first_line": graph.first_line,
        "last_line": graph.last_line,
        "why_ended": graph.why_ended,
    }


def _break_dict(brk: BreakRecord) -> dict[str, Any]:
    return {
        "kind": brk.kind,
        "reason": brk.reason,
        "hint": brk.hint,
        "user_stack": [(loc.filename, loc.lineno, loc.function) for loc in brk.user_stack],
        "lifted_from": brk.lifted_from,
    }
