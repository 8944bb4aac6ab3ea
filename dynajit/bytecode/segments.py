"""A generator's code cut at its yields: each part runs from where the generator goes on to where it stops next. It
stops too where a `for` loop with a yield in it asks for its next item, so that the first iteration and the later ones
are one part.

In: the decoded `Code` of a generator function. Out: `Segments` (which locals and cells the parts share, what is on the
stack at each stop), or None if it can't be cut; from it the code object of a part (`build_segment`). A part takes the
stack's slots, the locals and the cells, all of these as cell objects, and returns the stack with the index of the
instruction to stop at: YIELD_VALUE, SEND (where `yield from` begins), FOR_ITER, or one that returns.
"""

from __future__ import annotations

from collections.abc import Collection
from types import CodeType
from typing import NamedTuple

from dynajit.bytecode.assemble import Emitter, Label, SlotKind, pushed_kinds
from dynajit.bytecode.canonical import LOCAL_OPS, stack_shape
from dynajit.bytecode.cfg import flow, loops, reachable_from, successors
from dynajit.bytecode.continuation import Tail, push_stack, stack_names
from dynajit.bytecode.decode import Code, Instr
from dynajit.nested import reached

_STOPS = frozenset({"YIELD_VALUE", "SEND", "RETURN_VALUE", "RETURN_CONST"})
_REFUSED = frozenset({"GET_AWAITABLE", "GET_ANEXT", "END_ASYNC_FOR", "ASYNC_GEN_WRAP", "UNKNOWN"})
# they look at what lies below what they pop
_PEEKS = {
    *("LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE", "LIST_APPEND", "SET_ADD", "MAP_ADD", "RERAISE"),
    *("CHECK_EXC_MATCH", "FOR_ITER", "WITH_EXCEPT_START", "GET_LEN", "MATCH_MAPPING", "MATCH_SEQUENCE", "MATCH_KEYS"),
    "IMPORT_FROM",
}


_VALUE: tuple[SlotKind, ...] = ("value",)


class Segments(NamedTuple):
    """How a generator's code is cut: `start` is where it begins, `stacks` the kinds of the slots at each stop, the
    yielded or returned value or the iterator included. `passed`: from yields after which nothing is done before the
    next item is asked for, to where it is."""

    code: Code
    start: int
    shared: tuple[str, ...]
    cells: tuple[str, ...]
    stacks: dict[int, tuple[SlotKind, ...]]
    passed: dict[int, int]

    def yields(self, index: int) -> bool:
        """Whether the generator is suspended at this stop."""
        return self.code.instrs[index].op == "YIELD_VALUE"

    def delegates(self, index: int) -> bool:
        """Whether another iterator's values are given from this stop on."""
        return self.code.instrs[index].op == "SEND"

    def iterates(self, index: int) -> bool:
        """Whether the topmost slot is an iterator that is to be asked for its next item at this stop."""
        return self.code.instrs[index].op == "FOR_ITER"

    def delegation(self, index: int) -> int | None:
        """The SEND whose value is given at this yield; None: the value is the generator's own."""
        before = index - 1
        while before >= 0 and self.code.instrs[before].op == "NOP":
            before -= 1
        return before if before >= 0 and self.delegates(before) else None


def segments(code: Code) -> Segments | None:
    """How to cut a generator's code, or None."""
    if "segments" not in code.memo:
        code.memo["segments"] = _segments(code)
    found: Segments | None = code.memo["segments"]
    return found._replace(code=code) if found is not None else None


def _segments(code: Code) -> Segments | None:
    instrs = code.instrs
    begin = next((instr.index for instr in instrs if instr.op == "RETURN_GENERATOR"), None)
    both = {*code.cellvars}.intersection(code.freevars)
    if begin is None or not code.is_generator or code.code.co_flags & 0x280 or both or code.passed_cells:
        return None
    reachable = reachable_from(code, begin)
    if any(instrs[i].op in _REFUSED for i in reachable) or code.names_locals:
        return None
    stacks = flow(code, begin + 1, _VALUE, _after, _caught)  # kinds of the stack's slots before each instruction
    headers = _headers(code, reachable)
    stops = {i: stacks[i] for i in reachable if instrs[i].op in _STOPS or i in headers}
    if any("null" in kinds for kinds in stops.values()):
        return None
    touched = {instrs[i].arg for i in reachable if instrs[i].op in LOCAL_OPS}
    shared = tuple(name for name in code.varnames if name in touched)
    passed = {i: header for i in stops if (header := _passed(code, i, headers)) is not None}
    return Segments(code, begin + 1, shared, (*code.cellvars, *code.freevars), stops, passed)


