"""Breaking a function by hand: what the front end does with a graph break, without any tracing."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any, Literal

from dynajit.bytecode import (
    Code,
    Emitter,
    Handler,
    Label,
    SlotKind,
    build_continuation,
    cells_live,
    decode,
    live_before,
    reachable_from,
    stack_shape,
    successors,
)
from dynajit.bytecode.canonical import JUMPS
from dynajit.bytecode.cfg import super_sites
from dynajit.bytecode.target import target

INTO_CONTAINER = ("LIST_APPEND", "SET_ADD", "MAP_ADD", "LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE")
#: what lies on the stack: besides what continuations take, where an exception was raised, for handlers with `lasti`
Slot = Literal["value", "null", "lasti"]
#: what a function that is to be called looks like on the stack
CALLABLE: list[SlotKind] = ["value", "null"] if target().NULL_AFTER_CALLABLE else ["null", "value"]


def layout(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[list[Any], list[types.CellType]]:
    """The frame's parameter slots for this call (fast-local order) and the closure's cells."""
    if inspect.ismethod(function):
        args = (function.__self__, *args)
        function = function.__func__
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    code = decode(function.__code__)
    return [bound.arguments[name] for name in code.params], list(function.__closure__ or ())


def plain(function: Callable[..., Any]) -> types.FunctionType:
    """The function under a method."""
    found = function.__func__ if inspect.ismethod(function) else function
    assert isinstance(found, types.FunctionType)
    return found


def rebuilt(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` through a continuation of its own entry with nothing on the stack."""
    inner = plain(function)
    code = decode(inner.__code__)
    own = [name for name in code.params if name in code.cellvars]
    by_value = [name for name in code.params if name not in code.cellvars]
    others = [name for name in code.cellvars if name not in code.params]
    built = build_continuation(code, code.entry, [], by_value, [*own, *others, *code.freevars])
    body = types.FunctionType(built, inner.__globals__)

    def call(*args: Any, **kwargs: Any) -> Any:
        values, closure = layout(function, *args, **kwargs)
        slots = dict(zip(code.params, values, strict=True))
        cells = [*(types.CellType(slots[name]) for name in own), *(types.CellType() for _ in others), *closure]
        return body(*(slots[name] for name in by_value), *cells)

    return call


def stack_kinds(code: Code) -> dict[int, tuple[Slot, ...]]:
    """What lies on the stack before each reachable instruction. LOAD_METHOD is taken to find a method (no NULL),
    except on what super() returned: true of the samples, not of programs."""
    kinds: dict[int, tuple[Slot, ...]] = {}
    pending: list[tuple[int, tuple[Slot, ...]]] = [(code.entry, ())]
    while pending:
        i, stack = pending.pop()
        if i in kinds:
            stack = tuple(_either(*pair) for pair in zip(kinds[i], stack, strict=True))
            if stack == kinds[i]:
                continue
        kinds[i] = stack
        instr = code.instrs[i]
        if instr.handler is not None:
            pushed = ("lasti", "value") if instr.handler_lasti else ("value",)
            pending.append((instr.handler, (*stack[: instr.handler_depth], *pushed)))
        for following in successors(instr):
            after = _after(instr.op, instr.arg, stack, following == instr.target)
            if (instr.op == "LOAD_METHOD" and _on_super(code, i)) or (instr.op == "LOAD_SUPER_ATTR" and instr.arg[1]):
                after = (*after[:-2], *CALLABLE)
            pending.append((following, after))
    return kinds


def _either(one: Slot, other: Slot) -> Slot:
    """A handler that several share finds a value here on one way, a lasti on another: nobody can use it."""
    assert one == other or "null" not in (one, other)
    return one if one == other else "lasti"


def storable(kinds: tuple[Slot, ...]) -> list[SlotKind]:
    """The kinds as a continuation takes them: instead of a lasti it gets some number."""
    return ["null" if kind == "null" else "value" for kind in kinds]


def _on_super(code: Code, index: int) -> bool:
    loads = [i for i in code.instrs[:index] if i.op in ("LOAD_GLOBAL", "LOAD_FAST")]
    called = [i for i in loads if i.op == "LOAD_GLOBAL" and i.arg[1]]
    if not called or called[-1].arg[0] != "super" or code.instrs[index - 1].op != "CALL":
        return False
    return loads[-1].lineno == called[-1].lineno


def _after(op: str, arg: Any, stack: tuple[Slot, ...], jump: bool) -> tuple[Slot, ...]:
    slots = list(stack)
    if op == "SWAP":
        slots[-1], slots[-arg] = slots[-arg], slots[-1]
    elif op == "COPY":
        slots.append(slots[-arg])
    elif op == "PUSH_NULL":
        slots.append("null")
    elif op == "WITH_EXCEPT_START":  # calls what lies deep down, and leaves it
        slots.append("value")
    elif op == "LOAD_GLOBAL" and arg[1]:
        slots += CALLABLE
    else:
        pops, pushes = stack_shape(op, arg, jump)
        kept = slots[: len(slots) - pops]
        if op in INTO_CONTAINER or op == "RERAISE":
            slots = slots[: len(kept) + pushes]  # what lies below the operand stays as it is
        else:
            slots = [*kept, *["value"] * pushes]
    return tuple(slots)


