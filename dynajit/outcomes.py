"""What a caller can see of one call, and whether two calls agree in it.

In: a function and its arguments. Out: `copies` of both for one side; `run` makes one call's `Outcome`: results,
mutated arguments, aliasing, exceptions, printed text, random state; `compare` raises AssertionError at the first place
where two differ. One more thing compared: a field of `Outcome`.
"""

import collections
import contextlib
import copy
import dataclasses
import io
import itertools
import random
import re
import traceback
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

# by names of their own: a program may replace torch's
from torch import get_default_dtype, is_grad_enabled, set_default_dtype, set_grad_enabled

_PACKAGE = str(Path(__file__).resolve().parent)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # in the text of an object whose class has no text of its own


@dataclasses.dataclass
class Outcome:
    """What a caller can see of one call. `sharing` maps a place to the first one holding the same object or memory;
    `settings` are grad mode and default dtype."""

    result: Any
    error: tuple[Any, ...] | None
    stdout: str
    inputs: Any
    sharing: dict[str, str]
    random_state: tuple[bytes, int]
    settings: tuple[bool, torch.dtype]


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
    Comparison(exact, rtol, atol).visit(actual, expected, where)


# ------------------------------------------------------------------------------------------------ running


Calls = list[tuple[tuple[Any, ...], dict[str, Any]]]


def copies(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    then: Sequence[tuple[Any, ...]],
    repeat: int,
) -> tuple[Callable[..., Any], Calls, list[Calls]]:
    """One side's own function and calls, with what is shared between them shared between the copies too; and rounds of
    the same calls with fresh copies of the arguments, so many that in the last one the first call is made for at least
    the third time."""
    arguments = (args, dict(kwargs or {}), list(then))
    memo: dict[int, Any] = {}
    own_fn = _copy(fn, memo)
    of_fn = dict(memo)
    own_args, own_kwargs, own_then = _copy(arguments, memo)
    rounds = []
    for _ in range(max(1, 3 - repeat)):
        new_args, new_kwargs, new_then = _copy(arguments, dict(of_fn))
        rounds.append([(new_args, new_kwargs), *((more, {}) for more in new_then)])
    return own_fn, [(own_args, own_kwargs)] * repeat + [(more, {}) for more in own_then], rounds


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    """A deep copy. torch refuses one of what autograd computed; for a test a leaf with the same contents does."""
    for _, found in walk(value, "x"):
        if isinstance(found, torch.Tensor) and not found.is_leaf and id(found) not in memo:
            memo[id(found)] = found.detach().clone().requires_grad_()
    return copy.deepcopy(value, memo)


def run(
    fn: Callable[..., Any], owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any], seed: int, *also: Any
) -> Outcome:
    """Call `fn` with the random state of `seed`. `owner` is the uncompiled function; `also` what else the call may
    change, compared as the arguments are. Grad mode and default dtype are put back."""
    before = is_grad_enabled(), get_default_dtype()
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
    settings = is_grad_enabled(), get_default_dtype()
    set_grad_enabled(before[0])
    set_default_dtype(before[1])
    inputs = (args, kwargs, owner if isinstance(owner, torch.nn.Module) else getattr(owner, "__self__", None), *also)
    printed = without_addresses(stdout.getvalue())
    return Outcome(result, error, printed, inputs, sharing_of((inputs, result)), state, settings)


def without_addresses(text: str) -> str:
    """`text` with the addresses of objects left out, which differ between two copies."""
    return _ADDRESS.sub(" at 0x", text)


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
    return type(error), without_addresses(str(error)), last, cause


# ------------------------------------------------------------------------------------------------ structures


