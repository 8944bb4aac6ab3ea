"""What `codegen` made of an inference graph as data, and back, for variants that the next process finds (`kept/`).

In:  the callable that the backend returned. Out: `to_data(compiled)`: JSON with the plan and the text of its kernels,
     whose libraries are in the artifact store; `from_data(data)`: a callable that does the same. `NotKept` for what has
     no such form: weights that were taken as constants, graphs with gradients, on GPUs, or that run operator by
     operator. Where a graph would have to run so after all, because inputs overlap or an index is refused, the callable
     raises, and the frame is run again (`resume/rerun.py`).
Also here, since `kept/` knows backends alone: the files, and the machine that kernels are for.
"""

from __future__ import annotations

import base64
import functools
import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from dynajit import _C
from dynajit.backends.registry import lookup_backend
from dynajit.codegen.plan import Plan
from dynajit.runtime import cpu, plan_data, store, toolchain

# more of a tensor in a graph is no number that stands in the program's text
_MAX_CONSTANT_BYTES = 256
# operators that are torch's own, in every process of one release
_NAMESPACES = frozenset({"aten", "prims", "prim"})
_TARGETS = frozenset({"torch", "_operator", "operator", "math", "builtins", "dynajit"})
_SUFFIX = ".variant"


class NotKept(Exception):
    """Something of a variant has no form as data, or a condition does not hold here; the text says what."""


def to_data(compiled: Callable[..., Any]) -> dict[str, Any]:
    """The callable that `codegen` returned for an inference graph. Raises NotKept."""
    if isinstance(compiled, _C.RuntimeCall):
        written = compiled.written if compiled.eager is not None else None
        return {"inner": to_data(compiled.compiled), "written": written, "no_autocast": compiled.no_autocast}
    plan = getattr(compiled, "plan", None) if isinstance(compiled, _C.PlanExecutor) else None
    if not isinstance(plan, Plan):
        raise NotKept(f"its graph is a {type(compiled).__name__}, not one plan for inference")
    if plan.returns is not None:
        raise NotKept("its graph is for training")
    try:
        data = plan_data.to_data(plan)
    except plan_data.NotData as why:
        raise NotKept(str(why)) from None
    constants = {name: _tensor_to_data(name, value) for name, value in plan.constants.items()}
    return {"plan": data, "source": plan.source, "constants": constants}


def from_data(data: dict[str, Any], overlapping: Callable[..., Any]) -> Callable[..., Any]:
    """The callable that was written; `overlapping` is called instead where an input that it writes overlaps another
    one. Raises NotKept, ToolchainError, OSError."""
    if "inner" in data:
        eager = overlapping if data["written"] is not None else None
        return _C.RuntimeCall(from_data(data["inner"], overlapping), eager, data["written"] or (), data["no_autocast"])
    constants = {name: _tensor_of(row) for name, row in data["constants"].items()}
    try:
        return cpu.build(plan_data.from_data(data["plan"], data["source"], constants))
    except plan_data.NotData as why:
        raise NotKept(str(why)) from None


def may_refuse(data: dict[str, Any]) -> bool:
    """Whether a kernel may refuse a value: the callable raises where the graph would run operator by operator."""
    if "inner" in data:
        return may_refuse(data["inner"])
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
    """The file kept under the key, checked; None: there is none."""
    path = store.lookup(key, _SUFFIX)
    try:
        return None if path is None else path.read_bytes()
    except OSError:  # deleted meanwhile
        return None


def write(key: str, contents: bytes) -> Path:
    """Keep the contents under the key, in place of what is there. Raises OSError."""
    return store.find().put(key, _SUFFIX, store.written(contents))


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
