"""`torch.compile(backend="dynajit")`: Dynamo captures, dynajit's code generator compiles its graphs.

In:  a graph and example inputs as Dynamo gives them to backends. Out: a callable for the graph's inputs.
torch finds the function through the package's entry point in the group `torch_dynamo_backends`. torch gives a backend
graphs only, so the front is Dynamo's: its guards, its graph breaks, its recompiles. `dynajit.as_torch_compile()` is for
the whole of dynajit in the place of torch.compile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._guards import tracing

from dynajit.backends.codegen import MODES, codegen
from dynajit.exc import ConfigError
from dynajit.symbols import has_symbols


def dynajit(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Compile a graph of Dynamo's with the backend `codegen`; `mode` and `options` are those of `dynajit.compile`.

    Raises ConfigError for a mode or an option that is not known.
    """
    mode = options.get("mode")
    if mode is not None and mode not in MODES:
        raise ConfigError.unknown("mode", mode, MODES)
    fakes = [node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder")]
    # Dynamo's examples are real tensors, also where their sizes vary: its symbols are on the fake ones.
    symbolic = any(map(has_symbols, fakes))
    if symbolic and any(map(_changed_by_the_graph, fakes, example_inputs)):
        return gm.forward
    # The symbols bring their ShapeEnv, so what is decided by them is guarded by Dynamo; the rest of its tracing context
    # is for AOTAutograd as Dynamo calls it.
    with tracing(None):
        return codegen(gm, fakes if symbolic else example_inputs, **options)


def _changed_by_the_graph(fake: Any, example: Any) -> bool:
    """A fake tensor that was an input, and no longer says what is required of it: the graph writes results that need
    gradients into a tensor that doesn't."""
    return isinstance(example, torch.Tensor) and fake.requires_grad != example.requires_grad
