"""Variants of code objects, and what they keep for reports and for the next ones.

In: a code object, guards. Out: `VariantData`; variants that run the code as it is, or leave it to torch.compile.
What tells them that a call missed: `misses.py`.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Mapping, Sequence
from typing import Any

from dynajit import _C
from dynajit.bytecode import Emitter, build_copy, decode
from dynajit.bytecode.decode import name_of_keywords
from dynajit.bytecode.part import Part, copy_of
from dynajit.capture.session import Session
from dynajit.guards.guard import Guard
from dynajit.guards.program import GuardSet
from dynajit.guards.source import LocalSource, Source
from dynajit.interp.decisions import Place
from dynajit.resume.emit import Entered

# what tells sets of keyword arguments apart
ROLE_GUARDS = frozenset({"DICT_KEYS", "DICT_CONTAINS", "DICT_MISSING", "LEN"})


#: The turn of what takes all that no other variant fits.
AFTER_ALL = 2


@dataclasses.dataclass
class VariantData:
    """What a variant keeps for reports."""

    guards: GuardSet
    compile_id: str
    eager: bool = False
    # where objects were told by their contents
    made_anew: frozenset[Source] = frozenset()
    # which keyword arguments it is for
    role: Sequence[tuple[int, Guard]] = ()
    # what it leaves changed for the next call
    changes: frozenset[Source] = frozenset()
    # which way it goes where values that vary decide it
    ways: Mapping[Place, tuple[bool, ...]] = dataclasses.field(default_factory=dict)
    # if it calls no graph, the parts that it leads to
    parts: Sequence[Entered] | None = None


def eager_variant(
    session: Session,
    code: types.CodeType,
    part: Part | None,
    guards: GuardSet,
    globals_: dict[str, Any],
    compile_id: str,
    turn: int = 0,
) -> _C.Variant:
    """Runs the code, or what it stands for, as it is; what it calls is still captured."""
    copy = copy_of(code, part)
    _C.mark_ours(copy)
    function = types.FunctionType(copy, globals_, code.co_name)
    data = VariantData(guards, compile_id, True)
    return _C.Variant(guards.build(n_given(code), globals_), function, True, globals_, data, session, turn)


def turn_of(breaks: bool) -> int:
    """When a variant is asked. One that breaks comes after those with a whole graph: it does not look at why, nor at
    what is used behind the break alone, so it fits states that they are for."""
    return int(breaks)


def detached_variant(session: Session, code: types.CodeType, function: types.FunctionType) -> _C.Variant:
    """The frame is torch.compile's: run it with capture off, though not hidden from torch's own frame hook."""
    decoded = decode(code)
    copy = types.FunctionType(build_copy(decoded), function.__globals__, code.co_name)
    _C.mark_ours(copy.__code__)
    names = [*decoded.params, *decoded.freevars]
    emit = Emitter()
    emit.begin_call(lambda: emit.load_const(_C.call_eager))
    emit.load_const(copy)
    for name in names:
        emit.load_fast(name)
    emit.build_tuple(len(names))
    emit.end_call(2)
    emit.return_value()
    made = types.FunctionType(emit.assemble(code.co_name, names, (), code), function.__globals__, code.co_name)
    _C.mark_ours(made.__code__)
    guards = GuardSet()
    data = VariantData(guards, "", True)
    program = guards.build(len(names), function.__globals__)
    variant = _C.Variant(program, made, True, function.__globals__, data, session)
    _C.add_variant(code, variant)
    session.touch(code)
    return variant


def n_given(code: types.CodeType) -> int:
    """How many values guards of the code are asked about: its parameters, then its free variables."""
    return n_parameters(code) + len(code.co_freevars)


def n_parameters(code: types.CodeType) -> int:
    """With `*args` and `**kwargs`."""
    flags = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_argcount + code.co_kwonlyargcount + flags


def made_for(session: Session, code: types.CodeType) -> list[_C.Variant]:
    """The session's variants of the code; of those that run the same function under other guards, one."""
    return [*{id(variant.function): variant for variant in _C.variants(code) if variant.key is session}.values()]


def role_of(code: types.CodeType, guards: GuardSet) -> list[tuple[int, Guard]]:
    """The guards on which keyword arguments there are, each with the place of `**kwargs` among the parameters."""
    named = name_of_keywords(code)
    if named is None:
        return []
    return [
        (guard.source.index, guard)
        for guard in guards
        if guard.kind in ROLE_GUARDS and isinstance(guard.source, LocalSource) and guard.source.local_name == named
    ]


def is_eager(variant: _C.Variant) -> bool:
    return isinstance(variant.data, VariantData) and variant.data.eager
