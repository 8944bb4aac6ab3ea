"""Models of Python's own functions: `builtins`.

In: arguments as values. Out: the result's model. Those that call back into the program more than once are written in
Python in `values/polyfills`.
"""

from __future__ import annotations

import abc
import builtins
import collections
import contextlib
import functools
import itertools
import math
import operator
import types
import typing
from collections.abc import Collection, Sequence
from typing import Any

import torch

from dynajit.bytecode.return_action import (
    CALLED,
    COMPLEX,
    FORMATTED,
    HASHED,
    INTEGER,
    ITERATOR,
    MEASURED,
    MEASURED_TRUTH,
    NUMBER,
    REPRESENTED,
    STRUNG,
    TRUTH,
    ReturnAction,
    floating,
)
from dynajit.guards.source import AttrSource, CallSource, ConstSource, ItemSource
from dynajit.report import breaks
from dynajit.values import polyfills
from dynajit.values.containers.iterators import (
    EnumerateIterator,
    IteratorVal,
    ZipIterator,
)
from dynajit.values.containers.keys import IdVal, hash_of
from dynajit.values.containers.mapping import DictVal
from dynajit.values.containers.ordered_dict import OrderedDictVal
from dynajit.values.containers.ranges import make_range
from dynajit.values.containers.sequence import ListVal, TupleVal, sort_values
from dynajit.values.containers.sets import SetVal
from dynajit.values.containers.standin import StandIn, call_real, keyed, value_of
from dynajit.values.core.registry import BUILTINS, Model, builtin, constructor, models_of, tail_call
from dynajit.values.core.slots import by_rule, left_to_real_call, raising
from dynajit.values.core.value import Exhausted, GraphBreak, Raised, Tracer, Value
from dynajit.values.library import operators
from dynajit.values.library.asking import asks, format_asked, text_asked
from dynajit.values.library.container_text import CONTAINERS, container_text
from dynajit.values.objects.exceptions import ExceptionVal, give_context, has_plain_text, plain_text
from dynajit.values.objects.functions import CellVal, FunctionVal, SuperVal
from dynajit.values.objects.local_classes import make_class, make_from_namespace
from dynajit.values.objects.lookup import MODULE_GETATTR, class_value, in_python, rely_on, rely_on_answer, rely_on_check
from dynajit.values.objects.modules import ModuleVal
from dynajit.values.objects.objects import (
    MISSING,
    ClassVal,
    ObjVal,
    RealVal,
    is_trusted,
    lookup_type,
    payload_of,
)
from dynajit.values.polyfills.attributes import ask_fallback, attribute_or, has_attribute, name_error
from dynajit.values.scalars.constant import ConstVal, attribute_name, integer_of, is_none, own_of_member
from dynajit.values.scalars.number_calls import call_on_number, changes, of_growing, sum_of, varies
from dynajit.values.scalars.slices import make_slice
from dynajit.values.scalars.symbolic import is_number, operate
from dynajit.values.scalars.unread import unread_text
from dynajit.values.tensors.graph_arrays import computed
from dynajit.values.tensors.tensor import TensorVal
from dynajit.values.tensors.tensor_text import number_text

# ------------------------------------------------------------------------------------------------ types and attributes


@builtin(isinstance)
def isinstance_(tx: Tracer, obj: Value, classes: Value) -> Value:
    return ConstVal(operators.of_type(tx, obj, lambda: _matches(tx, obj, classes)))


MAX_SUBCLASSES = 64  # that are guarded one by one
# whose metaclasses say of a class today what they said yesterday
_ANSWER_ALIKE = ("abc", "typing", "enum", "torch.nn.parameter")
# `__getattr__` that asks no code of the program's, and attributes of classes that are there without any being run
_PLAIN_GETATTR = (None, MODULE_GETATTR)
_METHODS = (types.FunctionType, classmethod, staticmethod, types.MethodDescriptorType, types.WrapperDescriptorType)


def _alternatives(tx: Tracer, classes: Value) -> Sequence[Value] | None:
    """The classes that a tuple or a union is of; None if it is neither."""
    listed = payload_of(classes)
    if isinstance(listed, TupleVal):
        return listed.values(tx)
    union = classes.obj if isinstance(classes, RealVal) else None
    return [tx.from_real(part) for part in union.__args__] if isinstance(union, types.UnionType) else None


