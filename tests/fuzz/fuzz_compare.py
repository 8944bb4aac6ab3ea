"""Is the compiled program the program? In: a source, the calls to make, a backend. Out: the first `Finding`, or None.

What is compared for each call: the result and the arguments after it, as one graph of objects (so identity and shared
storage count), with tensors' values, dtypes, shapes, strides and autograd state; the exception's type, message, cause
and context; printed text, the module's globals, grad mode, random state, and gradients of the floating results; and
what finalisers print when the collector comes, which it does between calls alone: neither program prints into the
other's text.
`Describer` turns that into plain data; a new thing to compare is a line there or in `observe`.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import gc
import io
import itertools
import linecache
import math
import operator
import random
import re
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from fuzz_objects import Net, Pair, Point, Tagged, answering, fresh_state, scope, traced
from fuzz_world import (
    Call,
    Oops,
    Scope,
    Thing,
    Vector,
    defaulted,
    joined,
    make_arguments,
    opaque,
    powers,
    said,
)
from torch.utils._python_dispatch import TorchDispatchMode

import dynajit
from dynajit.outcomes import without_addresses
from dynajit.report import records

# bfloat16 keeps 8 bits; a fused kernel rounds once where eager rounds after each operation.
TOLERANCE = {torch.bfloat16: 6e-2, torch.float32: 2e-4, torch.float64: 2e-4}


@dataclass
class Finding:
    """A difference: `kind` is what differs (or "internal"), `call` the index of the call, `detail` both sides."""

    kind: str
    call: int
    detail: str


class Describer:
    """Plain data for a graph of objects: each object is numbered when first met, tensors also by their storage."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.storages: dict[int, int] = {}
        self.kept: list[Any] = []  # ids stay valid while their objects live
        self.tensors: list[torch.Tensor] = []

    def describe(self, value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, float, str, torch.dtype, type)):
            return value
        if id(value) in self.numbers:
            return ("seen", self.numbers[id(value)])
        number = self.numbers[id(value)] = len(self.numbers)
        self.kept.append(value)
        if isinstance(value, torch.Tensor):
            return ("tensor", number, *self._tensor(value))
        if isinstance(value, dict):
            return ("dict", number, [(self.describe(key), self.describe(item)) for key, item in value.items()])
        if isinstance(value, (list, tuple)):
            return (type(value).__name__, number, [self.describe(item) for item in value])
        if isinstance(value, np.ndarray):
            return ("array", number, str(value.dtype), value.shape, value.tolist())
        if isinstance(value, np.generic):
            return ("scalar", str(value.dtype), value.item())
        if isinstance(value, torch.nn.Module):
            return ("module", number, self._module(value))
        if isinstance(value, Point):
            return ("Point", number, [(name, self.describe(item)) for name, item in vars(value).items()])
        if isinstance(value, Vector):
            return ("Vector", number, self.describe(value.data), value.count)
        if isinstance(value, Thing):
            return ("Thing", number, [(name, self.describe(item)) for name, item in sorted(vars(value).items())])
        if callable(value) and hasattr(value, "__code__"):
            return ("function", number, value.__name__, self._called(value))
        return (type(value).__name__, number)

    def _module(self, module: torch.nn.Module) -> Any:
        """What a module holds, its children apart, and the gradients of its parameters."""
        skipped = ("_modules", "_parameters", "_buffers")
        held = [
            (name, self.describe(item))
            for name, item in vars(module).items()
            if name not in skipped and "hook" not in name
        ]
        parameters = [
            (name, self.describe(p), self.describe(p.grad)) for name, p in module._parameters.items() if p is not None
        ]
        buffers = [(name, self.describe(buffer)) for name, buffer in module._buffers.items()]
        return held, parameters, buffers, [(name, self.describe(child)) for name, child in module._modules.items()]

    def _called(self, function: Any) -> Any:
        """What a function that the program made gives for a one, or raises."""
        try:
            return self.describe(function(torch.ones(())))
        except Exception as error:
            return ("raises", type(error).__name__, str(error))

    def _tensor(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        self.tensors.append(tensor)
        storage = tensor.untyped_storage()._cdata
        number = self.storages.setdefault(storage, len(self.storages))
        # The stride of a dimension of size one addresses nothing; AOTAutograd makes views without it.
        strides = [step if size > 1 else 0 for size, step in zip(tensor.shape, tensor.stride())]
        # Nor does where a tensor without elements begins.
        offset = tensor.storage_offset() if tensor.numel() else 0
        layout = (tuple(tensor.shape), strides, offset, tensor.dtype, number)
        # A copy: the numbers as they are now, whatever happens to the tensor later. An operation that fails may leave a
        # size behind that its memory has no room for: what is there belongs to nobody.
        values = tensor.detach().clone() if _has_room(tensor) else "more than its memory"
        try:
            history = (tensor.is_leaf, vars(tensor).get("note"))
        except RuntimeError as error:  # a view whose history can't be told any more
            history = (str(error), None)
        return (type(tensor).__name__, *layout, tensor.requires_grad, *history, values)


def _has_room(tensor: torch.Tensor) -> bool:
    """Whether all elements lie in the tensor's memory."""
    if not tensor.numel():
        return True
    last = tensor.storage_offset() + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))
    return (last + 1) * tensor.element_size() <= tensor.untyped_storage().nbytes()


