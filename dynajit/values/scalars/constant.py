"""Immutable Python objects: numbers, strings, None, dtypes, devices, enum members, slices and ranges of these.

In: a real object. Out: `ConstVal`, on which pure operations are simply executed. To admit another immutable type
add it to `LITERAL_TYPES`.
"""

from __future__ import annotations

import datetime
import enum
import functools
import operator
import pathlib
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynajit import _C
from dynajit.bytecode.return_action import NUMBER
from dynajit.guards.kinds_object import const_equal
from dynajit.guards.source import AttrSource, ConstSource, InstanceAttrSource, Source, key_identity
from dynajit.report import breaks
from dynajit.report.shown import short
from dynajit.values.core.bound_methods import BoundBuiltin, BoundMethod
from dynajit.values.core.slots import AsksClass, by_rule, raising
from dynajit.values.core.value import Direct, GraphBreak, Tracer, Value

LITERAL_TYPES: frozenset[type] = frozenset(
    {
        int,
        float,
        complex,
        str,
        bytes,
        bool,
        type(None),
        type(Ellipsis),
        type(NotImplemented),
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
        torch.qscheme,
        types.CodeType,
        torch.finfo,
        torch.iinfo,
        torch.DispatchKey,
        torch._C._SDPBackend,
        # what a GPU is: not in every build of torch
        *(getattr(torch._C, name) for name in ("_CudaDeviceProperties",) if hasattr(torch._C, name)),
    }
)
#: paths, whose attributes and operators look at their text alone
PATH_TYPES: frozenset[type] = frozenset({pathlib.PurePosixPath, pathlib.PureWindowsPath, type(pathlib.Path())})
#: classes of the library whose instances never change
VALUE_TYPES: frozenset[type] = PATH_TYPES | {
    datetime.date,
    datetime.time,
    datetime.datetime,
    datetime.timedelta,
    datetime.timezone,
}
#: of them those that are numbers in other words
TIME_TYPES = VALUE_TYPES - PATH_TYPES - {datetime.timezone}
# of which equal ones may be several objects
_COPIED = frozenset({int, float, complex, str, bytes, slice, range, frozenset, torch.device, *VALUE_TYPES})
# methods of paths that only look at their text
_PATH_METHODS = frozenset(
    {"as_posix", "is_absolute", "is_relative_to", "joinpath", "match", "relative_to", "with_name", "with_stem"}
    | {"with_suffix", "__fspath__", "__str__", "__repr__", "__hash__", "__truediv__", "__rtruediv__"}
)
# methods that ask the clock, the machine's time zone or its locale
_IMPURE_METHODS = frozenset(
    {"now", "utcnow", "today", "fromtimestamp", "utcfromtimestamp", "timestamp", "astimezone"}
    | {"strftime", "strptime", "__format__"}
)
_C_METHODS = (types.BuiltinMethodType, types.MethodWrapperType)


def literal_identity(obj: Any) -> Any:
    """What tells literals apart that Python takes for equal: types, signs of zero, the order of a set's members."""
    if isinstance(obj, (slice, range)):
        return type(obj), *(literal_identity(part) for part in (obj.start, obj.stop, obj.step))
    if isinstance(obj, (set, frozenset)):
        return type(obj), *(literal_identity(part) for part in obj)
    if isinstance(obj, tuple):
        return type(obj), *(literal_identity(part) for part in obj)
    return key_identity(obj) if not isinstance(obj, torch.device) else obj


def is_literal(obj: object) -> bool:
    """Whether the object is immutable all the way down and equal objects are interchangeable."""
    kind = type(obj)
    if kind in LITERAL_TYPES or issubclass(kind, enum.Enum):
        return True
    if kind in VALUE_TYPES:
        return type(getattr(obj, "tzinfo", None)) in (type(None), datetime.timezone)
    if type(obj) is slice:
        return is_literal(obj.start) and is_literal(obj.stop) and is_literal(obj.step)
    if kind is range:
        return True
    if type(obj) is frozenset:
        return all(is_literal(item) and not is_nan(item) for item in obj)  # which one NaN it is matters
    return False


