"""Helpers for tests of compiled programs, here and in projects that use dynajit.

In: a function and its arguments. Out: `assert_same` runs it eagerly and compiled on deep copies and compares everything
a caller can see: results, mutated arguments, aliasing, exceptions, printed text, random state; and pins graphs, breaks
and recompiles. `CompileCounter` and its relatives are backends that count or record graphs. One more thing compared: a
field of `Outcome`.
"""

import collections
import contextlib
import copy
import dataclasses
import io
import itertools
import random
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import dynajit
from dynajit.report import records
from dynajit.report.explain import ExplainReport

_PACKAGE = str(Path(__file__).resolve().parent)


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


@dataclasses.dataclass
class Outcome:
    """What a caller can see of one call. `sharing` maps a place to the first one holding the same object or memory."""

    result: Any
    error: tuple[Any, ...] | None
    stdout: str
    inputs: Any
    sharing: dict[str, str]
    random_state: tuple[bytes, int]


def assert_same(
    fn: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    then: Sequence[tuple[Any, ...]] = (),
    repeat: int = 2,
    graphs: int | None = None,
    breaks: int | None = None,
    recompiles: int | None = None,
    backend: str | Callable[..., Any] = "eager",
    rtol: float | None = None,
    atol: float | None = None,
    **options: Any,
) -> ExplainReport:
    """Compare eager and compiled: `repeat` calls of `fn(*args, **kwargs)`, then `fn(*more)` for each tuple of `then`.

    The eager and the compiled side have deep copies of their own of `fn` (a module or bound method; plain functions are
    shared), the arguments and `then`, so a mutation is seen by the later calls of its side. Everything in `Outcome` has
    to agree: of tensors value, dtype, shape, strides, device, requires_grad, gradient; of exceptions type, message and
    the user's frames. With backend "eager" values agree bit for bit, else within `rtol` and `atol` (torch.testing's
    defaults). `graphs`, `breaks`, `recompiles`: the counts over all calls. `options` go to `dynajit.compile`. Returns
    the report of what was compiled. Raises AssertionError saying which call and place differ.
    """
    dynajit.reset()
    eager_fn, eager_calls = _copies(fn, args, kwargs, then, repeat)
    compiled_original, compiled_calls = _copies(fn, args, kwargs, then, repeat)
    exact = backend == "eager" and rtol is None and atol is None
    seen: list[records.CompileRecord] = []
    with records.listen(seen.append):
        compiled_fn = dynajit.compile(compiled_original, backend=backend, **options)
        for number, (eager, compiled) in enumerate(zip(eager_calls, compiled_calls, strict=True), 1):
            expected = _run(eager_fn, eager_fn, *eager, seed=number)
            actual = _run(compiled_fn, compiled_original, *compiled, seed=number)
            compare(actual, expected, f"call {number}", exact=exact, rtol=rtol, atol=atol)
    report = ExplainReport(seen)
    counts = {
        "graphs": (report.graph_count, graphs),
        "breaks": (report.graph_break_count, breaks),
        "recompiles": (len(report.recompile_reasons), recompiles),
    }
    wrong = [f"{name}: {got}, expected {want}" for name, (got, want) in counts.items() if want not in (None, got)]
    if wrong:
        raise AssertionError("\n".join([*wrong, str(report)]))
    return report


def compare(
    actual: Any,
    expected: Any,
    where: str = "result",
    *,
    exact: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Raise AssertionError, naming the place, unless the structures have equal types, values, tensor properties."""
    _Comparison(exact, rtol, atol).visit(actual, expected, where)


# ------------------------------------------------------------------------------------------------ running


def _copies(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    then: Sequence[tuple[Any, ...]],
    repeat: int,
) -> tuple[Callable[..., Any], list[tuple[tuple[Any, ...], dict[str, Any]]]]:
    """One side's own function and calls. A single deep copy, so that what is shared between them stays shared."""
    everything = (fn, args, dict(kwargs or {}), list(then))
    memo: dict[int, Any] = {}
    for _, value in _walk(everything, "x"):
        # torch refuses to deep-copy what autograd computed; for a test a leaf with the same contents does.
        if isinstance(value, torch.Tensor) and not value.is_leaf:
            memo[id(value)] = value.detach().clone().requires_grad_()
    own_fn, own_args, own_kwargs, own_then = copy.deepcopy(everything, memo)
    return own_fn, [(own_args, own_kwargs)] * repeat + [(more, {}) for more in own_then]


def _run(fn: Callable[..., Any], owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any], seed: int) -> Outcome:
    torch.manual_seed(seed)
    random.seed(seed)
    stdout = io.StringIO()
    result, error = None, None
    with contextlib.redirect_stdout(stdout):
        try:
            result = fn(*args, **kwargs)
        except Exception as raised:
            error = _describe(raised)
    state = (torch.get_rng_state().numpy().tobytes(), hash(random.getstate()))
    inputs = (args, kwargs, owner if isinstance(owner, torch.nn.Module) else getattr(owner, "__self__", None))
    return Outcome(result, error, stdout.getvalue(), inputs, _sharing((inputs, result)), state)


