"""Functions of Python's library that call back, rewritten in plain Python to be traced.

In: what the real function takes. Out: what it returns (iterators are generators). To add one, write it here and
register it with `@builtin` or `@constructor` in the room of its model.
"""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_MISSING: Any = object()


def each(iterator: Iterator[Any]) -> Iterator[Any]:
    for item in iterator:  # noqa: UP028 - `yield from` would need the iterator's send
        yield item


def by_position(sequence: Any) -> Iterator[Any]:
    """Iteration over an object that has `__getitem__` alone."""
    position = 0
    while True:
        try:
            item = sequence[position]
        except (IndexError, StopIteration):
            return
        yield item
        position += 1


def backwards(sequence: Any, length: int) -> Iterator[Any]:
    """`reversed` of an object that has `__getitem__` alone."""
    for position in range(length - 1, -1, -1):
        try:
            item = sequence[position]
        except (IndexError, StopIteration):
            return
        yield item


def iter_until(fn: Callable[[], Any], sentinel: Any) -> Iterator[Any]:
    while True:
        value = fn()
        if value is sentinel or value == sentinel:
            return
        yield value


def next_or(iterator: Any, default: Any) -> Any:
    """`next(iterator, default)`"""
    try:
        return next(iterator)
    except StopIteration:
        return default


def map_(fn: Callable[..., Any], *iterables: Iterator[Any], strict: bool = False) -> Iterator[Any]:
    return _map_strictly(fn, iterables) if strict else starmap(fn, zip(*iterables))


def _map_strictly(fn: Callable[..., Any], iterators: tuple[Iterator[Any], ...]) -> Iterator[Any]:
    while True:
        items: list[Any] = []
        for iterator in iterators:
            item = next(iterator, _MISSING)
            if item is _MISSING:
                _check_all_ended(iterators, len(items))
                return
            items.append(item)
        yield fn(*items)


def _check_all_ended(iterators: tuple[Iterator[Any], ...], ended: int) -> None:
    """The iterator at place `ended` is the first to have no more items: an error as zip's, but for the name, if it is
    not the first one, or if another has an item left."""
    if ended > 0:
        raise ValueError(f"map() argument {ended + 1} is shorter than argument{'s 1-' if ended > 1 else ' '}{ended}")
    for place, iterator in enumerate(iterators[1:], 1):
        if next(iterator, _MISSING) is not _MISSING:
            raise ValueError(f"map() argument {place + 1} is longer than argument{'s 1-' if place > 1 else ' '}{place}")


def filter_(fn: Callable[[Any], Any] | None, iterable: Iterable[Any]) -> Iterator[Any]:
    for item in iterable:
        if item if fn is None else fn(item):
            yield item


def all_(iterable: Iterable[Any]) -> bool:
    for item in iterable:  # noqa: SIM110
        if not item:
            return False
    return True


def any_(iterable: Iterable[Any]) -> bool:
    for item in iterable:  # noqa: SIM110
        if item:
            return True
    return False


def reduce_(fn: Callable[[Any, Any], Any], iterable: Iterable[Any], *initial: Any) -> Any:
    iterator = iter(iterable)
    if initial:
        total = initial[0]
    else:
        total = next(iterator, _MISSING)
        if total is _MISSING:
            raise TypeError("reduce() of empty iterable with no initial value")
    for item in iterator:
        total = fn(total, item)
    return total


def chain(*iterables: Iterable[Any]) -> Iterator[Any]:
    return chain_from_iterable(iterables)


def chain_from_iterable(iterables: Iterable[Iterable[Any]]) -> Iterator[Any]:
    for iterable in iterables:
        for item in iterable:  # noqa: UP028
            yield item


def islice(iterable: Iterable[Any], start: int, stop: int | None, step: int) -> Iterator[Any]:
    wanted = start
    for index, item in enumerate(iterable):
        if stop is not None and index >= stop:
            return
        if index == wanted:
            yield item
            wanted += step
        if stop is not None and index + 1 >= stop:
            return


