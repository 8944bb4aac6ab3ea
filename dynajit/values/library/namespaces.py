"""Variables by their names: `locals`, `vars()`, `dir()`, and source text that `eval` and `exec` run.

Code made for what follows a break keeps other names, and only those still needed. So a frame that asks for its names is
compiled whole or not at all (`Code.refusal`). The code of source text runs in a frame of its own, whose instructions
read and write a `Namespace`.
"""

from __future__ import annotations
import __future__ as features

import builtins
import functools
import operator
from collections.abc import Iterator
from typing import Any

from dynajit.bytecode import decode, target
from dynajit.guards.source import ConstSource
from dynajit.report import breaks
from dynajit.torch_warnings import unwarned
from dynajit.values.containers.mapping import DictVal
from dynajit.values.core.registry import builtin
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.scalars.constant import ConstVal

_NESTED = 0x10  # CO_NESTED, which `__future__` gives for nested scopes
_FUTURES = functools.reduce(operator.or_, (getattr(features, n).compiler_flag for n in features.all_feature_names))
_BUILTINS = ConstVal("__builtins__")


class Namespace:
    """Where the names of source text are looked up: in the frame that runs it, or in dictionaries that were given."""

    def __init__(self, caller: Any, globals_: Value | None, locals_: Value | None) -> None:
        self.caller = caller
        self.globals = globals_
        self.locals = locals_ if locals_ is not None else globals_

    def load(self, tx: Tracer, name: str) -> Value:
        key = ConstVal(name)
        if self.locals is None:
            found = _local(tx, self.caller, name)
            if found is not None:
                return found
        for table in (self.locals, self.globals):
            if table is not None and table.contains(tx, key):
                return table.getitem(tx, key)
        if self.globals is None:
            found = tx.load_global(self.caller, name)
        else:
            table = self.globals.getitem(tx, _BUILTINS)
            found = table.getitem(tx, key) if table.contains(tx, key) else None
        if found is None:
            raise tx.raised(NameError, f"name '{name}' is not defined", name=key)
        return found

    def store(self, tx: Tracer, name: str, value: Value) -> None:
        self._written().setitem(tx, ConstVal(name), value)

    def delete(self, tx: Tracer, name: str) -> None:
        table, key = self._written(), ConstVal(name)
        if not table.contains(tx, key):
            raise tx.raised(NameError, f"name '{name}' is not defined", name=key)
        table.delitem(tx, key)

    def _written(self) -> Value:
        """What is set in a frame's names by source text is seen by `locals()` alone, in some releases."""
        if self.locals is None:
            raise GraphBreak(breaks.FRAME_INTROSPECTION, "source text that sets a variable of the function")
        return self.locals


def _caller(tx: Tracer, called: str) -> Any:
    """The frame whose names are asked for: one that says so, for a break in it would not keep them."""
    frame = tx.frames[-1]
    bound = (name for name in (*frame.locals, *frame.cells) if name not in frame.code_object.co_varnames)
    hidden = any(name not in (*frame.code_object.co_cellvars, *frame.code_object.co_freevars) for name in bound)
    if frame.code.names_locals is None or hidden:
        raise GraphBreak(breaks.FRAME_INTROSPECTION, called)
    return frame


def _local(tx: Tracer, frame: Any, name: str) -> Value | None:
    cell = frame.cells.get(name)
    found: Value | None = cell.get(tx) if cell is not None else frame.locals.get(name)
    return found


def _names(tx: Tracer, frame: Any) -> Iterator[tuple[str, Value]]:
    """The bound variables, in the order in which CPython keeps them."""
    code = frame.code_object
    for name in dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars)):
        value = _local(tx, frame, name)
        if value is not None:
            yield name, value


