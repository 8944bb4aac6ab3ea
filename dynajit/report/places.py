"""Places in the user's program.

In: the traceback-like text that a graph's node carries. Out: file and line of each frame, and whose file it is.
"""

from __future__ import annotations

from pathlib import Path

import torch

from dynajit.report.records import FrameLoc

_OWN = str(Path(__file__).parent.parent) + "/"  # as the names in its code objects begin, links included
_TORCH = str(Path(torch.__file__).resolve().parent) + "/"


def is_own(filename: str) -> bool:
    """Is it a file of dynajit's?"""
    return filename.startswith(_OWN)


def is_torch(filename: str) -> bool:
    """Is it a file of torch?"""
    return filename.startswith(_TORCH)


def is_library(filename: str) -> bool:
    """Is it a file of torch's or dynajit's?"""
    return filename.startswith((_OWN, _TORCH))


def trace_locations(text: str) -> list[FrameLoc]:
    """The frames of a traceback-like text, outermost first."""
    found = []
    for line in text.splitlines():
        if line.startswith('  File "'):
            _, filename, rest = line.split('"', 2)
            number, _, function = rest.removeprefix(", line ").partition(", in ")
            if number.isdigit():
                found.append(FrameLoc(filename, int(number), function=function))
    return found


def trace_places(text: str) -> list[tuple[str, int]]:
    """File and line of each frame of a traceback-like text, outermost first."""
    return [(location.filename, location.lineno) for location in trace_locations(text) if location.lineno is not None]


def user_place(text: str) -> tuple[str, int] | None:
    """The innermost line of such a text that is the user's; the innermost of all if none is."""
    places = trace_places(text)
    return next((place for place in reversed(places) if not is_library(place[0])), places[-1] if places else None)
