"""Unary, binary and comparison operators on models.

In: the operator's symbol and its operands. Out: the result's model. Tensors make graph nodes, constants are computed,
containers have their own rules, user classes are asked for their special methods in the order of the language.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable

from dynajit.bytecode.return_action import CALLED, NUMBER, OPERATED
from dynajit.guards.source import ConstSource
from dynajit.report import breaks
from dynajit.values.containers.mapping import DictVal
from dynajit.values.containers.sequence import SequenceVal, TupleVal
from dynajit.values.containers.sets import SetVal
from dynajit.values.core.operations import BINARY, COMPARE, INPLACE, UNARY
from dynajit.values.core.registry import BUILTINS, tail_call
from dynajit.values.core.slots import by_rule, left_to_real_call, raising
from dynajit.values.core.value import GraphBreak, NotReal, Tracer, Value
from dynajit.values.library.formatting import format_percent
from dynajit.values.library.references import WeakRefVal
from dynajit.values.objects.functions import FunctionVal
from dynajit.values.objects.lookup import rely_on
from dynajit.values.objects.objects import MISSING, ObjVal, RealVal, payload_of
from dynajit.values.objects.opaque import OpaqueVal
from dynajit.values.polyfills.operators import Way, attempt, refuse, remaining, repeats_only
from dynajit.values.scalars.constant import VALUE_TYPES, ConstVal, declined, has_own, is_none, own_of_member
from dynajit.values.scalars.members import (
    are_told_by_identity,
    differs_by_own_equality,
    is_mixed,
)
from dynajit.values.scalars.symbolic import SymVal, is_number
from dynajit.values.scalars.unread import unread_text
from dynajit.values.tensors.arrays import ArrayVal
from dynajit.values.tensors.tensor import TensorVal
from dynajit.values.tensors.tensor_subclass import SubTensorVal


def unary(tx: Tracer, op: str, value: Value) -> Value:
    """`-x`, `+x`, `~x`."""
    function, method = UNARY[op]
    if computes_as_tensor(value, method):
        return tx.torch_op("call_function", function, [value], {})
    if isinstance(value, ObjVal):
        return value.call_special(tx, method, direct=OPERATED)
    return value.operate(tx, function, [value])


def binary(tx: Tracer, symbol: str, left: Value, right: Value) -> Value:
    """`left <symbol> right`; a symbol that ends in "=" is the in-place operator."""
    inplace = symbol.endswith("=")
    symbol = symbol.removesuffix("=")
    if _in_torch(left, right, symbol, inplace):
        # `@=` makes a new tensor; the code of a graph with it would bind the left one's name to that
        in_left = inplace and symbol != "@" and computes_as_tensor(left)
        return tx.torch_op("call_function", INPLACE[symbol] if in_left else BINARY[symbol][0], [left, right], {})
    if symbol == "%" and isinstance(left, ConstVal) and left.py_type() is str and not _formats_itself(right):
        return format_percent(tx, left.value, right)
    if symbol == "%" and isinstance(right, ObjVal) and left.py_type() in (bytes, bytearray):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"% of {left.describe()} and {right.describe()}")
    if isinstance(left, ObjVal) or isinstance(right, ObjVal):
        return user_binary(tx, left, right, symbol, BINARY[symbol][1], inplace)
    if inplace and left.ibinary(tx, symbol, right):
        return left
    own = _own_operator(tx, left, f"__{BINARY[symbol][1]}__")
    result = tx.call(own, [right], {}) if own is not None else _binary_by_type(tx, symbol, left, right)
    return result if result is not None else _computing(left, right).operate(tx, BINARY[symbol][0], [left, right])


def _computing(left: Value, right: Value) -> Value:
    """The operand whose type computes an operator that neither has a rule for."""
    return left if left.array_priority >= right.array_priority else right


def _formats_itself(value: Value) -> bool:
    """Whether `text % value` asks the value: of the program's objects one whose class is a subclass of str. A tensor,
    which has the method too, is not asked."""
    if computes_as_tensor(value):
        return False
    method = getattr(value.py_type(), "__rmod__", None)
    if isinstance(value, ObjVal):
        return issubclass(value.cls, str) and method is not str.__rmod__  # type: ignore[attr-defined]
    return method is not None


def computes_as_tensor(value: Value, method: str = "") -> bool:
    """Whether torch computes the operator: a tensor, or an instance of a subclass without the method of its own."""
    if isinstance(value, SubTensorVal):
        return not (method and value.has_operator(method))
    return isinstance(value, TensorVal)


def _in_torch(left: Value, right: Value, symbol: str, inplace: bool) -> bool:
    name = BINARY[symbol][1]
    methods = (f"__{name}__", f"__r{name}__", f"__i{name}__")
    if any(isinstance(value, SubTensorVal) and any(map(value.has_operator, methods)) for value in (left, right)):
        return False
    if type(left) is TensorVal and _has_operator(right, symbol, "r") and not inplace:
        # torch leaves it to the other's class, unless that is a number
        assert isinstance(right, ObjVal)
        return right.payload is not None or hasattr(right.cls, "__torch_function__")
    formats = symbol == "%" and left.py_type() in (str, bytes, bytearray)  # whatever is on the right
    return computes_as_tensor(left) or (computes_as_tensor(right) and not _has_operator(left, symbol) and not formats)


def _has_operator(value: Value, symbol: str, side: str = "") -> bool:
    return isinstance(value, ObjVal) and hasattr(value.cls, f"__{side}{BINARY[symbol][1]}__")


def user_binary(tx: Tracer, left: Value, right: Value, symbol: str, name: str, inplace: bool, tried: int = 0) -> Value:
    """The operator `symbol` by the special methods `name`, of which one operand's class is the user's. The first
    `tried` attempts were made already, and declined."""
    method, reflected = f"__{name}__", f"__r{name}__"
    left_type, right_type = left.py_type(), right.py_type()
    overrides = getattr(right_type, reflected, None) is not getattr(left_type, reflected, None)
    attempts = _in_order(left, method, right, reflected, overrides)
    if right_type is left_type:
        del attempts[1:]  # operands of one class are asked once
    if inplace:
        attempts.insert(0, (left, f"__i{name}__", right))
    shown = f"{symbol}{'=' if inplace else ''}"
    again = functools.partial(user_binary, symbol=symbol, name=name, inplace=inplace)
    result = _first_answer(tx, shown, (left, right), attempts, _operator_method, again, tried)
    if result is not None:
        return result
    plain = payload_of(left), payload_of(right)
    if plain != (left, right) and symbol in BINARY:
        with left_to_real_call(TypeError):  # whose message names their classes
            found = binary(tx, symbol, *plain)
        if found.py_type() is tuple and found in plain and found not in (left, right):
            return TupleVal(tx.unpack(found))  # another tuple than the instance
        return found
    repeated = _repeated(tx, symbol, left, right)
    if repeated is not None:
        return repeated
    if inplace and left.ibinary(tx, symbol, right):
        return left
    made = left.binary(tx, symbol, right) if getattr(left, "is_view", False) else None  # it takes any iterable
    if made is not None:
        return made
    with raising(tx, TypeError):
        refuse(shown, left_type, right_type)
    raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{shown} of {left.describe()} and {right.describe()}")


def _in_order(
    left: Value, method: str, right: Value, reflected: str, overrides: bool = True
) -> list[tuple[Value, str, Value]]:
    """Who is asked, by which method, about whom: a subclass's instance comes first, if it `overrides` the method."""
    attempts = [(left, method, right), (right, reflected, left)]
    if overrides and right.py_type() is not left.py_type() and left.py_type() in right.py_type().__mro__:
        attempts.reverse()  # whatever ABCs say
    return attempts


