"""The page of `python -m dynajit survey` and `dynajit.testing.survey`.

In: what a survey found, as plain data: verdicts, the captures with the call each was made at, times, memory. Out:
`SurveyReport`: `str(report)` is a page to read or to put into a bug report, `to_dict()` is for machines. One more thing
a survey tells: a field, a section in `__str__`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

from dynajit.report import costs
from dynajit.report.breaks import INTERNAL
from dynajit.report.explain import ExplainReport
from dynajit.report.places import is_own
from dynajit.report.records import CompileRecord

#: entries of a section in the text; `to_dict()` has all
SHOWN = 12
_REPEATED = "Compiled by a call that repeats an earlier one: a defect, unless numbers in tensors decide"


@dataclasses.dataclass
class Times:
    """Seconds a call, medians of interleaved calls. `step` is the call and its backward pass, where there is one."""

    inputs: int
    eager: float
    compiled: float
    eager_step: float | None = None
    compiled_step: float | None = None


@dataclasses.dataclass
class SavedBytes:
    """Bytes that one call's results and what autograd keeps for them take, after the forward pass."""

    inputs: int
    eager: int
    compiled: int


@dataclasses.dataclass
class Capture:
    """One capture, and what the program was doing: `call` counts from 1, `repeated` if an equal call came before."""

    call: int
    repeated: bool
    record: CompileRecord


