"""The passes over a graph, in order.

In:  a graph and a `PassContext`. Out: `run_passes`, the graph after all passes of the context's phase. The phases
follow one another: "captured", the torch-level graph; "autograd", one that AOTAutograd has to trace, and "traced", what
it is given of it; "joint", forward and backward in one; "partition", the forward graph, with the backward one in the
context; then "forward", "backward" and "inference", the graphs of ATen operations of which code is generated. One more
pass: a row in `PASSES`. The log `aot_graphs` and the debug folder name each pass that changed something.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.fx import GraphModule

from dynajit.aot.decompositions import Decompositions
from dynajit.aot.inference.attention import recognise
from dynajit.aot.modes import in_inference_mode, without_inference_mode
from dynajit.aot.passes.batch_norm import drop_statistics
from dynajit.aot.passes.collectives import start_early_wait_late
from dynajit.aot.passes.depthwise import contiguous_where_small
from dynajit.aot.passes.equal_nodes import merge_equal
from dynajit.aot.passes.few_channels import channels_last_where_few
from dynajit.aot.passes.gradient_sums import added_in_place
from dynajit.aot.passes.layouts import with_layouts
from dynajit.aot.passes.placed import pad_what_is_placed
from dynajit.aot.passes.recurrent import layer_by_layer
from dynajit.aot.passes.sums_of_parts import sums_of_parts
from dynajit.aot.passes.unstack_scalars import unstack_scalars
from dynajit.aot.passes.unused import first_results, with_unused, with_unused_draws
from dynajit.aot.patterns import any_patterns, replace_patterns
from dynajit.aot.training.hidden_writes import join_reads, part_reads
from dynajit.aot.training.masked_writes import with_masked_writes
from dynajit.aot.training.saved_copies import copy_kept, keep_results, separate_results
from dynajit.aot.training.saved_tensors import (
    keep_aliases,
    narrow_reads,
    put_views_beside,
    shrink_saved_tensors,
    take_views_late,
)
from dynajit.exc import ConfigError
from dynajit.report import debug, logs

Compiled = Callable[..., Any]
# (ATen graph, its fake inputs, "inference" | "forward" | "backward") -> callable(*inputs) -> tuple | list
CompileFn = Callable[[GraphModule, list[Any], str], Compiled]


@dataclasses.dataclass(frozen=True)
class CompileOptions:
    """How the parts of a graph are compiled, as `compile_joint` says."""

    compile_fn: CompileFn
    decompositions: Decompositions
    layouts: bool
    repeats: bool = False


@dataclasses.dataclass
class PassContext:
    """What passes know of a graph, and what they leave for later ones and for the caller.

    phase, name: where the graph is in the pipeline, and what logs call it. device: the type of its kernels' device.
    eager_rounding: whether float16 and bfloat16 round as eager does.
    layouts: whether tensors of a joint graph may have other strides than eager's where the program can't see them.
    n_results: so many results of a joint or forward graph are the program's. has_regions: whether there are
        regions of torch.utils.checkpoint in a joint graph, which keep inputs. backward: in the phase "partition", the
        other half.
    inside: what the rest has to be traced and compiled under. around: what makes of the compiled graph one that gives
        what the captured one gives, the last one first.
    unwritable: memory of which backward keeps copies. kept, kept_twice: memory of the inputs that eager keeps
        themselves, and those of them of which it keeps views or aliases, too.
    read_twice: names of inputs that both halves read.
    """

    phase: str
    name: str = ""
    device: str = ""
    eager_rounding: bool = False
    layouts: bool = False
    n_results: int = 0
    has_regions: bool = False
    backward: GraphModule | None = None
    inside: list[Callable[[], AbstractContextManager[Any]]] = dataclasses.field(default_factory=list)
    around: list[Callable[[Compiled], Compiled]] = dataclasses.field(default_factory=list)
    unwritable: set[int] = dataclasses.field(default_factory=set)
    kept: set[int] = dataclasses.field(default_factory=set)
    kept_twice: set[int] = dataclasses.field(default_factory=set)
    read_twice: set[str] = dataclasses.field(default_factory=set)

    def wrapped(self, compiled: Compiled) -> Compiled:
        """The compiled graph with what passes put around it."""
        return functools.reduce(lambda made, wrap: wrap(made), reversed(self.around), compiled)


class PassFailed(Exception):
    """A pass raised: a fault of ours, and not of the graph, as errors of AOTAutograd's are."""


Run = Callable[[GraphModule, PassContext], GraphModule]


@dataclasses.dataclass(frozen=True)
class Pass:
    """One pass. It runs in these phases, for kernels on this type of device ("": on any), where `applies` says so.

    run: gives the graph itself, changed or not, or a changed copy.
    """

    name: str
    phases: tuple[str, ...]
    run: Run
    device: str = ""
    applies: Callable[[GraphModule, PassContext], bool] = lambda gm, context: True


def run_passes(gm: GraphModule, context: PassContext) -> GraphModule:
    """The graph after all passes of the context's phase. Raises `PassFailed`."""
    shown = logs.enabled("aot_graphs") or debug.enabled()
    text = _text(gm, context) if shown else ""
    for each in PASSES:
        if context.phase in each.phases and each.device in ("", context.device) and each.applies(gm, context):
            try:
                gm = each.run(gm, context)
            except ConfigError:  # what the user registered
                raise
            except Exception as error:
                raise PassFailed(f"the pass {each.name} raised {type(error).__name__}: {error}") from error
            if shown and (now := _text(gm, context)) != text:
                text = now
                _show(each, context, text)
    return gm