def _repeated(tx: Tracer, symbol: str, left: Value, right: Value) -> Value | None:
    """If it is that, the product of a sequence and an object that counts as an integer."""
    for sequence, times in ((left, right), (right, left)):
        repeats = times.special(tx, "__index__") if symbol == "*" else None
        if repeats is not None and (isinstance(sequence, SequenceVal) or sequence.py_type() in (str, bytes)):
            return binary(tx, symbol, sequence, by_rule(tx, tx.call(repeats, [], {}), NUMBER))
    return None


def _operator_method(tx: Tracer, shown: str, owner: Value, method: str, other: Value) -> Value | None:
    """The method that a binary operator calls, bound; None: the operand has none."""
    if isinstance(owner, ObjVal):
        bound = owner.special(tx, method)
        if bound is None and getattr(owner.cls, method, MISSING) is None:
            raise tx.raised(TypeError, "'NoneType' object is not callable")
        return None if repeats_only(owner.cls, method, other.py_type()) else bound
    if owner.py_type() in VALUE_TYPES and hasattr(owner.py_type(), method):
        # what it asks an object that is no plain number or text (`as_integer_ratio`, `__fspath__`), only it knows
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{shown} of {owner.describe()} and {other.describe()}")
    return None


def _comparison_method(tx: Tracer, shown: str, owner: Value, method: str, other: Value) -> Value | None:
    """The same, of a comparison: only those written in Python are called."""
    if not isinstance(owner, ObjVal):
        return own_of_member(tx, owner, method)
    found = rely_on(tx, owner.cls, method)
    # object.__ne__ asks the object's own __eq__
    asked = rely_on(tx, owner.cls, "__eq__") if found is object.__ne__ else found
    if isinstance(asked, types.FunctionType):
        return owner.special(tx, method)
    # a method written in C may be another class's, which will refuse the object
    foreign = isinstance(asked, types.WrapperDescriptorType) and not issubclass(owner.cls, asked.__objclass__)
    if foreign or (owner.payload is None and asked not in (object.__eq__, getattr(object, method))):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{shown} on {owner.describe()}")
    return None


