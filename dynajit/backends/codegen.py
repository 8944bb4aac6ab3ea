"""`backend="codegen"`, the default: fused kernels in C for CPU tensors and in Triton for those on NVIDIA GPUs,
everything else through torch's dispatcher.

In:  a torch-level graph. Out: a callable that runs its call plans.
Where nothing can be fused (no C compiler, no Triton, another device, a graph of a kind that can't be planned) the ATen
graph runs operator by operator, and one line says so.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from dynajit.aot import by_size, compile_joint, decompositions, host_part
from dynajit.aot.few_layers import compile_few, with_few_layers
from dynajit.aot.inference import freezing
from dynajit.aot.passes.constants import put_on_device
from dynajit.aot.patterns import UserPass, with_user_passes
from dynajit.aot.pipeline import CompileFn, PassContext, run_passes
from dynajit.aot.rewrite import copied, fake_inputs, results_of
from dynajit.backends.registry import USER_PASSES, check_options, register_backend
from dynajit.codegen import describe, generate
from dynajit.codegen.plan import BufferRef, Plan, ViewStep
from dynajit.config import config
from dynajit.graph.meta import NotRepeated, graph_notes, is_view, note_graph
from dynajit.loopir import host_numbers
from dynajit.loopir.registry import LOWERINGS
from dynajit.report import costs, debug, logs, phases, records
from dynajit.runtime import autotune, compile_pool, cpu, cuda_graphs, gpu, toolchain, triton_compiler
from dynajit.runtime.plan_sizes import TooLarge
from dynajit.torch_compat import make_writable

# option -> the values it takes, the default first
_CHOICES: dict[str, tuple[Any, ...]] = {
    "numerics": ("fused", "eager"),
    "freezing": (False, True),
    "max_autotune": (False, True),
    "triton.cudagraphs": (False, True),
    **dict.fromkeys(USER_PASSES, ((),)),
}
# Modes in which plans for GPUs are recorded as CUDA graphs.
_GRAPH_MODES = ("reduce-overhead", "max-autotune")
# (max_autotune, triton.cudagraphs) -> the mode that is short for them
_MODES = {
    (False, False): "default",
    (False, True): "reduce-overhead",
    (True, False): "max-autotune-no-cudagraphs",
    (True, True): "max-autotune",
}
MODES = tuple(_MODES.values())
# modes in which kernels are timed, and the same without
_UNTIMED = {"max-autotune": "reduce-overhead", "max-autotune-no-cudagraphs": "default"}
# why there may be no kernels that take sizes as arguments, and none at all: as where there is no place to write one to
_NOT_FOR_ALL = (generate.CannotGenerate, triton_compiler.TritonError)
_NO_KERNELS = (*_NOT_FOR_ALL, toolchain.ToolchainError, OSError)
_CPU = torch.device("cpu")
_serial = itertools.count()
_told: set[str] = set()


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What the options say."""

    mode: str
    eager_rounding: bool
    freezing: bool
    pre_passes: tuple[UserPass, ...] = ()
    post_passes: tuple[UserPass, ...] = ()