#: methods of texts that give a text, whatever the text is
TEXT_METHODS = frozenset(
    {"capitalize", "casefold", "center", "expandtabs", "join", "ljust", "lower", "lstrip", "removeprefix"}
    | {"removesuffix", "replace", "rjust", "rstrip", "strip", "swapcase", "title", "upper", "zfill"}
)

_METHODS_OF_TEXTS = frozenset(
    name for name, found in vars(str).items() if type(found) is types.MethodDescriptorType and not name.startswith("_")
)

# no object's address is below
_LEAST_ADDRESS = 1 << 16


def _keep_from_ids(tx: Tracer) -> None:
    """A number is a key that may be the `id()` of an object, which only the running program knows."""
    if tx.ids_are_keys:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "a number as a key, where an id() is one")
    if not tx.addresses_are_keys:
        tx.journal.set_attr(tx, "addresses_are_keys", True)


class ConstVal(AsksClass):
    """An immutable object known while tracing. `is_read`: something depends on it. `changes`: as of `UnreadConst`."""

    is_read = True
    changes = False

    def __init__(self, value: object, source: Source | None = None) -> None:
        self.value: Any = value
        self.source = source

    @property
    def hint(self) -> Any:
        """The object, where nothing is to rely on it."""
        return self.value

    def py_type(self) -> type:
        return type(self.value)

    def is_const(self) -> bool:
        return True

    def const(self) -> Any:
        return self.value

    def real(self) -> Any:
        return self.value

    def describe(self) -> str:
        if isinstance(self.value, enum.Enum):  # whose own `__repr__` is the program's code
            return f"the constant {type(self.value).__name__}.{self.value._name_}"
        return f"the constant {short(self.value) if type(self.value) in (int, str, bytes) else repr(self.value)}"

    def getattr(self, tx: Tracer, name: str) -> Value:
        kind = self.py_type()
        unread = name in _METHODS_OF_TEXTS if kind is str else name in _LEFT_TO_CALLS and kind in VALUE_TYPES
        if unread and hasattr(kind, name):
            return ConstMethod(self, name)  # nothing depends on the text or time yet
        if isinstance(self.value, enum.Enum) and name not in ("value", "name", "_value_", "_name_"):
            return self._member_attribute(tx, name)
        if name in ("__enter__", "__exit__"):
            return tx.class_attribute(self, type(self.value), name)  # a device is a context manager too
        with raising(tx, AttributeError, RuntimeError):  # a quantized dtype knows not whether it is signed
            found = getattr(self.value, name)
        if is_literal(found):
            return ConstVal(found)
        if isinstance(found, _C_METHODS):
            return ConstMethod(self, name)
        if name in _PATH_METHODS and self.py_type() in PATH_TYPES:
            return ConstMethod(self, name)
        return tx.from_real(found)

    def _member_attribute(self, tx: Tracer, name: str) -> Value:
        """An attribute of an enumeration's member: its own, or its class's."""
        if name == "__dict__":
            return tx.wrap(self.value.__dict__, AttrSource(ConstSource(self.value, short(self.value)), name))
        descriptor = getattr(type(self.value), name, None)
        if name in self.value.__dict__ and not isinstance(descriptor, property):
            source = InstanceAttrSource(ConstSource(self.value, short(self.value)), name)
            return tx.wrap(self.value.__dict__[name], source)
        return tx.class_attribute(self, type(self.value), name)

    def plain_truth(self) -> bool:
        if self.value is NotImplemented:
            self.unsupported("a truth value")  # which warns, or raises
        return bool(self.value)

    def own(self, tx: Tracer, name: str) -> Value | None:
        """Of an enumeration's member."""
        return own_of_member(tx, self, name)

    def getitem(self, tx: Tracer, key: Value) -> Value:
        own = self.own(tx, "__getitem__")
        if own is not None:
            return tx.call(own, [key], {})
        if issubclass(self.py_type(), (str, bytes, tuple, range)):
            return tx.fold(operator.getitem, [self, key])
        raise tx.raised(TypeError, f"'{type(self.value).__name__}' object is not subscriptable")

    def setitem(self, tx: Tracer, key: Value, value: Value) -> None:
        own = self.own(tx, "__setitem__")
        if own is None:
            raise tx.raised(TypeError, f"'{type(self.value).__name__}' object does not support item assignment")
        tx.call(own, [key, value], {})

    def iterate(self, tx: Tracer) -> Value:
        own = self.own(tx, "__iter__")
        if own is not None:
            return tx.call(own, [], {})
        if isinstance(self.value, (str, bytes, range)):
            return tx.const_iterator(self.value)
        if isinstance(self.value, tuple):
            return tx.iterator([tx.from_real(item) for item in self.value], type(iter(())))
        if isinstance(self.value, frozenset):
            tx.assumed.of_process("the order of a set stands in the trace")
            return tx.iterator([ConstVal(item) for item in self.value], type(iter(self.value)))
        raise tx.raised(TypeError, f"'{type(self.value).__name__}' object is not iterable")

    def iterate_backwards(self, tx: Tracer) -> Value:
        if type(self.value) is range:
            return tx.const_iterator(self.value[::-1])
        if not hasattr(self.value, "__getitem__"):
            return super().iterate_backwards(tx)
        return tx.iterator(tx.unpack(self)[::-1], reversed)

    def call(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None) -> Value:
        own = self.own(tx, "__call__")
        if own is not None:
            return tx.call(own, args, kwargs, direct)
        raise tx.raised(TypeError, f"'{type(self.value).__name__}' object is not callable")

    def is_same(self, tx: Tracer, other: Value) -> bool | None:
        """Constants that are alike to their guards may be one object or two."""
        if not isinstance(other, ConstVal):
            return None
        if self.py_type() is not other.py_type():
            return False
        changing = any(each.changes and not each.is_read for each in (self, other))
        if changing and self.py_type() in (str, bytes) and not tx.holds(self, "==", other):
            return False
        first, second = self.value, other.value
        if type(first) in _COPIED and const_equal(first, second):
            sources = [value.source or ConstSource(value.value, value.describe()) for value in (self, other)]
            sources.sort(key=lambda source: isinstance(source, ConstSource))
            if not isinstance(sources[0], ConstSource):
                tx.guard(sources[0], "SAME_OBJECT" if first is second else "NOT_ALIASED", sources[1])
        return first is second

    def hash_key(self, tx: Tracer) -> object:
        if isinstance(self.value, slice):
            return super().hash_key(tx)
        if type(self.value) is int and self.value >= _LEAST_ADDRESS:
            _keep_from_ids(tx)
        return tx.object_key(self) if is_nan(self.value) else self.value

    def rebuild(self, out: Any) -> None:
        out.const(self.value)


