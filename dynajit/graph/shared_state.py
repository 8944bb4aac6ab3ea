"""State that Python code shares with the program, where a graph calls such code: what it reads and writes there.

In: functions. Out: their `SharedState`. The code is read, not run: names that it loads and stores, and objects that its
global variables and closure lead to.
"""

from __future__ import annotations

import collections
import contextvars
import dis
import functools
import inspect
import re
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

#: so many objects are looked at; code that more can be reached from is taken for code that isn't known
_MAX_OBJECTS = 2_000
#: what changes the object that it is called of, or another one that is named elsewhere
_CHANGING = frozenset(
    ("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "add", "discard", "update", "popitem")
    + ("setdefault", "appendleft", "extendleft", "popleft", "rotate", "difference_update", "intersection_update")
    + ("symmetric_difference_update", "move_to_end", "subtract", "next", "send", "set", "reset", "write", "fill", "put")
)
#: of these, what takes another object's items, which changes that one if it is an iterator
_ITERATING = frozenset(("extend", "extendleft", "update", "difference_update", "intersection_update"))
_ITERATING |= {"symmetric_difference_update", "next", "send"}
#: what writes, or reads, attributes and variables that strings name
_WRITES_BY_NAME = frozenset(("setattr", "delattr", "__setattr__", "__delattr__", "__dict__", "vars", "globals"))
_BY_NAME = _WRITES_BY_NAME | {"getattr", "hasattr", "__getattribute__", "attrgetter"}
_CONTAINERS = (list, dict, set, bytearray, collections.deque, contextvars.ContextVar)
_PLAIN = (int, float, complex, str, bytes, types.NoneType, torch.Tensor)
_LIBRARIES = frozenset((*sys.stdlib_module_names, "torch", "numpy", "triton"))
_METHODS = re.compile(r"__\w+__")


def is_of_library(module: str | None) -> bool:
    """Whether what a module of this name defines has no state of the program's."""
    return (module or "").partition(".")[0] in _LIBRARIES


class SharedState:
    """What code reads and writes beside its arguments.

    Attributes:
        known: whether all of the code was found; if not, it may read anything.
        reads: names of variables and attributes.
        writes: names of variables and attributes that it stores.
        objects: containers, context variables and iterators that it reaches, by id.
        reached: everything that it reaches, by id; None if nobody looked.
        found: the same, but for numbers, texts and tensors.
        tensors: whether it reaches tensors.
        changes: whether it may change one of these.
    """

    def __init__(self, known: bool = True) -> None:
        self.known, self.changes, self.tensors = known, False, False
        self.reads: set[str] = set()
        self.writes: set[str] = set()
        self.objects: set[int] = set()
        self.reached: set[int] | None = None
        self.found: list[Any] = []

    def of_code(self, code: types.CodeType, own: frozenset[str] = frozenset()) -> None:
        """Add what is said in the code itself, and in what is defined there. `own`: variables that hold tensors and
        numbers of the graph, or what nobody else sees, such as the `ctx` that a backward gets."""
        self.reads.update(code.co_freevars)
        instructions = [*dis.get_instructions(code)]
        made = _made_here(code, instructions)
        own -= {variable for instr in instructions for variable in _stored(instr)}
        filled = own | {*code.co_varnames[:1]} if code.co_name == "__init__" else own
        for instr, pushed in _with_operands(instructions):
            name, kind = instr.opname, instr.argval
            base = pushed[-1:]  # at most one; what is not known is nobody's own
            if instr.opcode in dis.hasname and not (name in ("LOAD_ATTR", "LOAD_METHOD") and not own.isdisjoint(base)):
                self.reads.add(kind)
            if (
                name in ("STORE_GLOBAL", "DELETE_GLOBAL")
                or (name in ("STORE_ATTR", "DELETE_ATTR") and filled.isdisjoint(base))
                or (name in ("STORE_DEREF", "DELETE_DEREF") and kind in code.co_freevars)
            ):
                self.writes.add(kind)
            self.changes |= _changes(instr, pushed, made)
        if not _BY_NAME.isdisjoint(code.co_names):
            names = {text for text in code.co_consts if isinstance(text, str) and text.isidentifier()}
            self.reads |= names
            if not _WRITES_BY_NAME.isdisjoint(code.co_names):
                self.writes |= names
                self.changes = True
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                self.of_code(inner)

    def has_effects(self) -> bool:
        """Whether it changes something that outlives it."""
        return bool(self.writes) or (self.changes and bool(self.objects))


def _stored(instr: dis.Instruction) -> tuple[str, ...]:
    """The local variables that an instruction sets; CPython 3.13 has some that set two, or set one and load another."""
    if not instr.opname.startswith("STORE_FAST"):
        return ()
    names = (instr.argval,) if isinstance(instr.argval, str) else instr.argval
    return names[:1] if instr.opname == "STORE_FAST_LOAD_FAST" else names


def _is_in_place(instr: dis.Instruction) -> bool:
    return instr.opname == "BINARY_OP" and instr.argrepr.endswith("=")


def _with_operands(instructions: Iterable[dis.Instruction]) -> Iterator[tuple[dis.Instruction, list[str | None]]]:
    """Each instruction with the last that was pushed just before it: local variables by name, None for a constant. Only
    as far back as nothing else comes between, nor a jump to there."""
    pushed: list[str | None] = []
    for instr in instructions:
        if instr.is_jump_target:
            pushed = []
        yield instr, pushed
        if instr.opname in ("LOAD_CONST", "LOAD_SMALL_INT"):
            pushed = [*pushed[-1:], None]
        elif instr.opname.startswith("LOAD_FAST") and instr.opname != "LOAD_FAST_AND_CLEAR":
            pushed = [*pushed[-1:], *((instr.argval,) if isinstance(instr.argval, str) else instr.argval)]
        else:
            pushed = []


def _changes(instr: dis.Instruction, pushed: list[str | None], made: set[str | None]) -> bool:
    """Whether it may change an object that is not `made` here. `pushed`: see `_with_operands`."""
    if instr.opcode in dis.hasname and instr.argval in _CHANGING:
        return instr.argval in _ITERATING or made.isdisjoint(pushed[-1:])
    if _is_in_place(instr):
        return len(pushed) < 2 or not made.issuperset(pushed[-2:])
    if instr.opname in ("STORE_SUBSCR", "DELETE_SUBSCR"):
        return made.isdisjoint(pushed[-2:-1])
    return instr.opname == "STORE_SLICE"


#: what leaves a new container, or a constant, on the stack
_MAKING = frozenset(("BUILD_LIST", "BUILD_SET", "BUILD_MAP", "LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE"))
_MAKING |= frozenset(("LOAD_CONST", "LOAD_SMALL_INT"))


def _made_here(code: types.CodeType, instructions: list[dis.Instruction]) -> set[str | None]:
    """Local variables that only ever hold containers which this code makes, constants, and sums of these: no one else
    sees them change, but whoever it gives them to."""
    given = code.co_argcount + code.co_kwonlyargcount
    given += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    made: set[str | None] = {None, *code.co_varnames[given:]}
    before: set[str | None] = set()
    while made != before:
        before = set(made)
        fresh = False  # whether what the last instruction left on the stack is such a thing
        for instr, pushed in _with_operands(instructions):
            if instr.opname != "STORE_FAST" or instr.is_jump_target or not fresh:
                made.difference_update(_stored(instr))
            summed = _is_in_place(instr) and len(pushed) > 1 and made.issuperset(pushed[-2:])
            fresh = instr.opname in _MAKING or summed
    return made


def shared_state(functions: Iterable[Any]) -> SharedState:
    """What these functions read and write, and those that they call."""
    waiting = list(functions)
    state, seen, roots = SharedState(), set[int](), {id(function) for function in waiting}
    keep = []  # ids of objects made meanwhile would come again
    while waiting:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, _PLAIN):
            state.tensors |= isinstance(found, torch.Tensor)
            continue
        seen.add(id(found))
        keep.append(found)
        if len(seen) > _MAX_OBJECTS:
            state.known = False
            break
        if isinstance(found, _CONTAINERS) or (hasattr(type(found), "__next__") and not isinstance(found, type)):
            state.objects.add(id(found))
        before = len(state.reads)
        waiting += _parts(found, state, id(found) in roots)
        if len(state.reads) != before:  # names that lead on from objects which were looked at
            waiting += [held for held in keep if not isinstance(held, types.FunctionType)]
            seen = {id(held) for held in keep if isinstance(held, types.FunctionType)}
            keep = [held for held in keep if isinstance(held, types.FunctionType)]
    state.reached, state.found = seen, keep
    return state


