"""Methods of `list`, `tuple`, `dict`, `set`, generators and their like, as C functions on models.

In: the method descriptors of the builtin classes. Out: their models, which work on the builtin part of instances of
subclasses too. The models of the methods themselves are beside the containers' models.
"""

from __future__ import annotations

import collections
import functools
import itertools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dynajit.report import breaks
from dynajit.values.containers.deque import DEQUE_METHODS
from dynajit.values.containers.mapping import DICT_METHODS, DictVal
from dynajit.values.containers.sequence import LIST_METHODS, ListVal, TupleVal, is_named_tuple
from dynajit.values.containers.sets import SET_METHODS, SetVal, of_constant, set_method
from dynajit.values.core.registry import BUILTINS, Model, builtin, models_of, tail_call
from dynajit.values.core.slots import left_to_real_call
from dynajit.values.core.value import Exhausted, GraphBreak, Raised, Tracer, Value
from dynajit.values.objects.exception_groups import condition_of, make_group, split
from dynajit.values.objects.exceptions import ExceptionVal, TracebackVal
from dynajit.values.objects.functions import MethodVal
from dynajit.values.objects.generators import GeneratorVal
from dynajit.values.objects.objects import ClassVal, ObjVal, lookup_type, payload_of
from dynajit.values.objects.opaque import OpaqueVal
from dynajit.values.objects.subclasses import make_payload
from dynajit.values.objects.suspended_generator import SuspendedGenerator
from dynajit.values.polyfills import ORDERED
from dynajit.values.scalars.constant import ConstVal, is_none

# what changes an object bit by bit: where that raises, the real one has changed so far
_BIT_BY_BIT = (
    "update",
    "extendleft",
    "difference_update",
    "intersection_update",
    "symmetric_difference_update",
)


def _on_payload(model: Model, bit_by_bit: bool) -> Model:
    """`model` of the builtin part. What it refuses the real method does, whose message names the object's own class."""

    @functools.wraps(model)  # the signature is looked at
    def wrapped(tx: Tracer, self: Value, /, *args: Value, **kwargs: Value) -> Value | None:
        target = of_constant(tx, payload_of(self))
        if isinstance(target, (ObjVal, OpaqueVal)):
            target.unsupported("a container's method")
        with left_to_real_call(BaseException if bit_by_bit else TypeError):
            found = model(tx, target, *args, **kwargs)
        if found is target and isinstance(self, ConstVal):
            return self
        if found is not None and found is target is not self and found.py_type() is frozenset:
            found = SetVal.of_items(tx, found, frozenset)  # of a subclass's instance
        return found

    return wrapped


def _on_plain_dict(model: Model) -> Model:
    @functools.wraps(model)
    def wrapped(tx: Tracer, self: Value, /, *args: Value, **kwargs: Value) -> Value | None:
        mapping = payload_of(self)
        if isinstance(mapping, DictVal) and mapping.kind is not dict:
            mapping.unsupported("a method of dict that goes past the order")
        return model(tx, self, *args, **kwargs)

    return wrapped


def _register(cls: type, methods: Mapping[str, Model]) -> None:
    """The models of those of the methods that the class has."""
    for name, model in methods.items():
        descriptor = cls.__dict__.get(name)
        if descriptor is not None:
            BUILTINS[descriptor] = _on_payload(
                model, name in _BIT_BY_BIT or (name == "extend" and cls is collections.deque)
            )


_register(list, LIST_METHODS)
_register(tuple, {name: LIST_METHODS[name] for name in ("index", "count")})
_register(dict, DICT_METHODS)
_register(collections.OrderedDict, DICT_METHODS)


@set_method
def pop(tx: Tracer, self: SetVal) -> Value:
    """What a set gives up first is what iteration gives first; after that, what is next in the same order."""
    if not self.entries:
        raise tx.raised(KeyError, "pop from an empty set")
    order = self.popping
    if order is None:
        if len(self.entries) > 1 and (self.source is not None or self.removals):
            self.unsupported("pop(), which takes some item,")
        self.told_in_order(tx)
        order = [item.hash_key(tx) for item in self.ordered()]
    elif set(order) != set(self.entries):
        self.unsupported("pop() after items were added or removed")
    popped = self.entries[order[0]]
    rest = {key: value for key, value in self.entries.items() if key != order[0]}
    self.replace(tx, rest, self.history.then("pop"))
    tx.journal.set_attr(self, "popping", order[1:])
    return popped


