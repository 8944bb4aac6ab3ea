"""Opcodes that move values: constants, locals, cells, globals, the stack.

In: canonical instructions. Out: handlers in `dispatch.HANDLERS`.

A variable and its cell share one slot in CPython, and an inlined comprehension puts its own variable there for a while
(PEP 709). Here a slot's plain value is in `frame.locals`, its cell in `frame.cells`; one of the two.
"""

from __future__ import annotations

from typing import Any

from dynajit.bytecode import Instr
from dynajit.bytecode.unbound import unbound_text
from dynajit.interp.dispatch import opcode
from dynajit.interp.frame import SymFrame
from dynajit.report import breaks
from dynajit.values.core.value import NULL, GraphBreak, Raised, Value
from dynajit.values.objects.functions import CellVal
from dynajit.values.scalars.constant import ConstVal, is_literal


@opcode("NOP", "RESUME", "COPY_FREE_VARS", "RETURN_GENERATOR", simple=True)
def nothing(tx: Any, frame: SymFrame, instr: Instr) -> None:
    pass


@opcode("POP_TOP", simple=True)
def pop_top(tx: Any, frame: SymFrame, instr: Instr) -> None:
    frame.stack.pop()


@opcode("PUSH_NULL", simple=True)
def push_null(tx: Any, frame: SymFrame, instr: Instr) -> None:
    frame.stack.append(NULL)


@opcode("COPY", simple=True)
def copy(tx: Any, frame: SymFrame, instr: Instr) -> None:
    frame.stack.append(frame.stack[-instr.arg])


@opcode("SWAP", simple=True)
def swap(tx: Any, frame: SymFrame, instr: Instr) -> None:
    stack = frame.stack
    stack[-1], stack[-instr.arg] = stack[-instr.arg], stack[-1]


@opcode("LOAD_CONST", simple=True)
def load_const(tx: Any, frame: SymFrame, instr: Instr) -> None:
    arg = instr.arg
    frame.stack.append(ConstVal(arg) if is_literal(arg) else tx.from_real(arg))


@opcode("LOAD_FAST")
def load_fast(tx: Any, frame: SymFrame, instr: Instr) -> None:
    value = frame.locals.get(instr.arg)
    if value is None:
        value = frame.cells.get(instr.arg)
    if value is None:
        raise unbound(tx, frame, instr.arg)
    frame.stack.append(value)


@opcode("LOAD_FAST_CHECK")
def load_fast_check(tx: Any, frame: SymFrame, instr: Instr) -> None:
    if instr.arg not in frame.locals:
        raise unbound(tx, frame, instr.arg)
    load_fast(tx, frame, instr)


