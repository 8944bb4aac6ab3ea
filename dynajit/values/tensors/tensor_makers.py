"""Making tensors of Python's data: `torch.tensor` of lists that hold tensors, torch's old constructors, Parameter.

In: what the program gives a class or `torch.tensor`. Out: operations that a graph can hold. What makes tensors of plain
numbers by an ordinary function of torch's needs no model. One more constructor: a function behind `@constructor`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from dynajit._C import tensor_is_dual
from dynajit.config import config
from dynajit.graph.fake import fake_of
from dynajit.graph.seen import has_symbol
from dynajit.guards.source import RunTimeSource
from dynajit.report import breaks
from dynajit.values.containers.sequence import SequenceVal, TupleVal
from dynajit.values.core.registry import builtin, constructor, models_of
from dynajit.values.core.slots import ending_graph
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.effects.table import RealCall
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.scalars.number_calls import MAX_COMPUTED
from dynajit.values.scalars.symbolic import SymVal, decide, from_symbolic
from dynajit.values.scalars.unread import is_unread
from dynajit.values.tensors.arrays import ArrayVal
from dynajit.values.tensors.numpy_numbers import VaryingScalar
from dynajit.values.tensors.tensor import TensorVal
from dynajit.values.tensors.torch_generators import new_tensor

_NUMBERS = (bool, int, float)
# Symbolic numbers in these dtypes are read as torch.tensor does; more of them than this are no cheap graph.
_FLOATS = (torch.float32, torch.float64)
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_MAX_SYMBOLS = 16


# ------------------------------------------------------------------------------------------------ torch.tensor


@models_of(torch.tensor, torch.as_tensor)
def _of_data(function: Any, tx: Tracer, /, data: Value, *args: Value, **kwargs: Value) -> Value:
    """Of numbers; `_of_numbers` says of which."""
    data, kwargs = _without_scalars(tx, function, data, kwargs)
    found = _of_numbers(tx, data, args, kwargs)
    return tx.torch_op("call_function", function, [data, *args], kwargs) if found is None else found


@builtin(torch.asarray)
def asarray(tx: Tracer, obj: Value, **kwargs: Value) -> Value:
    """Of NumPy's scalars; all else is torch's."""
    obj, kwargs = _without_scalars(tx, torch.asarray, obj, kwargs)
    return tx.torch_op("call_function", torch.asarray, [obj], kwargs)


def _without_scalars(
    tx: Tracer, fn: Callable[..., torch.Tensor], data: Value, kwargs: dict[str, Value]
) -> tuple[Value, dict[str, Value]]:
    """The same with Python's numbers for NumPy's scalars, which say what dtype the tensor has, unless the program does.
    torch takes fewer of them than of Python's: it is asked about ones."""
    scalars = False

    def plain(value: Value) -> tuple[Value, Any]:
        nonlocal scalars
        if isinstance(value, SequenceVal):
            pairs = [plain(item) for item in value.values(tx)]
            made = TupleVal([pair[0] for pair in pairs]) if scalars else value
            return made, [pair[1] for pair in pairs]
        if isinstance(value, ArrayVal) and value.is_scalar:
            scalars = True
            number = value.number if isinstance(value, VaryingScalar) else ConstVal(value.array.item())
            return number, value.py_type()(1)
        if isinstance(value, TensorVal):
            return value, torch.ones((), dtype=value.fake.dtype)
        return value, value.py_type()(1) if value.py_type() in _NUMBERS else None

    made, ones = plain(data)
    if not scalars:
        return data, kwargs
    given = kwargs.get("dtype", ConstVal(None)).const()
    with ending_graph(breaks.OP_RAISES, "a tensor of NumPy's scalars", TypeError, ValueError, RuntimeError):
        dtype = fn(ones, dtype=given).dtype
    return made, {**kwargs, "dtype": ConstVal(dtype)}


def _of_numbers(tx: Tracer, data: Value, args: Sequence[Value], kwargs: dict[str, Value]) -> Value | None:
    """A tensor of nested lists with single numbers that the graph computes among others, or with a few symbolic ones:
    these stacked. Of a symbolic number: a tensor filled with it, since torch would read it for what it is now. Where
    numbers and flags from outside are among them that vary, or may, the tensor is made of them before the graph."""
    if tx.overrides.modes or args or kwargs.keys() - {"dtype"}:
        return None
    given = kwargs.get("dtype")
    dtype = None if given is None else given.const()
    if isinstance(data, SequenceVal):
        shape, leaves = _nested(tx, data)
        if _vary_outside(tx, leaves, dtype):
            return _made_before(tx, shape, leaves, dtype)
        if any(isinstance(leaf, TensorVal) for leaf in leaves) or _few_symbols(leaves, dtype):
            return _stacked(tx, shape, leaves, dtype)
    elif _few_symbols([data], dtype):
        return _filled(tx, data, next(_dtypes([data])) if dtype is None else dtype)
    return None