class Engine:
    """Autograd's engine; of a backward pass that fails it leaves nothing. How far it got by then, and so which leaves
    have been given a gradient, is the engine's affair: what is one node in a compiled program is many in eager mode."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def run_backward(self, roots: Any, *args: Any, **kwargs: Any) -> Any:
        leaves = _leaves_behind(roots)
        before = [None if leaf.grad is None else (leaf.grad, leaf.grad.detach().clone()) for leaf in leaves]
        try:
            return self.engine.run_backward(roots, *args, **kwargs)
        except RuntimeError:
            for leaf, kept in zip(leaves, before):
                leaf.grad = None
                if kept is not None:
                    leaf.grad = kept[0]
                    leaf.grad.detach().copy_(kept[1])
            raise


def _leaves_behind(roots: Any) -> list[torch.Tensor]:
    waiting = [root.grad_fn for root in roots if isinstance(root, torch.Tensor)]
    seen: set[Any] = {None}
    found: list[torch.Tensor] = []
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        waiting.extend(following for following, _ in node.next_functions)
    return found


@contextlib.contextmanager
def failed_passes_leave_nothing() -> Iterator[None]:
    """With `Engine` in the place of torch's."""
    former = torch.autograd.Variable._execution_engine
    torch.autograd.Variable._execution_engine = Engine(former)
    try:
        yield
    finally:
        torch.autograd.Variable._execution_engine = former


# what a program changes and `captured_again` does not put back
STATE = ("NET", "POINT", "OPT", "ADAM", "OPTS")


@dataclass
class Observed:
    """All that can be seen of one call, by the name of what is compared."""

    parts: dict[str, Any]


