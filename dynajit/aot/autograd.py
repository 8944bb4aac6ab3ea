"""The road through torch's AOTAutograd: joint graph, partition, and a runtime that knows every mutation and alias.

In:  a torch-level graph whose outputs may require gradients (or that the short road refused).
Out: a callable; forward and backward are what `compile_fn` made of the partitioned graphs.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._subclasses.fake_tensor import FakeTensorMode, is_fake
from torch.fx._lazy_graph_module import _LazyGraphModule

from dynajit import _C, torch_compat
from dynajit.aot.decompositions import Decompositions
from dynajit.aot.legality import GraphFacts, is_drawn
from dynajit.aot.modes import one_at_a_time
from dynajit.aot.passes.recurrent import lstm_with_backward
from dynajit.aot.pipeline import CompileFn, CompileOptions, PassContext, run_passes
from dynajit.aot.rewrite import fake_inputs, is_of_backward, is_tangent, results_of, with_results
from dynajit.aot.runtime_wrappers import eager_on_overlap
from dynajit.aot.trace import same_layout
from dynajit.aot.training.constant_gradients import marking, with_marked_hooks, without_marks
from dynajit.aot.training.double_backward import (
    DoubleBackward,
    autocast_state,
    differentiable_twice,
    is_computed_from,
    reason_against,
)
from dynajit.aot.training.few_halves import grown, with_few_calls
from dynajit.aot.training.partial_backward import PartialBackwardCache
from dynajit.aot.training.reachability import (
    AutogradGraph,
    BackwardReachability,
    asked_in_part,
    autograd_graph_of,
    reachability_of,
)
from dynajit.aot.training.saved_copies import is_small
from dynajit.aot.training.shared_layers import NotShared, OddLayers, SharedLayers, share_layers
from dynajit.aot.training.training_call import CompiledHalf, without_wrapper
from dynajit.aot.training.version_checks import KeptInput, checking_versions, kept_inputs, version_checks
from dynajit.aot.training.written_inputs import has_new_history
from dynajit.config import config
from dynajit.graph.meta import NotRepeated, graph_notes, memory, note_graph, notes, value_of
from dynajit.nested import reached
from dynajit.op_facts import only_acts, starts_collective
from dynajit.report import logs
from dynajit.symbols import is_symbolic
from dynajit.torch_compat import memory_of
from dynajit.wrappers import is_wrapper

_BOTH = "forward", "backward"
_MAX_TRACES = 3  # of a graph whose layers turn out not to be alike, before it is traced as it is


def compile_with_autograd(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions
) -> Callable[..., Any]:
    """`gm` through AOTAutograd, with the min-cut partitioner deciding what forward keeps for backward."""
    with one_at_a_time():
        return _compile(run_passes(gm, PassContext("autograd")), example_inputs, options)


def _compile(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions, few: bool = True
) -> Callable[..., Any]:
    """`compile_with_autograd` after the passes; `few`: whether AOTAutograd may see few of many layers."""
    facts = GraphFacts(gm)
    _refuse_writes(facts, example_inputs)
    history = autograd_graph_of(gm)
    viewed = _with_late_views(gm, history)
    holds = _refuse_functions(gm, history)
    passes = PassContext("traced")
    traced = run_passes(gm, passes)
    reach = reachability_of(history, viewed and viewed.history)
    if reach is not None:
        traced = with_marked_hooks(traced)
    # AOTAutograd leaves in the context which inputs are mutated. Under torch.compile there is one already.
    fake_mode = detect_fake_mode(list(example_inputs)) or FakeTensorMode(static_shapes=True)
    context = TracingContext.try_get() or TracingContext(fake_mode)
    kept = kept_inputs(gm, history)
    halves = _Halves(options.compile_fn, context, reach, [notes(node).waited_for for node in facts.inputs])
    with lstm_with_backward(gm), marking(history):
        inputs = [_as_fake(value, fake_mode) for value in example_inputs]
        by_memory = dict(zip(map(memory_of, inputs), kept, strict=kept != []))
        partition = functools.partial(_partition, context, options.layouts, by_memory)
        compiled = _layer_by_layer(traced, inputs, halves, partition, options, fake_mode, few and not facts.written)
    metadata = context.fw_metadata
    if metadata is not None and metadata.bw_donated_idxs is None:
        # None would make backward(retain_graph=True) fail like a list of donated buffers.
        metadata.bw_donated_idxs = []
    _refuse_halves(metadata, facts, halves)
    mutated = _mutated(context, example_inputs)
    drawn = list(filter(is_drawn, gm.graph.nodes))
    once = reason_against(drawn)
    double = None if once else DoubleBackward(torch_compat.forward_of(gm), autocast_state(example_inputs))
    # that autograd hears nothing of
    hidden = frozenset(mutated).difference(getattr(metadata, "mutated_inp_runtime_indices", ()))
    if any(has_new_history(node) for at, node in enumerate(facts.inputs) if at in hidden):
        raise RuntimeError("a Function marks an input dirty, which AOTAutograd takes for a write without gradients")
    checks = [] if history is None else version_checks(gm, history, hidden)
    again, copied = _run_again(double, viewed, _computed_from(halves, hidden))
    parts = halves.made, len(example_inputs), again, halves.partial, history, checks, kept
    # torch 2.11's findings are of the tensors inside of wrappers
    wraps = any(is_wrapper(value_of(node)) for node in (*facts.inputs, *facts.returned))
    own = None if wraps else without_wrapper(metadata, *parts, bool(drawn), mutated, copied, holds)
    if own is not None:
        assert metadata is not None
        mode = metadata.grad_enabled_mutation
        compiled = passes.wrapped(own if mode is None else functools.partial(_left_in_mode, mode, own))
    elif compiled is None:
        return _compile(gm, example_inputs, options, few=False)
    else:
        _refuse_one_node(halves)
        compiled = passes.wrapped(compiled)
        if double is not None:
            compiled = differentiable_twice(double, compiled, mutated, *_returned(metadata), holds, bool(drawn))
        elif holds is not None:
            raise RuntimeError("backward reads state that may have changed by then, and the graph can't run again")
        checks = [] if history is None else version_checks(gm, history, frozenset())
        if history is not None and checks:
            compiled = checking_versions(compiled, history, checks)
    return _while_state_holds(gm, eager_on_overlap(example_inputs, mutated, torch_compat.forward_of(gm), compiled))


class _Viewed(NamedTuple):
    """The graph with the views of its results that are taken once more after it; what autograd has of that."""

    graph: torch.fx.GraphModule
    history: AutogradGraph
    views: int


def _run_again(
    double: DoubleBackward | None, viewed: _Viewed | None, copied: list[int] | None
) -> tuple[DoubleBackward | None, list[int]]:
    """What runs the graph again, if anything, with the views, and the inputs to copy for it."""
    if copied is None:
        return None, []
    if double is not None and viewed is not None:
        double = DoubleBackward(torch_compat.forward_of(viewed.graph), double.autocast, views=viewed.views)
    return double, copied


def _refuse_one_node(halves: _Halves) -> None:
    """Raise RuntimeError where torch's wrapper, with one node for all results, gives other gradients than eager."""
    if halves.reach is not None and halves.reach.apart:
        raise RuntimeError("backward may start from one result after the other, and the graph is one node to autograd")
    if "backward" in halves.made and not any(map(_is_node, results_of(halves.made["backward"].graph))):
        raise RuntimeError("no gradient gets to an input: torch's wrapper would detach them all, and its results")