def starmap(fn: Callable[..., Any], iterable: Iterable[Iterable[Any]]) -> Iterator[Any]:
    for items in iterable:
        yield fn(*items)


def takewhile(fn: Callable[[Any], Any], iterable: Iterable[Any]) -> Iterator[Any]:
    for item in iterable:
        if not fn(item):
            return
        yield item


def dropwhile(fn: Callable[[Any], Any], iterable: Iterable[Any]) -> Iterator[Any]:
    dropping = True
    for item in iterable:
        if dropping and fn(item):
            continue
        dropping = False
        yield item


def accumulate(
    iterable: Iterable[Any], func: Callable[[Any, Any], Any] | None = None, *, initial: Any = None
) -> Iterator[Any]:
    iterator = iter(iterable)
    total = initial
    if initial is None:
        total = next(iterator, _MISSING)
        if total is _MISSING:
            return
    yield total
    for item in iterator:
        total = total + item if func is None else func(total, item)
        yield total


def repeat(value: Any, times: int | None) -> Iterator[Any]:
    while times is None:
        yield value
    for _ in range(times):
        yield value


def count(start: Any, step: Any) -> Iterator[Any]:
    while True:
        yield start
        start = start + step


def cycle(iterable: Iterable[Any]) -> Iterator[Any]:
    saved = []
    for item in iterable:
        yield item
        saved.append(item)
    while saved:
        for item in saved:
            yield item


def compress(data: Iterable[Any], selectors: Iterable[Any]) -> Iterator[Any]:
    for item, chosen in zip(data, selectors):
        if chosen:
            yield item


def pairwise(iterable: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    previous = _MISSING
    for item in iterable:
        if previous is not _MISSING:
            yield previous, item
        previous = item


def zip_longest(*iterables: Iterable[Any], fillvalue: Any = None) -> Iterator[tuple[Any, ...]]:
    iterators = [iter(iterable) for iterable in iterables]
    while True:
        items = [next(iterator, _MISSING) for iterator in iterators]
        if all_(item is _MISSING for item in items):
            return
        yield tuple(fillvalue if item is _MISSING else item for item in items)


def groupby(iterable: Iterable[Any], key: Callable[[Any], Any] | None = None) -> Iterator[tuple[Any, Any]]:
    group: list[Any] = []
    current = _MISSING
    for item in iterable:
        found = item if key is None else key(item)
        if current is not _MISSING and not (found is current or found == current):
            yield current, iter(group)
            group = []
        current = found
        group.append(item)
    if current is not _MISSING:
        yield current, iter(group)


def filterfalse(fn: Callable[[Any], Any] | None, iterable: Iterable[Any]) -> Iterator[Any]:
    for item in iterable:
        if not (item if fn is None else fn(item)):
            yield item


def tee(iterable: Iterable[Any], n: int) -> tuple[Iterator[Any], ...]:
    source = iter(iterable)
    waiting: list[list[Any]] = [[] for _ in range(n)]

    def branch(own: list[Any]) -> Iterator[Any]:
        while True:
            if not own:
                item = next(source, _MISSING)
                if item is _MISSING:
                    return
                for other in waiting:
                    other.append(item)
            yield own.pop(0)

    return tuple([branch(own) for own in waiting])


def batched(iterable: Iterable[Any], n: int, *, strict: bool = False) -> Iterator[tuple[Any, ...]]:
    if n < 1:
        raise ValueError("n must be at least one")
    return _batches(iter(iterable), n, strict)


def _batches(iterable: Iterator[Any], n: int, strict: bool) -> Iterator[tuple[Any, ...]]:
    batch: list[Any] = []
    for item in iterable:
        batch.append(item)
        if len(batch) == n:
            yield tuple(batch)
            batch = []
    if batch:
        if strict:
            raise ValueError("batched(): incomplete batch")
        yield tuple(batch)


class KeyByComparison:
    """What `functools.cmp_to_key(compare)` makes of an object."""

    __slots__ = ("compare", "obj")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, compare: Callable[[Any, Any], Any], obj: Any) -> None:
        self.compare = compare
        self.obj = obj

    def __lt__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) < 0  # type: ignore[no-any-return]

    def __gt__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) > 0  # type: ignore[no-any-return]

    def __le__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) <= 0  # type: ignore[no-any-return]

    def __ge__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) >= 0  # type: ignore[no-any-return]

    def __eq__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) == 0  # type: ignore[no-any-return]


