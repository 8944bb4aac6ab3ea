"""Numbers that a graph stacks only to take them apart again, as optimizers do with the factors of their parameters.

In:  a functional graph with `unbind(stack([a, b]))` of tensors without dimensions. Out: `unstack_scalars(gm)`: the same
module, where what reads an item reads a or b; a stack that nothing else reads is gone. Items that the graph returns
stay: they are views.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from dynajit.aot.trace import eliminate_dead_code

aten = torch.ops.aten


def unstack_scalars(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """`gm`, changed in place."""
    graph, changed = gm.graph, False
    results = graph.output_node().all_input_nodes
    for parts in graph.find_nodes(op="call_function", target=aten.unbind.int):
        stack: Any = parts.args[0]
        if stack.target is not aten.stack.default or stack.meta["val"].dim() != 1:
            continue
        for item in list(parts.users):
            if item.target is operator.getitem and item not in results:
                item.replace_all_uses_with(stack.args[0][item.args[1]])
                changed = True
    if changed:
        eliminate_dead_code(graph)
        gm.recompile()
    return gm
