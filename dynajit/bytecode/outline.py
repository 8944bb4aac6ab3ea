"""A loop cut in two: its body as a function, and the loop itself as plain bytecode around a call of it.

In: a decoded `Code`, one of its `loops`, and the locals that are bound where the loop is entered. Out: `Outline`, and
from it the code objects of the body (`build_body`) and of the shell (`build_shell`). The body takes the loop's item,
locals by value, locals that it changes as cells, cells, and a cell that keeps alive what each of its other locals is
bound to; it returns None to go on with the loop, else a tuple of what it leaves on the stack and a number saying where.
The shell runs the real FOR_ITER, and returns likewise where control leaves the loop. Exceptions pass through both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, Final, NamedTuple

from dynajit.bytecode.assemble import Emitter, Label
from dynajit.bytecode.canonical import LOCAL_OPS, stack_shape
from dynajit.bytecode.cfg import Loop, depths, successors, super_sites
from dynajit.bytecode.comprehensions import isolated
from dynajit.bytecode.continuation import Tail
from dynajit.bytecode.decode import Code, Instr
from dynajit.bytecode.liveness import cells_used, live_before
from dynajit.bytecode.target import target

_RETURNS: Final = frozenset({"RETURN_VALUE", "RETURN_CONST"})
_ADDS: Final = {"LIST_APPEND": 1, "SET_ADD": 1, "MAP_ADD": 2}
#: How the names of cells begin that keep what locals of a loop's body are bound to
KEEPS: Final = ".kept "
_REFUSED: Final = frozenset({"YIELD_VALUE", "SEND", "GET_AWAITABLE", "GET_ANEXT", "END_ASYNC_FOR", "MAKE_CELL"})


class Leave(NamedTuple):
    """Control goes on at instruction `target`, with `slots` slots above the shell's floor on the stack."""

    target: int
    slots: int


class Exit(NamedTuple):
    """Control leaves the body for instruction `target` with `extra` slots above its own floor. The shell runs `native`
    (simple instructions on its stack), and goes on with the loop (`leave` None) or leaves."""

    target: int
    extra: int
    native: tuple[int, ...]
    leave: Leave | None


class Outline(NamedTuple):
    """How a loop is cut.

    Attributes:
        body: the body's instructions; `start` is the first.
        floor: the shell takes the stack's slots from here up to `entry_depth`.
        base: the body's own stack begins here.
        named: locals passed by value.
        shared: locals passed in cells.
        cells: cell and free variables passed.
        kept: locals that the body binds and nobody reads after it: what they are bound to lives on all the same.
        leaves: where control goes on after the loop.
        handler: the exception handler around the whole loop.
        bound: for each leave (and the handler) the locals sure to be bound there.
    """

    code: Code
    loop: Loop
    body: tuple[int, ...]
    start: int
    floor: int
    entry_depth: int
    base: int
    named: tuple[str, ...]
    shared: tuple[str, ...]
    cells: tuple[str, ...]
    kept: tuple[str, ...]
    exits: tuple[Exit, ...]
    leaves: tuple[Leave, ...]
    handler: int | None
    bound: dict[int, frozenset[str]]


class _NotCut(Exception):
    """The loop does things that the shell can't do."""


def outline(code: Code, loop: Loop, bound: frozenset[str]) -> Outline | None:
    """How to cut the loop, or None. `bound` are the locals bound at its entry."""
    try:
        return _outline(code, loop, bound)
    except _NotCut:
        return None


def _outline(code: Code, loop: Loop, bound: frozenset[str]) -> Outline:
    is_for = loop.kind == "for"
    base = depths(code)[loop.header]
    handler = _outer_handler(code, loop, base)
    body = _body(code, loop, base, handler)
    # no body: `tuple` of a generator expression (CPython 3.14) puts its items into a list under the iterator at once
    if not body or any(code.instrs[i].op in _REFUSED for i in body):
        raise _NotCut
    exits = [_exit(code, loop, base, goal) for goal in _goals(code, loop, body)]
    leaves = {found.leave for found in exits if found.leave is not None}
    floor = base - is_for
    for found in exits:
        floor = min([floor, *_containers(code, found, base)])
    if is_for:
        exhausted = code.instrs[loop.header].target
        assert exhausted is not None
        leaves.add(Leave(exhausted, base - 1))
    ends = sorted(Leave(leave.target, leave.slots - floor) for leave in leaves)
    exits = [
        found._replace(leave=found.leave and Leave(found.leave.target, found.leave.slots - floor)) for found in exits
    ]
    start = loop.header + 1 if is_for else loop.header
    sure = _surely_bound(code, loop, body, start, bound, handler)
    if is_for:
        # no item was taken: the loop's variable may be unbound
        assert exhausted is not None
        sure[exhausted] = sure[exhausted] & sure[loop.header] if exhausted in sure else sure[loop.header]
    for found in exits:
        if found.leave is not None:
            at = found.leave.target
            sure[at] = sure[at] & sure[found.target] if at in sure else sure[found.target]
    named, shared, kept = _variables(code, body, start, [*(end.target for end in ends), loop.header], handler, bound)
    return Outline(
        code,
        loop,
        tuple(body),
        start,
        floor,
        base,
        base,
        named,
        shared,
        tuple(cells_used(code, body)),
        kept,
        tuple(exits),
        tuple(ends),
        handler,
        sure,
    )


