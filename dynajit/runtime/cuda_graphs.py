"""Plans recorded as CUDA graphs, for modes that ask for it: a call is one launch.

In:  a plan for a GPU and its executor.
Out: `record(plan, call)`: a callable with the executor's inputs and outputs. Its first call runs the plan, its second
     (of a backward graph the third) records it; from then on the graph is replayed. Addresses that change are put into
     the graph's nodes; inputs that operators of torch's read stay where they are, as parameters do, or are copied if
     they turn out to move. Outputs are the caller's own; what a forward graph keeps for its backward graph stays where
     it is, until that has run. So do gradients that operators of torch's give a backward graph, if they are dropped
     before its next call, as optimizers do; from the first time that one is not, they are copied. What can't be
     recorded is said once, and runs without. A plan of symbolic sizes is recorded for each of those that it is called
     with most often.
What can't be recorded is in `obstacle`.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynajit import _C
from dynajit.codegen.memory import refs_in
from dynajit.codegen.plan import (
    AllocStep,
    DrawStep,
    ExternStep,
    KernelStep,
    NumberStep,
    Plan,
    SizeStep,
    ViewStep,
)
from dynajit.locks import process_lock
from dynajit.op_facts import facts, written_arguments
from dynajit.process_state import changed
from dynajit.report import costs
from dynajit.torch_compat import copy_version_exempt

# So often a graph is recorded again because an input lies elsewhere; then all that moved are copied.
MAX_RECORDINGS = 4
# Streams on which one plan is recorded.
MAX_STREAMS = 4
# Combinations of sizes for which one plan is recorded: those that are called most often.
MAX_SIZES = 32
# Combinations whose calls are counted, before counting starts again.
MAX_COUNTED = 4096

# For each device and stream the memory that its graphs share, and the graphs: it is gone when they are.
_pools: dict[tuple[int, int], tuple[Any, weakref.WeakSet[Any]]] = {}
_told: set[str] = set()
_lock = process_lock()
_UNCOLLECTED = changed((gc.isenabled, _C.set_collecting, False))


def record(plan: Plan, call: Callable[..., Any], backward: bool = False) -> Callable[..., Any]:
    """The plan as CUDA graphs, one a stream; `call` itself where it can't be."""
    why = obstacle(plan)
    if why:
        _tell(why)
        return call
    sizes = [step for step in plan.steps if isinstance(step, SizeStep) and step.what in ("size", "stride", "number")]
    return _RecordedBySize(plan, call, backward, sizes) if sizes else _Recorded(plan, call, backward)


def obstacle(plan: Plan) -> str:
    """Why the plan can't be recorded; "" if it can, as far as can be seen."""
    given = _numbers(plan)
    for buffer in plan.buffers.values():
        if buffer.device != plan.device and buffer.name not in given:
            return f"{buffer.name} is on {buffer.device}"
    taken = {ref.name for ref in refs_in(plan.outputs)}
    taken.update(ref.name for s in plan.steps if isinstance(s, ExternStep) for ref in refs_in((s.args, dict(s.kwargs))))
    for name in plan.inputs:
        if name in taken and name not in plan.buffers and name not in given:
            return f"input {name} is no tensor"
    for step in plan.steps:
        if isinstance(step, NumberStep) and isinstance(step.source, str) and step.source not in plan.inputs:
            return f"the host computes {step.source}"
        if isinstance(step, ExternStep):
            target = _recorded_operator(step)
            if target is None:
                return f"{getattr(step.target, '__name__', step.target)} is no operator of torch's"
            # Sizes that depend on data are no matter here: every size of the plan is known. Indexing has that tag too.
            if torch.Tag.data_dependent_output in target.tags:
                return f"the host waits for the result of {target}"
    if not plan.steps:
        return "there is nothing to launch"
    return ""


def _recorded_operator(step: ExternStep) -> torch._ops.OpOverload | None:
    """What the call launches; None if it may do more than that, which a replay would not repeat."""
    if step.target is copy_version_exempt:  # a replay tells autograd of nothing
        return torch.ops.aten.copy_.default
    return step.target if isinstance(step.target, torch._ops.OpOverload) else None


def _numbers(plan: Plan) -> set[str]:
    """The inputs that are numbers, or of which kernels are given numbers at each launch anew."""
    found = {step.source for step in plan.steps if isinstance(step, SizeStep) and step.what in ("float", "number")}
    found.update(step.source for step in plan.steps if isinstance(step, NumberStep) and isinstance(step.source, str))
    return found


