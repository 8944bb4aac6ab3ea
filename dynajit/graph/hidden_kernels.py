"""The Python functions that are an operator's kernels and that torch keeps in C++, as `Library.impl` registers them.

In: an operator's overload. Out: the functions. Torch tells for which dispatch keys such kernels are there, but not what
they are. So each is called, with arguments that fit the operator's schema, under a profiler that raises as the kernel's
frame is entered: none of its code runs, and the frame tells the function.
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dynajit.graph.shared_state import is_of_library

# A kernel under one of these keys is that of the other one, as far as that has none of its own.
_STANDS_FOR = {
    "CompositeExplicitAutograd": "CPU",
    "CompositeExplicitAutogradNonFunctional": "CPU",
    "CompositeImplicitAutograd": "CPU",
    "CompositeImplicitAutogradNestedTensor": "NestedTensorCPU",
    "FuncTorchBatchedDecomposition": "FuncTorchBatched",
    "Autograd": "AutogradCPU",
}
_OF_SCHEMA: dict[str, Any] = {
    "OptionalType": None,
    "StringType": "",
    "BoolType": False,
    "FloatType": 0.0,
    "DeviceObjType": torch.device("cpu"),
}


class _Entered(BaseException):
    """A kernel's frame was entered."""


def keys_of_python_kernels(overload: torch._ops.OpOverload) -> Iterator[str]:
    """The dispatch keys of an operator's kernels in Python that run on tensors with data."""
    full = overload._schema.name
    if overload._overloadname != "default":
        full = f"{full}.{overload._overloadname}"
    name = full.replace("::", "/")
    registered = torch.library._impls
    if f"{name}/" in registered:  # under no key
        yield "CompositeImplicitAutograd"
    for key in (*torch._C.DispatchKey.__members__, *_STANDS_FOR):
        if key == "Meta" or f"{name}/{key}" not in registered:
            continue
        if key in _STANDS_FOR or not torch._C._dispatch_kernel_for_dispatch_key_is_fallthrough(full, key):
            yield key


def python_kernels(overload: torch._ops.OpOverload) -> dict[str, types.FunctionType | None]:
    """The functions that run first where these kernels run, by their dispatch keys.

    Returns:
        For each key the function, None where it could not be found. Kernels that are no Python code, such as functions
        of torch's own, have no entry.
    """
    keys = {*keys_of_python_kernels(overload)}
    found: dict[str, types.FunctionType | None] = {}
    for key in sorted(keys):
        at = _STANDS_FOR.get(key, key)
        if at in keys and at != key:
            at = at.replace("CPU", "CUDA")  # where this kernel is not hidden by the other
        ran, function = _enter(overload, at)
        if not ran:
            found[key] = function
    return found


def _enter(overload: torch._ops.OpOverload, key: str) -> tuple[bool, types.FunctionType | None]:
    """Call the kernel under a key: whether it ran to its end, which no Python code does here; and its function."""
    entered: list[types.FrameType] = []

    def enter(frame: types.FrameType, event: str, arg: Any) -> None:
        if event == "call":
            entered.append(frame)
            raise _Entered

    arguments = overload._schema.arguments
    args = [_fitting(each) for each in arguments if not each.kwarg_only]
    kwargs = {each.name: _fitting(each) for each in arguments if each.kwarg_only}
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    call = overload._handle.redispatch_boxed
    profiling = sys.getprofile()
    with _disable_current_modes():
        try:
            sys.setprofile(enter)
            call(keys, *args, **kwargs)
        except _Entered:
            pass
        except (RuntimeError, TypeError):  # the arguments don't fit
            return False, None
        finally:
            sys.setprofile(profiling)
    if not entered:
        return True, None
    code = entered[0].f_code
    # the frame, which has ended, holds its function
    owners = [each for each in gc.get_referents(entered[0]) if isinstance(each, types.FunctionType)]
    function = next((each for each in owners if each.__code__ is code), None)
    if function is not None and is_of_library(function.__module__) and not function.__closure__:
        function = None  # what a kernel calls that is no function itself
    return False, function


def _fitting(argument: Any) -> Any:
    """A value that an argument of a schema may have."""
    if argument.has_default_value():
        return argument.default_value
    kind = argument.type.kind()
    if kind == "TensorType":
        return torch.empty(0)
    return [] if kind == "ListType" else _OF_SCHEMA.get(kind, 0)
