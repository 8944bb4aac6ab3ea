"""The running CPython's bytecode module.

In: nothing. Out: `target()`, the py3NN module for the running Python: the only place of dynajit/ that asks for
Python's version. To support one more CPython, write its py3NN.py and add it to KNOWN.
"""

from __future__ import annotations

import functools
import importlib
import opcode
import sys
from typing import Final, cast

from dynajit.bytecode.common import NO_INTERRUPT, Kind, Target

#: CPython (major, minor) → module
KNOWN: Final[dict[tuple[int, int], str]] = {
    (3, 11): "dynajit.bytecode.py311",
    (3, 12): "dynajit.bytecode.py312",
    (3, 13): "dynajit.bytecode.py313",
    (3, 14): "dynajit.bytecode.py314",
}


@functools.cache
def target() -> Target:
    """The module of the running Python. ImportError, naming the known ones, for a Python that dynajit does not know."""
    version = sys.version_info[:2]
    if sys.implementation.name != "cpython" or version not in KNOWN:
        known = ", ".join(f"{major}.{minor}" for major, minor in KNOWN)
        name, (major, minor) = sys.implementation.name, version
        raise ImportError(f"dynajit knows the bytecode of CPython {known}; this is {name} {major}.{minor}")
    return cast(Target, importlib.import_module(KNOWN[version]))


@functools.cache
def jump_names() -> dict[tuple[str, bool], str]:
    """The raw names of jumps by the canonical one and whether they go backward; a Python may lack one direction."""
    return {
        (decoding.op, decoding.kind is Kind.BACKWARD): raw
        for raw, decoding in target().TABLE.items()
        if decoding.kind in (Kind.FORWARD, Kind.BACKWARD) and raw != NO_INTERRUPT
    }


@functools.cache
def cache_entries() -> list[int]:
    """Inline cache entries (code units that follow the instruction) by opcode number."""
    entries = opcode._inline_cache_entries  # type: ignore[attr-defined]
    if isinstance(entries, dict):  # by name since 3.13
        return [entries.get(name, 0) for name in opcode.opname]
    return list(entries)


@functools.cache
def without_argument() -> frozenset[int]:
    """Numbers of the opcodes that take no argument."""
    with_argument = getattr(opcode, "hasarg", None)  # since 3.12; then opcodes need no longer be sorted by it
    if with_argument is not None:
        return frozenset(range(256)).difference(with_argument)
    return frozenset(range(opcode.HAVE_ARGUMENT))
