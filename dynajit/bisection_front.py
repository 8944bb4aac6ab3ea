"""A script that shows what the front end gets wrong.

In:  a function with arguments for which the compiled call differs from eager, and the lines of the instruction at
     fault. Out: `write`: a program on disk that defines as little of it as still differs, makes the arguments and
     compares; or why no text can do that.
How: the functions that led to the instruction are tried alone, the innermost first, with the arguments of their first
call in eager; then statements are left out, as many as leave it wrong.
"""

from __future__ import annotations

import ast
import copy
import gc
import linecache
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dynajit.report.records import FrameLoc
from dynajit.report.standalone import CannotWrite, argument, definitions

Wrong = Callable[[Any, tuple[Any, ...], dict[str, Any]], bool]
#: seconds for leaving statements out
SHRINK_S = 20.0
_BODIES = ("body", "orelse", "finalbody", "handlers")
_LOOPS = (ast.For, ast.While, ast.AsyncFor)


class _Case(NamedTuple):
    """A function with arguments for which it is compiled wrong."""

    fn: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def write(
    fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], stack: Sequence[FrameLoc], wrong: Wrong, path: Path
) -> tuple[Path | None, str]:
    """The script, or None and why there is none. `stack`: the lines at fault, outermost first."""
    reason = ""
    for case in _cases(fn, args, kwargs, stack):
        if not wrong(*case):
            continue
        try:
            text = _script(case, wrong, path)
        except CannotWrite as error:
            reason = reason or f"it would need {error}"
            continue
        if text is not None:
            path.write_text(text, encoding="utf-8")
            return path, ""
        reason = reason or f"{case.fn.__qualname__} is right where it is defined anew, with arguments made anew"
    return None, reason or f"{getattr(fn, '__qualname__', type(fn).__qualname__)} is no function with source at hand"


