"""The entry of the aot layer: chooses the road for a graph and joins what the backend compiled.

In:  a torch-level GraphModule (parameters are placeholders) and an example of each input.
Out: a callable taking the graph's inputs and returning its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

# (ATen graph, its fake inputs, "inference" | "forward" | "backward") -> callable(*inputs) -> tuple | list
CompileFn = Callable[[torch.fx.GraphModule, list[Any], str], Callable[..., Any]]
Decompositions = dict[Any, Callable[..., Any]]


def compile_joint(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    compile_fn: CompileFn,
    decompositions: Decompositions | None = None,
) -> Callable[..., Any]:
    """Functionalise and decompose `gm`, differentiate it where autograd will ask, compile the parts with `compile_fn`.

    The result is a callable with the graph's inputs and outputs.
    """
    from dynajit.aot.autograd import compile_with_autograd

    return compile_with_autograd(gm, example_inputs, compile_fn, decompositions)