def observe(function: Any, call: Call, namespace: dict[str, Any]) -> Observed:
    """Make the arguments, call, and note everything that can be seen afterwards."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with failed_passes_leave_nothing():
            observed, tensors = _observe_call(function, call, namespace)
            text = io.StringIO()
            with contextlib.redirect_stdout(text):
                gc.collect(0)  # nothing that the call made is any older
            # the collector takes what it finds in no order that a program could rely on
            observed.parts["printed when collected"] = sorted(without_addresses(text.getvalue()).splitlines())
            observed.parts["gradients"] = _gradients(tensors)
    finally:
        if collecting:
            gc.enable()
    return observed


def _observe_call(function: Any, call: Call, namespace: dict[str, Any]) -> tuple[Observed, list[torch.Tensor]]:
    """What is seen of a call before the collector comes; and all tensors that were met."""
    arguments = make_arguments(call)
    text = io.StringIO()
    parts: dict[str, Any] = {"exception": None}
    result: Any = None
    # torch.manual_seed also queues a call for CUDA's start, with the stack it came from: a tenth of a program's time.
    torch.default_generator.manual_seed(call.seed)
    with contextlib.redirect_stdout(text), torch.set_grad_enabled(call.grad_mode):
        try:
            result = function(*arguments)
        except dynajit.exc.DynajitError:
            raise
        except Exception as error:
            parts["exception"] = _exception(error)
        parts["grad mode"] = torch.is_grad_enabled()
    parts["random state"] = torch.get_rng_state()
    describer = Describer()
    with contextlib.redirect_stdout(text):
        seen = [namespace.get(name) for name in ("SEEN", "COUNT", "NET", "POINT")]
        parts["result"] = describer.describe([result, list(arguments), *seen])
    parts["printed"] = without_addresses(text.getvalue())
    return Observed(parts), describer.tensors


def _exception(error: BaseException) -> tuple[Any, ...]:
    cause = error.__cause__ and _exception(error.__cause__)
    context = error.__context__ and _exception(error.__context__)
    return (type(error).__name__, str(error), cause, context)


def _gradients(tensors: list[torch.Tensor]) -> Any:
    """Gradients of every leaf after backward from all that can be differentiated; or why that failed."""
    outputs = [tensor for tensor in tensors if tensor.requires_grad and tensor.dtype.is_floating_point]
    if not outputs:
        return None
    try:
        torch.autograd.backward([output.double().sum() * 0.5 for output in outputs])
    except RuntimeError as error:
        return ("failed", str(error).split(":")[0])
    return [tensor.grad if tensor.is_leaf else None for tensor in tensors]


def difference(wanted: Any, got: Any, path: str = "") -> str | None:
    """Where two descriptions differ, in words; None if they agree up to rounding."""
    if isinstance(wanted, torch.Tensor) and isinstance(got, torch.Tensor):
        if wanted.dtype != got.dtype or wanted.shape != got.shape:
            return f"{path}: {wanted.dtype} {tuple(wanted.shape)}, not {got.dtype} {tuple(got.shape)}"
        tolerance = TOLERANCE.get(wanted.dtype, 0.0)
        if torch.allclose(wanted.double(), got.double(), atol=tolerance, rtol=tolerance, equal_nan=True):
            return None
        return f"{path}: values {wanted.flatten()[:6].tolist()}, not {got.flatten()[:6].tolist()}"
    if type(wanted) is not type(got):
        return f"{path}: {wanted!r:.300}, not {got!r:.300}"
    if isinstance(wanted, (list, tuple)):
        if len(wanted) != len(got):
            return f"{path}: {wanted!r:.300}, not {got!r:.300}"
        found = (difference(a, b, f"{path}[{index}]") for index, (a, b) in enumerate(zip(wanted, got)))
        return next((text for text in found if text), None)
    if isinstance(wanted, float) and math.isclose(wanted, got, rel_tol=2e-4, abs_tol=2e-4):
        return None
    if isinstance(wanted, str) and _same_text(wanted, got):
        return None
    return None if wanted == got else f"{path}: {wanted!r:.300}, not {got!r:.300}"


def died_sooner(wanted: dict[str, Any], got: dict[str, Any]) -> None:
    """Take out of both what a finaliser printed at once in the compiled program, and when the collector came in eager.

    A frame that an exception's traceback keeps in a cycle holds all that its variables are bound to, also what they
    were bound to after the exception; behind a break the variables are another frame's, and nothing waits.
    """
    waited = list(wanted["printed when collected"])
    for line in got["printed when collected"]:
        if line in waited:
            waited.remove(line)
    lines, expected = got["printed"].splitlines(True), wanted["printed"].splitlines(True)
    for line in waited:
        if lines.count(line + "\n") > expected.count(line + "\n"):
            # the last of them: what is printed twice is printed for the second time by the one that did not wait
            del lines[len(lines) - 1 - lines[::-1].index(line + "\n")]
            wanted["printed when collected"].remove(line)
    got["printed"] = "".join(lines)


NUMBER = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?")


def _same_text(wanted: str, got: str) -> bool:
    """Texts are equal; numbers with a fraction in them, up to rounding."""
    if NUMBER.sub("#", wanted) != NUMBER.sub("#", got):
        return False
    pairs = zip(NUMBER.findall(wanted), NUMBER.findall(got))
    return all(math.isclose(float(a), float(b), rel_tol=1e-2, abs_tol=1e-3) for a, b in pairs)


def load(source: str, name: str) -> dict[str, Any]:
    """The program's module, as a dict; its source can be found by tracebacks and reports."""
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    world = (torch, dynajit, functools, contextlib, Thing, Scope, Oops, Vector, opaque, said, powers, joined, defaulted)
    namespace: dict[str, Any] = {thing.__name__: thing for thing in world}
    namespace |= {
        thing.__name__: thing for thing in (collections, dataclasses, itertools, operator, Point, Pair, Net)
    } | {thing.__name__: thing for thing in (scope, traced, answering, Tagged, copy, enum, weakref)}
    namespace |= {"np": np, "__name__": "fuzzed", **fresh_state()}
    exec(compile(source, name, "exec"), namespace)
    return namespace


