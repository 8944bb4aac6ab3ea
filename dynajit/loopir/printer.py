"""A program of the loop IR as text, for logs and the debug folder.

In:  a `Program`. Out: one line for each tensor and call. One more kind of node: a branch of `scalar_text`.
"""

from __future__ import annotations

from typing import Any

from dynajit.loopir.nodes import (
    Const,
    Extern,
    Fetch,
    NameRef,
    Op,
    Pointwise,
    Position,
    Program,
    Read,
    Reduction,
    Scalar,
    Scan,
    Scatter,
    Tensor,
    View,
)
from dynajit.report.shown import dtype_name


def program_text(program: Program) -> str:
    """The whole program."""
    lines = [f"program {program.name}({', '.join(program.inputs)})"]
    for item in program.items:
        lines.append("  " + (_call_text(item) if isinstance(item, Extern) else tensor_text(item)))
    lines.append(f"  return {', '.join(_argument_text(value) for value in program.outputs)}")
    return "\n".join(lines)


def tensor_text(tensor: Tensor) -> str:
    """One computed tensor: name, dtype and shape, what an element is, and the op it comes from."""
    head = f"{tensor.name}: {dtype_name(tensor.dtype)}{list(tensor.shape)}"
    if isinstance(tensor, Reduction):
        over = ", ".join(map(repr, tensor.inner))
        over += "".join(f" {word} {scalar_text(b)}" for word, b in zip(("from", "to"), tensor.bounds, strict=False))
        return f"{head} = {tensor.kind} over {over} of {scalar_text(tensor.body)}  # {tensor.origin.op}"
    if isinstance(tensor, Scan):
        return f"{head} = running {tensor.kind} along d{tensor.dim} of {scalar_text(tensor.body)}  # {tensor.origin.op}"
    if isinstance(tensor, Scatter):
        where = ", ".join(map(scalar_text, tensor.at))
        what = f"{tensor.kind} at [{where}] of {scalar_text(tensor.body)} for {', '.join(map(repr, tensor.inner))}"
        return f"{head} = {tensor.base.name} with {what}  # {tensor.origin.op}"
    if isinstance(tensor, Pointwise):
        return f"{head} = {scalar_text(tensor.body)}  # {tensor.origin.op}"
    return head


def scalar_text(node: Scalar) -> str:
    """A scalar expression."""
    if isinstance(node, Const):
        return repr(node.value)
    if isinstance(node, Position):
        return f"index({node.index})"
    if isinstance(node, Read):
        return f"{node.tensor.name}[{', '.join(map(repr, node.position))}]"
    assert isinstance(node, Op)
    if isinstance(node, Fetch):
        return f"{node.tensor.name}[{', '.join(scalar_text(argument) for argument in node.arguments)}]"
    name = f"to_{dtype_name(node.dtype)}" if node.name == "convert" else node.name
    return f"{name}({', '.join(scalar_text(argument) for argument in node.arguments)})"


def _call_text(call: Extern) -> str:
    names = ", ".join(str(result) for result in call.results)
    keywords = [f"{key}={_argument_text(value)}" for key, value in call.kwargs.items()]
    return f"{names} = {call.target}({', '.join([*map(_argument_text, call.args), *keywords])})"


def _argument_text(value: Any) -> str:
    if isinstance(value, View):
        if value.whole:
            return value.root.name
        return f"{value.root.name}[{', '.join(map(repr, value.position))}]"
    return value.name if isinstance(value, NameRef) else repr(value)
