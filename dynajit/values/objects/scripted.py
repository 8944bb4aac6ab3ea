"""Functions that the program gave to `torch.jit.script`.

In: such a function, and the arguments. Out: the trace of what it was made from, where that computes the same: as
torch.compile sees them. Where another compiler's rules could be told from Python's, the graph ends and the function
itself is called: containers, which it copies; exceptions, which it words otherwise; numbers of another type than it
declares, which it converts; operations of TorchScript that are not Python's (`5 // tensor`, `2 ** -1`, `str(2.0)`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from dynajit.guards.source import AttrSource
from dynajit.report import breaks
from dynajit.values.core.value import GraphBreak, Raised, Tracer, Value

_ORIGINAL = "_torchdynamo_inline"  # as torch names it
_PLAIN = (torch.Tensor, int, float, bool, str, type(None), torch.dtype, torch.device)
# what TorchScript declares, and the Python type that it takes as it stands
_DECLARED = {"IntType": int, "FloatType": float, "BoolType": bool, "StringType": str, "DeviceObjType": torch.device}
# operations on other things than tensors that mean in TorchScript what they mean in Python
_PYTHONS = frozenset(
    {
        *(f"prim::{name}" for name in ("Constant", "If", "Loop", "RaiseException", "Uninitialized", "device")),
        *(f"prim::{name}" for name in ("ListConstruct", "ListUnpack", "TupleConstruct", "TupleUnpack", "TupleIndex")),
        *(f"prim::{name}" for name in ("unchecked_cast", "unchecked_unwrap_optional", "min", "max", "is_cuda")),
        *(f"aten::{name}" for name in ("size", "dim", "len", "numel", "is_floating_point", "slice", "__getitem__")),
        *(f"aten::{name}" for name in ("add", "sub", "mul", "div", "floordiv", "remainder", "neg", "sqrt", "log")),
        *(f"aten::{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge", "__is__", "__isnot__", "__not__")),
        *(f"aten::{name}" for name in ("__range_length", "__derive_index")),
    }
)


def is_scripted(real: Any) -> bool:
    """Whether it is what `torch.jit.script` made of a function that is still known."""
    return type(real) is torch.jit.ScriptFunction and hasattr(real, _ORIGINAL)


def call_scripted(tx: Tracer, function: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    """Call the model of a scripted function from outside."""
    if not all(issubclass(arg.py_type(), _PLAIN) for arg in (*args, *kwargs.values())):
        raise GraphBreak(breaks.UNKNOWN_CALL, "a scripted function, with a container")
    original = getattr(function.real_object, _ORIGINAL)
    if not (_takes(function.real_object, original, args, kwargs) and _means_the_same(function.real_object, original)):
        raise GraphBreak(breaks.UNKNOWN_CALL, "a scripted function that may differ from the one it was made from")
    with tx.not_resumable():
        try:
            return tx.call(tx.wrap(original, AttrSource(function.source, _ORIGINAL)), args, kwargs)
        except Raised:
            raise GraphBreak(breaks.UNKNOWN_CALL, "a scripted function that raises") from None


def _takes(scripted: Any, original: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> bool:
    """Whether each argument has the declared type, so that none is converted or refused."""
    parameters = inspect.signature(original).parameters
    given = {name: value.py_type() for name, value in zip(parameters, args, strict=False)}
    given.update((name, value.py_type()) for name, value in kwargs.items())
    defaults = {name: type(each.default) for name, each in parameters.items() if each.default is not each.empty}
    types = {**defaults, **given}
    return all(
        argument.name not in types or _is_declared(types[argument.name], argument.type)
        for argument in scripted.schema.arguments
    )


def _is_declared(found: type, declared: Any) -> bool:
    kind = declared.kind()
    if kind == "OptionalType":
        return found is type(None) or _is_declared(found, declared.getElementType())
    if kind == "TensorType":
        return issubclass(found, torch.Tensor)
    return found is _DECLARED.get(kind)


def _means_the_same(scripted: Any, original: Any) -> bool:
    """Whether each of its operations is one of tensors, or one that means what it means in Python."""
    if "is_scripting" in original.__code__.co_names:
        return False
    return all(
        node.kind() in _PYTHONS
        or (node.kind().startswith("aten::") and all(_of_tensors(output.type()) for output in node.outputs()))
        or (node.kind() == "aten::format" and all(_only_raised(use.user) for use in node.output().uses()))
        for node in _nodes(scripted.inlined_graph)
    )


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _of_tensors(made: Any) -> bool:
    if made.kind() in ("ListType", "OptionalType"):
        return _of_tensors(made.getElementType())
    if made.kind() == "TupleType":
        return all(map(_of_tensors, made.elements()))
    return bool(made.kind() == "TensorType")


def _only_raised(user: Any) -> bool:
    return bool(user.kind() == "prim::RaiseException")