def definitely_bound(code: Code) -> dict[int, frozenset[str]]:
    """Locals bound on every path to each reachable instruction."""
    bound: dict[int, frozenset[str]] = {}
    pending = [(code.entry, frozenset(code.params))]
    while pending:
        i, names = pending.pop()
        merged = names & bound[i] if i in bound else names
        if bound.get(i) == merged:
            continue
        bound[i] = merged
        instr = code.instrs[i]
        if instr.handler is not None:
            pending.append((instr.handler, merged))
        if instr.op == "STORE_FAST":
            merged = merged | {instr.arg}
        elif instr.op in ("DELETE_FAST", "LOAD_FAST_AND_CLEAR"):
            merged = merged - {instr.arg}
        pending += [(following, merged) for following in successors(instr)]
    return bound


def may_be_unbound(code: Code, index: int) -> set[str]:
    """Locals that are read later and are bound on some of the ways to the instruction. `broken_at` does not pass them
    on: what breaks for real knows whether they are bound."""
    return set(live_before(code)[index] - frozenset(code.cellvars) - definitely_bound(code)[index])


def broken_at(function: Callable[..., Any], index: int, kinds: tuple[Slot, ...]) -> Callable[..., Any]:
    """`function` with a break before instruction `index`: the original up to there, then a call of the continuation
    whose result is returned."""
    inner = plain(function)
    code = decode(inner.__code__)
    cellvars = frozenset(code.cellvars)
    locals_ = sorted((live_before(code)[index] - cellvars) & definitely_bound(code)[index])
    cells = sorted(cells_live(code, index))
    rest = types.FunctionType(build_continuation(code, index, storable(kinds), locals_, cells), inner.__globals__)
    emitter = Emitter()
    _emit_prefix(emitter, code, index, lambda: _call_rest(emitter, rest, kinds, locals_, cells))
    built = emitter.assemble(code.name, [*code.params, *code.freevars], frozenset(code.freevars), inner.__code__)
    prefix = types.FunctionType(built, inner.__globals__)

    def call(*args: Any, **kwargs: Any) -> Any:
        values, closure = layout(function, *args, **kwargs)
        return prefix(*values, *closure)

    return call


def _call_rest(
    emitter: Emitter, rest: types.FunctionType, kinds: tuple[Slot, ...], locals_: list[str], cells: list[str]
) -> None:
    """Take the values off the stack (NULLs stay: nothing may pop them), call, return."""
    nulls, names = 0, []
    for kind in reversed(kinds):
        if kind == "null":
            nulls += 1
            continue
        if nulls:
            emitter.swap(nulls + 1)
        if kind == "lasti":  # no object since 3.14, and of no use in other code
            emitter.pop_top()
            emitter.load_const(0)
        names.append(f"_slot{len(names)}")
        emitter.store_fast(names[-1])
    emitter.begin_call(lambda: emitter.load_const(rest))
    for name in [*reversed(names), *locals_]:
        emitter.load_fast(name)
    for name in cells:
        emitter.load_closure(name)
    emitter.end_call(len(names) + len(locals_) + len(cells))
    emitter.return_value()


def _calls_super(code: Code, index: int) -> bool:
    loads = [i for i in code.instrs[:index] if i.op != "NOP"]
    return loads[-1].op == "LOAD_GLOBAL" and loads[-1].arg == ("super", True)


def _emit_prefix(emitter: Emitter, code: Code, index: int, emit_break: Callable[[], None]) -> None:
    labels: dict[int, Label] = {i: Label() for i in range(len(code))}
    handlers: dict[tuple[int, int, bool], Handler] = {}
    for i in reachable_from(code, code.entry):
        instr = code.instrs[i]
        emitter.mark(labels[i])
        if i == index:
            emitter.set_handler(None)
            emit_break()
        key = (instr.handler or 0, instr.handler_depth, instr.handler_lasti)
        if instr.handler is None:
            emitter.set_handler(None)
        else:
            emitter.set_handler(handlers.setdefault(key, Handler(labels[key[0]], key[1], key[2])))
        if i in super_sites(code) and instr.op == "CALL" and _calls_super(code, i):
            emitter.load_deref("__class__")
            emitter.op("LOAD_DEREF" if code.params[0] in code.cellvars else "LOAD_FAST", code.params[0])
            emitter.raw_call(2)
        elif instr.op == "LOAD_SUPER_ATTR":
            # the method form leaves method and self or NULL and bound method, as the interpreter has warmed up
            emitter.op("LOAD_SUPER_ATTR", (instr.arg[0], False, True))
            if instr.arg[1]:
                emitter.push_null()
            if instr.arg[1] and not target().NULL_AFTER_CALLABLE:
                emitter.swap(2)
        elif instr.op in JUMPS and instr.target is not None:
            emitter.raw(instr, labels[instr.target])
        elif instr.op != "NOP":
            emitter.raw(instr)
