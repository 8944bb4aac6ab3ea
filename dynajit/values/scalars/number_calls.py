"""Functions of numbers that vary, where torch has no symbol for the result: `math.exp(-step / 20)`, `divmod(a, b)`.

In: the function and its arguments. Out: the model of a number from outside, whose source is the call. So it varies by
itself, generated code computes it before the graph, and guards read it as they read the program's own numbers. A call
that raises is a guard that fails. Integers that are too large for a symbol are only ever computed so, by Python itself.
"""

from __future__ import annotations

import builtins
import functools
import math
import operator
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dynajit import _C, symbols
from dynajit.config import config
from dynajit.guards.source import CallSource, ItemSource, Source, TogetherSource, length_source
from dynajit.report import breaks
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.scalars.constant import READERS, SPLITTING, TIME_TYPES, UnreadConst
from dynajit.values.scalars.symbolic import SymVal, is_number
from dynajit.values.scalars.unread import UnreadCall

# what is told apart by its text
_SHOWN = (int, float, bool, complex, str, bytes, range, slice, type(None), *TIME_TYPES)
_TAKEN = (complex, str, bytes, list, tuple, frozenset, range, slice, type(None), *TIME_TYPES)
#: items of a list that is computed with at each check of the guards: of more the program computes itself
MAX_COMPUTED = 128
_NUMBER_TYPES = frozenset({int, float})
_RESULTS = (int, float, complex, bytes, str, tuple, *TIME_TYPES)
# as many numbers a call may follow from: it is looked at in each check of the guards
MAX_NUMBERS = 16
_OPERATORS = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "neg", "pos", "abs", "and_", "or_", "xor", "invert"),
    *("rshift", "eq", "ne", "lt", "le", "gt", "ge", "index", "contains", "getitem"),
)


def sum_of(start: Any, *numbers: Any) -> Any:
    """`sum`, which rounds otherwise than additions one by one on some Pythons."""
    return sum(numbers, start)


_COMPUTING: frozenset[Any] = frozenset(
    {
        *(getattr(operator, name) for name in _OPERATORS),
        *(builtins.abs, builtins.round, builtins.divmod, builtins.hash, builtins.int, builtins.float, builtins.bool),
        *(builtins.complex, builtins.min, builtins.max, builtins.len, builtins.ord),
        *(builtins.str, builtins.repr, builtins.format),
        *(operator.pow, builtins.pow, sum_of, *READERS.values()),
    }
)
_POWERS = frozenset({operator.pow, builtins.pow})
NOTHING: Mapping[Any, Any] = types.MappingProxyType({})


def changes(value: Value) -> bool:
    """Whether it is a number that has no symbol, and was another one in an earlier capture."""
    return isinstance(value, UnreadConst) and value.changes and not value.is_read


def varies(value: Value) -> bool:
    """Whether it is a number or text, or a list of such, that may be another one at the next call."""
    if _growing(value) is not None:
        return True
    if type(value) is UnreadCall:
        return not value.is_read and any(map(varies, value.children()))
    items = getattr(value, "items", None)
    if type(items) is list:
        return any(isinstance(item, Value) and varies(item) for item in items)
    return isinstance(value, SymVal) or changes(value) or _compared(value) is not None


def _compared(value: Value) -> SymVal | None:
    """What a flag says of numbers that vary, if nothing depends on it yet."""
    return getattr(value, "compared", None)


def call_on_number(tx: Tracer, fn: Callable[..., Any], args: Sequence[Value], kwargs: dict[str, Value]) -> Value | None:
    """`fn` on numbers of which some vary; None if the numbers at hand are needed."""
    given: dict[Any, Value] = {**dict(enumerate(args)), **kwargs}
    if fn in _POWERS and not any(value.py_type() is float for value in args):
        return None  # of integers they may be of any length
    if not _computes(fn) or not all(is_number(value) or value.py_type() in _TAKEN for value in given.values()):
        return None
    if getattr(fn, "__name__", None) in SPLITTING:
        return _split(tx, fn, given)
    called = called_on_number(tx, fn, given)
    return model_of(tx, *called) if called is not None else None


def _split(tx: Tracer, fn: Callable[..., Any], given: Mapping[Any, Value]) -> Value | None:
    """What a method gives that splits a text which varies: as many texts as now, which vary; a graph break if it was
    another number of them at other calls."""
    called = called_on_number(tx, _parts_by(fn), given)
    if called is None or len(called[0]) > MAX_COMPUTED:
        return None
    found, source = called
    length = length_source(source, tuple.__len__)
    if length in tx.seen.varying:
        raise GraphBreak(breaks.VARYING_VALUE, length.name())
    texts = model_of(tx, found, source)
    in_tuple = "partition" in fn.__name__
    return texts if in_tuple or texts is None else tx.new_list(tx.unpack(texts))


