"""Writing code objects: `Emitter` collects instructions and assembles them for the running CPython.

In: calls such as load_fast("x"), mark(label), raw(user's instruction). Out: a CodeType that takes plain positional
parameters. Constants may be any objects: each is kept by identity, never merged with an equal one. Jumps, exception
ranges, inline caches, and the stack's size are worked out here; `encode.py` writes the tables.
To emit one more op: a row of `Emitter` (or `op(name, arg)`), and an entry in each py3NN.LOWER.

Cells are parameters: a name in `cells` must be a parameter whose value is a cell object. It is listed in co_cellvars
and gets no MAKE_CELL, so that LOAD_DEREF, STORE_DEREF and LOAD_CLOSURE work on the passed cell itself (since 3.11 a
cell variable that is a parameter lives in the parameter's slot).
"""

from __future__ import annotations
import __future__

import dis
import opcode
from collections.abc import Callable, Iterable, Sequence
from types import CodeType
from typing import Any, Final, Literal, NamedTuple

from dynajit.bytecode.canonical import JUMPS, TERMINATORS, stack_shape
from dynajit.bytecode.common import Kind, RawOp
from dynajit.bytecode.decode import Instr, Positions
from dynajit.bytecode.encode import Location, Range, exception_table, instruction, line_table
from dynajit.bytecode.target import cache_entries, jump_names, target, without_argument

_FUTURE_FLAGS: Final = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})
_PLAIN_FLAGS: Final = 0x0001 | 0x0002  # CO_OPTIMIZED | CO_NEWLOCALS
# CPython's own compiler passes many arguments in a tuple, and 3.11 relies on it: a CALL after an EXTENDED_ARG crashes
# there once it is specialised for a builtin.
_MAX_ARGUMENTS: Final = 255
_OPPOSITE: Final = {
    "POP_JUMP_IF_TRUE": "POP_JUMP_IF_FALSE",
    "POP_JUMP_IF_FALSE": "POP_JUMP_IF_TRUE",
    "POP_JUMP_IF_NONE": "POP_JUMP_IF_NOT_NONE",
    "POP_JUMP_IF_NOT_NONE": "POP_JUMP_IF_NONE",
}


def _empty() -> None:
    """What code objects are made from."""


_EMPTY: Final = _empty.__code__
SlotKind = Literal["value", "null"]


def pushed_kinds(instr: Instr, jump: bool = False, null_operand: int | None = None) -> tuple[SlotKind, ...]:
    """What `instr` pushes when it is run by Emitter.rerun, bottom first. `null_operand`: which of its operands is a
    NULL, for one that pushes them again."""
    op, arg = instr.op, instr.arg
    if op == "PUSH_NULL":
        return ("null",)
    if op == "LOAD_METHOD" or (op in ("LOAD_SUPER_ATTR", "LOAD_GLOBAL") and arg[1]):
        return ("value", "null") if target().NULL_AFTER_CALLABLE else ("null", "value")
    kinds: list[SlotKind] = ["value"] * stack_shape(op, arg, jump)[1]
    if op == "WITH_EXCEPT_START" and null_operand is not None:
        kinds[null_operand] = "null"
    return tuple(kinds)


class Label:
    """A place in the code: a jump's goal or a handler's start. `position` is set by Emitter.mark."""

    __slots__ = ("position",)

    def __init__(self) -> None:
        self.position: int | None = None


class Handler:
    """An exception range's goal: control goes to `label` with the stack cut to `depth` slots, then (with `lasti`) the
    raising instruction's offset and the exception pushed. `depth` None: the depth at the first instruction of the
    range."""

    __slots__ = ("depth", "label", "lasti")

    def __init__(self, label: Label, depth: int | None = None, lasti: bool = False) -> None:
        self.label = label
        self.depth = depth
        self.lasti = lasti


class _Entry:
    """One raw instruction to be assembled. `value` is the final integer once tables are known (a Label for jumps)."""

    __slots__ = ("caches", "handler", "kind", "location", "opcode", "opname", "units", "value")

    def __init__(
        self,
        opname: str,
        number: int,
        kind: Kind,
        value: Any,
        location: Location | None,
        handler: Handler | None,
        caches: int,
    ) -> None:
        self.opname = opname
        self.opcode = number
        self.kind = kind
        self.value = value
        self.location = location
        self.handler = handler
        self.caches = caches
        #: code units of EXTENDED_ARGs and the instruction
        self.units = 1


