"""Opcodes that build, index, operate on and compare values, and read and write attributes.

In: canonical instructions. Out: handlers in `dispatch.HANDLERS`; the meaning of operators is in `values.operators`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import itertools
import operator
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dynajit.bytecode import Instr, target
from dynajit.bytecode.return_action import FORMATTED
from dynajit.interp.dispatch import opcode
from dynajit.interp.frame import SymFrame
from dynajit.report import breaks
from dynajit.values.containers.iterators import taken
from dynajit.values.containers.mapping import DictVal, pairs_of
from dynajit.values.containers.sequence import ListVal, TupleVal
from dynajit.values.containers.sets import SetVal
from dynajit.values.core.value import Direct, Exhausted, GraphBreak, Value
from dynajit.values.library import operators
from dynajit.values.objects.functions import FunctionVal
from dynajit.values.objects.lookup import is_iterable
from dynajit.values.objects.modules import ModuleVal
from dynajit.values.objects.objects import is_trusted
from dynajit.values.objects.templates import InterpolationVal, TemplateVal
from dynajit.values.scalars.constant import ConstVal
from dynajit.values.scalars.exception_text import too_many_to_unpack
from dynajit.values.scalars.slices import make_slice
from dynajit.values.scalars.unread import join_texts


def _convert(tx: Any, value: Value, conversion: str | None, direct: Direct) -> Value:
    """f"{value!r}" and its kin."""
    if conversion is None:
        return value
    converted: Value = tx.call(tx.from_real({"s": str, "r": repr, "a": ascii}[conversion]), [value], {}, direct)
    return converted


def _slice(start: Value, stop: Value) -> Value:
    return make_slice([start, stop, ConstVal(None)])


def _new_dict(tx: Any, keys: Iterable[Value], values: Iterable[Value]) -> Value:
    made = DictVal()
    for key, value in zip(keys, values, strict=True):
        made.setitem(tx, key, value)
    return made


def _is_in(tx: Any, item: Value, container: Value, no: bool) -> Value:
    if not no and container.py_type() is str and item.py_type() is str:
        found: Value = tx.fold(operator.contains, [container, item])  # nothing depends on it yet if a text varies
        return found
    return ConstVal(container.contains(tx, item) != no)


# Opcodes that take so many values off the stack and push one: of the interpreter, the argument and these values.
_GIVING: dict[str, tuple[int, Callable[..., Value]]] = {
    "LOAD_ATTR": (1, lambda tx, name, owner: tx.getattr(owner, name)),
    "BINARY_OP": (2, lambda tx, symbol, left, right: operators.binary(tx, symbol, left, right)),
    "COMPARE_OP": (2, lambda tx, symbol, left, right: operators.compare(tx, symbol, left, right)),
    "IS_OP": (2, lambda tx, no, left, right: ConstVal(operators.is_same_object(tx, left, right) != bool(no))),
    "CONTAINS_OP": (2, lambda tx, no, item, container: _is_in(tx, item, container, bool(no))),
    "UNARY_NOT": (1, lambda tx, _, value: ConstVal(not value.truth(tx))),
    "UNARY_NEGATIVE": (1, lambda tx, _, value: operators.unary(tx, "UNARY_NEGATIVE", value)),
    "UNARY_POSITIVE": (1, lambda tx, _, value: operators.unary(tx, "UNARY_POSITIVE", value)),
    "UNARY_INVERT": (1, lambda tx, _, value: operators.unary(tx, "UNARY_INVERT", value)),
    "TO_BOOL": (1, lambda tx, _, value: ConstVal(value.truth(tx))),
    "BINARY_SUBSCR": (2, lambda tx, _, owner, key: owner.getitem(tx, key)),
    "BINARY_SLICE": (3, lambda tx, _, owner, start, stop: owner.getitem(tx, _slice(start, stop))),
    "CONVERT_VALUE": (1, lambda tx, conversion, value: _convert(tx, value, conversion, FORMATTED)),
    "LIST_TO_TUPLE": (1, lambda tx, _, items: items.as_tuple(tx)),
    "GET_ITER": (1, lambda tx, _, items: items.iterate(tx)),
    "GET_YIELD_FROM_ITER": (1, lambda tx, _, items: items.iterate(tx)),
}
# Those that push nothing.
_CHANGING: dict[str, tuple[int, Callable[..., None]]] = {
    "STORE_ATTR": (2, lambda tx, name, value, owner: owner.setattr(tx, name, value)),
    "DELETE_ATTR": (1, lambda tx, name, owner: owner.delattr(tx, name)),
    "STORE_SUBSCR": (3, lambda tx, _, value, owner, key: owner.setitem(tx, key, value)),
    "DELETE_SUBSCR": (2, lambda tx, _, owner, key: owner.delitem(tx, key)),
    "STORE_SLICE": (4, lambda tx, _, value, owner, start, stop: owner.setitem(tx, _slice(start, stop), value)),
}
# Those that push something of the value on top of the stack, which stays.
_ASKING: dict[str, Callable[..., Value]] = {
    "GET_LEN": lambda tx, value: value.length(tx),
    "MATCH_SEQUENCE": lambda tx, value: ConstVal(bool(value.py_type().__flags__ & (1 << 5))),
    "MATCH_MAPPING": lambda tx, value: ConstVal(bool(value.py_type().__flags__ & (1 << 6))),
}
# Those that add so many values to a container that their argument finds on the stack below.
_ADDING: dict[str, tuple[int, Callable[..., Any]]] = {
    "LIST_APPEND": (1, lambda tx, container, item: container.call_method(tx, "append", [item], {})),
    "SET_ADD": (1, lambda tx, container, item: container.call_method(tx, "add", [item], {})),
    "SET_UPDATE": (1, lambda tx, container, items: container.call_method(tx, "update", [items], {})),
    "MAP_ADD": (2, lambda tx, container, key, value: container.setitem(tx, key, value)),
}
# Those that make one value of as many as their argument says, which can break or raise or can't.
_PLAIN: dict[str, Callable[[list[Value]], Value]] = {"BUILD_TUPLE": TupleVal, "BUILD_LIST": ListVal}
_MAKING: dict[str, tuple[int, Callable[..., Value]]] = {
    "BUILD_SET": (1, lambda tx, parts: SetVal.of(tx, parts)),
    "BUILD_SLICE": (1, lambda tx, parts: _slice(*parts) if len(parts) == 2 else make_slice(parts)),
    "BUILD_STRING": (1, lambda tx, parts: join_texts(tx, parts)),
}


def _give(count: int, step: Callable[..., Value], tx: Any, frame: SymFrame, instr: Instr) -> None:
    frame.push(step(tx, instr.arg, *frame.popn(count)))


def _change(count: int, step: Callable[..., None], tx: Any, frame: SymFrame, instr: Instr) -> None:
    step(tx, instr.arg, *frame.popn(count))


def _ask(step: Callable[..., Value], tx: Any, frame: SymFrame, instr: Instr) -> None:
    frame.push(step(tx, frame.stack[-1]))


def _add(count: int, step: Callable[..., Any], tx: Any, frame: SymFrame, instr: Instr) -> None:
    values = frame.popn(count)
    step(tx, frame.stack[-instr.arg], *values)


def _make(each: int, step: Callable[..., Value], tx: Any, frame: SymFrame, instr: Instr) -> None:
    frame.push(step(tx, frame.popn(each * instr.arg)))


def _make_plain(kind: Callable[[list[Value]], Value], tx: Any, frame: SymFrame, instr: Instr) -> None:
    frame.push(kind(frame.popn(instr.arg)))


_TABLES: Any = ((_give, _GIVING), (_change, _CHANGING), (_add, _ADDING), (_make, _MAKING))
for _handler, _table in _TABLES:
    for _name, _row in _table.items():
        opcode(_name)(functools.partial(_handler, *_row))
for _name, _step in _ASKING.items():
    opcode(_name)(functools.partial(_ask, _step))
for _name, _kind in _PLAIN.items():
    opcode(_name, simple=True)(functools.partial(_make_plain, _kind))


@opcode("LOAD_METHOD")
def load_method(tx: Any, frame: SymFrame, instr: Instr) -> None:
    owner = frame.pop()
    frame.push_callable(tx.getattr(owner, instr.arg))


@opcode("LOAD_SUPER_ATTR")
def load_super_attr(tx: Any, frame: SymFrame, instr: Instr) -> None:
    name, is_method = instr.arg[0], instr.arg[1]
    function, cls, obj = frame.popn(3)
    bound = tx.call(function, [cls, obj], {})
    found = tx.getattr(bound, name)
    if is_method:
        frame.push_callable(found)
    else:
        frame.push(found)


@opcode("BUILD_MAP")
def build_map(tx: Any, frame: SymFrame, instr: Instr) -> None:
    parts = frame.popn(2 * instr.arg)
    keys, values = parts[::2], parts[1::2]
    following = frame.instrs[frame.ip]
    into: Any = frame.stack[-following.arg] if following.op == "DICT_UPDATE" and keys else None
    if into is not None and into.copied_from is not None and all(_is_plain_key(tx, key) for key in keys):
        # `{**log, step: loss}`: what is put into the copy needs no dictionary that knows its keys
        for key, value in zip(keys, values, strict=True):
            into.setitem(tx, key, value)
        keys = values = []
    frame.push(_new_dict(tx, keys, values))


def _is_plain_key(tx: Any, key: Value) -> bool:
    """Whether neither its hash nor looking for it runs a program's code."""
    if key.py_type() is tuple:
        return all(_is_plain_key(tx, part) for part in tx.unpack(key))
    return key.py_type() in (int, float, str)


