"""Models of NumPy's scalar classes, and of what leads from tensors to arrays and back."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from dynajit.guards.source import ConstSource
from dynajit.report import breaks
from dynajit.values.core.registry import builtin, constructor
from dynajit.values.core.slots import raising
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.tensors import arrays, graph_arrays
from dynajit.values.tensors.tensor import TensorVal


def _register(kind: Any) -> None:
    @constructor(kind)
    def model(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
        return arrays.compute(tx, kind, args, kwargs)


for _kind in arrays.SCALARS:
    _register(_kind)


def _register_information(kind: Any) -> None:
    @constructor(kind)
    def model(tx: Tracer, about: Value) -> Value:
        """What is said of a dtype: an object that says the same for as long as the process lives."""
        known = about.array if isinstance(about, arrays.ArrayVal) else about.real()
        with raising(tx, TypeError, ValueError):
            made = kind(known)
        return tx.wrap(made, ConstSource(made, f"numpy.{kind.__name__}({known})"))


for _kind in (numpy.dtype, numpy.finfo, numpy.iinfo):
    _register_information(_kind)


def _register_limit(kind: Any, name: str) -> None:
    @builtin(vars(kind)[name].fget)
    def model(tx: Tracer, information: Value) -> Value:
        known = information.real()
        tx.guard(information.source, "ID", known)
        return tx.from_real(getattr(known, name))


for _kind in (numpy.finfo, numpy.iinfo):
    for _name, _found in vars(_kind).items():
        if isinstance(_found, property):
            _register_limit(_kind, _name)


@builtin(torch.Tensor.numpy, torch.Tensor.__array__)
def tensor_numpy(tx: Tracer, tensor: Value) -> Value:
    if not isinstance(tensor, TensorVal):
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, "the NumPy array of a tensor subclass")
    return graph_arrays.of_tensor(tx, tensor)


def _register_maker(fn: Any) -> None:
    @builtin(fn)
    def model(tx: Tracer, obj: Value, *args: Value, **kwargs: Value) -> Value:
        if isinstance(obj, TensorVal):
            obj = graph_arrays.of_tensor(tx, obj)
        if graph_arrays.holds([obj]):
            return graph_arrays.call(tx, fn, [obj, *args], kwargs)
        return arrays.compute(tx, fn, [obj, *args], kwargs)


for _maker in (numpy.asarray, numpy.ascontiguousarray, numpy.array):
    _register_maker(_maker)


@builtin(torch.from_numpy)
def from_numpy(tx: Tracer, array: Value) -> Value:
    if isinstance(array, graph_arrays.GraphArrayVal):
        return graph_arrays.make_tensor(tx, torch.from_numpy, array, [], {})
    if isinstance(array, arrays.ArrayVal) and not array.is_scalar:
        return arrays.make_tensor(tx, torch.from_numpy, [array], {})
    raise GraphBreak(breaks.UNKNOWN_CALL, f"torch.from_numpy of {array.describe()}")
