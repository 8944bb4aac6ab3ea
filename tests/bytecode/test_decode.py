"""Decoding: any code object, jump targets, handlers, positions, parameters, the cache."""

from __future__ import annotations

import dis
import gc
import itertools
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bytecode_harness import plain
from bytecode_samples import SAMPLES, Derived, make_adder

from dynajit.bytecode import Instr, canonical, decode, stack_effect, target
from dynajit.bytecode.decode import parse_exception_table
from dynajit.bytecode.target import without_argument

STDLIB = Path(sysconfig.get_path("stdlib"))
#: the top level and a few folders: every opcode that the compiler emits occurs
FOLDERS = [".", "asyncio", "email", "importlib", "json", "unittest"]


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and those among its constants."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested(constant)


def stdlib_codes(folder: str) -> list[types.CodeType]:
    """All code objects of a folder of the standard library."""
    files = sorted((STDLIB / folder).glob("*.py"))
    assert files
    return [c for file in files for c in nested(compile(file.read_text("utf-8"), str(file), "exec"))]


NEWER_SYNTAX = """
async def a(xs):
    async with xs as y, z:
        return [i async for i in y if await i]
    try:
        pass
    except* ValueError as g:
        print(g)
def g():
    x = yield 1
    return (yield from x)
async def ag():
    yield await x
def m(v):
    match v:
        case {"a": 1, **rest} | [rest, *_] | C(rest, k=3): return rest
from os import *
x: int = 3
class K(B, metaclass=M):
    y: str
    def f(self): return super().f(), super().g, __class__
def d(a, /, b, *c, d=1, **e):
    del a, b[0], c.x
    global q; del q
    b[1:2] = c[::2]; b @= c; b[1:2] += c
    return f"{a!r:>{b}}", lambda: c, not a
"""


@pytest.mark.parametrize("folder", FOLDERS)
def test_stdlib_decodes_with_the_stack_effects_of_dis(folder: str) -> None:
    for code in stdlib_codes(folder):
        check(code)


def test_all_syntax_decodes() -> None:
    for code in nested(compile(NEWER_SYNTAX, "syntax", "exec")):
        check(code)


def check(code: types.CodeType) -> None:
    """No unknown opcode, indices in range, each stack effect what `dis` says."""
    decoded = decode(code)
    count = len(decoded)
    for i, instr in enumerate(decoded.instrs):
        assert instr.index == i
        assert instr.op in canonical.EFFECTS and instr.op != "UNKNOWN", instr
        assert (instr.target is not None) == (instr.op in canonical.JUMPS)
        for goal in (instr.target, instr.handler):
            assert goal is None or 0 <= goal < count
    precall = 0
    for _, group in itertools.groupby(decoded.instrs, lambda instr: instr.raw.offset):
        precall = check_effect(list(group), precall)


def check_effect(instrs: list[Instr], precall: int) -> int:
    """Compare the effect of one raw instruction, which may be several canonical ones. Returns the effect of a
    PRECALL, which belongs to the CALL that follows.
    """
    raw, last = instrs[0].raw, instrs[-1]
    number = dis.opmap[raw.opname]
    argument = raw.arg if number not in without_argument() else None
    if raw.opname == "PRECALL":
        return dis.stack_effect(number, argument)
    for jump in (False, True) if last.target is not None else (False,):
        effect = dis.stack_effect(number, argument, jump=jump) + precall
        if jump and last.op in target().LANDINGS:
            effect += sum(dis.stack_effect(dis.opmap[landing.opname], None) for landing in target().LANDINGS[last.op])
        if last.op == "RETURN_GENERATOR":
            effect = 1  # before 3.13 dis did not count the value sent in, which a POP_TOP takes off again
        if last.op == "RETURN_VALUE":
            effect = -1  # since 3.14 dis counts what the caller gets
        assert sum(stack_effect(instr.op, instr.arg, jump) for instr in instrs) == effect, instrs
    return 0


def test_jump_targets_and_arguments_agree_with_dis() -> None:
    for function, _ in SAMPLES:
        code = plain(function).__code__
        by_offset = {i.raw.offset: i for i in reversed(decode(code).instrs)}
        for raw in dis.get_instructions(code):
            if raw.opname == "EXTENDED_ARG":
                continue
            instr = by_offset[raw.offset]
            if instr.target is not None:
                goal = decode(code).instrs[instr.target].raw.offset
                landing = target().LANDINGS.get(instr.op, ())
                assert goal == raw.argval + 2 * len(landing)
            elif instr.op in ("LOAD_CONST", "LOAD_FAST", "STORE_FAST", "LOAD_DEREF", "LOAD_ATTR", "COMPARE_OP"):
                assert instr.arg == (
                    raw.argval[0] if isinstance(raw.argval, tuple) and "_FAST_" in raw.opname else raw.argval
                )
            assert instr.positions == tuple(raw.positions)  # type: ignore[arg-type]