def _headers(code: Code, reachable: Collection[int]) -> set[int]:
    """Where the `for` loops that hold a yield ask for their items."""
    instrs = code.instrs
    return {
        loop.header
        for loop in loops(code)
        if loop.kind == "for"
        and loop.header in reachable
        and any(instrs[i].op in ("YIELD_VALUE", "SEND") for i in loop.members)
    }


def _passed(code: Code, stop: int, headers: set[int]) -> int | None:
    """The header that control comes to from a yield when the sent value has been dropped."""
    instrs, i, dropped = code.instrs, stop + 1, False
    if instrs[stop].op != "YIELD_VALUE":
        return None
    for _ in range(len(instrs)):
        if i in headers:
            return i if dropped else None
        op, target = instrs[i].op, instrs[i].target
        if op == "JUMP" and target is not None:
            i = target
        elif op in ("RESUME", "NOP") or (op == "POP_TOP" and not dropped):
            dropped = dropped or op == "POP_TOP"
            i += 1
        else:
            break
    return None


def _caught(instr: Instr, kinds: tuple[SlotKind, ...]) -> tuple[SlotKind, ...]:
    return kinds[: instr.handler_depth] + _VALUE * (1 + instr.handler_lasti)


def _after(instr: Instr, kinds: tuple[SlotKind, ...], jump: bool) -> tuple[SlotKind, ...]:
    pops, pushes = stack_shape(instr.op, instr.arg, jump)
    if instr.op == "SWAP":
        changed = list(kinds)
        changed[-1], changed[-instr.arg] = changed[-instr.arg], changed[-1]
        return tuple(changed)
    if instr.op == "COPY":
        return (*kinds, kinds[-instr.arg])
    if instr.op in _PEEKS and not jump:
        kept = min(pops, pushes)
        below = kinds[: len(kinds) - pops + kept]
        return below + _VALUE * (pushes - kept)
    return (*kinds[: len(kinds) - pops], *pushed_kinds(instr, jump))


def build_iteration(cut: Segments, index: int) -> CodeType:
    """The code that asks an iterator for its next item, as the FOR_ITER `index`: the item in a tuple, or None."""
    code, emitter, end = cut.code, Emitter(), Label()
    emitter.set_location(code.instrs[index].positions)
    emitter.load_fast("iterator")
    emitter.delete_fast("iterator")
    emitter.for_iter(end)
    emitter.build_tuple(1)
    emitter.swap(2)
    emitter.pop_top()
    emitter.return_value()
    emitter.mark(end)
    emitter.load_const(None)
    emitter.return_value()
    return emitter.assemble(code.name, ["iterator"], (), code.code, code.code.co_qualname)


def build_segment(cut: Segments, index: int, depth: int, throw: bool) -> CodeType:
    """The part from instruction `index` on, with `depth` slots on the stack (the last the sent value, or with `throw`
    the exception for the handler at `index`)."""
    code = cut.code
    instrs = code.instrs

    def following(i: int) -> list[int]:
        handler = instrs[i].handler
        return [] if i in cut.stacks else [*successors(instrs[i]), *([] if handler is None else [handler])]

    chosen = {*reached([index], following)}
    stops = chosen & cut.stacks.keys()
    chosen -= stops
    emitter = Emitter()
    slots = stack_names(code, index, depth)
    cells = frozenset([*cut.shared, *cut.cells])
    stubs = {i: Label() for i in sorted(stops)}
    tail = Tail(code, emitter, sorted(chosen), cells, frozenset(cut.shared), stubs)
    push_stack(emitter, instrs[index], ("value",) * depth, slots)
    if throw:
        tail.throw_to(index, depth - 1)
    if chosen:
        tail.emit(index)
    emitter.set_handler(None)
    for i, stub in stubs.items():
        emitter.set_location(instrs[i].positions)
        emitter.mark(stub)
        if instrs[i].op == "RETURN_CONST":
            emitter.load_const(instrs[i].arg)
        emitter.load_const(i)
        emitter.build_tuple(len(cut.stacks[i]) + 1 + (instrs[i].op == "RETURN_CONST"))
        emitter.return_value()
    names = [*slots, *cut.shared, *cut.cells]
    return emitter.assemble(code.name, names, cells, code.code, code.code.co_qualname)
