"""A function of the user's and its arguments as a program that runs by itself.

In:  a function found outside of any trace, and a call's arguments. Out: text that defines the function with all that it
     refers to (`definitions`), and text that makes the arguments (`argument`). What text can't make raises
     `CannotWrite`, which says what it is.
One more kind of value: in `argument`; one more kind of global: in `_Definitions._global`.
"""

from __future__ import annotations

import ast
import inspect
import math
import sys
import sysconfig
import textwrap
import types
from collections.abc import Iterator
from typing import Any

import torch

_PLAIN = (type(None), bool, int, str, bytes, complex, type(...), range, slice, torch.dtype)
_MAX_ELEMENTS = 12
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))


class CannotWrite(Exception):
    """No text makes this object; the message says which, as part of a sentence."""


def definitions(fn: types.FunctionType, part: ast.FunctionDef | None = None) -> tuple[str, ast.FunctionDef]:
    """What has to stand before the function, and the function itself without its decorators; or before a `part` of it,
    with statements left out."""
    found = _Definitions()
    tree = found.function(fn, part)
    found.parts.pop()
    return "\n\n\n".join(filter(None, ["\n".join(found.imports), "\n".join(found.values), *found.parts])), tree


def argument(value: Any) -> str:
    """An expression that makes the value; larger tensors get other numbers."""
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if type(value) is float:
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if type(value) in _PLAIN:
        return repr(value)
    if type(value) is torch.device:
        return f"torch.device({str(value)!r})"
    if type(value) in (list, tuple, set):
        items = ", ".join(map(argument, value))
        if type(value) is list:
            return f"[{items}]"
        return f"({items}{',' * (len(value) == 1)})" if type(value) is tuple else f"{{{items}}}" if value else "set()"
    if type(value) is dict:
        return "{" + ", ".join(f"{argument(key)}: {argument(item)}" for key, item in value.items()) + "}"
    raise CannotWrite(f"an instance of {type(value).__module__}.{type(value).__qualname__}")


def _tensor(value: torch.Tensor) -> str:
    if type(value) is not torch.Tensor or value.layout is not torch.strided or not value.is_leaf:
        raise CannotWrite(f"a {type(value).__name__} that is no plain leaf")
    dtype, grad = value.dtype, ".requires_grad_()" * value.requires_grad
    device = "" if value.device.type == "cpu" else f", device={str(value.device)!r}"
    if value.numel() <= _MAX_ELEMENTS and value.is_contiguous():
        numbers = value.detach().cpu()
        listed = (numbers.float() if dtype.is_floating_point else numbers).tolist()
        if "inf" not in repr(listed) and "nan" not in repr(listed):
            return f"torch.tensor({listed!r}, dtype={dtype}{device}){grad}"
    shape, stride = [*value.shape], [*value.stride()]
    kind = dtype.is_floating_point or dtype.is_complex
    numbers_ = f"torch.rand({shape})" if kind else f"torch.randint(0, 2, {tuple(shape)})"
    return f"torch.empty_strided({shape}, {stride}, dtype={dtype}{device}).copy_({numbers_}){grad}"


class _Definitions:
    """Collects what a function refers to, each name once."""

    def __init__(self) -> None:
        self.imports: list[str] = []
        self.values: list[str] = []
        self.parts: list[str] = []
        self._known: dict[str, object] = {}

    def function(self, fn: types.FunctionType, part: ast.FunctionDef | None = None) -> ast.FunctionDef:
        """Take the function, and what it needs before it."""
        tree = part or _parsed(fn)
        if not isinstance(tree, ast.FunctionDef):
            raise CannotWrite(f"{fn.__qualname__}, which no def statement makes")
        tree.decorator_list, tree.returns = [], None
        for given in ast.walk(tree.args):
            if isinstance(given, ast.arg):
                given.annotation = None
        cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
        around = {**fn.__globals__, **{name: cell.cell_contents for name, cell in cells if _is_filled(cell)}}
        self._known[fn.__name__] = fn
        self._needs(compile(ast.unparse(tree), fn.__code__.co_filename, "exec"), around, fn.__name__)
        for default in ast.walk(tree.args):
            if isinstance(default, ast.Name) and default.id in around:
                self._global(default.id, around[default.id])
        self.parts.append(ast.unparse(tree))
        return tree

    def _needs(self, code: types.CodeType, around: dict[str, Any], own: str) -> None:
        for name in _names(code):
            if name in around and name != own:
                self._global(name, around[name])

    def _global(self, name: str, value: Any) -> None:
        """Make a name mean this value."""
        if name in self._known:
            if self._known[name] is not value:
                raise CannotWrite(f"two different objects that are called {name}")
            return
        self._known[name] = value
        if isinstance(value, types.ModuleType):
            self.imports.append(f"import {value.__name__}" + (f" as {name}" if name != value.__name__ else ""))
        elif _is_of_a_library(value):
            where, last = value.__module__, value.__qualname__
            self.imports.append(f"from {where} import {last}" + (f" as {name}" if name != last else ""))
        elif isinstance(value, types.FunctionType):
            if value.__name__ != name:
                raise CannotWrite(f"{value.__qualname__} under another name")
            self.function(value)
        elif isinstance(value, type):
            self._class(name, value)
        else:
            self.values.append(f"{name} = {argument(value)}")

    def _class(self, name: str, cls: type) -> None:
        tree = _parsed(cls)
        if not isinstance(tree, ast.ClassDef) or cls.__name__ != name:
            raise CannotWrite(f"the class {cls.__qualname__}")
        for base in ast.walk(ast.Module([*map(ast.Expr, (*tree.bases, *tree.decorator_list))], [])):
            around = _namespace(cls)
            if isinstance(base, ast.Name) and base.id in around:
                self._global(base.id, around[base.id])
        for made in vars(cls).values():
            made = getattr(made, "__func__", getattr(made, "fget", made))
            if isinstance(made, types.FunctionType) and made.__code__.co_filename == inspect.getsourcefile(cls):
                self._needs(made.__code__, made.__globals__, name)
        self.parts.append(ast.unparse(tree))


def _parsed(made: Any) -> ast.stmt:
    """The statement that makes a function or class."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(made))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError) as error:
        raise CannotWrite(f"{made.__qualname__}, whose source is not at hand ({type(error).__name__})") from error


def _names(code: types.CodeType) -> Iterator[str]:
    """Global and free names that the code, or functions made in it, may read."""
    yield from (*code.co_names, *code.co_freevars)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _names(const)


def _namespace(cls: type) -> dict[str, Any]:
    functions = (item for item in vars(cls).values() if isinstance(item, types.FunctionType))
    return next((function.__globals__ for function in functions), {})


def _is_filled(cell: types.CellType) -> bool:
    return cell != types.CellType()


def _is_of_a_library(value: Any) -> bool:
    """Whether an import by name gives this very object, and it is none of the user's own."""
    where, last = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if not (isinstance(where, str) and isinstance(last, str) and last.isidentifier()):
        return False
    found = vars(_module(where)).get(last)
    file = getattr(_module(where), "__file__", None)
    ours = where.partition(".")[0] == "dynajit"
    return found is value and (file is None or file.startswith(_LIBRARIES) or ours) and where != "__main__"


def _module(name: str) -> types.ModuleType:
    return sys.modules.get(name) or types.ModuleType(name)
