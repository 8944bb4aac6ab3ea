"""Makes a failing program small: statements deleted, blocks replaced by their bodies, calls left out."""

from __future__ import annotations

import ast
import copy
import time
from collections.abc import Callable, Iterator

from fuzz_world import Call

Fails = Callable[[str, list[Call]], bool]
BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


def shrink(source: str, calls: list[Call], fails: Fails, seconds: float = 60.0) -> tuple[str, list[Call]]:
    """The smallest program and calls found within `seconds` for which `fails` still holds."""
    end = time.monotonic() + seconds
    tree = ast.parse(source)
    changed = True
    while changed and time.monotonic() < end:
        changed = False
        for index in reversed(range(len(calls))):
            fewer = calls[:index] + calls[index + 1 :]
            if fewer and fails(ast.unparse(tree), fewer):
                calls, changed = fewer, True
        number = 0
        while time.monotonic() < end:
            smaller = _edited(tree, number)
            if smaller is None:
                break
            if _fails(smaller, calls, fails):
                tree, changed = smaller, True
            else:
                number += 1
    return ast.unparse(tree) + "\n", calls


def _fails(tree: ast.Module, calls: list[Call], fails: Fails) -> bool:
    try:
        text = ast.unparse(ast.fix_missing_locations(tree))
        compile(text, "<shrink>", "exec")
    except (SyntaxError, ValueError, AttributeError, IndexError):
        return False
    return fails(text, calls)


def _edited(tree: ast.Module, number: int) -> ast.Module | None:
    """A copy of the tree with the `number`-th possible edit made; None past the last."""
    edited = copy.deepcopy(tree)
    for index, edit in enumerate(_edits(edited)):
        if index == number:
            edit()
            return edited
    return None


def _edits(tree: ast.Module) -> Iterator[Callable[[], None]]:
    """Edits of a tree: larger statements first, then expressions' operands in place of the expressions."""
    nodes = [node for node in ast.walk(tree) if any(hasattr(node, name) for name in BODIES)]
    for node in nodes:
        for name in BODIES:
            block = getattr(node, name, None)
            if not isinstance(block, list):
                continue
            for index, statement in enumerate(block):
                if _counts(statement):
                    continue  # the loop around it would never end
                yield lambda block=block, index=index: block.__delitem__(index)
                inner = getattr(statement, "body", None)
                if isinstance(inner, list) and not isinstance(statement, ast.FunctionDef):
                    yield lambda block=block, index=index, inner=inner: block.__setitem__(
                        slice(index, index + 1), inner
                    )
    yield from _smaller_expressions(tree)


def _counts(statement: ast.AST) -> bool:
    return isinstance(statement, ast.AugAssign) and getattr(statement.target, "id", "").startswith("w")


def _smaller_expressions(tree: ast.Module) -> Iterator[Callable[[], None]]:
    for node in ast.walk(tree):
        for field, value in ast.iter_fields(node):
            if isinstance(value, (ast.BinOp, ast.Call, ast.IfExp, ast.Subscript, ast.BoolOp)):
                for child in ast.iter_child_nodes(value):
                    if isinstance(child, ast.expr) and not isinstance(child, ast.Constant):
                        yield lambda node=node, field=field, child=child: setattr(node, field, child)
            if isinstance(value, ast.Tuple) and isinstance(node, ast.Return):
                for index in range(len(value.elts)):
                    yield lambda value=value, index=index: value.elts.__delitem__(index)