@functools.cache
def _leave_the_rest_alone() -> None:
    """What there is before the first program need not be looked at by each collection."""
    gc.freeze()


def check(source: str, calls: list[Call], backend: str, name: str = "<fuzz>") -> Finding | None:
    """Make the calls with the program as it is and with it compiled; the first difference."""
    _leave_the_rest_alone()
    eager, compiled = load(source, name), load(source, name)
    dynajit.reset()
    function = dynajit.compile(compiled["main"], backend=backend)
    dynajit.counters["internal_errors"].clear()
    for index, call in enumerate(calls):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wanted = observe(eager["main"], call, eager)
            try:
                got = observe(function, call, compiled)
            except Exception as error:
                return Finding("internal", index, f"{type(error).__name__}: {error}"[-1500:])
        if dynajit.counters["internal_errors"]:
            return Finding("internal", index, str(dict(dynajit.counters["internal_errors"]))[:1500])
        died_sooner(wanted.parts, got.parts)
        for kind in wanted.parts:
            found = difference(wanted.parts[kind], got.parts[kind])
            if found and _rounding_decides(source, calls[: index + 1], name, kind, wanted):
                return None
            if found:
                return Finding(kind, index, found)
    return captured_again(function, calls, compiled)


class _OtherRounding(TorchDispatchMode):
    """Operations that compute floating point numbers give others, as near to the exact ones as eager's own."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        computes = torch.Tag.pointwise in func.tags or func.overloadpacket in _SUMS
        if computes and isinstance(out, torch.Tensor) and out.is_floating_point() and not func._schema.is_mutable:
            out.mul_(1 + self.random.choice((-1, 0, 1)) * torch.finfo(out.dtype).eps)
        return out


_SUMS = (torch.ops.aten.sum, torch.ops.aten.mean, torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm)


def _rounding_decides(source: str, calls: list[Call], name: str, kind: str, wanted: Observed) -> bool:
    """Whether eager's own values of the last call are others where its operations round otherwise: `%` of a large
    number, the sign of what is almost zero, the sine of thousands."""
    for seed in range(3):
        namespace = load(source, name)
        for call in calls:
            with _OtherRounding(seed):
                other = observe(namespace["main"], call, namespace)
        died_sooner(wanted.parts, other.parts)
        if difference(wanted.parts[kind], other.parts[kind]):
            return True
    return False


def captured_again(function: Any, calls: list[Call], namespace: dict[str, Any]) -> Finding | None:
    """A capture in a call that repeats the one before it: of equal arguments, with the program's state as it was."""
    # a program that was made smaller may have lost either of them
    count, items = namespace.get("COUNT"), list(namespace.get("SEEN", ()))
    for index, call in enumerate(dict.fromkeys(calls)):
        seen: list[records.CompileRecord] = []
        before = None
        for _ in range(2):
            namespace["COUNT"] = count
            namespace.setdefault("SEEN", [])[:] = items
            state = Describer().describe([namespace.get(name) for name in STATE])
            if before is not None and difference(before, state):
                break  # the call changes more than can be put back
            before = state
            seen.clear()
            with records.listen(seen.append), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                observe(function, call, namespace)
        else:
            if seen:
                told = [f"{record.compile_id} {record.code_name}: {record.recompile_reason}" for record in seen]
                return Finding("captured again", index, "; ".join(told)[:1500])
    return None