def _matches(tx: Tracer, obj: Value, classes: Value) -> bool:
    parts = _alternatives(tx, classes)
    if parts is not None:
        return any(_matches(tx, obj, part) for part in parts)
    cls, kind = classes.real(), obj.py_type()
    if isinstance(obj, TensorVal):
        matches = _tensor_matches(obj, cls) or _is_marked(tx, obj, cls)
        rely_on_check(tx, cls, "__instancecheck__")
        return matches
    if _is_marked(tx, obj, cls):
        return True
    check, where = lookup_type(type(cls), "__instancecheck__")
    protocol = isinstance(cls, type(typing.Protocol))
    home = check.__module__ if isinstance(check, types.FunctionType) else "abc"
    if home == "typing" and isinstance(cls, type) and not protocol:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"isinstance() with {classes.describe()}")
    if home not in _ANSWER_ALIKE:
        method = class_value(tx, type(cls), where, "__instancecheck__", check)
        return tx.call(method, [classes, obj], {}).truth(tx)
    if not isinstance(cls, type) and not hasattr(cls, "__origin__") and type(cls).__module__ != "typing":
        raise tx.raised(TypeError, "isinstance() arg 2 must be a type, a tuple of types, or a union")
    if protocol and getattr(cls, "_is_protocol", False):
        return _follows_protocol(tx, obj, classes)
    with raising(tx, TypeError):
        claimed = _claimed_class(tx, obj)
        return any(rely_on_answer(tx, each, cls, "__instancecheck__") for each in dict.fromkeys((kind, claimed)))


def _follows_protocol(tx: Tracer, obj: Value, protocol: Value) -> bool:
    """Whether the object's class is one of the protocol's, or the object itself has all members: methods are not None.
    Left to the real call where releases of Python look for members in other ways, or what is registered decides."""
    cls: Any = protocol.real()
    kind = obj.py_type()
    ends = GraphBreak(breaks.UNSUPPORTED_VALUE, f"isinstance() with {protocol.describe()}")
    if getattr(cls, "_is_runtime_protocol", False) is not True:  # which raises, whatever ABCs remember
        raise ends
    tx.guard(AttrSource(ConstSource(cls, cls.__qualname__), "_is_runtime_protocol"), "ID", True)
    names = getattr(typing, "_get_protocol_attrs")(cls)  # noqa: B009 - private
    methods = {name for name in names if callable(getattr(cls, name, None))}
    with raising(tx, TypeError):
        if cls in kind.__mro__ or (methods == set(names) and issubclass(kind, cls)):
            return True
    registered = methods != set(names) and getattr(abc, "_get_dump")(cls)[0]  # noqa: B009 - private
    if registered or (kind.__dictoffset__ and not isinstance(obj, ObjVal)) or _computes_attributes(kind, names):
        raise ends
    for name in sorted(names):
        if _lacks_member(tx, obj, name, name in methods):
            return False
    if hasattr(kind, "__getattr__"):  # which static look-ups pass by
        raise ends
    return True


def _lacks_member(tx: Tracer, obj: Value, name: str, is_method: bool) -> bool:
    """Whether an object has no such attribute, or None for a method."""
    if isinstance(obj, ObjVal):
        found = tx.find_attribute(obj, name)
        return found is None or (is_method and is_none(found))
    in_class = lookup_type(obj.py_type(), name)[0]
    return in_class is MISSING or (is_method and in_class is None)


def _computes_attributes(kind: type, names: Collection[str]) -> bool:
    """Whether code decides which of these attributes an instance has."""
    dynamic = in_python(kind, "__getattribute__") or getattr(kind, "__getattr__", None) not in _PLAIN_GETATTR
    found = (lookup_type(kind, name)[0] for name in names)
    computed = any(hasattr(type(each), "__get__") and not isinstance(each, _METHODS) for each in found)
    return dynamic or computed or lookup_type(kind, "__class__")[1] is not object


def _claimed_class(tx: Tracer, obj: Value) -> type:
    """`obj.__class__`, which proxies have answered by their target."""
    kind = obj.py_type()
    own = isinstance(obj, ObjVal) and (
        in_python(kind, "__getattribute__") or lookup_type(kind, "__class__")[1] is not object
    )
    found = tx.find_attribute(obj, "__class__") if own else None
    return found.obj if isinstance(found, ClassVal) else kind