def _same_value(expected: object, found: object) -> bool:
    """Whether they are the same in all that can be asked: dates of two time zones may be equal."""
    return type(found) is type(expected) and repr(found) == repr(expected)


class Unread(ConstVal):
    """A constant that nothing depends on yet. `read`, called once, gives it and records what the trace then relies
    on; `hint` gives it without. `differs`: it is known to be another one at other calls."""

    differs = True

    def __init__(self, tx: Tracer, kind: type) -> None:
        self._tx = tx
        self._kind = kind
        self._found: Any = None
        self.is_read = False

    def read(self) -> Any:
        raise NotImplementedError

    @property
    def value(self) -> Any:  # type: ignore[override]
        if not self.is_read:
            self._found = self.read()
            self._tx.journal.set_attr(self, "is_read", True)
        return self._found

    def py_type(self) -> type:
        return self._kind


class UnreadConst(Unread):
    """A number or string from outside; reading its value records the guard.

    What is only passed along, to `print` say, may be different at each call. `changes`: an earlier capture saw another
    one, and there is no symbol for it, so what is computed of it is computed at run time, where that will do.
    `differs`: an earlier capture saw another one.
    """

    def __init__(self, tx: Tracer, value: object, source: Source, changes: bool = False, differs: bool = False) -> None:
        super().__init__(tx, type(value))
        self._raw = value
        self.source: Source = source
        self.changes = changes
        self.differs = changes or differs

    def plain_truth(self) -> bool:
        if self.changes and not self.is_read:
            return bool(self._tx.fold(bool, [self]).const())
        return super().plain_truth()

    def getattr(self, tx: Tracer, name: str) -> Value:
        made = number_method(tx, self, name) if self.changes and not self.is_read else None
        return made if made is not None else super().getattr(tx, name)

    def read(self) -> Any:
        self.rely()
        self._tx.numbers_read.add(self.source)
        return self._raw

    def rely(self) -> None:
        """Record the guard."""
        if self.source in self._tx.seen.varying:
            raise GraphBreak(breaks.VARYING_VALUE, self.source.name())
        if self._kind is bool and self.differs:
            self._tx.graph.shapes.decide(lambda: self._raw)
        if type(self._raw) in VALUE_TYPES:
            held = functools.partial(_same_value, self._raw)
            self._tx.guard(self.source, "PREDICATE", held, f"== {self._raw!r}")
        elif self._kind is bool or issubclass(self._kind, enum.Enum):
            self._tx.guard(self.source, "ID", self._raw)
        else:
            self._tx.guard(self.source, "EQUALS", self._raw)

    @property
    def hint(self) -> Any:
        return self._raw

    def describe(self) -> str:
        return f"a number or string of type {self._kind.__name__}"