@functools.cache
def _parts_by(fn: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    """The method, giving a tuple for its list."""

    def parts(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return tuple(fn(*args, **kwargs))

    parts.__name__, parts.__module__ = fn.__name__, fn.__objclass__.__name__  # type: ignore[attr-defined]
    _C.mark_ours(parts.__code__)
    return parts


def is_among(tx: Tracer, members: Value, item: Value) -> bool | None:
    """Whether a number or text that varies is one of these constants: that alone is guarded. None for anything else."""
    if not varies(item) or config.keep_variants:  # which keeps nothing that calls a function made here
        return None
    found = call_on_number(tx, operator.contains, [members, item], {})
    return found.truth(tx) if found is not None else None


def model_of(tx: Tracer, found: Any, source: Source) -> Value | None:
    """What a call gave, as numbers that vary; None if it is none, nor made of some."""
    if type(found) is bool:
        tx.guard(source, "TYPE", bool)
        return UnreadConst(tx, found, source, changes=True)
    if type(found) not in _RESULTS:
        return None
    _expect(tx, found, source)
    return tx.wrap(found, source)


def of_growing(tx: Tracer, fn: Callable[..., Any], value: Value) -> Value | None:
    """`fn`, which takes a list of numbers, on a list that grows from call to call; None for any other argument."""
    called = called_on_number(tx, fn, {0: value}) if _growing(value) is not None else None
    return model_of(tx, *called) if called is not None else None


def _growing(value: Value) -> tuple[list[Any], Source, list[Value]] | None:
    growing = getattr(value, "growing", None)
    return growing() if growing is not None else None


def _numbers(items: list[Any]) -> list[Any]:
    """A list of nothing but numbers, and of few."""
    if len(items) > MAX_COMPUTED or not {*map(type, items)} <= _NUMBER_TYPES:
        raise TypeError("not all are numbers, or too many")
    return items


def _expect(tx: Tracer, found: Any, source: Source) -> None:
    """Numbers that are computed of what varies do so by themselves."""
    if type(found) is tuple:
        for place, item in enumerate(found):
            _expect(tx, item, ItemSource(source, place))
    else:
        tx.seen.expect(source)


def in_order(tx: Tracer, items: Sequence[Value], backwards: bool) -> list[Value] | None:
    """Numbers or texts of which some vary as `sorted` puts them; None for anything else. Nothing depends on their
    order."""
    if not all(map(is_number, items)) and {item.py_type() for item in items} != {str}:
        return None
    called = called_on_number(tx, _falling if backwards else _rising, dict(enumerate(items)))
    found = model_of(tx, *called) if called is not None else None
    return tx.unpack(found) if found is not None else None


def _rising(*items: Any) -> tuple[Any, ...]:
    return tuple(sorted(items))


def _falling(*items: Any) -> tuple[Any, ...]:
    return tuple(sorted(items, reverse=True))


class NumberCall:
    """The text of a call: `numbers`, what it follows from, by the names of its parameters."""

    def __init__(self, tx: Tracer, fn: Callable[..., Any]) -> None:
        self._tx = tx
        self.known: dict[str, Any] = {"math": math, "function": fn, "only_numbers": _numbers}
        self.numbers: dict[str, tuple[Source, Any]] = {}

    def argument(self, value: Value) -> tuple[str, str] | None:
        """How an argument is written, in code and in messages, with places in braces; None: it can't be."""
        compared = _compared(value)
        if compared is not None:
            return self._symbol(compared)
        if isinstance(value, SymVal):
            return self._symbol(value) if value.varies else None
        if changes(value):
            name = self._number(value.source, value.hint)  # type: ignore[arg-type, attr-defined]
            return name, self._place(name)
        if type(value) is UnreadCall and not value.is_read:
            return self._made(value)
        growing = _growing(value)
        if growing is not None:
            name = self._number(growing[1], growing[0])
            return self._listed(growing[2], (f"*only_numbers({name})", f"*{self._place(name)}"))
        if value.py_type() in (list, tuple) and type(getattr(value, "items", None)) is list:
            return self._listed(self._tx.unpack(value))
        if not value.is_const() or not _is_shown(value.const()):
            return None
        name = f"given_{len(self.known)}"
        known = self.known[name] = value.const()
        # Python shows no integer of many digits in base ten
        return name, escaped(hex(known) if type(known) is int and symbols.is_large(known) else repr(known))

    def _made(self, value: UnreadCall) -> tuple[str, str] | None:
        """A text made of numbers and texts."""
        parts = [*filter(None, map(self.argument, value.children()))]
        if len(parts) < len(value.children()):
            return None
        name = f"made_{len(self.known)}"
        self.known[name] = value.function
        before = escaped(repr(getattr(value.function, "__self__", None)) + value.function.__name__)
        text, shown = (", ".join(column) for column in zip(*parts, strict=True))
        return f"{name}({text})", f"{before}({shown})"

    def _listed(self, items: Sequence[Value], *parts: tuple[str, str]) -> tuple[str, str] | None:
        """A list of these items, after other parts."""
        for item in items:
            part = self.argument(item)
            if part is None:
                return None
            parts += (part,)
        return f"[{', '.join(text for text, _ in parts)}]", f"[{', '.join(shown for _, shown in parts)}]"

    def _symbol(self, value: SymVal) -> tuple[str, str]:
        tree, shapes = symbols.tree_of(value.number.node.expr), self._tx.graph.shapes
        names = symbols.names_in(tree)
        for name in names:
            self.numbers[name] = (shapes.source_of(name), shapes.symbols[name].hint)
        return symbols.readable(tree), symbols.readable(tree, {name: self._place(name) for name in names})

    def _number(self, source: Source, hint: Any) -> str:
        name = next((name for name, (known, _) in self.numbers.items() if known is source), None)
        name = name or f"number_{len(self.numbers)}"
        self.numbers[name] = (source, hint)
        return name

    def _place(self, name: str) -> str:
        return f"{{{[*self.numbers].index(name)}}}"


def called_on_number(
    tx: Tracer, fn: Callable[..., Any], args: Mapping[Any, Value], kinds: Mapping[Any, type] = NOTHING
) -> tuple[Any, CallSource] | None:
    """What `fn`, which only computes, gives for numbers of which some vary, and the source that says so; None if the
    numbers at hand are needed. `args`: by place and by name; of each in `kinds` that class is made."""
    if tx.static_numbers or not any(map(varies, args.values())):
        return None
    call = NumberCall(tx, fn)
    texts, shown = [], []
    for key, arg in args.items():
        written = call.argument(arg)
        if written is None:
            return None
        text, seen = written
        if key in kinds:
            call.known[f"kind_{key}"] = kinds[key]
            text, seen = f"kind_{key}({text})", f"{kinds[key].__name__}({seen})"
        before = f"{key}=" if isinstance(key, str) else ""
        texts.append(before + text)
        shown.append(before + seen)
    if not 1 <= len(call.numbers) <= MAX_NUMBERS:
        return None
    names, numbers = ", ".join(call.numbers), [*call.numbers.values()]
    many = len(numbers) > 1
    code = f"function({', '.join(texts)})"
    function: Callable[[Any], Any] = eval(f"lambda {names}: {code}", call.known)
    try:
        found = function(*(hint for _, hint in numbers))
    except (ArithmeticError, LookupError, ValueError, TypeError, Warning):
        return None  # the numbers themselves say what is wrong; NumPy warns, and a filter may make that an error
    if many:
        exec(f"def of_numbers(numbers):\n    {names} = numbers\n    return {code}", call.known)
        function = call.known["of_numbers"]
    _C.mark_ours(function.__code__)
    base = TogetherSource([source for source, _ in numbers]) if many else numbers[0][0]
    return found, CallSource(base, function, f"{_name(fn)}({', '.join(shown)})")


def _is_shown(known: Any) -> bool:
    if type(known) in (tuple, frozenset):
        return all(map(_is_shown, known))
    return type(known) in _SHOWN


def escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _name(fn: Any) -> str:
    """Of a function, a method or one of NumPy's, for each another one."""
    owner = getattr(fn, "__objclass__", None)
    return f"{owner.__name__ if owner else getattr(fn, '__module__', None) or type(fn).__module__}.{fn.__name__}"


def _computes(fn: Any) -> bool:
    """Whether it is a function of `math`, an operator, or a method of numbers or texts: C code that only computes."""
    if isinstance(fn, types.MethodDescriptorType):
        return fn.__objclass__ in (int, float, complex, str, bytes, *TIME_TYPES)
    return fn in _COMPUTING or (isinstance(fn, types.BuiltinFunctionType) and fn.__self__ is math)
