"""Helpers for tests of compiled programs, here and in projects that use dynajit.

In: a function and its arguments. Out: `assert_same` runs it eagerly and compiled on deep copies and compares everything
a caller can see: results, mutated arguments, aliasing, exceptions, printed text, random state; and pins graphs, breaks
and recompiles. `CompileCounter` and its relatives are backends that count or record graphs. What is compared, and how,
is in `outcomes.py`.
"""

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import dynajit
from dynajit.outcomes import Outcome, compare, copies, differentiable, run
from dynajit.report import records
from dynajit.report.explain import ExplainReport
from dynajit.runtime import memory
from dynajit.survey import survey

__all__ = [
    "CompileCounter",
    "CompileCounterWithBackend",
    "EagerAndRecordGraphs",
    "Outcome",
    "assert_same",
    "compare",
    "require_no_capture",
    "survey",
]


class CompileCounter:
    """A backend that runs graphs eagerly and counts them: `frame_count` graphs with `op_count` calls in all."""

    def __init__(self) -> None:
        self.frame_count = 0
        self.op_count = 0

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        self.count(gm)
        return gm.forward

    def count(self, gm: torch.fx.GraphModule) -> None:
        self.frame_count += 1
        self.op_count += sum(node.op.startswith("call") for node in gm.graph.nodes)

    def clear(self) -> None:
        self.frame_count = self.op_count = 0


class CompileCounterWithBackend(CompileCounter):
    """Counts, keeps the graphs in `graphs`, and compiles them with another backend (a name or a callable)."""

    def __init__(self, backend: str | Callable[..., Any]) -> None:
        super().__init__()
        self.backend = backend
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        self.count(gm)
        self.graphs.append(copy.deepcopy(gm))
        compiled: Callable[..., Any] = dynajit.lookup_backend(self.backend)(gm, example_inputs, **options)
        return compiled

    def clear(self) -> None:
        super().clear()
        self.graphs.clear()


class EagerAndRecordGraphs:
    """A backend that runs graphs eagerly and keeps them in `graphs`."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        self.graphs.append(gm)
        return gm.forward


def assert_same(
    fn: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    then: Sequence[tuple[Any, ...]] = (),
    repeat: int = 2,
    graphs: int | None = None,
    breaks: int | None = None,
    recompiles: int | None = None,
    kept: float | None = None,
    backward: bool = False,
    backend: str | Callable[..., Any] = "eager",
    rtol: float | None = None,
    atol: float | None = None,
    never_repeats: str = "",
    **options: Any,
) -> ExplainReport:
    """Compare eager and compiled: `repeat` calls of `fn(*args, **kwargs)`, then `fn(*more)` for each tuple of `then`,
    then each of these calls again with fresh copies of its arguments.

    The eager and the compiled side have deep copies of their own of `fn` (a module or bound method; plain functions are
    shared), the arguments and `then`, so a mutation is seen by the later calls of its side. Everything in `Outcome` has
    to agree: of tensors value, dtype, shape, strides, device, requires_grad, gradient; of exceptions type, message and
    the user's frames. With backend "eager" values agree bit for bit, else within `rtol` and `atol` (torch.testing's
    defaults). `graphs`, `breaks`, `recompiles`: the counts over all calls. `kept`: how many times what eager keeps in
    results and for backward a last call may keep; the tensors have to be large enough to be told from noise.
    `backward`: a backward pass of the sum of its results, which is not compiled, follows each call. `options` go
    to `dynajit.compile`. Returns the report of what was compiled. Raises AssertionError saying which call and place
    differ.

    A call made again, for the third time if it is the first one, compiles nothing: a capture is an AssertionError that
    says which guard failed. What the calls made again do isn't in the counts and the report. `never_repeats`: why this
    can't be asked of a program, since at each call it changes what it is compiled for; then no call is made again.
    """
    dynajit.reset()
    eager_fn, eager_calls, eager_rounds = copies(fn, args, kwargs, then, repeat)
    compiled_original, compiled_calls, compiled_rounds = copies(fn, args, kwargs, then, repeat)
    exact = backend == "eager" and rtol is None and atol is None
    seen: list[records.CompileRecord] = []
    with records.listen(seen.append):
        compiled_fn = dynajit.compile(compiled_original, backend=backend, **options)
        called = [_with_backward(side) if backward else side for side in (eager_fn, compiled_fn)]
        both = functools.partial(_call_both, called, (eager_fn, compiled_original), exact=exact, rtol=rtol, atol=atol)
        for number, calls in enumerate(zip(eager_calls, compiled_calls, strict=True), 1):
            both(calls, number, f"call {number}")
        report = ExplainReport(seen)
        rounds = [] if never_repeats else [*zip(eager_rounds, compiled_rounds, strict=True)]
        for left, (eager_round, compiled_round) in enumerate(rounds, 1 - len(rounds)):
            for number, calls in enumerate(zip(eager_round, compiled_round, strict=True), 1):
                seen.clear()
                both(calls, number, f"call {number} made again")
                if left == 0:
                    require_no_capture(seen, f"call {number} made again")
        if kept is not None:
            _compare_kept((eager_fn, *eager_calls[-1]), (compiled_fn, *compiled_calls[-1]), kept)
    _compare_counts(report, graphs, breaks, recompiles)
    return report


def _call_both(
    sides: Sequence[Callable[..., Any]],
    owners: Sequence[Callable[..., Any]],
    calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]],
    number: int,
    where: str,
    **close: Any,
) -> None:
    """Make one call of each side, eager first, and compare."""
    parts = zip(sides, owners, calls, strict=True)
    expected, actual = [run(side, owner, *call, seed=number) for side, owner, call in parts]
    compare(actual, expected, where, **close)


def _with_backward(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, followed by a backward pass of the sum of its results."""

    def call(*args: Any, **kwargs: Any) -> Any:
        result = fn(*args, **kwargs)
        roots = differentiable(result)
        if roots:
            torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
        return result

    return call


def _compare_counts(report: ExplainReport, graphs: int | None, breaks: int | None, recompiles: int | None) -> None:
    counts = {
        "graphs": (report.graph_count, graphs),
        "breaks": (report.graph_break_count, breaks),
        "recompiles": (len(report.recompile_reasons), recompiles),
    }
    wrong = [f"{name}: {got}, expected {want}" for name, (got, want) in counts.items() if want not in (None, got)]
    if wrong:
        raise AssertionError("\n".join([*wrong, str(report)]))


def require_no_capture(seen: Sequence[records.CompileRecord], where: str) -> None:
    """Raise AssertionError if a call that repeats an earlier one captured something: `seen` is what it captured."""
    told = [f"{record.compile_id} {record.code_name}: {record.recompile_reason or record.skipped}" for record in seen]
    if told:
        raise AssertionError("\n".join([f"{where} captured frames", *told]))


# bytes that come and go with objects of Python's and torch's
_NOISE = 1 << 16


def _compare_kept(eager: tuple[Any, Any, Any], compiled: tuple[Any, Any, Any], most: float) -> None:
    expected, actual = (_bytes_kept(*call) for call in (eager, compiled))
    if expected is not None and actual is not None and actual > most * expected + _NOISE:
        raise AssertionError(f"keeps {actual:,} bytes after the call, eager {expected:,}")


def _bytes_kept(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """What a call's results, and what autograd keeps for them, take; None where the C library does not tell."""
    before = memory.allocated()
    result = fn(*args, **kwargs)
    after = memory.allocated()
    del result
    return None if before is None or after is None else after - before
