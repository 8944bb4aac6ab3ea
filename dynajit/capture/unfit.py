"""Variants whose guards fail on the very state that they were made from: a fault of dynajit's own.

In: a variant that was just made, and the frame's values, which are what they were: nothing of the frame has run. Out:
whether it will do. Left alone, such a frame would be compiled again at each call, up to the recompile limit. The same
fault seen from the other side is a guard that failed, and holds (`misses.recompile_reason`).
"""

from __future__ import annotations

import threading
import types
import warnings
from typing import Any

from dynajit import _C
from dynajit.guards.program import CallValues, GuardSet
from dynajit.guards.source import Source
from dynajit.report import breaks
from dynajit.report.counters import counters
from dynajit.report.records import CompileRecord

# files and lines of the functions of which a warning told
_told: set[tuple[str, int]] = set()


def fits(
    variant: _C.Variant,
    guards: GuardSet,
    code: types.CodeType,
    values: tuple[Any, ...],
    record: CompileRecord,
    earlier: set[Source | None],
) -> bool:
    """Whether the variant's guards hold for the frame that it was made for.

    If not, the fault is reported and the frame's code marked: states that no variant fits run eagerly from now on.
    Where other threads run, the first failure on a source is only noted in `earlier`: they may have changed what it
    leads to while the frame was captured.
    """
    failed = variant.guards.check(values)
    if failed < 0:
        return True
    source = guards[failed].source
    if source not in earlier and threading.active_count() > 1:
        earlier.add(source)
        return True
    reason = guards.failure_reason(failed, CallValues(values, variant.globals))
    record.skipped = f"{breaks.UNFIT_GUARD.text}: {reason}"
    report(code, reason)
    _C.mark_run_only(code)
    return False


def report(code: types.CodeType, reason: str) -> None:
    """Count the fault, and warn once for each function."""
    counters["internal_errors"][breaks.UNFIT_GUARD.id] += 1
    place = code.co_filename, code.co_firstlineno
    if place not in _told:
        _told.add(place)
        warnings.warn(
            f"dynajit: {breaks.UNFIT_GUARD.text}: {code.co_name} ({code.co_filename}:{code.co_firstlineno}), {reason}; "
            f"{breaks.UNFIT_GUARD.hint}",
            stacklevel=4,
        )
