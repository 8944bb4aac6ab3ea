"""Symbolic numbers while tracing: sizes that vary, Python ints and floats that were found to change.

In: torch's SymInt, SymFloat and SymBool from fake tensors and from `graph/shapes.py`. Out: `SymVal`, whose arithmetic
stays symbolic; a decision that depends on one is taken by the number at hand, and guarded. What needs the number itself
(a list index, a dictionary key, text) specialises: `const()`. A function of numbers that keeps them symbolic is an
entry in `SYMBOLIC`.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils.hooks import RemovableHandle

from dynajit import _C, symbols
from dynajit.guards.source import ConstSource, SizeSource, Source, StrideSource, TypeAttrSource
from dynajit.report import breaks
from dynajit.values.core.value import Direct, GraphBreak, NotReal, Tracer, Value
from dynajit.values.scalars.constant import ConstVal, Unread, number_method
from dynajit.values.scalars.float_symbols import (
    FLOAT_OPERATIONS,
    beside_zero,
    is_float_operation,
    is_negative_zero,
)

if TYPE_CHECKING:
    from dynajit.graph.builder import GraphBuilder

_KINDS: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


@dataclasses.dataclass(frozen=True)
class SerialNumber:
    """Stands in the tables of models for a number that a class gave to something made just now."""

    counter: str
    offset: int


#: attributes of classes that number what is made of them; no number is given twice
COUNTERS: frozenset[Source] = frozenset(
    {TypeAttrSource(ConstSource(RemovableHandle, RemovableHandle.__qualname__), "next_id")}
)


class SymVal(Value):
    """A symbolic int, float or bool."""

    symbolic = True

    def __init__(self, graph: GraphBuilder, number: Any, source: Source | None = None) -> None:
        self.graph = graph
        self.number = number
        self.source = source

    def py_type(self) -> type:
        return _KINDS[type(self.number)]

    def describe(self) -> str:
        return f"the symbolic {self.py_type().__name__} {self.number}"

    def const(self) -> Any:
        """The number itself; from now on the trace holds for it alone."""
        if self.keeps_varying():
            raise GraphBreak(breaks.VARYING_VALUE, self.describe())
        return self._decided(self.number)

    def real(self) -> Any:
        return self.const()

    def to_graph(self, tx: Tracer) -> tuple[Any, Any]:
        node = self.node
        return node, self.number if isinstance(node, fx.Node) else node

    def truth(self, tx: Tracer) -> bool:
        if isinstance(self.number, torch.SymBool):
            return bool(self.const())
        return bool(self._decided(self.number != 0))

    def _decided(self, number: Any) -> Any:
        """The number at hand of what is computed of this one."""
        decided = functools.partial(decide, self.graph, _KINDS.get(type(number), type(number)), number)
        # sizes have few ways to compare; other numbers for a symbol that varies are told by its source
        apart = not self.varies or self.of_sizes or (number is self.number and symbols.is_sum(self._tree()))
        return decided() if apart else self.graph.shapes.decide(decided)

    def length(self, tx: Tracer) -> Value:
        raise tx.raised(TypeError, f"object of type '{self.py_type().__name__}' has no len()")

    def iterate(self, tx: Tracer) -> Value:
        raise tx.raised(TypeError, f"'{self.py_type().__name__}' object is not iterable")

    def getitem(self, tx: Tracer, key: Value) -> Value:
        raise tx.raised(TypeError, f"'{self.py_type().__name__}' object is not subscriptable")

    def getattr(self, tx: Tracer, name: str) -> Value:
        made = number_method(tx, self, name)
        return made if made is not None else ConstVal(self.const()).getattr(tx, name)

    def equals(self, tx: Tracer, other: Value) -> bool | None:
        """To what is no number with an order."""
        return other.py_type() is complex and bool(self.const() == other.const())

    def is_same(self, tx: Tracer, other: Value) -> bool | None:
        if not isinstance(other, SymVal) and other.py_type() is not self.py_type():
            return False
        raise GraphBreak(breaks.UNSUPPORTED_VALUE, "whether numbers that vary are one object")

    def call(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None) -> Value:
        raise tx.raised(TypeError, f"'{self.py_type().__name__}' object is not callable")

    def hash_key(self, tx: Tracer) -> object:
        key = self._serial_number()
        return key if key is not None else ConstVal(self.const()).hash_key(tx)

    def _serial_number(self) -> SerialNumber | None:
        """The number as a key that no dictionary can have yet: it was just taken from a counter, or is taken next."""
        tree = self._tree()
        offset = tree[1:] if isinstance(tree, tuple) and tree[0] == "add" else (tree, 0)
        count, name = sorted(offset, key=lambda part: isinstance(part, str)) if len(offset) == 2 else (None, None)
        if type(count) is not int or not isinstance(name, str) or name not in self.graph.shapes.symbols:
            return None
        return SerialNumber(name, count) if self.graph.shapes.source_of(name) in COUNTERS and count >= 0 else None

    @property
    def node(self) -> Any:
        """The graph's node of the number."""
        return self.graph.number_node(self.number)

    @property
    def from_graph(self) -> bool:
        """Whether only the graph can tell the number: it depends on data."""
        return not all(name in self.graph.shapes.symbols for name in symbols.names_in(self._tree()))

    @property
    def unknown(self) -> bool:
        """Whether a call that is made at run time tells the number."""
        return not self.graph.shapes.unknowns.isdisjoint(symbols.names_in(self._tree()))

    @property
    def varies(self) -> bool:  # type: ignore[override]
        return not (self.from_graph or self.unknown)

    @property
    def of_sizes(self) -> bool:
        """Whether sizes of tensors are among what it is computed from."""
        return any(type(source) in (SizeSource, StrideSource) for source in self.sources())

    def keeps_varying(self) -> bool:
        """Whether it tells a number that was another one in each variant so far."""
        shapes = self.graph.shapes
        if not shapes.varying:
            return False
        tree = self._tree()
        names = [name for name in symbols.names_in(tree) if name in shapes.symbols]
        return bool(names) and symbols.is_sum(tree) and any(shapes.source_of(name) in shapes.varying for name in names)

    def _tree(self) -> symbols.Tree:
        return symbols.tree_of(self.number.node.expr)

    def sources(self) -> list[Source]:
        """What the number is computed from."""
        return [self.graph.shapes.source_of(name) for name in symbols.names_in(self._tree())]

    def rebuild(self, out: Any) -> None:
        tree = self._tree()
        names = symbols.names_in(tree)
        if not names:
            out.const(tree)
            return
        sources = self.sources()
        if isinstance(tree, str):
            out.load(sources[0])
            return
        function = symbols.function_of(tree, tuple(names))
        _C.mark_ours(function.__code__)
        out.call_on(function, *sources)