def children(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a container or an object of a user's class, each with how to write its place."""
    if isinstance(value, torch.Tensor):
        if value.is_leaf and value.grad is not None:
            yield ".grad", value.grad
    elif isinstance(value, Mapping):
        yield from ((f"[{_key_text(key, place)}]", item) for place, (key, item) in enumerate(value.items()))
    elif isinstance(value, (list, tuple, collections.deque)):
        yield from ((f"[{i}]", item) for i, item in enumerate(value))
    elif isinstance(value, types.MethodType):
        yield ".__func__", value.__func__
        yield ".__self__", value.__self__
    if _has_state(value):
        for name, item in vars(value).items():
            if isinstance(value, torch.nn.Module) and "_hooks" in str(name) and isinstance(item, Mapping):
                # the keys are counted over the process
                yield from ((f".{name}[{i}]", hook) for i, hook in enumerate(item.values()))
            elif not str(name).startswith("_dynamo_"):  # torch.compile's marks: `torch.cond` in eager mode leaves some
                yield f".{name}", item


def _key_text(key: Any, place: int) -> str:
    """How to write a key; a tensor's text would be its numbers, which may be rounded otherwise."""
    return f"key {place}, a tensor" if isinstance(key, torch.Tensor) else without_addresses(repr(key))


def _has_state(value: Any) -> bool:
    """Is it an instance whose attributes are data (no class, function, module of Python)?"""
    return hasattr(value, "__dict__") and not isinstance(
        value, (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
    )


def differentiable(result: Any) -> list[torch.Tensor]:
    """The tensors in a result that gradients can be asked for, each once."""
    found = {
        id(value): value
        for _, value in walk(result, "")
        if isinstance(value, torch.Tensor) and value.grad_fn is not None
    }
    return [*found.values()]


def walk(value: Any, where: str, seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Each place below `value` and what is there; an object met again is given, but not entered a second time."""
    seen = set() if seen is None else seen
    yield where, value
    if id(value) not in seen:
        seen.add(id(value))
        for place, child in children(value):
            yield from walk(child, where + place, seen)


_IDENTITY_IS_NO_PROMISE = (int, float, complex, str, bytes, bool, type(None), frozenset, range, slice)


def sharing_of(value: Any) -> dict[str, str]:
    first: dict[tuple[str, int], str] = {}
    shared: dict[str, str] = {}
    for where, item in walk(value, ""):
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


class Comparison:
    """Walks two structures side by side. Pairs already visited are not entered again, so cycles end."""

    def __init__(self, exact: bool, rtol: float | None, atol: float | None) -> None:
        self._exact = exact
        self._rtol = rtol
        self._atol = atol
        self._visited: set[tuple[int, int]] = set()

    def visit(self, actual: Any, expected: Any, where: str) -> None:
        same = self.same_type(type(actual), type(expected))
        self._require(same, where, f"type {type(actual)}, expected {type(expected)}")
        if (id(actual), id(expected)) in self._visited or actual is expected:
            return
        self._visited.add((id(actual), id(expected)))
        if isinstance(expected, torch.Tensor):
            self._tensor(actual, expected, where)
        elif isinstance(expected, (set, frozenset)) or not (_has_state(expected) or self._has_parts(expected)):
            self._require(self.equal(actual, expected), where, f"{actual!r}, expected {expected!r}")
            return
        ours, theirs = dict(children(actual)), dict(children(expected))
        self._require(list(ours) == list(theirs), where, f"has {list(ours)}, expected {list(theirs)}")
        for place, child in theirs.items():
            self.visit(ours[place], child, where + place)

    @staticmethod
    def _has_parts(value: Any) -> bool:
        return isinstance(value, (Mapping, list, tuple, collections.deque, types.MethodType))

    def _tensor(self, actual: torch.Tensor, expected: torch.Tensor, where: str) -> None:
        for name in ("dtype", "shape", "device", "layout", "requires_grad", "is_leaf"):
            ours, theirs = getattr(actual, name), getattr(expected, name)
            self._require(ours == theirs, where, f"{name} {ours}, expected {theirs}")
        for name in ("is_conj", "is_neg"):
            ours, theirs = getattr(actual, name)(), getattr(expected, name)()
            self._require(ours == theirs, where, f"{name}() {ours}, expected {theirs}")
        if expected.layout == torch.strided:
            ours_at, theirs_at = (
                [s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1] for t in (actual, expected)
            )
            self._require(
                ours_at == theirs_at or not expected.numel(), where, f"strides {ours_at}, expected {theirs_at}"
            )
        self.close(actual.detach(), expected.detach(), where)

    def same_type(self, actual: type, expected: type) -> bool:
        """Whether objects of the two classes may be alike."""
        return actual is expected

    def equal(self, actual: Any, expected: Any) -> bool:
        """Equality, of what is neither a tensor nor a container, that takes NaN for itself and tells 0.0 from -0.0."""
        if isinstance(expected, (float, complex)):
            return repr(actual) == repr(expected)
        if isinstance(expected, str):
            return without_addresses(actual) == without_addresses(expected)
        if isinstance(expected, weakref.ref):
            return (actual() is None) == (expected() is None)
        if isinstance(expected, (numpy.ndarray, numpy.generic)):
            return self._arrays(actual, expected)
        if type(expected).__eq__ is object.__eq__:  # type: ignore[comparison-overlap]
            # Identity is all such an object has. Two deep copies of one without attributes are alike.
            return True
        return bool(actual == expected)

    def _arrays(self, actual: Any, expected: Any) -> bool:
        if (actual.dtype, actual.shape, actual.strides) != (expected.dtype, expected.shape, expected.strides):
            return False
        if expected.dtype.kind not in "biufc":
            return bool(numpy.array_equal(actual, expected))
        self.close(torch.as_tensor(actual.copy()), torch.as_tensor(expected.copy()), "the array")
        return True

    def close(self, actual: torch.Tensor, expected: torch.Tensor, where: str) -> None:
        """Raise AssertionError unless the numbers in two tensors of one dtype and shape agree."""
        tolerance = {"rtol": 0.0, "atol": 0.0} if self._exact else {"rtol": self._rtol, "atol": self._atol}
        try:
            torch.testing.assert_close(actual, expected, equal_nan=True, **tolerance)
        except AssertionError as error:
            raise AssertionError(f"{where}: {error}") from None

    @staticmethod
    def _require(condition: bool, where: str, message: str) -> None:
        if not condition:
            raise AssertionError(f"{where}: {message if len(message) < 600 else message[:600] + ' ...'}")
