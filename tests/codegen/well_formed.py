"""Checks that a program of the loop IR is well formed: the grammar of `nodes.py` as code.

In:  a `Program`. Out: nothing, or `InternalError` naming the tensor and what is wrong with it. Run between stages in
     tests.
One more kind of node: a branch of `_check_scalar`.
"""

from __future__ import annotations

import torch

from dynajit.exc import InternalError
from dynajit.loopir.index import axes_of
from dynajit.loopir.nodes import (
    Const,
    Extern,
    Fetch,
    Op,
    Pointwise,
    Position,
    Program,
    Read,
    Reduction,
    Scalar,
    Scatter,
    StoredTensor,
    Tensor,
    axis_of,
    expressions_of,
    indices_of,
)
from dynajit.loopir.ops import MOMENTS, OPS, REDUCTIONS, STORED


def verify(program: Program) -> None:
    """Raise InternalError if the program breaks a rule."""
    results = _results(program)
    known: set[Tensor] = {source for source in program.sources.values() if source not in results}
    for item in program.items:
        if isinstance(item, Extern):
            known.update(result for result in item.results if isinstance(result, Tensor))
            continue
        _check_tensor(item, known)
        known.add(item)


def _results(program: Program) -> set[Tensor]:
    return {
        result
        for item in program.items
        if isinstance(item, Extern)
        for result in item.results
        if isinstance(result, StoredTensor)
    }


def _require(condition: bool, tensor: Tensor, what: str) -> None:
    if not condition:
        raise InternalError(f"loop IR: {tensor.name} ({tensor.origin.op}): {what}")


def _check_tensor(tensor: Tensor, known: set[Tensor]) -> None:
    _require(isinstance(tensor, (Pointwise, Reduction, Scatter)), tensor, "is of no kind that is computed")
    assert isinstance(tensor, (Pointwise, Reduction, Scatter))
    _require(len(tensor.shape) == len(tensor.stride), tensor, "as many strides as sizes")
    _require(tensor.dtype in STORED, tensor, f"dtype {tensor.dtype}")
    _require(tensor.body.dtype is tensor.dtype, tensor, f"body is {tensor.body.dtype}, tensor {tensor.dtype}")
    axes = {axis for index in tensor.axes if (axis := axis_of(index)) is not None}
    if isinstance(tensor, Reduction):
        _require(tensor.kind in (*REDUCTIONS, *MOMENTS), tensor, f"reduction {tensor.kind!r}")
        _require(
            len(tensor.domain) == len(tensor.outer_mask) == len(tensor.place), tensor, "ranks of the domain differ"
        )
        axes |= {axis for index in tensor.inner if (axis := axis_of(index)) is not None}
    if isinstance(tensor, Scatter):
        base = tensor.base
        _require(tensor.kind in REDUCTIONS or tensor.kind == "set", tensor, f"kind {tensor.kind!r}")
        made = isinstance(base, (Pointwise, Scatter, StoredTensor))
        _require(base in known and made, tensor, f"base {base.name}")
        _require((base.shape, base.dtype) == (tensor.shape, tensor.dtype), tensor, "is not what its base is")
        _require(len(tensor.at) == len(tensor.shape), tensor, "as many places as dimensions")
        axes = {axis for index in tensor.inner if (axis := axis_of(index)) is not None}
    # What a guard may leave out may read where there is nothing.
    seen: set[tuple[Scalar, bool]] = set()
    todo: list[tuple[Scalar, bool]] = [(scalar, False) for scalar in expressions_of(tensor)]
    while todo:
        node, guarded = todo.pop()
        if (node, guarded) in seen:
            continue
        seen.add((node, guarded))
        _check_scalar(tensor, node, known, guarded)
        for index in indices_of(node):
            _require(axes_of(index) <= axes, tensor, f"{index} has a foreign axis")
        if isinstance(node, Op):
            todo.extend(
                (argument, guarded or (node.name == "guard" and n > 0)) for n, argument in enumerate(node.arguments)
            )


def _check_scalar(tensor: Tensor, node: Scalar, known: set[Tensor], guarded: bool) -> None:
    if isinstance(node, Read):
        _require(node.tensor in known, tensor, f"reads {node.tensor.name}, which comes later or not at all")
        _require(len(node.position) == len(node.tensor.shape), tensor, f"rank of {node.tensor.name}")
        for index, size in zip(node.position, node.tensor.shape, strict=True):
            inside = guarded or (index.low >= 0 and index.high < max(size, 1))
            _require(inside, tensor, f"{node.tensor.name}[{index}] of {size}")
    elif isinstance(node, Op):
        if isinstance(node, Fetch):
            _require(node.tensor in known, tensor, f"fetches {node.tensor.name}, which comes later or not at all")
        _check_operation(tensor, node)
    else:
        _require(isinstance(node, (Const, Position)), tensor, f"node {type(node).__name__}")


def _check_operation(tensor: Tensor, node: Op) -> None:
    if isinstance(node, Fetch):
        _require(len(node.arguments) == len(node.tensor.shape), tensor, f"rank of {node.tensor.name}")
        _require({argument.dtype for argument in node.arguments} <= {torch.int64}, tensor, "positions are int64")
        return
    operation = OPS.get(node.name)
    _require(operation is not None, tensor, f"operation {node.name!r}")
    assert operation is not None
    _require(len(node.arguments) == operation.arity, tensor, f"{node.name} takes {operation.arity} arguments")
    values = node.arguments[1:] if node.name in ("where", "guard") else node.arguments
    dtypes = {argument.dtype for argument in values}
    _require(len(dtypes) == 1, tensor, f"{node.name} of {dtypes}")
    if node.name not in ("convert", "where", "guard"):
        _require(dtypes <= operation.types, tensor, f"{node.name} of {dtypes}")
