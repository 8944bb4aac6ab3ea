"""Models of formatting, regular expressions and other functions of the library that only compute.

In: arguments as values. Out: the result, computed while tracing. `str.format` and `%` call back into the program for
objects with a `__str__`, `__repr__` or `__format__` of their own; everything else needs arguments known while tracing.
Modules whose functions are computed are listed in `interp/policy.py`.
"""

from __future__ import annotations

import datetime
import itertools
import os
import pathlib
import posixpath
import re
import types
from typing import Any

from dynajit import _C
from dynajit.report import breaks
from dynajit.values.containers.mapping import DictVal
from dynajit.values.containers.sequence import ListVal, TupleVal
from dynajit.values.containers.standin import StandIn, call_real
from dynajit.values.core.registry import asked_first, builtin, models_of, pure
from dynajit.values.core.slots import raising
from dynajit.values.core.value import GraphBreak, NotReal, Tracer, Value
from dynajit.values.objects.objects import payload_of
from dynajit.values.scalars.constant import PATH_TYPES, TEXT_METHODS, ConstVal
from dynajit.values.scalars.unread import has_unread, join_texts, unread_text

pure(str.maketrans, bytes.maketrans)
for _name in ("_path_normpath", "normpath"):
    if isinstance(_normal := getattr(posixpath, _name, None), types.BuiltinFunctionType):
        pure(_normal)


@builtin(os.fspath)
def file_system_path(tx: Tracer, path: Value) -> Value:
    if path.is_const() and type(path.const()) in (str, bytes):
        return path
    if path.py_type() in PATH_TYPES:
        return tx.fold(os.fspath, [path])
    raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"os.fspath of {path.describe()}")


@models_of(pathlib.PurePath, pathlib.Path, *PATH_TYPES)
def _make_path(kind: type, tx: Tracer, *parts: Value) -> Value:
    """Paths are made of texts and paths; what else has a `__fspath__` is the program's code."""
    for part in parts:
        if part.py_type() is not str and part.py_type() not in PATH_TYPES:
            raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"a path made of {part.describe()}")
    return tx.fold(kind, parts)


@builtin(str.translate)
def translate(tx: Tracer, text: Value, table: Value) -> Value:
    """What the table says of each character is read while tracing."""
    if not isinstance(table, DictVal) or table.py_type() is not dict:
        return tx.fold(str.translate, [text, table])
    known = {key.real(): value.real() for key, value in table.items(tx)}
    return tx.fold(lambda given: given.translate(known), [text])


@models_of(str.partition, str.rpartition, bytes.partition, bytes.rpartition)
def _parted(method: Any, tx: Tracer, text: Value, sep: Value, /) -> Value:
    """Without the separator it is the text itself, also an instance of a subclass."""
    plain = payload_of(text)
    found = tx.fold(method, [plain, sep])
    if plain is text:
        return found
    before, between, after = tx.unpack(found)
    if between.truth(tx):
        return found
    return TupleVal([text, between, after] if method.__name__ == "partition" else [before, between, text])


def _has_no_fields(template: Value) -> bool:
    """Whether it is an instance of a subclass that is its own text, formatted."""
    text = payload_of(template)
    return text is not template and {"{", "}"}.isdisjoint(text.const())


@builtin(str.format_map)
def _format_map(tx: Tracer, template: Value, mapping: Value, /) -> Value:
    return template if _has_no_fields(template) else tx.fold(str.format_map, [payload_of(template), mapping])


@builtin(str.format)
def str_format(tx: Tracer, template: Value, /, *args: Value, **kwargs: Value) -> Value:
    if _has_no_fields(template):
        return template
    try:
        given = (*args, *kwargs.values())
        if not any(has_unread(value, set()) for value in given) and not any(map(_has_own_text, given)):
            return tx.fold(str.format, [template, *args], kwargs)
    except GraphBreak:
        pass  # some argument is only partly known
    texts: list[Value] = []
    fields = [_Field(tx, value, texts) for value in args]
    named = {name: _Field(tx, value, texts) for name, value in kwargs.items()}
    return with_texts(tx, call_real(tx, template.const().format, *fields, **named), texts)


def _has_own_text(value: Value) -> bool:
    try:
        value.real()
    except NotReal:
        return True
    return False


# where one of the texts stands that were asked for
_TEXT = re.compile("\0dynajit text (\\d+)\0")


