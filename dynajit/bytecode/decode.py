"""A code object decoded once into canonical instructions.

In: a CodeType. Out: a `Code`: list of `Instr` with resolved names, constants, jump targets (indices into the list),
innermost exception handler and source positions. Decoding never raises: an opcode that the py3NN module does not map
becomes op "UNKNOWN" with arg (raw name, raw argument), and code that is malformed has no instructions. The result is
cached for as long as the code object lives.
"""

from __future__ import annotations

import inspect
import opcode
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import CodeType
from typing import Any, Final, NamedTuple

from dynajit.bytecode.common import Decoding, Kind, Tables
from dynajit.bytecode.target import cache_entries, target

Positions = tuple[int | None, int | None, int | None, int | None]


class RawInstr(NamedTuple):
    """What CPython holds: opcode name, full argument, offset in bytes of the opcode (after any EXTENDED_ARG)."""

    opname: str
    arg: int
    offset: int


class Instr:
    """One canonical instruction. `target` and `handler` are indices into `Code.instrs`."""

    __slots__ = ("arg", "handler", "handler_depth", "handler_lasti", "index", "op", "positions", "raw", "target")

    def __init__(self, index: int, op: str, arg: Any, positions: Positions, raw: RawInstr) -> None:
        self.index = index
        self.op = op
        self.arg = arg
        self.target: int | None = None
        self.handler: int | None = None
        #: the stack is cut to this many slots before the handler's (offset and) exception are pushed
        self.handler_depth = 0
        #: the handler also gets the offset of the raising instruction, pushed before the exception
        self.handler_lasti = False
        self.positions = positions
        self.raw = raw

    @property
    def lineno(self) -> int | None:
        """The user's line, if the compiler gave one."""
        return self.positions[0]

    def __repr__(self) -> str:
        arrow = f" -> {self.target}" if self.target is not None else f" {self.arg!r}"
        return f"<{self.index} {self.op}{arrow}>"


class _Decoded:
    """What all `Code`s of one code object share."""

    __slots__ = ("entry", "instrs", "memo", "own_names")

    def __init__(self, code: CodeType) -> None:
        self.instrs: list[Instr] = []
        malformed: Exception | None = None
        try:
            self.instrs = _decode_instrs(code)
        except (LookupError, ValueError) as error:  # no compiler made this: a table too short, a jump to no instruction
            malformed = error
        #: index of the first instruction after the prologue (MAKE_CELL …, RESUME)
        self.entry = next((i.index + 1 for i in self.instrs if i.op == "RESUME"), 0)
        self.memo: dict[str, Any] = (
            {} if malformed is None else {"malformed": f"{type(malformed).__name__}: {malformed}"}
        )
        #: names of variables that comprehensions have to themselves, where CPython has others of the same name
        self.own_names: tuple[str, ...] = ()


def name_of_keywords(code: CodeType) -> str | None:
    """The name of the parameter `**kwargs`; None without one."""
    if not code.co_flags & inspect.CO_VARKEYWORDS:
        return None
    return code.co_varnames[code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)]


