"""Programs for training: a call whose results have a history, and backward passes that run from a file.

In:  the callable that was compiled of a graph with gradients. Out: `to_data`, JSON with the plans of its forward and
     backward graphs; `from_data`, a `Training` that does the same. Both halves are written as variants are kept
     (`dynajit/backends/kept_plan.py`). What runs operator by operator, as gradients do that are differentiated again,
     calls functions of torch, of Python's library and of dynajit, by name.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from torch.fx.node import _get_qualified_name

from dynajit import _C
from dynajit.backends import kept_plan
from dynajit.codegen.plan import Plan
from dynajit.constants import NotData
from dynajit.exc import ArtifactError, ExportError
from dynajit.exported.kernels import Kernels
from dynajit.runtime import plan_data

# of the arguments of a `_C.TrainingCall`: how many tensors forward saves; a flag for each new value of an input and for
# each result; inputs that get gradients, get new values, and are copied
_SAVED, _DIFFERENTIABLE, _WANTED, _UPDATED, _COPIED = 2, 4, 5, 14, 18
_LIBRARIES = ("torch", "_operator", "operator", "math", "builtins")


class Training(NamedTuple):
    """The callable, the plan of its forward graph, and how many results it gives."""

    call: Callable[..., Any]
    forward: Plan
    results: int


def to_data(compiled: Callable[..., Any]) -> dict[str, Any]:
    """The callable as data, the text of its kernels left in each plan. Raises ExportError."""
    if isinstance(_without_runtime(compiled), _C.PlanExecutor):
        raise ExportError("no result needs a gradient: export it without gradients=True")
    try:
        return kept_plan.to_data(compiled, _named)
    except NotData as error:
        raise ExportError(f"it can't be written down with its gradients: {error}") from error


def from_data(data: dict[str, Any], kernels: Kernels) -> Training:
    """What was written, with these kernels. Raises NotData, ArtifactError, and what wrong data lead to."""
    call = kept_plan.from_data(data, _overlapping, _found, kernels.build)
    inner = _without_runtime(call)
    if not isinstance(inner, _C.TrainingCall):
        raise NotData("it is no plan of a program with gradients")
    forward: Any = _without_runtime(inner.forward)
    made = inner.made_of
    differentiable, updated = made[_DIFFERENTIABLE], made[_UPDATED]
    places = {*made[_WANTED], *updated, *made[_COPIED]}
    if len(forward.plan.outputs) < len(differentiable) + made[_SAVED] or not places <= {
        *range(len(forward.plan.inputs))
    }:
        raise NotData("its forward graph takes or gives less than its backward graph needs")
    return Training(call, forward.plan, len(differentiable) - len(updated))


def _without_runtime(call: Any) -> Any:
    while isinstance(call, _C.RuntimeCall):
        call = call.compiled
    return call


def _overlapping(*inputs: Any) -> NoReturn:
    raise ArtifactError("a tensor that the program writes shares memory with another one")


def _named(function: Any) -> str:
    """How another process finds the function. Raises NotData."""
    if str(getattr(function, "__module__", "")).startswith("dynajit."):
        return plan_data.target_name(function)
    name = str(_get_qualified_name(function))
    if _found(name) is not function:
        raise NotData(f"{name} is called, which is no function of torch's")
    return name


def _found(name: Any) -> Any:
    """The function of that name. Raises NotData."""
    if ":" in str(name):
        return plan_data.target_named(name)
    library, *parts = str(name).split(".")
    try:
        found = functools.reduce(getattr, parts, importlib.import_module(library)) if library in _LIBRARIES else None
    except AttributeError:
        found = None
    if found is None or not callable(found) or _get_qualified_name(found) != name:  # torch.os is another library
        raise NotData(f"there is no function {name} of torch's")
    return found
