"""Classes that a function defines for itself.

In: what `__build_class__` is called with. Out: the model of a class that is made once, for real, while tracing, if its
body does nothing but define functions and immutable constants. Nobody can tell it from a class made at each call, as
long as neither the class nor an instance of it leaves the trace. Where one does, the trace goes back to where the class
is defined (`made_at`), and breaks there.
"""

from __future__ import annotations

import abc
import builtins
import collections
import enum
import functools
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

from torch.autograd.function import FunctionMeta

from dynajit.bytecode import decode
from dynajit.guards.source import ConstSource
from dynajit.values.core.value import Tracer, Value
from dynajit.values.objects.functions import FunctionVal
from dynajit.values.objects.lookup import SLOTS, is_trusted, lookup_type, namespace_of, of_library
from dynajit.values.objects.objects import ClassVal

# what a body may consist of; a CALL is a decorator's
_OPS = frozenset(
    {
        "BINARY_OP",
        "BUILD_TUPLE",
        "CALL",
        "COPY",
        "COPY_FREE_VARS",
        "LOAD_ATTR",
        "LOAD_CLOSURE",
        "LOAD_CONST",
        "LOAD_LOCALS",  # of a body, for the functions that know its annotations
        "LOAD_NAME",
        "MAKE_CELL",
        "MAKE_FUNCTION",
        "NOP",
        "POP_TOP",
        "PUSH_NULL",
        "RESUME",
        "RETURN_CONST",
        "RETURN_VALUE",
        "SETUP_ANNOTATIONS",
        "SET_FUNCTION_ATTRIBUTE",
        "STORE_DEREF",
        "STORE_NAME",
        "STORE_SUBSCR",
        "UNARY_NEGATIVE",
    }
)
NamedPair = collections.namedtuple("NamedPair", "a b")
_MADE_BY_BODIES = (types.FunctionType, property, staticmethod, classmethod, functools.cached_property)
_ATTRIBUTES = (
    *_MADE_BY_BODIES,
    int,
    float,
    complex,
    bool,
    str,
    bytes,
    type(None),
    type,
    types.BuiltinFunctionType,
    types.DynamicClassAttribute,
    type(NamedPair.a),
)
_BASES = (type, abc.ABCMeta, FunctionMeta)
# what the metaclass of enumerations runs of a body, and which names it adds; and `typing.NamedTuple`
_ENUMS = (enum.Enum, enum.IntEnum, enum.StrEnum, enum.Flag, enum.IntFlag)
_ENUM_HOOKS = frozenset({"__new__", "__init__", "__eq__", "__hash__", "_generate_next_value_", "_missing_", "_ignore_"})
_NAMESPACES_OF_LIBRARY: dict[type, frozenset[str]] = {
    enum.EnumMeta: frozenset(name for base in _ENUMS for name in vars(base)),
    type: frozenset({"_field_defaults"}),
}


def make_class(tx: Tracer, function: Value, name: Value, bases: Sequence[Value]) -> Value | None:
    """The class; None if its body, or a base, may do more than define it."""
    if not (isinstance(function, FunctionVal) and function.real_function is None and all(map(_is_plain_base, bases))):
        return None
    names = _names_needed(function.code, function.globals)
    if any(type(base) is ClassVal and issubclass(base.obj, enum.Enum) for base in bases):
        stored = {instr.arg for instr in decode(function.code).instrs if instr.op == "STORE_NAME"}
        if not stored.isdisjoint(_ENUM_HOOKS):
            return None
    if names is None or any(_looks_at_bases(frame.code_object) for frame in tx.frames):
        return None
    cells = []
    for cell in function.closure:
        real = cell.real_cell
        if real is None:
            real = types.CellType()
            tx.remember_object(real, cell)
        cells.append(real)
    body = types.FunctionType(function.code, function.globals, function.name, None, tuple(cells))
    made = _made(lambda: builtins.__build_class__(body, name.const(), *(base.real() for base in bases)))
    if made is None:
        return None
    of_library = _NAMESPACES_OF_LIBRARY.get(type(made), frozenset())
    if not all(
        _is_kept(key, value) or key in of_library or type(value) is made for key, value in namespace_of(made).items()
    ):
        return None
    for needed in names:
        tx.load_global(tx.frames[-1], needed)
    return _register(tx, made, tx.snapshot())


