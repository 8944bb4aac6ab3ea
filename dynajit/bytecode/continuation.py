"""The rest of a function as a function of its own.

In: a decoded `Code`, the index of the instruction to go on at, the kinds of the stack's slots, the locals and cells
that will be passed, and maybe a function that gives the topmost slot. Out: a code object taking (stack values that
are not NULL, bottom first; locals; cells) that rebuilds the stack and goes on at that instruction. Only what is
reachable from there is kept, with its exception ranges and the user's file and lines. Cells and free variables are
parameters: see assemble.py.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import CodeType, MappingProxyType
from typing import Any, Final, NamedTuple

from dynajit.bytecode.assemble import Emitter, Handler, Label, SlotKind
from dynajit.bytecode.canonical import JUMPS, LOCAL_OPS, TERMINATORS
from dynajit.bytecode.cfg import reachable_from, super_sites
from dynajit.bytecode.comprehensions import isolated
from dynajit.bytecode.decode import Code, Instr
from dynajit.bytecode.liveness import cells_live
from dynajit.bytecode.return_action import CALLED, ReturnAction
from dynajit.bytecode.target import target
from dynajit.bytecode.unbound import empty_free_variable

_DROPPED: Final = frozenset({"RESUME", "COPY_FREE_VARS"})
# what becomes of an instruction on a local that lives in a cell
_IN_CELL: Final = {
    "LOAD_FAST": "LOAD_DEREF",
    "LOAD_FAST_CHECK": "LOAD_DEREF",
    "STORE_FAST": "STORE_DEREF",
    "DELETE_FAST": "DELETE_DEREF",
}


class InnerCall(NamedTuple):
    """The call of the rest of a callee. It stands for the instruction before the continuation's first, or for the first
    one's way to what it works on (`action`: what is made of what it returns; `names`: what the arguments are to the
    user, as guards show them)."""

    function: Callable[..., Any]
    argc: int
    action: ReturnAction = CALLED
    names: tuple[str, ...] = ()

    def place(self, index: int) -> int:
        """The instruction that it stands for, in a continuation from `index` on."""
        return index if self.action.result == "again" else index - 1


def build_continuation(
    code: Code,
    index: int,
    stack: Sequence[SlotKind],
    params: Sequence[str],
    cells: Sequence[str],
    inner: InnerCall | None = None,
    shared: Sequence[str] = (),
    throw: bool = False,
) -> CodeType:
    """The code of a function that continues `code` just before instruction `index`.

    Its parameters are stack0, stack1, … for the slots of `stack` that are "value", then `params` (locals, by value),
    then `shared` (locals that live in cells, which may be empty), then `cells` (cell objects of cell and free
    variables), then inner0, inner1, … with which `inner` is called first; what that returns is pushed on top of
    `stack`. Locals that are not passed are unbound. With `throw`, `index` is an exception handler, and the topmost slot
    of `stack` the exception that it gets. ValueError if the rest needs a cell that is not in `cells`, or with
    `code.refusal` where there is one.
    """
    original = code.code
    if code.refusal is not None:
        raise ValueError(f"no continuation: {code.refusal}")
    starts = check_cells(code, index, cells, inner)
    reachable = sorted({i for start in starts for i in reachable_from(code, start)})
    taken = {*original.co_varnames, *code.cellvars, *code.freevars}
    slots = new_names("stack", stack.count("value"), taken)
    inputs = new_names("inner", inner.argc if inner is not None else 0, taken)
    emitter = Emitter()
    tail = Tail(code, emitter, reachable, frozenset([*cells, *shared]), frozenset(shared))
    push_stack(emitter, code.instrs[index], stack, slots)
    if inner is not None:
        calling = code.instrs[inner.place(index)]
        emitter.set_handler(tail.handler(calling))
        _call_inner(emitter, calling, inner, inputs)
        emitter.set_handler(None)
        if inner.action.result == "decide" and calling.target is not None:
            goal = tail.labels.setdefault(calling.target, Label())
            emitter.jump_op("POP_" + calling.op.removesuffix("_OR_POP"), goal)
            emitter.pop_top()
    if throw:
        tail.throw_to(index, len(stack) - 1)
    tail.emit(index)
    names = [*slots, *params, *shared, *cells, *inputs]
    return emitter.assemble(code.name, names, frozenset([*cells, *shared]), original, original.co_qualname)


def handlers_of(code: Code, index: int) -> tuple[int, ...]:
    """The handler that exceptions of the instruction go to, if there is one."""
    handler = code.instrs[index].handler
    return () if handler is None else (handler,)


def ways_on(code: Code, index: int, action: ReturnAction) -> tuple[int, ...]:
    """Where control may go on besides after an instruction whose callee returns, or raises."""
    target_index = code.instrs[index].target if action.result == "decide" else None
    return (*handlers_of(code, index), *(() if target_index is None else (target_index,)))


def build_copy(code: Code) -> CodeType:
    """The code of a function that does just what `code` does; its parameters are those of `code`, each by position, and
    the cells of its free variables."""
    if code.refusal is not None:
        raise ValueError(f"no copy: {code.refusal}")
    cells = frozenset([*code.passed_cells, *code.freevars])
    emitter = Emitter()
    Tail(code, emitter, reachable_from(code, code.entry), cells).emit(code.entry)
    return emitter.assemble(code.name, [*code.params, *code.freevars], cells, code.code, code.code.co_qualname)


def check_cells(code: Code, index: int, cells: Sequence[str], inner: InnerCall | None) -> list[int]:
    """Where the rest from `index` on may begin: in the handler too of the instruction that called, if a callee goes on
    there first (`inner`). ValueError if that needs other cells."""
    starts = [index, *(ways_on(code, inner.place(index), inner.action) if inner is not None else ())]
    known = {*code.cellvars, *code.freevars}
    unknown = [name for name in cells if name not in known]
    if unknown:
        raise ValueError(f"{code.name!r} has no cell or free variable {', '.join(unknown)}")
    missing = frozenset().union(*(cells_live(code, start) for start in starts)).difference(cells)
    if missing:
        raise ValueError(f"the rest of {code.name!r} needs the cells {', '.join(sorted(missing))}")
    return starts


def new_names(stem: str, count: int, taken: set[str]) -> list[str]:
    """Parameter names; underscores are added where the user has a variable of that name."""
    names: list[str] = []
    for number in range(count):
        name = f"{stem}{number}"
        while name in taken:
            name = "_" + name
        names.append(name)
    return names


def stack_names(code: Code, index: int, count: int) -> list[str]:
    """What guards call the values on the stack before an instruction. No variable has such a name."""
    line = code.instrs[index].lineno
    where = "on the stack" if line is None else f"on the stack before line {line}"
    return [f"value {number} {where}" if count > 1 else f"value {where}" for number in range(1, count + 1)]


def names_inside(function: str, names: Sequence[str]) -> tuple[str, ...]:
    """What guards of a caller call the variables and values of a function that it is in the middle of."""
    found: list[str] = []
    for name in names:
        text = name if " of " in name else f"{name.removeprefix('.')} of {function}"
        same = sum(other == text or other.startswith(f"{text} (") for other in found)
        found.append(f"{text} ({same + 1})" if same else text)
    return tuple(found)


def _call_inner(emitter: Emitter, calling: Instr, inner: InnerCall, inputs: list[str]) -> None:
    """Call the rest of the callee where the instruction `calling` called it, so that tracebacks show its line."""
    emitter.set_location(calling.positions)
    finish, result = inner.action.finish, inner.action.result
    if result == "callable" and not target().NULL_AFTER_CALLABLE:
        emitter.push_null()
    if finish is not None:
        emitter.begin_call(lambda: emitter.load_const(finish))
    emitter.call_with_locals(inner.function, inputs)
    if finish is not None:
        emitter.end_call(1)
    if result == "drop":
        emitter.pop_top()
    elif result == "callable" and target().NULL_AFTER_CALLABLE:
        emitter.push_null()


def push_stack(emitter: Emitter, first: Instr, stack: Sequence[str], slots: list[str]) -> None:
    """Put the operands back and let go of the parameters, so that an operand lives no longer than in the original."""
    emitter.set_location(first.positions)
    values = iter(slots)
    for kind in stack:
        if kind == "null":
            emitter.push_null()
        else:
            emitter.load_fast(next(values))
    for name in slots:
        emitter.delete_fast(name)


class Tail:
    """Emits some instructions of `code`, in their original order.

    Locals in `shared` live in cells; an inlined comprehension that has a variable of such a name to itself gets a plain
    local for it, and the cell stays as it is. `leaves` gives the label for each instruction outside of `chosen` that
    control may go to; exceptions go to handlers among `chosen` alone. The lowest `dropped` stack slots are not there.
    `lifetime_cells`: for locals, the cells that are bound to what they are bound to, and None where they are deleted.
    """

    def __init__(
        self,
        code: Code,
        emitter: Emitter,
        chosen: list[int],
        cells: frozenset[str],
        shared: frozenset[str] = frozenset(),
        leaves: Mapping[int, Label] = MappingProxyType({}),
        dropped: int = 0,
        lifetime_cells: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.code = code
        self.emitter = emitter
        self.reachable = chosen
        self.chosen = frozenset(chosen)
        self.cells = cells
        self.shared = shared
        self.dropped = dropped
        self.lifetime_cells = lifetime_cells
        self.leaves = leaves
        self.labels: dict[int, Label] = dict(leaves)
        self.handlers: dict[tuple[int, int, bool], Handler] = {}
        self.super_sites = super_sites(code)
        self.own = self._own_names()
        self.free = frozenset(code.freevars) - {"__class__"}
        #: where instructions on empty free variables go, and the handler around them
        self.empty: list[tuple[Label, Instr, Handler | None]] = []
        for i in chosen:
            instr = code.instrs[i]
            goals = [instr.target, instr.handler]
            if instr.op not in TERMINATORS and i + 1 not in self.chosen:
                goals.append(i + 1)
            for goal in goals:
                if goal is not None and (goal in self.chosen or goal != instr.handler):
                    self.labels.setdefault(goal, Label())

    def emit(self, index: int) -> None:
        """All of it, entered at `index`."""
        emitter, instrs = self.emitter, self.code.instrs
        start = Label()
        if self.reachable[0] != index:
            emitter.jump(start)
        for i in self.reachable:
            instr = instrs[i]
            if i == index:
                emitter.mark(start)
            if i in self.labels and i not in self.leaves:
                emitter.mark(self.labels[i])
            emitter.set_handler(self.handler(instr))
            if i in self.super_sites:
                self._super(instr)
            elif instr.op in JUMPS and instr.target is not None:
                emitter.raw(instr, self.labels[instr.target])
            elif instr.op in LOCAL_OPS and instr.arg in self.shared:
                self._shared(instr)
            elif instr.op in ("STORE_FAST", "DELETE_FAST") and instr.arg in self.lifetime_cells:
                self._kept(instr)
            elif instr.op in ("LOAD_DEREF", "DELETE_DEREF") and instr.arg in self.free:
                self._free(instr)
            elif not self._is_dropped(instr):
                emitter.raw(instr)
            if instr.op not in TERMINATORS and i + 1 not in self.chosen:
                emitter.set_handler(None)
                emitter.jump(self.labels[i + 1])
        self._raise_for_empty()

    def throw_to(self, handler: int, depth: int) -> None:
        """Give the exception on top of the stack to an exception handler. Re-raising adds no line to its traceback."""
        self.emitter.set_handler(
            Handler(self.labels.setdefault(handler, Label()), depth, has_lasti(self.code, handler))
        )
        self.emitter.op("RERAISE", 0)
        self.emitter.set_handler(None)

    def _own_names(self) -> frozenset[tuple[int, str]]:
        """Instructions in comprehensions that begin among `chosen`, with the shared names that mean another variable
        there."""
        code = self.code
        return frozenset(
            (i, code.instrs[clear].arg)
            for clear, extent in isolated(code).items()
            if clear in self.chosen and (self.shared | self.lifetime_cells.keys()) & {code.instrs[clear].arg}
            for i in extent
        )

    def _shared(self, instr: Instr) -> None:
        """A local that lives in a cell."""
        if (instr.index, instr.arg) in self.own:
            self.emitter.set_location(instr.positions)
            self.emitter.op(instr.op, f".{instr.arg}")
            return
        op = _IN_CELL.get(instr.op)
        if op is None:
            raise ValueError(f"{instr.op} of {instr.arg}, which lives in a cell")
        self.emitter.set_location(instr.positions)
        self.emitter.op(op, instr.arg)

    def _kept(self, instr: Instr) -> None:
        """A local whose object lives on where this code has ended."""
        emitter = self.emitter
        if (instr.index, instr.arg) in self.own:
            emitter.raw(instr)
            return
        emitter.set_location(instr.positions)
        if instr.op == "STORE_FAST":
            emitter.copy(1)
            emitter.store_deref(self.lifetime_cells[instr.arg])
            emitter.raw(instr)
        else:
            emitter.raw(instr)
            emitter.load_const(None)
            emitter.store_deref(self.lifetime_cells[instr.arg])

    def _free(self, instr: Instr) -> None:
        """A free variable of the program's, and a parameter here: were it empty, CPython would speak of a local."""
        handler, empty = self.handler(instr), Label()
        self.emitter.set_handler(Handler(empty, 0 if handler is None else handler.depth))
        self.emitter.raw(instr)
        self.empty.append((empty, instr, handler))

    def _raise_for_empty(self) -> None:
        emitter = self.emitter
        for label, instr, handler in self.empty:
            emitter.set_location(instr.positions)
            emitter.set_handler(handler)
            emitter.mark(label)
            emitter.pop_top()
            emitter.call_function(
                lambda: emitter.load_const(empty_free_variable), partial(emitter.load_const, instr.arg), 1
            )
            emitter.op("RAISE_VARARGS", 1)

    def _is_dropped(self, instr: Instr) -> bool:
        if instr.op == "NOP":
            # PRECALL and KW_NAMES come back with their CALL; the compiler's own NOPs carry a line for tracers
            return instr.raw.opname != "NOP"
        return instr.op in _DROPPED or (instr.op == "MAKE_CELL" and instr.index < self.code.entry)

    def handler(self, instr: Instr) -> Handler | None:
        if instr.handler is None or instr.handler not in self.chosen:
            return None
        key = (instr.handler, instr.handler_depth, instr.handler_lasti)
        handler = self.handlers.get(key)
        if handler is None:
            handler = self.handlers[key] = Handler(
                self.labels.setdefault(instr.handler, Label()), instr.handler_depth - self.dropped, instr.handler_lasti
            )
        return handler

    def _super(self, instr: Instr) -> None:
        """A call that may be zero-argument super(), which looks for a *free* variable `__class__` and for the first
        parameter in the frame. Neither is where it was, so if the callee is super they are passed; whatever else was
        called gets what the user wrote."""
        code, emitter = self.code, self.emitter
        arguments = code.code.co_argcount
        if arguments and instr.op == "CALL" and "__class__" not in self.cells:
            emitter.raw(instr)
            return
        is_call = instr.op == "CALL"
        otherwise, end = Label(), Label()
        emitter.set_location(instr.positions)
        emitter.copy(3 if not is_call else 2 if target().NULL_AFTER_CALLABLE else 1)
        emitter.load_const(super)
        emitter.op("IS_OP", False)
        emitter.pop_jump_if_false(otherwise)
        if not arguments:
            emitter.call_function(
                lambda: emitter.load_const(RuntimeError), lambda: emitter.load_const("super(): no arguments"), 1
            )
            emitter.op("RAISE_VARARGS", 1)
            emitter.mark(otherwise)
            emitter.raw(instr)
            return
        if is_call:
            emitter.load_deref("__class__")
            self._load_first_parameter()
            emitter.raw_call(2)
        else:
            name, is_method, _ = instr.arg
            emitter.op("LOAD_SUPER_ATTR", (name, is_method, True))
        emitter.jump(end)
        emitter.mark(otherwise)
        emitter.raw(instr)
        emitter.mark(end)

    def _load_first_parameter(self) -> None:
        first = self.code.params[0]
        if first in self.cells or first in self.code.cellvars:  # given as a cell, or put into one at the beginning
            self.emitter.load_deref(first)
        else:
            self.emitter.load_fast(first)


def has_lasti(code: Code, handler: int) -> bool:
    """Whether the handler gets the offset of the raising instruction below the exception."""
    return any(instr.handler_lasti for instr in code.instrs if instr.handler == handler)


def pretty(code: CodeType) -> str:
    """A readable listing for DYNAJIT_LOGS=bytecode: signature, then CPython's own disassembly."""
    names = ", ".join(
        f"{name} (cell)" if name in code.co_cellvars else name for name in code.co_varnames[: code.co_argcount]
    )
    head = f'{code.co_qualname}({names})  # File "{code.co_filename}", line {code.co_firstlineno}'
    return f"{head}\n{dis.Bytecode(code).dis()}"
