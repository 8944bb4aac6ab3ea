"""The tables of modelled functions and classes, and of pure C functions.

In: registrations by decorator. Out: `BUILTINS`, `CONSTRUCTORS`, `is_pure`.
"""

from __future__ import annotations

import cmath
import functools
import inspect
import math
import operator
import types
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from dynajit.values.core.operations import INPLACE
from dynajit.values.core.value import Tracer, Value

# a model that gives None: the program gets None
Model = Callable[..., Value | None]
M = TypeVar("M", bound=Model)
BUILTINS: dict[Any, Model] = {}
CONSTRUCTORS: dict[type, Model] = {}
TAIL_CALLS: set[Model] = set()
# by the names of a Python function's module and of the function
_NAMED: dict[tuple[str | None, str], Model] = {}

_PURE_MODULES = (math, cmath, operator)
_PURE_BUILTINS = frozenset(
    {abs, ascii, bin, chr, divmod, hex, oct, ord, pow, round, format, repr, hash, callable, len, sum}
)
_PURE_CLASSES = (str, bytes, int, float, complex, bool, tuple, frozenset, slice, range, type(None), object, torch.Size)
_PURE: set[Any] = set(_PURE_BUILTINS)
# operator's functions that change their argument
_WRITING = frozenset({operator.setitem, operator.delitem, operator.iconcat, *INPLACE.values()})


def builtin(*functions: Any) -> Callable[[M], M]:
    """Register the model of calling these functions, or classes."""

    def register(fn: M) -> M:
        for function in functions:
            (CONSTRUCTORS if isinstance(function, type) else BUILTINS)[function] = fn
        return fn

    return register


def constructor(*classes: type) -> Callable[[M], M]:
    """Register the model of calling these classes."""
    return builtin(*classes)


def entering(table: dict[str, Model]) -> Callable[[M], M]:
    """What registers the model of a class's method, `(tx, self, *args, **kwargs)`, by the method's name, in `table`."""

    def register(fn: M) -> M:
        table[fn.__name__] = fn
        return fn

    return register


def models_of(*functions: Any) -> Callable[[M], M]:
    """Register one model of several functions and classes: it is given the one that is called before all else."""

    def register(fn: M) -> M:
        for function in functions:
            made = functools.partial(fn, function)
            builtin(function)(made)
            if fn in TAIL_CALLS:
                TAIL_CALLS.add(made)
        return fn

    return register


def models_of_named(module: str, *names: str) -> Callable[[M], M]:
    """Register, as `models_of` does, one model of Python functions in a module that is imported where a program needs
    it."""

    def register(fn: M) -> M:
        _NAMED.update({(module, name): fn for name in names})
        return fn

    return register


def named_model(function: types.FunctionType) -> Model | None:
    """The model that `models_of_named` registered of the function."""
    found = _NAMED.get((function.__module__, function.__qualname__))
    return None if found is None else functools.partial(found, function)


def asked_first(*functions: Any) -> Callable[[M], M]:
    """Register what is asked before the body of a Python function is traced: it raises, gives the result, or None. Its
    parameters have the function's names."""

    def register(fn: M) -> M:
        @models_of(*functions)
        @tail_call
        def model(function: Any, tx: Tracer, /, *args: Value, **kwargs: Value) -> Value:
            direct = tx.resumable_call()
            found = fn(tx, *args, **kwargs)
            return found if found is not None else tx.inline_body(function, args, kwargs, direct)

        return fn

    return register


def by_tracing(polyfill: Callable[..., Any]) -> Model:
    """The model that has a polyfill traced in the real function's stead."""

    def model(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
        return tx.run_python(polyfill, args, kwargs)

    own = inspect.signature(polyfill)
    first = inspect.Parameter("tx", inspect.Parameter.POSITIONAL_ONLY)
    setattr(model, "__signature__", own.replace(parameters=[first, *own.parameters.values()]))  # noqa: B010
    return model


def tail_call(fn: M) -> M:
    """Declare that the model returns what it calls, unseen, so that a break in there can be continued in the caller."""
    TAIL_CALLS.add(fn)
    return fn


def pure(*functions: Any) -> None:
    """Declare functions whose result depends on their arguments alone and that change nothing."""
    _PURE.update(functions)


def is_pure(fn: Any) -> bool:
    """Whether a C function may be run on known arguments while tracing."""
    if isinstance(fn, (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)):
        return fn.__objclass__ in _PURE_CLASSES and fn.__name__ not in ("__setattr__", "__delattr__", "__init__")
    if isinstance(fn, (types.BuiltinFunctionType, types.MethodWrapperType)):
        owner = getattr(fn, "__self__", None)
        if isinstance(owner, type) and owner in _PURE_CLASSES:
            return fn.__name__ != "__new__"
        if type(owner) in (str, bytes, int, float, complex, frozenset):
            return True  # such as keyword.iskeyword, which is frozenset(...).__contains__
        if isinstance(owner, types.ModuleType) and owner.__name__ in ("math", "cmath", "_operator"):
            return fn not in _WRITING
    try:
        return fn in _PURE
    except TypeError:
        return False


for _module in _PURE_MODULES:
    _PURE.update(
        value for value in vars(_module).values() if callable(value) and isinstance(value, types.BuiltinFunctionType)
    )
_PURE.difference_update(_WRITING)
