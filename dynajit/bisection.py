"""`dynajit.bisect(fn)(*args)`: the smallest part of a program that dynajit gets wrong.

In:  a function and a call's arguments. Out: a `BisectReport`: whether the front end or the backend is at fault, which
     graph, which operations in it, which kernel, and a script on disk that shows it.
How: eager against `backend="eager"` judges the front end; is it wrong, ever fewer instructions are traced and the rest
run eagerly, until one more makes the difference (`bisection_front.py` writes the script of that). Each graph alone
against eager and float64 judges the backend; then the graph is cut: first after the earliest operation whose result is
wrong, then in front of as much as can be taken away.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from dynajit import bisection_front
from dynajit.api import compile
from dynajit.backends.registry import lookup_backend
from dynajit.capture.shared import unshared
from dynajit.exc import ConfigError
from dynajit.graph.meta import written_by
from dynajit.interp import fuel
from dynajit.report import records, runnable
from dynajit.report.places import user_place
from dynajit.verify import Difference, check_graph, copies, difference

SCRIPT = "dynajit_bisect.py"


@dataclasses.dataclass
class BisectReport:
    """What was found. `stage`: "none" (nothing is wrong), "frontend" or "backend".

    For the front end: `operations` has the instruction that is traced wrong, `lines` the user's line it is of, and
    after it those of the calls that led there; `script` shows it, or `no_script` says why there is none (a function
    whose source is not at hand, arguments that no text makes).
    For the backend: `graph` (its number in order of compiling),
    `operations` left in the smallest failing graph, `lines` of the user's they come from, `kernels` that compute them,
    and `script`, the program that shows it.
    """

    stage: str
    difference: str = ""
    graph: int | None = None
    operations: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    script: Path | None = None
    no_script: str = ""

    def __str__(self) -> str:
        if self.stage == "none":
            return "nothing is wrong: the compiled call gives what eager gives"
        if self.stage == "frontend":
            text = f"the front end is at fault: with backend='eager' the call differs from eager: {self.difference}"
            if self.operations:
                text += f"\ninstruction: {self.operations[0]}\nlines: {', '.join(self.lines)}"
            return f"{text}\nscript: {self.script if self.script else f'none: {self.no_script}'}"
        parts = [
            f"the backend is at fault, in graph {self.graph}: {self.difference}",
            f"operations: {', '.join(self.operations)}",
        ]
        parts += [f"lines: {', '.join(self.lines)}"] if self.lines else []
        parts += [f"kernels: {', '.join(self.kernels)}"] if self.kernels else []
        parts += [f"script: {self.script}"] if self.script else []
        return "\n".join(parts)


def bisect(
    fn: Callable[..., Any], *, backend: str = "codegen", folder: str | Path = "."
) -> Callable[..., BisectReport]:
    """`bisect(fn)(*args, **kwargs)` finds the smallest part of `fn` that is compiled wrong.

    Args:
        fn: the function or module as it is, or compiled. It is called several times, on deep copies of the arguments.
        backend: the name of the backend to judge.
        folder: where the script is written, as `dynajit_bisect.py`, with its inputs beside it.

    Raises:
        ConfigError: `backend` is no name of a backend.
    """
    if not isinstance(backend, str):
        raise ConfigError(f"dynajit.bisect takes the name of a backend, not {backend!r}")
    judged = lookup_backend(backend)
    original = getattr(type(fn), "_dynajit_original", getattr(fn, "function", fn))

    @unshared()
    def run(*args: Any, **kwargs: Any) -> BisectReport:
        wrong = _front_end(original, args, kwargs)
        if wrong is not None:
            instruction, stack = _traced_wrong(original, args, kwargs)
            lines = tuple(dict.fromkeys(location.short() for location in reversed(stack)))
            Path(folder).mkdir(parents=True, exist_ok=True)
            script, why_none = bisection_front.write(original, args, kwargs, stack, _differs, Path(folder) / SCRIPT)
            return BisectReport(
                "frontend", str(wrong), operations=instruction, lines=lines, script=script, no_script=why_none
            )
        for number, (gm, inputs) in enumerate(_graphs(original, args, kwargs)):
            found = _fails(gm, inputs, judged)
            if found is not None:
                return _narrow(number, gm, inputs, judged, backend, Path(folder))
        return BisectReport("none")

    return run


def _front_end(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Difference | None:
    """Eager against the captured graphs run eagerly."""
    expected = _outcome(*copy.deepcopy((fn, args, kwargs)))
    own_fn, own_args, own_kwargs = copy.deepcopy((fn, args, kwargs))
    actual = _outcome(compile(own_fn, backend="eager"), own_args, own_kwargs)
    return difference(actual, expected)


def _differs(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return _front_end(fn, args, kwargs) is not None


def _traced_wrong(
    fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[str, ...], Sequence[records.FrameLoc]]:
    """The first instruction that makes the call wrong when it is traced, and its lines, outermost first; nothing if the
    call is right whenever its tracing is cut short."""

    def wrong(limit: int | None) -> tuple[bool, fuel.Fuel]:
        with fuel.limited(limit) as used:
            return _front_end(fn, args, kwargs) is not None, used

    right, high = -1, wrong(None)[1].used
    while high - right > 1:
        middle = (right + high) // 2
        if wrong(middle)[0]:
            high = middle
        else:
            right = middle
    stopped = wrong(max(right, 0))[1].stopped_at
    if stopped is None:
        return (), ()
    instruction, stack = stopped
    return (instruction,), stack


def _outcome(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The result, or the exception as text, and the arguments as they are afterwards."""
    torch.manual_seed(0)
    try:
        result = fn(*args, **kwargs)
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    return [result, list(args), kwargs]