def _tell(why: str) -> None:
    if why not in _told:
        _told.add(why)
        warnings.warn(f"dynajit: a graph runs without CUDA graphs: {why}", stacklevel=2)


def _draws(plan: Plan) -> bool:
    return any(
        isinstance(step, DrawStep) or (isinstance(step, ExternStep) and facts(step.target).draws) for step in plan.steps
    )


def _mutated(plan: Plan) -> tuple[int, ...]:
    """The inputs that operators and kernels write to."""
    found: set[str] = set()
    for step in plan.steps:
        if isinstance(step, KernelStep):
            found.update(step.outputs)
        if isinstance(step, ExternStep):
            given = written_arguments(_recorded_operator(step), step.args, {})
            found.update(ref.name for ref in refs_in(given))
    return tuple(number for number, name in enumerate(plan.inputs) if name in found)


def copies(plan: Plan, backward: bool = False) -> list[str]:
    """What a recorded graph of the plan copies at each replay, as far as can be seen before it is recorded."""
    if obstacle(plan):
        return []
    bases = _bases(plan)
    read = _read_by_operators(plan, bases)
    written = {step.buffer for step in plan.steps if isinstance(step, AllocStep) and not step.reuse} - read
    when = "the gradient {}{}, if it is still held by then" if backward else "the result {}{}"
    found = {name: when for name in _memories(plan, bases) if name not in written and name not in plan.inputs}
    found |= {name: "the input {}{}, if it lies elsewhere" for name in plan.inputs if name in read}
    sized = {name: plan.buffers[name].nbytes for name in found if name in plan.buffers}
    sizes = {name: f" ({costs.size(count)})" if type(count) is int else "" for name, count in sized.items()}
    return [found[name].format(name, sizes[name]) for name in found if name in sizes]


def _bases(plan: Plan) -> dict[str, str]:
    """What each view, and each buffer in another's memory, lies in."""
    views = {step.output: step.base for step in plan.steps if isinstance(step, ViewStep)}
    return views | {step.buffer: step.reuse for step in plan.steps if isinstance(step, AllocStep) and step.reuse}


def _base(bases: dict[str, str], name: str) -> str:
    while name in bases:
        name = bases[name]
    return name


def _memories(plan: Plan, bases: dict[str, str]) -> list[str]:
    """What the program's results lie in."""
    return [_base(bases, ref.name) for ref in refs_in(plan.outputs[: plan.returns])]


def _read_by_operators(plan: Plan, bases: dict[str, str]) -> set[str]:
    calls = [(step.args, dict(step.kwargs)) for step in plan.steps if isinstance(step, ExternStep)]
    return {_base(bases, ref.name) for ref in refs_in(calls)}


class _RecordedBySize:
    """A plan of symbolic sizes, and its graphs for the sizes that are called most often. At all others the plan runs as
    it is, as it does at the first call of each."""

    def __init__(self, plan: Plan, call: Any, backward: bool, sizes: Sequence[SizeStep]) -> None:
        self.plan = plan
        self.call = call
        self.source = plan.source
        self.backward = backward
        places = {name: number for number, name in enumerate(plan.inputs)}
        self.numbers = [places[step.source] for step in sizes if step.what == "number"]
        self.sizes = [(places[step.source], step.at) for step in sizes if step.what == "size"]
        self.strides = [(places[step.source], step.at) for step in sizes if step.what == "stride"]
        self.calls: Counter[tuple[int, ...]] = Counter()
        self.made: dict[tuple[int, ...], _Recorded] = {}

    def __call__(self, *inputs: Any) -> Any:
        key = (
            *[inputs[number] for number in self.numbers],
            *[inputs[number].size(at) for number, at in self.sizes],
            *[inputs[number].stride(at) for number, at in self.strides],
        )
        self.calls[key] += 1
        made = self.made.get(key)
        if made is None:
            made = self._worth_recording(key)
        return self.call(*inputs) if made is None else made(*inputs)

    def _worth_recording(self, key: tuple[int, ...]) -> _Recorded | None:
        """What records these sizes from their second call on; in place of the sizes called least where there are many
        and these have been called more often."""
        calls = self.calls[key]
        if calls < 2:
            if len(self.calls) > MAX_COUNTED:
                self.calls = Counter({known: self.calls[known] for known in self.made})
            return None
        with _lock:
            if len(self.made) >= MAX_SIZES:
                least = min(self.made, key=self.calls.__getitem__)
                if self.calls[least] >= calls:
                    return None
                del self.made[least]
            return self.made.setdefault(key, _Recorded(self.plan, self.call, self.backward))