@register_backend(name="codegen")
def codegen(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Functionalise `gm`, differentiate it if need be, and generate code for its ATen graphs.

    Options: `numerics`: "eager" to round bfloat16 and float16 just as eager does, where operators fuse less;
    `freezing`: in inference, take parameters and buffers as constants; `pre_passes` and `post_passes`: lists of
    functions that change a `torch.fx.Graph` in place, the captured one before it is differentiated, and each graph of
    ATen operations after all other passes; new nodes need no `meta`; `max_autotune` and `triton.cudagraphs`: what the
    modes are short for.
    """
    settings = _settings(options.get("mode"), options.get("options") or {})
    device = next((d for d in map(_device, example_inputs) if d is not None and d.type != "cpu"), _CPU)
    why = _unsupported(device)
    if why:
        _tell(f"{why}. Graphs run operator by operator")
        return compile_joint(gm, example_inputs, _run_op_by_op)
    if device.type == "cuda":
        compile_pool.start(gpu.capability(device))
    compile_fn: CompileFn = functools.partial(_generate, settings)
    table = decompositions.for_codegen(device.type, settings.eager_rounding)
    if settings.pre_passes:
        gm = with_user_passes(copied(gm), settings.pre_passes, "example_value")
    weights = freezing.weights_of(gm, example_inputs) if settings.freezing and device.type == "cpu" else None
    if weights:
        compile_fn = freezing.frozen(compile_fn, weights, len(example_inputs))
    try:
        with phases.timer("aot"):
            folded = freezing.fold_batch_norm(gm, weights) if weights else gm
            layouts, repeats = not settings.eager_rounding, not weights and not settings.post_passes
            return compile_joint(folded, example_inputs, compile_fn, table, layouts=layouts, repeats=repeats)
    except (DynamicOutputShapeException, DataDependentOutputException) as error:
        # The operations themselves could be traced, so it is one of their gradients.
        _tell(f"the gradient of an operation depends on values ({error}): its graph runs operator by operator")
        return gm.forward


codegen.works_apart = True  # type: ignore[attr-defined]  # it needs neither the program's tensors nor its thread
codegen.known_options = _CHOICES  # type: ignore[attr-defined]  # `dynajit.compile` checks against it


def _device(value: Any) -> torch.device | None:
    if not isinstance(value, torch.Tensor) or (value.is_nested and value.is_meta):
        return None  # a jagged tensor without memory is what torch's own functions give views their class by
    return value.device


def _unsupported(device: torch.device) -> str:
    """Why no kernels can be made for that device, "" if they can."""
    if device.type != "cpu":
        return gpu.unsupported(device)
    try:
        toolchain.find()
    except toolchain.ToolchainError as error:
        return str(error)
    return ""


def _kernel_device(gm: torch.fx.GraphModule) -> torch.device:
    """The device of the graph's kernels: the first GPU that a tensor is on, else the CPU."""
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        for tensor in value if isinstance(value, (tuple, list)) else (value,):
            device = _device(tensor)
            if device is not None and device.type == "cuda":
                return device
    return _CPU


def _may_have_sizes_in_text(device: torch.device) -> bool:
    """May kernels for the device be made for sizes that are known?"""
    return device.type != "cpu"


def _settings(mode: str | None, options: dict[str, Any]) -> _Settings:
    check_options(options, _CHOICES)
    if mode is None:
        mode = _MODES[bool(options.get("max_autotune")), bool(options.get("triton.cudagraphs"))]
    passes = (tuple(options.get(name, ())) for name in USER_PASSES)
    return _Settings(mode, options.get("numerics") == "eager", bool(options.get("freezing")), *passes)


def _generate(settings: _Settings, gm: torch.fx.GraphModule, inputs: list[Any], phase: str) -> Callable[..., Any]:
    device = _kernel_device(gm)
    if graph_notes(gm).repeated is not None:
        return _repeated(settings, gm, inputs, phase, device)
    why = _unsupported(device) if device.type != "cpu" else ""  # no input of the graph need be there
    if why:
        _tell(f"{why}. Graphs run operator by operator")
        return _run_op_by_op(gm, inputs, phase)
    compiled = _from_few_layers(settings, gm, inputs, phase, device) if phase != "inference" else None
    if compiled is not None:
        return compiled
    if by_size.varies(inputs) and _may_have_sizes_in_text(device):
        return _for_many_sizes(settings, gm, inputs, phase, device)
    try:
        return _compiled(settings, gm, inputs, phase, device)
    except _NO_KERNELS as error:
        _tell(f"{error}; such graphs run operator by operator")
        return _run_op_by_op(gm, inputs, phase)


def _from_few_layers(
    settings: _Settings, gm: torch.fx.GraphModule, inputs: list[Any], phase: str, device: torch.device
) -> Callable[..., Any] | None:
    """A half of a graph that trains, of many equal layers, compiled as one of a few, of which the rest is repeated."""
    if not config.share_layers or settings.post_passes or graph_notes(gm).waited_for:
        return None
    few = with_few_layers(gm)
    if few is None:
        return None
    short, repeated = few
    note_graph(short, repeated=repeated)
    return compile_few(short, repeated, inputs, lambda own: _repeated(settings, short, own, phase, device))


def _repeated(
    settings: _Settings, gm: torch.fx.GraphModule, inputs: list[Any], phase: str, device: torch.device
) -> Callable[..., Any]:
    """The graph of which this is the beginning. Raises NotRepeated where the beginning does not tell."""
    recorded = device.type != "cpu" and settings.mode in _GRAPH_MODES
    whole = (repeated := graph_notes(gm).repeated) is not None and repeated.whole is not None
    if recorded or (not whole and gm.graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default)):
        raise NotRepeated("the whole graph has to be seen")
    try:
        return _compiled(settings, gm, inputs, phase, device)
    except _NO_KERNELS as error:
        raise NotRepeated(str(error)) from error


