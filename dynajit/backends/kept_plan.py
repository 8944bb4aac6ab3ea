"""What `codegen` made of a graph as data, and back, for variants that the next process finds (`kept/`).

In:  the callable that the backend returned. Out: `to_data(compiled)`: JSON with the plan, or those of the forward and
     the backward graph, and the text of their kernels, whose libraries are in the artifact store; `from_data(data)`: a
     callable that does the same. `NotKept` for what has no such form: weights that were taken as constants, graphs in
     torch's own wrapper, on GPUs, or that run operator by operator. Where a graph would have to run so after all,
     because inputs overlap or an index is refused, the callable raises, and the frame is run again (`resume/rerun.py`).
Also here, since `kept/` knows backends alone: the files, and the machine that kernels are for.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from dynajit import _C
from dynajit.aot.decompositions import any_lowerings
from dynajit.aot.patterns import any_patterns
from dynajit.aot.training.double_backward import DoubleBackward
from dynajit.aot.training.partial_backward import PartialBackwardCache
from dynajit.aot.training.reachability import BackwardReachability
from dynajit.backends import kept_graph
from dynajit.backends.registry import USER_PASSES, lookup_backend
from dynajit.codegen.plan import Plan
from dynajit.codegen.refusal import BackwardRerun
from dynajit.constants import NotData
from dynajit.runtime import cpu, plan_data, store, toolchain

# more of a tensor in a graph is no number that stands in the program's text
_MAX_CONSTANT_BYTES = 256
# operators that are torch's own, in every process of one release
_NAMESPACES = frozenset({"aten", "prims", "prim"})
_TARGETS = frozenset({"torch", "_operator", "operator", "math", "builtins", "dynajit"})
_SUFFIX = ".variant"
# a backward graph is compiled for each set of the results' gradients
_MAX_PARTIAL = 2


class NotKept(NotData):
    """Something of a variant has no form as data, or a condition does not hold here; the text says what."""


def to_data(compiled: Callable[..., Any], name: kept_graph.Name) -> dict[str, Any]:
    """The callable that `codegen` returned for a graph; `name` gives how another process finds a function. Raises
    NotData."""
    if isinstance(compiled, _C.RuntimeCall):
        casts, eager = compiled.casts, compiled.eager
        return {
            "inner": to_data(compiled.compiled, name),
            "written": compiled.written if eager is not None and not casts else None,
            "no_autocast": compiled.no_autocast,
            "casts": [casts, kept_graph.to_data(eager, name)] if eager is not None and casts else None,
        }
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
    if again is not None and not isinstance(again, DoubleBackward):
        raise NotKept("its backward is differentiated in a way of the program's")
    halves: dict[str, Any] = {"forward": to_data(forward, name), "backward": None, "backwards": [], "whole": None}
    if partial is None:
        halves["backward"] = _backward_to_data(backward, name)
    else:
        halves |= _backwards_to_data(partial, name)
    return {
        **halves,
        "numbers": [*numbers, *compiled.made_of[9:]],
        "again": None if again is None else kept_graph.to_data(again.forward, name),
        "again_autocast": [(kind, on, plan_data.encode(dtype)) for kind, on, dtype in getattr(again, "autocast", ())],
    }


def _backwards_to_data(partial: PartialBackwardCache, name: kept_graph.Name) -> dict[str, Any]:
    """The backward graphs of some results. Those of two results are compiled for each alone; of more those that are
    there, most often one, are kept, and the graph of all goes along, of which others are made."""
    count = len(partial.reach.inputs)
    few = count <= _MAX_PARTIAL
    known = [key for key in partial if len(key) == count]  # others are of some inputs, after a backward pass
    sets = map(bytes, itertools.product((0, 1), repeat=count)) if few else known
    backwards = [
        [key.hex(), _backward_to_data(partial[key], name), sorted(partial.unneeded(key))] for key in sets if any(key)
    ]
    whole = None
    if not few:
        graph = partial.graph()
        assert graph is not None
        whole = [kept_graph.to_data(graph.forward, name), kept_graph.values_to_data(graph.graph.nodes)]
    return {"backwards": backwards, "whole": whole, "autocast": partial.autocast}


def _backward_to_data(compiled: Callable[..., Any] | None, name: kept_graph.Name) -> dict[str, Any] | None:
    """The plan, with the graph that raises the operator's error where a kernel refuses a value."""
    if compiled is None:
        return None
    data = to_data(compiled, name)
    if may_refuse(data):
        inner, inside = (compiled.compiled, data["inner"]) if isinstance(compiled, _C.RuntimeCall) else (compiled, data)
        plan: Plan = inner.plan  # type: ignore[attr-defined]
        original = plan.eager
        if isinstance(original, BackwardRerun):
            inside["eager"] = kept_graph.to_data(original.forward, name)
            inside["likes"] = [plan_data.encode(like) for like in original.likes]
    return data