#: methods of numbers that need no more than the number
COMPUTING = frozenset({"bit_count", "bit_length", "is_integer", "as_integer_ratio", "conjugate", "hex", "to_bytes"})


def _reader(name: str) -> Callable[[Any], Any]:
    def read(time: Any) -> Any:
        return getattr(time, name)

    read.__name__ = name
    _C.mark_ours(read.__code__)
    return read


#: what reads the numbers that a date or time is made of
READERS: dict[str, Callable[[Any], Any]] = {
    name: _reader(name)
    for name in ("year", "month", "day", "hour", "minute", "second", "microsecond", "days", "seconds", "microseconds")
}
# methods of dates and times that only compute
_OF_TIMES = frozenset({"isoformat", "isoweekday", "toordinal", "total_seconds", "weekday"})
# methods of dates and times that give a text, which goes by the process's language, too
_TIME_TEXTS = frozenset({"ctime", "strftime"})
# of which nothing depends on the value before they are called
_LEFT_TO_CALLS = _IMPURE_METHODS | _TIME_TEXTS
#: methods of texts that give numbers and truth values, and those between texts and bytes
ASKING = frozenset(
    {"count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier"}
    | {"islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "rfind", "rindex", "startswith"}
    | {"encode", "decode"}
)
#: those that give parts of it
SPLITTING = frozenset({"partition", "rpartition", "rsplit", "split", "splitlines"})


def number_method(tx: Tracer, number: Value, name: str) -> Value | None:
    """A method that only computes, or an attribute that is the number itself."""
    kind = number.py_type()
    if name in ("imag", "denominator") and kind is not complex and hasattr(kind, name):
        return ConstVal(getattr(kind(1), name))
    if (name == "real" and kind is not complex) or (name == "numerator" and kind is int):
        return number
    if kind in TIME_TYPES and hasattr(kind, name):
        if name in READERS:
            return tx.fold(READERS[name], [number])
        if name in _OF_TIMES:
            return ConstMethod(number, name)
    names = ASKING | SPLITTING if kind in (str, bytes) else COMPUTING
    method = getattr(kind, name, None) if name in names else None
    return BoundBuiltin(number, name, tx.from_real(method)) if method is not None else None


def _gives_text_of_time(time: Any, name: str) -> bool:
    """Whether it is a method whose result can be left to the generated code."""
    kind = time.py_type()
    return name in _TIME_TEXTS and kind in TIME_TYPES and hasattr(kind, name) and not time.is_read


class ConstMethod(BoundMethod):
    """A C method of an immutable object, such as `"a".join`."""

    def py_type(self) -> type:
        return type(getattr(self.owner.hint, self.name))

    def real(self) -> Any:
        return getattr(self.owner.value, self.name)

    def getattr(self, tx: Tracer, name: str) -> Value:
        with raising(tx, AttributeError):
            return tx.from_real(getattr(self.real(), name))

    def call(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None) -> Value:
        if self.name == "join" and len(args) == 1 and not args[0].is_const():
            args = [tx.new_list(tx.unpack_hinted(args[0]))]
        if self.owner.py_type() is str and (self.name in TEXT_METHODS or self.name in ("format", "translate")):
            return tx.call_builtin(getattr(str, self.name), [self.owner, *args], kwargs)
        if _gives_text_of_time(self.owner, self.name):
            return tx.call_builtin(getattr(self.owner.py_type(), self.name), [self.owner, *args], kwargs)
        if self.owner.py_type() in VALUE_TYPES and self.name in _IMPURE_METHODS:
            raise GraphBreak(breaks.UNKNOWN_CALL, f"{self.owner.py_type().__name__}.{self.name}")
        if self.owner.py_type() in TIME_TYPES and self.name in _OF_TIMES:
            return tx.fold(getattr(self.owner.py_type(), self.name), [self.owner, *args], kwargs)
        return tx.fold(self.real(), args, kwargs)

    def rebuild(self, out: Any) -> None:
        if self.owner.is_read:
            out.const(self.real())
        else:
            super().rebuild(out)


def has_own(value: Value, method: str) -> bool:
    """Whether it is a member of an enumeration, and its class has such a special method that is written in Python."""
    kind = value.py_type()
    return issubclass(kind, enum.Enum) and type(getattr(kind, method, None)) is types.FunctionType


def own_of_member(tx: Tracer, value: Value, method: str) -> Value | None:
    """A member's special method that is written in Python, bound; None for other objects."""
    return tx.class_attribute(value, value.py_type(), method) if has_own(value, method) else None


def is_nan(value: object) -> bool:
    """Whether it is a number that is not equal to itself, and so found in containers by identity alone."""
    return isinstance(value, (float, complex)) and value != value


def is_none(value: Value | None) -> bool:
    """Whether an argument is None, or was left out."""
    return value is None or (isinstance(value, ConstVal) and value.value is None)


def declined(answer: Value) -> bool:
    """Whether a special method leaves it to another one."""
    return isinstance(answer, ConstVal) and answer.value is NotImplemented


def integer_of(tx: Tracer, value: Value, what: str, most: int | None = sys.maxsize) -> int:
    """An argument that C code asks for its `__index__`, as an int that has to be known while tracing. What it refuses,
    for its kind or for lying beyond `most`, the real call does."""
    kind = value.py_type()
    if not hasattr(kind, "__index__"):
        raise GraphBreak(breaks.RAISES, f"TypeError: {what} is of type {kind.__name__}")
    if any(isinstance(each, ConstVal) for each in (value, value.payload)) or value.symbolic:
        found = constant_of(value, what)
    else:
        asked = tx.call(tx.class_attribute(value, kind, "__index__"), [], {})
        found = constant_of(by_rule(tx, asked, NUMBER), what)
    number = int(operator.index(found))
    if most is not None and abs(number) > most:
        raise GraphBreak(breaks.RAISES, f"OverflowError: {what} is {short(number)}")
    return number


def slice_of(value: Value) -> slice:
    """A slice whose parts have to be known while tracing, and are None or integers."""
    found = constant_of(value, "a slice")
    for part in (found.start, found.stop, found.step):
        if part is not None and not hasattr(type(part), "__index__"):
            raise GraphBreak(breaks.RAISES, f"TypeError: a slice with a {type(part).__name__}")
    if found.step is not None and operator.index(found.step) == 0:
        raise GraphBreak(breaks.RAISES, "ValueError: a slice with a step of zero")
    return found  # type: ignore[no-any-return]


def constant_of(value: Value, what: str) -> Any:
    """The Python object of a value that has to be known while tracing."""
    payload = value.payload
    if isinstance(payload, ConstVal):
        return payload.value
    if not value.is_const() and not value.symbolic:
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{what} must be known while tracing, not {value.describe()}")
    return value.const()


def attribute_name(value: Value) -> str:
    """An attribute's name, which has to be known while tracing."""
    name = constant_of(value, "an attribute's name")
    if not isinstance(name, str):
        raise GraphBreak(breaks.RAISES, f"TypeError: an attribute's name is of type {type(name).__name__}")
    return name


def is_the(value: Value, obj: Any) -> bool:
    """Whether it is the model of this very object, at this call: nothing relies on it after."""
    if not isinstance(value, ConstVal) or not (value.is_read or isinstance(value, UnreadConst)):
        return False
    return value.hint is obj