class Ordered:
    """A key of a sort among numbers of which some are symbolic, in an order that holds whatever they are: nothing is
    guarded. It raises NotReal of other keys, and where the order varies."""

    def __init__(self, key: Value) -> None:
        if not (isinstance(key, SymVal) or (type(key) is ConstVal and type(key.value) is int)):
            raise NotReal(key.describe())
        self.number = key.number if isinstance(key, SymVal) else key.value

    def __lt__(self, other: Ordered) -> bool:
        from torch.fx.experimental.symbolic_shapes import statically_known_true  # imported only with symbols

        if statically_known_true(self.number < other.number):
            return True
        if statically_known_true(self.number >= other.number):
            return False
        raise NotReal("numbers in an order that varies")


def decide(graph: GraphBuilder, kind: type, number: Any) -> Any:
    """The number at hand, guarded; a graph break if it depends on data."""
    try:
        return kind(number)
    except RuntimeError as error:
        if not is_data_dependent(error):
            return None  # torch has no symbol for the result, such as of 2 ** -1
        raise undecided(graph, f"{kind.__name__}() of the symbolic number {number}", error) from None
    finally:
        graph.shapes.note()


def undecided(graph: GraphBuilder, detail: str, error: BaseException) -> GraphBreak:
    """The break where torch would have to decide what only data tells, or a call made at run time."""
    asked = {str(symbol) for symbol in getattr(getattr(error, "cond", None), "free_symbols", ())}
    drawn = bool(asked) and asked <= graph.shapes.unknowns
    return GraphBreak(breaks.RUN_TIME_NUMBER if drawn else breaks.DATA_DEPENDENT, detail, error)