@builtin(type.__instancecheck__, abc.ABCMeta.__instancecheck__)
def plain_instance_check(tx: Tracer, cls: Value, obj: Value) -> Value:
    return ConstVal(issubclass(obj.py_type(), cls.real()))


@builtin(type.__subclasscheck__)
def plain_subclass_check(tx: Tracer, cls: Value, sub: Value) -> Value:
    return tx.fold(type.__subclasscheck__, [cls, sub])


def _is_marked(tx: Tracer, obj: Value, cls: Any) -> bool:
    """Whether an attribute makes the tensor an instance of torch's class, whatever its own class is."""
    mark = next((name for marked, name in getattr(obj, "marks", ()) if marked is cls), None)
    if mark is not None:
        found = tx.find_attribute(obj, mark)
        return found is not None and found.truth(tx)
    kind = obj.py_type()
    opaque = not hasattr(obj, "marks") and (cls is torch.nn.Parameter or cls is torch.nn.Buffer)
    if opaque and issubclass(kind, torch.Tensor) and not issubclass(kind, cls):
        raise GraphBreak(breaks.UNSUPPORTED_TENSOR, f"isinstance() of {obj.describe()} with {cls.__name__}")
    return False


def _tensor_matches(obj: TensorVal, cls: Any) -> bool:
    if obj.real_tensor is not None and obj.replacement is None and cls is not torch.nn.Buffer:
        return isinstance(obj.real_tensor, cls)
    if not isinstance(cls, type) or not issubclass(cls, torch.Tensor):
        return bool(isinstance(obj.fake, cls))  # torch.FloatTensor and its like ask for the dtype
    return issubclass(obj.kind, cls)


@builtin(type.__subclasses__)
def subclasses(tx: Tracer, cls: Value) -> Value:
    made = (obj for obj, _ in tx.made_classes.values() if isinstance(obj, type))
    needed = [tx.from_real(obj) for obj in made if issubclass(obj, cls.real())]
    found = type.__subclasses__(cls.real())
    if needed or len(found) > MAX_SUBCLASSES:
        tx.needed.extend(needed)
        raise GraphBreak(breaks.UNKNOWN_CALL, "type.__subclasses__")
    source = cls.source or ConstSource(cls.real(), cls.real().__qualname__)  # of a class that others tell
    listed = CallSource(source, type.__subclasses__, "{}.__subclasses__()")
    tx.guard(listed, "LEN", len(found))
    items = [ItemSource(listed, index) for index in range(len(found))]
    for item, obj in zip(items, found, strict=True):
        tx.guard(item, "ID", obj)
    return ListVal([tx.wrap(obj, item) for item, obj in zip(items, found, strict=True)])


@builtin(issubclass)
def issubclass_(tx: Tracer, cls: Value, classes: Value) -> Value:
    return ConstVal(_derives(tx, cls, classes))


def _derives(tx: Tracer, sub: Value, classes: Value) -> bool:
    parts = _alternatives(tx, classes)
    if parts is not None:
        return any(_derives(tx, sub, part) for part in parts)
    meta = classes.py_type()
    check, where = lookup_type(meta, "__subclasscheck__")
    if isinstance(check, types.FunctionType) and check.__module__ not in _ANSWER_ALIKE:
        return tx.call(class_value(tx, meta, where, "__subclasscheck__", check), [classes, sub], {}).truth(tx)
    tx.fold(issubclass, [sub, classes])  # which raises where it has to
    return rely_on_answer(tx, sub.real(), classes.real(), "__subclasscheck__")


@constructor(type)
def type_(tx: Tracer, obj: Value, *rest: Value) -> Value:
    if rest:
        made = make_from_namespace(tx, obj, rest)
        if made is None:
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, "making a class")
        return made
    return tx.from_real(obj.py_type())


@builtin(callable)
def callable_(tx: Tracer, obj: Value) -> Value:
    if isinstance(obj, ObjVal):
        return ConstVal(obj.special(tx, "__call__") is not None)
    return ConstVal(lookup_type(obj.py_type(), "__call__")[0] is not MISSING)