_register(set, SET_METHODS)
_register(collections.deque, DEQUE_METHODS)
_register(frozenset, SET_METHODS)


# classes whose instances may be equal
_FAMILIES: tuple[tuple[type, ...], ...] = (
    *((kind,) for kind in (list, tuple, dict, collections.deque)),
    (set, frozenset, type({}.keys()), type({}.items())),
)


def _says(self: Value, other: Value) -> bool:
    """Whether a container's own comparison says anything of the other object."""
    return any(issubclass(self.py_type(), each) and issubclass(other.py_type(), each) for each in _FAMILIES)


def _equal(expected: bool, tx: Tracer, self: Value, other: Value) -> Value:
    return ConstVal((tx.equal(self, payload_of(other)) is expected) if _says(self, other) else NotImplemented)


# the special methods of all containers, of those that have them
_SPECIAL: dict[str, Model] = {
    "__len__": lambda tx, self: self.length(tx),
    "__iter__": lambda tx, self: self.iterate(tx),
    "__contains__": lambda tx, self, item: ConstVal(self.contains(tx, item)),
    "__getitem__": lambda tx, self, key: self.getitem(tx, key),
    "__setitem__": lambda tx, self, key, value: self.setitem(tx, key, value),
    "__delitem__": lambda tx, self, key: self.delitem(tx, key),
    "__eq__": functools.partial(_equal, True),
    "__ne__": functools.partial(_equal, False),
}
_VIEWS: tuple[Any, ...] = ({}.keys(), {}.values(), {}.items())
for _cls in (list, tuple, dict, collections.OrderedDict, set, frozenset, collections.deque, *map(type, _VIEWS)):
    _register(_cls, _SPECIAL)
builtin(dict.__reversed__)(lambda tx, self: payload_of(self).iterate_backwards(tx))


@builtin(dict.__getitem__, collections.OrderedDict.__getitem__)
def dict_getitem(tx: Tracer, self: Value, key: Value) -> Value:
    mapping = payload_of(self)
    found = mapping.lookup(tx, key)
    if found is not None:
        return found
    own = self.special(tx, "__missing__")
    if own is not None:
        return tx.call(own, [key], {})
    return mapping.getitem(tx, key)


for _name in ("__setitem__", "__delitem__", "pop", "popitem", "clear", "update", "setdefault"):
    BUILTINS[dict.__dict__[_name]] = _on_plain_dict(BUILTINS[dict.__dict__[_name]])


@builtin(dict.__init__, collections.OrderedDict.__init__)
def dict_init(tx: Tracer, self: Value, /, *args: Value, **kwargs: Value) -> Value:
    return payload_of(self).call_method(tx, "update", args, kwargs)


def _asking_subclass(model: Model, polyfill: Callable[..., Any]) -> Model:
    """`model`, or the polyfill for an instance of a subclass, which is asked."""

    @functools.wraps(model)
    def wrapped(tx: Tracer, self: Value, /, *args: Value, **kwargs: Value) -> Value | None:
        if payload_of(self) is not self:
            return tx.run_python(polyfill, [self, *args], kwargs)
        return model(tx, self, *args, **kwargs)

    return wrapped


for _called, _polyfill in ORDERED.items():
    BUILTINS[_called] = _asking_subclass(BUILTINS[_called], _polyfill)


@builtin(dict.copy)
def dict_copy(tx: Tracer, self: Value) -> Value:
    made = DictVal()
    if not made.become_copy(tx, self):
        made.call_method(tx, "update", [self], {})
    return made


@builtin(collections.defaultdict.__init__)
def defaultdict_init(tx: Tracer, self: Value, factory: Value | None = None, /, *args: Value, **kwargs: Value) -> Value:
    if not is_none(factory) and lookup_type(factory.py_type(), "__call__")[1] is None:  # type: ignore[union-attr]
        raise GraphBreak(breaks.RAISES, "TypeError: the first argument must be callable or None")
    self.setattr(tx, "default_factory", factory or ConstVal(None))
    return payload_of(self).call_method(tx, "update", args, kwargs)


@builtin(list.__init__)
def list_init(tx: Tracer, self: Value, items: Value | None = None, /) -> None:
    target = payload_of(self)
    with left_to_real_call():
        target.replace(tx, tx.unpack_hinted(items) if items is not None else [])


