"""Which names are needed from an instruction on.

In: a decoded `Code`. Out: `live_before` (fast locals and own cell variables live just before each instruction,
exception edges included) and `cells_live` (cells and free variables that anything reachable from an instruction
refers to). Computed on first use and kept in `Code.memo`. To teach it an op that reads or writes a local: LOCAL_OPS
or CELL_OPS in canonical.py.
"""

from __future__ import annotations

from collections.abc import Collection

from dynajit.bytecode.canonical import CELL_OPS, JUMPS, LOCAL_OPS, TERMINATORS
from dynajit.bytecode.cfg import reachable_from, super_sites
from dynajit.bytecode.decode import Code

_KILLS = frozenset({"STORE_FAST"})
#: Reads the slot, then leaves it empty: what was live after it is not needed before it, but the slot itself is.
_USES = (LOCAL_OPS | CELL_OPS) - _KILLS


def live_before(code: Code) -> list[frozenset[str]]:
    """For each instruction the names of fast locals and cell variables whose present value something later may read."""
    cached: list[frozenset[str]] | None = code.memo.get("live_before")
    if cached is not None:
        return cached
    bits: dict[str, int] = {}
    masks = _solve(code, bits)
    names = list(bits)
    sets: dict[int, frozenset[str]] = {}
    for mask in masks:
        if mask not in sets:
            sets[mask] = frozenset(name for i, name in enumerate(names) if mask >> i & 1)
    result = [sets[mask] for mask in masks]
    code.memo["live_before"] = result
    return result


def _uses_and_keeps(code: Code, bits: dict[str, int]) -> tuple[list[int], list[int]]:
    """Per instruction: the mask of names it reads, and the mask of names that pass through it."""
    free = frozenset(code.freevars)
    first = code.params[0] if code.params else None
    sites = super_sites(code)
    uses, keeps = [], []
    for instr in code.instrs:
        use, keep = 0, -1
        op = instr.op
        if op in _USES or op in _KILLS:
            name = instr.arg
            if name not in free:
                bit = bits.setdefault(name, 1 << len(bits))
                if op in _KILLS:
                    keep = ~bit
                else:
                    use = bit
        if instr.index in sites and first is not None:
            use |= bits.setdefault(first, 1 << len(bits))  # super() reads the first parameter by itself
        uses.append(use)
        keeps.append(keep)
    return uses, keeps


def _solve(code: Code, bits: dict[str, int]) -> list[int]:
    """Backward data flow to the fixed point: one pass more than the deepest nest of loops."""
    instrs = code.instrs
    uses, keeps = _uses_and_keeps(code, bits)
    steps = [
        (i, None if instr.op in TERMINATORS else i + 1, instr.target if instr.op in JUMPS else None, instr.handler)
        for i, instr in enumerate(instrs)
    ]
    steps.reverse()
    live = [0] * (len(instrs) + 1)
    changed = True
    while changed:
        changed = False
        for i, following, target, handler in steps:
            mask = live[following] if following is not None else 0
            if target is not None:
                mask |= live[target]
            mask = mask & keeps[i] | uses[i]
            if handler is not None:
                mask |= live[handler]
            if mask != live[i]:
                live[i] = mask
                changed = True
    return live[:-1]


def cells_live(code: Code, index: int) -> frozenset[str]:
    """Names of the cell and free variables that any instruction reachable from `index` refers to."""
    return frozenset(cells_used(code, reachable_from(code, index)))


def cells_used(code: Code, indices: Collection[int]) -> list[str]:
    """Names of the cell and free variables that these instructions refer to, in the code's order."""
    used = {code.instrs[i].arg for i in indices if code.instrs[i].op in CELL_OPS}
    if not super_sites(code).isdisjoint(indices):
        used.update(("__class__", *code.params[:1]))  # super() finds these by itself
    return [name for name in (*code.cellvars, *code.freevars) if name in used]
