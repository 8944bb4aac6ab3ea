"""Which ATen operators are rewritten in terms of simpler ones, with torch's own rules.

In:  nothing. Out: `for_codegen()`, a table operator -> decomposition, for `compile_joint`.
To have one more decomposed: its name in `_NAMES`. Never an operator that draws random numbers: the stream would
no longer be eager's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

Decompositions = dict[Any, Callable[..., Any]]


@functools.cache
def for_codegen() -> Decompositions:
    """The table for generated kernels."""
    from torch._decomp import get_decompositions

    operators = [getattr(torch.ops.aten, name) for name in _NAMES]
    return dict(get_decompositions(operators))


_NAMES: tuple[str, ...] = (
    "_softmax",
    "_log_softmax",
    "_softmax_backward_data",
    "_log_softmax_backward_data",
    "native_layer_norm",
    "native_layer_norm_backward",
)