@opcode("BUILD_CONST_KEY_MAP")
def build_const_key_map(tx: Any, frame: SymFrame, instr: Instr) -> None:
    keys = [tx.from_real(key) for key in frame.pop().const()]
    frame.push(_new_dict(tx, keys, frame.popn(instr.arg)))


@opcode("FORMAT_VALUE")
def format_value(tx: Any, frame: SymFrame, instr: Instr) -> None:
    conversion, has_spec = instr.arg
    spec = frame.pop() if has_spec else ConstVal("")
    value = _convert(tx, frame.pop(), conversion, None if has_spec else FORMATTED)
    if not has_spec and value.py_type() is str:
        frame.push(value)
    else:
        frame.push(tx.call(tx.from_real(format), [value, spec], {}, FORMATTED))


@opcode("BUILD_INTERPOLATION")
def build_interpolation(tx: Any, frame: SymFrame, instr: Instr) -> None:
    conversion, has_spec = instr.arg
    spec = frame.pop() if has_spec else ConstVal("")
    frame.push(InterpolationVal(*frame.popn(2), ConstVal(conversion), spec))


@opcode("BUILD_TEMPLATE")
def build_template(tx: Any, frame: SymFrame, instr: Instr) -> None:
    strings, interpolations = frame.popn(2)
    frame.push(TemplateVal([text.const() for text in tx.unpack(strings)], tx.unpack(interpolations)))


