"""State of Python's that the backward of the user's Functions reads, and operators' that `register_autograd` gave one.

In: a captured graph, whose nodes hold fake tensors with a history. Out: a `BackwardState`, where there is such state.
In eager mode backward reads it when it runs; a compiled backward was traced together with forward. So it asks, before
it runs, whether it would be traced in the same way now. If not, the captured graph is differentiated by autograd
(`DoubleBackward`), and later calls run as it was captured.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dynajit.graph.meta import history_of, value_of
from dynajit.graph.operator_kernels import has_functions, hides_kernels, kernels_of
from dynajit.graph.state_snapshot import StateSnapshot
from dynajit.nested import reached
from dynajit.report import logs


class BackwardState:
    """What a graph's forward and backward read, as it was when both were traced.

    Attributes:
        moved: whether a backward pass found that it reads something else.
    """

    def __init__(self, forward: StateSnapshot, backward: StateSnapshot) -> None:
        self.forward = forward
        self.backward = backward
        self.moved = False

    @property
    def cannot_be_told(self) -> bool:
        """Whether forward may read other things when it runs again for backward, or nobody knows what is read."""
        if not (self.backward.known and self.forward.known):
            return self.backward.is_set_by_code() or not self.backward.known
        return self.forward.shares_with(self.backward)

    def holds(self) -> bool:
        """Whether backward would be traced in the same way now.

        Raises:
            RuntimeError: it would not, and nor would forward, so that it can't run again.
        """
        if self.backward.holds():
            return True
        if not self.moved:
            logs.emit("aot_graphs", "what backward reads has changed since forward: the graph runs as captured")
        self.moved = True
        if not self.forward.holds():
            raise RuntimeError(
                "between forward and backward, Python state has changed that both of them read in a Function, which "
                "are compiled together: this call can't be repeated; later ones will run as in eager mode"
            )
        return False

    def until_moved(self, compiled: Callable[..., Any], captured: Callable[..., Any]) -> Callable[..., Any]:
        """`compiled`, and `captured` once a backward pass has found other state."""

        def call(*inputs: Any) -> Any:
            return (captured if self.moved else compiled)(*inputs)

        return call


def backward_state_of(gm: torch.fx.GraphModule) -> BackwardState | None:
    """What the Functions in a captured graph read; None: their backward reads nothing."""
    graphs = [part.graph for part in gm.modules() if isinstance(part, torch.fx.GraphModule)]
    calls = [node.target for graph in graphs for node in graph.nodes if node.op == "call_function"]
    if not any(has_functions(target) for target in calls):
        return None
    nodes: list[Any] = [node for node in _nodes_of(gm) if isinstance(node, torch.autograd.function.BackwardCFunction)]
    functions = {type(node)._forward_cls for node in nodes}
    handed = [function for target in calls for function in getattr(target, "functions", ())]
    backwards = [user for each in functions for user in _users(each.backward, "_backward_fn")]
    if not backwards:
        return None
    backward = StateSnapshot([*backwards, *handed])
    if not backward:
        return None
    forwards = [user for each in functions for user in _users(each.forward, "_setup_context_fn")]
    forwards += [user for each in functions for user in _users(each.setup_context, "")]
    kernels = (kernel for target in calls for kernel in kernels_of(target))
    forward = StateSnapshot([*forwards, *handed, *kernels])
    forward.known &= not any(map(hides_kernels, calls))
    return BackwardState(forward, backward)


def _users(function: Any, name: str) -> Iterator[Any]:
    """The user's functions that a method of a Function calls, through what torch has put around them. `name`: of the
    attribute that those of an operator have."""
    if not isinstance(function, types.FunctionType):
        return
    if function.__globals__["__name__"].partition(".")[0] != "torch":
        yield function
        return
    for cell in function.__closure__ or ():
        held = None if cell == types.CellType() else cell.cell_contents
        yield from _users(getattr(held, name, held) if name else held, name)


def _nodes_of(gm: torch.fx.GraphModule) -> Iterator[Any]:
    """All that autograd knows of a graph's results."""
    values = map(value_of, gm.graph.output_node().all_input_nodes)
    known = (start for start in map(history_of, values) if start is not None)
    return reached(known, lambda node: (following for following, _ in node.next_functions if following is not None))
