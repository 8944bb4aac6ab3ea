"""What the interpreter computes with instead of tensors.

In: operations as they are met. Out: a `Graph`: nodes in the order in which they can be computed.
"""

from dataclasses import dataclass, field
from typing import Any

import torch

# what the graph knows, and how many operands it has; functions by their names
ARITY = {"add": 2, "sub": 2, "mul": 2, "div": 2, "neg": 1, "abs": 1, "sqrt": 1, "relu": 1}
OPERATIONS: dict[Any, str] = {getattr(torch, name): name for name in ARITY}


class Unsupported(Exception):
    """Not in this compiler's language; the text says what."""


@dataclass(eq=False)
class Node:
    """A tensor that is not there yet. `operands` are nodes and numbers; of an "input" its place among the arguments."""

    op: str
    operands: tuple[Any, ...]


@dataclass
class Graph:
    """Nodes, and the shape of all of them: what is of one shape can be one loop."""

    nodes: list[Node] = field(default_factory=list)
    shape: torch.Size | None = None

    def input(self, tensor: torch.Tensor, place: int) -> Node:
        """A node for an argument. Raises Unsupported for other tensors than the kernel reads."""
        ordinary = type(tensor) is torch.Tensor and tensor.dtype is torch.float32 and tensor.device.type == "cpu"
        if not ordinary or tensor.requires_grad or not tensor.is_contiguous() or tensor.is_neg():
            raise Unsupported("a tensor that is not float32, contiguous, on the CPU and without gradient")
        if self.shape not in (None, tensor.shape):
            raise Unsupported("tensors of several shapes")
        self.shape = tensor.shape
        return self.add("input", place)

    def call(self, op: str | None, *operands: Any) -> Node:
        """A node for an operation. Raises Unsupported if the graph has no such operation."""
        if op not in ARITY or len(operands) != ARITY[op]:
            raise Unsupported(f"the operation {op} of {len(operands)} operands")
        numbers = [operand for operand in operands if not isinstance(operand, Node)]
        if len(numbers) == len(operands) or not all(type(n) in (int, float) and abs(n) < 2**24 for n in numbers):
            raise Unsupported(f"{op} of something that is no tensor or common number")
        return self.add(op, *operands)

    def add(self, op: str, *operands: Any) -> Node:
        """Append a node."""
        self.nodes.append(Node(op, operands))
        return self.nodes[-1]
