"""Control flow: successors, reachability, basic blocks, and the regions (loops, with, try, except) that enclose an
instruction.

In: a decoded `Code`. Out: plain lists of indices and `Region`s, computed on first use and kept in `Code.memo`. To
recognise another kind of region add a function that returns [(kind, start, members)] to `_REGION_FINDERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Literal, NamedTuple, TypeVar

from dynajit.bytecode.canonical import JUMPS, TERMINATORS, stack_effect
from dynajit.bytecode.decode import Code, Instr
from dynajit.nested import reached

S = TypeVar("S")
RegionKind = Literal["for", "while", "with", "try", "except"]


class Region(NamedTuple):
    """A part of the code that control enters at `start`. For a loop `start` is its header (FOR_ITER, or the first
    instruction of a while's body); for with and try the first protected instruction; for except PUSH_EXC_INFO. `end`
    is one past its last instruction, not counting exception handlers that the compiler placed after everything
    else."""

    kind: RegionKind
    start: int
    end: int


class Block(NamedTuple):
    """Instructions [start, end), the blocks control goes to (by index of first instruction) and the handlers that
    exceptions go to."""

    start: int
    end: int
    successors: tuple[int, ...]
    handlers: tuple[int, ...]


def successors(instr: Instr) -> tuple[int, ...]:
    """Indices of the instructions that may run after `instr`, exceptions aside."""
    if instr.target is not None:
        return (instr.target,) if instr.op in TERMINATORS else (instr.index + 1, instr.target)
    return () if instr.op in TERMINATORS else (instr.index + 1,)


def reachable_from(code: Code, index: int) -> list[int]:
    """Sorted indices of all instructions that may run once control is at `index`, exception handlers included."""
    memo: dict[int, list[int]] = code.memo.setdefault("reachable", {})
    if index not in memo:
        memo[index] = sorted(flow(code, index, True, lambda *_: True, lambda *_: True))
    return memo[index]


def flow(
    code: Code, start: int, state: S, after: Callable[[Instr, S, bool], S], caught: Callable[[Instr, S], S | None]
) -> dict[int, S]:
    """Forward data flow along the first way found to each instruction: the states before all that may run from `start`.

    Args:
        state: that before `start`.
        after: from an instruction, the state before it, and whether it jumps, the state after it.
        caught: from an instruction and the state before it, that in its handler; None: it cannot raise.
    """
    found: dict[int, S] = {}
    pending = [(start, state)]
    while pending:
        i, state = pending.pop()
        while i < len(code.instrs) and i not in found:
            instr = code.instrs[i]
            found[i] = state
            if instr.handler is not None and (there := caught(instr, state)) is not None:
                pending.append((instr.handler, there))
            if instr.target is not None:
                pending.append((instr.target, after(instr, state, True)))
            if instr.op in TERMINATORS:
                break
            state = after(instr, state, False)
            i += 1
    return found


_NAME_LOADS: Final = frozenset({"LOAD_GLOBAL", "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_DEREF"})


def super_sites(code: Code) -> frozenset[int]:
    """Instructions that may be a zero-argument super(): these find `__class__` and the first parameter in the frame by
    themselves."""
    cached: frozenset[int] | None = code.memo.get("super_sites")
    if cached is None:
        found = set()
        if "__class__" in code.freevars:
            previous = ""
            for instr in code.instrs:
                is_call = instr.op == "CALL" and instr.arg == (0, ()) and previous in _NAME_LOADS
                if is_call or (instr.op == "LOAD_SUPER_ATTR" and not instr.arg[2]):
                    found.add(instr.index)
                if instr.op != "NOP":
                    previous = instr.op
        cached = code.memo["super_sites"] = frozenset(found)
    return cached


def blocks(code: Code) -> list[Block]:
    """Basic blocks in order. A block also ends where the innermost handler changes."""
    cached: list[Block] | None = code.memo.get("blocks")
    if cached is not None:
        return cached
    instrs, count = code.instrs, len(code.instrs)
    leaders = {0}
    for instr in instrs:
        if instr.target is not None:
            leaders.add(instr.target)
        if instr.handler is not None:
            leaders.add(instr.handler)
        following = instr.index + 1
        if following < count:
            ends = instr.op in JUMPS or instr.op in TERMINATORS
            if ends or instrs[following].handler != instr.handler:
                leaders.add(following)
    starts = sorted(leaders)
    result = []
    for start, end in zip(starts, [*starts[1:], count], strict=True):
        last = instrs[end - 1]
        handler = instrs[start].handler
        handlers = () if handler is None else (handler,)
        result.append(Block(start, end, tuple(s for s in successors(last) if s < count), handlers))
    code.memo["blocks"] = result
    return result


def _live_blocks(code: Code) -> dict[int, Block]:
    live = set(reachable_from(code, 0))
    return {block.start: block for block in blocks(code) if block.start in live}


def _indices(chosen: Iterable[Block]) -> frozenset[int]:
    return frozenset(i for block in chosen for i in range(block.start, block.end))


Found = tuple[RegionKind, int, frozenset[int]]


class Loop(NamedTuple):
    """A natural loop. `header` is FOR_ITER or the first instruction of a while; `entry` is where control is just before
    the loop: its GET_ITER where that stands before the FOR_ITER, else the header."""

    kind: RegionKind
    header: int
    entry: int
    members: frozenset[int]


def loops(code: Code) -> list[Loop]:
    """All loops, an enclosing one before those inside."""
    cached: list[Loop] | None = code.memo.get("loops")
    if cached is None:
        cached = []
        if any(instr.target is not None and instr.target <= instr.index for instr in code.instrs):
            for kind, header, members in sorted(_loops(code), key=lambda found: (-len(found[2]), found[1])):
                before = header - 1
                takes_iterator = kind == "for" and before >= 0 and code.instrs[before].op == "GET_ITER"
                cached.append(Loop(kind, header, before if takes_iterator else header, members))
        code.memo["loops"] = cached
    return cached


def depths(code: Code) -> list[int]:
    """The stack's depth before each instruction; -1 where control never is."""
    cached: list[int] | None = code.memo.get("depths")
    if cached is not None:
        return cached
    before = flow(code, 0, 0, _depth_after, lambda instr, _: instr.handler_depth + 1 + instr.handler_lasti)
    found = [before.get(i, -1) for i in range(len(code.instrs))]
    code.memo["depths"] = found
    return found


def _depth_after(instr: Instr, depth: int, jumps: bool) -> int:
    return depth + stack_effect(instr.op, instr.arg, jumps)


def _loops(code: Code) -> list[Found]:
    """Natural loops: header h of a back edge u → h, and all that reaches u without passing h. CPython's compiler lays
    code out so that exactly its loops jump backward to something that dominates the jump; exception handlers that
    continue the loop are members too."""
    table = _live_blocks(code)
    predecessors: dict[int, set[int]] = {start: set() for start in table}
    for block in table.values():
        for successor in (*block.successors, *block.handlers):
            predecessors[successor].add(block.start)
    tails: dict[int, set[int]] = {}
    for block in table.values():
        for successor in block.successors:
            if successor <= block.start and _dominates(table, successor, block.start):
                tails.setdefault(successor, set()).add(block.start)
    found: list[Found] = []
    for header, sources in tails.items():
        members = {header, *reached(sources - {header}, partial(_others, predecessors, header))}
        # a loop may begin with the code that evaluates a while's condition; a for's header block is just FOR_ITER
        is_for = code.instrs[table[header].end - 1].op == "FOR_ITER" and table[header].end == header + 1
        found.append(("for" if is_for else "while", header, _indices(table[m] for m in members)))
    return found


def _dominates(table: dict[int, Block], header: int, tail: int) -> bool:
    """Can `tail` not be reached from the entry without passing `header`?"""
    following = {start: {*block.successors, *block.handlers} for start, block in table.items()}
    return tail not in reached({min(table)} - {header}, partial(_others, following, header))


def _others(following: dict[int, set[int]], left_out: int, start: int) -> set[int]:
    return following[start] - {left_out}


def _protected(code: Code) -> list[Found]:
    """with and try: the instructions whose exceptions go, directly or from a handler inside, to a handler that begins
    with PUSH_EXC_INFO. Other handlers are the compiler's own (restoring the exception state, the name of `except …
    as`, or a comprehension's variable)."""
    instrs = code.instrs
    members: dict[int, set[int]] = {}
    chains: dict[int, tuple[int, ...]] = {}

    def chain(handler: int | None) -> tuple[int, ...]:
        if handler is None:
            return ()
        if handler not in chains:
            chains[handler] = ()  # a handler that protects itself would otherwise recurse for ever
            outer = chain(instrs[handler].handler)
            own = (handler,) if instrs[handler].op == "PUSH_EXC_INFO" else ()
            chains[handler] = (*own, *outer)
        return chains[handler]

    for i in reachable_from(code, 0):
        for handler in chain(instrs[i].handler):
            members.setdefault(handler, set()).add(i)
    found: list[Found] = []
    for handler, inside in members.items():
        _bridge(code, inside)
        is_with = handler + 1 < len(instrs) and instrs[handler + 1].op == "WITH_EXCEPT_START"
        found.append(("with" if is_with else "try", min(inside), frozenset(inside)))
    return found


_CANNOT_RAISE: Final = frozenset({"NOP", "JUMP", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE"})


def _bridge(code: Code, inside: set[int]) -> None:
    """Add what the compiler left unprotected because it can't raise, if control comes from inside and stays inside."""
    instrs = code.instrs
    between = {i for i in reachable_from(code, 0) if i not in inside and instrs[i].op in _CANNOT_RAISE}
    while between:
        leaving = {i for i in between if any(s not in inside and s not in between for s in successors(instrs[i]))}
        for i in reachable_from(code, 0):
            if i not in inside and i not in between:
                leaving.update(between.intersection(successors(instrs[i])))
        if not leaving:
            break
        between -= leaving
    inside |= between


def _handlers(code: Code) -> list[Found]:
    """except and finally bodies: what runs between PUSH_EXC_INFO and POP_EXCEPT. Forward data flow of the stack of
    handled exceptions."""

    def after(instr: Instr, handled: tuple[int, ...], jumps: bool) -> tuple[int, ...]:
        if instr.op == "PUSH_EXC_INFO":
            return (*handled, instr.index)
        return handled[:-1] if instr.op == "POP_EXCEPT" else handled

    def caught(instr: Instr, handled: tuple[int, ...]) -> tuple[int, ...] | None:
        # these two cannot raise; their table entries would give the handler a wrong state
        return None if instr.op in ("PUSH_EXC_INFO", "POP_EXCEPT") else handled

    members: dict[int, set[int]] = {}
    none: tuple[int, ...] = ()
    for i, handled in flow(code, 0, none, after, caught).items():
        for push in (*handled, i) if code.instrs[i].op == "PUSH_EXC_INFO" else handled:
            members.setdefault(push, set()).add(i)
    return [("except", push, frozenset(inside)) for push, inside in members.items()]


_REGION_FINDERS: Final[tuple[Callable[[Code], list[Found]], ...]] = (_loops, _protected, _handlers)


def regions(code: Code) -> list[tuple[Region, ...]]:
    """For each instruction the regions around it, outermost first."""
    cached: list[tuple[Region, ...]] | None = code.memo.get("regions")
    if cached is not None:
        return cached
    found = [f for finder in _REGION_FINDERS for f in finder(code)]
    # An enclosing region holds all of what it encloses. On a tie (a loop whose whole body is protected) the one
    # entered first is outside.
    found.sort(key=lambda f: (-len(f[2]), f[1]))
    around: list[list[Region]] = [[] for _ in code.instrs]
    for kind, start, members in found:
        region = Region(kind, start, _end(start, members))
        for i in members:
            around[i].append(region)
    shared: dict[tuple[Region, ...], tuple[Region, ...]] = {}
    result = [shared.setdefault(t, t) for t in map(tuple, around)]
    code.memo["regions"] = result
    return result


def _end(start: int, members: frozenset[int]) -> int:
    """One past the last member before the handlers laid out after the function's normal code. Members of a region's
    normal path may have small gaps (a `break` or `return` inside a loop), so this is the last member that no gap
    larger than the region so far precedes."""
    end = start
    for i in sorted(members):
        if i > end and i - end > max(end - start, 1):
            break
        end = i + 1
    return end
