"""Models of Python's standard library: functools, itertools, collections, contextlib, dataclasses, copy, warnings.

In: arguments as values. Out: the result's model, or a polyfill traced in the real function's stead.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import itertools
import operator
import os
import pickle
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dynajit.guards.source import ConstSource, ItemSource
from dynajit.report import breaks
from dynajit.values import polyfills
from dynajit.values.containers.deque import DequeVal
from dynajit.values.containers.iterators import SequenceIterator
from dynajit.values.containers.mapping import DictVal
from dynajit.values.containers.sequence import SequenceVal, TupleVal
from dynajit.values.core.operations import BINARY, COMPARE, INPLACE
from dynajit.values.core.registry import Model, asked_first, builtin, by_tracing, constructor, models_of, pure
from dynajit.values.core.slots import ending_graph, raising
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.library import operators
from dynajit.values.library.methods import bare_instance, defaultdict_init
from dynajit.values.objects.cached_functions import CachedVal
from dynajit.values.objects.exceptions import none_outside, traceback_of
from dynajit.values.objects.functions import FunctionVal, MethodVal
from dynajit.values.objects.generators import stands_for
from dynajit.values.objects.getters import GetterVal
from dynajit.values.objects.local_classes import decorate, make_by
from dynajit.values.objects.lookup import MISSING, lookup_type
from dynajit.values.objects.objects import ClassVal, ObjVal
from dynajit.values.objects.opaque import OpaqueVal
from dynajit.values.objects.partials import PartialVal
from dynajit.values.scalars.constant import ConstVal, integer_of, is_literal, is_none

pure(typing.get_origin, typing.get_args)
# Which packages are installed does not change while a process runs.
pure(importlib.metadata.version, importlib.util.find_spec)


@builtin(importlib.import_module)
def import_module(tx: Tracer, name: Value, package: Value | None = None) -> Value:
    """A module that is there already, as an `import` statement gives it."""
    relative = name.const().startswith(".") if name.py_type() is str and name.is_const() else None
    full = name.const() if relative is False else None
    if relative and package is not None and package.is_const() and package.py_type() is str:
        full = importlib.util.resolve_name(name.const(), package.const())
    if full not in sys.modules:
        raise GraphBreak(breaks.IMPORT, full or "importlib.import_module")
    found = sys.modules[full]
    tx.assumed.of_import(full, found)
    return tx.from_real(found)


@builtin(pickle.dumps)
def pickled(tx: Tracer, value: Value, *args: Value, **kwargs: Value) -> Value:
    """The bytes of plain data; equal texts in it may be one object or two, which the bytes tell."""
    value.look_into(tx)
    found = value.real()
    texts = [*_texts(found)]
    if len({*texts}) < len(texts):
        raise GraphBreak(breaks.SKIPPED_CALL, "pickle.dumps of equal texts (serialises)")
    return tx.fold(pickle.dumps, [value, *args], kwargs)


def _texts(value: Any) -> Iterator[Any]:
    """All that is no number in plain data.

    Raises:
        GraphBreak: there is something else.
    """
    if type(value) in (dict, list, tuple):
        for part in itertools.chain.from_iterable(value.items()) if type(value) is dict else value:
            yield from _texts(part)
    elif type(value) in (str, bytes):
        yield value
    elif type(value) not in (int, float, bool, type(None)):
        raise GraphBreak(breaks.SKIPPED_CALL, f"pickle.dumps of {type(value).__name__} (serialises)")


# ---------------------------------------------------------------------------------------------------------- functools


@constructor(functools.partial)
def partial(tx: Tracer, fn: Value, /, *args: Value, **kwargs: Value) -> Value:
    if lookup_type(fn.py_type(), "__call__")[0] is MISSING:
        raise tx.raised(TypeError, "the first argument must be callable")
    return PartialVal.made(tx, fn, args, kwargs)


@constructor(functools._lru_cache_wrapper)
def cached_function(tx: Tracer, function: Value, maxsize: Value, typed: Value, info: Value) -> Value:
    if not maxsize.is_const() or not typed.is_const():
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "a cached function of a size that varies")
    return CachedVal(tx, function, maxsize, typed, info)


# ---------------------------------------------------------------------------------------------------------- itertools


_NONE, _FIRST, _SECOND, _ALL = slice(0, 0), slice(0, 1), slice(1, 2), slice(None)
# what is traced in the classes' stead, and with which of the arguments `iter` is called at once, as the real ones do
_POLYFILLS: dict[Any, tuple[Any, slice]] = {
    itertools.chain: (polyfills.chain, _NONE),
    itertools.starmap: (polyfills.starmap, _SECOND),
    itertools.takewhile: (polyfills.takewhile, _SECOND),
    itertools.dropwhile: (polyfills.dropwhile, _SECOND),
    itertools.cycle: (polyfills.cycle, _FIRST),
    itertools.compress: (polyfills.compress, _ALL),
    itertools.pairwise: (polyfills.pairwise, _FIRST),
    itertools.zip_longest: (polyfills.zip_longest, _ALL),
    itertools.groupby: (polyfills.groupby, _FIRST),
    itertools.filterfalse: (polyfills.filterfalse, _SECOND),
    itertools.accumulate: (polyfills.accumulate, _FIRST),
    map: (polyfills.map_, slice(1, None)),
    filter: (polyfills.filter_, _SECOND),
}
if hasattr(itertools, "batched"):  # since 3.12
    _POLYFILLS[itertools.batched] = polyfills.batched, _NONE  # the size is looked at first


@models_of(*_POLYFILLS)
def _polyfill(real: Any, tx: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    traced, iterables = _POLYFILLS[real]
    given = list(args)
    given[iterables] = [part.iterate(tx) for part in given[iterables]]
    return stands_for(tx.run_python(traced, given, kwargs), real, given, kwargs)


@builtin(itertools.tee)
def tee(tx: Tracer, iterable: Value, n: Value | None = None) -> Value:
    count = 2 if n is None else _count(tx, n, "n")
    return tx.run_python(polyfills.tee, [iterable, ConstVal(count)])


def _count(tx: Tracer, value: Value, what: str) -> int:
    found = integer_of(tx, value, what)
    if found < 0:
        raise GraphBreak(breaks.RAISES, f"ValueError: {what} is negative")
    return found


@builtin(itertools.chain.__dict__["from_iterable"])
def chain_from_iterable(tx: Tracer, cls: Value, iterables: Value) -> Value:
    made = tx.run_python(polyfills.chain_from_iterable, [iterables])
    return stands_for(made, itertools.chain.from_iterable, [iterables])


@constructor(itertools.islice)
def islice(tx: Tracer, iterable: Value, *parts: Value) -> Value:
    iterable = iterable.iterate(tx)
    found = [part.const() for part in parts]
    if not all(limit is None or hasattr(type(limit), "__index__") for limit in found):
        raise GraphBreak(breaks.RAISES, f"itertools.islice with limits {found}")
    limits = slice(*found)
    wrapped = [ConstVal(limits.start or 0), ConstVal(limits.stop), ConstVal(limits.step or 1)]
    return stands_for(tx.run_python(polyfills.islice, [iterable, *wrapped]), itertools.islice, [iterable, *parts])


@constructor(itertools.repeat)
def repeat(tx: Tracer, object: Value, times: Value | None = None) -> Value:
    if times is not None and not times.symbolic:
        times = ConstVal(max(integer_of(tx, times, "times"), 0))
    args = [object] if times is None else [object, times]
    return stands_for(tx.run_python(polyfills.repeat, [object, times or ConstVal(None)]), itertools.repeat, args)


@constructor(itertools.count)
def count(tx: Tracer, start: Value | None = None, step: Value | None = None) -> Value:
    args = [start or ConstVal(0), step or ConstVal(1)]
    for part in args:
        if isinstance(part, (SequenceVal, DictVal)) or (
            isinstance(part, ConstVal) and not isinstance(part.value, (int, float, complex))
        ):
            raise GraphBreak(breaks.RAISES, "TypeError: a number is required")
    return stands_for(tx.run_python(polyfills.count, args), itertools.count, args)


def _pool_and_size(iterable: Value, r: Value | None = None) -> list[Value]:
    return [iterable] if r is None else [iterable, r]


@models_of(
    *(itertools.product, itertools.permutations, itertools.combinations, itertools.combinations_with_replacement)
)
def _combine(real: Any, tx: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    """Computed on positions, so items may be tensors."""
    if real is itertools.product:
        pools = [tx.unpack_hinted(arg) for arg in args]
        rows = itertools.product(*pools, repeat=_count(tx, kwargs["repeat"], "repeat") if kwargs else 1)
    else:
        pool, *rest = _pool_and_size(*args, **kwargs)
        chosen = [_count(tx, part, "r") for part in rest if not is_none(part)]
        rows = real(tx.unpack_hinted(pool), *chosen)
    return SequenceIterator([TupleVal(row) for row in rows], real)


# -------------------------------------------------------------------------------------------------------- collections


@constructor(collections.defaultdict)
def default_dict(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    made = bare_instance(tx, collections.defaultdict)
    defaultdict_init(tx, made, *args, **kwargs)
    return made


@constructor(collections.deque)
def deque(tx: Tracer, items: Value | None = None, maxlen: Value | None = None) -> Value:
    limit = None if is_none(maxlen) else _count(tx, maxlen, "maxlen")  # type: ignore[arg-type]
    return DequeVal(tx.unpack(items) if items is not None else [], limit)


# ------------------------------------------------------------------------------------------------ operator and others


@models_of(operator.itemgetter, operator.attrgetter, operator.methodcaller)
def _getter(kind: Any, tx: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    with ending_graph(breaks.RAISES, kind.__name__, TypeError):  # of names that are no strings
        kind(*(arg.value if isinstance(arg, ConstVal) else object() for arg in args))
    return GetterVal(kind, args, kwargs)


@builtin(operator.length_hint)
def length_hint(tx: Tracer, obj: Value, default: Value | None = None) -> Value:
    if isinstance(obj, (SequenceVal, DictVal)) and (default is None or issubclass(default.py_type(), int)):
        return obj.length(tx)
    raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"operator.length_hint of {obj.describe()}")


def _of_two(function: Callable[..., Value], symbol: str, tx: Tracer, left: Value, right: Value) -> Value:
    return function(tx, symbol, left, right)


_RECORD: Any = torch.autograd.profiler.record_function
_ROWS: dict[Any, Model] = {
    **{found[0]: functools.partial(_of_two, operators.binary, symbol) for symbol, found in BINARY.items()},
    **{function: functools.partial(_of_two, operators.binary, f"{symbol}=") for symbol, function in INPLACE.items()},
    **{found[0]: functools.partial(_of_two, operators.compare, symbol) for symbol, found in COMPARE.items()},
    operator.getitem: lambda tx, obj, key: obj.getitem(tx, key),
    operator.setitem: lambda tx, obj, key, value: obj.setitem(tx, key, value),
    operator.delitem: lambda tx, obj, key: obj.delitem(tx, key),
    operator.contains: lambda tx, container, item: ConstVal(container.contains(tx, item)),
    operator.concat: lambda tx, left, right: operators.binary(tx, "+", left, right),
    operator.iconcat: lambda tx, left, right: operators.binary(tx, "+=", left, right),
    operator.not_: lambda tx, obj: ConstVal(not obj.truth(tx)),
    operator.truth: lambda tx, obj: ConstVal(obj.truth(tx)),
    operator.is_: lambda tx, left, right: ConstVal(operators.same_object(tx, left, right)),
    operator.is_not: lambda tx, left, right: ConstVal(not operators.same_object(tx, left, right)),
    operator.neg: lambda tx, value: operators.unary(tx, "UNARY_NEGATIVE", value),
    operator.pos: lambda tx, value: operators.unary(tx, "UNARY_POSITIVE", value),
    operator.invert: lambda tx, value: operators.unary(tx, "UNARY_INVERT", value),
    inspect.isfunction: lambda tx, object: ConstVal(isinstance(object, FunctionVal)),
    inspect.ismethod: lambda tx, object: ConstVal(isinstance(object, MethodVal)),
    inspect.isclass: lambda tx, object: ConstVal(isinstance(object, ClassVal)),
    typing.cast: lambda tx, typ, val: val,
    # marks for the profiler have no meaning inside one graph
    _RECORD.__enter__: lambda tx, self: self,
    _RECORD.__exit__: lambda tx, self, *error: ConstVal(None),
    types.MethodType: lambda tx, function, owner: MethodVal(owner, function),
}
for _called, _model in _ROWS.items():
    builtin(_called)(_model)


for _called, _polyfill in polyfills.TRACED.items():
    builtin(_called)(by_tracing(_polyfill))


# -------------------------------------------------------------------------------------------- dataclasses and classes


@models_of(dataclasses.dataclass, functools.total_ordering)
def _class_decorator(real: Any, tx: Tracer, /, cls: Value | None = None, **kwargs: Value) -> Value:
    if cls is None:
        return PartialVal.made(tx, tx.from_real(real), [], kwargs)
    made = decorate(tx, real, cls, kwargs)
    if made is None:
        raise GraphBreak(breaks.SKIPPED_CALL, f"{real.__module__}.{real.__name__}")
    return made


@builtin(collections.namedtuple)
def namedtuple(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    made = make_by(tx, collections.namedtuple, args, kwargs)
    if made is None:
        raise GraphBreak(breaks.SKIPPED_CALL, "collections.namedtuple")
    return made


@builtin(dataclasses.fields)
def fields(tx: Tracer, obj: Value) -> Value:
    kind = obj.real() if isinstance(obj, ClassVal) else obj.py_type()
    with raising(tx, TypeError):
        found = dataclasses.fields(kind)
    return tx.from_real(found)


# what inspect.markcoroutinefunction leaves on a function or class; releases differ in the name
_MARKS = ("_is_coroutine_mark", "_is_coroutine_marker")


_FLAGS: dict[Any, int] = {
    inspect.isgeneratorfunction: inspect.CO_GENERATOR,
    inspect.iscoroutinefunction: inspect.CO_COROUTINE,
    inspect.isasyncgenfunction: inspect.CO_ASYNC_GENERATOR,
}


@models_of(*_FLAGS)
def _flag_question(question: Any, tx: Tracer, obj: Value) -> Value:
    while isinstance(obj, (MethodVal, PartialVal)):
        obj = obj.function
    looks_like_one = isinstance(obj, (ObjVal, OpaqueVal)) and lookup_type(obj.py_type(), "__call__")[1] is not None
    may_be_marked = isinstance(obj, (FunctionVal, ClassVal)) and question is inspect.iscoroutinefunction
    if looks_like_one or (may_be_marked and any(tx.has_attribute(obj, mark) for mark in _MARKS)):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"whether {obj.describe()} is a function of a kind")
    return ConstVal(isinstance(obj, FunctionVal) and bool(obj.code.co_flags & _FLAGS[question]))


def _signature_parts(function: Any) -> list[object]:
    """What the signature of a function, or of what it wraps, is made of."""
    parts: list[object] = []
    for _ in range(16):
        parts += [getattr(function, name, None) for name in ("__code__", "__signature__")]
        parts += getattr(function, "__defaults__", None) or ()
        for name in ("__kwdefaults__", "__annotations__"):
            for key, value in (getattr(function, name, None) or {}).items():
                parts += (key, value)
        function = getattr(function, "__dict__", {}).get("__wrapped__")
        if function is None:
            break
    return parts


def _has_signature(parts: list[object], function: Any) -> bool:
    now = _signature_parts(function)
    return len(now) == len(parts) and all(map(operator.is_, now, parts))


def _twin(tx: Tracer, made: FunctionVal) -> types.FunctionType:
    """A function with the signature of one that was made while tracing, of defaults that never change."""
    if made.attributes().length(tx).const():  # it may say to be another one: `__wrapped__`
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"inspect.signature of {made.describe()}, which has attributes")
    parts = [made.getattr(tx, name) for name in ("__defaults__", "__kwdefaults__", "__annotations__")]
    given, named, annotations = parts
    defaults = [] if given.py_type() is type(None) else tx.unpack(given)
    by_name = named.items(tx) if isinstance(named, DictVal) else []
    assert isinstance(annotations, DictVal)
    if not all(isinstance(each, ConstVal) for each in (*defaults, *(value for _, value in by_name))):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"inspect.signature of {made.describe()}, with such defaults")
    twin = types.FunctionType(
        made.code,
        {},
        made.name,
        tuple(each.const() for each in defaults),
        tuple(types.CellType() for _ in made.code.co_freevars),
    )
    twin.__kwdefaults__ = {name.const(): value.const() for name, value in by_name}
    twin.__annotations__ = {name.const(): value.real() for name, value in annotations.items(tx)}
    return twin


@builtin(inspect.signature)
def signature(tx: Tracer, fn: Value, **kwargs: Value) -> Value:
    real = _with_signature(tx, fn)
    if "eval_str" in kwargs or not all(value.is_const() for value in kwargs.values()):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "inspect.signature() that evaluates annotations")
    with raising(tx, TypeError, ValueError):
        return tx.from_real(inspect.signature(real, **{name: value.const() for name, value in kwargs.items()}))


# what types are spelled with
_SPELLED = type, types.GenericAlias, types.UnionType, type(typing.Any), type(typing.ClassVar[int])


@models_of(typing.get_type_hints, inspect.getfullargspec)
def _annotations(real: Any, tx: Tracer, /, fn: Value) -> Value:
    """Names and types of parameters, where no text is to be evaluated for them."""
    asked = f"{real.__module__}.{real.__name__}"
    function = _with_signature(tx, fn)
    spelled = any(type(each) is str for each in getattr(function, "__annotations__", {}).values())
    if isinstance(function, type) or spelled:
        raise GraphBreak(breaks.SKIPPED_CALL, f"{asked} (of a class, or with annotations that are text)")
    with raising(tx, TypeError):
        found = real(function)
    parts = [found] if type(found) is dict else [*found]
    held = [each for part in parts for each in (part.values() if type(part) is dict else part or ())]
    if not all(is_literal(each) or issubclass(type(each), _SPELLED) for each in held):
        raise GraphBreak(breaks.SKIPPED_CALL, f"{asked} (of a function that holds objects)")
    return tx.from_real(found)


def _with_signature(tx: Tracer, fn: Value) -> Any:
    """A function with the signature of the given one, which is guarded."""
    target = fn.function if isinstance(fn, MethodVal) else fn
    is_made = isinstance(target, FunctionVal) and target.real_function is None
    real = _twin(tx, target) if is_made else target.real()  # type: ignore[arg-type]
    if isinstance(fn, MethodVal):
        real = types.MethodType(real, object())
    if isinstance(target, FunctionVal) and target.source is not None and not isinstance(target.source, ConstSource):
        held = functools.partial(_has_signature, _signature_parts(target.real()))
        tx.guard(target.source, "PREDICATE", held, "has the same signature")
    return real


# ----------------------------------------------------------------------------------------------- environment variables

_ENVIRON: Any = os.environ


def environment_value(tx: Tracer, name: str) -> str | None:
    """An environment variable, guarded."""
    source = ConstSource(_ENVIRON._data, "os.environ")
    key = _ENVIRON.encodekey(name)
    if key not in _ENVIRON._data:
        tx.guard(source, "DICT_MISSING", key)
        return None
    tx.guard(ItemSource(source, key), "EQUALS", _ENVIRON._data[key])
    return os.environ[name]


_GET_VARIABLE: Any = type(os.environ).__getitem__


@asked_first(_GET_VARIABLE)
def environ_getitem(tx: Tracer, self: Value, key: Value) -> Value | None:
    if self.real_object is not _ENVIRON or key.py_type() is not str:
        return None
    found = environment_value(tx, key.const())
    if found is None:
        raise tx.raised(KeyError, key.const())
    return ConstVal(found)


@builtin(sys.exc_info)
def exc_info(tx: Tracer) -> Value:
    found = _handled(tx)
    if is_none(found):
        return TupleVal([ConstVal(None)] * 3)
    # contextlib asks only for the exception
    trace = ConstVal(None) if tx.caller_module() == "contextlib" else traceback_of(tx, found)
    return TupleVal([tx.from_real(found.py_type()), found, trace])


@builtin(sys.exception)
def _handled(tx: Tracer) -> Value:
    return tx.exceptions.topmost() or none_outside(tx)
