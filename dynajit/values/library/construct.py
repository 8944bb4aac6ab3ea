"""Calling a class: `type.__call__` as models see it.

In: a class and arguments. Out: the instance's model, after its `__new__` and `__init__` were traced.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Sequence
from typing import Any

import torch

from dynajit.bytecode.return_action import CALLED, INITIALISED
from dynajit.guards.source import HEAP_TYPE
from dynajit.report import breaks
from dynajit.values.containers.sequence import TupleVal
from dynajit.values.core.registry import builtin, tail_call
from dynajit.values.core.value import Direct, GraphBreak, Tracer, Value
from dynajit.values.library.methods import bare_instance
from dynajit.values.objects.exception_groups import make_group
from dynajit.values.objects.exceptions import ExceptionVal
from dynajit.values.objects.lookup import hides_dict, rely_on
from dynajit.values.objects.modules import ProxyVal
from dynajit.values.objects.objects import ClassVal, ObjVal, bind, class_value, lookup_type
from dynajit.values.scalars.constant import VALUE_TYPES, ConstVal, is_literal
from dynajit.values.tensors.dtensors import is_placement
from dynajit.values.tensors.tensor_subclass import traceable
from dynajit.values.tensors.wrapper_making import finish_wrapper
from dynajit.values.tensors.wrapper_subclass import traceable_wrapper

# classes whose `__new__` only makes the object, or is modelled
_KNOWN_NEW: frozenset[object] = frozenset(
    {object, dict, list, set, frozenset, tuple, str, int, float, bytes, complex}
    | {collections.OrderedDict, collections.defaultdict}
)
_ABSTRACT = 1 << 20  # Py_TPFLAGS_IS_ABSTRACT
_UNTRACED = (
    "_thread",
    "threading",
    "torch._C",
    "ctypes",
    "_io",
    "datetime",
    "re",
    "weakref",
    "_contextvars",
    "_weakref",
    "_random",
)


def construct(tx: Tracer, cls: ClassVal, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct) -> Value:
    """`cls(*args, **kwargs)`."""
    meta = type(cls.obj)
    found, where = lookup_type(meta, "__call__")
    if isinstance(found, types.FunctionType) and where is not None:
        if hasattr(cls.obj, "__members__"):
            return tx.fold(cls.obj, args, kwargs)
        return tx.call(class_value(tx, meta, where, "__call__", found), [cls, *args], kwargs, direct)
    if where is not None and where is not type and not isinstance(found, types.WrapperDescriptorType):
        return tx.call(bind(tx, cls, meta, "__call__", found, where), args, kwargs, direct)
    return construct_plain(tx, cls, args, kwargs, direct)


@builtin(type.__call__)
@tail_call
def type_call(tx: Tracer, cls: Value, /, *args: Value, **kwargs: Value) -> Value:
    assert isinstance(cls, ClassVal)
    return construct_plain(tx, cls, args, kwargs, tx.resumable_call())


def construct_plain(
    tx: Tracer, cls: ClassVal, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct
) -> Value:
    """`type.__call__(cls, *args, **kwargs)`."""
    kind = cls.obj
    if is_placement(kind):
        return tx.fold(kind, args, kwargs)
    if issubclass(kind, torch.Tensor) and traceable_wrapper(kind) and not tx.making_wrapper:
        return _construct_wrapper(tx, cls, args, kwargs)
    if issubclass(kind, torch.Tensor) and not (traceable(kind) or traceable_wrapper(kind)):
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"making a {kind.__name__}")
    if issubclass(kind, tuple) and hasattr(kind, "n_sequence_fields"):
        return _struct_sequence(tx, kind, args, kwargs)
    if not kind.__flags__ & HEAP_TYPE and not issubclass(kind, BaseException):  # written in C
        return _construct_c(tx, kind, args, kwargs)
    _check_traceable(kind)
    if kind.__flags__ & _ABSTRACT:
        return tx.fold(object.__new__, [cls])  # raises
    made = _new(tx, cls, args, kwargs, direct)
    if issubclass(made.py_type(), kind):
        # it may be an instance of a subclass, which has an `__init__` of its own
        _initialise(tx, made.py_type() if isinstance(made, ObjVal) else kind, made, args, kwargs, direct)
    return made


def _struct_sequence(tx: Tracer, kind: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    """`torch.return_types.max((values, indices))`; what has fields beside its items is made by the real call."""
    if len(args) != 1 or kwargs or kind.n_fields != kind.n_sequence_fields:
        raise GraphBreak(breaks.UNKNOWN_CALL, f"{kind.__module__}.{kind.__qualname__}")
    items = tx.unpack(args[0])
    if len(items) != kind.n_fields:
        raise GraphBreak(breaks.RAISES, f"TypeError: {len(items)} items for a {kind.__qualname__}")
    return TupleVal(items, kind)


def _check_traceable(kind: type) -> None:
    if kind.__module__ in _UNTRACED:
        raise GraphBreak(breaks.UNKNOWN_CALL, f"{kind.__module__}.{kind.__qualname__}")
    if hides_dict(kind):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"making a {kind.__qualname__}, which hides its attributes")
    if hasattr(kind, "__del__"):
        raise GraphBreak(breaks.UNKNOWN_CALL, f"{kind.__qualname__}, whose instances run code when they die")


def _new(tx: Tracer, cls: ClassVal, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct) -> Value:
    """What the class's `__new__` gives."""
    kind = cls.obj
    new, new_where = lookup_type(kind, "__new__")
    rely_on(tx, kind, "__new__")
    if not isinstance(new, types.BuiltinFunctionType):  # anything that can be called
        in_python = isinstance(new, (staticmethod, types.FunctionType)) and isinstance(kind.__new__, types.FunctionType)
        alone = in_python and lookup_type(kind, "__init__")[0] is object.__init__
        function = bind(tx, None, kind, "__new__", new, new_where, cls)
        return tx.call(function, [cls, *args], kwargs, direct if alone else None)
    if issubclass(kind, BaseExceptionGroup):
        return make_group(tx, kind, args)
    if issubclass(kind, BaseException):
        _check_exception(kind, args, kwargs)
        return ExceptionVal(kind, args)
    if issubclass(kind, torch.Tensor):
        return tx.call(tx.from_real(torch.Tensor.__new__), [cls, *args], kwargs)
    if isinstance(new, types.BuiltinFunctionType) and new.__self__ not in _KNOWN_NEW:
        raise GraphBreak(breaks.UNKNOWN_CALL, f"{kind.__module__}.{kind.__qualname__}, a class written in C")
    return bare_instance(tx, kind, args, kwargs)