def _vary_outside(tx: Tracer, leaves: Sequence[Value], dtype: torch.dtype | None) -> bool:
    """Whether some are from outside that nothing depends on yet, or more symbols than the graph is to hold, one at
    least varies, and torch takes all, whatever they are at the next call."""
    if not _can_be_made_before(tx, leaves):
        return False
    symbols, unread = [leaf for leaf in leaves if leaf.varies], [*filter(_is_unread_constant, leaves)]
    differ = any(leaf.differs for leaf in unread) or any(not leaf.of_sizes for leaf in symbols)  # type: ignore[attr-defined]
    if not differ or not (unread or len(symbols) > _MAX_SYMBOLS):
        return False
    kinds = {leaf.py_type() for leaf in leaves}
    return dtype in (None, *_FLOATS) or (kinds, dtype) in (({bool}, torch.bool), ({int}, torch.int64))


def _is_unread_constant(leaf: Value) -> bool:
    return leaf.is_const() and is_unread(leaf)


def _can_be_made_before(tx: Tracer, leaves: Sequence[Value]) -> bool:
    """Whether generated code can make a tensor of these numbers before the graph."""
    if tx.static_numbers or tx.runs_elsewhere or tx.open_levels or torch.is_inference_mode_enabled():
        return False
    if len(leaves) > MAX_COMPUTED or config.keep_variants:
        return False
    return all(leaf.py_type() in _NUMBERS and (leaf.varies or _is_no_giant(leaf)) for leaf in leaves)


def _is_no_giant(leaf: Value) -> bool:
    """Whether it is a known number, and no integer too large for a symbol."""
    return leaf.is_const() and (leaf.py_type() is not int or has_symbol(leaf.hint))  # type: ignore[attr-defined]


def _made_before(tx: Tracer, shape: Sequence[int], leaves: Sequence[Value], dtype: torch.dtype | None) -> Value:
    """A tensor that generated code makes."""
    found = functools.reduce(torch.promote_types, _dtypes(leaves)) if dtype is None else dtype
    source = RunTimeSource(len(tx.calls), "torch.tensor")
    given = [ConstVal(found), ConstVal(tuple(shape)), *(_without_limits(tx, leaf) for leaf in leaves)]
    tx.calls.append(RealCall(_tensor_of, given, {}, source, False, None))
    tx.journal.record(tx.calls.pop)
    return new_tensor(tx, source, fake_of(tx.graph.mode, torch.empty(tuple(shape), dtype=found)))


def _without_limits(tx: Tracer, leaf: Value) -> Value:
    """An int as a symbol: there is none for what an integer of a tensor can't hold."""
    source = leaf.source
    if not leaf.is_const() or not is_unread(leaf) or leaf.py_type() is not int or source is None:
        return leaf
    tx.seen.expect(source)
    return from_symbolic(tx, tx.graph.add_number(source, leaf.hint), source)  # type: ignore[attr-defined]


def _tensor_of(dtype: torch.dtype, shape: tuple[int, ...], *numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype).view(shape)


def _nested(tx: Tracer, data: SequenceVal) -> tuple[list[int], list[Value]]:
    """Shape and numbers of nested sequences, or no numbers if there is no such shape."""
    items = data.values(tx)
    if not any(isinstance(item, SequenceVal) for item in items):
        return [len(items)], list(items)
    found = [_nested(tx, item) if isinstance(item, SequenceVal) else ([], []) for item in items]
    if any(shape != found[0][0] or not leaves for shape, leaves in found):
        return [], []
    return [len(items), *found[0][0]], [leaf for _, leaves in found for leaf in leaves]


def _stacked(tx: Tracer, shape: Sequence[int], leaves: Sequence[Value], dtype: torch.dtype | None) -> Value:
    dtypes = list(_dtypes(leaves))
    found = functools.reduce(torch.promote_types, dtypes) if dtype is None else dtype
    exact = found.is_floating_point or all(each is found for each in dtypes)
    if not exact:
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"making a tensor of {found} of numbers of other dtypes")
    named: dict[str, Value] = {"dtype": ConstVal(found)}
    parts = []
    for leaf in leaves:
        if isinstance(leaf, TensorVal):
            parts.append(tx.torch_op("call_method", "to", [leaf, ConstVal(found)], {}))
        else:
            symbolic = _few_symbols([leaf], found)
            parts.append(
                _filled(tx, leaf, found) if symbolic else tx.torch_op("call_function", torch.tensor, [leaf], named)
            )
    flat = tx.torch_op("call_function", torch.stack, [tx.new_list(parts)], {})
    return tx.torch_op("call_method", "view", [flat, *map(ConstVal, shape)], {})