def _for_many_sizes(
    settings: _Settings, gm: torch.fx.GraphModule, inputs: list[Any], phase: str, device: torch.device
) -> Callable[..., Any]:
    """The graph with kernels that take sizes as arguments. With kernels for one size each where those can't be made,
    for sizes that they have too few bits for, and where kernels are timed, for the first few sizes that are met."""

    timed = settings.mode.startswith("max-autotune") and by_size.sizes_vary(inputs)

    def for_all(others: Callable[..., Any]) -> Callable[..., Any]:
        untimed = dataclasses.replace(settings, mode=_UNTIMED.get(settings.mode, settings.mode)) if timed else settings
        try:
            compiled = _compiled(untimed, gm, inputs, phase, device)
        except _NOT_FOR_ALL as error:
            logs.emit("perf", f"kernels for each size by itself, for one that is an argument: {error}")
            return others

        def call(*given: Any) -> Any:
            try:
                return compiled(*given)
            except TooLarge:
                return others(*given)

        return call

    def for_one(one: torch.fx.GraphModule, fakes: list[Any]) -> Callable[..., Any]:
        return _generate(settings, one, fakes, phase)

    known = by_size.BySize(gm, inputs, for_one, _tell, (lambda: for_all(gm.forward)) if timed else None)
    return known if timed else for_all(known)


# Elements that the CPU's calls of a graph for a GPU make, from which on they are worth kernels and a compiler's time.
_MUCH_FOR_THE_HOST = 1 << 16


def _compiled(
    settings: _Settings, gm: torch.fx.GraphModule, inputs: list[Any], phase: str, device: torch.device
) -> Callable[..., Any]:
    """The graph's plan, ready to run. Raises what can't be planned or compiled."""
    recorded = device.type != "cpu" and settings.mode in _GRAPH_MODES
    above = None if recorded else _MUCH_FOR_THE_HOST
    if device.type != "cpu" and graph_notes(gm).repeated is None:
        put_on_device(gm)
    parts = host_part.split(gm, _in_kernels(gm, device), above) if device.type != "cpu" else None
    if parts is not None:
        if graph_notes(gm).repeated is not None:
            raise NotRepeated("a part of it is for the CPU")
        inside = [(parts.host, _CPU), (parts.device, device)]
        return parts.join(*(_compiled(settings, part, fake_inputs(part), phase, where) for part, where in inside))
    name = f"{phase}_{next(_serial)}"
    if logs.enabled("aot_graphs") or debug.enabled():
        more = logs.verbose("aot_graphs")
        text = gm.print_readable(False, include_stride=more, include_device=more)
        logs.emit("aot_graphs", f"{name}\n{text}")
        debug.write("fx_graph_transformed.py" if phase == "inference" else f"fx_graph_transformed_{phase}.py", text)
    with phases.timer("codegen"):
        plan = _plan(settings, gm, inputs, phase, device, name)
        compiled = cpu.build(plan) if device.type == "cpu" else gpu.build(plan)
        if recorded:
            compiled = cuda_graphs.record(plan, compiled, phase == "backward")
    _report(plan, phase, cuda_graphs.copies(plan, phase == "backward") if recorded else [])
    return compiled