@builtin(getattr)
@tail_call
def getattr_(tx: Tracer, obj: Value, name: Value, default: Value | None = None) -> Value:
    text = attribute_name(name)
    if default is None:
        return tx.getattr(obj, text)
    if _runs_code(obj, text):
        return tx.run_python(attribute_or, [obj, name, default], direct=tx.resumable_call())
    try:
        with tx.not_resumable():
            return obj.getattr(tx, text)
    except Raised as raised:
        if raised.is_a(AttributeError):
            return default
        raise


@builtin(hasattr)
@tail_call
def hasattr_(tx: Tracer, obj: Value, name: Value) -> Value:
    text = attribute_name(name)
    if _runs_code(obj, text):
        return tx.run_python(has_attribute, [obj, name], direct=tx.resumable_call())
    return ConstVal(tx.has_attribute(obj, text))


def _runs_code(obj: Value, name: str) -> bool:
    """Whether reading the attribute may run code of the class's."""
    if not isinstance(obj, ObjVal) or type(name) is not str:
        return False
    found = lookup_type(obj.cls, name)[0]
    asked = (lookup_type(obj.cls, special)[0] for special in ("__getattribute__", "__getattr__"))
    return type(found) is property or any(
        isinstance(method, types.FunctionType) and method is not MODULE_GETATTR for method in asked
    )


@builtin(name_error)
def name_error_(tx: Tracer, error: Value, obj: Value, name: Value) -> Value:
    if not isinstance(error, ExceptionVal):
        return tx.inline_body(name_error, [error, obj, name], {})
    give_context(tx, error, obj, name)
    return ConstVal(None)


@builtin(ask_fallback)
@tail_call
def ask_fallback_(tx: Tracer, obj: Value, name: Value) -> Value:
    assert isinstance(obj, ObjVal)
    return obj.ask_fallback(tx, name.const())


_ATTRIBUTE_ACCESS: dict[Any, Model] = {
    setattr: lambda tx, obj, name, value: obj.setattr(tx, attribute_name(name), value),
    delattr: lambda tx, obj, name: obj.delattr(tx, attribute_name(name)),
    object.__getattribute__: lambda tx, obj, name: obj.generic_getattr(tx, attribute_name(name), fallback=False),
    object.__setattr__: lambda tx, obj, name, value: obj.generic_setattr(tx, attribute_name(name), value),
    object.__delattr__: lambda tx, obj, name: obj.generic_setattr(tx, attribute_name(name), None),
    object.__init_subclass__: lambda tx, *args, **kwargs: None,
}
BUILTINS.update(_ATTRIBUTE_ACCESS)


@builtin(object.__init__)
def object_init(tx: Tracer, obj: Value, /, *args: Value, **kwargs: Value) -> None:
    kind = obj.py_type()
    if args or kwargs:
        if lookup_type(kind, "__init__")[0] is not object.__init__:
            raise tx.raised(TypeError, "object.__init__() takes exactly one argument (the instance to initialize)")
        if lookup_type(kind, "__new__")[0] is object.__dict__["__new__"]:
            raise tx.raised(
                TypeError, f"{kind.__name__}.__init__() takes exactly one argument (the instance to initialize)"
            )


@builtin(object.__eq__)
def object_eq(tx: Tracer, left: Value, right: Value) -> Value:
    return ConstVal(True) if left is right else ConstVal(NotImplemented)


_LASTING = (torch.nn.Module, torch.optim.Optimizer)


@builtin(id)
def id_(tx: Tracer, obj: Value) -> Value:
    real = obj.real_object
    if isinstance(real, _LASTING) and obj.source is not None:
        # tables outside are kept by such ids: what is found there is the program's own choice of object
        tx.guard(obj.source, "ID", real)
        tx.assumed.of_process("an id() stands in the trace")
        return ConstVal(id(real))
    if isinstance(obj, (ObjVal, TensorVal, ListVal, DictVal, SetVal, FunctionVal, ClassVal)):
        return IdVal(obj)
    raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"id() of {obj.describe()}")


@builtin(hash)
@asks(("__hash__", HASHED))
def hash_(tx: Tracer, obj: Value) -> Value:
    return hash_of(tx, obj)


@builtin(globals)
def globals_(tx: Tracer) -> Value:
    names = tx.frames[-1].globals
    return tx.wrap(names, ConstSource(names, "globals()"))


