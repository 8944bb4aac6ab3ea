"""The report of `explain` as one self-contained page.

In: an `ExplainReport`. Out: HTML with its style and script inside, nothing loaded from elsewhere: totals, the user's
source as a heat map (in a graph, in a graph through an inlined call, broken, eager), each break with its cure, graphs
drawn, kernels with their code, guards, times. One more section: a function here and its line in `page`.
"""

from __future__ import annotations

import linecache
from collections import Counter
from html import escape
from typing import TYPE_CHECKING, Any

from dynajit.report import costs
from dynajit.report.draw import draw
from dynajit.report.page_parts import SCRIPT, STYLE
from dynajit.report.places import is_library, is_torch, trace_places
from dynajit.report.records import CodeRecord, CompileRecord, FrameLoc, GraphRecord

if TYPE_CHECKING:
    from dynajit.report.explain import ExplainReport

# Classes of a line in the heat map, the strongest last.
_EAGER, _INLINED, _GRAPH, _BROKEN = "eager", "inlined", "graph", "broken"
_STRENGTH = (_EAGER, _INLINED, _GRAPH, _BROKEN)
_LEGEND = {
    _GRAPH: "in a graph",
    _INLINED: "calls what is in a graph",
    _BROKEN: "breaks the graph",
    _EAGER: "runs eagerly",
}
_CONTEXT = 3


def page(report: ExplainReport) -> str:
    """The whole page."""
    sections = {
        "Source": _source(report),
        "Graph breaks": _breaks(report),
        "Graphs": _graphs(report),
        "Kernels": _kernels(report),
        "Guards": _guards(report),
        "Recompiles": _list(report.recompile_reasons),
        "Eager frames": _list([f"{_frame(r)}: {r.skipped}" for r in report.frames if r.skipped]),
        "Compile time": _times(report),
    }
    shown = {title: body for title, body in sections.items() if body}
    links = "".join(f'<a href="#{_anchor(title)}">{title}</a>' for title in shown)
    body = "".join(f'<section id="{_anchor(title)}"><h2>{title}</h2>{text}</section>' for title, text in shown.items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>dynajit report</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><header><h1>dynajit report</h1><nav>{links}</nav>"
        '<input id="search" type="search" placeholder="search: lines, operations, guards" aria-label="search">'
        f'<span id="found"></span></header><main>{_totals(report)}{body}</main><script>{SCRIPT}</script></body></html>'
    )


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _totals(report: ExplainReport) -> str:
    seconds = sum(report.phases.values())
    numbers = {
        "graphs": report.graph_count,
        "graph breaks": report.graph_break_count,
        "operations": report.op_count,
        "guards": report.guard_count,
        "seconds to compile": f"{seconds:.2f}",
    }
    tiles = "".join(f"<div><b>{value}</b>{name}</div>" for name, value in numbers.items())
    error = ""
    if report.error is not None:
        error = (
            f'<p class="error">The call raised {escape(type(report.error).__name__)}: {escape(str(report.error))}</p>'
        )
    return f'<div class="totals">{tiles}</div>{error}'


# ------------------------------------------------------------------------------------------------ source


class _Heat:
    """Which class each line of each file has, and how many operations come from it."""

    def __init__(self) -> None:
        self.kinds: dict[str, dict[int, str]] = {}
        self.operations: Counter[tuple[str, int]] = Counter()
        self.notes: dict[tuple[str, int], str] = {}

    def mark(self, filename: str, line: int, kind: str) -> None:
        lines = self.kinds.setdefault(filename, {})
        if _STRENGTH.index(kind) >= _STRENGTH.index(lines.get(line, _EAGER)):
            lines[line] = kind

    def add(self, report: ExplainReport) -> None:
        for record in report.frames:
            if record.skipped:
                for line in record.lines:
                    self.mark(record.filename, line, _EAGER)
        for graph in report.graph_records:
            for node in graph.graph_module.graph.nodes:
                places = trace_places(node.meta.get("stack_trace") or "")
                for place in places[:-1]:
                    self.mark(*place, _INLINED)
                for place in places[-1:]:
                    self.mark(*place, _GRAPH)
                    self.operations[place] += 1
        for brk in report.break_reasons:
            for location in brk.user_stack[-1:]:
                if location.lineno is not None:
                    self.mark(location.filename, location.lineno, _BROKEN)
                    self.notes[location.filename, location.lineno] = brk.reason


def _source(report: ExplainReport) -> str:
    heat = _Heat()
    heat.add(report)
    legend = "".join(f'<span class="key {kind}">{text}</span>' for kind, text in _LEGEND.items())
    blocks = [_file(heat, filename, lines) for filename, lines in heat.kinds.items() if not is_library(filename)]
    library = [_file(heat, filename, lines) for filename, lines in heat.kinds.items() if is_torch(filename)]
    inside = f"<details><summary>torch's own files</summary>{''.join(library)}</details>" if library else ""
    return f'<p class="legend">{legend}</p>{"".join(blocks)}{inside}' if blocks or library else ""