@opcode("LIST_EXTEND")
def list_extend(tx: Any, frame: SymFrame, instr: Instr) -> None:
    other = frame.pop()
    target = frame.stack[-instr.arg]
    assert isinstance(target, ListVal)
    kind = other.py_type()
    if not is_iterable(kind):
        raise GraphBreak(breaks.RAISES, f"TypeError: value after * must be an iterable, not {kind.__name__}")
    joined = other.spread(tx, target)
    if joined is not None:  # nobody else has the list yet
        frame.stack[-instr.arg] = joined
        return
    target.replace(tx, [*target.values(tx), *tx.unpack_hinted(other)])


@opcode("DICT_UPDATE")
def dict_update(tx: Any, frame: SymFrame, instr: Instr) -> None:
    other = frame.pop()
    target: Any = frame.stack[-instr.arg]
    if not hasattr(other.py_type(), "keys"):
        raise GraphBreak(breaks.RAISES, f"TypeError: {other.describe()} is not a mapping")
    if target.become_copy(tx, other):
        return
    for key, value in pairs_of(tx, other):
        target.setitem(tx, key, value)


@opcode("DICT_MERGE")
def dict_merge(tx: Any, frame: SymFrame, instr: Instr) -> None:
    other = frame.pop()
    merged = frame.stack[-instr.arg]
    if not hasattr(other.py_type(), "keys"):
        raise GraphBreak(breaks.RAISES, f"TypeError: argument after ** must be a mapping, not {other.describe()}")
    for key, value in pairs_of(tx, other):
        if merged.contains(tx, key):
            # below the dictionary lie the positional arguments, then the NULL or the function
            function = frame.stack[-instr.arg - (3 if target().NULL_AFTER_CALLABLE else 2)]
            if isinstance(function, FunctionVal):
                name = f"{function.getattr(tx, '__module__').const()}.{function.qualname}"
                raise tx.raised(TypeError, f"{name}() got multiple values for keyword argument {key.const()!r}")
            raise GraphBreak(breaks.RAISES, f"TypeError: got multiple values for keyword argument {key.describe()}")
        merged.setitem(tx, key, value)


def _unpackable(tx: Any, value: Value, most: int | None = None) -> list[Value]:
    """The items, no more than `most` of an iterator: the rest stays in it."""
    kind = value.py_type()
    if not hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__"):
        raise tx.raised(TypeError, f"cannot unpack non-iterable {kind.__name__} object")
    if value.read_by_items:
        return [*itertools.islice(taken(tx, value.iterate(tx)), most)]
    return tx.unpack(value)  # type: ignore[no-any-return]


@opcode("UNPACK_SEQUENCE")
def unpack_sequence(tx: Any, frame: SymFrame, instr: Instr) -> None:
    value = frame.pop()
    items = _unpackable(tx, value, instr.arg + 1)
    if len(items) < instr.arg:
        raise tx.raised(ValueError, f"not enough values to unpack (expected {instr.arg}, got {len(items)})")
    if len(items) > instr.arg:
        raise tx.raised(ValueError, too_many_to_unpack(value.py_type(), instr.arg, len(items)))
    frame.stack.extend(reversed(items))


