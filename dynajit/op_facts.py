"""What is known of an operation before it runs: what it writes, whether it draws, gives views, or communicates.

In:  the target of a graph's node: an operator of `torch.ops`, a function, a method's name. Out: `facts(target)`, from
torch's schemas and tags. Functions written in Python, which have none, are in a short table. One more fact: a field of
`OpFacts`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

#: Arguments of these types are what they say: nothing of the program's can change them.
CONSTANT_TYPES = frozenset(
    {bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}
)
#: Floats of 16 bits.
LOW_PRECISION = frozenset({torch.bfloat16, torch.float16})
_AUGMENTED = "iadd isub imul itruediv ifloordiv imod ipow imatmul ilshift irshift iand ior ixor setitem"
#: Python's operators that write their first operand.
IN_PLACE_OPERATORS = frozenset(getattr(operator, name) for name in _AUGMENTED.split())
# The methods behind them, by name. ATen has operators of some of these names; torch calls `__itruediv__` `__idiv__`.
_IN_PLACE_METHODS = frozenset(f"__{name}__" for name in [*_AUGMENTED.split(), "idiv"])

# Functions in Python that draw. Their names are no operators' (`dropout2d`), or those of operators that don't: torch
# draws the samples of a fractional pooling in Python, and makes Gumbel's noise of exponential numbers.
_DRAWING: frozenset[Any] = frozenset(
    {
        *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout),
        *(F.rrelu, F.gumbel_softmax, F.multi_head_attention_forward),
        *(F.fractional_max_pool2d, F.fractional_max_pool2d_with_indices),
        *(F.fractional_max_pool3d, F.fractional_max_pool3d_with_indices),
        *(torch.pca_lowrank, torch.svd_lowrank, torch.lobpcg),
    }
)
# The modules of torch whose functions in Python compute of their arguments what they give, and do nothing else.
_COMPUTING = frozenset({"torch", "torch.functional", "torch.nn.functional", "torch._tensor", "torch._lowrank"})
# Operators in these are torch's, and dynajit's own.
_OURS = frozenset({"aten", "prims", "dynajit", "dynajit_c10d", "_c10d_functional", "_c10d_functional_autograd"})
_COMMUNICATING = frozenset({"_c10d_functional", "_c10d_functional_autograd", "dynajit_c10d"})
# Steps of optimizers over lists of tensors. Their schemas say that they write all of these: what counts steps is read
# alone, and gradients are written where they are divided by a scale. No tensor's version rises.
FUSED_STEPS = ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")
_READ_BY_STEPS = "state_steps"
_SCALED, _SCALE = "grads", "grad_scale"
# Arguments that say how much is dropped, and whether anything is. `p` is also a distribution's parameter.
_RATES = frozenset({"dropout", "dropout_p"})
_TRAINS = frozenset({"train", "training"})


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """What arithmetic on that dtype is done in (torch's opmath type on CPUs)."""
    return torch.float32 if dtype in LOW_PRECISION else dtype


@dataclasses.dataclass(frozen=True)
class OpFacts:
    """The facts of one operation.

    known: whether torch's schemas or the table tell; of other functions nothing is known, and the rest is False.
    writes: positions and names of the arguments, tensors or lists of them, that it writes in place.
    draws: whether it may draw from one of torch's generators.
    is_view: whether a result may share memory with an argument.
    pointwise: whether each element of a result is computed of the elements at its place.
    pure: whether what it gives is all that it does.
    communicates: whether it starts a collective, of which all ranks have to make the same ones in the same order.
    foreign: an operator that others have registered: it may do anything beside giving its result, or raise.
    counts_no_writes: whether it writes tensors whose versions stay as they are.
    in_place: position of the argument `inplace`, which has it write its first argument; -1: there is none.
    """

    known: bool
    writes: tuple[tuple[int, str], ...] = ()
    draws: bool = False
    is_view: bool = False
    pointwise: bool = False
    pure: bool = False
    communicates: bool = False
    foreign: bool = False
    counts_no_writes: bool = False
    in_place: int = -1


_NOTHING_KNOWN = OpFacts(known=False)


def facts(target: Any) -> OpFacts:
    """What is known of an operation.

    Args:
        target: an overload or packet of `torch.ops`, one of torch's or Python's functions, a tensor method's name.
    """
    if isinstance(target, types.FunctionType) and not _is_torchs(target):
        return _NOTHING_KNOWN  # a capture makes such functions, which are not kept here
    return _facts(target)


@functools.lru_cache(maxsize=8192)
def _facts(target: Any) -> OpFacts:
    if target in IN_PLACE_OPERATORS or _method_name(target) in _IN_PLACE_METHODS:
        return OpFacts(known=True, writes=((0, "self"),))
    if isinstance(target, types.BuiltinFunctionType) and target.__module__ in ("_operator", "builtins"):
        return OpFacts(known=True, is_view=target is operator.getitem, pure=True)
    overloads = overloads_of(target)
    if not overloads:
        in_python = isinstance(target, types.FunctionType) and (target.__module__ in _COMPUTING or target in _DRAWING)
        in_python = in_python and target is not torch.Tensor.module_load  # which writes
        found = OpFacts(known=True, draws=target in _DRAWING, in_place=_flag(target))
        return found if in_python else _NOTHING_KNOWN
    # a function's name stands for the overload with `out=`, too
    inner = [each for each in overloads if len(overloads) == 1 or not any(a.is_out for a in each._schema.arguments)]
    first = (inner or overloads)[0]
    writes = _writes(first)
    draws = target in _DRAWING or any(torch.Tag.nondeterministic_seeded in each.tags for each in overloads)
    return OpFacts(
        # of operators that others have registered only what they say of themselves is known
        known=first.namespace in ("aten", "prims"),
        writes=writes,
        draws=draws,
        is_view=any(result.alias_info is not None for each in inner for result in each._schema.returns),
        pointwise=any(torch.Tag.pointwise in each.tags for each in (first, *_twin(first))),
        pure=not writes and not draws and bool(first._schema.returns) and first.namespace in _OURS,
        communicates=first.namespace in _COMMUNICATING and not is_wait(first),
        foreign=first.namespace not in _OURS,
        counts_no_writes=first.overloadpacket.__name__ in FUSED_STEPS,
        in_place=_flag(target),
    )


def _flag(target: Any) -> int:
    """Where a function of Python's takes `inplace`; -1: it does not."""
    code = target.__code__ if isinstance(target, types.FunctionType) else None
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    return names.index("inplace") if "inplace" in names else -1


def only_acts(target: Any) -> bool:
    """Whether an operator of ATen's gives and writes nothing: it looks at what it is given and raises, or prints."""
    if not isinstance(target, torch._ops.OpOverload) or target._schema.returns:
        return False
    return target.namespace == "aten" and not facts(target).writes


def is_wait(target: Any) -> bool:
    """Whether an operation waits for what a collective gives."""
    return isinstance(target, torch._ops.OpOverload) and str(target) == "_c10d_functional.wait_tensor.default"


def starts_collective(target: Any) -> bool:
    """Whether a graph's node that calls this starts a collective, or may: what is of dynajit's own says so itself."""
    return facts(target).communicates or getattr(target, "communicates", False) is True


def may_draw(target: Any) -> bool:
    """Whether an operation draws from one of torch's generators for all that is known."""
    found = facts(target)
    return found.draws or not found.known


def draws(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation that is known draws, called like this: a dropout of nothing, or outside of training, gives
    its argument back, and the generator stays where it is."""
    if not facts(target).draws:
        return False
    given = _named(target, args, kwargs)
    trains = [value for name, value in given.items() if name in _TRAINS]
    rates = [value for name, value in given.items() if name in _RATES or (name == "p" and trains)]
    return False not in trains and not any(type(rate) in (int, float) and rate == 0 for rate in rates)


def written_arguments(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments, tensors or lists of them, that an operation writes, called like this."""
    known = facts(target)
    places = known.writes
    if known.counts_no_writes and kwargs.get(_SCALE) is None:
        places = tuple(place for place in places if place[1] != _SCALED)
    if known.in_place >= 0 and (args[known.in_place] if len(args) > known.in_place else kwargs.get("inplace")):
        places = ((0, "input"),)
    return [kwargs[name] if name in kwargs else args[at] for at, name in places if name in kwargs or at < len(args)]


def functional_twin(target: Any) -> Callable[..., Any] | None:
    """The function that gives what an operation on a tensor leaves in it: of `add_`, `iadd` and `__iadd__` those that
    add. None if there is none."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    plain = name.strip("_")
    if target in IN_PLACE_OPERATORS or name in _IN_PLACE_METHODS:
        twin = getattr(operator, plain[1:], None) or getattr(operator, plain[1:] + "_", None)
    else:
        twin = getattr(torch.Tensor, name.removesuffix("_"), None)
    return twin if callable(twin) else None  # `requires_grad` of `requires_grad_` is a property


def overloads_of(target: Any) -> tuple[torch._ops.OpOverload, ...]:
    """The operator's overloads that a target may call: one for an overload, those of the same name in ATen for torch's
    functions and methods."""
    if isinstance(target, torch._ops.OpOverload):
        return (target,)
    if not isinstance(target, (str, torch._ops.OpOverloadPacket)):
        if not callable(target) or not _is_torchs(target):
            return ()
        target = getattr(target, "__name__", "")
    packet = getattr(torch.ops.aten, target, None) if isinstance(target, str) else target
    if not isinstance(packet, torch._ops.OpOverloadPacket):  # `__eq__` is a method of the namespace itself
        return ()
    names: list[str] = packet.overloads()  # type: ignore[no-untyped-call]
    return tuple(getattr(packet, name) for name in names)


def _method_name(target: Any) -> str | None:
    """The name by which a tensor's method is called; None for what is no method."""
    if isinstance(target, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        return target.__name__
    return target if isinstance(target, str) else None


def _is_torchs(function: Any) -> bool:
    """Whether a function is torch's own; those in C name no module, or the class that they are members of."""
    if isinstance(function, types.FunctionType):
        return (function.__module__ or "").partition(".")[0] == "torch"
    if isinstance(function, types.BuiltinFunctionType):
        owner = getattr(function, "__self__", None)
        module = function.__module__ or getattr(owner, "__module__", None) or getattr(owner, "__name__", None)
        return (module or "").partition(".")[0] == "torch"
    return isinstance(function, (types.MethodDescriptorType, types.WrapperDescriptorType))


def _writes(overload: torch._ops.OpOverload) -> tuple[tuple[int, str], ...]:
    return tuple(
        (position, argument.name)
        for position, argument in enumerate(overload._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write and argument.name != _READ_BY_STEPS
    )


def _twin(overload: torch._ops.OpOverload) -> tuple[torch._ops.OpOverload, ...]:
    """The operator that gives what one of ATen's writes into its first argument."""
    full: str = overload.name()  # type: ignore[no-untyped-call]
    name, _, kind = full.removeprefix("aten::").partition(".")
    twin = getattr(getattr(torch.ops.aten, name[:-1], None), kind or "default", None) if name[-1] == "_" else None
    return () if twin is None else (twin,)


def _named(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by their names, with the defaults of those that aren't given."""
    if isinstance(target, types.FunctionType):
        bound = inspect.signature(target).bind_partial(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments
    several = overloads_of(target)
    schema = next((each._schema for each in several if len(each._schema.arguments) >= len(args)), several[0]._schema)
    named = {each.name: each.default_value for each in schema.arguments if each.has_default_value()}
    return {**named, **dict(zip((each.name for each in schema.arguments), args, strict=False)), **kwargs}


def always_fits(number: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether each number of the first dtype becomes one of the second without what torch calls overflow."""
    if torch.bool in (number, dtype) or number is dtype:
        return True
    if number.is_complex or dtype.is_complex:
        return dtype.is_complex and number is not torch.complex128
    if dtype.is_floating_point:
        limits = torch.finfo(number) if number.is_floating_point else torch.iinfo(number)
        return bool(limits.max <= torch.finfo(dtype).max)
    if number.is_floating_point:
        return False
    held, given = torch.iinfo(dtype), torch.iinfo(number)
    # negative ones become bytes as they do in C
    return given.max <= held.max and given.min >= min(held.min, -held.max)
