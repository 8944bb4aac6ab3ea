"""The entry of the aot layer: chooses the road for a graph and joins what the backend compiled.

In:  a torch-level GraphModule (parameters are placeholders) and an example of each input.
Out: a callable taking the graph's inputs and returning its outputs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from dynajit import torch_compat
from dynajit.aot.decompositions import ALWAYS, Decompositions
from dynajit.aot.few_layers import compile_few, with_few_layers
from dynajit.aot.legality import (
    VIEW_OF_SEVERAL,
    GraphFacts,
    grad_modes,
    why_not_differentiable,
    why_not_traceable,
    writes_past_autograd,
)
from dynajit.aot.modes import levels_left
from dynajit.aot.passes.unused import gives_nothing
from dynajit.aot.passes.version_exempt_writes import marking, marking_version_exempt
from dynajit.aot.pipeline import CompileFn, CompileOptions, PassContext, PassFailed, run_passes
from dynajit.aot.rewrite import copied
from dynajit.aot.runtime_wrappers import with_autocast, with_casts_of_autocast, with_creation_metas, wrap_inference
from dynajit.aot.subclasses import (
    WRITES,
    NotDesugared,
    Plain,
    has_ragged_sizes,
    has_wrappers,
    once_arrived,
    one_by_one,
    plain_inputs,
    why_as_captured,
    without_wrappers,
    wrapped,
    writes_what_is_given,
)
from dynajit.aot.trace import FunctionalGraph, NotFunctional, NotSimple, trace_functional
from dynajit.aot.training.early_views import with_early_views
from dynajit.aot.training.late_views import loses_its_place, with_late_views
from dynajit.aot.training.optimizer_step import split_after_optimizer_step, without_gradients
from dynajit.aot.training.pieces import CompilePiece, checks_gradients, in_pieces, regions_of
from dynajit.aot.training.written_inputs import split_after_writes
from dynajit.config import config
from dynajit.graph.meta import NotRepeated, note_graph, notes
from dynajit.report import logs
from dynajit.report.counters import counters
from dynajit.report.places import is_own
from dynajit.symbols import is_symbolic

# What functionalisation, decompositions and AOTAutograd raise for graphs that they can't express.
_CANT_EXPRESS = (RuntimeError, AssertionError, ValueError, TypeError)


def compile_joint(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    compile_fn: CompileFn,
    decompositions: Decompositions | None = None,
    layouts: bool = False,
    repeats: bool = False,
) -> Callable[..., Any]:
    """Functionalise and decompose `gm`, differentiate it where autograd will ask, compile the parts with `compile_fn`.

    Args:
        gm: a torch-level graph whose parameters and buffers are inputs, each node with its fake value in
            `example_value`. It stays as it is, and runs where tracing it would lose something.
        example_inputs: for each input a real or fake tensor, or a number that may be symbolic.
        compile_fn: makes a callable of an ATen graph, its fake inputs and what it is: "inference", "forward" or
            "backward".
        decompositions: rules for ATen operators, by overload, beside those that every graph needs.
        layouts: whether what only training graphs see may have other strides than in eager.
        repeats: whether `compile_fn` takes the beginning of a graph, noted as `Repeated`, for all of it, or raises
            NotRepeated.

    Returns:
        A callable with the graph's inputs, in order, which returns a sequence of its outputs. It belongs to the grad
        mode, inference mode, autocast state and input metadata that it was compiled under: the caller guards on them.

    Raises:
        What `compile_fn` raises. `DynamicOutputShapeException` or `DataDependentOutputException` where a gradient's
        size depends on values.
    """
    passes = PassContext("captured")
    gm = run_passes(gm, passes)
    with contextlib.ExitStack() as inside:
        for mode in passes.inside:
            inside.enter_context(mode())
        options = CompileOptions(compile_fn, {**ALWAYS, **(decompositions or {})}, layouts, repeats)
        if not has_wrappers(gm):
            return passes.wrapped(_compile(gm, example_inputs, options))
        taken_apart = _compile_wrappers(gm, example_inputs, options)
        return once_arrived(gm, passes.wrapped(taken_apart or _compile(gm, example_inputs, options)))


def _compile_wrappers(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions
) -> Callable[..., Any] | None:
    """The road of a graph with tensor subclasses that wrap tensors; None where AOTAutograd takes them apart."""
    facts = GraphFacts(gm)
    reason = why_not_traceable(facts)
    text = why_as_captured(facts) if reason is None else reason.text
    writes, differentiated = writes_what_is_given(facts), _may_need_grad(facts, example_inputs)
    if text is None and writes and (differentiated or torch.is_grad_enabled()):
        piece = functools.partial(compile_joint, **vars(options))
        return without_gradients(facts, example_inputs, piece) or _as_captured(gm, WRITES)
    if text is None and not facts.has_levels and not differentiated:
        try:
            plain = without_wrappers(gm)
        except (NotDesugared, *_CANT_EXPRESS) as error:
            logs.emit("aot_graphs", f"through AOTAutograd: {error}")
            if torch.is_inference_mode_enabled():
                text = "tensor subclasses are asked about other operations in inference mode than there"
        else:
            inputs = plain_inputs(example_inputs)
            compiled = _compile_writes(plain, inputs, options) if writes else _compile(plain.module, inputs, options)
            if compiled is not None:
                return wrapped(gm, plain, compiled)
    if text is None and writes:
        text = WRITES
    if text is None and has_ragged_sizes(gm):
        text = "AOTAutograd takes jagged tensors only with symbols for their sizes"
    return None if text is None else _as_captured(gm, text)


def _compile_writes(plain: Plain, inputs: Sequence[Any], options: CompileOptions) -> Callable[..., Any] | None:
    """A graph of plain tensors that writes those in instances; None if the short road does not take it."""
    gm = plain.module
    facts = GraphFacts(gm)
    if why_not_traceable(facts) is not None or any(notes(node).reaches for node in facts.calls):
        return None
    try:
        graph = _try_short_road(gm, inputs, options.decompositions)
    except NotFunctional as error:
        logs.emit("aot_graphs", str(error))
        return None
    compile_fn = marking(plain.version_exempt, marking_version_exempt(gm, options.compile_fn))
    return None if graph is None else _short_call(graph, functools.partial(one_by_one, plain), compile_fn)


def _short_call(graph: FunctionalGraph, eager: Callable[..., Any], compile_fn: CompileFn) -> Callable[..., Any]:
    if graph.mutated:
        # where a kernel refuses a value, what comes before the error changes the inputs as in eager
        note_graph(graph.module, original=eager)
    return wrap_inference(graph.inputs, graph.mutated, eager, compile_fn(graph.module, graph.inputs, "inference"))


def _compile(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions) -> Callable[..., Any]:
    """`compile_joint` after the passes over captured graphs."""
    facts = GraphFacts(gm)
    return with_creation_metas(gm, with_casts_of_autocast(facts, _by_its_road(facts, example_inputs, options)))


def _by_its_road(facts: GraphFacts, example_inputs: Sequence[Any], options: CompileOptions) -> Callable[..., Any]:
    """The graph, compiled by the cheapest road that is right, or as captured."""
    gm = facts.gm
    reason = why_not_traceable(facts)
    if reason is not None:
        return _as_captured(gm, reason.text)

    # by places among the inputs of `gm`, which are not those of pieces
    noting_exempt = marking_version_exempt(gm, options.compile_fn)
    piece = functools.partial(compile_joint, **vars(options))
    # Tracing executes the graph's own grad mode changes.
    with torch.set_grad_enabled(torch.is_grad_enabled()), levels_left(gm):
        differentiated = _may_need_grad(facts, example_inputs)
        if differentiated and not torch.is_grad_enabled():
            return _with_gradients_on(gm, example_inputs, options)
        if differentiated and writes_past_autograd(facts):
            plain = without_gradients(facts, example_inputs, piece)
            if plain is not None:
                return plain
        reason = why_not_differentiable(facts) if differentiated else None
        if reason is not None:
            views = (with_early_views, with_late_views) if reason is VIEW_OF_SEVERAL else ()
            return _cut(views, facts, example_inputs, piece) or _as_captured(gm, reason.text)
        if any(notes(node).reaches for node in facts.calls):
            return in_pieces(facts, example_inputs, piece) or _as_captured(
                gm, "it has effects beside kernels that reach tensors by themselves"
            )
        short = not differentiated and not facts.has_levels
        try:
            compiled = _from_few_layers(gm, example_inputs, options) if short else None
            if compiled is not None:
                return compiled
            graph = _try_short_road(gm, example_inputs, options.decompositions) if short else None
        except NotFunctional as error:
            return _as_captured(gm, str(error))
        if graph is None:
            if facts.outs:
                return _as_captured(gm, "AOTAutograd, which its writes or transforms need, gives no out= another size")
            trained = (
                (in_pieces, split_after_optimizer_step, split_after_writes, with_early_views) if differentiated else ()
            )
            whole = _cut((*trained, with_late_views), facts, example_inputs, piece)
            if whole is not None:
                return whole
            lost = _what_autograd_loses(facts, differentiated)
            if lost is not None:
                return _as_captured(gm, lost)
            return _through_autograd(gm, example_inputs, dataclasses.replace(options, compile_fn=noting_exempt))
    return _short_call(graph, torch_compat.forward_of(gm), noting_exempt)


def _cut(
    cuts: Sequence[Callable[..., Callable[..., Any] | None]],
    graph: GraphFacts,
    example_inputs: Sequence[Any],
    piece: CompilePiece,
) -> Callable[..., Any] | None:
    """The graph by the first of these cuts that takes it."""
    return next(filter(None, (cut(graph, example_inputs, piece) for cut in cuts)), None)


def _what_autograd_loses(graph: GraphFacts, differentiated: bool) -> str | None:
    """What AOTAutograd would get wrong of a graph that is in one piece."""
    if any(loses_its_place(graph, node) for node in graph.returned):
        return "a result is a view, of a size that varies, of an input that it writes"
    if differentiated and regions_of(graph.gm):
        return "it has effects beside its checkpointed regions"
    if any(map(gives_nothing, graph.gm.graph.nodes)):
        return "AOTAutograd drops its operators that give nothing"
    if differentiated and any(map(checks_gradients, graph.calls)):
        return "backward of an operator refuses some gradients by their values"
    return None


def _from_few_layers(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions
) -> Callable[..., Any] | None:
    """A graph of many equal layers, compiled as one of a few, of which the rest is repeated."""
    few = with_few_layers(gm) if options.repeats and config.share_layers else None
    if few is None:
        return None
    short, repeated = few

    def compile_short(inputs: list[Any]) -> Callable[..., Any]:
        graph = _try_short_road(short, inputs, options.decompositions)
        if graph is None or graph.mutated:
            raise NotRepeated("the short road does not take them")
        note_graph(graph.module, repeated=repeated, original=with_autocast(torch_compat.forward_of(gm)))
        return options.compile_fn(graph.module, graph.inputs, "inference")

    compiled = compile_few(short, repeated, example_inputs, compile_short)
    return compiled and wrap_inference(example_inputs, (), torch_compat.forward_of(gm), compiled)


def _with_gradients_on(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions
) -> Callable[..., Any]:
    """A graph that is called with gradients off and turns them on, compiled and called as one that is called with
    gradients on and turns them off first: what AOTAutograd does before the graph it does in the mode of the call, and
    the copy of an input that is written has no history then."""
    modes = grad_modes(gm)
    first = next(node for node in gm.graph.nodes if node.op != "placeholder")
    if first is not modes[0] or first.args[0] is False:
        gm = copied(gm)
        place = next(node for node in gm.graph.nodes if node.op != "placeholder")
        with gm.graph.inserting_before(place):
            gm.graph.call_function(torch._C._set_grad_enabled, (False,))
        gm.recompile()
    with torch.enable_grad():
        compiled = _compile(gm, example_inputs, options)
    mode_after: Any = modes[-1].args[0]

    def with_gradients_on(*inputs: Any) -> Any:
        with torch.enable_grad():
            results = compiled(*inputs)
        torch._C._set_grad_enabled(mode_after)
        return results

    return with_gradients_on


def _through_autograd(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions
) -> Callable[..., Any]:
    """The graph through AOTAutograd, or as captured where that can't express it: it ran on fake tensors when it was
    captured, so this is about inputs that change their size, in-place operations inside as_strided, operators with
    bodies whose backward may alias, decompositions that refuse what the operator takes. Or the backward fails because
    the program wrote what it needs: eager fails when it runs."""
    # Imported here because it takes 0.2 s that most inference never needs.
    from dynajit.aot.autograd import compile_with_autograd

    ours: list[BaseException] = []
    try:
        noting = dataclasses.replace(options, compile_fn=_noting(ours, options.compile_fn))
        return compile_with_autograd(gm, example_inputs, noting)
    except (PassFailed, *_CANT_EXPRESS) as error:
        if ours:
            raise
        _report_own_fault(error)
        return _as_captured(gm, (str(error).splitlines() or [""])[0])


def _as_captured(gm: torch.fx.GraphModule, reason: object) -> Callable[..., Any]:
    """The graph's own forward: torch's operations one by one, as eager runs them."""
    counters["as_captured"][str(reason)] += 1
    logs.emit("aot_graphs", f"runs as captured: {reason}")
    return gm.forward


def _report_own_fault(error: BaseException) -> None:
    """Warn of what no graph is the reason of: a pass that failed, or an error of a line of dynajit's, which refuses
    graphs by RuntimeErrors."""
    lines = traceback.extract_tb(error.__traceback__)
    refused = isinstance(error, (RuntimeError, NotSimple)) or not is_own(lines[-1].filename)
    if isinstance(error, PassFailed) or not refused:
        counters["internal_errors"][type(error).__name__] += 1
        text = "".join(traceback.format_exception(error))
        warnings.warn(
            f"dynajit failed while compiling a graph, which is compiled in another way. Please report this:\n{text}",
            stacklevel=2,
        )


def _noting(failures: list[BaseException], compile_fn: CompileFn) -> CompileFn:
    """`compile_fn`, which keeps what it raises: AOTAutograd may raise another exception then."""

    def compile_noting(*args: Any, **kwargs: Any) -> Any:
        try:
            return compile_fn(*args, **kwargs)
        except BaseException as error:
            failures.append(error)
            raise

    return compile_noting


def _may_need_grad(graph: GraphFacts, inputs: Sequence[Any]) -> bool:
    if not any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs):
        return False
    # With gradients off at the start, a node of the graph may still turn them on.
    return torch.is_grad_enabled() or graph.turns_gradients_on


def _try_short_road(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], decompositions: Decompositions
) -> FunctionalGraph | None:
    if not all(_is_plain(value) or is_symbolic(value) for value in example_inputs):
        return None
    if any("unbacked_bindings" in node.meta for node in gm.graph.nodes):
        return None  # sizes that depend on data
    fake_mode = detect_fake_mode(list(example_inputs)) or _fake_mode_of(example_inputs)
    inputs = [_as_fake(v, fake_mode) if isinstance(v, torch.Tensor) else v for v in example_inputs]
    try:
        return trace_functional(gm, inputs, fake_mode, decompositions)
    except (NotSimple, *_CANT_EXPRESS) as reason:
        # The graph ran on fake tensors when it was captured: this is functionalisation's own, or a decomposition's.
        _report_own_fault(reason)
        logs.emit("aot_graphs", f"through AOTAutograd: {str(reason).splitlines()[0]}")
        return None


def _fake_mode_of(inputs: Sequence[Any]) -> FakeTensorMode:
    """A mode for inputs of which none is a fake tensor: it has to know the symbols among them."""
    env = next((value.node.shape_env for value in inputs if is_symbolic(value)), None)
    return FakeTensorMode(shape_env=env, static_shapes=env is None)


def _as_fake(value: torch.Tensor, fake_mode: FakeTensorMode) -> torch.Tensor:
    if value.is_inference():
        # An inference tensor can't be mutated where the graph is traced, outside of inference mode.
        with torch.inference_mode(False), fake_mode:
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return value if isinstance(value, FakeTensor) else fake_mode.from_tensor(value, static_shapes=True)


def _is_plain(value: Any) -> bool:
    """A strided tensor of no special class."""
    return (
        isinstance(value, torch.Tensor)
        and type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)
        and value.layout is torch.strided
        and not torch._is_functional_tensor(value)
        and not torch._C._functorch.is_functorch_wrapped_tensor(value)
        and not (value.is_conj() or value.is_neg() or value.is_quantized)
    )