# ---------------------------------------------------------------------------------------------------- the body's code


def _chain(code: Code, index: int) -> Iterator[int]:
    """The handlers that an exception at an instruction may reach, innermost first."""
    seen: set[int] = set()
    handler = code.instrs[index].handler
    while handler is not None and handler not in seen:
        seen.add(handler)
        yield handler
        handler = code.instrs[handler].handler


def _outer_handler(code: Code, loop: Loop, base: int) -> int | None:
    """The innermost handler around the whole loop. A handler from which the loop goes on is part of the loop."""
    chains = [frozenset(_chain(code, i)) for i in loop.members if code.instrs[i].op not in ("NOP", "JUMP")]
    around = frozenset.intersection(*chains) - loop.members if chains else frozenset()
    if loop.kind == "for":
        around = frozenset(handler for handler in around if _depth_of(code, handler) < base)
    return next((handler for handler in _chain(code, loop.header) if handler in around), None)


def _depth_of(code: Code, handler: int) -> int:
    """What of the stack is left when the handler is entered."""
    return next(instr.handler_depth for instr in code.instrs if instr.handler == handler)


def _body(code: Code, loop: Loop, base: int, outer: int | None) -> list[int]:
    """What runs between two visits of the header: all that leaves the stack below `base` alone. Behind a while there is
    no iterator to be dropped, so there it ends with the loop, or with the last `with` or handler entered in it."""
    instrs, depth = code.instrs, depths(code)
    around = {outer, *(_chain(code, outer) if outer is not None else ())}
    inner = {handler for i in loop.members for handler in _chain(code, i)} - around
    found: set[int] = set()
    pending = [loop.header if loop.kind != "for" else loop.header + 1]
    while pending:
        i = pending.pop()
        if i in found or (i == loop.header and found):
            continue
        instr = instrs[i]
        if depth[i] - stack_shape(instr.op, instr.arg)[0] < base or instr.op in _RETURNS:
            continue
        if loop.kind != "for" and i not in loop.members and depth[i] <= base and inner.isdisjoint(_chain(code, i)):
            continue
        found.add(i)
        if instr.handler is not None and instr.handler not in around:
            inner.add(instr.handler)
            pending.append(instr.handler)
        pending.extend(successors(instr))
    return sorted(found)


def _goals(code: Code, loop: Loop, body: list[int]) -> list[int]:
    """Where control goes from the body."""
    inside = frozenset(body)
    found = {goal for i in body for goal in successors(code.instrs[i]) if goal not in inside or goal == loop.header}
    return sorted(found)


# --------------------------------------------------------------------------------------------- what the shell does


def _exit(code: Code, loop: Loop, base: int, goal: int) -> Exit:
    """What happens in the shell when the body ends before instruction `goal`."""
    extra = depths(code)[goal] - base
    if loop.kind != "for":
        return Exit(goal, extra, (), None if goal == loop.header else Leave(goal, base + extra))
    stack: list[bool] = [True, *[False] * extra]  # from the iterator upwards; is it the iterator?
    native: list[int] = []
    at = goal
    while True:
        if at == loop.header and stack == [True]:
            return Exit(goal, extra, tuple(native), None)
        if True not in stack:
            return Exit(goal, extra, tuple(native), Leave(at, base - 1 + len(stack)))
        instr = code.instrs[at]
        if len(native) > 64:
            raise _NotCut
        _simulate(instr, stack)
        native.append(at)
        at = instr.target if instr.op == "JUMP" and instr.target is not None else at + 1


def _simulate(instr: Instr, stack: list[bool]) -> None:
    op, arg = instr.op, instr.arg
    if op in ("NOP", "JUMP"):
        return
    if op == "POP_TOP":
        stack.pop()
    elif op == "SWAP" and arg <= len(stack):
        stack[-1], stack[-arg] = stack[-arg], stack[-1]
    elif (op == "COPY" and arg <= len(stack) and not stack[-arg]) or op == "LOAD_CONST":
        stack.append(False)
    elif op in _ADDS and len(stack) > _ADDS[op] and True not in stack[-_ADDS[op] :]:
        del stack[-_ADDS[op] :]
    else:
        raise _NotCut


