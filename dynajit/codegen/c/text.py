"""Pieces of C text: types, numbers, indices.

In:  dtypes, constants, indices of the loop IR. Out: C text of each.
"""

from __future__ import annotations

import math

import torch

from dynajit.codegen.dtypes import DTYPES
from dynajit.loopir.index import Axis, Div, Index, Mod
from dynajit.loopir.nodes import Position, Scalar
from dynajit.loopir.size import UNBOUNDED, SizeSymbol, is_symbolic, size_symbols
from dynajit.schedule.kernel import Load

MEMORY_TYPES = {dtype: names.c for dtype, names in DTYPES.items()}
# What a value of that dtype is in an expression.
VALUE_TYPES = MEMORY_TYPES | {torch.bfloat16: "float", torch.float16: "float", torch.bool: "int"}


def index_symbols(index: Index) -> set[SizeSymbol]:
    """The symbols of sizes in an index."""
    numbers = [index.constant, *(factor for _, factor in index.terms)]
    inner: set[SizeSymbol] = set()
    for atom, _ in index.terms:
        if isinstance(atom, Axis):
            numbers.append(atom.size)
        else:
            numbers.append(atom.divisor)
            inner |= index_symbols(atom.index)
    return inner | size_symbols(numbers)


def symbols_of(node: Scalar) -> set[SizeSymbol]:
    """The symbols of sizes in one node of an expression."""
    if isinstance(node, Load):
        return index_symbols(node.address)
    return index_symbols(node.index) if isinstance(node, Position) else set()


def number(value: bool | float, dtype: torch.dtype) -> str:
    """A constant."""
    if dtype.is_floating_point:
        suffix = "" if dtype is torch.float64 else "f"
        value = float(value)
        if math.isnan(value):
            return f'__builtin_nan{suffix}("")'
        if math.isinf(value):
            return f"({'-' if value < 0 else ''}__builtin_inf{suffix}())"
        text = f"{value:.17g}" if suffix == "" else f"{value:.9g}"
        if "e" not in text and "." not in text:
            text += ".0"
        return f"({text}{suffix})" if text.startswith("-") else text + suffix
    if dtype is torch.bool:
        return "1" if value else "0"
    if value == -(1 << 63):
        return "(-INT64_MAX - 1)"
    text = f"{int(value)}" if dtype is not torch.int64 else f"INT64_C({int(value)})"
    return f"({text})" if value < 0 else text


def index_text(index: Index) -> str:
    """An index as a C expression of type int64_t."""
    parts = []
    for atom, coefficient in index.terms:
        if isinstance(atom, Axis):
            text = atom.name
        else:
            text = _atom_text(atom)
        parts.append(text if coefficient == 1 else f"{coefficient} * {text}")
    if index.constant or not parts:
        parts.append(str(index.constant))
    return " + ".join(parts)


def _atom_text(atom: Div | Mod) -> str:
    """Division of what may be negative would round towards zero in C."""
    inside = index_text(atom.index)
    if len(atom.index.terms) > 1 or atom.index.constant or atom.index.terms[0][1] != 1:
        inside = f"({inside})"
    if not atom.index.low >= 0 and (is_symbolic((atom.index.low, atom.divisor)) or atom.index.low <= -UNBOUNDED):
        # nobody knows how far below zero it may be
        divisor = atom.divisor
        whole = f"({inside} >= 0 ? {inside} / {divisor} : -((-{inside} + {divisor} - 1) / {divisor}))"
        return whole if isinstance(atom, Div) else f"({inside} - {divisor} * {whole})"
    if atom.index.low < 0:
        # moved up by a multiple of the divisor
        inside = f"(({inside}) + {-(atom.index.low // atom.divisor) * atom.divisor})"
        if isinstance(atom, Div):
            return f"({inside} / {atom.divisor} - {-(atom.index.low // atom.divisor)})"
    return f"({inside} {'/' if isinstance(atom, Div) else '%'} {atom.divisor})"