class Code:
    """A decoded code object. Analyses (liveness, regions) are kept in `memo` by the modules that compute them."""

    __slots__ = (
        "cellvars",
        "code",
        "entry",
        "freevars",
        "has_varargs",
        "has_varkw",
        "instrs",
        "is_generator",
        "memo",
        "name",
        "params",
        "varnames",
    )

    def __init__(self, code: CodeType, decoded: _Decoded) -> None:
        self.code = code
        self.instrs = decoded.instrs
        self.entry = decoded.entry
        self.memo = decoded.memo
        flags = code.co_flags
        self.name = code.co_name
        self.has_varargs = bool(flags & inspect.CO_VARARGS)
        self.has_varkw = bool(flags & inspect.CO_VARKEYWORDS)
        count = code.co_argcount + code.co_kwonlyargcount + self.has_varargs + self.has_varkw
        self.params: tuple[str, ...] = code.co_varnames[:count]
        #: names of locals, in CPython's order
        self.varnames: tuple[str, ...] = (*code.co_varnames, *decoded.own_names)
        self.cellvars: tuple[str, ...] = code.co_cellvars
        self.freevars: tuple[str, ...] = code.co_freevars
        self.is_generator = bool(flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR))

    @property
    def refusal_whole(self) -> str | None:
        """Why no code can be made of this one (such a frame must run as it is), or None."""
        if self.is_generator:
            return f"{self.name!r} is a generator or coroutine"
        if not self.code.co_flags & inspect.CO_OPTIMIZED:
            return f"{self.name!r} is a class or module body: its locals are not fast locals"
        if "malformed" in self.memo:
            return f"the bytecode of {self.name!r} is malformed ({self.memo['malformed']})"
        both = sorted({*self.cellvars}.intersection(self.freevars))
        if both:
            # 3.12 and 3.13 give such a name two slots and mix them up (a comprehension's variable captured by a lambda
            # hides a free variable).
            return f"{', '.join(both)} is both a cell and a free variable of {self.name!r}"
        if "unknown" not in self.memo:
            self.memo["unknown"] = sorted({i.arg[0] for i in self.instrs if i.op == "UNKNOWN"})
        if self.memo["unknown"]:
            return f"{self.name!r} uses opcodes that dynajit does not know: {', '.join(self.memo['unknown'])}"
        if self._deletes_what_super_reads():
            return f"{self.name!r} deletes what super() looks for in its frame"
        return None

    @property
    def refusal(self) -> str | None:
        """Why nothing can go on in the middle of it, or None."""
        if self.refusal_whole is None and self.names_locals:
            # Made code keeps other names, and only those still needed.
            return f"{self.name!r} calls {self.names_locals}(), which sees its local names"
        return self.refusal_whole

    def _deletes_what_super_reads(self) -> bool:
        """Whether `__class__` or the first parameter may be gone: super() words that error as no other code does."""
        if "__class__" not in self.freevars:
            return False
        if "deletes super's" not in self.memo:
            read = {"__class__", *self.params[:1]}
            self.memo["deletes super's"] = any(
                instr.op in ("DELETE_FAST", "DELETE_DEREF") and instr.arg in read for instr in self.instrs
            )
        return bool(self.memo["deletes super's"])

    @property
    def names_locals(self) -> str | None:
        """The builtin by which the function looks at its own locals by name, if it does."""
        if "names locals" not in self.memo:
            self.memo["names locals"] = _names_locals(self.instrs)
        found: str | None = self.memo["names locals"]
        return found

    @property
    def passed_cells(self) -> tuple[str, ...]:
        """Parameters of generated code that arrive as cell objects: cell variables for which no MAKE_CELL is run."""
        if "passed_cells" not in self.memo:
            made = {instr.arg for instr in self.instrs[: self.entry] if instr.op == "MAKE_CELL"}
            passed_in = set(self.params) - made
            self.memo["passed_cells"] = tuple(name for name in self.cellvars if name in passed_in)
        passed: tuple[str, ...] = self.memo["passed_cells"]
        return passed

    def __len__(self) -> int:
        return len(self.instrs)

    def __repr__(self) -> str:
        return f"<Code {self.name}, {len(self.instrs)} instrs>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Code) and other.code is self.code

    def __hash__(self) -> int:
        return id(self.code)


# The cache holds no code object, else neither it nor its constants would ever be freed; so a Code is made anew by each
# decode(), of shared parts.
_cache: dict[int, tuple[weakref.ref[CodeType], _Decoded]] = {}
#: what changes the instructions of each code object once they are decoded, and gives the names of locals it added
REWRITES: list[Callable[[Code], tuple[str, ...]]] = []


def decode(code: CodeType) -> Code:
    """The decoded form of `code`, from the cache if this very object was decoded before."""
    key = id(code)
    cached = _cache.get(key)
    if cached is not None and cached[0]() is code:
        return Code(code, cached[1])
    decoded = _Decoded(code)
    for rewrite in REWRITES if decoded.instrs else ():
        decoded.own_names += rewrite(Code(code, decoded))

    def forget(reference: weakref.ref[CodeType], key: int = key) -> None:
        entry = _cache.get(key)
        if entry is not None and entry[0] is reference:
            del _cache[key]

    _cache[key] = (weakref.ref(code, forget), decoded)
    return Code(code, decoded)


def _decodings() -> list[Decoding | None]:
    """Decoding by opcode number for the running Python."""
    table = target().TABLE
    return [table.get(name) for name in opcode.opname]


_by_opcode: list[Decoding | None] | None = None


def _decode_instrs(code: CodeType) -> list[Instr]:
    instrs: list[Instr] = []
    index_at: dict[int, int] = {}  # byte offset of an instruction (and of its first EXTENDED_ARG) → canonical index
    jumps: list[tuple[Instr, int]] = []
    tables = Tables(code)
    argument = _argument_readers(tables)
    positions = list(code.co_positions())
    for raw, start, after, decoding in _raw_instrs(code.co_code):
        index_at[start] = index_at[raw.offset] = index = len(instrs)
        # a table that somebody replaced may be too short
        where = positions[raw.offset >> 1] if raw.offset >> 1 < len(positions) else (None, None, None, None)
        if decoding is None:
            instrs.append(Instr(index, "UNKNOWN", (raw.opname, raw.arg), where, raw))
            continue
        op, kind, custom = decoding
        if custom is not None:
            for op, value in custom(tables, raw.arg):
                instrs.append(Instr(len(instrs), op, value, where, raw))
            continue
        read = argument[kind]
        instr = Instr(index, op, None if read is None else read[raw.arg], where, raw)
        instrs.append(instr)
        if kind >= Kind.FORWARD:
            jumps.append((instr, after + 2 * raw.arg if kind == Kind.FORWARD else after - 2 * raw.arg))
    _resolve_jumps(instrs, jumps, index_at)
    _attach_handlers(code, instrs, index_at)
    _drop_truth_tests(instrs)
    return instrs