def is_data_dependent(error: BaseException) -> bool:
    """Whether torch says that it can't decide without the data, or its kernel read that of a fake tensor. (The first
    one's class's module is imported only with symbols.)"""
    if isinstance(error, RuntimeError) and "its data is not allocated yet" in str(error):
        return True
    return any(kind.__name__ == "GuardOnDataDependentSymNode" for kind in type(error).__mro__)


def from_symbolic(tx: Tracer, number: Any, source: Source | None = None) -> Value:
    """The model of a symbolic number; of a constant if it is one after all."""
    found = symbols.plain(number)
    if not symbols.is_symbolic(found):
        return ConstVal(found)
    made = SymVal(tx.graph, number, source)
    if isinstance(number, torch.SymBool) and made.varies:
        # torch's arithmetic on symbolic bools is not Python's (True == 1, True + 1), and a bool is there to be decided
        return ConstVal(made.const()) if made.of_sizes else UnreadFlag(tx, made)
    return made


class UnreadFlag(Unread):
    """What a comparison of numbers that vary gives, until it is decided."""

    source = None

    def __init__(self, tx: Tracer, flag: SymVal) -> None:
        super().__init__(tx, bool)
        self._flag = flag

    def read(self) -> Any:
        return self._flag.const()

    @property
    def compared(self) -> SymVal | None:
        """The comparison itself, unless it is decided."""
        return None if self.is_read else self._flag

    @property
    def hint(self) -> Any:
        return self._flag.number.node.hint

    def describe(self) -> str:
        return "whether numbers that vary compare"

    def rebuild(self, out: Any) -> None:
        self._flag.rebuild(out)


def is_number(value: Value) -> bool:
    """Whether it is an int, float or bool, symbolic or not."""
    return isinstance(value, SymVal) or value.py_type() in (int, float, bool)


def _int(number: Any) -> Any:
    return _trunc(number) if isinstance(number, torch.SymFloat) else number + 0


def _index(number: Any) -> Any:
    """The int itself: `SymInt.__index__` would be the number at hand."""
    return number if isinstance(number, torch.SymInt) else operator.index(number)


def _trunc(number: Any) -> Any:
    """Towards zero, by the sign: of `trunc(n / 2) >= 0` torch concludes that n is not negative, and it may be -1."""
    if not isinstance(number, torch.SymFloat):
        return math.trunc(number)
    try:
        return math.floor(number) if number >= 0 else math.ceil(number)
    except RuntimeError as error:
        if not is_data_dependent(error):
            raise
        return torch.sym_int(number)  # type: ignore[no-untyped-call]


def _round(number: Any, digits: Any = None) -> Any:
    """To an integer. With digits, torch gives integers as they are, for negative ones too, and loses signs of zero."""
    if digits is not None and (not isinstance(number, torch.SymInt) or type(digits) is not int or digits < 0):
        raise NotImplementedError
    return number if isinstance(number, torch.SymInt) else round(number)


def _power(base: Any, exponent: Any, *modulus: Any) -> Any:
    """A power whose exponent varies has a base above 0: of others torch says that they are as negative as the base is,
    whatever the exponent, and its search for their bounds has no end."""
    of_floats = not _FLOATS.isdisjoint(map(type, (base, exponent)))
    if modulus or of_floats or not symbols.is_symbolic(exponent) or exponent < 0:
        return pow(base, exponent, *modulus)
    if symbols.is_symbolic(base):
        if not base.node.shape_env.bound_sympy(base.node.expr).lower >= 1:
            raise NotImplementedError
    elif base == 0:
        raise NotImplementedError
    elif base < 0:
        sign = 1 - 2 * (exponent % 2)
        return sign if base == -1 else _power(-base, exponent) * sign
    return base**exponent