def _made(make: Callable[[], Any]) -> Any:
    """The class; None where that raises: the program meets what it raises where the class is made for real."""
    try:
        return make()
    except Exception:  # the program's own
        return None


def _looks_at_bases(code: types.CodeType) -> bool:
    """Whether it may see that a base has one derived class more, made while tracing, until the collector finds it, or
    one less, which nobody reads and which is not made at run time."""
    return "__subclasses__" in code.co_names or "__bases__" in code.co_names


def decorate(tx: Tracer, decorator: Callable[..., Any], cls: Value, kwargs: dict[str, Value]) -> Value | None:
    """The class, changed for real by a decorator of the library's; None if it was not made while tracing."""
    if not (isinstance(cls, ClassVal) and id(cls.obj) in tx.made_classes) or not all(
        value.is_const() for value in kwargs.values()
    ):
        return None
    made = _made(lambda: decorator(cls.obj, **{name: value.const() for name, value in kwargs.items()}))
    return None if made is None else _register(tx, made, tx.made_classes[id(cls.obj)][1])


def make_by(tx: Tracer, maker: Callable[..., type], args: Sequence[Value], kwargs: dict[str, Value]) -> Value | None:
    """The class that a function of the library's makes of plain data for the module that calls it; None if it may see
    more, or raises."""
    values = [*args, *kwargs.values()]
    if tx.caller_module().startswith("dynajit.") or any(_looks_at_bases(frame.code_object) for frame in tx.frames):
        return None
    if not all(value.is_const() or _plain_items(tx, value) for value in values):
        return None
    named = {"module": tx.caller_module(), **{name: value.real() for name, value in kwargs.items()}}
    made = _made(lambda: maker(*(value.real() for value in args), **named))
    return None if made is None else _register(tx, made, tx.snapshot())


def make_from_namespace(tx: Tracer, name: Value, rest: Sequence[Value]) -> Value | None:
    """`type(name, bases, namespace)`; None if the class may be told of, or holds more than plain data."""
    if len(rest) != 2 or rest[0].py_type() is not tuple or rest[1].py_type() is not dict or not name.is_const():
        return None
    bases = tx.unpack(rest[0])
    if not all(map(_is_plain_base, bases)) or any(type(base.real()) is not type for base in bases):
        return None
    if any(_looks_at_bases(frame.code_object) for frame in tx.frames):
        return None
    namespace: dict[str, Any] = {"__module__": tx.caller_module()}
    for key in tx.unpack(rest[1]):
        value = rest[1].getitem(tx, key)
        if not (key.is_const() and value.is_const() and _is_kept(key.const(), value.const())):
            return None
        namespace[key.const()] = value.const()
    made = _made(lambda: type(name.const(), tuple(base.real() for base in bases), namespace))
    return None if made is None else _register(tx, made, tx.snapshot())


def _plain_items(tx: Tracer, value: Value) -> bool:
    return value.py_type() in (list, tuple) and all(item.is_const() for item in tx.unpack(value))


def made_at(tx: Tracer, value: Value) -> Any:
    """The state before the class was made that the value is, is an instance of, or is a method of."""
    if not tx.made_classes or isinstance(value, (int, type(None))):
        return None
    try:
        kind = value.py_type()
    except NotImplementedError:
        kind = None
    for thing in (getattr(value, "obj", None), kind, getattr(value, "real_function", None)):
        found = tx.made_classes.get(id(thing))
        if found is not None:
            return found[1]
    return None


def reads_empty_cells(tx: Tracer, cls: type) -> bool:
    """Whether methods of the class, run for real, would miss variables of a function around, which is being traced."""
    made = (namespace_of(base).values() for base in cls.__mro__ if id(base) in tx.made_classes)
    functions = (getattr(value, "__func__", value) for values in made for value in values)
    return any(getattr(function, "__closure__", None) for function in functions)