@constructor(super)
def super_(tx: Tracer, cls: Value | None = None, obj: Value | None = None) -> Value:
    if cls is not None and is_none(obj):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "super() of a class without an object")
    if cls is None or obj is None:
        frame = tx.frames[-1]
        if not frame.code_object.co_argcount:
            raise tx.raised(RuntimeError, "super(): no arguments")
        first = frame.code_object.co_varnames[0]
        cell = frame.cells.get(first)
        obj = cell.get(tx) if isinstance(cell, CellVal) else frame.locals.get(first)
        if obj is None:
            raise tx.raised(RuntimeError, "super(): arg[0] deleted")
        if "__class__" not in frame.cells:
            raise tx.raised(RuntimeError, "super(): __class__ cell not found")
        cls = frame.cells["__class__"].get(tx)
        if cls is None:
            raise tx.raised(RuntimeError, "super(): empty __class__ cell")
    if not isinstance(cls, ClassVal):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"super() of {cls.describe()}")
    if isinstance(obj, ClassVal) and issubclass(obj.obj, cls.obj):
        return SuperVal(cls.obj, obj, obj.obj)  # an instance of a metaclass goes the other way
    if not issubclass(obj.py_type(), cls.obj):
        raise tx.raised(TypeError, "super(type, obj): obj must be an instance or subtype of type")
    return SuperVal(cls.obj, obj, obj.py_type())