def _root(number: Any) -> Any:
    return torch._sym_sqrt(number)  # type: ignore[attr-defined]


def _extreme(fn: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def extreme(*numbers: Any) -> Any:
        best = numbers[0]
        for number in numbers[1:]:
            best = fn(best, number)
        return best

    return extreme


# function of the program -> function that takes and gives symbolic numbers
SYMBOLIC: dict[Any, Callable[..., Any]] = {
    **{
        getattr(operator, name): getattr(operator, name)
        for name in (
            *("add", "sub", "mul", "truediv", "floordiv", "mod", "neg", "pos", "abs", "and_", "or_", "xor"),
            *("lshift", "rshift", "eq", "ne", "lt", "le", "gt", "ge"),
        )
    },
    **{fn: fn for fn in (abs, math.floor, math.ceil)},
    **dict.fromkeys((operator.pow, pow), _power),
    math.trunc: _trunc,
    operator.index: _index,
    torch.sym_int: _int,
    **{fn: fn for fn in (torch.sym_float, torch.sym_not, torch.sym_max, torch.sym_min, torch.sym_ite)},
    round: _round,
    int: _int,
    float: torch.sym_float,
    builtins.max: _extreme(torch.sym_max),
    builtins.min: _extreme(torch.sym_min),
    math.sqrt: _root,
    **{
        getattr(math, name): getattr(torch, f"_sym_{name}")
        for name in ("cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan")
        if hasattr(torch, f"_sym_{name}")
    },
}


# what truth values have symbols for, among themselves
_OF_BOOLS = frozenset({operator.eq, operator.ne, operator.and_, operator.or_, torch.sym_not})


_DIVISIONS = frozenset({operator.truediv, operator.floordiv, operator.mod})
# which operand they refuse where it is negative, also those of which torch has the result without looking: `0 << n`
_NOT_NEGATIVE = {math.sqrt: 0, operator.lshift: 1, operator.rshift: 1}
_FLOATS = frozenset({float, torch.SymFloat})
# what raises for some numbers: where they are large, infinite, negative, or a zero
_RAISING = frozenset({math.cosh, math.sinh, math.asin, math.acos})
_RAISING_OF_FLOATS = frozenset({operator.pow, builtins.pow, math.sqrt, math.cos, math.sin, math.tan})
_FLOAT_REMAINDERS = frozenset({operator.floordiv, operator.mod})
COMPARISONS = frozenset({operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge})


def _numbers_for(fn: Any, args: Sequence[Value]) -> list[Any] | None:
    """The operands as torch and sympy compute with them; None if they would compute something else."""
    if any(isinstance(arg, UnreadFlag) and not arg.is_read for arg in args):
        return None  # they are computed with at run time
    known = _with_bools_decided(fn, args)
    if known is None:
        return None
    numbers = [arg.number if isinstance(arg, SymVal) else arg.const() for arg in known]
    kinds = set(map(type, numbers))
    if bool in kinds and torch.SymBool not in kinds:
        if fn in (builtins.max, builtins.min):
            return None  # the result may be the bool itself
        numbers = [int(number) if type(number) is bool else number for number in numbers]  # sympy tells them apart
    return None if any(map(_is_unlike, numbers)) else numbers


def _with_bools_decided(fn: Any, args: Sequence[Value]) -> Sequence[Value] | None:
    """The operands; None if no number among them varies. sympy has no arithmetic of truth values, and none of them is
    equal to a number: they are decided, but where all are."""
    bools = [arg.py_type() is bool for arg in args]
    if fn is torch.sym_ite or (fn in _OF_BOOLS and all(bools)):
        return args
    if not any(isinstance(arg, SymVal) and not truth for arg, truth in zip(args, bools, strict=True)):
        return None
    return [ConstVal(arg.const()) if truth else arg for arg, truth in zip(args, bools, strict=True)]


def _is_unlike(number: Any) -> bool:
    """Whether sympy computes otherwise with it: it has one zero, and none of the laws of NaN."""
    return (type(number) is float and str(number) in ("-0.0", "nan")) or symbols.is_large(number)


def _raises(tx: Tracer, fn: Any, args: Sequence[Value], numbers: list[Any]) -> bool:
    """Whether the program raises where it computes this of numbers of which some vary."""
    if fn in _DIVISIONS and args[1].varies and not decide(tx.graph, bool, numbers[1] != 0):
        return True
    place = _NOT_NEGATIVE.get(fn)
    if place is not None and args[place].varies and not decide(tx.graph, bool, numbers[place] >= 0):
        return True
    # a number of its own, computed before the graph: where it raises is another variant
    return _may_raise(fn, numbers)


def operate(tx: Tracer, fn: Any, args: Sequence[Value]) -> Value | None:
    """`fn` on numbers of which some are symbolic; None where only the numbers themselves will do."""
    function = SYMBOLIC.get(fn)
    if function is None or not all(map(is_number, args)):
        return None
    numbers = _numbers_for(fn, args)
    if numbers is None:
        return None
    if fn in _FLOAT_REMAINDERS and not _FLOATS.isdisjoint(map(type, numbers)):
        return None  # torch's are those of real numbers: it rounds `a / b` first, and has bounds for integers
    if any(arg.varies for arg in args) and _raises(tx, fn, args, numbers):
        return None
    of_floats = is_float_operation(fn, numbers)
    simple = beside_zero(fn, numbers) if of_floats else None
    if simple is not None:
        return tx.from_real(simple)
    return _computed(tx, fn, FLOAT_OPERATIONS[fn] if of_floats else function, numbers)


def _may_raise(fn: Any, numbers: list[Any]) -> bool:
    return fn in _RAISING or (fn in _RAISING_OF_FLOATS and not _FLOATS.isdisjoint(map(type, numbers)))


def _may_be_another_zero(result: Any, numbers: list[Any]) -> bool:
    """Whether -0.0 is, or may be for other numbers, what torch has a 0.0 for: also 0 divided by what varies."""
    if type(result) is not torch.SymFloat or result.node.hint != 0:
        return False
    return is_negative_zero(result.node.hint) or sum(map(symbols.is_symbolic, numbers)) > 1


def _overflows(result: Any) -> bool:
    """Whether guards could not compute with it, whose integers have 64 bits; sympy makes some of them infinite."""
    hint = result.node.hint if type(result) is torch.SymInt else None
    return hint is not None and not -symbols.INT_LIMIT <= hint < symbols.INT_LIMIT


def _computed(tx: Tracer, fn: Any, function: Callable[..., Any], numbers: list[Any]) -> Value | None:
    try:
        result = function(*numbers)
        symbols.tree_of(result.node.expr) if symbols.is_symbolic(result) else None
    except RuntimeError as error:
        if not is_data_dependent(error):
            return None  # torch has no symbol for the result, such as of 2 ** -1
        raise undecided(tx.graph, f"{fn.__name__} of symbolic numbers", error) from None
    except (TypeError, ValueError, ArithmeticError, NotImplementedError, AttributeError, symbols.Untranslatable):
        return None  # the numbers themselves say what is wrong, if anything is
    finally:
        tx.graph.shapes.note()
    if tx.graph.shapes.takes_for_granted():
        raise GraphBreak(breaks.RUN_TIME_NUMBER, f"{fn.__name__} of symbolic numbers")
    if _may_be_another_zero(result, numbers) or _overflows(result):
        return None
    of_floats = fn in COMPARISONS and any(isinstance(number, torch.SymFloat) for number in numbers)
    if of_floats and not symbols.is_symbolic(symbols.plain(result)):
        return None  # decided by laws, such as that of `x == x`, that NaN and infinities do not keep
    return None if result is NotImplemented else tx.from_real(result)