def _in_kernels(gm: torch.fx.GraphModule, device: torch.device) -> Collection[torch.fx.Node]:
    return host_numbers.of_the_device(gm.graph, device, LOWERINGS.__contains__)


def _plan(
    settings: _Settings, gm: torch.fx.GraphModule, inputs: list[Any], phase: str, device: torch.device, name: str
) -> Plan:
    timed = device.type != "cpu" and settings.mode.startswith("max-autotune")
    choose = autotune.chooser(device) if timed else None
    rounding, backward = settings.eager_rounding, phase == "backward"
    noted = graph_notes(gm)
    repeated, original = noted.repeated, noted.original
    gm = run_passes(gm, PassContext(phase, name, device.type, rounding))
    if settings.post_passes:
        gm = with_user_passes(gm, settings.post_passes, "val")
    plan = generate.generate(gm, inputs, name, device, choose, rounding, backward, repeated)
    whole = gm if repeated is None else repeated.whole
    if whole is not None:
        plan = _with_separate_objects(plan, whole)
    elif not _are_separate(plan):
        raise NotRepeated("results are the same tensors")
    return plan if plan.eager is None or original is None else dataclasses.replace(plan, eager=original)


def export_plan(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], made: Callable[[Plan], Callable[..., Any]]
) -> Callable[..., Any]:
    """`codegen` for CPUs, where `made` gives the callable of each plan. Raises what can't be planned."""

    def compile_fn(graph: torch.fx.GraphModule, inputs: list[Any], phase: str) -> Callable[..., Any]:
        return made(_plan(_settings(None, {}), graph, inputs, phase, _CPU, "program"))

    return compile_joint(gm, example_inputs, compile_fn, decompositions.for_codegen("cpu", False), layouts=True)


def _report(plan: Plan, phase: str, copies: list[str]) -> None:
    """Tell the record of the compile, the logs and the debug folder what was made."""
    if logs.enabled("output_code"):
        logs.emit("output_code", f"{plan.name}\n{plan.source}" + (f"\n{plan}" if logs.verbose("output_code") else ""))
    code = describe.describe(plan, phase)
    code.copies = copies
    if logs.enabled("fusion"):
        more = logs.verbose("fusion")
        lines = [line for kernel in code.kernels for line in _fusion_lines(kernel, more)]
        lines += [f"called through torch: {', '.join(code.extern)}"] if code.extern else []
        logs.emit("fusion", "\n".join([plan.name, *lines]))
    if debug.enabled():
        debug.write("ir_post_fusion.txt", str(plan))
        name = "output_code.c" if code.language == "c" else "output_code.py"
        debug.write(name, lambda file: describe.standalone(plan, file))
    record = records.current()
    if record is not None and record.graphs:
        record.graphs[-1].code.append(code)


def _fusion_lines(kernel: records.KernelRecord, more: bool) -> list[str]:
    lines = [f"{kernel.name}: {', '.join(kernel.operations)}"]
    if more:
        moved = "known when called" if kernel.bytes_moved is None else costs.size(kernel.bytes_moved)
        lines += [f"  moves {moved}", *(f"  {line}" for line in kernel.lines)]
    return lines


