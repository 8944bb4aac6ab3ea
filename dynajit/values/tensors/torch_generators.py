"""torch's generators: seeds and states of its own, and of those that the program makes; tensors drawn from the latter.

In: calls that seed a generator, read or set its state; a torch operation with `generator=`. Out: calls that generated
code makes for real. Those on the CPU's default generator, which is the graph's own, come before the graph while nothing
in it draws; else after it, and then the next operation that may draw ends the graph at the call. Of the program's own
generators the drawn tensor is an input of the graph; an operation that fills a tensor in place copies it there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynajit.guards.source import RunTimeSource
from dynajit.op_facts import may_draw
from dynajit.report import breaks
from dynajit.symbols import has_symbols
from dynajit.values.containers.sequence import SequenceVal
from dynajit.values.core.registry import builtin
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.effects.table import (
    Arguments,
    Gives,
    Rule,
    RunTimeObject,
    State,
    When,
    apply,
    follow,
    no_arguments,
    refuse,
    register,
)
from dynajit.values.objects.objects import ObjVal
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.scalars.symbolic import SymVal
from dynajit.values.tensors.tensor import TensorVal

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


def _is_cpus(value: Value) -> bool:
    """Whether it is the CPU's default generator."""
    return value.real_object is torch.default_generator


def _stays_cpus(tx: Tracer, value: Value) -> bool:
    """The same, guarded."""
    if _is_cpus(value) and value.source is not None:
        tx.guard(value.source, "ID", torch.default_generator)
    return _is_cpus(value)


def _generator(tx: Tracer, value: Value, name: str) -> tuple[Value, torch.device]:
    """A generator that is none of torch's own, and its device."""
    if tx.overrides.modes or tx.open_levels or torch.is_inference_mode_enabled():
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


def _draw(
    tx: Tracer, name: str, function: Any, args: Sequence[Value], kwargs: dict[str, Value], like: torch.Tensor
) -> Value:
    """Have generated code draw a tensor like this one from the generator among the arguments."""
    rule = Rule(name, function, no_arguments, _tensor_like(like), lambda _: _state(kwargs["generator"]))
    return apply(tx, rule, args, kwargs)


def new_tensor(tx: Tracer, source: RunTimeSource, fake: torch.Tensor) -> TensorVal:
    """The new tensor that a call gives; `fake`: one like it."""
    sizes = [_hint(size) for size in fake.shape], [_hint(stride) for stride in fake.stride()]
    like = torch.empty_strided(*sizes, dtype=fake.dtype, device=fake.device)
    entry = tx.graph.add_made(source, like, fake)
    made = TensorVal(entry.node, entry.fake, torch.Tensor, source, like)
    tx.remember_tensor(made)
    return made


def _hint(number: Any) -> int:
    return int(number.node.hint) if isinstance(number, torch.SymInt) else int(number)


def _tensor_like(fake: torch.Tensor) -> Gives:
    return lambda tx, source, args: new_tensor(tx, source, fake)