@opcode("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(tx: Any, frame: SymFrame, instr: Instr) -> None:
    if instr.arg in frame.locals:
        load_fast(tx, frame, instr)
        frame.locals.pop(instr.arg, None)
    else:
        frame.stack.append(frame.cells.pop(instr.arg, NULL))


@opcode("STORE_FAST", simple=True)
def store_fast(tx: Any, frame: SymFrame, instr: Instr) -> None:
    value, name = frame.stack.pop(), instr.arg
    if value is NULL:
        frame.locals.pop(name, None)
        frame.cells.pop(name, None)
    elif isinstance(value, CellVal) and (name in frame.code.cellvars or name in frame.code.freevars):
        frame.locals.pop(name, None)
        frame.cells[name] = value
    else:
        frame.locals[name] = value


@opcode("DELETE_FAST")
def delete_fast(tx: Any, frame: SymFrame, instr: Instr) -> None:
    if instr.arg not in frame.locals:
        raise unbound(tx, frame, instr.arg)
    frame.locals.pop(instr.arg, None)


@opcode("MAKE_CELL", simple=True)
def make_cell(tx: Any, frame: SymFrame, instr: Instr) -> None:
    """Of an inlined comprehension: those of the function itself are there before its first instruction."""
    frame.cells[instr.arg] = CellVal(frame.locals.pop(instr.arg, None))


@opcode("LOAD_CLOSURE", simple=True)
def load_closure(tx: Any, frame: SymFrame, instr: Instr) -> None:
    """The slot, which holds a cell where the compiler means to capture it."""
    value = frame.locals.get(instr.arg)
    frame.stack.append(frame.cells[instr.arg] if value is None else value)


@opcode("LOAD_DEREF")
def load_deref(tx: Any, frame: SymFrame, instr: Instr) -> None:
    found = frame.cells[instr.arg].get(tx)
    if found is None:
        raise unbound(tx, frame, instr.arg)
    frame.stack.append(found)


def unbound(tx: Any, frame: SymFrame, name: str) -> Raised:
    """The exception of an instruction on a variable that has no value."""
    if name in frame.code.freevars:
        return tx.raised(NameError, unbound_text(name, free=True), name=ConstVal(name))  # type: ignore[no-any-return]
    return tx.raised(UnboundLocalError, unbound_text(name, free=False))  # type: ignore[no-any-return]


@opcode("STORE_DEREF")
def store_deref(tx: Any, frame: SymFrame, instr: Instr) -> None:
    value = frame.stack.pop()
    # a comprehension that puts back what it found may have found nothing
    frame.cells[instr.arg].set(tx, None if value is NULL else value)


@opcode("DELETE_DEREF")
def delete_deref(tx: Any, frame: SymFrame, instr: Instr) -> None:
    cell = frame.cells[instr.arg]
    if cell.get(tx) is None:
        raise unbound(tx, frame, instr.arg)
    cell.set(tx, None)


@opcode("LOAD_GLOBAL")
def load_global(tx: Any, frame: SymFrame, instr: Instr) -> None:
    name, null = instr.arg
    value: Value | None = tx.load_global(frame, name)
    if value is None:
        raise tx.raised(NameError, f"name '{name}' is not defined", name=ConstVal(name))
    if null:
        frame.push_callable(value)
    else:
        frame.push(value)


@opcode("STORE_GLOBAL")
def store_global(tx: Any, frame: SymFrame, instr: Instr) -> None:
    tx.store_global(frame.globals, instr.arg, frame.stack.pop())


@opcode("DELETE_GLOBAL")
def delete_global(tx: Any, frame: SymFrame, instr: Instr) -> None:
    if tx.load_global(frame, instr.arg, builtins=False) is None:
        raise tx.raised(NameError, f"name '{instr.arg}' is not defined", name=ConstVal(instr.arg))
    tx.store_global(frame.globals, instr.arg, None)


@opcode("LOAD_ASSERTION_ERROR", simple=True)
def load_assertion_error(tx: Any, frame: SymFrame, instr: Instr) -> None:
    frame.stack.append(tx.from_real(AssertionError))


@opcode("LOAD_NAME")
def load_name(tx: Any, frame: SymFrame, instr: Instr) -> None:
    frame.push(frame.namespace.load(tx, instr.arg))


@opcode("STORE_NAME")
def store_name(tx: Any, frame: SymFrame, instr: Instr) -> None:
    frame.namespace.store(tx, instr.arg, frame.pop())


@opcode("DELETE_NAME")
def delete_name(tx: Any, frame: SymFrame, instr: Instr) -> None:
    frame.namespace.delete(tx, instr.arg)


@opcode(
    "UNKNOWN",
    "LOAD_CLASSDEREF",
    "LOAD_LOCALS",
    "LOAD_FROM_DICT_OR_GLOBALS",
    "LOAD_FROM_DICT_OR_DEREF",
    "IMPORT_STAR",
    "SETUP_ANNOTATIONS",
    "PRINT_EXPR",
    "GET_AWAITABLE",
    "BEFORE_ASYNC_WITH",
    "GET_AITER",
    "GET_ANEXT",
    "END_ASYNC_FOR",
    "ASYNC_GEN_WRAP",
)
def unknown(tx: Any, frame: SymFrame, instr: Instr) -> None:
    name = instr.arg[0] if instr.op == "UNKNOWN" else instr.op
    raise GraphBreak(breaks.UNKNOWN_OPCODE, str(name))