def test_handlers_are_the_exception_table() -> None:
    def user(a: Any) -> Any:
        try:
            with a as b:
                return b()
        except ValueError:
            return 1

    decoded = decode(user.__code__)
    table = parse_exception_table(user.__code__.co_exceptiontable)
    assert len(table) >= 4
    for instr in decoded.instrs:
        found = [
            (depth, lasti, handler) for start, end, handler, depth, lasti in table if start <= instr.raw.offset < end
        ]
        if not found:
            assert instr.handler is None
        else:
            assert instr.handler is not None
            here = (instr.handler_depth, instr.handler_lasti, decoded.instrs[instr.handler].raw.offset)
            assert [here] == found


def test_long_arguments_and_jumps() -> None:
    source = (
        "def f(a):\n while a:\n"
        + "".join(f"  x{i} = a + {i}.5\n" for i in range(400))
        + "  if x3: break\n  a -= 1\n return x399\n"
    )
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    decoded = decode(namespace["f"].__code__)
    check(namespace["f"].__code__)
    assert [i.arg for i in decoded.instrs if i.op == "STORE_FAST"][-2:] == ["x399", "a"]
    assert 399.5 in [i.arg for i in decoded.instrs if i.op == "LOAD_CONST"]
    backward = [i for i in decoded.instrs if i.target is not None and i.target < i.index]
    assert backward and all(
        decoded.instrs[i.target].op in ("LOAD_FAST", "NOP") for i in backward if i.target is not None
    )


def test_parameters() -> None:
    def user(a: int, /, b: int, *c: int, d: int, e: int = 1, **f: int) -> Any:
        return lambda: (a, f)

    decoded = decode(user.__code__)
    assert decoded.params == ("a", "b", "d", "e", "c", "f")
    assert decoded.has_varargs and decoded.has_varkw and not decoded.is_generator
    assert decoded.cellvars == ("a", "f") and decoded.freevars == ()
    assert decoded.instrs[decoded.entry - 1].op == "RESUME"
    assert {i.op for i in decoded.instrs[: decoded.entry]} == {"MAKE_CELL", "RESUME"}
    assert decode(make_adder(1).__code__).freevars == ("last", "n")


def test_calls_carry_their_keywords() -> None:
    def user(f: Any) -> Any:
        return f(1, f(2, b=3), a=4, c=f())

    calls = [i for i in decode(user.__code__).instrs if i.op in ("CALL", "CALL_KW")]
    if any(i.op == "CALL_KW" for i in calls):  # 3.13+: the names are on the stack
        assert [i.arg for i in calls] == [2, (0, ()), 4]
    else:
        assert [i.arg for i in calls] == [(2, ("b",)), (0, ()), (4, ("a", "c"))]


def test_refusals() -> None:
    async def coroutine() -> None: ...

    assert "coroutine" in (decode(coroutine.__code__).refusal or "")
    assert "module body" in (decode(compile("x = 1", "f", "exec")).refusal or "")
    assert decode(Derived.value.__code__).refusal is None


def test_a_name_with_two_slots_is_refused() -> None:
    """3.12's inlined comprehension makes q a cell beside the free variable q; older compilers have no such code."""
    source = "def outer(q):\n def inner(xs):\n  return [lambda: q for q in xs], q\n return inner"
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    code = namespace["outer"](1).__code__
    both = set(code.co_cellvars) & set(code.co_freevars)
    assert ("both a cell and a free variable" in (decode(code).refusal or "")) == bool(both)


def test_unknown_opcodes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    table = dict(target().TABLE)
    del table["IS_OP"]
    import sys

    from dynajit.bytecode import decode as function

    module = sys.modules[function.__module__]
    monkeypatch.setattr(target(), "TABLE", table)
    monkeypatch.setattr(module, "_by_opcode", None)
    code = compile("def f(a): return a is not None and a is a", "f", "exec").co_consts[0]
    decoded = decode(code)
    monkeypatch.setattr(module, "_by_opcode", None)
    unknown = [i for i in decoded.instrs if i.op == "UNKNOWN"]
    assert [i.arg for i in unknown] == [("IS_OP", 1), ("IS_OP", 0)]
    assert "IS_OP" in (decoded.refusal or "")


def test_cache_lives_as_long_as_the_code() -> None:
    import sys

    module = sys.modules[decode.__module__]
    code = compile("def f(): return 1", "f", "exec").co_consts[0]
    assert decode(code).instrs is decode(code).instrs
    assert decode(code) == decode(code) and hash(decode(code)) == hash(decode(code))
    again = code.replace()
    assert again == code and decode(again) != decode(code)
    key = id(code)
    assert key in module._cache
    del code
    gc.collect()
    assert key not in module._cache
