"""Sizes in the text of kernels: numbers, or where they are symbolic expressions of the kernel's last arguments.

In:  ints and `loopir.size.Size`s.
Out: their text in a kernel (`text`), the same for the plan (`plan_text`), and which symbols a text takes (`arguments`).
Symbols are arguments of 32 bits. `LIMIT` is what every number of a kernel with symbolic sizes has to stay below: the
plan finds that out when it runs, by `small` in the text of a size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from dynajit.loopir.size import Size, divides

# Room for what masks leave out of the last blocks.
LIMIT = (1 << 31) - (1 << 24)
_MARK = "size_"


def text(value: int | Size) -> str:
    """A size as an integer expression of a kernel."""
    if not isinstance(value, Size):
        return str(value)
    result = repr(value)
    for name in sorted((symbol.name for symbol in value.symbols), key=len, reverse=True):
        result = re.sub(rf"(?<![\w]){name}\b", _MARK + name, result)
    return result


def plan_text(kernel_text: str) -> str:
    """The expression of a kernel over the plan's symbols."""
    return re.sub(rf"\b{_MARK}(?=[a-z]+[0-9]+\b)", "", kernel_text)


def arguments(kernel_text: str) -> tuple[str, ...]:
    """The symbols in a kernel's text."""
    return tuple(sorted(set(re.findall(rf"\b{_MARK}([a-z]+[0-9]+)\b", kernel_text))))


def parameter(symbol: str) -> str:
    """The kernel's argument that is the symbol."""
    return _MARK + symbol


def blocks(size: int | Size, block: int) -> int | str:
    """How many blocks there are, the last one perhaps not full: a number, or an expression of a kernel."""
    if not isinstance(size, Size):
        return -(-size // block)
    exact = divides(block, size)
    return text(size // block) if exact else f"(({text(size)} + {block - 1}) // {block})"


def product(factors: Iterable[int | str]) -> int | str:
    """The factors multiplied: a number if all are."""
    number, names = 1, list[str]()
    for factor in factors:
        if isinstance(factor, int):
            number *= factor
        else:
            names.append(factor)
    if not names:
        return number
    return " * ".join(names if number == 1 else [*names, str(number)])