@opcode("UNPACK_EX")
def unpack_ex(tx: Any, frame: SymFrame, instr: Instr) -> None:
    before, after = instr.arg
    items = _unpackable(tx, frame.pop())
    if len(items) < before + after:
        raise tx.raised(
            ValueError, f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        )
    rest = len(items) - after
    parts: list[Value] = [*items[:before], ListVal(items[before:rest]), *items[rest:]]
    frame.stack.extend(reversed(parts))


@opcode("FOR_ITER")
def for_iter(tx: Any, frame: SymFrame, instr: Instr) -> None:
    iterator = frame.stack[-1]
    try:
        frame.push(iterator.next(tx))
    except Exhausted:
        frame.pop()
        assert instr.target is not None
        frame.ip = instr.target


@opcode("MATCH_KEYS")
def match_keys(tx: Any, frame: SymFrame, instr: Instr) -> None:
    keys, subject = frame.stack[-1], frame.stack[-2]
    found = []
    seen: set[Any] = set()
    for key in tx.unpack(keys):
        if key.is_const():
            if key.const() in seen:
                raise GraphBreak(breaks.RAISES, f"ValueError: mapping pattern checks duplicate key ({key.const()!r})")
            seen.add(key.const())
        if not subject.contains(tx, key):
            frame.push(ConstVal(None))
            return
        with tx.not_resumable():
            found.append(subject.getitem(tx, key))
    frame.push(TupleVal(found))


@opcode("MATCH_CLASS")
def match_class(tx: Any, frame: SymFrame, instr: Instr) -> None:
    subject, cls, names = frame.popn(3)
    kind = cls.real()
    if not issubclass(subject.py_type(), kind):
        frame.push(ConstVal(None))
        return
    positional = instr.arg
    attributes = list(names.const())
    found: list[Value] = []
    if positional:
        order = getattr(kind, "__match_args__", None)
        if order is None and kind in (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple):
            found.append(subject)
        elif type(order) is not tuple or positional > len(order):
            raise GraphBreak(breaks.RAISES, f"TypeError: {kind.__name__}() accepts fewer positional sub-patterns")
        else:
            attributes = [*order[:positional], *attributes]
    if len(set(attributes)) < len(attributes) or not all(type(name) is str for name in attributes):
        # CPython raises when it comes to that name, after it read the attributes before it
        raise GraphBreak(breaks.RAISES, f"TypeError: {kind.__name__}.__match_args__ doesn't name different attributes")
    for name in attributes:
        attribute = tx.find_attribute(subject, name)
        if attribute is None:
            frame.push(ConstVal(None))
            return
        found.append(attribute)
    frame.push(TupleVal(found))


@opcode("IMPORT_NAME")
def import_name(tx: Any, frame: SymFrame, instr: Instr) -> None:
    level, names = frame.popn(2)
    name = instr.arg
    package = frame.globals.get("__package__") or frame.globals.get("__name__", "").rpartition(".")[0]
    full = importlib.util.resolve_name("." * level.const() + name, package) if level.const() else name
    if full not in sys.modules and is_trusted(full):
        importlib.import_module(full)
    if full not in sys.modules:
        raise GraphBreak(breaks.IMPORT, full)
    if names.is_const() and names.const() and not _has_all(full, names.const()):
        raise GraphBreak(breaks.IMPORT, f"a submodule of {full}")
    found = (
        sys.modules[full]
        if (names.is_const() and names.const()) or level.const()
        else sys.modules[full.partition(".")[0]]
    )
    tx.assumed.of_import(full, sys.modules[full])
    frame.push(tx.from_real(found))


def _has_all(package: str, names: Sequence[str]) -> bool:
    """Whether the names can be read from the package without importing a submodule of it."""
    found = vars(sys.modules[package])
    if "__path__" not in found or "__getattr__" in found:
        return True
    return all(name in found or f"{package}.{name}" in sys.modules for name in names)


@opcode("IMPORT_FROM")
def import_from(tx: Any, frame: SymFrame, instr: Instr) -> None:
    module = frame.stack[-1]
    if not isinstance(module, ModuleVal):
        raise GraphBreak(breaks.IMPORT, f"{instr.arg} from {module.describe()}")
    names = vars(module.obj)
    if instr.arg not in names and tx.written_global(names, instr.arg) in (None, (None,)):
        inner = sys.modules.get(f"{names.get('__name__')}.{instr.arg}")
        if inner is not None and "__getattr__" not in names and type(module.obj) is types.ModuleType:
            frame.push(tx.from_real(inner))
            return
        # the module's own `__getattr__` would run, or a module be imported
        raise GraphBreak(breaks.IMPORT, f"{names.get('__name__')}.{instr.arg}")
    frame.push(tx.getattr(module, instr.arg))