def _graphs(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[torch.fx.GraphModule, list[Any]]]:
    """The captured graphs with the inputs of their first call."""
    found: list[tuple[torch.fx.GraphModule, list[Any]]] = []

    def record(gm: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        kept = copy.deepcopy(gm)
        seen: list[None] = []

        def run(*inputs: Any) -> Any:
            if not seen:
                seen.append(None)
                found.append((kept, copies(inputs)))
            return gm.forward(*inputs)

        return run

    own_fn, own_args, own_kwargs = copy.deepcopy((fn, args, kwargs))
    _outcome(compile(own_fn, backend=record), own_args, own_kwargs)
    return found


def _leaf(value: Any) -> Any:
    """A tensor's values as a leaf of their own."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def _fails(gm: torch.fx.GraphModule, inputs: Sequence[Any], backend: Callable[..., Any]) -> Difference | None:
    compiled = backend(copy.deepcopy(gm), copies(inputs))
    found = check_graph(gm, compiled, inputs)
    return None if found is None else dataclasses.replace(found[1], text=f"{found[0]}: {found[1].text}")


# ------------------------------------------------------------------------------------------------ cutting


def _narrow(
    number: int,
    gm: torch.fx.GraphModule,
    inputs: list[Any],
    backend: Callable[..., Any],
    name: str,
    folder: Path,
) -> BisectReport:
    """The report of a graph that fails as a whole."""
    small, small_inputs = _until_wrong(gm, inputs, backend)
    small, small_inputs = _in_front(small, small_inputs, backend)
    wrong = _fails(small, small_inputs, backend) or Difference("")
    nodes = [node for node in small.graph.nodes if node.op.startswith("call")]
    places = [user_place(node.meta.get("stack_trace") or "") for node in nodes]
    script = _write(small, small_inputs, backend, name, folder)
    return BisectReport(
        "backend",
        str(wrong),
        number,
        tuple(_name(node) for node in nodes),
        tuple(dict.fromkeys(f"{place[0]}:{place[1]}" for place in places if place)),
        _kernels(small, small_inputs, backend),
        script,
    )


def _name(node: torch.fx.Node) -> str:
    return str(node.target) if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def _until_wrong(
    gm: torch.fx.GraphModule, inputs: list[Any], backend: Callable[..., Any]
) -> tuple[torch.fx.GraphModule, list[Any]]:
    """Cut after the earliest operation that is wrong, if it is wrong without what comes later."""
    nodes = _calls(gm)
    values = _values(gm, inputs)
    low, high = 0, len(nodes) - 1
    best: tuple[torch.fx.GraphModule, list[Any]] | None = None
    while low <= high:
        middle = (low + high) // 2
        # several results at once: one wrong operation may lie on a branch of its own
        ends = [name for name in nodes[: middle + 1] if isinstance(values[name], torch.Tensor)]
        cut = _cut(gm, inputs, ends, {})
        if ends and _fails(*cut, backend) is not None:
            best, high = cut, middle - 1
        else:
            low = middle + 1
    if best is None:
        return gm, inputs
    last = [name for name in _calls(best[0]) if isinstance(values[name], torch.Tensor)][-1]
    alone = _cut(gm, inputs, [last], {})
    return alone if _fails(*alone, backend) is not None else best


def _in_front(
    gm: torch.fx.GraphModule, inputs: list[Any], backend: Callable[..., Any]
) -> tuple[torch.fx.GraphModule, list[Any]]:
    """Replace operations by their values, as many as leave the rest wrong: all but the last few, then one by one. Those
    that only write are left out, as many."""
    values = _values(gm, inputs)
    output: Any = gm.graph.output_node().args[0]
    ends = [node.name for node in output if isinstance(node, torch.fx.Node)]
    if _fails(*_cut(gm, inputs, ends, {}), backend) is None:
        return gm, inputs
    removed: dict[str, Any] = {}
    for name in reversed(_calls(gm)):
        if name in ends:
            continue
        attempt = {**removed, name: values[name]}
        if isinstance(values[name], torch.Tensor) or not _node(gm, name).users:
            removed = attempt if _fails(*_cut(gm, inputs, ends, attempt), backend) is not None else removed
    return _cut(gm, inputs, ends, removed)


def _calls(gm: torch.fx.GraphModule) -> list[str]:
    return [node.name for node in gm.graph.nodes if node.op.startswith("call")]


def _node(gm: torch.fx.GraphModule, name: str) -> torch.fx.Node:
    return next(node for node in gm.graph.nodes if node.name == name)


def _values(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> dict[str, Any]:
    """What each node gives in eager, as leaves."""
    found: dict[str, Any] = {}

    class Recorder(torch.fx.Interpreter):
        def run_node(self, node: torch.fx.Node) -> Any:
            value = super().run_node(node)
            found[node.name] = _leaf(value)
            return value

    Recorder(gm).run(*copies(inputs))
    return found


def _cut(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], ends: Sequence[str], given: dict[str, Any]
) -> tuple[torch.fx.GraphModule, list[Any]]:
    """The part of the graph that computes the nodes `ends` from the inputs and the `given` values; and its inputs. What
    writes in place is part of it, save where it is among the given."""
    small = copy.deepcopy(gm)
    graph = small.graph
    by_name = {node.name: node for node in graph.nodes}
    kept = dict(zip([node.name for node in graph.find_nodes(op="placeholder")], inputs, strict=True))
    first = next(iter(graph.nodes))
    for name, value in given.items():
        if not isinstance(value, torch.Tensor):
            continue
        with graph.inserting_before(first):
            made = graph.placeholder(f"{name}_value")
        made.meta["example_value"] = value
        by_name[name].replace_all_uses_with(made)
        kept[made.name] = value
    output = graph.output_node()
    output.args = (tuple(by_name[name] for name in ends),)
    for name in sorted(given, key=list(by_name).index, reverse=True):
        if not by_name[name].users:
            graph.erase_node(by_name[name])
    graph.eliminate_dead_code(is_impure_node=lambda node: node.is_impure() or bool(written_by(node)))
    for node in graph.find_nodes(op="placeholder"):
        if not node.users:
            graph.erase_node(node)
            kept.pop(node.name)
    small.recompile()
    return small, [kept[node.name] for node in graph.find_nodes(op="placeholder")]


# ------------------------------------------------------------------------------------------------ showing


def _kernels(gm: torch.fx.GraphModule, inputs: Sequence[Any], backend: Callable[..., Any]) -> tuple[str, ...]:
    """The generated kernels of the graph."""
    record = records.CompileRecord("[bisect]", "bisect", "", 0)
    record.graphs.append(records.GraphRecord("[bisect]", 0, gm))
    with records.recording(record):
        backend(copy.deepcopy(gm), copies(inputs))
    return tuple(kernel.name for code in record.graphs[-1].code for kernel in code.kernels)


def _write(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], backend: Callable[..., Any], name: str, folder: Path
) -> Path:
    """The script, with random inputs if it fails with these as well."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / SCRIPT
    torch.manual_seed(0)
    simple = [runnable.example(value) for value in inputs]
    saved = None
    if _fails(gm, simple, backend) is None:
        saved = "dynajit_bisect.pt"
        torch.save(copies(inputs), folder / saved)
    path.write_text(runnable.script(gm, inputs, name, saved), encoding="utf-8")
    return path