def _text(gm: GraphModule, context: PassContext) -> str:
    graphs = [gm] if context.backward is None else [gm, context.backward]
    return "\n".join(each.print_readable(False) for each in graphs)


def _show(changed: Pass, context: PassContext, text: str) -> None:
    more = f"\n{text}" if logs.verbose("aot_graphs") else ""
    logs.emit("aot_graphs", f"{context.name or context.phase}: changed by the pass {changed.name}{more}")
    debug.write("fx_graph_pass.py", f"# {context.name or context.phase}, after the pass {changed.name}\n{text}")


def _inference_mode(gm: GraphModule, context: PassContext) -> GraphModule:
    found = without_inference_mode(gm)
    if found is None:
        return gm
    inner, flag = found
    context.inside.append(lambda: torch.inference_mode(flag))
    context.around.append(lambda compiled: in_inference_mode(flag, compiled))
    return inner


def _more_results(change: Callable[[GraphModule], GraphModule]) -> Run:
    """A pass that has the graph give more results, which are dropped again at each call."""

    def run(gm: GraphModule, context: PassContext) -> GraphModule:
        made = change(gm)
        if made is not gm:
            count = len(gm.graph.output_node().args[0])  # type: ignore[arg-type]
            context.around.append(lambda compiled: functools.partial(first_results, count, compiled))
        return made

    return run


def _simple(change: Callable[[GraphModule], GraphModule]) -> Run:
    return lambda gm, context: change(gm)


def _mark_results(joint: GraphModule, context: PassContext) -> GraphModule:
    context.unwritable = keep_results(joint, context.n_results)
    return joint


def _part_reads(joint: GraphModule, context: PassContext) -> GraphModule:
    context.read_twice = part_reads(joint, context.n_results)
    return joint


def _both(change: Callable[[GraphModule, GraphModule, PassContext], None]) -> Run:
    """A pass that changes the forward and the backward graph in place."""

    def run(forward: GraphModule, context: PassContext) -> GraphModule:
        assert context.backward is not None
        change(forward, context.backward, context)
        return forward

    return run


def _saves_by_itself(gm: GraphModule, context: PassContext) -> bool:
    return not context.has_regions


_GENERATED = ("forward", "backward", "inference")


def _patterns(level: str, *phases: str) -> Pass:
    return Pass(
        f"{level}_patterns",
        phases,
        lambda gm, context: replace_patterns(level, gm),
        applies=lambda gm, context: any_patterns(level),
    )


PASSES: tuple[Pass, ...] = (
    _patterns("torch", "captured"),
    _patterns("aten", "joint", "inference"),
    Pass("inference_mode", ("captured",), _inference_mode),
    Pass("unused_raises", ("captured",), _more_results(with_unused)),
    Pass("recurrent_dropout", ("autograd",), _simple(layer_by_layer)),
    Pass(
        "masked_writes", ("traced",), _simple(with_masked_writes), applies=lambda gm, context: torch.is_grad_enabled()
    ),
    Pass("unused_draws", ("traced",), _more_results(with_unused_draws)),
    Pass("aliases", ("joint",), lambda gm, context: keep_aliases(gm, context.kept_twice), applies=_saves_by_itself),
    Pass("narrow_reads", ("joint",), _simple(narrow_reads)),
    Pass("batch_norm_statistics", ("joint",), _simple(drop_statistics)),
    Pass(
        "layouts_in_training",
        ("joint",),
        lambda gm, context: with_layouts(gm, training=True),
        applies=lambda gm, context: context.layouts,
    ),
    Pass("mark_results", ("joint",), _mark_results, applies=_saves_by_itself),
    Pass("part_reads", ("joint",), _part_reads, applies=_saves_by_itself),
    Pass("equal_nodes", ("joint",), _simple(merge_equal)),
    Pass("separate_results", ("partition",), _simple(separate_results)),
    Pass("join_reads", ("partition",), _both(lambda f, b, c: join_reads(f, b, c.n_results, c.read_twice))),
    Pass("shrink_saved_tensors", ("partition",), _both(lambda f, b, c: shrink_saved_tensors(f, b, c.n_results))),
    Pass("late_views", ("partition",), _both(lambda f, b, c: take_views_late(f, b, c.n_results, c.kept))),
    Pass("saved_views", ("partition",), _simple(put_views_beside)),
    Pass("copy_saved", ("partition",), _both(lambda f, b, c: copy_kept(f, c.n_results, c.unwritable))),
    Pass("unstack_scalars", _GENERATED, _simple(unstack_scalars)),
    Pass(
        "layouts",
        ("inference",),
        _simple(with_layouts),
        applies=lambda gm, context: context.device == "cpu" or not context.eager_rounding,
    ),
    Pass(
        "attention",
        ("inference",),
        lambda gm, context: recognise(gm),
        applies=lambda gm, context: not context.eager_rounding,
    ),
    Pass("sums_of_parts", ("backward", "inference"), _simple(sums_of_parts), "cpu"),
    Pass("gradient_sums", ("backward",), _simple(added_in_place), "cpu"),
    Pass("depthwise", ("backward",), _simple(contiguous_where_small), "cpu"),
    Pass("few_channels", _GENERATED, _simple(channels_last_where_few), "cpu"),
    Pass("placed", _GENERATED, _simple(pad_what_is_placed), "cpu"),
    Pass("collectives", _GENERATED, _simple(start_early_wait_late)),
)