@constructor(property, classmethod, staticmethod)
def descriptor(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    raise GraphBreak(breaks.UNSUPPORTED_VALUE, "making a descriptor")


# --------------------------------------------------------------------------------------------------------- containers


def _hinted(tx: Tracer, items: Value | None) -> list[Value]:
    """All items, after asking a user's object for its length as CPython does to reserve room."""
    return tx.unpack_hinted(items) if items is not None else []


@constructor(list)
def list_(tx: Tracer, items: Value | None = None) -> Value:
    copied = None if items is None else items.spread(tx, ListVal([]))
    return copied if copied is not None else ListVal(_hinted(tx, items))


@constructor(tuple)
def tuple_(tx: Tracer, items: Value | None = None) -> Value:
    if isinstance(items, TupleVal) and items.kind is tuple:
        return items
    copied: Any = None if items is None else items.spread(tx, ListVal([]))
    return copied.as_tuple(tx) if copied is not None else TupleVal(_hinted(tx, items))


@models_of(dict, collections.OrderedDict)
def dict_(kind: Any, tx: Tracer, other: Value | None = None, /, **kwargs: Value) -> Value:
    made = DictVal() if kind is dict else OrderedDictVal()
    if other is not None and made.become_copy(tx, other):
        other = None
    made.call_method(tx, "update", [other] if other is not None else [], kwargs)
    return made


@constructor(set)
def set_(tx: Tracer, items: Value | None = None) -> Value:
    return SetVal.of_items(tx, items)


@constructor(frozenset)
def frozenset_(tx: Tracer, items: Value | None = None) -> Value:
    if isinstance(items, SetVal) and items.kind is frozenset:
        return items
    return SetVal.of_items(tx, items, frozenset)


@constructor(slice)
def slice_(tx: Tracer, *parts: Value) -> Value:
    if len(parts) == 1:
        parts = (ConstVal(None), parts[0])
    return make_slice([*parts, *[ConstVal(None)] * (3 - len(parts))])


@constructor(range)
def range_(tx: Tracer, *parts: Value) -> Value:
    return make_range(tx, [as_index(tx, part) for part in parts])


@builtin(len)
@asks(("__len__", MEASURED))
def len_(tx: Tracer, obj: Value) -> Value:
    return obj.length(tx)


# ---------------------------------------------------------------------------------------------------------- iteration


@builtin(iter)
@asks(("__iter__", ITERATOR))
def iter_(tx: Tracer, obj: Value, sentinel: Value | None = None) -> Value:
    if sentinel is not None:
        return tx.run_python(polyfills.iter_until, [obj, sentinel])
    return obj.iterate(tx)


@builtin(next)
@tail_call
def next_of(tx: Tracer, iterator: Value, default: Value | None = None) -> Value:
    own = isinstance(iterator, ObjVal) and in_python(iterator.cls, "__next__")
    direct = tx.resumable_call()
    if not own or direct is not CALLED:
        with tx.not_resumable():
            return next_(tx, iterator, default)
    if default is None:
        assert isinstance(iterator, ObjVal)
        return iterator.call_special(tx, "__next__", direct=CALLED)
    return tx.run_python(polyfills.next_or, [iterator, default], direct=CALLED)


def next_(tx: Tracer, iterator: Value, default: Value | None) -> Value:
    """Of an iterator that is not a user's own."""
    try:
        return iterator.next(tx)
    except Exhausted as end:
        if default is not None:
            return default
        if end.raised is not None:
            raise end.raised from None
        raise tx.raised(StopIteration, *(() if is_none(end.value) else (end.value,))) from None


def as_iterator(tx: Tracer, value: Value) -> IteratorVal:
    """The iterator over a value; one of a user's class is read to its end first only if it is a generator's."""
    iterator = value.iterate(tx)
    if isinstance(iterator, IteratorVal):
        return iterator
    return tx.run_python(polyfills.each, [iterator])  # type: ignore[return-value]


@constructor(enumerate)
def enumerate_(tx: Tracer, iterable: Value, start: Value | None = None) -> Value:
    return EnumerateIterator(
        as_iterator(tx, iterable), 0 if start is None else integer_of(tx, start, "start", most=None)
    )


@constructor(zip)
def zip_(tx: Tracer, *iterables: Value, strict: Value | None = None) -> Value:
    return ZipIterator([as_iterator(tx, part) for part in iterables], strict is not None and strict.truth(tx))


@constructor(reversed)
@asks(("__reversed__", CALLED))
def reversed_(tx: Tracer, sequence: Value) -> Value:
    return sequence.iterate_backwards(tx)


_NUMBERS = (bool, int, float, complex)
#: whether sums of more than two floats make up for what each addition loses, which additions one by one do not
_COMPENSATES = sum([0.1] * 10) == 1.0


@builtin(sum)
def sum_(tx: Tracer, iterable: Value, start: Value | None = None) -> Value:
    if start is not None and issubclass(start.py_type(), (str, bytes, bytearray)):
        raise GraphBreak(breaks.RAISES, "TypeError: sum() can't sum texts")
    found = of_growing(tx, sum, iterable) if start is None else None
    if found is not None:
        return found
    with _left_unread(iterable):
        return _sum(tx, tx.unpack(iterable), start or ConstVal(0))


def _left_unread(iterable: Value) -> contextlib.AbstractContextManager[None]:
    """Where something raises in the body, the real call does: the items after it stay in an iterator."""
    return left_to_real_call() if iterable.read_by_items else contextlib.nullcontext()


def _sum(tx: Tracer, items: list[Value], total: Value) -> Value:
    if _COMPENSATES and sum(item.py_type() in (float, complex) for item in items) > 2:
        numbers = [*itertools.takewhile(lambda item: item.py_type() in _NUMBERS, [total, *items])]
        if numbers:
            total = tx.fold(sum_of, numbers)
            items = items[len(numbers) - 1 :]
    for item in items:
        total = operators.binary(tx, "+", total, item)
    return total


@builtin(sorted)
def sorted_(tx: Tracer, iterable: Value, key: Value | None = None, reverse: Value | None = None) -> Value:
    items = [*tx.unpack_hinted(iterable)]
    sort_values(tx, items, key, reverse)
    return ListVal(items)


@models_of(max, min)
def extreme(function: Any, tx: Tracer, *args: Value, key: Value | None = None, default: Value | None = None) -> Value:
    found = of_growing(tx, function, args[0]) if len(args) == 1 and is_none(key) and default is None else None
    if found is not None:
        return found
    if len(args) > 1:
        return _extreme(function, tx, args, False, key, default)
    with _left_unread(args[0]):
        return _extreme(function, tx, tx.unpack(args[0]), True, key, default)


def _extreme(
    function: Any, tx: Tracer, items: Sequence[Value], in_one: bool, key: Value | None, default: Value | None
) -> Value:
    if is_none(key) and in_one and len(items) == 1:
        return items[0]
    if is_none(key) and any(map(varies, items)):
        one_type = len({item.py_type() for item in items}) == 1
        found = operate(tx, function, items) if one_type and not any(map(changes, items)) else None
        found = found or call_on_number(tx, function, items, {})
        if found is not None:
            return found
    parts = [StandIn(tx, item) for item in items]
    given = {} if default is None else {"default": default}
    return value_of(call_real(tx, function, *([parts] if in_one else parts), key=keyed(tx, key), **given))


# ----------------------------------------------------------------------------------------------- numbers and strings


def _number(kind: type, method: str, action: Any) -> None:
    @constructor(kind)
    @asks((method, action))
    def model(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
        if args and isinstance(args[0], TensorVal):
            if tx.graph.shapes.captures_scalars and kind is not complex:
                return model(tx, args[0].call_method(tx, "item", [], {}))
            raise GraphBreak(breaks.DATA_DEPENDENT, f"{kind.__name__}() of {args[0].describe()}")
        own = args[0].special(tx, method) if args else None
        if own is not None:
            rule = action if isinstance(action, ReturnAction) else action(args[0].py_type().__name__)
            return by_rule(tx, tx.call(own, [], {}), rule)
        return tx.fold(kind, args, kwargs)


_number(int, "__int__", INTEGER)
_number(float, "__float__", floating)
_number(complex, "__complex__", COMPLEX)


@constructor(bool)
@asks(("__bool__", TRUTH), ("__len__", MEASURED_TRUTH))
def bool_(tx: Tracer, value: Value | None = None) -> Value:
    if value is not None and value.varies and value.py_type() in (int, float):
        return operate(tx, operator.ne, [value, ConstVal(0)]) or ConstVal(value.truth(tx))
    return ConstVal(value.truth(tx) if value is not None else False)


@models_of(str, repr)
@tail_call
def text(function: Any, tx: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    method, direct = f"__{function.__name__}__", tx.resumable_call()
    if len(args) != 1 or kwargs:
        return tx.fold(function, args, kwargs)  # decodes bytes
    found = text_asked(tx, args[0], method, direct)
    if found is not None:
        return found
    with tx.not_resumable():
        return _text(tx, function, method, args[0])


def _own_text(tx: Tracer, value: Value, method: str) -> Value | None:
    """What the object's class gives, or an exception's."""
    if isinstance(value, ObjVal):
        found = rely_on(tx, value.cls, method)
        if found is object.__str__:
            method = "__repr__"
            found = rely_on(tx, value.cls, method)
        if isinstance(found, types.FunctionType):
            return by_rule(tx, value.call_special(tx, method), STRUNG if method == "__str__" else REPRESENTED)
        if has_plain_text(value, found):
            return plain_text(tx, value, found)
    own = own_of_member(tx, value, method)
    return None if own is None else by_rule(tx, tx.call(own, [], {}), STRUNG if method == "__str__" else REPRESENTED)


def _text(tx: Tracer, fn: Any, method: str, value: Value) -> Value:
    own = _own_text(tx, value, method)
    if own is not None:
        return own
    if isinstance(value, ModuleVal) and not is_trusted(vars(value.obj).get("__name__")):
        value.unsupported("the text")  # its loader, its file and its name are asked
    if isinstance(value, TensorVal):
        raise GraphBreak(breaks.DATA_DEPENDENT, f"the text of {value.describe()}")
    if value.py_type() in CONTAINERS:
        return container_text(tx, value)
    unread = unread_text(tx, fn, [value]) or (number_text(tx, fn, value) if computed(value) else None)
    return unread if unread is not None else tx.fold(fn, [value])


@builtin(format)
@tail_call
def format_(tx: Tracer, value: Value, spec: Value | None = None) -> Value:
    found = format_asked(tx, value, spec, tx.resumable_call())
    if found is not None:
        return found
    with tx.not_resumable():
        return _format(tx, value, spec)


def _format(tx: Tracer, value: Value, spec: Value | None) -> Value:
    has_text = value.py_type() in CONTAINERS
    if isinstance(value, ObjVal):
        found = rely_on(tx, value.cls, "__format__")
        if isinstance(found, types.FunctionType):
            return by_rule(tx, value.call_special(tx, "__format__", spec or ConstVal("")), FORMATTED)
        has_text = True
    own = own_of_member(tx, value, "__format__")
    if own is not None:
        return by_rule(tx, tx.call(own, [spec or ConstVal("")], {}), FORMATTED)
    if has_text and (spec is None or spec.const() == ""):
        return _text(tx, str, "__str__", value)
    parts = [value, spec or ConstVal("")]
    found = number_text(tx, format, *parts)
    if found is not None:
        return found
    if isinstance(value, TensorVal):
        raise GraphBreak(breaks.DATA_DEPENDENT, f"the text of {value.describe()}")
    unread = unread_text(tx, format, parts)
    return unread if unread is not None else tx.fold(format, parts)


@builtin(abs)
@asks(("__abs__", CALLED))
def abs_(tx: Tracer, value: Value) -> Value:
    if isinstance(value, TensorVal):
        return tx.torch_op("call_function", abs, [value], {})
    if isinstance(value, ObjVal):
        return value.call_special(tx, "__abs__")
    return value.operate(tx, abs, [value])


def _rounding(function: Any, method: str) -> None:
    @builtin(function)
    @asks((method, CALLED))
    def model(tx: Tracer, value: Value) -> Value:
        own = value.special(tx, method)
        return tx.call(own, [], {}) if own is not None else tx.fold(function, [value])


for _function, _method in ((math.trunc, "__trunc__"), (math.floor, "__floor__"), (math.ceil, "__ceil__")):
    _rounding(_function, _method)


@models_of(bin, hex, oct, chr)
def _of_index(function: Any, tx: Tracer, value: Value) -> Value:
    made = unread_text(tx, function, [value], formats=False) if function is not chr else None
    return made if made is not None else tx.fold(function, [as_index(tx, value)])


builtin(operator.index)(asks(("__index__", NUMBER))(functools.partial(_of_index, operator.index)))


def as_index(tx: Tracer, value: Value) -> Value:
    """An object of the user's as the integer that it stands for."""
    own = value.special(tx, "__index__") if value.payload is None else None
    if own is not None:
        return by_rule(tx, tx.call(own, [], {}), NUMBER)
    return payload_of(value) if issubclass(value.py_type(), int) else value


@builtin(pow)
def pow_(tx: Tracer, base: Value, exp: Value, mod: Value | None = None) -> Value:
    modulus, exponent = mod, exp
    if modulus is None or is_none(modulus):
        return operators.binary(tx, "**", base, exponent)
    own = base.special(tx, "__pow__")
    if own is not None:
        return tx.call(own, [exponent, modulus], {})
    return tx.fold(pow, [base, exponent, modulus])


@builtin(round)
@asks(("__round__", CALLED), most=2)
def round_(tx: Tracer, value: Value, digits: Value | None = None) -> Value:
    rest = [] if digits is None else [digits]
    if isinstance(value, TensorVal):
        if not hasattr(value.kind, "__round__"):
            raise tx.raised(TypeError, f"type {value.kind.__name__} doesn't define __round__ method")
        return tx.torch_op("call_method", "round", [value], {} if digits is None else {"decimals": digits})
    if isinstance(value, ObjVal):
        return value.call_special(tx, "__round__", *rest)
    return tx.fold(round, [value, *rest])


@builtin(divmod)
def divmod_(tx: Tracer, left: Value, right: Value) -> Value:
    if isinstance(left, ObjVal) or isinstance(right, ObjVal):
        return operators.user_binary(tx, left, right, "divmod()", "divmod", False)
    if isinstance(left, TensorVal) or isinstance(right, TensorVal):
        names = [side.py_type().__name__ for side in (left, right)]
        raise tx.raised(TypeError, f"unsupported operand type(s) for divmod(): '{names[0]}' and '{names[1]}'")
    if is_number(left) and is_number(right) and (changes(left) or changes(right) or not right.truth(tx)):
        return tx.fold(divmod, [left, right])
    return tx.new_tuple([operators.binary(tx, "//", left, right), operators.binary(tx, "%", left, right)])


@builtin(builtins.__build_class__)
def build_class(tx: Tracer, function: Value, name: Value, /, *bases: Value, **kwargs: Value) -> Value:
    made = make_class(tx, function, name, bases) if not kwargs else None
    if made is not None:
        return made
    raise GraphBreak(breaks.UNKNOWN_OPCODE, "a class whose metaclass, bases or body may do more than define it")