def _parts(found: Any, state: SharedState, is_root: bool) -> Iterator[Any]:
    """What leads on from one object, by the names that are read. A root's arguments are the graph's."""
    if isinstance(found, types.FunctionType):
        yield from (cell.cell_contents for cell in found.__closure__ or () if cell != types.CellType())
        if is_of_library(found.__module__):
            return  # but for what it wraps
        code = found.__code__
        state.of_code(code, frozenset(code.co_varnames[: code.co_argcount]) if is_root else frozenset())
        yield from (found.__globals__[name] for name in names_of(code) if name in found.__globals__)
        yield from (*(found.__defaults__ or ()), *(found.__kwdefaults__ or {}).values())
    elif isinstance(found, (types.MethodType, staticmethod, classmethod)):
        yield from (found.__func__, getattr(found, "__self__", None))
    elif isinstance(found, functools.partial):
        yield from (found.func, *found.args, *found.keywords.values())
    elif isinstance(found, property):
        yield from (found.fget, found.fset)
    elif isinstance(found, (list, tuple, set, dict, collections.deque)):
        yield from found.values() if isinstance(found, dict) else found
    elif isinstance(found, contextvars.ContextVar):
        yield found.get(None)
    elif isinstance(found, types.ModuleType):
        yield from (vars(found)[name] for name in state.reads if name in vars(found))
    else:
        yield from _attributes(found, state.reads)


def _attributes(found: Any, names: Iterable[str]) -> Iterator[Any]:
    """An object's attributes of these names, and those methods that Python calls itself."""
    kind = found if isinstance(found, type) else type(found)
    if is_of_library(kind.__module__):
        own = getattr(found, "__dict__", {}) if not isinstance(found, type) else {}
        yield from (own[name] for name in names if name in own)
        return
    for each in kind.__mro__:
        if not is_of_library(each.__module__):
            yield from (value for name, value in vars(each).items() if name in names or _METHODS.fullmatch(name))
    if found is not kind:
        yield from (inspect.getattr_static(found, name, None) for name in names)


def names_of(code: types.CodeType) -> Iterator[str]:
    """The names that code loads and stores, and what is defined there; texts, too, where these may be names."""
    yield from code.co_names
    if not _BY_NAME.isdisjoint(code.co_names):
        yield from (text for text in code.co_consts if isinstance(text, str))
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from names_of(inner)
