"""The binary tables of code objects: instructions, line table, exception table.

In: instructions with their arguments and places, ranges with their handlers, offsets in code units. Out: bytes in the
formats that CPython describes in Objects/locations.md and Objects/exception_handling_notes.txt; they are the same in
3.11 to 3.14. A code object is made at every break, which is why this is not left to a general library.
"""

from __future__ import annotations

import opcode
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

#: line, last line, first column, column after the last; None where it is not known
Location = tuple[int, int | None, int | None, int | None]

_EXTENDED: Final = opcode.opmap["EXTENDED_ARG"]
_NO_COLUMNS, _LONG, _NOWHERE = 13, 14, 15
_MAX_UNITS: Final = 8  # of one entry in the line table


class Range(NamedTuple):
    """Instructions from `start` up to `stop`, exclusive, and what happens where one of them raises."""

    start: int
    stop: int
    goal: int
    depth: int
    lasti: bool


def instruction(number: int, argument: int, units: int, caches: int) -> bytes:
    """One instruction in `units` code units, EXTENDED_ARGs included, with its inline caches."""
    if units == 1:
        return bytes((number, argument)) + bytes(2 * caches)
    code = bytearray()
    for shift in range(8 * (units - 1), 0, -8):
        code += bytes((_EXTENDED, argument >> shift & 0xFF))
    code += bytes((number, argument & 0xFF))
    return bytes(code) + bytes(2 * caches)


def line_table(places: Iterable[tuple[Location | None, int]], first_line: int) -> bytes:
    """Where each of the instructions stands that take the given number of code units; None: at no line."""
    table = bytearray()
    line = first_line
    for location, units in _joined(places):
        for start in range(0, units, _MAX_UNITS):
            length = min(_MAX_UNITS, units - start)
            _entry(table, location, length, line)
            line = location[0] if location is not None else line
    return bytes(table)


def _joined(places: Iterable[tuple[Location | None, int]]) -> list[tuple[Location | None, int]]:
    """Neighbours at one place as one."""
    joined: list[tuple[Location | None, int]] = []
    for location, units in places:
        if joined and joined[-1][0] == location:
            joined[-1] = location, joined[-1][1] + units
        else:
            joined.append((location, units))
    return joined


def _entry(table: bytearray, location: Location | None, length: int, line: int) -> None:
    if location is None:
        table.append(0x80 | _NOWHERE << 3 | length - 1)
        return
    first, last, column, end = location
    kind = _NO_COLUMNS if last is None or column is None or end is None else _LONG
    table.append(0x80 | kind << 3 | length - 1)
    delta = first - line
    _number(table, -delta << 1 | 1 if delta < 0 else delta << 1)
    if last is not None and column is not None and end is not None:
        for value in (last - first, column + 1, end + 1):
            _number(table, value)


def _number(table: bytearray, value: int) -> None:
    """Six bits a byte, the lowest first."""
    while value >= 0x40:
        table.append(0x40 | value & 0x3F)
        value >>= 6
    table.append(value)


def exception_table(ranges: Sequence[Range]) -> bytes:
    """The ranges, in order."""
    table = bytearray()
    for each in ranges:
        start = len(table)
        for value in (each.start, each.stop - each.start, each.goal, each.depth << 1 | each.lasti):
            _number_from_highest(table, value)
        table[start] |= 0x80
    return bytes(table)


def _number_from_highest(table: bytearray, value: int) -> None:
    """Six bits a byte, the highest first."""
    shift = max(value.bit_length() - 1, 0) // 6 * 6
    while shift:
        table.append(0x40 | value >> shift & 0x3F)
        shift -= 6
    table.append(value & 0x3F)
