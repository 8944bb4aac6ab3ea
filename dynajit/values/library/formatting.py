"""Templates: `template % operand` where not all of the operand is known while tracing, and how `string.Formatter`
takes one apart.

In: the template and the operand's model. Out: the text; objects are asked for theirs one by one, as `%` does.
"""

from __future__ import annotations

import collections
import contextlib
import re
from collections.abc import Sequence
from string import _string  # type: ignore[attr-defined]  # it has no stub of its own
from typing import Any

from dynajit.values.containers.iterators import SequenceIterator
from dynajit.values.containers.sequence import TupleVal
from dynajit.values.core.registry import builtin
from dynajit.values.core.slots import left_to_real_call
from dynajit.values.core.value import Tracer, Value
from dynajit.values.objects.objects import ObjVal, payload_of
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.scalars.unread import join_texts, unread_text
from dynajit.values.tensors.tensor_text import number_text

# %[(name)][flags][width][.precision][length]type
_PERCENT = re.compile(
    r"%(?:\((?P<name>[^()]*)\))?(?P<flags>[-+ #0]*)(?P<width>\*|\d*)(?:\.(?P<precision>\*|\d*))?[hlL]?(?P<type>.)", re.S
)
_TEMPLATE, _FIELD = type(_string.formatter_parser("")), type(_string.formatter_field_name_split("")[1])


def _template(template: str) -> tuple[Any, ...]:
    return tuple(_string.formatter_parser(template))


def _field(name: str) -> tuple[Any, ...]:
    first, rest = _string.formatter_field_name_split(name)
    return first, *rest


@builtin(_string.formatter_parser)
def parts_of_template(tx: Tracer, template: Value) -> Value:
    """An iterator over (literal text, field, format specification, conversion)."""
    with left_to_real_call():  # which gives the parts before what is wrong
        return SequenceIterator(tx.unpack(tx.fold(_template, [template])), _TEMPLATE)


@builtin(_string.formatter_field_name_split)
def parts_of_field(tx: Tracer, name: Value) -> Value:
    """What a field is of, and an iterator over (whether an attribute or else an item, its name)."""
    with left_to_real_call():
        first, *rest = tx.unpack(tx.fold(_field, [name]))
    return tx.new_tuple([first, SequenceIterator(rest, _FIELD)])


def format_percent(tx: Tracer, template: str, operand: Value) -> Value:
    """`template % operand`, where not all of the operand is known: texts of objects are asked for one by one."""
    items = payload_of(operand)  # also of a named tuple, a torch.Size, or an instance of a subclass
    args = items.values(tx) if isinstance(items, TupleVal) else None
    used = 0

    def take() -> Value:
        nonlocal used
        used += 1
        if args is None:
            if used > 1:
                raise tx.raised(TypeError, "not enough arguments for format string")
            return operand
        if used > len(args):
            raise tx.raised(TypeError, "not enough arguments for format string")
        return args[used - 1]

    pieces: list[Value] = []
    position = 0
    for spec in _PERCENT.finditer(template):
        pieces.append(ConstVal(template[position : spec.start()]))
        position = spec.end()
        if spec["type"] == "%":
            pieces.append(ConstVal("%"))
            continue
        if spec["name"] is not None:
            if not _is_mapping(operand.py_type()):
                raise tx.raised(TypeError, "format requires a mapping")
            value = operand.getitem(tx, ConstVal(spec["name"]))
            used = 1
            stars: list[Value] = []
        else:
            stars = [take() for part in (spec["width"], spec["precision"]) if part == "*"]
            value = take()
        pieces.append(_one_percent(tx, spec, stars, value))
    pieces.append(ConstVal(template[position:]))
    if used < len(args) if args is not None else not used and not _is_mapping(operand.py_type()):
        raise tx.raised(TypeError, "not all arguments converted during string formatting")
    return join_texts(tx, pieces)


def _is_mapping(kind: type) -> bool:
    """Whether CPython takes such an operand for a mapping, of which a template may leave out all."""
    return hasattr(kind, "__getitem__") and not issubclass(kind, (tuple, str, collections.deque))


def _one_percent(tx: Tracer, spec: re.Match[str], stars: Sequence[Value], value: Value) -> Value:
    kind = spec["type"]
    text = spec[0].replace(f"({spec['name']})", "") if spec["name"] is not None else spec[0]
    if kind in "sra":
        value = tx.call(tx.from_real({"s": str, "r": repr, "a": ascii}[kind]), [value], {})
        text = text[:-1] + "s"
        if text == "%s":
            return value
    unread = None if stars else unread_text(tx, text.__mod__, [value]) or number_text(tx, text.__mod__, value)
    if unread is not None:
        return unread
    with left_to_real_call(TypeError) if isinstance(value, ObjVal) else contextlib.nullcontext():
        return tx.fold(lambda *parts: text % parts, [*stars, value])