class _Landing(NamedTuple):
    """Where a FOR_ITER jumps to on Pythons that want an END_FOR there, before going on to `goal`."""

    label: Label
    instructions: tuple[RawOp, ...]
    goal: Label
    location: Location | None


def _method(opname: str, doc: str) -> Callable[[Emitter, Any], None]:
    """A method that emits the op with its argument."""

    def emit(self: Emitter, argument: Any) -> None:
        self.op(opname, argument)

    emit.__doc__ = doc
    return emit


def _with_name(opname: str, doc: str) -> Callable[[Emitter, str], None]:
    return _method(opname, doc)


def _with_number(opname: str, doc: str) -> Callable[[Emitter, int], None]:
    return _method(opname, doc)


def _alone(opname: str, doc: str) -> Callable[[Emitter], None]:
    def emit(self: Emitter) -> None:
        self.op(opname)

    emit.__doc__ = doc
    return emit


def _jumping(opname: str, doc: str) -> Callable[[Emitter, Label], None]:
    def emit(self: Emitter, goal: Label) -> None:
        self.jump_op(opname, goal)

    emit.__doc__ = doc
    return emit


class Emitter:
    """Collects instructions; see the module docstring."""

    def __init__(self) -> None:
        self._target = target()
        self._caches = cache_entries()
        self._entries: list[_Entry] = []
        # constant 0 is what FunctionType takes for the docstring
        self._consts: list[Any] = [None]
        self._const_index: dict[int, int] = {id(None): 0}
        self._names: dict[str, int] = {}
        self._location: Location | None = None
        self._positions: Positions | None = None
        self._handler: Handler | None = None
        self._landings: list[_Landing] = []

    # -- where and under which handler

    def set_location(self, positions: Positions | None) -> None:
        """Line and columns (lineno, end_lineno, col, end_col) of the instructions that follow; None: no line of the
        user's."""
        if positions == self._positions:
            return
        self._positions = positions
        lineno, end_lineno, col, end_col = positions or (None, None, None, None)
        if lineno is None:
            self._location = None
        else:
            if None in (end_lineno, col, end_col):
                end_lineno = col = end_col = None
            self._location = (lineno, end_lineno, col, end_col)

    def set_handler(self, handler: Handler | None) -> None:
        """The innermost exception handler of the instructions that follow."""
        self._handler = handler

    # -- any op

    def op(self, name: str, arg: Any = None) -> None:
        """Emit canonical op `name` that does not jump. ValueError for one that this Python has no instruction for."""
        lower = self._target.LOWER.get(name)
        if lower is None:
            raise ValueError(f"{name} cannot be emitted on this Python")
        for raw in lower(arg):
            self._raw_op(raw)

    def _raw_op(self, raw: RawOp) -> None:
        opname, kind, value, shift, low = raw
        if kind == Kind.CONST:
            value = self._const(value)
        elif kind == Kind.NAME:
            value = self._names.setdefault(value, len(self._names))
        elif kind == Kind.NONE:
            value = 0
        if shift:
            value = value << shift | low
        self._append(opname, kind, value)

    def _append(self, opname: str, kind: Kind, value: Any) -> None:
        number = opcode.opmap[opname]
        self._entries.append(_Entry(opname, number, kind, value, self._location, self._handler, self._caches[number]))

    def _const(self, obj: Any) -> int:
        index = self._const_index.get(id(obj))
        if index is None:
            index = self._const_index[id(obj)] = len(self._consts)
            self._consts.append(obj)  # keeps it alive, so its id stays its own
        return index

    def raw(self, instr: Instr, goal: Label | None = None) -> None:
        """Emit a decoded instruction again, at its own position. A jump needs `goal`, the label of its target."""
        self.set_location(instr.positions)
        if instr.op in JUMPS:
            if goal is None:
                raise ValueError(f"{instr!r} jumps: raw() needs the label of its target")
            self.jump_op(instr.op, goal)
        else:
            self.op(instr.op, instr.arg)

    def rerun(self, instr: Instr, goal: Label | None = None, null_operand: int | None = None) -> None:
        """Like raw, for an instruction whose results are to be kept in variables: leaves only the slots that
        pushed_kinds of the same arguments calls "value", for a NULL can't be stored. LOAD_METHOD becomes a plain
        attribute access."""
        op, arg = instr.op, instr.arg
        kinds = pushed_kinds(instr, null_operand=null_operand)
        if "null" not in kinds or op == "WITH_EXCEPT_START":
            self.raw(instr, goal)
            if "null" in kinds:
                self.drop_below(len(kinds) - 1 - kinds.index("null"), 1)
            return
        self.set_location(instr.positions)
        if op == "LOAD_METHOD":
            self.op("LOAD_ATTR", arg)
        elif op == "LOAD_SUPER_ATTR":
            self.op(op, (arg[0], False, arg[2]))
        elif op == "LOAD_GLOBAL":
            self.op(op, (arg[0], False))

    # -- jumps

    def label(self) -> Label:
        """A new label, not placed yet."""
        return Label()

    def mark(self, label: Label) -> None:
        """Place `label` before the next instruction."""
        if label.position is not None:
            raise ValueError("this label has been placed already")
        label.position = len(self._entries)

    def jump_op(self, op: str, goal: Label) -> None:
        """Emit canonical jump `op` to `goal`, forward or (if goal is placed already) backward."""
        if op in self._target.LANDINGS:
            landing = Label()
            self._landings.append(_Landing(landing, self._target.LANDINGS[op], goal, self._location))
            goal = landing
        backward = goal.position is not None
        opname = jump_names().get((op, backward))
        if opname is not None:
            for raw in self._target.JUMP_PREFIXES.get(op, ()):
                self._raw_op(raw)
            self._append(opname, Kind.BACKWARD if backward else Kind.FORWARD, goal)
            return
        if op in ("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP"):
            self.copy(1)
            self.jump_op("POP_" + op.removesuffix("_OR_POP"), goal)
            self.pop_top()
        elif op in _OPPOSITE:
            over = Label()
            self.jump_op(_OPPOSITE[op], over)
            self.jump_op("JUMP", goal)
            self.mark(over)
        else:
            raise ValueError(f"{op} cannot jump {'backward' if backward else 'forward'}")

    jump = _jumping("JUMP", "Go to the label.")
    pop_jump_if_false = _jumping("POP_JUMP_IF_FALSE", "Pop; go to the label if it was false.")
    pop_jump_if_not_none = _jumping("POP_JUMP_IF_NOT_NONE", "Pop; go to the label if it was not None.")
    for_iter = _jumping("FOR_ITER", "Push the iterator's next item; at its end pop it and go to the label.")

    # -- constants and variables

    def load_const(self, obj: Any) -> None:
        """Push `obj` itself, whatever it is."""
        if type(obj) is frozenset and any(type(item) in (str, tuple) for item in obj):
            # The constructor of code objects replaces a frozenset constant that holds names by one with interned names.
            self.op("LOAD_CONST", [obj])
            self.op("LOAD_CONST", 0)
            self.op("BINARY_SUBSCR")
        else:
            self.op("LOAD_CONST", obj)

    load_fast = _with_name("LOAD_FAST", "Push a local.")
    store_fast = _with_name("STORE_FAST", "Pop into a local.")
    delete_fast = _with_name("DELETE_FAST", "Unbind a local.")
    load_deref = _with_name("LOAD_DEREF", "Push what a cell holds.")
    store_deref = _with_name("STORE_DEREF", "Pop into a cell.")
    load_closure = _with_name("LOAD_CLOSURE", "Push the cell itself.")
    store_global = _with_name("STORE_GLOBAL", "Pop into a global.")

    def load_global(self, name: str) -> None:
        """Push a global or builtin."""
        self.op("LOAD_GLOBAL", (name, False))

    # -- operators, containers, the stack

    load_attr = _with_name("LOAD_ATTR", "object → attribute.")
    store_attr = _with_name("STORE_ATTR", "value, object → .")
    delete_attr = _with_name("DELETE_ATTR", "object → .")
    compare_op = _with_name("COMPARE_OP", "left, right → left <name> right.")
    binary_subscr = _alone("BINARY_SUBSCR", "container, key → item.")
    store_subscr = _alone("STORE_SUBSCR", "value, container, key → .")
    build_tuple = _with_number("BUILD_TUPLE", "n items → tuple.")
    build_list = _with_number("BUILD_LIST", "n items → list.")
    build_set = _with_number("BUILD_SET", "n items → set.")
    build_map = _with_number("BUILD_MAP", "n times key, value → dict.")
    build_slice = _with_number("BUILD_SLICE", "start, stop (, step) → slice.")
    unpack_sequence = _with_number("UNPACK_SEQUENCE", "sequence → its n items, the first on top.")
    copy = _with_number("COPY", "Push the nth slot from the top (1 is the top) again.")
    swap = _with_number("SWAP", "Exchange the top and the nth slot from the top.")
    pop_top = _alone("POP_TOP", "Drop the top.")
    push_null = _alone("PUSH_NULL", "Push a NULL.")
    return_value = _alone("RETURN_VALUE", "Pop and return.")

    def drop_below(self, keep: int, count: int) -> None:
        """Drop the `count` slots that lie below the topmost `keep`."""
        for _ in range(count):
            for depth in range(2, keep + 2):
                self.swap(depth)
            self.pop_top()

    # -- calls

    def call_function(
        self, push_callable: Callable[[], None], push_args: Callable[[], None], argc: int, kwnames: tuple[str, ...] = ()
    ) -> None:
        """Call what `push_callable` pushes with the `argc` arguments (keywords included, last) that `push_args`
        pushes."""
        self.begin_call(push_callable)
        push_args()
        self.end_call(argc, kwnames)

    def begin_call(self, push_callable: Callable[[], None]) -> None:
        """Push the callable and its NULL in this Python's order; push the arguments next, then end_call."""
        if self._target.NULL_AFTER_CALLABLE:
            push_callable()
            self.push_null()
        else:
            self.push_null()
            push_callable()

    def call_with_locals(self, function: Callable[..., Any], names: Sequence[str], forget: bool = True) -> None:
        """Call the function with these variables, which are unbound before the call if `forget`."""
        self.begin_call(lambda: self.load_const(function))
        for name in names:
            self.load_fast(name)
        for name in names if forget else ():
            self.delete_fast(name)
        self.end_call(len(names))

    def end_call(self, argc: int, kwnames: tuple[str, ...] = ()) -> None:
        """Call with the `argc` arguments on the stack, the last len(kwnames) of them by keyword."""
        if argc > _MAX_ARGUMENTS and not kwnames:
            self.build_tuple(argc)
            self.call_function_ex()
        else:
            self.raw_call(argc, kwnames)

    def raw_call(self, argc: int, kwnames: tuple[str, ...] = ()) -> None:
        """The call alone: callable, NULL (or self) and arguments lie on the stack as CPython's own code leaves them."""
        self.op("CALL", (argc, tuple(kwnames)))

    def call_function_ex(self) -> None:
        """Call with a tuple of arguments on the stack above callable and NULL."""
        self.op("CALL_FUNCTION_EX", False)

    # -- assembling

    def assemble(
        self, name: str, params: Sequence[str], cells: Iterable[str], template: CodeType, qualname: str | None = None
    ) -> CodeType:
        """The code object: a function of `params` (those in `cells` are passed as cell objects), with the file and
        first line of `template`.

        Further cell variables that the code uses are made by MAKE_CELL as usual. ValueError for code that is not
        well-formed: a label that was never placed, control that runs off the end, a stack whose depth differs by path.
        """
        return _Assembly(self, params, frozenset(cells)).code(name, template, qualname or name)


