"""A graph break where breaks are errors: under `fullgraph=True`, and in a block of `error_on_graph_break(True)`.

In: a break, and the frames it came through. Out: the error that the user gets; or, where the line is to raise and
nobody in the frames catches it, none: the graph is whole, the line runs after it, and eager's exception leaves the
function. A line that raises nothing after all gives the error then.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

from dynajit.bytecode.canonical import TERMINATORS
from dynajit.capture.answers import RAISING
from dynajit.exc import Unsupported
from dynajit.interp.catching import nobody_catches
from dynajit.interp.frame import SymFrame
from dynajit.report import breaks
from dynajit.report.records import FrameLoc
from dynajit.values.core.value import GraphBreak
from dynajit.values.tensors.break_errors import are_errors


def refusal_of(stop: GraphBreak, users: Sequence[FrameLoc], fullgraph: bool) -> Unsupported | None:
    """The error that the break is, where breaks are errors; `users` are the program's lines, outermost first. What
    happens once in a module's life is none: the calls after it are one graph."""
    if not (fullgraph or are_errors()) or stop.kind is breaks.FIRST_CALL:
        return None
    text = "\n".join(location.render() for location in users)
    under = "fullgraph=True" if fullgraph else "error_on_graph_break(True)"
    return Unsupported(str(stop), kind=stop.kind.id, user_line=text, hint=stop.kind.hint, under=under)


def raises(stop: GraphBreak, chain: Sequence[SymFrame]) -> bool:
    """Whether the line that the graph ends at is to raise, and nobody catches it: the graph is whole."""
    return stop.kind in RAISING and nobody_catches(chain)


def always_raises(stop: GraphBreak, chain: Sequence[SymFrame]) -> bool:
    """Whether nothing goes on after the line, whatever it does."""
    return stop.kind is breaks.RAISES and chain[-1].current.op in TERMINATORS


def refusing(error: Unsupported | None) -> Callable[[], Any] | None:
    """What generated code calls where a line that was to raise did not."""
    return functools.partial(_refuse, error) if error is not None else None


def _refuse(error: Unsupported) -> None:
    raise copy.copy(error)
