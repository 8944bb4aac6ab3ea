"""Models of functions that can't be traced because they are written in C, or need not be because torch has them.

In: the real function. Out: `BUILTINS` (function → model) and `CONSTRUCTORS` (class → model of calling it). A model
takes the interpreter and the arguments as values, and returns a value. To add one: `@builtin(fn)` or
`@constructor(cls)` in the file for its module.
"""

from __future__ import annotations

# ruff: noqa: F401 - modules that are imported to register their models
from dynajit.values.core.registry import BUILTINS, CONSTRUCTORS, TAIL_CALLS, builtin, constructor, is_pure
from dynajit.values.effects import context_variables, loggers, random_numbers, replayed, warning_filters
from dynajit.values.library import (
    builtins,
    copying,
    dispatching,
    methods,
    namespaces,
    ordering,
    references,
    stdlib,
    text,
)
from dynajit.values.tensors import (
    autograd,
    checkpointing,
    coalescing,
    collectives,
    distributions,
    dtensors,
    first_calls,
    func_transforms,
    gradient_hooks,
    higher_order,
    list_collectives,
    meshes,
    numpy_random,
    numpy_scalars,
    optimizers,
    override_calls,
    packed_sequences,
    point_to_point,
    spectral,
    symbolic_calls,
    tensor_makers,
    torch_functions,
    torch_generators,
    torch_state,
)

__all__ = ["BUILTINS", "CONSTRUCTORS", "TAIL_CALLS", "builtin", "constructor", "is_pure"]