def cmp_to_key(mycmp: Callable[[Any, Any], Any]) -> Any:
    return functools.partial(KeyByComparison, mycmp)


def count_of(iterable: Iterable[Any], wanted: Any) -> int:
    found = 0
    for item in iterable:
        if item is wanted or item == wanted:
            found += 1
    return found


def index_of(iterable: Iterable[Any], wanted: Any) -> int:
    for position, item in enumerate(iterable):
        if item is wanted or item == wanted:
            return position
    raise ValueError("sequence.index(x): x not in sequence")


def counter_update(counter: Any, iterable: Iterable[Any]) -> None:
    for item in iterable:
        counter[item] = counter.get(item, 0) + 1


def fromkeys(cls: Any, iterable: Iterable[Any], value: Any = None) -> Any:
    made = cls()
    for key in iterable:
        made[key] = value
    return made


def missing(self: Any, key: Any) -> Any:
    if self.default_factory is None:
        raise KeyError(key)
    self[key] = value = self.default_factory()
    return value


def add_note(self: Any, note: str) -> None:
    if not isinstance(note, str):
        raise TypeError(f"note must be a str, not '{type(note).__name__}'")
    if not hasattr(self, "__notes__"):
        self.__notes__ = []
    self.__notes__.append(note)


def not_equal(self: Any, value: Any) -> Any:
    """`object.__ne__`."""
    kind: Any = type(self)
    found = kind.__eq__(self, value)
    return found if found is NotImplemented else not found


def ordered_update(self: Any, other: Any = (), /, **kwargs: Any) -> None:
    """`OrderedDict.update` and `__init__` of a subclass, whose `__setitem__` stores."""
    if type(other) is not dict and hasattr(other, "keys"):
        for key in other.keys():  # noqa: SIM118 - an `__iter__` of its own isn't asked
            self[key] = other[key]
    else:
        for key, value in other.items() if hasattr(other, "items") else other:
            self[key] = value
    for key, value in kwargs.items():
        self[key] = value


def ordered_setdefault(self: Any, /, key: Any, default: Any = None) -> Any:
    """`OrderedDict.setdefault` of a subclass."""
    if key in self:
        return self[key]
    self[key] = default
    return default


def ordered_copy(self: Any, /) -> Any:
    """`OrderedDict.copy` of a subclass; attributes are not copied."""
    copied = type(self)()
    for key in collections.OrderedDict.__iter__(self):
        copied[key] = self[key]
    return copied


#: methods of an OrderedDict that ask an instance of a subclass
ORDERED: dict[Any, Callable[..., Any]] = {
    collections.OrderedDict.__init__: ordered_update,
    collections.OrderedDict.update: ordered_update,
    collections.OrderedDict.setdefault: ordered_setdefault,
    collections.OrderedDict.copy: ordered_copy,
}


#: what is traced in place of functions that take the same
TRACED: dict[Any, Callable[..., Any]] = {
    object.__ne__: not_equal,
    all: all_,
    any: any_,
    functools.reduce: reduce_,
    functools.cmp_to_key: cmp_to_key,
    operator.countOf: count_of,
    operator.indexOf: index_of,
    collections._count_elements: counter_update,  # type: ignore[attr-defined]
    dict.__dict__["fromkeys"]: fromkeys,
    collections.OrderedDict.__dict__["fromkeys"]: fromkeys,
    collections.defaultdict.__missing__: missing,
    BaseException.add_note: add_note,
}
