"""Building the torch.fx graph of one frame.

In: calls `call_function` / `call_method` with fx nodes and constants as arguments. Out: the fake result of each, and
`finish()`, the GraphModule. Rolling back to a mark erases the nodes added since.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from dynajit.graph.fake import FakeMode, fake_of
from dynajit.guards.source import Source

_FAKE_LOG = logging.getLogger("torch._subclasses.fake_tensor")


def _silent(record: logging.LogRecord) -> bool:
    return False


class GraphInput:
    """A placeholder: where its real tensor comes from, and the fake that stands for it."""

    def __init__(self, source: Source, node: fx.Node, real: torch.Tensor, fake: torch.Tensor) -> None:
        self.source = source
        self.node = node
        self.real = real
        self.fake = fake
        self.version = fake._version


class GraphBuilder:
    """The graph of one frame, from its first operation to the break or return."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.mode = FakeMode(allow_non_fake_inputs=False)
        self.inputs: list[GraphInput] = []
        self.op_count = 0
        self.impure = False
        self._nodes: list[fx.Node] = []
        self._last_placeholder: fx.Node | None = None
        self._names: set[str] = set()

    # -- checkpoints

    def mark(self) -> tuple[int, int, int, bool]:
        return len(self._nodes), len(self.inputs), self.op_count, self.impure

    def rollback(self, mark: tuple[int, int, int, bool]) -> None:
        """Erase what was added since `mark`, newest first."""
        nodes, inputs, self.op_count, self.impure = mark
        while len(self._nodes) > nodes:
            self.graph.erase_node(self._nodes.pop())
        while len(self.inputs) > inputs:
            self.graph.erase_node(self.inputs.pop().node)
        self._last_placeholder = self.inputs[-1].node if self.inputs else None

    # -- growing

    def add_input(self, source: Source, real: torch.Tensor) -> GraphInput:
        """A placeholder for a real tensor reached through `source`."""
        fake = self.fakeify(real, source)
        if self._last_placeholder is not None:
            where = self.graph.inserting_after(self._last_placeholder)
        else:
            where = self.graph.inserting_before(next(iter(self.graph.nodes), None))
        with where:
            node = self.graph.placeholder(self._input_name(source))
        node.meta["example_value"] = fake
        node.meta["source"] = source.name()
        made = GraphInput(source, node, real, fake)
        self._last_placeholder = node
        self.inputs.append(made)
        return made

    def fakeify(self, real: torch.Tensor, source: Source) -> torch.Tensor:
        """A fake tensor with the real one's metadata; shapes are static."""
        return fake_of(self.mode, real)

    def _input_name(self, source: Source) -> str:
        """A parameter's name that tells where it comes from, and is unique."""
        text = "".join(char if char.isascii() and char.isalnum() else "_" for char in source.name())
        base = name = "arg_" + "_".join(part for part in text.split("_") if part)[-48:].lower()
        count = 0
        while name in self._names:
            count += 1
            name = f"{base}_{count}"
        self._names.add(name)
        return name

    def create(
        self, op: str, target: Any, args: Sequence[Any], kwargs: dict[str, Any], meta: dict[str, Any]
    ) -> fx.Node:
        """Append a node; its fake value is set by the caller in `meta["example_value"]`."""
        node = self.graph.create_node(op, target, tuple(args), dict(kwargs))
        node.meta.update(meta)
        self._nodes.append(node)
        self.op_count += 1
        return node

    def create_part(self, whole: fx.Node, index: int, meta: dict[str, Any]) -> fx.Node:
        """A node for one item of what `whole` returns; no operation of the program's."""
        node = self.graph.call_function(operator.getitem, (whole, index))
        node.meta.update(meta, part=True)
        self._nodes.append(node)
        return node

    @contextmanager
    def running_fake(self) -> Iterator[None]:
        """Operations in the body run on fake tensors; what they raise is the program's, and torch need not log it."""
        _FAKE_LOG.addFilter(_silent)
        try:
            with self.mode:
                yield
        finally:
            _FAKE_LOG.removeFilter(_silent)

    # -- finishing

    def finish(self, outputs: Sequence[fx.Node]) -> tuple[fx.GraphModule, list[GraphInput]]:
        """Close the graph with these outputs; drop unused placeholders and unused parts of results."""
        self.graph.output(tuple(outputs))
        for node in reversed(self._nodes):
            if "part" in node.meta and not node.users:
                self.graph.erase_node(node)
        used = []
        for entry in self.inputs:
            if entry.node.users:
                used.append(entry)
            else:
                self.graph.erase_node(entry.node)
        module = fx.GraphModule(torch.nn.Module(), self.graph, "DynajitGraph")
        return module, used


def run_target(op: str, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What the node computes, on whatever tensors the arguments hold."""
    if op == "call_method":
        return getattr(args[0], target)(*args[1:], **kwargs)
    function: Callable[..., Any] = target
    return function(*args, **kwargs)