def draw(tx: Tracer, op: str, target: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> Value | None:
    """What an operation with `generator=` gives; None if it has none."""
    given = kwargs.get("generator")
    if given is None:
        return None
    rest = {name: value for name, value in kwargs.items() if name != "generator"}
    if isinstance(given, ConstVal) and given.value is None:
        return tx.torch_op(op, target, args, rest)
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    if _stays_cpus(tx, given):
        made = tx.torch_op(op, target, args, rest)
        if not isinstance(made, TensorVal) or made.fake.device.type != "cpu":
            raise GraphBreak(breaks.OP_RAISES, f"{name} with a generator of another device")
        return made
    generator, device = _generator(tx, given, name)
    if op == "call_method" and target in _FILLS and isinstance(args[0], TensorVal):
        return _fill(tx, target, args[0], args[1:], rest, generator, device)
    return _drawn(tx, op, target, args, rest, generator, device)


def _drawn(
    tx: Tracer,
    op: str,
    target: Any,
    args: Sequence[Value],
    rest: dict[str, Value],
    generator: Value,
    device: torch.device,
) -> Value:
    """A new tensor drawn from a generator of the program's."""
    if op == "call_method" and target in ("multinomial", "bernoulli"):
        target = getattr(torch, target)
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
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
    return _draw(tx, f"torch.{name}", function, args, {**rest, "generator": generator}, like.fake)


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
    if has_symbols(fake) or not _has_no_gaps(fake):
        refuse(f"{name} with a generator, of a tensor of varying size or with gaps")
    if fake.device != device or (fake.requires_grad and torch.is_grad_enabled()):
        refuse(f"{name} with a generator, of a tensor of another device or with gradients")
    if any(isinstance(value, TensorVal) for value in (*args, *kwargs.values())):
        refuse(f"{name} of tensors with a generator")
    like = ConstVal((tuple(fake.shape), fake.stride(), fake.dtype, fake.device))
    given = {**kwargs, "generator": generator}
    with tx.graph.running_fake():
        made = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
    drawn = _draw(tx, f"Tensor.{name}", functools.partial(_filled, name), [like, *args], given, made)
    return tx.torch_op("call_method", "copy_", [target, drawn], {})


# ------------------------------------------------------------------------------------------------- seeds and states


def _has_drawn(tx: Tracer) -> bool:
    """Whether the graph has drawn, or a call after the graph's is to change the state of torch's own generators."""
    drawn = any(node.op.startswith("call") and may_draw(node.target) for node in tx.graph.graph.nodes)
    return drawn or any(made.late and made.function in _CHANGING for made in tx.calls)


def _between_draws(tx: Tracer, rule: Rule, args: Sequence[Value]) -> When:
    """Where a call comes that changes the state of a generator."""
    drawn = _has_drawn(tx)
    if _is_programs(args) or not (drawn or tx.graph.may_raise()):
        return When.BEFORE
    follow(tx, f"{rule.name} between operations that {'draw' if drawn else 'may raise and draw'}", may_draw)
    return When.AFTER


def _before_draws(tx: Tracer, rule: Rule, args: Sequence[Value]) -> When:
    if not _is_programs(args) and _has_drawn(tx):
        raise GraphBreak(breaks.SKIPPED_CALL, f"{rule.name} after operations that draw")
    return When.BEFORE


def _is_programs(args: Sequence[Value]) -> bool:
    """Whether the call is a method of a generator of the program's."""
    return bool(args) and isinstance(args[0], (ObjVal, RunTimeObject)) and not _is_cpus(args[0])


def _of_seed(rule: Rule, tx: Tracer, seed: Value) -> Arguments:
    varies = isinstance(seed, SymVal) and seed.py_type() is int
    known = seed.const() if seed.is_const() and not varies else None
    if not varies and (type(known) is not int or not -(1 << 63) <= known < 1 << 63):
        refuse(f"{rule.name} of what is no known int")
    return [seed], {}


def _of_state(rule: Rule, tx: Tracer, new_state: Value) -> Arguments:
    """A state that the function got itself is one; of another torch may make an error, which comes first then."""
    source = new_state.source if isinstance(new_state, TensorVal) else None
    is_state = isinstance(source, RunTimeSource) and "state#" in source.name()
    if not is_state and (source is None or tx.graph.op_count or tx.journal.dirty or tx.calls):
        refuse("setting a generator's state to one that the function did not get itself")
    return [new_state], {}


def _of_generator(rule: Rule, tx: Tracer, self: Value, *rest: Value) -> Arguments:
    """The arguments of a method of generators: the CPU's default one, or one of the program's."""
    if not _stays_cpus(tx, self):
        self, device = _generator(tx, self, rule.name)
        if rule.function is not torch.Generator.manual_seed and device.type != "cpu":
            refuse(f"{rule.name} of a device's generator")
    return [self, *_REST[rule.name](rule, tx, *rest)[0]], {}


_REST: dict[str, Callable[..., Arguments]] = {
    "Generator.manual_seed": _of_seed,
    "Generator.get_state": no_arguments,
    "Generator.set_state": _of_state,
}


def _of_device(rule: Rule, tx: Tracer, device: Value | None = None) -> Arguments:
    if device is not None and (not device.is_const() or device.const() not in ("cpu", torch.device("cpu"))):
        refuse("torch.Generator of another device")
    return [ConstVal("cpu")], {}


def _state_tensor(tx: Tracer, source: RunTimeSource, args: Sequence[Value]) -> Value:
    with tx.graph.running_fake():
        made = torch.empty(torch.Generator().get_state().shape, dtype=torch.uint8)
    return new_tensor(tx, source, made)


def _generator_itself(tx: Tracer, source: RunTimeSource, args: Sequence[Value]) -> Value:
    return args[0] if isinstance(args[0], (ObjVal, RunTimeObject)) else tx.from_real(torch.default_generator)


def _state_of(args: Sequence[Value]) -> State | None:
    return _state(args[0]) if _is_programs(args) else None


def _method(name: str, gives: Gives, when: Any) -> Rule:
    return Rule(f"Generator.{name}", getattr(torch.Generator, name), _of_generator, gives, _state_of, when)


_RULES = [
    # torch.manual_seed itself may be a wrapper of this one
    Rule("torch.manual_seed", torch.random.manual_seed, _of_seed, _generator_itself, when=_between_draws),
    Rule("torch.cuda.manual_seed", torch.cuda.manual_seed, _of_seed, when=_between_draws),
    Rule("torch.cuda.manual_seed_all", torch.cuda.manual_seed_all, _of_seed, when=_between_draws),
    Rule("torch.get_rng_state", torch.get_rng_state, no_arguments, _state_tensor, when=_before_draws),
    Rule("torch.set_rng_state", torch.set_rng_state, _of_state, when=_between_draws),
    Rule("torch.Generator", torch.Generator, _of_device, torch.Generator),
    _method("manual_seed", _generator_itself, _between_draws),
    _method("get_state", _state_tensor, _before_draws),
    _method("set_state", _generator_itself, _between_draws),
]
# calls that may come after the graph's
_CHANGING = frozenset(rule.function for rule in _RULES if rule.when is _between_draws)
register(_RULES)


@builtin(torch.seed, torch.initial_seed)
def seed_by_chance(tx: Tracer) -> Value:
    """Their numbers have up to 64 bits, more than a graph's."""
    refuse("torch.seed or torch.initial_seed")