def placeholder(text: Value, texts: list[Value]) -> str:
    """What stands for the text, which is added to `texts`, until `with_texts` puts it there."""
    texts.append(text)
    return f"\0dynajit text {len(texts) - 1}\0"


class _Field:
    """Stands for a value where `str.format` looks its parts up and asks for its text, which is added to `texts`."""

    __slots__ = ("state",)

    def __init__(self, tx: Tracer, value: Value, texts: list[Value]) -> None:
        self.state = tx, value, texts

    def __getattribute__(self, name: str) -> Any:
        tx, value, texts = _state_of(self)
        return _Field(tx, value.getattr(tx, name), texts)

    def __getitem__(self, key: Any) -> Any:
        tx, value, texts = _state_of(self)
        return _Field(tx, value.getitem(tx, ConstVal(key)), texts)

    def __format__(self, spec: str) -> str:
        tx, value, texts = _state_of(self)
        return placeholder(tx.call(tx.from_real(format), [value, with_texts(tx, spec, texts)], {}), texts)

    def __str__(self) -> str:
        tx, value, _ = _state_of(self)
        return str(tx.call(tx.from_real(str), [value], {}).const())

    def __repr__(self) -> str:
        tx, value, _ = _state_of(self)
        return repr(StandIn(tx, value))


_state_of: Any = vars(_Field)["state"].__get__


def with_texts(tx: Tracer, made: str, texts: list[Value]) -> Value:
    """A text with those that were put off."""
    parts = _TEXT.split(made)  # every other one is the number of a text
    return join_texts(tx, [texts[int(part)] if at % 2 else ConstVal(part) for at, part in enumerate(parts)])


# ------------------------------------------------------------------------------------------------ texts not looked at


@models_of(*(getattr(str, name) for name in TEXT_METHODS - {"join"}))
@models_of(datetime.date.strftime, datetime.time.strftime, datetime.date.ctime, datetime.datetime.ctime)
def _gives_text(function: Any, tx: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    """A function that gives a text for whatever texts: the generated code calls it if nothing needs the text before."""
    made = None if kwargs else unread_text(tx, function, args, formats=False)
    return made if made is not None else tx.fold(function, args, kwargs)


def _path_function(function: Any) -> None:
    """One of `os.path` that only looks at the text."""

    def computed(*parts: str) -> Any:
        return _C.call_eager(function, parts)

    _C.mark_ours(computed.__code__)

    @asked_first(function)
    def model(tx: Tracer, *args: Value, **kwargs: Value) -> Value | None:
        return None if kwargs else unread_text(tx, computed, args, formats=False)


for _function in (posixpath.join, posixpath.basename, posixpath.dirname):
    _path_function(_function)


def _join_parts(separator: str, *parts: str) -> str:
    return separator.join(parts)


@builtin(str.join)
def str_join(tx: Tracer, separator: Value, parts: Value) -> Value:
    made = None
    if isinstance(parts, (ListVal, TupleVal)):
        made = unread_text(tx, _join_parts, [separator, *tx.unpack(parts)], formats=False)
    return made if made is not None else tx.fold(str.join, [separator, parts])


# ------------------------------------------------------------------------------------------------ regular expressions

ZERO = ConstVal(0)


@builtin(re.sub)
def re_sub(tx: Tracer, pattern: Value, repl: Value, string: Value, count: Value = ZERO, flags: Value = ZERO) -> Value:
    return pattern_sub(tx, tx.call(tx.from_real(re.compile), [pattern, flags], {}), repl, string, count)


@builtin(re.Pattern.sub)
def pattern_sub(tx: Tracer, self: Value, repl: Value, string: Value, count: Value = ZERO) -> Value:
    if isinstance(repl, ConstVal):
        return tx.fold(re.Pattern.sub, [self, repl, string, count])
    subject, position, pieces = string.const(), 0, []
    for match in itertools.islice(self.real().finditer(subject), count.const() or None):
        pieces += [ConstVal(subject[position : match.start()]), tx.call(repl, [tx.from_real(match)], {})]
        position = match.end()
    return tx.fold(lambda *parts: subject[:0].join(filter(None, parts)), [*pieces, ConstVal(subject[position:])])


def _found(function: Any) -> None:
    @builtin(function)
    def model(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
        with raising(tx, re.error):
            result = function(*(arg.real() for arg in args), **{name: arg.real() for name, arg in kwargs.items()})
        return tx.iterator([tx.from_real(match) for match in result], type(iter([])))


_found(re.finditer)
_found(re.Pattern.finditer)