def _register(tx: Tracer, made: type, state: Any) -> Value:
    """The model of a class that was made while tracing, from this state on."""
    parts: list[object] = [made]
    of_library = _NAMESPACES_OF_LIBRARY.get(type(made), frozenset())
    for value in (value for name, value in namespace_of(made).items() if name not in of_library):
        parts.append(value)
        if isinstance(value, property):
            parts.extend((value.fget, value.fset, value.fdel))
        elif isinstance(value, (staticmethod, classmethod)):
            parts.append(value.__func__)
        elif isinstance(value, functools.cached_property):
            parts.append(value.func)
    for part in parts:
        if part is made or isinstance(part, _MADE_BY_BODIES):
            tx.journal.set_item(tx.made_classes, id(part), (part, state))
    return tx.wrap(made, ConstSource(made, made.__qualname__))  # type: ignore[no-any-return]


def _is_plain_base(base: Value) -> bool:
    """Whether a class that is derived from it is told nothing."""
    if base.is_const() or not isinstance(base, ClassVal):
        return getattr(base, "real_function", None) is typing.NamedTuple
    if base.obj in _ENUMS:
        return True
    return (
        type(base.obj) in _BASES
        and not issubclass(base.obj, BaseException)
        and lookup_type(base.obj, "__init_subclass__")[1] is object
        and not hasattr(base.obj, "__del__")
    )


def _is_kept(name: str, value: object) -> bool:
    """Whether an attribute of the class is the same in all of its makings, and can't be changed."""
    if isinstance(value, tuple):
        return all(_is_kept(name, part) for part in value)
    if isinstance(value, SLOTS):
        return True
    if name == "_backward_cls":  # the metaclass of autograd.Function makes it
        return True
    if name in ("__annotations__", "__static_attributes__", "_abc_impl", "__abstractmethods__", "__annotate_func__"):
        return True
    return isinstance(value, _ATTRIBUTES) and name not in ("__del__", "__class_getitem__", "__getattribute__")


def _names_needed(code: types.CodeType, globals_: dict[str, Any]) -> list[str] | None:
    """The globals that a class's body reads; None if it may run code of the program's."""
    stored = {"__name__", "__annotations__"}
    needed: list[str] = []
    previous, loaded = "", None
    for instr in decode(code).instrs:
        op, arg = instr.op, instr.arg
        if op not in _OPS or (op == "CALL" and arg[0] != 0) or (op == "LOAD_ATTR" and previous != "LOAD_NAME"):
            return None
        if op == "CALL" and previous in ("LOAD_NAME", "LOAD_ATTR") and loaded is not enum.auto:
            return None  # not a decorator's
        if op == "STORE_NAME":
            stored.add(arg)
        elif op == "LOAD_ATTR":
            loaded = vars(loaded).get(arg) if type(loaded) is types.ModuleType else None
        elif op == "LOAD_NAME" and arg in stored:
            loaded = None
        elif op == "LOAD_NAME":
            loaded = globals_[arg] if arg in globals_ else vars(builtins).get(arg)
            if not _is_trusted_name(loaded):
                return None
            if arg in globals_:
                needed.append(arg)
        if op not in ("NOP", "PUSH_NULL"):
            previous = op
    late = _names_in_annotations(code)
    if late is None:
        return None
    late -= stored
    if not all(_is_trusted_name(globals_.get(name, vars(builtins).get(name))) for name in late):
        return None
    return needed + sorted(late & globals_.keys())


def _names_in_annotations(body: types.CodeType) -> set[str] | None:
    """The globals that annotations in the body read when they are asked for (from CPython 3.14 on); None if they call
    something or read variables of the function, which are not bound while tracing."""
    names: set[str] = set()
    for code in body.co_consts:
        if type(code) is types.CodeType and code.co_name == "__annotate__":
            instrs = decode(code).instrs
            if any(i.op.startswith(("CALL", "LOAD_FROM_DICT_OR_DEREF")) for i in instrs):
                return None
            if any(i.op == "LOAD_DEREF" and i.arg != "__classdict__" for i in instrs):
                return None
            names.update(i.arg for i in instrs if i.op in ("LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"))
    return names


def _is_trusted_name(found: object) -> bool:
    if isinstance(found, types.ModuleType):
        return is_trusted(found.__name__)
    return isinstance(found, type) and of_library(found)