def _describe(error: BaseException) -> tuple[Any, ...]:
    """Type, message, cause and the user's frames.

    Frames of one function in a row count once, the last of them: after a break a function goes on in another frame.
    """
    frames = [
        (frame.filename, frame.name, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_PACKAGE)
    ]
    last = [list(group)[-1] for _, group in itertools.groupby(frames, key=lambda frame: frame[:2])]
    cause = _describe(error.__cause__) if error.__cause__ is not None else None
    return type(error), str(error), last, cause


# ------------------------------------------------------------------------------------------------ structures


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a container or an object of a user's class, each with how to write its place."""
    if isinstance(value, torch.Tensor):
        if value.is_leaf and value.grad is not None:
            yield ".grad", value.grad
    elif isinstance(value, Mapping):
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, (list, tuple, collections.deque)):
        yield from ((f"[{i}]", item) for i, item in enumerate(value))
    if _has_state(value):
        yield from ((f".{name}", item) for name, item in vars(value).items())


def _has_state(value: Any) -> bool:
    """Is it an instance whose attributes are data (no class, function, module of Python, tensor)?"""
    return hasattr(value, "__dict__") and not isinstance(
        value, (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType, torch.Tensor)
    )


def _walk(value: Any, where: str, seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Each place below `value` and what is there; an object met again is given, but not entered a second time."""
    seen = set() if seen is None else seen
    yield where, value
    if id(value) not in seen:
        seen.add(id(value))
        for place, child in _children(value):
            yield from _walk(child, where + place, seen)


_IDENTITY_IS_NO_PROMISE = (int, float, complex, str, bytes, bool, type(None), frozenset, range, slice)


def _sharing(value: Any) -> dict[str, str]:
    first: dict[tuple[str, int], str] = {}
    shared: dict[str, str] = {}
    for where, item in _walk(value, ""):
        keys = [("object", id(item))]
        if isinstance(item, torch.Tensor) and item.layout == torch.strided and item.numel():
            keys.append(("memory", item.untyped_storage().data_ptr()))
        if isinstance(item, _IDENTITY_IS_NO_PROMISE) or (type(item) is tuple and not item):
            continue
        for key in keys:
            origin = first.setdefault(key, where)
            if origin != where:
                shared[f"{where} ({key[0]})"] = origin
    return shared


class _Comparison:
    """Walks two structures side by side. Pairs already visited are not entered again, so cycles end."""

    def __init__(self, exact: bool, rtol: float | None, atol: float | None) -> None:
        self._exact = exact
        self._rtol = rtol
        self._atol = atol
        self._visited: set[tuple[int, int]] = set()

    def visit(self, actual: Any, expected: Any, where: str) -> None:
        self._require(type(actual) is type(expected), where, f"type {type(actual)}, expected {type(expected)}")
        if (id(actual), id(expected)) in self._visited or actual is expected:
            return
        self._visited.add((id(actual), id(expected)))
        if isinstance(expected, torch.Tensor):
            self._tensor(actual, expected, where)
        elif isinstance(expected, (set, frozenset)) or not (_has_state(expected) or self._is_container(expected)):
            self._require(_equal(actual, expected), where, f"{actual!r}, expected {expected!r}")
            return
        ours, theirs = dict(_children(actual)), dict(_children(expected))
        self._require(list(ours) == list(theirs), where, f"has {list(ours)}, expected {list(theirs)}")
        for place, child in theirs.items():
            self.visit(ours[place], child, where + place)

    @staticmethod
    def _is_container(value: Any) -> bool:
        return isinstance(value, (Mapping, list, tuple, collections.deque))

    def _tensor(self, actual: torch.Tensor, expected: torch.Tensor, where: str) -> None:
        for name in ("dtype", "shape", "device", "layout", "requires_grad", "is_leaf"):
            ours, theirs = getattr(actual, name), getattr(expected, name)
            self._require(ours == theirs, where, f"{name} {ours}, expected {theirs}")
        if expected.layout == torch.strided:
            ours_at, theirs_at = (
                [s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1] for t in (actual, expected)
            )
            self._require(
                ours_at == theirs_at or not expected.numel(), where, f"strides {ours_at}, expected {theirs_at}"
            )
        tolerance = {"rtol": 0.0, "atol": 0.0} if self._exact else {"rtol": self._rtol, "atol": self._atol}
        try:
            torch.testing.assert_close(actual.detach(), expected.detach(), equal_nan=True, **tolerance)
        except AssertionError as error:
            raise AssertionError(f"{where}: {error}") from None

    @staticmethod
    def _require(condition: bool, where: str, message: str) -> None:
        if not condition:
            raise AssertionError(f"{where}: {message if len(message) < 600 else message[:600] + ' ...'}")


def _equal(actual: Any, expected: Any) -> bool:
    """Equality that takes NaN for itself and tells 0.0 from -0.0."""
    if isinstance(expected, (float, complex)):
        return repr(actual) == repr(expected)
    if type(expected).__eq__ is object.__eq__:  # type: ignore[comparison-overlap]
        # Identity is all such an object has. Two deep copies of one without attributes are alike.
        return True
    return bool(actual == expected)
