"""Models of `heapq` and `bisect`: the real C functions, run on stand-ins whose comparison is traced.

In: a list's model. Out: the list in the order that the real function gives, with the comparisons that it makes.
"""

from __future__ import annotations

import _bisect
import _heapq
from typing import Any

from dynajit.report import breaks
from dynajit.values.containers.lengths import leave_long
from dynajit.values.containers.sequence import ListVal
from dynajit.values.containers.standin import StandIn, call_real, keyed, value_of
from dynajit.values.core.registry import builtin, models_of
from dynajit.values.core.value import GraphBreak, Tracer, Value
from dynajit.values.scalars.constant import is_none
from dynajit.values.scalars.number_calls import called_on_number, model_of

_NAMES = ("heappush", "heappop", "heapify", "heappushpop", "heapreplace")
# of the largest first there are some or all, under one of two names
_SPELLINGS = [spelling for name in _NAMES for spelling in (name, f"_{name}_max", f"{name}_max")]


@models_of(*(getattr(_heapq, spelling) for spelling in _SPELLINGS if hasattr(_heapq, spelling)))
def _heap(function: Any, tx: Tracer, heap: Value, *item: Value) -> Value:
    if not isinstance(heap, ListVal):
        heap.unsupported(f"heapq.{function.__name__}")
    leave_long(tx, heap)
    real = [StandIn(tx, part) for part in heap.values(tx)]
    try:
        return value_of(call_real(tx, function, real, *(StandIn(tx, part) for part in item)))
    finally:  # where a comparison raises, it is changed so far
        heap.replace(tx, [part.value for part in real])


def _computed(tx: Tracer, search: Any, *given: Value | None) -> Value | None:
    """The place among numbers or texts, of which some vary: computed at each call, so that nothing depends on it."""
    args = {place: value for place, value in enumerate(given) if value is not None}
    if args[0].py_type() not in (list, tuple):
        return None
    called = called_on_number(tx, search, args)
    return model_of(tx, *called) if called is not None else None


def _bisection(search: Any, insertion: Any) -> None:
    @builtin(search)
    def find(
        tx: Tracer, a: Value, x: Value, lo: Value | None = None, hi: Value | None = None, *, key: Value | None = None
    ) -> Value:
        found = _computed(tx, search, a, x, lo, hi) if key is None else None
        if found is not None:
            return found
        kind = a.py_type()
        if issubclass(kind, dict) or not hasattr(kind, "__getitem__"):
            raise GraphBreak(breaks.RAISES, f"{search.__name__} in {a.describe()}, which is no sequence")
        if hi is None or is_none(hi):
            tx.call(tx.from_real(len), [a], {})  # which may raise
        items = [StandIn(tx, part) for part in tx.unpack(a)]
        limits = 0 if lo is None else StandIn(tx, lo), None if hi is None or is_none(hi) else StandIn(tx, hi)
        return value_of(call_real(tx, search, items, StandIn(tx, x), *limits, key=keyed(tx, key)))

    @builtin(insertion)
    def insert(
        tx: Tracer, a: Value, x: Value, lo: Value | None = None, hi: Value | None = None, *, key: Value | None = None
    ) -> None:
        wanted = x if is_none(key) else tx.call(key, [x], {})  # type: ignore[arg-type]
        a.call_method(tx, "insert", [find(tx, a, wanted, lo, hi, key=key), x], {})


_bisection(_bisect.bisect_left, _bisect.insort_left)
_bisection(_bisect.bisect_right, _bisect.insort_right)
