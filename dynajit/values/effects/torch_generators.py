"""Tensors drawn from a `torch.Generator` that the program names, and what it does to the generator.

In: a torch operation with `generator=`. Out: a tensor that generated code draws for real, before the graph, of which it
is an input; an operation that fills a tensor in place copies the drawn one there. Default generators are the graph's
own: with one of them the argument says nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from dynajit.report import breaks
from dynajit.values.base import GraphBreak, Tracer, Value
from dynajit.values.builtins import random_state
from dynajit.values.builtins.registry import builtin, constructor
from dynajit.values.constant import ConstVal
from dynajit.values.effects.table import RunTimeObject, State, call, refuse, tensor
from dynajit.values.objects import ObjVal
from dynajit.values.sequence import SequenceVal
from dynajit.values.tensor import TensorVal

_MAKERS = frozenset({torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal})
_OF_TENSORS = frozenset({torch.multinomial, torch.bernoulli})
_FILLS = frozenset(
    {"normal_", "uniform_", "random_", "exponential_", "geometric_", "cauchy_", "log_normal_", "bernoulli_"}
)


def _is_default(generator: Any) -> bool:
    return generator is torch.default_generator or any(
        generator is each for each in getattr(torch.cuda, "default_generators", ())
    )


def _is_own(device: torch.device, generator: Any) -> bool:
    return type(generator) is torch.Generator and not _is_default(generator) and generator.device == device


def _is_cpus(tx: Tracer, value: Value) -> bool:
    """Whether it is the CPU's default generator, which stays so."""
    if not isinstance(value, ObjVal) or value.real_object is not torch.default_generator:
        return False
    if value.source is not None:
        tx.guard(value.source, "ID", torch.default_generator)
    return True


def _generator(tx: Tracer, value: Value, name: str) -> tuple[Value, torch.device]:
    """A generator that is none of torch's own, and its device."""
    if tx.function_modes or tx.open_levels or torch.is_inference_mode_enabled():
        refuse(f"{name} with a generator in a mode, or in a torch.func transform")
    if isinstance(value, RunTimeObject) and value.kind is torch.Generator:
        return value, torch.device("cpu")
    if isinstance(value, ObjVal) and value.cls is torch.Generator and value.source is not None:
        real = value.real_object
        if not _is_default(real):
            own = functools.partial(_is_own, real.device)
            tx.guard(value.source, "PREDICATE", own, f"a generator of the program's on {real.device}")
            return value, real.device
    refuse(f"{name} with {value.describe()}")


def _state(generator: Value) -> State:
    return State(torch.Generator.get_state, torch.Generator.set_state, generator)


