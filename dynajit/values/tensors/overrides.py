"""Who is asked about a torch call before torch computes it: `__torch_function__` of modes and of arguments' classes.

In: a torch function, method or attribute with its arguments as values. Out: what the user's `__torch_function__`, which
is traced, gives; None if nobody is asked. What function torch names to it, and with which arguments, torch itself says:
the call is made for real with spies in place of the arguments that would be asked. Order and rules are those of torch's
page "Extending PyTorch".
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from dynajit.graph.builder import run_target
from dynajit.guards.assumed import ABSENT, attribute_of
from dynajit.guards.source import CallSource, ConstSource
from dynajit.report import breaks
from dynajit.values.containers.mapping import DictVal
from dynajit.values.containers.sequence import Lazy, ListVal, SequenceVal, TupleVal
from dynajit.values.core.slots import left_to_real_call
from dynajit.values.core.value import GraphBreak, NotReal, Tracer, Value
from dynajit.values.objects.objects import ObjVal
from dynajit.values.scalars.constant import ConstVal, declined, is_literal

# torch's three states of asking
ASKING, SUBCLASSES_OFF, ALL_OFF = 0, 1, 2
_TORCH_C: Any = torch._C  # its stubs lack what is read here
_TENSOR_CLASSES = (torch.Tensor, torch._C.TensorBase)
_OPERATOR_FUNCTIONS = frozenset(each for each in vars(operator).values() if callable(each))


def state_now() -> int:
    """Which `__torch_function__` this thread asks."""
    state, names = _TORCH_C._get_torch_function_state(), _TORCH_C._TorchFunctionState
    return {names.ENABLED: ASKING, names.SUBCLASSES_DISABLED: SUBCLASSES_OFF}.get(state, ALL_OFF)


@functools.lru_cache(maxsize=4096)
def overriding(cls: type) -> bool:
    """Whether torch asks instances of the class. Tensor's own `__torch_function__` serves its subclasses."""
    if cls is torch.Tensor:
        return False
    found, function = attribute_of(cls, "__torch_function__"), getattr(cls, "__torch_function__", None)
    return found is not ABSENT and function is not torch._C._disabled_torch_function_impl


class Overrides:
    """Which `__torch_function__` torch asks while the program is traced. Every change is undoable.

    Attributes:
        off: whose is not asked: nobody's (ASKING), arguments' (SUBCLASSES_OFF), anybody's (ALL_OFF).
        modes: the active modes, innermost last; default devices as devices.
        entered: both as they were where the outermost frame began.
    """

    def __init__(self, tx: Tracer) -> None:
        self.tx = tx
        self.off, self.modes = self.entered = state_now(), _modes_at_entry(tx)

    def set(self, name: str, value: object) -> None:
        """Change one of both."""
        self.tx.journal.set_attr(self, name, value)

    def turn_off(self, state: int) -> int:
        """Ask no more than `state` says from here on; returns what was asked."""
        before = self.off
        self.tx.opening()
        self.set("off", max(before, state))
        return before

    def push(self, mode: Value) -> None:
        """Enter a mode, or a default device."""
        self.tx.opening()
        self.set("modes", [*self.modes, mode])

    def pop(self, is_device: bool) -> Value:
        """Leave the innermost mode. Raises GraphBreak where that is of another kind, or was entered outside."""
        if len(self.modes) <= len(self.entered[1]) or isinstance(self.modes[-1], ConstVal) is not is_device:
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, "leaving a mode or device context that was entered outside")
        *rest, left = self.modes
        self.set("modes", rest)
        return left


def _modes_at_entry(tx: Tracer) -> list[Value]:
    """The modes that are active where the frame begins; default devices as devices. Their classes are guarded."""
    found: list[Value] = []
    for index in range(torch._C._len_torch_function_stack()):
        mode: Any = torch._C._get_function_stack_at(index)
        if type(mode) is DeviceContext:
            found.append(ConstVal(mode.device))
        else:
            at = functools.partial(_mode_at, index)
            source = CallSource(ConstSource(torch, "torch"), at, f"mode {index} of {{}}")
            found.append(tx.wrap(mode, source))
    return found


def _mode_at(index: int, _: object) -> object:
    found: object = torch._C._get_function_stack_at(index)
    return found


# ------------------------------------------------------------------------------------------------- who is asked


