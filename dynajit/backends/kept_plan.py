"""What `codegen` made of a graph as data, and back, for variants that the next process finds (`kept/`).

In:  the callable that the backend returned. Out: `to_data(compiled)`: JSON with the plan, or those of the forward and
     the backward graph, and the text of their kernels, whose libraries are in the artifact store; `from_data(data)`: a
     callable that does the same. `NotKept` for what has no such form: weights that were taken as constants, graphs in
     torch's own wrapper, with more than two results to differentiate, on GPUs, or that run operator by operator. Where
     a graph would have to run so after all, because inputs overlap or an index is refused, the callable raises, and
     the frame is run again (`resume/rerun.py`).
Also here, since `kept/` knows backends alone: the files, and the machine that kernels are for.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from dynajit import _C
from dynajit.aot.training.double_backward import DoubleBackward
from dynajit.backends import kept_graph
from dynajit.backends.registry import lookup_backend
from dynajit.codegen.plan import Plan
from dynajit.codegen.refusal import BackwardRerun
from dynajit.runtime import cpu, plan_data, store, toolchain

# more of a tensor in a graph is no number that stands in the program's text
_MAX_CONSTANT_BYTES = 256
# operators that are torch's own, in every process of one release
_NAMESPACES = frozenset({"aten", "prims", "prim"})
_TARGETS = frozenset({"torch", "_operator", "operator", "math", "builtins", "dynajit"})
_SUFFIX = ".variant"
# a backward graph is compiled for each set of the results' gradients
_MAX_PARTIAL = 2


class NotKept(Exception):
    """Something of a variant has no form as data, or a condition does not hold here; the text says what."""


def to_data(compiled: Callable[..., Any], name: kept_graph.Name) -> dict[str, Any]:
    """The callable that `codegen` returned for a graph; `name` gives how another process finds a function. Raises
    NotKept."""
    try:
        return _to_data(compiled, name)
    except plan_data.NotData as why:
        raise NotKept(str(why)) from None


def _to_data(compiled: Callable[..., Any], name: kept_graph.Name) -> dict[str, Any]:
    if isinstance(compiled, _C.RuntimeCall):
        written = compiled.written if compiled.eager is not None else None
        return {"inner": _to_data(compiled.compiled, name), "written": written, "no_autocast": compiled.no_autocast}
    if isinstance(compiled, _C.TrainingCall):
        return _training_to_data(compiled, name)
    plan = getattr(compiled, "plan", None) if isinstance(compiled, _C.PlanExecutor) else None
    if not isinstance(plan, Plan):
        raise NotKept(f"its graph is a {type(compiled).__name__}, not one plan")
    data = plan_data.to_data(plan)
    constants = {name: _tensor_to_data(name, value) for name, value in plan.constants.items()}
    return {"plan": data, "source": plan.source, "constants": constants, "returns": plan.returns, "eager": None}


def _training_to_data(compiled: _C.TrainingCall, name: kept_graph.Name) -> dict[str, Any]:
    forward, backward, *numbers, again, partial = compiled.made_of[:9]
    if partial is not None and len(partial.reach.inputs) > _MAX_PARTIAL:
        raise NotKept("several of its results have gradients")
    if again is not None and not isinstance(again, DoubleBackward):
        raise NotKept("its backward is differentiated in a way of the program's")
    sets = [] if partial is None else itertools.product((0, 1), repeat=len(partial.reach.inputs))
    backwards = [
        [key.hex(), _backward_to_data(partial[key], name), sorted(partial.unneeded(key))]
        for key in map(bytes, sets)
        if any(key)
    ]
    return {
        "forward": _to_data(forward, name),
        "backward": _backward_to_data(backward, name) if partial is None else None,
        "backwards": backwards,
        "numbers": [*numbers, *compiled.made_of[9:]],
        "again": None if again is None else kept_graph.to_data(again.forward, name),
    }


def _backward_to_data(compiled: Callable[..., Any] | None, name: kept_graph.Name) -> dict[str, Any] | None:
    """The plan, with the graph that raises the operator's error where a kernel refuses a value."""
    if compiled is None:
        return None
    data = _to_data(compiled, name)
    if may_refuse(data):
        inner, inside = (compiled.compiled, data["inner"]) if isinstance(compiled, _C.RuntimeCall) else (compiled, data)
        plan: Plan = inner.plan  # type: ignore[attr-defined]
        original = plan.eager
        if isinstance(original, BackwardRerun):
            inside["eager"] = kept_graph.to_data(original.forward, name)
            inside["likes"] = [plan_data.encode(like) for like in original.likes]
    return data


def from_data(data: dict[str, Any], overlapping: Callable[..., Any], find: kept_graph.Find) -> Callable[..., Any]:
    """The callable that was written; `overlapping` is called instead where an input that it writes overlaps another
    one; `find` finds functions. Raises NotKept, ToolchainError, OSError."""
    try:
        return _from_data(data, overlapping, find)
    except plan_data.NotData as why:
        raise NotKept(str(why)) from None


def _from_data(data: dict[str, Any], overlapping: Callable[..., Any], find: kept_graph.Find) -> Callable[..., Any]:
    if "inner" in data:
        eager = overlapping if data["written"] is not None else None
        inner = _from_data(data["inner"], overlapping, find)
        return _C.RuntimeCall(inner, eager, data["written"] or (), data["no_autocast"])
    if "forward" in data:
        return _training_of(data, overlapping, find)
    constants = {name: _tensor_of(row) for name, row in data["constants"].items()}
    plan = plan_data.from_data(data["plan"], data["source"], constants)
    original: Callable[..., Any] | None = None
    if data["eager"] is not None:
        likes = list(map(plan_data.Decoder().value, data["likes"]))
        original = BackwardRerun(kept_graph.KeptGraph(data["eager"], find), likes)
    return cpu.build(dataclasses.replace(plan, returns=data["returns"], eager=original))