def _with_late_views(gm: torch.fx.GraphModule, history: AutogradGraph | None) -> _Viewed | None:
    """None: there are none, or autograd's graph of them is not one that leads to the results."""
    names = graph_notes(gm).late_views
    views = sorted((node for node in gm.graph.nodes if node.name in names), key=lambda node: names.index(node.name))
    if history is None or not views or len(views) != len(names) or history.written:
        return None
    graph = with_results(gm, views, lambda node: node)
    found = autograd_graph_of(graph)
    if found is None or found.written or len(found.results) != len(history.results) + len(views):
        return None
    return _Viewed(graph, found, len(views))


class _Halves:
    """The forward and the backward graph, or the one for inference, compiled as AOTAutograd makes them.

    made: by phase. partial: the backward graph for some of the results' gradients, if `reach` says what these are.
    waited_for: of each input, whether somebody is told when it has got its gradient.
    """

    def __init__(
        self,
        compile_fn: CompileFn,
        context: TracingContext,
        reach: BackwardReachability | None,
        waited_for: Sequence[bool],
    ) -> None:
        self.compile_fn = compile_fn
        self.context = context
        self.reach = reach
        self.waited_for = waited_for
        self.with_gradients_on = torch.is_grad_enabled()
        self.made: dict[str, CompiledHalf] = {}
        self.partial: PartialBackwardCache | None = None

    def compiler(self, phase: str) -> Callable[..., Any]:
        """What AOTAutograd calls with the graph of a phase and its inputs."""
        return functools.partial(self._compile, phase)

    def _compile(self, phase: str, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[[list[Any]], Any]:
        metadata = self.context.fw_metadata
        returned = getattr(metadata, "num_forward_returns", 0) if phase == "forward" else 0
        if metadata is not None:  # it would set attributes on the program's tensors, for torch.compile's next graph
            metadata.dynamic_outputs, metadata.dynamic_saved_tensors_idxs = False, {}
        if phase == "forward":
            note_graph(graph, returns=returned)
        if phase == "backward":
            own = len(metadata.input_info) - len(self.waited_for) if metadata is not None else 0
            note_graph(graph, waited_for=frozenset(own + at for at, waited in enumerate(self.waited_for) if waited))
        if phase != "backward" and metadata is not None:
            # the graph's own copies into inputs count as writes; the call is not to count them again
            metadata.mutated_graph_handled_indices_seen_by_autograd = []
        if phase == "backward" and self.reach is not None:
            if sum(map(is_tangent, graph.graph.find_nodes(op="placeholder"))) != len(self.reach.inputs):
                raise RuntimeError("AOTAutograd asks for gradients of other results than autograd's graph leads to")
            later = functools.partial(_compile_backward, self.compile_fn, self.context)
            autocast = torch_compat.any_autocast_enabled()
            self.partial = PartialBackwardCache(lambda: graph, self.reach, later, autocast)
            self.partial.compile_usual()
            compiled: Callable[..., Any] = self.partial.of_all
        else:
            # backward may be compiled at its first run, inside of whatever the program captures then
            compiled = _C.call_eager(self.compile_fn, (graph, inputs, phase))
        self.made[phase] = CompiledHalf(graph, compiled)
        # autograd refuses writes of a view that a node of torch's wrapper returns
        boxed = _boxed(compiled, returned)
        return _with_usual_views(boxed) if phase == "inference" and self.with_gradients_on else boxed


def _compile_backward(
    compile_fn: CompileFn, context: TracingContext, graph: torch.fx.GraphModule
) -> Callable[..., Any]:
    inputs = fake_inputs(graph)
    with tracing(context):
        return _C.call_eager(compile_fn, (graph, inputs, "backward"))  # type: ignore[no-any-return]


def _layer_by_layer(
    gm: torch.fx.GraphModule,
    inputs: list[Any],
    halves: _Halves,
    partition: Callable[..., Any],
    options: CompileOptions,
    fake_mode: FakeTensorMode,
    few: bool,
) -> Callable[..., Any] | None:
    """`_aot_autograd`, which sees one of several equal layers, and few calls of it. None where the halves are there and
    torch's wrapper is not: it saw few layers."""

    def trace(part: torch.fx.GraphModule, part_inputs: list[Any], keep: Callable[..., Any]) -> Any:
        return _aot_autograd(part, part_inputs, halves, keep, options.decompositions)

    try:
        shared = share_layers(gm, fake_mode, trace) if config.share_layers else None
        for _ in range(_MAX_TRACES):
            if shared is None:
                break
            put_together = functools.partial(_put_together, shared, partition)
            try:
                with shared.running():
                    if few and _from_few_layers(shared, inputs, halves, put_together, options.decompositions):
                        return None
                    return trace(shared.module, inputs, functools.partial(put_together, inputs))
            except OddLayers as error:
                shared = shared.made_for(error.layouts)
    except NotShared as error:
        logs.emit("aot_graphs", f"layers are traced one by one: {error}")
    return trace(gm, inputs, functools.partial(partition, inputs))


def _put_together(
    shared: SharedLayers,
    partition: Callable[..., Any],
    inputs: Sequence[Any],
    joint: torch.fx.GraphModule,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """The halves of a joint graph of calls of layers."""
    return partition(inputs, shared.put_into(joint), *args, **kwargs)


def _from_few_layers(
    shared: SharedLayers,
    inputs: list[Any],
    halves: _Halves,
    put_together: Callable[..., Any],
    decompositions: Decompositions,
) -> bool:
    """Whether the halves are made: of those of a few layers, where layers do but follow each other. Raises
    OddLayers."""
    import torch._functorch.config as functorch_config

    # a budget would be shared out over the few layers only
    alike = functorch_config.activation_memory_budget == 1 and shared.are_alike()
    few = with_few_calls(shared.module) if alike else None
    if few is None:
        return False
    own = [inputs[at] for at in few.inputs.kept]
    short, before = _Halves(_not_yet, halves.context, None, ()), halves.context.fw_metadata
    try:
        _aot_autograd(few.module, own, short, functools.partial(put_together, own), decompositions)
        metadata: Any = halves.context.fw_metadata
        if short.made.keys() != {*_BOTH} or not _is_plain(metadata, len(own)):
            raise NotRepeated("its results or inputs are not tensors of their own")
        results = few.results.for_all(metadata.output_info)
        differentiable = [bool(info.requires_grad) for info in results]
        forward, backward = grown(few, inputs, differentiable, *(short.made[half].graph for half in _BOTH))
    except (OddLayers, NotRepeated) as error:
        halves.context.fw_metadata = before  # which the partition of the whole asks
        if isinstance(error, OddLayers):
            raise OddLayers(few.of_layers(error.layouts)) from error
        logs.emit("aot_graphs", f"all layers are partitioned: {error}")
        return False
    every = few.inputs.for_all(metadata.input_info)
    halves.context.fw_metadata = dataclasses.replace(metadata, input_info=every, output_info=results)
    with _as_in_autograd(inputs, halves.context), torch.no_grad(), torch._C._DisableAutocast():
        for half, graph in zip(_BOTH, (forward, backward), strict=True):
            halves.compiler(half)(graph, fake_inputs(graph))
    return True


def _not_yet(*_: Any) -> Callable[..., Any]:
    """Nothing that is called: the graph is a part of what is compiled."""
    return _not_yet


def _is_plain(metadata: Any, n_inputs: int) -> bool:
    """Whether it is a graph for which torch's wrapper is not needed, and that writes nothing."""
    found = torch_compat.plain_training(metadata)
    return (
        found is not None
        and not found[-1]
        and not metadata.mutated_graph_handled_indices
        and len(metadata.input_info) == n_inputs
    )


def _aot_autograd(
    gm: torch.fx.GraphModule,
    inputs: list[Any],
    halves: _Halves,
    partition: Callable[..., Any],
    decompositions: Decompositions,
) -> Callable[..., Any]:
    from torch._functorch.aot_autograd import aot_module_simplified

    with _as_in_autograd(inputs, halves.context):
        return _again_if_asked(
            lambda: aot_module_simplified(
                gm,
                inputs,
                fw_compiler=halves.compiler("forward"),
                bw_compiler=halves.compiler("backward"),
                inference_compiler=halves.compiler("inference"),
                partition_fn=partition,
                decompositions=decompositions,
                keep_inference_input_mutations=True,
            )
        )


@contextlib.contextmanager
def _as_in_autograd(inputs: Sequence[Any], context: TracingContext) -> Iterator[None]:
    """torch's settings while it traces, and while what it made is compiled."""
    import torch._functorch.config as functorch_config

    with (
        functorch_config.patch(torch_compat.aot_options()),
        torch_compat.floats_stay_symbolic(),
        torch_compat.first_calls_unwatched(),
        torch_compat.generators_untouched(),
        torch_compat.graphs_shown_on_demand(),
        torch_compat.failures_unreported(),
        torch_compat.effects_in_place(only_acts),
        torch_compat.lazy_graphs(),
        torch_compat.interpolation_whole() if _differentiates_whole(inputs) else contextlib.nullcontext(),
        tracing(context),
    ):
        yield


def _differentiates_whole(inputs: Sequence[Any]) -> bool:
    """Whether interpolations keep their operators: of known sizes, on CPUs. A GPU's kernels fuse what they become."""
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    numbers = [*inputs, *(size for tensor in tensors for size in tensor.shape)]
    return not any(map(is_symbolic, numbers)) and all(tensor.device.type == "cpu" for tensor in tensors)


def _while_state_holds(gm: torch.fx.GraphModule, compiled: Callable[..., Any]) -> Callable[..., Any]:
    state = graph_notes(gm).backward_state
    return compiled if state is None else state.until_moved(compiled, torch_compat.forward_of(gm))


def _refuse_functions(gm: torch.fx.GraphModule, history: AutogradGraph | None) -> Callable[[], bool] | None:
    """Raise RuntimeError where a Function's backward has to be the real one. What else tells that it is, if anything
    does: see `_C.TrainingCall`."""
    state = graph_notes(gm).backward_state
    if state is not None and state.cannot_be_told:
        raise RuntimeError("forward and backward of a Function read state that may change between them")
    if history is not None and asked_in_part(history):
        raise RuntimeError("the backward of a Function sees which of its results have gradients")
    return None if state is None else state.holds


def _refuse_writes(facts: GraphFacts, example_inputs: Sequence[Any]) -> None:
    """Raise RuntimeError for writes to inputs that AOTAutograd makes something else of."""
    written = facts.written - {None}
    memories = collections.Counter(map(memory_of, example_inputs))
    if any(memories[own] > 1 for own in written):
        # it makes one input of them, and takes for granted that they share memory at each call
        raise RuntimeError("it writes an input that shares memory with another")
    for node in facts.inputs if written else ():
        value, before = value_of(node), notes(node).grad_fn
        if before is not None and value.grad_fn is before and memory_of(value) in written:
            # it gives the input a history that goes through the graph's only node
            raise RuntimeError("it writes an input that has a history, past autograd")


def _refuse_halves(metadata: Any, facts: GraphFacts, halves: _Halves) -> None:
    """Raise RuntimeError where what AOTAutograd made of a graph that writes is not what eager does."""
    if "forward" in halves.made:
        _refuse_written_saves(metadata, halves.made["forward"].graph)
    for phase in halves.made.keys() - {"backward"}:
        _refuse_other_strides(metadata, facts, halves.made[phase].graph)


def _refuse_written_saves(metadata: Any, forward: torch.fx.GraphModule) -> None:
    """Raise RuntimeError where backward needs what an input held before the graph wrote it: what is kept is the input's
    own memory, which holds the new values by then. Eager's operations keep a copy, or their backward fails."""
    if metadata is None:
        return
    inputs = forward.graph.find_nodes(op="placeholder")
    written = {
        memory(node)
        for node, info in zip(inputs, metadata.input_info, strict=False)
        if info.mutates_data or info.mutates_metadata
    } - {None}
    saved = results_of(forward)[metadata.num_forward_returns :]
    if any(isinstance(node, torch.fx.Node) and memory(node) in written for node in saved):
        raise RuntimeError("backward needs an input as it was before the graph wrote it")


def _refuse_other_strides(metadata: Any, facts: GraphFacts, forward: torch.fx.GraphModule) -> None:
    """Raise RuntimeError where a result of a program that writes tensors has other strides in the functional graph: a
    tensor keeps its own when it is written, what the graph makes instead has those of a new one."""
    results = results_of(forward)
    if metadata is None or not (facts.written or facts.outs) or len(results) < metadata.num_forward_returns:
        return
    first = metadata.num_mutated_inp_runtime_indices
    for wanted, result in zip(results_of(facts.gm), results[first:], strict=False):
        value = value_of(wanted)
        made = value_of(result)
        if not isinstance(made, torch.Tensor) or not isinstance(value, torch.Tensor) or made.dim() != value.dim():
            continue
        if not same_layout(value, made):
            raise RuntimeError("tensors keep their strides when they are written, a functional graph makes others")


def _own_inputs(context: TracingContext, inputs: Sequence[Any]) -> int:
    """How many parameters, which come first, the module itself holds."""
    return 0 if context.fw_metadata is None else len(context.fw_metadata.input_info) - len(inputs)


def _partition(
    context: TracingContext,
    layouts: bool,
    kept: Mapping[int | None, KeptInput],
    inputs: Sequence[Any],
    joint: torch.fx.GraphModule,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Forward and backward of a joint graph. The partitioner that recomputes cheap values takes no symbolic floats from
    the one to the other; the plain one, which saves what backward needs, does.

    kept: by the memory of an input, how eager keeps it, as `kept_inputs` says.
    """
    from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition

    joint = without_marks(joint)
    _keep_in_place(joint)
    if any(isinstance(node.meta.get("val"), torch.SymFloat) for node in joint.graph.nodes):
        return default_partition(joint, *args, **kwargs)
    regions = any("recompute" in node.meta for node in joint.graph.nodes)  # of torch.utils.checkpoint
    passes = PassContext("joint", n_results=kwargs["num_fwd_outputs"], has_regions=regions, layouts=layouts)
    given = joint.graph.find_nodes(op="placeholder")[_own_inputs(context, inputs) :]
    known = [(memory(node), kept.get(memory_of(value))) for node, value in zip(given, inputs, strict=False)]
    passes.kept = {own for own, how in known if own is not None and how is not None and how.itself}
    passes.kept_twice = {own for own, how in known if own in passes.kept and how is not None and how.aliases}
    joint = run_passes(joint, passes)
    forward, backward = min_cut_rematerialization_partition(joint, *args, **kwargs)
    backward = _LazyGraphModule.from_graphmodule(backward)  # the partitioner's reordering makes one that is not
    passes.phase, passes.backward = "partition", backward
    return run_passes(forward, passes), backward


def _keep_in_place(joint: torch.fx.GraphModule) -> None:
    """Have what checks or prints, and gives nothing, in the half that it was traced in, and not in the other; and a
    collective of the backward pass in that, though it is of what forward knows. The partitioner drops what no one reads
    of the backward pass's nodes before the first that reads a gradient."""
    tangents = set(filter(is_tangent, joint.graph.find_nodes(op="placeholder")))
    early: dict[torch.fx.Node, None] = {}  # what stays in the backward pass and is before that node, and what reads it
    for node in list(joint.graph.nodes):
        backward = is_of_backward(node)
        stays = node.op == "call_function" and (only_acts(node.target) or (backward and starts_collective(node.target)))
        if stays:
            node.meta["partitioner_tag"] = f"must_be_in_{'backward' if backward else 'forward'}"
        if tangents and node.op != "output":
            if not tangents.isdisjoint(node.all_input_nodes):
                read = set(reached(node.all_input_nodes, lambda one: one.all_input_nodes)) if early else set()
                for each in reversed([one for one in early if one not in read]):
                    node.append(each)
                tangents = set()
            elif (stays and backward) or not early.keys().isdisjoint(node.all_input_nodes):
                early[node] = None


def _again_if_asked(compile: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """AOTAutograd's pass over symbolic floats raises when it finds one that has become a constant, having noted which:
    the caller is to start again."""
    grad_enabled = torch.is_grad_enabled()
    try:
        return compile()
    except Exception as error:
        if not torch_compat.asks_to_start_again(error):
            raise
    torch._C._set_grad_enabled(grad_enabled)  # the graph's own changes of it were under way
    return compile()


def _as_fake(value: Any, fake_mode: FakeTensorMode) -> Any:
    """A fake of static shape: left to itself AOTAutograd would make the sizes of a real tensor symbolic."""
    if not isinstance(value, torch.Tensor) or is_fake(value):
        return value
    return fake_mode.from_tensor(value, static_shapes=True)


def _left_in_mode(grad_enabled: bool, compiled: Callable[..., Sequence[Any]], *inputs: Any) -> Sequence[Any]:
    """`compiled` and the grad mode that the graph ends in."""
    results = compiled(*inputs)
    torch._C._set_grad_enabled(grad_enabled)
    return results


def _mutated(context: TracingContext, inputs: Sequence[Any]) -> list[int]:
    metadata = context.fw_metadata
    if metadata is None:
        return list(range(len(inputs)))
    # AOTAutograd puts parameters that the module itself holds before the inputs.
    own = len(metadata.input_info) - len(inputs)
    return [at - own for at, info in enumerate(metadata.input_info) if info.mutates_data and at >= own]


def _computed_from(halves: _Halves, mutated: Collection[int]) -> list[int] | None:
    """Those of its written inputs of which a training graph reads what they held before; None if one is too large for a
    copy at each call, which eager does not make."""
    if not mutated or "forward" not in halves.made:
        return []
    forward = halves.made["forward"].graph
    parameters = forward.graph.find_nodes(op="placeholder")
    own = len(parameters) - len(halves.waited_for)
    found = [at for at in sorted(mutated) if is_computed_from(forward, [own + at])]
    return found if all(is_small(parameters[own + at]) for at in found) else None


def _returned(metadata: Any) -> tuple[list[int], list[int]]:
    """What torch's node returns before and after the results: the new values of these inputs, and what these results
    are views of."""
    from torch._functorch._aot_autograd.schemas import OutputType

    if metadata is None:
        return [], []
    kinds = {OutputType.alias_of_intermediate, OutputType.alias_of_intermediate_save_as_output}
    views = {info.base_idx: at for at, info in enumerate(metadata.output_info) if info.output_type in kinds}
    return list(metadata.mutated_inp_runtime_indices), [views[at] for at in sorted(views)]


def _is_node(value: Any) -> bool:
    return isinstance(value, torch.fx.Node)


def _with_usual_views(boxed: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """The results' views do not know that torch's wrapper turns gradients off for the call: else they would refuse
    writes that eager's take."""
    off, usual = torch._C._autograd.CreationMeta.NO_GRAD_MODE, torch._C._autograd.CreationMeta.DEFAULT

    def call(args: list[Any]) -> Any:
        results = boxed(args)
        for result in results:
            is_view = isinstance(result, torch.Tensor) and result._is_view()
            if is_view and torch._C._autograd._get_creation_meta(result) == off:
                torch._C._autograd._set_creation_meta(result, usual)
        return results

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _boxed(fn: Callable[..., Any], returned: int) -> Callable[[list[Any]], Any]:
    """AOTAutograd's calling convention: one list, emptied by the callee so that inputs can die early. The first
    `returned` results are views of nothing."""

    def call(args: list[Any]) -> Any:
        return _C.call_giving(fn, args, returned)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call