def _brought_up_to_date(tx: Tracer, frame: Any) -> Value | None:
    """The dictionary that the program has of the frame's names, where CPython keeps one for a frame."""
    given: Value | None = frame.gave_names
    if given is None or target().LOCALS_ARE_ANEW:
        return None
    bound = dict(_names(tx, frame))
    code = frame.code_object
    for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
        if name in bound:
            given.setitem(tx, ConstVal(name), bound[name])
        elif given.contains(tx, ConstVal(name)):
            given.delitem(tx, ConstVal(name))
    return given


@builtin(locals)
def locals_(tx: Tracer) -> Value:
    frame = _caller(tx, "locals() that is called in another way")
    made = _brought_up_to_date(tx, frame)
    if made is None:
        made = DictVal()
        for name, value in _names(tx, frame):
            made.setitem(tx, ConstVal(name), value)
        tx.journal.set_attr(frame, "gave_names", made)
    return made


@builtin(vars)
def vars_(tx: Tracer, obj: Value | None = None) -> Value:
    return locals_(tx) if obj is None else obj.getattr(tx, "__dict__")


@builtin(dir)
def dir_(tx: Tracer, *objects: Value) -> Value:
    if objects:
        raise GraphBreak(breaks.UNKNOWN_CALL, f"dir() of {objects[0].describe()}")
    frame = _caller(tx, "dir() that is called in another way")
    given = _brought_up_to_date(tx, frame)
    names = [name for name, _ in _names(tx, frame)] if given is None else [key.const() for key in tx.unpack(given)]
    if not all(type(name) is str for name in names):
        raise GraphBreak(breaks.FRAME_INTROSPECTION, "dir() of names that are no text")
    return tx.new_list([ConstVal(name) for name in sorted(names)])


@builtin(eval)
def eval_(tx: Tracer, source: Value, globals: Value | None = None, locals: Value | None = None) -> Value:
    return _run(tx, "eval", source, globals, locals)


@builtin(exec)
def exec_(tx: Tracer, source: Value, globals: Value | None = None, locals: Value | None = None) -> Value:
    return _run(tx, "exec", source, globals, locals)


def _run(tx: Tracer, mode: str, source: Value, globals_: Value | None, locals_: Value | None) -> Value:
    caller = _caller(tx, f"{mode}() that is called in another way")
    tables = [None if table is None or table.py_type() is type(None) else table for table in (globals_, locals_)]
    if not source.is_const() or source.py_type() is not str or any(type(t) is not DictVal for t in tables if t):
        raise GraphBreak(
            breaks.FRAME_INTROSPECTION, f"{mode}() of what is not plain text, or in other than dictionaries"
        )
    if tables == [None, None]:
        tables[1] = _brought_up_to_date(tx, caller)
    space = Namespace(caller, *tables)
    if space.globals is not None:
        _add_builtins(tx, mode, space.globals)
    code = _compiled(source.const(), mode, caller.code_object.co_flags & _FUTURES & ~_NESTED)
    if code is None or (space.globals is not None and any(i.op == "MAKE_FUNCTION" for i in decode(code).instrs)):
        raise GraphBreak(breaks.FRAME_INTROSPECTION, f"{mode}() of source text that is no plain code")
    return tx.run_source(code, space)


def _add_builtins(tx: Tracer, mode: str, globals_: Value) -> None:
    """Give the dictionary the name for builtins, as `eval` and `exec` do."""
    if not globals_.contains(tx, _BUILTINS):
        table = builtins.__dict__
        globals_.setitem(tx, _BUILTINS, tx.wrap(table, ConstSource(table, "builtins.__dict__")))
    elif globals_.getitem(tx, _BUILTINS).py_type() is not dict:
        raise GraphBreak(breaks.FRAME_INTROSPECTION, f"{mode}() with builtins of its own")


def _compiled(text: str, mode: str, flags: int) -> Any:
    """The text's code; None if compiling it fails or warns, which the program is to meet for real."""
    with unwarned() as warned:
        try:
            code = compile(text.lstrip(" \t") if mode == "eval" else text, "<string>", mode, flags, True)
        except (SyntaxError, ValueError):
            return None
    return None if warned.texts else code