def _first_answer(
    tx: Tracer,
    symbol: str,
    operands: tuple[Value, Value],
    attempts: list[tuple[Value, str, Value]],
    method_of: Callable[..., Value | None],
    again: Callable[..., Value],
    tried: int,
) -> Value | None:
    """What the first special method gives that does not decline; None if all do. One may decline after a break: what is
    tried then has a model, `again`."""
    for number, (owner, name, other) in list(enumerate(attempts, 1))[tried:]:
        method = method_of(tx, symbol, owner, name, other)
        if method is None:
            continue
        function = getattr(method, "function", None)
        if not isinstance(function, FunctionVal) or any(payload_of(value) is not value for value in operands):
            result = tx.call(method, [other], {})
        else:
            ways = tuple(Way(entry is operands[0], how) for entry, how, _ in attempts[number:])
            rest = remaining(symbol, ways, number)
            if rest not in BUILTINS:
                BUILTINS[rest] = tail_call(functools.partial(again, tried=number))
            direct = CALLED if tried else OPERATED
            result = tx.run_python(attempt, [method, other, tx.from_real(rest), *operands], direct=direct)
        if not declined(result):
            return result
    return None


def _binary_by_type(tx: Tracer, symbol: str, left: Value, right: Value) -> Value | None:
    """By the rule of the left operand's type, or of the right one's."""
    if symbol == "+" and left.py_type() is str and right.py_type() is str:
        return unread_text(tx, "{}{}".format, [left, right])
    if symbol == "%" and isinstance(left, ConstVal) and issubclass(left.py_type(), (str, bytes)):
        unread = unread_text(tx, left.value.__mod__, [right]) if type(left.value) is str else None
        return unread if unread is not None else tx.fold(operator.mod, [left, right])
    found = left.binary(tx, symbol, right)
    return found if found is not None else right.rbinary(tx, symbol, left)


def _own_operator(tx: Tracer, value: Value, method: str) -> Value | None:
    """The method in Python of a named tuple's class that takes the place of tuple's."""
    if isinstance(value, TupleVal) and isinstance(getattr(value.kind, method, None), types.FunctionType):
        return tx.class_attribute(value, value.kind, method)
    return None


# of one object, whatever that one is equal to
_METHODS = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)


def same_object(tx: Tracer, left: Value, right: Value) -> bool:
    """`left is right`; what the models can't tell is guarded to be two objects."""
    if left is right:
        return True
    if left.has_identity and right.has_identity:
        try:
            same: bool = left.real() is right.real()
        except NotReal:
            return False
        for side in (left, right):
            if isinstance(side, RealVal):
                tx.guard(side.source, "ID", side.obj)  # an equal one may have been good enough so far
        return same
    found = left.is_same(tx, right)
    if found is None:
        found = right.is_same(tx, left)
    if found is None:
        tx.guard_distinct(left, right)
    return bool(found)


def is_same_object(tx: Tracer, left: Value, right: Value) -> bool:
    """As `same_object`, for the program: many of its objects may be None or not."""
    found = functools.partial(same_object, tx, left, right)
    return found() if not is_none(right) or right.source is not None else of_type(tx, left, found)


def of_type(tx: Tracer, value: Value, ask: Callable[[], bool]) -> bool:
    """What is asked of an object's type, which may be another one for a part of what the program was given."""
    source = value.source
    given = source is not None and source.base is not None and not isinstance(source.root(), ConstSource)
    return bool(tx.graph.shapes.decide(ask, True)) if given else ask()


def compare(tx: Tracer, symbol: str, left: Value, right: Value) -> Value:
    """`left <symbol> right` for ==, !=, <, <=, >, >=."""
    function, method, reflected = COMPARE[symbol]
    if _answers_for_tensor(left, right, method, reflected):
        return _user_compare(tx, left, right, symbol, method, reflected)
    is_equality = symbol in ("==", "!=")
    if computes_as_tensor(left, method) or computes_as_tensor(right, reflected):
        if is_equality and not all(map(_comparable_with_tensor, (left, right))):
            return ConstVal(symbol == "!=")
        return tx.torch_op("call_function", function, [left, right], {})
    if isinstance(left, ObjVal) or isinstance(right, ObjVal):
        return _user_compare(tx, left, right, symbol, method, reflected)
    chief = _computing(left, right)
    if chief.array_priority:
        return chief.operate(tx, function, [left, right])
    compared = _compare_targets(tx, symbol, left, right) or _compare_members(tx, symbol, left, right)
    if compared is not None:
        return compared
    if _is_folded(left, right):
        return tx.fold(function, [left, right])
    if is_equality:
        return ConstVal(_equal_parts(tx, left, right) == (symbol == "=="))
    found = left.compare(tx, symbol, right)
    return found if found is not None else tx.fold(function, [left, right])


