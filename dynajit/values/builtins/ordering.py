"""Models of `heapq` and `bisect`: the real C functions, run on stand-ins whose comparison is traced.

In: a list's model. Out: the list in the order that the real function gives, with the comparisons that it makes.
"""

from __future__ import annotations

import _bisect
import _heapq
from collections.abc import Callable, Sequence
from typing import Any

from dynajit.values.base import Tracer, Value
from dynajit.values.builtins.registry import builtin
from dynajit.values.constant import ConstVal, integer_of
from dynajit.values.sequence import ListVal


class Ordered:
    """Stands for a value where C code compares with `<`."""

    __slots__ = ("tx", "value")

    def __init__(self, tx: Tracer, value: Value) -> None:
        self.tx = tx
        self.value = value

    def __lt__(self, other: Ordered) -> bool:
        return self.tx.holds(self.value, "<", other.value)


def _heap(function: Callable[..., Any], takes_item: bool, gives_item: bool) -> None:
    @builtin(function)
    def model(tx: Tracer, heap: Value, *item: Value) -> Value:
        if not isinstance(heap, ListVal) or len(item) != takes_item:
            heap.unsupported(f"heapq.{function.__name__}")
        stand_ins = [Ordered(tx, part) for part in heap.values(tx)]
        try:
            found = function(stand_ins, *(Ordered(tx, part) for part in item))
        except IndexError as error:
            raise tx.raised(IndexError, *error.args) from None
        heap.replace(tx, [part.value for part in stand_ins])
        return found.value if gives_item else ConstVal(None)  # type: ignore[no-any-return]


for _name, _takes, _gives in (
    ("heappush", True, False),
    ("heappop", False, True),
    ("heapify", False, False),
    ("heappushpop", True, True),
    ("heapreplace", True, True),
):
    # of the largest first there are some or all, under one of two names
    for _made in (_name, f"_{_name}_max", f"{_name}_max"):
        if hasattr(_heapq, _made):
            _heap(getattr(_heapq, _made), _takes, _gives)


def _bisection(function: Callable[..., int]) -> None:
    @builtin(function)
    def model(
        tx: Tracer,
        a: Value,
        x: Value,
        lo: Value | None = None,
        hi: Value | None = None,
        *,
        key: Value | None = None,
    ) -> Value:
        stand_ins = [Ordered(tx, part) for part in tx.unpack(a)]
        limits = [integer_of(tx, lo, "lo") if lo is not None else 0]
        if hi is not None and not (isinstance(hi, ConstVal) and hi.value is None):
            limits.append(integer_of(tx, hi, "hi"))
        named: dict[str, Any] = {}
        if key is not None and not (isinstance(key, ConstVal) and key.value is None):
            named["key"] = lambda part: Ordered(tx, tx.call(key, [part.value], {}))
        try:
            position = function(stand_ins, Ordered(tx, x), *limits, **named)
        except ValueError as error:
            raise tx.raised(ValueError, *error.args) from None
        return ConstVal(position)


def _search_of(function: Any) -> Callable[..., int]:
    """The search by which an insertion finds its place; the key was applied to the item already."""
    return _bisect.bisect_left if function is _bisect.insort_left else _bisect.bisect_right


_functions: Sequence[Any] = (_bisect.bisect_left, _bisect.bisect_right)
for _search in _functions:
    _bisection(_search)


def _insertion(function: Any) -> None:
    search = _search_of(function)

    @builtin(function)
    def model(
        tx: Tracer,
        a: Value,
        x: Value,
        lo: Value | None = None,
        hi: Value | None = None,
        *,
        key: Value | None = None,
    ) -> Value:
        given = {} if key is None else {"key": key}
        wanted = x if key is None else tx.call(key, [x], {})
        limits = [part for part in (lo or ConstVal(0), hi) if part is not None]
        position = tx.call(tx.from_real(search), [a, wanted, *limits], given)
        a.call_method(tx, "insert", [position, x], {})
        return ConstVal(None)


for _insort in (_bisect.insort_left, _bisect.insort_right):
    _insertion(_insort)
