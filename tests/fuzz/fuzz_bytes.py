"""Checks that are driven by bytes, for fuzzers that change bytes and watch what is reached.

In:  bytes. Out: for each of `TARGETS` None, or what differs as text:
     guards    random guards on random objects against their Python twins (`fuzz_guards.py`)
     code      random functions taken apart and put together again, at their start and at any instruction
     damaged   the instructions and exception tables of such functions, damaged: taken apart without harm
Each byte decides something, so a changed byte is a changed program rather than another one altogether.
"""

from __future__ import annotations

import opcode
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "bytecode")]

from bytecode_harness import broken_at, may_be_unbound, rebuilt, stack_kinds  # noqa: E402
from fuzz_code import function_of  # noqa: E402
from fuzz_guards import check_guards  # noqa: E402

from dynajit.bytecode import decode, live_before, pretty, regions  # noqa: E402

_CACHES = 32  # bytes of the most inline caches that an instruction has, and some


class FromBytes(random.Random):
    """Random numbers that are read from bytes; zeros when these have run out."""

    def __new__(cls, data: bytes) -> FromBytes:
        return super().__new__(cls)

    def __init__(self, data: bytes) -> None:
        self._rest = data
        self._at = 0

    def getrandbits(self, k: int) -> int:
        count = (k + 7) // 8
        chunk = self._rest[self._at : self._at + count]
        self._at += count
        return int.from_bytes(chunk, "little") & ((1 << k) - 1)

    def random(self) -> float:
        return self.getrandbits(8) / 256

    def seed(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: the bytes are all there is."""


def guards(data: bytes) -> str | None:
    """The guard program and the twins agree."""
    return check_guards(FromBytes(data))


def code(data: bytes) -> str | None:
    """A function put together again, whole and cut in two, does what it did."""
    rng = FromBytes(data)
    function, text = function_of(rng)
    arguments = [(rng.randrange(4), rng.randrange(4)) for _ in range(2)]
    decoded = decode(function.__code__)
    pretty(decoded.code)
    kinds = stack_kinds(decoded)
    # what LOAD_FAST_AND_CLEAR leaves may be a NULL: whether it is only the run shows
    hidden = [i.index for i in decoded.instrs if i.op == "LOAD_FAST_AND_CLEAR"]
    ends = hidden[0] if hidden else len(decoded.instrs)
    places = [index for index in sorted(kinds) if index <= ends and not may_be_unbound(decoded, index)]
    chosen = rng.choice(places) if places else None  # none where a comprehension comes first
    ways = [("rebuilt", rebuilt(function))]
    if chosen is not None:
        ways.append(("cut", broken_at(function, chosen, kinds[chosen])))
    for name, made in ways:
        for values in arguments:
            expected, found = _outcome(function, values), _outcome(made, values)
            if expected != found:
                where = f" at {decoded.instrs[chosen]}" if chosen is not None and name == "cut" else ""
                return f"{name}{where}, called with {values}: {found} instead of {expected}\n{text}"
    return None


def _outcome(function: Callable[..., Any], values: tuple[Any, ...]) -> Any:
    log: list[Any] = []
    try:
        result = function(*values, log)
    except Exception as error:
        result = type(error).__name__, error.args
    return repr(result), repr(log)


def damaged(data: bytes) -> str | None:
    """Decoding never raises, and what was decoded can be looked at."""
    rng = FromBytes(data)
    function, text = function_of(rng)
    original = function.__code__
    instructions = bytearray(original.co_code)
    table = bytearray(original.co_exceptiontable)
    # CPython writes behind code whose last instruction has inline caches that are not there
    end = len(instructions) - _CACHES
    for _ in range(rng.randrange(1, 9)):
        if table and rng.random() < 0.3:
            table[rng.randrange(len(table))] = rng.randrange(256)
        else:
            at, byte = rng.randrange(end), rng.randrange(256)
            if at % 2 or not opcode.opname[byte].startswith("INSTRUMENTED"):  # CPython looks its tools' data up
                instructions[at] = byte
    harmed = original.replace(co_code=bytes(instructions), co_exceptiontable=bytes(table))
    decoded = decode(harmed)
    if decoded.refusal is None:
        count = len(decoded.instrs)
        for instr in decoded.instrs:
            for goal in (instr.target, instr.handler):
                if goal is not None and not 0 <= goal < count:
                    return f"{instr} leads out of the code\n{text}"
        live_before(decoded)
        regions(decoded)
    return None


TARGETS: dict[str, Callable[[bytes], str | None]] = {"guards": guards, "code": code, "damaged": damaged}