_IN_PLACE: dict[Any, Any] = {
    dict.__ior__: dict.update,
    list.__iadd__: list.extend,
    collections.deque.__iadd__: collections.deque.extend,
}


@models_of(*_IN_PLACE)
def in_place(operator: Any, tx: Tracer, self: Value, other: Value) -> Value:
    tx.call_builtin(_IN_PLACE[operator], [self, other], {})
    return self


@builtin(tuple.__new__)
def tuple_new(tx: Tracer, cls: Value, items: Value | None = None, /) -> Value:
    kind, given = cls.real(), [] if items is None else [items]
    if not (is_named_tuple(kind) or kind is tuple):
        return bare_instance(tx, kind, given)
    return TupleVal(tx.unpack(items) if items is not None else [], kind)


@builtin(str.__new__, int.__new__, float.__new__, bytes.__new__, complex.__new__, frozenset.__new__, set.__new__)
def scalar_new(tx: Tracer, cls: Value, /, *args: Value, **kwargs: Value) -> Value:
    if cls.real() in _BUILTIN_CLASSES:
        return tx.call(cls, args, kwargs)
    return bare_instance(tx, cls.real(), args, kwargs)


@builtin(set.__init__)
def set_init(tx: Tracer, self: Value, items: Value | None = None, /) -> None:
    target = payload_of(self)
    with left_to_real_call():
        made = SetVal.of_items(tx, items)
        target.replace(tx, made.entries, made.history)


@builtin(object.__new__, dict.__new__, list.__new__, collections.OrderedDict.__new__)
def new(tx: Tracer, cls: Value, /, *args: Value, **kwargs: Value) -> Value:
    kind = cls.real()
    if (args or kwargs) and lookup_type(kind, "__new__")[0] is object.__new__:
        # what is raised here is object's own business
        if lookup_type(kind, "__init__")[0] is object.__init__:
            raise tx.raised(TypeError, f"{kind.__name__}() takes no arguments")
    elif (args or kwargs) and is_plain_new(kind):
        raise tx.raised(TypeError, "object.__new__() takes exactly one argument (the type to instantiate)")
    return bare_instance(tx, kind)


def is_plain_new(cls: type) -> bool:
    """Whether the first `__new__` in C is that of `object`."""
    return (
        next(
            (base for base in cls.__mro__ if isinstance(base.__dict__.get("__new__"), types.BuiltinMethodType)), object
        )
        is object
    )


_BUILTIN_CLASSES = (str, int, float, bytes, complex, bool, frozenset, set)


def bare_instance(tx: Tracer, cls: type, args: Sequence[Value] = (), kwargs: dict[str, Value] | None = None) -> Value:
    """An instance before `__init__`."""
    payload: Value | None = None
    if issubclass(cls, dict):
        payload = DictVal(collections.OrderedDict if issubclass(cls, collections.OrderedDict) else dict)
    elif issubclass(cls, list):
        payload = ListVal([])
    elif issubclass(cls, BaseException):
        return ExceptionVal(cls, [])
    elif kwargs and issubclass(cls, (tuple, set, frozenset)) and not isinstance(cls.__init__, types.FunctionType):
        base = next(base for base in (tuple, set, frozenset) if issubclass(cls, base))
        raise tx.raised(TypeError, f"{base.__name__}() takes no keyword arguments")
    elif issubclass(cls, _BUILTIN_CLASSES) or issubclass(cls, tuple):
        payload = make_payload(tx, cls, args, kwargs or {})
        if payload is None:
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"making an instance of {cls.__name__}, a subclass of a builtin")
    return ObjVal(cls, payload=payload)


@builtin(BaseException.__new__, BaseException.__init__)
def exception_init(tx: Tracer, self: Value, /, *args: Value, **kwargs: Value) -> Value:
    if isinstance(self, ClassVal):
        return ExceptionVal(self.obj, args)
    if not isinstance(self, ExceptionVal):  # the user's class's `__init__` is called from eager code
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"initialising {self.describe()}, made outside of compiled code")
    tx.journal.set_attr(self, "args", TupleVal(args))
    return ConstVal(None)


_kind: Any
for _kind in (
    Exception,
    RuntimeError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    StopIteration,
    ArithmeticError,
    LookupError,
    NotImplementedError,
    AssertionError,
):
    for _name in ("__new__", "__init__"):
        if _name in _kind.__dict__:
            BUILTINS.setdefault(_kind.__dict__[_name], exception_init)
            BUILTINS.setdefault(getattr(_kind, _name), exception_init)