class _Recorded:
    """A plan and its graphs."""

    def __init__(self, plan: Plan, call: Any, backward: bool) -> None:
        self.plan = plan
        self.call = call
        self.source = plan.source
        self.mutated = _mutated(plan)
        self.draws = _draws(plan)
        self.graphs: dict[int, Any] = {}
        self.alive: list[Any] = []  # torch's graph objects
        self.addresses: list[int] | None = None
        self.copied: set[int] = set()
        self.recordings = 0
        self.failed = False
        # What the forward graph keeps stays where it is from its recording on, which is at its second call.
        self.waits = backward
        # A result is held, by the name that it had, while its successor is computed; a gradient seldom is.
        # Constants are no memory that the caller may write to.
        bases = _bases(plan)
        self.lends = backward and plan.constants.keys().isdisjoint(_memories(plan, bases))
        self.keeps = plan.returns is not None
        index = plan.device.index
        self.index = torch.cuda.current_device() if index is None else index
        self._stream = torch._C._cuda_getCurrentRawStream
        hidden = _read_by_operators(plan, bases)
        self.hidden = {n for n, name in enumerate(plan.inputs) if name in hidden}

    def __call__(self, *inputs: Any) -> Any:
        graph = self.graphs.get(self._stream(self.index))
        if graph is not None:
            result = graph(*inputs)
            if result is not NotImplemented:
                return result
            # Gradients are added up, or kept; or memory is in use where no count shows it, on another stream say.
            if graph.lost or (graph.busy and self.lends):  # from now on it is copied
                self.lends, self.keeps = False, self.keeps and not graph.lost
                self.graphs.clear()
                self.alive.clear()
            elif graph.busy:  # the backward of an earlier call is still to come
                return self.call(*inputs)
        return self._without_graph(inputs)

    def _without_graph(self, inputs: tuple[Any, ...]) -> Any:
        if self.failed or torch.cuda.is_current_stream_capturing():
            return self.call(*inputs)
        now = [value.data_ptr() if isinstance(value, torch.Tensor) else 0 for value in inputs]
        before, self.addresses = self.addresses, now
        if before is None:  # kernels and libraries get to know the shapes
            if self.waits:
                self.waits, self.addresses = False, None
            return self.call(*inputs)
        with _lock:
            self.copied.update(n for n in self.hidden if before[n] != now[n])
            stream = self._stream(self.index)
            if self.recordings >= MAX_RECORDINGS:
                self.copied = {n for n in self.hidden if not isinstance(inputs[n], torch.nn.Parameter)}
            if self.recordings > 2 * MAX_RECORDINGS or len(self.graphs) > MAX_STREAMS:
                self.failed = True
                _tell("its inputs lie elsewhere at every call")
                self.graphs.clear()
                return self.call(*inputs)
            try:
                graph = self._record(inputs, stream)
            except RuntimeError as error:
                self.failed = True
                self.graphs.clear()
                _tell(str(error).strip().split("\n")[0])
                return self.call(*inputs)
            self.graphs[stream] = graph
            result = graph(*inputs)
            return self.call(*inputs) if result is NotImplemented else result

    def _record(self, inputs: tuple[Any, ...], stream: int) -> Any:
        """Record the plan on a stream of its own, into memory that graphs of this stream share."""
        self.recordings += 1
        current = torch.cuda.current_stream(self.index)
        pool, users = _pools.get((self.index, stream), (None, ()))
        if self.lends or self.keeps:
            # graphs recorded before use what is free in the shared memory, and may run while this is held
            pool, users = torch.cuda.graph_pool_handle(), weakref.WeakSet()
        elif not users:
            pool, users = _pools[self.index, stream] = torch.cuda.graph_pool_handle(), weakref.WeakSet()
        statics = tuple(_twin(value) if n in self.copied else None for n, value in enumerate(inputs))
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        side = torch.cuda.Stream(self.index)  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with _UNCOLLECTED, torch.cuda.stream(side):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                returns = -1 if self.plan.returns is None or not self.keeps else self.plan.returns
                replay = _C.GraphReplay(self.call, inputs, statics, self.mutated, returns, self.lends)
            finally:
                graph.capture_end()
        current.wait_stream(side)
        graph.instantiate()
        # Random numbers: torch moves its generators on when it launches the graph itself.
        users.add(graph)
        replay.ready(graph.raw_cuda_graph_exec(), graph.replay if self.draws else None)
        self.alive.append((graph, statics))
        return replay


def _twin(value: torch.Tensor) -> torch.Tensor:
    """Memory for a copy of the tensor, element for element where it has them."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
