"""Where an inlined comprehension has a variable to itself (CPython 3.12 and later).

In: a decoded `Code`. Out: for each LOAD_FAST_AND_CLEAR, which saves the function's variable of that name on the stack,
the instructions up to and with those that put it back: within them the name means the comprehension's own variable.
Computed on first use and kept in `Code.memo`. Where the saved value lies is followed through every path, so another
instruction that moves stack slots belongs into `_moved`. Where the function has a cell or free variable of that name,
which may lie in the same slot, the comprehension's own gets another name when the code is decoded (`own_names`).
"""

from __future__ import annotations

from dynajit.bytecode.canonical import JUMPS, LOCAL_OPS, TERMINATORS
from dynajit.bytecode.cfg import depths, successors
from dynajit.bytecode.decode import REWRITES, Code, Instr


def isolated(code: Code) -> dict[int, frozenset[int]]:
    """For each LOAD_FAST_AND_CLEAR that control can reach the instructions during which its name is set aside."""
    cached: dict[int, frozenset[int]] | None = code.memo.get("isolated")
    if cached is None:
        depth = depths(code)
        cached = code.memo["isolated"] = {
            instr.index: _extent(code, instr, depth)
            for instr in code.instrs
            if instr.op == "LOAD_FAST_AND_CLEAR" and depth[instr.index] >= 0
        }
    return cached


def _extent(code: Code, clear: Instr, depth: list[int]) -> frozenset[int]:
    """All that runs from `clear` until the value that it saved is stored."""
    found = {clear.index}
    pending = [(clear.index + 1, depth[clear.index])]
    while pending:
        i, slot = pending.pop()
        if i in found:
            continue
        found.add(i)
        instr = code.instrs[i]
        top = depth[i] - 1
        if instr.handler is not None and instr.handler_depth > slot:
            pending.append((instr.handler, slot))
        if instr.op == "STORE_FAST" and instr.arg == clear.arg and top == slot:
            continue
        if instr.op in JUMPS or instr.op not in TERMINATORS:
            pending.extend((goal, _moved(instr, slot, top)) for goal in successors(instr))
    return frozenset(found)


def _moved(instr: Instr, slot: int, top: int) -> int:
    """Where what was in `slot` is after the instruction."""
    if instr.op == "SWAP":
        other = top + 1 - instr.arg
        return other if slot == top else top if slot == other else slot
    return slot


def own_names(code: Code) -> tuple[str, ...]:
    """Rename the variables that comprehensions have to themselves, and that are not captured there, where the function
    has a cell or free variable of the same name; the names given."""
    both = frozenset((*code.cellvars, *code.freevars))
    if not any(instr.op == "LOAD_FAST_AND_CLEAR" and instr.arg in both for instr in code.instrs):
        return ()
    innermost: dict[tuple[int, str], int] = {}
    for clear, extent in sorted(isolated(code).items(), key=lambda item: -len(item[1])):
        innermost.update(((i, code.instrs[clear].arg), clear) for i in extent)
    renamed = []
    for instr in code.instrs:
        named = instr.op in LOCAL_OPS or instr.op == "LOAD_CLOSURE"
        around = innermost.get((instr.index, instr.arg)) if named and instr.arg in both else None
        if around is not None and code.instrs[around + 1].op != "MAKE_CELL":
            renamed.append(instr)
    for instr in renamed:
        instr.arg = f".{instr.arg}"
        if instr.op == "LOAD_CLOSURE":
            # 3.13 has one opcode for a cell and a local in its place; what no function captures is the local
            instr.op = "LOAD_FAST"
    return tuple(dict.fromkeys(instr.arg for instr in renamed))


def shown(name: str) -> str:
    """A local's name as the program has it."""
    return name.removeprefix(".")


REWRITES.append(own_names)