def _cases(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], stack: Sequence[FrameLoc]) -> Iterator[_Case]:
    """The functions on the way to the instruction with the arguments of their first call, the innermost first."""
    wanted = {(place.filename, place.lineno) for place in stack}
    calls: dict[types.CodeType, _Case] = {}

    def note(frame: types.FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code in calls or not _holds(code, wanted):
            return
        found = next((f for f in gc.get_referrers(code) if type(f) is types.FunctionType and f.__code__ is code), None)
        if found is not None:
            given = _given(frame)
            if given is not None:
                calls[code] = _Case(found, *given)

    former = sys.getprofile()
    own_fn, own_args, own_kwargs = copy.deepcopy((fn, args, kwargs))
    torch.manual_seed(0)
    sys.setprofile(note)
    try:
        own_fn(*own_args, **own_kwargs)
    except Exception as error:
        del error  # what is compared later is how it ends
    finally:
        sys.setprofile(former)
    if type(fn) is types.FunctionType:
        calls.pop(fn.__code__, None)
        calls = {fn.__code__: _Case(fn, args, kwargs), **calls}
    yield from reversed(calls.values())


def _holds(code: types.CodeType, wanted: set[tuple[str, int | None]]) -> bool:
    return any((code.co_filename, line) in wanted for _, _, line in code.co_lines() if line is not None)


def _given(frame: types.FrameType) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Copies of the frame's arguments; None if something in them has no copy."""
    code, values = frame.f_code, frame.f_locals
    count, named = code.co_argcount, code.co_kwonlyargcount
    names = code.co_varnames
    args = [values[name] for name in names[:count]]
    kwargs = {name: values[name] for name in names[count : count + named]}
    rest = count + named
    if code.co_flags & 0x04:  # *args
        args += values[names[rest]]
        rest += 1
    if code.co_flags & 0x08:  # **kwargs
        kwargs |= values[names[rest]]
    try:
        return copy.deepcopy((tuple(args), kwargs))
    except Exception:
        return None  # said later: no script of this function


def _script(case: _Case, wrong: Wrong, path: Path) -> str | None:
    """The text, of as few statements as are still compiled wrong; None if it is right there."""
    before, tree = definitions(case.fn)
    made = [argument(value) for value in case.args]
    named = [f"{name!r}: {argument(value)}" for name, value in case.kwargs.items()]
    torch.manual_seed(0)
    scope = {"torch": torch}
    args = tuple(eval(text, scope) for text in made)
    kwargs = {name: eval(argument(value), scope) for name, value in case.kwargs.items()}

    def fails(function: ast.FunctionDef, given: tuple[Any, ...] = args) -> bool:
        return wrong(_defined(before, function), given, kwargs)

    saved = None
    if not fails(tree):
        if not fails(tree, case.args):
            return None
        saved = path.with_suffix(".pt")
        torch.save(list(case.args), saved)
    given = case.args if saved is not None else args
    tree = _smaller(tree, lambda function: fails(function, given))
    return _text(definitions(case.fn, tree)[0], tree, made, named, saved)


def _text(before: str, tree: ast.FunctionDef, made: list[str], named: list[str], saved: Path | None) -> str:
    head = ["from __future__ import annotations"]
    head += [line for line in ("from pathlib import Path" * (saved is not None), "import torch") if line]
    own = [line for line in before.splitlines() if line not in head]
    if saved is None:
        given = ["torch.manual_seed(0)", "given = [", *(f"    {text}," for text in made), "]"]
    else:
        given = [f"given = torch.load(Path(__file__).parent / {saved.name!r}, weights_only=True)"]
    kwargs = f", kwargs={{{', '.join(named)}}}" if named else ""
    lines = [*head, "from dynajit.testing import assert_same", *own, "", "", *ast.unparse(tree).splitlines(), "", ""]
    lines += [*given, f'assert_same({tree.name}, *given{kwargs}, repeat=1, backend="eager")', 'print("equal")']
    return "\n".join(lines) + "\n"


def _defined(before: str, tree: ast.FunctionDef) -> Any:
    """The function that the text defines."""
    text = f"{before}\n{ast.unparse(tree)}\n"
    name = f"<dynajit bisect {hash(text):x}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    namespace: dict[str, Any] = {"__name__": "dynajit_bisect", "torch": torch}
    exec(compile(text, name, "exec"), namespace)
    return namespace[tree.name]


# ------------------------------------------------------------------------------------------------ leaving out


def _smaller(tree: ast.FunctionDef, fails: Callable[[ast.FunctionDef], bool]) -> ast.FunctionDef:
    """The function with as many statements left out, the last first, as leave it wrong."""
    end = time.monotonic() + SHRINK_S
    number = len(_places(tree))
    while number and time.monotonic() < end:
        number -= 1
        attempt = copy.deepcopy(tree)
        places = _places(attempt)
        if number >= len(places):
            continue
        block, index = places[number]
        del block[index]
        if _compiles(attempt) and fails(attempt):
            tree = attempt
    return tree


def _places(tree: ast.FunctionDef) -> list[tuple[list[ast.stmt], int]]:
    """Where statements stand that can be left out without a loop going on for ever."""
    found: list[tuple[list[ast.stmt], int]] = []

    def walk(node: ast.AST, in_loop: bool) -> None:
        inside = in_loop or isinstance(node, _LOOPS)
        for field in _BODIES:
            block: list[ast.stmt] = getattr(node, field, None) or []
            for index, statement in enumerate(block):
                ends = any(isinstance(part, (ast.Break, ast.Return, ast.Raise)) for part in ast.walk(statement))
                if isinstance(statement, ast.stmt) and not isinstance(node, ast.While) and not (inside and ends):
                    found.append((block, index))
                if not isinstance(statement, ast.While):
                    walk(statement, inside)

    walk(tree, False)
    return found


def _compiles(tree: ast.FunctionDef) -> bool:
    try:
        compile(ast.unparse(tree), "<smaller>", "exec")
    except (SyntaxError, ValueError):
        return False
    return bool(tree.body)
