"""Which frames reached from eager code are captured.

In: a code object and its globals. Out: None, or why the frame runs eagerly for good. Functions that are never traced
when called from a traced frame are in `interp/policy.py`; frames of the same modules are not captured either.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import sys
import sysconfig
import traceback
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from dynajit.interp import policy
from dynajit.process_state import changed
from dynajit.values.tensors import tensor_class

# Parts of torch whose frames are captured when eager code calls them: they run the user's modules and updates.
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_LIBRARY_TESTS = os.path.join(_STDLIB, "test", "")  # programs as others are, though they lie there
_TORCH = os.path.dirname(torch.__file__) + os.sep
# modules, optimizers, and what lets a module's activations be computed again: the region that it runs is not captured
_TORCH_CAPTURED = tuple(
    _TORCH + os.path.join(*parts)
    for parts in (
        *(("nn", "modules"), ("optim",)),
        ("distributed", "algorithms", "_checkpoint", "checkpoint_wrapper.py"),
    )
)
_MODULE_FILE = _TORCH + os.path.join("nn", "modules", "module.py")
_RECURRENT_FILE = _TORCH + os.path.join("nn", "modules", "rnn.py")
# of torch's own modules: what lazy ones call at their first call, most of which no graph can do
_INITIALISERS = ("initialize_parameters", "reset_parameters", "reset_running_stats")
_INTERNAL_FILES = ("<frozen", "<string>", "<attrs generated", "<dynajit", "<eval_with_key>")

_BUILTINS_NOW = vars(builtins)
_BUILTINS = {
    name: _BUILTINS_NOW[name]
    for name in (
        *(
            "all",
            "any",
            "bool",
            "callable",
            "dict",
            "enumerate",
            "frozenset",
            "getattr",
            "hasattr",
            "hash",
            "id",
            "int",
        ),
        *("isinstance", "issubclass", "iter", "len", "list", "map", "max", "min", "next", "range", "repr", "reversed"),
        *("set", "setattr", "sorted", "str", "sum", "super", "tuple", "type", "vars", "zip"),
    )
}


def _is_torchs_own(code: types.CodeType) -> bool:
    filename = code.co_filename
    if filename == _MODULE_FILE:
        # one code for all modules: their forwards are captured, each under its own code
        return True
    return filename.startswith(_TORCH) and not filename.startswith(_TORCH_CAPTURED)


def _is_librarys(filename: str) -> bool:
    return filename.startswith(_STDLIB) and "site-packages" not in filename and not filename.startswith(_LIBRARY_TESTS)


def skip_frame(code: types.CodeType, globals_: dict[str, Any]) -> str | None:
    """Why frames of this code are not captured, or None."""
    name = globals_.get("__name__") or ""
    treatment, reason = policy.treatment_of(name)
    if treatment != "trace":
        return f"{name} is not traced ({reason})"
    if _is_librarys(code.co_filename):
        return "Python's own library"
    if _is_torchs_own(code):
        return f"{code.co_filename} is torch's own"
    if code.co_filename.startswith(_TORCH) and code.co_name in _INITIALISERS:
        return "it gives a module its first parameters"
    if code.co_filename == _RECURRENT_FILE and code.co_name != "forward":
        return "it checks what a recurrent network is given"
    if code.co_filename.startswith(_INTERNAL_FILES):
        return "code without a file"
    if code.co_name in ("<listcomp>", "<setcomp>", "<dictcomp>"):
        return "a comprehension, of which the iterator is already running"
    if code.co_name in ("__getattribute__", "__getattr__"):
        return "it finds an attribute"
    if code.co_name in ("<module>", "__del__"):
        return "module code and finalisers run eagerly"
    if code.co_name == "__torch_function__" and "super" in code.co_names:
        return "it hands a tensor subclass's operation on to torch, which is not traced"
    if not code.co_flags & 0x01:
        return "a class body"
    if policy.sets_trace_function(code):
        return "it sets a trace function"
    return None


def belongs_to_torch_compile(code: types.CodeType, globals_: dict[str, Any]) -> bool:
    """Whether the frame is the entry of a function that torch.compile made, so that all that it calls is torch's to
    compile, or that torch.compiler.disable made, so that it is nobody's."""
    if globals_.get("__name__") != "torch._dynamo.eval_frame":
        return False
    return code.co_name == "compile_wrapper" or code.co_qualname == "DisableContext.__call__.<locals>._fn"


def tensors_changed() -> bool:
    """Whether somebody gave tensors other operators or attributes than torch's, of which a trace knows nothing."""
    return tensor_class.is_changed()


def builtins_replaced() -> bool:
    """Whether somebody exchanged a builtin that the compiler itself is written with, so that it can't run."""
    for name, value in _BUILTINS.items():  # noqa: SIM110 - `any` may be one of them
        if _BUILTINS_NOW.get(name) is not value:
            return True
    return False


# Inside, the builtins that the compiler is written with are Python's.
own_builtins = changed(*((builtins, name, value) for name, value in _BUILTINS.items()))


def takes_packed_sequence(code: types.CodeType, values: tuple[Any, ...]) -> bool:
    """Whether this is the call of a recurrent network that ends a graph, in which there is nothing to compile."""
    return code.co_filename == _RECURRENT_FILE and any(type(value) is PackedSequence for value in values)


def is_deep() -> bool:
    """Whether calls take half of the room that this thread has for them: Python compiles no source at the end of it."""
    return sum(1 for _ in traceback.walk_stack(None)) > sys.getrecursionlimit() // 2


def saves_for_hooks() -> bool:
    """Whether hooks on saved tensors record what frames reached right now save, and may run them again: activation
    checkpointing runs a function a second time in backward, where nothing is captured, and compares what it saved."""
    return torch.is_grad_enabled() and torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


@contextlib.contextmanager
def no_saved_tensor_hooks() -> Iterator[None]:
    """The program's hooks on saved tensors don't see the operations that run while tracing."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        yield
        return
    try:
        torch._C._autograd._push_saved_tensors_default_hooks(_same, _same)
        yield
    finally:
        torch._C._autograd._pop_saved_tensors_default_hooks()


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