def _with_separate_objects(plan: Plan, gm: torch.fx.GraphModule) -> Plan:
    """`plan` with an output of its own for each node that the graph returns.

    To a plan `x.detach()` or `x.view_as(x)` is x; to the user it is another tensor with the same memory.
    """
    if gm.graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
        shown = len(plan.outputs) if plan.returns is None else plan.returns  # the rest is kept for the backward
        plan = _detach_first(plan, {place: found for place, found in _detached(gm).items() if place < shown})
    owners: dict[str, Any] = dict(zip(plan.inputs, gm.graph.find_nodes(op="placeholder"), strict=True))
    owners |= {str(node.target): node.target for node in gm.graph.find_nodes(op="get_attr")}
    outputs, steps = list(plan.outputs), list(plan.steps)
    buffers = dict(plan.buffers)
    nodes = results_of(gm)
    # what others are views of comes before them in the graph, and must be none: autograd asks
    order = {node: at for at, node in enumerate(gm.graph.nodes)}
    places = [at for at, output in enumerate(outputs) if isinstance(output, BufferRef)]
    for at in sorted(places, key=lambda at: order[nodes[at]]):
        node, output = nodes[at], plan.outputs[at]
        owner = node.target if node.op == "get_attr" else node
        if owners.setdefault(output.name, owner) is not owner:
            alias = f"{output.name}_alias{at}"
            buffers[alias] = dataclasses.replace(buffers[output.name], name=alias)
            steps.append(ViewStep(alias, output.name, 0))
            outputs[at] = BufferRef(alias)
    return dataclasses.replace(plan, outputs=tuple(outputs), steps=tuple(steps), buffers=buffers)


def _are_separate(plan: Plan) -> bool:
    """Whether each output is a tensor of its own as it is."""
    names = [output.name for output in plan.outputs if isinstance(output, BufferRef)]
    return len(set(names)) == len(names) and not {*names} & {*plan.inputs, *plan.constants}


def _detached(gm: torch.fx.GraphModule) -> dict[int, tuple[torch.fx.Node, bool]]:
    """Places of the outputs that are views after a `detach`, the last `detach` on the way, and whether the output is a
    view of that."""
    found: dict[int, tuple[torch.fx.Node, bool]] = {}
    for place, node in enumerate(results_of(gm)):
        last, detach = node, None
        while isinstance(node, torch.fx.Node) and node.op == "call_function" and is_view(node):
            if detach is None and node.target is torch.ops.aten.detach.default:
                detach = node
            node = node.args[0]
        if detach is not None and isinstance(node, torch.fx.Node):
            found[place] = detach, last is not detach
    return found


def _detach_first(plan: Plan, detached: dict[int, tuple[torch.fx.Node, bool]]) -> Plan:
    """`plan` with the outputs at these places seen through a real `detach` of the input, or the other output, that they
    are views of: to a plan a detached tensor is that one, to autograd it is no view of it."""
    outputs, steps, buffers = list(plan.outputs), list(plan.steps), dict(plan.buffers)
    others = {ref.name for place, ref in enumerate(outputs) if place not in detached and isinstance(ref, BufferRef)}
    views = {step.output: step for step in plan.steps if isinstance(step, ViewStep)}
    names: dict[torch.fx.Node, str] = {}
    for place, (node, viewed) in detached.items():
        output = outputs[place]
        if not isinstance(output, BufferRef):
            continue
        view = views.get(output.name)
        base = output.name if view is None else view.base
        if base not in plan.inputs and base not in others:
            continue
        if node not in names:
            name = names[node] = f"{base}_detached{len(names)}"
            buffers[name] = dataclasses.replace(buffers[base], name=name)
            steps.insert(0 if base in plan.inputs else len(steps), ViewStep(name, base, 0, detached=True))
        outputs[place] = BufferRef(names[node])
        if view is not None or viewed:
            name = f"{output.name}_detached{place}"
            buffers[name] = dataclasses.replace(buffers[output.name], name=name)
            steps.append(ViewStep(name, names[node], 0 if view is None else view.offset))
            outputs[place] = BufferRef(name)
    return dataclasses.replace(plan, outputs=tuple(outputs), steps=tuple(steps), buffers=buffers)


def _run_op_by_op(gm: torch.fx.GraphModule, inputs: list[Any], phase: str) -> Callable[..., Any]:
    make_writable(gm)
    return gm.forward


def _tell(reason: str) -> None:
    """Warn once for each reason, which its first line is: it costs speed, and can be mended."""
    if (kind := reason.partition("\n")[0]) not in _told:
        _told.add(kind)
        warnings.warn(f"dynajit: {reason}", stacklevel=2)