_TEST_TRUTH: Final = frozenset({"POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "UNARY_NOT"})


def _drop_truth_tests(instrs: list[Instr]) -> None:
    """What tests truth itself needs no TO_BOOL before it; the way back adds it. So a branch is one instruction."""
    for instr, following in pairwise(instrs):
        if instr.op == "TO_BOOL" and following.op in _TEST_TRUTH:
            instr.op = "NOP"
            # what tests a bool can't raise, so the compiler may not protect it
            following.handler, following.handler_depth = instr.handler, instr.handler_depth
            following.handler_lasti = instr.handler_lasti


def _names_locals(instrs: list[Instr]) -> str | None:
    """The builtin by which a function looks at its own locals by name, if it does."""
    for instr, following in pairwise(instr for instr in instrs if instr.op != "NOP"):
        if instr.op == "LOAD_GLOBAL":
            name: str = instr.arg[0]
            bare = following.op == "CALL" and following.arg[0] == 0
            if name in ("locals", "eval", "exec") or (name in ("vars", "dir") and bare):
                return name
    return None


class _Same:
    """Reads an argument that is a plain number."""

    def __getitem__(self, arg: int) -> int:
        return arg


def _argument_readers(tables: Tables) -> list[Any]:
    """By Kind: what the raw argument is looked up in; None where there is nothing to read."""
    readers: list[Any] = [None] * (max(Kind) + 1)
    readers[Kind.INT] = _Same()
    readers[Kind.CONST] = tables.consts
    readers[Kind.LOCAL] = readers[Kind.CELL] = tables.localsplus
    readers[Kind.NAME] = tables.names
    return readers


def _raw_instrs(raw_code: bytes) -> Iterator[tuple[RawInstr, int, int, Decoding | None]]:
    """Raw instruction, offset of its first EXTENDED_ARG, offset after its caches, how it is decoded."""
    global _by_opcode
    if _by_opcode is None:
        _by_opcode = _decodings()
    by_opcode, caches, opnames, extended_arg = _by_opcode, cache_entries(), opcode.opname, opcode.EXTENDED_ARG
    offset, start, extended, size = 0, 0, 0, len(raw_code)
    while offset < size:
        number, arg = raw_code[offset], raw_code[offset + 1] | extended
        if number == extended_arg:
            extended = arg << 8
            offset += 2
            continue
        after = offset + 2 + 2 * caches[number]
        yield RawInstr(opnames[number], arg, offset), start, after, by_opcode[number]
        offset = start = after
        extended = 0


def _resolve_jumps(instrs: list[Instr], jumps: list[tuple[Instr, int]], index_at: dict[int, int]) -> None:
    landings = target().LANDINGS
    for instr, offset in jumps:
        goal = index_at[offset]
        for raw in landings.get(instr.op, ()):
            if instrs[goal].raw.opname == raw.opname:
                goal += 1
        instr.target = goal


def _attach_handlers(code: CodeType, instrs: list[Instr], index_at: dict[int, int]) -> None:
    entries = parse_exception_table(code.co_exceptiontable)
    if not entries:
        return
    offsets = [instr.raw.offset for instr in instrs]
    position = 0
    for start, end, handler_offset, depth, lasti in entries:  # sorted and disjoint
        handler = index_at[handler_offset]
        while position < len(instrs) and offsets[position] < start:
            position += 1
        while position < len(instrs) and offsets[position] < end:
            instr = instrs[position]
            instr.handler, instr.handler_depth, instr.handler_lasti = handler, depth, lasti
            position += 1


def parse_exception_table(table: bytes) -> list[tuple[int, int, int, int, bool]]:
    """(start, end, handler, depth, lasti) for each entry, offsets in bytes, end exclusive
    (Objects/exception_handling_notes.txt in CPython)."""
    numbers: list[int] = []
    value = 0
    for byte in table:
        value = value << 6 | byte & 0x3F
        if not byte & 0x40:
            numbers.append(value)
            value = 0
    return [
        (2 * start, 2 * (start + length), 2 * handler, depth_lasti >> 1, bool(depth_lasti & 1))
        for start, length, handler, depth_lasti in zip(*[iter(numbers)] * 4, strict=True)
    ]