def _compare_targets(tx: Tracer, symbol: str, left: Value, right: Value) -> Value | None:
    """Weak references are equal where what they refer to is; None for all others."""
    if symbol in ("==", "!=") and isinstance(left, WeakRefVal) and isinstance(right, WeakRefVal):
        return compare(tx, symbol, left.target, right.target)
    return None


def _is_folded(left: Value, right: Value) -> bool:
    """Whether Python's own comparison answers: of constants, or of numbers."""
    if left.is_const() and right.is_const() and not (isinstance(left, SequenceVal) and isinstance(right, SequenceVal)):
        return True
    return is_number(left) and is_number(right) and (left.symbolic or right.symbolic)


def _compare_members(tx: Tracer, symbol: str, left: Value, right: Value) -> Value | None:
    """Members of enumerations that have comparisons of the program's own, or are not read yet; None for all others."""
    _, method, reflected = COMPARE[symbol]
    if any(has_own(value, name) for value, name in ((left, method), (right, reflected))):
        return _user_compare(tx, left, right, symbol, method, reflected)
    if symbol == "!=" and any(map(differs_by_own_equality, (left, right))):
        return ConstVal(not compare(tx, "==", left, right).truth(tx))
    if symbol in ("==", "!=") and are_told_by_identity(left, right):
        return ConstVal(same_object(tx, left, right) == (symbol == "=="))
    return None


def _answers_for_tensor(left: Value, right: Value, method: str, reflected: str) -> bool:
    """Whether one operand is a tensor, and the other's class compares it: torch leaves it to that if it comes second,
    unless it is a number."""
    if isinstance(left, ObjVal) and type(right) is TensorVal:
        owner, name = left, method
    elif isinstance(right, ObjVal) and type(left) is TensorVal and right.payload is None:
        owner, name = right, reflected
    else:
        return False
    found = getattr(owner.cls, name, None)
    if found is object.__ne__:
        found = owner.cls.__eq__
    return isinstance(found, types.FunctionType) and not hasattr(owner.cls, "__torch_function__")


def _comparable_with_tensor(value: Value) -> bool:
    """Whether torch compares it, or NumPy after it declined: `Tensor.__eq__` takes arrays of any shape. What has no
    model may be one of NumPy's numbers."""
    return (
        computes_as_tensor(value)
        or isinstance(value, (SymVal, ArrayVal, OpaqueVal))
        or bool(value.array_priority)
        or (isinstance(value, ConstVal) and isinstance(value.value, (int, float, complex, bool)))
    )


def _equal_parts(tx: Tracer, left: Value, right: Value) -> bool:
    """Equality of values that are not both constants and not user objects."""
    if left is right:
        return True
    by_rule_of_type = left.equals(tx, right)
    if by_rule_of_type is None:
        by_rule_of_type = right.equals(tx, left)
    if by_rule_of_type is not None:
        return by_rule_of_type
    if left.py_type() in _METHODS and right.py_type() in _METHODS:
        return left.hash_key(tx) == right.hash_key(tx)
    try:
        return bool(left.real() == right.real())
    except NotReal:
        pass
    simple = (ConstVal, FunctionVal, RealVal, SequenceVal, DictVal, SetVal)
    if isinstance(left, simple) and isinstance(right, simple):
        return False
    if isinstance(left, ConstVal) or isinstance(right, ConstVal):
        return False
    return left.hash_key(tx) == right.hash_key(tx)


def _user_compare(
    tx: Tracer, left: Value, right: Value, symbol: str, method: str, reflected: str, tried: int = 0
) -> Value:
    """The first `tried` attempts were made already, and declined."""
    attempts = _in_order(left, method, right, reflected)
    again = functools.partial(_user_compare, symbol=symbol, method=method, reflected=reflected)
    result = _first_answer(tx, symbol, (left, right), attempts, _comparison_method, again, tried)
    if result is not None:
        return result
    plain = payload_of(left), payload_of(right)
    if plain != (left, right):
        with left_to_real_call(TypeError):
            return compare(tx, symbol, *plain)
    if any(has_own(value, name) and is_mixed(value) for value, name, _ in attempts):
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, f"{symbol} on {left.describe()} and {right.describe()}")
    if symbol in ("==", "!="):
        return ConstVal(same_object(tx, left, right) == (symbol == "=="))
    kinds = f"'{left.py_type().__name__}' and '{right.py_type().__name__}'"
    raise tx.raised(TypeError, f"'{symbol}' not supported between instances of {kinds}")