def _file(heat: _Heat, filename: str, kinds: dict[int, str]) -> str:
    """The marked lines of one file with some around them; gaps are dots."""
    text = linecache.getlines(filename)
    if not text:
        return f"<h3>{escape(filename)}</h3><p>The source can't be read.</p>"
    shown = sorted(
        {line for marked in kinds for line in range(marked - _CONTEXT, marked + _CONTEXT + 1) if 1 <= line <= len(text)}
    )
    rows = []
    previous = 0
    for line in shown:
        if line != previous + 1 and previous:
            rows.append('<tr class="gap"><td></td><td></td><td>⋯</td></tr>')
        previous = line
        count = heat.operations[filename, line]
        note = heat.notes.get((filename, line), "")
        comment = f'<span class="note">{escape(note)}</span>' if note else ""
        rows.append(
            f'<tr class="{kinds.get(line, "")}"><td>{line}</td><td>{count or ""}</td>'
            f"<td><code>{escape(text[line - 1].rstrip())}</code>{comment}</td></tr>"
        )
    head = "<thead><tr><th>line</th><th>operations</th><th></th></tr></thead>"
    return f'<h3>{escape(filename)}</h3><table class="source">{head}{"".join(rows)}</table>'


# ------------------------------------------------------------------------------------------------ breaks, guards


def _breaks(report: ExplainReport) -> str:
    return "".join(
        f'<article class="searchable"><h3>{i}. {escape(brk.reason)} <small>{escape(brk.kind)}</small></h3>'
        f"<pre>{escape(brk.text)}</pre>{_chain(brk.user_stack)}"
        + (f"<p>Broken at the call outside, because of: {escape(brk.lifted_from)}</p>" if brk.lifted_from else "")
        + "".join(f"<p>{escape(text)}.</p>" for text in brk.about_loops())
        + (f"<p><b>Cost</b>: {escape(brk.cost)}</p>" if brk.handed_over is not None else "")
        + f"<p><b>What to do</b>: {escape(brk.hint)}</p>"
        + (f"<p>Met {n} times while compiling.</p>" if n > 1 else "")
        + "</article>"
        for i, (brk, n) in enumerate(report.break_places, 1)
    )


def _chain(stack: list[FrameLoc]) -> str:
    if len(stack) < 2:
        return ""
    names = " → ".join(f"{escape(loc.function or '?')} (line {loc.lineno})" for loc in stack)
    return f"<p><b>Called through</b>: {names}</p>"


def _guards(report: ExplainReport) -> str:
    rows = [
        f'<tr class="searchable"><td>{escape(record.compile_id)}</td><td><code>{escape(guard.source)}</code></td>'
        f"<td>{escape(guard.text)}</td><td>{escape(guard.user_loc.short()) if guard.user_loc else ''}</td></tr>"
        for record in report.frames
        for guard in record.guards
    ]
    head = "<tr><th>compile</th><th>source</th><th>guard</th><th>made by</th></tr>"
    return f'<table class="plain">{head}{"".join(rows)}</table>' if rows else ""


def _list(entries: list[str]) -> str:
    items = "".join(f'<li class="searchable">{escape(entry)}</li>' for entry in entries)
    return f"<ul>{items}</ul>" if items else ""


def _frame(record: CompileRecord) -> str:
    return f"{record.compile_id} {record.code_name} ({record.filename}:{record.firstlineno})"


# ------------------------------------------------------------------------------------------------ graphs, kernels


def _graphs(report: ExplainReport) -> str:
    return "".join(_graph(i, graph) for i, graph in enumerate(report.graph_records, 1))


def _graph(number: int, graph: GraphRecord) -> str:
    module: Any = graph.graph_module
    where = ""
    if graph.first_line and graph.last_line:
        where = f", {graph.first_line[0]}:{graph.first_line[1]} to {graph.last_line[1]}"
    return (
        f'<details class="searchable"{" open" if number <= 2 else ""}><summary>{number}. {escape(graph.compile_id)} '
        f"{graph.op_count} operations{escape(where)}; ended by: {escape(graph.why_ended)}</summary>"
        f'<div class="drawing">{draw(module.graph)}</div>'
        f"<pre>{escape(module.code.strip())}</pre></details>"
    )


def _kernels(report: ExplainReport) -> str:
    return "".join(_code(code) for graph in report.graph_records for code in graph.code)


def _code(code: CodeRecord) -> str:
    rows = "".join(
        f'<tr class="searchable"><td><code>{escape(kernel.name)}</code></td><td>{escape(", ".join(kernel.operations))}'
        f"</td><td>{_moved(kernel.bytes_moved)}</td><td>{'<br>'.join(map(escape, kernel.lines))}</td></tr>"
        for kernel in code.kernels
    )
    head = "<tr><th>kernel</th><th>fuses</th><th>moves, at least</th><th>lines</th></tr>"
    table = f'<table class="plain">{head}{rows}</table>' if rows else ""
    extern = f"<p>Through torch: {escape(', '.join(code.extern))}</p>" if code.extern else ""
    extern += "".join(f"<p>{escape(each.text)}</p>" for each in code.collectives)
    source = f"<details><summary>code ({code.language})</summary><pre>{escape(code.source)}</pre></details>"
    return f"<h3>{escape(code.name)} ({code.phase})</h3>{table}{extern}{source if code.source else ''}"


def _moved(count: int | None) -> str:
    if count is None:
        return "known when called"
    return f"{costs.size(count)}, {costs.microseconds(count / costs.memory_speed())}"


def _times(report: ExplainReport) -> str:
    phases = report.phases
    longest = max(phases.values(), default=0.0) or 1.0
    return "".join(
        f'<div class="bar"><span>{escape(name)}</span><i style="width:{60 * seconds / longest:.1f}%"></i>'
        f"{seconds * 1e3:.1f} ms</div>"
        for name, seconds in phases.items()
    )
