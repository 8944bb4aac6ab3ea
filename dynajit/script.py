"""Running a program with some of its names compiled, without editing it.

In:  a script, its arguments, and which of its top-level names to wrap with what. Out: the program's effects; it is
     `__main__`, and its lines are its own.
How: after each statement of the script's top level that binds a wanted name, one more statement wraps what it bound.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dynajit.exc import ConfigError

_WRAP = "__dynajit_wrap__"
_WRAP_MEMBER = "__dynajit_wrap_member__"


@dataclass(frozen=True)
class Wanted:
    """The names to wrap (`model`, `train_step`, `Net.forward`), and what wraps them."""

    names: Sequence[str]
    wrap: Callable[[Any], Any]


class Script(NamedTuple):
    """A script that can be run."""

    path: Path
    code: types.CodeType
    wrap: Callable[[Any], Any]


def prepare(path: Path, wanted: Wanted) -> Script:
    """Read the script. Raises ConfigError for a name that it never binds, SyntaxError for what is no Python."""
    tree = ast.parse(path.read_bytes(), str(path))
    bound = sorted(set(_names(tree.body)))
    rest = set(wanted.names)
    tree.body = list(_with_wrapping(tree.body, wanted.names, rest))
    if rest:
        found = f"; it binds {', '.join(bound)}" if bound else ""
        raise ConfigError(f"{path} binds no {', '.join(sorted(rest))} at its top level{found}")
    return Script(path, compile(tree, str(path), "exec", dont_inherit=True), wanted.wrap)


def run(program: Script, arguments: Sequence[str]) -> None:
    """Run the script as `python path arguments...` does."""
    path = program.path
    main = types.ModuleType("__main__")
    wrap_member = functools.partial(_wrap_member, program.wrap)
    main.__dict__.update(__file__=str(path), __builtins__=__builtins__)
    main.__dict__.update({_WRAP: program.wrap, _WRAP_MEMBER: wrap_member})
    former, sys.modules["__main__"] = sys.modules["__main__"], main
    sys.argv = [str(path), *arguments]
    sys.path[0] = str(path.resolve().parent)
    linecache.checkcache(str(path))
    try:
        exec(program.code, main.__dict__)
    finally:
        sys.modules["__main__"] = former


def _wrap_member(wrap: Callable[[Any], Any], owner: Any, name: str) -> None:
    """Wrap an attribute; of a class's static and class methods what they are made of."""
    made = inspect.getattr_static(owner, name, None)
    if isinstance(owner, type) and isinstance(made, (staticmethod, classmethod)):
        setattr(owner, name, type(made)(wrap(made.__func__)))
    else:
        setattr(owner, name, wrap(getattr(owner, name)))


def _names(body: list[ast.stmt]) -> Iterator[str]:
    """What can be named: functions, classes, variables at the top level, not what is imported."""
    for statement in body:
        if not isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield from _bound(statement)
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for part in ("body", "orelse", "finalbody"):
                yield from _names(getattr(statement, part, []))


def _with_wrapping(body: list[ast.stmt], names: Sequence[str], rest: set[str]) -> Iterator[ast.stmt]:
    for statement in body:
        for part in ("body", "orelse", "finalbody"):
            inner = getattr(statement, part, None)
            if inner and not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                setattr(statement, part, list(_with_wrapping(inner, names, rest)))
        yield statement
        bound = set(_bound(statement))
        for name in names:
            if name.split(".")[0] in bound:
                rest.discard(name)
                owner, _, member = name.rpartition(".")
                text = f"{_WRAP_MEMBER}({owner}, {member!r})" if owner else f"{name} = {_WRAP}({name})"
                wrapping = ast.parse(text).body[0]
                for node in ast.walk(wrapping):
                    ast.copy_location(node, statement)
                yield wrapping


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The names that the statement itself binds."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))
    elif isinstance(statement, (ast.Import, ast.ImportFrom)):
        yield from ((alias.asname or alias.name.split(".")[0]) for alias in statement.names)
