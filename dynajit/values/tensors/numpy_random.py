"""NumPy's random generators: what they draw is an array, or a number, of the graph.

In: functions of `numpy.random` (methods of its hidden object), methods of the program's `RandomState` and `Generator`
objects. Out: calls before the graph's, in the program's order. One more: a name in `_NAMES`, if it takes numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy
import torch

from dynajit.guards.source import RunTimeSource
from dynajit.report import breaks
from dynajit.values.core.registry import builtin, constructor
from dynajit.values.core.slots import ending_graph
from dynajit.values.core.value import Tracer, Value
from dynajit.values.effects.random_numbers import MAX_BITS
from dynajit.values.effects.table import Arguments, Gives, Rule, State, apply, model_of, refuse
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.tensors.graph_arrays import MAX_ELEMENTS, ArrayMemory, GraphArrayVal, numpy_dtype
from dynajit.values.tensors.torch_generators import new_tensor

_NAMES = """
beta binomial chisquare choice exponential gamma geometric gumbel integers laplace logistic lognormal normal permutation
poisson rand randint randn random random_sample rayleigh standard_cauchy standard_exponential standard_gamma
standard_normal standard_t triangular uniform vonmises wald weibull
"""
_SHARED: Any = getattr(numpy.random.get_state, "__self__")  # noqa: B009 - whose methods the module's functions are
_CLASSES: tuple[Any, ...] = (numpy.random.RandomState, numpy.random.Generator)


def _save(generator: Any) -> Any:
    return generator.get_state() if type(generator) is _CLASSES[0] else generator.bit_generator.state


def _restore(generator: Any, state: Any) -> None:
    if type(generator) is _CLASSES[0]:
        generator.set_state(state)
    else:
        generator.bit_generator.state = state


def _state(args: Sequence[Value]) -> State:
    return State(_save, _restore, args[0])


def _known(name: str, values: Sequence[Value]) -> list[Any]:
    """Numbers, sizes and None, which are known while tracing."""
    if not all(value.is_const() for value in values):
        refuse(f"{name} of what is not known while tracing")
    found = [value.const() for value in values]
    parts = [part for each in found for part in (each if type(each) is tuple else (each,))]
    fit = (
        abs(part) < 1 << MAX_BITS if type(part) is int else type(part) in (bool, float, type(None)) for part in parts
    )
    if not all(fit):
        refuse(f"{name} of something else than numbers")
    return found


def _drawn(function: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """In generated code: the array that is drawn, as a tensor."""
    return torch.from_numpy(function(*args, **kwargs))


def _array_like(found: Any) -> Gives:
    if found.size > MAX_ELEMENTS or numpy_dtype(torch.from_numpy(found).dtype) != found.dtype:
        refuse("numpy.random with a large result")
    dtype = torch.from_numpy(found).dtype

    def made(tx: Tracer, source: RunTimeSource, args: Sequence[Value]) -> Value:
        with tx.graph.running_fake():
            fake = torch.empty(found.shape, dtype=dtype)
        return GraphArrayVal(new_tensor(tx, source, fake), memory=ArrayMemory(True))

    return made


def _draws(cls: Any, function: Any) -> None:
    name = f"numpy.random.{cls.__name__}.{function.__name__}"

    @builtin(function)
    def model(tx: Tracer, self: Value, *args: Value, **kwargs: Value) -> Value:
        if self.py_type() is not cls or tx.overrides.modes or tx.open_levels:
            refuse(f"{name} of {self.describe()}, or in a mode or transform")
        values = _known(name, [*args, *kwargs.values()])
        named = dict(zip(kwargs, values[len(args) :], strict=True))
        fresh = cls(0) if cls is _CLASSES[0] else numpy.random.default_rng(0)
        with ending_graph(breaks.RAISES, name, TypeError, ValueError):
            found = function(fresh, *values[: len(args)], **named)
        given = [self, *map(ConstVal, values[: len(args)])]
        options: dict[str, Value] = {key: ConstVal(value) for key, value in named.items()}
        if type(found) in (int, float):
            return apply(tx, Rule(name, function, _of_seed, type(found), _state), given, options)
        if type(found) is not numpy.ndarray or found.dtype.kind not in "fib":
            refuse(f"{name}, which gives no array")
        drawn = functools.partial(_drawn, function)
        return apply(tx, Rule(name, drawn, _of_seed, _array_like(found), _state), given, options)


def _of_seed(rule: Rule, tx: Tracer, *args: Value) -> Arguments:
    _known(rule.name, args[rule.function is _CLASSES[0].seed :])
    return args, {}


for _cls in _CLASSES:
    for _name in _NAMES.split():
        if hasattr(_cls, _name):
            _draws(_cls, getattr(_cls, _name))

_SEED = model_of(Rule("numpy.random.RandomState.seed", _CLASSES[0].seed, _of_seed, None, _state))
builtin(_CLASSES[0].seed)(_SEED)


@builtin(numpy.random.seed)
def seed(tx: Tracer, seed: Value) -> Value:
    return _SEED(tx, tx.from_real(_SHARED), seed)


builtin(numpy.random.default_rng)(
    model_of(Rule("numpy.random.default_rng", numpy.random.default_rng, _of_seed, _CLASSES[1]))
)
constructor(_CLASSES[0])(model_of(Rule("numpy.random.RandomState", _CLASSES[0], _of_seed, _CLASSES[0])))
