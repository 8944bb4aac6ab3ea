"""What the tests of breaks share."""

from __future__ import annotations

from pathlib import Path

from dynajit.report.explain import ExplainReport
from dynajit.report.records import CompileRecord

_TESTS = str(Path(__file__).resolve().parent)


def skipped(report: ExplainReport) -> list[CompileRecord]:
    """The tests' own frames that run eagerly (others, as of a library's audit hook, may come in between)."""
    return [frame for frame in report.frames if frame.skipped and frame.filename.startswith(_TESTS)]