class _Assembly:
    """One Emitter.assemble call: prologue, slots, jumps, stack depth, tables."""

    def __init__(self, emitter: Emitter, params: Sequence[str], cells: frozenset[str]) -> None:
        self.emitter = emitter
        self.params = list(params)
        self.entries = list(emitter._entries)
        if len(set(self.params)) != len(self.params):
            raise ValueError(f"a parameter is named twice: {', '.join(self.params)}")
        if not cells.issubset(self.params):
            raise ValueError(f"cells must be parameters: {', '.join(sorted(cells.difference(self.params)))}")
        self._land_iterators()
        self._resolve_slots(cells)

    def _land_iterators(self) -> None:
        """Behind everything else: what a FOR_ITER must jump to, then the jump to the place where the loop ends."""
        emitter = self.emitter
        if not emitter._landings:
            return
        saved, emitter._entries = emitter._entries, self.entries
        handler = emitter._handler
        emitter.set_handler(None)
        for landing in emitter._landings:
            if landing.goal.position is None:
                raise ValueError("a FOR_ITER's end label was never placed")
            landing.label.position = len(self.entries)
            emitter._location = landing.location
            for raw in landing.instructions:
                emitter._raw_op(raw)
            emitter.jump_op("JUMP", landing.goal)
        emitter._entries = saved
        emitter._positions = None
        emitter.set_location(None)
        emitter.set_handler(handler)

    def _resolve_slots(self, cells: frozenset[str]) -> None:
        """Local and cell names to slots; MAKE_CELL for cells that are not passed; RESUME."""
        slots = {name: i for i, name in enumerate(self.params)}
        used_cells: dict[str, None] = dict.fromkeys(name for name in self.params if name in cells)
        for entry in self.entries:
            if entry.kind == Kind.LOCAL:
                slots.setdefault(entry.value, len(slots))
            elif entry.kind == Kind.CELL:
                used_cells.setdefault(entry.value)
        self.varnames = list(slots)
        self.cellvars = list(used_cells)
        for name in self.cellvars:
            slots.setdefault(name, len(slots))
        checked = opcode.opmap.get("LOAD_FAST_CHECK")
        bound = frozenset(self.params) - {entry.value for entry in self.entries if entry.opname == "DELETE_FAST"}
        resolved = []
        for entry in self.entries:
            if entry.kind in (Kind.LOCAL, Kind.CELL):
                if (
                    checked is not None
                    and entry.opname == "LOAD_FAST"
                    and entry.kind == Kind.LOCAL
                    and entry.value not in bound
                ):
                    # since 3.12 LOAD_FAST trusts the compiler that the local is bound; here nobody has proved it
                    entry = _Entry(
                        "LOAD_FAST_CHECK", checked, entry.kind, entry.value, entry.location, entry.handler, 0
                    )
                else:
                    entry = _Entry(
                        entry.opname, entry.opcode, entry.kind, entry.value, entry.location, entry.handler, entry.caches
                    )
                entry.value = slots[entry.value]
                entry.kind = Kind.INT
                entry.units = _units(entry.value)
            elif entry.kind < Kind.FORWARD:
                entry.units = _units(entry.value)
            resolved.append(entry)
        new_cells = [name for name in self.cellvars if name not in cells]
        prologue = [
            _Entry("MAKE_CELL", opcode.opmap["MAKE_CELL"], Kind.INT, slots[name], None, None, 0) for name in new_cells
        ]
        prologue.append(_Entry("RESUME", opcode.opmap["RESUME"], Kind.INT, 0, None, None, 0))
        for entry in prologue:
            entry.units = _units(entry.value)
        self.shift = len(prologue)
        self.entries = prologue + resolved

    def _position(self, label: Label) -> int:
        if label.position is None:
            raise ValueError("a label was jumped to but never placed")
        return label.position + self.shift

    def code(self, name: str, template: CodeType, qualname: str) -> CodeType:
        """Assemble."""
        depths = self._stack_depths()
        offsets, arguments = self._jump_arguments()
        first: Location = (template.co_firstlineno, None, None, None)
        code, places = bytearray(), []
        for i, (entry, argument) in enumerate(zip(self.entries, arguments, strict=True)):
            # as many units as the jumps were worked out with
            code += instruction(entry.opcode, argument, entry.units, entry.caches)
            places.append((entry.location or (first if i < self.shift else None), entry.units + entry.caches))
        return _EMPTY.replace(
            co_argcount=len(self.params),
            co_nlocals=len(self.varnames),
            # CPython refuses a stack of size 0 where there is an exception table; one slot more costs nothing
            co_stacksize=max(depths) + 1,
            co_flags=_PLAIN_FLAGS | template.co_flags & _FUTURE_FLAGS,
            co_firstlineno=template.co_firstlineno,
            co_code=bytes(code),
            co_consts=tuple(self.emitter._consts),
            co_names=tuple(self.emitter._names),
            co_varnames=tuple(self.varnames),
            co_cellvars=tuple(self.cellvars),
            co_filename=template.co_filename,
            co_name=name,
            co_qualname=qualname,
            co_linetable=line_table(places, template.co_firstlineno),
            co_exceptiontable=exception_table(self._handler_ranges(offsets)),
        )

    def _stack_depths(self) -> list[int]:
        """Depth before each instruction (-1: never reached), found by following every path once; all paths must
        agree."""
        entries, count = self.entries, len(self.entries)
        depths = [-1] * count
        highest = 0
        pending = [(0, 0)]
        while pending:
            i, depth = pending.pop()
            while True:
                if i >= count:
                    raise ValueError("control runs off the end of the emitted code")
                if depth < 0:
                    raise ValueError(f"more was popped than pushed before {self._describe(i)}")
                if depths[i] >= 0:
                    if depths[i] != depth:
                        raise ValueError(
                            f"stack depth at {self._describe(i)} is {depth} on one path, {depths[i]} on another"
                        )
                    break
                depths[i] = depth
                entry = entries[i]
                handler = entry.handler
                if handler is not None:
                    if handler.depth is None:
                        handler.depth = depth
                    pending.append((self._position(handler.label), handler.depth + 1 + handler.lasti))
                argument = None if entry.opcode in without_argument() else entry.value
                if entry.kind == Kind.FORWARD or entry.kind == Kind.BACKWARD:
                    effect = dis.stack_effect(entry.opcode, 0, jump=True)
                    pending.append((self._position(entry.value), depth + effect))
                    highest = max(highest, depth + effect)
                    argument = 0
                if entry.opname in _RAW_TERMINATORS:
                    break
                depth += dis.stack_effect(entry.opcode, argument, jump=False)
                highest = max(highest, depth)
                i += 1
        depths.append(max(highest, max(depths)))
        return depths

    def _describe(self, i: int) -> str:
        entry = self.entries[i]
        line = f", line {entry.location[0]}" if entry.location is not None else ""
        return f"instruction {i - self.shift} ({entry.opname}{line})"

    def _jump_arguments(self) -> tuple[list[int], list[int]]:
        """Offsets (code units; one more for the end) and arguments. Instructions only grow, so this ends; mostly at
        the second round."""
        entries = self.entries
        while True:
            offsets, offset = [], 0
            for entry in entries:
                offsets.append(offset)
                offset += entry.units + entry.caches
            offsets.append(offset)
            arguments, grown = [], False
            for i, entry in enumerate(entries):
                value = entry.value
                if entry.kind == Kind.FORWARD or entry.kind == Kind.BACKWARD:
                    value = offsets[self._position(value)] - offsets[i + 1]
                    if entry.kind == Kind.BACKWARD:
                        value = -value
                    if _units(value) > entry.units:
                        entry.units = _units(value)
                        grown = True
                arguments.append(value)
            if not grown:
                return offsets, arguments

    def _handler_ranges(self, offsets: list[int]) -> list[Range]:
        """Runs of instructions with one handler. Offsets in code units."""
        found: list[Range] = []
        current: Handler | None = None
        for i, entry in enumerate(self.entries):
            handler = entry.handler
            if handler is None:
                current = None
            elif handler is current:
                found[-1] = found[-1]._replace(stop=offsets[i + 1])
            else:
                goal = offsets[self._position(handler.label)]
                found.append(Range(offsets[i], offsets[i + 1], goal, handler.depth or 0, handler.lasti))
                current = handler
        return found


def _units(argument: int) -> int:
    """Code units of an instruction with this argument, EXTENDED_ARGs included."""
    return 1 if argument < 0x100 else 2 if argument < 0x10000 else 3 if argument < 0x1000000 else 4


_RAW_TERMINATORS: Final = (TERMINATORS - {"JUMP"}) | {"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}