def _construct_wrapper(tx: Tracer, cls: ClassVal, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    """An instance that wraps tensors is whole when its class is done with it."""
    tx.making_wrapper = True
    try:
        with tx.not_resumable():
            made = construct_plain(tx, cls, args, kwargs, None)
    finally:
        tx.making_wrapper = False
    finish_wrapper(tx, made)
    return made


# exceptions whose own initialiser in C does no more than keep its positional arguments; OSError if it is one
_PLAIN_EXCEPTIONS = (AttributeError, NameError, StopIteration, OSError)


def _check_exception(kind: type, args: Sequence[Value], kwargs: dict[str, Value]) -> None:
    """Exceptions written in C that take their arguments apart are made for real."""
    init, _ = lookup_type(kind, "__init__")
    if isinstance(init, types.FunctionType) or init is BaseException.__init__ or init is Exception.__init__:
        return
    plain = issubclass(kind, _PLAIN_EXCEPTIONS) and (len(args) <= 1 or not issubclass(kind, OSError))
    if kwargs or (_takes_apart(init) and not plain):
        raise GraphBreak(breaks.UNKNOWN_CALL, f"{kind.__qualname__}, an exception with attributes of its own")


def _takes_apart(init: object) -> bool:
    owner = getattr(init, "__objclass__", BaseException)
    return issubclass(
        owner, (ImportError, SyntaxError, UnicodeError, OSError, AttributeError, NameError, SystemExit, StopIteration)
    )


def _initialise(
    tx: Tracer, kind: type, made: Value, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct
) -> None:
    init, where = lookup_type(kind, "__init__")
    rely_on(tx, kind, "__init__")
    if init is object.__init__ or (issubclass(kind, torch.Tensor) and not isinstance(init, types.FunctionType)):
        new, _ = lookup_type(kind, "__new__")
        if (args or kwargs) and new is object.__new__:
            raise tx.raised(TypeError, f"{kind.__name__}() takes no arguments")
        return
    if isinstance(init, types.FunctionType):
        action = INITIALISED.over(made) if direct is CALLED else None
        given = tx.call(class_value(tx, kind, where, "__init__", init), [made, *args], kwargs, action)
        if given.py_type() is not type(None):
            raise tx.raised(TypeError, f"__init__() should return None, not '{given.py_type().__name__}'")
    elif isinstance(made, ObjVal) and not isinstance(made, ExceptionVal):
        tx.call(bind(tx, made, kind, "__init__", init, where), args, kwargs)


def _construct_c(tx: Tracer, kind: type, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    """A class written in C without a model: computed if its instances are immutable."""
    if kind is object:
        return ObjVal(object)
    if kind is types.MappingProxyType and len(args) == 1:
        return ProxyVal(args[0])
    if kind is types.SimpleNamespace and not args:
        made = ObjVal(kind)
        for name, value in kwargs.items():
            made.instance_dict(tx).setitem(tx, ConstVal(name), value)
        return made
    if kind in (str, bytes, int, float, complex, torch.device, torch.dtype, types.GenericAlias) or kind in (
        torch.finfo,
        torch.iinfo,
        *VALUE_TYPES,
    ):
        found = tx.fold(kind, args, kwargs)
        if isinstance(found, ConstVal) and not is_literal(found.value):
            found.unsupported("making it")
        return found
    raise GraphBreak(breaks.UNKNOWN_CALL, f"{kind.__module__}.{kind.__qualname__}()")