def _containers(code: Code, found: Exit, base: int) -> Iterator[int]:
    """Where on the stack the containers lie that a comprehension adds to."""
    depth = base + found.extra
    for i in found.native:
        instr = code.instrs[i]
        if instr.op in _ADDS:
            yield depth - _ADDS[instr.op] - instr.arg
        pops, pushes = stack_shape(instr.op, instr.arg)
        depth += pushes - pops


# ------------------------------------------------------------------------------------------------------- variables


def _variables(
    code: Code, body: list[int], start: int, goals: list[int], handler: int | None, bound: frozenset[str]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Locals that the body only reads, those that it changes and somebody else reads, and those that it changes and
    nobody does."""
    live = live_before(code)
    seen = frozenset().union(*(live[goal] for goal in goals), live[handler] if handler is not None else ())
    touched = {code.instrs[i].arg for i in body if code.instrs[i].op in LOCAL_OPS}
    if not super_sites(code).isdisjoint(body) and code.params:
        touched.add(code.params[0])
    written = _written(code, body)
    order = [name for name in code.varnames if name in touched]
    shared = tuple(name for name in order if name in written and name in seen)
    named = tuple(name for name in order if name in live[start] and name in bound and name not in shared)
    own = {*code.cellvars, *code.freevars}
    kept = tuple(name for name in order if name in written and name not in seen and keeper(name) not in own)
    return named, shared, kept


def keeper(name: str) -> str:
    """The cell that keeps alive what a local of a loop's body is bound to."""
    return f"{KEEPS}{name}"


def _written(code: Code, body: list[int]) -> set[str]:
    """Locals that have another value after the body than before. An inlined comprehension puts back what it found."""
    instrs, extents, inside = code.instrs, isolated(code), frozenset(body)
    own = {(i, instrs[clear].arg) for clear, extent in extents.items() if clear in inside for i in extent}
    return {
        instrs[i].arg for i in body if instrs[i].op in ("STORE_FAST", "DELETE_FAST") and (i, instrs[i].arg) not in own
    }


def _surely_bound(
    code: Code, loop: Loop, body: list[int], start: int, bound: frozenset[str], handler: int | None
) -> dict[int, frozenset[str]]:
    """Locals that are bound whenever control is before an instruction of the body or after it, and at `handler`."""
    instrs = code.instrs
    inside = frozenset(body)
    restored = {instrs[i].arg for i in body if instrs[i].op == "LOAD_FAST_AND_CLEAR"}
    state: dict[int, frozenset[str]] = {loop.header: bound, start: bound}
    pending = [start]

    def meet(goal: int, names: frozenset[str]) -> None:
        old = state.get(goal)
        new = names if old is None else old & names
        if new != old:
            state[goal] = new
            if goal in inside:
                pending.append(goal)
            elif goal == loop.header and start != goal:
                meet(start, new)

    while pending:
        i = pending.pop()
        instr, names = instrs[i], state[i]
        after = names
        if instr.op == "STORE_FAST" and instr.arg not in restored:
            after = names | {instr.arg}
        elif instr.op in ("STORE_FAST", "DELETE_FAST", "LOAD_FAST_AND_CLEAR"):
            after = names - {instr.arg}
        if instr.handler is not None and instr.handler in inside:
            meet(instr.handler, names & after)
        elif handler is not None:
            meet(handler, names & after)
        for goal in successors(instr):
            meet(goal, after)
    if handler is not None:
        meet(handler, bound)
    return state


# -------------------------------------------------------------------------------------------------- the code objects


#: what the item is called, also in guards; no variable has such a name
ITEM: Final = "item of the loop"


def build_body(cut: Outline) -> CodeType:
    """Parameters: the item of a for loop, `named`, `shared` (cells), `cells`, those that keep `kept`."""
    code = cut.code
    original = code.code
    items = [ITEM] * int(cut.loop.kind == "for")
    emitter = Emitter()
    stubs = {found.target: Label() for found in cut.exits}
    lifetime_cells = {name: keeper(name) for name in cut.kept}
    cells = frozenset([*cut.shared, *cut.cells, *lifetime_cells.values()])
    if items:
        emitter.set_location(code.instrs[cut.start].positions)
        emitter.load_fast(items[0])
        emitter.delete_fast(items[0])
    inside = list(cut.body)
    Tail(code, emitter, inside, cells, frozenset(cut.shared), stubs, cut.base, lifetime_cells).emit(cut.start)
    emitter.set_handler(None)
    for number, found in enumerate(cut.exits):
        emitter.set_location(code.instrs[found.target].positions)
        emitter.mark(stubs[found.target])
        if found.leave is None and found.extra == 0:
            emitter.load_const(None)
        else:
            emitter.load_const(number)
            emitter.build_tuple(found.extra + 1)
        emitter.return_value()
    names = [*items, *cut.named, *cut.shared, *cut.cells, *lifetime_cells.values()]
    return emitter.assemble(code.name, names, cells, original, original.co_qualname)


def build_shell(cut: Outline, body: Callable[..., Any]) -> CodeType:
    """Parameters: the stack's slots from `floor`, then those of the body but its item, cells included as they are.
    Returns what lies on the stack from `floor` as a tuple, with the number of the leave last if there are several."""
    code, loop = cut.code, cut.loop
    emitter = Emitter()
    slots = [f".stack{number}" for number in range(cut.entry_depth - cut.floor)]
    names = [*cut.named, *cut.shared, *cut.cells, *map(keeper, cut.kept)]
    first = code.instrs[loop.entry]
    emitter.set_location(first.positions)
    for name in slots:
        emitter.load_fast(name)
    for name in slots:
        emitter.delete_fast(name)
    if first.op == "GET_ITER" and loop.entry != loop.header:
        emitter.raw(first)
    again, exhausted = Label(), Label()
    emitter.mark(again)
    header = code.instrs[loop.header]
    if loop.kind == "for":
        emitter.raw(header, exhausted)
        _call_with_top(emitter, body, names)
    else:
        emitter.set_location(header.positions)
        emitter.call_with_locals(body, names, forget=False)
    emitter.copy(1)
    over = Label()
    emitter.pop_jump_if_not_none(over)
    emitter.pop_top()
    emitter.jump(again)
    emitter.mark(over)
    _dispatch(cut, emitter, again)
    if loop.kind == "for":
        assert header.target is not None
        emitter.mark(exhausted)
        _return(cut, emitter, Leave(header.target, cut.base - 1 - cut.floor))
    original = code.code
    return emitter.assemble(code.name, [*slots, *names], (), original, original.co_qualname)


def _call_with_top(emitter: Emitter, body: Callable[..., Any], names: list[str]) -> None:
    """Call the body with the item on top of the stack and these variables."""
    if target().NULL_AFTER_CALLABLE:
        emitter.push_null()
        emitter.load_const(body)
    else:
        emitter.load_const(body)
        emitter.push_null()
    emitter.swap(3)
    for name in names:
        emitter.load_fast(name)
    emitter.end_call(1 + len(names))


def _dispatch(cut: Outline, emitter: Emitter, again: Label) -> None:
    """The body's result is on the stack: go where it says."""
    found = [(number, end) for number, end in enumerate(cut.exits) if end.leave is not None or end.extra]
    if not found:
        emitter.pop_top()  # not reached: the body only ever goes on
        emitter.jump(again)
        return
    emitter.store_fast(".result")
    for position, (number, end) in enumerate(found):
        following = Label()
        if position + 1 < len(found):
            emitter.load_fast(".result")
            emitter.load_const(-1)
            emitter.binary_subscr()
            emitter.load_const(number)
            emitter.compare_op("==")
            emitter.pop_jump_if_false(following)
        _unpack(emitter, end.extra)
        _run_native(cut.code, emitter, end.native)
        if end.leave is None:
            emitter.jump(again)
        else:
            _return(cut, emitter, end.leave)
        if position + 1 < len(found):
            emitter.mark(following)


def _unpack(emitter: Emitter, count: int) -> None:
    """Push the items of .result but the last."""
    values = [f".value{number}" for number in range(count)]
    if values:
        emitter.load_fast(".result")
        emitter.unpack_sequence(count + 1)
        for name in values:
            emitter.store_fast(name)
        emitter.pop_top()
    emitter.delete_fast(".result")
    for name in values:
        emitter.load_fast(name)
    for name in values:
        emitter.delete_fast(name)


def _run_native(code: Code, emitter: Emitter, native: tuple[int, ...]) -> None:
    for i in native:
        if code.instrs[i].op not in ("JUMP", "NOP"):
            emitter.raw(code.instrs[i])


def _return(cut: Outline, emitter: Emitter, leave: Leave) -> None:
    if len(cut.leaves) > 1:
        emitter.load_const(cut.leaves.index(leave))
        emitter.build_tuple(leave.slots + 1)
    else:
        emitter.build_tuple(leave.slots)
    emitter.return_value()