def asked(tx: Tracer, values: Sequence[Value]) -> list[ObjVal]:
    """The arguments that are asked, subclasses before their bases; one for each class."""
    found: list[ObjVal] = []
    if tx.overrides.off == ASKING:
        for value in values:
            _consider(tx, value, found)
    return found


def _consider(tx: Tracer, value: Value, found: list[ObjVal]) -> None:
    if isinstance(value, SequenceVal):
        for index, item in enumerate(value.items):
            kind = type(item.obj) if isinstance(item, Lazy) else item.cls if isinstance(item, ObjVal) else object
            if overriding(kind):
                _consider(tx, value.item(tx, index), found)
    elif isinstance(value, ObjVal) and overriding(value.cls) and all(value.cls is not known.cls for known in found):
        place = next((i for i, known in enumerate(found) if issubclass(value.cls, known.cls)), len(found))
        found.insert(place, value)


def is_overriding(value: Value) -> bool:
    """Whether torch would ask the object itself."""
    return isinstance(value, ObjVal) and overriding(value.cls)


def user_modes(tx: Tracer) -> bool:
    """Whether a mode of the user's sees torch's calls."""
    return tx.overrides.off != ALL_OFF and not all(isinstance(mode, ConstVal) for mode in tx.overrides.modes)


def dispatch(tx: Tracer, op: str, target: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> Value | None:
    """What the user's `__torch_function__` gives for a call; None if torch computes it itself."""
    objects = asked(tx, [*args, *kwargs.values()])
    modes = user_modes(tx)
    if not objects and not modes:
        return None
    call = _spied(tx, op, target, args, kwargs, modes)
    if call is None:
        return None
    name = target if op == "call_method" else f"__{target.__name__}__" if target in _OPERATOR_FUNCTIONS else ""
    # of a TypeError an operator makes NotImplemented: the other operand is asked, and the words are Python's
    with left_to_real_call(TypeError) if name.startswith("__") else contextlib.nullcontext():
        return ask(tx, call.func, objects, call.args, call.kwargs)


def attribute(tx: Tracer, owner: Value, name: str) -> Value | None:
    """What the user's `__torch_function__` gives for a tensor's attribute; None if it is read as it is."""
    return dispatch(tx, "call_function", getattr, [owner, ConstVal(name)], {})


def ask(tx: Tracer, func: Value, objects: Sequence[ObjVal], args: Value, kwargs: Value | None) -> Value:
    """Ask the innermost mode, then the arguments, until one knows."""
    types = tx.new_tuple([tx.from_real(value.cls) for value in objects])
    given = [func, types, args] if kwargs is None else [func, types, args, kwargs]
    with tx.not_resumable():
        if user_modes(tx):
            answer = _ask_mode(tx, given)
            if not declined(answer):
                return answer
        for value in objects:
            answer = tx.call(tx.class_attribute(value, value.cls, "__torch_function__"), given, {})
            if not declined(answer):
                return answer
    raise GraphBreak(breaks.OP_RAISES, f"no __torch_function__ knows {func.describe()}")


def _ask_mode(tx: Tracer, given: list[Value]) -> Value:
    """The innermost mode of the user's; while it is asked it is not active, nor is what is inside of it."""
    modes = tx.overrides.modes
    place = max(index for index, mode in enumerate(modes) if not isinstance(mode, ConstVal))
    tx.opening()
    tx.overrides.set("modes", modes[:place])
    try:
        return tx.call(modes[place].getattr(tx, "__torch_function__"), given, {})
    finally:  # what it raises may be caught
        tx.overrides.set("modes", modes)


@contextlib.contextmanager
def functions_off(tx: Tracer, state: int) -> Iterator[None]:
    """Nobody (ALL_OFF), or no argument (SUBCLASSES_OFF), is asked in the body."""
    before = tx.overrides.turn_off(state)
    try:
        yield
    finally:  # what is raised may be caught
        tx.overrides.set("off", before)


# ------------------------------------------------------------------------------------------------------ the spies


class _Caught(Exception):
    """torch asks a spy."""

    def __init__(self, func: Any, args: Any, kwargs: Any) -> None:
        super().__init__()
        self.func, self.args_given, self.kwargs_given = func, args, kwargs


class Spy:
    """Stands for an object whose class has a `__torch_function__`."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _Caught(func, args, kwargs)


class SpyTensor(Spy, torch.Tensor):
    """Stands for a tensor."""


class SpyMode(TorchFunctionMode):
    """Stands for the active mode; torch wants a plain method there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _Caught(func, args, kwargs)


_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


class _Call(NamedTuple):
    """A call as `__torch_function__` sees it."""

    func: Value
    args: Value
    kwargs: Value | None


class _StandIns:
    """Objects that stand for values, and the way back."""

    def __init__(self, tx: Tracer) -> None:
        self.tx = tx
        self._known: dict[int, tuple[Any, Value]] = {}

    def of(self, value: Value) -> Any:
        """The object that stands for the value."""
        made = self._made(value)
        if not is_literal(made):
            self._known[id(made)] = made, value
        return made

    def _made(self, value: Value) -> Any:
        if isinstance(value, ObjVal) and overriding(value.cls):
            return torch.empty(0).as_subclass(SpyTensor) if issubclass(value.cls, torch.Tensor) else Spy()
        fake = getattr(value, "fake", None)
        if fake is not None:
            return fake
        if isinstance(value, ListVal):
            return [self.of(item) for item in value.values(self.tx)]
        if isinstance(value, TupleVal):
            parts = tuple(self.of(item) for item in value.values(self.tx))
            is_size = value.kind is torch.Size and Spy not in map(type, parts)
            return torch.Size(parts) if is_size else parts
        if isinstance(value, DictVal):
            return {key.const(): self.of(item) for key, item in value.items(self.tx)}
        ends = getattr(value, "slice_parts", None)
        if ends is not None:
            return slice(*(self.of(part) for part in ends))
        if value.symbolic:
            return getattr(value, "number", None)
        try:
            return value.real()
        except NotReal:
            return Spy()

    def value(self, obj: Any) -> Value:
        """The value that an object stands for; containers that torch made are taken apart."""
        known = self._known.get(id(obj))
        if known is not None:
            return known[1]
        if type(obj) is tuple:
            return self.tx.new_tuple([self.value(item) for item in obj])
        if type(obj) is list:
            return self.tx.new_list([self.value(item) for item in obj])
        if type(obj) is dict:
            made = DictVal()
            for key, item in obj.items():
                made.setitem(self.tx, self.tx.from_real(key), self.value(item))
            return made
        return self.tx.from_real(obj)


def _spied(
    tx: Tracer, op: str, target: Any, args: Sequence[Value], kwargs: dict[str, Value], modes: bool
) -> _Call | None:
    """The call as torch hands it on; None if it asks nobody about it."""
    known = _StandIns(tx)
    given = [known.of(arg) for arg in args]
    named = {name: known.of(arg) for name, arg in kwargs.items()}
    try:
        with torch._C._EnableTorchFunction(), SpyMode() if modes else contextlib.nullcontext():
            _run_as_torch(op, target, given, named)
    except _Caught as caught:
        if isinstance(caught.func, torch._ops.OpOverload) and not isinstance(target, _OPERATORS):
            return None  # what the fake tensor computes it with: torch.func's own functions ask nobody
        rest = caught.kwargs_given
        func, positional = tx.from_real(caught.func), known.value(caught.args_given)
        return _Call(func, positional, None if rest is None else known.value(rest))
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, NotImplementedError):
        return None  # it raises before it asks, and so does the operation itself
    return None


def _run_as_torch(op: str, target: Any, given: list[Any], named: dict[str, Any]) -> None:
    """The call on plain tensors. What a fake tensor's class defines anew asks later, or for something else."""
    name = given[1] if target is getattr and len(given) > 1 else target if op == "call_method" else None
    if isinstance(name, str) and isinstance(given[0], FakeTensor) and name in vars(FakeTensor):
        found = getattr(torch.Tensor, name)
        if op == "call_method":
            found(*given, **named)
        else:
            found.__get__(given[0])
    else:
        run_target(op, target, given, named)


def is_of_tensor(owner: type | None) -> bool:
    """Whether an attribute found in this class is torch's own."""
    return owner in _TENSOR_CLASSES


@contextlib.contextmanager
def stack_put_away() -> Iterator[None]:
    """The program's modes don't see what runs while tracing and compiling."""
    modes = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            torch._C._push_on_torch_function_stack(mode)
