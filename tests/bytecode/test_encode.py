"""The tables of code objects: what is written is what CPython reads back."""

from __future__ import annotations

import dis
from types import CodeType
from typing import Any

import pytest

from dynajit.bytecode.encode import Location, Range, exception_table, line_table

PLACES: list[tuple[Location | None, int]] = [
    ((10, 10, 4, 8), 1),
    ((10, 10, 4, 8), 2),
    (None, 3),
    ((9, 12, 0, 300), 20),
    ((12, None, None, None), 9),
    ((5000, 5001, 70, 3), 1),
    ((11, 11, 0, 0), 8),
]


def _with(**parts: Any) -> CodeType:
    return compile("None", "file", "eval").replace(**parts)


@pytest.mark.parametrize("first_line", [1, 10, 100_000])
def test_positions_are_read_back(first_line: int) -> None:
    units = sum(count for _, count in PLACES)
    nops = bytes((dis.opmap["NOP"], 0)) * units
    code = _with(co_code=nops, co_firstlineno=first_line, co_linetable=line_table(PLACES, first_line))
    # a line without columns is taken for the last line, too
    shown = [(place and (place[0], place[1] or place[0], *place[2:])) or (None,) * 4 for place, _ in PLACES]
    expected = [place for place, (_, count) in zip(shown, PLACES, strict=True) for _ in range(count)]
    assert list(code.co_positions()) == expected


def test_ranges_are_read_back() -> None:
    ranges = [Range(0, 1, 5, 0, False), Range(1, 70, 4100, 3, True), Range(70, 5000, 300_000, 64, False)]
    code = _with(co_exceptiontable=exception_table(ranges))
    entries = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    assert [(e.start // 2, e.end // 2, e.target // 2, e.depth, e.lasti) for e in entries] == [
        (each.start, each.stop, each.goal, each.depth, each.lasti) for each in ranges
    ]