def _few_symbols(leaves: Sequence[Value], dtype: torch.dtype | None) -> bool:
    """Whether some numbers, not too many, are symbolic, and all can be in the graph as tensors of that dtype."""
    symbols = [leaf for leaf in leaves if isinstance(leaf, SymVal) and leaf.py_type() in (int, float)]
    if not 0 < len(symbols) <= _MAX_SYMBOLS or any(leaf.py_type() not in _NUMBERS for leaf in leaves):
        return False
    if dtype is None:
        return torch.get_default_dtype() in _FLOATS
    if dtype in _FLOATS:
        return True
    whole = all(leaf.py_type() is int for leaf in leaves)
    return whole and dtype in _WHOLE and all(_fits(symbol, torch.iinfo(dtype)) for symbol in symbols)


def _fits(symbol: SymVal, limits: torch.iinfo) -> bool:
    """Whether a number is one of the dtype's, as is guarded; torch raises for others."""
    if limits.bits == 64:
        return True
    if not symbol.varies:
        return False
    lowest, highest = symbol.number >= limits.min, symbol.number <= limits.max
    return bool(decide(symbol.graph, bool, lowest)) and bool(decide(symbol.graph, bool, highest))


def _filled(tx: Tracer, number: Value, dtype: torch.dtype) -> Value:
    """A tensor with nothing but a symbolic number, as torch.tensor reads it: by way of a double, if it is to be one."""
    read = ConstVal(torch.float64 if dtype.is_floating_point else torch.int64)
    found = tx.torch_op("call_function", torch.full, [TupleVal([]), number], {"dtype": read})
    return found if read.const() is dtype else tx.torch_op("call_method", "to", [found, ConstVal(dtype)], {})


def _is_differentiated(fake: torch.Tensor) -> bool:
    """Whether a number that is read from the tensor loses a gradient or tangent, or a transform may refuse to read."""
    return fake.requires_grad or tensor_is_dual(fake) or torch._C._functorch.is_functorch_wrapped_tensor(fake)


def _dtypes(leaves: Sequence[Value]) -> Iterator[torch.dtype]:
    """What torch takes each number for."""
    for leaf in leaves:
        if isinstance(leaf, TensorVal):
            if leaf.fake.dim() or leaf.fake.device.type != "cpu" or _is_differentiated(leaf.fake):
                # read one by one: rows, copies from another device, a warning that gradients are lost, no tangents
                raise GraphBreak(breaks.DATA_DEPENDENT, f"torch.tensor() of a list with {leaf.describe()}")
            yield leaf.fake.dtype
        elif leaf.py_type() in _NUMBERS:
            yield torch.get_default_dtype() if leaf.py_type() is float else torch.tensor(leaf.py_type()(0)).dtype
        else:
            raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"torch.tensor() of a list with {leaf.describe()}")


# ------------------------------------------------------------------------------------------------ torch.FloatTensor


_NAMES = ("Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool")


@models_of(torch.Tensor, *(getattr(torch, f"{name}Tensor") for name in _NAMES))
def _old_constructor(cls: Any, tx: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    """Sizes make a tensor that nobody has filled, a sequence one of its numbers."""
    dtype = torch.get_default_dtype() if cls is torch.Tensor else cls.dtype
    if kwargs or tx.overrides.modes or tx.caller_module().startswith("torch."):
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"making a {cls.__name__} with options")
    named: dict[str, Value] = {"dtype": ConstVal(dtype), "device": ConstVal(torch.device("cpu"))}
    first = args[0] if args else ConstVal(0)
    if isinstance(first, TupleVal) and first.kind is torch.Size and len(args) == 1:
        return tx.torch_op("call_function", torch.empty, [first], named)
    if all(arg.py_type() is int for arg in (first, *args)):
        return tx.torch_op("call_function", torch.empty, list(args) or [first], named)
    if isinstance(first, SequenceVal) and len(args) == 1:
        _, leaves = _nested(tx, first)
        kinds = (bool, int, float) if dtype.is_floating_point else (bool,) if dtype is torch.bool else (int,)
        if all(leaf.py_type() in kinds for leaf in leaves) and (leaves or not first.values(tx)):
            return tx.torch_op("call_function", torch.tensor, [first], named)
    raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"making a {cls.__name__} of {first.describe()}")


# ------------------------------------------------------------------------------------------------ parameters


@constructor(torch.nn.Parameter)
def parameter(tx: Tracer, data: Value | None = None, requires_grad: Value | None = None) -> Value:
    """A leaf that shares the memory of a plain tensor."""
    if not isinstance(data, TensorVal) or data.kind not in (torch.Tensor, torch.nn.Parameter) or tx.overrides.modes:
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "making a Parameter")
    flag = requires_grad.truth(tx) if requires_grad is not None else True
    if flag and not (data.fake.is_floating_point() or data.fake.is_complex()):
        raise GraphBreak(breaks.OP_RAISES, f"a Parameter of a tensor of dtype {data.fake.dtype}")
    made = tx.torch_op("call_function", torch.nn.Parameter, [data, ConstVal(flag)], {})
    assert isinstance(made, TensorVal)
    made.kind = torch.nn.Parameter
    return made