def from_data(
    data: dict[str, Any],
    overlapping: Callable[..., Any],
    find: kept_graph.Find,
    build: Callable[[Plan], Callable[..., Any]] = cpu.build,
) -> Callable[..., Any]:
    """The callable that was written; `overlapping` is called instead where an input that it writes overlaps another
    one; `find` finds functions; `build` makes a plan callable. Raises NotData, and what `build` raises: ToolchainError,
    OSError."""
    if "inner" in data:
        eager = overlapping if data["written"] is not None else None
        inner = from_data(data["inner"], overlapping, find, build)
        if data["casts"] is not None:
            casts, graph = data["casts"]
            return _C.RuntimeCall(inner, kept_graph.KeptGraph(graph, find), (), data["no_autocast"], casts)
        return _C.RuntimeCall(inner, eager, data["written"] or (), data["no_autocast"])
    if "forward" in data:
        return _training_of(data, overlapping, find, build)
    constants = {name: _tensor_of(row) for name, row in data["constants"].items()}
    plan = plan_data.from_data(data["plan"], data["source"], constants)
    original: Callable[..., Any] | None = None
    if data["eager"] is not None:
        likes = list(map(plan_data.Decoder().value, data["likes"]))
        original = BackwardRerun(kept_graph.KeptGraph(data["eager"], find), likes)
    return build(dataclasses.replace(plan, returns=data["returns"], eager=original))


def plans_in(data: Any) -> Iterator[dict[str, Any]]:
    """The parts of what `to_data` gave that are one plan each, with the text of its kernels in `source`."""
    if isinstance(data, dict) and "plan" in data:
        yield data
    elif isinstance(data, (dict, list)):
        for part in data.values() if isinstance(data, dict) else data:
            yield from plans_in(part)


def _training_of(
    data: dict[str, Any],
    overlapping: Callable[..., Any],
    find: kept_graph.Find,
    build: Callable[[Plan], Callable[..., Any]],
) -> _C.TrainingCall:
    def made(part: dict[str, Any] | None) -> Any:
        return None if part is None else from_data(part, overlapping, find, build)

    n_saved, n_checked, differentiable, wanted, layouts, reaches, saving, checks, draws, *written = data["numbers"]
    backwards = _backwards_of(data, made, find, wanted, reaches) if data["backwards"] else None
    backward = made(data["backward"]) if backwards is None else backwards[max(backwards)]
    if data["whole"] is not None:
        assert backwards is not None
        backward = backwards.of_all
    autocast = [(kind, on, plan_data.Decoder().value(dtype)) for kind, on, dtype in data["again_autocast"]]
    graph = None if data["again"] is None else kept_graph.KeptGraph(data["again"], find)
    again = None if graph is None else DoubleBackward(graph, autocast, written[1])
    checks = [(*row[:3], tuple(row[3])) for row in checks]
    halves: tuple[Any, Any] = made(data["forward"]), backward
    numbers = n_saved, n_checked, differentiable, wanted, layouts
    return _C.TrainingCall(*halves, *numbers, again, backwards, reaches, saving, checks, draws, *written)


def _backwards_of(
    data: dict[str, Any],
    made: Callable[[Any], Any],
    find: kept_graph.Find,
    wanted: Sequence[int],
    reaches: Sequence[Sequence[bool]],
) -> PartialBackwardCache:
    """The backward graphs for the gradients that there may be; those that were not kept run operator by operator."""
    inputs = tuple(frozenset(itertools.compress(wanted, row)) for row in reaches)
    reach = BackwardReachability((), inputs, (), frozenset())
    graph, values = (None, None) if data["whole"] is None else data["whole"]
    whole = None if graph is None else kept_graph.KeptGraph(graph, find)

    def graph_of_all() -> torch.fx.GraphModule | None:
        return None if whole is None else whole.module(values)  # of two results the backward graphs are all kept

    backwards = PartialBackwardCache(graph_of_all, reach, lambda graph: graph.forward, data["autocast"])
    for key, part, unneeded in data["backwards"]:
        backwards.put(bytes.fromhex(key), made(part), unneeded)
    return backwards


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
    if any_patterns() or any_lowerings():  # functions of the user's, which no file has
        return False
    own = options.get("options") or {}
    return backend is lookup_backend("codegen") and not any(own.get(name) for name in ("freezing", *USER_PASSES))


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
