"""Models of NumPy's scalar classes, and of what leads from tensors to arrays and back."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from dynajit.guards.source import ConstSource
from dynajit.report import breaks
from dynajit.values.core.registry import builtin, models_of
from dynajit.values.core.slots import raising
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.scalars.symbolic import SymVal, decide
from dynajit.values.tensors import arrays, graph_arrays, numpy_numbers
from dynajit.values.tensors.tensor import TensorVal

_LARGE = 1 << 62


@models_of(*arrays.SCALARS)
def _scalar(kind: Any, tx: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    return numpy_numbers.run(tx, kind, args, kwargs)


@models_of(numpy.dtype, numpy.finfo, numpy.iinfo)
def _information(kind: Any, tx: Tracer, about: Value) -> Value:
    """What is said of a dtype: an object that says the same for as long as the process lives."""
    known = about.array if isinstance(about, arrays.ArrayVal) else about.real()
    with raising(tx, TypeError, ValueError):
        made = kind(known)
    return tx.wrap(made, ConstSource(made, f"numpy.{kind.__name__}({known})"))


_LIMITS = [found for kind in (numpy.finfo, numpy.iinfo) for found in vars(kind).values() if isinstance(found, property)]


@models_of(*(limit.fget for limit in _LIMITS))
def _limit(getter: Any, tx: Tracer, information: Value) -> Value:
    known = information.real()
    tx.guard(information.source, "ID", known)
    return tx.from_real(getter(known))


@builtin(torch.Tensor.numpy, torch.Tensor.__array__)
def tensor_numpy(tx: Tracer, tensor: Value) -> Value:
    if not isinstance(tensor, TensorVal):
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "the NumPy array of a tensor subclass")
    return graph_arrays.of_tensor(tx, tensor)


@models_of(numpy.asarray, numpy.ascontiguousarray, numpy.array)
def _maker(fn: Any, tx: Tracer, /, obj: Value, *args: Value, **kwargs: Value) -> Value:
    if isinstance(obj, TensorVal):
        obj = graph_arrays.of_tensor(tx, obj)
    if graph_arrays.holds([obj]):
        return graph_arrays.call(tx, fn, [obj, *args], kwargs)
    if not args and not kwargs and _vary(tx, obj):
        dtype = torch.float64 if any(item.py_type() is float for item in tx.unpack(obj)) else torch.int64
        made: Any = tx.call(tx.from_real(torch.tensor), [obj], {"dtype": ConstVal(dtype)})
        return graph_arrays.compute(tx, numpy.copy, "copy", [graph_arrays.of_tensor(tx, made)], {})
    return arrays.compute(tx, fn, [obj, *args], kwargs)


def _vary(tx: Tracer, value: Value) -> bool:
    """Whether it is a list of Python's numbers of which some vary. Of larger integers NumPy makes objects."""
    items = tx.unpack(value) if value.py_type() in (list, tuple) else []
    varying = [item for item in items if type(item) is SymVal]
    if not varying or any(item.py_type() not in (int, float) for item in items):
        return False
    numbers = [item.number if type(item) is SymVal else item.const() for item in items]
    return all(item.varies for item in varying) and all(decide(tx.graph, bool, abs(n) < _LARGE) for n in numbers)


@builtin(torch.from_numpy)
def from_numpy(tx: Tracer, array: Value) -> Value:
    if isinstance(array, graph_arrays.GraphArrayVal):
        return graph_arrays.make_tensor(tx, torch.from_numpy, array, [], {})
    if isinstance(array, arrays.ArrayVal) and not array.is_scalar:
        return arrays.make_tensor(tx, torch.from_numpy, [array], {})
    raise GraphBreak(breaks.UNKNOWN_CALL, f"torch.from_numpy of {array.describe()}")
