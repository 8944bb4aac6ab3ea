"""Each opcode of the running Python: known to the decoder, and with the stack effect that `dis` says."""

from __future__ import annotations

import dis
import opcode
from types import CodeType

import pytest

from dynajit.bytecode import canonical, stack_effect, target
from dynajit.bytecode.common import Kind, Tables
from dynajit.bytecode.target import without_argument

# Opcodes that no code object holds where the decoder reads it, each with the reason.
NEVER_DECODED = {
    "CACHE": "room for the specialising interpreter, which the decoder skips",
    "EXTENDED_ARG": "part of the argument of what follows",
    "RESERVED": "stands in no code",
    "INTERPRETER_EXIT": "stands only in the interpreter's own entry frame",
    "ENTER_EXECUTOR": "co_code shows what it replaced",
    "EXIT_INIT_CHECK": "stands only in the interpreter's own frame around __init__",
    "INSTRUMENTED_LINE": "co_code shows what it replaced",
}
# dis counts these otherwise: what it says, and why the decoder's effect is another.
OTHERWISE = {
    "RETURN_GENERATOR": "before 3.13 dis did not count the value sent in",
    "RETURN_VALUE": "since 3.14 dis counts what the caller gets",
    "PRECALL": "belongs to the CALL that follows",
    "CALL": "before 3.12 a part is in PRECALL",
    "END_FOR": "what is left of FOR_ITER's iterator is FOR_ITER's own in canonical code",
    "POP_ITER": "what is left of FOR_ITER's iterator is FOR_ITER's own in canonical code",
    "END_SEND": "what is left of SEND's receiver is SEND's own in canonical code",
    "FOR_ITER": "canonical FOR_ITER takes the iterator away itself at the end",
    "SEND": "canonical SEND takes the receiver away itself at the end",
}
MEANINGFUL = {"BUILD_SLICE": range(2, 4)}


def _one_of_everything(a, b, *c, **d):  # type: ignore[no-untyped-def]
    """Gives arguments something to point at."""
    e, f, g, h = 1, "two", 3.0, ("four",)
    return [a.one, b.two, c.three, d.four, e.five, f.six, g.seven, h.eight, lambda: (a, b), 9, 10, 11, 12]


def names() -> list[str]:
    """Opcodes that may stand in a code object's co_code."""
    hidden = set(getattr(opcode, "_specialized_opmap", ()))
    return sorted(
        name
        for name, number in dis.opmap.items()
        if number < 256 and name not in hidden and not name.startswith("INSTRUMENTED_")
    )


@pytest.mark.parametrize("name", names())
def test_known(name: str) -> None:
    assert (name in target().TABLE) != (name in NEVER_DECODED)


@pytest.mark.parametrize("name", sorted(set(names()) & set(target().TABLE) - set(OTHERWISE)))
def test_stack_effect(name: str) -> None:
    number = dis.opmap[name]
    arguments = [0] if number in without_argument() else MEANINGFUL.get(name, range(9))
    compared = 0
    for argument in arguments:
        instructions = _decoded(name, argument, _one_of_everything.__code__)
        if instructions is None:
            continue
        for jump in (False, True) if instructions[-1][0] in canonical.JUMPS else (False,):
            try:
                expected = dis.stack_effect(number, None if number in without_argument() else argument, jump=jump)
            except ValueError:
                continue
            landing = target().LANDINGS.get(instructions[-1][0], ()) if jump else ()
            expected += sum(dis.stack_effect(dis.opmap[raw.opname], None) for raw in landing)
            assert sum(stack_effect(op, arg, jump) for op, arg in instructions) == expected, (argument, jump)
            compared += 1
    assert compared


def _decoded(name: str, argument: int, code: CodeType) -> list[tuple[str, object]] | None:
    """The canonical instructions of one raw one; None where the argument means nothing in this code."""
    decoding = target().TABLE[name]
    tables = Tables(code)
    try:
        if decoding.custom is not None:
            found = list(decoding.custom(tables, argument))
        else:
            of = {Kind.CONST: tables.consts, Kind.LOCAL: tables.localsplus, Kind.CELL: tables.localsplus}
            of[Kind.NAME] = tables.names
            found = [(decoding.op, of[decoding.kind][argument] if decoding.kind in of else argument)]
    except (IndexError, KeyError, TypeError):
        return None
    return None if any(op == "UNKNOWN" for op, _ in found) else found