@dataclasses.dataclass
class SurveyReport:
    """What a survey found.

    Attributes:
        program: its name.
        right: True, False, or None where eager itself does not give the same twice.
        verdict: that in a sentence.
        reference: whether numbers were compared with float64's.
        difference: the first difference from eager, with the call and the place; empty if there is none.
        calls: how many calls were compared, of how many sets of inputs (`sets`).
        error: what eager raises, if it does; a program may.
        captures: what was looked at, in order.
        repeated: those of `captures` in a call that repeats an earlier one; there should be none.
        times, kept: for each set of inputs; seconds and bytes.
        first_call: seconds of the first call, eager and compiled.
        notes: warnings that dynajit gave: limits reached, faults of its own.
        versions: of everything that matters, by name.
    """

    program: str
    right: bool | None = None
    difference: str = ""
    calls: int = 0
    sets: int = 0
    reference: bool = False
    error: str | None = None
    captures: list[Capture] = dataclasses.field(default_factory=list)
    times: list[Times] = dataclasses.field(default_factory=list)
    kept: list[SavedBytes] = dataclasses.field(default_factory=list)
    first_call: tuple[float, float] = (0.0, 0.0)
    notes: list[str] = dataclasses.field(default_factory=list)
    versions: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """Right or not, in a sentence."""
        calls = f"{self.calls} calls, {self.sets} set{'s' * (self.sets != 1)} of inputs"
        if self.right is None:
            return f"undecided: two eager runs differ from each other ({calls})"
        if not self.right:
            return f"WRONG: the compiled program differs from eager ({calls})"
        closeness = "as close to float64 as eager" if self.reference else "equal up to rounding"
        return f"right: what eager gives, {closeness} ({calls})"

    @property
    def explained(self) -> ExplainReport:
        """Graphs, breaks, guards and kernels of all captures."""
        return ExplainReport([capture.record for capture in self.captures])

    @property
    def repeated(self) -> list[Capture]:
        return [capture for capture in self.captures if capture.repeated]

    @property
    def eager_frames(self) -> list[tuple[str, int]]:
        """The functions that run eagerly, each with the reason, and how often; the faults of dynajit come first."""
        skipped = Counter(
            f"{_place(record)}: {record.skipped}"
            for record in (capture.record for capture in self.captures)
            if record.skipped
        )
        return sorted(skipped.items(), key=lambda item: INTERNAL.text not in item[0])

    @property
    def through_torch(self) -> dict[str, int]:
        """The operations that have no kernel of dynajit's own and are called through torch's dispatcher."""
        found = Counter(name for graph in self.explained.graph_records for code in graph.code for name in code.extern)
        return dict(found.most_common())

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, ready for JSON."""
        return {
            "program": self.program,
            "right": self.right,
            "verdict": self.verdict,
            "difference": self.difference,
            "calls": self.calls,
            "sets": self.sets,
            "error": self.error,
            "captures": [
                {
                    "call": capture.call,
                    "repeated": capture.repeated,
                    "compile_id": capture.record.compile_id,
                    "function": _place(capture.record),
                    "reason": capture.record.recompile_reason,
                    "skipped": capture.record.skipped,
                }
                for capture in self.captures
            ],
            "repeated_captures": len(self.repeated),
            "times": [dataclasses.asdict(each) for each in self.times],
            "kept": [dataclasses.asdict(each) for each in self.kept],
            "first_call": {"eager": self.first_call[0], "compiled": self.first_call[1]},
            "through_torch": self.through_torch,
            "notes": self.notes,
            "versions": self.versions,
            "explain": self.explained.to_dict(),
        }

    def __str__(self) -> str:
        explained = self.explained
        counts = f"{explained.graph_count} graphs, {explained.graph_break_count} breaks"
        head = [f"{self.program}: {self.verdict}"]
        head += [f"  {line}" for line in self.difference.splitlines()]
        head += [f"  eager raises {self.error}, and so should the compiled program"] if self.error else []
        head += [f"{counts}, {explained.op_count} operations, {len(self.captures)} captures"]
        head += [self._first_call()]
        sections = [
            ("Time of a call, compiled over eager", [_time(each) for each in self.times]),
            ("Memory kept after the forward pass", [_kept(each) for each in self.kept]),
            ("Graph breaks", [_break_line(brk, met) for brk, met in explained.break_places]),
            (
                "Compiled again",
                [_again(capture) for capture in self.captures if capture.record.recompile_reason],
            ),
            (_REPEATED, [_again(each) for each in self.repeated]),
            ("Runs eagerly", [f"{text}{f' ({n} times)' * (n > 1)}" for text, n in self.eager_frames]),
            ("Operations through torch", [", ".join(f"{name}{f' x {n}' * (n > 1)}" for name, n in self._torch())]),
            ("dynajit's warnings", self.notes),
            ("Versions", [", ".join(f"{name} {version}" for name, version in self.versions.items())]),
        ]
        return "\n".join([*head, *(_section(title, entries) for title, entries in sections if any(entries))])

    def _torch(self) -> list[tuple[str, int]]:
        return list(self.through_torch.items())

    def _first_call(self) -> str:
        eager, compiled = self.first_call
        return f"first call: {costs_of(compiled)} compiled, {costs_of(eager)} eager"


def costs_of(seconds: float) -> str:
    """Seconds, in a unit that fits."""
    return f"{seconds:.2f} s" if seconds >= 1 else costs.microseconds(seconds)


def _place(record: CompileRecord) -> str:
    ours = is_own(record.filename)  # what calls a compiled module is dynajit's; its name is the module's
    return record.code_name if ours else f"{record.code_name} ({record.filename}:{record.firstlineno})"


def _time(times: Times) -> str:
    def ratio(eager: float, compiled: float) -> str:
        return f"{costs_of(compiled)} over {costs_of(eager)} = {compiled / max(eager, 1e-9):.2f}"

    text = f"inputs {times.inputs}: {ratio(times.eager, times.compiled)}"
    if times.eager_step is not None and times.compiled_step is not None:
        text += f"; with backward {ratio(times.eager_step, times.compiled_step)}"
    return text


def _kept(kept: SavedBytes) -> str:
    # a few small objects of Python and C++ are no memory kept
    ratio = f" = {kept.compiled / kept.eager:.2f}" if kept.eager > 64_000 else ""
    return f"inputs {kept.inputs}: {costs.size(kept.compiled)} over eager's {costs.size(kept.eager)}{ratio}"


def _break_line(brk: Any, met: int) -> str:
    where = brk.user_stack[-1].render().rstrip("\n") if brk.user_stack else ""
    lines = [f"{brk.reason} [{brk.kind}]{f', met {met} times' * (met > 1)}", where]
    lines += [f"  What to do: {brk.hint}"] if brk.hint else []
    return "\n".join(filter(None, lines))


def _again(capture: Capture) -> str:
    record = capture.record
    why = record.recompile_reason or record.skipped or "its first compile"
    return f"{record.compile_id} {_place(record)}, at call {capture.call}: {why}"


def _section(title: str, entries: list[str]) -> str:
    shown = [*entries[:SHOWN], *([f"and {len(entries) - SHOWN} more: see --json"] if len(entries) > SHOWN else [])]
    body = "\n".join("  " + line for entry in shown for line in entry.split("\n"))
    return f"{title}:\n{body}"
