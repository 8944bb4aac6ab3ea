"""Models of functions that can't be traced because they are written in C, or need not be because torch has them.

In: the real function. Out: `BUILTINS` (function → model) and `CONSTRUCTORS` (class → model of calling it). A model
takes the interpreter and the arguments as values, and returns a value. To add one: `@builtin(fn)` or
`@constructor(cls)` in the file for its module.
"""

from __future__ import annotations

from dynajit.values.builtins import (
    autograd,
    checkpointing,
    copying,
    dispatching,
    distributions,
    func_transforms,
    gradient_hooks,
    higher_order,
    library,
    methods,
    numpy_scalars,
    optimizers,
    ordering,
    overrides,
    packed_sequences,
    python,
    references,
    symbolic,
    tensor_makers,
    text,
    torch_functions,
    torch_state,
)
from dynajit.values.builtins.registry import BUILTINS, CONSTRUCTORS, TAIL_CALLS, builtin, constructor, is_pure
from dynajit.values.effects import (
    context_variables,
    loggers,
    random_numbers,
    replayed,
    torch_generators,
    warning_filters,
)

__all__ = [
    "BUILTINS",
    "CONSTRUCTORS",
    "TAIL_CALLS",
    "autograd",
    "builtin",
    "checkpointing",
    "constructor",
    "context_variables",
    "copying",
    "dispatching",
    "distributions",
    "func_transforms",
    "gradient_hooks",
    "higher_order",
    "is_pure",
    "library",
    "loggers",
    "methods",
    "numpy_scalars",
    "optimizers",
    "ordering",
    "overrides",
    "packed_sequences",
    "python",
    "random_numbers",
    "references",
    "replayed",
    "symbolic",
    "tensor_makers",
    "text",
    "torch_functions",
    "torch_generators",
    "torch_state",
    "warning_filters",
]