def _training_of(data: dict[str, Any], overlapping: Callable[..., Any], find: kept_graph.Find) -> _C.TrainingCall:
    def made(part: dict[str, Any] | None) -> Any:
        return None if part is None else _from_data(part, overlapping, find)

    n_saved, n_checked, differentiable, wanted, layouts, reaches, uses_up, watched, draws = data["numbers"]
    backwards = KeptBackwards({bytes.fromhex(key): made(part) for key, part, _ in data["backwards"]})
    backwards.unneeded = {bytes.fromhex(key): frozenset(places) for key, _, places in data["backwards"]}
    backward = made(data["backward"]) if data["backward"] is not None else backwards[max(backwards)]
    again = None if data["again"] is None else DoubleBackward(kept_graph.KeptGraph(data["again"], find))
    watched = [(*row[:3], tuple(row[3])) for row in watched]
    halves: tuple[Any, Any] = made(data["forward"]), backward
    numbers = n_saved, n_checked, differentiable, wanted, layouts
    return _C.TrainingCall(*halves, *numbers, again, backwards or None, reaches, uses_up, watched, draws)


class KeptBackwards(dict[bytes, "Callable[..., Any] | None"]):
    """The backward graphs for all the gradients that there may be, as `PartialBackwardCache` has them.

    Attributes:
        unneeded: for each, the parameters that it makes no use of.
    """

    unneeded: dict[bytes, frozenset[int]]

    def needs(self, defined: bytes, place: int) -> bool:
        """Whether the backward of these gradients makes use of its parameter number `place`."""
        return place not in self.unneeded[defined]


def is_flat(compiled: Callable[..., Any]) -> bool:
    """Whether the callable that was made calls hardly any function written in Python."""
    if isinstance(compiled, _C.RuntimeCall):
        return compiled.eager is None and is_flat(compiled.compiled)
    return isinstance(compiled, _C.PlanExecutor)


def may_refuse(data: dict[str, Any]) -> bool:
    """Whether a kernel may refuse a value: the callable raises where the graph would run operator by operator."""
    if "inner" in data:
        return may_refuse(data["inner"])
    if "forward" in data:
        return may_refuse(data["forward"])
    return any(checked for _, _, _, checked, _ in data["plan"]["kernels"])


def writes(data: dict[str, Any]) -> bool:
    """Whether the graph writes inputs, so that `overlapping` may be called."""
    return "inner" in data and (data["written"] is not None or writes(data["inner"]))


def check_targets(module: torch.fx.GraphModule) -> None:
    """Raise NotKept unless what the captured graph calls is torch's own: what others register under a name is another
    thing in another process."""
    for node in module.graph.nodes:
        target = node.target
        if node.op in ("get_attr", "call_module"):
            raise NotKept(f"its graph holds {target}, an object of this process")
        if node.op != "call_function":
            continue
        if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            name = str(target).partition(".")[0]
            namespace = target.namespace if isinstance(target, torch._ops.OpOverload) else target._qualified_op_name
            if str(namespace).partition("::")[0] not in _NAMESPACES:
                raise NotKept(f"its graph calls {name}, an operator of the program's")
        elif str(getattr(target, "__module__", None) or "torch").partition(".")[0] not in _TARGETS:
            raise NotKept(f"its graph calls {getattr(target, '__qualname__', target)}, a function of the program's")


def is_own(backend: Any, options: dict[str, Any]) -> bool:
    """Whether plans of this backend under these options have a form as data."""
    return backend is lookup_backend("codegen") and not (options.get("options") or {}).get("freezing")


def machine() -> str:
    """What kernels are compiled with and for. Raises ToolchainError."""
    return toolchain.find().fingerprint


def read(key: str) -> bytes | None:
    """The file kept under the key, checked; None: there is none. Raises NotKept where it is not as it was written."""
    path = store.lookup(key, _SUFFIX)
    if path is None and store.find().holds(key, _SUFFIX):
        raise NotKept("the file is damaged")
    try:
        return None if path is None else path.read_bytes()
    except OSError:  # deleted meanwhile
        return None


def write(key: str, contents: bytes) -> Path:
    """Keep the contents under the key, in place of what is there. Raises OSError."""
    return store.keep(key, _SUFFIX, contents)


def _tensor_to_data(name: str, value: Any) -> list[Any]:
    plain = type(value) is torch.Tensor and value.device.type == "cpu" and value.layout == torch.strided
    if not plain or value.numel() * value.element_size() > _MAX_CONSTANT_BYTES or value.requires_grad:
        raise NotKept(f"its graph holds the tensor {name}")
    raw = bytes(value.contiguous().reshape(-1).view(torch.uint8).tolist())
    return [str(value.dtype).removeprefix("torch."), list(value.shape), base64.b64encode(raw).decode()]


def _tensor_of(row: Sequence[Any]) -> torch.Tensor:
    dtype, shape, raw = row
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise NotKept("a tensor's dtype is none")
    contents = bytearray(base64.b64decode(raw))
    count = functools.reduce(operator.mul, shape, 1)
    if len(contents) != count * kind.itemsize:
        raise NotKept("a tensor has other elements than its shape says")
    return torch.frombuffer(contents, dtype=kind).reshape(shape) if count else torch.empty(shape, dtype=kind)