@models_of(BaseExceptionGroup.split, BaseExceptionGroup.subgroup)
def group_split(function: Any, tx: Tracer, self: Value, condition: Value) -> Value:
    if not isinstance(self, ExceptionVal):
        self.unsupported("splitting it")
    parts = split(tx, self, condition_of(tx, condition))
    return TupleVal(parts) if function is BaseExceptionGroup.split else parts[0]


@builtin(BaseExceptionGroup.derive)
def group_derive(tx: Tracer, self: Value, errors: Value) -> Value:
    return make_group(tx, BaseExceptionGroup, [self.getattr(tx, "message"), errors])


@builtin(BaseExceptionGroup.__new__)
def group_new(tx: Tracer, cls: Value, *args: Value) -> Value:
    return make_group(tx, cls.real(), args)


@builtin(BaseException.with_traceback)
def with_traceback(tx: Tracer, self: Value, traceback: Value) -> Value:
    if not isinstance(traceback, (ConstVal, TracebackVal)):
        raise GraphBreak(breaks.FRAME_INTROSPECTION, "with_traceback")
    self.setattr(tx, "__traceback__", traceback)
    return self


@builtin(types.GeneratorType.send)
def generator_send(tx: Tracer, self: Value, value: Value) -> Value:
    return _resumed(lambda: _generator(self).send(tx, value))


@builtin(types.GeneratorType.throw)
def generator_throw(tx: Tracer, self: Value, error: Value, *rest: Value) -> Value:
    if isinstance(error, ClassVal):
        given = rest[0] if rest and issubclass(rest[0].py_type(), BaseException) else None
        error = given or tx.call(error, [], {})
    return _resumed(lambda: _generator(self).throw(tx, error))


@builtin(types.GeneratorType.close)
def generator_close(tx: Tracer, self: Value) -> None:
    _generator(self).close(tx)


@builtin(types.GeneratorType.__next__)
def generator_next(tx: Tracer, self: Value) -> Value:
    return _resumed(lambda: _generator(self).next(tx))


@builtin(types.GeneratorType.__iter__)
def generator_iter(tx: Tracer, self: Value) -> Value:
    return self


def iterator_next(tx: Tracer, self: Value) -> Value:
    """`iterator.__next__()`."""
    if isinstance(self, ObjVal):
        raise GraphBreak(breaks.GENERATOR, self.describe())  # a C iterator that nothing models
    return _resumed(lambda: self.next(tx))


_ITERATED: tuple[Any, ...] = ([], (), "", "\xe9", b"", range(0), {}, {}.values(), {}.items(), set())
_REVERSED: tuple[Any, ...] = ([], {}, {}.values(), {}.items(), collections.deque())
_ITERATOR_KINDS: tuple[Any, ...] = (
    *(type(iter(container)) for container in _ITERATED),
    *(type(reversed(container)) for container in _REVERSED),
    *(enumerate, zip, map, filter, reversed),
    *(kind for kind in vars(itertools).values() if isinstance(kind, type) and hasattr(kind, "__next__")),
)
for _kind in _ITERATOR_KINDS:
    BUILTINS.setdefault(_kind.__next__, iterator_next)
    BUILTINS.setdefault(_kind.__iter__, generator_iter)


def _generator(value: Value) -> GeneratorVal | SuspendedGenerator:
    if not isinstance(value, (GeneratorVal, SuspendedGenerator)):
        raise GraphBreak(breaks.GENERATOR, value.describe())
    return value


def _resumed(step: Callable[[], Value]) -> Value:
    try:
        return step()
    except Exhausted as end:
        args: list[Any] = [] if is_none(end.value) else [end.value]
        raise Raised(ExceptionVal(StopIteration, args)) from None


@builtin(types.FunctionType.__get__)
def function_get(tx: Tracer, self: Value, obj: Value, cls: Value | None = None) -> Value:
    if is_none(obj):
        return self
    return MethodVal(obj, self)


@builtin(types.FunctionType.__call__, types.MethodType.__call__, functools.partial.__call__)
@tail_call
def function_call(tx: Tracer, self: Value, /, *args: Value, **kwargs: Value) -> Value:
    return tx.call(self, args, kwargs, tx.resumable_call())