def draw(tx: Tracer, op: str, target: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> Value | None:
    """What an operation with `generator=` gives; None if it has none."""
    given = kwargs.get("generator")
    if given is None:
        return None
    rest = {name: value for name, value in kwargs.items() if name != "generator"}
    if isinstance(given, ConstVal) and given.value is None:
        return tx.torch_op(op, target, args, rest)
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    if _is_cpus(tx, given):
        made = tx.torch_op(op, target, args, rest)
        if not isinstance(made, TensorVal) or made.fake.device.type != "cpu":
            raise GraphBreak(breaks.OP_RAISES, f"{name} with a generator of another device")
        return made
    generator, device = _generator(tx, given, name)
    if op == "call_method" and target in _FILLS and isinstance(args[0], TensorVal):
        return _fill(tx, target, args[0], args[1:], rest, generator, device)
    if op == "call_method" and target in ("multinomial", "bernoulli"):
        target = getattr(torch, target)
    if target not in _MAKERS | _OF_TENSORS or {"out", "requires_grad", "layout", "pin_memory"} & rest.keys():
        refuse(f"{name} with a generator")
    if target in _MAKERS and any(isinstance(value, TensorVal) for value in (*args, *rest.values())):
        refuse(f"{name} of tensors with a generator")
    mark = tx.graph.mark()
    like = tx.torch_op("call_function", target, args, rest)
    if not isinstance(like, TensorVal) or like.fake.device != device:
        raise GraphBreak(breaks.OP_RAISES, f"{name} with a generator of another device")
    tx.graph.rollback(mark)
    function, args = _flat_sizes(tx, target, args)
    source = call(tx, f"torch.{name}", function, args, {**rest, "generator": generator}, state=_state(generator))
    return tensor(tx, source, like.fake)


def _flat_sizes(tx: Tracer, target: Any, args: Sequence[Value]) -> tuple[Any, Sequence[Value]]:
    """The function and its arguments, where a size of which numbers vary is handed over number by number."""
    for at, value in enumerate(args):
        if isinstance(value, SequenceVal) and not value.is_const():
            sizes = value.values(tx)
            return functools.partial(_sized, target, at, len(sizes)), [*args[:at], *sizes, *args[at + 1 :]]
    return target, args


def _sized(target: Any, at: int, count: int, *args: Any, **kwargs: Any) -> torch.Tensor:
    end = at + count
    made: torch.Tensor = target(*args[:at], args[at:end], *args[end:], **kwargs)
    return made


def _has_no_gaps(fake: torch.Tensor) -> bool:
    """Whether the tensor's elements lie in memory one behind another, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(fake.stride(), fake.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _filled(method: str, like: tuple[Any, ...], *args: Any, **kwargs: Any) -> torch.Tensor:
    size, stride, dtype, device = like
    made = torch.empty_strided(size, stride, dtype=dtype, device=device)
    filled: torch.Tensor = getattr(made, method)(*args, **kwargs)
    return filled


def _fill(
    tx: Tracer,
    name: str,
    target: TensorVal,
    args: Sequence[Value],
    kwargs: dict[str, Value],
    generator: Value,
    device: torch.device,
) -> Value:
    fake = target.fake
    numbers = (*fake.shape, *fake.stride())
    if not all(type(number) is int for number in numbers) or not _has_no_gaps(fake):
        refuse(f"{name} with a generator, of a tensor of varying size or with gaps")
    if fake.device != device or (fake.requires_grad and torch.is_grad_enabled()):
        refuse(f"{name} with a generator, of a tensor of another device or with gradients")
    if any(isinstance(value, TensorVal) for value in (*args, *kwargs.values())):
        refuse(f"{name} of tensors with a generator")
    like = ConstVal((tuple(fake.shape), fake.stride(), fake.dtype, fake.device))
    given = {**kwargs, "generator": generator}
    source = call(tx, f"Tensor.{name}", functools.partial(_filled, name), [like, *args], given, state=_state(generator))
    with tx.graph.running_fake():
        made = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
    return tx.torch_op("call_method", "copy_", [target, tensor(tx, source, made)], {})


@constructor(torch.Generator)
def new_generator(tx: Tracer, device: Value | None = None) -> Value:
    if device is not None and (not device.is_const() or device.const() not in ("cpu", torch.device("cpu"))):
        refuse("torch.Generator of another device")
    return RunTimeObject(torch.Generator, call(tx, "torch.Generator", torch.Generator, [ConstVal("cpu")]))


@builtin(torch.Generator.manual_seed)
def manual_seed(tx: Tracer, self: Value, seed: Value) -> Value:
    if _is_cpus(tx, self):
        return random_state.of_default(tx, self, "manual_seed", [seed])
    generator, _ = _generator(tx, self, "Generator.manual_seed")
    if not (seed.is_const() and type(seed.const()) is int and 0 <= seed.const() < 1 << 63):
        refuse("Generator.manual_seed of what is no known int")
    call(tx, "Generator.manual_seed", torch.Generator.manual_seed, [generator, seed], state=_state(generator))
    return self


@builtin(torch.Generator.get_state)
def get_state(tx: Tracer, self: Value) -> Value:
    if _is_cpus(tx, self):
        return random_state.of_default(tx, self, "get_state", [])
    generator, device = _generator(tx, self, "Generator.get_state")
    if device.type != "cpu":
        refuse("Generator.get_state of a device's generator")
    source = call(tx, "Generator.get_state", torch.Generator.get_state, [generator], state=_state(generator))
    with tx.graph.running_fake():
        made = torch.empty(torch.Generator().get_state().shape, dtype=torch.uint8)
    return tensor(tx, source, made)


@builtin(torch.Generator.set_state)
def set_state(tx: Tracer, self: Value, state: Value) -> Value:
    if _is_cpus(tx, self):
        return random_state.of_default(tx, self, "set_state", [state])
    generator, _ = _generator(tx, self, "Generator.set_state")
    if not (isinstance(state, TensorVal) and state.source is not None and ".get_state#" in state.source.name()):
        refuse("Generator.set_state to a state that the function did not get itself")
    call(tx, "Generator.set_state", torch.Generator.set_state, [generator, state], state=_state(generator))
    return self
