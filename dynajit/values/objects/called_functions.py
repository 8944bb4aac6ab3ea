"""What is looked up inside of a library's function that a trace calls as it is, without stepping through it.

In: the function. Out: assumptions on the names that its code has, in its module, in modules that it names, and among
builtins, and on those of functions that it calls in turn, if they are torch's own for tensors. Whatever compiles a node
that calls the function has run it, and saw what was there then.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Iterator
from typing import Any

from dynajit.guards.assumed import ABSENT
from dynajit.values.core.value import Tracer
from dynajit.values.objects.lookup import is_trusted

# whose functions are gone into: they call each other, and the rest are leaves
_OF_TENSORS = ("torch.nn.functional", "torch.functional", "torch._jit_internal", "torch.linalg")
_KINDS = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)


def assume_inside(tx: Tracer, function: Any) -> None:
    """Note what the function, and those it calls, find under the names in their code."""
    todo, seen = [function], tx.assumed.looked_into
    while todo:
        found = todo.pop()
        if type(found) is not types.FunctionType or found in seen:
            continue
        seen.add(found)
        module = str(found.__globals__.get("__name__"))
        if not is_trusted(module):
            continue
        cells = (cell.cell_contents for cell in found.__closure__ or () if cell != types.CellType())
        todo.extend(inner for inner in cells if type(inner) is types.FunctionType)
        for namespace, owner, name, inner in _names_in(found.__code__, found.__globals__, module):
            tx.assumed.of_member(namespace, owner, name, inner)
            if str(getattr(inner, "__module__", None)) in _OF_TENSORS:
                todo.append(inner)


def _is_of(kinds: Any, found: Any) -> bool:
    return isinstance(found, kinds)


def _names_in(
    code: types.CodeType, globals_: dict[str, Any], module: str
) -> Iterator[tuple[dict[str, Any], str, str, Any]]:
    """(namespace, its module's name, name, what is there) of what the code names and finds."""
    names, modules = code.co_names, []
    for name in names:
        found = globals_.get(name, ABSENT)
        if _is_of(_KINDS, found) or (found is not ABSENT and module in _OF_TENSORS):
            yield globals_, module, name, found
        elif found is ABSENT and name in vars(builtins):
            yield globals_, module, name, ABSENT
            yield vars(builtins), "builtins", name, vars(builtins)[name]
        if _is_of(types.ModuleType, found):
            modules.append(found)
    for each in modules:  # grows
        label = str(vars(each).get("__name__"))
        for name in names if is_trusted(label) else ():
            found = vars(each).get(name, ABSENT)
            if _is_of(types.ModuleType, found) and found not in modules:
                modules.append(found)
            if _is_of(_KINDS, found) or (found is ABSENT and label == "torch._VF"):  # which finds them itself
                yield vars(each), label, name, found
